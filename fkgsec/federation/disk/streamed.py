"""Safetensors files that need not fit in memory at once.

    save_file(path, {"rows": rows, "heads": Joined(frames)}, {"of": "a run"})

The format is the library's, which reads them: the length of a header of JSON, the header, and the tensors' bytes.
Source: the format's description in the documentation of safetensors. Differs: none.
"""

from __future__ import annotations

import json
import os
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from fkgsec.errors import RunError
from fkgsec.federation.disk.frames import Frames

DTYPES = {  # in the library's order
    torch.int64: "I64", torch.float64: "F64", torch.float32: "F32", torch.int32: "I32", torch.bfloat16: "BF16",
    torch.float16: "F16", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip


_PIECE_BYTES = 2**20


class Joined(NamedTuple):
    """Concatenated heads of messages, which represent a tensor uint8 `[length]`."""

    frames: Sequence[Frames]

    @property
    def length(self) -> int:
        """Length in bytes."""
        return sum(head for frames in self.frames for head, _ in frames.lengths())

    def pieces(self) -> Iterator[bytes]:
        """Iterate over the bytes."""
        return (head for frames in self.frames for head, _ in frames.parts())


class Stored:
    """Tensor uint8 `[length]` in a file, as the file was on construction. Raises `OSError`, `KeyError`,
    `ValueError`."""

    def __init__(self, path: Path, name: str) -> None:
        self._file = path.open("rb", buffering=0)
        weakref.finalize(self, self._file.close)
        # Layout of the format: 8 bytes header length, JSON header, tensor bytes.
        header_bytes = int.from_bytes(self._file.read(8), "little")
        start, end = json.loads(os.pread(self._file.fileno(), header_bytes, 8))[name]["data_offsets"]
        self._start, self.length = 8 + header_bytes + start, end - start

    def read(self, start: int, length: int) -> bytes:
        """Read a range of bytes.

        Args:
            start: first byte.
            length: number of bytes.

        Raises:
            ValueError: the range exceeds the tensor.
        """
        # pread does not move the file position, so that several readers can share the handle.
        read = os.pread(self._file.fileno(), length, self._start + start) if start + length <= self.length else b""
        if len(read) != length:
            raise ValueError(f"{length} bytes from {start} of {self.length}")
        return read

    def pieces(self) -> Iterator[bytes]:
        """Iterate over the bytes."""
        for start in range(0, self.length, _PIECE_BYTES):
            yield self.read(start, min(_PIECE_BYTES, self.length - start))


def described(tensor: Tensor | Joined | Stored) -> tuple[torch.dtype, list[int]]:
    """Return dtype and shape.

    Args:
        tensor: a tensor, or bytes that represent one.
    """
    return (tensor.dtype, list(tensor.shape)) if isinstance(tensor, Tensor) else (torch.uint8, [tensor.length])


def content(tensor: Tensor | Joined | Stored) -> Iterator[bytes | memoryview]:
    """Iterate over the bytes of a tensor.

    Args:
        tensor: contiguous, on the CPU; or bytes that represent one.
    """
    if isinstance(tensor, Joined | Stored):
        yield from tensor.pieces()
    elif tensor.numel():
        # A view: no copy of a large tensor is made.
        yield tensor.flatten().view(torch.uint8).numpy().data


def save_file(path: Path, tensors: Mapping[str, Tensor | Joined], metadata: Mapping[str, str]) -> None:
    """Write tensors as a safetensors file.

    Args:
        path: of the file.
        tensors: by name, contiguous, on the CPU.
        metadata: text by name.

    Raises:
        OSError: the file cannot be written.
        RunError: a dtype is not supported by the format.
    """
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    dtypes = {name: described(tensor)[0] for name, tensor in tensors.items()}
    if other := set(dtypes.values()) - set(DTYPES):
        raise RunError(f"{path}: a tensor has dtype {other.pop()}, which a checkpoint cannot hold")
    # Like the library: by dtype in its order, then by name, so that the bytes are the same.
    end, order = 0, sorted(tensors, key=lambda name: ([*DTYPES].index(dtypes[name]), name))
    for name in order:
        dtype, shape = described(tensors[name])
        start, end = end, end + dtype.itemsize * torch.Size(shape).numel()
        header[name] = {"dtype": DTYPES[dtype], "shape": shape, "data_offsets": [start, end]}
    # The library writes compact JSON without ASCII escapes.
    written = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    # The header is padded to 8 bytes, so that tensors are aligned.
    written += b" " * (-len(written) % 8)
    with path.open("wb") as handle:
        handle.write(len(written).to_bytes(8, "little") + written)
        for name in order:
            for piece in content(tensors[name]):
                handle.write(piece)
