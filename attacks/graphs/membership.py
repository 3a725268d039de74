"""Which graphs did a client train on? Asked of the models that it is left with.

    found = run_attacks(result, GraphAttackOptions(attack=("graph-membership",), threat=("models",)))
    for one in found.figures:
        print(one.victim, one.variant, one.metric, one.estimate)        # MUTAG  local, loss  auc  0.61 [0.42, 0.77]

Threat model: "models", whoever holds the models that clients are left with. A candidate with a small loss is taken for one that
the client trained on. Candidates: `attacks.graphs.candidates`.

Source: Yeom et al. 2018 (loss); for graph networks Wu et al. 2021 (TrustworthyGNN/MIA-GNN).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from attacks.figure import NOT_ATTACKED, Figure
from attacks.graphs.candidates import draw_candidates
from attacks.graphs.view import GraphView
from attacks.membership.figures import measure_membership
from attacks.membership.inference import METRICS, measures
from attacks.membership.statistics import loss_threshold
from attacks.registry import Attack, Needs, Truth
from attacks.view import ALL, GRAPH, MODELS
from fkgsec.estimate import exact
from fkgsec.randomness import generator

NAME = "graph-membership"
Scores = Mapping[str, np.ndarray]


def claim(view: GraphView, rng: np.random.Generator) -> dict[str, Scores]:
    """By victim and way of telling, the score of each candidate, float64 `[n]`, larger for those taken for members."""
    return {
        victim.name: {
            f"{name}, loss": loss_threshold(model.losses(victim.candidates)) for name, model in victim.models.items()
        }
        for victim in view.victims
        if victim.candidates is not None
    }


def score(claims: Mapping[str, Scores], truth: Truth) -> list[Figure]:
    """AUC, members found at few false alarms, and advantage, of each victim by each way of telling, and of all together.

    Of all together a candidate goes by its share of ranks among those of its client, since losses of models differ.
    """
    figures: list[Figure] = []
    parts: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
    for place, client in enumerate(truth.graph.clients):
        if client.name not in claims:
            continue
        asked = draw_candidates(truth.graph, place, truth.seed)
        assert asked is not None  # its victim had candidates
        for variant, scores in claims[client.name].items():
            figures += _figures(truth, client.name, variant, scores, asked.member)
            parts.setdefault(variant, []).append((_ranks(scores), asked.member))
    for variant, of_all in parts.items():
        scores, member = (np.concatenate(one) for one in zip(*of_all, strict=True))
        figures += _figures(truth, ALL, variant, scores, member, num_attacked=len(of_all))
    return figures


def _ranks(scores: np.ndarray) -> np.ndarray:
    """Share of the scores that are below each, ties half."""
    return (scores[:, None] > scores).mean(axis=1) + (scores[:, None] == scores).mean(axis=1) / 2


def _figures(
    truth: Truth, victim: str, variant: str, scores: np.ndarray, member: np.ndarray, num_attacked: int = 1
) -> list[Figure]:
    rng = generator(truth.seed, "advantage", victim, variant)
    found = measure_membership(scores, member, attack=variant, control="held_out", rng=rng)
    counts = {"members": found.num_forgotten, "controls": found.num_controls}
    return [
        truth.figure(
            metric, victim, estimate or NOT_ATTACKED, baseline=exact(chance, found.auc.n), attainable=1.0, reason=reason,
            variant=variant, counts=counts, num_attacked=num_attacked,
        )
        for metric, estimate, chance, reason in measures(found, "graphs")
    ]  # fmt: skip


ATTACK = Attack(
    NAME,
    "tells the graphs that a client trained on from others like them",
    Needs(models=True, candidates=True),
    METRICS,
    claim,
    score,
    threats=(MODELS,),
    items=dict.fromkeys(METRICS, "matched graphs"),
    task=GRAPH,
)
