"""Private set union with all its parties in one process.

    found = union({"a": ["/m/06rf7"], "b": ["/m/0hr41p6"]}, keys, session=b"session", threshold=2, randomness=sources)
    found.identifiers, found.excluded

A protocol that carries its own frames takes `psu.server_round` and `client_round` and runs them with
`fkgsec.protocols.core.rounds`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fkgsec.protocols import MAX_ATTEMPTS, secagg
from fkgsec.protocols.core.errors import SettingError
from fkgsec.protocols.core.prg import Randomness
from fkgsec.protocols.core.rounds import SERVER, run
from fkgsec.protocols.psu.client import join
from fkgsec.protocols.psu.messages import decode_message
from fkgsec.protocols.psu.plan import Plan
from fkgsec.protocols.psu.rounds import Union, client_round, server_round
from fkgsec.protocols.psu.server import CohortChanged
from fkgsec.protocols.secagg import Stage
from fkgsec.protocols.secagg.session import Deliver, framed, silencing


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
    """Run a union of all parties in one process: `server_round` and `client_round` under `fkgsec.protocols.core.rounds.run`.

    A client whose message is at fault before any table was opened is left out, and the others begin a new session while they
    are as many as the threshold: nothing was opened that their union could be differenced with. Afterwards it ends the union.

    Args:
        sets: each client's distinct identifiers; may be empty. Its order is the order of the parties.
        identities: each client's signing key.
        randomness: a source for each client and for the server ("server").
        deliver: as in `secagg.aggregate`; takes the announcements and the final list too.
        dropouts: for simulations: by attempt (from 0), the clients that stop sending, and from which stage on.
        Others: as in `Plan`.

    Raises:
        NothingToHideBehind, SettingError, BadIdentifier, DuplicateIdentifier: before anything is sent.
        MissingIdentifiers: a client found its own identifiers missing from the final list.
        Others: as `server_round`; `CohortChanged` when a client cannot be left out any more.
    """
    public = {name: key.public_key().public_bytes_raw() for name, key in identities.items()}
    whole = Plan(session, tuple(sets), threshold, public, cap, max_attempts)
    if absent := {*whole.parties, SERVER} - set(randomness):
        raise SettingError(f"randomness: a source for each client and the server; missing for {sorted(absent)}")
    crossing = framed(deliver, decode_message)
    if dropouts:
        crossing = silencing(crossing, lambda frame: dropouts.get(decode_message(frame).round, {}))
    excluded: dict[str, str] = {}
    while True:
        plan = whole.without(excluded) if excluded else whole
        clients = {
            name: client_round(join(plan, name, sets[name]), identities[name], randomness[name])
            for name in plan.parties
        }
        try:
            outcome = run(server_round(plan, randomness[SERVER]), clients, crossing).result
        except CohortChanged as error:
            left = len(plan.parties) - len(error.excluded)
            if error.opened or not error.excluded or left < max(2, threshold):
                raise
            excluded |= error.excluded
            continue
        return outcome._replace(excluded=excluded)
