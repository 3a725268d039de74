"""The verdict on an attack, several seeds or a comparison: the first lines of their output.

    for line in verdict_lines(record):              # Verdict: leaks. 2 of 3 figures beat their baseline (95 % CI excludes ...
        print(line)                                 #   LEAKS       .906 [.872, .941], baseline .380: training triples of ...

The figures are those of `experiments.reporting.matrix`: leading metrics over all victims, or of the worst one. A figure
leaks where its whole 95 % interval beats the baseline, the same adversary without access to the messages of the rounds. It is
exposed where reading what the protocol shows gives as much, whatever was trained: nothing was inferred.
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

LEAKS, EXPOSED, OPEN, BELOW, GIVEN, NOT_ATTACKED = (
    "LEAKS", "EXPOSED", "not shown", "no leak", "base is max", "not attacked",
)  # fmt: skip
STATUSES = (LEAKS, EXPOSED, OPEN, BELOW, GIVEN, NOT_ATTACKED)
MOST_LINES = 6
BASE = (
    "base: the baseline, the same adversary without access to the messages of the rounds. max: the upper bound of the figure. "
    "EXPOSED: the protocol shows it to this adversary, whatever was trained."
)
SURE = "[low, high]: 95 % interval of this training. Use --seeds 3 to see how much trainings differ."
SURE_TABLES = "[low, high]: 95 % interval of these tables. Tables of other trainings differ."
SURE_OVER = "[low, high]: 95 % interval over items and trainings. base, max: of the training where they are worst."


class Found(NamedTuple):
    """A leading figure, and how its interval compares with the baseline."""

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
    return sorted(
        (Found(_status(cell), cell) for cell in cells), key=lambda one: (STATUSES.index(one.status), -one.advantage)
    )


def _over(cells: Sequence[Cell]) -> Cell:
    """The cell that stands for those of several trainings."""
    if unmeasured := [cell for cell in cells if not cell.measured]:
        return unmeasured[0]
    figures = [cell.figure for cell in cells if cell.figure is not None]
    worst = min if figures[0].less_is_worse else max
    bases = [one.baseline for one in figures if one.baseline is not None]
    most = [one.attainable for one in figures if one.attainable is not None]
    exposed = [one.exposed for one in figures if one.exposed is not None]
    ways = dict.fromkeys(one.by for one in figures if one.by)
    return Cell(
        msgspec.structs.replace(
            figures[0],
            estimate=over_seeds([one.estimate for one in figures]),
            baseline=worst(bases, key=lambda base: base.value) if bases else None,
            attainable=worst(most) if len(most) == len(figures) else None,
            exposed=worst(exposed, key=lambda one: one.value) if len(exposed) == len(figures) else None,
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
        return EXPOSED if one.by_protocol else LEAKS
    base = 0.0 if one.baseline is None else one.baseline.value
    better = one.estimate.low > base if one.less_is_worse else one.estimate.high < base
    return BELOW if better else OPEN


def summary(found: Sequence[Found]) -> str:
    """State how many figures leak, how many are exposed, and how the others compare with their baselines."""
    counts = {status: sum(one.status == status for one in found) for status in STATUSES}
    attacked = len(found) - counts[NOT_ATTACKED]
    if not attacked:
        return "nothing to attack: the adversaries have nothing to work on (reasons below)."
    leaking, exposed = counts[LEAKS], counts[EXPOSED]
    beat = "beats its baseline" if leaking == 1 else "beat their baseline"
    sentences = [
        "leaks." if leaking else "exposed." if exposed else "no leak is shown.",
        f"{leaking} of {attacked} figures {beat} by inference (95 % CI excludes it)." * (leaking > 0 or not exposed),
        f"{exposed} of {attacked} {_are(exposed)} exposed: the protocol shows as much, whatever was trained."
        * (exposed > 0),
        f"{counts[OPEN]} {_are(counts[OPEN])} inconclusive (95 % CI includes the baseline)." * bool(counts[OPEN]),
        f"{counts[BELOW]} {_are(counts[BELOW])} below the baseline: guessing is the better attack."
        * bool(counts[BELOW]),
        f"{counts[GIVEN]} {_are(counts[GIVEN])} not applicable: the baseline is at the upper bound."
        * bool(counts[GIVEN]),
        f"{counts[NOT_ATTACKED]} not attacked (reasons below)." * bool(counts[NOT_ATTACKED]),
    ]
    return " ".join(filter(None, sentences))


def _are(number: int) -> str:
    return "is" if number == 1 else "are"


def verdict_lines(record: Record) -> list[str]:
    """The verdict on a run, and for each metric the strongest adversary."""
    if not record.attacked:
        return ["Verdict: none. No attack was run. Use fkgsec attack --run RUN."]
    found = found_in(record)
    return [f"Verdict: {summary(found)}", *_figure_lines(found, SURE)]


def audit_lines(audit: Audit) -> list[str]:
    """The verdict on tables that were attacked, as `verdict_lines` gives it for a run."""
    found = found_in(audit)
    return [f"Verdict: {summary(found)}", *_figure_lines(found, SURE_TABLES)]


def seeds_lines(records: Sequence[Record]) -> list[str]:
    """The verdict on several trainings that were attacked, as `verdict_lines` gives it for one."""
    if not records[0].attacked:
        return ["Verdict: none. No attack was run. Use fkgsec attack --seeds."]
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
        counts = {status: sum(one.status == status for one in found) for status in (LEAKS, EXPOSED)}
        shown = ", ".join(f"{status} in {number} of {len(measured)}" for status, number in counts.items() if number)
        head = shown or (f"no leak shown in {len(measured)}" if measured else "nothing to attack")
        lines.append(f"  {case}: {head}; {costs}")
        if worst is not None:
            lines.append(f"      {worst.figures}: {worst.question}")
    return [*lines, BASE, SURE]
