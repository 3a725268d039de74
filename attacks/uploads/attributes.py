"""Attribute inference: a server with a colluder's relation rows ranks the answers to a sensitive relation.

Threat model: "identifiers", a server that reads the names of the victims' rows and has a colluder's relation rows and triples.
For each entity of a victim it orders the answers to a sensitive relation (`FederatedGraph.sensitive`, such as a patient's
diagnosis): the tails that the relation has in the colluder's triples and that the victim has a row of.

`score`: of the answer on the victim's rows, by the colluder's relation row. `with prior`: that and the answers' log-frequency in
the colluder's triples, both in deviations. Where relations stay at home, the colluder's relation row need not fit the victim's
entities. Two ways do without it: `near`, closeness of the two rows, and `neighbors`, the answers of the colluder's entities,
weighted by the cosine of their rows to the victim's entity. Of RotatE, `neighbors` compares moduli: each client's relations turn
its entities by angles of their own, so that entities with the same triples differ in their angles alone.

Limits: on ComplEx, no way finds answers that follow from other triples. `neighbors` reached an MRR of .13 for 30 of them, where
the prior reaches .33 (test MRR .35 and .61).

Asked are triples that nobody trained on (`mrr`, `hits@10`: inference of what the embedding was not told) and those that the
victim trained on (`mrr_trained`, `hits@10_trained`). Other true answers do not count as better ones, ties are broken at random,
and an answer outside the candidates is missed. Intervals count that several answers of one entity, and several entities with one
answer, go well or badly together (`fkgsec.attacks.membership.intervals`).

Baseline: `prior`, the order of frequency in the colluder's triples. The most: the share of true answers among the candidates.

Source: ours, after attribute inference from embeddings of knowledge graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from scipy.special import digamma
from torch import Tensor
from torch.nn.functional import normalize

from fkgsec.attacks.arrays import in_deviations
from fkgsec.attacks.figure import Figure
from fkgsec.attacks.kge.view import ColluderKnowledge, KgeView, VictimView
from fkgsec.attacks.laboratory import Laboratory
from fkgsec.attacks.membership.intervals import dyadic_mean
from fkgsec.attacks.outcomes import of_mean
from fkgsec.attacks.questions import LINKS
from fkgsec.attacks.registry import Attack, Needs, Truth, score_each
from fkgsec.attacks.uploads.pairs import closeness
from fkgsec.attacks.view import NotAttacked, claim_each
from fkgsec.estimate import exact
from fkgsec.kge import kinds
from fkgsec.kge.models import KgeModel

WITHIN = 10
WAYS = ("score", "with prior", "near", "neighbors")
SHARPNESS = 10.0  # of a neighbor's weight exp(SHARPNESS * cosine)
SMOOTHING = 1e-3  # weight of the prior beside the neighbors' answers, so that it orders what no neighbor has
METRICS = {
    "mrr": "mean reciprocal rank of a victim's answer to a sensitive relation, of triples that it did not train on",
    f"hits@{WITHIN}": f"such answers among the first {WITHIN}",
    "mrr_trained": "mean reciprocal rank of a victim's answer to a sensitive relation, of triples that it trained on",
    f"hits@{WITHIN}_trained": f"such answers among the first {WITHIN}",
}
Order = Callable[[str], np.ndarray]
"""Scores of the candidates as answers for an entity, by its name."""


@dataclass(frozen=True, eq=False)
class Answers:
    """To one relation: candidates, names `[k]`; by way their scores for an entity, float64 `[k]`; `prior`: of any entity."""

    candidates: np.ndarray
    ways: Mapping[str, Order]
    prior: np.ndarray


@dataclass(frozen=True, eq=False)
class Inferred:
    """An adversary's inferences about a victim: answers by relation, and the names that it has a row of."""

    answers: Mapping[str, Answers]
    rows: frozenset[str] = field(default_factory=frozenset)


def infer(view: KgeView, laboratory: Laboratory, rng: np.random.Generator) -> dict[str, Inferred | NotAttacked]:
    """Prepare the answers of each victim to any relation that the colluder knows."""
    return claim_each(view.victims, lambda victim: _infer(view.model, view.accomplice, victim))


def _infer(model: KgeModel, colluder: ColluderKnowledge, victim: VictimView) -> Inferred:
    rows, entities, _ = victim.named_entities()
    row_of, answers = {name: row for row, name in enumerate(entities) if name is not None}, {}
    for number, relation in enumerate(colluder.relation_names):
        ends = colluder.triples[colluder.triples[:, 1] == number][:, 2]
        numbers, counts = np.unique(ends[ends >= 0], return_counts=True)
        has_row = np.array([name in row_of for name in colluder.entity_names[numbers]], dtype=bool)
        if has_row.any():
            candidates = colluder.entity_names[numbers[has_row]]
            prior = np.log(counts[has_row].astype(np.float64))
            examples = _examples(model, colluder, number, candidates)
            ways = _ways(model, rows, row_of, candidates, colluder.relations[number], prior, examples)
            answers[str(relation)] = Answers(candidates, ways, prior)
    return Inferred(answers, frozenset(row_of))


class Examples(NamedTuple):
    """The colluder's triples of one relation whose answers are candidates: names and rows `[m, W]` of heads, and the answers.

    Rows are those of `_comparable`. Answers are int64 `[m]` indices of candidates.
    """

    names: np.ndarray
    rows: Tensor
    answers: np.ndarray


def _comparable(model: KgeModel, rows: Tensor) -> Tensor:
    """Return what rows `[n, W]` of different clients have in common whatever their relations are, of length 1."""
    if model.similarity == kinds.MODULUS:
        rows = torch.hypot(*rows.chunk(2, dim=1))
    return normalize(rows, dim=1)


def _examples(model: KgeModel, colluder: ColluderKnowledge, relation: int, candidates: np.ndarray) -> Examples:
    triples = colluder.triples[(colluder.triples[:, 1] == relation) & (colluder.triples[:, [0, 2]] >= 0).all(axis=1)]
    index_of = {name: index for index, name in enumerate(candidates)}
    answers = np.array([index_of.get(name, -1) for name in colluder.entity_names[triples[:, 2]]], dtype=np.int64)
    heads = triples[answers >= 0, 0]
    rows = _comparable(model, colluder.entities[torch.from_numpy(heads)])
    return Examples(colluder.entity_names[heads], rows, answers[answers >= 0])


def _ways(
    model: KgeModel,
    rows: Tensor,
    row_of: Mapping[str, int],
    candidates: np.ndarray,
    relation: Tensor,
    prior: np.ndarray,
    examples: Examples,
) -> dict[str, Order]:
    tails, compared = rows[[row_of[name] for name in candidates]], _comparable(model, rows)
    shares = np.exp(prior) / np.exp(prior).sum()

    def score(entity: str) -> np.ndarray:
        query = model.query(rows[row_of[entity]][None], relation[None], "tail")
        return model.score_all(query, tails)[0].double().numpy()

    def with_prior(entity: str) -> np.ndarray:
        return in_deviations(score(entity)) + in_deviations(prior)

    def near(entity: str) -> np.ndarray:
        return closeness(model, rows[row_of[entity]][None], tails)[0].astype(np.float64)

    def neighbors(entity: str) -> np.ndarray:
        others = examples.names != entity  # what the colluder has of the entity itself, it knows without the messages
        cosines = examples.rows[torch.from_numpy(others)] @ compared[row_of[entity]]
        weights = (SHARPNESS * cosines).softmax(dim=0).double().numpy()
        return np.bincount(examples.answers[others], weights, len(candidates)) + SMOOTHING * shares

    return dict(zip(WAYS, (score, with_prior, near, neighbors), strict=True))


@score_each
def score(truth: Truth, victim: str, claim: Inferred) -> list[Figure]:
    """MRR and hits of a victim, of the triples of sensitive relations, not trained on and trained on."""
    if not truth.graph.sensitive:
        raise NotAttacked(f"{truth.graph.name} marks no relation as sensitive")
    return [*_figures(truth, victim, claim, ""), *_figures(truth, victim, claim, "_trained")]


def _figures(truth: Truth, victim: str, claim: Inferred, suffix: str) -> list[Figure]:
    """Figures of triples with a head that the adversary has a row of: that the victim, or with no suffix nobody, trained on."""
    client, graph = truth.client(victim), truth.graph
    trained = {tuple(triple) for trainer in graph.clients for triple in trainer.to_global(trainer.train).tolist()}
    questions = [
        (graph.entities[head], graph.relations[relation], graph.entities[tail])
        for head, relation, tail in np.unique(client.to_global(client.train if suffix else client.test), axis=0)
        if suffix or (head, relation, tail) not in trained
    ]
    questions = [triple for triple in questions if triple[1] in graph.sensitive and triple[0] in claim.rows]
    metrics = [f"mrr{suffix}", f"hits@{WITHIN}{suffix}"]
    if not questions:
        what = "trained on" if suffix else "that nobody trained on"
        reason = f"it has no triple of a sensitive relation {what} whose head was seen"
        return truth.not_attacked(victim, reason, metrics)
    true: dict[tuple[str, str], set[str]] = {}
    for head, relation, tail in client.to_global(client.triples):
        true.setdefault((graph.entities[head], graph.relations[relation]), set()).add(graph.entities[tail])
    ranks = _ranks(claim, questions, true)
    reachable = float(np.isfinite(ranks["prior"]).all(axis=1).mean())
    ends = np.unique([[head, tail] for head, _, tail in questions], return_inverse=True)[1].reshape(-1, 2)
    figures = []
    for metric, values in (
        (metrics[0], {way: _reciprocal(*of_way.T) for way, of_way in ranks.items()}),
        (metrics[1], {way: np.clip((WITHIN - of_way[:, 0]) / of_way[:, 1], 0.0, 1.0) for way, of_way in ranks.items()}),
    ):
        prior = {"prior": exact(float(values.pop("prior").mean()), len(questions))}
        ways = {way: partial(dyadic_mean, of_way, ends) for way, of_way in values.items()}
        figures += truth.figures(
            metric, victim, ways, prior, outcomes=lambda way, values=values: of_mean(values[way], ends),
            attainable=reachable, counts={"triples": len(questions)},
        )  # fmt: skip
    return figures


def _ranks(
    claim: Inferred, questions: list[tuple[str, str, str]], true: Mapping[tuple[str, str], set[str]]
) -> dict[str, np.ndarray]:
    """Rank each answer among the candidates by each way and by the prior.

    Returns: by way, float64 `[q, 2]`, the number of candidates above the answer, infinite where it is no candidate, and of those
    that tie with it, itself included.
    """
    ranks = {way: np.tile([np.inf, 1.0], (len(questions), 1)) for way in (*WAYS, "prior")}
    for number, (head, relation, tail) in enumerate(questions):
        answers = claim.answers.get(relation)
        if answers is None or tail not in answers.candidates:
            continue
        others = true[head, relation] - {tail}
        is_answer = np.array([name not in others for name in answers.candidates])
        answer = int(np.flatnonzero(answers.candidates == tail)[0])
        scores = {"prior": answers.prior} | {way: order(head) for way, order in answers.ways.items()}
        for way, values in scores.items():
            above, tied = (values > values[answer])[is_answer].sum(), (values == values[answer])[is_answer].sum()
            ranks[way][number] = above, tied
    return ranks


def _reciprocal(above: np.ndarray, tied: np.ndarray) -> np.ndarray:
    """Expected reciprocal rank `[q]` if ties are broken at random: the mean of 1 / (above + k) over k from 1 to tied.

    The reciprocal of the mean rank is less. A prior under which all candidates tie would then lose to a random order.
    """
    reached = np.isfinite(above)
    above = np.where(reached, above, 0.0)
    return np.where(reached, (digamma(above + tied + 1) - digamma(above + 1)) / tied, 0.0)


ATTACK = Attack(
    "attributes",
    "ranks the answers to sensitive relations for a victim's entities",
    Needs(colluder=True, names=True, entities=True, server=True),
    METRICS,
    infer,
    score,
    threats=("identifiers",),
    questions=dict.fromkeys(METRICS, LINKS),
    items=dict.fromkeys(METRICS, "triples of sensitive relations"),
    redrawn=True,
)
