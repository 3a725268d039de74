"""What does a sensitive relation say of a victim's entity? Ranked by a server with a colluder's relation rows.

Threat model: "identifiers", a server that reads the names of the victims' rows and has a colluder's relation rows and triples.
For each entity of a victim it orders the answers to a sensitive relation (`FederatedGraph.sensitive`, such as a patient's
diagnosis): the tails that the relation has in the colluder's triples and that the victim has a row of.

`score`: of the answer on the victim's rows, by the colluder's relation row. `with prior`: that and the answers' log-frequency in
the colluder's triples, both in deviations. Asked are triples that nobody trained on (`mrr`, `hits@10`: inference of what the
embedding was not told) and those that the victim trained on (`mrr_trained`, `hits@10_trained`). Other true answers do not count
as better ones, and an answer outside the candidates is missed. Intervals count that several answers of one entity,
and several entities with one answer, go well or badly together (`fkgsec.attacks.membership.intervals`).

Baseline: `prior`, the order of frequency in the colluder's triples. The most: the share of true answers among the candidates.

Source: ours, after attribute inference from embeddings of knowledge graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from torch import Tensor

from fkgsec.attacks.arrays import in_deviations
from fkgsec.attacks.figure import Figure
from fkgsec.attacks.kge.view import ColluderKnowledge, KgeView, VictimView
from fkgsec.attacks.laboratory import Laboratory
from fkgsec.attacks.membership.intervals import dyadic_mean
from fkgsec.attacks.outcomes import of_mean
from fkgsec.attacks.questions import LINKS
from fkgsec.attacks.registry import Attack, Needs, Truth, score_each
from fkgsec.attacks.view import NotAttacked, claim_each
from fkgsec.estimate import exact
from fkgsec.kge.models import KgeModel

WITHIN = 10
METRICS = {
    "mrr": "mean reciprocal rank of a victim's answer to a sensitive relation, of triples that it did not train on",
    f"hits@{WITHIN}": f"such answers among the first {WITHIN}",
    "mrr_trained": "mean reciprocal rank of a victim's answer to a sensitive relation, of triples that it trained on",
    f"hits@{WITHIN}_trained": f"such answers among the first {WITHIN}",
}
Order = Callable[[str], np.ndarray]
"""Of an entity's name the score of each candidate."""


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
            answers[str(relation)] = _answers(model, rows, row_of, candidates, colluder.relations[number], prior)
    return Inferred(answers, frozenset(row_of))


def _answers(
    model: KgeModel, rows: Tensor, place: Mapping[str, int], candidates: np.ndarray, relation: Tensor, prior: np.ndarray
) -> Answers:
    tails = rows[[place[name] for name in candidates]]

    def score(entity: str) -> np.ndarray:
        query = model.query(rows[place[entity]][None], relation[None], "tail")
        return model.score_all(query, tails)[0].double().numpy()

    def with_prior(entity: str) -> np.ndarray:
        return in_deviations(score(entity)) + in_deviations(prior)

    return Answers(candidates, {"score": score, "with prior": with_prior}, prior)


@score_each
def score(truth: Truth, victim: str, claim: Inferred) -> list[Figure]:
    """MRR and hits of a victim, of the triples of sensitive relations, not trained on and trained on."""
    if not truth.graph.sensitive:
        raise NotAttacked(f"{truth.graph.name} marks no relation as sensitive")
    return [*_figures(truth, victim, claim, ""), *_figures(truth, victim, claim, "_trained")]


def _figures(truth: Truth, victim: str, claim: Inferred, suffix: str) -> list[Figure]:
    """Figures of triples with a head that the adversary has a row of: that the victim, or with no suffix nobody, trained on."""
    client, graph = truth.client(victim), truth.graph
    trained = {tuple(triple) for one in graph.clients for triple in one.to_global(one.train).tolist()}
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
    reachable = float(np.isfinite(ranks["prior"]).mean())
    ends = np.unique([[head, tail] for head, _, tail in questions], return_inverse=True)[1].reshape(-1, 2)
    figures = []
    for metric, values in (
        (metrics[0], {way: np.where(np.isfinite(of_way), 1 / of_way, 0.0) for way, of_way in ranks.items()}),
        (metrics[1], {way: (of_way <= WITHIN).astype(np.float64) for way, of_way in ranks.items()}),
    ):
        prior = {"prior": exact(float(values.pop("prior").mean()), len(questions))}
        ways = {way: partial(dyadic_mean, of_way, ends) for way, of_way in values.items()}
        figures += truth.figures(
            metric, victim, ways, prior, outcomes=lambda way, values=values: of_mean(values[way], ends),
            attainable=reachable, counts={"triples": len(questions)},
        )  # fmt: skip
    return figures


def _ranks(
    claim: Inferred, asked: list[tuple[str, str, str]], true: Mapping[tuple[str, str], set[str]]
) -> dict[str, np.ndarray]:
    """Rank each answer among the candidates by each way and by the prior, ties at their mean, infinite where it is none."""
    ranks = {way: np.full(len(asked), np.inf) for way in ("score", "with prior", "prior")}
    for number, (head, relation, tail) in enumerate(asked):
        answers = claim.answers.get(relation)
        if answers is None or tail not in answers.candidates:
            continue
        others = true[head, relation] - {tail}
        is_answer = np.array([name not in others for name in answers.candidates])
        place = int(np.flatnonzero(answers.candidates == tail)[0])
        scores = {"prior": answers.prior} | {way: order(head) for way, order in answers.ways.items()}
        for way, values in scores.items():
            above, tied = (values > values[place])[is_answer].sum(), (values == values[place])[is_answer].sum()
            ranks[way][number] = above + (tied + 1) / 2
    return ranks


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
