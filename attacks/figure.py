"""One result of an attack, as records store it and as tables, reports, listings and the gate read it.

>>> from fkgsec.estimate import exact, proportion
>>> figure = Figure("shapes", "auc", "server", "hospital-2", proportion(80, 100), baseline=exact(0.5, 100), attainable=1.0)
>>> figure.key, round(figure.advantage, 2)
('shapes.auc', 0.3)

An attack with several variants gives one figure per `variant` and one more for the strongest of them. Verdicts and summaries
use the strongest (`headline`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import NormalDist

import msgspec

from fkgsec.attacks.outcomes import Outcomes
from fkgsec.attacks.planted import PLANTED_ITEMS
from fkgsec.estimate import Estimate, at_level, critical_value

# Name of all victims together.
ALL = "all"
NOT_ATTACKED = Estimate(0.0, 0.0, 1.0, 0, "not attacked")
STRONGEST = "strongest"
# Separator of several colluders' names.
TOGETHER = " + "
LEAKS, EXPOSED, INCONCLUSIVE, NO_EVIDENCE, NOT_APPLICABLE = LABELS = (
    "LEAKS", "EXPOSED", "INCONCLUSIVE", "NO EVIDENCE", "NOT APPLICABLE",
)  # fmt: skip
"""Answers of a figure compared with its baseline, the worst for the victim first (`Figure.answer`)."""
SMALLEST_SHARE = 0.1
"""NO EVIDENCE requires that a gain of this share of the distance from baseline to upper bound would be detected, and that the
attack is known to find a planted signal in as many items (`Figure.tested`)."""
POWER = 0.95
"""Nominal probability with which an effect of `Figure.visible_effect` is called LEAKS, by the normal distribution. Intervals are
estimates themselves, so the actual probability is at least 0.9 (tests/experiments/reporting/test_verdict_rates.py)."""

Place = tuple[str, str, str, float | None, str]
"""Attack, metric, threat model, leak ratio and variant, "" for the strongest."""


class Figure(msgspec.Struct, frozen=True, omit_defaults=True):
    """A share or a score that an attack reaches on one victim.

    Attributes:
        attack, metric: names; `attack.metric` is the measure that a policy limits.
        threat_model: name in `fkgsec.attacks.options.THREAT_MODELS`; of unlearning
            `fkgsec.attacks.forgetting.evaluation.HOLDER`.
        victim: name of a client, or "all" together.
        estimate: value with its interval. Larger is worse for the victim, unless `less_is_worse`.
        baseline: the best adversary with the same knowledge and without the training messages; None: unknown.
        attainable: upper bound of the value, over the draws of leaked entities that its interval covers; None: unknown.
        leak, colluder: leak ratio and name of the colluder under threat models with one, else None; several names are joined
            with `TOGETHER`.
        round: attacked round.
        reason: why the victim was not attacked; the estimate is then 0 with the interval [0, 1].
        variant: inference method, where the attack has several; "strongest": the best of them and of the baselines.
        by: for the strongest, the variant or baseline that it equals.
        compared: number of variants and baselines among which the strongest was chosen; its interval is corrected for that
            choice.
        guesses: baselines by name, where there are several.
        counts: numbers behind the figure by name, such as candidate pairs, or correct claims by source.
        num_attacked: for "all", number of attacked victims.
        remark: why the figure is zero by construction, or what could not be inferred.
        less_is_worse: True if the figure is an error, so that a smaller value is worse for the victim.
        exposed: the same figure for an adversary that reads only what the protocol shows in plaintext; None if it shows
            nothing.
        outcomes: outcome on each item, for figures that verdicts use (`keep_outcomes`); None where it is not stored.
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
        """Name of the measure, `attack.metric`."""
        return f"{self.attack}.{self.metric}"

    @property
    def label(self) -> str:
        """Name of the metric, with its variant where a table would otherwise list the metric twice."""
        return f"{self.metric} ({self.variant})" if self.variant not in ("", STRONGEST) else self.metric

    @property
    def advantage(self) -> float:
        """Excess over the baseline, positive if worse for the victim; 0 if nothing was attacked. Without a baseline, over 0."""
        if self.reason:
            return 0.0
        added = self.estimate.value - (self.baseline.value if self.baseline else 0.0)
        return -added if self.less_is_worse else added

    @property
    def beyond(self) -> bool:
        """True if the whole interval is worse for the victim than the baseline (than 0 without a baseline)."""
        if self.reason is not None:
            return False
        base = 0.0 if self.baseline is None else self.baseline.value
        return self.estimate.high < base if self.less_is_worse else self.estimate.low > base

    @property
    def by_protocol(self) -> bool:
        """True if the figure beats its baseline by no more than the protocol exposes without inference."""
        return self.beyond and self._shown

    @property
    def _shown(self) -> bool:
        """True if the interval includes the exposed value, or the exposed value is worse for the victim than the interval."""
        if self.exposed is None:
            return False
        return (
            self.estimate.high >= self.exposed.value if self.less_is_worse else self.estimate.low <= self.exposed.value
        )

    @property
    def baseline_at_bound(self) -> bool:
        """True if the baseline is already at the upper bound, so that the attack can add nothing."""
        return self.reason is None and self.baseline is not None and self.baseline.value == self.attainable

    def excess(self, compared: int = 1) -> Estimate:
        """Return the excess over the baseline with its interval; larger is worse for the victim.

        The errors of figure and baseline are added as if they were independent. On the same items they are positively
        correlated, so the interval is conservative.

        Args:
            compared: number of figures judged together; the level is 1 - 0.05 / compared (Bonferroni).
        """
        # Distances of both interval ends, widened to the level of `compared` figures. For an error the ends swap sides.
        wide = at_level(self.estimate, compared, least=-math.inf, most=math.inf)
        base = self.baseline or Estimate(0.0, 0.0, 0.0, 0, "exact")
        base = at_level(base, compared, least=-math.inf, most=math.inf)
        low, high = wide.low - wide.value, wide.high - wide.value
        if self.less_is_worse:
            low, high = -high, -low
            base_low, base_high = base.value - base.high, base.value - base.low
        else:
            base_low, base_high = base.low - base.value, base.high - base.value
        # Errors of independent estimates add in squares (MOVER interval of a difference).
        value = self.advantage
        return Estimate(
            value, value - math.hypot(low, base_high), value + math.hypot(high, base_low), wide.n, wide.method
        )

    def beyond_chance(self, compared: int = 1) -> bool:
        """Test whether guessing at the baseline's rate explains a share.

        Markov's inequality: an adversary that guesses a share b on average reaches a share s with probability b / s at most.
        This holds however its guesses depend on each other. This test judges rare items, whose intervals are wide.

        Args:
            compared: number of figures judged together.

        Returns:
            True if that probability is at most 0.05 / compared. False for errors and for figures other than shares.
        """
        # Only shares of items have the mean that Markov's inequality needs; their intervals are Wilson's.
        share = self.estimate.method.startswith("wilson") and not self.less_is_worse and self.baseline is not None
        return (
            share
            and self.baseline is not None
            and self.estimate.value > 0
            and self.baseline.high * self.compared * compared <= 0.05 * self.estimate.value
        )

    def visible_effect(self, compared: int = 1) -> float:
        """Return the smallest excess over the baseline that is called LEAKS with a probability of at least 0.9, see `POWER`.

        Args:
            compared: number of figures judged together.
        """
        excess = self.excess(compared)
        # The interval must clear 0 (half its width) with power POWER (as many standard errors more).
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
        if self.reason is not None or self.baseline_at_bound:
            return NOT_APPLICABLE
        # A leak must exceed the baseline; the absence of one is concluded only if a relevant effect would have been
        # visible.
        if self.excess(compared).low > 0 or self.beyond_chance(compared):
            return EXPOSED if self._shown else LEAKS
        visible = self.visible_effect(compared) <= SMALLEST_SHARE * self.room
        return NO_EVIDENCE if visible and self.tested else INCONCLUSIVE

    @property
    def status(self) -> str:
        """Answer of this figure when it is judged alone."""
        return self.answer()

    @property
    def question(self) -> tuple[str, str, str, float | None, str]:
        """Attack, metric, threat model, leak ratio and variant; equal for figures of different victims."""
        return self.attack, self.metric, self.threat_model, self.leak, self.variant

    @property
    def severity(self) -> tuple[bool, float]:
        """Sort key: larger is worse for the victim; figures without an attack sort first."""
        return self.reason is None, -self.estimate.value if self.less_is_worse else self.estimate.value


def headline(figures: Iterable[Figure]) -> list[Figure]:
    """Select the figures that verdicts and summaries use: the strongest variant where there is one, else all.

    Args:
        figures: all figures of a run.

    Returns:
        Figures in the same order. A figure without a variant is included too: it states why a victim was not attacked.
    """
    listed = list(figures)
    chosen = {(figure.attack, figure.metric) for figure in listed if figure.variant == STRONGEST}
    return [
        figure for figure in listed if figure.variant in (STRONGEST, "") or (figure.attack, figure.metric) not in chosen
    ]


def over_victims(figures: Iterable[Figure]) -> list[Figure]:
    """Select one figure per question: that of all victims together or, where there is none, of the worst victim.

    Args:
        figures: figures of one run; an attacked victim precedes one that was not attacked.
    """
    best: dict[tuple[str, str, str, float | None, str], Figure] = {}
    for figure in figures:
        worst = best.get(figure.question)
        if worst is None or _rank(figure) > _rank(worst):
            best[figure.question] = figure
    return list(best.values())


def leading(figures: Iterable[Figure], leads: Mapping[str, Sequence[str]]) -> dict[Place, Figure]:
    """Select the figures that represent each attack in a summary: over all victims, or of the worst victim.

    Args:
        figures: all figures of a run.
        leads: leading metrics by attack; for an attack without an entry every metric leads.

    Returns:
        Figures by place; for the strongest variant, the place has the variant "".
    """
    by_place: dict[Place, Figure] = {}
    for figure in over_victims(headline(figures)):
        if figure.metric in leads.get(figure.attack, (figure.metric,)):
            place = (*figure.question[:4], "" if figure.variant == STRONGEST else figure.variant)
            # Variants of one place may differ: keep one that could be attacked.
            if not (figure.reason and place in by_place):
                by_place[place] = figure
    return by_place


def keep_outcomes(figures: Sequence[Figure], leads: Mapping[str, Sequence[str]]) -> list[Figure]:
    """Drop the outcomes that no comparison reads, and store the ends of each item set once, so that records stay small.

    Outcomes remain on the leading figures by the strongest variant: on that of all victims together, or else on each victim's.

    Args:
        figures: all figures of a run.
        leads: as in `leading`.
    """
    headlines = {id(figure) for figure in headline(figures)}
    together = {figure.question for figure in figures if figure.victim == ALL and not figure.reason}
    sets: set[str] = set()
    # Stored outcomes would otherwise dominate the size of a record.
    trimmed = []
    for figure in figures:
        outcomes = figure.outcomes
        leads_here = figure.metric in leads.get(figure.attack, (figure.metric,)) and id(figure) in headlines
        if outcomes is None or not leads_here or (figure.victim != ALL and figure.question in together):
            trimmed.append(figure if outcomes is None else msgspec.structs.replace(figure, outcomes=None))
            continue
        # An earlier figure stores the ends of the same items.
        if outcomes.items in sets:
            outcomes = msgspec.structs.replace(outcomes, ends=b"")
        sets.add(outcomes.items)
        trimmed.append(msgspec.structs.replace(figure, outcomes=outcomes))
    return trimmed


def _rank(figure: Figure) -> tuple[bool, bool, float]:
    return figure.reason is None, figure.victim == ALL, figure.severity[1]
