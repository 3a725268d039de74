"""The network of a deployed server: requests to parties over Flower.

    with FlowerLink(Path("consortium/server"), say=print) as link:
        link.wait_for(["client/berlin", "client/paris"])
        for party, reply in link.ask("upload", {"client/berlin": b"...", "client/paris": b"..."}):   # in this order
            ...

A run of Flower is one ServerApp, which the SuperLink starts and which connects to this process for frames to send. If it ends,
because the SuperLink was killed or restarted, another one is started once a SuperLink answers. It gets the unanswered requests
under the same numbers, and a party repeats its reply to a number with the same bytes.
"""

from __future__ import annotations

import secrets
import select
import socket
import subprocess
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from fkgsec.errors import RunError
from fkgsec.experiments.deploy import TIMEOUT_S
from fkgsec.experiments.deploy.flower.inside.fkgsec_relay import wire
from fkgsec.experiments.deploy.flower.installed import command, complaint, environment
from fkgsec.experiments.deploy.flower.local import Door
from fkgsec.experiments.deploy.flower.processes import connect_to
from fkgsec.experiments.deploy.layout import CONNECTION, ServerFolder
from fkgsec.federation.messages import client_party
from fkgsec.protocols.core.rounds import NOTHING, Silence

_START_S, _AGAIN_S, _LOOK_S, _RETURN_S = 120.0, 2.0, 1.0, 120.0


class _Request(NamedTuple):
    number: str
    stage: str
    party: str
    frame: bytes


class FlowerLink:
    """The parties of a consortium, reached through its SuperLink."""

    def __init__(
        self, folder: Path, *, timeout_s: float = TIMEOUT_S, say: Callable[[str], None] = lambda line: None
    ) -> None:
        """`timeout_s`: limit for a reply, and for a restart of the SuperLink. `say`: gets progress messages."""
        self._folder, self._timeout_s, self._say = ServerFolder(folder), timeout_s, say
        self._keys = {client_party(name): key for name, key in self._folder.public_keys().items()}
        self._door = Door(self._folder.address)
        self._stream: socket.socket | None = None
        self._session, self._count = secrets.token_hex(8), 0

    def __enter__(self) -> Self:
        self._door.__enter__()
        try:
            connect_to(self._folder)
            self._connect()
        except BaseException:
            self._door.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._stream is not None:
            # The ServerApp ends when the stream does, and with it Flower's run.
            self._stream.close()
        self._door.__exit__(kind, error, trace)

    def wait_for(self, parties: Collection[str]) -> None:
        """Wait until the SuperNodes of all these parties are online.

        Args:
            parties: names in messages.

        Raises:
            RunError: some are missing after the limit.
        """
        if missing := self._await_nodes(parties, self._timeout_s):
            raise RunError(f"the SuperNodes of {', '.join(missing)} are not online after {self._timeout_s:.0f} s")

    def ask(self, stage: str, requests: Mapping[str, bytes]) -> Iterator[tuple[str, bytes | Silence]]:
        """Send all requests now; yield the replies in this order. Read them before the next `ask`.

        A party without a reply within the limit, or without a SuperNode or process, is a `Silence` with the reason.

        Args:
            stage: for messages to the user. requests: by party.
        """
        numbered = []
        for party, frame in requests.items():
            self._count += 1
            numbered.append(_Request(f"{self._session}-{self._count}", stage, party, frame))
        replies: dict[str, bytes | Silence] = {}
        self._post(numbered, replies)
        return self._replies(numbered, replies, time.monotonic() + self._timeout_s)

    def _replies(
        self, requests: Sequence[_Request], replies: dict[str, bytes | Silence], deadline: float
    ) -> Iterator[tuple[str, bytes | Silence]]:
        for request in requests:
            while request.number not in replies:
                try:
                    arrived = self._arrived(deadline)
                except wire.WireError:
                    # The ServerApp ended: send the unanswered requests to a new one, under the same numbers. Parties repeat
                    # their replies.
                    self._post([other for other in requests if other.number not in replies], replies, lost=True)
                    deadline = time.monotonic() + self._timeout_s
                    continue
                if arrived is None:
                    replies[request.number] = Silence(f"no reply within {self._timeout_s:.0f} s")
                else:
                    replies.setdefault(*arrived)
            yield request.party, replies[request.number]

    def _arrived(self, deadline: float) -> tuple[str, bytes | Silence] | None:
        """Return number and content of the next reply; None after the deadline. Raises `wire.WireError`."""
        assert self._stream is not None
        while select.select([self._stream], [], [], max(deadline - time.monotonic(), 0))[0]:
            header, frame = wire.receive(self._stream)
            if header.get("kind") == "reply":
                return header["id"], Silence(header["silence"]) if header["silence"] else frame or NOTHING
        return None

    def _post(self, requests: Sequence[_Request], replies: dict[str, bytes | Silence], *, lost: bool = False) -> None:
        """Send requests to the ServerApp, or to a new one if it was or gets `lost`.

        A party is silent if its SuperNode is not online. SuperNodes need a while to notice that a SuperLink is back.
        """
        while True:
            if lost:
                self._connect()
                self._await_nodes({request.party for request in requests}, _RETURN_S)
            try:
                nodes = self._nodes()
                for request in requests:
                    if request.party not in nodes:
                        replies[request.number] = Silence("its SuperNode is not online")
                    else:
                        self._send(self._header(request, nodes[request.party]), request.frame)
            except wire.WireError:
                lost = True
                continue
            return

    def _await_nodes(self, parties: Collection[str], limit_s: float) -> list[str]:
        """Wait until all SuperNodes are online, or for `limit_s` seconds; return the missing parties."""
        deadline, reported = time.monotonic() + limit_s, None
        while True:
            try:
                missing = sorted(set(parties) - set(self._nodes()))
            except wire.WireError:
                self._connect()
                continue
            if not missing or time.monotonic() > deadline:
                return missing
            if missing != reported:
                self._say(f"waiting for the SuperNodes of {', '.join(missing)}")
                reported = missing
            time.sleep(_LOOK_S)

    def _nodes(self) -> dict[str, int]:
        """Return the numbers of the SuperNodes that are online, by party. Raises `wire.WireError`."""
        self._send({"kind": "nodes"})
        assert self._stream is not None
        # A late reply of an earlier request may come first.
        while True:
            header, _ = wire.receive(self._stream)
            if header.get("kind") == "nodes":
                online = header["online"]
                return {party: online[key] for party, key in self._keys.items() if key in online}

    def _send(self, header: dict[str, object], frame: bytes = b"") -> None:
        if self._stream is None:
            raise wire.WireError("there is no ServerApp")
        wire.send(self._stream, header, frame)

    def _header(self, request: _Request, node: int) -> dict[str, object]:
        return {
            "kind": "ask",
            "id": request.number,
            "stage": request.stage,
            "node": node,
            "ttl": self._timeout_s + _START_S,
        }

    def _connect(self) -> None:
        """Start a run of Flower and wait for its ServerApp. Raises `RunError` after the limit."""
        if self._stream is not None:
            self._stream.close()
            self._say("the SuperLink went away; waiting for it to come back")
        self._stream, deadline, reported = None, time.monotonic() + self._timeout_s, None
        while self._stream is None:
            error = self._start()
            if error is None:
                try:
                    self._stream = self._door.accept(_START_S)
                except TimeoutError:
                    error = f"it started no ServerApp within {_START_S:.0f} s"
            if error is not None:
                if time.monotonic() > deadline:
                    raise RunError(f"the SuperLink does not take the run: {error}")
                if error != reported:
                    self._say(f"waiting for the SuperLink: {error}")
                    reported = error
                time.sleep(_AGAIN_S)

    def _start(self) -> str | None:
        """Submit the app; what went wrong in a line, or None."""
        done = subprocess.run(
            [command("flwr"), "run", str(self._folder.app.absolute()), CONNECTION],
            env=environment(self._folder.flower),
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
        )
        return complaint(done)
