"""Safetensors files of which not everything has to be in memory at once.

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
    """Concatenated parts that messages do not share: stands for a tensor uint8 `[length]`."""

    frames: Sequence[Frames]

    @property
    def length(self) -> int:
        """In bytes."""
        return sum(head for frames in self.frames for head, _ in frames.lengths())

    def pieces(self) -> Iterator[bytes]:
        """All of it."""
        return (head for frames in self.frames for head, _ in frames.parts())


class Stored:
    """A tensor uint8 `[length]` of a file, as the file was when this was made. Raises `OSError`, `KeyError`, `ValueError`."""

    def __init__(self, path: Path, name: str) -> None:
        self._file = path.open("rb", buffering=0)
        weakref.finalize(self, self._file.close)
        header_bytes = int.from_bytes(self._file.read(8), "little")
        start, end = json.loads(os.pread(self._file.fileno(), header_bytes, 8))[name]["data_offsets"]
        self._start, self.length = 8 + header_bytes + start, end - start

    def read(self, start: int, length: int) -> bytes:
        """Some of it. Raises `ValueError` where it is not so long."""
        read = os.pread(self._file.fileno(), length, self._start + start) if start + length <= self.length else b""
        if len(read) != length:
            raise ValueError(f"{length} bytes from {start} of {self.length}")
        return read

    def pieces(self) -> Iterator[bytes]:
        """All of it."""
        for start in range(0, self.length, _PIECE_BYTES):
            yield self.read(start, min(_PIECE_BYTES, self.length - start))


def described(tensor: Tensor | Joined | Stored) -> tuple[torch.dtype, list[int]]:
    """Its dtype and shape."""
    return (tensor.dtype, list(tensor.shape)) if isinstance(tensor, Tensor) else (torch.uint8, [tensor.length])


def content(tensor: Tensor | Joined | Stored) -> Iterator[bytes | memoryview]:
    """The bytes of a contiguous tensor on the CPU, or of what stands for one, piece by piece."""
    if isinstance(tensor, Joined | Stored):
        yield from tensor.pieces()
    elif tensor.numel():
        yield tensor.flatten().view(torch.uint8).numpy().data


def save_file(path: Path, tensors: Mapping[str, Tensor | Joined], metadata: Mapping[str, str]) -> None:
    """Write contiguous tensors on the CPU. Raises `OSError`, and `RunError` for a dtype that the format lacks."""
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    dtypes = {name: described(tensor)[0] for name, tensor in tensors.items()}
    if other := set(dtypes.values()) - set(DTYPES):
        raise RunError(f"{path}: a tensor has dtype {other.pop()}, which a checkpoint cannot hold")
    end, order = 0, sorted(tensors, key=lambda name: ([*DTYPES].index(dtypes[name]), name))
    for name in order:
        dtype, shape = described(tensors[name])
        start, end = end, end + dtype.itemsize * torch.Size(shape).numel()
        header[name] = {"dtype": DTYPES[dtype], "shape": shape, "data_offsets": [start, end]}
    written = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    written += b" " * (-len(written) % 8)
    with path.open("wb") as handle:
        handle.write(len(written).to_bytes(8, "little") + written)
        for name in order:
            for piece in content(tensors[name]):
                handle.write(piece)
