"""A model with an encoder from outside: rows pass through a linear layer of the client's own, scored by DistMult."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fkgsec import KgeOptions, generate_consortium, run_federation
from fkgsec.errors import SpecError
from fkgsec.kge.encoders.client import ClientEncoder, Rows
from fkgsec.kge.models import ENCODERS, MODELS, ClientTables, EncoderModel


class LinearEncoder(ClientEncoder):
    """Learns that its triples score above all others that have their head and relation."""

    num_steps = 1

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.network = nn.Linear(self.options.dim, self.options.dim, bias=False)
        drawn = self.rng("initial network").normal(size=self.network.weight.shape)
        self.network.weight.data.copy_(torch.from_numpy(drawn))

    def train(self, rows: Rows, step: Callable[[], None], round: int, on_step: Callable[[], None]) -> float:
        head, relation, tail = torch.tensor(self.triples).unbind(1)
        entities = self.network(rows["entities"])
        scores = (entities[head] * rows["relations"][relation]) @ entities.T
        loss = nn.functional.cross_entropy(scores, tail)
        loss.backward()
        step()
        on_step()
        return self.checked(loss.item(), round, 0, 0)

    def encode(self, rows: Rows, state: Mapping[str, Tensor]) -> ClientTables:
        with torch.no_grad():
            return ClientTables(rows["entities"] @ state["weight"].T, rows["relations"])


@pytest.fixture
def linear() -> Iterator[str]:
    ENCODERS.register("linear", EncoderModel(MODELS["distmult"], LinearEncoder, {}))
    yield "linear"
    ENCODERS.remove("linear")


def test_it_trains_and_its_network_stays(linear: str) -> None:
    graph = generate_consortium(clients=2, size=400, seed=0)
    options = KgeOptions(model=linear, dim=16, rounds=30, eval_every=30, learning_rate=0.05, device="cpu")
    result = run_federation(graph, options)
    assert result.rounds[-1].loss < 0.7 * result.rounds[1].loss
    assert {message.table for message in result.transcript.messages(30)} == {"entities"}
    weights = [torch.linalg.lstsq(result.tables[k].entities, result.encoded[k].entities).solution for k in (0, 1)]
    assert not torch.allclose(*weights, atol=1e-3)  # each client's rows went through a layer of its own
    with pytest.raises(SpecError, match="dropout does not apply to the model linear"):
        KgeOptions(model=linear, dropout=0.1)
