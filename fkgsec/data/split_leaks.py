"""Leaks between splits: evaluation triples that this or another client has trained on, exactly or nearly.

A triple leaks in one of three ways. `exact`: it is in a train split. `inverse`: a train split links its tail to its head by any
relation. `same_pair`: a train split links its head to its tail by another relation. Each is counted for the client's `own` train
split, and for the train splits of the `other` clients together.

Legend: `n` triples of a split, `N` entities, `R` relations.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fkgsec.data.graph import SPLITS, FederatedGraph
from fkgsec.errors import DataError, SpecError

EVALUATION_SPLITS = ("valid", "test")
LEAKS = ("exact_own", "exact_other", "inverse_own", "inverse_other", "same_pair_own", "same_pair_other")
# A memorized triple has a reciprocal rank near 1, a clean one 0.1 to 0.4: above this share, memorized ones dominate the MRR.
DOMINANT_SHARE = 0.1
NEW, OTHER_TRAIN, OWN_TRAIN = 0, 1, 2


class _Keys(NamedTuple):
    """Packed int64 keys `[n]` of triples and of their (head, tail) pairs in both directions."""

    triple: np.ndarray
    pair: np.ndarray
    inverse_pair: np.ndarray

    @classmethod
    def pack(cls, triples: np.ndarray, num_entities: int) -> _Keys:
        """Pack triples into one number each.

        Args:
            triples: int64 `[n, 3]`.
            num_entities: above every entity ID.
        """
        head, relation, tail = triples.T
        # Packed keys make every check a search in a sorted array.
        pair = head * num_entities + tail
        return cls(relation * num_entities**2 + pair, pair, tail * num_entities + head)


class _TrainIndex:
    """Distinct train triples of some clients, and the number of relations that link each pair."""

    def __init__(self, triple_keys: np.ndarray, num_entities: int) -> None:
        self.triples = np.unique(triple_keys)
        # The remainder of a key by N^2 is its pair.
        self.pairs, self.num_relations = np.unique(self.triples % num_entities**2, return_counts=True)

    def leaks_of(self, keys: _Keys) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return three masks, bool `[n]`: exact, inverse, same pair under another relation.

        Args:
            keys: of the triples to check.
        """
        exact = np.isin(keys.triple, self.triples)
        # A loop is its own inverse: only `exact` and `same_pair` apply to it.
        inverse = np.isin(keys.inverse_pair, self.pairs) & (keys.inverse_pair != keys.pair)
        linked = np.zeros(len(keys.pair), dtype=np.int64)
        if len(self.pairs):
            position = np.minimum(np.searchsorted(self.pairs, keys.pair), len(self.pairs) - 1)
            linked = np.where(self.pairs[position] == keys.pair, self.num_relations[position], 0)
        # Another relation links the pair if more relations do than the triple's own.
        return exact, inverse, linked > exact


def find_split_leaks(
    federated: FederatedGraph,
) -> tuple[list[dict[str, Any]], dict[tuple[int, str, str], np.ndarray]]:
    """Count every leak from train into valid and test, within each client and across clients.

    Args:
        federated: clients and their splits.

    Returns:
        One row per client and evaluation split: `triples` is its size; each of `LEAKS` has its count and (`_share`) its share
            of the rows, NaN for an empty split; `repeated` counts rows that repeat an earlier row of the same split. Second,
            the leaks as masks, bool `[n]` per (client index, split, one of `LEAKS`).

    Raises:
        DataError: there are so many entities and relations that a triple does not fit 63 bits.

    Source: Toutanova and Chen 2015 (inverse pairs), the federations released with FedR (exact copies). Differs: also across
    clients, since a federation trains on all train splits.
    """
    num_entities = len(federated.entities)
    if num_entities**2 * len(federated.relations) > np.iinfo(np.int64).max:
        raise DataError(
            f"{federated.name}: {num_entities} entities and {len(federated.relations)} relations, allowed: "
            f"entities^2 * relations below 2^63"
        )
    keys = [
        {split: _Keys.pack(client.to_global(getattr(client, split)), num_entities) for split in SPLITS}
        for client in federated.clients
    ]
    rows, masks = [], {}
    for index, client in enumerate(federated.clients):
        others = [other["train"].triple for position, other in enumerate(keys) if position != index]
        index_of_client = _TrainIndex(keys[index]["train"].triple, num_entities)
        other = _TrainIndex(np.concatenate([np.zeros(0, np.int64), *others]), num_entities)
        for split in EVALUATION_SPLITS:
            leaks = zip(index_of_client.leaks_of(keys[index][split]), other.leaks_of(keys[index][split]), strict=True)
            by_leak = dict(zip(LEAKS, (mask for pair in leaks for mask in pair), strict=True))
            masks |= {(index, split, leak): mask for leak, mask in by_leak.items()}
            counts = {leak: int(mask.sum()) for leak, mask in by_leak.items()}
            size = len(keys[index][split].triple)
            shares = {f"{leak}_share": count / size if size else float("nan") for leak, count in counts.items()}
            repeated = size - len(np.unique(keys[index][split].triple))
            rows.append(
                {"client": client.name, "split": split, "triples": size, **counts, **shares, "repeated": repeated}
            )
    return rows, masks


def leaked_test_mask(federated: FederatedGraph, client_index: int, split: str = "test") -> np.ndarray:
    """Return the triples of a client's evaluation split that are also in its own train split, bool `[n]`.

    Figures on the rows where it is False are clean; report both.

    Args:
        federated: clients and their splits.
        split: "valid" or "test".

    Raises:
        SpecError: there is no such client, or the split is not valid or test.
    """
    if not 0 <= client_index < len(federated.clients):
        raise SpecError(f"client_index is {client_index}, allowed: 0 to {len(federated.clients) - 1}")
    if split not in EVALUATION_SPLITS:
        raise SpecError(f"split is {split!r}, allowed: {', '.join(EVALUATION_SPLITS)}")
    client = federated.clients[client_index]
    # Local IDs suffice within a client.
    train, evaluated = (_Keys.pack(t, client.num_entities).triple for t in (client.train, getattr(client, split)))
    return np.isin(evaluated, train)


def seen_in_training(federated: FederatedGraph) -> list[np.ndarray]:
    """Return which of each client's test triples are also in a train split.

    Args:
        federated: clients and their splits.

    Returns:
        uint8 `[n]` per client: `OWN_TRAIN`, in its own train split; `OTHER_TRAIN`, only in another client's; or `NEW`.
    """
    size = len(federated.entities)
    train = [_Keys.pack(client.to_global(client.train), size).triple for client in federated.clients]
    everywhere = np.concatenate(train)
    seen = []
    for client, client_train in zip(federated.clients, train, strict=True):
        tested = _Keys.pack(client.to_global(client.test), size).triple
        where = np.where(np.isin(tested, everywhere), OTHER_TRAIN, NEW)
        seen.append(np.where(np.isin(tested, client_train), OWN_TRAIN, where).astype(np.uint8))
    return seen


def split_leak_warning(federated: FederatedGraph) -> str | None:
    """Return a warning if test (or else valid) triples are in their own client's train split; None if there are none.

    Args:
        federated: clients and their splits.
    """
    for split in reversed(EVALUATION_SPLITS):
        masks = [leaked_test_mask(federated, index, split) for index in range(len(federated.clients))]
        everywhere = np.concatenate(masks)
        if not everywhere.any():
            continue
        clients = "/".join(_percent(mask) for mask in masks)
        effect = "will be dominated by" if everywhere.mean() >= DOMINANT_SHARE else "counts some"
        return (
            f"{_percent(everywhere)} % of {split} triples stand in their own client's train split ({clients} % per client): "
            f"MRR {effect} memorised triples; see `fkgsec data stats`"
        )
    return None


def _percent(mask: np.ndarray) -> str:
    if not mask.any():
        return "0"
    return f"{100 * mask.mean():.0f}" if mask.mean() >= 0.005 else "<1"
