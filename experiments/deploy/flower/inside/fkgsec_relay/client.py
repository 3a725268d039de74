# pyright: reportMissingImports=false
"""The ClientApp: hands each frame to the party's own process, and returns its reply.

Flower starts a process for every message, so this one has no state. It need not be able to read the party's data and keys: it
needs only the address of the party's process, from the SuperNode's environment (`FKGSEC_PARTY`).
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from fkgsec_relay import wire
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.query()
def forward(message: Message, context: Context) -> Message:
    """Return the party's reply, or the reason why there is none, without naming a file."""
    request = message.content["request"]
    frame = message.content["frame"]["frame"].numpy() if "frame" in message.content else np.empty(0, np.uint8)
    try:
        with wire.connect(Path(os.environ["FKGSEC_PARTY"])) as stream:
            wire.send(stream, {"id": request["id"], "stage": request["stage"]}, frame.data)
            header, reply = wire.receive(stream)
    except KeyError:
        # The reply goes to the server, so it names no file of the party.
        header, reply = {"silence": "its SuperNode was started without the address of its party"}, b""
    except wire.WireError as error:
        header, reply = {"silence": str(error)}, b""
    content = RecordDict({"reply": ConfigRecord({"silence": str(header.get("silence", ""))})})
    if reply:
        content["frame"] = ArrayRecord({"frame": Array(np.frombuffer(reply, np.uint8))})
    return Message(content, reply_to=message)
