"""Short trained federations under several defenses, and planted ones in which linked rows lie near each other."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import pytest
import torch

from attacks import AttackOptions, Figure, run_attacks
from attacks.figure import headline
from defenses import make_transport
from fkgsec import ClientGraph, FederatedGraph, FederationOptions, FederationResult, generate_consortium
from fkgsec.federation.loop import run_federation
from fkgsec.kge.local.evaluation import ClientTables

NOISY = "dp:unit=row,clip=0.1,epsilon=8"
Federate = Callable[..., FederationResult]
Attacked = Callable[..., dict[tuple[str, str, str], Figure]]


@functools.cache
def _federate(defense: str = "", algorithm: str = "fede", rounds: int = 8) -> FederationResult:
    graph = generate_consortium(clients=3, size=700, seed=5)
    options = FederationOptions(
        algorithm=algorithm, defense=defense, dim=16, rounds=rounds, eval_every=rounds, patience=0, batch_size=64,
        num_negatives=8, learning_rate=0.02, device="cpu", protocol_seed=3 if defense else None,
    )  # fmt: skip
    return run_federation(graph, options, make_transport=make_transport)


@pytest.fixture(scope="session")
def federate() -> Federate:
    """Three hospitals under a defense, trained once."""
    return _federate


@pytest.fixture(scope="session")
def attacked() -> Attacked:
    """Headline figures of one attack by (threat model, victim, metric)."""

    def run(
        result: FederationResult, attack: str, *threats: str, **options: object
    ) -> dict[tuple[str, str, str], Figure]:
        asked = AttackOptions(attack=(attack,), threat=threats, **options)
        return {(one.threat_model, one.victim, one.metric): one for one in headline(run_attacks(result, asked).figures)}

    return run


@pytest.fixture(scope="session")
def near_pairs(fabricate) -> Callable[..., FederationResult]:
    """A factory of runs whose victim links the entities of each of 60 pairs, by relation k % 3, and these lie near each other.

    Relations are short, and translate: tail = head + relation + noise. `shuffled` permutes the victim's rows.
    """

    def make(*, shuffled: bool = False, seed: int = 3) -> FederationResult:
        rng, count, dim = np.random.default_rng(seed), 60, 16
        relations = torch.from_numpy(rng.normal(0, 0.05, (3, dim)).astype(np.float32))
        heads = torch.from_numpy(rng.normal(0, 1, (count, dim)).astype(np.float32))
        kinds = torch.arange(count) % 3
        tails = heads + relations[kinds] + torch.from_numpy(rng.normal(0, 0.01, (count, dim)).astype(np.float32))
        entities = torch.stack([heads, tails], dim=1).reshape(-1, dim)
        triples = np.array([(2 * place, place % 3, 2 * place + 1) for place in range(count)])
        none = np.zeros((0, 3), dtype=np.int64)
        clients = tuple(
            ClientGraph.from_global(name, part, none, none)
            for name, part in (("colluder", triples[: count // 2]), ("victim", triples))
        )
        graph = FederatedGraph(
            "near pairs", tuple(f"e{number}" for number in range(2 * count)), ("r0", "r1", "r2"), clients
        )
        tables = [
            ClientTables(entities[one.entity_ids.tolist()], relations[one.relation_ids.tolist()]) for one in clients
        ]
        if shuffled:
            tables[1] = ClientTables(tables[1].entities[rng.permutation(2 * count)], tables[1].relations)
        return fabricate(graph, tables, tables)

    return make
