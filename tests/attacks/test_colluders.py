"""Several colluding clients: their knowledge is pooled, their parts are subtracted from sums, and nothing changes for one."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch

from fkgsec import KgeOptions, generate_consortium
from fkgsec.attacks import GraphAttackOptions, KgeAttackOptions, build_view, run_attacks
from fkgsec.attacks.figure import headline
from fkgsec.attacks.kge.view import pool
from fkgsec.attacks.options import THREAT_MODELS
from fkgsec.defenses import make_transport
from fkgsec.errors import SpecError, ThreatModelError
from fkgsec.experiments.tasks.kge import Spec
from fkgsec.federation.loop import run_federation
from fkgsec.kge.result import KgeResult

BOTH = ("hospital-1", "hospital-2")
trained = functools.partial(run_federation, make_transport=make_transport)


@functools.cache
def federation(defense: str = "", clients: int = 4) -> KgeResult:
    graph = generate_consortium(clients=clients, size=700, seed=5)
    options = KgeOptions(
        defense=defense, dim=16, rounds=4, eval_every=4, patience=0, batch_size=64, num_negatives=8,
        learning_rate=0.02, device="cpu", protocol_seed=3 if defense else None,
    )  # fmt: skip
    return trained(graph, options)


def test_knowledge_is_pooled() -> None:
    result = federation()
    one, other = (
        build_view(result, THREAT_MODELS["collusion"], colluder=name, leak=0.5, seed=0).colluder for name in BOTH
    )
    view = build_view(result, THREAT_MODELS["collusion"], colluder=BOTH, leak=0.5, seed=0)
    both = view.colluder
    assert [victim.name for victim in view.victims] == ["hospital-3", "hospital-4"]
    assert set(both.entity_names) == {*one.entity_names, *other.entity_names}
    assert len(set(both.entity_names)) == len(both.entity_names)
    place = {name: row for row, name in enumerate(both.entity_names)}
    for name in both.entity_names:
        rows = [
            part.entities[list(part.entity_names).index(name)] for part in (one, other) if name in part.entity_names
        ]
        torch.testing.assert_close(both.entities[place[name]], torch.stack(rows).mean(dim=0))
    assert named_triples(both) == sorted(named_triples(one) + named_triples(other))
    for name, row in zip(both.relation_names, both.relations, strict=True):
        most = max((one, other), key=lambda part: (part.relation_names[part.triples[:, 1]] == name).sum())
        assert torch.equal(row, most.relations[list(most.relation_names).index(name)])
    assert both.of_the_first.entity_names.tolist() == one.entity_names.tolist()
    assert pool([one]) is one


def named_triples(known) -> list[tuple[str, str, str]]:
    ends = np.append(known.entity_names, "not leaked")
    return sorted((ends[head], known.relation_names[kind], ends[tail]) for head, kind, tail in known.triples)


def test_all_but_one_of_a_sum_tell_the_last_ones_upload() -> None:
    """Of four clients three collude: what is left of the sum is the fourth one's, to the rounding of the encoding."""
    result = federation("psu,secagg")
    three = tuple(client.name for client in result.graph.clients[:3])
    view = build_view(result, THREAT_MODELS["identifiers"], colluder=three, leak=1.0, seed=0)
    (victim,) = view.victims
    own, client = victim.claims["entities"], result.graph.clients[3]
    names = [result.graph.entities[number] for number in client.entity_ids[: client.num_trained_entities]]
    assert set(own.names) == set(names)
    assert own.alone.all()
    place = {name: row for row, name in enumerate(names)}
    true = result.trained[3].entities[[place[name] for name in own.names]]
    torch.testing.assert_close(own.embeddings, true, atol=1e-5, rtol=0)


@pytest.mark.parametrize("defense", ["", "psu,secagg"])
def test_two_know_more_than_one(defense: str) -> None:
    result, found = federation(defense), {}
    for who in ("hospital-1", BOTH):
        options = KgeAttackOptions(threat=("collusion",), colluder=who, leak=(1.0,), unlinked_heads=0)
        figures = headline(run_attacks(result, options, leak_draws=0).figures)
        found[who] = {(one.victim, one.attack, one.metric): one for one in figures if one.threat_model == "collusion"}
    more, less = found[BOTH], found["hospital-1"]
    assert {one.colluder for one in more.values()} == {"hospital-1 + hospital-2"}
    for victim in ("hospital-3", "hospital-4"):
        key = (victim, "reconstruction", "err")
        assert more[key].attainable > less[key].attainable
        assert more[key].estimate.value > less[key].estimate.value
        cosine = (victim, "update-recovery", "cosine")
        if defense:
            assert more[cosine].estimate.value > less[cosine].estimate.value


@pytest.mark.parametrize("attack", ["client-passive", "client-active", "client-guess"])
def test_clients_that_pool_what_they_know(attack: str) -> None:
    found = run_attacks(federation(), KgeAttackOptions(attack=(attack,), colluder=BOTH), train=trained).figures
    assert {one.victim for one in found} <= {"hospital-3", "hospital-4", "all"}
    assert any(one.reason is None for one in found)
    assert {one.colluder for one in found} == {"hospital-1 + hospital-2"}


def test_one_is_the_same_however_it_is_said() -> None:
    assert KgeAttackOptions(colluder=("hospital-1",)) == KgeAttackOptions(colluder="hospital-1")
    assert KgeAttackOptions(colluder=()) == KgeAttackOptions()
    assert Spec(colluder=("hospital-1",)) == Spec(colluder="hospital-1")
    assert Spec(colluder=BOTH).attack_options().colluder == BOTH


def test_what_cannot_be_is_refused() -> None:
    result = federation()
    everybody = tuple(client.name for client in result.graph.clients)
    for who, says in ((everybody, "names all 4 clients"), (("hospital-1", "clinic"), "must be one of .* got 'clinic'")):
        with pytest.raises(ThreatModelError, match=says):
            run_attacks(result, KgeAttackOptions(colluder=who))
    with pytest.raises(SpecError, match="names a value twice: hospital-1, hospital-1"):
        KgeAttackOptions(colluder=("hospital-1", "hospital-1"))
    with pytest.raises(SpecError, match=r"colluder must .*got a, b"):
        GraphAttackOptions(colluder=("a", "b"))
