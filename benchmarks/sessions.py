"""Costs of secure aggregation sessions by size: CPU seconds of all parties, and seconds and bytes of a client.

    python -m benchmarks.sessions --out results/protocols

All parties run in this process, one after the other, with the functions of a deployment; every message is serialized. A share of
the clients drops out after sharing secrets, so that their masks must be opened.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import typer
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fkgsec.experiments.reporting.sheets import Column, Sheet, markdown_lines
from fkgsec.protocols.core.prg import Ring, derive, seeded
from fkgsec.protocols.secagg import SERVER, Message, Setting, Vector, client, decode, encode, safe_threshold, server
from fkgsec.protocols.secagg.bounds import require_small_risk

LENGTH = 100_000
DROPOUT = 0.01


class Case(msgspec.Struct, frozen=True):
    """One session: number of clients, neighbors of each (None: all others), and colluders that the graph withstands."""

    num_clients: int
    neighbours: int | None
    colluders: int = 0


CASES = (Case(10, None), Case(100, None), Case(100, 20, 5), Case(1000, 20, 50))


class Cost(msgspec.Struct, frozen=True):
    """Costs of one session.

    Attributes:
        num_clients, neighbours, threshold, length, num_dropped: of the session.
        cpu_s: of all parties.
        server_s: of the server.
        client_s, slowest_client_s: of a client, mean and maximum.
        bytes_up, bytes_down: maximum over clients.
        assumption: assumptions and bounds of the graph; empty for the complete graph.
    """

    num_clients: int
    neighbours: int | None
    threshold: int
    length: int
    num_dropped: int
    cpu_s: float
    server_s: float
    client_s: float
    slowest_client_s: float
    bytes_up: int
    bytes_down: int
    assumption: str


def measure(case: Case, length: int = LENGTH) -> Cost:
    """Run one session and check its sum.

    Args:
        case: the session.
        length: of the vector.
    """
    names = tuple(f"client{number}" for number in range(case.num_clients))
    threshold = safe_threshold(case.num_clients if case.neighbours is None else case.neighbours + 1)
    risk = None
    if case.neighbours is not None:
        # A sparse graph is only secure for enough neighbors; refuse settings that are not.
        risk = require_small_risk(
            case.num_clients, case.neighbours, threshold=threshold, colluders=case.colluders, dropout=DROPOUT
        )
    identities = {name: Ed25519PrivateKey.from_private_bytes(derive(b"bench", name)) for name in names}
    setting = Setting(
        session=b"bench",
        round=1,
        parties=names,
        threshold=threshold,
        vectors=(Vector("values", length, Ring.UINT32),),
        identities={name: key.public_key().public_bytes_raw() for name, key in identities.items()},
        neighbours=case.neighbours,
    )
    # These clients share secrets and then send no masked vector.
    silent = set(names[: int(DROPOUT * case.num_clients)])
    values = np.arange(length, dtype=np.uint32)
    meter = _Meter(names)
    sources = {name: seeded(name.encode()) for name in names}
    states: dict[str, Any] = {}

    def answers(sent: dict[str, Any], step: Callable[..., Any], but: frozenset[str] | set[str] = frozenset()):
        """Yield the clients' serialized messages; the server pulls them one after the other."""
        for name, message in sent.items():
            arrived = meter.crossed(SERVER, name, message)
            if name not in but:
                states[name], reply = meter.timed(name, step, name, arrived)
                yield meter.crossed(name, SERVER, reply)

    # Each step's replies are the next step's requests.
    due = dict.fromkeys(names, None)
    collected: Any = setting
    for step, collect, but in (
        (
            lambda name, _: client.advertise(setting, name, identities[name], sources[name]),
            server.collect_advertisements,
            (),
        ),
        (lambda name, message: client.share(states[name], message, sources[name]), server.collect_shares, ()),
        (lambda name, message: client.receive(states[name], message), server.collect_receipts, ()),
        (lambda name, message: client.mask(states[name], message, {"values": values}), server.collect_uploads, silent),
        (lambda name, message: client.confirm(states[name], message), server.collect_confirmations, ()),
    ):
        collected, due = meter.timed(SERVER, collect, collected, answers(due, step, set(but)))
    last = answers(due, lambda name, message: (None, client.unmask(states[name], message)))
    total = meter.timed(SERVER, server.open_sum, collected, last)
    assert len(total.survivors) == case.num_clients - len(silent)
    # All clients send the same vector, so the sum is known.
    assert (total.vectors["values"] == values * np.uint32(len(total.survivors))).all()
    meter.timed(SERVER, lambda: None)  # counts the time so far
    clients = [meter.seconds[name] for name in names]
    return Cost(
        case.num_clients,
        case.neighbours,
        threshold,
        length,
        len(silent),
        round(sum(meter.seconds.values()), 2),
        round(meter.seconds[SERVER], 2),
        round(sum(clients) / len(clients), 4),
        round(max(clients), 4),
        max(meter.up[name] for name in names),
        max(meter.down[name] for name in names),
        f"{case.colluders} colluders, dropout {DROPOUT:g}: {risk.describe()}" if risk else "",
    )


class _Meter:
    """CPU seconds and bytes by party. In nested calls, the inner call's time is not part of the outer one's."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.seconds = dict.fromkeys((*names, SERVER), 0.0)
        self.up = dict.fromkeys((*names, SERVER), 0)
        self.down = dict.fromkeys((*names, SERVER), 0)
        self._running = SERVER
        self._since = time.process_time()

    def timed(self, party: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function on the account of a party.

        Args:
            party: the party.
            function: to call.
            arguments: of the function.
        """
        before = self._switch(party)
        try:
            return function(*arguments)
        finally:
            self._switch(before)

    def crossed(self, sender: str, receiver: str, message: Message | None) -> Message | None:
        """Serialize, count and deserialize a message.

        Args:
            sender, receiver: parties.
            message: None: nothing is sent.
        """
        if message is None:
            return None
        frame = encode(message)
        self.up[sender] += len(frame)
        self.down[receiver] += len(frame)
        return decode(frame)

    def _switch(self, party: str) -> str:
        # Charge the time since the last switch to the running party.
        now = time.process_time()
        self.seconds[self._running] += now - self._since
        before, self._running, self._since = self._running, party, now
        return before


def markdown(costs: list[Cost]) -> str:
    """Return the table of `results/protocols/README.md`.

    Args:
        costs: one per session.
    """
    heads = (
        "clients", "neighbours", "threshold", "dropped", "CPU s, all parties", "of these the server",
        "CPU s a client, mean (most)", "bytes up a client", "beyond its vector", "bytes down",
    )  # fmt: skip
    rows = [
        (
            f"{cost.num_clients:,}", cost.neighbours or "all", cost.threshold, cost.num_dropped, f"{cost.cpu_s:.1f}",
            f"{cost.server_s:.1f}", f"{cost.client_s:.3f} ({cost.slowest_client_s:.3f})", f"{cost.bytes_up:,}",
            f"{cost.bytes_up - 4 * cost.length:,}", f"{cost.bytes_down:,}",
        )
        for cost in costs
    ]  # fmt: skip
    return "\n".join(markdown_lines(Sheet("", tuple(map(Column, heads)), tuple(rows))))


def main(
    out: Annotated[Path | None, typer.Option(help="folder for sessions.json; none: only print")] = None,
    length: Annotated[int, typer.Option(help="elements of a vector, uint32")] = LENGTH,
) -> None:
    """Measure, print the table, and write it as JSON."""
    costs = [measure(case, length) for case in CASES]
    print(markdown(costs))
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / "sessions.json").write_bytes(msgspec.json.format(msgspec.json.encode(costs), indent=1) + b"\n")


if __name__ == "__main__":
    typer.run(main)
