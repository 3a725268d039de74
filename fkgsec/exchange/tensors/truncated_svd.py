"""The weighted mean of uploads, made low-rank: of each matrix of parameters small singular values are dropped.

    truncated(matrix, threshold=1e-3)                # hard: singular values above the threshold stay as they are
    truncated(matrix, threshold=1e-3, shrink="soft") # those that stay are made smaller by it

Rows are named `tensor/number` (`fkgsec.gnn.layout`), so that the server knows which of them are one matrix; a tensor of one row,
such as a bias, stays as it is.

Source: cefgl.txt Eq. 9 and section 4.2 (hard); FedSLR's code (Huang et al. 2023) for soft shrinkage, by the threshold over alpha.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from fkgsec.exchange.aggregation import AGGREGATIONS, MeanOverHolders
from fkgsec.exchange.parts import Delivered, tensor_places

Shrink = Literal["hard", "soft"]
CORRECTION = "correction."
"""How the names of tensors begin whose mean the server takes from that of the parameters so named."""


def truncated(matrix: Tensor, *, threshold: float, shrink: Shrink = "hard") -> Tensor:
    """Remove the singular values of a matrix up to a threshold.

    Args:
        matrix: `[m, n]`.
        threshold: 0 returns the matrix unchanged.
        shrink: "hard" keeps the other singular values, "soft" reduces them by the threshold.
    """
    if threshold == 0:
        return matrix
    left, values, right = torch.linalg.svd(matrix.double(), full_matrices=False)
    # cefgl.txt 4.2 truncates ("hard"); FedSLR's code applies the proximal step of the nuclear norm ("soft").
    shrunk = (values - threshold).clamp_min(0) if shrink == "soft" else torch.where(values > threshold, values, 0.0)
    return ((left * shrunk) @ right).to(matrix.dtype)


class TruncatedMean(MeanOverHolders):
    """The weighted mean of each row, each matrix of rows truncated; settings `singular_threshold`, `shrink` and `alpha`.

    Where clients upload corrections, too, the settings' `taken` share of their mean is taken off first (cefgl.txt Eq. 9).
    """

    def aggregate(self, round: int, previous: Tensor, delivered: Delivered) -> Tensor:
        rows, settings = super().aggregate(round, previous, delivered), self.options.settings
        threshold = settings.singular_threshold / (settings.alpha if settings.shrink == "soft" else 1.0)
        # Only matrices are truncated: a tensor of one row, such as a bias, has no rank to reduce.
        tensors = tensor_places(self.shared.names)
        for name in [name for name in tensors if name.startswith(CORRECTION)]:
            places = tensors.pop(name)
            # cefgl.txt Eq. 9: subtract the settings' share of the mean correction before truncating.
            rows[tensors[name.removeprefix(CORRECTION)]] -= settings.taken(self.options.learning_rate) * rows[places]
            rows[places] = 0.0
        for places in tensors.values():
            if len(places) > 1:
                rows[places] = truncated(rows[places], threshold=threshold, shrink=settings.shrink)
        return rows


AGGREGATIONS.register("truncated-svd", TruncatedMean)
