"""What a party keeps on disk between two requests that change it: one file, written beside the old one and renamed over it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import torch
from torch import Tensor

from defenses.bound_broadcasts import History, packed, unpack
from experiments.deploy.core.measure import Best
from fkgsec.errors import RunError
from fkgsec.federation import checkpoint, packing
from fkgsec.federation.checkpoint import Progress
from fkgsec.federation.messages import Entry, Transcript
from fkgsec.federation.order import Position

if TYPE_CHECKING:
    from experiments.deploy.party import Party

STATE = "party.safetensors"


class Memory(msgspec.Struct):
    """What a party remembers beside its tensors.

    Attributes:
        serial, request, reply: of the last request after which it was written, the digest of that request, and the reply.
        lasting: the last of the items that it must take.
        uploads: by table the last round in whose session it was. unions: the names of a table that a private union gave.
        placed: by table how many rows it has, and where this party's are.
        told: by table the round in which it was told which rows to send, and which: packed bits.
        judged: rounds of the models that are kept, "trained" of those before the last broadcast.
        entries: of its transcript.
        position: where it stands in the run, see `fkgsec.federation.order`.
        said: by step the one answer that it gives at the end.
    """

    serial: int = 0
    request: bytes = b""
    reply: bytes = b""
    lasting: int = 0
    uploads: dict[str, int] = {}
    unions: dict[str, list[str]] = {}
    placed: dict[str, tuple[int, bytes]] = {}
    told: dict[str, tuple[int, bytes]] = {}
    judged: dict[str, int] = {}
    entries: list[Entry] = []
    position: Position = msgspec.field(default_factory=Position)
    said: dict[str, bytes] = {}


def save_memory(party: Party) -> None:
    """Write the party's state. Raises `RunError` where that cannot be done; the old state is untouched then."""
    memory = party.memory
    memory.judged = {kind: best.round for kind, best in party.best.items()} | {"trained": party.trained[0]}
    memory.entries = party.transcript.entries
    tree: dict[str, packing.Tree] = {
        "now": party.task.snapshot(),
        "trainer": party.task.trainer_state(),
        "trained": party.trained[1],
        "client": {table: client.tensors() for table, client in party.tables.items()},
        "best": {kind: {"trained": best.trained, "final": best.final} for kind, best in party.best.items()},
    }
    if party.defended:
        log = party.defended.log
        tree["history"] = {"bytes": packed(History(), {party.address: log})}
        memory.told = {
            table: (round, np.packbits(rows).tobytes()) for table, (round, rows) in party.defended.sent_rows.items()
        }
    tree["memory"] = {"bytes": torch.frombuffer(bytearray(msgspec.msgpack.encode(memory)), dtype=torch.uint8)}
    own, messages = _apart(packing.pack(tree)), {"frame": party.transcript.frames}
    checkpoint.save(party.folder / STATE, own, Progress(_identity(party)), messages)


def _apart(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors, none of which shares memory with another, as a file must have them."""
    seen: set[int] = set()
    kept = {}
    for name, tensor in tensors.items():
        kept[name] = tensor.clone() if tensor.data_ptr() in seen else tensor
        seen.add(tensor.data_ptr())
    return kept


def load_memory(party: Party) -> None:
    """Put back what `save_memory` wrote, where it did. Raises `RunError` for another run's, or a damaged file."""
    path = party.folder / STATE
    if not path.exists():
        return
    try:
        tensors, _ = checkpoint.load(path, _identity(party))
    except RunError as error:  # which advises to delete it: then nothing would tell in which sessions the party was
        reason = str(error).rpartition(";")[0] or str(error)
        raise RunError(
            f"{reason}; the party cannot go on: keep the file where it is, and agree on another run"
        ) from error
    try:
        party.memory = msgspec.msgpack.decode(tensors["memory.bytes"].numpy().tobytes(), type=Memory)
        _restore(party, tensors)
    except (KeyError, msgspec.MsgspecError) as error:
        raise RunError(f"{path}: lacks {error}, which a party's state has") from error


def _restore(party: Party, tensors: Mapping[str, Tensor]) -> None:
    memory = party.memory
    party.task.restore(packing.below("now.", tensors))
    party.task.load_trainer_state(packing.below("trainer.", tensors))
    party.transcript = Transcript(list(memory.entries), packing.frames_of(packing.view_below("frame.", tensors)))
    party.trained = (memory.judged.get("trained", 0), packing.below("trained.", tensors))
    for table, client in party.tables.items():
        client.load(packing.below(f"client.{table}.", tensors))
    for kind in ("candidate", "best"):
        if kind in memory.judged:
            trained, final = (packing.below(f"best.{kind}.{part}.", tensors) for part in ("trained", "final"))
            party.best[kind] = Best(memory.judged[kind], trained, final)
    if party.defended is None:
        return
    for table in memory.placed:
        party.settle_places(table)
    unpack(tensors["history.bytes"], History(), {party.address: party.defended.log})
    for table, (round, bits) in memory.told.items():
        rows = np.unpackbits(np.frombuffer(bits, dtype=np.uint8), count=memory.placed[table][0])
        party.defended.sent_rows[table] = (round, rows.astype(bool))


def _identity(party: Party) -> str:
    return f"{party.name} {party.agreement.digest.hex()} {party.data_digest.hex()}"
