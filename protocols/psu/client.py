"""Private set union, the client: three functions, each from a frozen state and a message to what the client does next.

    client = join(plan, "client0", ["/m/06rf7", "/m/0hr41p6"])
    client, setting, tables = contribute(client, announcement, randomness)      # for each attempt
    names = accept(client, union_list)

Between the last two, secure aggregation under `setting` sums what `tables()` gives.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from fkgsec.protocols.core.errors import (
    MalformedMessage,
    ProtocolError,
    ReplayedMessage,
    SettingError,
    UnexpectedMessage,
)
from fkgsec.protocols.core.one_shot import Taken
from fkgsec.protocols.core.prg import Randomness
from fkgsec.protocols.core.rounds import SERVER
from fkgsec.protocols.psu.messages import Announcement, UnionList
from fkgsec.protocols.psu.plan import MAX_REPEATS, TABLE, Plan
from fkgsec.protocols.psu.table import Parameters, draw_multipliers, encode_with, set_items
from fkgsec.protocols.secagg.messages import Message, check_header
from fkgsec.protocols.secagg.setting import Setting


class MissingIdentifiers(ProtocolError):
    """A final list without identifiers that the client holds: a wrong peeling, or a server that lies."""


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


def contribute(
    client: Client, announcement: Message, randomness: Randomness
) -> tuple[Client, Setting, Callable[[], dict[str, np.ndarray]]]:
    """Client: its table for an attempt, and the session of secure aggregation that may sum it.

    Returns:
        The client's next state, the setting, and what makes the table to put into `secagg` under it, uint64 `[num_cells * 7]`,
        when its upload is due: hundreds of clients that wait hold none.

    Raises:
        ReplayedMessage: another session, an attempt out of turn, a salt that was used before.
        SettingError: another number of cells than the plan allows after the last, or more attempts.
        UnexpectedMessage, UnknownSender: another kind of message, or sender.
    """
    plan, attempt = client.plan, len(client.salts)
    announced = check_header(announcement, Announcement, session=plan.session, round=attempt, senders=(SERVER,))
    if attempt >= plan.max_attempts:
        raise SettingError(f"announcement of attempt {attempt}; the plan has {plan.max_attempts} attempts")
    repeated = [client.growths] if 0 < attempt <= client.growths + MAX_REPEATS else []
    growths = (client.growths + min(attempt, 1), *repeated)
    sizes = {plan.num_cells(times): times for times in growths if times <= plan.max_growths}
    if announced.num_cells not in sizes:
        allowed = " or ".join(str(size) for size in sorted(sizes)) or "none"
        raise SettingError(
            f"announcement of attempt {attempt} with {announced.num_cells} cells; the plan has {allowed}"
        )
    if announced.salt in client.salts:
        raise ReplayedMessage(f"the salt of attempt {attempt} was used before")
    parameters = Parameters(plan.session, announced.salt, announced.num_cells)
    client = replace(client, salts=(*client.salts, announced.salt), growths=sizes[announced.num_cells])
    multipliers = draw_multipliers(client.identifiers, randomness)

    def tables() -> dict[str, np.ndarray]:
        return {TABLE: encode_with(parameters, client.identifiers, multipliers)}

    return client, plan.setting(parameters, attempt), tables


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
    announced = check_header(message, UnionList, session=client.plan.session, round=last, senders=(SERVER,)).identifiers
    if any(first >= second for first, second in pairwise(announced)):
        raise MalformedMessage("the union list is not sorted, or names an identifier twice")
    if not set(client.identifiers).issubset(announced):
        raise MissingIdentifiers(f"the union list lacks identifiers that {client.name} holds")
    return announced
