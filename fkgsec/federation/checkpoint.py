"""State of a federation on disk: one safetensors file, written next to the old one and renamed over it.

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

SCHEMA, CONDENSED = 3, 4  # schema of a file with plain tensors, and of one that `condensed` made smaller
DIGEST = "sha256"  # in the file's metadata


class RoundEntry(msgspec.Struct, frozen=True):
    """Figures of one round. Round 0 is the alignment and the first broadcast; it trains nothing.

    Attributes:
        round: number of the round.
        loss: of local training, mean over clients; None if nothing was trained.
        valid: the task's metric on validation items, such as MRR; None if the round was not validated.
        bytes_up, bytes_down: serialized bytes to the server and from it.
        seconds: wall-clock time.
        num_survivors: clients in the mean (of the table with the fewest); 0 in round 0, without an exchange, and if it failed.
        num_clipped: uploaded values that the server clipped in a screen (`robust`).
        excluded: by party, the reason why secure aggregation excluded its message.
        cut_rows: by party, the number of its rows that a screen of single uploads cut, and the number of its rows.
        num_kept_rows: rows that kept their old value because no honest clients can have produced the opened secure sum.
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
    """Describe the share of quantized weight levels that changed between broadcasts, with a warning if none did.

    Args:
        rounds: of the run; the result is empty if none was quantized.

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
    """Contents of a checkpoint besides its tensors.

    Attributes:
        identity: of the run, see `run_identity`.
        rounds, entries: rounds and transcript lines so far.
        best_round, best_valid: best validation; None before the first.
        bad_checks: validations since without a better one.
        finished: whether no round is left.
        schema: `SCHEMA` or `CONDENSED`.
        metric: name of the validation metric, larger is better.
        layout: of a condensed file only.
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
    """Write a checkpoint. After a kill at any moment, either the old or the new one exists, complete.

    Args:
        path: of the file.
        leaves: tensors by name.
        progress: everything else.
        messages: serialized messages, "frame", and notes, "note", by round; `load` returns them as tensors of bytes.

    Raises:
        RunError: the file cannot be written.
    """
    # In the same folder: a rename across file systems is not atomic.
    part = path.with_name(path.name + ".part")
    # Large files are deduplicated; small ones stay readable by other programs.
    if is_worthwhile(leaves, progress.entries, messages):
        tensors, layout = condense(leaves, progress.entries, messages)
        progress = msgspec.structs.replace(progress, entries=[], layout=layout, schema=CONDENSED)
    else:
        tensors = {name: packing.whole(leaf).detach().cpu().contiguous() for name, leaf in leaves.items()}
        tensors |= packing.pack({kind: packing.frames_by_round(rounds) for kind, rounds in messages.items()})
    content = msgspec.json.encode(progress).decode()
    # safetensors metadata is text only, so the progress is JSON in one field.
    metadata = {"progress": content, DIGEST: _digest(tensors, content)}
    try:
        # Write, flush to disk, then rename: a rename is atomic, and a crash cannot leave a new name on missing data.
        streamed.save_file(part, tensors, metadata)
        with part.open("rb") as handle:
            os.fsync(handle.fileno())
        part.replace(path)
    except OSError as error:
        # A full disk is the usual cause; remove the useless part.
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise RunError(f"{path}: the checkpoint cannot be written ({error}); the last one is untouched") from error


def save_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """Write a safetensors file with this process's default permissions; the library restricts it to the user.

    Args:
        path: of the file.
        metadata: text by name.
    """
    save_file(tensors, path, metadata)
    # The umask can only be read by setting it.
    os.umask(mask := os.umask(0o077))
    path.chmod(0o666 & ~mask)


def _digest(tensors: Mapping[str, Tensor | Joined | Stored], progress: str) -> str:
    """Compute the sha256 of a checkpoint's content, in hexadecimal. A flipped bit in an embedding would go unnoticed
    otherwise.
    """
    digest = hashlib.sha256(progress.encode())
    # Sorted, so that the digest does not depend on the order in which tensors were collected.
    for name in sorted(tensors):
        dtype, shape = streamed.described(tensors[name])
        digest.update(f"{name} {dtype} {shape}".encode())
        for piece in streamed.content(tensors[name]):
            digest.update(piece)
    return digest.hexdigest()


def fingerprint(tensors: Mapping[str, Tensor], progress: Progress) -> str:
    """Compute the sha256 of a run's tensors, rounds and messages, in hexadecimal.

    Seconds are excluded: a run that was killed and resumed has the same fingerprint, and a repetition elsewhere shows
    whether its bits are the same. Fields are listed here, so that a new field of a round does not change old fingerprints.

    Args:
        progress: of the run.
    """
    # Fields by name, not the whole struct: see above.
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
    # Everything a reader of the run sees, except its duration.
    content = (progress.identity, progress.metric, progress.best_round, progress.best_valid, rounds, entries)
    return _digest(tensors, msgspec.json.encode(content, order="sorted").decode())


def load(path: Path, identity: str) -> tuple[Mapping[str, Tensor], Progress]:
    """Read a checkpoint of this run. In a large file, tensors and messages are read at each access.

    Args:
        path: of the file.
        identity: of the expected run, see `run_identity`.

    Returns:
        Tensors by name, and the progress.

    Raises:
        RunError: the file is damaged or belongs to other options or data.
    """
    try:
        path.open("rb").close()  # the library reports a file without read permission as damaged
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error.strerror})") from error
    try:
        with safe_open(path, framework="pt") as handle:
            metadata = handle.metadata() or {}
            progress = msgspec.convert(msgspec.json.decode(metadata["progress"]), Progress)
            names = list(handle.keys())
            # Heads of messages are the largest tensor: they are read from the file when needed.
            stored = {HEADS: Stored(path, HEADS)} if progress.layout is not None and HEADS in names else {}
            loaded = {name: handle.get_tensor(name) for name in names if name not in stored}
    except (OSError, SafetensorError, msgspec.MsgspecError, KeyError, ValueError, RecursionError) as error:
        raise RunError(f"{path}: not a whole checkpoint ({error}); delete it to start over") from error
    if progress.schema not in (SCHEMA, CONDENSED):
        raise RunError(f"{path}: checkpoint schema {progress.schema}; this version reads {SCHEMA} and {CONDENSED}")
    # The library checks lengths only; the digest covers every byte.
    if metadata.get(DIGEST) != _digest({**loaded, **stored}, metadata["progress"]):
        raise RunError(f"{path}: damaged: its content is not what was written; delete it to start over")
    tensors: Mapping[str, Tensor] = loaded
    if progress.layout is not None:
        try:
            tensors, progress.entries = expand(loaded, progress.layout, stored.get(HEADS))
        except RunError as error:
            raise RunError(f"{path}: not a whole checkpoint ({error}); delete it to start over") from error
        # In memory the checkpoint looks like one that was never condensed.
        progress.layout = None
    if progress.identity != identity:
        raise RunError(
            f"{path}: belongs to a run with other options or data, or of another version; choose another --out or delete it"
        )
    progress.schema = SCHEMA
    return tensors, progress


def check_rounds(progress: Progress, most: int, metric: str) -> None:
    """Check that rounds are numbered from 0, and that messages and the best round belong to these rounds.

    Args:
        progress: of the run.
        most: maximum number of rounds.
        metric: name of the run's validation metric.

    Raises:
        RunError: the progress is inconsistent.
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
    """Read a checkpoint's run identity and last round, without its tensors.

    Args:
        path: of the file.

    Raises:
        RunError: the file is damaged.
    """
    try:
        with safe_open(path, framework="pt") as handle:
            # Untyped: a file of another version still tells its round.
            stored_progress = msgspec.json.decode((handle.metadata() or {})["progress"])
        return str(stored_progress["identity"]), len(stored_progress["rounds"]) - 1
    except (OSError, SafetensorError, msgspec.MsgspecError, KeyError, TypeError, RecursionError) as error:
        raise RunError(f"{path}: not a whole checkpoint ({error}); delete it to start over") from error


def unfinished(path: Path, progress: Progress) -> RunError:
    """Return the error for reading a run that has rounds left.

    Args:
        path: of its checkpoint.
        progress: of the run.
    """
    return RunError(
        f"{path.parent}: stopped after round {len(progress.rounds) - 1}; finish it with the command that began it"
    )
