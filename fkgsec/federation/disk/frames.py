"""Serialised messages of one round, with what the server sends to many of them held once.

    frames = Frames()
    frames.append(encode(message), shared=message.sender == SERVER)
    frames[0] == encode(message)

A broadcast of whole tables reaches hundreds of clients as the same bytes behind a few of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import overload

BLOCK_BYTES = 4096  # the end of a message that others may share is a multiple of this long
HEAD_BYTES = 256  # at least so much of a message is its own: who sends what to whom


class Frames(Sequence[bytes]):
    """Messages in the order of sending; equal to any sequence of the same ones."""

    def __init__(self, frames: Iterable[bytes] = ()) -> None:
        self._parts: list[tuple[bytes, bytes]] = []
        self._tails: dict[bytes, bytes] = {}
        for frame in frames:
            self.append(frame, shared=True)

    def append(self, frame: bytes, *, shared: bool) -> None:
        """Add the next one. `shared`: others may end as it does."""
        size = max(0, len(frame) - HEAD_BYTES) // BLOCK_BYTES * BLOCK_BYTES if shared else 0
        tail = frame[len(frame) - size :] if size else b""
        self._parts.append((frame[: len(frame) - size], self._tails.setdefault(tail, tail)))

    def parts(self) -> Iterator[tuple[bytes, bytes]]:
        """Of each message its own bytes and those after them, which are one object where messages share them."""
        return iter(self._parts)

    @property
    def num_bytes(self) -> int:
        """Of all messages, however often they share what they end with."""
        return sum(len(head) + len(tail) for head, tail in self._parts)

    @overload
    def __getitem__(self, place: int) -> bytes: ...
    @overload
    def __getitem__(self, place: slice) -> list[bytes]: ...
    def __getitem__(self, place: int | slice) -> bytes | list[bytes]:
        if isinstance(place, slice):
            return [head + tail for head, tail in self._parts[place]]
        head, tail = self._parts[place]
        return head + tail

    def __len__(self) -> int:
        return len(self._parts)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(one == another for one, another in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Frames({len(self)} messages, {self.num_bytes} bytes)"
