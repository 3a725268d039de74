"""The audit of forgetting: on planted models whose answers are known, and on a small federation that memorised."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
import torch

from fkgsec import ClientGraph, FederatedGraph, KgeModel, KgeOptions, generate_consortium
from fkgsec.attacks.forgetting.evaluation import OTHERS, Forgetting, measure_forgetting
from fkgsec.attacks.forgetting.relearning import relearn_curve
from fkgsec.attacks.forgetting.update_difference import degree_matched, moved_rows
from fkgsec.attacks.membership.audits import ClientModel, Shadow, audited_triples, client_models, to_local, train_shadow
from fkgsec.attacks.view import NotAttacked
from fkgsec.federation.loop import run_federation
from fkgsec.kge.models import ClientTables
from fkgsec.kge.negatives import KnownTriples
from fkgsec.kge.result import KgeResult
from fkgsec.randomness import generator
from fkgsec.unlearning.forget_sets import Forget, retaining

MakeResult = Callable[..., KgeResult]
OPTIONS = KgeOptions(
    algorithm="fedlu", dim=16, gamma=4, rounds=12, local_epochs=2, eval_every=12, batch_size=64, num_negatives=16,
    learning_rate=0.02, device="cpu",
)  # fmt: skip


class Case(NamedTuple):
    """A federation whose first client asks for a part of its triples to be forgotten."""

    graph: FederatedGraph
    forget: Forget
    raw: KgeResult
    retrained: KgeResult


def some_of(client: ClientGraph, share: float) -> np.ndarray:
    distinct = np.unique(client.train, axis=0)
    return np.random.default_rng(0).permutation(distinct)[: round(share * len(distinct))]


@pytest.fixture(scope="module")
def case() -> Case:
    graph = generate_consortium(clients=3, size=900, seed=1)
    forget = {graph.clients[0].name: some_of(graph.clients[0], 0.4)}
    raw = run_federation(graph, OPTIONS)
    return Case(graph, forget, raw, run_federation(retaining(graph, forget), OPTIONS))


def rows(triples: np.ndarray) -> set[tuple[int, ...]]:
    return set(map(tuple, triples.tolist()))


# Who is asked about what.


def test_audited_triples_are_forgotten_ones_and_controls_that_nobody_trained_on(case: Case) -> None:
    retained = retaining(case.graph, case.forget)
    audits = audited_triples(case.graph, retained, case.forget, seed=0)
    kept = rows(np.concatenate([client.to_global(client.train) for client in retained.clients]))
    asked = case.graph.clients[0]
    forgotten = rows(asked.to_global(case.forget[asked.name]))
    assert [audit.asked for audit in audits] == [True, False, False]
    assert all(len(audit.members) for audit in audits)
    for audit, client in zip(audits, case.graph.clients, strict=True):
        members, controls, all_of_them = (
            rows(client.to_global(part)) for part in (audit.members, audit.controls, audit.forget)
        )
        assert members <= all_of_them <= forgotten
        assert not members & kept
        assert not controls & (kept | forgotten)
        assert controls <= rows(asked.to_global(asked.test))


def test_a_triple_that_another_client_trains_on_is_no_member(case: Case) -> None:
    first, second = case.graph.clients[:2]
    audit = audited_triples(case.graph, retaining(case.graph, case.forget), case.forget, seed=0)[0]
    shared = to_local(case.graph, second, first.to_global(audit.members))[:1]
    assert len(shared)
    wider = ClientGraph(
        second.name, second.entity_ids, second.relation_ids, np.concatenate([second.train, shared]), second.valid,
        second.test,
    )  # fmt: skip
    graph = replace(case.graph, clients=(first, wider, case.graph.clients[2]))
    again = audited_triples(graph, retaining(graph, case.forget), case.forget, seed=0)
    assert rows(second.to_global(shared)) <= rows(first.to_global(again[0].forget))
    for other, client in zip(again, graph.clients, strict=True):
        assert not rows(second.to_global(shared)) & rows(client.to_global(other.members))


def test_a_client_that_can_express_nothing_says_so() -> None:
    ids, more = np.arange(6), np.arange(6, 9)
    line = np.array([(k, 0, k + 1) for k in range(5)])
    first = ClientGraph("a", ids, np.array([0]), line, line[:0], np.array([(0, 0, 2), (1, 0, 3), (2, 0, 4)]))
    second = ClientGraph("b", more, np.array([0]), np.array([(0, 0, 1), (1, 0, 2)]), line[:0], line[:0])
    graph = FederatedGraph("apart", tuple("abcdefghi"), ("r",), (first, second))
    forget = {"a": line[:3]}
    audits = audited_triples(graph, retaining(graph, forget), forget, seed=0)
    assert len(audits[1].forget) == 0
    assert audits[1].reason == "0 forgotten triples with 0 controls; it takes 2 of each"


# Planted models: the forgotten triples score above, below, or as the controls do.


def planted_models(case: Case, shift: float) -> tuple[Forgetting, list[Shadow]]:
    """A run whose models give the members `shift` more than chance: their tails lie where the relation points, or far off."""
    retained = retaining(case.graph, case.forget)
    audits = audited_triples(case.graph, retained, case.forget, seed=0)
    rng = np.random.default_rng(3)
    base = {audit.place: rng.normal(size=len(audit.triples)) for audit in audits}
    shadows = []
    for number in range(8):
        member = {}
        scores = {}
        for audit in audits:
            order = np.random.default_rng([number // 2, audit.place]).permutation(len(audit.triples))
            member[audit.place] = (order % 2 == 0) == (number % 2 == 0)
            noise = rng.normal(size=len(audit.triples)) * 0.1
            for name in ("local", "global"):
                scores[audit.place, name] = base[audit.place] + noise + shift * member[audit.place]
        shadows.append(Shadow(member, scores, {}))
    results: dict[str, KgeResult] = {
        "raw": case.raw, "retrained": case.retrained, "unlearned": replace(case.raw, graph=retained),
    }  # fmt: skip
    return measure_forgetting(results, case.graph, case.forget, audits, shadows=shadows, relearn_steps=2), shadows


def test_a_run_that_only_deleted_is_told_apart_and_every_figure_is_there(case: Case) -> None:
    measured, _ = planted_models(case, 1.0)
    asked = case.graph.clients[0].name
    own = {(row.model, row.attack): row for row in measured.membership if row.client == asked}
    assert {attack for _, attack in own} == {"loss", "calibrated", "lira"}
    assert {model for model, _ in own} == {"local", "global"}
    local = own["local", "loss"]
    assert local.figures["unlearned"].direction == "remembered"
    assert local.figures["unlearned"] == local.figures["raw"]
    assert local.figures["retrained"].direction is None
    assert local.excess is not None
    assert local.excess.low > 0
    together = [row for row in measured.membership if row.client == OTHERS]
    alone = [row for row in measured.membership if not row.asked and row.client != OTHERS]
    assert len(together) == 6
    assert all(row.decisive for row in together)
    assert not any(row.decisive for row in alone)
    retained = retaining(case.graph, case.forget)
    aside = [audit for audit in audited_triples(case.graph, retained, case.forget, seed=0) if not audit.asked]
    expressed = [case.graph.clients[audit.place].to_global(audit.members) for audit in aside]
    assert together[0].figures["raw"].num_forgotten == len(
        rows(np.concatenate(expressed))
    )  # each once, not once a client
    assert together[0].figures["raw"].num_forgotten < sum(map(len, expressed))
    forget = {row.model: row.figures for row in measured.quality if row.client == asked and row.triples == "forget"}
    for figures in forget.values():
        assert figures["raw"] == figures["unlearned"]
        assert figures["raw"]["mrr"].low > figures["retrained"]["mrr"].high
    distance = next(row for row in measured.distances if row.client == asked and row.model == "local")
    assert distance.figures["unlearned"].distance.low > 0.1
    curve = next(row for row in measured.relearning if row.model == "local")
    assert len(curve.curves["raw"]) == 3
    assert curve.time is not None
    assert curve.time.unlearned == 0
    # Nothing moved, so the server learns nothing of the request; the re-trained run it can only compare with another one.
    assert measured.updates[0].figures["unlearned"].auc.value == 0.5
    assert {row.threat_model for row in measured.rebuilt} == {"collusion", "identifiers"}
    assert all(row.figures["raw"] == row.figures["unlearned"] for row in measured.rebuilt)
    assert all(row.figures["raw"].n == len(case.forget[asked]) for row in measured.rebuilt)


def test_quality_is_ranked_among_the_same_candidates_for_all(case: Case) -> None:
    """The unlearned run's graph has no forgotten triples; its filter must have them, else it would compete with itself."""
    retained = retaining(case.graph, case.forget)
    audits = audited_triples(case.graph, retained, case.forget, seed=0)
    results: dict[str, KgeResult] = {"retrained": case.raw, "unlearned": replace(case.raw, graph=retained)}
    measured = measure_forgetting(results, case.graph, case.forget, audits, relearn_steps=0)
    assert all(row.figures["retrained"] == row.figures["unlearned"] for row in measured.quality)
    assert measured.relearning == []
    assert any("no raw run" in note for note in measured.notes)
    assert set(measured.updates[0].reasons) == {"retrained", "unlearned"}


# Shadows.


def test_shadows_come_in_halves_and_their_runs_have_what_their_members_say(case: Case) -> None:
    retained = retaining(case.graph, case.forget)
    audits = audited_triples(case.graph, retained, case.forget, seed=0)
    options = KgeOptions(algorithm="fede", dim=4, rounds=1, local_epochs=1, num_negatives=4, device="cpu")
    asked = case.graph.clients[0]
    trained_on, forgotten = [], []

    def train(graph: FederatedGraph, options: KgeOptions) -> KgeResult:
        trained_on.append(rows(graph.clients[0].train))
        return run_federation(graph, options)

    def unlearn(result: KgeResult, forget: Forget) -> KgeResult:
        forgotten.append(rows(forget[asked.name]))
        return result

    shadows = [train_shadow(case.graph, retained, audits, options, k, 5, unlearn, train) for k in range(4)]
    for shadow, train_rows, unlearned in zip(shadows, trained_on, forgotten, strict=True):
        triples = [tuple(triple) for triple in audits[0].triples.tolist()]
        assert shadow.member[0].tolist() == [triple in train_rows for triple in triples]
        assert unlearned == {triple for triple, inside in zip(triples, shadow.member[0], strict=True) if inside}
        assert rows(retained.clients[0].train) == train_rows - unlearned
        assert shadow.trained.keys() == shadow.unlearned.keys()
        for place in (1, 2):
            known = unlearned and rows(asked.to_global(np.array(sorted(unlearned))))
            theirs = [tuple(t) for t in case.graph.clients[place].to_global(audits[place].triples).tolist()]
            assert shadow.member[place].tolist() == [triple in known for triple in theirs]
    for one, other in ((0, 1), (2, 3)):
        assert (shadows[one].member[0] != shadows[other].member[0]).all()
    assert not np.array_equal(shadows[0].member[0], shadows[2].member[0])
    assert not np.array_equal(shadows[0].trained[0, "global"], shadows[1].trained[0, "global"])


@pytest.mark.slow
def test_shadow_runs_tell_a_memory_and_not_a_retraining(case: Case) -> None:
    retained = retaining(case.graph, case.forget)
    audits = audited_triples(case.graph, retained, case.forget, seed=0)
    shadows = [train_shadow(case.graph, retained, audits, OPTIONS, k, 5) for k in range(4)]
    results: dict[str, KgeResult] = {"retrained": case.retrained, "unlearned": case.raw}
    measured = measure_forgetting(results, case.graph, case.forget, audits, shadows=shadows, relearn_steps=0)
    for row in measured.membership:
        if row.asked and row.attack != "loss":
            assert row.figures["unlearned"].auc.low > 0.5
            assert row.figures["retrained"].direction is None


# Models of a client.


def test_models_of_a_client(case: Case) -> None:
    models = client_models(case.raw, 0)
    assert models["local"].tables is case.raw.private[0]
    assert models["global"].tables is case.raw.tables[0]
    single = replace(case.raw, options=KgeOptions(algorithm="single", dim=16))
    assert set(client_models(single, 0)) == {"local"}
    collective = replace(case.raw, options=KgeOptions(algorithm="collective", dim=16))
    assert set(client_models(collective, 0)) == {"global"}
    fede = replace(case.raw, options=KgeOptions(algorithm="fede", dim=16), private=[])
    assert client_models(fede, 0)["local"].tables is case.raw.trained[0]


# Relearning.


@pytest.mark.parametrize("name", ["transe", "rotate", "distmult", "complex"])
def test_relearning_climbs_repeats_and_leaves_the_model_as_it_was(name: str) -> None:
    model = KgeModel(name, 16, gamma=4)  # type: ignore[arg-type]
    draw = generator(0, "rows")
    tables = ClientTables(
        model.initial_rows(30, model.entity_width, draw), model.initial_rows(2, model.relation_width, draw)
    )
    before = tables.entities.clone()
    forget = np.array([(k, k % 2, 29 - k) for k in range(10)])
    known = [KnownTriples.build(forget, side, 2) for side in ("tail", "head")]

    def curve() -> np.ndarray:
        return relearn_curve(
            ClientModel(model, tables),
            forget,
            known,
            KgeOptions(learning_rate=0.05, batch_size=8, num_negatives=8),
            30,
            np.random.default_rng(1),
        )

    first = curve()
    assert len(first) == 31
    assert first[-1] > first[0] + 0.3
    np.testing.assert_array_equal(first, curve())
    assert torch.equal(before, tables.entities)


# The server that compares.


def test_a_server_sees_whose_rows_moved(fabricate: MakeResult) -> None:
    triples = np.array([(k, 0, (k + 1) % 40) for k in range(40)])
    clients = tuple(
        ClientGraph(name, np.arange(40), np.array([0]), triples, triples[:0], triples[:0]) for name in ("a", "b")
    )
    graph = FederatedGraph("ring", tuple(f"e{k}" for k in range(40)), ("r",), clients)
    draw = torch.Generator().manual_seed(0)
    rows_before = torch.randn(40, 16, generator=draw)
    relations = torch.zeros(1, 16)
    before = fabricate(graph, *[[ClientTables(rows_before, relations)] * 2] * 2)
    forgotten = np.arange(8)
    rows_after = rows_before + 0.01 * torch.randn(40, 16, generator=draw)
    rows_after[:9] += 1
    after = fabricate(graph, *[[ClientTables(rows_after, relations)] * 2] * 2)
    moved = moved_rows(before, after, "a")
    assert isinstance(moved, np.ndarray)
    np.testing.assert_allclose(moved, (rows_after - rows_before).norm(dim=1).numpy(), rtol=1e-5)
    forget = {"a": triples[forgotten]}
    retained = retaining(graph, forget)
    results: dict[str, KgeResult] = {
        "raw": before, "retrained": before, "unlearned": replace(after, graph=retained),
    }  # fmt: skip
    measured = measure_forgetting(results, graph, forget, audited_triples(graph, retained, forget, 0), relearn_steps=0)
    assert measured.updates[0].figures["unlearned"].auc.value == 1
    assert measured.updates[0].figures["retrained"].auc.value == 0.5
    assert all(row.reason for row in measured.membership)  # no test triples, so no controls


def test_a_server_without_single_uploads_sees_nothing(fabricate: MakeResult, case: Case) -> None:
    tables = [
        ClientTables(torch.zeros(c.num_entities, 16), torch.zeros(c.num_relations, 16)) for c in case.graph.clients
    ]
    fedr = fabricate(case.graph, tables, tables, algorithm="fedr")
    name = case.graph.clients[0].name
    with pytest.raises(NotAttacked, match=f"the server saw no entity rows of {name} alone before the request"):
        moved_rows(fedr, fedr, name)


def test_degree_matched_takes_near_degrees_once_and_only_usable_entities() -> None:
    rng = np.random.default_rng(2)
    degree = rng.integers(0, 40, 200)
    chosen, usable = rng.permutation(200)[:60], rng.random(200) < 0.9
    members, controls = degree_matched(degree, chosen, usable, np.random.default_rng(0))
    assert len(members) > 40
    assert len(set(controls.tolist())) == len(controls)
    assert set(members.tolist()) <= set(chosen[usable[chosen]].tolist())
    assert not set(controls.tolist()) & set(chosen.tolist())
    assert usable[controls].all()
    assert (np.abs(np.log2((1 + degree[members]) / (1 + degree[controls]))) < 1).all()
    alone = degree_matched(np.array([1000, 0, 0]), np.array([0]), np.ones(3, dtype=bool), rng)
    assert [len(part) for part in alone] == [0, 0]
