"""The table's arithmetic against Python's integers: fields, items, sums of tables and peeling."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fkgsec.protocols.core.errors import (
    RandomnessError,
    SettingError,
)
from fkgsec.protocols.core.prg import Ring, derive, seeded
from fkgsec.protocols.psu.table import (
    CELL_WIDTH,
    MAX_IDENTIFIER_BYTES,
    MERSENNE61,
    BadIdentifier,
    DuplicateIdentifier,
    Field,
    InconsistentItems,
    MalformedTable,
    Parameters,
    PeelingError,
    cells_for,
    encode,
    hash_items,
    identifiers_of,
    items_from_limbs,
    items_of,
    limbs_of,
    peel,
    tabulate,
)

P = Ring.MERSENNE61.modulus


names = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
SMALL = Parameters(b"tests", bytes(range(32)), 600)


# The field.


def test_field_agrees_with_integers() -> None:
    rng = np.random.default_rng(0)
    edges = [0, 1, 2, 2**30, 2**31 - 1, 2**31, 2**32, 2**60, P - 2, P - 1]
    a = np.array([x for x in edges for _ in edges] + rng.integers(0, P, 500).tolist(), dtype=np.uint64)
    b = np.array(edges * len(edges) + rng.integers(0, P, 500).tolist(), dtype=np.uint64)
    pairs = list(zip(a.tolist(), b.tolist(), strict=True))
    assert MERSENNE61.multiply(a, b).tolist() == [x * y % P for x, y in pairs]
    assert MERSENNE61.add(a, b).tolist() == [(x + y) % P for x, y in pairs]
    assert MERSENNE61.negate(a).tolist() == [-x % P for x in a.tolist()]


@pytest.mark.parametrize("length", [0, 1, 2, 3, 7, 64, 65])
def test_inverse(length: int) -> None:
    values = np.random.default_rng(length).integers(1, P, length, dtype=np.uint64)
    assert MERSENNE61.inverse(values).tolist() == [pow(value, -1, P) for value in values.tolist()]


def test_inverse_of_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="not invertible"):
        MERSENNE61.inverse(np.array([3, 0, 5], dtype=np.uint64))


def test_many_values_in_one_place_do_not_overflow() -> None:
    values = np.full(5000, P - 1, dtype=np.uint64)
    places = np.arange(5000) % 2
    assert MERSENNE61.scatter_sum(places, values, 3).tolist() == [2500 * (P - 1) % P] * 2 + [0]


def test_uniform_draws_again_what_is_not_below_the_prime() -> None:
    answers = [b"\xff" * 16, (P).to_bytes(8, "little") + (P - 1).to_bytes(8, "little"), bytes(8)]
    assert MERSENNE61.uniform(2, lambda num_bytes: answers.pop(0)).tolist() == [0, P - 1]
    counts = np.bincount(Field(5).uniform(50_000, seeded(b"five")).astype(np.int64))
    assert len(counts) == 5
    assert abs(counts - 10_000).max() < 500  # over five standard deviations
    with pytest.raises(RandomnessError, match="8"):
        MERSENNE61.uniform(1, lambda num_bytes: bytes(7))


def test_field_whose_products_overflow_is_refused() -> None:
    with pytest.raises(SettingError, match="4294967311"):
        Field(4294967311)


# Identifiers and items.


def test_items_by_hand() -> None:
    assert items_of("ab") == [b"\x02ab" + bytes(34)]
    assert items_of("") == [bytes(37)]
    assert items_of("é" * 18) == [bytes([36]) + "é".encode() * 18]
    long = "é" * 18 + "x"
    digest = hashlib.blake2b(long.encode(), digest_size=16, person=b"fkgsec psu id v1").digest()
    heads = [b"\xff" + digest + bytes([place, 0, 37, 0]) for place in range(3)]
    assert items_of(long) == [
        heads[0] + "é".encode() * 8,
        heads[1] + "é".encode() * 8,
        heads[2] + "éé".encode() + b"x" + bytes(11),
    ]


@given(st.sets(names | st.text("aé", min_size=100, max_size=200), max_size=8))
@settings(max_examples=60, deadline=None)
def test_identifiers_survive_items_and_limbs(identifiers: set[str]) -> None:
    items = [item for identifier in identifiers for item in items_of(identifier)]
    assert all(len(item) == 37 for item in items)
    limbs = limbs_of(items)
    numbers = [sum(limb << 60 * place for place, limb in enumerate(row)) for row in limbs.tolist()]
    assert numbers == [int.from_bytes(item, "little") for item in items]
    assert items_from_limbs(limbs) == items
    assert identifiers_of(reversed(items)) == sorted(identifiers)


def test_longest_identifier() -> None:
    longest = "x" * MAX_IDENTIFIER_BYTES
    assert identifiers_of(items_of(longest)) == [longest]
    with pytest.raises(BadIdentifier, match="65536 bytes"):
        items_of(longest + "x")


@pytest.mark.parametrize(
    ("identifiers", "error", "message"),
    [
        (["a\ud800"], BadIdentifier, "surrogates"),
        ([b"bytes"], BadIdentifier, "is bytes"),
        ("a string", BadIdentifier, "not one string"),
        (["a", "b", "a"], DuplicateIdentifier, "'a' is given twice"),
    ],
)
def test_refused_identifiers(identifiers: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        encode(SMALL, identifiers, seeded(b""))


LONG = items_of("a name that is longer than thirty-six bytes, in chunks")


def flipped(item: bytes, at: int) -> bytes:
    return item[:at] + bytes([item[at] ^ 1]) + item[at + 1 :]


@pytest.mark.parametrize(
    ("items", "message"),
    [
        (LONG[1:], "3 chunks that are not the 4"),
        (LONG[:-1], "3 chunks that are not the 4"),
        ([*LONG, flipped(LONG[1], 30)], "two different chunks 1"),
        ([*LONG, LONG[3][:17] + b"\x04" + LONG[3][18:]], "5 chunks that are not the 4"),
        ([LONG[0], flipped(LONG[1], 30), *LONG[2:]], "does not fit"),
        ([flipped(LONG[0], 5)], "1 chunks that are not the 4"),
        ([*LONG[:3], flipped(LONG[3], 36)], "does not fit"),  # its padding
        ([flipped(items_of("ab")[0], 20)], "does not fit"),
        ([b"\x25" + bytes(36)], "begins with 37"),
        ([b"\x01\xff" + bytes(35)], "not UTF-8"),
        ([b"\xff" + bytes(36)], "0 bytes has 1 chunks"),
        ([b"\xff" + LONG[0][1:17] + b"\0\0\x10\0" + LONG[0][21:]], "does not fit"),  # short enough for one item
    ],
)
def test_items_that_no_set_has(items: list[bytes], message: str) -> None:
    with pytest.raises(InconsistentItems, match=message):
        identifiers_of(items)


# Tables.


def naive_table(parameters: Parameters, items: list[bytes], multipliers: list[int]) -> list[int]:
    table = [0] * parameters.length
    places, checks = hash_items(parameters, items)
    for item, multiplier, cells, check in zip(items, multipliers, places.tolist(), checks.tolist(), strict=True):
        number = int.from_bytes(item, "little")
        row = [1, *(number >> 60 * limb & (2**60 - 1) for limb in range(5)), check]
        for cell in cells:
            for offset, factor in enumerate(row):
                table[cell * CELL_WIDTH + offset] += multiplier * factor
    return [value % P for value in table]


def test_encode_agrees_with_integers() -> None:
    identifiers = [f"entity {i}" for i in range(500)] + ["ü" * 100]
    items = [item for identifier in identifiers for item in items_of(identifier)]
    multipliers = MERSENNE61.uniform(len(items), seeded(b"encode")).tolist()
    assert encode(SMALL, identifiers, seeded(b"encode")).tolist() == naive_table(SMALL, items, multipliers)


def test_table_format_is_pinned() -> None:
    """Versions with other hashes, limbs or layouts cannot talk to each other: a change must be meant, and said."""
    table = encode(
        SMALL,
        ["/m/010", "naïve", "a name that is longer than thirty-six bytes"],
        lambda num_bytes: bytes(place % 251 for place in range(num_bytes)),
    )
    pinned = "a59a4b3f8798ca3a82e6ede7ea4f25a0936614af0a5d6bc6ef8222410a59cae7"
    assert hashlib.sha256(table.astype("<u8").tobytes()).hexdigest() == pinned


def test_places_lie_in_their_segments_and_depend_on_salt_and_session() -> None:
    items = [item for i in range(2000) for item in items_of(str(i))]
    places, checks = hash_items(SMALL, items)
    assert (places // 200 == np.arange(3)).all()
    assert len(np.unique(places)) == 600
    assert int(checks.max()) < P
    for other in (Parameters(b"tests", bytes(32), 600), Parameters(b"other", SMALL.salt, 600)):
        assert (hash_items(other, items)[0] != places).mean() > 0.9


@given(st.lists(st.sets(names, max_size=12), min_size=1, max_size=4), st.binary(max_size=8))
@settings(max_examples=40, deadline=None)
def test_sum_of_tables_peels_to_the_union(sets: list[set[str]], seed: bytes) -> None:
    source, total = seeded(seed), Ring.MERSENNE61.zeros(SMALL.length)
    for identifiers in sets:
        total = Ring.MERSENNE61.add(total, encode(SMALL, identifiers, source))
    before = total.copy()
    assert peel(SMALL, total) == sorted(set().union(*sets))
    assert (total == before).all()


def test_peeling_rarely_fails_at_the_cells_for_the_cap() -> None:
    for cap in (380, 1000):
        for seed in range(25):
            parameters = Parameters(b"rate", derive(b"rate", "salt", cap, seed), cells_for(cap))
            identifiers = [f"/m/{i}" for i in range(cap)]
            assert len(peel(parameters, encode(parameters, identifiers, seeded(b"rate")))) == cap


@pytest.mark.slow
def test_peeling_fails_less_than_once_in_a_hundred() -> None:
    for cap in (237, 380, 400, 600, 2000):
        failures = 0
        for seed in range(300):
            parameters = Parameters(b"rate", derive(b"rate", "salt", cap, seed), cells_for(cap))
            try:
                peel(parameters, encode(parameters, [f"/m/{i}" for i in range(cap)], seeded(b"rate")))
            except PeelingError:
                failures += 1
        assert failures < 3, cap


def test_too_small_a_table_says_how_many_cells_remain() -> None:
    table = encode(SMALL, [str(i) for i in range(700)], seeded(b"small"))
    with pytest.raises(PeelingError, match="of 600 cells remain") as caught:
        peel(SMALL, table)
    assert 0 < caught.value.remaining <= 600


def test_damaged_tables_are_noticed() -> None:
    table = encode(SMALL, ["a", "b"], seeded(b"damage"))
    places, checks = hash_items(SMALL, items_of("phantom"))
    one_cell_only = tabulate(
        MERSENNE61,
        np.repeat(places[:, :1], 3, axis=1),
        limbs_of(items_of("phantom")),
        checks,
        np.ones(1, np.uint64),
        600,
    )
    with pytest.raises(MalformedTable, match="comes back"):
        peel(SMALL, Ring.MERSENNE61.add(table, one_cell_only.ravel()))
    elsewhere = (places + 1) % 200 + np.arange(3) * 200
    astray = tabulate(MERSENNE61, elsewhere, limbs_of(items_of("phantom")), checks, np.ones(1, np.uint64), 600)
    with pytest.raises(PeelingError, match="3 of 600"):  # an item where it does not belong is not taken for pure
        peel(SMALL, Ring.MERSENNE61.add(encode(SMALL, [], seeded(b"")), astray.ravel()))
    for place in (0, 1, 6):  # a, b or c of one empty cell
        damaged = table.copy()
        empty = int(np.flatnonzero(~table.reshape(600, 7).any(axis=1))[0])
        damaged[empty * CELL_WIDTH + place] = 5
        with pytest.raises(PeelingError, match="1 of 600"):
            peel(SMALL, damaged)


@pytest.mark.parametrize(
    ("salt", "num_cells", "message"),
    [(bytes(31), 600, "salt of 31"), (bytes(32), 601, "601"), (bytes(32), 0, "0"), (bytes(32), 3 * 2**30, "num_cells")],
)
def test_refused_parameters(salt: bytes, num_cells: int, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        Parameters(b"", salt, num_cells)


def test_cells_for_refuses_an_empty_cap() -> None:
    with pytest.raises(SettingError, match="cap 0"):
        cells_for(0)


@pytest.mark.parametrize("load", [0.78, 0.82, 1.0, 3.0])
def test_a_table_that_is_too_small_is_not_taken_for_damaged(load: float) -> None:
    failures = []
    for seed in range(8):
        parameters = Parameters(b"load", derive(b"load", "salt", seed), 600)
        try:
            peel(parameters, encode(parameters, [f"/m/{i}" for i in range(int(600 * load))], seeded(b"load")))
        except PeelingError as error:
            failures.append(error)
    assert not any(error.damaged for error in failures), [error.remaining for error in failures]
    assert len(failures) == 8 or load < 0.85
