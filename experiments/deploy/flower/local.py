"""A local address where a Flower process finds the fkgsec process that it works for.

    with Door(Path("parties/berlin/door/party.address")) as door:
        stream = door.accept()                                  # of whoever has read the address file
        header, frame = wire.receive(stream)

The socket and the file are for their owner alone (and for a container that is given their folder).
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import secrets
import socket
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from fkgsec.errors import RunError
from fkgsec.experiments.deploy.flower.inside.fkgsec_relay import wire
from fkgsec.experiments.runs.writing import write_atomically

_LONGEST_SOCKET = 100
"""Bytes of a path that every system takes for a unix socket."""
_GREETING_S, _GREETING_BYTES = 10.0, 1024
"""Limits of a greeting, which holds a token and nothing else: whoever sends it may be a stranger."""


class Door:
    """Listens where an address file says, while it is open."""

    def __init__(self, address: Path) -> None:
        self._address, self._token = address.absolute(), secrets.token_hex(32)
        self._socket = self._address.with_suffix(".sock")
        self._listening: socket.socket | None = None

    def __enter__(self) -> Self:
        """Listen. Raises `RunError` where nothing can be made there."""
        own = len(os.fsencode(self._socket)) <= _LONGEST_SOCKET and hasattr(socket, "AF_UNIX")
        try:
            listening = self._unix() if own else socket.create_server(("127.0.0.1", 0))
            listening.listen()
            place = {"socket": self._socket.name} if own else {"socket": "", "port": listening.getsockname()[1]}
            self._publish(json.dumps(place | {"token": self._token}).encode())
        except OSError as error:
            raise RunError(f"{self._address}: cannot listen there ({error.strerror})") from error
        self._listening = listening
        return self

    def _unix(self) -> socket.socket:
        self._socket.unlink(missing_ok=True)
        listening = socket.socket(socket.AF_UNIX)
        before = os.umask(0o177)
        try:
            listening.bind(str(self._socket))
        except OSError:
            listening.close()
            raise
        finally:
            os.umask(before)
        return listening

    def _publish(self, content: bytes) -> None:
        before = os.umask(0o177)
        try:
            write_atomically(self._address, content)
        finally:
            os.umask(before)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._listening is not None
        self._listening.close()
        for path in (self._address, self._socket):
            with contextlib.suppress(OSError):
                path.unlink()

    def accept(self, limit_s: float | None = None) -> socket.socket:
        """Return the stream of a process that knows the token; turn others away. Raises `TimeoutError` after the limit."""
        assert self._listening is not None
        deadline = None if limit_s is None else time.monotonic() + limit_s
        while True:
            self._listening.settimeout(None if deadline is None else max(deadline - time.monotonic(), 0.0))
            try:
                stream, _ = self._listening.accept()
            except BlockingIOError as error:  # the limit is over, and nobody waits
                raise TimeoutError from error
            with contextlib.suppress(wire.WireError):
                greeting, _ = wire.receive(stream, _GREETING_S, most_header=_GREETING_BYTES, most_body=0)
                token = greeting.get("token")
                if isinstance(token, str) and hmac.compare_digest(token.encode(errors="replace"), self._token.encode()):
                    return stream
            stream.close()
            if deadline is not None and time.monotonic() > deadline:
                raise TimeoutError
