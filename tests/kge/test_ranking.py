"""Filtered ranks against a Python loop with frequent ties, and against PyKEEN's evaluator on Nations."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from fkgsec.kge.models import MODELS, KgeModel, ModelName, Side
from fkgsec.kge.negatives import KnownTriples
from fkgsec.kge.ranking import filtered_ranks

SIDES: tuple[Side, ...] = ("tail", "head")
NUM_ENTITIES, NUM_RELATIONS = 23, 4
every_model = pytest.mark.parametrize("name", MODELS)


def quarters(rows: Tensor) -> Tensor:
    """Rounded to multiples of 1/4: sums and products of these are exact in float32, and often equal."""
    return (rows * 4).round() / 4


def tied_rows(model: KgeModel, seed: int) -> tuple[Tensor, Tensor]:
    """Entities and relations, with the rows of 9 distinct entities repeated."""
    rng = np.random.default_rng(seed)
    distinct = quarters(model.initial_rows(9, model.entity_width, rng))
    relations = model.initial_rows(NUM_RELATIONS, model.relation_width, rng)
    # RotatE's phases stay generic, so that only equal entities tie: its moduli are not exact.
    return distinct[rng.integers(0, 9, NUM_ENTITIES)], relations if model.name == "rotate" else quarters(relations)


def random_triples(count: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    limits = NUM_ENTITIES, NUM_RELATIONS, NUM_ENTITIES
    return np.stack([rng.integers(0, limit, count) for limit in limits], axis=1)


def index(triples: np.ndarray, sides: tuple[Side, ...] = SIDES) -> list[KnownTriples]:
    return [KnownTriples.build(triples, side, NUM_RELATIONS) for side in sides]


def naive_ranks(
    model: KgeModel, entities: Tensor, relations: Tensor, triples: np.ndarray, known: np.ndarray
) -> np.ndarray:
    """One score at a time, in float64; scores within 1e-4 are a tie, and none may come near that bound."""
    entities, relations = entities.double(), relations.double()
    true = set(map(tuple, known.tolist()))

    def score(head: int, relation: int, tail: int) -> float:
        return float(model.score(entities[head], relations[relation], entities[tail]))

    ranks = []
    for head, relation, tail in triples.tolist():
        own = score(head, relation, tail)
        for rivals in (
            [(head, relation, e) for e in range(NUM_ENTITIES) if e != tail],
            [(e, relation, tail) for e in range(NUM_ENTITIES) if e != head],
        ):
            differences = [score(*rival) - own for rival in rivals if rival not in true]
            assert not any(1e-6 < abs(d) < 1e-3 for d in differences), "choose another seed"
            optimistic = 1 + sum(d > 1e-4 for d in differences)
            pessimistic = 1 + sum(d > -1e-4 for d in differences)
            ranks.append((optimistic + pessimistic) / 2)
    return np.array(ranks).reshape(-1, 2)


class TestAgainstLoop:
    @every_model
    @pytest.mark.parametrize("seed", [0, 1])
    @pytest.mark.parametrize("block_bytes", [1, 4 * NUM_ENTITIES * 7, 2**20])
    def test_known_and_unknown_triples_with_ties(self, name: ModelName, seed: int, block_bytes: int) -> None:
        model = KgeModel(name, dim=3)
        entities, relations = tied_rows(model, seed)
        known = random_triples(250, seed + 100)
        triples = np.concatenate([known[:15], random_triples(15, seed + 200)])
        expected = naive_ranks(model, entities, relations, triples, known)
        assert (expected % 1 == 0.5).any()  # some ties are even in number, so a rank ends in a half
        ranks = filtered_ranks(model, entities, relations, triples, index(known), block_bytes)
        assert ranks.dtype == np.float64
        np.testing.assert_array_equal(ranks, expected)

    def test_columns_follow_known(self) -> None:
        model = KgeModel(dim=3)
        rows, triples = tied_rows(model, seed=6), random_triples(20, 7)
        both = filtered_ranks(model, *rows, triples, index(triples))
        for column, side in enumerate(SIDES):
            alone = filtered_ranks(model, *rows, triples, index(triples, (side,)))
            np.testing.assert_array_equal(alone, both[:, [column]])
        assert (both[:, 0] != both[:, 1]).any()

    def test_no_triples(self) -> None:
        model = KgeModel(dim=3)
        ranks = filtered_ranks(model, *tied_rows(model, 0), random_triples(0, 0), index(random_triples(5, 0)))
        assert ranks.shape == (0, 2)


class TestConstantModel:
    """Equal entities: every rank is the middle one, neither the first nor the last."""

    @every_model
    def test_middle_rank(self, name: ModelName) -> None:
        model = KgeModel(name, dim=100)
        rng = np.random.default_rng(0)
        for size, count in [(5, 1), (5, 20), (7, 3), (13, 20), (101, 5)]:
            entities = model.initial_rows(1, model.entity_width, rng).repeat(size, 1)
            relations = model.initial_rows(NUM_RELATIONS, model.relation_width, rng)
            triples = random_triples(count, 1) % np.array([size, NUM_RELATIONS, size])
            ranks = filtered_ranks(model, entities, relations, triples, index(triples[:0]))
            np.testing.assert_array_equal(ranks, (size + 1) / 2)


@pytest.mark.parametrize(
    ("table", "row"), [(0, 1), (0, 2), (0, 5), (1, 0)], ids=["head", "tail", "competitor", "relation"]
)
@pytest.mark.parametrize("number", [math.nan, -math.inf])
def test_a_row_that_is_not_finite_raises(table: int, row: int, number: float) -> None:
    model = KgeModel(dim=3)
    tables = tied_rows(model, seed=0)
    tables[table][row, 0] = number
    with pytest.raises(FloatingPointError, match="not finite"):
        filtered_ranks(model, *tables, np.array([[1, 0, 2]]), index(random_triples(3, 0)))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
class TestPykeen:
    """TransE with the L1 norm on PyKEEN's own copy of Nations, with the same embeddings."""

    def test_same_scores_ranks_and_mrr(self) -> None:
        """With many ties."""
        pytest.importorskip("pykeen")
        from pykeen.datasets import Nations
        from pykeen.evaluation import RankBasedEvaluator
        from pykeen.models import TransE

        nations = Nations()
        splits = [nations.factory_dict[split].mapped_triples for split in ("training", "validation", "testing")]
        test = splits[2]
        model = KgeModel("transe", dim=4)
        rng = np.random.default_rng(0)
        entities = model.initial_rows(nations.num_entities, model.entity_width, rng)
        relations = model.initial_rows(nations.num_relations, model.relation_width, rng)
        entities, relations = entities.round(), relations.round()

        theirs = TransE(triples_factory=nations.training, embedding_dim=4, scoring_fct_norm=1, random_seed=0)
        with torch.no_grad():
            for parameter, rows in zip(theirs.parameters(), (entities, relations), strict=True):
                parameter.copy_(rows)
            score = model.score(entities[test[:, 0]], relations[test[:, 1]], entities[test[:, 2]])
            torch.testing.assert_close(score - model.gamma, theirs.score_hrt(test).squeeze(1), rtol=1e-5, atol=1e-5)
        evaluator = RankBasedEvaluator(filtered=True, clear_on_finalize=False)
        result = evaluator.evaluate(theirs, test, additional_filter_triples=splits[:2], batch_size=64, use_tqdm=False)

        every = torch.cat(splits).numpy()
        known = [KnownTriples.build(every, side, nations.num_relations) for side in SIDES]
        ranks = filtered_ranks(model, entities, relations, test.numpy(), known)
        for column, side in enumerate(SIDES):
            expected = np.concatenate(evaluator.ranks[side, "realistic"])
            np.testing.assert_allclose(ranks[:, column], expected, rtol=0, atol=1e-9)
        assert (ranks % 1 == 0.5).any()
        mrr = result.get_metric("both.realistic.inverse_harmonic_mean_rank")
        assert (1 / ranks).mean() == pytest.approx(mrr, abs=1e-6)  # PyKEEN's mean is in float32
