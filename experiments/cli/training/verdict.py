"""What an attack, several seeds or a comparison found, in the words that stand first: what leaked, how sure, against which base.

    for line in verdict_lines(record):              # Verdict: leaks. 2 of 3 figures lie beyond their base with ...
        print(line)                                 #   LEAKS      .906 [.872, .941], base .380: training triples of ...

The figures are those of `experiments.reporting.matrix`: an attack's leading metrics over all victims, or of the worst one. One
leaks where its whole 95 % interval lies beyond the base, what the same adversary gets without what crossed in the rounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from attacks.registry import ATTACKS
from attacks.view import ALL
from experiments.audit.artefacts import Audit
from experiments.reporting.frames import attack_name
from experiments.reporting.matrix import Cell, figure_rows, matrix
from experiments.reporting.sheets import interval, short
from experiments.runs.intervals import over_seeds
from experiments.runs.record import Record
from experiments.tasks.task import task_of

LEAKS, OPEN, BELOW, GIVEN, NOT_ATTACKED = "LEAKS", "not shown", "no leak", "base is max", "not attacked"
MOST_LINES = 6
BASE = (
    "base: what the same adversary gets without what crossed in the rounds; only what lies beyond it has leaked. max: "
    "the most that the figure can be."
)
SURE = "[low, high]: 95 % interval of this one training; --seeds 3 says how much trainings differ."
SURE_TABLES = "[low, high]: 95 % interval of these tables; those of other trainings differ."
SURE_OVER = "[low, high]: 95 % interval over items and trainings. base, max: of the training where they are worst."


class Found(NamedTuple):
    """One leading figure, and what its interval says of the base."""

    status: str
    cell: Cell

    @property
    def advantage(self) -> float:
        """How much is added to the base."""
        return 0.0 if self.cell.figure is None else self.cell.figure.advantage

    @property
    def key(self) -> str:
        """Attack and metric."""
        assert self.cell.figure is not None
        return self.cell.figure.key

    @property
    def figures(self) -> str:
        """`.906 [.872, .941], base .380, max 1.000`."""
        one = self.cell.figure
        assert one is not None
        base = "" if one.baseline is None else f", base {short(one.baseline)}"
        most = "" if one.attainable is None else f", max {short(one.attainable)}"
        return f"{interval(one.estimate)}{base}{most}"

    @property
    def question(self) -> str:
        """`reconstruction.trr under identifiers, leak 0.5; all victims`."""
        one = self.cell.figure
        assert one is not None
        whose = "all victims" if one.victim == ALL else f"worst victim: {one.victim}"
        by = f", by {one.by}" if one.by not in (None, "attack") else ""
        return f"{one.attack}.{one.label} under {attack_name(one.threat_model, one.leak)}{by}; {whose}"

    @property
    def words(self) -> str:
        """What the figure measures, as its attack says."""
        one = self.cell.figure
        assert one is not None
        return ATTACKS[one.attack].metrics.get(one.metric, one.label) if one.attack in ATTACKS else one.label


def found_in(record: Record | Audit) -> list[Found]:
    """The leading figures of what was attacked: those that leak first, of these what adds most to its base."""
    return _sorted(row.cells[0] for row in figure_rows({"": record.figures}))


def found_over(records: Sequence[Record]) -> list[Found]:
    """As `found_in`, of several trainings, at least one: intervals are over items and trainings, bases the worst of all.

    What some training has no figure for counts as not attacked.
    """
    rows = matrix({str(number): record for number, record in enumerate(records)}).rows
    return _sorted(_over(row.cells) for row in rows)


def _sorted(cells: Iterable[Cell]) -> list[Found]:
    order = (LEAKS, OPEN, BELOW, GIVEN, NOT_ATTACKED)
    return sorted(
        (Found(_status(cell), cell) for cell in cells), key=lambda one: (order.index(one.status), -one.advantage)
    )


def _over(cells: Sequence[Cell]) -> Cell:
    """The cell that stands for those of several trainings."""
    if unmeasured := [cell for cell in cells if not cell.measured]:
        return unmeasured[0]
    figures = [cell.figure for cell in cells if cell.figure is not None]
    worst = min if figures[0].less_is_worse else max
    bases = [one.baseline for one in figures if one.baseline is not None]
    most = [one.attainable for one in figures if one.attainable is not None]
    ways = dict.fromkeys(one.by for one in figures if one.by)
    return Cell(
        msgspec.structs.replace(
            figures[0],
            estimate=over_seeds([one.estimate for one in figures]),
            baseline=worst(bases, key=lambda base: base.value) if bases else None,
            attainable=worst(most) if len(most) == len(figures) else None,
            victim=" or ".join(dict.fromkeys(one.victim for one in figures)),
            by=" or ".join(ways) or None,
        )
    )


def _status(cell: Cell) -> str:
    one = cell.figure
    if one is None or cell.reason:
        return NOT_ATTACKED
    if cell.given:
        return GIVEN
    if cell.beyond:
        return LEAKS
    base = 0.0 if one.baseline is None else one.baseline.value
    better = one.estimate.low > base if one.less_is_worse else one.estimate.high < base
    return BELOW if better else OPEN


def summary(found: Sequence[Found]) -> str:
    """How many figures leak, in a sentence, and what is to say of the others."""
    counts = {
        status: sum(one.status == status for one in found) for status in (LEAKS, OPEN, BELOW, GIVEN, NOT_ATTACKED)
    }
    asked, leaking = len(found) - counts[NOT_ATTACKED], counts[LEAKS]
    if not asked:
        return "nothing to attack: what the adversaries asked for get is nothing to work on (the reasons are below)."
    lie = "lies beyond its base" if leaking == 1 else "lie beyond their base"
    sentences = [
        "leaks." if leaking else "no leak is shown.",
        f"{leaking} of {asked} figures {lie} with the whole 95 % interval.",
        f"The interval of {counts[OPEN]} holds the base: no leak is shown, and none is excluded." * bool(counts[OPEN]),
        f"{counts[BELOW]} below the base: guessing is the better attack." * bool(counts[BELOW]),
        f"{counts[GIVEN]} can be no more than the base is already." * bool(counts[GIVEN]),
        f"{counts[NOT_ATTACKED]} not attacked (reasons below)." * bool(counts[NOT_ATTACKED]),
    ]
    return " ".join(filter(None, sentences))


def verdict_lines(record: Record) -> list[str]:
    """What stands first of a run that was attacked: of each metric the adversary that gets most; else that nobody knows."""
    if not record.attacked:
        return ["Verdict: none, for nothing was attacked; fkgsec attack --run RUN says what leaks."]
    found = found_in(record)
    return [f"Verdict: {summary(found)}", *_figure_lines(found, SURE)]


def audit_lines(audit: Audit) -> list[str]:
    """What stands first of tables that were attacked, as `verdict_lines` has it of a run."""
    found = found_in(audit)
    return [f"Verdict: {summary(found)}", *_figure_lines(found, SURE_TABLES)]


def seeds_lines(records: Sequence[Record]) -> list[str]:
    """What stands first of several trainings that were attacked, as `verdict_lines` has it of one."""
    if not records[0].attacked:
        return ["Verdict: none, for nothing was attacked; fkgsec attack --seeds trains and says what leaks."]
    found = found_over(records)
    return [f"Verdict over {len(records)} trainings: {summary(found)}", *_figure_lines(found, SURE_OVER)]


def _figure_lines(found: Sequence[Found], sure: str) -> list[str]:
    """Of each metric the adversary that gets most, and how to read it."""
    lines: list[str] = []
    measured = [one for one in found if one.status != NOT_ATTACKED]
    worst: dict[str, Found] = {}
    for one in measured:
        worst.setdefault(one.key, one)
    shown = list(worst.values())[:MOST_LINES]
    for one in shown:
        lines += [f"  {one.status:<11} {one.figures}: {one.words}", f"              ({one.question})"]
    if more := len(measured) - len(shown):
        lines.append(f"  and {more} more in the tables below, of weaker adversaries or other questions")
    return [*lines, *([BASE, sure] if shown else [])]


def comparison_lines(records: Mapping[str, Record]) -> list[str]:
    """What stands first of a comparison: of each case how much leaks, its worst figure, and what it costs in utility."""
    first = next(iter(records.values()))
    lines = ["Verdict by case, with the figure that adds most to its base:"]
    for case, record in records.items():
        utility = record.utility[task_of(record.spec).metric]
        costs = f"test {task_of(first.spec).label(task_of(first.spec).metric)} {interval(utility)}" if utility.n else ""
        found = found_in(record)
        measured = [one for one in found if one.status != NOT_ATTACKED]
        worst = measured[0] if measured else None
        leaking = sum(one.status == LEAKS for one in found)
        head = (
            f"{LEAKS} in {leaking} of {len(measured)}"
            if leaking
            else f"no leak shown in {len(measured)}"
            if measured
            else "nothing to attack"
        )
        lines.append(f"  {case}: {head}; {costs}")
        if worst is not None:
            lines.append(f"      {worst.figures}: {worst.question}")
    return [*lines, BASE, SURE]
