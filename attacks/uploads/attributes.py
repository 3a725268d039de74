"""Attribute inference: a server with a colluder's relation rows ranks the answers to a sensitive relation.

Threat model: "identifiers", a server that reads the names of the victims' rows and colludes with one client. Required
knowledge: the colluder's relation rows and triples, and the victim's entity rows. For each entity of a victim the server ranks
the answers to a sensitive relation (`FederatedGraph.sensitive`, such as a patient's diagnosis). Candidates are the tails that
the relation has in the colluder's triples and of which the victim has a row.

Inference methods: `score`, the score of the answer on the victim's rows with the colluder's relation row. `with prior`, that
and the answers' log-frequency in the colluder's triples, both standardized. Where relations are not shared, the colluder's
relation row need not fit the victim's entities. Two methods work without it: `near`, closeness of the two rows, and
`neighbors`, the answers of the colluder's entities, weighted by the cosine of their rows to the victim's entity. RotatE
rows are compared by their moduli: each client's relations turn its entities by angles of their own, so that entities with the
same triples differ in their angles alone.

Limits: on ComplEx, no method finds answers that follow from an entity's other triples. `neighbors` reached an MRR of .13 for 30
of them, where the prior reaches .33 (test MRR .35 and .61).

The questions are triples that nobody trained on (`mrr`, `hits@10`: the embedding implies what it was never trained on) and
triples that the victim trained on (`mrr_trained`, `hits@10_trained`). Other true answers do not count as better, ties are
broken at random, and an answer outside the candidates is a miss. Intervals account for answers that share an entity
(`fkgsec.attacks.membership.intervals`).

Baseline: `prior`, the order of frequency in the colluder's triples. Upper bound: the share of true answers among the
candidates.

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
from fkgsec.attacks.needs import Needs
from fkgsec.attacks.outcomes import of_mean
from fkgsec.attacks.questions import LINKS
from fkgsec.attacks.registry import Attack, Truth, score_each
from fkgsec.attacks.uploads.pairs import closeness
from fkgsec.attacks.view import NotAttacked, claim_each
from fkgsec.estimate import exact
from fkgsec.kge import kinds
from fkgsec.kge.models import KgeModel

WITHIN = 10
WAYS = ("score", "with prior", "near", "neighbors")
# A neighbor has the weight exp(SHARPNESS * cosine).
SHARPNESS = 10.0
# Weight of the prior relative to the neighbors' votes; it orders the answers without votes.
SMOOTHING = 1e-3
METRICS = {
    "mrr": "mean reciprocal rank of a victim's answer to a sensitive relation, of triples that it did not train on",
    f"hits@{WITHIN}": f"such answers among the first {WITHIN}",
    "mrr_trained": "mean reciprocal rank of a victim's answer to a sensitive relation, of triples that it trained on",
    f"hits@{WITHIN}_trained": f"such answers among the first {WITHIN}",
}
Order = Callable[[str], np.ndarray]
"""Scores the candidates as answers for an entity, from its name."""


@dataclass(frozen=True, eq=False)
class Answers:
    """Candidate answers to one relation.

    Attributes:
        candidates: names `[k]`.
        ways: scores of the candidates for an entity by inference method, float64 `[k]`.
        prior: scores that are the same for every entity, float64 `[k]`.
    """

    candidates: np.ndarray
    ways: Mapping[str, Order]
    prior: np.ndarray


@dataclass(frozen=True, eq=False)
class Inferred:
    """An adversary's inferences about a victim.

    Attributes:
        answers: candidate answers by relation name.
        rows: entity names of the victim's rows that the adversary has.
    """

    answers: Mapping[str, Answers]
    rows: frozenset[str] = field(default_factory=frozenset)


def infer(view: KgeView, laboratory: Laboratory, rng: np.random.Generator) -> dict[str, Inferred | NotAttacked]:
    """Prepare the candidate answers of each victim, for any relation that the colluder knows.

    Args:
        view: a view with a colluder and names.
        laboratory: not used; the attack trains nothing.
        rng: not used; the attack draws nothing.

    Returns:
        Inferences by victim name, or why the victim cannot be attacked.
    """
    return claim_each(view.victims, lambda victim: _infer(view.model, view.accomplice, victim))


def _infer(model: KgeModel, colluder: ColluderKnowledge, victim: VictimView) -> Inferred:
    rows, entities, _ = victim.named_entities()
    row_of, answers = {name: row for row, name in enumerate(entities) if name is not None}, {}
    for number, relation in enumerate(colluder.relation_names):
        # The relation's tails in the colluder's triples are the possible answers; their counts are the prior.
        ends = colluder.triples[colluder.triples[:, 1] == number][:, 2]
        numbers, counts = np.unique(ends[ends >= 0], return_counts=True)
        has_row = np.array([name in row_of for name in colluder.entity_names[numbers]], dtype=bool)
        if has_row.any():
            # Only answers whose rows the adversary can compare are candidates.
            candidates = colluder.entity_names[numbers[has_row]]
            prior = np.log(counts[has_row].astype(np.float64))
            examples = _examples(model, colluder, number, candidates)
            ways = _ways(model, rows, row_of, candidates, colluder.relations[number], prior, examples)
            answers[str(relation)] = Answers(candidates, ways, prior)
    return Inferred(answers, frozenset(row_of))


class Examples(NamedTuple):
    """The colluder's triples of one relation whose answers are candidates.

    Attributes:
        names: names of the heads `[m]`.
        rows: rows of the heads as `_comparable` returns them, `[m, .]`.
        answers: indices of the answers among the candidates, int64 `[m]`.
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
        """Score each candidate as the tail of the entity."""
        query = model.query(rows[row_of[entity]][None], relation[None], "tail")
        return model.score_all(query, tails)[0].double().numpy()

    def with_prior(entity: str) -> np.ndarray:
        """Add the candidates' frequency to the score."""
        return in_deviations(score(entity)) + in_deviations(prior)

    def near(entity: str) -> np.ndarray:
        """Score each candidate by closeness to the entity, whatever the relation."""
        return closeness(model, rows[row_of[entity]][None], tails)[0].astype(np.float64)

    def neighbors(entity: str) -> np.ndarray:
        """Let the colluder's similar entities vote for their answers."""
        # Leave out the colluder's own triples of the entity: it knows these without the messages.
        others = examples.names != entity
        cosines = examples.rows[torch.from_numpy(others)] @ compared[row_of[entity]]
        # Softmax-weighted vote of the colluder's heads; the prior breaks ties between answers without votes.
        weights = (SHARPNESS * cosines).softmax(dim=0).double().numpy()
        return np.bincount(examples.answers[others], weights, len(candidates)) + SMOOTHING * shares

    return dict(zip(WAYS, (score, with_prior, near, neighbors), strict=True))


@score_each
def score(truth: Truth, victim: str, claim: Inferred) -> list[Figure]:
    """Compute MRR and hits of a victim for triples of sensitive relations, not trained on and trained on.

    Args:
        claim: the adversary's inferences about it.

    Raises:
        NotAttacked: the data mark no relation as sensitive.
    """
    if not truth.graph.sensitive:
        raise NotAttacked(f"{truth.graph.name} marks no relation as sensitive")
    return [*_figures(truth, victim, claim, ""), *_figures(truth, victim, claim, "_trained")]


def _figures(truth: Truth, victim: str, claim: Inferred, suffix: str) -> list[Figure]:
    """Compute figures of triples with a head whose row the adversary has: trained by the victim, or with no suffix by nobody."""
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
    # All true answers of a head and relation, so that another true answer is not counted as an error (filtered
    # ranking).
    true: dict[tuple[str, str], set[str]] = {}
    for head, relation, tail in client.to_global(client.triples):
        true.setdefault((graph.entities[head], graph.relations[relation]), set()).add(graph.entities[tail])
    ranks = _ranks(claim, questions, true)
    # An answer that is no candidate cannot be reached by any method.
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
    """Rank each answer among the candidates, by each inference method and by the prior.

    Returns: float64 `[q, 2]` by method: the number of candidates above the answer, infinite if it is no candidate, and the
    number that tie with it, including itself.
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
            # Count ties apart from better candidates: the expected rank breaks them at random.
            above, tied = (values > values[answer])[is_answer].sum(), (values == values[answer])[is_answer].sum()
            ranks[way][number] = above, tied
    return ranks


def _reciprocal(above: np.ndarray, tied: np.ndarray) -> np.ndarray:
    """Return the expected reciprocal rank `[q]` if ties are broken at random: the mean of 1 / (above + k) for k from 1 to tied.

    The reciprocal of the mean rank is smaller. With it, a prior under which all candidates tie would lose to a random order.
    """
    reached = np.isfinite(above)
    above = np.where(reached, above, 0.0)
    # sum of 1 / (above + k) for k = 1..tied, as a difference of harmonic numbers.
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
