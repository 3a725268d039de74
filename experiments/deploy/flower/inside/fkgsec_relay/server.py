# pyright: reportMissingImports=false
"""The ServerApp: carries frames from the server's own process to the parties' SuperNodes, and their replies back.

It identifies SuperNodes by the public keys that the server's process names, never by a node's own claims. The address of that
process is in the SuperLink's environment (`FKGSEC_SERVER`), so that no party learns a path.
"""

from __future__ import annotations

import os
import select
import socket
import time
from pathlib import Path
from typing import Any

import numpy as np
from fkgsec_relay import wire
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

LEAST_WAIT_S, MOST_WAIT_S, PATIENCE = 0.05, 1.0, 0.02
"""Between two looks for replies: a fiftieth of the time waited, within these limits."""

app = ServerApp()


@app.main()
def relay(grid: Grid, context: Context) -> None:
    """Carry frames until the server's process closes the stream."""
    with wire.connect(Path(os.environ["FKGSEC_SERVER"])) as stream:
        post = Post(grid, stream)
        try:
            while True:
                post.step()
        except wire.WireError:
            return


class Post:
    """Requests under way."""

    def __init__(self, grid: Grid, stream: socket.socket) -> None:
        self._grid, self._stream = grid, stream
        # Number of each request by Flower's message ID.
        self._waiting: dict[str, str] = {}
        self._since = time.monotonic()

    def step(self) -> None:
        """Read a parcel, or else return the replies that have arrived. Raises `wire.WireError` at the end."""
        limit = None
        if self._waiting:
            # Flower has no notification of replies: poll, less often the longer the wait.
            limit = min(max((time.monotonic() - self._since) * PATIENCE, LEAST_WAIT_S), MOST_WAIT_S)
        if select.select([self._stream], [], [], limit)[0]:
            header, frame = wire.receive(self._stream)
            if header["kind"] == "nodes":
                nodes = self._grid.get_nodes()
                # Identify nodes by their authenticated public keys, never by what they say.
                online = {node.public_key.decode(): node.node_id for node in nodes if node.status == "online"}
                wire.send(self._stream, {"kind": "nodes", "online": online})
            elif header["kind"] == "forget":
                self._waiting.clear()
            else:
                self._push(header, frame)
        elif self._waiting:
            self._pull()

    def _push(self, header: dict[str, Any], frame: bytes) -> None:
        request = ConfigRecord({"id": header["id"], "stage": header["stage"]})
        content = RecordDict({"request": request})
        if frame:
            content["frame"] = ArrayRecord({"frame": Array(np.frombuffer(frame, np.uint8))})
        message = Message(content, int(header["node"]), "query", ttl=float(header["ttl"]), group_id=header["stage"])
        sent = list(self._grid.push_messages([message]))
        if not sent or not sent[0]:
            self._tell(header["id"], "Flower did not take the request: its SuperNode is not there")
            return
        self._waiting[sent[0]] = header["id"]
        self._since = time.monotonic()

    def _pull(self) -> None:
        for message in self._grid.pull_messages(list(self._waiting)):
            number = self._waiting.pop(message.metadata.reply_to_message_id, None)
            if number is None:
                continue
            if message.has_error():
                self._tell(number, f"Flower: {message.error.reason}")
                continue
            frame = message.content["frame"]["frame"].numpy() if "frame" in message.content else np.empty(0, np.uint8)
            self._tell(number, message.content["reply"]["silence"], np.ascontiguousarray(frame).data)

    def _tell(self, number: str, silence: str, frame: bytes | memoryview = b"") -> None:
        wire.send(self._stream, {"kind": "reply", "id": number, "silence": silence}, frame)
