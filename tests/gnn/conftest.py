"""A small federation of generated graphs, made once."""

import pytest

from fkgsec.graphs.generate import generate_motifs
from fkgsec.graphs.sets import FederatedGraphs
from fkgsec.graphs.split import by_dataset


@pytest.fixture(scope="session")
def motifs() -> FederatedGraphs:
    """Two clients with molecules of other atoms, and one with circles: 60, 50 and 40 graphs."""
    first, second, circles = generate_motifs(0, clients=3, size=180)
    return by_dataset([first, second.subset(range(50)), circles.subset(range(40))], seed=0, name="motifs")
