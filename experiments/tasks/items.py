"""Outcome of a run on every test item, stored in its record, so that two runs can be compared item by item.

    items = TestItems.from_ranks(result.test_ranks, seen)
    items.ranks()                                    # float64 `[n, sides]`
    items.client_slices()                            # one slice of rows per client

Items are in the order of the clients' test splits, client after client.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np

from fkgsec.attacks.outcomes import decompress
from fkgsec.text import shown

MOST_ITEMS = 10_000_000
"""Test items of a record that are read; the largest published test split has less than a million."""
Average = Literal["items", "clients"]


class TestItems(msgspec.Struct, frozen=True):
    """Outcomes by test item, compressed by zlib.

    Attributes:
        counts: test items of each client, in the clients' order.
        sides: outcomes per item: 2 where tails and then heads are ranked, else 1.
        width: bytes of each unsigned little-endian outcome.
        outcomes: `[n, sides]`: twice the rank, so that the mean of tied ranks is an integer; or 1 for a correctly classified
            graph and 0 for another.
        seen: one byte per item: 2 if it is also in its client's train split, 1 if only in another client's, 0 if in none.
    """

    # Pytest must not collect it.
    __test__ = False

    counts: list[int]
    sides: int
    width: int
    outcomes: bytes
    seen: bytes

    @classmethod
    def from_ranks(cls, ranks: Sequence[np.ndarray], seen: Sequence[np.ndarray]) -> TestItems:
        """Pack the clients' ranks.

        Args:
            ranks: per client, float64 `[n, sides]`.
            seen: per client, `[n]`, see the class.
        """
        # The mean of tied ranks is a multiple of one half.
        return cls.pack(np.rint(2 * np.concatenate(ranks)), [len(client) for client in ranks], seen)

    @classmethod
    def pack(cls, outcomes: np.ndarray, counts: Sequence[int], seen: Sequence[np.ndarray]) -> TestItems:
        """Pack the outcomes of all clients' items, in as few bytes as the largest needs.

        Args:
            outcomes: integers `[n, sides]`.
            counts: number of items of each client.
            seen: per client, `[n]`, see the class.
        """
        # Ranks on small data fit in one byte; records stay small.
        width = next(width for width in (1, 2, 4) if outcomes.max(initial=0) < 256**width)
        packed = [outcomes.astype(f"<u{width}"), np.concatenate(seen).astype(np.uint8)]
        return cls(list(counts), outcomes.shape[1], width, *(zlib.compress(array.tobytes(), 9) for array in packed))

    def values(self) -> np.ndarray:
        """Return the outcomes, float64 `[n, sides]`. Raises `ValueError` for damaged bytes or another number of items."""
        num_items = self._num_items()
        if self.width not in (1, 2, 4) or self.sides not in (1, 2):
            raise ValueError(f"outcomes cannot be read (width {self.width}, sides {self.sides})")
        content = self._content("outcomes", num_items * self.sides * self.width)
        return np.frombuffer(content, dtype=f"<u{self.width}").reshape(num_items, self.sides).astype(np.float64)

    def ranks(self) -> np.ndarray:
        """Return the ranks, float64 `[n, sides]`."""
        return self.values() / 2

    def where_seen(self) -> np.ndarray:
        """Return `seen`, uint8 `[n]`. Raises `ValueError` as `values` does."""
        return np.frombuffer(self._content("seen", self._num_items()), dtype=np.uint8)

    def _num_items(self) -> int:
        num_items = sum(self.counts)
        if min(self.counts, default=0) < 0 or num_items > MOST_ITEMS:
            raise ValueError(f"counts must be 0 to {MOST_ITEMS:,} items together; got {shown(self.counts)}")
        return num_items

    def _content(self, name: Literal["outcomes", "seen"], num_bytes: int) -> bytes:
        """Decompress one of the two fields, which the counts say is of so many bytes."""
        try:
            content = decompress(getattr(self, name), num_bytes)
        except ValueError as error:
            raise ValueError(f"{name} cannot be read ({error})") from error
        if len(content) != num_bytes:
            raise ValueError(f"{name} have {len(content):,} bytes; the counts require {num_bytes:,}")
        return content

    def client_slices(self) -> list[slice]:
        """Return the rows of each client."""
        ends = np.cumsum([0, *self.counts])
        return [slice(int(low), int(high)) for low, high in itertools.pairwise(ends)]


def scores_of(items: TestItems, metric: str) -> np.ndarray:
    """Return the contribution of each test item to a metric, float64 `[n]`: the mean over its sides.

    Args:
        metric: `accuracy`, `mrr` or `hits@K`.
    """
    if metric == "accuracy":
        return items.values()[:, 0]
    ranks = items.ranks()
    return (1 / ranks if metric == "mrr" else ranks <= int(metric.partition("@")[2])).mean(axis=1)


def paired_variance(
    pairs: Sequence[tuple[TestItems, TestItems]], metric: str, share: float = 1.0, average: Average = "items"
) -> float:
    """Return the variance over test items of the mean of `first - share * second`; clients are strata.

    Args:
        pairs: outcomes of two runs on the same items, a pair for each seed; an item counts with its mean over seeds.
        metric: see `scores_of`.
        share: weight of the second run.
        average: `items` averages over all items, `clients` over the means of clients.
    """
    differences = np.mean(
        [scores_of(first, metric) - share * scores_of(second, metric) for first, second in pairs], axis=0
    )
    clients = [differences[rows] for rows in pairs[0][0].client_slices() if rows.stop > rows.start]
    counts = np.array([len(client) for client in clients], dtype=np.float64)
    # Stratified sampling: the variance of a weighted mean of clients' means.
    weights = counts / counts.sum() if average == "items" else np.full(len(clients), 1 / len(clients))
    # A client with one item has no variance of its own. The largest variance of a share is 1/4.
    overall = differences.var(ddof=1) if len(differences) > 1 else 0.25
    variances = np.array([client.var(ddof=1) if len(client) > 1 else overall for client in clients])
    return float((weights**2 * variances / counts).sum())
