"""What many rounds tell that one does not: planted courses of training, shuffled rows, and what defenses change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from fkgsec import FederatedGraph, KgeModel, KgeOptions
from fkgsec.attacks import Figure, KgeAttackOptions, run_attacks
from fkgsec.attacks.figure import headline
from fkgsec.attacks.kge.view import VictimView
from fkgsec.attacks.membership.figures import placements
from fkgsec.attacks.uploads.edges import Ranked
from fkgsec.attacks.uploads.pairs import HeldRows, candidate_pairs, closeness, linked_pairs
from fkgsec.attacks.uploads.rounds import pairs_over_rounds, triples_over_rounds
from fkgsec.defenses import make_transport
from fkgsec.federation.loop import run_federation
from fkgsec.kge.models import ClientTables
from fkgsec.kge.result import KgeResult

COUNT, ROUNDS, DIM = 60, 12, 16
MODEL = KgeModel("transe", DIM)
NOISE = "dp:unit=row,clip=0.1,epsilon=8"
TRIPLES = np.array([(2 * place, 0, 2 * place + 1) for place in range(COUNT // 2)])


def course(seed: int = 0, *, shuffled: bool = False) -> list[VictimView]:
    """Rows in each round: anew at random, those of a linked pair a little nearer each other than others, and moved towards each
    other a little more often than not. `shuffled` permutes them, in all rounds alike."""
    rng = torch.Generator().manual_seed(seed)
    order = torch.randperm(COUNT, generator=rng) if shuffled else torch.arange(COUNT)
    names = np.array([f"e{number}" for number in range(COUNT)], dtype=object)
    told = np.array([(names[head], "r", names[tail]) for head, _, tail in TRIPLES[:10]], dtype=object)
    views = []
    for _ in range(ROUNDS):
        rows = torch.randn(COUNT, DIM, generator=rng)
        mid = (rows[::2] + rows[1::2]) / 2
        rows += 0.2 * (mid.repeat_interleave(2, dim=0) - rows)
        towards = rows.reshape(-1, 2, DIM).flip(1).reshape(COUNT, DIM) - rows
        before = rows - 0.15 * towards - 0.7 * torch.randn(COUNT, DIM, generator=rng)
        received = {"entities": before[order]}
        views.append(VictimView("victim", rows[order], None, names, "uploaded", received=received, auxiliary=told))
    return views


def auc(scores: np.ndarray, linked: np.ndarray) -> float:
    return float(placements(scores[linked], scores[~linked]).members.mean())


def pair_aucs(views: list[VictimView]) -> dict[str, float]:
    pairs = candidate_pairs(COUNT, np.random.default_rng(0))
    linked = linked_pairs(TRIPLES, pairs, np.arange(COUNT))
    found = pairs_over_rounds(MODEL, views, Ranked(HeldRows(COUNT, None), pairs, {}, None))
    return {way: auc(scores, linked) for way, scores in found.items()}


@pytest.mark.planted("edges-rounds", "30 pairs that approach each other over rounds: AUC above .9", {"auc": 1770})
def test_pairs_of_a_planted_course_stand_out_more_than_in_any_round() -> None:
    views = course()
    found = pair_aucs(views)
    alone = [pair_aucs([view]) for view in views]
    for way in ("distances", "movements"):
        assert found[way] > max(one[way] for one in alone) + 0.05
        assert found[way] > 0.9
    assert found["distances and movements"] > max(found["distances"], found["movements"])


def test_distances_are_the_sum_over_rounds_of_each_pairs_nearness_in_its_rows_deviations() -> None:
    views, pairs = course()[:3], candidate_pairs(COUNT, np.random.default_rng(0))
    found = pairs_over_rounds(MODEL, views, Ranked(HeldRows(COUNT, None), pairs, {}, None))["distances"]
    expected = np.zeros(len(found))
    for view in views:
        near = closeness(MODEL, view.entities, view.entities)
        np.fill_diagonal(near, np.nan)
        mean, deviation = np.nanmean(near, axis=1), np.nanstd(near, axis=1)
        for end in (pairs.first, pairs.second):
            expected += (near[pairs.first, pairs.second] - mean[end]) / deviation[end]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.null("edges-rounds", "shuffled rows, 6 draws: mean AUC .42 to .58")
def test_pairs_of_shuffled_rows_are_chance() -> None:
    found = [pair_aucs(course(seed, shuffled=True)) for seed in range(6)]
    for way in found[0]:
        assert 0.42 < np.mean([one[way] for one in found]) < 0.58


@pytest.mark.parametrize("attack", ["edges-rounds", pytest.param("server-aux-rounds", marks=pytest.mark.slow)])
def test_of_other_triples_than_those_that_were_trained_on_it_knows_nothing(federate, relabelled, attack: str) -> None:
    """By whatever way, of one upload or of many, in the figures; told triples say by themselves which entities have many."""
    made = run_federation(federate().graph, federate().options, rounds_needed=range(9))
    found: dict[str, list[float]] = {}
    for seed in range(3):
        result = relabelled(federate(), seed)
        asked = KgeAttackOptions(attack=(attack,), auxiliary=0.2)
        for one in run_attacks(result, asked, train=lambda graph, *_, **__: replace(made, graph=graph)).figures:
            if one.metric in ("auc", "auc_pairs") and one.variant not in ("", "strongest") and not one.reason:
                found.setdefault(f"{one.metric}, {one.variant}", []).append(one.estimate.value)
    metric = "auc" if attack == "edges-rounds" else "auc_pairs"
    ways = {"edges-rounds": 6, "server-aux-rounds": 6}[attack]
    values = {way: np.mean(some) for way, some in found.items() if way.startswith(f"{metric}, ")}
    assert len(values) == ways
    most = {"edges-rounds": 0.58, "server-aux-rounds": 0.62}[attack]
    assert all(0.42 < value < most for value in values.values()), values


def triple_aucs(views: list[VictimView]) -> dict[str, float]:
    """Of linked pairs that were not told, among pairs of ends of different ones."""
    ways = triples_over_rounds(MODEL, views).ways
    names = views[0].entity_names
    heads, tails = (np.array([names[one[end]] for one in TRIPLES[10:]], dtype=object) for end in (0, 2))
    kinds = np.full(len(heads), "r", dtype=object)
    linked, others = (np.stack([heads, kinds, ends], axis=1) for ends in (tails, np.roll(tails, 1)))
    truth = np.arange(2 * len(heads)) < len(heads)
    return {way: auc(score(np.concatenate([linked, others])), truth) for way, score in ways.items()}


@pytest.mark.planted("server-aux-rounds", "20 pairs that approach each other over rounds: AUC above .85", {"auc": 40})
def test_triples_of_a_planted_course_stand_out_more_than_in_the_last_round() -> None:
    found = [triple_aucs(course(seed)) for seed in range(3)]
    mean = {way: np.mean([one[way] for one in found]) for way in found[0]}
    assert set(mean) == {"fit", "change", "both", "fits", "changes", "fits and changes"}
    assert mean["fits"] > mean["fit"] + 0.05
    assert mean["changes"] > mean["change"] + 0.05
    assert mean["fits"] > 0.85


@pytest.mark.null("server-aux-rounds", "shuffled rows, 12 draws: mean AUC .38 to .62")
def test_triples_of_shuffled_rows_are_chance() -> None:
    found = [triple_aucs(course(seed, shuffled=True)) for seed in range(12)]
    for way in found[0]:
        assert 0.38 < np.mean([one[way] for one in found]) < 0.62


@pytest.fixture(scope="module")
def figures(federate) -> Callable[..., dict[tuple[str, str, str], Figure]]:
    """Headline figures and those of each way of one attack on the hospitals, by victim, metric and way."""

    def run(attack: str, defense: str = "", algorithm: str = "fede") -> dict[tuple[str, str, str], Figure]:
        train = partial(run_federation, make_transport=make_transport)
        options = KgeAttackOptions(attack=(attack,), auxiliary=0.2)
        found = run_attacks(federate(defense, algorithm), options, train=train).figures
        return {(one.victim, one.metric, one.variant): one for one in found}

    return run


@pytest.mark.parametrize("defense", ["", "robust:rule=clip", "psu,secagg"])
def test_neither_a_clip_nor_sums_stop_it(figures, defense: str) -> None:
    """Nor do they keep all rounds from telling more than the last one, on average over victims."""
    found = figures("edges-rounds", defense)
    for metric in ("auc",) if "secagg" in defense else ("auc", "precision"):
        over, last = (
            np.mean([found[victim, metric, way].estimate.value for victim in ("hospital-2", "hospital-3")])
            for way in ("distances and movements", "standardised")
        )
        assert over > last
    assert all(found[victim, "auc", "strongest"].estimate.low > 0.6 for victim in ("hospital-2", "hospital-3"))
    told = figures("server-aux-rounds", defense)
    assert all(told[victim, "auc_pairs", "strongest"].estimate.low > 0.6 for victim in ("hospital-2", "hospital-3"))


def test_noise_stops_it(figures) -> None:
    found, told = (figures(attack, NOISE) for attack in ("edges-rounds", "server-aux-rounds"))
    for victim in ("hospital-2", "hospital-3"):
        for way in ("distances", "movements", "distances and movements"):
            assert found[victim, "auc", way].estimate.value < 0.6
        one = told[victim, "auc_pairs", "strongest"]
        assert one.estimate.value == one.baseline.value  # what names tell
        assert one.by in one.guesses


def test_of_one_run_trained_twice_the_last_upload_is_that_of_the_record(figures, federate, attacked) -> None:
    once, again = attacked(federate(), "edges"), figures("edges-rounds")
    for one in run_attacks(federate(), KgeAttackOptions(attack=("edges",))).figures:
        if one.variant in ("distance", "standardised", "movement"):
            assert again[one.victim, one.metric, one.variant].estimate.value == pytest.approx(one.estimate.value)
    for victim in ("hospital-2", "hospital-3"):
        assert again[victim, "auc", "strongest"].estimate.value >= once["server", victim, "auc"].estimate.value


@pytest.mark.parametrize("attack", ["edges-rounds", "server-aux-rounds"])
def test_where_it_cannot_run_it_says_so(federate, attack: str) -> None:
    def reasons(result: KgeResult) -> set[str | None]:
        return {one.reason for one in headline(run_attacks(result, KgeAttackOptions(attack=(attack,))).figures)}

    assert reasons(federate("secagg")) == {
        "the run was defended: it can be trained again with that defense's transport alone"
    }
    assert reasons(federate(algorithm="feds")) == {
        "feds sends some rows of each round, which the server puts together over rounds anyway"
    }
    assert reasons(federate(algorithm="fedr")) == {"none of its entity embeddings was transmitted"}
    assert reasons(replace(federate(), rounds=[])) == {
        "its tables were trained elsewhere: it cannot be trained again with an adversary in it"
    }
    short = federate(rounds=1)
    assert reasons(short) == {"in the rounds looked at 1 upload of it has the rows of the last one; it takes 2"}


def test_where_no_row_crosses_nothing_is_trained(federate) -> None:
    def train(*_: object, **__: object) -> KgeResult:
        raise AssertionError("trained for nothing")

    found = run_attacks(federate(algorithm="fedr"), KgeAttackOptions(attack=("edges-rounds",)), train=train).figures
    assert {one.reason for one in found} == {"none of its entity embeddings was transmitted"}


@pytest.mark.parametrize(
    ("attack", "defense"),
    [
        ("edges-rounds", ""),
        pytest.param("edges-rounds", "psu,secagg", marks=pytest.mark.slow),
        pytest.param("server-aux-rounds", "", marks=pytest.mark.slow),
        pytest.param("server-aux-rounds", "psu,secagg", marks=pytest.mark.slow),
    ],
)
def test_nothing_counts_that_the_server_does_not_see(federate, attack: str, defense: str) -> None:
    """Models of clients, their relation rows, what they put into a sum: drawn at random in the run that is trained again."""
    options = KgeAttackOptions(attack=(attack,), auxiliary=0.2)

    def train(graph: FederatedGraph, asked: KgeOptions, **how: object) -> KgeResult:
        found = run_federation(graph, asked, make_transport=make_transport, **how)
        rng = torch.Generator().manual_seed(0)

        def other(rows: torch.Tensor) -> torch.Tensor:
            return torch.randn(rows.shape, generator=rng).to(rows.dtype)

        models = {
            kind: [ClientTables(other(one.entities), other(one.relations)) for one in getattr(found, kind)]
            for kind in ("tables", "trained")
        }
        own = {
            kind: {
                table: {party: other(rows) for party, rows in by.items()} for table, by in getattr(found, kind).items()
            }
            for kind in ("started", "inputs")
        }
        ranks = [np.ones_like(one) for one in found.test_ranks]
        return replace(found, **models, **own, test_ranks=ranks, rounds=found.rounds[:1])

    honest = run_attacks(federate(defense), options, train=partial(run_federation, make_transport=make_transport))
    assert run_attacks(federate(defense), options, train=train).figures == honest.figures


@pytest.mark.parametrize("attack", ["edges-rounds", "server-aux-rounds"])
def test_of_few_last_rounds_it_looks_at_these(federate, attack: str) -> None:
    needed = []

    def train(graph: FederatedGraph, asked: KgeOptions, rounds_needed: list[int]) -> KgeResult:
        needed.append(rounds_needed)
        return run_federation(graph, asked, rounds_needed=rounds_needed)

    found = run_attacks(federate(), KgeAttackOptions(attack=(attack,), attack_rounds=3), train=train).figures
    assert needed == [[5, 6, 7, 8]]
    assert any(not one.reason for one in found)
    alone = run_attacks(federate(), KgeAttackOptions(attack=(attack,), attack_rounds=1), train=train).figures
    assert {one.reason for one in alone} == {
        "in the rounds looked at 1 upload of it has the rows of the last one; it takes 2"
    }
