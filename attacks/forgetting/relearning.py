"""Relearning: how fast a model learns the forgotten triples again, beside models that never saw them.

A memory that was pushed down and not taken out is back after a few steps.

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

RELEARN_LEVEL = 0.9  # of what the raw model has


class Relearning(msgspec.Struct, frozen=True):
    """MRR on the forgotten triples after 0, 1, ... steps of training on them; and how fast the raw level is reached again.

    `level` is `RELEARN_LEVEL` of the raw model's MRR before any step; without a raw model there is neither level nor time.
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
    """A curve for each role, from the same batches and negatives."""
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
    """MRR on the forgotten triples after 0..steps steps of Adam on them, float64 `[steps + 1]`; see `relearning_models`."""
    models = relearning_models(model, forget, options, steps, rng)
    return np.array([float(reciprocal_ranks(each, forget, filters).mean()) for each in models])


def reciprocal_ranks(model: ClientModel, triples: np.ndarray, filters: Sequence[KnownTriples]) -> np.ndarray:
    """Filtered, the mean over both sides, float64 `[n]`."""
    return (1 / filtered_ranks(model.model, *model.rows, triples, filters)).mean(axis=1)


def relearning_models(
    start: ClientModel, forget: np.ndarray, options: KgeOptions, steps: int, rng: np.random.Generator
) -> Iterator[ClientModel]:
    """The model before any step and after each of `steps` steps of Adam on the forgotten triples; its rows change between them.

    Args:
        start: its own rows are left as they are. forget: int64 `[n, 3]`.
        options: learning rate, batch size and number of negatives.
        rng: draws batches and negatives; give every model one with the same numbers.

    Source: fedr.txt B.2, the loss; negatives are drawn from all rows and weigh the same.
    """
    model = start.model
    entities, relations = (rows.detach().clone().requires_grad_() for rows in start.rows)
    adam = torch.optim.Adam([entities, relations], lr=options.learning_rate)
    now = ClientModel(model, ClientTables(entities.detach(), relations.detach()))  # shares memory with what is trained
    yield now
    for step in range(steps):
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
