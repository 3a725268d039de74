"""Relearning: how fast a model learns the forgotten triples again, compared with models that never saw them.

A memory that was suppressed but not removed returns after a few steps.

Legend: `n` forgotten triples, `B` batch, `K` negatives, `W` width.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec
import numpy as np
import torch

from fkgsec.attacks.membership.audits import Audited, ClientModel, known_triples
from fkgsec.attacks.membership.figures import RelearnTime, relearn_time
from fkgsec.data.graph import ClientGraph
from fkgsec.kge.loss import negative_sampling_loss
from fkgsec.kge.models import ClientTables
from fkgsec.kge.negatives import KnownTriples
from fkgsec.kge.options import KgeOptions
from fkgsec.kge.ranking import filtered_ranks
from fkgsec.randomness import generator

# Share of the raw model's MRR to reach again.
RELEARN_LEVEL = 0.9


class Relearning(msgspec.Struct, frozen=True):
    """MRR on the forgotten triples after 0, 1, ... training steps on them, and how fast the raw model's level is reached again.

    `level` is `RELEARN_LEVEL` times the raw model's MRR before any step; without a raw model there is neither level nor time.
    """

    client: str
    model: str
    curves: dict[str, list[float]]
    level: float | None = None
    time: RelearnTime | None = None


def measure_relearning(
    models: Mapping[str, ClientModel],
    audit: Audited,
    name: str,
    client: ClientGraph,
    options: KgeOptions,
    steps: int,
    seed: int,
) -> Relearning:
    """Measure a curve for each role, with the same batches and negatives.

    Args:
        models: models by role.
        audit: audited triples of the client.
        name: name of the model, "local" or "global".
        client: data of the client in the raw run.
        options: learning rate, batch size and number of negatives.
        steps: number of training steps.
        seed: seed of batches and negatives.
    """
    filters = known_triples(client, options)
    curves = {
        role: relearn_curve(model, audit.forget, filters, options, steps, generator(seed, "relearn", audit.place, name))
        for role, model in models.items()
    }
    level, time = None, None
    if "raw" in curves:
        level = round(RELEARN_LEVEL * float(curves["raw"][0]), 3)
        time = relearn_time(curves["unlearned"], curves["retrained"], level)
    return Relearning(audit.name, name, {role: curve.tolist() for role, curve in curves.items()}, level, time)


def relearn_curve(
    model: ClientModel,
    forget: np.ndarray,
    filters: Sequence[KnownTriples],
    options: KgeOptions,
    steps: int,
    rng: np.random.Generator,
) -> np.ndarray:
    """Return the MRR on the forgotten triples after 0 ... steps training steps on them, float64 `[steps + 1]`.

    Args:
        model: model to start from.
        forget: int64 `[n, 3]`.
        filters: filters of the ranking, by side.
        options: learning rate, batch size and number of negatives.
        steps: number of training steps.
        rng: draws batches and negatives.
    """
    models = relearning_models(model, forget, options, steps, rng)
    return np.array([float(reciprocal_ranks(each, forget, filters).mean()) for each in models])


def reciprocal_ranks(model: ClientModel, triples: np.ndarray, filters: Sequence[KnownTriples]) -> np.ndarray:
    """Return the filtered reciprocal rank of each triple, mean over both sides, float64 `[n]`.

    Args:
        model: model to evaluate.
        triples: int64 `[n, 3]`.
        filters: filters of the ranking, by side.
    """
    return (1 / filtered_ranks(model.model, *model.rows, triples, filters)).mean(axis=1)


def relearning_models(
    start: ClientModel, forget: np.ndarray, options: KgeOptions, steps: int, rng: np.random.Generator
) -> Iterator[ClientModel]:
    """Yield the model before any step and after each Adam step on the forgotten triples; its rows change in place.

    Args:
        start: model to start from; its rows are copied.
        forget: int64 `[n, 3]`.
        options: learning rate, batch size and number of negatives.
        steps: number of training steps.
        rng: draws batches and negatives; give every model a generator with the same state.

    Source: fedr.txt B.2, the loss; negatives are drawn from all rows and have equal weights.
    """
    model = start.model
    entities, relations = (rows.detach().clone().requires_grad_() for rows in start.rows)
    adam = torch.optim.Adam([entities, relations], lr=options.learning_rate)
    # The yielded model shares memory with the trained rows.
    now = ClientModel(model, ClientTables(entities.detach(), relations.detach()))
    yield now
    for step in range(steps):
        # Corrupt tails and heads alternately, as in training.
        side = ("tail", "head")[step % 2]
        anchor, candidate = (0, 2) if side == "tail" else (2, 0)
        batch = forget[rng.permutation(len(forget))[: options.batch_size]]
        drawn = rng.integers(0, len(entities), size=(len(batch), options.num_negatives))
        candidates = torch.from_numpy(np.column_stack([batch[:, candidate], drawn])).to(entities.device)
        chosen = torch.tensor(batch).to(entities.device)
        queries = model.query(entities[chosen[:, anchor]], relations[chosen[:, 1]], side)
        scores = model.pair_scores(queries[:, None], entities[candidates])  # [B, 1 + K]
        adam.zero_grad()
        negative_sampling_loss(scores, temperature=0.0).mean().backward()
        adam.step()
        yield now
