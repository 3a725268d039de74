"""What it takes to decide a claim, if the paper's own figures are true: tests, runs, CPU hours, seeds.

    need = need_of(judged, read_experiments(), entries, costs, num_seeds=1)
    print(need.outcome, need.hours, len(need.entries))       # "holds" 4.2 30

Tests are taken by cost alone, the cheapest first, so that the choice of what is run favors no outcome. A test that is decided
already keeps its reading. Any other is expected to read as the printed difference would, with the interval of a paired
comparison.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fkgsec.estimate import Estimate
from fkgsec.experiments.papers.estimates import Costs
from fkgsec.experiments.papers.judging.claims import (
    Compared,
    Judged,
    Outcome,
    Printed,
    Reading,
    outcome_of,
    printed_pairs,
    reading_of,
    together,
    with_intervals,
)
from fkgsec.experiments.papers.queue import Entry
from fkgsec.experiments.papers.spec import Experiment
from fkgsec.experiments.reporting.sheets import Column, Sheet

MOST_SEEDS = 5
ITEM_DEVIATION = {"accuracy": 0.45}
OTHER_DEVIATION = 0.15
"""Standard deviation over test items of the difference between two runs, where no pair is measured. Measured: 0.15 for the
reciprocal ranks of two trainings of one client (FB15k-237-C3). Assumed for accuracy: shares of 0.7 that correlate at 0.5."""
UNPAIRED_DEVIATION = 0.63
"""The same of two independent shares near 0.3, as of models before and after unlearning."""


class Need(NamedTuple):
    """What decides a claim.

    Attributes:
        outcome: the one that is expected; "open" where the runs that can be made decide nothing.
        num_seeds: of each run. tests: to be run, in order. entries: their runs, in order, each once.
        measured: whether the deviation over test items is of measured pairs.
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
        return sum(one.left_s for one in self.entries)


def need_of(
    judged: Judged, experiments: Sequence[Experiment], entries: Iterable[Entry], costs: Costs, num_seeds: int,
    planned: Iterable[Entry] = (),
) -> Need:  # fmt: skip
    """The tests of a claim and their runs, the cheapest first, until the claim is expected to be decided.

    Args:
        entries: the missing runs of all tables for so many seeds. planned: those that are made anyway, and cost nothing more.
    """
    by_cell: dict[str, list[Entry]] = {}
    for entry in entries:
        for cell in entry.wanted.cells:
            by_cell.setdefault(cell, []).append(entry)
    parts: dict[str, list[Printed]] = {}
    for part in printed_pairs(judged.claim, experiments):
        parts.setdefault(part.test, []).append(part)
    readings = _decided(judged, parts)
    left = {
        test: {entry.folder: entry for part in found for cell in part.cells for entry in by_cell.get(cell, ())}
        for test, found in parts.items()
        if test not in readings and all(part.spec is not None for part in found)
    }
    # A test without missing runs is run and undecided. It stays so, whatever the paper prints.
    readings |= {test: "undecided" for test, runs in left.items() if not runs}
    left = {
        test: runs
        for test, runs in left.items()
        if runs and all(one.state != "cannot be made" for one in runs.values())
    }
    free, tests, runs = {one.folder for one in planned}, list[str](), list[Entry]()
    deviation, measured = _deviation(judged)
    while (outcome := outcome_of(list(readings.values()), num_wanted=len(parts))) == "open" and left:
        test = min(left, key=lambda one: (sum(e.left_s for f, e in left[one].items() if f not in free), one))
        readings[test] = _expected(judged, parts[test], costs, num_seeds, deviation)
        tests.append(test)
        new = [entry for folder, entry in left.pop(test).items() if folder not in free]
        runs += sorted(new, key=lambda one: one.left_s)
        free |= {one.folder for one in new}
    return Need(judged, outcome, num_seeds, tuple(tests), tuple(runs), measured)


def _decided(judged: Judged, parts: Mapping[str, Sequence[Printed]]) -> dict[str, Reading]:
    """The tests of a claim whose pairs are all run and read alike, for or against it."""
    by_test: dict[str, list[Reading]] = {}
    for pair in judged.full:
        by_test.setdefault(pair.test, []).append(pair.reading)
    size = 2 if judged.claim.unlearning else 1  # two printed differences of unlearning are of one pair
    return {
        test: found[0]
        for test, found in by_test.items()
        if len(set(found)) == 1 and found[0] != "undecided" and len(found) * size == len(parts[test])
    }


def _deviation(judged: Judged) -> tuple[float, bool]:
    """The standard deviation of a difference over test items, and whether it is of measured pairs of this claim."""
    pairs = (pair.compared for pair in judged.full)
    found = [math.sqrt(one.items * one.num_paired) for one in pairs if one and one.num_paired]
    if found:
        return statistics.median(found), True
    if judged.claim.unlearning:
        return UNPAIRED_DEVIATION, False
    return ITEM_DEVIATION.get(judged.claim.metric, OTHER_DEVIATION), False


def _expected(judged: Judged, parts: Sequence[Printed], costs: Costs, num_seeds: int, deviation: float) -> Reading:
    """How a test reads where its differences are as printed."""
    measured = [pair.compared for pair in judged.full if pair.compared]
    readings: list[Reading] = []
    for part in parts:
        if part.excess == -math.inf:
            readings.append("against")
            continue
        assert part.spec is not None
        figure = Estimate(part.excess, part.excess, part.excess, 1, "printed")
        variance = deviation**2 / costs.timings.of(part.spec).num_test
        planned = Compared(figure, figure, np.full(num_seeds, part.excess), variance, "test items")
        excess = with_intervals([*measured, planned], judged.claim.metric)[-1]
        readings.append(reading_of(excess, judged.smallest))
    if judged.claim.unlearning:  # two differences make a pair
        readings = [together(two) for two in zip(readings[::2], readings[1::2], strict=True)]
    return readings[0] if readings.count(readings[0]) == len(readings) else "undecided"


def order_by_claims(
    judged: Sequence[Judged], experiments: Sequence[Experiment], entries: Sequence[Entry], costs: Costs, num_seeds: int
) -> list[Entry]:
    """All runs: first those that are expected to decide claims, most claims per CPU hour first, then by cells per CPU hour."""
    order, open_ = list[Entry](), [one for one in judged if one.outcome == "open"]
    while open_:
        needs = [need_of(one, experiments, entries, costs, num_seeds, order) for one in open_]
        decided = [need for need in needs if need.outcome != "open"]
        if not decided:
            break
        best = min(decided, key=lambda need: need.seconds)
        order += best.entries
        open_ = [one for one in open_ if one is not best.judged]
    there = {one.folder for one in order}
    rest = [one for one in entries if one.folder not in there]
    return [*order, *sorted(rest, key=lambda one: (one.left_s / len(one.wanted.cells), one.folder.name))]


def cheapest_needs(
    judged: Sequence[Judged], experiments: Sequence[Experiment], entries: Mapping[int, Sequence[Entry]], costs: Costs
) -> list[Need]:
    """For each claim what decides it in the fewest hours. Args: entries: the missing runs by number of seeds."""
    needs = []
    for one in judged:
        found = [need_of(one, experiments, entries[seeds], costs, seeds) for seeds in entries]
        needs.append(min(found, key=lambda need: (need.outcome == "open", need.seconds)))
    return needs


def power_sheet(needs: Sequence[Need]) -> Sheet:
    """A line for each claim."""
    rows = []
    for need in needs:
        claim, wanted = need.judged.claim, len(need.judged.printed)
        if need.judged.outcome != "open":
            cells = ("decided", "", "", "", "")
        elif need.outcome == "open":
            cells = ("cannot be decided", "", "", "", "")
        else:
            cells = (
                need.outcome, f"{len(need.tests)} of {wanted}", str(len(need.entries)), str(need.num_seeds),
                f"{need.seconds / 3600:.1f}",
            )  # fmt: skip
        rows.append((claim.claim, *cells, "measured" if need.measured else "assumed"))
    heads = ("claim", "expected outcome", "tests to run", "runs", "seeds", "CPU hours", "variation over test items")
    return Sheet("What decides the claims, if the papers' figures are true", tuple(map(Column, heads)), tuple(rows))
