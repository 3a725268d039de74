"""A client that spoils training for everybody, whatever is learnt instead.

Threat model: "client", one that uploads what it likes and does none of what a defense asks of clients. The run is trained once
more with it in it for each way, with the same seed and options:

- `random`: every number of its rows is drawn uniformly between the least and the largest of those that it trained.
- `sign flip`: its trained rows times -1.
- `shuffled identities`: it trains on its triples with its entities' identities permuted, once for the run, and follows the
  protocol otherwise: its values are distributed as honest ones, so that nothing in an upload alone tells it (IDR).

Source: RandomNoise, VectorFlip and IDR of the code FKGE25 (WWW 2026). Differs: there random numbers lie within 0.1 of zero; one
client is malicious here, there a fifth to two fifths of 5 or 10.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from torch import Tensor

from fkgsec.attacks.figure import Figure
from fkgsec.attacks.kge.view import KgeView
from fkgsec.attacks.laboratory import Laboratory
from fkgsec.attacks.poisoning.damage import ITEMS, METRICS, damage
from fkgsec.attacks.poisoning.planting import Attacked, first_round, late, results_of, train_with
from fkgsec.attacks.questions import INTEGRITY
from fkgsec.attacks.registry import Attack, Needs, Truth
from fkgsec.data.graph import ClientGraph
from fkgsec.federation.adversary import Adversary
from fkgsec.federation.recipes import Table
from fkgsec.kge.local.training import TrainingSubset
from fkgsec.randomness import generator


class Spoiler(Adversary):
    """A client that spoils training from round `begins` on. `seed`: of what it draws."""

    guarded = False

    def __init__(self, party: str, seed: int = 0, begins: int = 0) -> None:
        super().__init__(party)
        self.seed, self.begins = seed, begins

    def identity(self) -> str:
        return f"{super().identity()} {self.seed}"


class RandomRows(Spoiler):
    """Uploads rows drawn at random."""

    def upload(self, round: int, table: Table, received: Tensor, trained: Tensor) -> Tensor:
        rng = generator(self.seed, "random rows", table, round)
        low, high = float(trained.min()), float(trained.max())
        return torch.from_numpy(rng.uniform(low, high, tuple(trained.shape))).to(trained.dtype)


class SignFlip(Spoiler):
    """Uploads its trained rows times -1."""

    def upload(self, round: int, table: Table, received: Tensor, trained: Tensor) -> Tensor:
        return -trained


class ShuffledIdentities(Spoiler):
    """Trains on its triples with other entities in the place of each."""

    def training_subset(self, triples: ClientGraph) -> TrainingSubset:
        other = generator(self.seed, "shuffled identities").permutation(triples.num_trained_entities)
        heads, relations, tails = triples.train.T
        return TrainingSubset.all(np.stack([other[heads], relations, other[tails]], axis=1))


def spoil(view: KgeView, laboratory: Laboratory, rng: np.random.Generator) -> Attacked:
    """Train with the client in it, by each way."""
    who, seed, begins = view.accomplice.of_the_first.name, int(rng.integers(2**31)), first_round(laboratory)
    make = {
        "random": partial(RandomRows, who, seed, begins),
        "sign flip": partial(SignFlip, who, seed, begins),
        "shuffled identities": partial(ShuffledIdentities, who, seed, begins),
    }
    return train_with(laboratory, make, begins)


def score(claims: Attacked, truth: Truth) -> list[Figure]:
    """Measure what training with the client cost the others."""
    attacked = results_of(truth, claims)
    return damage(truth, attacked, truth.colluders, late(attacked, claims.begins))


ATTACK = Attack(
    "client-spoil",
    "a client spoils training for everybody: random rows, flipped signs, shuffled identities; trains the run again for each",
    Needs(alone=True),
    METRICS,
    spoil,
    score,
    threats=("client",),
    questions=dict.fromkeys(METRICS, INTEGRITY),
    items=ITEMS,
    trains=True,
)
