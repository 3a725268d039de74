"""Which run puts most at risk: by what embeddings add, then by what the adversary has in all; equal where intervals overlap.

    extremes(attacked).most                   # empty where no two runs can be told apart

Ranked by the advantage in triples rebuilt, the advantage in entities named, triples rebuilt (TRR), entities named (ERR).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from attacks.reconstruction.leakage import Leakage
from experiments.reporting.frames import pooled
from experiments.reporting.html.words import base_of
from experiments.runs.record import Record

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


class Extremes(NamedTuple):
    """Places of the rows where most and where least is at risk, each list the clearest first.

    Attributes:
        most: nothing is riskier, and something is for certain less at risk. least: the other way round.
        untold: rows that can be told from no other.
        apart: whether any two can be told apart. They can without a most where the order goes round in a circle.
    """

    most: list[int]
    least: list[int]
    untold: list[int]
    apart: bool


def extremes(rows: Sequence[Leakage]) -> Extremes:
    """Compare each row with each other. No row is in two lists."""
    order = sorted(range(len(rows)), key=lambda place: risk(rows[place]), reverse=True)
    above = {place for place in order if any(riskier(rows[place], other) for other in rows)}
    below = {place for place in order if any(riskier(other, rows[place]) for other in rows)}
    most = [place for place in order if place in above - below]
    least = [place for place in reversed(order) if place in below - above]
    return Extremes(most, least, [place for place in order if place not in above | below], bool(above))
