"""Commitments to broadcasts: trees, proofs, refused values, signed claims."""

from __future__ import annotations

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fkgsec.defenses.broadcasts import (
    HASH_BYTES,
    BroadcastError,
    BroadcastTree,
    check_claims,
    check_values,
    commitment_of_rows,
    commitment_of_table,
    decode_claims,
    encode_claims,
    sign_claim,
)


def table(num_rows: int, width: int = 3) -> tuple[list[str], np.ndarray]:
    rows = np.random.default_rng(num_rows).normal(size=(num_rows, width)).astype(np.float32)
    return [f"name {row}" for row in range(num_rows)], rows


@pytest.mark.parametrize("num_rows", [1, 2, 3, 5, 8, 13, 64, 100])
def test_whoever_holds_some_rows_computes_the_root(num_rows: int) -> None:
    names, rows = table(num_rows)
    tree = BroadcastTree(names, rows)
    rng = np.random.default_rng(0)
    for count in {1, 2, num_rows // 2, num_rows}:
        places = rng.permutation(num_rows)[: max(1, count)]
        proof = tree.prove(places)
        assert len(proof) % HASH_BYTES == 0
        own = [names[place] for place in places]
        assert commitment_of_rows(own, rows[places], places, num_rows, proof) == tree.root
    assert tree.prove(np.arange(num_rows)) == b""


def test_another_value_name_place_or_size_is_another_root() -> None:
    names, rows = table(9)
    tree, places = BroadcastTree(names, rows), np.array([0, 4, 8])
    own, proof = [names[place] for place in places], tree.prove(np.array([0, 4, 8]))
    changed = rows[places].copy()
    changed[1, 2] = np.nextafter(changed[1, 2], 9)
    assert commitment_of_rows(own, changed, places, 9, proof) != tree.root
    assert commitment_of_rows(["name 0", "other", "name 8"], rows[places], places, 9, proof) != tree.root
    assert commitment_of_rows(own[::-1], rows[places], places, 9, proof) != tree.root
    forged = bytes([proof[0] ^ 1]) + proof[1:]
    assert commitment_of_rows(own, rows[places], places, 9, forged) != tree.root
    for wrong in (proof[:-1], proof[:-HASH_BYTES], proof + bytes(HASH_BYTES), b""):
        with pytest.raises(BroadcastError, match="does not fit 3 of 9 rows"):
            commitment_of_rows(own, rows[places], places, 9, wrong)
    assert len({BroadcastTree(names[:n], rows[:n]).root for n in range(1, 10)}) == 9


def test_a_table_is_its_names_its_shape_and_its_values() -> None:
    names, rows = table(4)
    made = {
        commitment_of_table(names, rows),
        commitment_of_table(names[::-1], rows),
        commitment_of_table(names, rows[::-1]),
        commitment_of_table(names, rows.reshape(4, 3)[:, ::-1]),
        commitment_of_table(names, rows.reshape(2, 6)),
    }
    assert len(made) == 5


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (17.0, "17 in row 2 of 4; values up to 16"),
        (-1e9, r"1e\+09 in row 2"),
        (np.nan, "nan in row 2"),
        (np.inf, "inf in row 2"),
    ],
)
def test_values_that_no_sum_gives_are_refused(value: float, says: str) -> None:
    _, rows = table(4)
    check_values(rows, 16.0, where="a")
    check_values(np.full((2, 3), 16.0, dtype=np.float32), 16.0, where="a")
    check_values(np.zeros((0, 3), dtype=np.float32), 16.0, where="a")
    rows[2, 1] = value
    with pytest.raises(BroadcastError, match=f"a: the server sent {says}"):
        check_values(rows, 16.0, where="a")


def test_each_row_has_its_own_bound() -> None:
    rows = np.array([[40.0], [40.0]], dtype=np.float32)
    check_values(rows, np.array([48.0, 48.0]), where="a")
    with pytest.raises(BroadcastError, match="in row 1 of 2"):
        check_values(rows, np.array([48.0, 16.0]), where="a")


def test_claims_name_who_received_another_table() -> None:
    keys = {
        party: Ed25519PrivateKey.from_private_bytes(bytes([place] * 32)) for place, party in enumerate("abc", start=1)
    }
    public = {party: key.public_key().public_bytes_raw() for party, key in keys.items()}
    given = {"session": b"s", "round": 3, "where": "here"}
    same, other = bytes(32), bytes([1] * 32)
    claims = [sign_claim(keys["b"], b"s", 3, "b", same), sign_claim(keys["c"], b"s", 3, "c", other)]
    check_claims("a", same, decode_claims(encode_claims(claims[:1]), where="x"), public, **given)
    with pytest.raises(BroadcastError, match="here: the server sent c other tables than a"):
        check_claims("a", same, claims, public, **given)
    forged = [sign_claim(keys["b"], b"s", 3, "c", same)]
    for wrong in (forged, [sign_claim(keys["b"], b"s", 2, "b", same)], [sign_claim(keys["b"], b"t", 3, "b", same)]):
        with pytest.raises(BroadcastError, match=r"a claim that . did not sign"):
            check_claims("a", same, wrong, public, **given)
    with pytest.raises(BroadcastError, match="cannot be read"):
        decode_claims(b"\xc1", where="x")
