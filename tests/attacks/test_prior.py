"""The adversary without embeddings who reads names."""

import math

import numpy as np
import torch

from attacks.evaluation import AttackOptions, attack_federation
from attacks.prior import guess_relations
from attacks.view import ColluderKnowledge


def knowledge(triples: list[tuple[int, int, int]]) -> ColluderKnowledge:
    names, relations = np.array(["c", "a", "b"]), np.array(["likes", "owns"])
    empty = torch.zeros(3, 1)
    return ColluderKnowledge(names, empty, empty, relations, torch.zeros(2, 1), np.array(triples))


TRIPLES = [(1, 0, 2), (1, 0, 2), (1, 1, 0), (2, 1, 0), (-1, 0, 2), (0, 0, -1)]


def test_against_the_formula_written_out() -> None:
    known = knowledge(TRIPLES)
    heads, tails = np.array(["a", "b", "a", "stranger", "c"]), np.array(["b", "c", "c", "nobody", "b"])
    expected = []
    for head, tail in zip(heads, tails, strict=True):
        scores = []
        for relation in (0, 1):
            score = math.log(sum(r == relation for _, r, _ in TRIPLES))
            for column, name in ((0, head), (2, tail)):
                if name in known.entity_names:
                    place = known.entity_names.tolist().index(name)
                    at_name = sum(t[1] == relation and t[column] == place for t in TRIPLES)
                    of_relation = sum(t[1] == relation and t[column] >= 0 for t in TRIPLES)
                    score += math.log((at_name + 1) / (of_relation + 3))
            scores.append(score)
        expected.append(known.relation_names[int(np.argmax(scores))])
    assert guess_relations(known, heads, tails).tolist() == expected
    assert set(expected) == {"likes", "owns"}


def test_it_is_beside_every_figure_and_counts_only_where_names_are_known(trained_runs) -> None:
    rows, _ = attack_federation(trained_runs["fede"], AttackOptions(threat=("collusion", "identifiers"), leak=(1.0,)))
    for row in rows:
        if row.threat_model == "collusion":
            assert row.trr_prior == row.trr_baseline
        else:
            assert row.trr_prior.value > row.trr_baseline.value
