"""Tables for the terminal, made from a record alone, and the sentences that they are read with.

print_tables(console, run_tables(record))
for line in reading_aid(record):
    console.print(line)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import pandas as pd
from rich.table import Table

from attacks.figure import headline
from attacks.reconstruction.leakage import PAPER, RECONSTRUCTION, STRONGEST
from attacks.registry import ATTACKS
from attacks.residual import SOURCES
from attacks.view import ALL, THREAT_MODELS
from experiments.audit.artefacts import Audit
from experiments.reporting.frames import (
    Attacked,
    by_inference,
    figure_frame,
    others,
    reconstruction,
    rows_of,
    side_by_side,
    without_links,
)
from experiments.reporting.sheets import TERMINAL, Column, Sheet, make_table, rates, terminal_table, written
from experiments.runs.record import Record
from experiments.runs.seeds import SeedsRecord
from experiments.tasks.task import Statistics, task_named, task_of
from fkgsec.data.catalogue import Dataset
from fkgsec.federation.checkpoint import quantization_lines

INFERENCE_TITLE = f"TRR by inference ({PAPER}: the paper's own)"
RATES = rates(err="ERR", trr="TRR")
FIGURE = {"label": "metric", "estimate": "figure", "baseline": "base", "attainable": "max"}
"""Columns of `figure_frame` for attacks other than reconstruction."""


def run_tables(record: Record) -> list[Table]:
    """Leakage (when the run was attacked), utility, and what it cost. Each fits 80 columns."""
    return [*attack_tables(record), terminal_table(utility_sheet(record)), terminal_table(cost_sheet(record))]


def attack_tables(record: Attacked) -> list[Table]:
    """What every attack found of each victim: of reconstruction a table for each threat model and leak ratio, and its parts."""
    figures, shown = figure_frame({"": record}), figure_frame({"": record}, headline)
    sheets: list[Sheet] = []
    for place in dict.fromkeys(reconstruction(figures)["place"]):
        sheets += _reconstruction_sheets(shown.loc[shown["place"] == place], figures.loc[figures["place"] == place])
    rest = others(shown)
    for attack in dict.fromkeys(rest["attack"]):
        rows = rest.loc[rest["attack"] == attack]
        measured = set(rows.loc[rows["reason"].isna(), "label"])
        rows = (
            rows.loc[rows["label"].isin(measured)] if measured else rows
        )  # `figure_reasons` says why the others were not
        leaking = bool(rows["leak"].notna().any())
        rows = rows.assign(place=rows["place"].str.replace(", leak", ""))  # or it would not fit in 80 columns
        title = f"{attack}, round {rows['round'].iloc[0]}"
        head = "threat, leak" if leaking else "threat"
        sheets.append(Sheet.of(title, rows, {"victim": "victim", "place": head} | FIGURE))
    return [terminal_table(sheet) for sheet in sheets]


def _reconstruction_sheets(shown: pd.DataFrame, figures: pd.DataFrame) -> Iterator[Sheet]:
    shown, figures = (part.loc[part["attack"] == RECONSTRUCTION] for part in (shown, figures))
    first, victim = rows_of(shown)[0], {"victim": "victim"}
    about = THREAT_MODELS[first["threat_model"]].about
    title = f"Reconstruction under {first['place']}, round {first['round']}: {about}"
    yield Sheet.of(title, side_by_side(reconstruction(shown)), victim | RATES)
    if all(row["reason"] for row in rows_of(shown)):
        return
    inferred, names = by_inference(figures)
    if len(inferred):
        yield Sheet.of(f"  {INFERENCE_TITLE}", inferred, victim | inference_columns(names))
    rows = [row for row in rows_of(shown) if row["metric"] == "err"]
    if found := [source for source in SOURCES if any(source in row["counts"] for row in rows)]:
        counts = tuple((row["victim"], *(row["counts"].get(source, 0) for source in found)) for row in rows)
        columns = (Column("victim"), *(Column(source, "count") for source in found))
        yield Sheet("  right entities by what told their holder", columns, counts)
    honest = without_links(shown)
    if len(honest):
        heads = {
            "precision": "precision",
            "recall": "recall",
            "average_precision": "AP",
            "average_precision_base": "base",
        }
        old = [by for by in dict.fromkeys(honest["variant"]) if by != STRONGEST]
        by = f" (relations by {old[0]})" if old else ""
        if not old:
            heads["average_precision_by"] = "strongest"
        yield Sheet.of(f"  without being told which pairs are linked{by}", side_by_side(honest), victim | heads)


def inference_columns(names: Iterable[str]) -> dict[str, str | Column]:
    """Columns of `by_inference`: each of these inferences, the guesses, and which is the strongest."""
    guesses = {"majority": "majority", "prior": "prior", "strongest_by": "strongest"}
    return {name: Column(name, "share") for name in names} | guesses


def utility_sheet(record: Record) -> Sheet:
    """Utility of each client, apart for test items that stand in train too, and of all, whose headline has its interval."""
    task, total = task_of(record.spec), record.utility
    rows = dict(record.utility_by_client)
    if record.utility_by_leak["leaked"][task.metric].n:
        rows |= {task.leaked[kind]: figures for kind, figures in record.utility_by_leak.items()}
    if record.utility_shared:
        rows["shared model, all"] = record.utility_shared
    cells = [(client, figures[task.metric].n, *(figures[name] for name in total)) for client, figures in rows.items()]
    shown = [written(figure, "score" if name == task.metric else "mean", TERMINAL) for name, figure in total.items()]
    metrics = (Column(task.label(name), "score" if len(total) == 1 else "mean") for name in total)
    return Sheet(
        task.utility_title(record.spec),
        (Column("client"), Column(task.items, "text"), *metrics),
        (*cells, (ALL, total[task.metric].n, *shown)),
    )


def cost_sheet(record: Record) -> Sheet:
    """Rounds, bytes and seconds."""
    trained, first = record.rounds[1:], record.rounds[0]
    cells = {
        Column("rounds"): len(trained),
        Column("kept"): record.best_round,
        Column("bytes up", "count"): record.bytes.up,
        Column("bytes down", "count"): record.bytes.down,
        Column("alignment", "count"): first.bytes_up + first.bytes_down,
        Column("a round up", "count"): max((entry.bytes_up for entry in trained), default=0),
        Column("s"): f"{sum(entry.seconds for entry in record.rounds):.1f}",
        Column("device"): record.environment.device,
    }
    return Sheet("Cost", tuple(cells), (tuple(cells.values()),))


def reading_aid(record: Record) -> list[str]:
    """What the figures mean, in sentences that hold for this run."""
    return [*protection_lines(record), *leakage_aid(record), *figure_aid(record), *figure_reasons(record)]


def protection_lines(record: Record) -> list[str]:
    """What the defense protects, and what it cost the training."""
    lines = [f"{line}." for line in record.protection]
    trained = record.rounds[1:]
    void = sum(entry.num_survivors == 0 for entry in trained)
    if record.protection and void:
        lines.append(f"{void} of {len(trained)} rounds opened nothing: too many clients dropped out.")
    if kept := sum(entry.num_kept_rows for entry in trained):
        lines.append(f"{kept:,} rows kept their old value: a client put more into the secure sum than the clip allows.")
    lines += [f"{line[0].upper()}{line[1:]}." for line in quantization_lines(trained)]
    clipped = sum(entry.num_clipped for entry in trained)
    return [*lines, f"{clipped:,} uploaded values were cut by the server's robust rule."] if clipped else lines


def leakage_aid(record: Record | Audit) -> list[str]:
    """What the leakage figures mean, and why some were not measured; nothing when the run was not attacked."""
    if not record.leakage:
        return []
    summed = any(row.sources for row in record.leakage)
    lines = [
        "ERR: entities named right. TRR: training triples rebuilt when the linked pairs are given. base: the best guess of the "
        "same adversary without what crossed in the rounds; only the difference is what the rounds leak. Below base it does "
        "better by ignoring them, so what leaks is at least base. max: the share whose names (and relation) the adversary knows, "
        "which no attack of its kind exceeds. Ranges are 95 % "
        "intervals; they cover which entities leaked, not other trainings."
    ]
    if any(row.inference == STRONGEST for row in record.leakage):
        lines.append(
            "TRR is that of the strongest way to infer relations, base among them, its range widened for the choice; the table "
            "below it has each, of which cosine is the papers' own."
        )
    if summed:
        lines.append(
            "Rows are summed: the adversary subtracts the colluder's part and infers who holds each row of what is left, from "
            "counts and places, which noise on values does not change; ERR counts that. The second table says what told it: the "
            "alignment in clear, one victim alone in the sum, as many holders as victims, the counts of other rounds, or a "
            "draw. base: as many of the names it knows, drawn at random. The attack without linked pairs is not run on sums."
        )
    if any(row.unlinked for row in record.leakage):
        lines.append(
            "Not told which pairs are linked, the adversary claims as many triples as the colluder's own density suggests: "
            "precision and recall of those claims, AP over the whole ranking (200 sampled heads unless told otherwise)."
        )
    if any(0 < row.num_attacked < len(record.data.clients) - 1 for row in record.leakage if row.victim == ALL):
        lines.append("'all' counts the victims that could be attacked.")
    reasons = dict.fromkeys((row.threat_model, row.reason) for row in record.leakage if row.reason)
    return [
        *lines,
        *(f"Nothing to attack under {threat}: {reason}." for threat, reason in reasons),
        *_remark_lines(record),
    ]


def _remark_lines(record: Record | Audit) -> Iterator[str]:
    """Each remark on victims once, after all victims and threat models that it is about."""
    places: dict[str, dict[str, list[str]]] = {}
    for row in record.leakage:
        for remark in filter(None, (row.remark or "").split("; ")):
            known = places.setdefault(remark, {}).setdefault(f"{row.threat_model}, leak {row.leak:g}", [])
            known.extend({row.victim} - {ALL, *known})
    for remark, victims_of in places.items():
        by_victims: dict[str, list[str]] = {}
        for place, victims in victims_of.items():
            by_victims.setdefault(", ".join(victims) or ALL, []).append(place)
        about = "; ".join(f"{victims} under {' and '.join(where)}" for victims, where in by_victims.items())
        yield f"{about}: {remark}."


def figure_aid(record: Record) -> list[str]:
    """What the figures of attacks on runs of other tasks than knowledge-graph embedding mean; nothing of these."""
    if record.spec.task == ATTACKS[RECONSTRUCTION].task or not record.attacked:
        return []
    shown = dict.fromkeys((one.attack, one.metric) for one in headline(record.figures) if not one.reason)
    lines = [f"{attack}.{metric}: {ATTACKS[attack].metrics[metric]}." for attack, metric in shown if attack in ATTACKS]
    return [
        *lines,
        "base: what a guess gets. max: the most that a figure can be. Ranges are 95 % intervals, of one training.",
    ]


def figure_reasons(record: Record) -> list[str]:
    """Why victims of attacks other than reconstruction were not attacked, or some metrics of an attack not measured."""
    rows = rows_of(others(figure_frame({"": record})))
    attacked = {(row["attack"], row["threat_model"], row["victim"]) for row in rows if not row["reason"]}
    lines: list[str] = []
    unmeasured: dict[tuple[str, str, str], list[str]] = {}
    for row in rows:
        place = (row["attack"], row["threat_model"], row["victim"])
        if row["reason"] and place not in attacked:
            lines.append(f"{place[0]} under {place[1]}: {place[2]} was not attacked ({row['reason']}).")
        elif row["reason"]:
            key = (f"{place[0]}.{row['metric']}", place[1], row["reason"])
            unmeasured.setdefault(key, []).append(place[2])
    for (key, threat, reason), victims in unmeasured.items():
        lines.append(f"{key} under {threat}: not measured for {', '.join(dict.fromkeys(victims))} ({reason}).")
    return list(dict.fromkeys(lines))


def attack_lines() -> list[str]:
    """The registered attacks: what each needs, the threat models that give it, and what it measures."""
    lines = []
    for name, one in ATTACKS.items():
        models = one.threat_models
        about = f"{one.about} ({task_named(one.task).about})"
        lines += [f"{name}: {about}", f"  needs: {one.need_words}", f"  threat models: {', '.join(models)}"]
        lines += [f"  {name}.{metric}: {about}" for metric, about in one.metrics.items()]
    return lines


SEEDS_AID = (
    "Each seed is a training of its own on the same data and division. The interval covers the items of one training and the "
    "spread between trainings; of bytes the largest is shown."
)


def seeds_table(several: SeedsRecord) -> Table:
    """Figures over several seeds, with the smallest and the largest of them. Fits 80 columns."""
    seeds = ", ".join(map(str, several.seeds))
    table = make_table(f"Over seeds {seeds}", "figure", "mean", "95 % interval", "least", "most")
    for name, figure in several.figures.items():
        one, place = figure.over, name.replace("/", "\n  ", 1)
        if one.method == "exact":
            table.add_row(place, f"{one.value:,.0f}", "", *(f"{of:,.0f}" for of in _ends(figure.values)))
        else:
            interval = f"[{one.low:.4f}, {one.high:.4f}]"
            table.add_row(place, f"{one.value:.4f}", interval, *(f"{of:.4f}" for of in _ends(figure.values)))
    return table


def _ends(values: Sequence[float]) -> tuple[float, float]:
    return min(values), max(values)


def statistics_tables(statistics: Statistics) -> list[Table]:
    """What the data are."""
    shown = []
    for one in statistics.tables:
        shown.append(make_table(one.title, *one.heads))
        for row in one.rows:
            shown[-1].add_row(*row)
    return shown


def catalogue_table(known: Iterable[Dataset]) -> Table:
    """The known knowledge graphs."""
    table = make_table("Knowledge graphs, beside the embedded default 'consortium'", "name", "layout", "licence")
    for dataset in known:
        table.add_row(dataset.name, dataset.layout, dataset.licence)
    return table


def collection_table(known: Iterable[str], groups: Mapping[str, Sequence[str]]) -> Table:
    """The known sets of graphs to classify, and the groups that each is in."""
    table = make_table("Graphs to classify, beside the generated default 'motifs'", "set", "in the groups")
    for name in known:
        table.add_row(name, ", ".join(group for group, sets in groups.items() if name in sets))
    return table
