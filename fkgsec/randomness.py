"""Randomness as an argument: one independent generator per (seed, purpose, where)."""

from __future__ import annotations

import hashlib
import operator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np


def generator(seed: int, purpose: str, *where: int | str) -> np.random.Generator:
    """Return a generator that depends only on the arguments.

    No generator is passed between clients, rounds or epochs. Training a client alone, in a stack, or after a resume
    therefore draws the same numbers.

    Args:
        seed: of the run.
        purpose: what is drawn, such as "shuffle".
        where: client, round, epoch or the like.

    >>> generator(0, "shuffle", 1).integers(100) == generator(0, "shuffle", 1).integers(100)
    np.True_
    """
    import numpy as np  # the command line reads options without numpy

    # numpy integers and Python's give the same text.
    plain = tuple(item if isinstance(item, str) else operator.index(item) for item in where)
    text = repr((operator.index(seed), purpose, *plain)).encode()
    # A cryptographic hash keeps nearby seeds and purposes independent.
    return np.random.default_rng(int.from_bytes(hashlib.sha256(text).digest()[:16], "little"))
