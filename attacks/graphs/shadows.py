"""Federations that an adversary trains itself, to see what a candidate's membership does to a model.

    shadows = train_shadows(view, count=8, rng=rng)
    shadows.logits["MUTAG"]["local"]                 # float64 [S, n], of each candidate's class under each shadow
    shadows.inside["MUTAG"]                          # bool [S, n], which shadow trained on which candidate

Each has the attacked federation's clients, algorithm and rounds, seeds of its own, and other graphs: a client trains on the
auxiliary graphs of its data set and on half of its candidates, of which the adversary does not know which are members. Shadows
2 k and 2 k + 1 take complementary halves, so that each candidate is in as often as out. A reference federation trains on the
auxiliary graphs alone.

What weakens it: a shadow's client has fewer graphs than the attacked one, so that it is fitted more closely. With all but the
candidates' membership known, as the original has it, it would be stronger; that would take the victims' own graphs.

Source: Carlini et al. 2022 (halves); the rest is ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fkgsec.attacks.graphs.models import GraphModel
from fkgsec.attacks.graphs.view import GraphVictim, GraphView, joined_sets, models_of
from fkgsec.attacks.laboratory import Laboratory
from fkgsec.graphs.sets import ClientGraphs, FederatedGraphs


@dataclass(frozen=True, eq=False)
class Shadows:
    """What shadow federations say of the candidates of each victim.

    Attributes:
        logits: by victim and model ("global", "local"), float64 `[S, n]`, see `GraphModel.logits`.
        inside: by victim, bool `[S, n]`.
    """

    logits: Mapping[str, Mapping[str, np.ndarray]]
    inside: Mapping[str, np.ndarray]


def train_shadows(view: GraphView, laboratory: Laboratory, count: int, rng: np.random.Generator) -> Shadows:
    """Train so many federations, an even number, on halves of the candidates of all victims that have auxiliary graphs."""
    victims = [one for one in view.victims if one.candidates is not None and one.auxiliary is not None]
    sizes = {victim.name: len(victim.candidates or ()) for victim in victims}
    inside: dict[str, list[np.ndarray]] = {name: [] for name in sizes}
    for _ in range(count // 2):
        for name, size in sizes.items():
            half = rng.permutation(size) < size // 2
            inside[name] += [half, ~half]
    logits: dict[str, dict[str, list[np.ndarray]]] = {name: {} for name in sizes}
    for number in range(count):
        chosen = {name: halves[number] for name, halves in inside.items()}
        for victim, models in zip(victims, _train(view, laboratory, victims, chosen, rng), strict=True):
            assert victim.candidates is not None
            for name, model in models.items():
                logits[victim.name].setdefault(name, []).append(model.logits(victim.candidates))
    return Shadows(
        {victim: {name: np.stack(rows) for name, rows in of_victim.items()} for victim, of_victim in logits.items()},
        {name: np.stack(halves) for name, halves in inside.items()},
    )


def train_reference(
    view: GraphView, laboratory: Laboratory, rng: np.random.Generator
) -> dict[str, dict[str, GraphModel]]:
    """By victim the models of a federation that trained on no candidate."""
    victims = [one for one in view.victims if one.candidates is not None and one.auxiliary is not None]
    none = {victim.name: np.zeros(len(victim.candidates or ()), dtype=bool) for victim in victims}
    trained = _train(view, laboratory, victims, none, rng)
    return {victim.name: models for victim, models in zip(victims, trained, strict=True)}


def _train(
    view: GraphView,
    laboratory: Laboratory,
    victims: list[GraphVictim],
    chosen: Mapping[str, np.ndarray],
    rng: np.random.Generator,
) -> list[dict[str, GraphModel]]:
    """The models that each client of a federation on these candidates is left with."""
    if not victims:
        return []
    clients = tuple(_client(victim, chosen[victim.name]) for victim in victims)
    changes: dict[str, Any] = {"rounds": view.round, "eval_every": view.round, "patience": 0}
    if len(clients) == 1:  # nobody to average with
        changes |= {"algorithm": "local-gc", "settings": None}
    options = view.settings.options(int(rng.integers(2**31)), **changes)
    result = laboratory.train_own(FederatedGraphs("shadows", clients), options)
    return [models_of(result, place, view.settings) for place in range(len(clients))]


def _client(victim: GraphVictim, chosen: np.ndarray) -> ClientGraphs:
    """A client that trains on the auxiliary graphs and the chosen candidates; the others stand in its test split."""
    assert victim.candidates is not None
    assert victim.auxiliary is not None
    every = np.arange(len(chosen) + len(victim.auxiliary))
    trained = np.concatenate([chosen, np.ones(len(victim.auxiliary), dtype=bool)])
    graphs = joined_sets([victim.candidates, victim.auxiliary])
    return ClientGraphs(victim.name, graphs, every[trained], every[:0], every[~trained], victim.data_set)
