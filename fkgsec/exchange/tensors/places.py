"""Rows of each tensor of a table, by their names `tensor/number`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def tensor_places(names: Sequence[str]) -> dict[str, Tensor]:
    """Map each tensor to the indices of its rows, int64, in order.

    Args:
        names: of all rows, `tensor/number`, in any order.

    >>> tensor_places(["lin.weight/1", "lin.bias/0", "lin.weight/0"])["lin.weight"]
    tensor([2, 0])
    """
    spans: dict[str, list[tuple[int, int]]] = {}
    for place, name in enumerate(names):
        tensor, _, row = name.rpartition("/")
        spans.setdefault(tensor, []).append((int(row) if row.isdecimal() else 0, place))
    return {tensor: torch.tensor([place for _, place in sorted(rows)]) for tensor, rows in spans.items()}
