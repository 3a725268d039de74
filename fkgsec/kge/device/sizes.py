"""Sizes of the blocks in which kernels work: powers of two, as Triton wants them."""

from __future__ import annotations

NUMBERS_OF_A_TILE = 4096  # of candidates times dimensions, in the registers of one program


def block_of(count: int) -> int:
    """The least power of two that is no less than `count`."""
    return 1 << max(0, count - 1).bit_length()


def tile_of(block: int, model: int) -> int:
    """Rows of a tile of `block` dimensions; complex rows (models 1 and 3) have two numbers of each."""
    numbers = block * (2 if model in (1, 3) else 1)
    return max(2, min(64, NUMBERS_OF_A_TILE // numbers))
