"""Tensors of a checkpoint as its file holds them: each byte once, and lines of a transcript as numbers.

    if is_worthwhile(tensors, entries, messages):
        kept, layout = condense(tensors, entries, messages)       # what is to be written
        streamed.save_file(path, kept, {})
    expand(read, layout, Stored(path, HEADS))   # the same tensors under the same names, messages among them, and the lines

A broadcast of whole tables reaches hundreds of clients as the same rows behind a few bytes of their own; the best round is often
the latest; and what a client puts into a sum is zero wherever it holds nothing. `layout` says where each tensor went. Small files
hold their tensors as they are, for whoever reads them with other programs.
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

Messages: TypeAlias = Mapping[str, Mapping[int, Frames]]  # those that crossed, "frame", and notes, "note", by round

MESSAGES, LINES = "messages", "lines"  # no tensor that is condensed has these names
HEADS = f"{MESSAGES}.heads"
_BESIDE = tuple(f"{MESSAGES}.{part}" for part in ("index", "tails", "ends"))
_KINDS = ("frame", "note")
_LEAST_BYTES = 4096  # smaller tensors stay as they are
PLAIN_BYTES, PLAIN_LINES = 4 * 2**20, 10_000  # of a whole file, up to which nothing is condensed


class Layout(msgspec.Struct, frozen=True):
    """Places of tensors that are not in the file under their own name.

    Attributes:
        same: by name another one with the same content.
        rows: by name the number of rows of a matrix whose rows of zeros were left out.
        names: strings by the number that stands for them in the transcript's lines.
    """

    same: dict[str, str] = {}
    rows: dict[str, int] = {}
    names: list[str] = []


def is_worthwhile(leaves: Mapping[str, Leaf], entries: Sequence[Entry], messages: Messages) -> bool:
    """Return whether a file would be so large that it is condensed."""
    size = sum(map(_num_bytes, leaves.values()))
    size += sum(frames.num_bytes for rounds in messages.values() for frames in rounds.values())
    return size > PLAIN_BYTES or len(entries) > PLAIN_LINES


def condense(
    leaves: Mapping[str, Leaf], entries: Sequence[Entry], messages: Messages
) -> tuple[dict[str, Tensor | Joined], Layout]:
    """Return what to write for tensors, a transcript's lines and its messages."""
    stored: dict[str, Tensor | Joined] = _join(messages) if any(messages.values()) else {}
    same: dict[str, str] = {}
    rows: dict[str, int] = {}
    seen: dict[tuple[str, tuple[int, ...], bytes], str] = {}
    for name, leaf in leaves.items():
        if isinstance(leaf, FilledRows) and 2 * len(leaf.places) < leaf.num_rows and _num_bytes(leaf) >= _LEAST_BYTES:
            rows[name] = leaf.num_rows
            stored[f"{name}/rows"], stored[f"{name}/values"] = leaf.places, leaf.values.contiguous()
            continue
        tensor = whole(leaf).detach().cpu().contiguous()
        if tensor.numel() * tensor.element_size() < _LEAST_BYTES:
            stored[name] = tensor
            continue
        raw = tensor.view(torch.uint8) if tensor.dim() else tensor
        first = seen.setdefault(
            (str(tensor.dtype), tuple(tensor.shape), hashlib.sha256(raw.numpy().data).digest()), name
        )
        if first != name:
            same[name] = first
            continue
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
    """The tensors and lines that `condense` was given, those that are larger than in the file made when they are read.

    Args:
        kept: all that the file has but `HEADS`, and `heads` that.

    Raises `RunError` where the layout fits no such file.
    """
    tensors: dict[str, Leaf | Callable[[], Tensor]] = dict(stored)
    try:
        entries = entries_of(stored[LINES], layout.names)
        for name, count in layout.rows.items():
            filled = FilledRows(count, stored[f"{name}/rows"], stored[f"{name}/values"])
            filled.whole()  # which it can be
            tensors[name] = filled
        for name, other in layout.same.items():
            first = tensors[other]
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
    """Return the bytes of a tensor, or of the one that filled rows stand for."""
    count = leaf.numel() if isinstance(leaf, Tensor) else leaf.num_rows * leaf.values.shape[1]
    return count * (leaf if isinstance(leaf, Tensor) else leaf.values).element_size()


def _join(messages: Messages) -> dict[str, Tensor | Joined]:
    """Heads one after the other, each distinct tail once, and of each message kind, round, place, bytes of head, tail (or -1)."""
    tails: dict[bytes, int] = {}
    index: list[tuple[int, int, int, int, int]] = []
    for kind, rounds in messages.items():
        for number, frames in rounds.items():
            for place, ((head_bytes, _), tail) in enumerate(zip(frames.lengths(), frames.tails(), strict=True)):
                number_of_tail = tails.setdefault(tail, len(tails)) if tail else -1
                index.append((_KINDS.index(kind), number, place, head_bytes, number_of_tail))
    return {
        f"{MESSAGES}.index": torch.tensor(index, dtype=torch.int64).reshape(-1, 5),
        HEADS: Joined([frames for rounds in messages.values() for frames in rounds.values()]),
        f"{MESSAGES}.tails": _one_after_the_other(tails),
        f"{MESSAGES}.ends": torch.tensor([len(tail) for tail in tails], dtype=torch.int64).cumsum(0),
    }


def _one_after_the_other(parts: Collection[bytes]) -> Tensor:
    """Bytes as uint8."""
    joined = bytearray().join(parts)
    return torch.frombuffer(joined, dtype=torch.uint8) if joined else torch.zeros(0, dtype=torch.uint8)


def _split(index: np.ndarray, heads: Stored, tails: np.ndarray, ends: np.ndarray) -> dict[str, Callable[[], Tensor]]:
    """Undo `_join`."""
    bounds, start, messages = [0, *ends.tolist()], 0, {}
    for kind, number, place, head_bytes, tail in index.tolist():
        rest = tails[:0] if tail < 0 else tails[bounds[tail] : bounds[tail + 1]]
        messages[f"{_KINDS[kind]}.{number}.{place:06d}"] = partial(_message, heads, start, head_bytes, rest)
        start += head_bytes
    if start != heads.length:
        raise ValueError(f"messages begin with {start} bytes, and the file has {heads.length}")
    return messages


def _message(heads: Stored, start: int, head_bytes: int, rest: np.ndarray) -> Tensor:
    return _one_after_the_other([heads.read(start, head_bytes), rest.tobytes()])


def lines_of(entries: Sequence[Entry]) -> tuple[Tensor, list[str]]:
    """A transcript's lines as int64 `[n, 6]`, and the strings that its numbers stand for.

    A header of JSON may have 100 MB, which two million lines fill.
    """
    columns = list(zip(*entries, strict=True)) or [()] * len(Entry._fields)
    names: dict[str, int] = {}
    numbers = []
    for field, column in zip(Entry._fields, columns, strict=True):
        if field in ("round", "num_bytes"):
            numbers.append(np.array(column, dtype=np.int64))
        else:
            for name in dict.fromkeys(column):
                names.setdefault(name, len(names))
            numbers.append(np.fromiter(map(names.__getitem__, column), dtype=np.int64, count=len(column)))
    return torch.from_numpy(np.stack(numbers, axis=1)), list(names)


def entries_of(lines: Tensor, names: Sequence[str]) -> list[Entry]:
    """Undo `lines_of`. Raises `RunError` for lines that are none."""
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
