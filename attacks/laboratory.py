"""Trains the attacked run again for an adversary that is active in it, or that needs messages which the run did not keep.

    def run(view, laboratory, rng):
        attacked = laboratory.train(Flipper(view.colluder.name))      # a View of the run with the adversary in it
        return Claims(attacked.run, read_off(attacked))

The adversary gets a `View` of what it trained, under the threat model of the view that it was given. What clients really hold
stays with the evaluator, who finds the run itself in `Truth.runs`, by the number that the view has.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np

from fkgsec.attacks.view import NotAttacked, View
from fkgsec.data.graph import ClientGraph
from fkgsec.errors import TrainingError
from fkgsec.federation.adversary import Adversary
from fkgsec.federation.loop import run_federation
from fkgsec.federation.messages import client_party
from fkgsec.federation.recipes import RECIPES, Recipe
from fkgsec.federation.result import RunResult

ViewT = TypeVar("ViewT", bound=View)
_NOT_PUBLIC = ("seed", "protocol_seed", "device", "defense")


@dataclass(frozen=True)
class PublicSettings:
    """Public knowledge of a run: its options, which are attributes here, but for seeds, device and defense.

    >>> from fkgsec.gnn.options import GnnOptions
    >>> PublicSettings.of(GnnOptions(width=32)).width
    32
    """

    kind: type[Any]
    fields: Mapping[str, Any]

    @classmethod
    def of(cls, options: Any) -> PublicSettings:
        """Those of a run."""
        return cls(
            type(options),
            {name: value for name, value in msgspec.structs.asdict(options).items() if name not in _NOT_PUBLIC},
        )

    def __getattr__(self, name: str) -> Any:
        if name in ("kind", "fields") or name not in self.fields:
            raise AttributeError(f"{name!r} is no public setting of a run")
        return self.fields[name]

    @property
    def recipe(self) -> Recipe:
        """Recipe of the algorithm."""
        return RECIPES[self.fields["algorithm"]]

    def options(self, seed: int, **changes: Any) -> Any:
        """Options of a run like it, in plaintext, with a seed of the adversary's own."""
        return self.kind(**{**self.fields, "seed": seed, "device": "cpu", **changes})


class Laboratory(Generic[ViewT]):
    """Repeats one run for the adversary of one view.

    Args:
        result: the attacked run. train: as `run_federation`. options: of the attack.
        colluders: those that collude, the one that acts first.
        view_of: makes the view of another run of the same clients, under the same threat model.
        memory: what an attack learns for all threat models of one draw of leaked entities, by keys of its own.

    Attributes:
        settings: what every party knows of the run. seed: of the attack, which nothing in the run is drawn from.
        uploads: by client the rounds after alignment in which it uploaded. last_round: of the attacked run.
        noised: whether its noise depends on the number of rounds. suppresses: whether rows with few holders are left out of sums.
        obstacle: why no adversary can change the run; None where one can.
    """

    def __init__(
        self,
        result: RunResult,
        train: Callable[..., Any],
        options: Any,
        colluders: Sequence[str],
        view_of: Callable[[Any], ViewT],
        memory: dict[Any, Any] | None = None,
    ) -> None:
        defense, algorithm = result.options.defense, result.options.algorithm
        self._runs: list[Any] = [result]  # and those that are trained here; the evaluator alone reads them
        self.settings, self.options, self.seed = PublicSettings.of(result.options), options, options.seed
        self.colluders, self.memory = tuple(colluders), {} if memory is None else memory
        self.last_round = result.rounds[-1].round if result.rounds else 0
        self.noised, self.suppresses = bool(result.protection.guarantees), "suppress" in defense
        sent = [
            (entry.sender, entry.round)
            for entry in result.transcript.entries
            if entry.direction == "up" and entry.round > 0
        ]
        self.uploads = {
            client.name: tuple(sorted({number for sender, number in sent if sender == client_party(client.name)}))
            for client in result.graph.clients
        }
        self.obstacle = None if self.settings.recipe.shared else f"nothing crosses in {algorithm}"
        if defense and train is run_federation:
            self.obstacle = "the run was defended: it can be trained again with that defense's transport alone"
        if not result.rounds:
            self.obstacle = "its tables were trained elsewhere: it cannot be trained again with an adversary in it"
        self._train, self._view_of = train, view_of

    def check_repeatable(self) -> None:
        """Raise `NotAttacked` if no adversary can change the run."""
        if self.obstacle:
            raise NotAttacked(self.obstacle)

    def train(
        self,
        adversary: Adversary | None = None,
        rounds: Collection[int] = (),
        *,
        last: int | None = None,
        data: Mapping[str, Callable[[Any], Any]] | None = None,
    ) -> ViewT:
        """Repeat the run with the same seed and options, and return what the adversary sees of it.

        Args:
            rounds: those whose messages are needed beside the ones that a run keeps (`View.at`).
            last: the last round; None: that of the run's options. Validation then never ends the run before.
            data: by malicious client, what it makes of its own data.

        Raises:
            NotAttacked: the run cannot be repeated, or broke down with the adversary in it.
        """
        graph = self._runs[0].graph
        if data:
            clients = tuple(data[client.name](client) if client.name in data else client for client in graph.clients)
            graph = replace(graph, clients=clients)
        return self._repeat(graph, adversary, rounds, last)

    def train_with_triples(
        self, client: str, triples: np.ndarray, make: Callable[[np.ndarray], Adversary], *, last: int | None = None
    ) -> ViewT:
        """Repeat the run with invented triples in the training data of a malicious client. Raises `NotAttacked` as `train`.

        Args:
            triples: of names, object `[k, 3]`, whose heads and relations the client knows.
            make: the adversary, given the client's rows of the triples' tails, int64 `[k]`.
        """
        graph = self._runs[0].graph
        before = next(data for data in graph.clients if data.name == client)
        entities = tuple(dict.fromkeys([*graph.entities, *triples[:, 2]]))
        numbers = [{name: number for number, name in enumerate(names)} for names in (entities, graph.relations)]
        ids = [[numbers[column == 1][name] for column, name in enumerate(triple)] for triple in triples]
        parts = [before.to_global(part) for part in (before.train, before.valid, before.test)]
        parts[0] = np.concatenate([parts[0], np.array(ids, dtype=np.int64).reshape(-1, 3)])
        claimed = ClientGraph.from_global(client, *parts)
        row_of = {entity: row for row, entity in enumerate(claimed.entity_ids.tolist())}
        rows = np.array([row_of[tail] for _, _, tail in ids], dtype=np.int64)
        clients = tuple(claimed if data is before else data for data in graph.clients)
        return self._repeat(replace(graph, entities=entities, clients=clients), make(rows), (), last)

    def _repeat(self, graph: Any, adversary: Adversary | None, rounds: Collection[int], last: int | None) -> ViewT:
        self.check_repeatable()
        options = self._runs[0].options
        if last is not None:
            options = msgspec.structs.replace(options, rounds=last, eval_every=last, patience=0)
        how: dict[str, Any] = {"adversary": adversary} if adversary is not None else {}
        if rounds:
            how["rounds_needed"] = rounds
        try:
            result = self._train(graph, options, **how)
        except TrainingError as error:
            raise NotAttacked(f"the run broke down with the adversary in it: {error}") from error
        self._runs.append(result)
        return self._seen(result, len(self._runs) - 1)

    def train_own(self, data: Any, options: Any) -> Any:
        """Train a federation of the adversary's own, of which it knows all, and return its result."""
        return self._train(data, options)

    def _seen(self, result: Any, number: int) -> ViewT:
        view = self._view_of(result)
        return replace(view, run=number, at=lambda round: self._seen(replace(result, best_round=round), number))
