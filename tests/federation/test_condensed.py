"""What a checkpoint's file holds: the same tensors and lines, each byte once."""

import pickle
import random
import tempfile
import tracemalloc
from pathlib import Path

import msgspec
import pytest
import safetensors.torch
import torch
from safetensors import safe_open

from fkgsec.errors import RunError
from fkgsec.exchange.parts import FilledRows, Leaf
from fkgsec.federation import checkpoint
from fkgsec.federation.checkpoint import Progress
from fkgsec.federation.disk import streamed
from fkgsec.federation.disk.condensed import HEADS, Layout, condense, entries_of, expand
from fkgsec.federation.disk.frames import Frames
from fkgsec.federation.disk.streamed import Stored
from fkgsec.federation.messages import SERVER, Channel, Entry, Rows, client_party, decode
from fkgsec.federation.packing import frames_by_round, frames_of, pack, view_below
from fkgsec.federation.result import Kept

CLIENTS = 20


def broadcast(rows: torch.Tensor) -> Channel:
    """The same rows sent to twenty clients, and a part of them that each sends back."""
    channel = Channel()
    for number in range(CLIENTS):
        channel.send(Rows.pack(3, SERVER, client_party(str(number)), "entities", rows))
        channel.send(Rows.pack(4, client_party(str(number)), SERVER, "entities", rows[: number + 1] + number))
    return channel


def tensors_of() -> dict[str, torch.Tensor]:
    rows = torch.randn(300, 8)
    inputs = torch.zeros(300, 8, dtype=torch.float64)
    inputs[[0, 7, 299]] = torch.tensor([[1.0], [-0.0], [float("nan")]], dtype=torch.float64)
    own = {"now.entities": rows, "best.final.entities": rows.clone(), "best.inputs.entities.0": inputs}
    own |= {"small": torch.zeros(2), "none": torch.zeros(0, 4), "a number": torch.tensor(3.0)}
    return own


def as_filled(tensors: dict[str, torch.Tensor]) -> dict[str, Leaf]:
    """All matrices as a run holds what its clients put into a sum: those of few rows, of many, and of none."""
    return {name: FilledRows.of(one) if one.dim() == 2 else one for name, one in tensors.items()}


def messages_of(channel: Channel) -> dict[str, dict[int, Frames]]:
    return {"frame": channel.transcript.frames, "note": {3: Frames([b"", b"opened"])}}


def with_messages(tensors: dict[str, torch.Tensor], messages: dict[str, dict[int, Frames]]) -> dict[str, torch.Tensor]:
    return tensors | pack({kind: frames_by_round(rounds) for kind, rounds in messages.items()})


def test_messages_of_a_round_share_what_they_end_with() -> None:
    rows = torch.randn(2000, 32)
    down, up = broadcast(rows).transcript.frames.values()
    assert len({id(tail) for _, tail in down.parts()}) == 1
    held = sum(len(head) for head, _ in down.parts()) + len(next(down.parts())[1])
    assert held < rows.nbytes + CLIENTS * 4400 < down.num_bytes / 5
    assert [decode(frame).receiver for frame in down] == [client_party(str(number)) for number in range(CLIENTS)]
    again = Frames(list(down))
    assert again == down == list(down)
    assert down[1:3] == [down[1], down[2]]
    assert down != up
    assert down != list(down)[:-1]


def test_many_long_messages_of_a_round_lie_in_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Of 60 MB, 16 are held; who reads them, saves them or copies them finds the same."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    sent = [random.Random(number).randbytes(2**20 + number) for number in range(60)]
    tracemalloc.start()
    try:
        frames = Frames()
        for number, message in enumerate(sent):
            frames.append(bytes(bytearray(message)), shared=False)
            frames.append(b"%d" % number, shared=False)
        held, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        checkpoint.save(tmp_path / "state", {}, Progress("run"), {"frame": {1: frames}})
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        back, progress = checkpoint.load(tmp_path / "state", "run")
        checkpoint.fingerprint(back, progress)
        read = frames_of(view_below("frame.", back))
        _, peak_of_reading = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 20e6
    assert peak < held + 5e6  # nor are they joined
    assert peak_of_reading < 2 * held + 5e6
    assert read == {1: frames}
    expected = [one for number, message in enumerate(sent) for one in (message, b"%d" % number)]
    assert frames == expected == list(pickle.loads(pickle.dumps(frames)))
    assert frames[-2:] == expected[-2:]
    assert frames.num_bytes == sum(map(len, expected))
    assert [one.numpy().tobytes() for _, one in sorted(back.items())] == expected
    assert [path.name for path in tmp_path.iterdir()] == ["state"]


def test_a_file_is_the_librarys(tmp_path: Path) -> None:
    """Byte for byte, whatever wrote it: every dtype, a number, nothing, and names that no header has as they are."""
    tensors = {str(dtype): torch.ones(3, 2).to(dtype) for dtype in streamed.DTYPES}
    tensors |= {"none": torch.zeros(0, 4), 'a "number" \\ ä': torch.tensor(3.0)}
    streamed.save_file(tmp_path / "ours", tensors, {"of": "ü"})
    safetensors.torch.save_file(tensors, tmp_path / "theirs", {"of": "ü"})
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()
    with pytest.raises(RunError, match=r"a tensor has dtype torch.complex64, which a checkpoint cannot hold"):
        streamed.save_file(tmp_path / "other", {"c": torch.zeros(2, dtype=torch.complex64)}, {})


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and one.numpy().tobytes() == other.numpy().tobytes()


@pytest.mark.parametrize("filled", [False, True])
def test_tensors_come_back_as_they_were(filled: bool, tmp_path: Path) -> None:
    tensors, messages = tensors_of(), messages_of(broadcast(torch.randn(500, 8)))
    entries = [Entry(1, SERVER, "client/a", "rows", "entities", 7)]
    kept, layout = condense(as_filled(tensors) if filled else tensors, entries, messages)
    streamed.save_file(tmp_path / "kept", kept, {})
    read = safetensors.torch.load_file(tmp_path / "kept")
    back, lines = expand({name: read[name] for name in read if name != HEADS}, layout, Stored(tmp_path / "kept", HEADS))
    tensors = with_messages(tensors, messages)
    assert lines == entries
    assert back.keys() == tensors.keys()
    assert all(same_bits(back[name], tensor) for name, tensor in tensors.items())
    assert layout.same == {"best.final.entities": "now.entities"}
    assert layout.rows == {"best.inputs.entities.0": 300}


def test_what_all_clients_receive_is_in_the_file_once(tmp_path: Path) -> None:
    rows = torch.randn(2000, 32)
    channel = broadcast(rows)
    messages = messages_of(channel)
    tensors = with_messages({}, messages)
    progress = Progress("run", entries=channel.transcript.entries)
    checkpoint.save(tmp_path / "state", {}, progress, messages)
    assert (tmp_path / "state").stat().st_size < 2 * rows.nbytes < sum(map(len, channel.transcript.frames[3])) / 5
    back, read = checkpoint.load(tmp_path / "state", "run")
    assert all(same_bits(back[name], tensor) for name, tensor in tensors.items())
    assert read.entries == channel.transcript.entries
    again = frames_of(view_below("frame.", back))
    assert again == channel.transcript.frames
    assert len({id(tail) for tail in again[3].tails()}) == 1
    assert not any(again[4].tails())
    assert checkpoint.fingerprint(back, read) == checkpoint.fingerprint(tensors, progress)


def test_filled_rows_are_read_as_they_stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Made whole one after the other, hundreds of tables left holes in memory as large as they."""
    filled = FilledRows(200_000, torch.tensor([3, 7, 9]), torch.ones(3, 8, dtype=torch.float64))
    checkpoint.save(tmp_path / "state", {"best.inputs.entities.0": filled}, Progress("run"))
    back, _ = checkpoint.load(tmp_path / "state", "run")
    monkeypatch.setattr(FilledRows, "of", None)
    tables = Kept.read(view_below("best.", back), ["entities"], ["client/a", "client/b"])["inputs"]
    assert list(tables["entities"]) == ["client/a"]
    assert torch.equal(tables["entities"]["client/a"], filled.whole())


@pytest.mark.parametrize("layout", [Layout(same={"a": "b"}), Layout(rows={"a": 3}), Layout(rows={"x": -1})])
def test_a_layout_of_another_file_is_refused(layout: Layout) -> None:
    kept = {"x/rows": torch.tensor([0]), "x/values": torch.ones(1, 2), "lines": torch.zeros(0, 6, dtype=torch.int64)}
    with pytest.raises(RunError, match="a condensed tensor is not there or does not fit"):
        expand(kept, layout, None)


@pytest.mark.parametrize("lines", [torch.zeros(2, 6), torch.zeros(2, 5, dtype=torch.int64), torch.full((1, 6), 9)])
def test_lines_that_are_none_are_refused(lines: torch.Tensor) -> None:
    with pytest.raises(RunError, match=r"no lines of a transcript|names a party that is not listed"):
        entries_of(lines, ["server"])


@pytest.mark.parametrize("filled", [False, True])
def test_a_small_file_holds_its_tensors_as_they_are(filled: bool, tmp_path: Path) -> None:
    """As it did before large ones were condensed, and other versions read it."""
    own, messages = tensors_of(), messages_of(broadcast(torch.randn(50, 4)))
    progress = Progress("run", entries=[Entry(1, "client/a", SERVER, "rows", "entities", 9)])
    checkpoint.save(tmp_path / "state", as_filled(own) if filled else own, progress, messages)
    tensors = with_messages(own, messages)
    with safe_open(tmp_path / "state", framework="pt") as handle:
        assert set(handle.keys()) == set(tensors)
        assert msgspec.json.decode(handle.metadata()["progress"])["schema"] == 3
    back, read = checkpoint.load(tmp_path / "state", "run")
    assert all(same_bits(back[name], tensor) for name, tensor in tensors.items())
    assert read.entries == progress.entries


@pytest.mark.parametrize("damage", ["layout", "tensor"])
def test_damage_to_a_condensed_file_is_found(damage: str, tmp_path: Path) -> None:
    path = tmp_path / "state"
    checkpoint.save(path, {"a": torch.randn(2**20 + 9), "b": torch.randn(40)}, Progress("run"))
    content = bytearray(path.read_bytes())
    content[content.index(b"layout") + 20 if damage == "layout" else len(content) - 100] ^= 1
    path.write_bytes(content)
    with pytest.raises(RunError, match=r"damaged: its content is not what was written|not a whole checkpoint"):
        checkpoint.load(path, "run")
