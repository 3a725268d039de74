"""Gradient inversion of finished runs: what is recovered, and why what cannot be attacked is not."""

import dataclasses

import numpy as np
import pytest

from fkgsec.attacks.graphs.inversion.evaluation import METRICS, NAME, claim, stepped_graphs
from fkgsec.attacks.graphs.inversion.similarity import LabelledGraph
from fkgsec.attacks.options import THREAT_MODELS, GraphAttackOptions
from fkgsec.attacks.registry import Figure, build_view, run_attacks
from fkgsec.attacks.view import ALL
from fkgsec.defenses import make_transport
from fkgsec.federation.loop import run_federation
from fkgsec.federation.options import replace
from fkgsec.gnn.options import GnnOptions
from fkgsec.gnn.result import GnnResult
from fkgsec.graphs.collection import load_federation
from fkgsec.graphs.sets import FederatedGraphs

FEDSGD = GnnOptions(
    optimizer="sgd", local_steps=1, batch_size=1, learning_rate=0.1, dropout=0.0, layers=3, rounds=1, device="cpu",
    settings={"share": "all"},
)  # fmt: skip
ATTACK = GraphAttackOptions(attack=(NAME,))


def figures(result: GnnResult) -> dict[tuple[str, str], Figure]:
    return {(one.victim, one.metric): one for one in run_attacks(result, ATTACK).figures}


@pytest.fixture(scope="module")
def stepped(one_set: FederatedGraphs) -> GnnResult:
    return run_federation(one_set, FEDSGD)


@pytest.mark.planted("gradient-inversion", "FedSGD with one graph: at least 2 of 3 graphs exactly", {"exact": 3})
def test_graphs_of_a_round_of_fedsgd_are_recovered(stepped: GnnResult) -> None:
    found = figures(stepped)
    assert {metric for _, metric in found} == set(METRICS)
    for metric in METRICS:
        whole, parts = found[ALL, metric], [found[one.name, metric].estimate.value for one in stepped.graph.clients]
        assert whole.reason is None
        assert whole.num_attacked == whole.estimate.n == 3
        assert whole.estimate.value == pytest.approx(np.mean(parts))
        assert whole.baseline is not None
    assert found[ALL, "exact"].estimate.value >= 2 / 3
    assert found[ALL, "exact"].baseline.value == 0
    assert found[ALL, "similarity"].estimate.value > 0.6 > found[ALL, "similarity"].baseline.value
    assert found[ALL, "neighbourhoods"].estimate.value > 0.9


def test_the_attack_sees_an_upload_and_public_graphs_alone(stepped: GnnResult) -> None:
    """Its claims go with the upload, not with the client that is said to have sent it."""
    view = build_view(stepped, THREAT_MODELS["server+graphs"], colluder=stepped.graph.clients[0].name, seed=0)
    first, second, _ = view.victims
    swapped = [
        dataclasses.replace(one, broadcast=other.broadcast, upload=other.upload)
        for one, other in ((first, second), (second, first))
    ]
    claims = claim(view.only(tuple(swapped)), None, np.random.default_rng(0))
    for name, other in ((first.name, second.name), (second.name, first.name)):
        true = LabelledGraph.of(stepped_graphs(stepped, other, view.round), 0)
        assert claims[name].inverted.neighbourhoods >= true.neighbourhoods()


@pytest.mark.parametrize(
    ("changes", "attacked", "reason"),
    [
        ({"optimizer": "adam"}, set(), "clients train with Adam"),
        ({"local_steps": 2}, set(), "2 local steps"),
        ({"model": "sage"}, set(), "sage is not attacked"),
        ({"algorithm": "cefgl", "settings": None}, set(), "cefgl uploads is no step"),
        ({"defense": "secagg"}, set(), "were transmitted only inside a sum"),
        ({"settings": None}, {"distinct"}, "each client's own"),
        ({"batch_size": 4}, {"distinct", "neighbourhoods"}, "over 4 graphs"),
        ({"dropout": 0.5}, {"distinct", "neighbourhoods"}, "dropout hides"),
        ({"readout": "mean"}, {"distinct", "neighbourhoods"}, "readout is mean"),
    ],
)
def test_what_cannot_be_attacked_says_why(
    changes: dict, attacked: set[str], reason: str, one_set: FederatedGraphs
) -> None:
    fields = {name: getattr(FEDSGD, name) for name in FEDSGD.__struct_fields__}
    options = GnnOptions(**{**fields, "layers": 2, **changes})
    found = figures(run_federation(one_set, options, make_transport=make_transport))
    for (victim, metric), one in found.items():
        assert (one.reason is None) == (metric in attacked), (victim, metric)
        assert one.reason is None or reason in one.reason
    for metric in attacked:
        assert found[ALL, metric].estimate.value > found[ALL, metric].baseline.value + 0.3


def test_graphs_without_labels_are_counted_alone(two_sets: FederatedGraphs) -> None:
    """Circles have degrees for labels; every client has its own layer of features."""
    found = figures(run_federation(two_sets, replace(FEDSGD, layers=2, settings={"share": "encoder"})))
    assert found["circles-3", "distinct"].reason is None
    assert "own" in found["circles-3", "neighbourhoods"].reason


@pytest.mark.slow
def test_ptc_mr_over_twenty_clients() -> None:
    graphs = load_federation("PTC_MR", seed=0, clients=20)
    found = figures(run_federation(graphs, replace(FEDSGD, layers=2, rounds=2)))
    assert found[ALL, "exact"].estimate.value >= 0.6
    assert found[ALL, "similarity"].estimate.value >= 0.8
    assert found[ALL, "neighbourhoods"].estimate.value >= 0.95
    assert found[ALL, "exact"].baseline.value < 0.05
