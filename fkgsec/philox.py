"""Counter-based random numbers, Philox 4x32-10: each depends on a key and a counter alone, so any device can compute any of them.

    keys = key(0, "negatives", 3)                              # seed 0, client 3
    drawn = words(keys, torch.arange(8), step=2, epoch=0, round=1)
    bounded(drawn, 100)                                        # eight numbers in 0..99

The key says seed, purpose and client; the counter's four words say what is drawn: a number's place within the step, the step, the
epoch and the round. `fkgsec.kge.cpu_draws` (numba) gives the same numbers.

Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"; tested against the vectors published with Random123.
"""

from __future__ import annotations

import hashlib
import operator

import torch
from torch import Tensor

ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
LOW = 0xFFFFFFFF


def key(seed: int, purpose: str, client: int) -> int:
    """The 64 bits of a key, as a signed number that int64 tensors hold; the generator's first key word is the lower half.

    >>> key(0, "shuffle", 1) == key(0, "shuffle", 1) != key(0, "negatives", 1)
    True
    """
    text = repr((operator.index(seed), purpose, operator.index(client))).encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "little", signed=True)


def philox(counter: tuple[Tensor, Tensor, Tensor, Tensor], keys: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Four words for each counter, int64 in 0 .. 2^32 - 1. Counters hold such words, keys 64 bits; all int64, broadcast."""
    c0, c1, c2, c3 = counter
    k0, k1 = keys & LOW, (keys >> 32) & LOW
    for _ in range(ROUNDS):
        # A product wraps around in int64; its two halves are those of the unsigned product all the same.
        first, second = c0 * MULTIPLIERS[0], c2 * MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            ((second >> 32) & LOW) ^ c1 ^ k0,
            second & LOW,
            ((first >> 32) & LOW) ^ c3 ^ k1,
            first & LOW,
        )
        k0, k1 = (k0 + WEYL[0]) & LOW, (k1 + WEYL[1]) & LOW
    return c0, c1, c2, c3


def words(
    keys: Tensor | int, places: Tensor, *, step: Tensor | int, epoch: Tensor | int, round: Tensor | int
) -> Tensor:
    """The words at these places of a step, int64: place i is word i % 4 of the counter (i // 4, step, epoch, round)."""

    def whole(value: Tensor | int) -> Tensor:
        # Filled on the device: a copy from the host has no place in a CUDA graph.
        if isinstance(value, Tensor):
            return value
        return torch.full((), value, dtype=torch.int64, device=places.device)

    four = philox((places >> 2, whole(step), whole(epoch), whole(round)), whole(keys))
    lane = places & 3
    return torch.stack(torch.broadcast_tensors(*four), dim=-1).gather(-1, lane[..., None]).squeeze(-1)


def bounded(drawn: Tensor, bound: Tensor | int) -> Tensor:
    """Words as numbers in 0 .. bound - 1, bound below 2^31: floor(word * bound / 2^32).

    No word is drawn again, so a number's probability is off by a factor of at most 1 + bound / 2^32.
    """
    return (drawn * bound) >> 32


def order(key: int, count: int, *, epoch: int, round: int) -> Tensor:
    """Permute 0 .. count - 1: sorted by their words of step 0, stably. Int64 `[count]`, on the CPU."""
    places = torch.arange(count)
    return torch.argsort(words(key, places, step=0, epoch=epoch, round=round), stable=True)
