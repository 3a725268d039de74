"""A server that sends all clients but one nonsense: planted sums, clients that check what they are sent, and such that do not."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import pytest

from benchmarks.active_server import UnprotectedTransport
from fkgsec.attacks import Figure, KgeAttackOptions, run_attacks
from fkgsec.attacks.sums import inconsistent
from fkgsec.attacks.sums.inconsistent import METRICS, REFUSED, InconsistentServer, left_of_sum
from fkgsec.defenses import make_transport
from fkgsec.federation.loop import run_federation
from fkgsec.federation.messages import Opened
from fkgsec.federation.options import replace
from fkgsec.kge.result import KgeResult

checking, trusting = (
    functools.partial(run_federation, make_transport=one) for one in (make_transport, UnprotectedTransport)
)


def figures(result: KgeResult, train: Callable = checking) -> dict[tuple[str, str], Figure]:
    found = run_attacks(result, KgeAttackOptions(attack=("server-active",)), train=train).figures
    return {(one.victim, one.metric): one for one in found}


def opened(total: np.ndarray, holders: np.ndarray) -> Opened:
    content = total.astype("<f8").tobytes(), holders.astype("<i8").tobytes()
    return Opened(2, "entities", ["a", "b", "c"], *content, 1e-9)


def test_what_is_left_of_a_sum() -> None:
    """Rows held by one other, by the victim alone, by it and one other, by both others, by all three, by nobody."""
    rows = np.array([[0.5, -1.0], [2.0, 3.0], [0.25, 0.125]])
    total = np.array([[16, 16], rows[0], 16 + rows[1], [32, 32], 32 + rows[2], [0, 0]], dtype=np.float64)
    left = left_of_sum(opened(total, np.array([1, 1, 2, 2, 3, 0])))
    assert left.holds.tolist() == [False, True, True, False, True, False]
    np.testing.assert_allclose(left.rows[left.holds], rows)
    assert np.isnan(left.rows[~left.holds]).all()


def test_of_a_sum_of_clients_that_put_in_their_own_nothing_is_left() -> None:
    """As many rows are said to be the victim's as there are, and what is left of them has no more to do with it than chance."""
    rng = np.random.default_rng(0)
    parts = rng.normal(0, 1, (3, 200, 16))
    left = left_of_sum(opened(parts.sum(axis=0), np.full(200, 3)))
    assert left.holds.all()
    shuffled = parts[0][rng.permutation(200)]
    cosines = (left.rows * shuffled).sum(axis=1) / np.linalg.norm(left.rows, axis=1) / np.linalg.norm(shuffled, axis=1)
    assert abs(cosines.mean()) < 0.06


@pytest.mark.planted(
    "server-active", "clients that do not check broadcasts: cosine above .999, all holders", {"cosine": 70}
)
@pytest.mark.parametrize("defense", ["secagg", "psu,secagg"])
def test_clients_that_check_nothing_give_their_uploads_away(federate, defense: str) -> None:
    found = figures(federate(defense), trusting)
    for victim in ("hospital-2", "hospital-3"):
        cosine, error, holders = (found[victim, name] for name in ("cosine", "relative_error", "holders"))
        assert cosine.estimate.value > 0.999 > cosine.baseline.value + 0.1
        assert error.estimate.value < 0.01 < error.baseline.value
        assert holders.estimate.value == 1 > holders.baseline.value


@pytest.mark.null("server-active", "changes of other rows: cosine within .1 of 0")
def test_shuffled_truth_is_chance(federate, shuffled_changes: None) -> None:
    """Changes of other rows than those that it took out of the sum have nothing to do with these."""
    found = figures(federate("secagg"), trusting)
    for victim in ("hospital-2", "hospital-3"):
        assert abs(found[victim, "cosine"].estimate.value) < 0.1
        assert found[victim, "relative_error"].by == "no change"


def test_clients_that_check_refuse_it_and_figures_say_so(federate) -> None:
    found = figures(federate("psu,secagg"))
    assert found.keys() == {(victim, metric) for victim in ("hospital-2", "hospital-3") for metric in METRICS}
    for figure in found.values():
        assert figure.reason.startswith(REFUSED)
        assert "refuses the broadcast of entities in round 1" in figure.reason


@pytest.mark.parametrize("value", [0.0, 1.0, 15.0])
def test_values_that_clients_accept_leave_the_victim_out_of_the_sum(
    federate, value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inconsistent, "FAR", value)
    honest = federate("secagg")
    options = replace(honest.options, rounds=2, eval_every=2)
    result = checking(honest.graph, options, adversary=InconsistentServer("client/hospital-2"))
    assert not result.transcript.opened(2)
    assert "other tables than the server" in result.rounds[-1].excluded["client/hospital-2"]
    assert {figure.reason for figure in figures(honest).values()} == {
        "too many fell silent: no sum of round 2 was opened"
    }


def test_where_it_cannot_run_it_says_so(federate) -> None:
    reasons = {one.reason for one in figures(federate()).values()}
    assert reasons == {"uploads are transmitted one by one, or not at all: there is no sum to take apart"}
    reasons = {one.reason for one in figures(federate("secagg"), run_federation).values()}
    assert reasons == {"the run was defended: it can be trained again with that defense's transport alone"}
