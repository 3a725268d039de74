"""An algorithm that declares it: clients average their networks, as one more table with a row of each."""

from collections.abc import Iterator

import pytest
import torch

from fkgsec.data.graph import FederatedGraph
from fkgsec.errors import SpecError
from fkgsec.federation.loop import Federation
from fkgsec.federation.messages import Rows
from fkgsec.federation.recipes import ENTITIES, RECIPES, Recipe, register
from fkgsec.kge.encoders.trainer import NETWORK
from fkgsec.kge.local.task import KgeTask
from fkgsec.kge.options import KgeOptions
from tests.kge.encoders.conftest import tiny


@pytest.fixture
def shared() -> Iterator[str]:
    register(Recipe("fede-net", (*ENTITIES, NETWORK), "this test"))
    yield "fede-net"
    RECIPES.remove("fede-net")


def networks(federation: Federation) -> list[torch.Tensor]:
    """Each client's network as one row."""
    task = federation.task
    assert isinstance(task, KgeTask)
    return [task.rows(NETWORK, place) for place in range(3)]


def test_networks_are_averaged(shared: str, uneven: FederatedGraph) -> None:
    """All begin with the server's; after a round each has the mean of what all trained, batch norm's averages too."""
    federation = Federation(uneven, tiny("noge", algorithm=shared, rounds=1, eval_every=1))
    federation.align()
    first = networks(federation)
    assert all(torch.equal(one, first[0]) for one in first)
    federation.train(1, [0, 1, 2], lambda: None)
    trained = networks(federation)
    assert not torch.allclose(trained[0], trained[1])
    federation.upload(1, [0, 1, 2])
    federation.broadcast(1)
    mean = torch.stack(trained).mean(dim=0)
    for one in networks(federation):
        torch.testing.assert_close(one, mean)
    [message] = [one for one in federation.transcript.messages(1) if isinstance(one, Rows) and one.table == NETWORK][:1]
    assert message.unpack().shape == mean.shape


def test_a_model_without_a_network_has_none_to_average(shared: str, uneven: FederatedGraph) -> None:
    with pytest.raises(SpecError, match="algorithm fede-net averages a network, and the model transe has none"):
        KgeTask(uneven, KgeOptions(algorithm=shared, device="cpu"))
