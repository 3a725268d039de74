"""The report's tables and charts. Each takes the runs on the same data; a figure never stands without its interval.

overview(runs).rows                                      # of each run and attack ERR, TRR, their bases, MRR and bytes
overview_charts("f1", runs)                              # the same as dots with intervals
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from attacks.figure import STRONGEST, Figure, headline
from attacks.reconstruction.leakage import UNLINKED, Item, Leakage, inference_label, items_of
from attacks.view import ALL, THREAT_MODELS
from experiments.reporting.frames import (
    attack_name,
    by_inference,
    figure_frame,
    others,
    over_all,
    pooled,
    reconstruction,
    rows_of,
    run_frame,
    side_by_side,
    without_links,
)
from experiments.reporting.html.charts import Dot, Group, Line, dot_plot, line_plot
from experiments.reporting.html.model import Chart, Run
from experiments.reporting.html.notation import count, mebibytes, score_text
from experiments.reporting.html.ranking import NOTHING, Risk
from experiments.reporting.html.words import NO_BREAK, adversary, base_of, percent, share
from experiments.reporting.sheets import Column, Kind, Sheet, rates
from experiments.reporting.tables import FIGURE
from experiments.runs.record import Record
from experiments.tasks.task import task_of
from fkgsec import estimate

RATES = rates(err="entities named (ERR)", trr="triples rebuilt (TRR)")
_PLACE = {"victim": "victim", "run": "run", "place": "attack"}
_KINDS: dict[str, Kind] = {"share": "rate", "MiB": "MiB"}


def adversaries(runs: Sequence[Run]) -> Sheet | None:
    """Each adversary once, with the runs it attacked; None when none was."""
    attacked: dict[tuple[str, str, str], list[str]] = {}
    for run in runs:
        for row in pooled(run.record):
            words = adversary(run.record, row)
            who = f"{words.who[0].upper()}{words.who[1:]}. Beforehand it knew {words.knows}."
            attacked.setdefault((attack_name(row.threat_model, row.leak), words.saw, who), []).append(run.name)
    found = sorted(attacked.items(), key=lambda item: item[0][0])
    rows = tuple((*key, "; ".join(dict.fromkeys(names))) for key, names in found)
    heads = ("attack", "what it saw", "who, and what it knew", "runs")
    return Sheet("The adversaries", tuple(map(Column, heads)), rows) if rows else None


def overview(runs: Sequence[Run]) -> Sheet:
    """A row for each run and attack, over all victims."""
    records = _records(runs)
    costs = {row["run"]: {"mrr": row["mrr"], "bytes": row["bytes"]} for row in rows_of(run_frame(records))}
    rows = rows_of(_rates(records, over_all))
    rows += [{"run": run.name, "place": _untouched(run)} for run in runs if not run.record.leakage]
    frame = pd.DataFrame([row | costs[row["run"]] for row in sorted(rows, key=_risk, reverse=True)], dtype=object)
    heads = {"run": "run", "place": "attack", **RATES, "mrr": "test MRR", "bytes": "MiB"}
    title = "Utility, leakage of all victims together, and bytes; the greatest risk first"
    return Sheet.of(title, frame, heads, notes=_reasons(runs))


def _untouched(run: Run) -> str:
    """What is said where reconstruction has no figures."""
    return "nothing to attack" if run.record.leakage else "no reconstruction" if run.record.attacked else "not attacked"


def _records(runs: Sequence[Run]) -> dict[str, Record]:
    return {run.name: run.record for run in runs}


def _rates(records: Mapping[str, Record], pick: Callable[[Sequence[Figure]], list[Figure]]) -> pd.DataFrame:
    """ERR and TRR side by side."""
    return side_by_side(reconstruction(figure_frame(records, pick)))


def _risk(row: Mapping[str, Any]) -> Risk:
    """What rows are sorted by, see `experiments.reporting.html.ranking`."""
    pairs = [(row[rate].value, row[f"{rate}_base"]) for rate in ("trr", "err") if row.get(rate) is not None]
    return (*(value - base for value, base in pairs), *(max(pair) for pair in pairs)) or NOTHING


def _by_risk(frame: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame(sorted(rows_of(frame), key=_risk, reverse=True), columns=frame.columns, dtype=object)


def overview_charts(identity: str, runs: Sequence[Run]) -> tuple[Chart, ...]:
    """The same as dots with their intervals: entities named, triples rebuilt."""
    based = "upright bar: base"
    return tuple(
        dot_chart(f"{identity}-{rate}", title, based, [_leakage_group(run, rate) for run in runs], "share")
        for rate, title in (("err", "Entities named (ERR)"), ("trr", "Triples rebuilt (TRR)"))
    )


def cost_charts(identity: str, runs: Sequence[Run]) -> tuple[Chart, ...]:
    """Utility with its intervals, and bytes."""
    utility, size, task = [], [], task_of(runs[0].record.spec)
    label = task.label(task.metric)
    for run in runs:
        reached, num_bytes = run.record.utility[task.metric], run.record.bytes.up + run.record.bytes.down
        dots = (Dot("", score_text(reached), reached),) if reached.n else ()
        utility.append(Group(run.name, dots, "" if reached.n else f"no test {task.items}"))
        size.append(Group(run.name, (Dot("", f"{mebibytes(num_bytes)} MiB", estimate.exact(num_bytes / 2**20, 1)),)))
    return (
        dot_chart(f"{identity}-{task.metric}", f"Utility (test {label})", "higher is better", utility, label),
        dot_chart(f"{identity}-bytes", "MiB exchanged", "both ways, an exact count", size, "MiB"),
    )


def _leakage_group(run: Run, rate: str) -> Group:
    rows = [row for row in rows_of(_rates({run.name: run.record}, over_all)) if not row["reason"]]
    marks = list(THREAT_MODELS)
    dots = [
        Dot(
            row["place"],
            share(row[rate]),
            row[rate],
            row[f"{rate}_base"],
            marks.index(row["threat_model"]),
        )
        for row in rows
    ]
    return Group(run.name, tuple(dots), "" if dots else _untouched(run))


def dot_chart(identity: str, title: str, hint: str, groups: list[Group], unit: str) -> Chart:
    """A dot plot and the table of its figures.

    Args:
        unit: "share", "MiB", or what scores are called.
    """
    svg = dot_plot(
        groups,
        identity=identity,
        title=title,
        description=f"{title}, {hint}: {count(len(groups), 'run')}. Lines are 95 % intervals. A table with the figures follows.",
        axis=_axis_percent if unit == "share" else "{:g}".format,
        stem=unit == "MiB",
    )
    heads = {
        "run": "run",
        "attack": "attack",
        "figure": Column(unit, _KINDS.get(unit, "score")),
        "base": Column("base", "share"),
    }
    scale = 2**20 if unit == "MiB" else None
    rows = [
        (group.label, dot.label, dot.figure.value * scale if scale else dot.figure, dot.base)
        for group in groups
        for dot in group.dots
    ]
    notes = tuple(f"{group.label}: {group.note}." for group in groups if group.note)
    shown = (
        heads
        if any(row[3] is not None for row in rows) or unit == "share"
        else {name: heads[name] for name in ("run", "figure")}
    )
    table = Sheet.of(
        f"Figures of the chart: {title}", pd.DataFrame(rows, columns=list(heads), dtype=object), shown, notes=notes
    )
    return Chart(f"{title}; {hint}", svg, table)


def _axis_percent(value: float) -> str:
    return f"{100 * value:g}{NO_BREAK}%"


def victims(runs: Sequence[Run]) -> Sheet | None:
    """A row for each victim of each attack; None when none was made."""
    frame = _by_risk(_rates(_records(runs), headline))
    body, foot = frame.loc[frame["victim"] != ALL], frame.loc[frame["victim"] == ALL]
    title = f"Risk of each victim; the greatest first{', all victims together at the foot' if len(foot) else ''}"
    heads = _PLACE | RATES
    return Sheet.of(title, body, heads, foot=foot, notes=_reasons(runs)) if len(body) else None


def _reasons(runs: Sequence[Run]) -> tuple[str, ...]:
    """Why some victims of some attacks have no figures, or a TRR that is zero by construction."""
    remarks = dict.fromkeys(
        f"{row.victim} in {run.name} under {attack_name(row.threat_model, row.leak)}: {row.remark}."
        for run in runs
        for row in run.record.leakage
        if row.remark
    )
    reasons = dict.fromkeys(
        f"{run.name} under {attack_name(row.threat_model, row.leak)}: nothing to attack ({row.reason})."
        for run in runs
        for row in run.record.leakage
        if row.reason
    )
    return (*reasons, *remarks)


def inferences(runs: Sequence[Run]) -> Sheet | None:
    """TRR by each way to infer relations, of which the strongest stands elsewhere; None where the records name but one."""
    frame, names = by_inference(figure_frame(_records(runs)))
    frame = frame.loc[frame["reason"].isna()]
    heads = {name: Column(inference_label(name), "rate") for name in names}
    heads |= {"majority": "majority", "prior": "prior", "strongest_by": "strongest"}
    order = {"trr": frame[STRONGEST], "trr_base": frame[f"{STRONGEST}_base"]} if len(frame) else {}
    shown = _by_risk(frame.assign(**order))
    return Sheet.of("Triples rebuilt (TRR) by inference", shown, _PLACE | heads) if len(frame) else None


def other_attacks(runs: Sequence[Run]) -> Sheet | None:
    """Every victim's figures under attacks other than reconstruction, the greatest advantage first; None where there are none."""
    frame = others(figure_frame(_records(runs)))
    notes = [
        f"{row['victim']} in {row['run']}, {row['attack']} under {row['place']}: not attacked ({row['reason']})."
        for row in rows_of(frame.loc[frame["reason"].notna()])
    ]
    body = frame.loc[frame["reason"].isna()].sort_values("advantage", ascending=False, kind="stable")
    bases = {
        "baseline": Column("base", "exact"),
        "attainable": Column("max", "exact"),
    }  # of scores, which are no shares
    heads = {"victim": "victim", "run": "run", "attack": "attack", "place": "threat model"} | FIGURE | bases
    title = "Other attacks; what adds most to its base first"
    return Sheet.of(title, body, heads, notes=dict.fromkeys(notes)) if len(frame) else None


def unlinked(runs: Sequence[Run]) -> Sheet | None:
    """The attack that is not told which rows are linked; None where it did not run."""
    figures = figure_frame(_records(runs))
    frame = side_by_side(without_links(figures.loc[figures["headline"].astype(bool)]))
    rows = sorted(rows_of(frame), key=lambda row: -row["recall"].value)
    named = ("precision", "recall", "average precision")
    heads = {name: Column(head, "rate") for name, head in zip(UNLINKED, named, strict=True)}
    parts = {
        key: of for name, head in heads.items() for key, of in ((name, head), (f"{name}_base", Column("base", "share")))
    }
    title = "Not told which rows are linked ; the highest recall first"
    return Sheet.of(title, pd.DataFrame(rows, dtype=object), _PLACE | parts) if rows else None


def attacked_items(scores: pd.DataFrame, row: Leakage, item: Item) -> dict[str, np.ndarray]:
    """The entities or triples that a row of leakage was measured on, of its victim or of all: columns by name."""
    return {str(name): column.to_numpy() for name, column in items_of(scores, row, item).items()}


def relations(run: Run) -> Sheet | None:
    """Triples rebuilt by relation, over all victims: sensitive ones first, then by the highest share under any attack.

    None without scores, or when nothing was attacked. Intervals are Wilson's; that over all relations is the attack's own.
    """
    rows = [row for row in pooled(run.record) if not row.reason]
    if run.scores is None or not rows:
        return None
    attacked = [attacked_items(run.scores, row, "triple") for row in rows]
    has_base = "base" in run.scores  # the chance of each triple without embeddings
    tallies = [_tally(triples, has_base=has_base) for triples in attacked]
    names = sorted({name for tally in tallies for name in tally})
    sensitive = [name for name in names if name in run.record.data.sensitive]
    found = []
    for name in names:
        cells, highest = _relation_cells(tallies, [name], has_base=has_base)
        mark = "sensitive" if name in sensitive else ""
        found.append(((name not in sensitive, -highest, name), (name, mark, *cells)))
    foot = [("all relations", "", *_relation_cells(tallies, names, has_base=has_base, rows=rows)[0])]
    if sensitive:
        cells = _relation_cells(tallies, sensitive, has_base=has_base)[0]
        foot.insert(0, ("sensitive relations", "", *cells))
    columns = [Column("relation"), Column("marked"), Column("triples", "count")]
    for row in rows:
        columns += [
            Column(attack_name(row.threat_model, row.leak), "rate"),
            *([Column("base", "share")] if has_base else []),
        ]
    notes = [
        "The intervals of relations are of the triples alone; that over all relations also covers which entities leaked."
    ]
    if not sensitive:
        notes.append("No relation of these data is marked as sensitive.")
    if not has_base:
        bases = [f"{percent(base_of(row, 'trr'))} under {attack_name(row.threat_model, row.leak)}" for row in rows]
        notes.append(f"The scores have no base by relation; over all relations it is {', '.join(bases)}.")
    return Sheet(
        f"{run.name}: triples rebuilt by relation, all victims; sensitive ones first, then the highest share",
        tuple(columns),
        tuple(cells for _, cells in sorted(found, key=lambda item: item[0])),
        tuple(foot),
        tuple(notes),
    )


def _tally(triples: dict[str, np.ndarray], *, has_base: bool) -> dict[str, np.ndarray]:
    """For each relation: triples rebuilt, all triples, and those expected without embeddings (zero where that is not known)."""
    names, place = np.unique(triples["relation"].astype(str), return_inverse=True)
    weights = (triples["right"], None, triples["base"] if has_base else np.zeros(len(place)))
    sums = np.stack([np.bincount(place, weight, len(names)) for weight in weights], axis=1)
    return dict(zip(names.tolist(), sums, strict=True))


def _relation_cells(
    tallies: Sequence[dict[str, np.ndarray]], names: Sequence[str], *, has_base: bool, rows: Sequence[Leakage] = ()
) -> tuple[list[Any], float]:
    """Triples of these relations, then for each attack the share rebuilt, with its base if there is one; the highest share.

    Args:
        rows: the attacks, where `names` are all relations: then the figures are theirs.
    """
    cells, highest, most = [], 0.0, 0
    for place, tally in enumerate(tallies):
        right, n, expected = sum((tally[name] for name in names if name in tally), start=np.zeros(3))
        figure = rows[place].trr if rows else estimate.proportion(int(right), int(n))
        cells.append(figure)
        if has_base:
            cells.append(float(expected) / figure.n if figure.n else None)
        highest, most = max(highest, figure.value), max(most, figure.n)
    return [most, *cells], highest


def convergence_charts(identity: str, runs: Sequence[Run]) -> tuple[Chart, ...]:
    """Validation by round and by bytes; nothing when nothing was validated."""
    task = task_of(runs[0].record.spec)
    label = f"validation {task.label(task.metric)}"
    by_round, by_bytes, rows, notes = [], [], [], []
    for run in runs:
        points, kept, size = [], None, 0
        for entry in run.record.rounds:
            size += entry.bytes_up + entry.bytes_down
            if entry.valid is None:
                continue
            kept = len(points) if entry.round == run.record.best_round else kept
            points.append((entry.round, size / 2**20, entry.valid))
            rows.append((run.name, entry.round, size, entry.valid))
        if not points:
            notes.append(f"{run.name}: nothing was validated.")
            continue
        by_round.append(Line(run.name, tuple((number, mrr) for number, _, mrr in points), kept))
        if points[0][1]:
            by_bytes.append(Line(run.name, tuple((amount, mrr) for _, amount, mrr in points), kept))
        else:
            notes.append(f"{run.name}: exchanges nothing, so that it has no curve by bytes.")
    columns = (
        Column("run"),
        Column("round", "number"),
        Column("MiB until then", "MiB"),
        Column(label, "exact"),
    )
    charts = []
    for kind, lines, below in (
        ("round", by_round, "round"),
        ("bytes", by_bytes, "MiB exchanged until then, logarithmic"),
    ):
        if not lines:
            continue
        title = f"{label[0].upper()}{label[1:]} by {kind}"
        svg = line_plot(
            lines,
            identity=f"{identity}-by-{kind}",
            title=title,
            description=f"{title}: {count(len(lines), 'curve')}. A mark is the kept round. A table with the figures follows.",
            x_label=below,
            y_label=label,
            logarithmic=kind == "bytes",
        )
        table = Sheet(f"Figures of the chart: {title}", columns, tuple(rows), notes=tuple(notes))
        charts.append(Chart(title, svg, table))
    return tuple(charts)


def convergence_table(runs: Sequence[Run]) -> Sheet:
    """Rounds and bytes to convergence, and to 98 % and 99 % of the first run's validation."""
    task = task_of(runs[0].record.spec)
    label = task.label(task.metric)
    heads = {
        "run": "run", "kept": Column("kept round (R@CG)", "number"), "rounds": Column("rounds", "number"),
        "valid": f"validation {label}", "bytes_kept": "MiB until then (P@CG)", "p98": "P@98", "p99": "P@99",
    }  # fmt: skip
    notes = (
        f"P@98 and P@99: bytes to that share of the validation {label} of {runs[0].name}, over what it took itself.",
        *_validation_notes(runs, label),
    )
    return Sheet.of("Rounds and bytes to the round that was kept", run_frame(_records(runs)), heads, notes=notes)


def clients(record: Record) -> Sheet:
    """Sizes of the clients' data."""
    task = task_of(record.spec)
    rows = tuple((name, *(sizes[kind] for kind in task.sizes)) for name, sizes in record.data.clients.items())
    sensitive = record.data.sensitive
    unmarked = f"No {task.marked} is marked as sensitive." if task.marked else ""
    marked = f"Marked as sensitive: {', '.join(sensitive)}." if sensitive else unmarked
    columns = (Column("client"), *(Column(kind, "count") for kind in task.sizes))
    title = f"Clients of {record.data.name}: {task.sizes_title}"
    return Sheet(title, columns, rows, notes=tuple(filter(None, [marked])))


def _validation_notes(runs: Sequence[Run], label: str) -> list[str]:
    """What validation figures are: of all triples, without an interval, or an estimate with its own."""
    sampled = [
        f"{run.name}: validation is of a sample, {run.record.validation} at the kept round; {run.record.validation.method}."
        for run in runs
        if run.record.validation
    ]
    full = f"The record has no interval of validation figures; that of the test {label} stands above."
    return [*sampled, *([full] if len(sampled) < len(runs) else [])]
