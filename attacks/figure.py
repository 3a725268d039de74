"""One figure of one attack: what records hold, and what tables, reports, listings and the gate read, whatever the attack.

>>> from fkgsec.estimate import exact, proportion
>>> one = Figure("shapes", "auc", "server", "hospital-2", proportion(80, 100), baseline=exact(0.5, 100), attainable=1.0)
>>> one.key, round(one.advantage, 2)
('shapes.auc', 0.3)
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from attacks.view import ALL
from fkgsec.estimate import Estimate

NOT_ATTACKED = Estimate(0.0, 0.0, 1.0, 0, "not attacked")


class Figure(msgspec.Struct, frozen=True):
    """A share or a score that an attack reaches on one victim.

    Attributes:
        attack, metric: names; together they are the measure that a policy limits, `attack.metric`.
        threat_model: one of `attacks.view.THREAT_MODELS`. victim: a client, or "all" together.
        estimate: the figure with its interval; larger is worse for the victim.
        baseline: the same figure of an adversary that knows as much and has nothing of what crossed in the rounds; None: unknown.
        attainable: the most that the figure can be; None: unknown.
        leak: of a threat model with a colluder. round: the attacked one.
        reason: why the victim was not attacked; then the estimate is 0 with the interval [0, 1].
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

    @property
    def key(self) -> str:
        """The measure's name."""
        return f"{self.attack}.{self.metric}"

    @property
    def advantage(self) -> float:
        """The figure minus its baseline; the figure itself where there is none."""
        return self.estimate.value - (self.baseline.value if self.baseline else 0.0)

    @property
    def question(self) -> tuple[str, str, str, float | None]:
        """What the figure answers beside its victim: attack, metric, threat model and leak."""
        return self.attack, self.metric, self.threat_model, self.leak


def over_victims(figures: Iterable[Figure]) -> list[Figure]:
    """For each question the figure of all victims together; where an attack gives none, that of the victim with the highest."""
    best: dict[tuple[str, str, str, float | None], Figure] = {}
    for one in figures:
        known = best.get(one.question)
        if known is None or _rank(one) > _rank(known):
            best[one.question] = one
    return list(best.values())


def _rank(figure: Figure) -> tuple[bool, bool, float]:
    return figure.victim == ALL and figure.reason is None, figure.reason is None, figure.estimate.value
