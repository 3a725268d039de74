"""Outcome of an attack on each item, stored with a figure, so that two runs can be compared on the same items.

>>> import numpy as np
>>> names = np.arange(100)[:, None]
>>> before, after = (of_mean(np.arange(100) < right, names) for right in (60, 50))
>>> variance = paired_variance(before, after, before.ends)
>>> f"{variance.items ** 0.5:.3f}"
'0.032'

An item is an entity, a triple or a graph. Its outcome is its influence on the figure: to first order, the figures of two runs
differ by the sum of the items' differences. This is McNemar's comparison of hits, and DeLong's of two AUCs.
"""

from __future__ import annotations

import hashlib
import zlib
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from fkgsec.errors import RunError

if TYPE_CHECKING:
    import numpy as np

MOST_ITEMS = 20_000
"""Figures of more items store no outcomes, which would take up most of a record."""
_STEPS = 255


class Outcomes(msgspec.Struct, frozen=True, omit_defaults=True):
    """Influence of each item on a figure, in the order of its ends, compressed by zlib.

    Attributes:
        items: digest of the items; equal for the same items of two runs on the same data.
        low, step: the influence of an item is `low + step * code`.
        codes: one byte per item.
        ends: int32 `[n, 1]` or `[n, 2]`, the entity of each item, or its head and tail, stored as differences down the rows.
            Empty where an earlier figure of the same run has the same items.
        draws: the figure for each draw of leaked entities, starting with this figure; empty where nothing is drawn.
    """

    items: str
    low: float
    step: float
    codes: bytes
    ends: bytes = b""
    draws: tuple[float, ...] = ()


class Variance(NamedTuple):
    """Variance of the difference of two figures.

    Attributes:
        items: variance over items.
        draws: variance over draws of leaked entities.
        per_difference: growth of `items` per unit of true difference, since each gained or lost hit adds variance; 0 for
            scores, whose items can all change a little.
    """

    items: float
    draws: float
    per_difference: float = 0.0

    @property
    def total(self) -> float:
        """Variance over items and draws."""
        return self.items + self.draws


def of_mean(values: np.ndarray, ends: np.ndarray) -> Outcomes | None:
    """Return the outcomes of a mean.

    Args:
        values: float or bool `[n]`.
        ends: entities of each item, int `[n, 1]` or `[n, 2]`; they match items across runs.

    Returns:
        None for more than `MOST_ITEMS` items, else outcomes.
    """
    import numpy as np

    numbers = np.asarray(values, dtype=np.float64)
    # Influence of item i on a mean: (x_i - mean) / n.
    return _pack((numbers - numbers.mean()) / max(1, len(numbers)), ends)


def of_auc(members: np.ndarray, controls: np.ndarray, ends: np.ndarray) -> Outcomes | None:
    """Return the outcomes of an AUC: the probability that a member's score exceeds a control's, ties count half.

    Args:
        members: scores of members, float `[m]`.
        controls: scores of controls, float `[c]`.
        ends: entities of the members and then of the controls, int `[m + c, 1]` or `[m + c, 2]`.

    Returns:
        None for more than `MOST_ITEMS` items, else outcomes.
    """
    import numpy as np

    from fkgsec.attacks.membership.figures import placements

    # DeLong: each item's influence is its placement among the other group, centered and divided by its group's size.
    placed = placements(members, controls)
    group = np.arange(len(members) + len(controls)) >= len(members)
    parts = placed.members, placed.controls
    return _pack(np.concatenate([(part - part.mean()) / len(part) for part in parts]), ends, group)


def of_spearman(scores: np.ndarray, values: np.ndarray, ends: np.ndarray) -> Outcomes | None:
    """Return the outcomes of Spearman's rank correlation.

    Args:
        scores: float `[n]`.
        values: true values, float `[n]`.
        ends: entities of each item, int `[n, 1]` or `[n, 2]`.

    Returns:
        None for more than `MOST_ITEMS` items, else outcomes.

    Source: Croux and Dehon 2010 for the influence of an item, with the mean rank of the items above it added.
    """
    import numpy as np
    from scipy.stats import rankdata

    n = len(scores)
    first, second = ((rankdata(part) - 0.5) / n - 0.5 for part in (scores, values))

    def above(shares: np.ndarray, others: np.ndarray) -> np.ndarray:
        """Sum the others' shares over the items above each item, ties half, divided by n."""
        _, place, count = np.unique(shares, return_inverse=True, return_counts=True)
        sums = np.bincount(place, others, len(count))
        return (sums[::-1].cumsum()[::-1] - sums / 2)[place] / n

    # Influence on the correlation of ranks: the item's product of centered ranks, and its effect on the ranks of all
    # others.
    influence = first * second + above(first, second) + above(second, first)
    scale = float(first.std() * second.std())
    return _pack((influence - influence.mean()) / (n * scale) if scale else np.zeros(n), ends)


def _pack(influence: np.ndarray, ends: np.ndarray, group: np.ndarray | None = None) -> Outcomes | None:
    import numpy as np

    n = len(influence)
    if not 0 < n <= MOST_ITEMS:
        return None
    group = np.zeros(n, dtype=bool) if group is None else group
    # Sort by entity, so that the same items have the same digest in every run, and differences compress well.
    order = np.lexsort((*ends.T[::-1], group))
    arranged = ends[order].astype(np.int64)
    digest = hashlib.sha256(arranged.tobytes() + np.packbits(group).tobytes() + str(ends.shape).encode())
    low, high = float(influence.min()), float(influence.max())
    # Hits have two values, stored exactly as codes 0 and 1; scores are quantized.
    steps = 1 if len(np.unique(influence)) <= 2 else _STEPS
    step = (high - low) / steps
    codes = np.rint((influence[order] - low) / step) if step > 0 else np.zeros(n)
    differences = np.diff(arranged, axis=0, prepend=0).astype("<i4")
    return Outcomes(
        digest.hexdigest()[:16],
        low,
        step,
        zlib.compress(codes.astype(np.uint8).tobytes(), 9),
        zlib.compress(np.ascontiguousarray(differences.T).tobytes(), 9),
    )


def unpack(outcomes: Outcomes) -> np.ndarray:
    """Decode the influence of each item, float64 `[n]`, with an error of at most half a step in 255.

    Args:
        outcomes: outcomes from a record.

    Raises:
        RunError: the bytes are damaged.
    """
    import numpy as np

    codes = np.frombuffer(_decompressed(outcomes.codes, MOST_ITEMS), dtype=np.uint8)
    return outcomes.low + outcomes.step * codes.astype(np.float64)


def _decompressed(content: bytes, most_bytes: int) -> bytes:
    try:
        return decompress(content, most_bytes)
    except ValueError as error:
        raise RunError(f"the outcomes of an attack cannot be read ({error})") from error


def decompress(content: bytes, most_bytes: int) -> bytes:
    """Decompress bytes of a file from outside, which may be a few kB that stand for gigabytes.

    Raises:
        ValueError: damaged bytes, or more than `most_bytes`.
    """
    reader = zlib.decompressobj()
    try:
        plain = reader.decompress(content, most_bytes + 1)
    except zlib.error as error:
        raise ValueError(str(error)) from error
    if len(plain) > most_bytes:
        raise ValueError(f"more than {most_bytes:,} bytes when decompressed")
    if not reader.eof:
        raise ValueError("incomplete or truncated stream")
    return plain


def paired_variance(ours: Outcomes, theirs: Outcomes, ends: bytes) -> Variance:
    """Return the variance of the difference of two figures on the same items. Items that share an entity vary together.

    Sums over an entity are those of the jackknife. The square of the largest sum is added. It stands for the item that Agresti
    and Min add to a table of hits, and for chance effects of the entity with the most items.

    Args:
        ours, theirs: outcomes of the two figures; `same_items` must hold.
        ends: `Outcomes.ends` of these items.

    Source: Agresti and Min 2005; Fafchamps and Gubert 2007; Aronow, Samii and Assenova 2015.

    Raises:
        RunError: the bytes are damaged, or do not fit together.
    """
    import numpy as np

    now, before = unpack(ours), unpack(theirs)
    content = _decompressed(ends, MOST_ITEMS * 2 * 4)
    items, numbers = len(now), len(content) // 4
    if not items or len(before) != items or len(content) % 4 or numbers not in (items, 2 * items):
        raise RunError(f"the outcomes of an attack are of {items} and {len(before)} items; ends are {numbers} numbers")
    difference = now - before
    columns = np.frombuffer(content, dtype="<i4").reshape(-1, items).cumsum(axis=1)
    if columns.min() < 0:
        raise RunError(f"the outcomes of an attack name an entity {columns.min()}; entities are 0 or more")
    # Entities are numbered anew, so that memory follows the number of items.
    columns = np.unique(columns, return_inverse=True)[1].reshape(columns.shape)
    first, last = columns[0], columns[-1]
    count, double = int(columns.max()) + 1, first != last
    places, repeated = np.concatenate([first, last[double]]), np.concatenate([difference, difference[double]])
    share = np.bincount(places, minlength=count) / len(difference)
    # Leaving out an entity removes its share of the items, so the jackknife scales its sum by 1 / (1 - share).
    by_entity = np.bincount(places, repeated, count) / (1 - np.minimum(share, 0.5))
    # Two items on the same pair of entities share both sums: subtract what was counted twice (dyadic cluster-robust
    # variance).
    ordered = np.sort(columns[:, double], axis=0)
    _, pair = np.unique(ordered[0] * count + ordered[-1], return_inverse=True)
    by_pair = np.bincount(pair, difference[double])
    linked = float(by_entity @ by_entity - by_pair @ by_pair)
    alone = float(difference @ difference)
    items = max(alone, linked) + float((by_entity**2).max())
    draws = np.subtract(ours.draws, theirs.draws)
    hit = max(outcomes.step for outcomes in (ours, theirs)) if _are_hits(ours) and _are_hits(theirs) else 0.0
    return Variance(
        items, float(draws.var(ddof=1)) if len(draws) > 1 else 0.0, hit * max(1.0, linked / alone) if alone else hit
    )


def _are_hits(outcomes: Outcomes) -> bool:
    return max(_decompressed(outcomes.codes, MOST_ITEMS)) <= 1


def same_items(ours: Outcomes | None, theirs: Outcomes | None) -> bool:
    """Test whether two figures have outcomes on the same items and equally many draws."""
    if ours is None or theirs is None:
        return False
    return (ours.items, len(ours.draws)) == (theirs.items, len(theirs.draws))
