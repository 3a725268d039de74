"""Threat models, and the view that an adversary has of a finished run under one of them, whatever the run trained.

    view = build_view(result, THREAT_MODELS["collusion"], colluder="hospital-1", leak=0.5, seed=0)    # a `KgeView`
    view = build_view(result, THREAT_MODELS["server"], colluder="MUTAG", seed=0)                      # a `GraphView`

An attack receives a `View` and nothing else: messages that the adversary's parties saw and what its accomplice handed over. What
these are depends on the task, which says it in a module of its own (`attacks.kge.task`, `attacks.graphs.task`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from attacks.figure import ALL
from fkgsec.errors import ThreatModelError
from fkgsec.federation.recipes import RECIPES

KGE, GRAPH = "kge", "graph"


@dataclass(frozen=True)
class ThreatModel:
    """Who colludes and what is known beforehand.

    Attributes:
        lines: by task that it applies to, what tables say of it.
        colluder: one client hands over what it has: of knowledge graphs its element-embedding pairs, at the leak ratio; of graph
            classification its graphs and its model.
        identifiers: the server uses the names that clients sent for alignment (it keeps the identifier table).
        victim_entities: the victims' entity embeddings, without names, reached the server by another way.
        models: the adversary holds the models that clients are left with, and saw nothing of the rounds.
        server: the server is an adversary; else a colluder knows what it was sent, and no more.
        auxiliary: the adversary has labelled data beside: of knowledge graphs some of each victim's training triples, of graph
            classification graphs of the victims' data sets that nobody trains on: the validation graphs.
    """

    name: str
    lines: Mapping[str, str] = field(hash=False)
    colluder: bool = False
    identifiers: bool = False
    victim_entities: bool = False
    models: bool = False
    server: bool = True
    auxiliary: bool = False

    @property
    def leaks(self) -> bool:
        """Whether a share of a colluder's knowledge leaks to the server; a client that is alone has all of its own."""
        return self.colluder and self.server

    @property
    def about(self) -> str:
        """One line for tables; that of the first task where they differ."""
        return next(iter(self.lines.values()))


MODELS = "models"

THREAT_MODELS = {
    model.name: model
    for model in (
        ThreatModel(
            "server",
            {KGE: "an honest-but-curious server alone; it ignores names", GRAPH: "an honest-but-curious server alone"},
        ),
        ThreatModel(
            "collusion",
            {
                KGE: "server and one client; names are hidden (fedr.txt 3.1)",
                GRAPH: "server and one client, which hands over its graphs and its model",
            },
            colluder=True,
        ),
        ThreatModel(
            "collusion+entities",
            {KGE: "and it has the victims' entity rows without names (fedr.txt 4.2)"},
            colluder=True,
            victim_entities=True,
        ),
        ThreatModel(
            "identifiers",
            {KGE: "server and one client; the server uses the names it was told"},
            colluder=True,
            identifiers=True,
        ),
        ThreatModel(
            MODELS,
            dict.fromkeys((KGE, GRAPH), "whoever holds the models that clients are left with"),
            models=True,
            server=False,
        ),
        ThreatModel(
            "models+graphs",
            {GRAPH: "whoever holds the clients' models, and graphs of their data sets that nobody trains on"},
            models=True,
            server=False,
            auxiliary=True,
        ),
        ThreatModel(
            "server+graphs",
            {GRAPH: "the server, with graphs of the clients' data sets that nobody trains on"},
            auxiliary=True,
        ),
        ThreatModel(
            "server+triples",
            {KGE: "the server, which uses the names it was told, with some of each victim's triples"},
            identifiers=True,
            auxiliary=True,
        ),
        ThreatModel(
            "client",
            {
                KGE: "one client alone: its triples, its model, and the broadcasts that it received",
                GRAPH: "one client alone: its graphs, its model, and the broadcasts that it received",
            },
            colluder=True,
            server=False,
        ),
    )
}


def threat_models(task: str) -> dict[str, ThreatModel]:
    """Those that apply to a task, by name.

    >>> list(threat_models("graph"))
    ['server', 'collusion', 'models', 'models+graphs', 'server+graphs', 'client']
    """
    return {name: model for name, model in THREAT_MODELS.items() if task in model.lines}


@dataclass(frozen=True, eq=False)
class Victim:
    """What the adversary holds of one client that does not collude."""

    name: str

    def why_none(self, part: str) -> str | None:
        """Why there is no single upload of a table, or nothing else of that name; None where there is."""
        return None if getattr(self, part, None) is not None else f"no {part} of it crossed"


@dataclass(frozen=True, eq=False, kw_only=True)
class View:
    """What every task's view has; a task's own extends it.

    No seed of the run is in it: what an attack draws, it draws from its own (`BaseAttackOptions.seed`), and nothing here says
    what clients, trainers or protocols drew.

    Attributes:
        round: the attacked one.
        leak: the share of the colluder's knowledge that it handed over, where that is a share.
        run: the number of the run in `attacks.laboratory.Laboratory.runs`; 0: the attacked one.
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
    """Say before hours of training whether the run can be attacked at all.

    Args:
        graph: the clients' data.

    Raises:
        ThreatModelError: one party holds everything, there is no victim, or a colluder (None: the first client) is no client.
    """
    names = [client.name for client in graph.clients]
    if RECIPES[algorithm].pooled:
        raise ThreatModelError(f"{algorithm} has no federation to attack: one party holds all triples")
    if len(names) < 2:
        raise ThreatModelError(f"{graph.name} has one client: there is no victim to attack")
    if ALL in names:
        raise ThreatModelError(f"a client is called {ALL!r}, which stands for all victims together; rename its folder")
    for name in named(colluder):
        if name not in names:
            raise ThreatModelError(f"colluder must be one of {', '.join(names)}; got {name!r}")
    if set(names) <= set(named(colluder)):
        raise ThreatModelError(f"colluder names all {len(names)} clients of {graph.name}: there is no victim to attack")


def named(colluder: Sequence[str] | str | None) -> tuple[str, ...]:
    """The clients that an option names, one or several.

    >>> named("a"), named(("a", "b")), named(None)
    (('a',), ('a', 'b'), ())
    """
    return (colluder,) if isinstance(colluder, str) else tuple(colluder or ())
