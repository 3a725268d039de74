"""The table's arithmetic against Python's integers, and the union: exact, of constant length, and safe to interrupt."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import unicodedata
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from protocols.core.errors import (
    MalformedMessage,
    RandomnessError,
    ReplayedMessage,
    SettingError,
    StateReused,
    TooFewParties,
    UnexpectedMessage,
    UnknownSender,
)
from protocols.core.prg import Randomness, Ring, derive, seeded
from protocols.psu import (
    Announcement,
    Client,
    CohortChanged,
    DamagedTable,
    MissingIdentifiers,
    NothingToHideBehind,
    Plan,
    Union,
    UnionList,
    accept,
    announce,
    contribute,
    decode_message,
    join,
    measure,
    open_union,
    union,
)
from protocols.psu import client as psu_module
from protocols.psu.table import (
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
from protocols.secagg import SERVER, Message, Stage, Sum
from protocols.secagg import client as secagg_client
from protocols.secagg import encode as encode_message
from protocols.secagg import server as secagg_server
from protocols.secagg.messages import MaskedUpload, RevealedShares, UnmaskRequest

P = Ring.MERSENNE61.modulus
SMALL = Parameters(b"tests", bytes(range(32)), 600)
names = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)


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
    with pytest.raises(BadIdentifier, match="65536 bytes; at most 65535"):
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


# The union.


@dataclass
class PsuWire:
    """Delivery through bytes: records the frames, and may change what a receiver gets."""

    change: Callable[[str, str, Any], Message] = lambda sender, receiver, message: message
    log: list[tuple[str, str, Any, bytes]] = field(default_factory=list)

    def __call__(self, sender: str, receiver: str, message: Message) -> Message:
        frame = encode_message(self.change(sender, receiver, message))
        received = decode_message(frame)
        self.log.append((sender, receiver, received, frame))
        return received

    def of_kind(self, *kinds: type) -> list[Any]:
        return [message for _, _, message, _ in self.log if isinstance(message, kinds)]


def keys_of(clients: Collection[str]) -> dict[str, Ed25519PrivateKey]:
    return {name: Ed25519PrivateKey.from_private_bytes(derive(b"identity", name)) for name in clients}


def run(sets: Mapping[str, Collection[str]], *, seed: bytes = b"psu", **options: Any) -> Union:
    randomness = {name: seeded(derive(seed, "psu tests", name)) for name in (*sets, SERVER)}
    options = {"session": b"s", "threshold": len(sets), "cap": 100, **options}
    return union(sets, keys_of(sets), randomness=randomness, **options)


def many(count: int) -> dict[str, list[str]]:
    """Four clients, each with half of `count` identifiers."""
    return {f"client{c}": [f"/m/{i}" for i in range(count) if (i + c) % 4 < 2] for c in range(4)}


@given(st.lists(st.sets(names, max_size=15), min_size=2, max_size=4), st.binary(max_size=4))
@settings(max_examples=25, deadline=None)
def test_union_is_exact(sets: list[set[str]], seed: bytes) -> None:
    named = {f"client{i}": identifiers for i, identifiers in enumerate(sets)}
    assert run(named, seed=seed, deliver=PsuWire()) == Union(tuple(sorted(set().union(*sets))), 1, 600)


@pytest.mark.parametrize(
    ("sets", "expected"),
    [
        ({"a": [], "b": []}, ()),
        ({"a": [], "b": ["x"]}, ("x",)),
        ({"a": [""], "b": [""]}, ("",)),
        ({"a": {"\0"}, "b": ("\0\0",)}, ("\0", "\0\0")),
    ],
)
def test_small_unions(sets: dict[str, Collection[str]], expected: tuple[str, ...]) -> None:
    assert run(sets).identifiers == expected


def test_normal_forms_of_one_word_stay_different() -> None:
    composed, decomposed = (unicodedata.normalize(form, "café") for form in ("NFC", "NFD"))
    assert run({"a": [composed], "b": [decomposed]}).identifiers == (decomposed, composed)


@pytest.mark.parametrize(
    ("sets", "options", "error", "message"),
    [
        ({"a": ["x"]}, {}, NothingToHideBehind, "1 clients"),
        ({}, {}, NothingToHideBehind, "0 clients"),
        ({"a": ["x"], "b": ["y", "y"]}, {}, DuplicateIdentifier, "'y'"),
        ({"a": ["x"], "b": ["\udfff"]}, {}, BadIdentifier, "UTF-8"),
        ({"a": ["x"], "b": ["y"]}, {"cap": 0}, SettingError, "cap 0"),
        ({"a": ["x"], "b": ["y"]}, {"max_attempts": 0}, SettingError, "max_attempts 0"),
        ({"a": ["x"], "b": ["y"]}, {"threshold": 3}, SettingError, "threshold"),
        ({"a": ["x"], "b": ["y"]}, {"cap": 2**31}, SettingError, "cells"),
    ],
)
def test_refused_before_anything_is_sent(
    sets: dict[str, list[str]], options: dict[str, Any], error: type[Exception], message: str
) -> None:
    wire = PsuWire()
    with pytest.raises(error, match=message):
        run(sets, deliver=wire, **options)
    assert wire.log == []


def test_randomness_for_the_server_is_needed() -> None:
    sets = {"a": [], "b": []}
    with pytest.raises(SettingError, match="server"):
        union(sets, keys_of(sets), session=b"s", threshold=2, randomness=dict.fromkeys(sets, seeded(b"")))


def test_what_clients_send_has_the_same_length_whatever_they_hold() -> None:
    inputs = [
        {"a": [], "b": [], "c": ["x"]},
        {"a": [f"/m/{i}" for i in range(100)], "b": ["x" * 200], "c": [""]},
        {"a": ["same"], "b": ["same"], "c": ["same", "another"]},
    ]
    wires = [PsuWire() for _ in inputs]
    for sets, wire in zip(inputs, wires, strict=True):
        run(sets, deliver=wire)

    def sizes(wire: PsuWire, *, to_server: bool) -> list[tuple[str, str, str, int]]:
        return [
            (sender, receiver, type(message).__name__, len(frame))
            for sender, receiver, message, frame in wire.log
            if (receiver == SERVER) == to_server
        ]

    assert sizes(wires[0], to_server=True) == sizes(wires[1], to_server=True) == sizes(wires[2], to_server=True)
    assert sizes(wires[0], to_server=False) != sizes(wires[1], to_server=False)  # the union's list is longer
    (upload,) = {len(message.vectors["table"]) for wire in wires for message in wire.of_kind(MaskedUpload)}
    assert upload == 600 * CELL_WIDTH * 8


def test_same_randomness_same_messages() -> None:
    wires = [PsuWire(), PsuWire()]
    for wire, order in zip(wires, (1, -1), strict=True):
        run({name: identifiers[::order] for name, identifiers in many(40).items()}, deliver=wire)
    assert [frame for *_, frame in wires[0].log] == [frame for *_, frame in wires[1].log]


def test_retries_with_larger_tables_fresh_salts_and_the_same_cohort() -> None:
    wire = PsuWire()
    assert run(many(2000), cap=1, deliver=wire) == Union(tuple(sorted(f"/m/{i}" for i in range(2000))), 3, 9600)
    announced = wire.of_kind(Announcement)
    assert [(told.round, told.num_cells) for told in announced] == [(0, 600)] * 4 + [(1, 2400)] * 4 + [(2, 9600)] * 4
    assert len({told.salt for told in announced}) == 3
    assert len({message.session for message in wire.of_kind(MaskedUpload)}) == 3
    assert [message.sender for message in wire.of_kind(MaskedUpload)] == list(many(1)) * 3


def test_without_a_cap_the_table_grows_from_1024_items() -> None:
    assert run(many(40), cap=None)[1:3] == (1, cells_for(1024))
    assert run(many(1500), cap=None)[1:3] == (2, 4 * cells_for(1024))


def test_a_client_beyond_the_cap_behaves_like_the_others() -> None:
    assert run({"a": [str(i) for i in range(700)], "b": []}, cap=1).attempts == 2


def test_out_of_attempts() -> None:
    with pytest.raises(PeelingError, match="of 2400 cells remain"):
        run(many(3000), cap=1, max_attempts=2)


@pytest.mark.parametrize("stage", [Stage.ADVERTISE, Stage.SHARE, Stage.MASK])
@pytest.mark.parametrize("attempt", [0, 1])
def test_a_dropout_before_its_upload_ends_the_union(stage: Stage, attempt: int) -> None:
    """With a threshold that secure aggregation alone would recover from."""
    wire = PsuWire()
    with pytest.raises(CohortChanged, match="differenced" if attempt else "no table was opened") as caught:
        run(many(2000), cap=1, threshold=3, deliver=wire, dropouts={attempt: {"client2": stage}})
    assert caught.value.opened == (attempt == 1)
    lost = [message for message in wire.of_kind(UnmaskRequest, RevealedShares) if message.round == attempt]
    assert lost == []


def garbling(sender: str, attempt: int) -> Callable[[str, str, Any], Message]:
    """An upload of one client in one attempt arrives with its vectors cut."""

    def tamper(source: str, receiver: str, message: Any) -> Message:
        if isinstance(message, MaskedUpload) and (source, message.round) == (sender, attempt):
            return MaskedUpload(message.session, message.round, message.sender, {"table": b"cut"})
        return message

    return tamper


def test_a_client_at_fault_is_left_out_before_anything_was_opened() -> None:
    sets = {**many(50), "client9": ["of client9 alone"]}
    wire = PsuWire(garbling("client9", 0))
    found = run(sets, threshold=4, deliver=wire)
    assert found.identifiers == tuple(sorted(f"/m/{i}" for i in range(50)))
    assert list(found.excluded) == ["client9"]
    sessions = [message.session for message in wire.of_kind(MaskedUpload)]
    assert len(set(sessions)) == 2
    assert {message.session for message in wire.of_kind(UnmaskRequest, RevealedShares)} == {sessions[-1]}


def test_a_client_at_fault_ends_the_union_where_a_smaller_one_could_be_differenced() -> None:
    sets = {**many(2000), "client9": ["of client9 alone"]}
    with pytest.raises(CohortChanged, match="differenced") as caught:
        run(sets, cap=1, threshold=4, deliver=PsuWire(garbling("client9", 1)))
    assert (caught.value.opened, list(caught.value.excluded)) == (True, ["client9"])
    with pytest.raises(CohortChanged, match="no table was opened") as caught:  # too few would be left
        run({**many(50), "client9": ["x"]}, threshold=5, deliver=PsuWire(garbling("client9", 0)))
    assert list(caught.value.excluded) == ["client9"]


def test_a_dropout_after_its_upload_is_recovered_while_enough_remain() -> None:
    expected = tuple(sorted(f"/m/{i}" for i in range(50)))
    for stage in (Stage.CONSISTENCY, Stage.UNMASK):
        assert run(many(50), threshold=3, dropouts={0: {"client2": stage}}).identifiers == expected
        with pytest.raises(CohortChanged, match="attempt 0") as caught:
            run(many(50), threshold=4, dropouts={0: {"client2": stage}})
        # Once shares were asked for, a colluder that stayed silent can still hand its own over.
        assert caught.value.opened == (stage is Stage.UNMASK)


def test_smaller_cohort_would_show_what_the_missing_client_holds() -> None:
    """What `CohortChanged` prevents, done by hand."""
    sets = many(60) | {"client4": ["/m/1", "only client4 has this"]}
    rest = {name: identifiers for name, identifiers in sets.items() if name != "client4"}
    assert set(run(sets).identifiers) - set(run(rest).identifiers) == {"only client4 has this"}


# What clients check.


def plan_of(clients: Collection[str], **options: Any) -> Plan:
    public = {name: key.public_key().public_bytes_raw() for name, key in keys_of(clients).items()}
    return Plan(b"s", tuple(clients), len(clients), public, **{"cap": 100, **options})


def test_a_list_before_any_table_is_not_answered() -> None:
    with pytest.raises(UnexpectedMessage, match="before any table"):
        accept(joined(), UnionList(b"s", -1, SERVER, ("x", "y")))


def joined(identifiers: Collection[str] = ("x", "y"), **options: Any) -> Client:
    return join(plan_of(("a", "b"), **options), "a", identifiers)


def test_a_client_joins_only_a_plan_that_names_it() -> None:
    with pytest.raises(SettingError, match="'c' is not a party"):
        join(plan_of(("a", "b")), "c", [])


def test_a_client_does_not_print_its_set() -> None:
    assert "secret" not in repr(joined(["a secret name"]))


@pytest.mark.parametrize(
    ("announcement", "error", "message"),
    [
        (Announcement(b"t", 0, SERVER, bytes(32), 600), ReplayedMessage, "session"),
        (Announcement(b"s", 1, SERVER, bytes(32), 2400), ReplayedMessage, "round"),
        (Announcement(b"s", 0, "b", bytes(32), 600), UnknownSender, "'b'"),
        (Announcement(b"s", 0, SERVER, bytes(32), 2400), SettingError, "2400 cells"),
        (Announcement(b"s", 0, SERVER, bytes(16), 600), SettingError, "salt of 16"),
        (UnionList(b"s", 0, SERVER, ()), UnexpectedMessage, "Announcement is due"),
    ],
)
def test_announcements_that_a_client_refuses(announcement: Message, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        contribute(joined(), announcement, seeded(b""))


def test_attempts_come_in_turn_each_with_its_own_salt() -> None:
    client = joined(max_attempts=2)
    first = announce(client.plan, 0, seeded(b"first"))
    client, setting, tables = contribute(client, first, seeded(b""))
    assert setting.min_survivors == 2
    assert tables["table"].shape == (600 * CELL_WIDTH,)
    with pytest.raises(ReplayedMessage, match="round"):
        contribute(client, first, seeded(b""))
    with pytest.raises(ReplayedMessage, match="salt"):
        contribute(client, Announcement(b"s", 1, SERVER, first.salt, 2400), seeded(b""))
    client, _, _ = contribute(client, announce(client.plan, 1, seeded(b"second")), seeded(b""))
    with pytest.raises(SettingError, match="2 attempts"):
        contribute(client, announce(client.plan, 2, seeded(b"third")), seeded(b""))


def test_clients_that_were_told_different_salts_open_nothing() -> None:
    def split(sender: str, receiver: str, message: Any) -> Message:
        if isinstance(message, Announcement) and receiver == "client1":
            return Announcement(message.session, message.round, SERVER, bytes(32), message.num_cells)
        return message

    with pytest.raises(CohortChanged, match="no table was opened") as caught:
        run(many(20), deliver=PsuWire(split))
    assert caught.value.excluded["client1"].startswith("ReplayedMessage: Advertisement of client1 belongs to session")
    rest = {name: own for name, own in many(20).items() if name != "client1"}
    found = run(many(20), threshold=3, deliver=PsuWire(split))
    assert (found.identifiers, list(found.excluded)) == (tuple(sorted(set().union(*rest.values()))), ["client1"])

    clients = {name: join(plan_of(("a", "b")), name, ["x"]) for name in ("a", "b")}  # each by its own announcement
    told = {name: announce(clients[name].plan, 0, seeded(name.encode())) for name in clients}
    settings = {name: contribute(clients[name], told[name], seeded(b""))[1] for name in clients}
    keys = keys_of(clients)
    sent = [secagg_client.advertise(settings[name], name, keys[name], seeded(b""))[1] for name in clients]
    with pytest.raises(TooFewParties) as caught:
        secagg_server.collect_advertisements(settings["a"], sent)
    assert "ReplayedMessage: Advertisement of b belongs to session" in caught.value.excluded["b"]


@pytest.mark.parametrize(
    ("message", "error", "text"),
    [
        (UnionList(b"s", 0, SERVER, ("x",)), MissingIdentifiers, "lacks identifiers that a holds"),
        (UnionList(b"s", 0, SERVER, ()), MissingIdentifiers, "lacks"),
        (UnionList(b"s", 0, SERVER, ("y", "x")), MalformedMessage, "not sorted"),
        (UnionList(b"s", 0, SERVER, ("x", "x", "y")), MalformedMessage, "twice"),
        (UnionList(b"s", 1, SERVER, ("x", "y")), ReplayedMessage, "round"),
        (UnionList(b"s", 0, "b", ("x", "y")), UnknownSender, "'b'"),
    ],
)
def test_union_lists_that_a_client_refuses(message: Message, error: type[Exception], text: str) -> None:
    client, _, _ = contribute(joined(), announce(plan_of(("a", "b")), 0, seeded(b"")), seeded(b""))
    with pytest.raises(error, match=text):
        accept(client, message)


def test_a_client_answers_one_list() -> None:
    """Who may ask again reads a set off the answers, one name at a time: also after a list that was refused."""
    for first in (("x", "y", "z"), ("x",)):
        client, _, _ = contribute(joined(), announce(plan_of(("a", "b")), 0, seeded(b"")), seeded(b""))
        try:
            assert accept(client, UnionList(b"s", 0, SERVER, first)) == first
        except MissingIdentifiers:
            assert first == ("x",)
        for again in (client, dataclasses.replace(client), copy.deepcopy(client)):
            with pytest.raises(StateReused, match="a: accept was taken before"):
                accept(again, UnionList(b"s", 0, SERVER, ("x", "y")))


def damaging(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """The first client adds a five to one cell of its first so many tables."""
    left = [times]
    honest = psu_module.encode

    def encode(parameters: Parameters, identifiers: Collection[str], randomness: Randomness) -> np.ndarray:
        table = honest(parameters, identifiers, randomness)
        if "mark" in identifiers and left[0]:
            left[0] -= 1
            table = Ring.MERSENNE61.add(table, np.eye(1, len(table), 3, dtype=np.uint64)[0] * np.uint64(5))
        return table

    monkeypatch.setattr(psu_module, "encode", encode)


def test_one_wrong_cell_is_damage_and_makes_no_table_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that damages each table costs two of them, one that does it once costs one more."""
    sets = {"client0": ["mark", "x"], "client1": ["x", "y"], "client2": ["z"]}
    for times in (1, 10):
        damaging(monkeypatch, times)
        wire = PsuWire()
        if times == 1:
            assert run(sets, cap=100, deliver=wire) == Union(("mark", "x", "y", "z"), 2, 600)
        else:
            with pytest.raises(
                DamagedTable, match=r"2 tables .* 1 of 600 cells remain .* one cannot be told from sums"
            ):
                run(sets, cap=100, deliver=wire)
        assert [told.num_cells for told in wire.of_kind(Announcement)] == [600] * 3 * 2
        assert len({told.salt for told in wire.of_kind(Announcement)}) == 2
        sent = [len(encode_message(message)) for message in wire.of_kind(MaskedUpload) if message.sender == "client0"]
        assert sum(sent) < 80_000
        monkeypatch.undo()


def test_the_last_attempt_says_damage_too(monkeypatch: pytest.MonkeyPatch) -> None:
    damaging(monkeypatch, 10)
    with pytest.raises(DamagedTable, match="1 tables of the union were damaged"):
        run({"a": ["mark"], "b": ["y"]}, cap=100, max_attempts=1)


def test_a_client_takes_part_in_one_repetition_of_a_size() -> None:
    client = joined(max_attempts=4)
    for attempt, growths in ((0, 0), (1, 0)):
        told = announce(client.plan, attempt, seeded(bytes([attempt])), growths)
        client, _, _ = contribute(client, told, seeded(b""))
    with pytest.raises(SettingError, match="attempt 2 with 600 cells; the plan has 2400"):
        contribute(client, announce(client.plan, 2, seeded(b"c"), 0), seeded(b""))
    client, _, _ = contribute(client, announce(client.plan, 2, seeded(b"c"), 1), seeded(b""))
    with pytest.raises(SettingError, match="attempt 3 with 2400 cells; the plan has 9600"):
        contribute(client, announce(client.plan, 3, seeded(b"d"), 1), seeded(b""))


@pytest.mark.parametrize("load", [0.7, 0.78, 0.8, 0.82, 0.85, 1.0, 3.0])
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


def test_a_multiplier_that_sums_to_zero_is_noticed_by_the_holder() -> None:
    """Of probability 2^-61: the identifier is not in the sum."""
    client, _, tables = contribute(joined(["x"]), announce(plan_of(("a", "b")), 0, seeded(b"")), bytes)
    found = open_union(client.plan, announce(client.plan, 0, seeded(b"")), Sum(tables, ("a", "b")))
    with pytest.raises(MissingIdentifiers, match="lacks"):
        accept(client, found)


def test_a_lying_server_is_noticed_by_the_holder() -> None:
    def censor(sender: str, receiver: str, message: Any) -> Message:
        if isinstance(message, UnionList):
            kept = tuple(identifier for identifier in message.identifiers if identifier != "/m/3")
            return UnionList(message.session, message.round, SERVER, kept)
        return message

    with pytest.raises(MissingIdentifiers, match="client0"):
        run({"client0": ["/m/3"], "client1": ["/m/4"]}, deliver=PsuWire(censor))


def test_bytes_that_are_no_message() -> None:
    with pytest.raises(MalformedMessage, match="3 bytes"):
        decode_message(b"abc")


# What it costs.


def test_measure_counts_the_bytes_of_one_client() -> None:
    cost = measure(300, 3)
    assert cost.union.identifiers == tuple(f"/m/{i:08d}" for i in range(300))
    assert 600 * CELL_WIDTH * 8 < cost.upload_bytes < 600 * CELL_WIDTH * 8 + 3000
    assert cost.seconds > 0


@pytest.mark.slow
@pytest.mark.parametrize(("num_identifiers", "num_clients", "limit_s"), [(15_000, 10, 5), (100_000, 20, 60)])
def test_speed(num_identifiers: int, num_clients: int, limit_s: float) -> None:
    cost = measure(num_identifiers, num_clients)
    assert len(cost.union.identifiers) == num_identifiers
    assert cost.union.attempts == 1
    assert cost.seconds < limit_s
