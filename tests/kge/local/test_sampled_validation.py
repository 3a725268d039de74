"""Validation on drawn triples and among drawn candidates: what it estimates, by all draws there are, and where it is said."""

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from fkgsec.data.graph import FederatedGraph
from fkgsec.errors import SpecError
from fkgsec.estimate import critical_value
from fkgsec.federation.loop import run_federation
from fkgsec.federation.options import replace
from fkgsec.kge.models import KgeModel
from fkgsec.kge.options import KgeOptions
from fkgsec.kge.ranking import filtered_ranks, sampled_mrr
from fkgsec.kge.result import KgeResult
from tests.kge.test_ranking import index, tied_rows

SIX = 6


def test_ranks_are_unbiased_over_the_draw_of_candidates_and_reciprocals_are_biased_upwards() -> None:
    """By all sets of 3 of 6 entities, with ties, known triples, and true entities in the set and out of it."""
    model = KgeModel("transe", 4, 10.0, 2.0)
    entities, relations = (rows[:SIX] for rows in tied_rows(model, 5))
    rng = np.random.default_rng(0)
    triples = np.stack([rng.integers(0, limit, 20) for limit in (SIX, 4, SIX)], axis=1)
    known = index(triples[:12])
    full = filtered_ranks(model, entities, relations, triples, known)
    drawn = [
        filtered_ranks(model, entities, relations, triples, known, drawn=np.array(chosen))
        for chosen in combinations(range(SIX), 3)
    ]
    assert np.mean(drawn, axis=0) == pytest.approx(full, abs=1e-12)
    assert np.var(drawn, axis=0).max() > 0
    reciprocals = np.mean([1 / ranks for ranks in drawn], axis=0)
    assert (reciprocals >= 1 / full - 1e-12).all()
    assert reciprocals.mean() > (1 / full).mean()


def test_the_estimate_is_unbiased_over_the_draw_of_triples_and_its_interval_is_the_one_of_a_textbook() -> None:
    rng = np.random.default_rng(1)
    whole = [rng.integers(1, 9, size=(count, 2)).astype(float) for count in (5, 4)]
    sizes = [len(ranks) for ranks in whole]
    full = sum((1 / ranks).sum() for ranks in whole) / sum(ranks.size for ranks in whole)
    estimates = [
        sampled_mrr([whole[0][list(one)], whole[1][list(other)]], sizes, None)
        for one in combinations(range(5), 2)
        for other in combinations(range(4), 3)
    ]
    assert np.mean([one.value for one in estimates if one]) == pytest.approx(full, abs=1e-12)
    # Cochran 1977, Eq. 5.12: the variance of a stratified mean, here of the population's own variances, over all draws.
    items = [(1 / ranks).mean(axis=1) for ranks in whole]
    shares = [(5 / 9) ** 2 * (1 - 2 / 5) / 2, (4 / 9) ** 2 * (1 - 3 / 4) / 3]
    variance = sum(share * own.var(ddof=1) for share, own in zip(shares, items, strict=True))
    assert np.var([one.value for one in estimates if one]) == pytest.approx(variance)
    one = sampled_mrr([whole[0][:2], whole[1][:3]], sizes, None)
    drawn = [own[:count] for own, count in zip(items, (2, 3), strict=True)]
    half = critical_value() * sum(share * own.var(ddof=1) for share, own in zip(shares, drawn, strict=True)) ** 0.5
    assert one
    assert one.value - one.low == pytest.approx(min(half, one.value))
    assert one.method == "unbiased over the draw of 5 of 9 triples"
    exact = sampled_mrr(whole, sizes, None)
    assert exact
    assert exact.low == exact.value == exact.high == pytest.approx(full)
    assert sampled_mrr([np.empty((0, 2))], [0], None) is None


@pytest.mark.parametrize("algorithm", ["fede", "fedlu"])
def test_a_run_validates_on_the_sample_and_tests_in_full(
    algorithm: str, consortium: FederatedGraph, options: KgeOptions, tmp_path: Path
) -> None:
    chosen = replace(options, algorithm=algorithm, eval_sample=9, eval_candidates=20)
    result = run_federation(consortium, chosen, tmp_path)
    assert isinstance(result, KgeResult)
    found = result.validation
    assert found
    assert found.value == pytest.approx(result.valid)
    assert "biased upwards, ranks scaled from 20 drawn candidates" in found.method
    assert found.low < found.high
    assert any("validation mrr" in line and "27 of" in line for line in result.summary().splitlines())
    assert [len(ranks) for ranks in result.test_ranks] == [len(client.test) for client in consortium.clients]
    result.save(tmp_path / "run")
    assert KgeResult.load(tmp_path / "run", consortium, chosen).validation == found
    assert run_federation(consortium, chosen, tmp_path).rounds == result.rounds


def test_a_sample_of_everything_is_full_validation(consortium: FederatedGraph, options: KgeOptions) -> None:
    full = run_federation(consortium, options)
    sampled = run_federation(consortium, replace(options, eval_sample=10**6, eval_candidates=10**6))
    assert isinstance(full, KgeResult)
    assert isinstance(sampled, KgeResult)
    assert full.validation is None
    assert sampled.validation
    assert [one.valid for one in sampled.rounds[1:]] == pytest.approx([one.valid for one in full.rounds[1:]])


@pytest.mark.parametrize("name", ["eval_sample", "eval_candidates"])
def test_a_sample_of_one_is_refused(name: str) -> None:
    with pytest.raises(SpecError, match=f"{name} must be at least 2; got 1"):
        KgeOptions(**{name: 1})
