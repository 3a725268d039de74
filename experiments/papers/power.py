"""Cost of deciding a claim if the paper's own figures are true: tests, runs, CPU hours and seeds.

    need = need_of(judged, read_experiments(), entries, costs, num_seeds=1)
    print(need.outcome, need.seconds, len(need.entries))       # "holds" 15000.0 30

Tests are selected by cost alone, the cheapest first, so that the selection favors no outcome. A decided test keeps its
reading. Any other test is expected to give the printed difference, with the interval of a paired comparison.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from fkgsec.estimate import Estimate
from fkgsec.experiments.papers.estimates import Costs, Entry
from fkgsec.experiments.papers.judging.claims import (
    Compared,
    Comparison,
    Judged,
    Outcome,
    Reading,
    comparisons,
    outcome_of,
    reading_of,
    together,
    with_intervals,
)
from fkgsec.experiments.papers.spec import Experiment
from fkgsec.experiments.reporting.sheets import Column, Sheet

MOST_SEEDS = 5
# Standard deviation over test items of the difference between two runs, if no pair is measured. Measured: 0.15 for the
# reciprocal ranks of two trainings of one client (FB15k-237-C3). Assumed for accuracy: shares of 0.7 that correlate at 0.5.
ITEM_DEVIATION = {"accuracy": 0.45}
OTHER_DEVIATION = 0.15
# The same for two independent shares near 0.3, such as those of models before and after unlearning.
UNPAIRED_DEVIATION = 0.63


class Need(NamedTuple):
    """The cheapest tests and runs that decide a claim.

    Attributes:
        outcome: the expected outcome; "open" if the possible runs decide nothing.
        num_seeds: seeds of each run.
        tests, entries: tests and runs in order.
        measured: True if the deviation over test items was measured.
    """

    judged: Judged
    outcome: Outcome
    num_seeds: int
    tests: tuple[str, ...]
    entries: tuple[Entry, ...]
    measured: bool

    @property
    def seconds(self) -> float:
        """CPU seconds of these runs."""
        return sum(entry.left_s for entry in self.entries)


def need_of(
    judged: Judged, experiments: Sequence[Experiment], entries: Iterable[Entry], costs: Costs, num_seeds: int,
    planned: Iterable[Entry] = (),
) -> Need:  # fmt: skip
    """Select tests of a claim and their runs, the cheapest first, until the claim is expected to be decided.

    Args:
        judged: the claim.
        experiments: all tables.
        entries: the missing runs of all tables for this number of seeds.
        costs: estimates of runs.
        num_seeds: seeds of each run.
        planned: runs that are planned already and cost nothing more.
    """
    # A run may serve cells of several tests.
    by_cell: dict[str, list[Entry]] = {}
    for entry in entries:
        for cell in entry.job.cells:
            by_cell.setdefault(cell, []).append(entry)
    tests: dict[str, list[Comparison]] = {}
    for comparison in comparisons(judged.claim, experiments):
        if comparison.full:
            tests.setdefault(comparison.test, []).append(comparison)
    readings, left = dict[str, Reading](), dict[str, dict[str, Entry]]()
    for test, parts in tests.items():
        # A test with an agreeing reading of all its pairs needs no further run.
        read: list[Reading] = [pair.reading for pair in judged.full if pair.test == test]
        if len(set(read)) == 1 and read[0] != "undecided" and len(read) == len(parts):
            readings[test] = read[0]
        elif all(cell.spec is not None for part in parts for cell in part.cells.values()):
            runs = [entry for part in parts for cell in part.cells for entry in by_cell.get(cell, ())]
            # All runs are finished and leave it undecided.
            if not runs:
                readings[test] = "undecided"
            elif all(entry.state != "cannot be made" for entry in runs):
                left[test] = {str(entry.job.folder): entry for entry in runs}
    # Runs that are planned anyway add no cost to a test.
    free, chosen, order = {str(entry.job.folder) for entry in planned}, list[str](), list[Entry]()
    compared = [pair.compared for pair in judged.full if pair.compared]
    # From the variance of a mean back to the deviation of one item.
    measured = [math.sqrt(pair.items * pair.num_paired) for pair in compared if pair.num_paired]
    deviation = (
        UNPAIRED_DEVIATION if judged.claim.unlearning else ITEM_DEVIATION.get(judged.claim.metric, OTHER_DEVIATION)
    )
    deviation = statistics.median(measured) if measured else deviation
    # Greedy: add the cheapest test until the claim is decided.
    while (outcome := outcome_of(list(readings.values()), num_wanted=len(tests))) == "open" and left:
        new = {
            test: sorted(
                (entry for folder, entry in runs.items() if folder not in free), key=lambda entry: entry.left_s
            )
            for test, runs in left.items()
        }
        test = min(left, key=lambda test: (sum(entry.left_s for entry in new[test]), test))
        readings[test] = _expected(judged, tests[test], costs, num_seeds, deviation)
        chosen.append(test)
        order += new[test]
        free |= left.pop(test).keys()
    return Need(judged, outcome, num_seeds, tuple(chosen), tuple(order), bool(measured))


def _expected(judged: Judged, parts: Sequence[Comparison], costs: Costs, num_seeds: int, deviation: float) -> Reading:
    """Return the reading of a test whose differences are as printed."""
    measured, readings = [pair.compared for pair in judged.full if pair.compared], set[Reading]()
    for part in parts:
        spec, sides = part.sides[0][0].spec, list[Reading]()
        assert spec is not None
        # Printed differences have no interval, so give them the one that a paired comparison would have.
        for excess in part.printed:
            if excess == -math.inf:
                sides.append("against")
                continue
            figure = Estimate(excess, excess, excess, 1, "printed")
            # Variance of a mean over the test items.
            variance = deviation**2 / costs.timings.of(spec).num_test
            planned = Compared(figure, figure, np.full(num_seeds, excess), variance, "test items")
            interval = with_intervals([*measured, planned], judged.claim.metric)[-1]
            sides.append(reading_of(interval, judged.smallest))
        readings.add(together(sides))
    return together(readings)


def order_by_claims(
    judged: Sequence[Judged], experiments: Sequence[Experiment], entries: Sequence[Entry], costs: Costs, num_seeds: int
) -> list[Entry]:
    """Order all runs: first those that are expected to decide claims in the fewest hours, then by cells per CPU hour.

    Args:
        judged: the claims.
        experiments: all tables.
        entries: the missing runs.
        costs: estimates of runs.
        num_seeds: seeds of each run.
    """
    order, undecided = list[Entry](), [claim for claim in judged if claim.outcome == "open"]
    while undecided:
        needs = [need_of(claim, experiments, entries, costs, num_seeds, order) for claim in undecided]
        # If no claim can be decided any more, the order of the rest follows cells per hour.
        decided = [need for need in needs if need.outcome != "open"]
        if not decided:
            break
        best = min(decided, key=lambda need: need.seconds)
        order += best.entries
        undecided = [claim for claim in undecided if claim is not best.judged]
    there = {entry.job.folder for entry in order}
    rest = [entry for entry in entries if entry.job.folder not in there]
    return [*order, *sorted(rest, key=lambda entry: (entry.left_s / len(entry.job.cells), entry.job.folder.name))]


def power_sheet(needs: Sequence[Need]) -> Sheet:
    """Return a line for each claim.

    Args:
        needs: expected cost of each claim.
    """
    rows = []
    for need in needs:
        cells = ("cannot be decided", "", "", "", "")
        if need.judged.outcome != "open":
            cells = ("decided", "", "", "", "")
        elif need.outcome != "open":
            tests, hours = f"{len(need.tests)} of {len(need.judged.printed)}", f"{need.seconds / 3600:.1f}"
            cells = (need.outcome, tests, str(len(need.entries)), str(need.num_seeds), hours)
        rows.append((need.judged.claim.claim, *cells, "measured" if need.measured else "assumed"))
    heads = ("claim", "expected outcome", "tests to run", "runs", "seeds", "CPU hours", "variation over test items")
    return Sheet("What decides the claims, if the papers' figures are true", tuple(map(Column, heads)), tuple(rows))
