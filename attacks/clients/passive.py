"""Membership inference by a client, from the broadcasts that it receives.

Threat model: "client", one that follows the protocol and sees no upload of anybody. It asks about triples of another client whose
entities and relation it holds, too, and whose pair none of its own triples links.

`score`: of the triple on the broadcast rows, by its own relation rows. `beyond own`: that, and by how much the broadcast raised
it above the score on the client's own rows after training, in which no triple of others was trained.

Which client trained on a triple it cannot tell where there are several: figures are of one victim at a time. Baseline: `names`,
how often the head's and the tail's names stand in the relation in its own triples.

Source: ours, after the passive client of Hu et al. 2023 (DP-FLames). Figures: `fkgsec.attacks.uploads.questions`.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from fkgsec.attacks.clients.asking import askable, check_broadcast, names_scorer, no_relation, numbers, places
from fkgsec.attacks.figure import Figure
from fkgsec.attacks.kge.view import KgeView
from fkgsec.attacks.laboratory import Laboratory
from fkgsec.attacks.questions import MEMBERSHIP
from fkgsec.attacks.registry import Attack, Needs, Truth
from fkgsec.attacks.uploads.questions import ITEMS, METRICS, Scorer, draw_questions, question_figures
from fkgsec.kge.models import KgeModel

Scorers = tuple[Mapping[str, Scorer], Scorer]
"""How the client scores triples of names: by way, and without the broadcasts."""


def listen(view: KgeView, laboratory: Laboratory, rng: np.random.Generator) -> Scorers:
    """The same for every victim: broadcasts do not tell clients apart."""
    check_broadcast(laboratory)
    accomplice, model = view.accomplice, view.model
    row_of, kind = numbers(accomplice.entity_names), numbers(accomplice.relation_names)

    def scores(rows: Tensor, triples: np.ndarray) -> np.ndarray:
        return row_scores(model, rows, accomplice.relations, places(triples, row_of, kind))

    def beyond_own(triples: np.ndarray) -> np.ndarray:
        return 2 * scores(accomplice.shared_entities, triples) - scores(accomplice.entities, triples)

    ways: dict[str, Scorer] = {
        "score": lambda triples: scores(accomplice.shared_entities, triples),
        "beyond own": beyond_own,
    }
    return ways, names_scorer(accomplice)


def row_scores(model: KgeModel, entities: Tensor, relations: Tensor, triples: np.ndarray) -> np.ndarray:
    """Scores float64 `[q]` of triples given as rows int64 `[q, 3]` of entities, relations and entities."""
    heads, kinds, tails = torch.from_numpy(triples).unbind(1)
    return model.score(entities[heads], relations[kinds], entities[tails]).double().numpy()


def score(claims: Scorers, truth: Truth) -> list[Figure]:
    """Figures of every victim."""
    figures, (ways, names) = [], claims
    for victim in truth.victims:
        if reason := no_relation(truth, victim):
            figures += truth.not_attacked(victim, reason)
            continue
        questions = draw_questions(truth, victim, askable(truth.graph, truth.colluders, victim), truth.rng)
        figures += question_figures(truth, victim, questions, ways, {"names": names})
    return figures


ATTACK = Attack(
    "client-passive",
    "tells, for one client, triples that another one trained on, by the broadcasts that it receives",
    Needs(entities=True, alone=True),
    METRICS,
    listen,
    score,
    threats=("client",),
    questions=dict.fromkeys(METRICS, MEMBERSHIP),
    items=ITEMS,
)
