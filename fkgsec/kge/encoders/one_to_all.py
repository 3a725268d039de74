"""The loss of queries against all entities at once (1-N scores), with its explicit gradient.

    targets = KnownTriples.build(graph.train, "tail", graph.num_relations)      # a query for each (head, relation)
    outcome = one_to_all_loss(queries, entities, *targets.expand(groups), label_smoothing=0.1)
    outcome.loss, outcome.query_gradient, outcome.entity_gradient

Labels are never stored. With p = sigmoid(s), cross-entropy is log(1 + e^s) - y s and its derivative p - y. The label y is the
same small number everywhere except at the few entities that complete a query.

Legend: `B` queries, `N` entities, `W` width, `P` positives.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus

BLOCK_BYTES = 4 * 2**20  # bound on scores held at once, so that they stay in the cache


@torch.no_grad()
def one_to_all_loss(
    queries: Tensor, entities: Tensor, position: np.ndarray, member: np.ndarray, *, label_smoothing: float
) -> tuple[float, Tensor, Tensor]:
    """Compute the binary cross-entropy of sigmoid(queries @ entities.T), mean over all scores, with its gradient.

    Args:
        queries: float `[B, W]`.
        entities: float `[N, W]`.
        position, member: int64 `[P]` both: entity `member` completes query `position`; ascending by position, each pair
            once.
        label_smoothing: a label y becomes (1 - label_smoothing) y + 1 / N; 0 leaves labels as they are.

    Returns:
        The loss, its gradient to queries `[B, W]`, and its gradient to entities `[N, W]`.

    Source: code of NoGE. It smooths by 1 / N, whatever `label_smoothing` is.
    """
    B, N = len(queries), len(entities)
    everywhere = 1 / N if label_smoothing else 0.0
    scale = 1 / (B * N)
    query_gradient, entity_gradient = torch.empty_like(queries), torch.zeros_like(entities)
    total, step = 0.0, max(1, BLOCK_BYTES // (entities.element_size() * N))
    for low in range(0, B, step):
        part = slice(low, min(low + step, B))
        # Positives ascend by query, so those of a block are one slice.
        first, last = np.searchsorted(position, (part.start, part.stop))
        row, column = (torch.from_numpy(ids[first:last]).to(queries.device) for ids in (position, member))
        row = row - low
        # Loss: sum of log(1 + e^s) - y s. The constant part of y is summed over all scores, the rest over positives.
        scores = queries[part] @ entities.T
        # Sums in float64: a float32 sum over B x N scores loses digits.
        positive = scores[row, column].double().sum()
        smooth = everywhere * scores.sum(1).double().sum() if everywhere else 0.0
        total += float(softplus(scores).sum(1).double().sum() - (1 - label_smoothing) * positive - smooth)
        # Derivative: p - y, in the memory of the scores.
        slope = scores.sigmoid_().sub_(everywhere).mul_(scale)
        slope[row, column] -= (1 - label_smoothing) * scale
        query_gradient[part] = slope @ entities
        entity_gradient.addmm_(slope.T, queries[part])
    return total * scale, query_gradient, entity_gradient
