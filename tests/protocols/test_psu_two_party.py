"""The two-party union: exact, of lengths that say nothing, with the leakage that its docstring states and no other."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import replace
from fractions import Fraction

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocols import oblivious_transfer, oprf, psu_two_party, psu_two_party_table
from protocols.errors import (
    BadCiphertext,
    MalformedMessage,
    OutOfRing,
    ProtocolError,
    RandomnessError,
    ReplayedMessage,
    SettingError,
    StateReused,
    UnexpectedMessage,
    UnknownSender,
    WrongLength,
)
from protocols.prg import Randomness, seeded
from protocols.psu_table import BadIdentifier, DuplicateIdentifier
from protocols.psu_two_party import (
    Choices,
    Indications,
    Offer,
    Programs,
    Queries,
    Transfers,
    TwoPartyUnion,
    decode,
    receiver_choose,
    receiver_finish,
    receiver_offer,
    receiver_program,
    sender_indicate,
    sender_query,
    sender_transfer,
    union_two_party,
)
from protocols.psu_two_party_table import (
    PRIME,
    BinOverflow,
    Setting,
    SetTooLarge,
    evaluate,
    fill_bins,
    interpolate,
    interpolation_rows,
    pad_set,
    shuffle_slots,
    table_shape,
)
from protocols.secagg import Deliver
from protocols.secagg_messages import Message, encode

pytest.importorskip("rbcl")

SETTING = Setting(session=b"session", round=3, sender="client/a", receiver="server", cap=8, max_bytes=24)


class Wire:
    """A delivery that serialises, keeps what crossed, and may replace a message of one kind."""

    def __init__(self, tamper: Callable[[Message], Message] | None = None, kind: type[Message] | None = None) -> None:
        self.tamper, self.kind, self.crossed = tamper, kind, list[tuple[str, str, bytes]]()

    def __call__(self, sender: str, receiver: str, message: Message) -> Message:
        if self.tamper is not None and type(message) is self.kind:
            message = self.tamper(message)
        frame = encode(message)
        self.crossed.append((sender, receiver, frame))
        return decode(frame)

    @property
    def lengths(self) -> list[int]:
        return [len(frame) for _, _, frame in self.crossed]


def run(
    sender_set: Collection[str],
    receiver_set: Collection[str],
    *,
    cap: int = 8,
    max_bytes: int = 24,
    seed: bytes = b"seed",
    deliver: Deliver | None = None,
    sender: str = "client/a",
) -> TwoPartyUnion:
    return union_two_party(
        sender_set,
        receiver_set,
        cap=cap,
        max_bytes=max_bytes,
        session=b"session",
        round=3,
        sender=sender,
        sender_randomness=seeded(b"sender" + seed),
        receiver_randomness=seeded(b"receiver" + seed),
        deliver=deliver or Wire(),
    )


def names(count: int, prefix: str = "entity") -> list[str]:
    return [f"{prefix}/{number}" for number in range(count)]


# The union.

identifier = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
small_set = st.sets(identifier, max_size=6)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(small_set, small_set, small_set)
def test_the_union_is_exact(only_sender: set[str], only_receiver: set[str], both: set[str]) -> None:
    sender_set, receiver_set = only_sender | both, only_receiver | both
    union = run(sender_set, receiver_set, cap=18)
    assert union.identifiers == tuple(sorted(sender_set | receiver_set))
    assert union.learnt == tuple(sorted(sender_set - receiver_set))


@pytest.mark.parametrize(
    ("sender_set", "receiver_set"),
    [([], []), (names(8), []), ([], names(8)), (names(8), names(8)), (names(8), names(8, "other")), ([""], ["x"])],
    ids=["empty", "empty receiver", "empty sender", "equal", "disjoint", "empty string"],
)
def test_edges(sender_set: list[str], receiver_set: list[str]) -> None:
    union = run(sender_set, receiver_set)
    assert set(union.identifiers) == {*sender_set, *receiver_set}
    assert set(union.learnt) == set(sender_set) - set(receiver_set)


def test_a_single_item_and_cap() -> None:
    assert run(["a"], ["a"], cap=1) == (("a",), ())
    assert run(["a"], ["b"], cap=1) == (("a", "b"), ("a",))


def test_sets_of_many_bins() -> None:
    assert table_shape(120)[0] > 1
    union = run(names(120), names(90) + names(20, "other"), cap=120)
    assert set(union.identifiers) == {*names(120), *names(20, "other")}
    assert set(union.learnt) == set(names(120)[90:])


@pytest.mark.slow
def test_a_thousand_identifiers() -> None:
    union = run(names(1000), names(700) + names(300, "other"), cap=1000)
    assert set(union.identifiers) == {*names(1000), *names(300, "other")}
    assert set(union.learnt) == set(names(1000)[700:])


def test_normal_forms_stay_apart() -> None:
    composed, decomposed = "caf\u00e9", "cafe\u0301"
    assert set(run([composed], [decomposed]).identifiers) == {composed, decomposed}


def test_a_run_is_a_function_of_its_randomness() -> None:
    first, second, other = Wire(), Wire(), Wire()
    run(names(3), names(2), deliver=first)
    run(names(3), names(2), deliver=second)
    run(names(3), names(2), deliver=other, seed=b"other")
    assert first.crossed == second.crossed
    assert all(ours[2] != theirs[2] for ours, theirs in zip(first.crossed, other.crossed, strict=True))


# What each party sees.


def test_lengths_do_not_depend_on_the_sets() -> None:
    pairs = [([], []), (names(8), names(8)), (names(8), names(8, "other")), (["x" * 24], []), (["\u00e9" * 12], ["y"])]
    wires = [Wire() for _ in pairs]
    for (sender_set, receiver_set), wire in zip(pairs, wires, strict=True):
        run(sender_set, receiver_set, deliver=wire)
    assert {tuple(wire.lengths) for wire in wires} == {tuple(wires[0].lengths)}
    assert [crossed[:2] for crossed in wires[0].crossed] == [("server", "client/a"), ("client/a", "server")] * 3
    wider, longer = Wire(), Wire()
    run([], [], deliver=wider, cap=9)
    run([], [], deliver=longer, max_bytes=25)
    assert wider.lengths != wires[0].lengths != longer.lengths


def members_by_bin(setting: Setting, sender_set: Collection[str], receiver_set: Collection[str]) -> list[int]:
    """What the receiver sees before the transfers: how many slots of each bin pass its test."""
    theirs, ours = seeded(b"sender"), seeded(b"receiver")
    offered, offer = receiver_offer(setting, receiver_set, ours)
    queried, queries = sender_query(setting, sender_set, offer, theirs)
    programmed, programs = receiver_program(offered, queries, ours)
    chose, _ = receiver_choose(programmed, sender_indicate(queried, programs), ours)
    bits = np.array([choice.bit for choice in chose.choices])
    return bits.reshape(setting.num_bins, setting.load).sum(axis=1).tolist()


BINNED = replace(SETTING, cap=60)


def new_by_bin(sender_set: Collection[str], receiver_set: Collection[str]) -> list[int]:
    _, offer = receiver_offer(BINNED, receiver_set, seeded(b"receiver"))
    new = pad_set(BINNED, sorted(set(sender_set) - set(receiver_set)))
    return [len(items) for items in fill_bins(BINNED, offer.salt, new)]


def test_the_receiver_sees_nothing_of_the_intersection() -> None:
    assert BINNED.num_bins > 1
    new, held = names(20, "new"), names(40)
    views = [members_by_bin(BINNED, new + held[:shared], held) for shared in (0, 13, 40)]
    assert views[0] == views[1] == views[2]
    assert views[0] == [BINNED.load - count for count in new_by_bin(new, held)]


def test_dummies_outside_the_receivers_bins_would_show_the_intersection(monkeypatch: pytest.MonkeyPatch) -> None:
    def filled_with_strangers(
        setting: Setting, bins: tuple[tuple[bytes, ...], ...], randomness: Randomness
    ) -> tuple[bytes, ...]:
        slots = shuffle_slots(setting, bins, randomness)
        stranger = b"\x02" * setting.item_bytes
        return tuple(stranger if item == setting.dummy else item for item in slots)

    monkeypatch.setattr(psu_two_party, "shuffle_slots", filled_with_strangers)
    new, held = names(20, "new"), names(40)
    views = [members_by_bin(BINNED, new + held[:shared], held) for shared in (0, 13, 40)]
    assert [sum(view) for view in views] == [0, 13, 40]


def chi_square(counts: Collection[int]) -> float:
    expected = sum(counts) / len(counts)
    return sum((count - expected) ** 2 / expected for count in counts)


def place_counts(randomness_of: Callable[[int], Randomness]) -> list[int]:
    """In which of the 8 slots of one bin a single item came to lie, over 2,000 draws."""
    [item] = pad_set(SETTING, ["entity"])
    places = Counter(shuffle_slots(SETTING, [[item]], randomness_of(number)).index(item) for number in range(2000))
    return [places[slot] for slot in range(8)]


def test_slots_are_in_uniform_order() -> None:
    assert chi_square(place_counts(lambda number: seeded(number.to_bytes(4, "big")))) < 30  # 7 degrees of freedom
    assert chi_square(place_counts(lambda number: bytes)) > 1000  # constant randomness leaves the order


def coefficients_for(receiver_set: Collection[str], seed: bytes) -> tuple[list[int], psu_two_party.ReceiverOffered]:
    offered, offer = receiver_offer(SETTING, receiver_set, seeded(b"receiver" + seed))
    _, queries = sender_query(SETTING, names(4), offer, seeded(b"sender" + seed))
    _, programs = receiver_program(offered, queries, seeded(b"programs" + seed))
    packed = programs.coefficients
    return [int.from_bytes(packed[at : at + 16], "little") for at in range(0, len(packed), 16)], offered


def program_statistics(receiver_set: Collection[str]) -> tuple[float, float]:
    """Chi-square of the coefficients' 5 high bits, and the largest distance of a coefficient's mean from 1/2, in sigmas."""
    drawn = [coefficients_for(receiver_set, bytes([seed]))[0] for seed in range(20)]
    values = list(itertools.chain.from_iterable(drawn))
    high = Counter(value >> 122 for value in values)
    by_power = np.array(values, dtype=float).reshape(-1, SETTING.load + 1) / PRIME
    sigmas = np.abs(by_power.mean(axis=0) - 0.5).max() / math.sqrt(1 / 12 / len(by_power))
    return chi_square([high[top] for top in range(32)]), float(sigmas)


@pytest.mark.parametrize("receiver_set", [[], names(8)], ids=["empty", "full"])
def test_programs_are_uniform_to_the_sender(receiver_set: list[str]) -> None:
    spread, distance = program_statistics(receiver_set)
    assert spread < 80  # 31 degrees of freedom
    assert distance < 6


def test_programs_without_free_points_would_show_an_empty_set(monkeypatch: pytest.MonkeyPatch) -> None:
    def through_the_dummy_alone(rows: list[tuple[int, ...]], values: list[int]) -> list[int]:
        return [values[0]] + [0] * (len(rows) - 1)

    monkeypatch.setattr(psu_two_party, "interpolate", through_the_dummy_alone)
    spread, distance = program_statistics([])
    assert spread > 1000
    assert distance > 20


def rank(rows: list[list[int]]) -> int:
    """Rank of a matrix modulo `PRIME`, by elimination."""
    rows = [row[:] for row in rows]
    found = 0
    for column in range(len(rows[0])):
        pivot = next((number for number in range(found, len(rows)) if rows[number][column]), None)
        if pivot is None:
            continue
        rows[found], rows[pivot] = rows[pivot], rows[found]
        inverse = pow(rows[found][column], -1, PRIME)
        for number in range(found + 1, len(rows)):
            factor = rows[number][column] * inverse
            rows[number] = [(a - factor * b) % PRIME for a, b in zip(rows[number], rows[found], strict=True)]
        found += 1
    return found


def program_rank(receiver_set: Collection[str]) -> int:
    values, _ = coefficients_for(receiver_set, b"")
    width = SETTING.load + 1
    return rank([values[at : at + width] for at in range(0, len(values), width)])


def test_programs_of_a_bin_are_independent(monkeypatch: pytest.MonkeyPatch) -> None:
    assert program_rank(names(3)) == program_rank([]) == program_rank(names(8)) == SETTING.num_slots
    num_free = SETTING.load + 1 - 4
    drawn = list[int]()

    def zero_values(randomness: Randomness, count: int) -> list[int]:
        drawn.append(count)
        is_value = count == num_free and drawn.count(num_free) > 1  # the first draw of this size are the nodes
        return [0] * count if is_value else psu_two_party_table.uniform_elements(randomness, count)

    monkeypatch.setattr(psu_two_party, "uniform_elements", zero_values)
    assert program_rank(names(3)) == 4  # control: common roots would show how many items the bin holds


def constant_differences(receiver_set: list[str]) -> int:
    """For how many pairs of slots their polynomials differ by one constant at every member of the receiver's bin."""
    values, offered = coefficients_for(receiver_set, b"")
    polynomials = np.array(values, dtype=object).reshape(-1, SETTING.load + 1)
    nodes = [psu_two_party_table.locate(SETTING, offered.salt, item)[1] for item in offered.bins[0]]
    pairs = itertools.combinations(polynomials, 2)
    return sum(len({evaluate((one - two).tolist(), node) for node in nodes}) == 1 for one, two in pairs)


def test_a_key_for_all_slots_would_show_the_receivers_members(monkeypatch: pytest.MonkeyPatch) -> None:
    assert constant_differences(names(5)) == 0
    key = oprf.derive_key(bytes(32), b"")
    monkeypatch.setattr(oprf, "derive_key", lambda seed, info: key)
    assert constant_differences(names(5)) == math.comb(SETTING.num_slots, 2)


def test_a_server_against_each_client_in_turn_learns_who_brought_what() -> None:
    clients = {"a": names(6), "b": [*names(4), "b/1", "b/2"], "c": ["b/1", "c/1"]}
    known: tuple[str, ...] = ()
    brought = {}
    for name, identifiers in clients.items():
        known, brought[name] = run(identifiers, known, cap=12, sender=f"client/{name}")
    assert brought == {"a": tuple(names(6)), "b": ("b/1", "b/2"), "c": ("c/1",)}
    assert set(known) == set().union(*clients.values())


def test_secrets_are_not_printed() -> None:
    offered, offer = receiver_offer(SETTING, ["held"], seeded(b"receiver"))
    queried, queries = sender_query(SETTING, ["secret"], offer, seeded(b"sender"))
    programmed, _ = receiver_program(offered, queries, seeded(b"programs"))
    printed = repr((offered, queried, programmed))
    assert "secret" not in printed.replace("secrets", "")
    assert "held" not in printed
    assert repr(queried.transfer_key.secret) not in printed
    assert str(programmed.secrets[0]) not in printed


# Misuse.


@pytest.mark.parametrize(
    ("identifiers", "error"),
    [
        (["x" * 25], BadIdentifier),
        (["\u00e9" * 13], BadIdentifier),
        (["\ud800"], BadIdentifier),
        ([7], BadIdentifier),
        (["a", "b", "a"], DuplicateIdentifier),
        (names(9), SetTooLarge),
    ],
    ids=["over-long", "over-long in bytes", "lone surrogate", "no string", "duplicate", "cap exceeded"],
)
def test_sets_that_are_refused(identifiers: list[str], error: type[ProtocolError]) -> None:
    with pytest.raises(error):
        run(identifiers, [])
    with pytest.raises(error):
        run([], identifiers)


@pytest.mark.parametrize(
    "change",
    [{"cap": 0}, {"cap": 2**14 + 1}, {"max_bytes": 0}, {"max_bytes": 2**12 + 1}, {"sender": "server"}],
    ids=str,
)
def test_settings_that_are_refused(change: dict[str, int]) -> None:
    with pytest.raises(SettingError):
        replace(SETTING, **change)


@pytest.mark.parametrize("change", [{"cap": 9}, {"max_bytes": 25}, {"salt": bytes(31)}], ids=str)
def test_other_public_values_are_refused(change: dict[str, int]) -> None:
    _, offer = receiver_offer(SETTING, [], seeded(b"receiver"))
    with pytest.raises(SettingError):
        sender_query(SETTING, [], msgspec.structs.replace(offer, **change), seeded(b"sender"))


def test_a_bin_that_overflows_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psu_two_party_table, "locate", lambda setting, salt, item: (0, 1))
    with pytest.raises(BinOverflow):
        fill_bins(BINNED, bytes(32), pad_set(BINNED, names(BINNED.load + 1)))


def test_short_randomness_is_refused() -> None:
    with pytest.raises(RandomnessError):
        receiver_offer(SETTING, [], lambda num_bytes: bytes(num_bytes - 1))


# Tampering.


def cut(name: str) -> Callable[[Message], Message]:
    return lambda message: msgspec.structs.replace(message, **{name: getattr(message, name)[:-1]})


def overwrite(name: str, start: int, content: bytes) -> Callable[[Message], Message]:
    def tamper(message: Message) -> Message:
        whole = getattr(message, name)
        return msgspec.structs.replace(message, **{name: whole[:start] + content + whole[start + len(content) :]})

    return tamper


def flip(name: str, place: int) -> Callable[[Message], Message]:
    def tamper(message: Message) -> Message:
        damaged = bytearray(getattr(message, name))
        damaged[place] ^= 1
        return msgspec.structs.replace(message, **{name: bytes(damaged)})

    return tamper


@pytest.mark.parametrize(
    ("kind", "tamper", "error"),
    [
        (Offer, cut("salt"), SettingError),
        (Queries, cut("blinded"), WrongLength),
        (Queries, overwrite("blinded", 32, bytes(32)), oprf.InvalidElement),
        (Queries, overwrite("blinded", 32, b"\xff" * 32), oprf.InvalidElement),
        (Queries, overwrite("transfer_element", 0, bytes(32)), oprf.InvalidElement),
        (Queries, cut("transfer_element"), oprf.InvalidElement),
        (Programs, cut("evaluated"), WrongLength),
        (Programs, cut("coefficients"), WrongLength),
        (Programs, overwrite("evaluated", 0, bytes(32)), oprf.InvalidElement),
        (Programs, overwrite("coefficients", 16, PRIME.to_bytes(16, "little")), OutOfRing),
        (Indications, cut("indications"), WrongLength),
        (Indications, overwrite("indications", 0, b"\xff" * 16), OutOfRing),
        (Choices, cut("elements"), WrongLength),
        (Choices, overwrite("elements", 64, b"\x01" * 32), oprf.InvalidElement),
        (Transfers, cut("sealed"), WrongLength),
        (Transfers, flip("sealed", -1), BadCiphertext),
    ],
)
def test_tampered_messages_are_noticed(
    kind: type[Message], tamper: Callable[[Message], Message], error: type[ProtocolError]
) -> None:
    with pytest.raises(error):
        run(names(4), names(8), deliver=Wire(tamper, kind))


def test_a_changed_polynomial_or_indication_is_noticed_where_a_member_fails() -> None:
    for kind, name in ((Programs, "coefficients"), (Indications, "indications")):
        with pytest.raises(MalformedMessage, match="does not belong there"):
            run(names(8), names(8), deliver=Wire(flip(name, 0), kind))


@pytest.mark.parametrize("kind", [Offer, Queries, Programs, Indications, Choices, Transfers])
@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"session": b"another"}, ReplayedMessage),
        ({"round": 2}, ReplayedMessage),
        ({"sender": "client/b"}, UnknownSender),
    ],
    ids=["session", "round", "sender"],
)
def test_messages_of_another_run_or_party_are_refused(
    kind: type[Message], change: dict[str, object], error: type[ProtocolError]
) -> None:
    with pytest.raises(error):
        run(names(2), names(3), deliver=Wire(lambda message: msgspec.structs.replace(message, **change), kind))


@pytest.mark.parametrize("kind", [Offer, Queries, Programs, Indications, Choices, Transfers])
def test_messages_of_another_kind_are_refused(kind: type[Message]) -> None:
    def swap(message: Message) -> Message:
        header = (message.session, message.round, message.sender)
        return Choices(*header, b"") if kind is not Choices else Transfers(*header, b"")

    with pytest.raises(UnexpectedMessage):
        run(names(2), names(3), deliver=Wire(swap, kind))


def test_damaged_frames_are_refused() -> None:
    with pytest.raises(MalformedMessage):
        decode(b"\xc1")


def finish_with(
    slot_items: Callable[[tuple[bytes, ...]], tuple[bytes, ...]], sender_set: Collection[str] = ("new",)
) -> TwoPartyUnion:
    """A run whose sender queries its own slots and transfers others."""
    theirs, ours = seeded(b"sender"), seeded(b"receiver")
    offered, offer = receiver_offer(SETTING, names(3), ours)
    queried, queries = sender_query(SETTING, sender_set, offer, theirs)
    programmed, programs = receiver_program(offered, queries, ours)
    chose, choices = receiver_choose(programmed, sender_indicate(queried, programs), ours)
    lying = replace(queried, slots=slot_items(queried.slots))
    return receiver_finish(chose, sender_transfer(lying, choices, theirs))


@pytest.mark.parametrize(
    "transferred",
    [
        pad_set(SETTING, ["entity/1"])[0],
        SETTING.dummy,
        b"\x02" + pad_set(SETTING, ["new"])[0][1:],
        pad_set(SETTING, ["new"])[0][:-1] + b"x",
        b"\x01\x00\x01\xff" + bytes(SETTING.item_bytes - 4),
        b"\x01\xff\xff" + b"x" * (SETTING.item_bytes - 3),
    ],
    ids=["held", "dummy", "header", "padding", "no UTF-8", "length"],
)
def test_items_that_no_honest_sender_transfers_are_refused(transferred: bytes) -> None:
    new = pad_set(SETTING, ["new"])[0]
    with pytest.raises(MalformedMessage):
        finish_with(lambda slots: tuple(transferred if item == new else item for item in slots))


def test_an_item_transferred_twice_is_refused() -> None:
    new, other = pad_set(SETTING, ["new", "other"])
    assert finish_with(lambda slots: slots, ["new", "other"]).learnt == ("new", "other")
    with pytest.raises(MalformedMessage):
        finish_with(lambda slots: tuple(new if item == other else item for item in slots), ["new", "other"])


def test_a_phantom_item_of_a_lying_sender_is_taken() -> None:
    new, phantom = pad_set(SETTING, ["new", "phantom"])
    assert finish_with(lambda slots: slots).learnt == ("new",)
    assert finish_with(lambda slots: tuple(phantom if item == new else item for item in slots)).learnt == ("phantom",)


def test_a_receiver_that_lies_gets_the_intersection_too() -> None:
    """Why the docstring says semi-honest: choosing every item, whatever the test said, opens the sender's whole set."""
    theirs, ours = seeded(b"sender"), seeded(b"receiver")
    offered, offer = receiver_offer(SETTING, names(4), ours)
    queried, queries = sender_query(SETTING, names(4), offer, theirs)
    programmed, programs = receiver_program(offered, queries, ours)
    lying = replace(programmed, secrets=tuple(range(SETTING.num_slots)))
    chose, choices = receiver_choose(lying, sender_indicate(queried, programs), ours)
    transfers = sender_transfer(queried, choices, theirs)
    width = SETTING.item_bytes + oblivious_transfer.OVERHEAD_BYTES
    opened = set()
    for slot, choice in enumerate(chose.choices):
        pair = (transfers.sealed[2 * slot * width :][:width], b"")
        opened.add(oblivious_transfer.receive(choice, pair, context=SETTING.context(slot), source="client/a"))
    assert opened - {SETTING.dummy} == set(pad_set(SETTING, names(4)))


# Bins, polynomials and transfers.


def test_the_load_is_the_least_that_the_bound_allows() -> None:
    for cap, num_bins in itertools.product(range(30, 200, 10), (2, 8, 32)):
        load = psu_two_party_table._load(cap, num_bins)

        def overflow(load: int, cap: int = cap, num_bins: int = num_bins) -> Fraction:
            ways = sum(math.comb(cap, held) * (num_bins - 1) ** (cap - held) for held in range(load + 1, cap + 1))
            return Fraction(2 * num_bins * ways, num_bins**cap)

        assert overflow(load) <= Fraction(1, 2**40) < overflow(load - 1)


def test_bins_never_come_near_their_load() -> None:
    setting = replace(SETTING, cap=500)
    items = pad_set(setting, names(500))
    fullest = [
        max(len(each) for each in fill_bins(setting, number.to_bytes(32, "big"), items)) for number in range(100)
    ]
    assert setting.num_bins * setting.load < 8 * 500
    assert setting.load // 3 < max(fullest) < setting.load - 8


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.dictionaries(st.integers(0, PRIME - 1), st.integers(0, PRIME - 1), min_size=1, max_size=9))
def test_interpolation_goes_through_its_points(points: dict[int, int]) -> None:
    polynomial = interpolate(interpolation_rows(list(points)), list(points.values()))
    assert len(polynomial) == len(points)
    assert [evaluate(polynomial, node) for node in points] == list(points.values())
    naive = [sum(value * node**power for power, value in enumerate(polynomial)) % PRIME for node in points]
    assert naive == list(points.values())


def test_equal_nodes_are_refused() -> None:
    with pytest.raises(ValueError, match="invertible"):
        interpolation_rows([5, 7, 5])


@pytest.mark.parametrize("bit", [False, True])
def test_a_transfer_opens_the_chosen_message_only(bit: bool) -> None:
    key = oblivious_transfer.announce(seeded(b"key"))
    choice = oblivious_transfer.choose(key.element, bit, context=b"slot 0", randomness=seeded(b"choice"))
    messages = (b"message 0", b"message 1")
    sealed = oblivious_transfer.transfer(
        key, choice.element, messages, context=b"slot 0", randomness=seeded(b"transfer")
    )
    assert {len(each) for each in sealed} == {len(messages[0]) + oblivious_transfer.OVERHEAD_BYTES}
    assert oblivious_transfer.receive(choice, sealed, context=b"slot 0", source="sender") == messages[bit]
    with pytest.raises(BadCiphertext, match="sender"):
        oblivious_transfer.receive(choice, sealed, context=b"slot 1", source="sender")
    with pytest.raises(BadCiphertext):
        oblivious_transfer.receive(choice, (sealed[1], sealed[0]), context=b"slot 0", source="sender")
    with pytest.raises(BadCiphertext):
        oblivious_transfer.receive(replace(choice, bit=not bit), sealed, context=b"slot 0", source="sender")


def test_transfers_of_different_lengths_are_refused() -> None:
    key = oblivious_transfer.announce(seeded(b"key"))
    with pytest.raises(WrongLength):
        oblivious_transfer.transfer(key, key.element, (b"a", b"bc"), context=b"", randomness=seeded(b"transfer"))
    with pytest.raises(oprf.InvalidElement):
        oblivious_transfer.transfer(key, key.element, (b"a", b"b"), context=b"", randomness=seeded(b"transfer"))


def test_each_step_is_taken_once() -> None:
    """Two answers from one state tell what one keeps back: with both choices of a slot, item and dummy."""
    setting = Setting(session=b"once", round=0, sender="bob", receiver="alice", cap=3, max_bytes=8)
    ours, theirs = seeded(b"alice"), seeded(b"bob")
    offered, offer = receiver_offer(setting, ["x", "y"], ours)
    queried, queries = sender_query(setting, ["y", "z"], offer, theirs)
    programmed, programs = receiver_program(offered, queries, ours)
    indications = sender_indicate(queried, programs)
    chose, choices = receiver_choose(programmed, indications, ours)
    transfers = sender_transfer(queried, choices, theirs)
    assert receiver_finish(chose, transfers).learnt == ("z",)
    for step, again in (
        ("receiver_program", lambda: receiver_program(offered, queries, ours)),
        ("sender_indicate", lambda: sender_indicate(queried, programs)),
        ("receiver_choose", lambda: receiver_choose(programmed, indications, ours)),
        ("sender_transfer", lambda: sender_transfer(queried, choices, theirs)),
        ("receiver_finish", lambda: receiver_finish(chose, transfers)),
    ):
        with pytest.raises(StateReused, match=f"{step} was taken before"):
            again()
