"""Finished runs of small graph federations."""

import pytest

from fkgsec.defenses import make_transport
from fkgsec.federation.loop import run_federation
from fkgsec.federation.options import replace
from fkgsec.gnn.options import GnnOptions
from fkgsec.gnn.result import GnnResult
from fkgsec.graphs.generate import generate_motifs
from fkgsec.graphs.sets import FederatedGraphs
from fkgsec.graphs.split import by_chance, by_dataset

SMALL = GnnOptions(width=8, rounds=3, batch_size=16, device="cpu", seed=4321)


@pytest.fixture(scope="session")
def small() -> GnnOptions:
    return SMALL


@pytest.fixture(scope="session")
def two_sets() -> FederatedGraphs:
    """Two data sets of molecules, and one of circles, 60 graphs each: a client for each."""
    return by_dataset(generate_motifs(0, clients=3, size=180), seed=0, name="motifs")


@pytest.fixture(scope="session")
def one_set() -> FederatedGraphs:
    """One data set of molecules over three clients."""
    return by_chance(generate_motifs(1, clients=1, size=180)[0], clients=3, seed=0)


@pytest.fixture(scope="session")
def graph_runs(two_sets: FederatedGraphs) -> dict[str, GnnResult]:
    """By algorithm and defense a run of three rounds."""
    return {
        f"{algorithm}/{defense}".rstrip("/"): run_federation(
            two_sets, replace(SMALL, algorithm=algorithm, defense=defense), make_transport=make_transport
        )
        for algorithm, defense in (
            ("fedavg", ""),
            ("fedavg", "secagg"),
            ("fedavg", "psu,secagg"),
            ("cefgl", ""),
            ("local-gc", ""),
        )
    }
