"""A checkpoint in which anything changed is refused: flipped bits, truncation, parts swapped."""

import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from fkgsec.errors import RunError
from fkgsec.experiments.cli.main import app
from fkgsec.experiments.deploy.party import STATE
from fkgsec.experiments.runs.run import RECORD_FILE, execute, load_run, read_spec
from fkgsec.experiments.runs.spec import make_spec
from fkgsec.experiments.unlearning.unlearn import UNLEARNED_FILE, read_unlearned, triple_lines, unlearn_run
from fkgsec.federation import checkpoint
from fkgsec.federation.checkpoint import Progress, RoundEntry, load, save
from fkgsec.federation.loop import CHECKPOINT, run_identity
from fkgsec.unlearning.options import UnlearnOptions
from tests.deploy.conftest import Consortium

Change = Callable[[dict[str, torch.Tensor], dict[str, Any]], None]
FLIPS = 150
TRIPLES = {"size": 400, "clients": 2, "dim": 4, "rounds": 2, "num_negatives": 4, "unlinked_heads": 0, "device": "cpu"}
GRAPHS = {"algorithm": "cefgl", "clients": 2, "size": 80, "rounds": 2, "layers": 2, "width": 8, "device": "cpu"}


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


class Folder(NamedTuple):
    """What a run left: a file, and how the command that goes on from it reads it."""

    file: Path
    read: Callable[[], object]


def run_folder(root: Path, changes: dict[str, object]) -> Folder:
    spec = make_spec(None, TRIPLES | changes if changes.get("algorithm") != "cefgl" else changes)
    graph = spec.load_graph()
    execute(spec, graph, root, attack=False)
    identity = run_identity(graph, spec.federation_options())
    return Folder(root / CHECKPOINT, lambda: load(root / CHECKPOINT, identity))


def unlearned_folder(root: Path) -> Folder:
    run_folder(root / "run", {})
    graph = read_spec(root / "run").load_graph()
    client = graph.clients[0]
    (root / "forget.tsv").write_text(triple_lines(graph, client.name, client.train[:5]))
    options = UnlearnOptions(method="finetune", decay_epochs=1)
    target, _ = unlearn_run(root / "run", root / "forget.tsv", options, client=client.name, out=root / "out")
    return Folder(target / UNLEARNED_FILE, lambda: read_unlearned(target))


def server_folder(root: Path) -> Folder:
    apart = Consortium(root, rounds=2, defense="psu,secagg")
    apart.serve()
    place, digest = root / "server" / CHECKPOINT, apart.terms.digest.hex()
    return Folder(place, lambda: load(place, digest))


def party_folder(root: Path) -> Folder:
    apart = Consortium(root, rounds=2, defense="psu,secagg")
    apart.serve()
    return Folder(root / "hospital-1" / STATE, lambda: apart.party("hospital-1"))


MADE: dict[str, Callable[[Path], Folder]] = {
    "plain": lambda root: run_folder(root, {}),
    "defended": lambda root: run_folder(root, {"defense": "psu,secagg"}),
    "graphs": lambda root: run_folder(root, GRAPHS),
    "unlearned": unlearned_folder,
    "server apart": server_folder,
    "party apart": party_folder,
}


@pytest.mark.parametrize(
    "kind", ["plain", *(pytest.param(one, marks=pytest.mark.slow) for one in MADE if one != "plain")]
)
def test_every_change_of_what_a_run_left_is_refused(kind: str, tmp_path: Path) -> None:
    file, read = MADE[kind](tmp_path / "made")
    read()
    content, accepted, count = file.read_bytes(), list[str](), 0
    for what, damaged in changed(content, content[::-1]):
        file.write_bytes(damaged)
        count += 1
        try:
            read()
        except RunError:
            continue
        accepted.append(what)
    assert accepted == []
    assert count > FLIPS + 100
    file.write_bytes(content)
    read()


def test_commands_refuse_a_damaged_run(tmp_path: Path) -> None:
    """One bit of a table or of a message that is kept: nothing is attacked, gone on with or exported."""
    file, _ = run_folder(tmp_path / "run", {})
    content = file.read_bytes()
    for place in (-5, len(content) // 2):
        file.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        for command in (["attack", "--run"], ["train", "--rounds", "9", "--out"], ["export", "--out", "t", "--run"]):
            done = CliRunner().invoke(app, [*command, str(tmp_path / "run")])
            assert done.exit_code == 2
            assert f"{CHECKPOINT}: damaged" in done.stderr


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


def _rounds(tensors: dict[str, torch.Tensor], progress: dict[str, Any]) -> None:
    progress["rounds"] = []


def _share(tensors: dict[str, torch.Tensor], progress: dict[str, Any]) -> None:
    progress["rounds"][-1]["changed_levels"] = 1.5


def _best(tensors: dict[str, torch.Tensor], progress: dict[str, Any]) -> None:
    progress["best_round"] = 10**6


def _metric(tensors: dict[str, torch.Tensor], progress: dict[str, Any]) -> None:
    progress["metric"] = "accuracy"


def _missing(tensors: dict[str, torch.Tensor], progress: dict[str, Any]) -> None:
    del tensors["best.final.relations"]


def _transposed(tensors: dict[str, torch.Tensor], progress: dict[str, Any]) -> None:
    tensors["best.trained.entities"] = tensors["best.trained.entities"].T.contiguous()


def _double(tensors: dict[str, torch.Tensor], progress: dict[str, Any]) -> None:
    tensors["now.entities"] = tensors["now.entities"].double()


def _nan(tensors: dict[str, torch.Tensor], progress: dict[str, Any]) -> None:
    tensors["best.final.entities"][0, 0] = torch.nan


def _started(tensors: dict[str, torch.Tensor], progress: dict[str, Any]) -> None:
    tensors["best.started.entities.0"] = tensors["best.started.entities.0"][:-1]


def _no_best(tensors: dict[str, torch.Tensor], progress: dict[str, Any]) -> None:
    for name in [name for name in tensors if name.startswith("best.")]:
        del tensors[name]


def _frame(tensors: dict[str, torch.Tensor], progress: dict[str, Any]) -> None:
    tensors["frame.1.x"] = tensors["frame.1.000000"].clone()


IMPOSSIBLE: dict[Change, str] = {
    _rounds: "rounds: expected 0 to at most 2",
    _share: "a share outside 0..1",
    _best: "best_round: 1000000",
    _metric: "metric: accuracy",
    _missing: "best.final: relations is missing",
    _transposed: "best.trained.entities: torch.float32 of shape",
    _double: "now.entities: torch.float64",
    _nan: "best.final.entities: has a value that is not finite",
    _started: "best.started.entities.client/",
    _no_best: "its best round is missing",
    _frame: "damaged",
}


def change_checkpoint(path: Path, change: Change) -> None:
    """Change a checkpoint and compute its digest anew, as anybody can."""
    with safe_open(path, framework="pt") as handle:
        metadata, tensors = handle.metadata(), {name: handle.get_tensor(name) for name in handle.keys()}  # noqa: SIM118
    progress = json.loads(metadata["progress"])
    change(tensors, progress)
    content = json.dumps(progress)
    save_file(tensors, path, {"progress": content, checkpoint.DIGEST: checkpoint._digest(tensors, content)})


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    run_folder(folder, {})
    return folder


@pytest.mark.parametrize("change", IMPOSSIBLE, ids=lambda change: change.__name__.strip("_"))
def test_a_checkpoint_with_a_right_digest_and_an_impossible_state_is_refused(
    change: Change, finished: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    (folder / RECORD_FILE).unlink()  # which would give the change away
    change_checkpoint(folder / CHECKPOINT, change)
    with pytest.raises(RunError) as refused:
        load_run(folder)
    assert IMPOSSIBLE[change] in str(refused.value)
    assert "\n" not in str(refused.value)


def test_no_command_reads_a_checkpoint_that_is_not_the_records(finished: Path, tmp_path: Path) -> None:
    """A checkpoint with one other value and a right digest: `export` wrote its tables."""
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)

    def flip(tensors: dict[str, torch.Tensor], progress: dict[str, Any]) -> None:
        tensors["best.final.entities"][0, 0] *= -1

    change_checkpoint(folder / CHECKPOINT, flip)
    for command in (["export", "--out", str(tmp_path / "tables")], ["attack", "--out", str(tmp_path / "attack")]):
        result = CliRunner().invoke(app, [*command, "--run", str(folder)])
        assert result.exit_code == 2
        assert "was not computed from the checkpoint" in result.output.replace("\n", " ")
