"""Parcels between a Flower process and the fkgsec process beside it, over a local socket.

    with connect(Path("parties/berlin/door/party.address")) as stream:     # written by the fkgsec process, readable for its owner
        send(stream, {"id": "7f3a-1"}, frame)
        header, reply = receive(stream)

A parcel is a header (JSON) and a body (bytes). The address file names a unix socket beside it, or a port of the loopback
interface if the path is too long, and a token: a process that cannot read the file cannot connect.
"""

from __future__ import annotations

import json
import socket
import struct
import time
from pathlib import Path
from typing import Any

MOST_HEADER = 1 << 20
MOST_BODY = (1 << 31) - 1
"""Bytes; more does not fit in a Flower message either."""
_LENGTHS = struct.Struct(">IQ")
_PIECE = 1 << 20


class WireError(ConnectionError):
    """The other process is not there, went away, or speaks another language."""


def send(
    stream: socket.socket, header: dict[str, Any], body: bytes | memoryview = b"", limit_s: float | None = None
) -> None:
    """Send a parcel. Raises `WireError`, also where the other end has not taken all of it after `limit_s` seconds."""
    written = json.dumps(header).encode()
    if len(written) > MOST_HEADER or len(body) > MOST_BODY:
        raise WireError(f"a parcel of {len(body)} bytes is too large; at most {MOST_BODY}")
    deadline = None if limit_s is None else time.monotonic() + limit_s
    try:
        for part in (_LENGTHS.pack(len(written), len(body)) + written, body):
            if len(part):
                stream.settimeout(_left(deadline))
                stream.sendall(part)
    except TimeoutError as error:
        raise WireError("the process at the other end did not take a parcel in time") from error
    except OSError as error:
        raise WireError(f"the process at the other end went away ({error.strerror})") from error


def _left(deadline: float | None) -> float | None:
    """Return the seconds until the deadline. Raises `TimeoutError` once it has passed."""
    if deadline is None:
        return None
    if (left := deadline - time.monotonic()) <= 0:
        raise TimeoutError
    return left


def receive(
    stream: socket.socket, limit_s: float | None = None, *, most_header: int = MOST_HEADER, most_body: int = MOST_BODY
) -> tuple[dict[str, Any], bytes]:
    """Return the next parcel. Raises `WireError`, also where not all of it has come after `limit_s` seconds."""
    deadline = None if limit_s is None else time.monotonic() + limit_s
    header_length, body_length = _LENGTHS.unpack(_exactly(stream, _LENGTHS.size, deadline))
    # Check the announced lengths before anything is read: the sender may be a stranger.
    if header_length > most_header or body_length > most_body:
        raise WireError(f"a parcel that says it has {body_length} bytes is no parcel")
    try:
        header = json.loads(_exactly(stream, header_length, deadline))
    except (ValueError, RecursionError) as error:
        raise WireError("a parcel whose header cannot be read") from error
    if not isinstance(header, dict):
        raise WireError("a parcel whose header is no mapping")
    return header, _exactly(stream, body_length, deadline)


def _exactly(stream: socket.socket, count: int, deadline: float | None) -> bytes:
    """Read `count` bytes before the deadline; memory is taken as they arrive, not as they are announced."""
    pieces: list[bytes] = []
    while count:
        try:
            stream.settimeout(_left(deadline))
            piece = stream.recv(min(count, _PIECE))
        except TimeoutError as error:
            raise WireError("the process at the other end sent no whole parcel in time") from error
        except OSError as error:
            raise WireError(f"the process at the other end went away ({error.strerror})") from error
        if not piece:
            raise WireError("the process at the other end went away")
        pieces.append(piece)
        count -= len(piece)
    return b"".join(pieces)


def connect(address: Path) -> socket.socket:
    """Connect to the process that wrote this address file, and send the token. Raises `WireError`."""
    try:
        written = json.loads(address.read_text())
        local, token = bool(written["socket"]), str(written["token"])
        # The path of a unix socket is short on some systems; then the file names a port of the loopback interface.
        target: Any = str(address.parent / written["socket"]) if local else ("127.0.0.1", int(written["port"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise WireError(f"no process of fkgsec has left its address here ({type(error).__name__})") from error
    stream = socket.socket(socket.AF_UNIX if local else socket.AF_INET)
    try:
        stream.connect(target)
        send(stream, {"token": token})
    except WireError:
        stream.close()
        raise
    # A path with a NUL raises `ValueError`, a port above 65,535 `OverflowError`.
    except (OSError, ValueError, OverflowError) as error:
        stream.close()
        raise WireError(f"the process of fkgsec does not answer ({type(error).__name__})") from error
    return stream
