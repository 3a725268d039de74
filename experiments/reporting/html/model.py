"""What the report page shows: plain values, nothing left to compute.

report = assemble([Run("fede", record, scores)])
report.federations[0].overview.rows                      # a `Sheet`; charts hold their SVG and a sheet of their figures
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import pandas as pd
from markupsafe import Markup

from experiments.reporting.html.words import Verdict, Words
from experiments.reporting.matrix import Matrix
from experiments.reporting.sheets import Sheet
from experiments.runs.record import Record


@dataclass(frozen=True, eq=False)
class Run:
    """What a report is made from: how the run is called, its record, and its per-item scores where they are there; `candidates`:
    those of membership (`experiments.reporting.membership.candidates_of`)."""

    name: str
    record: Record
    scores: pd.DataFrame | None = None
    candidates: pd.DataFrame | None = None


@dataclass(frozen=True)
class Chart:
    """A chart and the table of its figures."""

    title: str
    svg: Markup
    table: Sheet


class Statement(NamedTuple):
    """A sentence; where it gives a leakage figure, what the interval says of the base."""

    text: str
    verdict: Verdict | None = None


class Finding(NamedTuple):
    """What one attack found in a run, over all victims."""

    attack: str
    statements: tuple[Statement, ...]


@dataclass(frozen=True)
class Card:
    """A run in short, and where it came from. `facts` are those that are not the same in all runs of the report."""

    name: str
    about: str
    findings: tuple[Finding, ...]
    utility: str
    cost: str
    promises: tuple[str, ...]
    facts: tuple[tuple[str, str], ...]
    spec: str


class Example(NamedTuple):
    """A triple that the adversary claims of a victim, and the one that stands there."""

    victim: str
    claim: str
    truth: str
    score: float


@dataclass(frozen=True)
class Examples:
    """Claims of one run under its strongest attack."""

    run: str
    attack: str
    counts: str
    right: tuple[Example, ...]
    wrong: tuple[Example, ...]

    @property
    def scored(self) -> bool:
        """Whether scores tell these claims apart."""
        return len({f"{one.score:.3f}" for one in (*self.right, *self.wrong)}) > 1


@dataclass(frozen=True)
class Federation:
    """The runs on the same data, side by side.

    Attributes:
        rebuilds: whether attacks rebuild triples, so that there are sections on these. words: those of the task.
        matrix: where many attacks were run, the figure that stands for each.
        rocs, risks: of membership, where there are per-item scores. without_scores: attacked runs that have no per-item scores.
    """

    identity: str
    name: str
    about: str
    rebuilds: bool
    words: Words
    verdicts: tuple[str, ...]
    lead: tuple[str, ...]
    warnings: tuple[str, ...]
    cards: tuple[Card, ...]
    adversaries: Sheet | None
    charts: tuple[Chart, ...]
    overview: Sheet
    matrix: Matrix | None
    victims: Sheet | None
    inferences: Sheet | None
    unlinked: Sheet | None
    other_attacks: Sheet | None
    rocs: tuple[Chart, ...]
    risks: tuple[Sheet, ...]
    relations: tuple[Sheet, ...]
    curves: tuple[Chart, ...]
    convergence: Sheet
    examples: tuple[Examples, ...]
    without_scores: tuple[str, ...]
    clients: Sheet

    @property
    def num_runs(self) -> int:
        """How many runs there are on these data."""
        return len(self.cards)


@dataclass(frozen=True)
class Judged:
    """A verdict that was given beside the runs: a policy's, or that of an audit of forgetting.

    Attributes:
        sentence: what stands first. lines: why. notice: that it is of other runs; empty where it is of these.
        says_not: what must not be read from it. sheet: the limits of a policy.
    """

    title: str
    status: str
    sentence: str
    lines: tuple[str, ...]
    notice: str
    says_not: str
    sheet: Sheet | None


@dataclass(frozen=True)
class Report:
    """Everything on the page. `facts` are those that all runs share; `judged` was given beside them."""

    title: str
    about: str
    notices: tuple[str, ...]
    judged: tuple[Judged, ...]
    federations: tuple[Federation, ...]
    facts: tuple[tuple[str, str], ...]
    glossary: tuple[tuple[str, str], ...]
    example_rule: str
    version: str
