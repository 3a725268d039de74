"""Nearest neighbours by cosine, in blocks."""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK_BYTES = 64 * 2**20
TIE = 1e-6  # rounding of a cosine in float32: equal keys differ by the column in which a matrix product puts them


def nearest(queries: Tensor, keys: Tensor, block_bytes: int = BLOCK_BYTES) -> tuple[Tensor, Tensor]:
    """For each query `[n, d]` the place of the most similar key `[m, d]` and their cosine: int64 `[n]`, float `[n]`.

    Similarities are held for `block_bytes` at a time, never as one n x m matrix. Zero rows have cosine 0 to everything.
    Ties (up to `TIE`) go to the first key.
    """
    if not len(keys):
        raise ValueError("no keys to compare with")
    unit_keys = torch.nn.functional.normalize(keys, dim=1)
    step = max(1, block_bytes // (len(keys) * keys.element_size()))
    places, cosines = [], []
    for part in queries.split(step):  # an empty tensor splits into one empty part
        similar = torch.nn.functional.normalize(part, dim=1) @ unit_keys.T
        best = similar.amax(dim=1)
        places.append((similar >= best[:, None] - TIE).to(torch.uint8).argmax(dim=1))
        cosines.append(best)
    return torch.cat(places), torch.cat(cosines)
