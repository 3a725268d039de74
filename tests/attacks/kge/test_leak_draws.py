"""Intervals of ERR and TRR cover which entities leaked: drawn again on trained and planted federations."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from fkgsec.attacks.kge.task import other_seeds
from fkgsec.attacks.options import KgeAttackOptions
from fkgsec.attacks.registry import LEAK_DRAWS
from fkgsec.attacks.view import ALL
from fkgsec.data.consortium import generate_consortium
from fkgsec.estimate import Estimate
from fkgsec.federation.loop import run_federation
from fkgsec.kge.options import KgeOptions
from fkgsec.kge.result import KgeResult
from tests.attacks.pairs import reconstruct

Runs = dict[str, KgeResult]

DRAWS = 20


def figures(result: KgeResult, leak: float, seed: int, leak_draws: int = LEAK_DRAWS) -> dict[str, Estimate]:
    """ERR and TRR of all victims together under collusion."""
    options = KgeAttackOptions(threat=("collusion",), leak=(leak,), unlinked_heads=0, seed=seed)
    rows, _ = reconstruct(result, options, leak_draws=leak_draws)
    row = [row for row in rows if row.victim == ALL][-1]
    return {"err": row.err.estimate, "trr": row.trr.estimate}


@pytest.mark.slow
@pytest.mark.parametrize("leak", [0.3, 0.5])
def test_twenty_draws_of_the_leaked_entities_are_covered(leak: float, trained_runs: Runs) -> None:
    """At least 17 intervals hold the mean over draws."""
    drawn = [figures(trained_runs["fede"], leak, seed) for seed in range(DRAWS)]
    for name in ("err", "trr"):
        mean = np.mean([one[name].value for one in drawn])
        assert sum(one[name].low <= mean <= one[name].high for one in drawn) >= 17


def test_the_draws_change_no_figure_and_widen_its_interval(trained_runs: Runs) -> None:
    plain, drawn = (figures(trained_runs["fede"], 0.5, 3, count) for count in (0, LEAK_DRAWS))
    for name in ("err", "trr"):
        assert drawn[name].value == plain[name].value
        assert drawn[name].low <= plain[name].low <= plain[name].high <= drawn[name].high
        assert drawn[name].method == f"{plain[name].method}, {LEAK_DRAWS + 1} leaks"
    assert drawn["trr"].high - drawn["trr"].low > plain["trr"].high - plain["trr"].low


def test_a_full_leak_is_not_drawn(planted: Callable[..., KgeResult]) -> None:
    assert "leaks" not in figures(planted(), 1.0, 0)["trr"].method


def test_draws_have_seeds_of_their_own() -> None:
    seeds = [seed for own in range(50) for seed in (own, *other_seeds(own, LEAK_DRAWS))]
    assert len(set(seeds)) == len(seeds)
    assert other_seeds(7, 3) == other_seeds(7, LEAK_DRAWS)[:3]


@pytest.mark.slow
def test_wilson_alone_misses_the_mean_on_the_embedded_hospitals() -> None:
    """Patients have many triples each: of twenty intervals that take triples as independent, fewer than 17 hold the mean."""
    graph = generate_consortium(clients=3, size=13_500, seed=0)
    options = KgeOptions(
        rounds=6, dim=32, batch_size=512, num_negatives=32, learning_rate=0.02, eval_every=3, device="cpu"
    )
    result = run_federation(graph, options)
    drawn, plain = ([figures(result, 0.5, seed, count)["trr"] for seed in range(DRAWS)] for count in (LEAK_DRAWS, 0))
    mean = np.mean([one.value for one in drawn])
    covered, alone = (sum(one.low <= mean <= one.high for one in found) for found in (drawn, plain))
    print(f"mean {mean:.4f}: {covered} of 20 with draws, {alone} without")
    assert covered >= 17 > alone
