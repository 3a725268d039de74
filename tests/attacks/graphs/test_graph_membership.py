"""Membership of graphs: losses by hand; members of an overfitted federation are found, strangers give chance."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from fkgsec.attacks import Figure, GraphAttackOptions, run_attacks
from fkgsec.attacks.graphs import membership as module
from fkgsec.attacks.graphs import models
from fkgsec.attacks.graphs.candidates import draw_candidates
from fkgsec.attacks.graphs.membership import claim, train_shadows
from fkgsec.attacks.graphs.models import GraphModel, adversary_client, parameter_names, train_layers
from fkgsec.attacks.laboratory import Laboratory, PublicSettings
from fkgsec.attacks.options import THREAT_MODELS
from fkgsec.attacks.registry import build_view
from fkgsec.defenses import make_transport
from fkgsec.federation.loop import run_federation
from fkgsec.federation.options import replace
from fkgsec.gnn.options import GnnOptions
from fkgsec.gnn.result import GnnResult
from fkgsec.graphs.generate import generate_motifs
from fkgsec.graphs.sets import FederatedGraphs
from fkgsec.graphs.split import by_dataset


def attack(result: GnnResult, threat: str, shadows: int = 0, metric: str = "auc", **given: object) -> list[Figure]:
    options = GraphAttackOptions(attack=("graph-membership",), threat=(threat,), shadows=shadows, **given)  # type: ignore[arg-type]
    return [one for one in run_attacks(result, options).figures if one.metric == metric]


def aucs(figures: list[Figure], victim: str = "all") -> dict[str, float]:
    return {one.variant: one.estimate.value for one in figures if one.victim == victim}


class TestModel:
    def test_losses_by_hand(self, two_sets: FederatedGraphs, small: GnnOptions) -> None:
        """All parameters zero but a bias of log 3 for class 1: its probability is 3/4 whatever the graph."""
        graphs = two_sets.clients[0].graphs.subset(range(6))
        settings = PublicSettings.of(small)
        zeros = {name: torch.zeros(shape) for name, shape in _shapes(settings, graphs).items()}
        zeros["head.bias"][1] = np.log(3)
        model = GraphModel(settings, zeros)
        right = np.where(graphs.classes == 1, 0.75, 0.25)
        assert np.allclose(model.losses(graphs), -np.log(right), atol=1e-6)
        assert np.allclose(model.logits(graphs), np.log(right / (1 - right)), atol=1e-6)

    def test_alignment_with_a_graphs_own_gradient_is_one(self, two_sets: FederatedGraphs, small: GnnOptions) -> None:
        """SGD's step on one graph, without dropout and decay, goes against its gradient."""
        graphs = two_sets.clients[0].graphs.subset(range(5))
        settings = PublicSettings.of(replace(small, dropout=0.0, optimizer="sgd", weight_decay=0.0, learning_rate=0.1))
        before = train_layers(settings, {}, graphs, seed=1, epochs=0)
        trainer = adversary_client(settings, graphs.subset([3]), seed=1)
        trainer.train(1, lambda: None)
        names = [name for name in parameter_names(settings, graphs) if name.startswith("convs.")]
        direction = {name: before[name] - trainer.model.state_dict()[name] for name in names}
        found = GraphModel(settings, before).alignment(graphs, direction)
        assert found[3] == pytest.approx(1, abs=1e-4)
        assert (found[[0, 1, 2, 4]] < 1 - 1e-4).all()

    def test_layers_are_trained_and_shared_ones_stay(self, two_sets: FederatedGraphs, small: GnnOptions) -> None:
        client = two_sets.clients[0]
        settings = PublicSettings.of(replace(small, dropout=0.0, width=32))
        graphs = client.graphs.subset(client.train)
        before = train_layers(settings, {}, graphs, seed=1, epochs=0)
        crossing = [name for name in parameter_names(settings, graphs) if name.startswith("convs.")]
        shared = {name: before[name] for name in crossing}
        layers = train_layers(settings, shared, graphs, seed=1)
        assert set(parameter_names(settings, graphs)) - set(layers) == set(shared)
        first, last = (GraphModel(settings, {**own, **shared}).losses(graphs).mean() for own in (before, layers))
        assert last < first - 0.05
        assert not torch.equal(layers["pre.weight"], before["pre.weight"])


def _shapes(settings: PublicSettings, graphs: object) -> dict[str, torch.Size]:
    whole = train_layers(settings, {}, graphs, seed=0, epochs=0)  # type: ignore[arg-type]
    return {name: tensor.shape for name, tensor in whole.items()}


@pytest.fixture(scope="module")
def overfitted() -> GnnResult:
    """Two clients whose nodes have random attributes and whose graphs random classes: what a model knows, it has from training.

    It gets half of the controls right by accident, and as surely, so that three of four pairs can be told at most.
    """
    rng = np.random.default_rng(0)
    sets = [
        dataclasses.replace(
            graphs,
            labels=np.zeros((graphs.num_nodes, 0), dtype=np.int64),
            num_labels=(),
            attributes=rng.normal(size=(graphs.num_nodes, 16)).astype(np.float32),
            classes=rng.integers(0, 2, len(graphs)),
        )
        for graphs in generate_motifs(3, clients=2, size=320)
    ]
    options = GnnOptions(
        algorithm="fedavg",
        width=32,
        dropout=0.0,
        rounds=20,
        batch_size=16,
        learning_rate=0.01,
        eval_every=20,
        device="cpu",
    )
    return run_federation(by_dataset(sets, seed=0), options)


class TestFound:
    @pytest.mark.planted("graph-membership", "graphs with random classes, memorized: AUC above .65", {"auc": 32})
    def test_members_of_an_overfitted_federation(self, overfitted: GnnResult) -> None:
        found = attack(overfitted, "models")
        assert aucs(found)["local, loss"] > 0.65
        low = next(one for one in found if one.victim == "all" and one.variant == "local, loss").estimate.low
        assert low > 0.5

    def test_from_uploads_with_layers_of_ones_own(self, overfitted: GnnResult) -> None:
        """The server has convolutions alone; with validation graphs it can say something, without it says why not."""
        found = aucs(attack(overfitted, "server+graphs"))
        assert set(found) == {"upload, loss", "upload, calibrated", "upload, alignment"}
        alone = attack(overfitted, "server")
        assert {one.reason for one in alone} == {module.NO_LAYERS}

    @pytest.mark.slow
    def test_with_shadows(self, overfitted: GnnResult) -> None:
        found = aucs(attack(overfitted, "models+graphs", shadows=4))
        assert set(found) == {
            f"{model}, {way}" for model in ("global", "local") for way in ("loss", "calibrated", "lira")
        }
        assert aucs(attack(overfitted, "models+graphs", shadows=4)) == found  # from the attack's seed alone

    def test_a_shadow_knows_the_candidates_that_it_trained_on(self, overfitted: GnnResult) -> None:
        colluder = overfitted.graph.clients[0].name
        view = build_view(overfitted, THREAT_MODELS["models+graphs"], colluder=colluder, seed=0, candidates=True)
        laboratory = Laboratory(overfitted, run_federation, GraphAttackOptions(), [colluder], lambda _: view)
        shadows = train_shadows(view, laboratory, 4, np.random.default_rng(0))
        for name, inside in shadows.inside.items():
            logits = shadows.logits[name]["local"]
            assert inside.shape == logits.shape
            assert (inside.sum(axis=0) == 2).all()
            assert logits[inside].mean() > logits[~inside].mean() + 1

    def test_without_shadows_a_reference(self, overfitted: GnnResult) -> None:
        found = aucs(attack(overfitted, "models+graphs"))
        assert set(found) == {f"{model}, {way}" for model in ("global", "local") for way in ("loss", "calibrated")}


def _strangers(result: GnnResult, count: int) -> Iterator[GnnResult]:
    """The same models beside graphs of the same kind that nobody trained on, under many splits."""
    sets = generate_motifs(99, clients=len(result.graph.clients), size=300)
    names = [client.name for client in result.graph.clients]
    for seed in range(count):
        divided = by_dataset(sets, seed=seed)
        assert [client.name for client in divided.clients] == names
        yield dataclasses.replace(result, graph=divided)


@pytest.mark.null("graph-membership", "graphs that nobody trained on, 20 draws: mean AUC .5")
@pytest.mark.parametrize(
    ("threat", "shadows", "count"),
    [
        ("models", 0, 20),
        pytest.param("models+graphs", 4, 12, marks=pytest.mark.slow),
        pytest.param("server+graphs", 0, 12, marks=pytest.mark.slow),
    ],
)
def test_graphs_that_were_never_trained_on_give_chance(
    graph_runs: dict[str, GnnResult], threat: str, shadows: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AUC is .5 on average where no candidate was trained on: neither order, class, size nor twins say who is a member."""
    monkeypatch.setattr(models, "LAYER_EPOCHS", 5)
    found: dict[str, list[float]] = {}
    for seed, stranger in enumerate(_strangers(graph_runs["fedavg"], count)):
        # Another seed each: a fixed one has fixed halves of the shadows, to which a fixed half of members is near by accident.
        for one in attack(stranger, threat, shadows=shadows, seed=seed):
            if one.victim != "all":
                found.setdefault(one.variant, []).append(one.estimate.value)
    assert found
    for variant, values in found.items():
        error = np.std(values) / np.sqrt(len(values))
        assert error < 0.04, variant
        assert abs(np.mean(values) - 0.5) < max(0.02, 3 * error), variant


def test_class_and_size_say_nothing(two_sets: FederatedGraphs) -> None:
    """As scores, they give .5 over many splits."""
    found: dict[str, list[float]] = {"class": [], "size": [], "edges": []}
    sets = [client.graphs for client in two_sets.clients]
    for seed in range(40):
        divided = by_dataset(sets, seed=seed)
        for place in range(len(sets)):
            asked = draw_candidates(divided, place, seed)
            assert asked is not None
            edges = np.bincount(asked.graphs.graph_of[asked.graphs.edges()[:, 0]], minlength=len(asked.graphs))
            for name, score in (("class", asked.graphs.classes), ("size", asked.graphs.sizes), ("edges", edges)):
                members, controls = score[asked.member], score[~asked.member]
                above = (members[:, None] > controls).mean() + (members[:, None] == controls).mean() / 2
                found[name].append(above)
    assert np.mean(found["class"]) == 0.5
    assert abs(np.mean(found["size"]) - 0.5) < 0.02
    assert abs(np.mean(found["edges"]) - 0.5) < 0.04


def test_shadows_train_on_halves_of_the_candidates_and_on_no_other_graph_of_a_victim(
    graph_runs: dict[str, GnnResult],
) -> None:
    result = graph_runs["cefgl"]
    view = build_view(result, THREAT_MODELS["models+graphs"], colluder="molecules-1", seed=0, candidates=True)
    trained: list[tuple[FederatedGraphs, GnnOptions]] = []

    def train(graphs: FederatedGraphs, options: GnnOptions) -> GnnResult:
        trained.append((graphs, options))
        return run_federation(graphs, options)

    laboratory = Laboratory(result, train, GraphAttackOptions(shadows=4), ["molecules-1"], lambda _: view)
    claim(view, laboratory, np.random.default_rng(0))
    seeds = {options.seed for _, options in trained}
    assert len(trained) == len(seeds) == 4
    assert result.options.seed not in seeds
    assert {(options.algorithm, options.rounds) for _, options in trained} == {("cefgl", view.round)}
    for place, victim in enumerate(view.victims):
        assert victim.candidates is not None
        assert victim.auxiliary is not None
        number = len(victim.candidates)
        inside = np.zeros(number, dtype=int)
        for graphs, _ in trained:
            client = graphs.clients[place]
            assert len(client.graphs) == number + len(victim.auxiliary)
            assert np.array_equal(client.graphs.sizes, [*victim.candidates.sizes, *victim.auxiliary.sizes])
            assert np.isin(np.arange(number, len(client.graphs)), client.train).all()
            inside += np.isin(np.arange(number), client.train)
        assert (inside == 2).all()


def test_of_a_sum_its_mean(graph_runs: dict[str, GnnResult]) -> None:
    found = attack(graph_runs["fedavg/secagg"], "server+graphs")
    assert {one.variant for one in found} == {"sum, loss", "sum, calibrated", "sum, alignment"}


def test_where_whole_networks_cross_the_server_needs_no_graphs(one_set: FederatedGraphs, small: GnnOptions) -> None:
    """And a colluder asks the broadcast itself: of clients of its data set alone."""
    result = run_federation(
        one_set, replace(small, settings={"share": "all"}, defense="secagg"), make_transport=make_transport
    )
    assert {one.variant for one in attack(result, "server")} == {"sum, loss", "sum, calibrated", "sum, alignment"}
    found = attack(result, "client")
    assert {one.variant for one in found} == {"broadcast, loss"}
    assert {one.victim for one in found} == {"client-2", "client-3", "all"}
    assert {one.reason for one in found} == {None}


def test_a_colluder_puts_its_own_layers_around_an_upload(
    one_set: FederatedGraphs, graph_runs: dict[str, GnnResult], small: GnnOptions
) -> None:
    result = run_federation(one_set, replace(small, rounds=1))
    assert {one.variant for one in attack(result, "collusion")} == {
        "upload, loss",
        "upload, calibrated",
        "upload, alignment",
    }
    other = attack(graph_runs["fedavg"], "collusion", colluder="circles-3")
    assert {one.reason for one in other} == {module.NO_LAYERS}


def test_corrections_are_asked_where_they_cross(two_sets: FederatedGraphs, small: GnnOptions) -> None:
    settings = {"upload": "both", "exchange": 1.0}
    found = attack(run_federation(two_sets, replace(small, algorithm="cefgl", settings=settings)), "server+graphs")
    ways = {"upload, loss", "upload, calibrated", "upload, alignment", "correction, alignment"}
    assert {one.variant for one in found} == ways


def test_figures_have_what_stands_beside_them(overfitted: GnnResult) -> None:
    found = attack(overfitted, "models", metric="advantage")
    one = next(figure for figure in found if figure.victim == "all")
    assert one.baseline is not None
    assert one.baseline.value == 0
    assert one.attainable == 1
    assert one.counts["members"] == one.counts["controls"] > 10
    low = attack(overfitted, "models", metric="tpr@0.01")
    assert all(figure.reason and "never-seen graphs" in figure.reason for figure in low)
