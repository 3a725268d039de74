"""Knowledge of an adversary about a finished run under a threat model, for all tasks.

    view = build_view(result, THREAT_MODELS["collusion"], colluder="hospital-1", leak=0.5, seed=0)    # a `KgeView`
    view = build_view(result, THREAT_MODELS["server"], colluder="MUTAG", seed=0)                      # a `GraphView`

An attack receives a `View` and a `Laboratory`. The view holds the messages that the adversary's parties saw and the data that
the colluder handed over. The laboratory trains for the adversary. Each task extends both (`fkgsec.attacks.kge.view`,
`fkgsec.attacks.graphs.view`).
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
    """A victim, or all of them, cannot be attacked; the message is the reason that figures state."""


@dataclass(frozen=True, eq=False)
class Victim:
    """Knowledge of the adversary about a client that does not collude."""

    name: str

    def why_none(self, part: str) -> str | None:
        """Explain why the view lacks a part of the victim's data.

        Args:
            part: attribute of the victim, such as a table.

        Returns:
            The reason, or None if the view has the part.
        """
        return None if getattr(self, part, None) is not None else f"none of its {part} was transmitted"


V = TypeVar("V", bound=Victim)


def claim_each(victims: Iterable[V], claim: Callable[[V], T]) -> dict[str, T | NotAttacked]:
    """Run an attack on each victim.

    Args:
        victims: clients that do not collude.
        claim: attack on one victim; it may raise `NotAttacked`.

    Returns:
        The claim, or the `NotAttacked` that was raised, by victim name.
    """
    claims: dict[str, T | NotAttacked] = {}
    for victim in victims:
        try:
            claims[victim.name] = claim(victim)
        except NotAttacked as reason:
            claims[victim.name] = reason
    return claims


@dataclass(frozen=True, eq=False, kw_only=True)
class View:
    """Base of every task's view.

    The view contains no seed of the run. An attack draws from its own seed (`BaseAttackOptions.seed`), so that it cannot replay
    the draws of clients, trainers or protocols.

    Attributes:
        round: attacked round.
        leak: share of the colluder's knowledge that leaks to the server, in (0, 1]; None where no share applies.
        run: index of the run in `fkgsec.attacks.registry.Truth.runs`; 0 is the attacked run.
        at: in a run of the laboratory, returns the same adversary's view of another round that was requested with `rounds`.
    """

    threat_model: ThreatModel
    round: int
    victims: tuple[Any, ...]
    leak: float | None = None
    run: int = 0
    at: Callable[[int], Any] | None = None

    def only(self, victims: tuple[Any, ...]) -> Self:
        """Return the same view restricted to these victims."""
        return replace(self, victims=victims)


def check_attackable(graph: Any, algorithm: str, colluder: Sequence[str] | str | None) -> None:
    """Reject a run that cannot be attacked, before hours of training.

    Args:
        colluder: one client name, several, or None for the first client.

    Raises:
        ThreatModelError: one party holds all data, no victim is left, a client has the reserved name `ALL`, or a colluder is
            not a client of `graph`.
    """
    names, colluders = [client.name for client in graph.clients], named(colluder)
    # Checked before training: each of these would only surface after the run.
    if RECIPES[algorithm].pooled:
        raise ThreatModelError(f"{algorithm} has no federation to attack: one party holds all triples")
    if len(names) < 2:
        raise ThreatModelError(f"{graph.name} has one client: there is no victim to attack")
    # Records mark the figure of all victims together with this name.
    if ALL in names:
        raise ThreatModelError(f"a client is called {ALL!r}, which stands for all victims together; rename its folder")
    for name in colluders:
        if name not in names:
            raise ThreatModelError(f"colluder must be one of {', '.join(names)}; got {name!r}")
    if set(names) <= set(colluders):
        raise ThreatModelError(f"colluder names all {len(names)} clients of {graph.name}: there is no victim to attack")


def named(colluder: Sequence[str] | str | None) -> tuple[str, ...]:
    """Return the client names in a `colluder` option, which holds one name, several, or None.

    >>> named("a"), named(("a", "b")), named(None)
    (('a',), ('a', 'b'), ())
    """
    return (colluder,) if isinstance(colluder, str) else tuple(colluder or ())
