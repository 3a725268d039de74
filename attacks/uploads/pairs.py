"""Rank pairs of a victim's rows by how likely a triple links them, and measure how good the ranking is.

    pairs = candidate_pairs(len(rows), rng)
    scores = closeness(model, rows[pairs.rows], rows)          # float32 [h, n], larger for pairs that a short relation links
    ranking_auc(standardised(scores, pairs.rows)[pairs.mask], linked, pairs)

Pairs are unordered: nothing here distinguishes head from tail. Pairs that share a row are dependent, and intervals account for
it.

Legend: `n` rows of a victim, `h` of them whose pairs are ranked, `W` width, `P` pairs.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fkgsec.attacks.kge.view import VictimView
from fkgsec.attacks.membership.figures import estimate_auc, placements
from fkgsec.attacks.registry import Truth
from fkgsec.estimate import Estimate, proportion
from fkgsec.federation.recipes import Table
from fkgsec.kge import kinds
from fkgsec.kge.models import KgeModel

# With more pairs, only those of a sample of rows are ranked.
MAX_PAIRS = 4_000_000


@dataclass(frozen=True, eq=False)
class Pairs:
    """Unordered pairs of different rows, each once.

    Attributes:
        rows: rows whose pairs with all rows are candidates, int64 `[h]`, ascending.
        mask: candidates among all pairs, bool `[h, n]`.
        first, second: rows of each candidate, int64 `[P]`, in the order of `mask`.
    """

    rows: np.ndarray
    mask: np.ndarray
    first: np.ndarray
    second: np.ndarray


def candidate_pairs(count: int, rng: np.random.Generator, max_pairs: int = MAX_PAIRS) -> Pairs:
    """Return all pairs of rows, or those of a random sample of rows if there are too many.

    Args:
        count: number of rows.
        rng: draws the sample.
        max_pairs: largest number of pairs to rank.
    """
    rows = np.arange(count)
    if count * (count - 1) // 2 > max_pairs:
        rows = np.sort(rng.choice(count, size=max(1, max_pairs // count), replace=False))
    # Of two sampled rows keep one direction; with a row outside the sample there is one direction only.
    sampled = np.zeros(count, dtype=bool)
    sampled[rows] = True
    mask = ~sampled[None, :] | (np.arange(count)[None, :] > rows[:, None])
    place, second = np.nonzero(mask)
    return Pairs(rows, mask, rows[place], second)


def closeness(model: KgeModel, some: Tensor, rows: Tensor) -> np.ndarray:
    """Return the closeness of rows to other rows, whatever relation links them.

    TransE and other distance models: minus the L1 distance, since relation rows are short. RotatE: minus the L1 distance of the
    moduli, which no relation changes. DistMult and ComplEx: |conj(h) t|, the length of the relation vector that fits the pair
    best. It is the largest score that a relation of length 1 gives the pair.

    Args:
        some: float `[h, W]`.
        rows: float `[n, W]`.

    Returns:
        float32 `[h, n]`, larger is nearer.

    Source: ours; the first is the server's inference of links from FedE's rows by distance.
    """
    # Complex rows: rotations change phases, so only moduli can be compared.
    if model.similarity == kinds.MODULUS or (model.similarity == kinds.DOT and model.function.entity_numbers == 2):
        some, rows = (torch.hypot(*matrix.chunk(2, dim=1)) for matrix in (some, rows))
    if model.similarity == kinds.DOT:
        return ((some**2) @ (rows**2).T).sqrt().numpy()
    return (-torch.cdist(some, rows, p=1)).numpy()


def attraction(some: Tensor, rows: Tensor, chosen: np.ndarray, received: Tensor) -> np.ndarray:
    """Measure how straight a round's training moved two rows towards each other.

    The gradient of a linked pair's loss points from each row to the other. The measure is the cosine of each row's change to
    the direction of the other row, summed over both.

    Args:
        some: uploaded rows, float `[h, W]`.
        rows: all uploaded rows, float `[n, W]`.
        chosen: indices of `some` among `rows`, int64 `[h]`.
        received: rows that training started from, float `[n, W]`.

    Returns:
        float32 `[h, n]`.
    """
    changes = torch.nn.functional.normalize(rows - received, dim=1)
    moved = changes[torch.from_numpy(chosen)]
    # Projection of each unit change onto the way to the other row; divided by the distance, it is a cosine.
    there = moved @ rows.T - (moved * some).sum(dim=1)[:, None]
    back = some @ changes.T - (changes * rows).sum(dim=1)[None, :]
    return ((there + back) / torch.cdist(some, rows).clamp_min(1e-9)).numpy()


def standardised(values: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Standardize each value by its row and by its column, and add both.

    A hub is near to every row. What counts is whether a pair is nearer than its two rows usually are. A row's pair with itself
    is ignored.

    Args:
        values: float `[h, n]`.
        rows: column of each row's pair with itself, int64 `[h]`.
    """
    copy = values.astype(np.float32, copy=True)
    copy[np.arange(len(rows)), rows] = np.nan
    # A column without any value gives NaN and a warning: that of the only row in a sample.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        parts = [
            (copy - np.nanmean(copy, axis=axis, keepdims=True))
            / np.maximum(np.nanstd(copy, axis=axis, keepdims=True), 1e-9)
            for axis in (1, 0)
        ]
    return np.nan_to_num(parts[0]) + np.nan_to_num(parts[1])


def dyadic_variance(influence: np.ndarray, first: np.ndarray, second: np.ndarray) -> float:
    """Return the variance of a mean over pairs of rows, where pairs that share a row are dependent.

    Let e be the influence of a pair on the mean. The variance is the sum over rows of (sum of e over the row's pairs) squared,
    minus the sum of squared e, which the former counts twice. It is at least the sum of squared e, the value for pairs that
    share no row.

    Args:
        influence: float `[P]`.
        first: first row of each pair, int64 `[P]`.
        second: second row of each pair, int64 `[P]`.

    Source: Aronow, Samii and Assenova 2015.
    """
    # sum over rows i of (sum of e over pairs with i)^2 counts each e^2 twice: once per end.
    by_row = np.bincount(np.concatenate((first, second)), np.tile(influence, 2))
    single = float(influence @ influence)
    return max(single, float((by_row**2).sum()) - single)


def ranking_auc(scores: np.ndarray, linked: np.ndarray, pairs: Pairs, *, compared: int = 1) -> Estimate:
    """Return the probability that a linked pair ranks above an unlinked one, ties half.

    Args:
        scores: float `[P]`.
        linked: bool `[P]`, with at least two of each.
        compared: number of figures among which this one was chosen.

    Source: DeLong et al. 1988 for the influence; the variance is `dyadic_variance`.
    """
    placed = placements(scores[linked], scores[~linked])
    auc, influence = placed.members.mean(), np.empty(len(scores))
    # DeLong: influence of a pair on the AUC, by its placement among the other group.
    influence[linked] = (placed.members - auc) / len(placed.members)
    influence[~linked] = (placed.controls - auc) / len(placed.controls)
    variance = dyadic_variance(influence, pairs.first, pairs.second)
    return estimate_auc(placed, variance, "dyadic+newcombe", compared=compared)


def share_of_first(scores: np.ndarray, linked: np.ndarray, pairs: Pairs, count: int, *, compared: int = 1) -> Estimate:
    """Return the share of linked pairs among the first `count`.

    The set of first pairs is random, too, and varies by row, since a hub brings many pairs at once. The influence of a pair is
    that of a share above a threshold that a fixed share of all pairs exceeds: a pair among the first adds its excess over those
    at the threshold. The interval is Wilson's for the number of independent pairs with the same variance.

    Args:
        scores: float `[P]`, of more than `count` pairs.
        linked: bool `[P]`.
        count: number of first pairs.
        compared: number of figures among which this one was chosen.

    Source: ours, after the delta method.
    """
    share = right_of_first(scores, linked, count) / count
    around = max(1, count // 2), min(len(scores), count + count // 2)
    fewer, more = (right_of_first(scores, linked, number) for number in around)
    # Share of linked pairs near the threshold, estimated from the pairs ranked between count / 2 and 3 count / 2.
    at_threshold = (more - fewer) / (around[1] - around[0])
    least = np.partition(scores, len(scores) - count)[len(scores) - count]
    above, tied = scores > least, scores == least
    first = above + tied * ((count - above.sum()) / tied.sum())
    influence = first * (linked - at_threshold) / count
    influence -= influence.mean()
    alone = share * (1 - share) / count
    variance = dyadic_variance(influence, pairs.first, pairs.second)
    # Effective sample size: so many independent pairs would have this variance.
    independent = max(1, round(count / max(1.0, variance / alone))) if alone else count
    wide = proportion(share * independent, independent, compared=compared)
    method = "dyadic wilson" if compared == 1 else f"dyadic wilson, best of {compared}"
    return Estimate(share, min(wide.low, share), max(wide.high, share), count, method)


def right_of_first(scores: np.ndarray, linked: np.ndarray, count: int) -> float:
    """Count the linked pairs among the first `count`; for ties at the end, return the expected number.

    Args:
        scores: float `[P]`.
        linked: bool `[P]`.
        count: number of first pairs.
    """
    least = np.partition(scores, len(scores) - count)[len(scores) - count]
    above, tied = scores > least, scores == least
    return float(linked[above].sum() + (count - above.sum()) * linked[tied].mean())


class HeldRows(NamedTuple):
    """Rows that an adversary has of a victim.

    Attributes:
        number: number of rows.
        claimed: indices in a secure sum, int64 `[n]`; None if the rows were uploaded individually.
    """

    number: int
    claimed: np.ndarray | None

    @classmethod
    def of(cls, victim: VictimView, table: Table = "entities") -> HeldRows:
        """Describe the rows of one table."""
        claims, rows = victim.claims.get(table), victim.rows(table)
        return cls(0 if rows is None else len(rows), None if claims is None else claims.rows)


def local_ids(truth: Truth, victim: str, held_rows: HeldRows, table: Table = "entities") -> np.ndarray:
    """Return the local ID in `truth.client` of each row that the adversary has of a victim, int64 `[n]`; -1 for none.

    Rows that were uploaded individually are in that order. Rows that the adversary attributes to the victim are matched by
    name.

    Args:
        held_rows: rows that the adversary has.
    """
    client = truth.client(victim)
    ids, count = (
        (client.entity_ids, client.num_trained_entities)
        if table == "entities"
        else (client.relation_ids, client.num_trained_relations)
    )
    if held_rows.claimed is None:
        rows = np.arange(held_rows.number)
        return np.where(rows < count, rows, -1)
    names = np.array(getattr(truth.graph, table), dtype=object)[ids[:count]]
    place = {name: number for number, name in enumerate(names)}
    return np.array([place.get(truth.result.row_names[table][row], -1) for row in held_rows.claimed], dtype=np.int64)


def linked_pairs(triples: np.ndarray, pairs: Pairs, ids: np.ndarray) -> np.ndarray:
    """Find the pairs that some triple links in either direction, bool `[P]`.

    Args:
        triples: int `[k, 3]`, in local IDs.
        pairs: pairs of rows.
        ids: local ID of each row, int64 `[n]`, -1 for none, as from `local_ids`.
    """
    ends = np.sort(triples[:, [0, 2]], axis=1)
    span = int(max(ends.max(initial=0), ids.max(initial=0))) + 1
    first, second = (ids[rows] for rows in (pairs.first, pairs.second))
    # One integer per unordered pair of local IDs.
    codes = np.minimum(first, second) * span + np.maximum(first, second)
    return np.isin(codes, ends[:, 0] * span + ends[:, 1]) & (first >= 0) & (second >= 0)
