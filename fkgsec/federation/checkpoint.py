"""The state of a federation on disk: one safetensors file, written beside the old one and renamed over it.

save(path, tensors, progress)
tensors, progress = load(path, run_identity(graph, options))    # `RunError` for another run's
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import msgspec
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from fkgsec.errors import RunError
from fkgsec.exchange.parts import Leaf
from fkgsec.federation import packing
from fkgsec.federation.disk import streamed
from fkgsec.federation.disk.condensed import HEADS, Layout, Messages, condense, expand, is_worthwhile
from fkgsec.federation.disk.streamed import Joined, Stored
from fkgsec.federation.messages import Entry
from fkgsec.text import printable

SCHEMA, CONDENSED = 3, 4  # of a file whose tensors stand as they are, and of one that `condensed` made smaller
DIGEST = "sha256"  # in the file's metadata


class RoundEntry(msgspec.Struct, frozen=True):
    """Figures of one round. Round 0 is the alignment and the first broadcast; it trains nothing.

    Attributes:
        round: its number. loss: of local training, mean over clients; None where nothing was trained.
        bytes_up: serialised, to the server. bytes_down: from it. seconds: on the wall.
        valid: the task's metric on validation items, its MRR in knowledge graphs; None where the round was not validated.
        num_survivors: clients in the mean (of the table with the fewest); 0 in round 0, without exchange, and when it failed.
        num_clipped: uploaded values that the server cut to what a screen lets pass (`robust`).
        excluded: by party the reason why the secure aggregation left out a message of it.
        cut_rows: by party, where a server screens single uploads: how many of its rows were cut, and of how many.
        num_kept_rows: rows that kept their old value, because honest clients cannot have given the secure sum that was opened.
        changed_levels: share of the broadcast's quantized weight levels that differ from the last broadcast, 0 to 1; None without
            quantization or an exchange.
    """

    round: int
    loss: float | None
    valid: float | None
    bytes_up: int
    bytes_down: int
    seconds: float
    num_survivors: int = 0
    num_clipped: int = 0
    excluded: dict[str, str] = {}
    cut_rows: dict[str, tuple[int, int]] = {}
    num_kept_rows: int = 0
    changed_levels: float | None = None


def quantization_lines(rounds: Sequence[RoundEntry]) -> list[str]:
    """The share of quantized weight levels that changed between broadcasts, and a warning where none did; empty without any.

    >>> quantization_lines([RoundEntry(1, None, None, 0, 0, 0.0, changed_levels=0.0)])[-1][:8]
    'warning:'
    """
    shares = [entry.changed_levels for entry in rounds if entry.changed_levels is not None]
    if not shares:
        return []
    still = sum(share == 0 for share in shares)
    lines = [
        f"quantized weight levels changed per exchange: {sum(shares) / len(shares):.2%} (mean of {len(shares)} exchanges)"
    ]
    if still:
        lines.append(
            f"warning: no quantized weight level changed in {still} of {len(shares)} exchanges, so shared weights did not train "
            "in them; use more bits or rounding=stochastic"
        )
    return lines


class Progress(msgspec.Struct):
    """Contents of a checkpoint beside its tensors.

    Attributes:
        metric: what validation measures, larger is better. best_valid: None before the first validation.
        layout: of a condensed file alone.
    """

    identity: str
    rounds: list[RoundEntry] = []
    entries: list[Entry] = []
    best_round: int = 0
    best_valid: float | None = None
    bad_checks: int = 0
    finished: bool = False
    schema: int = SCHEMA
    metric: str = "mrr"
    layout: Layout | None = None


def save(path: Path, leaves: Mapping[str, Leaf], progress: Progress, messages: Messages = MappingProxyType({})) -> None:
    """Write a checkpoint; after a kill at any moment either the old or the new one is there, whole.

    Args:
        messages: serialised ones, "frame", and notes, "note", by round; `load` gives them as tensors of bytes.
    """
    part = path.with_name(path.name + ".part")
    if is_worthwhile(leaves, progress.entries, messages):
        tensors, layout = condense(leaves, progress.entries, messages)
        progress = msgspec.structs.replace(progress, entries=[], layout=layout, schema=CONDENSED)
    else:
        tensors = {name: packing.whole(leaf).detach().cpu().contiguous() for name, leaf in leaves.items()}
        tensors |= packing.pack({kind: packing.frames_by_round(rounds) for kind, rounds in messages.items()})
    content = msgspec.json.encode(progress).decode()
    metadata = {"progress": content, DIGEST: _digest(tensors, content)}
    try:
        streamed.save_file(part, tensors, metadata)
        with part.open("rb") as handle:
            os.fsync(handle.fileno())
        part.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise RunError(f"{path}: the checkpoint cannot be written ({error}); the last one is untouched") from error


def save_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """A safetensors file with the rights that files of this process have; the library makes it for its user alone."""
    save_file(tensors, path, metadata)
    os.umask(mask := os.umask(0o077))
    path.chmod(0o666 & ~mask)


def _digest(tensors: Mapping[str, Tensor | Joined | Stored], progress: str) -> str:
    """sha256 of everything in a checkpoint, in hexadecimal: a bit that flips in an embedding would only move figures."""
    digest = hashlib.sha256(progress.encode())
    for name in sorted(tensors):
        dtype, shape = streamed.described(tensors[name])
        digest.update(f"{name} {dtype} {shape}".encode())
        for piece in streamed.content(tensors[name]):
            digest.update(piece)
    return digest.hexdigest()


def fingerprint(tensors: Mapping[str, Tensor], progress: Progress) -> str:
    """sha256 of what a run left: every tensor, round and message, in hexadecimal.

    Seconds are left out, so that a run that was killed and went on has the fingerprint that it would have had anyway, and one
    made again elsewhere says by it whether the bits are the same. What is digested is named here, so that a field added to a
    round makes no stranger of what is on disk.
    """
    rounds = [
        (
            entry.round,
            entry.loss,
            entry.valid,
            entry.bytes_up,
            entry.bytes_down,
            entry.num_survivors,
            entry.num_clipped,
            entry.excluded,
        )
        for entry in progress.rounds
    ]
    entries = [
        (entry.round, entry.sender, entry.receiver, entry.kind, entry.table, entry.num_bytes)
        for entry in progress.entries
    ]
    content = (progress.identity, progress.metric, progress.best_round, progress.best_valid, rounds, entries)
    return _digest(tensors, msgspec.json.encode(content, order="sorted").decode())


def load(path: Path, identity: str) -> tuple[Mapping[str, Tensor], Progress]:
    """Read a checkpoint of this run. Of a large one tensors are made, and messages read, each time that they are asked for.

    Raises:
        RunError: it is damaged or belongs to another spec or other data.
    """
    try:
        path.open("rb").close()  # the library calls a file that may not be read a damaged one
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error.strerror})") from error
    try:
        with safe_open(path, framework="pt") as handle:
            metadata = handle.metadata() or {}
            progress = msgspec.convert(msgspec.json.decode(metadata["progress"]), Progress)
            names = list(handle.keys())
            stored = {HEADS: Stored(path, HEADS)} if progress.layout is not None and HEADS in names else {}
            loaded = {name: handle.get_tensor(name) for name in names if name not in stored}
    except (OSError, SafetensorError, msgspec.MsgspecError, KeyError, ValueError, RecursionError) as error:
        raise RunError(f"{path}: not a whole checkpoint ({error}); delete it to start over") from error
    if progress.schema not in (SCHEMA, CONDENSED):
        raise RunError(f"{path}: checkpoint schema {progress.schema}; this version reads {SCHEMA} and {CONDENSED}")
    if metadata.get(DIGEST) != _digest({**loaded, **stored}, metadata["progress"]):
        raise RunError(f"{path}: damaged: its content is not what was written; delete it to start over")
    tensors: Mapping[str, Tensor] = loaded
    if progress.layout is not None:
        try:
            tensors, progress.entries = expand(loaded, progress.layout, stored.get(HEADS))
        except RunError as error:
            raise RunError(f"{path}: not a whole checkpoint ({error}); delete it to start over") from error
        progress.layout = None
    if progress.identity != identity:
        raise RunError(
            f"{path}: belongs to a run with other options or data, or of another version; choose another --out or delete it"
        )
    progress.schema = SCHEMA
    return tensors, progress


def check_rounds(progress: Progress, most: int, metric: str) -> None:
    """Check that rounds are numbered from 0 on, and that messages and the best round are of these rounds.

    Args:
        most: rounds of the run. metric: what its validation measures.

    Raises:
        RunError: one line with what is wrong.
    """
    last = len(progress.rounds) - 1
    if [entry.round for entry in progress.rounds] != list(range(last + 1)) or not 0 <= last <= most:
        raise RunError(f"rounds: expected 0 to at most {most}, each once and in order; got {last + 1} rounds")
    if progress.metric != metric:
        raise RunError(f"metric: {printable(progress.metric)}; the run validates {metric}")
    if not 0 <= progress.best_round <= last:
        raise RunError(f"best_round: {progress.best_round} is not among rounds 0 to {last}")
    for entry in progress.rounds:
        figures = (entry.bytes_up, entry.bytes_down, entry.seconds, entry.num_survivors, entry.num_clipped)
        measured = (entry.loss or 0.0, entry.valid or 0.0)
        if min(figures) < 0 or not all(map(math.isfinite, measured)) or not 0 <= (entry.changed_levels or 0.0) <= 1:
            raise RunError(
                f"round {entry.round}: has a negative count, a figure that is not finite or a share outside 0..1"
            )
    for message in progress.entries:
        if not 0 <= message.round <= last or message.num_bytes < 0:
            raise RunError(f"messages: one of round {message.round} with {message.num_bytes} bytes in {last} rounds")


def stands_at(path: Path) -> tuple[str, int]:
    """A checkpoint's run identity and last round; nothing else of it is read. Raises `RunError` where it cannot be."""
    try:
        with safe_open(path, framework="pt") as handle:
            stored_progress = msgspec.json.decode((handle.metadata() or {})["progress"])
        return str(stored_progress["identity"]), len(stored_progress["rounds"]) - 1
    except (OSError, SafetensorError, msgspec.MsgspecError, KeyError, TypeError, RecursionError) as error:
        raise RunError(f"{path}: not a whole checkpoint ({error}); delete it to start over") from error


def unfinished(path: Path, progress: Progress) -> RunError:
    """The error for a run that is to be read but has rounds left."""
    return RunError(
        f"{path.parent}: stopped after round {len(progress.rounds) - 1}; finish it with the command that began it"
    )
