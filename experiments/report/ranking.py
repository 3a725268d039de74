"""Which run puts most at risk: by what embeddings add, then by what the adversary has in all; equal where intervals overlap.

    most, least = extremes(attacked)          # both are empty where no two runs can be told apart

Ranked by the advantage in triples rebuilt, the advantage in entities named, triples rebuilt (TRR), entities named (ERR).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from attacks.evaluation import Leakage
from experiments.compare import pooled
from experiments.record import Record
from experiments.report.words import base_of

LEVELS: tuple[tuple[Literal["err", "trr"], bool], ...] = (("trr", True), ("err", True), ("trr", False), ("err", False))
"""Rates in the order in which they decide, and whether the advantage over the base is meant."""

Risk = tuple[float, ...]
NOTHING: Risk = (-1.0,) * len(LEVELS)  # what was not attacked comes last


class Span(NamedTuple):
    """A figure with its interval; the base is what the adversary has at least."""

    value: float
    low: float
    high: float


def spans(row: Leakage) -> list[Span]:
    """The figures of `LEVELS`."""
    found = []
    for rate, advantage in LEVELS:
        figure, base = getattr(row, rate), base_of(row, rate)
        parts = (figure.value, figure.low, figure.high)
        found.append(Span(*(part - base if advantage else max(part, base) for part in parts)))
    return found


def risk(row: Leakage) -> Risk:
    """What attacks are sorted by; the greatest is the worst."""
    return NOTHING if row.reason else tuple(span.value for span in spans(row))


def riskier(one: Leakage, other: Leakage) -> bool:
    """Whether one attack has more for certain: by the first figure whose intervals do not overlap."""
    for mine, its in zip(spans(one), spans(other), strict=True):
        if mine.low > its.high or its.low > mine.high:
            return mine.low > its.high
    return False


def worst_attack(record: Record) -> Leakage | None:
    """The attack over all victims that gets most; None when there was nothing to attack."""
    rows = [row for row in pooled(record) if not row.reason]
    return max(rows, key=risk, default=None)


def extremes(rows: Sequence[Leakage]) -> tuple[list[int], list[int]]:
    """Places of the rows where most and where least is at risk: the clearest, then those that cannot be told from it.

    Both are empty where the worst and the mildest cannot be told apart. A row that can be told from neither is in neither.
    """
    worst, mildest = (pick(range(len(rows)), key=lambda place: risk(rows[place])) for pick in (max, min))
    if not riskier(rows[worst], rows[mildest]):
        return [], []
    like_worst = {place for place in range(len(rows)) if not riskier(rows[worst], rows[place])}
    like_mildest = {place for place in range(len(rows)) if not riskier(rows[place], rows[mildest])}
    most, least = like_worst - like_mildest - {worst}, like_mildest - like_worst - {mildest}
    return [worst, *sorted(most)], [mildest, *sorted(least)]
