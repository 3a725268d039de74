"""Never-seen triples to hold a client's forgotten triples against.

A membership attack tells two groups of triples apart, so its figure means what the second group makes it mean. The fair
null is a group that a model re-trained without the forgotten triples cannot tell from them:

* `held_out`: the client's test triples, or triples that an escrow kept out of every run (`fkgsec.data.escrow`). They are true,
  as the forgotten ones are, and were never trained on; of test triples only the party that trained knows that. Where the test
  split was drawn at random, and after matching, nothing but training separates the two groups, so a re-trained model is
  expected at AUC 0.5.
* `corrupted`: forgotten triples with one end replaced. They were never held and there are nearly always enough, but most are
  false: a re-trained model that predicts links well tells them from true triples although it saw neither. Its AUC is far
  above 0.5, and 0.5 is no null. Read such a figure only beside the re-trained model's
  (`fkgsec.attacks.membership.figures.compare_auc`).

Matched are what a model knows about a triple before it saw it, all of it counted in the retained graph (train without the
forgotten triples), since that is what a re-trained model sees: the relation, the degree of both ends, and, for `held_out`,
whether another retained triple links the two ends. The last is not a detail. The test split of FB15k-237 was cleaned: none of
its pairs is linked in train, and 38 % of the training triples' pairs are linked by another one. There a re-trained TransE
has an AUC near 0.6 against the test triples as they are (a perfect re-training looks as if it remembered), and one that cannot
be told from 0.5 against matched ones.

Three things matching cannot mend, for which the re-trained model's AUC on the same two groups is the reference, not 0.5: a
test split that was not drawn at random, forgotten triples chosen for what they say, and a forgotten triple that another
client goes on training on.

Source: ours; matching in cells is coarsened exact matching (Iacus, King and Porro 2012), from fine cells to coarse ones.

Legend: `n` forgotten triples, `m` of them with a control, `N` entities.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

import numpy as np

from fkgsec.data.graph import ClientGraph, as_triples
from fkgsec.errors import DataError, SpecError

ControlKind = Literal["held_out", "corrupted"]
BINS_PER_DOUBLING = (8, 4, 2, 1)  # of a degree, from fine cells to coarse ones; beyond a doubling it is no match
DRAWS = 50  # corruptions tried for a triple at each of these


class Controls(NamedTuple):
    """Controls, at most one for each forgotten triple and none used twice.

    Attributes:
        kind: "held_out" or "corrupted".
        rows: int64 `[m]`, ascending, the places in `forget` that have a control; compare `forget[rows]` with `triples`.
        triples: int64 `[m, 3]`, the control of each, in the client's local ids.
        doublings: float64 `[m]`, how far the degrees are apart: |log2((1 + degree) / (1 + control's degree))| of the end where
            that is larger. Below 1.
        unmatched: int64 `[n - m]`, the places in `forget` without a control that is close enough. Figures say nothing
            about these triples.
    """

    kind: ControlKind
    rows: np.ndarray
    triples: np.ndarray
    doublings: np.ndarray
    unmatched: np.ndarray


class _Retained:
    """What is left of a client's graph without the forgotten triples, and what must not become a control."""

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
        self._pairs = np.unique(np.concatenate([self._pair_keys(0, 2), self._pair_keys(2, 0)]))
        elsewhere = np.empty((0, 3), dtype=np.int64) if seen_elsewhere is None else seen_elsewhere
        elsewhere = as_triples(elsewhere, graph.num_entities, graph.num_relations, "seen_elsewhere")
        self.seen = np.unique(np.concatenate([train_keys, self.keys(graph.valid), self.keys(elsewhere)]))

    def keys(self, triples: np.ndarray) -> np.ndarray:
        """One number for each triple `[n, 3]`."""
        count = self.graph.num_entities
        return (triples[:, 0] * self.graph.num_relations + triples[:, 1]) * count + triples[:, 2]

    def linked(self, triples: np.ndarray) -> np.ndarray:
        """Whether a retained triple links the two ends, either way round; bool `[n]`."""
        return np.isin(triples[:, 0] * self.graph.num_entities + triples[:, 2], self._pairs)

    def degree_bins(self, bins_per_doubling: int) -> np.ndarray:
        """The bin of each entity's degree, int64 `[N]`: within one bin 1 + degree differs by less than a factor
        2 ** (1 / `bins_per_doubling`)."""
        return np.floor(bins_per_doubling * np.log2(1.0 + self.degree)).astype(np.int64)

    def doublings(self, triples: np.ndarray, others: np.ndarray) -> np.ndarray:
        """How far the degrees of two triples are apart at the worse end, float64 `[n]`."""
        levels = np.log2(1.0 + self.degree)
        return np.abs(levels[triples[:, [0, 2]]] - levels[others[:, [0, 2]]]).max(axis=1, initial=0.0)

    def _pair_keys(self, first: int, second: int) -> np.ndarray:
        return self.train[:, first] * self.graph.num_entities + self.train[:, second]


def matched_controls(
    graph: ClientGraph,
    forget: np.ndarray,
    rng: np.random.Generator,
    *,
    kind: ControlKind = "held_out",
    seen_elsewhere: np.ndarray | None = None,
    pool: np.ndarray | None = None,
) -> Controls:
    """A triple that the client never trained on for each forgotten one, as like it as there is; see the module.

    Args:
        graph: the client, as it was trained: `forget` is part of its train split.
        forget: int64 `[n, 3]`, local ids, no triple twice.
        rng: draws among controls that match equally well.
        kind: which null; "corrupted" has to be asked for, since 0.5 is not its null.
        seen_elsewhere: int64 `[k, 3]`, triples in this client's local ids that other clients train on; never a control.
        pool: int64 `[k, 3]`, what "held_out" controls are drawn from, local ids; None: the client's test triples.

    Raises:
        DataError: `forget` is empty, repeats a triple or holds one that is not in train; or no triple of it has a control.
        SpecError: an unknown kind.
    """
    if kind not in get_args(ControlKind):
        raise SpecError(f"kind must be one of {', '.join(get_args(ControlKind))}; got {kind!r}")
    forget = as_triples(forget, graph.num_entities, graph.num_relations, f"client {graph.name} forget")
    if not len(forget):
        raise DataError(f"client {graph.name} forget: it needs at least one triple; got none")
    retained = _Retained(graph, forget, seen_elsewhere)
    offered = graph.test if pool is None else as_triples(pool, graph.num_entities, graph.num_relations, "pool")
    chosen = _held_out(retained, forget, offered, rng) if kind == "held_out" else _corrupted(retained, forget, rng)
    rows = np.nonzero((chosen >= 0).all(axis=1))[0]
    if not len(rows):
        raise DataError(
            f"client {graph.name}: none of {len(forget)} forgotten triples has a {kind} control (never seen, of the same "
            f"relation, with degrees within a factor of two, from {len(offered)} {'test' if pool is None else 'escrowed'} "
            f"triples)"
        )
    return Controls(
        kind=kind,
        rows=rows,
        triples=chosen[rows],
        doublings=retained.doublings(forget[rows], chosen[rows]),
        unmatched=np.setdiff1d(np.arange(len(forget)), rows),
    )


def _held_out(retained: _Retained, forget: np.ndarray, pool: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Triples of the pool int64 `[n, 3]`, rows of -1 where none matches."""
    test = np.unique(pool, axis=0)
    test = test[~np.isin(retained.keys(test), retained.seen)]
    both = np.concatenate([forget, test])
    strata = np.stack([both[:, 1], retained.linked(both)], axis=1)
    chosen = np.full(forget.shape, -1, dtype=np.int64)
    used = np.zeros(len(test), dtype=bool)
    for bins in BINS_PER_DOUBLING:
        cells = np.column_stack([strata, retained.degree_bins(bins)[both[:, [0, 2]]]])
        cell = np.unique(cells, axis=0, return_inverse=True)[1].reshape(-1)
        wanted, offered = np.nonzero(chosen[:, 0] < 0)[0], np.nonzero(~used)[0]
        first, second = _pair_within_cells(cell[wanted], cell[len(forget) + offered], rng)
        chosen[wanted[first]] = test[offered[second]]
        used[offered[second]] = True
    return chosen


def _pair_within_cells(
    wanted: np.ndarray, offered: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Places (in `wanted`, in `offered`) of pairs that share a cell: as many as there can be, at random, none used twice."""
    # The k-th of a cell in one shuffled list takes the k-th of that cell in the other.
    span = 1 + max(len(wanted), len(offered))
    slots = [cells * span + _turn_within_cell(cells, rng) for cells in (wanted, offered)]
    _, first, second = np.intersect1d(*slots, assume_unique=True, return_indices=True)
    return first, second


def _turn_within_cell(cells: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The number of each item among those of its cell, 0, 1, ..., in random order; int64 `[n]`."""
    shuffled = rng.permutation(len(cells))
    order = shuffled[np.argsort(cells[shuffled], kind="stable")]
    in_order = cells[order]
    turn = np.empty(len(cells), dtype=np.int64)
    turn[order] = np.arange(len(cells)) - np.searchsorted(in_order, in_order)
    return turn


def _corrupted(retained: _Retained, forget: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Triples int64 `[n, 3]` with one end replaced, rows of -1 where no draw was new.

    The new end stands at the same place of the same relation in a retained triple and has nearly the same degree, so that
    neither its kind nor its frequency gives the corruption away. Never drawn: a self-loop, or a triple of any split.
    """
    places = np.concatenate([np.insert(retained.train[:, [1, end]], 1, end, axis=1) for end in (0, 2)])
    places = np.unique(places, axis=0)  # relation, end, entity
    known = np.union1d(retained.seen, retained.keys(retained.graph.test))
    chosen = np.full(forget.shape, -1, dtype=np.int64)
    for bins in BINS_PER_DOUBLING:
        degree_bin = retained.degree_bins(bins)
        num_bins = int(degree_bin.max()) + 1
        pool_cells = (places[:, 0] * 3 + places[:, 1]) * num_bins + degree_bin[places[:, 2]]
        order = np.argsort(pool_cells, kind="stable")
        pool, pool_cells = places[order, 2], pool_cells[order]

        wanted = np.nonzero(chosen[:, 0] < 0)[0]
        rows = np.repeat(wanted, DRAWS)
        ends = 2 * rng.integers(0, 2, size=len(rows))
        cells = (forget[rows, 1] * 3 + ends) * num_bins + degree_bin[forget[rows, ends]]
        low, high = (np.searchsorted(pool_cells, cells, side=side) for side in ("left", "right"))
        drawn = low + np.floor(rng.random(len(rows)) * (high - low)).astype(np.int64)
        rows, ends, drawn = (part[high > low] for part in (rows, ends, drawn))
        triples = forget[rows]
        triples[np.arange(len(rows)), ends] = pool[drawn]
        keys = retained.keys(triples)
        new = np.nonzero(~np.isin(keys, known) & (triples[:, 0] != triples[:, 2]))[0]
        new = new[np.unique(rows[new], return_index=True)[1]]  # the first one of each forgotten triple
        new = new[np.unique(keys[new], return_index=True)[1]]  # which no two of them may share
        chosen[rows[new]] = triples[new]
        known = np.union1d(known, keys[new])
    return chosen
