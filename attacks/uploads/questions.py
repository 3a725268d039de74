"""Triples of a victim that an adversary is asked about, and how well its scores tell those that were trained on.

    asked = draw_questions(truth, "hospital-2", known, rng)
    figures = question_figures(truth, "hospital-2", asked, {"score": scorer}, {"names": guess})

Two questions. Was a true triple trained on? Members and triples of the victim that nobody ever trained on, of the same relation
and of like degrees (`fkgsec.attacks.membership.controls`): figures `auc`, `tpr@...`. Are two entities linked at all? Trained
triples and random pairs of the victim's entities, with the relation of a trained triple: figures `auc_pairs`, `tpr_pairs@...`.
The second is easier, since an embedding that generalises answers it, too; the first is the one that goes by what a client holds.

A scorer takes triples of names `[q, 3]` and gives float64 `[q]`, larger where it takes one for trained.

Intervals count that triples which share an entity are scored alike, and those of TPR that the threshold is drawn, too
(`fkgsec.attacks.membership.intervals`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from fkgsec.attacks.figure import Figure
from fkgsec.attacks.membership.audits import contains, named_triples, trained_elsewhere
from fkgsec.attacks.membership.controls import matched_controls
from fkgsec.attacks.membership.evaluation import TPR, score_figures
from fkgsec.attacks.registry import Truth
from fkgsec.data.graph import ClientGraph, FederatedGraph
from fkgsec.errors import DataError

Scorer = Callable[[np.ndarray], np.ndarray]
MOST_ASKED = 5000  # of trained triples, and of random pairs
SMOOTHING = 0.1  # added to every count of a name in a relation
METRICS = {
    "auc": "AUC of trained triples among true ones that nobody trained on",
    **{
        name: f"trained triples found at {100 * fpr:g} % false alarms, of true ones that nobody trained on"
        for fpr, name in TPR.items()
    },
    "auc_pairs": "AUC of trained triples among random pairs",
    **{
        f"{name}_pairs": f"trained triples found at {100 * fpr:g} % false alarms among random pairs"
        for fpr, name in TPR.items()
    },
}
ITEMS = {metric: "triples and random pairs" if metric.endswith("_pairs") else "matched triples" for metric in METRICS}


class Questions(NamedTuple):
    """Triples in the victim's local ids, int64 `[., 3]`.

    Attributes:
        members, unseen: trained ones, and for each a true one that nobody trained on. reason: why there are none.
        trained, random: trained triples, and random pairs that no triple of any client links.
    """

    members: np.ndarray
    unseen: np.ndarray
    trained: np.ndarray
    random: np.ndarray
    reason: str | None = None


def draw_questions(
    truth: Truth,
    victim: str,
    is_askable: Callable[[np.ndarray], np.ndarray],
    rng: np.random.Generator,
    excluded: np.ndarray | None = None,
) -> Questions:
    """Draw what is asked of a victim.

    Args:
        is_askable: tests local triples `[k, 3]`, bool `[k]`: whether the adversary has the names and rows to be asked.
        excluded: int64 `[k, 3]`, local triples that it was told.
    """
    graph, client = truth.graph, truth.own(victim)
    train = np.unique(client.train, axis=0)
    if excluded is not None:
        train = train[~contains(excluded, train)]
    train, test = (part[is_askable(part)] for part in (train, np.unique(client.test, axis=0)))
    members, unseen, reason = _matched(graph, client, train, test, rng)
    if not len(train):
        return Questions(members, unseen, train, train, reason)
    trained = train[rng.permutation(len(train))[:MOST_ASKED]]
    return Questions(members, unseen, trained, _random_pairs(graph, client, train, is_askable, rng), reason)


def _matched(
    graph: FederatedGraph, client: ClientGraph, train: np.ndarray, test: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, str | None]:
    """Members, controls, and why there are none."""
    none, chosen = train[:0], train[rng.permutation(len(train))[: min(2 * len(test), len(train) // 2)]]
    if not len(chosen):
        return none, none, f"{len(train)} trained triples and {len(test)} others can be asked about; it takes 2 of each"
    elsewhere = trained_elsewhere(graph, client)
    try:
        matched = matched_controls(client, chosen, rng, seen_elsewhere=elsewhere, pool=test)
    except DataError:  # none of them is like another
        reason = f"of {len(test)} triples that nobody trained on none is like one of {len(chosen)} trained ones"
        return none, none, reason
    if len(matched.rows) < 2:
        return none, none, f"{len(matched.rows)} trained triples with a control that nobody trained on; it takes 2"
    return chosen[matched.rows], matched.triples, None


def _random_pairs(
    graph: FederatedGraph,
    client: ClientGraph,
    train: np.ndarray,
    is_askable: Callable[[np.ndarray], np.ndarray],
    rng: np.random.Generator,
) -> np.ndarray:
    """Pairs of trained entities with relations of trained triples, which no client's triple of any split links."""
    ends = rng.integers(0, client.num_trained_entities, size=(4 * MOST_ASKED, 2))
    relations = train[rng.integers(0, len(train), size=len(ends)), 1]
    drawn = np.unique(np.stack([ends[:, 0], relations, ends[:, 1]], axis=1), axis=0)
    everywhere = np.concatenate([other.to_global(other.triples)[:, [0, 2]] for other in graph.clients])
    count = len(graph.entities)
    linked = np.unique(np.concatenate([everywhere @ (count, 1), everywhere[:, ::-1] @ (count, 1)]))
    pairs = client.entity_ids[drawn[:, [0, 2]]]
    drawn = drawn[~np.isin(pairs @ (count, 1), linked) & (pairs[:, 0] != pairs[:, 1]) & is_askable(drawn)]
    return drawn[rng.permutation(len(drawn))[:MOST_ASKED]]


def named(truth: Truth, victim: str, triples: np.ndarray) -> np.ndarray:
    """Local triples `[q, 3]` of a victim, in the order of the data, as names, object `[q, 3]`."""
    return named_triples(truth.graph, truth.own(victim), triples)


def names_scorer(auxiliary: np.ndarray) -> Scorer:
    """Score by how often the head's and the tail's names stand in the relation, in known triples of names, object `[a, 3]`."""
    counts = Counter((end, triple[1], triple[end]) for triple in auxiliary for end in (0, 2))

    def score(triples: np.ndarray) -> np.ndarray:
        return np.array(
            [sum(np.log(counts[end, triple[1], triple[end]] + SMOOTHING) for end in (0, 2)) for triple in triples]
        )

    return score


def degrees_scorer(auxiliary: np.ndarray) -> Scorer:
    """Score by how many known triples of names, object `[a, 3]`, the head and the tail stand in."""
    degrees = Counter(name for triple in auxiliary for name in (triple[0], triple[2]))
    return lambda triples: np.array([np.log1p(degrees[head]) + np.log1p(degrees[tail]) for head, _, tail in triples])


def question_figures(
    truth: Truth, victim: str, questions: Questions, ways: Mapping[str, Scorer], guesses: Mapping[str, Scorer]
) -> list[Figure]:
    """AUC and TPR of both questions, by each way and by the strongest; the guesses and chance are the baselines."""
    figures = []
    parts = (
        ("", questions.members, questions.unseen, questions.reason),
        ("_pairs", questions.trained, questions.random, None),
    )
    for suffix, trained, others, reason in parts:
        m, c = len(trained), len(others)
        if reason is None and min(m, c) < 2:
            reason = f"{m} trained triples and {c} others can be asked about; it takes 2 of each"
        if reason is not None:
            figures += truth.not_attacked(victim, reason, [f"{metric}{suffix}" for metric in ("auc", *TPR.values())])
            continue
        triples, counts = np.concatenate([trained, others]), {"trained": m, "others": c}
        names, ends = named(truth, victim, triples), triples[:, [0, 2]]
        scores, guessed = (
            {name: (values[:m], values[m:]) for name, scorer in scorers.items() for values in (scorer(names),)}
            for scorers in (ways, guesses)
        )
        figures += score_figures(
            truth, f"auc{suffix}", victim, scores, guessed, ends, None, m + c, attainable=1.0, counts=counts
        )
        for max_fpr, name in TPR.items():
            metric = f"{name}{suffix}"
            if math.floor(max_fpr * c + 1e-9) < 1:
                reason = f"{max_fpr:.1%} false alarms take {math.ceil(1 / max_fpr):,} others; {c:,} can be asked about"
                figures.append(truth.figure(metric, victim, reason=reason, counts=counts))
            else:
                figures += score_figures(
                    truth, metric, victim, scores, guessed, ends, max_fpr, m, attainable=1.0, counts=counts
                )
    return figures
