"""Update recovery: hand-computed cosines and errors, clear uploads, sums, and what is not measured."""

from __future__ import annotations

import dataclasses

import msgspec
import numpy as np
import pytest

from attacks.update_recovery import attack_updates, cosines, relative_error
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


def test_uploads_in_clear_are_known_and_the_mean_is_not() -> None:
    for row in attack_updates(trained(), ["collusion"], colluder=None, leak=0.5, seed=0):
        assert (row.cosine.value, row.relative_error.value) == pytest.approx((1.0, 0.0), abs=1e-6)
        assert row.num_claimed == row.cosine.n > 50
        assert 0.05 < row.base_cosine.value < 0.99


def test_a_colluder_of_two_leaves_the_other_alone_and_one_of_five_does_not() -> None:
    (alone,) = (
        row
        for row in attack_updates(trained(2, defense="psu,secagg"), ["collusion"], colluder=None, leak=1.0, seed=0)
        if row.threat_model == "collusion"
    )
    assert alone.relative_error.value < 1e-3
    for row in attack_updates(trained(5, defense="psu,secagg"), ["collusion"], colluder=None, leak=1.0, seed=0):
        assert row.relative_error.value > 0.3
        assert row.base_relative_error.value > 0.3


def test_a_client_that_sat_the_round_out_is_named() -> None:
    rows = attack_updates(trained(5, participation=0.4), [], colluder=None, leak=1.0, seed=0)
    reasons = [row.reason for row in rows if row.reason]
    assert all("did not train in round" in reason for reason in reasons)
    assert 2 <= len(reasons) <= 4
    assert all(row.cosine.high == 1.0 for row in rows if row.reason)


def test_relations_are_measured_where_they_are_what_is_shared() -> None:
    rows = attack_updates(trained(algorithm="fedr"), [], colluder=None, leak=1.0, seed=0)
    assert {row.table for row in rows} == {"relations"}
    assert all(row.relative_error.value < 1e-6 for row in rows)


def test_of_a_run_of_an_earlier_version_it_says_why_it_is_not_measured() -> None:
    """Their checkpoints do not have the rows that training started from; at first that was a bare KeyError."""
    run = dataclasses.replace(trained(), started={"entities": {}})
    for row in attack_updates(run, ["collusion"], colluder=None, leak=0.5, seed=0):
        assert row.reason == "the rows that training started from were not kept, or nothing was sent"
