"""Private set union as a pair of generators (`fkgsec.protocols.core.rounds`): the server's round and a client's.

    clients = {party: client_round(join(plan, party, sets[party]), keys[party], randomness[party]) for party in plan.parties}
    outcome = run(server_round(plan, server_randomness), clients)
    outcome.result.identifiers, outcome.clients["client0"]                      # the union, at the server and at a client

Each attempt has the stages of secure aggregation; the announcement is the request of "advertise". The last stage is "union".
"""

from __future__ import annotations

from typing import NamedTuple

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fkgsec.protocols.core.errors import DisconnectedGraph, MalformedMessage, TooFewParties
from fkgsec.protocols.core.prg import Randomness
from fkgsec.protocols.core.rounds import NOTHING, Ask, ClientRound, Result, ServerRound, Silence
from fkgsec.protocols.psu.client import Client, accept, contribute
from fkgsec.protocols.psu.messages import Announcement, UnionList, decode_message
from fkgsec.protocols.psu.plan import MAX_REPEATS, Plan
from fkgsec.protocols.psu.server import CohortChanged, DamagedTable, UnionTooLarge, announce, open_union
from fkgsec.protocols.psu.table import InconsistentItems, MalformedTable, Parameters, PeelingError
from fkgsec.protocols.secagg import rounds as secagg_rounds
from fkgsec.protocols.secagg.messages import encode
from fkgsec.protocols.secagg.server import Sum


class Union(NamedTuple):
    """Outcome: the union sorted by code point, the number of tables it took, and the cells of the last one."""

    identifiers: tuple[str, ...]
    attempts: int
    num_cells: int


def server_round(plan: Plan, randomness: Randomness) -> ServerRound[Union]:
    """Run the server's side: compute the union of all clients' identifiers, and send it to each of them.

    Args:
        randomness: source of the salts.

    Raises:
        CohortChanged: a client left, or a message of it was at fault.
        UnionTooLarge: no table of the plan was large enough. DamagedTable: a client added something other than items.
        Other `ProtocolError`: as secure aggregation raises them.
    """
    damages: list[Exception] = []
    stages: set[str] = set()
    for attempt in range(plan.max_attempts):
        announcement = announce(plan, attempt, randomness, attempt - len(damages))
        is_last = attempt + 1 == plan.max_attempts
        try:
            total = yield from _noting(stages, _summing(plan, announcement))
        except (TooFewParties, DisconnectedGraph) as error:
            raise CohortChanged(attempt, opened="unmask" in stages, cause=error) from error
        try:
            union = open_union(plan, announcement, total)
        except (PeelingError, MalformedTable, InconsistentItems) as error:
            # Too small: the next table grows. All clients take part again, with a fresh salt and fresh multipliers.
            if isinstance(error, PeelingError) and not error.damaged:
                if is_last or attempt - len(damages) == plan.max_growths:
                    raise UnionTooLarge(announcement.num_cells, plan.cap, error) from error
                continue
            # Damaged, or items met by chance: try once more at the same size. A larger table would not help.
            damages.append(error)
            # Random values all over the table show that a client filled it; another salt would not help.
            is_filled = isinstance(error, PeelingError) and error.filled
            if is_filled or len(damages) > MAX_REPEATS or is_last:
                raise DamagedTable(len(damages), error) from error
            continue
        replies = yield Ask("union", dict.fromkeys(plan.parties, encode(union)))
        for party, reply in replies:
            if isinstance(reply, Silence):
                raise MalformedMessage(f"the union did not reach {party}: {reply.reason}")
        return Union(union.identifiers, attempt + 1, announcement.num_cells)
    raise AssertionError("the last attempt returns or raises")


def client_round(client: Client, identity: Ed25519PrivateKey, randomness: Randomness) -> ClientRound[tuple[str, ...]]:
    """Run a client's side: return the union, after checking that it contains the client's identifiers.

    Args:
        client: from `client.join`, which checks its identifiers before anything is sent.
        identity: its signing key, whose public key the plan pins.
        randomness: source of multipliers, keys and nonces.

    Raises the `ProtocolError` of `contribute`, `accept` and of secure aggregation if the server is at fault.
    """
    request = yield NOTHING
    while True:
        message = decode_message(request)
        if isinstance(message, UnionList):
            return accept(client, message)
        client, setting, tables = contribute(client, message, randomness)
        request = yield from secagg_rounds.client_round(setting, client.name, identity, randomness, tables)


def _summing(plan: Plan, announcement: Announcement) -> ServerRound[Sum]:
    """Make one attempt: the announcement and the secure sum of the tables made for it."""
    parameters = Parameters(plan.session, announcement.salt, announcement.num_cells)
    opening = dict.fromkeys(plan.parties, encode(announcement))
    return secagg_rounds.server_round(plan.setting(parameters, announcement.round), opening=opening)


def _noting(stages: set[str], steps: ServerRound[Result]) -> ServerRound[Result]:
    """Run the same round, and add the stages it reaches to `stages`."""
    try:
        ask = next(steps)
        while True:
            stages.add(ask.stage)
            replies = yield ask
            ask = steps.send(replies)
    except StopIteration as end:
        return end.value
