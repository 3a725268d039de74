"""Masks: keystreams added to and subtracted from vectors of ring elements, a cache-sized block at a time.

    masked = mask_vector(values, [own_seed, pair_seed], [other_pair_seed], Ring.UINT32, "aes-256-ctr")

A mask in the rings of 2^32 and 2^64 elements is the keystream itself, exactly uniform. In that of 2^61-1 it is the low 61 bits
of every 8 bytes with p mapped to 0. Zero is then twice as likely as any other element, a statistical distance of 2^-61 per
element; no word is rejected, which could put two parties out of step.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fkgsec.protocols import CipherName
from fkgsec.protocols.core.errors import WrongType
from fkgsec.protocols.core.prg import Ring, keystream

BLOCK_BYTES = 256 * 1024  # block of output, keystream and zeros stay in a core's second-level cache together
_ZEROS = memoryview(bytes(BLOCK_BYTES))
_P = np.uint64(Ring.MERSENNE61.modulus)
_BITS = np.uint64(61)
_TERMS = 6  # below p + 8 plus six terms of at most p stays below 2^64


def mask_vector(
    values: np.ndarray,
    plus_seeds: Sequence[bytes],
    minus_seeds: Sequence[bytes],
    ring: Ring,
    cipher: CipherName = "aes-256-ctr",
    *,
    in_place: bool = False,
) -> np.ndarray:
    """Add the masks of `plus_seeds` to a vector and subtract those of `minus_seeds`, in the ring.

    Args:
        values: `[length]`, dtype of the ring.
        plus_seeds, minus_seeds: 32 bytes each; each keys one keystream and is used once.
        in_place: write into `values` and return it.

    Raises `WrongType` unless `values` is a vector of the ring, `WrongLength` for a seed of another length.
    Source: Bonawitz et al. 2017 Figure 4, round 2. Differs: masks modulo 2^61-1 are at distance 2^-61 from uniform.
    """
    ring.check(values, len(values), "values to mask")
    if in_place and not (values.flags.c_contiguous and values.flags.writeable):
        raise WrongType("values to mask in place: a contiguous, writeable vector is needed")
    masked = values if in_place else np.empty(len(values), dtype=ring.dtype)
    # Bonawitz et al. 2017 Figure 4, round 2: the masked vector is x + PRG(b) + sum of +-PRG(s_uv), modulo R.
    streams = [(keystream(seed, cipher), False) for seed in plus_seeds]
    streams += [(keystream(seed, cipher), True) for seed in minus_seeds]
    buffer = np.empty(BLOCK_BYTES // ring.dtype.itemsize, dtype=ring.dtype)
    for start in range(0, len(values), len(buffer)):
        block = masked[start : start + len(buffer)]
        if not in_place:
            block[:] = values[start : start + len(buffer)]
        mask = buffer[: len(block)]
        room = _TERMS
        # Go block by block, so that output, mask and zeros stay in the cache. Each stream continues where it stopped.
        for stream, is_minus in streams:
            stream.update_into(_ZEROS[: block.nbytes], mask.data.cast("B"))
            if ring is Ring.MERSENNE61:
                # Postpone the reduction modulo p: six terms fit into 64 bits without overflow.
                if not room:
                    _fold(block)
                    room = _TERMS
                room -= 1
                # The low 61 bits of the keystream. The value p stands for 0, so no word is rejected: a rejected word would
                # shift the keystream of one party against that of its peer.
                np.bitwise_and(mask, _P, out=mask)
                if is_minus:
                    # Flipping all 61 bits gives p - mask.
                    np.bitwise_xor(mask, _P, out=mask)
                np.add(block, mask, out=block)
            elif is_minus:
                np.subtract(block, mask, out=block)
            else:
                np.add(block, mask, out=block)
        if ring is Ring.MERSENNE61 and streams:
            _reduce(block)
    return masked


def add_into(total: np.ndarray, values: np.ndarray, ring: Ring) -> None:
    """Add `values` to `total` in the ring, in place.

    Args:
        total, values: `[length]` of the ring's dtype, both reduced.
    """
    np.add(total, values, out=total)
    if ring is Ring.MERSENNE61:
        _reduce(total)


def _fold(block: np.ndarray) -> None:
    """Reduce to an equal value modulo p of at most p + 7."""
    # 2^61 equals 1 modulo p, so the bits above the 61st are added to those below.
    high = block >> _BITS
    np.bitwise_and(block, _P, out=block)
    np.add(block, high, out=block)


def _reduce(block: np.ndarray) -> None:
    """Reduce to the value below p."""
    _fold(block)
    # For a value below p, the difference wraps around to far above it, and the minimum is the value itself.
    np.minimum(block, block - _P, out=block)
