"""Negative samples, and the lookup of known triples that keeps true ones out of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fkgsec.kge import kernels
from fkgsec.kge.models import Side


@dataclass(frozen=True, eq=False)
class KnownTriples:
    """For each (anchor, relation) of a set of triples, the entities that complete it, as compressed sorted rows.

    On side "tail" the anchor is the head and members are tails; on side "head" the other way round.

    Attributes:
        keys: int64 `[G]`, sorted, anchor * num_relations + relation.
        start: int64 `[G + 2]`; the extra last group is empty and stands for "nothing known".
        members: int32, sorted within a group, without duplicates.
    """

    side: Side
    num_relations: int
    keys: np.ndarray
    start: np.ndarray
    members: np.ndarray

    @classmethod
    def build(cls, triples: np.ndarray, side: Side, num_relations: int) -> KnownTriples:
        """Index triples; duplicates count once.

        Args:
            triples: int64 `[n, 3]`, head, relation, tail.
            side: the side that members complete.
            num_relations: M, above every relation ID.
        """
        anchor, candidate = (0, 2) if side == "tail" else (2, 0)
        # (anchor, relation) packed into one ascending number.
        keys = triples[:, anchor] * num_relations + triples[:, 1]
        span = int(triples[:, candidate].max(initial=0)) + 1
        pairs = np.unique(
            keys * span + triples[:, candidate]
        )  # one packed number for each: sorts ten times faster than rows
        unique, counts = np.unique(pairs // span, return_counts=True)
        start = np.concatenate([[0], np.cumsum(counts), [len(pairs)]]).astype(np.int64)
        return cls(side, num_relations, unique, start, (pairs % span).astype(np.int32))

    def groups(self, triples: np.ndarray) -> np.ndarray:
        """Find the group of each triple's (anchor, relation), int64 `[n]`; the empty last group if it is unknown.

        Args:
            triples: int64 `[n, 3]`.
        """
        keys = triples[:, 0 if self.side == "tail" else 2] * self.num_relations + triples[:, 1]
        place = np.searchsorted(self.keys, keys)
        is_known = place < len(self.keys)
        is_known[is_known] = self.keys[place[is_known]] == keys[is_known]
        return np.where(is_known, place, len(self.keys)).astype(np.int64)

    def expand(self, groups: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """List all members of some groups.

        Args:
            groups: int64 `[g]`, from `groups`.

        Returns:
            The position in `groups` and the member, both int64 `[total]`.
        """
        sizes = self.start[groups + 1] - self.start[groups]
        position = np.repeat(np.arange(len(groups)), sizes)
        # 0, 1, 2, ... within each group: the running index less the number of members before the group.
        offset = np.arange(len(position)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        return position, self.members[np.repeat(self.start[groups], sizes) + offset].astype(np.int64)


def frequency_weights(triples: np.ndarray) -> np.ndarray:
    """Weigh each triple by 1 / sqrt(count(h, r) + count(r, t)); the first occurrence of a pair counts 4.

    Args:
        triples: int64 `[n, 3]`.

    Returns:
        Weights, float32 `[n]`.

    Source: code of FedLU, as in that of RotatE (Sun et al. 2019). fedlu.txt has no such weights.
    """
    counts = [
        # Counts start at 4, as in RotatE's code, so that rare pairs do not dominate.
        number[place] + 3
        for pair in (triples[:, :2], triples[:, 1:])
        for _, place, number in [np.unique(pair, axis=0, return_inverse=True, return_counts=True)]
    ]
    return (1 / np.sqrt(counts[0] + counts[1])).astype(np.float32).reshape(-1)


class NegativeSampler:
    """Draws negatives for one client, uniformly; known training triples are masked by -1.

    Args:
        train: int64 `[n, 3]`, training triples of the client.
        num_relations: above every relation ID.
        candidates: int `[c]`, entities to draw from.

    Source: code of FedR (a client corrupts with its own entities). Differs: that code redraws false negatives until 256
    are left. Here they are masked, which leaves the distribution of the rest unchanged and needs no second draw.
    """

    def __init__(self, train: np.ndarray, *, num_relations: int, candidates: np.ndarray) -> None:
        self._candidates = candidates.astype(np.int32)
        # If candidates are 0..n-1, drawn numbers are IDs and no lookup is needed.
        self._all = np.array_equal(candidates, np.arange(len(candidates)))
        self._known = {side: KnownTriples.build(train, side, num_relations) for side in ("tail", "head")}
        # The group of each training triple is looked up once, not in every step.
        self._groups = {side: torch.from_numpy(triples.groups(train)) for side, triples in self._known.items()}
        self._tensors = {
            side: (torch.from_numpy(triples.start), torch.from_numpy(triples.members))
            for side, triples in self._known.items()
        }

    def sample(self, rows: np.ndarray, num_negatives: int, side: Side, rng: np.random.Generator) -> Tensor:
        """Draw negatives for training triples, on the CPU.

        Args:
            rows: int64 `[b]`, row numbers of training triples.
            num_negatives: per triple.
            side: the side to replace.
            rng: source of randomness.

        Returns:
            Entity IDs, int32 `[b, num_negatives]`; -1 where the draw is a known triple.
        """
        # int32 halves the memory traffic of the largest array of a step.
        drawn = rng.integers(0, len(self._candidates), size=(len(rows), num_negatives), dtype=np.int32)
        chosen = torch.from_numpy(drawn if self._all else self._candidates[drawn])
        return kernels.mask_known(chosen, self._groups[side][rows], *self._tensors[side])
