"""A party's own process behind its SuperNode: takes frames from the ClientApp, gives them to the party, returns its replies.

with Door(folder.address) as door:
    attend(door, party.answer, say=print)
"""

from __future__ import annotations

import socket
from collections.abc import Callable

from fkgsec.errors import FkgsecError
from fkgsec.experiments.deploy.flower.inside.fkgsec_relay import wire
from fkgsec.experiments.deploy.flower.local import Door
from fkgsec.protocols.core.errors import ProtocolError
from fkgsec.protocols.core.rounds import Silence

Answer = Callable[[bytes], bytes | Silence]
Say = Callable[[str], None]
_PARCEL_S = 60.0
"""Seconds in which a ClientApp must send its request, or take its reply. 2 GiB cross a local socket in far less."""


def attend(door: Door, answer: Answer, say: Say) -> None:
    """Answer one request after the other until the process is stopped. `say`: told what goes wrong, which the server is not."""
    while True:
        with door.accept() as stream:
            _serve(stream, answer, say)


def _serve(stream: socket.socket, answer: Answer, say: Say) -> None:
    try:
        header, frame = wire.receive(stream, _PARCEL_S)
        reply = _answered(str(header.get("stage", "")), frame, answer, say)
        if isinstance(reply, Silence):
            wire.send(stream, {"silence": reply.reason}, limit_s=_PARCEL_S)
        else:
            wire.send(stream, {"silence": ""}, reply, _PARCEL_S)
    except wire.WireError as error:
        say(f"a request was left unanswered: {error}")


def _answered(stage: str, frame: bytes, answer: Answer, say: Say) -> bytes | Silence:
    try:
        return answer(frame)
    except (FkgsecError, ProtocolError) as error:
        say(f"{stage}: {error}")
        return Silence(f"refused ({type(error).__name__}); the party's own process says why")
