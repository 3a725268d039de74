"""Degrees read from columns that move by weight decay alone: replayed by hand, found exactly, refused with a reason."""

import numpy as np
import pytest
import torch

from fkgsec.attacks import Figure, GraphAttackOptions, run_attacks
from fkgsec.attacks.graphs import degree_support
from fkgsec.attacks.laboratory import PublicSettings
from fkgsec.defenses import make_transport
from fkgsec.federation.loop import run_federation
from fkgsec.federation.options import replace
from fkgsec.gnn.options import GnnOptions
from fkgsec.gnn.result import GnnResult
from fkgsec.graphs.sets import FederatedGraphs


def attack(result: GnnResult, **given: object) -> dict[str, Figure]:
    found = run_attacks(result, GraphAttackOptions(attack=("degree-support",), **given))  # type: ignore[arg-type]
    return {one.victim: one for one in found.figures}


def test_a_column_without_gradient_by_hand() -> None:
    """SGD: w (1 - rate x decay)^k. Adam's first step: w - rate x sign(w), whatever the size of the gradient."""
    before = torch.tensor([[0.5, -0.25], [1.0, 0.125]])
    sgd = PublicSettings.of(GnnOptions(optimizer="sgd", learning_rate=0.1, weight_decay=0.5))
    assert torch.allclose(degree_support.decayed(before, 3, sgd), before * 0.95**3)
    adam = PublicSettings.of(GnnOptions(learning_rate=0.1, weight_decay=0.5))
    assert torch.allclose(degree_support.decayed(before, 1, adam), before - 0.1 * before.sign(), atol=1e-6)
    assert torch.equal(degree_support.decayed(before, 0, adam), before)


@pytest.mark.parametrize(
    ("options", "steps"),
    [({"batch_size": 16}, 3), ({"batch_size": 128}, 1), ({"batch_size": 16, "local_epochs": 2, "local_steps": 2}, 4)],
)
def test_steps_of_a_round_by_hand(options: dict, steps: int) -> None:
    assert degree_support.num_steps(PublicSettings.of(GnnOptions(**options)), 48) == steps


@pytest.fixture(scope="module")
def fedstar(two_sets: FederatedGraphs, small: GnnOptions) -> GnnResult:
    return run_federation(two_sets, replace(small, algorithm="fedstar"))


@pytest.mark.planted("degree-support", "FedStar with Adam or SGD: all columns right", {"columns": 16})
@pytest.mark.parametrize(("optimizer", "rate"), [("adam", 0.001), ("sgd", 0.1)])
def test_degrees_are_found_exactly(two_sets: FederatedGraphs, small: GnnOptions, optimizer: str, rate: float) -> None:
    """Against the clients' training graphs counted one by one; several rounds on, it is the first that is attacked."""
    result = run_federation(
        two_sets, replace(small, algorithm="fedstar", optimizer=optimizer, learning_rate=rate, rounds=2)
    )
    found = attack(result)
    assert {one.round for one in found.values()} == {1}
    for client in two_sets.clients:
        degrees = {
            min(max(int((client.graphs.edges(number)[:, 0] == node).sum()), 1), 16)
            for number in client.train
            for node in range(client.graphs.sizes[number])
        }
        figure = found[client.name]
        assert figure.estimate.value == 1
        assert figure.estimate.n == 16
        assert figure.counts == {"used": len(degrees), "claimed": len(degrees)}
        assert figure.baseline is not None
        assert figure.baseline.value == max(len(degrees), 16 - len(degrees)) / 16
    assert found["all"].estimate.n == 48


def test_with_another_number_of_steps_all_columns_moved(fedstar: GnnResult, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is found hangs on the replay: one step more, and every column is taken for used."""
    steps = degree_support.num_steps
    monkeypatch.setattr(degree_support, "num_steps", lambda *args: steps(*args) + 1)
    for one in attack(fedstar).values():
        assert one.reason or one.victim == "all" or one.counts["claimed"] == 16


def test_labels_are_found_where_networks_are_shared(one_set: FederatedGraphs, small: GnnOptions) -> None:
    """The columns of node labels: those that a client's training graphs have."""
    result = run_federation(one_set, replace(small, settings={"share": "all"}, rounds=1))
    found = attack(result, threat=("server+graphs",))
    for client in one_set.clients:
        own = client.graphs.subset(client.train)
        assert found[client.name].estimate.value == 1
        assert found[client.name].counts["used"] == len(np.unique(own.labels))
        assert set(found[client.name].guesses) == {"all or none", "auxiliary graphs"}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"algorithm": "fedavg"}, "no layer that reads degrees or labels is transmitted"),
        (
            {"algorithm": "fedstar", "settings": {"num_degrees": 0}},
            "no layer that reads degrees or labels is transmitted",
        ),
        ({"algorithm": "fedprox-gc", "settings": {"share": "all"}}, "how fedprox-gc trains is not replayed"),
        ({"algorithm": "fedstar", "defense": "secagg"}, "its parameters were transmitted only inside a sum"),
        ({"algorithm": "local-gc"}, "none of its parameters was transmitted in the attacked round"),
    ],
)
def test_what_cannot_be_told(one_set: FederatedGraphs, small: GnnOptions, changes: dict, reason: str) -> None:
    result = run_federation(one_set, replace(small, rounds=1, **changes), make_transport=make_transport)
    assert {one.reason for one in attack(result).values()} == {reason}
