"""The view that an adversary has of a finished run under a threat model, whatever the run trained.

    view = build_view(result, THREAT_MODELS["collusion"], colluder="hospital-1", leak=0.5, seed=0)    # a `KgeView`
    view = build_view(result, THREAT_MODELS["server"], colluder="MUTAG", seed=0)                      # a `GraphView`

An attack receives a `View` (messages that the adversary's parties saw and what its accomplice handed over) and a `Laboratory`
that trains for it. Each task extends it (`fkgsec.attacks.kge.view`, `fkgsec.attacks.graphs.view`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self, TypeVar

from fkgsec.attacks.figure import ALL
from fkgsec.attacks.options import ThreatModel
from fkgsec.errors import FkgsecError, ThreatModelError
from fkgsec.federation.recipes import RECIPES

T = TypeVar("T")


class NotAttacked(FkgsecError):
    """A victim, or all of them, cannot be attacked; the message is the reason that figures give."""


@dataclass(frozen=True, eq=False)
class Victim:
    """Knowledge of the adversary about a client that does not collude."""

    name: str

    def why_none(self, part: str) -> str | None:
        """Return why there is no single upload of a table, or nothing else of that name; None where there is."""
        return None if getattr(self, part, None) is not None else f"no {part} of it crossed"


V = TypeVar("V", bound=Victim)


def claim_each(victims: Iterable[V], claim: Callable[[V], T]) -> dict[str, T | NotAttacked]:
    """Run `claim` on each victim. Returns its claims by victim, or the `NotAttacked` that it raised."""
    claims: dict[str, T | NotAttacked] = {}
    for victim in victims:
        try:
            claims[victim.name] = claim(victim)
        except NotAttacked as reason:
            claims[victim.name] = reason
    return claims


@dataclass(frozen=True, eq=False, kw_only=True)
class View:
    """Base of every task's view; a task extends it.

    No seed of the run is in it: an attack draws from its own (`BaseAttackOptions.seed`), and nothing here says what clients,
    trainers or protocols drew.

    Attributes:
        round: the attacked one.
        leak: the share of the colluder's knowledge that it handed over, where that is a share.
        run: the number of the run in `fkgsec.attacks.registry.Truth.runs`; 0: the attacked one.
        at: of a run of the laboratory, what the same adversary had in another round whose messages were asked for.
    """

    threat_model: ThreatModel
    round: int
    victims: tuple[Any, ...]
    leak: float | None = None
    run: int = 0
    at: Callable[[int], Any] | None = None

    def only(self, victims: tuple[Any, ...]) -> Self:
        """The same view with these victims."""
        return replace(self, victims=victims)


def check_attackable(graph: Any, algorithm: str, colluder: Sequence[str] | str | None) -> None:
    """Raise `ThreatModelError` before hours of training if the run cannot be attacked.

    One party holds everything, there is no victim, or a colluder (None: the first client) is no client of `graph`.
    """
    names, colluders = [client.name for client in graph.clients], named(colluder)
    if RECIPES[algorithm].pooled:
        raise ThreatModelError(f"{algorithm} has no federation to attack: one party holds all triples")
    if len(names) < 2:
        raise ThreatModelError(f"{graph.name} has one client: there is no victim to attack")
    if ALL in names:
        raise ThreatModelError(f"a client is called {ALL!r}, which stands for all victims together; rename its folder")
    for name in colluders:
        if name not in names:
            raise ThreatModelError(f"colluder must be one of {', '.join(names)}; got {name!r}")
    if set(names) <= set(colluders):
        raise ThreatModelError(f"colluder names all {len(names)} clients of {graph.name}: there is no victim to attack")


def named(colluder: Sequence[str] | str | None) -> tuple[str, ...]:
    """The clients that an option names, one or several.

    >>> named("a"), named(("a", "b")), named(None)
    (('a',), ('a', 'b'), ())
    """
    return (colluder,) if isinstance(colluder, str) else tuple(colluder or ())
