"""A local address at which a fkgsec process serves its Flower process.

    with Door(Path("parties/berlin/door/party.address")) as door:
        attend(door, party.answer, say=print)                   # answer a SuperNode's ClientApp

Only their owner can use the socket and the address file (and a container with their folder).
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from fkgsec.errors import FkgsecError, RunError
from fkgsec.experiments.deploy.flower.inside.fkgsec_relay import wire
from fkgsec.experiments.runs.writing import write_atomically
from fkgsec.protocols.core.errors import ProtocolError
from fkgsec.protocols.core.rounds import Silence

_LONGEST_SOCKET = 100
"""Length of a unix socket's path that every system allows."""
_GREETING_S, _GREETING_BYTES = 10.0, 1024
"""Limits of a greeting, which has only a token: the sender may be a stranger."""
_PARCEL_S = 60.0
"""Seconds in which a ClientApp must send its request, or take its reply. 2 GiB cross a local socket in far less."""
Answer = Callable[[bytes], bytes | Silence]
Say = Callable[[str], None]


class Door:
    """Listens at the address that it writes to a file."""

    def __init__(self, address: Path) -> None:
        self._address, self._token = address.absolute(), secrets.token_hex(32)
        self._socket = self._address.with_suffix(".sock")
        self._listening: socket.socket | None = None

    def __enter__(self) -> Self:
        """Listen, and write the address file. Raises `RunError`."""
        # A unix socket has file permissions. If the path is too long for one, use the loopback interface and the token.
        fits = len(os.fsencode(self._socket)) <= _LONGEST_SOCKET and hasattr(socket, "AF_UNIX")
        try:
            listening = self._unix() if fits else socket.create_server(("127.0.0.1", 0))
            listening.listen()
            place = {"socket": self._socket.name} if fits else {"socket": "", "port": listening.getsockname()[1]}
            with _private_files():
                write_atomically(self._address, json.dumps(place | {"token": self._token}).encode())
        except OSError as error:
            raise RunError(f"{self._address}: cannot listen there ({error.strerror})") from error
        self._listening = listening
        return self

    def _unix(self) -> socket.socket:
        self._socket.unlink(missing_ok=True)
        listening = socket.socket(socket.AF_UNIX)
        try:
            with _private_files():
                listening.bind(str(self._socket))
        except OSError:
            listening.close()
            raise
        return listening

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._listening is not None
        self._listening.close()
        for path in (self._address, self._socket):
            with contextlib.suppress(OSError):
                path.unlink()

    def accept(self, limit_s: float | None = None) -> socket.socket:
        """Return the stream of a process that knows the token; turn others away.

        Args:
            limit_s: seconds to wait; None: forever.

        Raises:
            TimeoutError: nobody came.
        """
        assert self._listening is not None
        deadline = None if limit_s is None else time.monotonic() + limit_s
        while True:
            self._listening.settimeout(None if deadline is None else max(deadline - time.monotonic(), 0.0))
            try:
                stream, _ = self._listening.accept()
            # With a timeout of 0, no waiting process raises this error.
            except BlockingIOError as error:
                raise TimeoutError from error
            with contextlib.suppress(wire.WireError):
                greeting, _ = wire.receive(stream, _GREETING_S, most_header=_GREETING_BYTES, most_body=0)
                token = greeting.get("token")
                # A comparison in constant time, so that timing does not reveal the token.
                if isinstance(token, str) and hmac.compare_digest(token.encode(errors="replace"), self._token.encode()):
                    return stream
            stream.close()
            if deadline is not None and time.monotonic() > deadline:
                raise TimeoutError


@contextlib.contextmanager
def _private_files() -> Iterator[None]:
    # Files and sockets are created with mode 600, not changed to it afterwards.
    before = os.umask(0o177)
    try:
        yield
    finally:
        os.umask(before)


def attend(door: Door, answer: Answer, say: Say) -> None:
    """Answer requests until the process is stopped.

    Args:
        answer: the party's.
        say: gets the errors, which the server must not see.
    """
    while True:
        with door.accept() as stream:
            try:
                header, frame = wire.receive(stream, _PARCEL_S)
                silence, reply = "", b""
                try:
                    content = answer(frame)
                    silence, reply = (content.reason, b"") if isinstance(content, Silence) else ("", content)
                except (FkgsecError, ProtocolError) as error:
                    say(f"{header.get('stage', '')}: {error}")
                    # The text of an error may reveal data or paths, so the server gets only its class.
                    silence = f"refused ({type(error).__name__}); the party's own process says why"
                wire.send(stream, {"silence": silence}, reply, _PARCEL_S)
            except wire.WireError as error:
                say(f"a request was left unanswered: {error}")
