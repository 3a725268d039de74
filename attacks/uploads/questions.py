"""Triples of a victim that an adversary has to classify, and how well its scores separate those that were trained on.

    questions = draw_questions(truth, "hospital-2", is_askable, rng)
    figures = question_figures(truth, "hospital-2", questions, {"score": scorer}, {"names": guess})

There are two questions. Was a true triple trained on? The members are compared with triples of the victim that nobody ever
trained on, with the same relation and similar degrees (`fkgsec.attacks.membership.controls`): figures `auc`, `tpr@...`. Are two
entities linked at all? Trained triples are compared with random pairs of the victim's entities, with the relation of a trained
triple: figures `auc_pairs`, `tpr_pairs@...`. The second question is easier, since an embedding that generalizes answers it,
too. Only the first one measures what the embedding memorized.

A scorer maps triples of names `[q, 3]` to float64 `[q]`, larger where a triple was more likely trained.

Intervals account for triples that share an entity, and intervals of TPR for the estimated threshold
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
# Largest number of trained triples, and of random pairs.
MOST_ASKED = 5000
# Pseudo-count of a name in a relation.
SMOOTHING = 0.1
METRICS = {
    "auc": "AUC of training triples against true triples that no client trained on",
    **{
        name: f"share of training triples found at a false positive rate of {100 * fpr:g}%, against other true triples"
        for fpr, name in TPR.items()
    },
    "auc_pairs": "AUC of training triples against random pairs",
    **{
        f"{name}_pairs": f"share of training triples found at a false positive rate of {100 * fpr:g}%, against random pairs"
        for fpr, name in TPR.items()
    },
}
ITEMS = {metric: "triples and random pairs" if metric.endswith("_pairs") else "matched triples" for metric in METRICS}


class Questions(NamedTuple):
    """Triples to classify, in the victim's local IDs, int64 `[., 3]`.

    Attributes:
        members, unseen: trained triples, and for each a true one that nobody trained on.
        trained, random: trained triples, and random pairs that no triple of any client links.
        reason: why there are no members.
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
    """Draw the triples that an adversary has to classify.

    Args:
        is_askable: tests local triples `[k, 3]`, bool `[k]`: True if the adversary has the names and rows that it needs.
        rng: draws triples and pairs.
        excluded: local triples that the adversary already knows, int64 `[k, 3]`.
    """
    graph, client = truth.graph, truth.unshuffled(victim)
    train = np.unique(client.train, axis=0)
    if excluded is not None:
        train = train[~contains(excluded, train)]
    # Question 1: matched true triples. Question 2: trained triples and random pairs.
    train, test = (part[is_askable(part)] for part in (train, np.unique(client.test, axis=0)))
    members, unseen, reason = _matched(graph, client, train, test, rng)
    if not len(train):
        return Questions(members, unseen, train, train, reason)
    trained = train[rng.permutation(len(train))[:MOST_ASKED]]
    return Questions(members, unseen, trained, _random_pairs(graph, client, train, is_askable, rng), reason)


def _matched(
    graph: FederatedGraph, client: ClientGraph, train: np.ndarray, test: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, str | None]:
    """Match trained triples with controls. Returns members, controls, and why there are none."""
    none, chosen = train[:0], train[rng.permutation(len(train))[: min(2 * len(test), len(train) // 2)]]
    if not len(chosen):
        return none, none, f"{len(train)} trained triples and {len(test)} others can be asked about; it takes 2 of each"
    elsewhere = trained_elsewhere(graph, client)
    try:
        matched = matched_controls(client, chosen, rng, seen_elsewhere=elsewhere, pool=test)
    # No control matches any trained triple.
    except DataError:
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
    """Draw pairs of trained entities with relations of trained triples, which no client's triple of any split links."""
    ends = rng.integers(0, client.num_trained_entities, size=(4 * MOST_ASKED, 2))
    relations = train[rng.integers(0, len(train), size=len(ends)), 1]
    drawn = np.unique(np.stack([ends[:, 0], relations, ends[:, 1]], axis=1), axis=0)
    everywhere = np.concatenate([other.to_global(other.triples)[:, [0, 2]] for other in graph.clients])
    count = len(graph.entities)
    # A pair that any client links, in either direction, is no negative.
    linked = np.unique(np.concatenate([everywhere @ (count, 1), everywhere[:, ::-1] @ (count, 1)]))
    pairs = client.entity_ids[drawn[:, [0, 2]]]
    drawn = drawn[~np.isin(pairs @ (count, 1), linked) & (pairs[:, 0] != pairs[:, 1]) & is_askable(drawn)]
    return drawn[rng.permutation(len(drawn))[:MOST_ASKED]]


def named(truth: Truth, victim: str, triples: np.ndarray) -> np.ndarray:
    """Convert a victim's local triples to names.

    Args:
        triples: int `[q, 3]`, in the local IDs of `truth.graph`.

    Returns:
        object `[q, 3]`.
    """
    return named_triples(truth.graph, truth.unshuffled(victim), triples)


def names_scorer(auxiliary: np.ndarray) -> Scorer:
    """Build a scorer by how often the names of head and tail occur with the relation.

    Args:
        auxiliary: known triples of names, object `[a, 3]`.
    """
    counts = Counter((end, triple[1], triple[end]) for triple in auxiliary for end in (0, 2))

    def score(triples: np.ndarray) -> np.ndarray:
        """Score triples of names `[q, 3]`, float64 `[q]`."""
        return np.array(
            [sum(np.log(counts[end, triple[1], triple[end]] + SMOOTHING) for end in (0, 2)) for triple in triples]
        )

    return score


def degrees_scorer(auxiliary: np.ndarray) -> Scorer:
    """Build a scorer by the number of known triples of head and tail.

    Args:
        auxiliary: known triples of names, object `[a, 3]`.
    """
    degrees = Counter(name for triple in auxiliary for name in (triple[0], triple[2]))
    return lambda triples: np.array([np.log1p(degrees[head]) + np.log1p(degrees[tail]) for head, _, tail in triples])


def question_figures(
    truth: Truth, victim: str, questions: Questions, ways: Mapping[str, Scorer], guesses: Mapping[str, Scorer]
) -> list[Figure]:
    """Compute AUC and TPR of both questions, by each inference method and by the strongest.

    Args:
        questions: triples to classify.
        ways: scorers by inference method.
        guesses: baselines besides chance, by name.
    """
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
        # Score members and controls in one pass, then split them.
        scores, guessed = (
            {name: (values[:m], values[m:]) for name, scorer in scorers.items() for values in (scorer(names),)}
            for scorers in (ways, guesses)
        )
        figures += score_figures(
            truth, f"auc{suffix}", victim, scores, guessed, ends, None, m + c, attainable=1.0, counts=counts
        )
        for max_fpr, name in TPR.items():
            metric = f"{name}{suffix}"
            # A false-positive rate below one control cannot be measured.
            if math.floor(max_fpr * c + 1e-9) < 1:
                reason = f"{max_fpr:.1%} false alarms take {math.ceil(1 / max_fpr):,} others; {c:,} can be asked about"
                figures.append(truth.figure(metric, victim, reason=reason, counts=counts))
            else:
                figures += score_figures(
                    truth, metric, victim, scores, guessed, ends, max_fpr, m, attainable=1.0, counts=counts
                )
    return figures
