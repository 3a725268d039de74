"""Membership attacks against planted memories, metrics against naive references and sklearn, intervals by simulation."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import roc_auc_score, roc_curve
from torch import Tensor

from fkgsec import ClientGraph, Estimate, KgeModel, KnowledgeGraph, read_path
from fkgsec.attacks.membership.controls import matched_controls
from fkgsec.attacks.membership.figures import (
    MembershipResult,
    compare_auc,
    measure_membership,
    relearn_time,
    score_distance,
)
from fkgsec.attacks.membership.statistics import (
    Variance,
    calibrated,
    likelihood_ratio,
    linear_likelihood_ratio,
    loss_threshold,
    rank_threshold,
    relative_probability,
    triple_answers,
    triple_losses,
    triple_scores,
)
from fkgsec.errors import SpecError
from fkgsec.kge.models import MODELS, ModelName

DATA = os.environ.get("FKGSEC_DATA")
needs_data = pytest.mark.skipif(not DATA, reason="FKGSEC_DATA is not set")
NONE = np.zeros((0, 3), dtype=np.int64)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def measure(members: np.ndarray, controls: np.ndarray, seed: int = 0) -> MembershipResult:
    """With the two groups shuffled together."""
    order = rng(seed).permutation(len(members) + len(controls))
    statistic = np.concatenate([members, controls])[order]
    return measure_membership(statistic, order < len(members), attack="score", control="held_out", rng=rng(seed))


class Trained(NamedTuple):
    """Copies of one model, each trained on its own triples: entities `[copies, N, W]`, relations `[copies, M, V]`."""

    model: KgeModel
    entities: Tensor
    relations: Tensor

    def scores(self, triples: np.ndarray) -> np.ndarray:
        """Float64 `[copies, n]`."""
        return np.stack(
            [triple_scores(self.model, *tables, triples) for tables in zip(self.entities, self.relations, strict=True)]
        )


def train(
    name: ModelName, parts: Sequence[np.ndarray], num_entities: int, num_relations: int, *, steps: int, seed: int = 0
) -> Trained:
    """Full batches of the logistic loss with 8 random tails and 8 random heads for each triple, all copies at once."""
    model = KgeModel(name, 16, gamma=4.0)
    draw = rng(seed)
    entities, relations = (
        model.initial_rows(len(parts) * count, width, draw).requires_grad_()
        for count, width in ((num_entities, model.entity_width), (num_relations, model.relation_width))
    )
    # Copy k owns the k-th block of rows.
    first = np.repeat(np.arange(len(parts)), [len(part) for part in parts])[:, None]
    triples = torch.from_numpy(np.concatenate(parts) + first * [num_entities, num_relations, num_entities])
    rows = torch.nn.functional.embedding
    optimizer = torch.optim.Adam([entities, relations], lr=0.05)
    for step in range(steps):
        side, anchor, candidate = ("tail", 0, 2) if step % 2 else ("head", 2, 0)
        negatives = torch.from_numpy(draw.integers(0, num_entities, size=(len(triples), 8)) + first * num_entities)
        candidates = torch.cat([triples[:, candidate, None], negatives], dim=1)
        queries = model.query(rows(triples[:, anchor], entities), rows(triples[:, 1], relations), side)
        scores = model.pair_scores(queries[:, None], rows(candidates, entities))
        loss = torch.nn.functional.softplus(torch.cat([-scores[:, :1], scores[:, 1:]], dim=1)).mean(dim=1).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    tables = (table.detach().reshape(len(parts), -1, table.shape[1]) for table in (entities, relations))
    return Trained(model, *tables)


def random_triples(count: int, num_entities: int, num_relations: int, seed: int) -> np.ndarray:
    """Distinct triples without any structure."""
    keys = rng(seed).choice(num_entities**2 * num_relations, size=count, replace=False)
    return np.stack([keys // num_entities % num_entities, keys // num_entities**2, keys % num_entities], axis=1)


class TestTrainedModels:
    @pytest.mark.parametrize("name", ["transe", "distmult"])
    def test_a_memory_is_found_and_shuffled_labels_are_not(self, name: ModelName) -> None:
        """Random triples have no structure to generalise: what a model knows of them, it memorised."""
        triples = random_triples(400, 60, 4, seed=1)
        known = np.arange(400) < 200
        tables = train(name, [triples[known]], 60, 4, steps=80)
        model, draw = (tables.model, tables.entities[0], tables.relations[0]), rng(1)
        for statistic in (triple_scores(*model, triples), loss_threshold(triple_losses(*model, triples))):
            result = measure_membership(statistic, known, attack="a", control="c", rng=rng())
            assert result.auc.value > 0.95
            assert result.direction == "remembered"
            assert result.advantage.low > 0.5
            shuffled = [
                measure_membership(statistic, draw.permutation(known), attack="a", control="c", rng=draw)
                for _ in range(100)
            ]
            assert sum(r.auc.low <= 0.5 <= r.auc.high for r in shuffled) >= 90
            assert sum(r.distinguishability.low == 0.5 for r in shuffled) >= 90
            assert sum(r.advantage.low <= 0 <= r.advantage.high for r in shuffled) >= 90

    def test_held_out_triples_are_a_null_for_a_re_trained_model(self) -> None:
        """The claim of `fkgsec.attacks.membership.controls`, on a graph whose links can be predicted: r links group g
        with group g + r."""
        groups, size, num_relations = 6, 12, 3
        pairs = np.array([(h, t) for h in range(groups * size) for t in range(groups * size)])
        true = [pairs[(pairs[:, 1] // size - pairs[:, 0] // size) % groups == r + 1] for r in range(num_relations)]
        triples = np.concatenate([np.insert(part, 1, r, axis=1) for r, part in enumerate(true)])
        triples = rng(2).permutation(triples)[:1000]
        graph = ClientGraph("a", np.arange(groups * size), np.arange(num_relations), triples[:700], NONE, triples[700:])
        forget = graph.train[:200]
        tables = train("transe", [graph.train, graph.train[200:]], graph.num_entities, num_relations, steps=100)

        controls = matched_controls(graph, forget, rng())
        audited = np.concatenate([forget[controls.rows], controls.triples])
        forgotten = np.arange(len(audited)) < len(controls.rows)
        raw, retrained = tables.scores(audited)
        assert len(controls.rows) > 150
        results = [
            measure_membership(scores, forgotten, attack="score", control="held_out", rng=rng())
            for scores in (raw, retrained)
        ]
        excess = compare_auc(raw, retrained, forgotten)
        assert excess.low > 0
        assert excess.value == pytest.approx(results[0].auc.value - results[1].auc.value)
        assert [result.direction for result in results] == ["remembered", None]
        same = compare_auc(retrained, retrained, forgotten)
        assert same.low <= 0 <= same.high
        assert score_distance(raw[forgotten], retrained[forgotten], rng()).p_value < 0.01

    @needs_data
    @pytest.mark.slow
    def test_a_cleaned_test_split_is_a_null_only_after_matching(self) -> None:
        """FB15k-237 among 800 entities: no test pair is linked in train, so a re-trained model seems to remember."""
        whole = read_path(Path(DATA or "") / "FB15k-237")
        assert isinstance(whole, KnowledgeGraph)
        degree = np.bincount(whole.train[:, [0, 2]].ravel(), minlength=len(whole.entities))
        kept = np.isin(np.arange(len(degree)), np.argsort(-degree)[:800])
        parts = [part[kept[part[:, [0, 2]]].all(axis=1)] for part in (whole.train, whole.valid, whole.test)]
        graph = ClientGraph.from_global("a", *parts)
        order = rng().permutation(len(graph.train))
        forget, retained = graph.train[order[:2000]], graph.train[order[2000:]]
        tables = train("transe", [retained], graph.num_entities, graph.num_relations, steps=300)
        controls = matched_controls(graph, forget, rng())

        def retrained_auc(members: np.ndarray, others: np.ndarray) -> Estimate:
            audited = np.concatenate([members, others])
            forgotten = np.arange(len(audited)) < len(members)
            scores = tables.scores(audited)[0]
            return measure_membership(scores, forgotten, attack="score", control="held_out", rng=rng()).auc

        matched, unmatched = retrained_auc(forget[controls.rows], controls.triples), retrained_auc(forget, graph.test)
        assert matched.low <= 0.5 <= matched.high
        assert unmatched.low > 0.55

    @pytest.mark.slow
    def test_likelihood_ratio_with_real_shadow_models(self) -> None:
        """Half of the triples follow from the others (hard to attack by score alone), half are random."""
        num_entities, num_relations, shadows = 150, 4, 24
        heads, tails = rng(5).integers(0, num_entities, size=(2, 40000))
        implied = heads // 15 == tails // 15
        structured = np.unique(np.stack([heads, np.zeros_like(heads), tails], axis=1)[implied], axis=0)
        noise = random_triples(1100, num_entities, 3, seed=7) + np.array([0, 1, 0])
        triples = np.concatenate([rng(6).permutation(structured)[:1100], noise])
        member = rng(8).random((shadows + 1, len(triples))) < 0.5
        tables = train(
            "distmult", [triples[chosen] for chosen in member], num_entities, num_relations, steps=120, seed=9
        )
        scores = tables.scores(triples)
        statistics = {
            "score": scores[0],
            "calibrated": calibrated(scores[0], scores[1:], member[1:]),
            "online": likelihood_ratio(scores[0], scores[1:], member[1:]),
            "offline": likelihood_ratio(scores[0], scores[1:], member[1:], mode="offline"),
        }
        results = {
            name: measure_membership(statistic, member[0], attack=name, control="held_out", rng=rng())
            for name, statistic in statistics.items()
        }
        assert results["online"].auc.low > results["score"].auc.high
        for online, score in zip(results["online"].low_fpr[:2], results["score"].low_fpr[:2], strict=True):
            assert online.tpr is not None
            assert score.tpr is not None
            assert online.tpr.low > score.tpr.high
        # With one variance for all triples, offline is calibration: one order.
        assert results["offline"].auc.value == pytest.approx(results["calibrated"].auc.value)


@pytest.mark.parametrize("name", MODELS)
def test_losses_are_the_definition(name: ModelName) -> None:
    model = KgeModel(name, 4, gamma=2.0)
    entities, relations = (
        model.initial_rows(7, model.entity_width, rng()),
        model.initial_rows(2, model.relation_width, rng(1)),
    )
    triples = random_triples(9, 7, 2, seed=3)

    def softplus(x: float) -> float:
        return math.log1p(math.exp(x))

    expected = []
    for h, r, t in triples.tolist():
        loss = softplus(-float(model.score(entities[h], relations[r], entities[t])))
        for rivals in ([(h, e) for e in range(7) if e != t], [(e, t) for e in range(7) if e != h]):
            scores = np.array([float(model.score(entities[a], relations[r], entities[b])) for a, b in rivals])
            share = np.exp(0.7 * scores) / np.exp(0.7 * scores).sum()
            loss += 0.5 * sum(p * softplus(s) for p, s in zip(share, scores, strict=True))
        expected.append(loss)
    for block_bytes in (1, 2**20):
        losses = triple_losses(model, entities, relations, triples, temperature=0.7, block_bytes=block_bytes)
        assert losses == pytest.approx(expected, rel=1e-5)
    scores = [float(model.score(entities[h], relations[r], entities[t])) for h, r, t in triples.tolist()]
    assert triple_scores(model, entities, relations, triples) == pytest.approx(scores, rel=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_answers_are_the_definition(name: ModelName) -> None:
    model = KgeModel(name, 4, gamma=2.0)
    entities, relations = (
        model.initial_rows(7, model.entity_width, rng()),
        model.initial_rows(2, model.relation_width, rng(1)),
    )
    entities[5] = entities[4]  # a tie
    triples = random_triples(9, 7, 2, seed=3)
    for block_bytes in (1, 2**20):
        log_probability, log_rank = triple_answers(model, entities, relations, triples, block_bytes=block_bytes)
        for row, (h, r, t) in enumerate(triples.tolist()):
            probability, rank = 0.0, 0.0
            for side in ("tail", "head"):
                ends = [(h, e) if side == "tail" else (e, t) for e in range(7)]
                scores = [float(model.score(entities[a], relations[r], entities[b])) for a, b in ends]
                own = scores[t if side == "tail" else h]
                better, tied = sum(s > own + 1e-6 for s in scores), sum(abs(s - own) <= 1e-6 for s in scores)
                rank += math.log(better + (tied + 1) / 2) / 2
                probability += (own - math.log(sum(math.exp(s) for s in scores))) / 2
            assert log_probability[row] == pytest.approx(probability, rel=1e-5)
            assert log_rank[row] == pytest.approx(rank, abs=1e-6)
    assert rank_threshold(log_rank).tolist() == (-log_rank).tolist()


class Shadows(NamedTuple):
    scores: np.ndarray
    shadow_scores: np.ndarray
    truth: np.ndarray
    member: np.ndarray


def synthetic_shadows(n: int, shadows: int, *, gain: float, seed: int) -> Shadows:
    """Triples whose difficulty (deviation 3) hides what training adds (`gain`), with noise 1 between models."""
    draw = rng(seed)
    member = draw.random((shadows + 1, n)) < 0.5
    scores = draw.normal(0, 3, size=n) + gain * member + draw.normal(size=(shadows + 1, n))
    return Shadows(scores[0], scores[1:], member[0], member[1:])


class TestShadowAttacks:
    def test_they_beat_the_threshold_at_low_fpr_where_triples_differ_in_difficulty(self) -> None:
        case = synthetic_shadows(6000, 32, gain=4, seed=0)
        tpr, auc = {}, {}
        for name, statistic in {
            "threshold": loss_threshold(-case.scores),
            "calibrated": calibrated(case.scores, case.shadow_scores, case.member),
            "online": likelihood_ratio(case.scores, case.shadow_scores, case.member),
            "offline": likelihood_ratio(case.scores, case.shadow_scores, case.member, mode="offline"),
        }.items():
            result = measure_membership(statistic, case.truth, attack=name, control="c", rng=rng())
            low = result.low_fpr[1]
            assert low.max_fpr == 0.001
            assert low.tpr is not None
            tpr[name], auc[name] = low.tpr, result.auc
        for name in ("calibrated", "online", "offline"):
            assert tpr[name].low > 5 * tpr["threshold"].high
            assert auc[name].low > auc["threshold"].high

    def test_without_a_memory_they_find_none(self) -> None:
        case = synthetic_shadows(2000, 32, gain=0, seed=1)
        for statistic in (
            calibrated(case.scores, case.shadow_scores, case.member),
            likelihood_ratio(case.scores, case.shadow_scores, case.member),
            likelihood_ratio(case.scores, case.shadow_scores, case.member, mode="offline"),
        ):
            result = measure_membership(statistic, case.truth, attack="a", control="c", rng=rng())
            assert result.direction is None
            assert result.advantage.low <= 0 <= result.advantage.high

    def test_online_finds_triples_that_were_pushed_down_and_offline_reads_backwards(self) -> None:
        case = synthetic_shadows(2000, 32, gain=-4, seed=2)
        found = {
            mode: measure_membership(
                likelihood_ratio(case.scores, case.shadow_scores, case.member, mode=mode),
                case.truth, attack=mode, control="c", rng=rng(),
            )
            for mode in ("online", "offline")
        }  # fmt: skip
        assert found["online"].auc.value > 0.95
        assert found["offline"].auc.value < 0.05
        assert found["offline"].direction == "over-forgotten"
        assert found["offline"].distinguishability.low > 0.9
        below = [
            low.tpr for low in found["offline"].low_fpr if low.direction == "over-forgotten" and low.max_fpr == 0.01
        ]
        assert below[0] is not None
        assert below[0].value > 0.5

    @pytest.mark.parametrize("variance", ["pooled", "per_triple"])
    def test_likelihood_ratio_is_the_definition(self, variance: Variance) -> None:
        case = synthetic_shadows(7, 12, gain=2, seed=3)
        inside, outside = (
            [case.shadow_scores[chosen[:, i], i] for i in range(7)] for chosen in (case.member, ~case.member)
        )

        def deviations(group: list[np.ndarray]) -> list[float]:
            if variance == "per_triple":
                return [float(part.std(ddof=1)) for part in group]
            squares = sum(float(((part - part.mean()) ** 2).sum()) for part in group)
            return [math.sqrt(squares / sum(len(part) - 1 for part in group))] * 7

        def standardised(group: list[np.ndarray]) -> np.ndarray:
            return (case.scores - [part.mean() for part in group]) / deviations(group)

        def log_density(group: list[np.ndarray]) -> np.ndarray:
            return np.log(stats.norm.pdf(standardised(group)) / deviations(group))

        arguments = case.scores, case.shadow_scores, case.member
        online = likelihood_ratio(*arguments, variance=variance)
        assert online == pytest.approx(log_density(inside) - log_density(outside))
        offline = likelihood_ratio(*arguments, variance=variance, mode="offline")
        assert offline == pytest.approx(standardised(outside))
        assert calibrated(*arguments) == pytest.approx(case.scores - [part.mean() for part in outside])

    def test_the_linear_form_is_the_ratio_of_gaussians_of_one_variance_and_one_gain(self) -> None:
        case = synthetic_shadows(7, 12, gain=2, seed=3)
        sides = [[case.shadow_scores[chosen[:, i], i] for i in range(7)] for chosen in (case.member, ~case.member)]
        gain = sum(inside.mean() - outside.mean() for inside, outside in zip(*sides, strict=True)) / 7
        squares = sum(((part - part.mean()) ** 2).sum() for side in sides for part in side)
        deviation = math.sqrt(squares / sum(len(part) - 1 for side in sides for part in side))
        expected = []
        for i in range(7):
            centre = (sides[0][i].mean() + sides[1][i].mean()) / 2
            inside, outside = (stats.norm(centre + sign * gain / 2, deviation) for sign in (1, -1))
            expected.append(inside.logpdf(case.scores[i]) - outside.logpdf(case.scores[i]))
        assert linear_likelihood_ratio(case.scores, case.shadow_scores, case.member) == pytest.approx(expected)

    def test_relative_probability_by_hand_and_by_a_naive_loop(self) -> None:
        # Two in at .8 and .4, two out at .2 and .2: usually (.6 + .2) / 2 = .4, so that .8 is raised by 2; the other by .5.
        member = np.array([[True, True], [True, False], [False, True], [False, False]])
        shadows = np.log([[0.8, 0.4], [0.4, 0.2], [0.2, 0.4], [0.2, 0.2]])
        assert relative_probability(np.log([0.8, 0.15]), shadows, member) == pytest.approx([0.75, 0.25])
        case = synthetic_shadows(40, 12, gain=2, seed=3)
        own, others = -np.logaddexp(0, -case.scores), -np.logaddexp(0, -case.shadow_scores)
        ratios = []
        for i in range(40):
            inside, outside = (np.exp(others[chosen[:, i], i]).mean() for chosen in (case.member, ~case.member))
            ratios.append(math.exp(own[i]) / (0.5 * inside + 0.5 * outside))
        expected = [np.mean([(one > other) + 0.5 * (one == other) for other in ratios]) for one in ratios]
        assert relative_probability(own, others, case.member) == pytest.approx(expected)

    def test_offline_needs_no_model_that_saw_the_triples(self) -> None:
        case = synthetic_shadows(50, 8, gain=0, seed=4)
        none = np.zeros_like(case.member)
        assert np.isfinite(likelihood_ratio(case.scores, case.shadow_scores, none, mode="offline")).all()
        with pytest.raises(ValueError, match='at least 1 shadow models that are "in"; column 0 has 0'):
            likelihood_ratio(case.scores, case.shadow_scores, none)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"mode": "both"}, "mode must be one of online, offline; got 'both'"),
            ({"variance": "all"}, "variance must be one of pooled, per_triple; got 'all'"),
        ],
    )
    def test_an_option_that_there_is_not(self, change: dict[str, Any], message: str) -> None:
        case = synthetic_shadows(4, 8, gain=1, seed=5)
        with pytest.raises(SpecError, match=f"^{message}$"):
            likelihood_ratio(case.scores, case.shadow_scores, case.member, **change)

    def test_what_cannot_be_used_is_said(self) -> None:
        scores, shadows = np.array([1.0, 2.0]), np.array([[1.0, 2.0], [2.0, 1.0], [0.0, 2.0], [0.5, 1.5]])
        member = np.array([[True, False], [False, True], [False, False], [False, False]])
        every = np.ones_like(member)
        for call, message in (
            (
                lambda: likelihood_ratio(scores, shadows, member, variance="per_triple"),
                'at least 2 shadow models that are "in"; column 0 has 1',
            ),
            (lambda: likelihood_ratio(scores, 0 * shadows, member), 'no spread among the shadow models that are "out"'),
            (lambda: likelihood_ratio(scores, shadows, member), 'no spread among the shadow models that are "in"'),
            (lambda: calibrated(scores, shadows, every), 'at least 1 shadow models that are "out"; column 0 has 0'),
            (lambda: calibrated(scores, shadows[:, :1], member), "shadow_scores must have 2 columns, as scores; got 1"),
            (lambda: calibrated(scores, shadows, member * 1), r"member must be bool of shape \[4, 2\]; got int64"),
            (lambda: calibrated(scores * np.nan, shadows, member), "scores must be finite; 2 of 2 are NaN or infinite"),
            (lambda: loss_threshold(shadows), r"losses must have 1 dimension\(s\); got shape \[4, 2\]"),
        ):
            with pytest.raises(ValueError, match=message):
                call()


values = st.lists(st.integers(-4, 4), min_size=2, max_size=40).map(lambda x: np.array(x, dtype=float))


class TestMetrics:
    @settings(max_examples=200, deadline=None)
    @given(values, values)
    def test_auc_is_sklearns_with_ties(self, members: np.ndarray, controls: np.ndarray) -> None:
        result = measure(members, controls)
        labels = np.repeat([1, 0], [len(members), len(controls)])
        assert result.auc.value == pytest.approx(roc_auc_score(labels, np.concatenate([members, controls])), abs=1e-12)
        assert 0 <= result.auc.low <= result.auc.value <= result.auc.high <= 1
        assert result.auc.high - result.auc.low > 0.02, "a finite sample leaves doubt, separated or not"
        assert (result.num_forgotten, result.num_controls) == (len(members), len(controls))

    @settings(max_examples=50, deadline=None)
    @given(values, values)
    def test_the_two_directions_mirror_each_other(self, members: np.ndarray, controls: np.ndarray) -> None:
        up, down = measure(members, controls), measure(-members, -controls)
        assert down.auc.value == pytest.approx(1 - up.auc.value, abs=1e-12)
        assert down.auc.low == pytest.approx(1 - up.auc.high, abs=1e-9)
        for field in ("value", "low", "high"):
            mirrored = getattr(down.distinguishability, field)
            assert mirrored == pytest.approx(getattr(up.distinguishability, field), abs=1e-9)
        flipped = {"remembered": "over-forgotten", "over-forgotten": "remembered", None: None}
        assert down.direction == flipped[up.direction]

    def test_a_triple_ranked_below_all_others_leaks_as_one_ranked_above(self) -> None:
        controls = rng().normal(size=2000)
        result = measure(rng(1).normal(-6, 1, size=200), controls)
        assert result.auc.value < 0.01
        assert result.direction == "over-forgotten"
        assert result.distinguishability.low > 0.97
        assert result.distinguishability_baseline < 0.52
        assert result.advantage.low > 0.9
        by_way = {(low.direction, low.max_fpr): low.tpr for low in result.low_fpr}
        assert by_way["remembered", 0.01].value == 0  # pyright: ignore[reportOptionalMemberAccess]
        assert by_way["over-forgotten", 0.001].value > 0.9  # pyright: ignore[reportOptionalMemberAccess]

    @settings(max_examples=40, deadline=None)
    @given(st.integers(0, 10**6), st.integers(100, 2500), st.sampled_from([5, 50, 10**6]))
    def test_tpr_at_fpr_is_the_best_point_of_sklearns_curve(self, seed: int, num_controls: int, levels: int) -> None:
        members, controls = (
            rng(seed).integers(0, levels, 60) * 1.2,
            rng(seed + 1).integers(0, levels, num_controls) * 1.0,
        )
        labels = np.repeat([1, 0], [60, num_controls])
        for low in measure(members, controls).low_fpr:
            sign = 1 if low.direction == "remembered" else -1
            fpr, tpr, _ = roc_curve(labels, sign * np.concatenate([members, controls]), drop_intermediate=False)
            if low.tpr is None or low.fpr is None:
                assert num_controls < 1000
                assert low.max_fpr == 0.001
                continue
            assert low.tpr.value == pytest.approx(tpr[fpr <= low.max_fpr + 1e-12].max())
            assert low.fpr.value <= low.max_fpr + 1e-12
            assert (low.tpr.n, low.fpr.n, low.tpr.method) == (60, num_controls, "wilson")

    def test_too_few_controls_are_said_never_a_silent_zero(self) -> None:
        few = measure(rng().normal(5, 1, size=50), rng(1).normal(size=99))
        assert [low.tpr for low in few.low_fpr] == [None] * 4
        assert few.low_fpr[0].reason == "an FPR of 1.0% needs at least 100 controls; there are 99"
        assert few.low_fpr[1].reason == "an FPR of 0.1% needs at least 1000 controls; there are 99"
        enough = measure(rng().normal(5, 1, size=50), rng(1).normal(size=1000))
        assert [low.reason for low in enough.low_fpr] == [None] * 4
        assert all(low.fpr is not None and low.fpr.value <= low.max_fpr for low in enough.low_fpr)

    def test_distinguishability_of_chance_is_its_baseline(self) -> None:
        results = [measure(rng(seed).normal(size=30), rng(1000 + seed).normal(size=50)) for seed in range(400)]
        mean = np.mean([r.distinguishability.value for r in results])
        assert results[0].distinguishability_baseline == pytest.approx(mean, abs=0.005)
        assert mean > 0.55

    def test_results_are_json(self) -> None:
        statistic, forgotten = rng().normal(size=40), np.arange(40) < 20
        for result in (
            measure(statistic[:20], statistic[20:]),
            compare_auc(statistic, statistic**2, forgotten),
            score_distance(statistic, statistic**2, rng()),
            relearn_time(np.abs(statistic), np.ones(3), 0.9),
        ):
            assert msgspec.json.decode(msgspec.json.encode(result), type=type(result)) == result

    def test_the_generator_decides_the_halves_alone(self) -> None:
        statistic, forgotten = rng().normal(size=60), np.arange(60) < 30
        first, again, other = (
            measure_membership(statistic, forgotten, attack="a", control="c", rng=rng(seed)) for seed in (0, 0, 3)
        )
        assert first == again
        assert first.advantage != other.advantage
        assert msgspec.structs.replace(first, advantage=other.advantage) == other

    def test_what_cannot_be_used_is_said(self) -> None:
        four, infinite = np.arange(4.0), np.array([0, 1, np.inf, 2])
        for statistic, forgotten, message in (
            (four, np.arange(4) < 1, "mark at least 2 triples and leave 2 controls; got 1 and 3"),
            (four, np.array([1, 1, 0, 0]), r"forgotten must be bool of shape \[4\]; got int64 of \[4\]"),
            (four, np.array([True, False]), r"forgotten must be bool of shape \[4\]; got bool of \[2\]"),
            (infinite, np.arange(4) < 2, "statistic must be finite; 1 of 4"),
        ):
            with pytest.raises(ValueError, match=message):
                measure_membership(statistic, forgotten, attack="a", control="c", rng=rng())


Draw = Callable[[np.random.Generator, int], np.ndarray]


def mixture(above: float, below: float) -> Draw:
    """Some members far above all controls, some far below, the rest like them."""

    def draw(generator: np.random.Generator, size: int) -> np.ndarray:
        place = generator.random(size)
        return generator.normal(size=size) + 20.0 * (place < above) - 20.0 * (place > 1 - below)

    return draw


def shifted(auc: float) -> Draw:
    return lambda generator, size: generator.normal(stats.norm.ppf(auc) * math.sqrt(2), 1, size=size)


class TestIntervals:
    @pytest.mark.parametrize(
        ("draw", "true", "sizes"),
        [
            (shifted(0.5), 0.5, (30, 30)),
            (shifted(0.8), 0.8, (30, 30)),
            (shifted(0.99), 0.99, (30, 200)),  # most samples are separated: a variance of 0 is no certainty
            (shifted(0.01), 0.01, (30, 30)),
            (mixture(0.5, 0.5), 0.5, (30, 200)),  # half remembered, half over-forgotten: Newcombe's alone covers 81 %
            (mixture(0.1, 0.0), 0.55, (60, 60)),
        ],
    )
    def test_auc_and_its_fold_cover(self, draw: Draw, true: float, sizes: tuple[int, int]) -> None:
        generator, runs = rng(11), 300
        covered, folded = 0, 0
        for seed in range(runs):
            result = measure(draw(generator, sizes[0]), generator.normal(size=sizes[1]), seed)
            covered += result.auc.low <= true <= result.auc.high
            folded += result.distinguishability.low <= max(true, 1 - true) <= result.distinguishability.high
        assert covered / runs > 0.925
        assert folded / runs > 0.925

    def test_advantage_is_zero_by_chance_and_covers_what_the_best_threshold_gives(self) -> None:
        chance, real, runs = [], [], 300
        generator = rng(12)
        for seed in range(runs):
            chance.append(measure(generator.normal(size=40), generator.normal(size=60), seed).advantage)
            real.append(measure(generator.normal(2, 1, size=100), generator.normal(size=100), seed).advantage)
        assert abs(np.mean([a.value for a in chance])) < 0.02
        assert np.mean([a.low <= 0 <= a.high for a in chance]) > 0.925
        best = 2 * stats.norm.cdf(1) - 1
        assert np.mean([a.value for a in real]) == pytest.approx(best, abs=0.03)
        assert np.mean([a.low <= best <= a.high for a in real]) > 0.9

    def test_tpr_covers_the_share_above_the_threshold_that_was_taken(self) -> None:
        generator, runs, covered = rng(13), 300, 0
        for seed in range(runs):
            members, controls = generator.normal(1, 1, size=80), generator.normal(size=200)
            low = measure(members, controls, seed).low_fpr[0]
            assert low.tpr is not None
            threshold = np.sort(controls)[-3]
            covered += low.tpr.low <= stats.norm.sf(threshold - 1) <= low.tpr.high
        assert covered / runs > 0.925

    @pytest.mark.parametrize("noise", [0.3, 3.0])
    def test_difference_of_two_models_covers_and_narrows_where_they_agree(self, noise: float) -> None:
        """Two models whose scores share the triple's part and have noise of their own, of equal AUC."""
        generator, runs = rng(14), 300
        forgotten = np.arange(100) < 50
        found = []
        for _ in range(runs):
            own = generator.normal(size=100) + forgotten
            first, second = own + noise * generator.normal(size=(2, 100))
            found.append(compare_auc(first, second, forgotten))
        assert np.mean([d.low <= 0 <= d.high for d in found]) > 0.925
        spread = np.std([d.value for d in found])
        half = np.mean([(d.high - d.low) / 2 for d in found])
        assert half == pytest.approx(1.96 * spread, rel=0.25)

    def test_a_weighted_control_counts_as_often_in_the_value_and_once_in_the_error(self) -> None:
        draw = rng(16)
        members, controls = draw.normal(size=60) + 0.5, draw.normal(size=20)
        weights = np.repeat([1.0, 5.0], 10)
        forgotten = np.arange(80) < 60
        statistic = np.concatenate([members, controls])
        made = {
            name: measure_membership(statistic, forgotten, attack="a", control="c", rng=rng(), weights=every).auc
            for name, every in (
                ("weighted", np.concatenate([np.ones(60), weights])),
                ("equal", np.full(80, 3.0)),
                ("none", None),
            )
        }
        repeated = measure(members, np.repeat(controls, weights.astype(int))).auc
        assert made["weighted"].value == pytest.approx(repeated.value)
        assert made["weighted"].high - made["weighted"].low > made["none"].high - made["none"].low
        assert made["weighted"].high - made["weighted"].low > 1.2 * (repeated.high - repeated.low)
        assert made["equal"].value == pytest.approx(made["none"].value)
        assert made["equal"].high == pytest.approx(made["none"].high)

    def test_intervals_of_reused_controls_cover(self) -> None:
        """Controls that stand for 1 to 8 forgotten triples each."""
        draw, covered, runs = rng(17), 0, 300
        weights = np.concatenate([np.ones(120), draw.integers(1, 9, size=40)])
        forgotten = np.arange(160) < 120
        for _ in range(runs):
            first, second = draw.normal(size=(2, 160))
            difference = compare_auc(first, second, forgotten, weights)
            found = measure_membership(first, forgotten, attack="a", control="c", rng=rng(), weights=weights)
            covered += found.auc.low <= 0.5 <= found.auc.high and difference.low <= 0 <= difference.high
        assert covered / runs > 0.88


def table(first: np.ndarray, second: np.ndarray) -> tuple[float, float]:
    """Statistic and p-value of scipy's two-sample test."""
    found: Any = stats.ks_2samp(first, second, method="asymp")
    return found.statistic, found.pvalue


class TestScoreDistance:
    @settings(max_examples=60, deadline=None)
    @given(st.integers(0, 10**6), st.integers(2, 60), st.sampled_from([4, 10**6]))
    def test_it_is_scipys_with_ties(self, seed: int, n: int, levels: int) -> None:
        first, second = rng(seed).integers(0, levels, size=(2, n)).astype(float)
        result = score_distance(first, second, rng(), resamples=20)
        assert result.distance.value == pytest.approx(table(first, second)[0])
        assert result.distance.low <= result.distance.value <= result.distance.high

    def test_equal_scores_are_no_distance_and_separated_ones_are_one(self) -> None:
        scores = rng().normal(size=80)
        same, apart = score_distance(scores, scores, rng()), score_distance(scores, scores + 20, rng())
        assert (same.distance.value, same.distance.low, same.p_value) == (0, 0, 1)
        assert (apart.distance.value, apart.distance.high) == (1, 1)
        assert apart.p_value < 0.01
        assert apart.distance.low > 0.7

    @pytest.mark.parametrize(("shift", "true"), [(0.0, 0.0), (1.0, 2 * stats.norm.cdf(0.5) - 1)])
    def test_interval_covers(self, shift: float, true: float) -> None:
        generator, runs, covered = rng(21), 150, 0
        for _ in range(runs):
            own = generator.normal(size=60) * 0.8
            first, second = own + 0.6 * generator.normal(size=(2, 60))
            distance = score_distance(first + shift, second, generator, resamples=150).distance
            covered += distance.low <= true <= distance.high
        assert covered / runs > 0.91

    def test_swapping_keeps_its_level_on_paired_scores_where_the_table_finds_too_little(self) -> None:
        generator, runs = rng(22), 200
        level = {"swap": 0, "table": 0}
        power = {"swap": 0, "table": 0}
        for _ in range(runs):
            own = generator.normal(size=60)
            first, second = own + 0.3 * generator.normal(size=(2, 60))
            for counts, other in ((level, second), (power, second - 0.3)):
                counts["swap"] += score_distance(first, other, generator, resamples=200).p_value <= 0.05
                counts["table"] += table(first, other)[1] <= 0.05
        assert 0.01 < level["swap"] / runs < 0.09
        assert power["swap"] > 3 * power["table"]

    def test_what_cannot_be_used_is_said(self) -> None:
        with pytest.raises(ValueError, match="scores and others need the same triples, at least one; got 2 and 3"):
            score_distance(np.zeros(2), np.zeros(3), rng())


class TestRelearnTime:
    def test_steps_and_ratio(self) -> None:
        slow, fast = np.array([0.1, 0.2, 0.3, 0.4, 0.5]), np.array([0.1, 0.4, 0.3, 0.6, 0.6])
        found = relearn_time(fast, slow, 0.4)
        assert (found.unlearned, found.retrained, found.ratio, found.reason) == (1, 3, 1 / 3, None)

    def test_no_ratio_without_both_times(self) -> None:
        never, now = np.array([0.1, 0.2]), np.array([0.5, 0.6])
        found = relearn_time(now, never, 0.5)
        assert (found.unlearned, found.retrained, found.ratio) == (0, None, None)
        assert found.reason == "level 0.5 is not reached by: retrained"
        assert relearn_time(never, never, 0.5).reason == "level 0.5 is not reached by: unlearned and retrained"
        assert relearn_time(now, now, 0.5).reason == "the re-trained model is at level 0.5 before any step"
        assert relearn_time(np.array([0.1, 0.5]), now, 0.5).ratio is None

    @pytest.mark.parametrize("level", [0, -1, 1.1, math.nan])
    def test_a_level_that_no_mrr_has(self, level: float) -> None:
        with pytest.raises(SpecError, match=r"^level must lie in \(0, 1\]; got "):
            relearn_time(np.ones(2), np.ones(2), level)
