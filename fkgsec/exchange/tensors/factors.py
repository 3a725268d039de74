"""Matrices of low rank as the rows of two factors, if these have fewer rows.

    left, right = factorise(matrix)                  # None if the factors have as many rows as the matrix, or more
    joined(left, right, len(matrix))                 # the matrix, to rounding

A matrix `[n, W]` of rank k is the product of `[n, k]` and `[k, W]`. The first is sent column by column in rows of W numbers, the
last one filled up with zeros: k + ceil(n k / W) rows instead of n. Both contain the square root of the singular values, so that
neither is much larger than the other.

Source: cefgl.txt 4.2, "the model after server aggregation is low-rank, reducing communication costs". Its ranks of 71 to 98 %
(Table 3) save nothing: the factors of a square matrix are smaller only below 50 %.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fkgsec.errors import RunError


def num_left_rows(num_rows: int, rank: int, width: int) -> int:
    """Compute the number of rows of the left factor.

    Args:
        num_rows: of the matrix. rank: of the matrix. width: W.
    """
    return -(-num_rows * rank // width)


def factorise(matrix: Tensor) -> tuple[Tensor, Tensor] | None:
    """Factorize a matrix at the rank that single precision resolves.

    Args:
        matrix: `[n, W]`.

    Returns:
        Left and right factor as rows `[., W]`; None if they are not smaller.
    """
    num_rows, width = matrix.shape
    left, values, right = torch.linalg.svd(matrix.double(), full_matrices=False)
    # Singular values below this are rounding errors of float32 (the usual bound of numerical rank).
    rank = int((values > values[0] * max(matrix.shape) * torch.finfo(torch.float32).eps).sum()) if len(values) else 0
    left_rows = num_left_rows(num_rows, rank, width)
    if rank + left_rows >= num_rows:
        return None
    # The square root of the singular values goes into both factors.
    flat = (left[:, :rank] * values[:rank].sqrt()).T.reshape(-1)
    padded = torch.cat([flat, flat.new_zeros(left_rows * width - len(flat))]).reshape(left_rows, width)
    return padded.float(), (values[:rank, None].sqrt() * right[:rank]).float()


def joined(left: Tensor, right: Tensor, num_rows: int) -> Tensor:
    """Multiply the factors of `factorise`: float32 `[num_rows, W]`.

    Args:
        left, right: the factors. num_rows: of the matrix.
    """
    flat = left.reshape(-1)[: num_rows * len(right)]
    return (flat.reshape(len(right), num_rows).T.double() @ right.double()).float()


def pack(rows: Tensor, tensors: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor], list[int]]:
    """Replace each tensor of a table by its factors if they are smaller.

    Args:
        rows: `[N, W]`. tensors: row indices of each tensor.

    Returns:
        The rows to send, `[P, W]`; the rows of each tensor or factor by name; each tensor's rank, -1 without factors.
    """
    sent: list[Tensor] = []
    parts: dict[str, Tensor] = {}
    ranks: list[int] = []
    for name, places in tensors.items():
        factors = factorise(rows[places]) if len(places) > 1 else None
        ranks.append(-1 if factors is None else len(factors[1]))
        for part, values in (("", rows[places]),) if factors is None else zip(("left", "right"), factors, strict=True):
            start = sum(len(sent_part) for sent_part in sent)
            if len(values):
                parts[f"{name} {part}"] = torch.arange(start, start + len(values))
            sent.append(values)
    return torch.cat(sent), parts, ranks


def unpack(sent: Tensor, ranks: Sequence[int], tensors: Mapping[str, Tensor]) -> Tensor:
    """Undo `pack`: `[N, W]`.

    Args:
        sent: received rows `[P, W]`. ranks: of each tensor. tensors: row indices of each tensor.

    Raises:
        RunError: ranks that do not fit the rows.
    """
    rows = sent.new_zeros(sum(len(places) for places in tensors.values()), sent.shape[1])
    lengths = [
        [len(places)] if rank == -1 else [num_left_rows(len(places), rank, sent.shape[1]), rank]
        for places, rank in zip(tensors.values(), ranks, strict=False)
    ]
    if len(ranks) != len(tensors) or min(ranks) < -1 or sum(map(sum, lengths)) != len(sent):
        raise RunError(f"{len(sent)} rows do not hold {len(tensors)} tensors of ranks {list(ranks)}")
    start = 0
    # Each tensor takes its own rows, or those of its two factors.
    for places, length in zip(tensors.values(), lengths, strict=True):
        parts = sent[start : start + sum(length)].split(length)
        rows[places] = parts[0] if len(parts) == 1 else joined(parts[0], parts[1], len(places))
        start += sum(length)
    return rows
