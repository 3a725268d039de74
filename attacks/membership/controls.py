"""Never-seen triples as controls for a client's forgotten triples.

A membership attack separates two groups of triples, so its figure depends on the second group. A fair null is a group that a
model retrained without the forgotten triples cannot separate from them: the client's test triples, or triples that an escrow
kept out of every run (`fkgsec.data.escrow`). They are true, as the forgotten ones are, and were never trained on; for test
triples only the party that trained knows this. If the test split was drawn at random, then after matching only training
separates the two groups, and a retrained model is expected at AUC 0.5.

Controls are matched on what a model knows about a triple before it saw it: the relation, the degree of both ends, and whether
another retained triple links the two ends. All are counted in the retained graph (train without the forgotten triples), since
that is what a retrained model sees. The last property matters. The test split of FB15k-237 was cleaned: none of its pairs is
linked in train, while 38 % of the training triples' pairs are linked by another triple. A retrained TransE there has an AUC
near 0.6 against unmatched test triples, as if it remembered. Against matched ones its AUC does not differ from 0.5.

Matching cannot fix three things: a test split that was not drawn at random, forgotten triples chosen for their content, and a
forgotten triple that another client still trains on. Then the retrained model's AUC on the same two groups is the reference,
not 0.5.

Source: ours; matching in cells is coarsened exact matching (Iacus, King and Porro 2012), from fine cells to coarse ones.

Legend: `n` forgotten triples, `m` of them with a control, `N` entities.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from fkgsec.data.graph import ClientGraph, as_triples
from fkgsec.errors import DataError

# Bins per doubling of a degree, from fine to coarse cells. Triples whose degrees differ by more than a factor of two do
# not match.
BINS_PER_DOUBLING = (8, 4, 2, 1)


class Controls(NamedTuple):
    """Controls, at most one for each forgotten triple. None is used twice, unless they are shared.

    Attributes:
        rows: indices in `forget` that have a control, int64 `[m]`, ascending; compare `forget[rows]` with `triples`. Figures
            say nothing about the others. Shared controls repeat the row for each of them.
        triples: control of each, int64 `[m, 3]`, in the client's local IDs.
    """

    rows: np.ndarray
    triples: np.ndarray


class _Retained:
    """A client's graph without the forgotten triples, and the triples that must not become controls."""

    def __init__(self, graph: ClientGraph, forget: np.ndarray, seen_elsewhere: np.ndarray | None) -> None:
        self.graph = graph
        keys = self.keys(forget)
        train_keys = self.keys(graph.train)
        # Only trained triples can be forgotten.
        missing = np.nonzero(~np.isin(keys, train_keys))[0]
        if len(missing):
            raise DataError(
                f"client {graph.name} forget: row {missing[0]}, triple {forget[missing[0]].tolist()}, is not in train"
            )
        if len(np.unique(keys)) < len(keys):
            raise DataError(f"client {graph.name} forget: a triple occurs twice in it")
        self.train = graph.train[~np.isin(train_keys, keys)]
        self.degree = np.bincount(self.train[:, [0, 2]].ravel(), minlength=graph.num_entities)
        # Both directions of each pair, as one integer.
        ends = self.train[:, [0, 2]] * [[graph.num_entities, 1]], self.train[:, [2, 0]] * [[graph.num_entities, 1]]
        self._pairs = np.unique(np.concatenate(ends).sum(axis=1))
        elsewhere = np.empty((0, 3), dtype=np.int64) if seen_elsewhere is None else seen_elsewhere
        elsewhere = as_triples(elsewhere, graph.num_entities, graph.num_relations, "seen_elsewhere")
        self.seen = np.unique(np.concatenate([train_keys, self.keys(graph.valid), self.keys(elsewhere)]))

    def keys(self, triples: np.ndarray) -> np.ndarray:
        """Encode each triple `[n, 3]` as one integer, int64 `[n]`."""
        count = self.graph.num_entities
        return (triples[:, 0] * self.graph.num_relations + triples[:, 1]) * count + triples[:, 2]

    def linked(self, triples: np.ndarray) -> np.ndarray:
        """Test whether a retained triple links the two ends in either direction, bool `[n]`."""
        return np.isin(triples[:, 0] * self.graph.num_entities + triples[:, 2], self._pairs)

    def degree_bins(self, bins_per_doubling: int) -> np.ndarray:
        """Return the bin of each entity's degree, int64 `[N]`.

        Within one bin, 1 + degree differs by less than a factor of 2 ** (1 / `bins_per_doubling`).
        """
        return np.floor(bins_per_doubling * np.log2(1.0 + self.degree)).astype(np.int64)


def matched_controls(
    graph: ClientGraph,
    forget: np.ndarray,
    rng: np.random.Generator,
    *,
    seen_elsewhere: np.ndarray | None = None,
    pool: np.ndarray | None = None,
    shared: bool = False,
) -> Controls:
    """Draw a never-trained triple for each forgotten one, as similar as possible; see the module.

    Args:
        graph: the client as it was trained: `forget` is part of its train split.
        forget: int64 `[n, 3]`, in local IDs, without duplicates.
        rng: draws among controls that match equally well.
        seen_elsewhere: triples that other clients train on, int64 `[k, 3]`, in this client's local IDs; never a control.
        pool: triples from which controls are drawn, int64 `[k, 3]`, in local IDs; None: the client's test triples.
        shared: True to match every triple with all controls that are as similar as its most similar one. Then every one with a
            similar control is matched, and no similar control is left out.

    Raises:
        DataError: `forget` is empty, repeats a triple or has one that is not in train; or no triple of it has a control.
    """
    forget = as_triples(forget, graph.num_entities, graph.num_relations, f"client {graph.name} forget")
    if not len(forget):
        raise DataError(f"client {graph.name} forget: it needs at least one triple; got none")
    retained = _Retained(graph, forget, seen_elsewhere)
    offered = graph.test if pool is None else as_triples(pool, graph.num_entities, graph.num_relations, "pool")
    candidates = np.unique(offered, axis=0)
    candidates = candidates[~np.isin(retained.keys(candidates), retained.seen)]
    both = np.concatenate([forget, candidates])
    # Exact on relation and on whether another triple links the two ends; coarsened on the two degrees.
    strata = np.stack([both[:, 1], retained.linked(both)], axis=1)
    matched, used = np.zeros(len(forget), dtype=bool), np.zeros(len(candidates), dtype=bool)
    pairs = [np.empty((0, 2), dtype=np.int64)]
    # Coarsened exact matching: match in fine cells first, then match the rest in coarser ones.
    for bins in BINS_PER_DOUBLING:
        cells = np.column_stack([strata, retained.degree_bins(bins)[both[:, [0, 2]]]])
        cell = np.unique(cells, axis=0, return_inverse=True)[1].reshape(-1)
        wanted, free = np.nonzero(~matched)[0], np.nonzero(~used | shared)[0]
        of_wanted, of_free = cell[wanted], cell[len(forget) + free]
        first, second = _all_within_cells(of_wanted, of_free) if shared else _pair_within_cells(of_wanted, of_free, rng)
        matched[wanted[first]] = used[free[second]] = True
        pairs.append(np.stack([wanted[first], free[second]], axis=1))
    rows, chosen = np.unique(np.concatenate(pairs), axis=0).T
    if not len(rows):
        raise DataError(
            f"client {graph.name}: none of {len(forget)} forgotten triples has a held_out control (never seen, of the same "
            f"relation, with degrees within a factor of two, from {len(offered)} {'test' if pool is None else 'escrowed'} "
            f"triples)"
        )
    return Controls(rows, candidates[chosen])


def _pair_within_cells(
    wanted: np.ndarray, offered: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Pair items of the same cell at random, none used twice, as many as possible.

    Returns: indices in `wanted` and in `offered`.
    """
    # The k-th of a cell in one shuffled list takes the k-th of that cell in the other.
    span = 1 + max(len(wanted), len(offered))
    slots = [cells * span + _turn_within_cell(cells, rng) for cells in (wanted, offered)]
    _, first, second = np.intersect1d(*slots, assume_unique=True, return_indices=True)
    return first, second


def _all_within_cells(wanted: np.ndarray, offered: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Pair each wanted item with every offered one of its cell. Returns: indices in `wanted` and in `offered`."""
    order = np.argsort(offered, kind="stable")
    starts, ends = (np.searchsorted(offered[order], wanted, side=side) for side in ("left", "right"))
    sizes = ends - starts
    first = np.repeat(np.arange(len(wanted)), sizes)
    turns = np.arange(len(first)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return first, order[starts[first] + turns]


def _turn_within_cell(cells: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Number the items of each cell 0, 1, ... in random order, int64 `[n]`."""
    shuffled, turn = rng.permutation(len(cells)), np.empty(len(cells), dtype=np.int64)
    turn[shuffled] = pd.Series(cells[shuffled]).groupby(cells[shuffled]).cumcount()
    return turn
