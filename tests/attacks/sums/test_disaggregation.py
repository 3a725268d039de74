"""Sums of many rounds with different clients: planted changes, wrong clients, a federation in which few take part, and all."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import pytest

from fkgsec import KgeOptions, generate_consortium
from fkgsec.attacks import Figure, KgeAttackOptions, run_attacks
from fkgsec.attacks.sums.disaggregation import disaggregate
from fkgsec.defenses import make_transport
from fkgsec.federation.loop import run_federation
from fkgsec.federation.messages import Opened
from fkgsec.kge.result import KgeResult

trained = functools.partial(run_federation, make_transport=make_transport)
PARTIES = [f"client/{letter}" for letter in "abcde"]


def figures(result: KgeResult, train: Callable = trained) -> dict[tuple[str, str], Figure]:
    found = run_attacks(result, KgeAttackOptions(attack=("disaggregation",)), train=train).figures
    return {(one.victim, one.metric): one for one in found}


def planted(rng: np.random.Generator, num_rows: int = 60) -> tuple[list[Opened], np.ndarray]:
    """Sums of rounds in which three of five clients change their rows as always, and these changes `[C, N, W]`."""
    changes = rng.normal(0, 1, (5, num_rows, 8))
    changes[rng.random((5, num_rows)) < 0.4] = 0.0
    held = changes.any(axis=2)
    sent, sums = np.zeros((num_rows, 8)), []
    for number in range(1, 25):
        members = np.sort(rng.permutation(5)[:3])
        holders = held[members].sum(axis=0)
        total = holders[:, None] * sent + changes[members].sum(axis=0)
        content = total.astype("<f8").tobytes(), holders.astype("<i8").tobytes()
        sums.append(Opened(number, "entities", [PARTIES[place] for place in members], *content, 0.0))
        sent = np.where(holders[:, None] > 0, total / np.maximum(holders, 1)[:, None], sent)
    return sums, changes


@pytest.mark.planted(
    "disaggregation", "24 sums of three of five clients with constant changes: correlation above .9", {"cosine": 60}
)
def test_planted_changes_are_found() -> None:
    sums, changes = planted(np.random.default_rng(0))
    np.testing.assert_allclose(disaggregate(sums, PARTIES, ridge=0.0, half_life=np.inf), changes, atol=1e-9)
    in_last = [party in sums[-1].survivors for party in PARTIES]
    by_default = disaggregate(sums, PARTIES)
    np.testing.assert_allclose(by_default[in_last].sum(axis=0), changes[in_last].sum(axis=0), atol=1e-9)
    assert np.corrcoef(by_default[in_last].ravel(), changes[in_last].ravel())[0, 1] > 0.9


def test_with_others_than_took_part_it_is_chance() -> None:
    rng = np.random.default_rng(1)
    sums, changes = planted(rng)
    others = [Opened(*vars_of(one, [PARTIES[place] for place in rng.permutation(5)[:3]])) for one in sums]
    found = disaggregate(others, PARTIES, ridge=0.0, half_life=np.inf)
    held = changes.any(axis=2)
    norms = np.linalg.norm(found[held], axis=1) * np.linalg.norm(changes[held], axis=1)
    cosines = (found[held] * changes[held]).sum(axis=1) / np.where(norms > 0, norms, 1)
    right = disaggregate(sums, PARTIES, ridge=0.0, half_life=np.inf)[held]
    assert abs(cosines.mean()) < 0.35 < 0.99 < (right * changes[held]).sum() / (changes[held] ** 2).sum()


def vars_of(one: Opened, survivors: list[str]) -> tuple[object, ...]:
    return one.round, one.table, survivors, one.total, one.holders, one.error


@functools.cache
def federation(participation: float, defense: str) -> KgeResult:
    graph = generate_consortium(clients=5, size=500, seed=5)
    options = KgeOptions(
        defense=defense, participation=participation, dim=8, rounds=10, eval_every=10, patience=0, batch_size=64,
        num_negatives=8, learning_rate=0.02, device="cpu", protocol_seed=3,
    )  # fmt: skip
    return trained(graph, options)


def test_it_knows_more_than_one_sum_tells() -> None:
    found = figures(federation(0.6, "secagg"))
    attacked = [one for (_, metric), one in found.items() if metric == "cosine" and not one.reason]
    assert len(attacked) >= 2
    assert np.mean([one.estimate.value - one.exposed.value for one in attacked]) > 0.05
    assert {one.by for one in attacked} == {"rounds"}
    assert {one.baseline.value for one in attacked} == {0.0}


@pytest.mark.null("disaggregation", "changes of other rows: cosine within .1 of 0")
def test_shuffled_truth_is_chance(shuffled_changes: None) -> None:
    """Changes of other rows than those that it estimates have nothing to do with these."""
    found = figures(federation(0.6, "secagg"))
    attacked = [one for (_, metric), one in found.items() if metric == "cosine" and not one.reason]
    assert attacked
    assert all(abs(one.estimate.value) < 0.1 for one in attacked)


def test_noise_stops_it() -> None:
    noisy = figures(federation(0.6, "secagg,dp:unit=row,clip=0.1,epsilon=8"))
    attacked = [one for (_, metric), one in noisy.items() if metric == "cosine" and not one.reason]
    assert attacked
    assert all(one.estimate.value < 0.2 for one in attacked)


@pytest.mark.parametrize(
    ("participation", "defense", "train", "reason"),
    [
        (1.0, "secagg", trained, "the same clients are in every sum"),
        (
            0.6,
            "secagg",
            run_federation,
            "the run was defended: it can be trained again with that defense's transport alone",
        ),
    ],
)
def test_where_it_cannot_run_it_says_so(participation: float, defense: str, train: Callable, reason: str) -> None:
    assert {one.reason for one in figures(federation(participation, defense), train).values()} == {reason}


def test_in_clear_there_is_no_sum(federate) -> None:
    reasons = {one.reason for one in figures(federate()).values()}
    assert reasons == {"uploads are transmitted one by one, or not at all: there is no sum to take apart"}
