"""What a client of a union checks before it answers."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Collection
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fkgsec.protocols.core.errors import (
    MalformedMessage,
    ReplayedMessage,
    SettingError,
    StateReused,
    UnexpectedMessage,
    UnknownSender,
)
from fkgsec.protocols.core.prg import derive, seeded
from fkgsec.protocols.psu import (
    Announcement,
    Client,
    MissingIdentifiers,
    Plan,
    UnionList,
    accept,
    announce,
    contribute,
    decode_message,
    join,
    open_union,
)
from fkgsec.protocols.psu.table import (
    CELL_WIDTH,
)
from fkgsec.protocols.secagg import SERVER, Message, Sum


def keys_of(clients: Collection[str]) -> dict[str, Ed25519PrivateKey]:
    return {name: Ed25519PrivateKey.from_private_bytes(derive(b"identity", name)) for name in clients}


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
    assert tables()["table"].shape == (600 * CELL_WIDTH,)
    with pytest.raises(ReplayedMessage, match="round"):
        contribute(client, first, seeded(b""))
    with pytest.raises(ReplayedMessage, match="salt"):
        contribute(client, Announcement(b"s", 1, SERVER, first.salt, 2400), seeded(b""))
    client, _, _ = contribute(client, announce(client.plan, 1, seeded(b"second")), seeded(b""))
    with pytest.raises(SettingError, match="2 attempts"):
        contribute(client, announce(client.plan, 2, seeded(b"third")), seeded(b""))


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


def test_a_client_takes_part_in_one_repetition_of_a_size() -> None:
    client = joined(cap=None, max_attempts=4)
    for attempt, growths in ((0, 0), (1, 0)):
        told = announce(client.plan, attempt, seeded(bytes([attempt])), growths)
        client, _, _ = contribute(client, told, seeded(b""))
    with pytest.raises(SettingError, match="attempt 2 with 1500 cells; the plan has 6000"):
        contribute(client, announce(client.plan, 2, seeded(b"c"), 0), seeded(b""))
    client, _, _ = contribute(client, announce(client.plan, 2, seeded(b"c"), 1), seeded(b""))
    with pytest.raises(SettingError, match="attempt 3 with 6000 cells; the plan has 24000"):
        contribute(client, announce(client.plan, 3, seeded(b"d"), 1), seeded(b""))


def test_a_client_refuses_a_second_growth_beyond_a_stated_cap() -> None:
    client = joined(cap=100)
    for attempt in (0, 1):
        client, _, _ = contribute(client, announce(client.plan, attempt, seeded(bytes([attempt]))), seeded(b""))
    with pytest.raises(SettingError, match="attempt 2 with 9600 cells; the plan has 2400"):
        contribute(client, announce(client.plan, 2, seeded(b"c")), seeded(b""))


def test_a_multiplier_that_sums_to_zero_is_noticed_by_the_holder() -> None:
    """Of probability 2^-61: the identifier is not in the sum."""
    client, _, tables = contribute(joined(["x"]), announce(plan_of(("a", "b")), 0, seeded(b"")), bytes)
    found = open_union(client.plan, announce(client.plan, 0, seeded(b"")), Sum(tables(), ("a", "b")))
    with pytest.raises(MissingIdentifiers, match="lacks"):
        accept(client, found)


def test_bytes_that_are_no_message() -> None:
    with pytest.raises(MalformedMessage, match="3 bytes"):
        decode_message(b"abc")
