"""Update recovery: hand-computed cosines and errors, plaintext uploads, sums, nulls, and what is not measured."""

from __future__ import annotations

import dataclasses

import msgspec
import numpy as np
import pytest

from fkgsec.attacks import Figure, KgeAttackOptions, run_attacks
from fkgsec.attacks.update_recovery import AGGREGATE, NO_CHANGE, UPLOAD, cosines, relative_error
from fkgsec.data.consortium import generate_consortium
from fkgsec.data.graph import ClientGraph, FederatedGraph
from fkgsec.defenses.transport import make_transport
from fkgsec.federation.loop import run_federation
from fkgsec.kge.options import KgeOptions
from fkgsec.kge.result import KgeResult

OPTIONS = KgeOptions(
    dim=8, batch_size=128, num_negatives=7, local_epochs=1, rounds=2, eval_every=2, patience=0, seed=5, device="cpu"
)


def trained(clients: int = 3, **settings: object) -> KgeResult:
    graph = generate_consortium(clients=clients, size=300 * clients, seed=1)
    return run_federation(graph, msgspec.structs.replace(OPTIONS, **settings), make_transport=make_transport)


def test_by_hand() -> None:
    true, guess = np.array([[3.0, 4.0], [1.0, 0.0], [0.0, 2.0]]), np.array([[6.0, 8.0], [0.0, 1.0], [0.0, 0.0]])
    assert cosines(true, guess).tolist() == pytest.approx([1.0, 0.0, 0.0])
    error = relative_error(true, guess, np.random.default_rng(0))
    assert error.value == pytest.approx(np.sqrt((25 + 2 + 4) / (25 + 1 + 4)))
    assert error.low <= error.value <= error.high
    assert relative_error(true, true, np.random.default_rng(0)).value == 0


def recovered(result: KgeResult, threat: str = "server", leak: float = 1.0) -> dict[str, list[Figure]]:
    """Figures of the strongest way under the server alone and under a threat model, by metric."""
    options = KgeAttackOptions(attack=("update-recovery",), threat=(threat,), leak=(leak,))
    found: dict[str, list[Figure]] = {}
    for one in run_attacks(result, options).figures:
        found.setdefault(one.metric, []).append(one)
    return found


def test_plaintext_uploads_are_known_and_exposed() -> None:
    found = recovered(trained(), "collusion", 0.5)
    assert {one.threat_model for one in found["cosine"]} == {"server", "collusion"}
    for cosine, error in zip(found["cosine"], found["relative_error"], strict=True):
        assert (cosine.estimate.value, error.estimate.value) == pytest.approx((1.0, 0.0), abs=1e-6)
        assert cosine.counts["claimed"] == cosine.estimate.n > 50
        assert (cosine.by, error.by, cosine.by_protocol, error.by_protocol) == (UPLOAD, UPLOAD, True, True)
        assert (cosine.less_is_worse, error.less_is_worse) == (False, True)


def disjoint(**settings: object) -> KgeResult:
    """Two clients that share no entity."""
    rng, none = np.random.default_rng(0), np.zeros((0, 3), dtype=np.int64)
    parts = [
        np.stack([rng.integers(0, 40, 200), rng.integers(0, 3, 200), rng.integers(0, 40, 200)], axis=1) for _ in "ab"
    ]
    parts[1][:, [0, 2]] += 40
    clients = tuple(ClientGraph.from_global(name, part, none, none) for name, part in zip("ab", parts, strict=True))
    graph = FederatedGraph("disjoint", tuple(f"e{n}" for n in range(80)), ("r0", "r1", "r2"), clients)
    return run_federation(graph, msgspec.structs.replace(OPTIONS, **settings), make_transport=make_transport)


@pytest.mark.parametrize("defense", ["", "secagg", "psu,secagg"])
def test_disjoint_clients_are_exposed(defense: str) -> None:
    """The aggregate of a row that one client holds is its upload: once the baseline had it, too, and nothing leaked."""
    found = recovered(disjoint(defense=defense))
    (cosine,), (error,) = found["cosine"], found["relative_error"]
    assert cosine.by_protocol
    assert (cosine.estimate.value, cosine.baseline.value) == (pytest.approx(1.0, abs=1e-3), 0.0)
    assert (error.estimate.value, error.baseline.value) == (pytest.approx(0.0, abs=1e-2), 1.0)


@pytest.mark.planted("update-recovery", "sums of three clients: cosine above .2", {"cosine": 106})
@pytest.mark.parametrize("defense", ["secagg", "psu,secagg"])
def test_the_aggregate_is_compared_with_no_change(defense: str) -> None:
    for cosine in recovered(trained(defense=defense))["cosine"]:
        assert cosine.by == AGGREGATE
        assert 0.2 < cosine.estimate.low < cosine.estimate.value < 0.99
        assert cosine.baseline.value == 0 == cosine.guesses[NO_CHANGE].value


def test_local_noise_leaves_no_change() -> None:
    """The noise of an upload is not the victim's change, and that change is no baseline: an honest policy holds."""
    found = recovered(trained(defense="dp:clip=0.5,epsilon=10"))
    for cosine, error in zip(found["cosine"], found["relative_error"], strict=True):
        assert cosine.estimate.value < 0.1
        assert cosine.baseline.value == 0.0
        assert (error.by, error.estimate.value) == (NO_CHANGE, 1.0)


def test_rows_that_moved_by_rounding_alone_did_not_change() -> None:
    """With a learning rate of 1e-12, cosines of changes were -1 or 1 by rounding."""
    found = recovered(trained(learning_rate=1e-12))
    assert {one.reason[:28] for one in found["cosine"]} == {"training in round 2 changed "}


def test_a_colluder_of_two_leaves_the_other_alone_and_one_of_five_does_not() -> None:
    errors = recovered(trained(2, defense="psu,secagg"), "collusion")["relative_error"]
    (alone,) = (one for one in errors if one.threat_model == "collusion")
    assert alone.estimate.value < 1e-3
    for one in recovered(trained(5, defense="psu,secagg"), "collusion")["relative_error"]:
        assert 0.3 < one.estimate.value < 1


def test_a_client_that_sat_the_round_out_is_named() -> None:
    found = recovered(trained(5, participation=0.4))["cosine"]
    reasons = [one.reason for one in found if one.reason]
    assert all("changed no row of" in reason for reason in reasons)
    assert 2 <= len(reasons) <= 4
    assert all(one.estimate.high == 1.0 for one in found if one.reason)


@pytest.mark.planted("update-recovery", "relations in plaintext: recovered to 1e-6", {"cosine_relations": 16})
def test_relations_are_measured_where_they_are_what_is_shared() -> None:
    found = recovered(trained(algorithm="fedr"))
    assert set(found) == {"cosine_relations", "relative_error_relations"}
    assert all(one.estimate.value < 1e-6 for one in found["relative_error_relations"])


def test_of_a_run_of_an_earlier_version_it_says_why_it_is_not_measured() -> None:
    """Their checkpoints do not have the rows that training started from; at first that was a bare KeyError."""
    run = dataclasses.replace(trained(), started={"entities": {}})
    for one in recovered(run, "collusion", 0.5)["cosine"]:
        assert one.reason == "the rows that training started from were not kept, or nothing was sent"
