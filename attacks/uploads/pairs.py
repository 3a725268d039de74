"""Pairs of a victim's rows in the order in which an adversary takes them for linked, and how good that order is.

    pairs = candidate_pairs(len(rows), rng)
    scores = closeness(model, rows[pairs.rows], rows)          # float32 [h, n], larger for pairs that a short relation links
    ranking_auc(standardised(scores, pairs.rows)[pairs.mask], linked, pairs)

Pairs are unordered: nothing here tells head from tail. Pairs that share a row are not independent; intervals count with that.

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

MAX_PAIRS = 4_000_000  # of more, those of a sample of rows are ranked


@dataclass(frozen=True, eq=False)
class Pairs:
    """Unordered pairs of different rows, each once.

    Attributes:
        rows: int64 `[h]`, ascending, those whose pairs with all rows are candidates.
        mask: bool `[h, n]`, the candidates. first, second: int64 `[P]`, their rows, in the order of `mask`.
    """

    rows: np.ndarray
    mask: np.ndarray
    first: np.ndarray
    second: np.ndarray


def candidate_pairs(count: int, rng: np.random.Generator, max_pairs: int = MAX_PAIRS) -> Pairs:
    """All pairs of `count` rows, or those of a random sample of rows where these are more than `max_pairs`."""
    rows = np.arange(count)
    if count * (count - 1) // 2 > max_pairs:
        rows = np.sort(rng.choice(count, size=max(1, max_pairs // count), replace=False))
    sampled = np.zeros(count, dtype=bool)
    sampled[rows] = True
    mask = ~sampled[None, :] | (np.arange(count)[None, :] > rows[:, None])
    place, second = np.nonzero(mask)
    return Pairs(rows, mask, rows[place], second)


def closeness(model: KgeModel, some: Tensor, rows: Tensor) -> np.ndarray:
    """Closeness of rows `[h, W]` to rows `[n, W]` whatever relation links them, float32 `[h, n]`, larger is nearer.

    TransE and other distances: minus the L1 distance, since relation rows are short. RotatE: minus the L1 distance of the moduli,
    which no relation changes. DistMult and ComplEx: the length of the relation vector that fits the pair best, |conj(h) t|,
    which is the largest score that a relation of length 1 gives it.

    Source: ours; the first is the server's inference of links from FedE's rows by distance.
    """
    if model.similarity == kinds.MODULUS or (model.similarity == kinds.DOT and model.function.entity_numbers == 2):
        some, rows = (torch.hypot(*matrix.chunk(2, dim=1)) for matrix in (some, rows))
    if model.similarity == kinds.DOT:
        return ((some**2) @ (rows**2).T).sqrt().numpy()
    return (-torch.cdist(some, rows, p=1)).numpy()


def attraction(some: Tensor, rows: Tensor, chosen: np.ndarray, received: Tensor) -> np.ndarray:
    """Straightness of two rows' moves towards each other in the training of a round, float32 `[h, n]`.

    The cosine of each one's change to the way to the other, both summed: the gradient of a linked pair's loss has that direction.

    Args:
        some `[h, W]`, rows `[n, W]`: as uploaded. chosen: int64 `[h]`, which of `rows` the former are.
        received: `[n, W]`, the rows that training began from.
    """
    changes = torch.nn.functional.normalize(rows - received, dim=1)
    moved = changes[torch.from_numpy(chosen)]
    there = moved @ rows.T - (moved * some).sum(dim=1)[:, None]
    back = some @ changes.T - (changes * rows).sum(dim=1)[None, :]
    return ((there + back) / torch.cdist(some, rows).clamp_min(1e-9)).numpy()


def standardised(values: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Values `[h, n]` less the mean of each one's row and column, over their deviation, both summed: `[h, n]`.

    A hub is near to everything; what counts is whether a pair is nearer than its two rows usually are. A row's pair with itself
    (at `rows`) counts for nothing.
    """
    copy = values.astype(np.float32, copy=True)
    copy[np.arange(len(rows)), rows] = np.nan
    with warnings.catch_warnings():  # the column of a row that is alone in the sample has no values
        warnings.simplefilter("ignore", RuntimeWarning)
        parts = [
            (copy - np.nanmean(copy, axis=axis, keepdims=True))
            / np.maximum(np.nanstd(copy, axis=axis, keepdims=True), 1e-9)
            for axis in (1, 0)
        ]
    return np.nan_to_num(parts[0]) + np.nan_to_num(parts[1])


def dyadic_variance(influence: np.ndarray, first: np.ndarray, second: np.ndarray) -> float:
    """Variance of a mean over pairs of rows, of which those that share a row vary together.

    With e the influence of a pair on the mean, it is the sum over rows of the squared sum of their pairs' e, less the sum of e
    squared, which that counts twice; at least that sum, which it is where no pairs share a row.

    Args:
        influence: `[P]`, first, second: int64 `[P]`, their rows.

    Source: Aronow, Samii and Assenova 2015.
    """
    by_row = np.bincount(np.concatenate((first, second)), np.tile(influence, 2))
    single = float(influence @ influence)
    return max(single, float((by_row**2).sum()) - single)


def ranking_auc(scores: np.ndarray, linked: np.ndarray, pairs: Pairs, *, compared: int = 1) -> Estimate:
    """Chance that a linked pair lies above another one, ties half.

    Args:
        scores `[P]`, linked: bool `[P]`, at least two of either. compared: among how many figures this one was chosen.

    Source: DeLong et al. 1988 for the influence; the variance is `dyadic_variance`.
    """
    placed = placements(scores[linked], scores[~linked])
    auc, influence = placed.members.mean(), np.empty(len(scores))
    influence[linked] = (placed.members - auc) / len(placed.members)
    influence[~linked] = (placed.controls - auc) / len(placed.controls)
    variance = dyadic_variance(influence, pairs.first, pairs.second)
    return estimate_auc(placed, variance, "dyadic+newcombe", compared=compared)


def share_of_first(scores: np.ndarray, linked: np.ndarray, pairs: Pairs, count: int, *, compared: int = 1) -> Estimate:
    """Share of linked pairs among the first `count`.

    Args:
        scores `[P]`, linked: bool `[P]`, of more than `count` pairs. compared: among how many figures this one was chosen.

    Which pairs come first is drawn, too: by the row, since a hub brings many at once. The influence of a pair is that of a share
    above a threshold that a fixed share of all pairs exceeds: one among the first adds what it is beyond those at the threshold.
    Its variance is `dyadic_variance`; the interval is Wilson's of as many independent pairs as tell as much.

    Source: ours, after the delta method.
    """
    share = right_of_first(scores, linked, count) / count
    around = max(1, count // 2), min(len(scores), count + count // 2)
    fewer, more = (right_of_first(scores, linked, number) for number in around)
    at_threshold = (more - fewer) / (around[1] - around[0])
    least = np.partition(scores, len(scores) - count)[len(scores) - count]
    above, tied = scores > least, scores == least
    first = above + tied * ((count - above.sum()) / tied.sum())
    influence = first * (linked - at_threshold) / count
    influence -= influence.mean()
    alone = share * (1 - share) / count
    variance = dyadic_variance(influence, pairs.first, pairs.second)
    independent = max(1, round(count / max(1.0, variance / alone))) if alone else count
    wide = proportion(share * independent, independent, compared=compared)
    method = "dyadic wilson" if compared == 1 else f"dyadic wilson, best of {compared}"
    return Estimate(share, min(wide.low, share), max(wide.high, share), count, method)


def right_of_first(scores: np.ndarray, linked: np.ndarray, count: int) -> float:
    """Count the linked ones among the first `count` of the pairs `[P]`; of those that tie at the end as many as are expected."""
    least = np.partition(scores, len(scores) - count)[len(scores) - count]
    above, tied = scores > least, scores == least
    return float(linked[above].sum() + (count - above.sum()) * linked[tied].mean())


class HeldRows(NamedTuple):
    """Number of rows that an adversary has of a victim; `claimed`: of a secure sum, which of its rows these are, int64 `[n]`."""

    number: int
    claimed: np.ndarray | None

    @classmethod
    def of(cls, victim: VictimView, table: Table = "entities") -> HeldRows:
        """Those of a table."""
        claims, rows = victim.claims.get(table), victim.rows(table)
        return cls(0 if rows is None else len(rows), None if claims is None else claims.rows)


def local_ids(truth: Truth, victim: str, held_rows: HeldRows, table: Table = "entities") -> np.ndarray:
    """Local id in `truth.client` of each row that the adversary has of a victim, int64 `[n]`; -1: of none.

    Rows that crossed alone are in that order; rows that the adversary attributes to the victim go by their names.
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
    """Find the pairs that some of these triples `[k, 3]` link, either way round, bool `[P]`; `ids` as `local_ids` has them."""
    ends = np.sort(triples[:, [0, 2]], axis=1)
    span = int(max(ends.max(initial=0), ids.max(initial=0))) + 1
    first, second = (ids[rows] for rows in (pairs.first, pairs.second))
    codes = np.minimum(first, second) * span + np.maximum(first, second)
    return np.isin(codes, ends[:, 0] * span + ends[:, 1]) & (first >= 0) & (second >= 0)
