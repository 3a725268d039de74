"""Readings of a run for an audit of forgetting: score, likelihood and ranks of each audited triple, and ranks after relearning.

A triple is ranked among other tails and heads, and its relation among other relations. A model whose entity ranks and scores
equal those of retraining may still rank every forgotten relation first.

    >>> run = read_run(result, graph, audits, seed=0, relearn_steps=20)                       # doctest: +SKIP
    >>> run.readings[0, "local"].audited["score"]    # of the first client's audited triples  # doctest: +SKIP

`fkgsec.attacks.forgetting.evidence` compares the readings of the audited run with those of the auditor's own runs.

Legend: `n` audited triples of a client.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch

from fkgsec.attacks.forgetting.relearning import reciprocal_ranks, relearning_models
from fkgsec.attacks.membership.audits import Audited, ClientModel, client_models, known_triples
from fkgsec.attacks.membership.statistics import triple_losses
from fkgsec.data.graph import FederatedGraph
from fkgsec.kge import kernels
from fkgsec.kge.negatives import KnownTriples
from fkgsec.kge.result import KgeResult
from fkgsec.randomness import generator

RELATION_RANK = "relation's rank"
# By reading, whether it is held against the controls.
READINGS = {"score": True, "likelihood": False, "reciprocal rank": False, RELATION_RANK: True}


class Reading(NamedTuple):
    """Readings of a model of a client.

    Attributes:
        audited: each of `READINGS` of its audited triples, float64 `[n]`.
        relearned: reciprocal rank of its forget set after relearning, `[k]`; None if relearning was left out.
        test: reciprocal rank of its test triples, `[t]`.
    """

    audited: dict[str, np.ndarray]
    relearned: np.ndarray | None
    test: np.ndarray


class AuditRun(NamedTuple):
    """Readings of a run by (client index, model), and the audited triples that it was trained on by client index, bool `[n]`."""

    readings: dict[tuple[int, str], Reading]
    trained_on: dict[int, np.ndarray]


def read_run(
    result: KgeResult,
    graph: FederatedGraph,
    audits: Sequence[Audited],
    *,
    seed: int,
    relearn_steps: int,
    trained_on: Mapping[int, np.ndarray] | None = None,
) -> AuditRun:
    """Read everything that the evidence needs from a run.

    Args:
        graph: data of the raw run, which filters all ranks alike.
        audits: audited triples of all clients.
        seed: draws the batches of relearning, the same for every run.
        relearn_steps: training steps on the forget set; 0 leaves relearning out.
        trained_on: audited triples that the run was trained on, by client index; None: none of them.
    """
    readings = {}
    for audit in audits:
        client, options = graph.clients[audit.place], result.options
        filters = known_triples(client, options)
        for name, model in client_models(result, audit.place).items():
            relearned = None
            if relearn_steps and audit.asked:
                # The same batches for every run, so that curves differ by the model only.
                rng = generator(seed, "relearn", audit.place, name)
                *_, last = relearning_models(model, audit.forget, options, relearn_steps, rng)
                relearned = reciprocal_ranks(last, audit.forget, filters)
            losses = triple_losses(model.model, *model.rows, audit.triples, temperature=options.sampling_temperature)
            ranks = reciprocal_ranks(model, audit.triples, filters)
            readings[audit.place, name] = Reading(
                {
                    "score": model.scores(audit.triples),
                    "likelihood": -losses,
                    "reciprocal rank": ranks,
                    RELATION_RANK: relation_ranks(model, audit.triples, client.triples),
                },
                relearned,
                reciprocal_ranks(model, client.test, filters),
            )
    none = {audit.place: np.zeros(len(audit.triples), dtype=bool) for audit in audits}
    return AuditRun(readings, dict(trained_on) if trained_on is not None else none)


def relation_ranks(client_model: ClientModel, triples: np.ndarray, true_triples: np.ndarray) -> np.ndarray:
    """Return the reciprocal rank of each triple's relation among all relations between its head and tail, float64 `[n]`.

    Ties get the realistic rank, as in `fkgsec.kge.ranking`.

    Args:
        client_model: model to read.
        triples: int64 `[n, 3]`.
        true_triples: triples whose relations between the same two entities are no competitors, `[k, 3]`.
    """
    entities, relations = client_model.rows
    head, relation, tail = torch.tensor(triples).to(entities.device).unbind(1)
    scores = client_model.model.score_relations(entities[head], entities[tail], relations)
    # Of each head and tail, the relations between them.
    index = KnownTriples.build(true_triples[:, [0, 2, 1]], "tail", len(entities))
    position, member = (
        torch.from_numpy(x).to(entities.device) for x in index.expand(index.groups(triples[:, [0, 2, 1]]))
    )
    true = scores.gather(1, relation[:, None])
    scores[position, member] = -torch.inf
    above, level = kernels.count_competitors(scores, true[:, 0])
    # A triple among the true ones was excluded with them, and is missing in its own tie.
    is_listed = torch.zeros(len(triples), dtype=torch.bool, device=entities.device)
    is_listed[position[member == relation[position]]] = True
    level = level - (~is_listed).long()
    return (1 / (1 + above + level / 2)).double().cpu().numpy()
