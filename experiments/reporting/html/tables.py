"""The report's tables and charts. Each takes the runs on the same data; a figure never stands without its interval."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import pandas as pd

from attacks.reconstruction.leakage import STRONGEST, Item, Leakage, headline_rows, inference_label, items_of
from attacks.view import ALL, THREAT_MODELS
from experiments.reporting.comparison import pooled
from experiments.reporting.convergence import convergence, relative_cost
from experiments.reporting.html.charts import Dot, Group, Line, dot_plot, line_plot
from experiments.reporting.html.model import Cell, Chart, Run, Table
from experiments.reporting.html.ranking import NOTHING, Risk, risk
from experiments.reporting.html.words import (
    NO_BREAK,
    NONE,
    adversary,
    attack_name,
    base_of,
    count,
    mebibytes,
    mrr_text,
    percent,
    share,
)
from experiments.reporting.tables import inferences_of
from experiments.runs.record import Record
from fkgsec import estimate

Rate = Literal["err", "trr"]
_RATES = ("entities named (ERR)", "base", "max", "triples rebuilt (TRR)", "base", "max")
NOT_MEASURED = -1.0  # sorts below every share


def adversaries(runs: Sequence[Run]) -> Table | None:
    """Each adversary once, with the runs it attacked; None when none was."""
    attacked: dict[tuple[str, ...], list[str]] = {}
    for run in runs:
        for row in pooled(run.record):
            words = adversary(run.record, row)
            key = (
                attack_name(row.threat_model, row.leak),
                f"{words.who}. Beforehand it knew {words.knows}.",
                words.saw,
            )
            attacked.setdefault(key, []).append(run.name)
    rows = tuple(
        tuple(Cell(text) for text in (attack, saw, f"{who[0].upper()}{who[1:]}", "; ".join(dict.fromkeys(names))))
        for (attack, who, saw), names in sorted(attacked.items(), key=lambda item: item[0][0])
    )
    return Table("The adversaries", ("attack", "what it saw", "who, and what it knew", "runs"), rows) if rows else None


def overview(runs: Sequence[Run]) -> Table:
    """A row for each run and attack, over all victims."""
    found = []
    for run in runs:
        record = run.record
        mrr, size = record.utility["mrr"], record.bytes.up + record.bytes.down
        cost = (Cell(mrr_text(mrr), mrr.value if mrr.n else NOT_MEASURED), Cell(mebibytes(size), size))
        for row in pooled(record):
            cells = (Cell(run.name), Cell(attack_name(row.threat_model, row.leak)), *_rates(row), *cost)
            found.append((risk(row), cells))
        if not record.leakage:
            blank = [Cell(NONE, NOT_MEASURED)] * 6
            found.append((NOTHING, (Cell(run.name), Cell("not attacked"), *blank, *cost)))
    return Table(
        "Utility, leakage of all victims together, and bytes; the greatest risk first",
        ("run", "attack", *_RATES, "test MRR", "MiB"),
        _by_risk(found),
        notes=_reasons(runs),
    )


def overview_charts(identity: str, runs: Sequence[Run]) -> tuple[Chart, ...]:
    """The same as dots with their intervals: utility, entities named, triples rebuilt, bytes."""
    utility, size = [], []
    for run in runs:
        mrr, num_bytes = run.record.utility["mrr"], run.record.bytes.up + run.record.bytes.down
        dots = (Dot("", mrr_text(mrr), mrr.value, mrr.low, mrr.high),) if mrr.n else ()
        utility.append(Group(run.name, dots, "" if dots else "no test triples"))
        amount = num_bytes / 2**20
        size.append(Group(run.name, (Dot("", f"{mebibytes(num_bytes)} MiB", amount, amount, amount),)))
    leakage: dict[Rate, list[Group]] = {rate: [_leakage_group(run, rate) for run in runs] for rate in ("err", "trr")}
    based = "upright bar: base"
    return (
        _dot_chart(f"{identity}-err", "Entities named (ERR)", based, leakage["err"], "share"),
        _dot_chart(f"{identity}-trr", "Triples rebuilt (TRR)", based, leakage["trr"], "share"),
        _dot_chart(f"{identity}-mrr", "Utility (test MRR)", "higher is better", utility, "MRR"),
        _dot_chart(f"{identity}-bytes", "MiB exchanged", "both ways, an exact count", size, "MiB"),
    )


def _leakage_group(run: Run, rate: Rate) -> Group:
    rows = [row for row in pooled(run.record) if not row.reason]
    dots = []
    for row in rows:
        figure, mark = getattr(row, rate), list(THREAT_MODELS).index(row.threat_model)
        label = attack_name(row.threat_model, row.leak)
        dots.append(Dot(label, share(figure), figure.value, figure.low, figure.high, base_of(row, rate), mark))
    return Group(run.name, tuple(dots), "" if dots else "nothing to attack" if run.record.leakage else "not attacked")


def _dot_chart(
    identity: str, title: str, hint: str, groups: list[Group], unit: Literal["MRR", "share", "MiB"]
) -> Chart:
    svg = dot_plot(
        groups,
        identity=identity,
        title=title,
        description=f"{title}, {hint}: {count(len(groups), 'run')}. Lines are 95 % intervals. A table with the figures follows.",
        axis=_axis_percent if unit == "share" else "{:g}".format,
        stem=unit == "MiB",
    )
    rows = []
    for group in groups:
        for dot in group.dots:
            cells = [Cell(group.label), Cell(dot.text, dot.value)]
            if dot.base is not None:
                cells = [Cell(group.label), Cell(dot.label), *cells[1:], Cell(percent(dot.base), dot.base)]
            rows.append(tuple(cells))
    notes = tuple(f"{group.label}: {group.note}." for group in groups if group.note)
    columns = ("run", "attack", unit, "base") if unit == "share" else ("run", unit)
    return Chart(f"{title}; {hint}", svg, Table(f"Figures of the chart: {title}", columns, tuple(rows), notes=notes))


def _axis_percent(value: float) -> str:
    return f"{100 * value:g}{NO_BREAK}%"


def victims(runs: Sequence[Run]) -> Table | None:
    """A row for each victim of each attack; None when none was made."""
    found, foot = [], []
    for run in runs:
        for row in headline_rows(run.record.leakage):
            cells = (Cell(row.victim), Cell(run.name), Cell(attack_name(row.threat_model, row.leak)), *_rates(row))
            if row.victim == ALL:
                foot.append(cells)
            else:
                found.append((risk(row), cells))
    if not found:
        return None
    names = ("victim", "run", "attack", *_RATES)
    caption = f"Risk of each victim; the greatest first{', all victims together at the foot' if foot else ''}"
    return Table(caption, names, _by_risk(found), tuple(foot), _reasons(runs))


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


def inferences(runs: Sequence[Run]) -> Table | None:
    """TRR by each way to infer relations, of which the strongest stands elsewhere; None where the records name but one."""
    made = inferences_of(row for run in runs for row in run.record.leakage)
    found = []
    for run in runs:
        by_name = {(row.victim, row.threat_model, row.leak, row.inference): row for row in run.record.leakage}
        for best in headline_rows(run.record.leakage):
            if best.reason or best.inference != STRONGEST:
                continue
            attack = (best.victim, best.threat_model, best.leak)
            shown = [by_name.get((*attack, name)) for name in made]
            rates = [Cell(NONE, NOT_MEASURED) if row is None else Cell(share(row.trr), row.trr.value) for row in shown]
            bases = [Cell(percent(base.value), base.value) for base in (best.trr_baseline, best.trr_prior)]
            first = (Cell(best.victim), Cell(run.name), Cell(attack_name(best.threat_model, best.leak)))
            found.append((risk(best), (*first, *rates, *bases, Cell(best.trr_by or NONE))))
    names = ("victim", "run", "attack", *map(inference_label, made), "majority", "prior", "strongest")
    return Table("Triples rebuilt (TRR) by inference", names, _by_risk(found)) if found else None


def other_attacks(runs: Sequence[Run]) -> Table | None:
    """Every victim's figures under attacks other than reconstruction, the greatest advantage first; None where there are none."""
    found, notes = [], []
    for run in runs:
        for one in run.record.other_figures:
            attack = attack_name(one.threat_model, one.leak)
            if one.reason:
                notes.append(f"{one.victim} in {run.name}, {one.attack} under {attack}: not attacked ({one.reason}).")
                continue
            bounds = (one.baseline.value if one.baseline else None, one.attainable)
            cells = [Cell(NONE, NOT_MEASURED) if bound is None else Cell(percent(bound), bound) for bound in bounds]
            first = (Cell(one.victim), Cell(run.name), Cell(one.attack), Cell(attack), Cell(one.metric))
            found.append(((one.advantage,), (*first, Cell(share(one.estimate), one.estimate.value), *cells)))
    names = ("victim", "run", "attack", "threat model", "metric", "figure", "base", "max")
    caption = "Other attacks; what adds most to its base first"
    return Table(caption, names, _by_risk(found), notes=tuple(dict.fromkeys(notes))) if found or notes else None


def unlinked(runs: Sequence[Run]) -> Table | None:
    """The attack that is not told which rows are linked; None where it did not run."""
    found = []
    for run in runs:
        for row in run.record.leakage:
            if (honest := row.unlinked) is None:
                continue
            figures = (
                honest.precision,
                honest.precision_baseline,
                honest.recall,
                honest.recall_baseline,
                honest.average_precision,
                honest.average_precision_baseline,
            )
            rates = [Cell(share(one), one.value if one.n else NOT_MEASURED) for one in figures]
            cells = (Cell(row.victim), Cell(run.name), Cell(attack_name(row.threat_model, row.leak)), *rates)
            found.append(((honest.recall.value,), cells))
    names = ("precision", "base", "recall", "base", "average precision", "base")
    caption = "Not told which rows are linked (relations by score); the highest recall first"
    return Table(caption, ("victim", "run", "attack", *names), _by_risk(found)) if found else None


def _rates(row: Leakage) -> list[Cell]:
    """ERR, its base and the most it can be; TRR, its base and the most it can be."""
    if row.reason:
        return [Cell("n/a", NOT_MEASURED)] * 6
    cells = []
    for figure, base, most in (
        (row.err, base_of(row, "err"), row.err_attainable),
        (row.trr, base_of(row, "trr"), row.trr_attainable),
    ):
        cells += [Cell(share(figure), figure.value), Cell(percent(base), base)]
        cells.append(Cell(NONE, NOT_MEASURED) if most is None else Cell(percent(most), most))
    return cells


def _by_risk(found: list[tuple[Risk, tuple[Cell, ...]]]) -> tuple[tuple[Cell, ...], ...]:
    return tuple(
        cells for _, cells in sorted(found, key=lambda item: item[0], reverse=True)
    )  # stable: ties as they came


def attacked_items(scores: pd.DataFrame, row: Leakage, item: Item) -> dict[str, np.ndarray]:
    """The entities or triples that a row of leakage was measured on, of its victim or of all: columns by name."""
    return {str(name): column.to_numpy() for name, column in items_of(scores, row, item).items()}


def relations(run: Run) -> Table | None:
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
        mark = Cell("sensitive" if name in sensitive else "")
        found.append(((name not in sensitive, -highest, name), (Cell(name), mark, *cells)))
    foot = [(Cell("all relations"), Cell(""), *_relation_cells(tallies, names, has_base=has_base, rows=rows)[0])]
    if sensitive:
        cells = _relation_cells(tallies, sensitive, has_base=has_base)[0]
        foot.insert(0, (Cell("sensitive relations"), Cell(""), *cells))
    columns = ["relation", "marked", "triples"]
    for row in rows:
        columns += [attack_name(row.threat_model, row.leak), *(["base"] if has_base else [])]
    notes = [
        "The intervals of relations are of the triples alone; that over all relations also covers which entities leaked."
    ]
    if not sensitive:
        notes.append("No relation of these data is marked as sensitive.")
    if not has_base:
        bases = [f"{percent(base_of(row, 'trr'))} under {attack_name(row.threat_model, row.leak)}" for row in rows]
        notes.append(f"The scores have no base by relation; over all relations it is {', '.join(bases)}.")
    return Table(
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
) -> tuple[list[Cell], float]:
    """Triples of these relations, then for each attack the share rebuilt, with its base if there is one; the highest share.

    Args:
        rows: the attacks, where `names` are all relations: then the figures are theirs.
    """
    cells, highest, most = [], 0.0, 0
    for place, tally in enumerate(tallies):
        right, n, expected = sum((tally[name] for name in names if name in tally), start=np.zeros(3))
        figure = rows[place].trr if rows else estimate.proportion(int(right), int(n))
        cells.append(Cell(share(figure), figure.value))
        if has_base:
            base = float(expected) / max(1, figure.n)
            cells.append(Cell(percent(base) if figure.n else NONE, base))
        highest, most = max(highest, figure.value), max(most, figure.n)
    return [Cell(f"{most:,}", most), *cells], highest


def convergence_charts(identity: str, runs: Sequence[Run]) -> tuple[Chart, ...]:
    """Validation MRR by round and by bytes; nothing when nothing was validated."""
    by_round, by_bytes, rows, notes = [], [], [], []
    for run in runs:
        points, kept, size = [], None, 0
        for entry in run.record.rounds:
            size += entry.bytes_up + entry.bytes_down
            if entry.valid_mrr is None:
                continue
            kept = len(points) if entry.round == run.record.best_round else kept
            points.append((entry.round, size / 2**20, entry.valid_mrr))
            cells = (Cell(str(entry.round), entry.round), Cell(mebibytes(size), size))
            rows.append((Cell(run.name), *cells, Cell(f"{entry.valid_mrr:.4f}", entry.valid_mrr)))
        if not points:
            notes.append(f"{run.name}: nothing was validated.")
            continue
        by_round.append(Line(run.name, tuple((number, mrr) for number, _, mrr in points), kept))
        if points[0][1]:
            by_bytes.append(Line(run.name, tuple((amount, mrr) for _, amount, mrr in points), kept))
        else:
            notes.append(f"{run.name}: exchanges nothing, so that it has no curve by bytes.")
    columns = ("run", "round", "MiB until then", "validation MRR")
    charts = []
    for kind, lines, label in (
        ("round", by_round, "round"),
        ("bytes", by_bytes, "MiB exchanged until then, logarithmic"),
    ):
        if not lines:
            continue
        title = f"Validation MRR by {kind}"
        svg = line_plot(
            lines,
            identity=f"{identity}-by-{kind}",
            title=title,
            description=f"{title}: {count(len(lines), 'curve')}. A mark is the kept round. A table with the figures follows.",
            x_label=label,
            y_label="validation MRR",
            x_axis="{:g}".format,
            logarithmic=kind == "bytes",
        )
        charts.append(
            Chart(title, svg, Table(f"Figures of the chart: {title}", columns, tuple(rows), notes=tuple(notes)))
        )
    return tuple(charts)


def convergence_table(runs: Sequence[Run]) -> Table:
    """Rounds and bytes to convergence, and to 98 % and 99 % of the first run's validation MRR."""
    rows = []
    for run in runs:
        found, num_rounds = convergence(run.record), len(run.record.rounds) - 1
        shares = [relative_cost(run.record, runs[0].record, part) for part in (0.98, 0.99)]
        rows.append(
            (
                Cell(run.name),
                Cell(str(found.round), found.round),
                Cell(str(num_rounds), num_rounds),
                Cell(NONE, NOT_MEASURED) if found.mrr is None else Cell(f"{found.mrr:.4f}", found.mrr),
                Cell(mebibytes(found.num_bytes), found.num_bytes),
                *(Cell(NONE, NOT_MEASURED) if part is None else Cell(f"{part:.3g}", part) for part in shares),
            )
        )
    return Table(
        "Rounds and bytes to the round that was kept",
        ("run", "kept round (R@CG)", "rounds", "validation MRR", "MiB until then (P@CG)", "P@98", "P@99"),
        tuple(rows),
        notes=(
            f"P@98 and P@99: bytes to that share of the validation MRR of {runs[0].name}, over what it took itself.",
            "The record has no interval of validation figures; that of the test MRR stands above.",
        ),
    )


def clients(record: Record) -> Table:
    """Sizes of the clients' data."""
    kinds = ("entities", "relations", "train", "valid", "test")
    rows = tuple(
        (Cell(name), *(Cell(f"{sizes[kind]:,}", sizes[kind]) for kind in kinds))
        for name, sizes in record.data.clients.items()
    )
    sensitive = record.data.sensitive
    marked = f"Marked as sensitive: {', '.join(sensitive)}." if sensitive else "No relation is marked as sensitive."
    caption = f"Clients of {record.data.name}: entities, relations, triples of each split"
    return Table(caption, ("client", *kinds), rows, notes=(marked,))
