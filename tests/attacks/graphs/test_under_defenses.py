"""Attacks on graph classification under defenses: a rule of the server, which sees uploads first, and noise of the clients."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import pytest

from fkgsec.attacks import Figure, GraphAttackOptions, run_attacks
from fkgsec.attacks.graphs import degree_support, properties
from fkgsec.attacks.graphs.inversion import evaluation as inversion
from fkgsec.defenses import make_transport
from fkgsec.federation.loop import run_federation
from fkgsec.federation.options import replace
from fkgsec.gnn.options import GnnOptions
from fkgsec.gnn.result import GnnResult
from fkgsec.graphs.generate import generate_motifs
from fkgsec.graphs.sets import ClientGraphs, FederatedGraphs
from fkgsec.graphs.split import by_chance

STEP = GnnOptions(
    optimizer="sgd", local_steps=1, batch_size=1, learning_rate=0.1, dropout=0.0, layers=2, rounds=1, device="cpu",
    settings={"share": "all"},
)  # fmt: skip
SMALL = GnnOptions(width=8, rounds=1, batch_size=16, device="cpu", seed=4321)
CLIP, NOISE = "robust:rule=clip", "dp:epsilon=1,clip=0.1"
SERVER, WITH_GRAPHS = "server", "server+graphs"
train = functools.partial(run_federation, make_transport=make_transport)


def figures(result: GnnResult, attack: str, threat: str = "", **given: object) -> dict[tuple[str, str, str], Figure]:
    options = GraphAttackOptions(attack=(attack,), threat=(threat,) if threat else (), **given)  # type: ignore[arg-type]
    return {(one.victim, one.metric, one.variant): one for one in run_attacks(result, options, train=train).figures}


@pytest.fixture(scope="module")
def kin() -> FederatedGraphs:
    """Two data sets over two clients each."""
    sets = generate_motifs(0, clients=3, size=120)
    parts = [by_chance(graphs, clients=2, seed=0) for graphs in (sets[0], sets[2])]
    clients = tuple(
        ClientGraphs(f"{one.vocabulary} {one.name}", one.graphs, one.train, one.valid, one.test, one.vocabulary)
        for part in parts
        for one in part.clients
    )
    return FederatedGraphs("two", clients)


@pytest.fixture(scope="module")
def attacked(kin: FederatedGraphs, one_set: FederatedGraphs, two_sets: FederatedGraphs):
    """Figures of an attack on a run of one round under a defense."""
    cases = {
        "client-kinship": (kin, replace(SMALL, optimizer="sgd", learning_rate=0.1), SERVER),
        "degree-support": (two_sets, replace(SMALL, algorithm="fedstar"), SERVER),
        "property-inference": (one_set, replace(SMALL, settings={"share": "all"}), WITH_GRAPHS),
        "gradient-inversion": (one_set, STEP, WITH_GRAPHS),
    }

    @functools.cache
    def found(attack: str, defense: str = "") -> dict[tuple[str, str, str], Figure]:
        graphs, options, threat = cases[attack]
        return figures(train(graphs, replace(options, defense=defense)), attack, threat)

    return found


@pytest.fixture(autouse=True)
def few_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(properties, "NUM_CLIENTS", 8)


@pytest.mark.parametrize(
    "attack",
    [
        "client-kinship",
        "degree-support",
        "property-inference",
        pytest.param("gradient-inversion", marks=pytest.mark.slow),
    ],
)
def test_a_clip_by_the_server_hides_no_upload_from_it(attacked, attack: str) -> None:
    """It reads what it clips afterwards."""
    clear, clipped = attacked(attack), attacked(attack, CLIP)
    assert clear.keys() == clipped.keys()
    assert any(not one.reason for one in clear.values())
    for key, one in clear.items():
        assert clipped[key].reason == one.reason
        assert one.reason or clipped[key].estimate.value == pytest.approx(one.estimate.value), key


def test_noise_hides_degrees(attacked) -> None:
    """All columns move, and all are claimed: no more than who claims all of them knows."""
    for (_, metric, _), one in attacked("degree-support", NOISE).items():
        assert metric == "columns"
        assert one.estimate.value <= one.baseline.value
        assert not one.counts or one.counts["claimed"] == 16


@pytest.mark.null("gradient-inversion", "noisy gradients: figures at or below their baseline")
def test_noise_hides_graphs(attacked) -> None:
    found = {
        metric: one for (victim, metric, _), one in attacked("gradient-inversion", NOISE).items() if victim == "all"
    }
    assert set(found) == set(inversion.METRICS)
    for metric in ("exact", "similarity", "neighbourhoods"):
        assert found[metric].estimate.value <= found[metric].baseline.value, metric


@pytest.mark.null("degree-support", "other columns, 36 figures: mean within .06 of guessing")
def test_degrees_of_others_are_told_no_better_than_so_many_at_random(
    attacked, two_sets: FederatedGraphs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With other columns than a client's for the truth, as many of them: by permutations, and what these give on average."""
    result = train(two_sets, replace(SMALL, algorithm="fedstar"))
    real, rng = degree_support.used_columns, np.random.default_rng(0)
    monkeypatch.setattr(degree_support, "used_columns", lambda *given: rng.permutation(real(*given)))
    values, expected = [], []
    for _ in range(12):
        for (victim, _, _), one in figures(result, "degree-support", SERVER).items():
            if victim != "all":
                used = one.counts["used"] / 16
                values.append(one.estimate.value)
                expected.append(used**2 + (1 - used) ** 2)
    assert abs(np.mean(values) - np.mean(expected)) < 0.06


@pytest.mark.slow
def test_of_another_clients_graph_inversion_tells_what_known_graphs_do(
    attacked, one_set: FederatedGraphs, monkeypatch: pytest.MonkeyPatch
) -> None:
    true = attacked("gradient-inversion")["all", "neighbourhoods", ""]  # of the victim's own graphs still
    real, names = inversion.stepped_graphs, [client.name for client in one_set.clients]
    result = train(one_set, STEP)
    monkeypatch.setattr(
        inversion, "stepped_graphs",
        lambda result, name, number: real(result, names[(names.index(name) + 1) % len(names)], number),
    )  # fmt: skip
    found = figures(result, "gradient-inversion", WITH_GRAPHS)
    assert found["all", "exact", ""].estimate.value == 0
    other = found["all", "neighbourhoods", ""]
    assert other.estimate.value < other.baseline.value + 0.25 < true.estimate.value


MEMORISED = GnnOptions(
    width=32, dropout=0.0, rounds=20, batch_size=16, learning_rate=0.01, eval_every=20, device="cpu",
    settings={"share": "all"},
)  # fmt: skip


@pytest.fixture(scope="module")
def arbitrary() -> FederatedGraphs:
    """Two clients whose nodes have random attributes and whose graphs random classes: what a model knows is from training."""
    rng = np.random.default_rng(0)
    [graphs] = generate_motifs(3, clients=1, size=320)
    drawn = dataclasses.replace(
        graphs,
        labels=np.zeros((graphs.num_nodes, 0), dtype=np.int64),
        num_labels=(),
        attributes=rng.normal(size=(graphs.num_nodes, 16)).astype(np.float32),
        classes=rng.integers(0, 2, len(graphs)),
    )
    return by_chance(drawn, clients=2, seed=0)


@pytest.mark.slow
def test_sums_do_not_keep_members_from_the_models_and_noise_does(arbitrary: FederatedGraphs) -> None:
    clear, sums, noisy = (
        figures(train(arbitrary, replace(MEMORISED, defense=defense)), "graph-membership", "models")[
            "all", "auc", "global, loss"
        ]
        for defense in ("", "secagg", NOISE)
    )
    assert clear.estimate.low > 0.5
    assert sums.estimate.low > 0.5
    assert noisy.estimate.low <= 0.5 <= noisy.estimate.high


def test_sums_do_not_stop_a_backdoor_and_noise_does(one_set: FederatedGraphs) -> None:
    planted = {"malicious": 2, "poisoned": 0.4, "trigger_size": 0.35, "trigger_density": 1.0, "target_class": 1}
    options = replace(MEMORISED, width=16)
    sums, noisy = (
        figures(train(one_set, replace(options, defense=defense, protocol_seed=3)), "backdoor", **planted)[
            "all", "success", ""
        ]
        for defense in ("secagg", NOISE)
    )
    assert sums.estimate.value > max(0.6, sums.baseline.value)
    assert noisy.estimate.low <= noisy.baseline.value
