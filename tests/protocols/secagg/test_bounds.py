"""The bounds of a k-regular graph against what happens in random sessions."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fkgsec.protocols.core.errors import SettingError
from fkgsec.protocols.secagg.bounds import (
    MOST_EXPOSURE,
    MOST_FAILURE,
    Risk,
    regular_risk,
    require_small_risk,
)
from fkgsec.protocols.secagg.graph import components, regular_graph

NUM_TRIALS = 1500


def happened(num_parties: int, neighbours: int, threshold: int, colluders: int, dropout: float, trials: int) -> Risk:
    """How often random colluders and dropouts expose an input, or leave a secret closed."""
    parties = tuple(f"p{number}" for number in range(num_parties))
    rng = np.random.default_rng(3)
    exposed = failed = 0
    for trial in range(trials):
        graph = regular_graph(parties, neighbours, b"bounds", trial)
        bad = set(rng.choice(parties, colluders, replace=False).tolist())
        gone = {party for party in parties if rng.random() < dropout}
        good = set(parties) - bad
        captured = any(len(graph[party] & bad) >= threshold for party in good)
        exposed += captured or len(components(graph, good - gone)) > 1
        failed += any(len(graph[party] - gone) < threshold for party in parties) or len(gone) * 3 >= num_parties
    return Risk(exposed / trials, failed / trials)


@pytest.mark.parametrize(
    ("num_parties", "neighbours", "threshold", "colluders", "dropout"),
    [(20, 4, 3, 3, 0.05), (30, 4, 3, 2, 0.1), (12, 5, 4, 3, 0.01)],
)
def test_the_bounds_hold_and_are_not_empty(num_parties, neighbours, threshold, colluders, dropout) -> None:
    bound = regular_risk(num_parties, neighbours, threshold=threshold, colluders=colluders, dropout=dropout)
    seen = happened(num_parties, neighbours, threshold, colluders, dropout, trials=NUM_TRIALS)
    for most, rate in zip(bound, seen, strict=True):
        assert rate <= most + 3 * np.sqrt(most / NUM_TRIALS)
        assert most == 1.0 or most < 30 * rate + 0.02


def test_a_single_risk_by_hand() -> None:
    """Ten clients on a ring, no dropouts: two colluders open a neighbour between them at a threshold of two."""
    risk = regular_risk(10, 2, threshold=2, colluders=2, dropout=0.0)
    both_around = 8 / (9 * 8 / 2)  # eight honest clients, one pair of the nine others each
    two_runs_of_one = 45 / 45  # 45 pairs of places, each the colluders' with 1 / 45
    assert risk.exposure == pytest.approx(min(1.0, both_around + two_runs_of_one))
    assert risk.failure == 0.0
    assert regular_risk(10, 4, threshold=3, colluders=2, dropout=0.0) == Risk(0.0, 0.0)  # two colluders are too few
    alone = regular_risk(3, 2, threshold=2, colluders=0, dropout=0.1)
    assert alone.failure == pytest.approx(3 * (1 - 0.9**2) + (1 - 0.9**3))


def test_an_odd_number_of_neighbors_parts_at_the_runs_of_the_ring() -> None:
    """Twelve clients with five neighbors: two on each side, so that four colluders part them in two runs of two places.

    The neighbor across is not counted. 66 pairs of runs; the colluders are on four places with 1 / 495; five shares are needed.
    """
    risk = regular_risk(12, 5, threshold=5, colluders=4, dropout=0.0)
    assert risk.exposure == pytest.approx(66 / 495)


@given(st.integers(5, 200), st.data())
def test_more_colluders_dropouts_or_fewer_neighbours_are_never_safer(num_parties: int, data: st.DataObject) -> None:
    neighbours = 2 * data.draw(st.integers(2, (num_parties - 1) // 2))
    colluders = data.draw(st.integers(0, num_parties // 2))
    dropout = data.draw(st.sampled_from([0.0, 0.01, 0.1]))
    threshold = neighbours // 2 + 1
    base = regular_risk(num_parties, neighbours, threshold=threshold, colluders=colluders, dropout=dropout)
    more_dropouts = regular_risk(
        num_parties, neighbours, threshold=threshold, colluders=colluders, dropout=dropout + 0.1
    )
    stricter = regular_risk(num_parties, neighbours, threshold=threshold + 1, colluders=colluders, dropout=dropout)
    assert all(0 <= one <= 1 for one in base)
    assert all(one <= other * (1 + 1e-9) + 1e-300 for one, other in zip(base, more_dropouts, strict=True))
    assert stricter.exposure <= base.exposure * (1 + 1e-9)
    assert stricter.failure >= base.failure * (1 - 1e-9)


def test_a_thousand_clients_with_twenty_neighbours() -> None:
    """What the measured session assumes, and what it would not withstand."""
    risk = require_small_risk(1000, 20, threshold=15, colluders=50, dropout=0.01)
    assert risk.exposure < MOST_EXPOSURE
    assert risk.failure < MOST_FAILURE
    for changed in ({"colluders": 100}, {"dropout": 0.1}, {"threshold": 11}):
        values = {"threshold": 15, "colluders": 50, "dropout": 0.01} | changed
        with pytest.raises(SettingError, match=r"neighbours: 20 of 1000 clients, .*; allowed are 2\^-40 and 0.01"):
            require_small_risk(1000, 20, **values)


def test_values_out_of_range_are_refused() -> None:
    for changed, named in (
        ({"colluders": 10}, "colluders: 10"),
        ({"colluders": -1}, "colluders"),
        ({"dropout": 1.0}, "dropout"),
    ):
        with pytest.raises(SettingError, match=named):
            regular_risk(10, 4, **({"threshold": 3, "colluders": 1, "dropout": 0.0} | changed))
