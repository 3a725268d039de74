"""What shadow federations are trained on: complementary halves, the same graph or a similar one, never what is asked about."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from fkgsec import FederatedGraph, KgeOptions, generate_consortium
from fkgsec.attacks.membership.audits import contains
from fkgsec.attacks.membership.candidates import draw_candidates, shadow_federation, shadow_options, similar
from fkgsec.attacks.options import ShadowKnowledge


@pytest.fixture(scope="module")
def graph() -> FederatedGraph:
    return generate_consortium(clients=3, size=1500, seed=1)


@pytest.mark.parametrize("knowledge", ["same-graph", "similar-graph"])
def test_halves_of_members_and_of_controls(graph: FederatedGraph, knowledge: ShadowKnowledge) -> None:
    audits = [one for one in draw_candidates(graph, 0) if one.reason is None]
    assert audits
    made = [shadow_federation(graph, audits, number, seed=0, knowledge=knowledge) for number in range(4)]
    for audit in audits:
        asked, client = audit.triples, graph.clients[audit.place]
        for shadow, member in made:
            inside, trained = member[audit.name], shadow.clients[audit.place].train
            assert contains(trained, asked).tolist() == inside.tolist()  # and of those that are out none
            for group in np.split(inside, [len(audit.members)]):
                assert abs(group.sum() - len(group) / 2) <= 0.5
            others = client.train[~contains(asked, client.train)]
            kept = contains(trained, others).mean()
            assert kept == 1.0 if knowledge == "same-graph" else 0.4 < kept < 0.75
        for first, second in ((0, 1), (2, 3)):
            assert (made[first][1][audit.name] != made[second][1][audit.name]).all()
        assert (made[0][1][audit.name] != made[2][1][audit.name]).any()
    assert len({shadow.hash for shadow, _ in made}) == 4


def test_a_similar_client_has_the_same_heads_tails_and_relations(graph: FederatedGraph) -> None:
    client = graph.clients[0]
    other = similar(client, np.random.default_rng(0))
    for columns in ([0], [1], [2], [0, 1], [1, 2]):
        assert sorted(map(tuple, client.train[:, columns])) == sorted(map(tuple, other.train[:, columns]))
    assert 0.4 < contains(client.train, other.train).mean() < 0.75


def test_members_are_trained_on_and_controls_by_nobody(graph: FederatedGraph) -> None:
    everywhere = np.concatenate([client.to_global(client.train) for client in graph.clients])
    for audit in draw_candidates(graph, 3):
        client = graph.clients[audit.place]
        assert contains(client.train, audit.members).all()
        assert not contains(everywhere, client.to_global(audit.controls)).any()
        others = [one.to_global(one.train) for one in graph.clients if one.name != audit.name]
        assert not contains(np.concatenate(others), client.to_global(audit.members)).any()


def test_seeds_are_their_own() -> None:
    options = KgeOptions(rounds=3)
    seeds = [shadow_options(options, number, seed=attack).seed for attack in (0, 1) for number in range(4)]
    assert len({options.seed, *seeds}) == 9
    assert all(one != other for one, other in pairwise(seeds))
