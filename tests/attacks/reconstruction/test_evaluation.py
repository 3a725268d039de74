"""Leakage figures against recounts by loops, and baselines against simulated adversaries."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import msgspec
import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score

from fkgsec import ClientGraph, FederatedGraph
from fkgsec.attacks.kge.view import VictimView
from fkgsec.attacks.options import THREAT_MODELS, KgeAttackOptions
from fkgsec.attacks.reconstruction import unlinked
from fkgsec.attacks.registry import build_view, default_threats
from fkgsec.attacks.view import ALL, View
from fkgsec.errors import SpecError
from fkgsec.estimate import Estimate
from fkgsec.kge.models import ClientTables
from fkgsec.kge.result import KgeResult
from fkgsec.randomness import generator
from tests.attacks.pairs import Pair, reconstruct

EVERY_HEAD = 10**6
LEAKS = (0.5, 1.0)
CASES = [("fede", "collusion"), ("fede", "identifiers"), ("fedr", "collusion+entities")]
Named = tuple[str, str, str]


def by_name(result: KgeResult, client: ClientGraph) -> list[Named]:
    graph = result.graph
    return [(graph.entities[h], graph.relations[r], graph.entities[t]) for h, r, t in client.to_global(client.train)]


def views(result: KgeResult, threat: str) -> Iterator[tuple[View, VictimView, ClientGraph]]:
    for leak in LEAKS:
        view = build_view(result, THREAT_MODELS[threat], colluder=result.graph.clients[0].name, leak=leak, seed=0)
        for victim, client in zip(view.victims, result.graph.clients[1:], strict=True):
            yield view, victim, client


def nearest_name(query: torch.Tensor, keys: torch.Tensor, names: np.ndarray) -> str:
    cosines = [float(query @ key / (query.norm() * key.norm())) for key in keys]
    return str(names[int(np.argmax(cosines))])


def entity_guesses(view: View, victim: VictimView) -> list[str]:
    if victim.entity_names is not None:
        return victim.entity_names.tolist()
    return [nearest_name(row, view.colluder.entities, view.colluder.entity_names) for row in victim.entities]


def chance_of(view: View, victim: VictimView, *names: str) -> float:
    """That an adversary who draws a name for each row has these right (distinct) names right."""
    if victim.entity_names is not None:
        return 1.0
    pool = set(view.colluder.entity_names)
    return float(np.prod([(name in pool) / len(pool) for name in set(names)]))


def most_frequent_relation(result: KgeResult, pool: set[str]) -> str:
    touching = [r for h, r, t in by_name(result, result.graph.clients[0]) if h in pool or t in pool]
    relations = result.graph.clients[0].relation_ids
    ordered = [result.graph.relations[number] for number in relations]  # the first of the most frequent
    return max(ordered, key=touching.count)


def by(inference: str, rows: list[Pair]) -> list[Pair]:
    return [row for row in rows if row.variant == inference]


@pytest.fixture(scope="module")
def attacked(trained_runs) -> dict[tuple[str, str], tuple[list[Pair], object]]:
    """By the papers' inference alone, so that every figure can be recounted by a few loops."""
    options = KgeAttackOptions(leak=LEAKS, inference="cosine", unlinked_heads=EVERY_HEAD)
    return {
        (algorithm, threat): reconstruct(trained_runs[algorithm], msgspec.structs.replace(options, threat=(threat,)))
        for algorithm, threat in CASES
    }


class TestAgainstLoops:
    @pytest.mark.parametrize("case", CASES)
    def test_err_and_trr_from_view_and_truth(self, trained_runs, attacked, case: tuple[str, str]) -> None:
        result, rows = trained_runs[case[0]], {(row.leak, row.victim): row for row in by("cosine", attacked[case][0])}
        for view, victim, client in views(result, case[1]):
            known = view.colluder
            row = rows[view.leak, victim.name]
            names = [result.graph.entities[number] for number in client.entity_ids[: client.num_trained_entities]]
            guesses = entity_guesses(view, victim)
            assert row.err.estimate.n == len(names)
            assert row.err.estimate.value == sum(a == b for a, b in zip(guesses, names, strict=True)) / len(names)
            assert row.err.baseline.value == pytest.approx(np.mean([chance_of(view, victim, name) for name in names]))

            right, by_chance = 0, 0.0
            majority = most_frequent_relation(result, set(known.entity_names))
            for (head, relation, tail), (_, true, _) in zip(client.train, by_name(result, client), strict=True):
                if victim.relations is not None:
                    guess = nearest_name(victim.relations[relation], known.relations, known.relation_names)
                else:
                    difference = victim.entities[tail] - victim.entities[head]
                    guess = nearest_name(difference, known.relations, known.relation_names)
                right += guesses[head] == names[head] and guesses[tail] == names[tail] and guess == true
                by_chance += chance_of(view, victim, names[head], names[tail]) * (majority == true)
            assert row.trr.estimate.n == len(client.train)
            assert row.trr.estimate.value == right / len(client.train)
            assert row.trr.guesses["majority"].value == pytest.approx(by_chance / len(client.train))
            assert (row.round, row.reason) == (result.best_round, None)

    @pytest.mark.parametrize("case", CASES)
    def test_items_recount_to_the_figures(self, attacked, case: tuple[str, str]) -> None:
        rows, items = attacked[case]
        for row in by("cosine", rows):
            chosen = items[(items.leak == row.leak) & ((items.victim == row.victim) | (row.victim == ALL))]
            for item, figure in (("entity", row.err.estimate), ("triple", row.trr.estimate)):
                scores = chosen[chosen["item"] == item]
                assert len(scores) == figure.n
                assert scores.right.mean() == pytest.approx(figure.value)
            entities, triples = chosen[chosen["item"] == "entity"], chosen[chosen["item"] == "triple"]
            assert (entities.right == (entities.guessed_head == entities["head"])).all()
            guessed = triples[["guessed_head", "guessed_relation", "guessed_tail"]].to_numpy()
            assert (triples.right == (guessed == triples[["head", "relation", "tail"]].to_numpy()).all(axis=1)).all()

    def test_all_pools_the_victims(self, attacked) -> None:
        rows = by("cosine", attacked["fede", "collusion"][0])
        for leak in LEAKS:
            *victims, pooled = [row for row in rows if row.leak == leak]
            assert (pooled.victim, len(victims), pooled.unlinked) == (ALL, 2, {})
            for metric, name in itertools.product(("err", "trr"), ("estimate", "baseline")):
                figures = [getattr(getattr(row, metric), name) for row in victims]
                total, together = sum(figure.n for figure in figures), getattr(getattr(pooled, metric), name)
                assert together.n == total
                assert together.value == pytest.approx(sum(f.value * f.n for f in figures) / total)

    @pytest.mark.parametrize("case", CASES)
    def test_advantage_is_figure_minus_baseline(self, attacked, case: tuple[str, str]) -> None:
        for row in attacked[case][0]:
            assert row.err.advantage == row.err.estimate.value - row.err.baseline.value
            assert row.trr.advantage == row.trr.estimate.value - max(
                row.trr.guesses["majority"].value, row.trr.guesses["prior"].value
            )

    @pytest.mark.parametrize("case", CASES[:2])
    def test_without_linked_pairs_from_view_and_truth(self, trained_runs, attacked, case: tuple[str, str]) -> None:
        strongest = by("strongest", attacked[case][0])
        result, rows = trained_runs[case[0]], {(row.leak, row.victim): row for row in strongest}
        for view, victim, client in views(result, case[1]):
            figures = rows[view.leak, victim.name].unlinked
            known, truth, guesses = view.colluder, set(by_name(result, client)), entity_guesses(view, victim)
            names = [result.graph.entities[number] for number in client.entity_ids[: client.num_trained_entities]]
            relations, vectors = known.relations.numpy(), victim.entities.numpy()
            ranked = []
            for head, tail in itertools.permutations(range(len(names)), 2):
                distances = np.abs(vectors[head] + relations - vectors[tail]).sum(axis=1)
                relation = str(known.relation_names[distances.argmin()])
                claim = (guesses[head], relation, guesses[tail])
                right = claim in truth and claim[::2] == (names[head], names[tail])
                ranked.append((distances.min(), right))
            hits = [right for _, right in sorted(ranked)]
            claims = max(1, round(known.pair_density * len(hits)))
            assert (figures["precision"].counts["heads"], figures["precision"].counts["pairs"]) == (
                len(names),
                len(hits),
            )
            assert (figures["precision"].estimate.n, figures["recall"].estimate.n) == (claims, len(truth))
            found, chance = (
                sum(hits[:claims]),
                figures["precision"].baseline.value,
            )  # which the adversary may take instead
            assert figures["precision"].estimate.value == pytest.approx(max(found / claims, chance))
            assert figures["recall"].estimate.value == pytest.approx(
                max(found / len(truth), figures["recall"].baseline.value)
            )
            reached = sum(sum(hits[:rank]) / rank for rank, right in enumerate(hits, 1) if right)
            chance = figures["average_precision"].baseline.value
            assert figures["average_precision"].estimate.value == pytest.approx(max(reached / len(truth), chance))

    def test_heads_are_sampled(self, trained_runs) -> None:
        result = trained_runs["fede"]
        rows, _ = reconstruct(result, KgeAttackOptions(threat=("collusion",), unlinked_heads=5))
        assert {row.variant for row in rows if row.unlinked} == {"strongest"}
        first = by("strongest", rows)[0]
        assert first.unlinked["average_precision"].by == "score"
        assert (first.unlinked["precision"].counts["heads"], first.unlinked["precision"].counts["pairs"]) == (
            5,
            5 * (first.err.estimate.n - 1),
        )
        heads = generator(0, "unlinked heads", first.victim).choice(first.err.estimate.n, size=5, replace=False)
        client = result.graph.clients[1]
        assert first.unlinked["recall"].estimate.n == sum(triple[0] in heads for triple in client.train)


class TestAveragePrecision:
    rng = np.random.default_rng(0)

    def figure(self, hits: list[bool] | np.ndarray, triples_of_head: list[int]) -> Estimate:
        heads = np.arange(len(hits)) % len(triples_of_head)
        return unlinked.average_precision(np.array(hits), heads, np.array(triples_of_head), self.rng)

    @pytest.mark.parametrize("share", [0.02, 0.5, 1.0])
    def test_agrees_with_scikit_learn_when_every_positive_is_reached(self, share: float) -> None:
        hits = self.rng.random(400) < share
        of_head = [int(hits[head::10].sum()) for head in range(10)]
        expected = average_precision_score(hits, -np.arange(400.0))
        assert self.figure(hits, of_head).value == pytest.approx(expected)

    def test_what_cannot_be_reached_counts_as_missed(self) -> None:
        """Ranks 1 and 3 are right, two more triples have no candidate: (1/1 + 2/3) / 4."""
        figure = self.figure([True, False, True, False], [2, 2])
        assert figure.value == pytest.approx(5 / 12)
        assert figure.n == 4

    def test_nothing_right_is_zero_with_the_rule_of_three(self) -> None:
        assert self.figure([False] * 9, [20, 10]) == Estimate(0.0, 0.0, 0.1, 30, "rule of three")
        assert self.figure([False] * 9, [0, 0]).high == 1

    def test_perfect_ranking_of_alike_heads_is_certain(self) -> None:
        """Resampling heads resamples what is to be found, so that no draw has more or less than all of it."""
        figure = self.figure([True] * 12 + [False] * 30, [2] * 6)
        assert (figure.low, figure.value, figure.high) == (1, 1, 1)


def toy_tables(*, self_loops: bool) -> tuple[FederatedGraph, list[ClientTables]]:
    """Colluder and victim over eight entities and two relations; small enough for chance to hit."""
    rng = np.random.default_rng(4)
    pairs = np.array([(h, t) for h in range(8) for t in range(8) if h != t])

    def draw(count: int) -> np.ndarray:
        chosen = pairs[rng.permutation(len(pairs))[:count]]
        return np.stack([chosen[:, 0], (rng.random(count) < 0.3).astype(int), chosen[:, 1]], axis=1)

    loops = np.array([(h, 0, h) for h in range(6)] if self_loops else []).reshape(-1, 3).astype(int)
    none = np.zeros((0, 3), dtype=int)
    clients = (
        ClientGraph.from_global("colluder", draw(16), none, none),
        ClientGraph.from_global("victim", np.concatenate([draw(24), loops]), none, none),
    )
    graph = FederatedGraph("toy", tuple("abcdefgh"), ("r", "s"), clients)
    tables = [ClientTables(torch.from_numpy(rng.normal(size=(8, 4))).float(), torch.ones(2, 4)) for _ in clients]
    assert all(client.num_trained_entities == 8 for client in clients)
    return graph, tables


class TestBaselines:
    """An adversary without embeddings is simulated: a random name for each row, the majority relation, random order."""

    ROUNDS = 4000

    @pytest.mark.parametrize("self_loops", [False, True])
    @pytest.mark.parametrize("threat", ["collusion", "identifiers"])
    def test_are_the_expectation_of_a_random_adversary(self, fabricate, threat: str, self_loops: bool) -> None:
        graph, tables = toy_tables(self_loops=self_loops)
        result = fabricate(graph, tables, tables, dim=4)
        options = KgeAttackOptions(threat=(threat,), leak=(0.75,), unlinked_heads=5)
        (row,) = by("strongest", reconstruct(result, options)[0])
        known = build_view(result, THREAT_MODELS[threat], colluder="colluder", leak=0.75, seed=0).colluder
        rng = np.random.default_rng(5)
        client = graph.clients[1]
        heads = generator(0, "unlinked heads", "victim").choice(8, size=5, replace=False)
        candidates = [(int(h), t) for h in heads for t in range(8) if t != h]
        majority = "rs".index(known.majority_relation)
        truth = set(map(tuple, client.train.tolist()))
        linked = {(h, t) for h, r, t in truth if r == majority}
        asked = sum(h in heads for h, _, _ in truth)
        claims = row.unlinked["precision"].estimate.n
        played = []
        for _ in range(self.ROUNDS):
            guessed = list("abcdefgh") if threat == "identifiers" else rng.choice(known.entity_names, 8)
            right = np.array([a == b for a, b in zip(guessed, "abcdefgh", strict=True)])
            order = rng.permutation(len(candidates))
            hits = np.array([right[h] and right[t] and (h, t) in linked for h, t in np.array(candidates)[order]])
            precision_at = hits.cumsum() / np.arange(1, len(hits) + 1)
            played.append(
                (
                    right.mean(),
                    np.mean([right[h] and right[t] and r == majority for h, r, t in client.train]),
                    hits[:claims].mean(),
                    hits[:claims].sum() / asked,
                    precision_at[hits].sum() / asked,
                )
            )
        figures = row.unlinked
        baselines = (
            row.err.baseline, row.trr.guesses["majority"], figures["precision"].baseline, figures["recall"].baseline,
            figures["average_precision"].baseline,
        )  # fmt: skip
        means, errors = np.mean(played, axis=0), np.std(played, axis=0) / self.ROUNDS**0.5
        for baseline, mean, error in zip(baselines, means, errors, strict=True):
            assert mean > 0
            assert abs(baseline.value - mean) < 4 * error + 1e-9

    @pytest.mark.parametrize("row_chance", [0.25, 1.0])
    def test_random_order_by_enumeration(self, row_chance: float) -> None:
        """All ways to name four rows and to place the right pairs among seven; two pairs are each other's reverse."""
        pairs, num_candidates = [(0, 1), (1, 0), (1, 2), (3, 0)], 7
        expected_right = expected_precisions = 0.0
        for right in itertools.product([True, False], repeat=4):
            probability = float(np.prod([row_chance if is_right else 1 - row_chance for is_right in right]))
            hits = sum(right[head] and right[tail] for head, tail in pairs)
            places = list(itertools.combinations(range(1, num_candidates + 1), hits))
            precisions = [sum(found / rank for found, rank in enumerate(ranks, 1)) for ranks in places]
            expected_right += probability * hits
            expected_precisions += probability * float(np.mean(precisions))
        figures = unlinked.random_order(np.array(pairs), np.full(4, row_chance), num_candidates)
        assert figures == pytest.approx((expected_right, expected_precisions))
        assert unlinked.random_order(np.array(pairs), np.array([0, 0, 0.25, 0]), num_candidates) == (0, 0)

    def test_a_single_victim_needs_no_pooled_row(self, fabricate) -> None:
        graph, tables = toy_tables(self_loops=True)
        rows, _ = reconstruct(fabricate(graph, tables, tables, dim=4), KgeAttackOptions(threat=("collusion",)))
        assert {row.victim for row in rows} == {"victim"}

    def test_a_victim_with_one_entity_has_no_candidate_pair(self, fabricate) -> None:
        none = np.zeros((0, 3), dtype=int)
        parts = {"colluder": [(0, 0, 1)], "victim": [(0, 0, 0)]}
        clients = tuple(ClientGraph.from_global(name, np.array(part), none, none) for name, part in parts.items())
        graph = FederatedGraph("loop", ("a", "b"), ("r",), clients)
        tables = [ClientTables(torch.eye(4)[:count], torch.ones(1, 4)) for count in (2, 1)]
        rows, _ = reconstruct(
            fabricate(graph, tables, tables, dim=4), KgeAttackOptions(threat=("collusion",), leak=(1.0,))
        )
        (row,) = by("strongest", rows)
        assert (row.err.estimate.value, row.trr.estimate.value, row.unlinked["precision"].counts["pairs"]) == (1, 1, 0)
        assert (
            row.unlinked["recall"].estimate.value,
            row.unlinked["recall"].estimate.n,
            row.unlinked["precision"].baseline.value,
        ) == (0, 1, 0)
        assert (row.err.baseline.value, row.trr.guesses["majority"].value) == (0.5, 0.5)


class TestNothingToAttack:
    @pytest.mark.parametrize(
        ("algorithm", "threat", "reason"),
        [
            (
                "fede",
                "server",
                "no element-embedding pair is known without a colluder",
            ),
            ("fedr", "collusion", "only relation embeddings were transmitted; no entity embedding was seen"),
            ("single", "collusion", "no embedding of this client was transmitted"),
        ],
    )
    def test_says_why_and_gives_zero(self, planted, algorithm: str, threat: str, reason: str) -> None:
        rows, items = reconstruct(planted(algorithm=algorithm), KgeAttackOptions(threat=(threat,)))
        assert len(items) == 0
        assert [row.victim for row in by("strongest", rows)] == ["victim a", "victim b", ALL]
        for row in rows:
            assert row.reason == reason
            assert (
                row.err.estimate.value,
                row.trr.estimate.value,
                row.err.baseline.value,
                row.trr.guesses["majority"].value,
            ) == (0, 0, 0, 0)
            assert (row.err.estimate.low, row.err.estimate.high, row.err.estimate.method) == (0, 1, "not attacked")
            assert (row.unlinked, row.err.attainable, row.trr.attainable, row.trr.remark) == ({}, None, None, None)
            assert row.colluder == (None if threat == "server" else "colluder")

    def test_all_has_a_reason_only_if_nobody_could_be_attacked(self, planted, fabricate) -> None:
        whole = planted()
        result = fabricate(whole.graph, whole.trained, whole.tables, participants=["colluder", "victim a"])
        seen, unseen, pooled = by(
            "cosine", reconstruct(result, KgeAttackOptions(threat=("collusion",), unlinked_heads=0))[0]
        )
        assert (seen.reason, unseen.reason) == (None, "no embedding of this client was transmitted")
        assert pooled.reason is None
        assert pooled.err.estimate.value == pytest.approx(
            seen.err.estimate.value * seen.err.estimate.n / (seen.err.estimate.n + unseen.err.estimate.n)
        )

    def test_threats_with_and_without_anything_to_attack_share_a_table(self, planted) -> None:
        rows, items = reconstruct(
            planted(algorithm="fedr"),
            KgeAttackOptions(threat=("collusion", "collusion+entities"), leak=LEAKS, unlinked_heads=0),
        )
        assert {row.threat_model for row in rows if row.reason} == {"collusion"}
        assert set(items.threat_model) == {"collusion+entities"}


class TestFigures:
    def test_intervals_contain_their_value(self, attacked) -> None:
        figures = [
            estimate
            for rows, _ in attacked.values()
            for row in rows
            for figure in (row.err, row.trr, *row.unlinked.values())
            for estimate in (figure.estimate, figure.baseline, *figure.guesses.values())
        ]
        assert len(figures) > 100
        assert {figure.method for figure in figures} >= {"wilson", "exact", "bootstrap over heads"}
        for figure in figures:
            assert 0 <= figure.low <= figure.value <= figure.high <= 1

    def test_depend_on_nothing_but_run_options_and_seed(self, trained_runs, attacked) -> None:
        options = KgeAttackOptions(threat=("collusion",), leak=LEAKS, inference="cosine", unlinked_heads=EVERY_HEAD)
        rows, items = reconstruct(trained_runs["fede"], options)
        before, items_before = attacked["fede", "collusion"]
        assert rows == before
        assert items.equals(items_before)
        others, _ = reconstruct(trained_runs["fede"], msgspec.structs.replace(options, seed=1))
        assert [row.err.estimate for row in others if row.leak == 0.5] != [
            row.err.estimate for row in rows if row.leak == 0.5
        ]
        assert [row.err.estimate for row in others if row.leak == 1] == [
            row.err.estimate for row in rows if row.leak == 1
        ]

    def test_the_colluder_can_be_any_client(self, trained_runs) -> None:
        options = KgeAttackOptions(threat=("collusion",), colluder="hospital-2", unlinked_heads=0)
        rows, _ = reconstruct(trained_runs["fede"], options)
        assert [row.victim for row in by("strongest", rows)] == ["hospital-1", "hospital-3", ALL]
        assert {row.colluder for row in rows} == {"hospital-2"}


class TestOptions:
    @pytest.mark.parametrize(
        ("wrong", "message"),
        [
            ({"threat": ("collusion", "eavesdropper")}, "threat must be one of server, .*'eavesdropper'"),
            ({"leak": (0.5, 0.0)}, r"leak must lie in \(0, 1\]; got 0.0"),
            ({"leak": ()}, "leak needs at least one ratio"),
            ({"metric": "publised"}, "metric must be one of paper, published; got 'publised'"),
            ({"inference": "l2"}, "inference must be one of cosine, score, names, learned, combined, mlp; got 'l2'"),
            ({"inference": ("score", "score")}, "inference names a value twice: score, score"),
            ({"inference": "names", "metric": "published"}, "inference must be cosine with metric published"),
            ({"unlinked_heads": -1}, "unlinked_heads must be at least 0; got -1"),
        ],
    )
    def test_are_checked(self, wrong: dict, message: str) -> None:
        with pytest.raises(SpecError, match=message):
            KgeAttackOptions(**wrong)

    def test_default_threats(self, planted) -> None:
        assert default_threats("fede") == ("collusion", "identifiers")
        assert default_threats("fedr") == ("collusion", "collusion+entities")
        assert default_threats("single") == ("collusion",)
        rows, _ = reconstruct(planted(), KgeAttackOptions(unlinked_heads=0))
        assert {row.threat_model for row in rows} == {"collusion", "identifiers"}
