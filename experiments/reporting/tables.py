"""Tables for the terminal, made from a record alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import pandas as pd
from rich import box
from rich.table import Table

from attacks.figure import Figure
from attacks.reconstruction.leakage import PAPER, STRONGEST, Leakage, headline_rows
from attacks.registry import ATTACKS
from attacks.residual import SOURCES
from attacks.view import ALL, THREAT_MODELS
from experiments.runs.record import DataRecord, Record
from experiments.runs.seeds import SeedsRecord
from fkgsec.data.catalogue import Dataset
from fkgsec.data.graph import FederatedGraph
from fkgsec.data.split_leaks import LEAKS, SplitLeaks
from fkgsec.estimate import Estimate

INFERENCE_TITLE = f"TRR by inference ({PAPER}: the paper's own)"


class Attacked(Protocol):
    """What the leakage tables are made from: a record, or an audit of tables."""

    @property
    def leakage(self) -> list[Leakage]: ...
    @property
    def best_round(self) -> int: ...
    @property
    def data(self) -> DataRecord: ...


def run_tables(record: Record) -> list[Table]:
    """Leakage (when the run was attacked), utility, and what it cost. Each fits 80 columns."""
    return [*leakage_tables(record), *figure_tables(record.other_figures), _utility_table(record), _cost_table(record)]


def reading_aid(record: Record) -> list[str]:
    """What the figures mean, in sentences that hold for this run."""
    return [*protection_lines(record), *leakage_aid(record), *figure_reasons(record.other_figures)]


def protection_lines(record: Record) -> list[str]:
    """What the defense protects, and what it cost the training."""
    lines = [f"{line}." for line in record.protection]
    trained = record.rounds[1:]
    void = sum(entry.num_survivors == 0 for entry in trained)
    if record.protection and void:
        lines.append(f"{void} of {len(trained)} rounds opened nothing: too many clients dropped out.")
    clipped = sum(entry.num_clipped for entry in trained)
    return [*lines, f"{clipped:,} uploaded values were cut to the range of the fixed point."] if clipped else lines


def leakage_aid(record: Attacked) -> list[str]:
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
    remarks = dict.fromkeys(
        (row.threat_model, row.leak, row.victim, row.remark) for row in record.leakage if row.remark
    )
    return [
        *lines,
        *(f"Nothing to attack under {threat}: {reason}." for threat, reason in reasons),
        *(f"{victim} under {threat}, leak {leak:g}: {remark}." for threat, leak, victim, remark in remarks),
    ]


def leakage_tables(record: Attacked) -> list[Table]:
    """For each threat model and leak ratio the strongest attack, each inference, and the attack without linked pairs."""
    groups: dict[tuple[str, float], list[Leakage]] = {}
    for row in record.leakage:
        groups.setdefault((row.threat_model, row.leak), []).append(row)
    tables = []
    for (threat, leak), rows in groups.items():
        about = f"{threat}, leak {leak:g}, round {record.best_round}: {THREAT_MODELS[threat].about}"
        table = make_table(f"Reconstruction under {about}", "victim", "ERR", "base", "max", "TRR", "base", "max")
        shown = headline_rows(rows)
        for row in shown:
            table.add_row(
                row.victim,
                _share(row.err, row),
                _short(row.err_baseline.value),
                attainable(row.err_attainable),
                _share(row.trr, row),
                _short(max(row.trr_baseline.value, row.trr_prior.value)),
                attainable(row.trr_attainable),
                style="bold" if row.victim == ALL else None,
            )
        tables.append(table)
        if shown != rows and not all(row.reason for row in shown):
            tables.append(_inference_table(rows))
        if any(row.sources for row in shown):
            tables.append(_sources_table(shown))
        if any(row.unlinked for row in shown):
            tables.append(_unlinked_table(shown))
    return tables


def figure_tables(figures: Iterable[Figure]) -> list[Table]:
    """For each attack and threat model the figures of every victim, whatever the attack."""
    groups: dict[tuple[str, str, float | None], list[Figure]] = {}
    for one in figures:
        groups.setdefault((one.attack, one.threat_model, one.leak), []).append(one)
    tables = []
    for (attack, threat, leak), rows in groups.items():
        at = "" if leak is None else f", leak {leak:g}"
        title = f"{attack} under {threat}{at}, round {rows[0].round}: {THREAT_MODELS[threat].about}"
        table = make_table(title, "victim", "metric", "figure", "base", "max")
        for one in rows:
            base = "–" if one.baseline is None else _short(one.baseline.value)
            shown = ["n/a"] * 3 if one.reason else [interval(one.estimate), base, attainable(one.attainable)]
            table.add_row(one.victim, one.metric, *shown, style="bold" if one.victim == ALL else None)
        tables.append(table)
    return tables


def figure_reasons(figures: Iterable[Figure]) -> list[str]:
    """Why victims of registered attacks were not attacked."""
    missing = dict.fromkeys((one.attack, one.threat_model, one.victim, one.reason) for one in figures if one.reason)
    return [f"{attack} under {threat}: {victim} was not attacked ({why})." for attack, threat, victim, why in missing]


def attack_lines() -> list[str]:
    """The registered attacks: what each needs, the threat models that give it, and what it measures."""
    lines = []
    for name, one in ATTACKS.items():
        models = [model for model in THREAT_MODELS if one.needs.fit(THREAT_MODELS[model])]
        lines += [f"{name}: {one.about}", f"  needs: {one.needs.words()}", f"  threat models: {', '.join(models)}"]
        lines += [f"  {name}.{metric}: {about}" for metric, about in one.metrics.items()]
    return lines


MARGIN_AID = "± is the wider half of the 95 % interval in the record; the other half may be much narrower."


def make_table(title: str, first: str, *others: str) -> Table:
    table = Table(
        title=title, title_justify="left", box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True
    )
    table.add_column(first, overflow="fold")
    for name in others:
        table.add_column(name, justify="right")
    return table


def _value(figure: Estimate) -> str:
    return f"{figure.value:.3f}" if figure.n else "–"


def interval(figure: Estimate) -> str:
    if not figure.n:
        return "–"
    low, high = (f"{bound:.3f}".removeprefix("0") for bound in (figure.low, figure.high))
    return f"{figure.value:.3f} {low}–{high}"


def _share(figure: Estimate, row: Leakage) -> str:
    return "n/a" if row.reason else interval(figure)


def _short(share: float) -> str:
    return f"{share:.3f}".removeprefix("0")


def attainable(share: float | None) -> str:
    """The most that an adversary's names and relations can give; a dash where the record does not have it."""
    return "–" if share is None else _short(share)


def inferences_of(rows: Iterable[Leakage]) -> list[str]:
    """The inferences that were made, in their order, the strongest of them aside."""
    return list(dict.fromkeys(row.inference for row in rows if row.inference != STRONGEST))


def _inference_table(rows: list[Leakage]) -> Table:
    names = inferences_of(rows)
    table = make_table(f"  {INFERENCE_TITLE}", "victim", *names, "majority", "prior", "strongest")
    for best in headline_rows(rows):
        by_name = {row.inference: row for row in rows if row.victim == best.victim}
        cells = [_short(by_name[name].trr.value) if name in by_name else "–" for name in names]
        cells += [_short(best.trr_baseline.value), _short(best.trr_prior.value), best.trr_by or "–"]
        table.add_row(best.victim, *(["n/a"] * len(cells) if best.reason else cells))
    return table


def _sources_table(rows: list[Leakage]) -> Table:
    shown = [source for source in SOURCES if any(source in row.sources for row in rows)]
    table = make_table("  right entities by what told their holder", "victim", *shown)
    for row in rows:
        table.add_row(row.victim, *(str(row.sources.get(source, 0)) for source in shown))
    return table


def _unlinked_table(rows: list[Leakage]) -> Table:
    (by,) = {row.unlinked.inference for row in rows if row.unlinked}
    title = f"  without being told which pairs are linked (relations by {by})"
    table = make_table(title, "victim", "precision", "recall", "AP", "base")
    for row in rows:
        if row.unlinked:
            table.add_row(
                row.victim,
                interval(row.unlinked.precision),
                interval(row.unlinked.recall),
                f"{row.unlinked.average_precision.value:.3f}",
                f"{row.unlinked.average_precision_baseline.value:.0e}",
            )
    return table


def _utility_table(record: Record) -> Table:
    names = list(record.utility)
    title = f"Utility: filtered link prediction on test triples (sides: {record.spec.eval_sides})"
    table = make_table(title, "client", "triples", *(name.upper() if name == "mrr" else name for name in names))
    rows = dict(record.utility_by_client)
    if record.utility_by_leak["leaked"]["mrr"].n:
        rows |= {f"{kind} triples": figures for kind, figures in record.utility_by_leak.items()}
    for client, figures in rows.items():
        table.add_row(client, str(figures["mrr"].n), *(_value(figures[name]) for name in names))
    if record.utility_shared:
        rows["shared model, all"] = record.utility_shared
    total = record.utility
    shown = [interval(total["mrr"]), *(_value(total[name]) for name in names[1:])]
    table.add_row("all", str(total["mrr"].n), *shown, style="bold")
    return table


def _cost_table(record: Record) -> Table:
    table = make_table("Cost", "rounds", "kept", "bytes up", "bytes down", "alignment", "a round up", "s", "device")
    trained = record.rounds[1:]
    table.add_row(
        str(len(trained)),
        str(record.best_round),
        f"{record.bytes.up:,}",
        f"{record.bytes.down:,}",
        f"{record.rounds[0].bytes_up + record.rounds[0].bytes_down:,}",
        f"{max(entry.bytes_up for entry in trained):,}" if trained else "0",
        f"{sum(entry.seconds for entry in record.rounds):.1f}",
        record.environment.device,
    )
    return table


_LEAK_WORDS = {
    "exact": "the same triple stands",
    "inverse": "its inverse pair stands",
    "same_pair": "its pair, by another relation, stands",
}


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


def statistics_tables(graph: FederatedGraph, statistics: pd.DataFrame, leaks: SplitLeaks) -> list[Table]:
    """Sizes of the clients, and the share of evaluation triples that leak from train; a column for each client."""
    columns = [client.name for client in graph.clients]
    sizes = make_table(f"{graph.name}: clients", "", *statistics["client"].astype(str))
    for name in statistics.columns.drop("client"):
        sizes.add_row(str(name).replace("_", " "), *(_cell(value) for value in statistics[name]))
    tables = [sizes]
    for split, rows in leaks.table.groupby("split", sort=False):
        table = make_table(f"Of the {split} triples of a client, in train (share)", "", *columns)
        for leak in LEAKS:
            kind, _, where = leak.rpartition("_")
            whose = "in its own train" if where == "own" else "in another client's"
            table.add_row(f"{_LEAK_WORDS[kind]} {whose}", *(f"{share:.3f}" for share in rows[f"{leak}_share"]))
        tables.append(table)
    return tables


def _cell(value: Any) -> str:
    return f"{value:,}" if float(value).is_integer() else f"{value:.4f}"


def catalogue_table(known: Iterable[Dataset]) -> Table:
    """The known datasets."""
    table = make_table("Known datasets, beside the embedded default 'consortium'", "name", "layout", "licence")
    for dataset in known:
        table.add_row(dataset.name, dataset.layout, dataset.licence)
    return table
