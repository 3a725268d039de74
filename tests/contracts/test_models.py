"""Laws of every registered scoring function: one score whichever side asks, gradients, the best relation, rows that are none."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fkgsec.kge.models import MODELS, KgeModel

every_model = pytest.mark.parametrize("name", MODELS)


def triples_of(model: KgeModel, count: int, seed: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    """Rows of heads, relations and tails in float64."""
    rng = torch.Generator().manual_seed(seed)
    widths = model.entity_width, model.relation_width, model.entity_width
    head, relation, tail = (torch.randn(count, width, generator=rng, dtype=torch.float64) for width in widths)
    return head, relation, tail


@every_model
@pytest.mark.parametrize("dim", [2, 8])
def test_every_way_to_ask_gives_the_score_of_the_triple(name: str, dim: int) -> None:
    model = KgeModel(name, dim)
    heads, relations, tails = triples_of(model, 5)
    score = model.score(heads, relations, tails)
    torch.testing.assert_close(model.pair_scores(model.query(heads, relations, "tail"), tails), score)
    torch.testing.assert_close(model.pair_scores(model.query(tails, relations, "head"), heads), score)
    torch.testing.assert_close(model.score_all(model.query(heads, relations, "tail"), tails).diagonal(), score)
    torch.testing.assert_close(model.score_all(model.query(tails, relations, "head"), heads).diagonal(), score)
    grid = model.score(heads[:, None], relations[:, None], tails)
    assert grid.shape == (5, 5)
    torch.testing.assert_close(grid.diagonal(), score)
    by_relation = torch.stack([model.score(heads, row.expand_as(relations), tails) for row in relations], dim=1)
    torch.testing.assert_close(model.score_relations(heads, tails, relations), by_relation, atol=1e-5, rtol=1e-5)
    assert len({round(value, 9) for value in score.tolist()}) == 5


@every_model
def test_gradients_reach_all_three_rows(name: str) -> None:
    rows = [row.requires_grad_() for row in triples_of(KgeModel(name, 4), 2, seed=5)]
    assert torch.autograd.gradcheck(KgeModel(name, 4).score, rows)


@every_model
def test_no_number_in_any_row_is_no_score_and_no_triple_is_none(name: str) -> None:
    model = KgeModel(name, 4)
    for place in range(3):
        rows = triples_of(model, 3)
        rows[place][1, 0] = float("nan")
        assert model.score(*rows).isnan().tolist() == [False, True, False]
    assert model.score(*(row[:0] for row in triples_of(model, 3))).shape == (0,)
