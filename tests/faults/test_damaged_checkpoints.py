"""A checkpoint in which anything changed is refused: flipped bits, truncation, parts swapped."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from fkgsec.errors import RunError
from fkgsec.federation.checkpoint import Progress, RoundEntry, load, save

FLIPS = 500


def written(path: Path, seed: int = 0, identity: str = "run") -> bytes:
    draw = torch.Generator().manual_seed(seed)
    tensors = {f"now.final.entities.{place}": torch.randn(7, 4, generator=draw) for place in range(3)}
    tensors |= {"frame.1.0": torch.arange(40, dtype=torch.uint8), "empty": torch.zeros(0, 4)}
    save(path, tensors, Progress(identity, rounds=[RoundEntry(0, None, None, 10, 10, 0.5)], finished=True))
    return path.read_bytes()


def changed(content: bytes, other: bytes) -> Iterator[tuple[str, bytes]]:
    draw = random.Random(0)
    for _ in range(FLIPS):
        flipped = bytearray(content)
        place = draw.randrange(len(content))
        flipped[place] ^= 1 << draw.randrange(8)
        yield f"bit in byte {place}", bytes(flipped)
    for place in (0, 7, 8, 100, len(content) - 1, *(draw.randrange(len(content)) for _ in range(50))):
        yield f"cut at {place}", content[:place]
    for _ in range(100):
        start, end, size = draw.randrange(len(content)), draw.randrange(len(content)), draw.randrange(1, 64)
        swapped = bytearray(content)
        swapped[start : start + size], swapped[end : end + size] = (
            content[end : end + size],
            content[start : start + size],
        )
        if bytes(swapped) != content:
            yield f"{size} bytes of {start} and {end}", bytes(swapped)
    half = len(content) // 2
    yield "the end of another", content[:half] + other[half:]
    yield "more", content + b"\0"


def test_every_change_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.safetensors"
    content, other = written(path), written(tmp_path / "other", seed=1)
    assert len(content) == len(other)
    load(tmp_path / "other", "run")
    accepted = []
    for what, damaged in changed(content, other):
        path.write_bytes(damaged)
        try:
            load(path, "run")
        except RunError:
            continue
        accepted.append(what)
    assert accepted == []


def test_a_checkpoint_without_its_digest_or_of_another_run_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.safetensors"
    written(path)
    content = path.read_bytes()
    start = content.index(b'"sha256"')
    path.write_bytes(content[:start] + b'"sha257"' + content[start + 8 :])
    with pytest.raises(RunError, match="its content is not what was written"):
        load(path, "run")
    written(path, identity="another")
    with pytest.raises(RunError, match="belongs to a run with other options or data"):
        load(path, "run")
    save_file(load_file(path), path)  # the tensors alone, as another program writes them
    with pytest.raises(RunError, match="not a whole checkpoint"):
        load(path, "run")
