"""A figure of an attack, in the form that records hold and that tables, reports, listings and the gate read.

>>> from fkgsec.estimate import exact, proportion
>>> one = Figure("shapes", "auc", "server", "hospital-2", proportion(80, 100), baseline=exact(0.5, 100), attainable=1.0)
>>> one.key, round(one.advantage, 2)
('shapes.auc', 0.3)

An attack that infers in several ways gives a figure for each `variant` and one more for the strongest of them, which is what
verdicts and summaries go by (`headline`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import NormalDist

import msgspec

from fkgsec.attacks.outcomes import Outcomes
from fkgsec.attacks.planted import PLANTED_ITEMS
from fkgsec.estimate import Estimate, at_level, critical_value

ALL = "all"  # stands for all victims together where a victim is named
NOT_ATTACKED = Estimate(0.0, 0.0, 1.0, 0, "not attacked")
STRONGEST = "strongest"
TOGETHER = " + "  # between the names of several colluders
LEAKS, EXPOSED, INCONCLUSIVE, NO_EVIDENCE, NOT_APPLICABLE = LABELS = (
    "LEAKS", "EXPOSED", "INCONCLUSIVE", "NO EVIDENCE", "NOT APPLICABLE",
)  # fmt: skip
"""How a figure compares with its baseline, the worst for the victim first (`Figure.answer`)."""
SMALLEST_SHARE = 0.1
"""NO EVIDENCE is said where an attack that gains this share of the distance from baseline to upper bound would be noticed, and
the attack is known to find a planted signal in as many items (`Figure.tested`)."""
POWER = 0.95
"""Probability by the normal distribution with which `Figure.visible_effect` is called LEAKS. Intervals are estimates themselves,
so that it is 0.9 at least (tests/experiments/reporting/test_verdict_rates.py)."""

Place = tuple[str, str, str, float | None, str]
"""Attack, metric, threat model, leak and variant, the strongest being ""."""


class Figure(msgspec.Struct, frozen=True, omit_defaults=True):
    """A share or a score that an attack reaches on one victim.

    Attributes:
        attack, metric: names; together they are the measure that a policy limits, `attack.metric`.
        threat_model: in `fkgsec.attacks.options.THREAT_MODELS`; of unlearning `fkgsec.attacks.forgetting.evaluation.HOLDER`.
        victim: a client, or "all" together.
        estimate: the figure with its interval; larger is worse for the victim, unless `less_is_worse`.
        baseline: the same figure of an adversary with the same knowledge that has no message of the rounds; of several such
            adversaries the best; None: unknown.
        attainable: the upper bound of the figure, over the draws of leaked entities that its interval covers; None: unknown.
        leak, colluder: of a threat model with a colluder, else None; of several their names, with `TOGETHER` in between.
        round: the attacked one.
        reason: why the victim was not attacked; then the estimate is 0 with the interval [0, 1].
        variant: how it was inferred, where the attack has several ways; "strongest": the best of them and of the baselines.
        by: of the strongest, which variant or baseline it is. compared: among how many it was chosen; its interval is corrected
            for that choice.
        guesses: the baselines by name, where there are several.
        counts: numbers behind the figure by name, such as how right claims were found, or candidate pairs.
        num_attacked: of "all", how many victims could be attacked and are counted.
        remark: why the figure is zero by construction, or of what nothing could be learnt, whatever was attacked.
        less_is_worse: whether the figure is an error, of which less is worse for the victim.
        exposed: the same figure of an adversary that reads what the protocol shows as it is, whatever was trained; None where
            the protocol shows nothing of it.
        outcomes: what was reached on each item, of figures that verdicts go by (`keep_outcomes`); None where it is not kept.
    """

    attack: str
    metric: str
    threat_model: str
    victim: str
    estimate: Estimate
    baseline: Estimate | None = None
    attainable: float | None = None
    leak: float | None = None
    round: int = 0
    reason: str | None = None
    variant: str = ""
    by: str | None = None
    compared: int = 1
    guesses: dict[str, Estimate] = {}
    counts: dict[str, int] = {}
    num_attacked: int = 1
    remark: str | None = None
    colluder: str | None = None
    less_is_worse: bool = False
    exposed: Estimate | None = None
    outcomes: Outcomes | None = None

    @property
    def key(self) -> str:
        """The measure's name."""
        return f"{self.attack}.{self.metric}"

    @property
    def label(self) -> str:
        """The metric, with its variant where a table would have two of it."""
        return f"{self.metric} ({self.variant})" if self.variant not in ("", STRONGEST) else self.metric

    @property
    def advantage(self) -> float:
        """Excess over the baseline, 0 where nothing was attacked; the figure itself where there is no baseline."""
        if self.reason:
            return 0.0
        added = self.estimate.value - (self.baseline.value if self.baseline else 0.0)
        return -added if self.less_is_worse else added

    @property
    def beyond(self) -> bool:
        """True if the whole interval lies on the victim's worse side of the baseline (of 0 where there is none)."""
        if self.reason is not None:
            return False
        base = 0.0 if self.baseline is None else self.baseline.value
        return self.estimate.high < base if self.less_is_worse else self.estimate.low > base

    @property
    def by_protocol(self) -> bool:
        """True if the figure beats its baseline, and the interval includes what the protocol exposes without inference."""
        return self.beyond and self._shown

    @property
    def _shown(self) -> bool:
        """True if the interval includes what the protocol exposes, or that lies beyond it."""
        if self.exposed is None:
            return False
        return (
            self.estimate.high >= self.exposed.value if self.less_is_worse else self.estimate.low <= self.exposed.value
        )

    @property
    def given(self) -> bool:
        """True if the baseline is already at the upper bound, so that the attack can add nothing."""
        return self.reason is None and self.baseline is not None and self.baseline.value == self.attainable

    def excess(self, compared: int = 1) -> Estimate:
        """Excess over the baseline, larger is worse for the victim, with its interval.

        Errors of figure and baseline are added as independent ones. On the same items they agree in part, so that the interval
        is too wide rather than too narrow.

        Args:
            compared: number of figures judged together; the level is 1 - 0.05 / compared (Bonferroni).
        """
        wide = at_level(self.estimate, compared, least=-math.inf, most=math.inf)
        base = self.baseline or Estimate(0.0, 0.0, 0.0, 0, "exact")
        base = at_level(base, compared, least=-math.inf, most=math.inf)
        low, high = wide.low - wide.value, wide.high - wide.value
        if self.less_is_worse:
            low, high = -high, -low
            base_low, base_high = base.value - base.high, base.value - base.low
        else:
            base_low, base_high = base.low - base.value, base.high - base.value
        value = self.advantage
        return Estimate(
            value, value - math.hypot(low, base_high), value + math.hypot(high, base_low), wide.n, wide.method
        )

    def beyond_chance(self, compared: int = 1) -> bool:
        """True if a share is so many times its baseline that guessing reaches it with probability 0.05 / compared at most.

        By Markov's inequality, an adversary that guesses a share b of the items on average guesses a share s with probability
        b / s at most, however the guesses depend on each other. This judges rare items, whose intervals are wide.
        """
        share = self.estimate.method.startswith("wilson") and not self.less_is_worse and self.baseline is not None
        return (
            share
            and self.baseline is not None
            and self.estimate.value > 0
            and self.baseline.high * self.compared * compared <= 0.05 * self.estimate.value
        )

    def visible_effect(self, compared: int = 1) -> float:
        """Smallest excess over the baseline that would be called LEAKS with a probability of 0.9 at least, see `POWER`."""
        excess = self.excess(compared)
        half = (excess.high - excess.low) / 2
        return half * (1 + NormalDist().inv_cdf(POWER) / critical_value(compared * self.compared))

    @property
    def room(self) -> float:
        """Distance from the baseline to the upper bound; 1 where the bound is unknown."""
        base = self.baseline.value if self.baseline else 0.0
        return 1.0 if self.attainable is None else abs(self.attainable - base)

    @property
    def planted_items(self) -> int:
        """Items of the planted signal that a test of the attack finds by this metric; 0 where none plants any."""
        return PLANTED_ITEMS.get(self.attack, {}).get(self.metric, 0)

    @property
    def tested(self) -> bool:
        """True if a test of the attack finds a planted signal by this metric in as many items or fewer."""
        return 0 < self.planted_items <= self.estimate.n

    def answer(self, compared: int = 1) -> str:
        """Compare with the baseline; one of `LABELS`. This is the one rule of all verdicts, see docs/concepts/figures.md.

        Args:
            compared: number of figures judged together, see `excess`.
        """
        if self.reason is not None or self.given:
            return NOT_APPLICABLE
        if self.excess(compared).low > 0 or self.beyond_chance(compared):
            return EXPOSED if self._shown else LEAKS
        visible = self.visible_effect(compared) <= SMALLEST_SHARE * self.room
        return NO_EVIDENCE if visible and self.tested else INCONCLUSIVE

    @property
    def status(self) -> str:
        """The answer of this figure alone."""
        return self.answer()

    @property
    def question(self) -> tuple[str, str, str, float | None, str]:
        """Attack, metric, threat model, leak and variant."""
        return self.attack, self.metric, self.threat_model, self.leak, self.variant

    @property
    def severity(self) -> tuple[bool, float]:
        """The larger, the worse for the victim; one that was not attacked comes first."""
        return self.reason is None, -self.estimate.value if self.less_is_worse else self.estimate.value


def headline(figures: Iterable[Figure]) -> list[Figure]:
    """The figures that verdicts and summaries go by: of an attack's metric the strongest variant's; all where it has no such.

    One without a variant stands for a victim that was not attacked in any.
    """
    listed = list(figures)
    chosen = {(figure.attack, figure.metric) for figure in listed if figure.variant == STRONGEST}
    return [
        figure for figure in listed if figure.variant in (STRONGEST, "") or (figure.attack, figure.metric) not in chosen
    ]


def over_victims(figures: Iterable[Figure]) -> list[Figure]:
    """For each question the figure of all victims together; where an attack gives none, that of the victim with the worst."""
    best: dict[tuple[str, str, str, float | None, str], Figure] = {}
    for figure in figures:
        worst = best.get(figure.question)
        if worst is None or _rank(figure) > _rank(worst):
            best[figure.question] = figure
    return list(best.values())


def leading(figures: Iterable[Figure], leads: Mapping[str, Sequence[str]]) -> dict[Place, Figure]:
    """The figures that stand for each attack where there is room for few, by their place: over all victims, or the worst one.

    Args:
        leads: by attack its leading metrics; of an attack that is not named every metric leads.
    """
    by_place: dict[Place, Figure] = {}
    for figure in over_victims(headline(figures)):
        if figure.metric in leads.get(figure.attack, (figure.metric,)):
            place = (*figure.question[:4], "" if figure.variant == STRONGEST else figure.variant)
            if not (figure.reason and place in by_place):  # of victims that differ, those that could be attacked
                by_place[place] = figure
    return by_place


def keep_outcomes(figures: Sequence[Figure], leads: Mapping[str, Sequence[str]]) -> list[Figure]:
    """Keep outcomes where verdicts read them, and the ends of each item set once.

    They are kept of leading figures by the strongest variant: of all victims together, of each where there is no such figure.

    Args:
        leads: as for `leading`.
    """
    headlines = {id(figure) for figure in headline(figures)}
    together = {figure.question for figure in figures if figure.victim == ALL and not figure.reason}
    sets: set[str] = set()
    trimmed = []
    for figure in figures:
        outcomes = figure.outcomes
        leads_here = figure.metric in leads.get(figure.attack, (figure.metric,)) and id(figure) in headlines
        if outcomes is None or not leads_here or (figure.victim != ALL and figure.question in together):
            trimmed.append(figure if outcomes is None else msgspec.structs.replace(figure, outcomes=None))
            continue
        if outcomes.items in sets:
            outcomes = msgspec.structs.replace(outcomes, ends=b"")
        sets.add(outcomes.items)
        trimmed.append(msgspec.structs.replace(figure, outcomes=outcomes))
    return trimmed


def _rank(figure: Figure) -> tuple[bool, bool, float]:
    return figure.reason is None, figure.victim == ALL, figure.severity[1]
