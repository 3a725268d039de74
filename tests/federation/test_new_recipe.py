"""A new algorithm is a row: one that no paper has, made of parts that are there."""

from __future__ import annotations

import pytest

from fkgsec.algorithms.fedlu import FedLURule
from fkgsec.algorithms.settings import FedLUSettings
from fkgsec.data.graph import FederatedGraph
from fkgsec.errors import SpecError
from fkgsec.federation.loop import run_federation
from fkgsec.federation.recipes import ENTITIES, RECIPES, Recipe, register
from fkgsec.kge.options import KgeOptions


class MadeUp(FedLUSettings, frozen=True):
    mu: float = 0.5
    sparsity: float = 0.5
    sparse_rounds: int = 2


def test_fedlu_over_fedr_with_top_k(uneven: FederatedGraph, request: pytest.FixtureRequest) -> None:
    """Relations are shared, the largest changes of them cross, and each client keeps a model that learns from the shared one."""
    made_up = Recipe(
        "made-up",
        ("relations",),
        "this test",
        codec="top-k",
        aggregation="sum of others",
        private="whole",
        settings=MadeUp,
        local=FedLURule,
    )
    register(made_up)
    request.addfinalizer(lambda: RECIPES.remove(made_up.name))
    options = KgeOptions(
        algorithm="made-up",
        dim=8,
        batch_size=32,
        num_negatives=8,
        rounds=4,
        eval_every=1,
        device="cpu",
    )
    result = run_federation(uneven, options)
    assert len(result.private) == len(result.test_ranks) == len(result.shared_test_ranks) == len(uneven.clients)
    kinds = {(entry.round, entry.kind) for entry in result.transcript.entries if entry.direction == "up"}
    assert kinds == {(0, "alignment"), (1, "sparse-rows"), (2, "sparse-rows"), (3, "rows"), (4, "sparse-rows")}
    assert {entry.table for entry in result.transcript.entries} == {"relations"}


def test_a_recipe_of_unknown_words_is_refused() -> None:
    with pytest.raises(SpecError, match="recipe 'mine': evaluated must be one of global, local; got 'private'"):
        Recipe("mine", ENTITIES, "this test", evaluated="private")  # type: ignore[arg-type]
