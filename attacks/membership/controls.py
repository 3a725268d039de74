"""Never-seen triples to hold a client's forgotten triples against.

A membership attack tells two groups of triples apart, so its figure means what the second group makes it mean. The fair null is a
group that a model re-trained without the forgotten triples cannot tell from them: the client's test triples, or triples that an
escrow kept out of every run (`fkgsec.data.escrow`). They are true, as the forgotten ones are, and were never trained on; of test
triples only the party that trained knows that. Where the test split was drawn at random, and after matching, nothing but training
separates the two groups, so a re-trained model is expected at AUC 0.5.

Matched are what a model knows about a triple before it saw it, all of it counted in the retained graph (train without the
forgotten triples), since that is what a re-trained model sees: the relation, the degree of both ends, and whether another
retained triple links the two ends. The last is not a detail. The test split of FB15k-237 was cleaned: none of its pairs is linked
in train, and 38 % of the training triples' pairs are linked by another one. There a re-trained TransE has an AUC near 0.6 against
the test triples as they are (a perfect re-training looks as if it remembered), and one that cannot be told from 0.5 against
matched ones.

Three things matching cannot mend, for which the re-trained model's AUC on the same two groups is the reference, not 0.5: a
test split that was not drawn at random, forgotten triples chosen for what they say, and a forgotten triple that another
client goes on training on.

Source: ours; matching in cells is coarsened exact matching (Iacus, King and Porro 2012), from fine cells to coarse ones.

Legend: `n` forgotten triples, `m` of them with a control, `N` entities.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from fkgsec.data.graph import ClientGraph, as_triples
from fkgsec.errors import DataError

BINS_PER_DOUBLING = (8, 4, 2, 1)  # of a degree, from fine cells to coarse ones; beyond a doubling it is no match


class Controls(NamedTuple):
    """Controls, at most one for each forgotten triple; none is used twice, unless drawn with replacement.

    Attributes:
        rows: int64 `[m]`, ascending, the places in `forget` that have a control; compare `forget[rows]` with `triples`. Figures
            say nothing about the others.
        triples: int64 `[m, 3]`, the control of each, in the client's local ids.
    """

    rows: np.ndarray
    triples: np.ndarray


class _Retained:
    """A client's graph without the forgotten triples, and the triples that must not become controls."""

    def __init__(self, graph: ClientGraph, forget: np.ndarray, seen_elsewhere: np.ndarray | None) -> None:
        self.graph = graph
        keys = self.keys(forget)
        train_keys = self.keys(graph.train)
        missing = np.nonzero(~np.isin(keys, train_keys))[0]
        if len(missing):
            raise DataError(
                f"client {graph.name} forget: row {missing[0]}, triple {forget[missing[0]].tolist()}, is not in train"
            )
        if len(np.unique(keys)) < len(keys):
            raise DataError(f"client {graph.name} forget: a triple stands in it twice; each may stand once")
        self.train = graph.train[~np.isin(train_keys, keys)]
        self.degree = np.bincount(self.train[:, [0, 2]].ravel(), minlength=graph.num_entities)
        ends = self.train[:, [0, 2]] * [[graph.num_entities, 1]], self.train[:, [2, 0]] * [[graph.num_entities, 1]]
        self._pairs = np.unique(np.concatenate(ends).sum(axis=1))
        elsewhere = np.empty((0, 3), dtype=np.int64) if seen_elsewhere is None else seen_elsewhere
        elsewhere = as_triples(elsewhere, graph.num_entities, graph.num_relations, "seen_elsewhere")
        self.seen = np.unique(np.concatenate([train_keys, self.keys(graph.valid), self.keys(elsewhere)]))

    def keys(self, triples: np.ndarray) -> np.ndarray:
        """A number for each triple `[n, 3]`."""
        count = self.graph.num_entities
        return (triples[:, 0] * self.graph.num_relations + triples[:, 1]) * count + triples[:, 2]

    def linked(self, triples: np.ndarray) -> np.ndarray:
        """True where a retained triple links the two ends, either way round; bool `[n]`."""
        return np.isin(triples[:, 0] * self.graph.num_entities + triples[:, 2], self._pairs)

    def degree_bins(self, bins_per_doubling: int) -> np.ndarray:
        """The bin of each entity's degree, int64 `[N]`: within one bin 1 + degree differs by less than a factor
        2 ** (1 / `bins_per_doubling`)."""
        return np.floor(bins_per_doubling * np.log2(1.0 + self.degree)).astype(np.int64)


def matched_controls(
    graph: ClientGraph,
    forget: np.ndarray,
    rng: np.random.Generator,
    *,
    seen_elsewhere: np.ndarray | None = None,
    pool: np.ndarray | None = None,
    replacement: bool = False,
) -> Controls:
    """A triple that the client never trained on for each forgotten one, as like it as there is; see the module.

    Args:
        graph: the client, as it was trained: `forget` is part of its train split.
        forget: int64 `[n, 3]`, local ids, no triple twice.
        rng: draws among controls that match equally well.
        seen_elsewhere: int64 `[k, 3]`, triples in this client's local ids that other clients train on; never a control.
        pool: int64 `[k, 3]`, what controls are drawn from, local ids; None: the client's test triples.
        replacement: whether a control may stand for several forgotten triples, so that all of them that have any like them are
            matched. It then weighs as much as these.

    Raises:
        DataError: `forget` is empty, repeats a triple or holds one that is not in train; or no triple of it has a control.
    """
    forget = as_triples(forget, graph.num_entities, graph.num_relations, f"client {graph.name} forget")
    if not len(forget):
        raise DataError(f"client {graph.name} forget: it needs at least one triple; got none")
    retained = _Retained(graph, forget, seen_elsewhere)
    offered = graph.test if pool is None else as_triples(pool, graph.num_entities, graph.num_relations, "pool")
    candidates = np.unique(offered, axis=0)
    candidates = candidates[~np.isin(retained.keys(candidates), retained.seen)]
    both = np.concatenate([forget, candidates])
    strata = np.stack([both[:, 1], retained.linked(both)], axis=1)
    chosen = np.full(forget.shape, -1, dtype=np.int64)
    used = np.zeros(len(candidates), dtype=bool)
    for bins in BINS_PER_DOUBLING:
        cells = np.column_stack([strata, retained.degree_bins(bins)[both[:, [0, 2]]]])
        cell = np.unique(cells, axis=0, return_inverse=True)[1].reshape(-1)
        wanted, free = np.nonzero(chosen[:, 0] < 0)[0], np.nonzero(~used | replacement)[0]
        pair = _share_within_cells if replacement else _pair_within_cells
        first, second = pair(cell[wanted], cell[len(forget) + free], rng)
        chosen[wanted[first]] = candidates[free[second]]
        used[free[second]] = True
    rows = np.nonzero((chosen >= 0).all(axis=1))[0]
    if not len(rows):
        raise DataError(
            f"client {graph.name}: none of {len(forget)} forgotten triples has a held_out control (never seen, of the same "
            f"relation, with degrees within a factor of two, from {len(offered)} {'test' if pool is None else 'escrowed'} "
            f"triples)"
        )
    return Controls(rows, chosen[rows])


def _pair_within_cells(
    wanted: np.ndarray, offered: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Places (in `wanted`, in `offered`) of pairs that share a cell: as many as there can be, at random, none used twice."""
    # The k-th of a cell in one shuffled list takes the k-th of that cell in the other.
    span = 1 + max(len(wanted), len(offered))
    slots = [cells * span + _turn_within_cell(cells, rng) for cells in (wanted, offered)]
    _, first, second = np.intersect1d(*slots, assume_unique=True, return_indices=True)
    return first, second


def _share_within_cells(
    wanted: np.ndarray, offered: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Places (in `wanted`, in `offered`) of pairs that share a cell; each wanted one has a pair, offered ones by turns."""
    sizes = np.bincount(offered, minlength=1 + max(wanted.max(initial=0), offered.max(initial=0)))
    first = np.nonzero(sizes[wanted] > 0)[0]
    order = np.lexsort((_turn_within_cell(offered, rng), offered))  # offered ones cell by cell
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    turns = _turn_within_cell(wanted[first], rng) % sizes[wanted[first]]
    return first, order[starts[wanted[first]] + turns]


def _turn_within_cell(cells: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The number of each item among those of its cell, 0, 1, ..., in random order; int64 `[n]`."""
    shuffled, turn = rng.permutation(len(cells)), np.empty(len(cells), dtype=np.int64)
    turn[shuffled] = pd.Series(cells[shuffled]).groupby(cells[shuffled]).cumcount()
    return turn
