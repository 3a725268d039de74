"""Results: what they say of themselves, saved and loaded, and read from checkpoints of this version and the last."""

import dataclasses
from pathlib import Path

import pytest
import torch

from fkgsec.data.graph import FederatedGraph, KnowledgeGraph
from fkgsec.errors import DataError, RunError
from fkgsec.federation import checkpoint, loop
from fkgsec.federation.loop import CHECKPOINT, load_result, run_federation, run_identity
from fkgsec.federation.options import replace
from fkgsec.kge.local.task import KgeTask
from fkgsec.kge.options import KgeOptions
from fkgsec.kge.result import KgeResult


def same(one: KgeResult, other: KgeResult) -> bool:
    left, right = one.tensors(), other.tensors()
    equal = left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)
    return (
        equal and one.rounds == other.rounds and one.row_names == other.row_names and one.best_round == other.best_round
    )


def test_a_finished_run_is_read_without_the_loop(
    uneven: FederatedGraph, options: KgeOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_federation(uneven, options, tmp_path)
    monkeypatch.delattr(loop, "train_and_upload")
    assert load_result(tmp_path / CHECKPOINT, uneven, options).best_round > 0
    tensors, progress = checkpoint.load(tmp_path / CHECKPOINT, run_identity(uneven, options))
    progress.finished = False
    checkpoint.save(tmp_path / CHECKPOINT, tensors, progress)
    with pytest.raises(RunError, match="stopped after round 2"):
        load_result(tmp_path / CHECKPOINT, uneven, options)


@pytest.mark.parametrize("algorithm", ["fede", "fedlu", "collective"])
def test_ranking_leaves_live_models_as_they_are(algorithm: str, uneven: FederatedGraph, options: KgeOptions) -> None:
    task = KgeTask(uneven, replace(options, algorithm=algorithm))
    first = task.snapshot()
    task.train(1, range(len(task.names)), lambda: None)
    live = task.snapshot()
    assert not torch.equal(live["entities"], first["entities"])
    task.outcome({table: first[table] for table in ("entities", "relations")}, first)
    assert all(torch.equal(rows, live[name]) for name, rows in task.snapshot().items())


def test_what_it_says_of_itself(uneven: FederatedGraph, options: KgeOptions) -> None:
    result = run_federation(uneven, options)
    assert len(repr(result)) < 200
    assert repr(result).startswith("KgeResult(fede, transe, dimension 8, 3 clients of uneven: round ")
    lines = result.summary().splitlines()
    assert lines[0] == "fede, transe, dimension 8, no defense"
    assert any(line.startswith("test mrr: ") for line in lines)
    assert any(line.startswith("bytes: ") for line in lines)
    frame = result.to_frame()
    assert list(frame.index) == [0, 1, 2]
    assert frame.loc[2, "loss"] == result.rounds[2].loss


def test_a_damaged_file_and_a_foreign_tensor_are_refused(
    uneven: FederatedGraph, options: KgeOptions, tmp_path: Path
) -> None:
    result = run_federation(uneven, options)
    (tmp_path / "bad").write_bytes(b"nothing")
    with pytest.raises(RunError, match="bad: damaged"):
        KgeResult.load(tmp_path / "bad", uneven, options)
    extra = dataclasses.replace(result, private=result.tables)
    extra.save(tmp_path / "extra")
    smaller = dataclasses.replace(uneven, clients=uneven.clients[:2])
    with pytest.raises(RunError, match=r"extra: has \S+, which a run of fede does not have"):
        KgeResult.load(tmp_path / "extra", smaller, options)


def test_a_graph_without_clients_is_to_be_divided(options: KgeOptions) -> None:
    graph = KnowledgeGraph.__new__(KnowledgeGraph)
    with pytest.raises(DataError, match=r"KnowledgeGraph has no clients"):
        run_federation(graph, options)  # type: ignore[arg-type]
