"""The union: exact, of constant length, and safe to interrupt."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from fkgsec.protocols.core.errors import SettingError
from fkgsec.protocols.core.prg import Ring, derive, seeded
from fkgsec.protocols.psu import (
    Announcement,
    CohortChanged,
    DamagedTable,
    MissingIdentifiers,
    NothingToHideBehind,
    Union,
    UnionList,
    UnionTooLarge,
    decode_message,
)
from fkgsec.protocols.psu import client as psu_module
from fkgsec.protocols.psu.table import (
    CELL_WIDTH,
    MERSENNE61,
    NUM_SEGMENTS,
    BadIdentifier,
    DuplicateIdentifier,
    Parameters,
)
from fkgsec.protocols.secagg import SERVER, Message, Stage, safe_threshold
from fkgsec.protocols.secagg import encode as encode_message
from fkgsec.protocols.secagg.messages import MaskedUpload, RevealedShares, UnmaskRequest
from tests.protocols.sessions import union

names = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)


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
    names = tuple(sorted(f"/m/{i}" for i in range(6000)))
    assert run(many(6000), cap=None, deliver=wire) == Union(names, 3, 24_000)
    announced = wire.of_kind(Announcement)
    assert [(told.round, told.num_cells) for told in announced] == [(0, 1500)] * 4 + [(1, 6000)] * 4 + [(2, 24_000)] * 4
    assert len({told.salt for told in announced}) == 3
    assert len({message.session for message in wire.of_kind(MaskedUpload)}) == 3
    assert [message.sender for message in wire.of_kind(MaskedUpload)] == list(many(1)) * 3


def test_a_client_beyond_the_cap_behaves_like_the_others() -> None:
    assert run({"a": [str(i) for i in range(700)], "b": []}, cap=1).attempts == 2


def test_out_of_attempts() -> None:
    for max_attempts in (2, 6):
        with pytest.raises(UnionTooLarge, match=r"of 2400 cells remain .* 1,714 items at the most; the cap is 1\."):
            run(many(3000), cap=1, max_attempts=max_attempts)
    with pytest.raises(UnionTooLarge, match=r"of 1500 cells remain .* no cap is set"):
        run(many(3000), cap=None, max_attempts=1)


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


@pytest.mark.parametrize("attempt", [0, 1])
def test_a_client_at_fault_ends_the_union(attempt: int) -> None:
    """Whoever begins anew without it may do so only where no table was opened."""
    sets = {**many(2000), "client9": ["of client9 alone"]}
    wire = PsuWire(garbling("client9", attempt))
    with pytest.raises(CohortChanged, match="differenced" if attempt else "no table was opened") as caught:
        run(sets, cap=1, threshold=4, deliver=wire)
    assert (caught.value.opened, list(caught.value.excluded)) == (attempt == 1, ["client9"])
    assert [message for message in wire.of_kind(UnmaskRequest, RevealedShares) if message.round == attempt] == []


def test_a_dropout_after_its_upload_is_recovered_while_enough_remain() -> None:
    expected = tuple(sorted(f"/m/{i}" for i in range(50)))
    for stage in (Stage.CONSISTENCY, Stage.UNMASK):
        assert run(many(50), threshold=3, dropouts={0: {"client2": stage}}).identifiers == expected
        with pytest.raises(CohortChanged, match="attempt 0") as caught:
            run(many(50), threshold=4, dropouts={0: {"client2": stage}})
        # Once shares were asked for, a colluder that stayed silent can still hand its own over.
        assert caught.value.opened == (stage is Stage.UNMASK)


def test_clients_that_were_told_different_salts_open_nothing() -> None:
    def split(sender: str, receiver: str, message: Any) -> Message:
        if isinstance(message, Announcement) and receiver == "client1":
            return Announcement(message.session, message.round, SERVER, bytes(32), message.num_cells)
        return message

    with pytest.raises(CohortChanged, match="no table was opened") as caught:
        run(many(20), deliver=PsuWire(split))
    assert caught.value.excluded["client1"].startswith("ReplayedMessage: Advertisement of client1 belongs to session")


def altering(monkeypatch: pytest.MonkeyPatch, alter: Callable[[np.ndarray], np.ndarray]) -> None:
    """The client that holds "mark" uploads altered tables."""
    honest = psu_module.encode_with

    def encode(parameters: Parameters, identifiers: Collection[str], multipliers: np.ndarray) -> np.ndarray:
        table = honest(parameters, identifiers, multipliers)
        return alter(table) if "mark" in identifiers else table

    monkeypatch.setattr(psu_module, "encode_with", encode)


def damaging(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """One client adds a five to one cell of its first so many tables."""
    left = [times]

    def alter(table: np.ndarray) -> np.ndarray:
        left[0] -= 1
        wrong = np.eye(1, len(table), 3, dtype=np.uint64)[0] * np.uint64(5 if left[0] >= 0 else 0)
        return Ring.MERSENNE61.add(table, wrong)

    altering(monkeypatch, alter)


def sent_bytes(wire: PsuWire, party: str) -> int:
    return sum(len(encode_message(message)) for message in wire.of_kind(MaskedUpload) if message.sender == party)


def test_one_wrong_cell_is_damage_and_makes_no_table_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that damages each table costs two of them, one that does it once costs one more."""
    sets = {"client0": ["mark", "x"], "client1": ["x", "y"], "client2": ["z"]}
    for times in (1, 10):
        damaging(monkeypatch, times)
        wire = PsuWire()
        if times == 1:
            assert run(sets, cap=100, deliver=wire) == Union(("mark", "x", "y", "z"), 2, 600)
        else:
            with pytest.raises(DamagedTable, match=r"tables of the union: 2 .* 1 of 600 cells remain"):
                run(sets, cap=100, deliver=wire)
        assert [told.num_cells for told in wire.of_kind(Announcement)] == [600] * 3 * 2
        assert len({told.salt for told in wire.of_kind(Announcement)}) == 2
        assert sent_bytes(wire, "client0") < 80_000
        monkeypatch.undo()


def test_the_last_attempt_says_damage_too(monkeypatch: pytest.MonkeyPatch) -> None:
    damaging(monkeypatch, 10)
    with pytest.raises(DamagedTable, match="damaged tables of the union: 1 "):
        run({"a": ["mark"], "b": ["y"]}, cap=100, max_attempts=1)


def random_fill(share: float) -> Callable[[np.ndarray], np.ndarray]:
    """Random elements in all seven fields of a share of the cells."""
    generator = np.random.default_rng(7)

    def alter(table: np.ndarray) -> np.ndarray:
        cells = table.reshape(-1, CELL_WIDTH).copy()
        chosen = generator.permutation(len(cells))[: int(share * len(cells))]
        cells[chosen] = generator.integers(0, MERSENNE61.prime, (len(chosen), CELL_WIDTH), dtype=np.uint64)
        return cells.ravel()

    return alter


def balanced_fill(table: np.ndarray) -> np.ndarray:
    """Random elements in all cells, of which the last of each segment makes up for the others: as many items would."""
    cells = random_fill(1.0)(table).reshape(NUM_SEGMENTS, -1, CELL_WIDTH)
    for segment in cells:
        for column in range(CELL_WIDTH):
            segment[-1, column] = -sum(map(int, segment[:-1, column])) % MERSENNE61.prime
    return cells.ravel()


FILLED = {"client0": ["mark", "x"], "client1": ["x", "y"], "client2": ["z"], "client3": ["y"], "client4": ["w"]}


@pytest.mark.parametrize(("share", "cap", "table_bytes"), [(0.3, 100, 33_600), (1.0, None, 84_000)])
def test_a_client_that_fills_cells_at_random_costs_one_table(
    monkeypatch: pytest.MonkeyPatch, share: float, cap: int | None, table_bytes: int
) -> None:
    altering(monkeypatch, random_fill(share))
    wire = PsuWire()
    with pytest.raises(DamagedTable, match=r"tables of the union: 1 .* different sums.* without some of the clients"):
        run(FILLED, cap=cap, deliver=wire)
    assert table_bytes < sent_bytes(wire, "client1") < table_bytes + 1000


def test_a_client_that_imitates_a_large_union_costs_two_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    altering(monkeypatch, balanced_fill)
    wire = PsuWire()
    with pytest.raises(UnionTooLarge, match=r"the cap is 100\. .* without some of the clients"):
        run(FILLED, cap=100, deliver=wire)
    assert 5 * 33_600 < sent_bytes(wire, "client1") < 5 * 33_600 + 2000


def test_a_lying_server_is_noticed_by_the_holder() -> None:
    def censor(sender: str, receiver: str, message: Any) -> Message:
        if isinstance(message, UnionList):
            kept = tuple(identifier for identifier in message.identifiers if identifier != "/m/3")
            return UnionList(message.session, message.round, SERVER, kept)
        return message

    with pytest.raises(MissingIdentifiers, match="client0"):
        run({"client0": ["/m/3"], "client1": ["/m/4"]}, deliver=PsuWire(censor))


@pytest.mark.slow
@pytest.mark.parametrize(("num_identifiers", "num_clients"), [(15_000, 10), (100_000, 20)])
def test_large_unions_peel_at_the_first_attempt(num_identifiers: int, num_clients: int) -> None:
    sets = {
        f"client-{place}": [f"/m/{i:08d}" for i in range(num_identifiers) if (place - i) % num_clients < 3]
        for place in range(num_clients)
    }
    found = run(sets, cap=num_identifiers, threshold=safe_threshold(num_clients))
    assert (len(found.identifiers), found.attempts) == (num_identifiers, 1)
