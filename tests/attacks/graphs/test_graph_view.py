"""What an adversary sees of a graph federation: what crossed, and nothing of a victim's graphs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from fkgsec.attacks import GraphAttackOptions, KgeAttackOptions, run_attacks
from fkgsec.attacks.graphs.candidates import draw_candidates
from fkgsec.attacks.graphs.view import GraphView, joined_sets
from fkgsec.attacks.options import THREAT_MODELS, threat_models
from fkgsec.attacks.registry import attacked_task, build_view
from fkgsec.errors import SpecError, ThreatModelError
from fkgsec.federation.loop import run_federation
from fkgsec.federation.messages import SERVER, QuantisedRows, client_party
from fkgsec.federation.options import replace
from fkgsec.gnn.options import GnnOptions
from fkgsec.gnn.result import GnnResult
from fkgsec.graphs.generate import generate_motifs
from fkgsec.graphs.sets import FederatedGraphs, GraphSet
from fkgsec.graphs.split import by_dataset


def view_of(result: GnnResult, threat: str, colluder: int = 0, **asked: Any) -> GraphView:
    name = result.graph.clients[colluder].name
    return build_view(result, THREAT_MODELS[threat], colluder=name, seed=0, **asked)


def equal(first: Any, second: Any, tolerance: float = 0.0) -> bool:
    return set(first) == set(second) and all(
        torch.allclose(first[name], second[name], rtol=0, atol=tolerance) for name in first
    )


def test_uploads_and_broadcasts_are_those_of_the_kept_round(graph_runs: dict[str, GnnResult]) -> None:
    result = graph_runs["fedavg"]
    view = view_of(result, "server")
    assert view.round == result.best_round
    assert [victim.name for victim in view.victims] == [client.name for client in result.graph.clients]
    for place, victim in enumerate(view.victims):
        assert equal(victim.upload, result.trained[place])
        started = result.started["parameters"][client_party(victim.name)]
        assert torch.equal(view.layout.pack(victim.broadcast), started)
        assert victim.num_graphs == len(result.graph.clients[place].train)


@pytest.mark.parametrize("defense", ["secagg", "psu,secagg"])
def test_of_sums_the_sum_alone(graph_runs: dict[str, GnnResult], defense: str) -> None:
    result = graph_runs[f"fedavg/{defense}"]
    view = view_of(result, "server")
    assert all(victim.upload is None and victim.num_graphs is None for victim in view.victims)
    assert {victim.why_none("parameters") for victim in view.victims} == {
        "its parameters were transmitted only inside a sum"
    }
    clear = graph_runs["fedavg"]
    assert view.summed is not None
    assert result.best_round == clear.best_round
    weights = [len(client.train) for client in clear.graph.clients]
    assert view.summed.weight == sum(weights)
    for name, mean in view.summed.mean.items():
        expected = sum(weight * own[name] for weight, own in zip(weights, clear.trained, strict=True)) / sum(weights)
        assert torch.allclose(mean, expected, atol=1e-4), name
    for victim, other in zip(view.victims, view_of(clear, "server").victims, strict=True):
        assert equal(victim.broadcast, other.broadcast, 1e-4)  # names are matched, whatever the order of rows


def test_where_rows_cross_seldom_the_last_exchange_is_attacked(two_sets: FederatedGraphs, small: GnnOptions) -> None:
    """CEFGL skips rounds: the upload is that of the last exchange, the broadcast that of the one before it."""

    def exchanges(result: GnnResult) -> list[int]:
        return [0, *(number for number in range(1, 7) if result.options.exchanges(number))]

    runs = (run_federation(two_sets, replace(small, algorithm="cefgl", rounds=6, seed=seed)) for seed in range(40))
    result = next(
        run for run in runs if run.best_round not in exchanges(run) and min(exchanges(run)[1:]) < run.best_round
    )
    talked = exchanges(result)
    last = max(number for number in talked if number <= result.best_round)
    view = view_of(result, "server")
    assert 0 < last < result.best_round
    assert view.round == last
    before = max(number for number in talked if number < last)
    assert any(message.sender == SERVER for message in result.transcript.messages(before))
    assert all(victim.broadcast is not None and victim.upload is not None for victim in view.victims)


def test_without_exchange_there_are_models_alone(graph_runs: dict[str, GnnResult]) -> None:
    result = graph_runs["local-gc"]
    assert all(victim.upload is None and victim.broadcast is None for victim in view_of(result, "server").victims)
    assert [set(victim.models) for victim in view_of(result, "models").victims] == [{"local"}] * 3


def test_models_say_what_the_clients_say(graph_runs: dict[str, GnnResult]) -> None:
    """Asked about the test graphs, a model gives the probabilities of the run; CEFGL's sparse part included."""
    for name in ("fedavg", "cefgl"):
        result = graph_runs[name]
        for place, victim in enumerate(view_of(result, "models").victims):
            client = result.graph.clients[place]
            found = victim.models["global"].probabilities(client.graphs.subset(client.test))
            assert np.array_equal(found, result.test[place].values)


def test_a_colluder_hands_over_its_own(graph_runs: dict[str, GnnResult]) -> None:
    result = graph_runs["fedavg"]
    for threat, sees in (("collusion", True), ("client", False)):
        view = view_of(result, threat, colluder=1)
        assert view.colluder is not None
        assert view.colluder.graphs is result.graph.clients[1].graphs
        assert [victim.name for victim in view.victims] == ["molecules-1", "circles-3"]
        assert [victim.upload is not None for victim in view.victims] == [sees] * 2
        assert [victim.broadcast is not None for victim in view.victims] == [sees] * 2
        assert equal(view.colluder.received, {name: result.models[1][name] for name in view.layout.shapes})


def test_auxiliary_graphs_are_those_that_nobody_trains_on(one_set: FederatedGraphs, small: GnnOptions) -> None:
    """Of three clients of one data set the validation graphs of all, pooled: the same for each, in an order of the attack's."""
    result = run_federation(one_set, replace(small, rounds=1))
    views = [view_of(result, threat) for threat in threat_models("graph")]
    given = {view.threat_model.name: [victim.auxiliary for victim in view.victims] for view in views}
    assert {name for name, found in given.items() if any(found)} == {
        "server+graphs",
        "models+graphs",
        "collusion",
        "client",
    }
    assert all(graphs is one_set.clients[0].graphs for name in ("collusion", "client") for graphs in given[name])
    parts = [client.graphs.subset(client.valid) for client in one_set.clients]
    pooled = joined_sets(parts)
    for found in given["server+graphs"]:
        assert found is not None
        assert len(found) == sum(len(client.valid) for client in one_set.clients)
        assert sorted(map(tuple, found.labels)) == sorted(map(tuple, pooled.labels))
        assert not np.array_equal(found.labels, pooled.labels)


def graph_sets(value: Any) -> Iterator[GraphSet]:
    """Every set of graphs that can be reached from a value."""
    if isinstance(value, GraphSet):
        yield value
    elif isinstance(value, dict):
        yield from (one for item in value.values() for one in graph_sets(item))
    elif isinstance(value, list | tuple):
        yield from (one for item in value for one in graph_sets(item))
    elif dataclasses.is_dataclass(value):
        yield from (one for name in dataclasses.fields(value) for one in graph_sets(getattr(value, name.name)))
    elif hasattr(value, "__dict__"):
        yield from (one for item in vars(value).values() for one in graph_sets(item))


@pytest.mark.parametrize("threat", list(threat_models("graph")))
def test_no_graph_of_a_victim_is_in_a_view(graph_runs: dict[str, GnnResult], threat: str) -> None:
    """Walked from end to end: the colluder's graphs and the auxiliary ones are all; no seed of the run is there."""
    result = graph_runs["fedavg"]
    view = view_of(result, threat)
    allowed = [view.colluder.graphs] if view.colluder else []
    allowed += [victim.auxiliary for victim in view.victims if victim.auxiliary]
    found = list(graph_sets(view))
    assert {id(one) for one in found} == {id(one) for one in allowed}
    assert not [name for name in view.settings.fields if "seed" in name]
    assert str(result.options.seed) not in repr(view.settings)
    with_candidates = list(graph_sets(view_of(result, threat, candidates=True)))
    assert len(with_candidates) == len(found) + len(view.victims)


class TestCandidates:
    def test_members_and_controls_are_alike(self, two_sets: FederatedGraphs) -> None:
        for place, client in enumerate(two_sets.clients):
            asked = draw_candidates(two_sets, place, seed=0)
            assert asked is not None
            assert asked.member.sum() * 2 == len(asked.member) == len(np.unique(asked.ids))
            assert np.isin(asked.ids[asked.member], client.train).all()
            assert np.isin(asked.ids[~asked.member], client.test).all()
            classes, sizes = client.graphs.classes[asked.ids], client.graphs.sizes[asked.ids]
            for one in range(client.graphs.num_classes):
                assert (classes[asked.member] == one).sum() == (classes[~asked.member] == one).sum()
            assert abs(sizes[asked.member].mean() - sizes[~asked.member].mean()) < 1
            assert np.array_equal(asked.graphs.sizes, sizes)

    def test_their_order_says_nothing(self) -> None:
        """Over many federations a member comes first as often as a control."""
        first = []
        for seed in range(40):
            graphs = generate_motifs(0, clients=1, size=60)
            asked = draw_candidates(by_dataset(graphs, seed=seed), 0, seed=seed)
            assert asked is not None
            first.append(asked.member[: len(asked.member) // 2].mean())
        assert 0.4 < np.mean(first) < 0.6

    def test_graphs_with_twins_are_left_out(self) -> None:
        """Every graph twice: nothing is left to ask."""
        [graphs] = generate_motifs(0, clients=1, size=40)
        doubled = joined_sets([graphs, graphs])
        assert draw_candidates(by_dataset([doubled], seed=0), 0, seed=0) is None


class TestOptions:
    def test_options_of_another_task_are_refused(self, graph_runs: dict[str, GnnResult]) -> None:
        with pytest.raises(SpecError, match="a run of fedavg takes GraphAttackOptions; got KgeAttackOptions"):
            run_attacks(graph_runs["fedavg"], KgeAttackOptions())

    def test_attacks_of_another_task_are_refused(self, graph_runs: dict[str, GnnResult]) -> None:
        with pytest.raises(SpecError, match="attack 'reconstruction' is one on runs of the task 'kge'"):
            run_attacks(graph_runs["fedavg"], GraphAttackOptions(attack=("reconstruction",)))

    def test_threat_models_of_another_task_are_refused(self, graph_runs: dict[str, GnnResult]) -> None:
        with pytest.raises(SpecError, match=r"threat must be one of server, collusion, models, .*, client; got"):
            GraphAttackOptions(threat=("identifiers",))
        with pytest.raises(SpecError, match=r"threat must .*got 'models\+graphs'"):
            KgeAttackOptions(threat=("models+graphs",))
        with pytest.raises(ThreatModelError, match="'identifiers' does not apply to fedavg"):
            view_of(graph_runs["fedavg"], "identifiers")

    @pytest.mark.parametrize("shadows", [1, 2, 5, -2])
    def test_shadows_come_in_halves(self, shadows: int) -> None:
        with pytest.raises(SpecError, match=rf"shadows must .*got {shadows}"):
            GraphAttackOptions(shadows=shadows)


@pytest.mark.parametrize("name", ["fedavg/secagg", "local-gc"])
def test_the_default_attacks_end_to_end(graph_runs: dict[str, GnnResult], name: str) -> None:
    """A figure with an interval or a reason, for each victim and metric."""
    found = run_attacks(graph_runs[name], GraphAttackOptions())
    assert {one.attack for one in found.figures} == set(attacked_task("fedavg").default("fedavg"))
    assert {one.victim for one in found.figures} == {"molecules-1", "molecules-2", "circles-3", "all"}
    for one in found.figures:
        assert one.reason or one.estimate.low <= one.estimate.value <= one.estimate.high
    low = next(one for one in found.figures if one.metric == "tpr@0.01" and one.victim == "all")
    assert low.reason is not None
    assert low.reason.startswith("1.0% false alarms take 100 never-seen graphs")


def test_corrections_are_seen_where_they_cross(two_sets: FederatedGraphs, small: GnnOptions) -> None:
    """CEFGL with `upload=both`: W and h of each client, apart; in combined form W - h / alpha alone."""
    settings = {"upload": "both", "exchange": 1.0, "bits": 32}
    both = run_federation(two_sets, replace(small, algorithm="cefgl", settings=settings))
    combined = run_federation(two_sets, replace(small, algorithm="cefgl", settings=settings | {"upload": "combined"}))
    assert both.best_round == combined.best_round
    alpha = both.options.settings.alpha
    for own, other in zip(view_of(both, "server").victims, view_of(combined, "server").victims, strict=True):
        assert other.correction is None
        assert own.correction is not None
        assert own.upload is not None
        assert other.upload is not None
        for name, upload in own.upload.items():
            assert torch.allclose(upload - own.correction[name] / alpha, other.upload[name], atol=1e-5)


def test_factors_are_multiplied_out(two_sets: FederatedGraphs, small: GnnOptions) -> None:
    """Broadcasts as factors of low rank: what the view has is what the client trained from."""
    settings = {"factors": "smaller", "exchange": 1.0, "singular_threshold": 1.0}
    options = replace(small, algorithm="cefgl", settings=settings, width=16)
    runs = (run_federation(two_sets, replace(options, seed=seed)) for seed in range(40))
    result = next(run for run in runs if run.best_round > 1)
    messages = result.transcript.messages(result.best_round - 1)
    assert any(isinstance(one, QuantisedRows) and one.ranks for one in messages)
    view = view_of(result, "server")
    for victim in view.victims:
        assert victim.broadcast is not None
        started = result.started["parameters"][client_party(victim.name)]
        assert torch.allclose(view.layout.pack(victim.broadcast), started, atol=1e-6)
