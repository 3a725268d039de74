"""The leak check against loops over sets of triples, and on the released federation that leaks."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fkgsec.data.formats.pickles import read_fede_pickle
from fkgsec.data.graph import SPLITS, ClientGraph, FederatedGraph
from fkgsec.data.split_leaks import (
    EVALUATION_SPLITS,
    LEAKS,
    NEW,
    OTHER_TRAIN,
    OWN_TRAIN,
    find_split_leaks,
    leaked_test_mask,
    seen_in_training,
    split_leak_warning,
)
from fkgsec.errors import DataError, SpecError

DATA = os.environ.get("FKGSEC_DATA")
needs_data = pytest.mark.skipif(not DATA, reason="FKGSEC_DATA is not set")

Triple = tuple[int, int, int]
triple = st.tuples(st.integers(0, 4), st.integers(0, 2), st.integers(0, 4))
split = st.lists(triple, max_size=25)
clients = st.lists(st.tuples(st.lists(triple, min_size=1, max_size=25), split, split), min_size=1, max_size=4)


def federate(parts: list[tuple[list[Triple], list[Triple], list[Triple]]], num_entities: int = 5) -> FederatedGraph:
    graphs = [
        ClientGraph.from_global(str(index), *(np.array(rows, np.int64).reshape(-1, 3) for rows in part))
        for index, part in enumerate(parts)
    ]
    return FederatedGraph("small", tuple(map(str, range(num_entities))), ("r", "s", "t"), tuple(graphs))


def naive_leaks(evaluated: Triple, train: set[Triple]) -> tuple[bool, bool, bool]:
    head, relation, tail = evaluated
    return (
        evaluated in train,
        any((h, t) == (tail, head) for h, _, t in train) and head != tail,
        any((h, t) == (head, tail) and r != relation for h, r, t in train),
    )


@settings(deadline=None, max_examples=40)
@given(clients)
def test_every_leak_is_found_and_no_other(parts: list[tuple[list[Triple], list[Triple], list[Triple]]]) -> None:
    leaks, masks = find_split_leaks(federate(parts))
    for index, part in enumerate(parts):
        own = set(part[0])
        other = {row for position, (train, _, _) in enumerate(parts) if position != index for row in train}
        for name, rows in zip(EVALUATION_SPLITS, part[1:], strict=True):
            by_kind = [(naive_leaks(row, own), naive_leaks(row, other)) for row in rows]
            for position, leak in enumerate(LEAKS):
                expected = [found[position % 2][position // 2] for found in by_kind]
                assert masks[index, name, leak].tolist() == expected
            (row,) = (one for one in leaks if (one["client"], one["split"]) == (str(index), name))
            assert (row["triples"], row["repeated"]) == (len(rows), len(rows) - len(set(rows)))
            assert [row[leak] for leak in LEAKS] == [masks[index, name, leak].sum() for leak in LEAKS]
            assert leaked_test_mask(federate(parts), index, name).tolist() == [row in own for row in rows]


def test_shares_by_hand() -> None:
    train = [(0, 0, 1), (0, 0, 1), (1, 1, 2), (3, 0, 3)]
    test = [(0, 0, 1), (1, 0, 0), (1, 2, 2), (3, 0, 3), (3, 1, 3), (4, 0, 0), (4, 0, 0), (2, 2, 4)]
    leaks, _ = find_split_leaks(federate([(train, [], test), ([(4, 0, 0)], [(0, 0, 1)], [])]))
    rows = {(row["client"], row["split"]): row for row in leaks}
    kinds = ("exact_own", "exact_other", "inverse_own", "same_pair_own")
    assert [rows["0", "test"][f"{kind}_share"] for kind in kinds] == [2 / 8, 2 / 8, 1 / 8, 2 / 8]
    assert rows["1", "valid"]["exact_other_share"] == 1.0
    assert rows["0", "test"]["repeated"] == 1
    assert np.isnan(rows["1", "test"]["exact_own_share"])


def test_the_warning_says_how_much_and_what_follows() -> None:
    train = [(h, 0, t) for h in range(5) for t in range(5)]
    fresh = [(h, 1, t) for h in range(5) for t in range(5)]
    clean = federate([(train, fresh, fresh)])
    assert split_leak_warning(clean) is None
    dominated = federate([(train, [], [*train[:5], *fresh[:5]]), (train, [], fresh[:10])])
    assert split_leak_warning(dominated) == (
        "25 % of test triples stand in their own client's train split (50/0 % per client): MRR will be dominated by "
        "memorised triples; see `fkgsec data stats`"
    )
    few = federate([(train, [], [train[0], *fresh * 12])])
    assert split_leak_warning(few) == (
        "<1 % of test triples stand in their own client's train split (<1 % per client): MRR counts some memorised "
        "triples; see `fkgsec data stats`"
    )
    assert (split_leak_warning(federate([(train, train[:1], fresh)])) or "").startswith("100 % of valid triples")


def test_wrong_arguments_and_ids_that_do_not_fit() -> None:
    federated = federate([([(0, 0, 1)], [], [])])
    with pytest.raises(SpecError, match="client_index is 1, allowed: 0 to 0"):
        leaked_test_mask(federated, 1)
    with pytest.raises(SpecError, match="split is 'train', allowed: valid, test"):
        leaked_test_mask(federated, 0, "train")

    class Many(tuple[str, ...]):
        def __len__(self) -> int:
            return 2**31

    huge = FederatedGraph("huge", Many(("a", "b")), ("r", "s", "t"), federated.clients)
    with pytest.raises(DataError, match=r"huge: 2147483648 entities and 3 relations, allowed: .*2\^63"):
        find_split_leaks(huge)


@needs_data
def test_the_released_ddb14_federation_leaks_as_published() -> None:
    federated = read_fede_pickle(Path(DATA or "") / "DDB14-fedr/DDB14-Fed5.pkl")
    tests = [row for row in find_split_leaks(federated)[0] if row["split"] == "test"]
    assert [round(100 * row["exact_own_share"]) for row in tests] == [78, 43, 33, 24, 21]
    # FedR's rerun: 1,772 leaked test triples of 4,460 in all.
    assert [sum(row[name] for row in tests) for name in ("exact_own", "triples")] == [1772, 4460]
    rows = sum(len(getattr(client, name)) for client in federated.clients for name in SPLITS)
    assert rows == 44_561
    warning = split_leak_warning(federated)
    assert warning is not None
    assert warning.startswith(
        "40 % of test triples stand in their own client's train split (78/43/33/24/21 % per client)"
    )


def test_a_test_triple_is_in_own_training_or_in_anothers_or_new() -> None:
    def client(name: str, train: list[list[int]], test: list[list[int]]) -> ClientGraph:
        return ClientGraph.from_global(name, np.array(train), np.zeros((0, 3), np.int64), np.array(test))

    both = [0, 0, 1]
    first = client("a", [both, [1, 0, 2]], [both, [2, 0, 3], [3, 0, 0]])
    second = client("b", [both, [2, 0, 3]], [[1, 0, 2], both])
    federated = FederatedGraph("two", ("a", "b", "c", "d"), ("r",), (first, second))
    own, other, new = OWN_TRAIN, OTHER_TRAIN, NEW
    assert [where.tolist() for where in seen_in_training(federated)] == [[own, other, new], [other, own]]
