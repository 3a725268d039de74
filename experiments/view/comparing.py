"""Two runs side by side: the settings that differ, then utility, what leaked, and bytes, each with its interval.

    html = compared_page([("fede", record), ("secagg", other)])

Figures of runs on different data, or of other test triples, do not compare; the page says so before it shows any.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import fkgsec
from attacks.figure import Figure
from experiments.reporting.html.notation import NONE, mebibytes
from experiments.reporting.html.words import cell_order, cell_text
from experiments.reporting.matrix import Cell, matrix
from experiments.reporting.pages import render_page
from experiments.reporting.sheets import Column, Sheet
from experiments.runs.record import Record
from experiments.tasks.task import task_of
from fkgsec.estimate import Estimate

Named = tuple[str, Record]
APART, TOGETHER = "intervals lie apart", "intervals overlap: no difference is shown"


def compared_page(runs: Sequence[Named], addresses: Sequence[str]) -> str:
    """The page on two runs.

    Args:
        addresses: where each is shown alone.
    """
    (one, first), (other, second) = runs
    differs, same = settings(runs)
    return render_page(
        "view-compared.html.j2",
        title=f"{one} beside {other}",
        names=[(one, addresses[0]), (other, addresses[1])],
        notices=notices(first, second),
        sentence=difference_sentence(runs),
        sheets=[differs, utility(runs), leakage(runs), costs(runs)],
        same=same,
        text=cell_text,
        order=cell_order,
        version=fkgsec.__version__,
    )


def notices(first: Record, second: Record) -> list[str]:
    """Why figures of these two do not compare, where they do not."""
    lines = []
    if first.spec.task != second.spec.task:
        about = " and ".join(task_of(one.spec).about for one in (first, second))
        lines.append(f"The runs are of different tasks, {about}: none of their figures compare.")
    elif first.data.hash != second.data.hash:
        lines.append("The runs are on different data: their figures do not compare.")
    elif first.metric != second.metric:
        lines.append(f"Utility is measured by {first.metric} in one and by {second.metric} in the other.")
    if first.seed != second.seed:
        lines.append(
            "The seeds differ: what the seed alone does is in no interval here (fkgsec train --seeds says it)."
        )
    return lines


def settings(runs: Sequence[Named]) -> tuple[Sheet, list[tuple[str, str]]]:
    """Options, data and code that differ, as a sheet; and those that both have alike."""
    (one, first), (other, second) = runs
    mine, its = _settings(first), _settings(second)
    names = list(dict.fromkeys([*mine, *its]))
    rows = tuple((name, mine.get(name, NONE), its.get(name, NONE)) for name in names if mine.get(name) != its.get(name))
    notes = () if rows else ("Nothing: both were asked for the same, of the same data and code.",)
    sheet = Sheet("Settings that differ", (Column("setting"), Column(one), Column(other)), rows, notes=notes)
    return sheet, [(name, mine[name]) for name in names if mine.get(name) == its.get(name)]


def _settings(record: Record) -> dict[str, str]:
    where = record.environment
    plain = {name: _written(value) for name, value in record.spec.document().items()}
    return plain | {
        "data": f"{record.data.name}, hash {record.data.hash[:12]}",
        "commit": f"{where.commit or 'not recorded'}{' with uncommitted changes' * bool(where.dirty)}",
        "device": where.device,
        "fkgsec": where.versions.get("fkgsec", "not recorded"),
    }


def _written(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "none"
    return "none" if value is None or value == "" else str(value)


def utility(runs: Sequence[Named]) -> Sheet:
    """Every test figure of each, and whether the intervals lie apart."""
    (one, first), (other, second) = runs
    task = task_of(first.spec)
    rows = tuple(
        (f"test {task.label(name)}", mine, its, apart(mine, its))
        for name, mine in first.utility.items()
        if (its := second.utility.get(name)) is not None
    )
    heads = (Column("figure"), Column(one, "score"), Column(other, "score"), Column("says"))
    return Sheet("Utility", heads, rows, notes=() if rows else ("No test figure that both have.",))


def leakage(runs: Sequence[Named]) -> Sheet:
    """The leading figure of each attack in each run beside its base, and whether the intervals lie apart."""
    (one, first), (other, second) = runs
    heads = (
        Column("adversary"), Column(one, "score"), Column("base there", "exact"), Column(other, "score"),
        Column("base there", "exact"), Column("says"),
    )  # fmt: skip
    if not (first.figures or second.figures):
        return Sheet("Leakage", heads, (), notes=("Neither was attacked: nothing is known of what leaks.",))
    if first.spec.task != second.spec.task:
        return Sheet("Leakage", heads, (), notes=("Attacks on runs of different tasks have no figure in common.",))
    # by place, for two runs may have one name
    made = matrix({"first": first, "second": second})
    rows = []
    for row in made.rows:
        mine, its = row.cells
        found = _figure(mine), _figure(its)
        said = apart(*(None if figure is None else figure.estimate for figure in found))
        rows.append((row.label.replace("\n", ", "), *_cells(mine), *_cells(its), said))
    notes = [f"{name}: {reason}" for name, reasons in _reasons(runs, made.rows) for reason in reasons]
    return Sheet(
        "Leakage: the figures that stand for each attack, beside their base", heads, tuple(rows), notes=tuple(notes)
    )


def _figure(cell: Cell) -> Figure | None:
    return cell.figure if cell.measured else None


def _cells(cell: Cell) -> tuple[Any, Any]:
    figure = _figure(cell)
    if figure is None:
        return "not attacked", None
    return figure.estimate, None if figure.baseline is None else figure.baseline.value


def _reasons(runs: Sequence[Named], rows: Sequence[Any]) -> list[tuple[str, list[str]]]:
    return [
        (name, list(dict.fromkeys(row.cells[place].reason for row in rows if row.cells[place].reason)))
        for place, (name, _) in enumerate(runs)
    ]


def apart(mine: Estimate | None, its: Estimate | None) -> str:
    """What two intervals say of each other."""
    if mine is None or its is None or not mine.n or not its.n:
        return "measured in one alone" if (mine and mine.n) or (its and its.n) else "not measured"
    return APART if mine.low > its.high or its.low > mine.high else TOGETHER


def costs(runs: Sequence[Named]) -> Sheet:
    """Bytes, rounds and seconds: exact counts, and a clock."""
    (one, first), (other, second) = runs

    def seconds(record: Record) -> float:
        return sum(entry.seconds for entry in record.rounds)

    rows = (
        ("MiB to the server", mebibytes(first.bytes.up), mebibytes(second.bytes.up), _times(first.bytes.up, second.bytes.up)),
        ("MiB back", mebibytes(first.bytes.down), mebibytes(second.bytes.down), _times(first.bytes.down, second.bytes.down)),
        ("rounds", str(len(first.rounds) - 1), str(len(second.rounds) - 1), ""),
        ("kept round", str(first.best_round), str(second.best_round), ""),
        ("seconds", f"{seconds(first):.1f}", f"{seconds(second):.1f}", "of each machine on its day"),
    )  # fmt: skip
    heads = (Column("cost"), Column(one), Column(other), Column("says"))
    return Sheet(
        "Bytes and time", heads, rows, notes=("Bytes are exact counts of what crossed; they have no interval.",)
    )


def _times(first: int, second: int) -> str:
    if first == second:
        return "the same"
    return f"{second / first:.3g} times as many in the second" if first else "none in the first"


def difference_sentence(runs: Sequence[Named]) -> str:
    """What stands first: in how many figures the two differ for certain."""
    parts = []
    for what, sheet in (("utility", utility(runs)), ("leakage", leakage(runs))):
        said = [row[-1] for row in sheet.rows]
        compared = [one for one in said if one in (APART, TOGETHER)]
        if compared:
            parts.append(f"{what}: {compared.count(APART)} of {len(compared)} figures lie apart")
        else:
            parts.append(f"{what}: no figure that both have")
    return f"What differs by whole 95 % intervals – {'; '.join(parts)}."
