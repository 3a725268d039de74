"""Membership inference by a client, from the broadcasts that it receives.

Threat model: "client", honest but curious, without access to any other upload. Required knowledge: its own rows and triples,
and broadcasts. It classifies triples of another client whose entities and relation it also holds, and whose pair none of its
own triples links.

Inference methods: `score`, the score of the triple on the broadcast rows, with its own relation rows. `beyond own`, that, plus
its increase over the score on the client's own rows after training, on which no triple of others was trained.

The client cannot tell which of several clients trained on a triple: each figure is of one victim. Baseline: `names`, how often
the names of head and tail occur with the relation in its own triples.

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
"""Scorers of triples of names: by inference method, and without the broadcasts."""


def listen(view: KgeView, laboratory: Laboratory, rng: np.random.Generator) -> Scorers:
    """Build scorers from the broadcasts. They are the same for every victim, since broadcasts do not distinguish clients.

    Args:
        laboratory: only its public settings are read.
        rng: not used; the attack draws nothing.

    Raises:
        NotAttacked: entities are not broadcast.
    """
    check_broadcast(laboratory)
    accomplice, model = view.accomplice, view.model
    # A broadcast keeps the client's row order, so names map to rows directly.
    row_of, kind = numbers(accomplice.entity_names), numbers(accomplice.relation_names)

    def scores(rows: Tensor, triples: np.ndarray) -> np.ndarray:
        """Score triples of names on some entity rows."""
        return row_scores(model, rows, accomplice.relations, places(triples, row_of, kind))

    def beyond_own(triples: np.ndarray) -> np.ndarray:
        """Return b + (b - a), with b the score on broadcast rows and a that on the client's rows before the broadcast."""
        # score + (score - own score): the broadcast adds what others trained.
        return 2 * scores(accomplice.shared_entities, triples) - scores(accomplice.entities, triples)

    ways: dict[str, Scorer] = {
        "score": lambda triples: scores(accomplice.shared_entities, triples),
        "beyond own": beyond_own,
    }
    return ways, names_scorer(accomplice)


def row_scores(model: KgeModel, entities: Tensor, relations: Tensor, triples: np.ndarray) -> np.ndarray:
    """Score triples of rows.

    Args:
        entities: float `[n, W]`.
        relations: float `[m, V]`.
        triples: rows of entities, relations and entities, int64 `[q, 3]`.

    Returns:
        float64 `[q]`.
    """
    heads, kinds, tails = torch.from_numpy(triples).unbind(1)
    return model.score(entities[heads], relations[kinds], entities[tails]).double().numpy()


def score(claims: Scorers, truth: Truth) -> list[Figure]:
    """Compute the figures of every victim."""
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
    "one client reads broadcasts to infer which triples other clients trained on",
    Needs(entities=True, alone=True),
    METRICS,
    listen,
    score,
    threats=("client",),
    questions=dict.fromkeys(METRICS, MEMBERSHIP),
    items=ITEMS,
)
