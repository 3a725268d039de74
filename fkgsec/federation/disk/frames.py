"""Serialised messages of one round, with what the server sends to many of them held once.

    frames = Frames()
    frames.append(encode(message), shared=message.sender == SERVER)
    frames[0] == encode(message)

A broadcast of whole tables reaches hundreds of clients as the same bytes behind a few of their own. What hundreds of clients send
is other bytes of each: beyond `HELD_BYTES` of a round they lie in a temporary file (in `TMPDIR`), which has no name and ends with
the process or with the last reference to the messages.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, TypeVar, overload

import msgspec

BLOCK_BYTES = 4096  # the end of a message that others may share is a multiple of this long
HEAD_BYTES = 256  # at least so much of a message is its own: who sends what to whom
HELD_BYTES = 16 * 2**20  # of a round's long messages, those that come first
_LARGEST = 2**30  # that one call reads


Message = TypeVar("Message", bound=msgspec.Struct)


class SharedData:
    """Messages one after the other, each of which holds the `data` of the one before where its own is the same."""

    def __init__(self) -> None:
        self._data = b""

    def held_by(self, message: Message) -> Message:
        """The same message."""
        data = getattr(message, "data", b"")
        if len(data) < BLOCK_BYTES:
            return message
        if data == self._data:
            return msgspec.structs.replace(message, data=self._data)
        self._data = data
        return message


class Frames(Sequence[bytes]):
    """Messages in the order of sending; equal to any sequence of the same ones."""

    def __init__(self, frames: Iterable[bytes] = ()) -> None:
        self._parts: list[tuple[bytes | tuple[int, int], bytes]] = []
        self._tails: dict[bytes, bytes] = {}
        self._file: IO[bytes] | None = None
        self._room = HELD_BYTES
        for frame in frames:
            self.append(frame, shared=True)

    def append(self, frame: bytes, *, shared: bool) -> None:
        """Add the next one. `shared`: others may end as it does."""
        size = max(0, len(frame) - HEAD_BYTES) // BLOCK_BYTES * BLOCK_BYTES if shared else 0
        tail = frame[len(frame) - size :] if size else b""
        self._parts.append((self._put(frame[: len(frame) - size]), self._tails.setdefault(tail, tail)))

    def _put(self, head: bytes) -> bytes | tuple[int, int]:
        """In memory where there is room, or no file to be had; else its start and length in the file."""
        if len(head) < BLOCK_BYTES:
            return head
        self._room -= len(head)
        if self._room >= 0 or len(head) > _LARGEST:
            return head
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 (open as long as the messages are there)
                weakref.finalize(self, self._file.close)
            start = self._file.seek(0, os.SEEK_END)
            return (start, len(head)) if self._file.write(head) == len(head) else head
        except OSError:  # a machine without temporary files, or a full one
            return head

    def _get(self, head: bytes | tuple[int, int]) -> bytes:
        if isinstance(head, bytes):
            return head
        assert self._file is not None
        start, length = head
        return os.pread(self._file.fileno(), length, start)

    def parts(self) -> Iterator[tuple[bytes, bytes]]:
        """For each message, its own bytes and the bytes after them, which are one object where messages share them."""
        return ((self._get(head), tail) for head, tail in self._parts)

    def tails(self) -> Iterator[bytes]:
        """Second element of each of `parts`."""
        return (tail for _, tail in self._parts)

    def lengths(self) -> Iterator[tuple[int, int]]:
        """Number of bytes of each of `parts`."""
        return ((len(head) if isinstance(head, bytes) else head[1], len(tail)) for head, tail in self._parts)

    @property
    def num_bytes(self) -> int:
        """Bytes of all messages; shared endings count for each message."""
        return sum(map(sum, self.lengths()))

    @overload
    def __getitem__(self, place: int) -> bytes: ...
    @overload
    def __getitem__(self, place: slice) -> list[bytes]: ...
    def __getitem__(self, place: int | slice) -> bytes | list[bytes]:
        if isinstance(place, slice):
            return [self._get(head) + tail for head, tail in self._parts[place]]
        head, tail = self._parts[place]
        return self._get(head) + tail

    def __len__(self) -> int:
        return len(self._parts)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(frame == another for frame, another in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[type[Frames], tuple[list[bytes]]]:
        return Frames, (list(self),)

    def __repr__(self) -> str:
        return f"Frames({len(self)} messages, {self.num_bytes} bytes)"
