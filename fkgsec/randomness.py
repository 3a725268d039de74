"""Randomness as an argument: one independent generator for each (seed, purpose, where)."""

from __future__ import annotations

import hashlib
import operator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np


def generator(seed: int, purpose: str, *where: int | str) -> np.random.Generator:
    """A generator that depends on nothing but its arguments.

    `where` says client, round, epoch or the like. Training a client alone, in a stack, or after a resume draws the same
    numbers, since no generator is carried from one place to the next.

    >>> generator(0, "shuffle", 1).integers(100) == generator(0, "shuffle", 1).integers(100)
    np.True_
    """
    import numpy as np  # the command line reads options without it

    plain = tuple(item if isinstance(item, str) else operator.index(item) for item in where)
    text = repr((operator.index(seed), purpose, *plain)).encode()
    return np.random.default_rng(int.from_bytes(hashlib.sha256(text).digest()[:16], "little"))
