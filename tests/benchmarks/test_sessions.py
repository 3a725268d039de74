"""The measurement of sessions at a size that a test can afford."""

import pytest

from benchmarks.sessions import Case, markdown, measure
from fkgsec.protocols.core.errors import SettingError


def test_a_session_is_measured_party_by_party() -> None:
    cost = measure(Case(100, 20, 5), length=25)
    assert (cost.num_dropped, cost.threshold) == (1, 15)
    assert cost.cpu_s == pytest.approx(cost.server_s + 100 * cost.client_s, rel=0.05, abs=0.02)
    assert cost.client_s <= cost.slowest_client_s
    assert 100 < cost.bytes_up - 4 * 25 < 6000
    assert cost.assumption.startswith("5 colluders, dropout 0.01: exposes an upload with probability at most 2^-")
    assert "| 100 | 20 | 15 | 1 |" in markdown([cost])


def test_the_complete_graph_assumes_nothing_more() -> None:
    assert measure(Case(4, None), length=10).assumption == ""


def test_a_graph_that_is_too_thin_is_not_measured() -> None:
    with pytest.raises(SettingError, match="neighbours: 4 of 100 clients"):
        measure(Case(100, 4, 10), length=10)
