"""Results: what they say of themselves, saved and loaded, and read from checkpoints of this version and the last."""

import dataclasses
from pathlib import Path

import pytest

from fkgsec.data.graph import FederatedGraph, KnowledgeGraph
from fkgsec.errors import DataError, RunError
from fkgsec.federation import checkpoint, loop
from fkgsec.federation.loop import CHECKPOINT, load_result, run_federation, run_identity
from fkgsec.kge.options import KgeOptions
from fkgsec.kge.result import KgeResult


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
