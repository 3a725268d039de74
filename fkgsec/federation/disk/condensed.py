"""Deduplication of large checkpoints: each byte is stored once, and lines of a transcript as numbers.

    if is_worthwhile(tensors, entries, messages):
        stored, layout = condense(tensors, entries, messages)     # tensors to write
        streamed.save_file(path, stored, {})
    expand(read, layout, Stored(path, HEADS))   # the same tensors under the same names, messages among them, and the lines

A broadcast of whole tables sends the same rows to hundreds of clients after a short header. The best round is often the latest.
A client's input to a sum is zero in rows that it does not hold. `layout` says where each tensor went. Small files store plain
tensors, so that other programs can read them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TypeAlias

import msgspec
import numpy as np
import torch
from torch import Tensor

from fkgsec.errors import RunError
from fkgsec.exchange.parts import FilledRows, LazyTensors, Leaf
from fkgsec.federation.disk.frames import Frames
from fkgsec.federation.disk.streamed import Joined, Stored
from fkgsec.federation.messages import Entry
from fkgsec.federation.packing import whole

Messages: TypeAlias = Mapping[str, Mapping[int, Frames]]  # transmitted messages, "frame", and notes, "note", by round

MESSAGES, LINES = "messages", "lines"  # reserved names of tensors
HEADS = f"{MESSAGES}.heads"
_BESIDE = tuple(f"{MESSAGES}.{part}" for part in ("index", "tails", "ends"))
_KINDS = ("frame", "note")
_LEAST_BYTES = 4096  # smaller tensors are stored as they are
PLAIN_BYTES, PLAIN_LINES = 4 * 2**20, 10_000  # files up to this size are not condensed


class Layout(msgspec.Struct, frozen=True):
    """Locations of tensors that are not in the file under their own name.

    Attributes:
        same: by name, the name of a tensor with the same content.
        rows: by name, the number of rows of a matrix that is stored without its rows of zeros.
        names: strings that the numbers in the transcript's lines refer to.
    """

    same: dict[str, str] = {}
    rows: dict[str, int] = {}
    names: list[str] = []


def is_worthwhile(leaves: Mapping[str, Leaf], entries: Sequence[Entry], messages: Messages) -> bool:
    """Return whether a file is large enough to condense.

    Args:
        leaves: tensors by name.
        entries: lines of the transcript.
        messages: by kind and round.
    """
    # Sizes as if every tensor were whole: that is what a plain file would need.
    size = sum(map(_num_bytes, leaves.values()))
    size += sum(frames.num_bytes for rounds in messages.values() for frames in rounds.values())
    return size > PLAIN_BYTES or len(entries) > PLAIN_LINES


def condense(
    leaves: Mapping[str, Leaf], entries: Sequence[Entry], messages: Messages
) -> tuple[dict[str, Tensor | Joined], Layout]:
    """Compute the tensors to write for tensors, transcript lines and messages.

    Args:
        leaves: tensors by name.
        entries: lines of the transcript.
        messages: by kind and round.

    Returns:
        Tensors to write by name, and the layout that `expand` needs.
    """
    stored: dict[str, Tensor | Joined] = _join(messages) if any(messages.values()) else {}
    same: dict[str, str] = {}
    rows: dict[str, int] = {}
    seen: dict[tuple[str, tuple[int, ...], bytes], str] = {}
    for name, leaf in leaves.items():
        if isinstance(leaf, FilledRows) and 2 * len(leaf.places) < leaf.num_rows and _num_bytes(leaf) >= _LEAST_BYTES:
            # Mostly empty: store the filled rows and their positions.
            rows[name] = leaf.num_rows
            # Two tensors stand for one; `layout.rows` has the number of rows.
            stored[f"{name}/rows"], stored[f"{name}/values"] = leaf.places, leaf.values.contiguous()
            continue
        tensor = whole(leaf).detach().cpu().contiguous()
        # Hashing and an entry in the layout cost more than a small tensor.
        if tensor.numel() * tensor.element_size() < _LEAST_BYTES:
            stored[name] = tensor
            continue
        # Equal content is stored once, under the first name.
        raw = tensor.view(torch.uint8) if tensor.dim() else tensor
        first = seen.setdefault(
            (str(tensor.dtype), tuple(tensor.shape), hashlib.sha256(raw.numpy().data).digest()), name
        )
        if first != name:
            same[name] = first
            continue
        # A client's input to a sum is zero in most rows.
        filled = FilledRows.of(tensor) if tensor.dim() == 2 else None
        if filled is not None and 2 * len(filled.places) < len(tensor):
            rows[name] = len(tensor)
            stored[f"{name}/rows"], stored[f"{name}/values"] = filled.places, filled.values
        else:
            stored[name] = tensor
    stored[LINES], names = lines_of(entries)
    return stored, Layout(same, rows, names)


def expand(
    stored: Mapping[str, Tensor], layout: Layout, heads: Stored | None
) -> tuple[Mapping[str, Tensor], list[Entry]]:
    """Undo `condense`. Tensors that are larger than in the file are built at each access.

    Args:
        stored: all tensors of the file except `HEADS`.
        layout: from `condense`.
        heads: tensor `HEADS`, or None if there are no messages.

    Returns:
        Tensors by name, and the lines of the transcript.

    Raises:
        RunError: the layout does not match the file.
    """
    tensors: dict[str, Leaf | Callable[[], Tensor]] = dict(stored)
    try:
        entries = entries_of(stored[LINES], layout.names)
        # Rows that the file has in filled form, expanded when read.
        for name, count in layout.rows.items():
            filled = FilledRows(count, stored[f"{name}/rows"], stored[f"{name}/values"])
            filled.whole()  # raises now, not at a later access
            tensors[name] = filled
        for name, other in layout.same.items():
            first = tensors[other]
            # Copies, since loaded tensors may be changed in place.
            tensors[name] = first.clone() if isinstance(first, Tensor) else first
        if heads is not None:
            index, tails, ends = (stored[f"{MESSAGES}.{part}"].numpy() for part in ("index", "tails", "ends"))
            tensors |= _split(index, heads, tails, ends)
        for name in (LINES, *(f"{name}/{part}" for name in layout.rows for part in ("rows", "values")), *_BESIDE):
            tensors.pop(name, None)
    except (KeyError, IndexError, ValueError, RuntimeError) as error:
        raise RunError(f"a condensed tensor is not there or does not fit ({error})") from error
    return LazyTensors(tensors), entries


def _num_bytes(leaf: Leaf) -> int:
    """Return the size of a tensor in bytes, or of the whole tensor that filled rows represent."""
    count = leaf.numel() if isinstance(leaf, Tensor) else leaf.num_rows * leaf.values.shape[1]
    return count * (leaf if isinstance(leaf, Tensor) else leaf.values).element_size()


def _join(messages: Messages) -> dict[str, Tensor | Joined]:
    """Concatenate heads, store each distinct tail once, and index every message.

    The index has kind, round, position, bytes of head, and number of the tail (-1: none).
    """
    tails: dict[bytes, int] = {}
    index: list[tuple[int, int, int, int, int]] = []
    for kind, rounds in messages.items():
        for number, frames in rounds.items():
            for place, ((head_bytes, _), tail) in enumerate(zip(frames.lengths(), frames.tails(), strict=True)):
                # Equal tails, such as one broadcast to all clients, are stored once.
                number_of_tail = tails.setdefault(tail, len(tails)) if tail else -1
                index.append((_KINDS.index(kind), number, place, head_bytes, number_of_tail))
    return {
        f"{MESSAGES}.index": torch.tensor(index, dtype=torch.int64).reshape(-1, 5),
        HEADS: Joined([frames for rounds in messages.values() for frames in rounds.values()]),
        f"{MESSAGES}.tails": _one_after_the_other(tails),
        f"{MESSAGES}.ends": torch.tensor([len(tail) for tail in tails], dtype=torch.int64).cumsum(0),
    }


def _one_after_the_other(parts: Collection[bytes]) -> Tensor:
    joined = bytearray().join(parts)
    return torch.frombuffer(joined, dtype=torch.uint8) if joined else torch.zeros(0, dtype=torch.uint8)


def _split(index: np.ndarray, heads: Stored, tails: np.ndarray, ends: np.ndarray) -> dict[str, Callable[[], Tensor]]:
    # Heads are consecutive, so a message's start is the sum of the lengths before it.
    bounds, start, messages = [0, *ends.tolist()], 0, {}
    for kind, number, place, head_bytes, tail in index.tolist():
        rest = tails[:0] if tail < 0 else tails[bounds[tail] : bounds[tail + 1]]
        messages[f"{_KINDS[kind]}.{number}.{place:06d}"] = partial(_message, heads, start, head_bytes, rest)
        start += head_bytes
    # A mismatch means that index and heads belong to different files.
    if start != heads.length:
        raise ValueError(f"messages begin with {start} bytes, and the file has {heads.length}")
    return messages


def _message(heads: Stored, start: int, head_bytes: int, rest: np.ndarray) -> Tensor:
    return _one_after_the_other([heads.read(start, head_bytes), rest.tobytes()])


def lines_of(entries: Sequence[Entry]) -> tuple[Tensor, list[str]]:
    """Encode a transcript's lines as int64 `[n, 6]`, with the strings that numbers refer to.

    A JSON header is limited to 100 MB, which two million lines exceed.

    Args:
        entries: lines of the transcript.
    """
    # Column by column: far fewer Python objects than line by line.
    columns = list(zip(*entries, strict=True)) or [()] * len(Entry._fields)
    names: dict[str, int] = {}
    numbers = []
    for field, column in zip(Entry._fields, columns, strict=True):
        if field in ("round", "num_bytes"):
            numbers.append(np.array(column, dtype=np.int64))
        else:
            # Few distinct parties, kinds and tables: number each once, then map the whole column in C.
            for name in dict.fromkeys(column):
                names.setdefault(name, len(names))
            numbers.append(np.fromiter(map(names.__getitem__, column), dtype=np.int64, count=len(column)))
    return torch.from_numpy(np.stack(numbers, axis=1)), list(names)


def entries_of(lines: Tensor, names: Sequence[str]) -> list[Entry]:
    """Undo `lines_of`.

    Args:
        lines: int64 `[n, 6]`.
        names: strings that numbers refer to.

    Raises:
        RunError: the numbers are no lines of a transcript.
    """
    if lines.dtype != torch.int64 or lines.dim() != 2 or lines.shape[1] != len(Entry._fields):
        raise RunError(f"{list(lines.shape)} numbers are no lines of a transcript")
    columns = lines.T.tolist()
    try:
        for place, field in enumerate(Entry._fields):
            if field not in ("round", "num_bytes"):
                columns[place] = [names[number] for number in columns[place]]
    except IndexError as error:
        raise RunError("a line of the transcript names a party that is not listed") from error
    return list(map(Entry._make, zip(*columns, strict=True)))
