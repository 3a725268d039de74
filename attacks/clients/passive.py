"""Which triples do other clients train on? Asked of one client, by the broadcasts that it receives.

    found = run_attacks(result, AttackOptions(attack=("client-passive",)))
    for one in headline(found.figures):
        print(one.victim, one.metric, one.estimate, one.baseline)      # hospital-2  auc_pairs  0.95 ...

Threat model: "client", one that follows the protocol and sees no upload of anybody. It asks about triples of another client whose
entities and relation it holds, too, and whose pair none of its own triples links.

`score`: of the triple on the broadcast rows, by its own relation rows. `beyond own`: that, and by how much the broadcast raised
it above the score on the client's own rows after training, in which no triple of others was trained.

Which client trained on a triple it cannot tell where there are several: figures are of one victim at a time. Baseline: `names`,
how often the head's and the tail's names stand in the relation in its own triples.

Source: ours, after the passive client of Hu et al. 2023 (DP-FLames). Figures: `attacks.uploads.questions`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from attacks.figure import Figure
from attacks.kge.view import ColluderKnowledge, KgeView
from attacks.reconstruction.prior import fit_names
from attacks.registry import Attack, Needs, Truth
from attacks.uploads.questions import ITEMS, METRICS, Scorer, draw_questions, question_figures
from fkgsec.federation.recipes import RECIPES
from fkgsec.kge.models import KgeModel

CLIENT_PASSIVE = "client-passive"


@dataclass(frozen=True, eq=False)
class Scorers:
    """How the client scores triples of names, by way, and without the broadcasts."""

    ways: Mapping[str, Scorer]
    names: Scorer


def listen(view: KgeView, rng: np.random.Generator) -> dict[str, Scorers]:
    """The same for every victim: broadcasts do not tell clients apart."""
    own = view.colluder
    assert own is not None
    place, kind = ({name: row for row, name in enumerate(names)} for names in (own.entity_names, own.relation_names))

    def scores(rows: Tensor, triples: np.ndarray) -> np.ndarray:
        return _scores(view.model, own, rows, _places(triples, place, kind))

    def beyond_own(triples: np.ndarray) -> np.ndarray:
        return 2 * scores(own.shared_entities, triples) - scores(own.entities, triples)

    posterior = fit_names(own)
    row_of = {name: row for row, name in enumerate(posterior.names)}

    def by_names(triples: np.ndarray) -> np.ndarray:
        heads, relations, tails = _places(triples, row_of, kind).T
        head, tail = posterior.log_likelihood
        return (head[heads, relations] + tail[tails, relations]).astype(np.float64)

    found = Scorers({"score": lambda triples: scores(own.shared_entities, triples), "beyond own": beyond_own}, by_names)
    return {victim.name: found for victim in view.victims}


def _places(triples: np.ndarray, place: Mapping[str, int], kind: Mapping[str, int]) -> np.ndarray:
    return np.array([(place[head], kind[relation], place[tail]) for head, relation, tail in triples]).reshape(-1, 3)


def _scores(model: KgeModel, own: ColluderKnowledge, rows: Tensor, triples: np.ndarray) -> np.ndarray:
    heads, relations, tails = torch.from_numpy(triples).unbind(1)
    return model.score(rows[heads], own.relations[relations], rows[tails]).double().numpy()


def score(claims: Mapping[str, Scorers], truth: Truth) -> list[Figure]:
    """Figures of every victim."""
    figures = []
    own = truth.client(truth.colluder)
    shared = RECIPES[truth.result.options.algorithm].shared
    own_entities = set(own.entity_ids[: own.num_trained_entities].tolist())
    own_relations = set(own.relation_ids[: own.num_trained_relations].tolist())
    ends = own.to_global(own.triples)[:, [0, 2]]
    own_pairs = {pair for head, tail in ends.tolist() for pair in ((head, tail), (tail, head))}
    for victim, scorers in claims.items():
        if "entities" not in shared:
            figures += truth.not_attacked(victim, "no entity embedding is broadcast")
            continue
        client = truth.client(victim)

        def known(triples: np.ndarray, client=client) -> np.ndarray:
            return np.array(
                [
                    {head, tail} <= own_entities and relation in own_relations and (head, tail) not in own_pairs
                    for head, relation, tail in client.to_global(triples).tolist()
                ],
                dtype=bool,
            )

        asked = draw_questions(truth, victim, known, truth.rng)
        figures += question_figures(truth, victim, asked, scorers.ways, {"names": scorers.names})
    return figures


ATTACK = Attack(
    CLIENT_PASSIVE,
    "tells, for one client, triples that another one trained on, by the broadcasts that it receives",
    Needs(entities=True, alone=True),
    METRICS,
    listen,
    score,
    threats=("client",),
    items=ITEMS,
    in_order=True,
)
