"""A client plants false triples: it trains on its own data and on many copies of them, and may upload more than it learnt.

    found = run_attacks(result, AttackOptions(attack=("client-poison",)))
    for one in headline(found.figures):
        print(one.victim, one.metric, one.estimate, one.baseline)      # hospital-2  hits@10  0.70 ...  0.00

Threat model: "client", one that does not follow the protocol: it trains on what it likes, uploads what it likes, and does none
of what a defense asks of clients (clipping, noise). It knows its own triples and what it was sent. The run is trained once more
with it in it for each way, with the same seed and options. Ways: `plain`, what training on the false triples gave; `boosted`,
the change of the rows of their entities (where relations cross, of their relations) times `boost`.

It plants triples of its own names, of entities that somebody else holds, too: their rows come back unlike what it sent. Which
client holds what it does not know; every victim that trains a planted triple's entities and relation is asked
(`attacks.poisoning.planting`).

Source: ours, after CPA of Ma et al. 2024 (WWW). Differs: there the server trains the poisoned model on both clients' data, and
the malicious client's honest upload is in the mean as well.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from attacks.figure import Figure
from attacks.kge.view import KgeView
from attacks.poisoning.false_triples import FalseTriples, draw_false, held_by, without_true
from attacks.poisoning.planting import ITEMS, METRICS, first_round, obstacle, planted_figures, train_with
from attacks.reconstruction.options import KgeAttackOptions
from attacks.registry import Attack, Needs, Truth
from fkgsec.data.graph import ClientGraph
from fkgsec.federation.adversary import Adversary
from fkgsec.federation.recipes import Table
from fkgsec.kge.local.training import TrainingSubset

CLIENT_POISON = "client-poison"


class Poisoner(Adversary):
    """The client.

    Args:
        poison: false triples in its local ids, int64 `[k, 3]`, of entities and relations that it trains.
        copies: how often each stands in its training. boost: what the change of their rows is multiplied by.
        begins: its first round.
    """

    guarded = False

    def __init__(self, party: str, poison: np.ndarray, copies: int, boost: float = 1.0, begins: int = 0) -> None:
        super().__init__(party)
        self.begins = begins
        self.poison, self.copies, self.boost = poison, copies, boost

    def identity(self) -> str:
        digest = hashlib.sha256(np.ascontiguousarray(self.poison, dtype="<i8").tobytes()).hexdigest()[:16]
        return f"{super().identity()} {digest} {self.copies} {self.boost:g}"

    def training_subset(self, own: ClientGraph) -> TrainingSubset:
        planted = len(own.train) + np.tile(np.arange(len(self.poison)), self.copies)
        return TrainingSubset(
            np.concatenate([own.train, self.poison]), np.concatenate([np.arange(len(own.train)), planted])
        )

    def upload(self, round: int, table: Table, received: Tensor, trained: Tensor) -> Tensor:
        columns = [0, 2] if table == "entities" else [1]
        rows = torch.from_numpy(np.unique(self.poison[:, columns]))
        trained[rows] = received[rows] + self.boost * (trained[rows] - received[rows])
        return trained


@dataclass(frozen=True, eq=False)
class Plan:
    """What the client is to plant, and how; `triples` are of names."""

    triples: FalseTriples
    copies: int
    boost: float
    attack_rounds: int | None = None


def planned(options: KgeAttackOptions) -> Callable[[KgeView, np.random.Generator], Mapping[str, Plan]]:
    """The adversary's part under these options, the same for every victim."""

    def plan(view: KgeView, rng: np.random.Generator) -> dict[str, Plan]:
        assert view.colluder is not None
        own = view.colluder.of_the_first  # which is the one that acts
        changed = (own.entities != own.shared_entities).any(dim=1).numpy()
        others = set(own.entity_names[changed]) or set(own.entity_names)
        names, relations = own.entity_names, own.relation_names
        known = np.stack([names[own.triples[:, 0]], relations[own.triples[:, 1]], names[own.triples[:, 2]]], axis=1)
        made = Plan(
            draw_false(known, options.poison_triples, rng, others),
            options.poison_copies,
            options.boost,
            options.attack_rounds,
        )
        return {victim.name: made for victim in view.victims}

    return plan


def score(plans: Mapping[str, Plan], truth: Truth) -> list[Figure]:
    """Train with the client in it, and ask every victim."""
    reason = obstacle(truth)
    false = without_true(truth, {victim: plan.triples for victim, plan in plans.items()})
    poison = held_by(truth, truth.colluder, next(iter(false.values())).planted)
    if reason is None and not len(poison):
        reason = "no false triple of entities that others hold can be drawn from the client's own"
    one = next(iter(plans.values()))
    begins = first_round(truth, one.attack_rounds)
    attacked: dict | str = reason or ""
    if reason is None:
        make = {
            way: partial(Poisoner, truth.colluder, poison, one.copies, boost, begins)
            for way, boost in (("plain", 1.0), ("boosted", one.boost))
        }
        attacked = train_with(truth, make)
    if isinstance(attacked, str):
        return [figure for victim in plans for figure in truth.not_attacked(victim, attacked)]
    return planted_figures(truth, false, attacked, truth.colluders, begins)


ATTACK = Attack(
    CLIENT_POISON,
    "a client plants false triples in what others predict; trains the run again for each way",
    Needs(alone=True),
    METRICS,
    planned(KgeAttackOptions()),
    score,
    threats=("client",),
    items=ITEMS,
    configured=lambda options: replace(ATTACK, run=planned(options)),
    in_order=True,
    trains=True,
)
