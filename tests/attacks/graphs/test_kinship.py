"""Which clients hold like data: by hand on four clients, told of two data sets, refused where there is nothing to tell."""

import dataclasses

import numpy as np
import pytest
import torch

from fkgsec.attacks import GraphAttackOptions, run_attacks
from fkgsec.attacks.graphs import kinship
from fkgsec.attacks.graphs.kinship import claim
from fkgsec.attacks.graphs.view import GraphVictim, GraphView
from fkgsec.attacks.laboratory import PublicSettings
from fkgsec.attacks.options import THREAT_MODELS
from fkgsec.defenses import make_transport
from fkgsec.federation.loop import run_federation
from fkgsec.federation.options import replace
from fkgsec.gnn.layout import Layout
from fkgsec.gnn.options import GnnOptions
from fkgsec.gnn.result import GnnResult
from fkgsec.graphs.generate import generate_motifs
from fkgsec.graphs.sets import ClientGraphs, FederatedGraphs
from fkgsec.graphs.split import by_chance

OPTIONS = GraphAttackOptions(attack=("client-kinship",))


def test_cosines_and_clusters_by_hand() -> None:
    """a and b go the same way, c across; c was sent something else."""
    start, other = {"w": torch.zeros(2)}, {"w": torch.ones(2)}
    victims = tuple(
        GraphVictim(name, broadcast=sent, upload={"w": sent["w"] + torch.tensor(step)})
        for name, sent, step in (("a", start, [2.0, 0.0]), ("b", start, [1.0, 0.0]), ("c", other, [0.0, 3.0]))
    )
    view = GraphView(
        threat_model=THREAT_MODELS["server"], round=1, victims=victims, layout=Layout.of(start, 2),
        settings=PublicSettings.of(GnnOptions()),
    )  # fmt: skip
    found = claim(view, None, np.random.default_rng(0))
    assert found["updates"] == {("a", "b"): 1.0, ("a", "c"): 0.0, ("b", "c"): 0.0}
    assert found["clusters"] == {("a", "b"): 1.0, ("a", "c"): 0.0, ("b", "c"): 0.0}


def test_two_data_sets_over_four_clients(small: GnnOptions) -> None:
    sets = generate_motifs(0, clients=3, size=300)
    parts = [by_chance(graphs, clients=2, seed=0) for graphs in (sets[0], sets[2])]
    clients = tuple(
        ClientGraphs(f"{one.vocabulary} {one.name}", one.graphs, one.train, one.valid, one.test, one.vocabulary)
        for part in parts
        for one in part.clients
    )
    result = run_federation(FederatedGraphs("two", clients), replace(small, algorithm="gcfl", optimizer="sgd"))
    found = {one.variant: one for one in run_attacks(result, OPTIONS).figures}
    assert set(found) == {"updates", "clusters"}
    assert found["updates"].counts == {"same": 2, "other": 4}
    assert found["clusters"].estimate.value == 0.5  # no cluster was cut yet


def test_without_two_kinds_of_pairs_there_is_nothing_to_tell(graph_runs: dict[str, GnnResult]) -> None:
    [reason] = {one.reason for one in run_attacks(graph_runs["fedavg"], OPTIONS).figures}
    assert reason == "0 pairs of clients hold one data set and 3 do not; it takes 2 of each"
    [reason] = {one.reason for one in run_attacks(graph_runs["fedavg/secagg"], OPTIONS).figures}
    assert reason == "its parameters were transmitted only inside a sum"


@pytest.fixture(scope="module")
def two_kinds() -> FederatedGraphs:
    """Two data sets over four clients each: 12 pairs of one, 16 of two."""
    sets = generate_motifs(0, clients=3, size=240)
    parts = [by_chance(graphs, clients=4, seed=0) for graphs in (sets[0], sets[2])]
    clients = tuple(
        ClientGraphs(f"{one.vocabulary} {one.name}", one.graphs, one.train, one.valid, one.test, one.vocabulary)
        for part in parts
        for one in part.clients
    )
    return FederatedGraphs("two", clients)


def by_updates(result: GnnResult) -> float:
    [one] = [one for one in run_attacks(result, OPTIONS).figures if one.variant == "updates"]
    assert not one.reason
    return one.estimate.value


@pytest.mark.null("client-kinship", "random updates, 20 draws: mean AUC within .08 of .5")
def test_cosines_that_say_nothing_give_chance(
    two_kinds: FederatedGraphs, small: GnnOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With each client's update taken for noise, the AUC over 28 pairs is spread around one half."""
    result = run_federation(two_kinds, replace(small, rounds=1, local_steps=1))
    rng = np.random.default_rng(0)

    def noise(before: object, after: object) -> np.ndarray:
        vector = rng.normal(size=50)
        return vector / np.linalg.norm(vector)

    monkeypatch.setattr(kinship, "change", noise)
    drawn = [by_updates(result) for _ in range(20)]
    assert abs(np.mean(drawn) - 0.5) < 0.08
    assert np.std(drawn) > 0.03


@pytest.mark.planted("client-kinship", "clients of opposed classes: AUC above .95", {"same_data": 28})
def test_clients_of_opposed_data_are_told_apart_and_noise_hides_them(small: GnnOptions) -> None:
    """The graphs of one data set are of one class, those of the other of the other one: their updates pull apart."""
    [graphs] = generate_motifs(0, clients=1, size=240)
    clients = tuple(
        dataclasses.replace(
            one,
            name=f"{kind} {one.name}",
            graphs=dataclasses.replace(one.graphs, classes=np.full(len(one.graphs), kind)),
            vocabulary=f"data of class {kind}",
        )
        for kind in (0, 1)
        for one in by_chance(graphs, clients=4, seed=kind).clients
    )
    options = replace(small, rounds=1, optimizer="sgd", learning_rate=0.1, settings={"share": "all"})
    clear, *noisy = (
        by_updates(
            run_federation(
                FederatedGraphs("opposed", clients),
                replace(options, defense=defense, protocol_seed=seed),
                make_transport=make_transport,
            )
        )
        for seed, defense in enumerate(["", *["dp:epsilon=1,clip=0.1"] * 16])
    )
    assert clear > 0.95
    assert abs(np.mean(noisy) - 0.5) < 0.08
    assert np.std(noisy) > 0.03
