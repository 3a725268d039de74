"""The state of a federation on disk: one safetensors file, written beside the old one and renamed over it."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from fkgsec.errors import RunError
from fkgsec.federation.messages import Entry

SCHEMA = 1


class RoundEntry(msgspec.Struct, frozen=True):
    """One round in numbers. Round 0 is the alignment and the first broadcast; it trains nothing.

    Attributes:
        num_survivors: clients in the mean (of the table with the fewest); 0 in round 0, without exchange, and when it failed.
        num_clipped: uploaded values that were cut to the range a protocol can carry.
        excluded: by party the reason why the secure aggregation left out a message of it.
    """

    round: int
    loss: float | None
    valid_mrr: float | None
    bytes_up: int
    bytes_down: int
    seconds: float
    num_survivors: int = 0
    num_clipped: int = 0
    excluded: dict[str, str] = {}


class Progress(msgspec.Struct):
    """What a checkpoint says beside its tensors."""

    identity: str
    rounds: list[RoundEntry] = []
    entries: list[Entry] = []
    best_round: int = 0
    best_mrr: float = -1.0
    bad_checks: int = 0
    finished: bool = False
    schema: int = SCHEMA


def pack_frames(kind: str, frames: dict[int, list[bytes]]) -> dict[str, Tensor]:
    """Serialised messages or notes as tensors of bytes, by kind, round and order."""
    return {
        f"{kind}.{number}.{place:06d}": torch.from_numpy(np.frombuffer(frame, dtype=np.uint8).copy())
        for number, messages in frames.items()
        for place, frame in enumerate(messages)
    }


def unpack_frames(kind: str, tensors: dict[str, Tensor]) -> dict[int, list[bytes]]:
    """Undo `pack_frames` for the tensors of this kind."""
    frames: dict[int, list[bytes]] = {}
    found = [name.split(".") for name in tensors if name.startswith(f"{kind}.")]
    for _, number, place in sorted(found, key=lambda name: (int(name[1]), int(name[2]))):
        frames.setdefault(int(number), []).append(tensors[f"{kind}.{number}.{place}"].numpy().tobytes())
    return frames


def save(path: Path, tensors: dict[str, Tensor], progress: Progress) -> None:
    """Write a checkpoint; after a kill at any moment either the old or the new one is there, whole."""
    part = path.with_name(path.name + ".part")
    metadata = {"progress": msgspec.json.encode(progress).decode()}
    try:
        save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, part, metadata)
        with part.open("rb") as handle:
            os.fsync(handle.fileno())
        part.replace(path)
    except (OSError, SafetensorError) as error:
        part.unlink(missing_ok=True)
        raise RunError(f"{path}: the checkpoint cannot be written ({error}); the last one is untouched") from error


def load(path: Path, identity: str) -> tuple[dict[str, Tensor], Progress]:
    """Read a checkpoint of this run. Raises `RunError` when it is damaged or belongs to another spec or other data."""
    try:
        with safe_open(path, framework="pt") as handle:
            progress = msgspec.json.decode((handle.metadata() or {})["progress"], type=Progress)
            tensors = {name: handle.get_tensor(name) for name in handle.keys()}  # noqa: SIM118 (not a dict)
    except (OSError, SafetensorError, msgspec.MsgspecError, KeyError) as error:
        raise RunError(f"{path}: not a whole checkpoint ({error}); delete it to start over") from error
    if progress.schema != SCHEMA:
        raise RunError(f"{path}: checkpoint schema {progress.schema}; this version reads {SCHEMA}")
    if progress.identity != identity:
        raise RunError(
            f"{path}: belongs to a run with other options or data, or of another version; choose another --out or delete it"
        )
    return tensors, progress
