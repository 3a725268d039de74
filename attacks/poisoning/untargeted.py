"""A client that degrades training for everybody (untargeted poisoning).

Threat model: "client", active: it chooses its uploads and skips a defense's steps on clients. Required knowledge: none beyond
its own data. The run is trained once more for each variant, with the same seed and options:

- `random`: every number of its rows is drawn uniformly between the smallest and the largest of its trained ones.
- `sign flip`: its trained rows times -1.
- `shuffled identities`: it trains on its triples with its entities permuted, once for the run, and otherwise follows the
  protocol. Its values are distributed like honest ones, so that nothing in a single upload reveals it (IDR).

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
    """A client that degrades training from round `begins` on; `seed` determines its draws."""

    guarded = False

    def __init__(self, party: str, seed: int = 0, begins: int = 0) -> None:
        super().__init__(party)
        self.seed, self.begins = seed, begins

    def identity(self) -> str:
        """Describe the adversary for the identity of its run."""
        return f"{super().identity()} {self.seed}"


class RandomRows(Spoiler):
    """Uploads random rows (RandomNoise)."""

    def upload(self, round: int, table: Table, received: Tensor, trained: Tensor) -> Tensor:
        """Draw every number uniformly between the smallest and the largest trained one."""
        rng = generator(self.seed, "random rows", table, round)
        # Values within the range of honest rows, so that a range check finds nothing.
        low, high = float(trained.min()), float(trained.max())
        return torch.from_numpy(rng.uniform(low, high, tuple(trained.shape))).to(trained.dtype)


class SignFlip(Spoiler):
    """Uploads its trained rows times -1 (VectorFlip)."""

    def upload(self, round: int, table: Table, received: Tensor, trained: Tensor) -> Tensor:
        """Negate the trained rows."""
        return -trained


class ShuffledIdentities(Spoiler):
    """Trains on its triples with permuted entities (IDR)."""

    def training_subset(self, triples: ClientGraph) -> TrainingSubset:
        """Replace each entity of the training triples by another one."""
        # One permutation for the whole run: the false identities stay consistent over rounds.
        other = generator(self.seed, "shuffled identities").permutation(triples.num_trained_entities)
        heads, relations, tails = triples.train.T
        return TrainingSubset.all(np.stack([other[heads], relations, other[tails]], axis=1))


def spoil(view: KgeView, laboratory: Laboratory, rng: np.random.Generator) -> Attacked:
    """Train the run with the malicious client, for each variant.

    Args:
        rng: draws the seed of the variants.
    """
    who, seed, begins = view.accomplice.of_the_first.name, int(rng.integers(2**31)), first_round(laboratory)
    # One seed for all variants, so that they differ by their manipulation only.
    make = {
        "random": partial(RandomRows, who, seed, begins),
        "sign flip": partial(SignFlip, who, seed, begins),
        "shuffled identities": partial(ShuffledIdentities, who, seed, begins),
    }
    return train_with(laboratory, make, begins)


def score(claims: Attacked, truth: Truth) -> list[Figure]:
    """Measure the utility that the others lose."""
    attacked = results_of(truth, claims)
    return damage(truth, attacked, truth.colluders, late(attacked, claims.begins))


ATTACK = Attack(
    "client-spoil",
    "a client degrades training for all clients: random rows, flipped signs, shuffled entity IDs; trains the run again for each",
    Needs(alone=True),
    METRICS,
    spoil,
    score,
    threats=("client",),
    questions=dict.fromkeys(METRICS, INTEGRITY),
    items=ITEMS,
    trains=True,
)
