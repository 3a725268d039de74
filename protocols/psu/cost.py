"""Cost of a private set union in seconds and bytes.

    cost = measure(15_000, num_clients=10)
    cost.seconds, cost.upload_bytes, cost.download_bytes

All parties run in this process, one after the other: the seconds are those of all together.
"""

from __future__ import annotations

import time
from typing import NamedTuple

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fkgsec.protocols.core.prg import seeded
from fkgsec.protocols.core.rounds import SERVER, Tally, run
from fkgsec.protocols.psu.client import join
from fkgsec.protocols.psu.plan import Plan
from fkgsec.protocols.psu.rounds import Union, client_round, server_round
from fkgsec.protocols.secagg.setting import safe_threshold


class Cost(NamedTuple):
    """Cost of a union: seconds of all parties one after the other, and the bytes of the client that moved most."""

    seconds: float
    upload_bytes: int
    download_bytes: int
    union: Union


def measure(num_identifiers: int, num_clients: int, *, cap: int | None = None, holders: int = 3) -> Cost:
    """Time one union of `num_identifiers` names, each held by `holders` of the clients in turn.

    Args:
        cap: as in `Plan`; None: the number of identifiers.
    """
    names = [f"client-{i}" for i in range(num_clients)]
    sets = {
        name: [f"/m/{i:08d}" for i in range(num_identifiers) if (place - i) % num_clients < holders]
        for place, name in enumerate(names)
    }
    randomness = {name: seeded(b"measure " + name.encode()) for name in (*names, SERVER)}
    identities = {name: Ed25519PrivateKey.from_private_bytes(randomness[name](32)) for name in names}
    public = {name: key.public_key().public_bytes_raw() for name, key in identities.items()}
    tally = Tally()
    start = time.perf_counter()
    cap = num_identifiers if cap is None else cap
    plan = Plan(b"measure", tuple(names), safe_threshold(num_clients), public, cap)
    clients = {name: client_round(join(plan, name, sets[name]), identities[name], randomness[name]) for name in names}
    result = run(server_round(plan, randomness[SERVER]), clients, tally).result
    seconds = time.perf_counter() - start
    return Cost(seconds, max(tally.sent[name] for name in names), max(tally.received[name] for name in names), result)
