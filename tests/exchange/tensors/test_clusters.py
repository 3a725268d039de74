"""Clusters by hand: distances of series, cuts, what each cluster adds, and what a checkpoint holds."""

import itertools

import numpy as np
import pytest
import torch

from fkgsec.exchange.parts import Delivered, SharedTable, Upload
from fkgsec.exchange.tensors.clusters import (
    GRADIENT_NORM,
    Clusters,
    ClustersByGradientNorms,
    ClustersByNorms,
    cut,
    dtw_distance,
)
from fkgsec.federation.messages import SERVER, Alignment
from fkgsec.gnn.options import GnnOptions

PARTIES = ("client/a", "client/b", "client/c", "client/d")
WEIGHTS = (1, 3, 2, 2)
EAGER = {"epsilon1": 10.0, "epsilon2": 0.5, "first_cut": 0}
HELD = torch.arange(2)


def server(
    kind: type[Clusters], algorithm: str, settings: dict[str, object], names: list[str], parties=PARTIES
) -> Clusters:
    shared = SharedTable("parameters", parties)
    for party, weight in zip(parties, WEIGHTS, strict=False):
        shared.align(Alignment(0, party, SERVER, "parameters", names, len(names), weight))
    shared.initialise(torch.zeros(len(names), 2))
    made = kind(shared, GnnOptions(algorithm=algorithm, settings=settings))
    made.begin()
    return made


def uploads(*rows: list[list[float]] | None, parties=PARTIES) -> Delivered:
    given = {
        party: Upload(torch.arange(len(own)), torch.tensor(own), weight)
        for party, own, weight in zip(parties, rows, WEIGHTS, strict=False)
        if own is not None
    }
    count = len(next(iter(given.values())).rows)
    return Delivered((count, 2), single=given)


def sent(clusters: Clusters, held: torch.Tensor = HELD) -> list[list[list[float]]]:
    return [clusters.answer(1, party, held).tolist() for party in clusters.shared.parties]


def all_warpings(first: np.ndarray, second: np.ndarray) -> float:
    """The cheapest of all paths, each written out."""

    def costs(one: int, other: int) -> list[float]:
        own = (first[one] - second[other]) ** 2
        if one == other == 0:
            return [own]
        steps = [(one - 1, other), (one, other - 1), (one - 1, other - 1)]
        return [own + rest for a, b in steps if a >= 0 and b >= 0 for rest in costs(a, b)]

    return float(np.sqrt(min(costs(len(first) - 1, len(second) - 1))))


def test_dtw_is_the_cheapest_of_all_paths() -> None:
    rng = np.random.default_rng(0)
    for length in (1, 2, 5):
        one, other = rng.normal(size=(2, length))
        assert dtw_distance(one, other) == pytest.approx(all_warpings(one, other))
    # A series against itself one step later: 4 against 3, and 1 against 0; the others find their like.
    assert dtw_distance(np.array([1.0, 2.0, 3.0, 4.0]), np.array([0.0, 1.0, 2.0, 3.0])) == pytest.approx(2**0.5)


def test_a_cut_is_the_least_of_all() -> None:
    rng = np.random.default_rng(1)
    for count in (3, 4, 6):
        similarity = rng.random((count, count))
        similarity += similarity.T
        side = cut(similarity)

        def weight(chosen: np.ndarray, similarity: np.ndarray = similarity) -> float:
            return float(similarity[np.ix_(chosen, ~chosen)].sum())

        sides = (np.array(one) for one in itertools.product([True, False], repeat=count))
        assert weight(side) == pytest.approx(min(weight(one) for one in sides if 0 < one.sum() < count))


def test_two_clusters_by_hand() -> None:
    """Updates along x of a, b and d, against it of c. cos + 1 is 2, 0 or nearly so, so that c goes.

    a, b, d add (1 (1, 0) + 3 (3, 0) + 2 (2, .2)) / 6 = (14/6, .4/6); c its own.
    """
    settings = {**EAGER, "epsilon2": 3.5}  # the longest update, 4, alone is longer
    clusters = server(Clusters, "gcfl", settings, ["w/0", "w/1"])
    nothing = [0.0, 0.0]
    table = clusters.aggregate(
        1, clusters.shared.rows, uploads([[1, 0], nothing], [[3, 0], nothing], [[-4, 0], nothing], [[2, 0.2], nothing])
    )
    assert clusters.cluster.tolist() == [0, 0, 1, 0]
    assert torch.equal(table, clusters.shared.rows)
    together, alone = [[14 / 6, 0.4 / 6], nothing], [[-4.0, 0.0], nothing]
    for found, expected in zip(sent(clusters), [together, together, alone, together], strict=True):
        assert np.allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize(
    ("settings", "round"),
    [
        ({**EAGER, "epsilon1": 1.0}, 1),  # the mean update, (1, 0), is no shorter
        ({**EAGER, "epsilon2": 6.0}, 1),  # the longest, 3, is shorter
        ({**EAGER, "first_cut": 20}, 20),
    ],
)
def test_one_cluster_while_updates_agree_or_it_is_early(settings: dict[str, object], round: int) -> None:
    """The weighted mean is (1 + 9 - 4 + 4) / 8. The mean of updates that decides on cuts has no weights: (1 + 3 - 2 + 2) / 4."""
    clusters = server(Clusters, "gcfl", settings, ["w/0"])
    clusters.aggregate(round, clusters.shared.rows, uploads([[1, 0]], [[3, 0]], [[-2.0, 0]], [[2.0, 0]]))
    assert np.allclose(sent(clusters, torch.tensor([0])), [[[1.25, 0]]] * 4)
    assert len(clusters.models) == 1


def test_two_are_not_cut() -> None:
    parties = PARTIES[:2]
    clusters = server(Clusters, "gcfl", EAGER, ["w/0"], parties)
    clusters.aggregate(1, clusters.shared.rows, uploads([[4, 0]], [[-4, 0]], parties=parties))
    assert clusters.cluster.tolist() == [0, 0]
    assert sent(clusters, torch.tensor([0])) == [[[-2.0, 0.0]], [[-2.0, 0.0]]]


def test_with_a_part_of_the_clients_the_others_last_updates_count() -> None:
    clusters = server(Clusters, "gcfl", EAGER, ["w/0"])
    clusters.aggregate(1, clusters.shared.rows, uploads([[1, 0]], [[1, 0]], None, None))
    assert clusters.cluster.tolist() == [0] * 4  # c and d were never seen
    assert np.allclose(sent(clusters, torch.tensor([0])), [[[1, 0]]] * 4)
    clusters.aggregate(2, clusters.shared.rows, uploads(None, None, [[-1, 0]], [[-1, 0]]))
    assert clusters.cluster.tolist() == [0, 0, 1, 1]  # updates 1, 1, -2 and -2
    assert np.allclose(sent(clusters, torch.tensor([0])), [[[1, 0]], [[1, 0]], [[-1, 0]], [[-1, 0]]])


def test_series_of_update_norms_by_hand() -> None:
    """Norms 1 5, 1 5, 5 1, 5 1: no distance within pairs, 4 sqrt 2 across. After the cut all series begin anew."""
    clusters = server(ClustersByNorms, "gcfl+dws", {**EAGER, "seq_length": 2}, ["w/0"])
    clusters.aggregate(1, clusters.shared.rows, uploads([[1, 0]], [[0, 1]], [[5, 0]], [[0, 5]]))
    assert clusters.norms[:, 1].tolist() == [1, 1, 5, 5]
    assert clusters.cluster.tolist() == [0] * 4
    x, y = clusters.models[0, 0].tolist()
    assert np.allclose([x, y], [11 / 8, 13 / 8])
    kept = clusters.tensors()
    second = uploads([[x + 5, y]], [[x, y + 5]], [[x + 1, y]], [[x, y + 1]])
    clusters.aggregate(2, clusters.shared.rows, second)
    assert clusters.cluster.tolist() == [0, 0, 1, 1]
    assert clusters.norms.isnan().all()
    assert np.allclose(sent(clusters, torch.tensor([0]))[0], [[x + 5 / 4, y + 15 / 4]])
    assert np.allclose(sent(clusters, torch.tensor([0]))[3], [[x + 1 / 2, y + 1 / 2]])
    again = server(ClustersByNorms, "gcfl+dws", {**EAGER, "seq_length": 2}, ["w/0"])
    again.load(kept)
    again.aggregate(2, again.shared.rows, second)
    assert all(torch.equal(one, clusters.tensors()[name]) or one.isnan().all() for name, one in again.tensors().items())


def test_series_of_gradient_norms_come_in_a_row_that_is_no_parameter() -> None:
    names = ["w/0", f"{GRADIENT_NORM}/0"]
    clusters = server(ClustersByGradientNorms, "gcfl+", {**EAGER, "seq_length": 1}, names)
    clusters.aggregate(
        1, clusters.shared.rows, uploads([[1, 0], [9, 0]], [[1, 0], [3, 0]], [[1, 0], [3, 0]], [[1, 0], [8, 0]])
    )
    assert clusters.cluster.tolist() == [0, 1, 1, 0]
    assert clusters.models[:, 1].abs().max() == 0
    assert float(clusters.updates.flatten(1).norm(dim=1).max()) == 1


def test_a_series_without_variance_is_not_standardised() -> None:
    clusters = server(ClustersByNorms, "gcfl+dws", {**EAGER, "seq_length": 2, "standardize": True}, ["w/0"])
    clusters.norms = torch.tensor([[1.0, 3.0], [2.0, 6.0], [5.0, 5.0], [5.0, 5.0]], dtype=torch.float64)
    similarity = clusters._similarity(torch.arange(4))  # the first two over 1 and 2 are the same
    assert similarity[0, 1] == similarity[2, 3] == similarity.max()
