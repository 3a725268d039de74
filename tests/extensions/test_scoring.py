"""A scoring function from outside: TransE with the L2 norm, in torch operations, trained and ranked like the shipped ones."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from fkgsec import KgeModel, KgeOptions, generate_consortium, run_federation
from fkgsec.kge.models import MODELS, ScoringFunction, Side


def l2(queries: Tensor, candidates: Tensor) -> Tensor:
    return -(queries - candidates).square().sum(-1).clamp_min(1e-12).sqrt()


def translate(anchors: Tensor, relation: Tensor, side: Side) -> Tensor:
    return anchors + relation if side == "tail" else anchors - relation


@pytest.fixture
def transe_l2() -> Iterator[str]:
    MODELS.register("transe-l2", ScoringFunction(l2, translate, lambda heads, tails: tails - heads))
    yield "transe-l2"
    MODELS.remove("transe-l2")


def test_it_trains_and_is_evaluated(transe_l2: str) -> None:
    small = {"rounds": 8, "eval_every": 8, "batch_size": 64, "num_negatives": 8, "learning_rate": 0.02, "device": "cpu"}
    graph = generate_consortium(clients=2, size=400, seed=0)
    result = run_federation(graph, KgeOptions(model=transe_l2, dim=16, gamma=4, **small))
    assert result.rounds[-1].loss < 0.7 * result.rounds[1].loss
    client, own, model = graph.clients[0], result.tables[0], KgeModel(transe_l2, 16, 4)
    head, relation, tail = client.test[0].tolist()
    query = own.entities[head] + own.relations[relation]
    scores = model.score_all(query[None], own.entities)[0]
    torch.testing.assert_close(scores, 4 - (query - own.entities).norm(dim=1), atol=1e-4, rtol=0)
    known = {tuple(triple) for triple in client.triples.tolist()}
    better = [e for e in range(client.num_entities) if scores[e] > scores[tail] and (head, relation, e) not in known]
    assert result.test_ranks[0][0, 0] == pytest.approx(1 + len(better), abs=0.5)
