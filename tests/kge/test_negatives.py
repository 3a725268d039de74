"""Known triples against a dictionary of sets; negatives against what a careful person would draw from a hat."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fkgsec.kge import kernels
from fkgsec.kge.models import Side
from fkgsec.kge.negatives import KnownTriples, NegativeSampler

SIDES: tuple[Side, ...] = ("tail", "head")
NUM_RELATIONS = 3
every_side = pytest.mark.parametrize("side", SIDES)
triple_lists = st.lists(st.tuples(st.integers(0, 5), st.integers(0, NUM_RELATIONS - 1), st.integers(0, 5)), max_size=30)


def as_triples(rows: list[tuple[int, int, int]]) -> np.ndarray:
    return np.array(rows, dtype=np.int64).reshape(-1, 3)


def completions(triples: np.ndarray, side: Side) -> dict[tuple[int, int], set[int]]:
    """For each (anchor, relation), the entities that complete it."""
    found: dict[tuple[int, int], set[int]] = defaultdict(set)
    for head, relation, tail in triples.tolist():
        anchor, member = (head, tail) if side == "tail" else (tail, head)
        found[anchor, relation].add(member)
    return found


def anchor_of(triple: list[int], side: Side) -> tuple[int, int]:
    return (triple[0] if side == "tail" else triple[2], triple[1])


@every_side
class TestKnownTriples:
    @settings(max_examples=60, deadline=None)
    @given(rows=triple_lists, asked=triple_lists)
    def test_equals_a_dictionary_of_sets(
        self, side: Side, rows: list[tuple[int, int, int]], asked: list[tuple[int, int, int]]
    ) -> None:
        known = KnownTriples.build(as_triples(rows), side, NUM_RELATIONS)
        expected = completions(as_triples(rows), side)
        questions = as_triples(rows + asked)  # known and, mostly, unknown ones
        groups = known.groups(questions)
        for triple, group in zip(questions.tolist(), groups, strict=True):
            members = known.members[known.start[group] : known.start[group + 1]].tolist()
            assert members == sorted(expected.get(anchor_of(triple, side), set()))
        position, member = known.expand(groups)
        pairs = [
            (place, entity)
            for place, triple in enumerate(questions.tolist())
            for entity in sorted(expected.get(anchor_of(triple, side), set()))
        ]
        assert list(zip(position.tolist(), member.tolist(), strict=True)) == pairs

    def test_ids_beyond_32_bits_of_key(self, side: Side) -> None:
        triples = as_triples([(3_000_000, 999, 3_000_001), (3_000_001, 0, 3_000_000)])
        known = KnownTriples.build(triples, side, num_relations=1000)
        position, member = known.expand(known.groups(triples))
        assert position.tolist() == [0, 1]
        assert member.tolist() == triples[:, 2 if side == "tail" else 0].tolist()


# Entities 0 to 19, of which the client draws from the even ones: (0, 0) has three known tails, one of them odd.
TRAIN = as_triples([(0, 0, 2), (0, 0, 4), (0, 0, 7), (0, 1, 6), (8, 0, 2), (10, 1, 6)])
CANDIDATES = np.arange(0, 20, 2)
# What is false and can be drawn for each training triple.
DRAWABLE = {
    "tail": [set(range(0, 20, 2)) - known for known in ({2, 4}, {2, 4}, {2, 4}, {6}, {2}, {6})],
    "head": [set(range(0, 20, 2)) - known for known in ({0, 8}, {0}, {0}, {0, 10}, {0, 8}, {0, 10})],
}


def sampler(candidates: np.ndarray = CANDIDATES, train: np.ndarray = TRAIN) -> NegativeSampler:
    return NegativeSampler(train, num_relations=NUM_RELATIONS, candidates=candidates)


@every_side
class TestNegativeSampler:
    @settings(max_examples=40, deadline=None)
    @given(rows=triple_lists.filter(bool), seed=st.integers(0, 2**32 - 1))
    def test_a_negative_is_a_candidate_and_never_true(
        self, side: Side, rows: list[tuple[int, int, int]], seed: int
    ) -> None:
        train, candidates = as_triples(rows), np.array([0, 2, 3, 5])
        order = np.random.default_rng(seed).permutation(len(train))
        negatives = sampler(candidates, train).sample(order, 20, side, np.random.default_rng(seed))
        assert negatives.shape == (len(train), 20)
        true = completions(train, side)
        for triple, drawn in zip(train[order].tolist(), negatives.tolist(), strict=True):
            assert set(drawn) <= {-1, 0, 2, 3, 5} - true[anchor_of(triple, side)]

    def test_uniform_over_what_is_false(self, side: Side) -> None:
        rows = np.arange(len(TRAIN))
        negatives = sampler().sample(rows, 20_000, side, np.random.default_rng(0)).numpy()
        for drawn, expected in zip(negatives, DRAWABLE[side], strict=True):
            values, counts = np.unique(drawn[drawn >= 0], return_counts=True)
            assert set(values.tolist()) == expected
            assert stats.chisquare(counts).pvalue > 1e-3
            # What is true is masked, and nothing is drawn in its place.
            assert (
                stats.binomtest(int((drawn == -1).sum()), len(drawn), 1 - len(expected) / len(CANDIDATES)).pvalue > 1e-3
            )


@every_side
def test_negatives_are_those_of_a_machine_without_numba(side: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against sets of known triples, among candidates that are not all entities."""
    rng = np.random.default_rng(3)
    triples = as_triples([tuple(row) for row in rng.integers(0, [6, NUM_RELATIONS, 6], size=(25, 3)).tolist()])
    pool, rows = np.array([0, 2, 3, 5]), np.array([4, 4, 19])
    sampler = NegativeSampler(triples, num_relations=NUM_RELATIONS, candidates=pool)
    known = completions(triples, side)
    drawn = pool[np.random.default_rng(8).integers(0, 4, size=(3, 40), dtype=np.int32)]
    taken = [known[anchor_of(triples[row].tolist(), side)] for row in rows]
    expected = [[-1 if one in out else one for one in line] for line, out in zip(drawn.tolist(), taken, strict=True)]
    for compiled in (True, False):
        monkeypatch.setattr(kernels, "numba_is_there", lambda compiled=compiled: compiled)
        assert sampler.sample(rows, 40, side, np.random.default_rng(8)).tolist() == expected
