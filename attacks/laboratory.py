"""Repeats the attacked run for an active adversary, or for messages that the run did not keep.

    def run(view, laboratory, rng):
        attacked = laboratory.train(Flipper(view.colluder.name))      # a View of the run with the adversary in it
        return Claims(attacked.run, read_off(attacked))

The attack receives a `View` of the repeated run under the threat model of its first view. The clients' true data stay with the
evaluator, who looks up the repeated run in `Truth.runs` by the index in the view.
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
# A seed would let the adversary replay the clients' draws; the defense's parameters are not assumed to be known.
_NOT_PUBLIC = ("seed", "protocol_seed", "device", "defense")


@dataclass(frozen=True)
class PublicSettings:
    """Public knowledge of a run: its options as attributes, without seeds, device and defense.

    >>> from fkgsec.gnn.options import GnnOptions
    >>> PublicSettings.of(GnnOptions(width=32)).width
    32
    """

    kind: type[Any]
    fields: Mapping[str, Any]

    @classmethod
    def of(cls, options: Any) -> PublicSettings:
        """Select the public options of a run from its full options."""
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
        """Recipe of the run's algorithm."""
        return RECIPES[self.fields["algorithm"]]

    def options(self, seed: int, **changes: Any) -> Any:
        """Build options for a run of the adversary like the attacked one, without a defense.

        Args:
            seed: the adversary's seed.
            changes: options that differ from the attacked run.
        """
        return self.kind(**{**self.fields, "seed": seed, "device": "cpu", **changes})


class Laboratory(Generic[ViewT]):
    """Repeats one run for the adversary of one view.

    Args:
        train: trains a federation; same signature as `run_federation`.
        options: options of the attack.
        colluders: names of the colluding clients; the first one acts.
        view_of: builds the view of another run of the same clients under the same threat model.
        memory: cache that attacks share across the threat models of one draw of leaked entities.

    Attributes:
        settings: public settings of the run.
        seed: seed of the attack, independent of all seeds of the run.
        uploads: rounds after alignment in which each client uploaded, by client name.
        last_round: last round of the attacked run.
        noised: True if the run has a noise guarantee, whose scale depends on the number of rounds.
        suppresses: True if sums leave out rows with few holders.
        obstacle: reason why no adversary can change the run; None if it can be repeated.
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
        # Attacks must not read `_runs`: they hold the clients' true data for the evaluator.
        defense, algorithm = result.options.defense, result.options.algorithm
        self._runs: list[Any] = [result]  # and those that are trained here; the evaluator alone reads them
        self.settings, self.options, self.seed = PublicSettings.of(result.options), options, options.seed
        self.colluders, self.memory = tuple(colluders), {} if memory is None else memory
        self.last_round = result.rounds[-1].round if result.rounds else 0
        self.noised, self.suppresses = bool(result.protection.guarantees), "suppress" in defense
        # The adversary sees who takes part in which round, from the transcript's headers.
        sent = [
            (entry.sender, entry.round)
            for entry in result.transcript.entries
            if entry.direction == "up" and entry.round > 0
        ]
        self.uploads = {
            client.name: tuple(sorted({number for sender, number in sent if sender == client_party(client.name)}))
            for client in result.graph.clients
        }
        # Reasons against a repetition, from the weakest to the strongest; the last one that applies is stated.
        self.obstacle = None if self.settings.recipe.shared else f"{algorithm} transmits nothing"
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
        """Repeat the run with the same seed and options, and return the adversary's view of it.

        Args:
            adversary: active adversary in the run; None trains the same run again.
            rounds: rounds whose messages to keep beside the default ones (`View.at`).
            last: last round; None keeps the run's own. With `last`, validation never stops the run early.
            data: by malicious client, a function that returns its manipulated data.

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
        """Repeat the run with invented triples in the training data of a malicious client.

        Args:
            client: name of the malicious client.
            triples: entity and relation names, object `[k, 3]`; the client knows all heads and relations.
            make: builds the adversary from the client's rows of the triples' tails, int64 `[k]`.
            last: last round, as in `train`.

        Raises:
            NotAttacked: the run cannot be repeated, or broke down with the adversary in it.
        """
        graph = self._runs[0].graph
        before = next(data for data in graph.clients if data.name == client)
        # Tails that no client has yet become new entities at the end of the vocabulary, so that existing IDs stay.
        entities = tuple(dict.fromkeys([*graph.entities, *triples[:, 2]]))
        numbers = [{name: number for number, name in enumerate(names)} for names in (entities, graph.relations)]
        ids = [[numbers[column == 1][name] for column, name in enumerate(triple)] for triple in triples]
        parts = [before.to_global(part) for part in (before.train, before.valid, before.test)]
        parts[0] = np.concatenate([parts[0], np.array(ids, dtype=np.int64).reshape(-1, 3)])
        claimed = ClientGraph.from_global(client, *parts)
        # `from_global` numbers the client's entities anew: the rows of the tails depend on its manipulated training
        # set.
        row_of = {entity: row for row, entity in enumerate(claimed.entity_ids.tolist())}
        rows = np.array([row_of[tail] for _, _, tail in ids], dtype=np.int64)
        clients = tuple(claimed if data is before else data for data in graph.clients)
        return self._repeat(replace(graph, entities=entities, clients=clients), make(rows), (), last)

    def _repeat(self, graph: Any, adversary: Adversary | None, rounds: Collection[int], last: int | None) -> ViewT:
        self.check_repeatable()
        options = self._runs[0].options
        if last is not None:
            # No early stopping: the attack needs exactly the rounds up to `last`.
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
        """Train a separate federation on the adversary's data.

        Args:
            data: federated data that the adversary has.
            options: options of that run, see `PublicSettings.options`.

        Returns:
            The whole result, of which the adversary knows everything.
        """
        return self._train(data, options)

    def _seen(self, result: Any, number: int) -> ViewT:
        view = self._view_of(result)
        # Views of other rounds are built on request: a run has hundreds of rounds, and an attack needs few.
        return replace(view, run=number, at=lambda round: self._seen(replace(result, best_round=round), number))
