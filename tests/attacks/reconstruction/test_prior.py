"""The adversary without embeddings who reads names."""

import math

import numpy as np
import torch

from fkgsec.attacks.kge.view import ColluderKnowledge
from fkgsec.attacks.options import KgeAttackOptions
from fkgsec.attacks.reconstruction.prior import SMOOTHINGS, fit_names
from tests.attacks.pairs import reconstruct


def knowledge(triples: list[tuple[int, int, int]]) -> ColluderKnowledge:
    names, relations = np.array(["c", "a", "b"]), np.array(["likes", "owns"])
    empty = torch.zeros(3, 1)
    return ColluderKnowledge(names, empty, empty, relations, torch.zeros(2, 1), np.array(triples))


TRIPLES = [(1, 0, 2), (1, 0, 2), (1, 1, 0), (2, 1, 0), (-1, 0, 2), (0, 0, -1)]


def by_hand(
    known: ColluderKnowledge, triples: list[tuple[int, int, int]], head: str, tail: str, smoothing: float
) -> list[float]:
    """The log-posterior of each relation for two names, from a list of triples, written out."""
    scores = []
    for relation in range(len(known.relation_names)):
        score = math.log(sum(r == relation for _, r, _ in triples))
        for column, name in ((0, head), (2, tail)):
            if name in known.entity_names:
                place = known.entity_names.tolist().index(name)
                at_name = sum(t[1] == relation and t[column] == place for t in triples)
                of_relation = sum(t[1] == relation and t[column] >= 0 for t in triples)
                score += math.log((at_name + smoothing) / (of_relation + len(known.entity_names) * smoothing))
        scores.append(score)
    total = math.log(sum(map(math.exp, scores)))
    return [score - total for score in scores]


def test_against_the_formula_written_out() -> None:
    known = knowledge(TRIPLES)
    heads, tails = np.array(["a", "b", "a", "stranger", "c"]), np.array(["b", "c", "c", "nobody", "b"])
    names = fit_names(known)
    expected = [by_hand(known, TRIPLES, head, tail, names.smoothing) for head, tail in zip(heads, tails, strict=True)]
    np.testing.assert_allclose(names.log_posterior(heads, tails), expected, rtol=1e-5, atol=1e-6)
    guesses = known.relation_names[np.argmax(expected, axis=1)]
    assert names.predict(heads, tails).tolist() == guesses.tolist()
    assert set(guesses) == {"likes", "owns"}
    assert names.predict(heads[:0], tails[:0]).shape == (0,)


def test_the_smoothing_is_the_likeliest_with_each_triple_left_out() -> None:
    rng = np.random.default_rng(3)
    triples = [
        tuple(map(int, row))
        for row in np.stack([rng.integers(-1, 3, 40), rng.integers(0, 2, 40), rng.integers(-1, 3, 40)], 1)
    ]
    known, likelihood = knowledge(triples), {}
    for smoothing in SMOOTHINGS:
        total = 0.0
        for place, (head, relation, tail) in enumerate(triples):
            rest = triples[:place] + triples[place + 1 :]
            ends = (str(known.entity_names[end]) if end >= 0 else "nobody" for end in (head, tail))
            total += by_hand(known, rest, *ends, smoothing)[relation]
        likelihood[smoothing] = total
    assert fit_names(known).smoothing == max(likelihood, key=lambda one: likelihood[one])
    assert len({round(value, 3) for value in likelihood.values()}) == len(SMOOTHINGS)


def test_names_that_fix_their_relation_are_smoothed_less_than_names_that_say_nothing() -> None:
    fixed = [(place, place % 2, -1) for place in (0, 1, 2) for _ in range(30)]
    rng = np.random.default_rng(0)
    nothing = [(int(rng.integers(3)), int(rng.integers(2)), -1) for _ in range(90)]
    assert fit_names(knowledge(fixed)).smoothing < fit_names(knowledge(nothing)).smoothing == 1


def test_a_relation_that_occurs_once_does_not_stop_it() -> None:
    names = fit_names(knowledge([(0, 0, 1), (1, 1, 2)]))
    assert names.smoothing in SMOOTHINGS
    assert np.isfinite(names.log_posterior(np.array(["c", "a"]), np.array(["a", "b"]))).all()


def test_it_is_beside_every_figure_and_counts_only_where_names_are_known(trained_runs) -> None:
    rows, _ = reconstruct(
        trained_runs["fede"], KgeAttackOptions(threat=("collusion", "identifiers"), leak=(1.0,), unlinked_heads=0)
    )
    for row in rows:
        if row.threat_model == "collusion":
            assert row.trr.guesses["prior"] == row.trr.guesses["majority"]
        else:
            assert row.trr.guesses["prior"].value > row.trr.guesses["majority"].value
