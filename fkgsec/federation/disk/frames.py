"""Serialized messages of one round. Content that the server sends to many clients is in memory once.

    frames = Frames()
    frames.append(encode(message), shared=message.sender == SERVER)
    frames[0] == encode(message)

A broadcast of whole tables sends the same bytes to hundreds of clients after a short header. Uploads differ between clients:
beyond `HELD_BYTES` per round they go to a temporary file (in `TMPDIR`). The file has no name. It ends with the process or with
the last reference to the messages.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, TypeVar, overload

import msgspec

BLOCK_BYTES = 4096  # the shared end of a message is a multiple of this length
HEAD_BYTES = 256  # minimum length of a message's unshared head: sender, receiver, table
HELD_BYTES = 16 * 2**20  # memory for a round's long messages; later ones go to the file
_LARGEST = 2**30  # maximum of one read


Message = TypeVar("Message", bound=msgspec.Struct)


class SharedData:
    """Deduplicates consecutive messages: a message reuses the `data` object of the previous one if equal."""

    def __init__(self) -> None:
        self._data = b""

    def held_by(self, message: Message) -> Message:
        """Return an equal message, with the previous `data` object if possible.

        Args:
            message: the next message.
        """
        data = getattr(message, "data", b"")
        # Short content is not worth a comparison.
        if len(data) < BLOCK_BYTES:
            return message
        if data == self._data:
            return msgspec.structs.replace(message, data=self._data)
        self._data = data
        return message


class Frames(Sequence[bytes]):
    """Messages in sending order; equal to any sequence of the same messages."""

    def __init__(self, frames: Iterable[bytes] = ()) -> None:
        self._parts: list[tuple[bytes | tuple[int, int], bytes]] = []
        self._tails: dict[bytes, bytes] = {}
        self._file: IO[bytes] | None = None
        self._room = HELD_BYTES
        for frame in frames:
            self.append(frame, shared=True)

    def append(self, frame: bytes, *, shared: bool) -> None:
        """Add the next message.

        Args:
            frame: its bytes.
            shared: whether other messages may have the same end.
        """
        # The tail is a multiple of the block size, so that equal content behind heads of different length still has
        # equal tails.
        size = max(0, len(frame) - HEAD_BYTES) // BLOCK_BYTES * BLOCK_BYTES if shared else 0
        tail = frame[len(frame) - size :] if size else b""
        self._parts.append((self._put(frame[: len(frame) - size]), self._tails.setdefault(tail, tail)))

    def _put(self, head: bytes) -> bytes | tuple[int, int]:
        """Store a head in memory if there is room or no file; otherwise return its start and length in the file."""
        if len(head) < BLOCK_BYTES:
            return head
        # The first messages of a round stay in memory, in the order of sending.
        self._room -= len(head)
        if self._room >= 0 or len(head) > _LARGEST:
            return head
        try:
            if self._file is None:
                # Unbuffered: reads by pread must see what was written.
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
        # pread leaves the position at the end, where the next message is appended.
        return os.pread(self._file.fileno(), length, start)

    def parts(self) -> Iterator[tuple[bytes, bytes]]:
        """Iterate over head and tail of each message. Messages with equal tails share one object."""
        return ((self._get(head), tail) for head, tail in self._parts)

    def tails(self) -> Iterator[bytes]:
        """Iterate over the tails of `parts`."""
        return (tail for _, tail in self._parts)

    def lengths(self) -> Iterator[tuple[int, int]]:
        """Iterate over the lengths of `parts`, in bytes."""
        return ((len(head) if isinstance(head, bytes) else head[1], len(tail)) for head, tail in self._parts)

    @property
    def num_bytes(self) -> int:
        """Size of all messages in bytes; shared tails count for each message."""
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
