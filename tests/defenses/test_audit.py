"""Audit by canary triples: what an attack on real uploads shows of epsilon stays below the claim, and not with half the noise.

A victim trains on one of two triples with the same head, a fair coin deciding which; the auditor knows everything else, has
chosen the tails, and scores the victim's noisy upload of the head by its projection on the line between the two uploads
without noise. Training, clipping, encoding and noise are those of a run. Delta is 0.05, because then a few thousand trials
show an epsilon of the size of the claim.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace as changed
from itertools import combinations
from typing import NamedTuple

import msgspec
import numpy as np
import pytest
from torch import Tensor

from fkgsec.data.graph import ClientGraph, FederatedGraph
from fkgsec.defenses.privacy import RingNoise, clip_changes
from fkgsec.defenses.transport import DefendedTransport, make_transport
from fkgsec.federation.loop import Federation
from fkgsec.kge.options import KgeOptions
from tests.protocols.noise.audit import AuditBound, audit_lower_bound

DELTA = 0.05
CLIP = 1e-4  # far below a step of Adam: both changes are cut to it
NUM_TAILS = 20
HEAD, RELATION = NUM_TAILS, 0


def federation_of(tail: int, options: KgeOptions) -> FederatedGraph:
    """Three clients over the same entities; the first holds the canary (HEAD, RELATION, tail), which is its only use of HEAD."""
    nothing = np.zeros((0, 3), dtype=np.int64)
    ring = np.array([[i, RELATION, (i + 1) % NUM_TAILS] for i in range(NUM_TAILS)])
    clients = tuple(
        ClientGraph.from_global(name, np.concatenate([ring, [[HEAD, RELATION, own]]]), nothing, nothing)
        for name, own in (("victim", tail), ("honest", 0), ("colluder", 1))
    )
    return FederatedGraph("canary", tuple(f"entity {i}" for i in range(NUM_TAILS + 1)), ("relation",), clients)


class Trained(NamedTuple):
    """An aligned exchange, what each party trained in its first round, and where the head stands in the server's table."""

    exchange: DefendedTransport
    rows: dict[str, Tensor]
    head: int


def train(tail: int, options: KgeOptions) -> Trained:
    federation = Federation(federation_of(tail, options), options, make_transport)
    federation.align()
    federation.task.trainer.train_round(1, range(3))
    assert isinstance(federation.exchange, DefendedTransport)
    rows = {
        party: federation.task.stack.rows("entities", place).detach().clone()
        for place, party in enumerate(federation.parties)
    }
    return Trained(federation.exchange, rows, federation.exchange.server["entities"].names.index(f"entity {HEAD}"))


class Worlds(NamedTuple):
    """The two worlds, and the unit vector from the head's clipped change in "out" to that in "in"."""

    out: Trained
    inside: Trained
    direction: np.ndarray
    distance: float


def clipped_head(world: Trained) -> np.ndarray:
    """The victim's upload of the head without its noise."""
    assert world.exchange.defense.dp is not None
    received = world.exchange.clients["entities"]["client/victim"].received.numpy()
    return clip_changes(world.rows["client/victim"].numpy(), received, world.exchange.defense.dp)[HEAD]


def furthest_worlds(options: KgeOptions) -> Worlds:
    """Of all pairs of tails, the one whose clipped changes are furthest apart: an auditor may choose its canaries."""
    trained = [train(tail, options) for tail in range(2, NUM_TAILS)]
    heads = [clipped_head(world) for world in trained]
    out, inside = max(
        combinations(range(len(heads)), 2), key=lambda pair: np.linalg.norm(heads[pair[0]] - heads[pair[1]])
    )
    apart = heads[inside] - heads[out]
    distance = float(np.linalg.norm(apart))
    return Worlds(trained[out], trained[inside], apart / distance, distance)


def local_score(world: Trained, trial: int) -> np.ndarray:
    """What the server receives of the victim's head."""
    client = world.exchange.clients["entities"]["client/victim"]
    return client.contribute(trial, world.rows["client/victim"]).rows[HEAD].numpy()


def summed_score(world: Trained, trial: int) -> np.ndarray:
    """What the server learns of the head: the sum of all three, less what the colluder put in."""
    parts = {}
    for party, own in world.rows.items():
        kept = world.exchange.clients["entities"][party].contribute(trial, own)
        parts[party] = world.exchange.defended[party].part(trial, "entities", kept, own.shape[1]).values
    return (parts["client/victim"] + parts["client/honest"])[world.head]


def audit(worlds: Worlds, score: Callable[[Trained, int], np.ndarray], trials: range) -> AuditBound:
    coins = np.random.default_rng(trials.start).random(len(trials)) < 0.5
    scores: tuple[list[float], list[float]] = [], []
    for trial, coin in zip(trials, coins, strict=True):
        observed = score(worlds.inside if coin else worlds.out, trial)
        scores[int(coin)].append(float(observed @ worlds.direction))
    return audit_lower_bound(np.array(scores[1]), np.array(scores[0]), DELTA)


def noise_of(worlds: Worlds, share: float) -> None:
    """Leave that share of the noise in both worlds."""
    for world in (worlds.out, worlds.inside):
        noise = world.exchange.terms.noise["entities"]
        world.exchange.terms.noise["entities"] = changed(noise, sigma=noise.sigma * share)


MECHANISMS = {
    "local gaussian": ("dp:noise_multiplier=1,accountant=prv", local_score),
    "distributed discrete": ("secagg,dp:noise_multiplier=1", summed_score),
    "distributed skellam": ("secagg,dp:noise_multiplier=1,noise=skellam", summed_score),
}


def audited(mechanism: str, num_trials: int, options: KgeOptions) -> tuple[float, float, float]:
    """The claim, the audited bound, and that with half the noise."""
    defense, score = MECHANISMS[mechanism]
    options = msgspec.structs.replace(
        options, defense=f"{defense},clip={CLIP},delta={DELTA},unit=row", dim=4, rounds=1, learning_rate=0.01, seed=3
    )
    worlds = furthest_worlds(options)
    assert worlds.distance == pytest.approx(2 * CLIP, rel=1e-3)  # opposite directions, both clipped
    noise = worlds.out.exchange.terms.noise["entities"]
    if isinstance(noise, RingNoise):
        assert noise.guarantee.smallest_cohort == 2
    claim = noise.guarantee.epsilon
    honest = audit(worlds, score, range(1, num_trials + 1))
    noise_of(worlds, 0.5)
    halved = audit(worlds, score, range(num_trials + 1, 2 * num_trials + 1))
    return claim, honest.epsilon, halved.epsilon


@pytest.mark.parametrize(
    "mechanism",
    [
        "local gaussian",
        *(pytest.param(f"distributed {noise}", marks=pytest.mark.slow) for noise in ("discrete", "skellam")),
    ],
)
def test_the_audited_bound_is_below_the_claim_and_above_it_with_half_the_noise(
    mechanism: str, options: KgeOptions
) -> None:
    claim, honest, halved = audited(mechanism, 3000, options)
    assert 0.3 * claim < honest < claim < halved


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_with_many_trials_the_audited_bound_comes_close_to_the_claim(mechanism: str, options: KgeOptions) -> None:
    claim, honest, halved = audited(mechanism, 40_000, options)
    print(f"\n{mechanism}: claim {claim:.3f}, audited {honest:.3f}, with half the noise {halved:.3f}")
    assert 0.5 * claim < honest < claim < halved
