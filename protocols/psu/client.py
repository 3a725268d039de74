"""Private set union, the client: three functions, each from a frozen state and a message to the client's next state.

    client = join(plan, "client0", ["/m/06rf7", "/m/0hr41p6"])
    client, setting, tables = contribute(client, announcement, randomness)      # for each attempt
    names = accept(client, union_list)

Between the last two, secure aggregation under `setting` sums the tables that `tables()` returns.
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
from fkgsec.protocols.core.one_shot import Steps
from fkgsec.protocols.core.prg import Randomness
from fkgsec.protocols.core.rounds import SERVER
from fkgsec.protocols.psu.messages import Announcement, UnionList
from fkgsec.protocols.psu.plan import MAX_REPEATS, TABLE, Plan
from fkgsec.protocols.psu.table import Parameters, draw_multipliers, encode_with, set_items
from fkgsec.protocols.secagg.messages import Message, check_header
from fkgsec.protocols.secagg.setting import Setting


class MissingIdentifiers(ProtocolError):
    """A final list that lacks identifiers of the client: peeling went wrong, or the server lies."""


@dataclass(frozen=True)
class Client:
    """A client's state. `repr` omits its set.

    Attributes:
        identifiers: its set, sorted.
        salts: salts of the attempts that it took part in.
        growths: how often the table grew.
    """

    plan: Plan
    name: str
    identifiers: tuple[str, ...] = field(repr=False)
    steps: Steps = field(repr=False, compare=False)
    salts: tuple[bytes, ...] = ()
    growths: int = 0


def join(plan: Plan, name: str, identifiers: Collection[str]) -> Client:
    """Create a client, and check its identifiers before anything is sent.

    Args:
        name: a party of the plan.
        identifiers: the client's set.

    Raises `SettingError` for a name outside the plan, `BadIdentifier`, `DuplicateIdentifier`.
    """
    if name not in plan.parties:
        raise SettingError(f"client {name!r} is not a party of this union: {plan.parties}")
    set_items(identifiers)
    # Sorted, so that the same set gives the same messages.
    return Client(plan, name, tuple(sorted(identifiers)), Steps(name))


def contribute(
    client: Client, announcement: Message, randomness: Randomness
) -> tuple[Client, Setting, Callable[[], dict[str, np.ndarray]]]:
    """Prepare the client's table for an attempt, and the session of secure aggregation that may sum it.

    Args:
        announcement: the server's `Announcement`.
        randomness: source of the multipliers.

    Returns:
        The client's next state, the setting, and a function that makes the table, uint64 `[num_cells * 7]`. Call it when the
        upload is due: hundreds of waiting clients then have no table in memory.

    Raises:
        ReplayedMessage: another session, an attempt out of turn, a salt that was used before.
        SettingError: a number of cells that the plan does not allow next, or more attempts.
        UnexpectedMessage, UnknownSender: another kind of message, or sender.
    """
    plan, attempt = client.plan, len(client.salts)
    announced = check_header(announcement, Announcement, session=plan.session, round=attempt, senders=(SERVER,))
    if attempt >= plan.max_attempts:
        raise SettingError(f"announcement of attempt {attempt}; the plan has {plan.max_attempts} attempts")
    # The next table grows once, or repeats the size of the last one (`MAX_REPEATS` times in all). A server that could
    # choose freely would make clients upload tables of any size.
    repeated = [client.growths] if 0 < attempt <= client.growths + MAX_REPEATS else []
    growths = (client.growths + min(attempt, 1), *repeated)
    sizes = {plan.num_cells(times): times for times in growths if times <= plan.max_growths}
    if announced.num_cells not in sizes:
        allowed = " or ".join(str(size) for size in sorted(sizes)) or "none"
        raise SettingError(
            f"announcement of attempt {attempt} with {announced.num_cells} cells; the plan has {allowed}"
        )
    # Under one salt, two attempts would use the same cells and the same session of secure aggregation.
    if announced.salt in client.salts:
        raise ReplayedMessage(f"the salt of attempt {attempt} was used before")
    parameters = Parameters(plan.session, announced.salt, announced.num_cells)
    client = replace(client, salts=(*client.salts, announced.salt), growths=sizes[announced.num_cells])
    # Fresh multipliers for each table: the opened sums of two attempts must be independent.
    multipliers = draw_multipliers(client.identifiers, randomness)

    def tables() -> dict[str, np.ndarray]:
        """Make the table, uint64 `[num_cells * 7]`."""
        return {TABLE: encode_with(parameters, client.identifiers, multipliers)}

    return client, plan.setting(parameters, attempt), tables


def accept(client: Client, message: Message) -> tuple[str, ...]:
    """Check the final list, and return the union.

    Args:
        message: the server's `UnionList`.

    Raises `StateReused` for a second list, `MissingIdentifiers`, `MalformedMessage` for a list that is not sorted and distinct,
    `UnexpectedMessage` for a list before the first table, and as `contribute`.
    """
    # One answer only: with many lists, a server could read the client's set off the objections.
    client.steps.mark("accept")
    if not client.salts:
        raise UnexpectedMessage(f"a union list came to {client.name} before any table was requested")
    last = len(client.salts) - 1
    announced = check_header(message, UnionList, session=client.plan.session, round=last, senders=(SERVER,)).identifiers
    if any(first >= second for first, second in pairwise(announced)):
        raise MalformedMessage("the union list is not sorted, or names an identifier twice")
    if not set(client.identifiers).issubset(announced):
        raise MissingIdentifiers(f"the union list lacks identifiers that {client.name} holds")
    return announced
