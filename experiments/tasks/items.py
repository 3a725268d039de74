"""The outcome of a run on every test item, kept in its record, so that two runs are compared item by item.

    items = TestItems.of_ranks(result.test_ranks, seen)
    items.ranks()                                    # float64 `[n, sides]`
    items.client_slices()                            # one slice of rows per client

Items stand in the order of the clients' test splits, client after client.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Sequence

import msgspec
import numpy as np


class TestItems(msgspec.Struct, frozen=True):
    """Outcomes by test item, compressed by zlib.

    Attributes:
        counts: test items of each client, in the clients' order.
        sides: outcomes per item: 2 where tails and then heads are ranked, else 1.
        width: bytes of each unsigned little-endian outcome.
        outcomes: of `[n, sides]` items twice the rank, so that the mean of tied ranks is an integer; or 1 for a graph that is
            classified correctly and 0 for another.
        seen: one byte per item: 2 where it also stands in its own client's training, 1 in another client's alone, 0 in none.
    """

    __test__ = False  # no test class, whatever pytest reads into its name

    counts: list[int]
    sides: int
    width: int
    outcomes: bytes
    seen: bytes

    @classmethod
    def of_ranks(cls, ranks: Sequence[np.ndarray], seen: Sequence[np.ndarray]) -> TestItems:
        """Of each client its ranks, float64 `[n, sides]`, and where its items also stand, `[n]`."""
        return cls.of(np.rint(2 * np.concatenate(ranks)), [len(one) for one in ranks], seen)

    @classmethod
    def of(cls, outcomes: np.ndarray, counts: Sequence[int], seen: Sequence[np.ndarray]) -> TestItems:
        """Of outcomes `[n, sides]` of all clients' items, in as few bytes as the largest needs."""
        width = next(width for width in (1, 2, 4) if outcomes.max(initial=0) < 256**width)
        packed = [outcomes.astype(f"<u{width}"), np.concatenate(seen).astype(np.uint8)]
        return cls(list(counts), outcomes.shape[1], width, *(zlib.compress(one.tobytes(), 9) for one in packed))

    def values(self) -> np.ndarray:
        """The outcomes, float64 `[n, sides]`. Raises `ValueError` for bytes that are damaged or of another number of items."""
        try:
            found = np.frombuffer(zlib.decompress(self.outcomes), dtype=f"<u{self.width}")
        except (zlib.error, TypeError) as error:
            raise ValueError(f"outcomes cannot be read ({error})") from error
        return found.reshape(sum(self.counts), self.sides).astype(np.float64)

    def ranks(self) -> np.ndarray:
        """Ranks, float64 `[n, sides]`."""
        return self.values() / 2

    def where_seen(self) -> np.ndarray:
        """Where each item also stands, uint8 `[n]`. Raises `ValueError` as `values` does."""
        try:
            found = np.frombuffer(zlib.decompress(self.seen), dtype=np.uint8)
        except zlib.error as error:
            raise ValueError(f"seen cannot be read ({error})") from error
        if len(found) != sum(self.counts):
            raise ValueError(f"seen is of {len(found)} items; counts say {sum(self.counts)}")
        return found

    def client_slices(self) -> list[slice]:
        """The rows of each client."""
        ends = np.cumsum([0, *self.counts])
        return [slice(int(low), int(high)) for low, high in itertools.pairwise(ends)]
