"""Private set union: its messages, the steps of client and server, and one union with all parties in one process."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from types import MappingProxyType
from typing import NamedTuple

import msgspec
import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protocols import secagg
from protocols.core.errors import (
    DisconnectedGraph,
    MalformedMessage,
    ProtocolError,
    ReplayedMessage,
    SettingError,
    SplitView,
    TooFewParties,
    UnexpectedMessage,
)
from protocols.core.one_shot import Taken
from protocols.core.prg import Randomness, Ring, digest, draw, seeded
from protocols.psu.table import (
    MAX_CELLS,
    SALT_BYTES,
    InconsistentItems,
    MalformedTable,
    Parameters,
    PeelingError,
    cells_for,
    encode,
    peel,
    set_items,
)
from protocols.secagg import SERVER, AnyMessage, Deliver, Message, Setting, Stage, Sum, Vector
from protocols.secagg.messages import UnmaskRequest, check_header

START_CAP = 1024
GROWTH = 4
MAX_ATTEMPTS = 6  # up to a million items from `START_CAP`
MAX_REPEATS = 1  # attempts at a size that was tried before; by chance one or two tables in a hundred fail
_TABLE = "table"


class NothingToHideBehind(ProtocolError):
    """A union of fewer than two clients: the server would learn its set."""


class CohortChanged(ProtocolError):
    """A client left in the middle. `opened` says whether a table of the whole cohort may have been opened before.

    It may have been once shares were asked for: the server then holds every upload, and a share that it did not get from
    its sender it may get from a colluder, or later. `excluded` names those whose messages were at fault, with the reason; clients
    that fell silent are not in it.
    """

    def __init__(self, attempt: int, opened: bool, cause: ProtocolError) -> None:
        advice = (
            "a table of the whole cohort may have been opened, and a union of fewer clients could be differenced with it "
            "to learn what only the missing ones hold: wait for them"
            if opened
            else "no share was asked for, so no table was opened: a new session without the missing ones reveals nothing of them"
        )
        super().__init__(f"attempt {attempt} of the union lost a client ({cause}); {advice}")
        self.opened = opened
        self.excluded = cause.excluded


class DamagedTable(ProtocolError):
    """Tables of a whole cohort that hold something else than items, each time anew. Who put it there cannot be told."""

    def __init__(self, attempts: int, cause: Exception) -> None:
        super().__init__(
            f"{attempts} tables of the union were damaged (the last: {cause}); a client added something else than items (which "
            "one cannot be told from sums), or chance did; try again"
        )


class MissingIdentifiers(ProtocolError):
    """A final list without identifiers that the client holds: a wrong peeling, or a server that lies."""


class Announcement(Message, frozen=True, tag="psu-announcement"):
    """Server to every client: the salt and the number of cells of attempt `round`, counted from 0."""

    salt: bytes
    num_cells: int


class UnionList(Message, frozen=True, tag="psu-union-list"):
    """Server to every client: the union, sorted by code point, as peeled in attempt `round`."""

    identifiers: tuple[str, ...]


_decoder = msgspec.msgpack.Decoder(AnyMessage | Announcement | UnionList)


def decode_message(frame: bytes) -> Message:
    """The message in `frame`: one of this protocol or of secure aggregation. Raises `MalformedMessage`."""
    try:
        return _decoder.decode(frame)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:  # names that are no UTF-8 raise the latter
        raise MalformedMessage(f"{len(frame)} bytes cannot be read as a message: {error}") from error


@dataclass(frozen=True)
class Plan:
    """What all parties of a union agree on before it starts.

    Attributes:
        session: names this union; public, never used twice.
        parties, threshold, identities: as in `secagg.Setting`, over the complete graph: the order of a regular one follows
            from the session, and with it from a salt that the server chooses.
        cap: public bound on the union's items: one for up to 36 bytes of UTF-8, else one for each 16 bytes. A union beyond it
            takes more attempts. None: starts at 1,024. The tables before the last add a third to it, and it may be four
            times larger than one for the right cap.
        max_attempts: tables to try, each four times the one before, or of its size where that was damaged (`MAX_REPEATS`).

    Raises `NothingToHideBehind` for fewer than two parties, `SettingError` for other values that are not allowed.
    """

    session: bytes
    parties: tuple[str, ...]
    threshold: int
    identities: Mapping[str, bytes]
    cap: int | None = None
    max_attempts: int = MAX_ATTEMPTS

    def __post_init__(self) -> None:
        if len(self.parties) < 2:
            raise NothingToHideBehind(f"a union of {len(self.parties)} clients would show the server who holds it all")
        if self.max_attempts < 1:
            raise SettingError(f"max_attempts {self.max_attempts}: at least one is needed")
        self.num_cells(self.max_attempts - 1)
        self.setting(Parameters(self.session, bytes(SALT_BYTES), self.num_cells(0)), 0)

    def num_cells(self, growths: int) -> int:
        """Cells of a table after it grew so many times. Raises `SettingError` past what a table can have."""
        num_cells = cells_for(START_CAP if self.cap is None else self.cap) * GROWTH**growths
        if num_cells > MAX_CELLS:
            raise SettingError(f"attempt {growths} would take {num_cells} cells; at most {MAX_CELLS} are possible")
        return num_cells

    def setting(self, parameters: Parameters, attempt: int) -> Setting:
        """The secure aggregation of one attempt's tables: bound to the salt, and opened for the whole cohort or not."""
        return Setting(
            session=digest("private set union", parameters.session, parameters.salt, parameters.num_cells),
            round=attempt,
            parties=self.parties,
            threshold=self.threshold,
            vectors=(Vector(_TABLE, parameters.length, Ring.MERSENNE61),),
            identities=self.identities,
            min_survivors=len(self.parties),
        )


@dataclass(frozen=True)
class Client:
    """A client's state: its set, the salts of the attempts that it took part in, how often the table grew, and whether it
    answered a list. `repr` leaves the set out.
    """

    plan: Plan
    name: str
    identifiers: tuple[str, ...] = field(repr=False)
    taken: Taken = field(repr=False, compare=False)
    salts: tuple[bytes, ...] = ()
    growths: int = 0


def join(plan: Plan, name: str, identifiers: Collection[str]) -> Client:
    """A client with its set, checked before anything is sent.

    Raises `SettingError` for a name outside the plan, `BadIdentifier`, `DuplicateIdentifier`.
    """
    if name not in plan.parties:
        raise SettingError(f"client {name!r} is not a party of this union: {plan.parties}")
    set_items(identifiers)
    return Client(plan, name, tuple(sorted(identifiers)), Taken(name))  # the same set makes the same messages


def announce(plan: Plan, attempt: int, randomness: Randomness, growths: int | None = None) -> Announcement:
    """Server: the parameters of an attempt, with a fresh salt; `growths`: how often the table grew, None: each time."""
    num_cells = plan.num_cells(attempt if growths is None else growths)
    return Announcement(plan.session, attempt, SERVER, draw(randomness, SALT_BYTES), num_cells)


def contribute(
    client: Client, announcement: Message, randomness: Randomness
) -> tuple[Client, Setting, dict[str, np.ndarray]]:
    """Client: its table for an attempt, and the session of secure aggregation that may sum it.

    Returns:
        The client's next state, the setting, and what to put into `secagg` under it: uint64 `[num_cells * 7]`.

    Raises:
        ReplayedMessage: another session, an attempt out of turn, a salt that was used before.
        SettingError: another number of cells than the plan allows after the last, or more attempts.
        UnexpectedMessage, UnknownSender: another kind of message, or sender.
    """
    plan, attempt = client.plan, len(client.salts)
    told = check_header(announcement, Announcement, session=plan.session, round=attempt, senders=(SERVER,))
    if attempt >= plan.max_attempts:
        raise SettingError(f"announcement of attempt {attempt}; the plan has {plan.max_attempts} attempts")
    repeated = [client.growths] if 0 < attempt <= client.growths + MAX_REPEATS else []
    sizes = {plan.num_cells(growths): growths for growths in (client.growths + min(attempt, 1), *repeated)}
    if told.num_cells not in sizes:
        allowed = " or ".join(str(size) for size in sorted(sizes))
        raise SettingError(f"announcement of attempt {attempt} with {told.num_cells} cells; the plan has {allowed}")
    if told.salt in client.salts:
        raise ReplayedMessage(f"the salt of attempt {attempt} was used before")
    parameters = Parameters(plan.session, told.salt, told.num_cells)
    table = encode(parameters, client.identifiers, randomness)
    client = replace(client, salts=(*client.salts, told.salt), growths=sizes[told.num_cells])
    return client, plan.setting(parameters, attempt), {_TABLE: table}


def open_union(plan: Plan, announcement: Announcement, total: Sum) -> UnionList:
    """Server: the union in the opened sum of an attempt. Raises `PeelingError` and what else `psu_table.peel` raises."""
    parameters = Parameters(plan.session, announcement.salt, announcement.num_cells)
    identifiers = peel(parameters, total.vectors[_TABLE])
    return UnionList(plan.session, announcement.round, SERVER, tuple(identifiers))


def accept(client: Client, message: Message) -> tuple[str, ...]:
    """Client: the union, once everything that it holds was found in it. A client answers one list, and then is done:
    whoever may ask again and again reads its set off the answers.

    Raises `StateReused` for a second list, `MissingIdentifiers`, `MalformedMessage` for a list that is not sorted and distinct,
    `UnexpectedMessage` for one before the first table, and as `contribute`.
    """
    client.taken.mark("accept")
    if not client.salts:
        raise UnexpectedMessage(f"a union list came to {client.name} before any table was asked for")
    last = len(client.salts) - 1
    told = check_header(message, UnionList, session=client.plan.session, round=last, senders=(SERVER,)).identifiers
    if any(first >= second for first, second in pairwise(told)):
        raise MalformedMessage("the union list is not sorted, or names an identifier twice")
    if not set(client.identifiers).issubset(told):
        raise MissingIdentifiers(f"the union list lacks identifiers that {client.name} holds")
    return told


class Union(NamedTuple):
    """The outcome: the union sorted by code point, the tables it took, the cells of the last one; and by client the reason why
    a message of it left it out before any table was opened, so that its identifiers are not in the union.
    """

    identifiers: tuple[str, ...]
    attempts: int
    num_cells: int
    excluded: Mapping[str, str] = MappingProxyType({})


def union(
    sets: Mapping[str, Collection[str]],
    identities: Mapping[str, Ed25519PrivateKey],
    *,
    session: bytes,
    threshold: int,
    randomness: Mapping[str, Randomness],
    deliver: Deliver = secagg.direct,
    cap: int | None = None,
    max_attempts: int = MAX_ATTEMPTS,
    dropouts: Mapping[int, Mapping[str, Stage]] = MappingProxyType({}),
) -> Union:
    """Run one union in one process, every message through `deliver`.

    A client whose message is at fault before any table was opened is left out, and the others begin a new session while they
    are as many as the threshold: nothing was opened that their union could be differenced with. Afterwards it ends the union.

    Args:
        sets: each client's distinct identifiers; may be empty. Its order is the order of the parties.
        identities: each client's signing key.
        randomness: a source for each client and for the server ("server").
        dropouts: for simulations: by attempt (from 0), the clients that stop sending, and from which stage on.
        Others: as in `Plan`.

    Raises:
        NothingToHideBehind, SettingError, BadIdentifier, DuplicateIdentifier: before anything is sent.
        CohortChanged: a client left, or was at fault when it could not be left out any more.
        SplitView: clients were announced different tables.
        PeelingError: no attempt was large enough. DamagedTable: a client added something else than items.
        MissingIdentifiers: a client found its own identifiers missing from the final list.
        Other `ProtocolError`: as secure aggregation raises them.
    """
    excluded: dict[str, str] = {}
    while True:
        present = {name: own for name, own in sets.items() if name not in excluded}
        try:
            outcome = _union_of_cohort(
                present,
                {name: key for name, key in identities.items() if name not in excluded},
                session=digest("private set union without", session, *sorted(excluded)) if excluded else session,
                threshold=threshold,
                randomness=randomness,
                deliver=deliver,
                cap=cap,
                max_attempts=max_attempts,
                dropouts={
                    attempt: {name: stage for name, stage in silent.items() if name in present}
                    for attempt, silent in dropouts.items()
                },
            )
        except CohortChanged as error:
            left = len(present) - len(error.excluded)
            if error.opened or not error.excluded or left < max(2, threshold):
                raise
            excluded |= error.excluded
            continue
        return outcome._replace(excluded=excluded)


def _union_of_cohort(
    sets: Mapping[str, Collection[str]],
    identities: Mapping[str, Ed25519PrivateKey],
    *,
    session: bytes,
    threshold: int,
    randomness: Mapping[str, Randomness],
    deliver: Deliver,
    cap: int | None,
    max_attempts: int,
    dropouts: Mapping[int, Mapping[str, Stage]],
) -> Union:
    """All attempts of one cohort. Raises as `union`, and `CohortChanged` for every client that is lost."""
    public = {name: key.public_key().public_bytes_raw() for name, key in identities.items()}
    plan = Plan(session, tuple(sets), threshold, public, cap, max_attempts)
    if absent := {*plan.parties, SERVER} - set(randomness):
        raise SettingError(f"randomness: a source for each client and the server; missing for {sorted(absent)}")
    client_randomness = {name: randomness[name] for name in plan.parties}
    clients = {name: join(plan, name, sets[name]) for name in plan.parties}
    failure: PeelingError | None = None
    damages: list[Exception] = []
    shares_asked_for = False

    def watched(sender: str, receiver: str, message: Message) -> Message:
        nonlocal shares_asked_for
        shares_asked_for |= isinstance(message, UnmaskRequest)
        return deliver(sender, receiver, message)

    for attempt in range(max_attempts):
        announcement = announce(plan, attempt, randomness[SERVER], attempt - len(damages))
        expected = plan.setting(Parameters(session, announcement.salt, announcement.num_cells), attempt)
        tables: dict[str, dict[str, np.ndarray]] = {}
        for name, client in clients.items():
            told = deliver(SERVER, name, announcement)
            clients[name], setting, tables[name] = contribute(client, told, randomness[name])
            if setting != expected:  # on separate machines, the signatures of secure aggregation would not verify
                raise SplitView(f"{name} was announced another salt than the server's in attempt {attempt}")
        try:
            total = secagg.aggregate(
                expected,
                tables,
                identities,
                randomness=client_randomness,
                deliver=watched,
                dropouts=dropouts.get(attempt, {}),
            )
        except (TooFewParties, DisconnectedGraph) as error:
            raise CohortChanged(attempt, opened=shares_asked_for, cause=error) from error
        try:
            found = open_union(plan, announcement, total)
        except (PeelingError, MalformedTable, InconsistentItems) as error:
            if isinstance(error, PeelingError) and not error.damaged:
                failure = error
                continue
            damages.append(error)
            if len(damages) > MAX_REPEATS or attempt + 1 == max_attempts:
                raise DamagedTable(len(damages), error) from error
            continue
        for name, client in clients.items():
            accept(client, deliver(SERVER, name, found))
        return Union(found.identifiers, attempt + 1, announcement.num_cells)
    assert failure is not None  # max_attempts is at least 1
    raise failure


class Cost(NamedTuple):
    """What a union took: seconds of all parties one after the other, and the bytes of the client that moved most."""

    seconds: float
    upload_bytes: int
    download_bytes: int
    union: Union


def measure(num_identifiers: int, num_clients: int, *, cap: int | None = None, holders: int = 3) -> Cost:
    """Time one union of `num_identifiers` names, each held by `holders` of the clients in turn; messages are serialised.

    Everything runs in this process, one party after the other, so the time is that of all parties together.
    """
    names = [f"client-{i}" for i in range(num_clients)]
    sets = {
        name: [f"/m/{i:08d}" for i in range(num_identifiers) if (place - i) % num_clients < holders]
        for place, name in enumerate(names)
    }
    randomness = {name: seeded(b"measure " + name.encode()) for name in (*names, SERVER)}
    identities = {name: Ed25519PrivateKey.from_private_bytes(randomness[name](32)) for name in names}
    sent, received = dict.fromkeys((*names, SERVER), 0), dict.fromkeys((*names, SERVER), 0)

    def deliver(sender: str, receiver: str, message: Message) -> Message:
        frame = secagg.encode(message)
        sent[sender] += len(frame)
        received[receiver] += len(frame)
        return decode_message(frame)

    start = time.perf_counter()
    result = union(
        sets,
        identities,
        session=b"measure",
        threshold=secagg.safe_threshold(num_clients),
        randomness=randomness,
        deliver=deliver,
        cap=num_identifiers if cap is None else cap,
    )
    seconds = time.perf_counter() - start
    return Cost(seconds, max(sent[name] for name in names), max(received[name] for name in names), result)
