"""A client plants false triples: it trains on its own data and on many copies of them, and may amplify its upload.

Threat model: "client", active: it chooses its training data and its uploads, and skips a defense's steps on clients (clipping,
noise). Required knowledge: its own triples and broadcasts. The run is trained once more for each variant, with the same seed
and options. Variants: `plain`, the rows after training on the false triples; `boosted`, the change of the rows of their
entities (of their relations, where relations are shared) times `boost`.

It plants triples of its own names, of entities that another client also holds: their rows differ between its upload and the
broadcast. It does not know which client holds them. Every victim that trains a planted triple's entities and relation is
evaluated (`fkgsec.attacks.poisoning.planting`).

Source: ours, after CPA of Ma et al. 2024 (WWW). Differs: there the server trains the poisoned model on both clients' data, and
the mean also includes the malicious client's honest upload.
"""

from __future__ import annotations

import hashlib
from functools import partial

import numpy as np
import torch
from torch import Tensor

from fkgsec.attacks.kge.view import KgeView
from fkgsec.attacks.laboratory import Laboratory
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
from fkgsec.federation.adversary import Adversary
from fkgsec.federation.recipes import Table
from fkgsec.kge.local.training import TrainingSubset


class Poisoner(Adversary):
    """A client that trains on false triples.

    Args:
        party: party name of the client.
        poison: false triples in its local IDs, int64 `[k, 3]`, of entities and relations that it trains.
        copies: number of copies of each in its training data.
        boost: factor on the change of their rows.
        begins: its first round.
    """

    guarded = False

    def __init__(self, party: str, poison: np.ndarray, copies: int, boost: float = 1.0, begins: int = 0) -> None:
        super().__init__(party)
        self.begins = begins
        self.poison, self.copies, self.boost = poison, copies, boost

    def identity(self) -> str:
        """Describe the adversary for the identity of its run."""
        digest = hashlib.sha256(np.ascontiguousarray(self.poison, dtype="<i8").tobytes()).hexdigest()[:16]
        return f"{super().identity()} {digest} {self.copies} {self.boost:g}"

    def training_subset(self, triples: ClientGraph) -> TrainingSubset:
        """Add the copies of the false triples to the training data."""
        # Indices of the false triples, repeated: copies raise their weight in every epoch.
        planted = len(triples.train) + np.tile(np.arange(len(self.poison)), self.copies)
        return TrainingSubset(
            np.concatenate([triples.train, self.poison]), np.concatenate([np.arange(len(triples.train)), planted])
        )

    def upload(self, round: int, table: Table, received: Tensor, trained: Tensor) -> Tensor:
        """Amplify the change of the false triples' rows."""
        columns = [0, 2] if table == "entities" else [1]
        rows = torch.from_numpy(np.unique(self.poison[:, columns]))
        # Model replacement: upload = received + boost * (trained - received).
        trained[rows] = received[rows] + self.boost * (trained[rows] - received[rows])
        return trained


def plant(view: KgeView, laboratory: Laboratory, rng: np.random.Generator) -> Planted:
    """Draw false triples from the client's knowledge, and train the run with them.

    Args:
        rng: draws the false triples.

    Raises:
        NotAttacked: no false triple can be drawn, or the run cannot be repeated.
    """
    accomplice, options = view.accomplice.of_the_first, laboratory.options
    # The broadcast differs from the upload only where another client holds the entity.
    changed = (accomplice.entities != accomplice.shared_entities).any(dim=1).numpy()
    others = set(accomplice.entity_names[changed]) or set(accomplice.entity_names)
    names, relations = accomplice.entity_names, accomplice.relation_names
    named_triples = np.stack(
        [names[accomplice.triples[:, 0]], relations[accomplice.triples[:, 1]], names[accomplice.triples[:, 2]]], axis=1
    )
    triples = draw_false(named_triples, options.poison_triples, rng, others)
    laboratory.check_repeatable()
    if not len(triples.planted):
        raise NotAttacked("no false triple of entities that others hold can be drawn from the client's own")
    row_of, kind = ({name: row for row, name in enumerate(part)} for part in (names, relations))
    rows = np.array([(row_of[head], kind[relation], row_of[tail]) for head, relation, tail in triples.planted])
    # With `attack_rounds`, only the last rounds are replayed.
    begins = first_round(laboratory)
    make = {
        way: partial(Poisoner, accomplice.name, rows, options.poison_copies, boost, begins)
        for way, boost in (("plain", 1.0), ("boosted", options.boost))
    }
    attacked = train_with(laboratory, make, begins)
    return Planted(dict.fromkeys((victim.name for victim in view.victims), triples), attacked, (accomplice.name,))


ATTACK = Attack(
    "client-poison",
    "a client plants false triples in other clients' models; trains the run again for each variant",
    Needs(alone=True),
    METRICS,
    plant,
    score_planted,
    threats=("client",),
    questions=dict.fromkeys(METRICS, INTEGRITY),
    items=ITEMS,
    trains=True,
)
