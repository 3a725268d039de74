"""What an audit of forgetting reads off one run: of every audited triple its score, likelihood and rank, and its rank relearned.

    >>> run = read_run(result, graph, audits, seed=0, relearn_steps=20)                       # doctest: +SKIP
    >>> run.readings[0, "local"].audited["score"]    # of the first client's audited triples  # doctest: +SKIP

`attacks.forgetting.evidence` holds the readings of the audited run beside those of the auditor's own.

Legend: `n` audited triples of a client.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from attacks.forgetting.relearning import reciprocal_ranks, relearning_models
from attacks.membership.audits import Audited, client_models, known_triples
from attacks.membership.statistics import triple_losses
from fkgsec.data.graph import FederatedGraph
from fkgsec.federation.loop import FederationResult
from fkgsec.randomness import generator

READINGS = {"score": True, "likelihood": False, "reciprocal rank": False}  # whether it is held against the controls


class Reading(NamedTuple):
    """Of one model of one client.

    Attributes:
        audited: each of `READINGS` of its audited triples, float64 `[n]`.
        relearned: reciprocal rank of its forget set after relearning, `[k]`; None where that was left out.
        test: reciprocal rank of its test triples, `[t]`.
    """

    audited: dict[str, np.ndarray]
    relearned: np.ndarray | None
    test: np.ndarray


class AuditRun(NamedTuple):
    """Readings of a run by (client's place, model), and by place which audited triples it was trained on, bool `[n]`."""

    readings: dict[tuple[int, str], Reading]
    trained_on: dict[int, np.ndarray]


def read_run(
    result: FederationResult,
    graph: FederatedGraph,
    audits: Sequence[Audited],
    *,
    seed: int,
    relearn_steps: int,
    trained_on: Mapping[int, np.ndarray] | None = None,
) -> AuditRun:
    """Everything that evidence needs of a run.

    Args:
        graph: the raw run's, which filters all ranks alike. seed: draws the batches of relearning, the same for every run.
        relearn_steps: 0 leaves relearning out. trained_on: None: the run saw none of the audited triples.
    """
    readings = {}
    for audit in audits:
        client, options = graph.clients[audit.place], result.options
        known = known_triples(client, options)
        for name, one in client_models(result, audit.place).items():
            losses = triple_losses(
                one.model,
                one.tables.entities,
                one.tables.relations,
                audit.triples,
                temperature=options.sampling_temperature,
            )
            relearned = None
            if relearn_steps and audit.asked:
                *_, last = relearning_models(
                    one,
                    audit.forget,
                    steps=relearn_steps,
                    learning_rate=options.learning_rate,
                    batch_size=options.batch_size,
                    num_negatives=options.num_negatives,
                    rng=generator(seed, "relearn", audit.place, name),
                )
                relearned = reciprocal_ranks(last, audit.forget, known)
            ranks = reciprocal_ranks(one, audit.triples, known)
            readings[audit.place, name] = Reading(
                {"score": one.scores(audit.triples), "likelihood": -losses, "reciprocal rank": ranks},
                relearned,
                reciprocal_ranks(one, client.test, known),
            )
    none = {audit.place: np.zeros(len(audit.triples), dtype=bool) for audit in audits}
    return AuditRun(readings, dict(trained_on) if trained_on is not None else none)


class Plant(NamedTuple):
    """A run that was trained with a known share of the forget set left in."""

    share: float
    run: AuditRun
