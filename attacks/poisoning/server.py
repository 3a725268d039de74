"""A server plants false triples: its own model of them enters every mean like one more client.

Threat model: "server+triples", active. Required knowledge: entity names, and a share of each victim's triples (`auxiliary`).
The server sends rows that are not the mean of the uploads. All clients receive the same table, so that clients that compare
broadcasts find nothing. From the names and relations of each victim's known triples the server draws false ones. Every round it
trains a shadow model, as a client would, on the known triples and many copies of the false ones, starting from the last
broadcast. A row of k holders that the shadow model also has is then the mean of k + 1 values.

Source: FMPA-S of Ma et al. 2024 (WWW), and its code. Differs: there the server has all triples of one victim; it draws ten
heads and repeats each triple 256 times; the shadow model's relation rows are drawn anew every round (here they persist); rows
of clients that skip a round count as if they were in the mean. DPA-S, which adds a multiple of the missing part to the other
rows, is not implemented.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import partial

import msgspec
import numpy as np
import torch
from torch import Tensor

from fkgsec.attacks.kge.view import KgeView
from fkgsec.attacks.laboratory import Laboratory, PublicSettings
from fkgsec.attacks.poisoning.planting import (
    ITEMS,
    METRICS,
    Planted,
    draw_false,
    first_round,
    score_planted,
    train_with,
)
from fkgsec.attacks.questions import INTEGRITY
from fkgsec.attacks.registry import Attack, Needs
from fkgsec.attacks.view import NotAttacked
from fkgsec.data.graph import ClientGraph
from fkgsec.exchange import AGGREGATIONS, CODECS
from fkgsec.federation.adversary import SERVER, Adversary
from fkgsec.federation.recipes import Table
from fkgsec.kge.local.stack import ClientStack
from fkgsec.kge.local.training import LocalTrainer, TrainingSubset
from fkgsec.kge.options import KgeOptions
from fkgsec.randomness import generator

# Key of the shadow model's random stream; clients have 0 and above.
_SHADOW_KEY = -2


class ShadowModel:
    """The server's own model of some triples.

    Args:
        true_triples: int64 `[n, 3]`, in rows of the table and relation numbers.
        planted: false triples, int64 `[n, 3]`, in the same IDs.
        copies: number of copies of each planted triple.
        options: options of the attacked run.
    """

    def __init__(self, true_triples: np.ndarray, planted: np.ndarray, copies: int, options: KgeOptions) -> None:
        empty = np.zeros((0, 3), dtype=np.int64)
        graph = ClientGraph.from_global("shadow", np.concatenate([true_triples, planted]), empty, empty)
        # A plain FedE client: a defense or an algorithm's own steps do not apply to the shadow model.
        plain = msgspec.structs.replace(
            options,
            algorithm="fede",
            settings=None,
            defense="",
            protocol_seed=None,
            negative_scope="own",
            rank_scope="own",
        )
        # FMPA-S: copies give the few false triples the weight of many.
        rows = np.concatenate(
            [np.arange(len(true_triples)), len(true_triples) + np.tile(np.arange(len(planted)), copies)]
        )
        self.rows = torch.from_numpy(graph.entity_ids.copy())
        self._stack = ClientStack([graph], [_SHADOW_KEY], plain.kge_model(), plain.seed, plain.torch_device())
        self._trainer = LocalTrainer(self._stack, plain, subsets={0: TrainingSubset(graph.train, rows)})

    def train(self, round: int, table: Tensor) -> Tensor:
        """Train one round like a client.

        Args:
            round: number of the round, for the random draws.
            table: rows that the server sent last, `[N, W]`.

        Returns:
            Its entity rows after training, `[len(rows), W]`.
        """
        rows = self._stack.rows("entities", 0).detach()
        rows.copy_(table[self.rows])
        self._trainer.begin_round()
        self._trainer.train_round(round, [0])
        return rows.cpu().clone()

    @property
    def relations(self) -> Tensor:
        """Relation rows of the shadow model, as a view."""
        return self._stack.rows("relations", 0).detach()


class ShadowHolder(Adversary):
    """A server that mixes a shadow model into every mean.

    Args:
        shadow: the shadow model.
        rows_sent: rows of the table that each client receives, by party name, in their order; empty where uploads are summed,
            since the whole table is sent then.
        holders: number of clients that hold each row, int64 `[N]`.
        what: description of the triples and copies, for the run's identity.
        begins: round whose broadcast the shadow model starts from; that broadcast is honest.
    """

    def __init__(
        self, shadow: ShadowModel, rows_sent: Mapping[str, np.ndarray], holders: np.ndarray, what: str, begins: int = 0
    ) -> None:
        super().__init__(SERVER)
        self.begins, self.watches = begins, 1
        self.shadow, self._what = shadow, what
        self._held = {party: torch.from_numpy(rows) for party, rows in rows_sent.items()}
        self._holders = torch.from_numpy(holders)
        self._round = -1
        # The whole table as sent last.
        self._sent = torch.empty(0)
        # The shadow model's rows of this round, and their position by row of the table.
        self._mixed: tuple[Tensor, Tensor] | None = None

    def identity(self) -> str:
        """Describe the adversary for the identity of its run."""
        return f"{super().identity()} {self._what}"

    def broadcast(self, round: int, table: Table, receiver: str, rows: Tensor) -> Tensor:
        """Mix the shadow model's rows into the broadcast, as if it were one more client."""
        if table != "entities":
            return rows
        if not len(self._sent):
            self._sent = torch.zeros(len(self._holders), rows.shape[1])
        if round > self._round:
            # Train once per round, for all receivers.
            self._round, values = round, None if round <= self.begins else self.shadow.train(round, self._sent)
            place = torch.full((len(self._holders),), -1)
            place[self.shadow.rows] = torch.arange(len(self.shadow.rows))
            self._mixed = None if values is None else (values, place)
        places = self._held[receiver] if self._held else torch.arange(len(rows))
        if self._mixed is not None:
            values, place = self._mixed
            ours, number = place[places] >= 0, self._holders[places][:, None]
            # FMPA-S: the mean over k + 1 clients, (k * mean + shadow row) / (k + 1).
            mixed = (number * rows + values[place[places].clamp_min(0)]) / (number + 1)
            rows = torch.where(ours[:, None], mixed, rows)
        self._sent[places] = rows
        return rows

    def tensors(self) -> dict[str, Tensor]:
        """Return the state for a checkpoint."""
        return {"round": torch.tensor(self._round), "sent": self._sent, "relations": self.shadow.relations.clone()}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore the state from a checkpoint."""
        self._round, self._sent, self._mixed = int(tensors["round"]), tensors["sent"], None
        self.shadow.relations.copy_(tensors["relations"])


def plant(view: KgeView, laboratory: Laboratory, rng: np.random.Generator) -> Planted:
    """Draw false triples from each victim's known triples, and mix a model of all of them into the mean.

    Args:
        rng: draws the false triples.

    Raises:
        NotAttacked: there is no mean to enter, no false triple can be drawn, or the run cannot be repeated.
    """
    options = laboratory.options
    auxiliary = {victim.name: victim.auxiliary for victim in view.victims if victim.auxiliary is not None}
    triples = {victim: draw_false(some, options.poison_triples, rng) for victim, some in auxiliary.items()}
    laboratory.check_repeatable()
    _check_mean(laboratory.settings)
    if options.attack_rounds and laboratory.settings.participation < 1:
        raise NotAttacked(
            "a server that begins late has not sent rows to the clients that sat out; it takes participation 1"
        )
    if not any(len(drawn.planted) for drawn in triples.values()):
        raise NotAttacked("no false triple can be drawn from the triples that the server has")
    begins = first_round(laboratory)
    planted = np.concatenate([drawn.planted for drawn in triples.values()])
    make = partial(
        _adversary, view, laboratory, np.concatenate([*auxiliary.values()]), planted, options.poison_copies, begins
    )
    return Planted(triples, train_with(laboratory, {"shadow": make}, begins))


def _check_mean(settings: PublicSettings) -> None:
    """Raise `NotAttacked` if there is no mean that the server could enter."""
    recipe, algorithm = settings.recipe, settings.algorithm
    if "entities" not in recipe.shared:
        raise NotAttacked(f"{algorithm} transmits no entity embedding")
    if not CODECS[recipe.codec].whole or AGGREGATIONS[recipe.aggregation].answers != "rows":
        raise NotAttacked(f"{algorithm} does not send all clients whole rows of one mean")
    if settings.options(seed=0).has_encoder:
        raise NotAttacked(f"a shadow of {settings.model} has an encoder to train")


def _adversary(
    view: KgeView, laboratory: Laboratory, true_triples: np.ndarray, planted: np.ndarray, copies: int, begins: int
) -> ShadowHolder:
    """Build the adversary from the server's knowledge: names of rows, and the number of holders of each.

    Args:
        true_triples, planted: triples of names, object `[n, 3]`.
    """
    secure = view.secure.get("entities")
    if secure is None:
        names = list(dict.fromkeys(name for sent in view.alignments.values() for name in sent))
        row_of = {name: row for row, name in enumerate(names)}
        rows = {party: np.array([row_of[name] for name in sent]) for party, sent in view.alignments.items()}
        # The server counts holders from the uploads' names; sums state the counts themselves.
        uploaded = [name for victim in view.victims if victim.entity_names is not None for name in victim.entity_names]
        holders = np.bincount([row_of[name] for name in uploaded], minlength=len(names))
    else:
        row_of, rows = {name: row for row, name in enumerate(secure.names)}, {}
        holders = np.max([opened.sums()[1] for opened in secure.opened], axis=0)
    kinds = {name: number for number, name in enumerate(sorted({*true_triples[:, 1], *planted[:, 1]}))}

    def numbers(triples: np.ndarray) -> np.ndarray:
        """Convert triples of names to rows of the table and relation numbers, without duplicates."""
        named = np.array([(row_of[head], kinds[kind], row_of[tail]) for head, kind, tail in triples]).reshape(-1, 3)
        return np.unique(named, axis=0).astype(np.int64)

    triples = numbers(true_triples), numbers(planted)
    digest = hashlib.sha256(np.concatenate(triples).astype("<i8").tobytes()).hexdigest()[:16]
    seed = int(generator(laboratory.seed, "shadow model").integers(2**31))
    shadow = ShadowModel(*triples, copies, laboratory.settings.options(seed))
    return ShadowHolder(shadow, rows, holders.astype(np.int64), f"{digest} {copies}", max(0, begins - 1))


ATTACK = Attack(
    "server-poison",
    "a server with some triples adds its own poisoned model to every mean; trains the run again",
    Needs(server=True, names=True, auxiliary=True),
    METRICS,
    plant,
    score_planted,
    threats=("server+triples",),
    questions=dict.fromkeys(METRICS, INTEGRITY),
    items=ITEMS,
    trains=True,
)
