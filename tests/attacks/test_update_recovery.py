"""Update recovery: hand-computed cosines and errors, clear uploads, sums, and what is not measured."""

from __future__ import annotations

import dataclasses

import msgspec
import numpy as np
import pytest

from attacks import AttackOptions, Figure, run_attacks
from attacks.update_recovery import cosines, relative_error
from defenses.transport import make_transport
from fkgsec.data.consortium import generate_consortium
from fkgsec.federation.loop import FederationResult, run_federation
from fkgsec.federation.options import FederationOptions

OPTIONS = FederationOptions(
    dim=8, batch_size=128, num_negatives=7, local_epochs=1, rounds=2, eval_every=2, patience=0, seed=5, device="cpu"
)


def trained(clients: int = 3, **settings: object) -> FederationResult:
    graph = generate_consortium(clients=clients, size=300 * clients, seed=1)
    return run_federation(graph, msgspec.structs.replace(OPTIONS, **settings), make_transport=make_transport)


def test_by_hand() -> None:
    true, guess = np.array([[3.0, 4.0], [1.0, 0.0], [0.0, 2.0]]), np.array([[6.0, 8.0], [0.0, 1.0], [0.0, 0.0]])
    assert cosines(true, guess).tolist() == pytest.approx([1.0, 0.0, 0.0])
    error = relative_error(true, guess, np.random.default_rng(0))
    assert error.value == pytest.approx(np.sqrt((25 + 2 + 4) / (25 + 1 + 4)))
    assert error.low <= error.value <= error.high
    assert relative_error(true, true, np.random.default_rng(0)).value == 0


def recovered(result: FederationResult, threat: str = "server", leak: float = 1.0) -> dict[str, list[Figure]]:
    """Figures under the server alone and under a threat model, by metric."""
    options = AttackOptions(attack=("update-recovery",), threat=(threat,), leak=(leak,))
    found: dict[str, list[Figure]] = {}
    for one in run_attacks(result, options).figures:
        found.setdefault(one.metric, []).append(one)
    return found


def test_uploads_in_clear_are_known_and_the_mean_is_not() -> None:
    found = recovered(trained(), "collusion", 0.5)
    assert {one.threat_model for one in found["cosine"]} == {"server", "collusion"}
    for cosine, error in zip(found["cosine"], found["relative_error"], strict=True):
        assert (cosine.estimate.value, error.estimate.value) == pytest.approx((1.0, 0.0), abs=1e-6)
        assert cosine.counts["claimed"] == cosine.estimate.n > 50
        assert 0.05 < cosine.baseline.value < 0.99
        assert (cosine.less_is_worse, error.less_is_worse) == (False, True)
        assert error.advantage == pytest.approx(error.baseline.value, abs=1e-6)


def test_a_colluder_of_two_leaves_the_other_alone_and_one_of_five_does_not() -> None:
    errors = recovered(trained(2, defense="psu,secagg"), "collusion")["relative_error"]
    (alone,) = (one for one in errors if one.threat_model == "collusion")
    assert alone.estimate.value < 1e-3
    for one in recovered(trained(5, defense="psu,secagg"), "collusion")["relative_error"]:
        assert one.estimate.value > 0.3
        assert one.baseline.value > 0.3


def test_a_client_that_sat_the_round_out_is_named() -> None:
    found = recovered(trained(5, participation=0.4))["cosine"]
    reasons = [one.reason for one in found if one.reason]
    assert all("did not train in round" in reason for reason in reasons)
    assert 2 <= len(reasons) <= 4
    assert all(one.estimate.high == 1.0 for one in found if one.reason)


def test_relations_are_measured_where_they_are_what_is_shared() -> None:
    found = recovered(trained(algorithm="fedr"))
    assert set(found) == {"cosine_relations", "relative_error_relations"}
    assert all(one.estimate.value < 1e-6 for one in found["relative_error_relations"])


def test_of_a_run_of_an_earlier_version_it_says_why_it_is_not_measured() -> None:
    """Their checkpoints do not have the rows that training started from; at first that was a bare KeyError."""
    run = dataclasses.replace(trained(), started={"entities": {}})
    for one in recovered(run, "collusion", 0.5)["cosine"]:
        assert one.reason == "the rows that training started from were not kept, or nothing was sent"
