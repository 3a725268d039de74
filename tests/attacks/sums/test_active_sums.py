"""Servers that misorder requests, drop a client from a sum, or lie about counts: what they read, and what stops them."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest

from fkgsec.attacks import Figure, KgeAttackOptions, run_attacks
from fkgsec.attacks.sums import differences
from fkgsec.defenses import make_transport
from fkgsec.federation.adversary import Adversary
from fkgsec.federation.loop import run_federation
from fkgsec.federation.messages import SERVER
from fkgsec.kge.result import KgeResult

train = functools.partial(run_federation, make_transport=make_transport)
VICTIMS = ("hospital-2", "hospital-3")


def figures(result: KgeResult, attack: str) -> dict[tuple[str, str], Figure]:
    found = run_attacks(result, KgeAttackOptions(attack=(attack,)), train=train).figures
    return {(one.victim, one.metric): one for one in found}


@pytest.mark.planted(
    "server-order", "clients that do not check the order of requests: cosine above .999", {"cosine": 70}
)
@pytest.mark.parametrize("defense", ["secagg", "psu,secagg"])
def test_misordered_requests_read_an_upload_of_clients_that_check_no_order(federate: Callable, defense: str) -> None:
    found = figures(federate(defense), "server-order")
    for victim in VICTIMS:
        assert found[victim, "cosine_unchecked"].estimate.value > 0.999
        assert found[victim, "relative_error_unchecked"].estimate.value < 0.01
        for metric, nothing in (("cosine", 0), ("relative_error", 1)):
            one = found[victim, metric]
            assert one.estimate.value == one.baseline.value == nothing
            assert "2 clients refused" in one.remark
            assert "in which this client did not train" in one.remark
            assert found[victim, f"{metric}_unchecked"].baseline.value == nothing


@pytest.mark.null("server-order", "changes of other rows: cosine within .1 of 0")
def test_misordered_requests_and_shuffled_truth_are_chance(federate: Callable, shuffled_changes: None) -> None:
    found = figures(federate("secagg"), "server-order")
    for victim in VICTIMS:
        assert abs(found[victim, "cosine_unchecked"].estimate.value) < 0.1


@pytest.mark.planted(
    "dropout-difference", "sums that open without the victim: all holders, cosine above 0", {"holders": 107}
)
def test_a_dropped_client_shows_what_it_holds(federate: Callable) -> None:
    found = figures(federate("psu,secagg:threshold=2"), "dropout-difference")
    for victim in VICTIMS:
        assert found[victim, "holders"].estimate.value == 1 > found[victim, "holders"].baseline.value
        assert found[victim, "cosine"].estimate.low > 0 == found[victim, "cosine"].baseline.value


@pytest.mark.null("dropout-difference", "changes of other rows: cosine within .1 of 0")
def test_a_dropped_client_and_shuffled_truth_are_chance(federate: Callable, shuffled_changes: None) -> None:
    found = figures(federate("psu,secagg:threshold=2"), "dropout-difference")
    for victim in VICTIMS:
        assert abs(found[victim, "cosine"].estimate.value) < 0.1


def test_complete_sums_show_nothing_by_dropping_a_client(federate: Callable) -> None:
    found = figures(federate("psu,secagg:threshold=2,complete=true"), "dropout-difference")
    for one in found.values():
        assert one.estimate == one.baseline
        assert "no sum without the victim was opened" in one.remark


def test_complete_sums_open_if_nobody_is_dropped(federate: Callable) -> None:
    result = federate("psu,secagg:threshold=2,complete=true")
    assert {entry.num_survivors for entry in result.rounds[1:]} == {3}


@pytest.mark.planted(
    "count-lies", "clients that accept a false holder count: every row with few holders", {"rare_rows": 11}
)
def test_lies_about_counts_open_rows_with_few_holders(federate: Callable) -> None:
    result = federate("psu,secagg,suppress:t=3")
    found = figures(result, "count-lies")
    held = {one.name: set(one.entity_ids[: one.num_trained_entities].tolist()) for one in result.graph.clients}
    everywhere = set.intersection(*held.values())
    for victim in VICTIMS:
        one = found[victim, "rare_rows"]
        assert one.estimate.n == len(held[victim] - everywhere)  # all others have fewer than three holders
        assert one.estimate.value == 1
        assert one.baseline.value == 0
    for one in figures(federate("psu,secagg"), "count-lies").values():
        assert "no rows are suppressed" in (one.reason or "")


@pytest.mark.null("count-lies", "true holder counts: no row")
def test_true_counts_open_no_row_with_few_holders(federate: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(differences, "LyingServer", lambda: Adversary(SERVER))
    found = figures(federate("psu,secagg,suppress:t=3"), "count-lies")
    assert [found[victim, "rare_rows"].estimate.value for victim in VICTIMS] == [0, 0]
    assert all(found[victim, "rare_rows"].estimate.n > 10 for victim in VICTIMS)


@pytest.mark.parametrize("attack", ["server-order", "dropout-difference", "count-lies"])
def test_plaintext_uploads_are_no_sums(federate: Callable, attack: str) -> None:
    for one in figures(federate(""), attack).values():
        assert one.reason
