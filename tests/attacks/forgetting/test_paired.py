"""Paired figures: on planted values, where it is known what is remembered."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import ks_2samp

from fkgsec.attacks.forgetting.paired import (
    Runs,
    distance_to_runs,
    memory_of,
    paired_difference,
    planted,
    remembered_share,
)

NUM_FORGOTTEN, NUM_CONTROLS, GAIN = 500, 200, 4.0
FORGOTTEN = np.arange(NUM_FORGOTTEN + NUM_CONTROLS) < NUM_FORGOTTEN


def make_runs(rng: np.random.Generator, shift: float = 0.5) -> tuple[np.ndarray, Runs]:
    """Difficulties, and four re-trainings and four shadows, each shifted as a whole; a triple gains where it was trained on."""
    difficulty = rng.normal(size=len(FORGOTTEN)) * 4
    trained_on = np.zeros((8, len(FORGOTTEN)), dtype=bool)
    for pair in range(2):
        half = rng.permutation(len(FORGOTTEN)) % 2 == 0
        trained_on[4 + 2 * pair], trained_on[5 + 2 * pair] = half, ~half
    values = difficulty + rng.normal(size=trained_on.shape) + shift * rng.normal(size=(8, 1)) + GAIN * trained_on
    return difficulty, Runs(values, trained_on)


def audited(rng: np.random.Generator, difficulty: np.ndarray, share: float, shift: float = 0.5) -> np.ndarray:
    """A run that remembers the first of the forgotten triples."""
    remembered = np.arange(len(difficulty)) < round(share * NUM_FORGOTTEN)
    return difficulty + rng.normal(size=len(difficulty)) + shift * rng.normal() + GAIN * remembered


def test_a_fifth_is_found_where_group_against_group_sees_nothing() -> None:
    rng = np.random.default_rng(0)
    difficulty, runs = make_runs(rng)
    values = audited(rng, difficulty, 0.2)
    assert paired_difference(values, runs, FORGOTTEN, against_controls=True).p_value < 0.02
    forgotten, controls = values[FORGOTTEN], values[~FORGOTTEN]
    auc = (forgotten[:, None] > controls[None]).mean()
    assert abs(auc - 0.5) < 0.1


@pytest.mark.parametrize("against_controls", [True, False])
def test_re_trainings_are_told_apart_as_rarely_as_promised(against_controls: bool) -> None:
    """200 worlds, each with one more re-training; a training's own shift is in the error."""
    rng = np.random.default_rng(1)
    found = 0
    for _ in range(200):
        difficulty, runs = make_runs(rng)
        values = audited(rng, difficulty, 0.0)
        found += paired_difference(values, runs, FORGOTTEN, against_controls=against_controls).p_value < 0.05
    assert found <= 18  # 10 expected; 18 is the 99 % point of 200 at 5 %


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 1.0])
def test_the_share_is_measured_and_its_interval_covers(share: float) -> None:
    rng = np.random.default_rng(2)
    covered, values = 0, []
    for _ in range(60):
        difficulty, runs = make_runs(rng)
        memory = memory_of(runs, FORGOTTEN)
        assert memory is not None
        difference = paired_difference(audited(rng, difficulty, share), runs, FORGOTTEN, against_controls=True)
        estimate = remembered_share(difference, memory)
        covered += estimate.low <= share <= estimate.high
        values.append(estimate.value)
    assert covered >= 53
    assert np.mean(values) == pytest.approx(share, abs=0.03)


def test_a_mixture_is_as_a_run_that_remembers_that_share() -> None:
    rng = np.random.default_rng(3)
    _, runs = make_runs(rng, shift=0.0)
    memory = memory_of(runs, FORGOTTEN)
    assert memory is not None
    for share in (0.1, 0.5, 1.0):
        values = planted(runs, 0, FORGOTTEN, share, rng)
        assert (values != runs.values[0]).sum() == round(share * NUM_FORGOTTEN)
        difference = paired_difference(values, runs.without(0), FORGOTTEN, against_controls=True)
        assert remembered_share(difference, memory).value == pytest.approx(share, abs=0.1)


def test_no_memory_gives_no_share() -> None:
    rng = np.random.default_rng(4)
    _, runs = make_runs(rng)
    idle = Runs(runs.values - GAIN * runs.trained_on, runs.trained_on)
    assert memory_of(idle, FORGOTTEN) is None
    assert memory_of(Runs(runs.values[:4], runs.trained_on[:4]), FORGOTTEN) is None


def test_distance_is_that_beyond_what_re_trainings_have_to_each_other() -> None:
    rng = np.random.default_rng(6)
    difficulty = rng.normal(size=400)
    references = difficulty + rng.normal(size=(5, 400))
    same = distance_to_runs(difficulty + rng.normal(size=400), references)
    moved = distance_to_runs(difficulty + rng.normal(size=400) + 1.5, references)
    assert same.p_value > 0.01
    assert moved.p_value < 5e-3
    assert moved.value > 0.2


def test_the_error_of_a_distance_is_that_of_one_more_re_training() -> None:
    """Scipy's statistic for each pair, in logs; a run left out of the others' mean deviates less than a new one does."""
    references, scores = np.random.default_rng(8).normal(size=(4, 30)), np.arange(30.0)
    distances = np.array(
        [np.mean([ks_2samp(references[k], references[j]).statistic for j in range(4) if j != k]) for k in range(4)]
    )
    paired = distance_to_runs(scores, references)
    logs = np.log(distances + 1 / 30)
    assert paired.error == pytest.approx(logs.std(ddof=1) * (1 + 1 / 4) ** 0.5 * 3 / 2)
    mean_distance = np.mean([ks_2samp(scores, one).statistic for one in references])
    assert (paired.value, paired.degrees) == (pytest.approx(np.log(mean_distance + 1 / 30) - logs.mean()), 3)
    same = distance_to_runs(scores, np.stack([scores] * 4))
    assert same.error > 0


@pytest.mark.parametrize(("shift", "count"), [(0.0, 8), (0.6, 4), pytest.param(0.3, 16, marks=pytest.mark.slow)])
def test_one_more_re_training_is_seldom_far_from_the_others(shift: float, count: int) -> None:
    """Where trainings shift all scores, too. Before, 3 to 4 % of exchangeable runs had a p below .005, two-sided."""
    rng = np.random.default_rng(9)
    p_values = []
    for _ in range(240):
        difficulty = rng.normal(size=120)
        shifts = shift * rng.normal(size=(count + 1, 1))
        runs = difficulty + 0.7 * rng.normal(size=(count + 1, 120)) + shifts
        p_values.append(distance_to_runs(runs[0], runs[1:]).upper_p_value)
    assert np.mean(np.array(p_values) < 0.025) <= 0.065
    assert np.mean(np.array(p_values) < 0.0025) <= 0.0125


def test_too_few_runs_or_triples_are_named() -> None:
    rng = np.random.default_rng(7)
    _, runs = make_runs(rng)
    with pytest.raises(ValueError, match="each triple needs two runs that never saw it, of three or more; got 2 runs"):
        paired_difference(runs.values[0], Runs(runs.values[:2], runs.trained_on[:2]), FORGOTTEN, against_controls=True)
    with pytest.raises(ValueError, match=r"it takes two forgotten triples \(and two controls\); got \[700, 0\]"):
        paired_difference(runs.values[0], runs, np.ones(700, dtype=bool), against_controls=True)


def test_more_never_seen_triples_take_off_what_shifts_all_alike() -> None:
    """Where trainings shift all triples, controls that match none of the forgotten ones lower the error all the same."""
    rng = np.random.default_rng(9)
    _, runs = make_runs(rng, shift=2.0)
    few = FORGOTTEN | (np.arange(len(FORGOTTEN)) < NUM_FORGOTTEN + 20)
    errors = {
        name: paired_difference(
            runs.values[0, rows],
            Runs(runs.values[1:, rows], runs.trained_on[1:, rows]),
            FORGOTTEN[rows],
            against_controls=how,
        ).error
        for name, rows, how in (("none", few, False), ("few", few, True), ("all", np.ones_like(few), True))
    }
    assert errors["all"] < errors["few"] < errors["none"]
