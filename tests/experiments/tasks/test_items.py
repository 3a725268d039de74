"""Outcomes of test items in records: written, read, refused where they contradict the record."""

from __future__ import annotations

import json
import tracemalloc
import zlib
from base64 import b64encode
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fkgsec.errors import RunError
from fkgsec.experiments.runs.record import read_record
from fkgsec.experiments.runs.run import RECORD_FILE, execute, load_run
from fkgsec.experiments.tasks.graph import GraphSpec
from fkgsec.experiments.tasks.items import TestItems
from fkgsec.experiments.tasks.kge import Spec

TINY = Spec(size=300, dim=8, rounds=1, num_negatives=4, batch_size=64, local_epochs=1, device="cpu")


@given(st.lists(st.lists(st.integers(2, 200_000), min_size=2, max_size=2), min_size=1, max_size=20), st.integers(0, 20))
def test_ranks_are_read_as_written(doubled: list[list[int]], cut: int) -> None:
    ranks, cut = np.array(doubled) / 2, min(cut, len(doubled))
    seen = [np.arange(cut) % 3, np.arange(len(ranks) - cut) % 3]
    items = TestItems.from_ranks([ranks[:cut], ranks[cut:]], seen)
    np.testing.assert_array_equal(items.ranks(), ranks)
    np.testing.assert_array_equal(items.where_seen(), np.concatenate(seen))
    assert items.width == (1 if ranks.max() < 128 else 2 if ranks.max() < 32_768 else 4)
    assert [ranks[rows].tolist() for rows in items.client_slices()] == [ranks[:cut].tolist(), ranks[cut:].tolist()]


def run_of(spec: Any, folder: Path) -> dict[str, Any]:
    execute(spec, spec.load_graph(), folder, attack=False)
    return json.loads((folder / RECORD_FILE).read_text())


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("items") / "run"
    return folder, run_of(TINY, folder)


def test_a_record_keeps_the_rank_of_every_test_triple(written: tuple[Path, dict[str, Any]]) -> None:
    items, (_, result) = read_record(written[0] / RECORD_FILE).items, load_run(written[0])
    assert items is not None
    assert items.sides == 2
    for rows, ranks in zip(items.client_slices(), result.test_ranks, strict=True):
        np.testing.assert_array_equal(items.ranks()[rows], ranks)


def test_a_record_keeps_which_test_graphs_are_classified_correctly(tmp_path: Path) -> None:
    run_of(GraphSpec(algorithm="fedavg", rounds=1, width=4, size=200, device="cpu"), tmp_path)
    items, (_, result) = read_record(tmp_path / RECORD_FILE).items, load_run(tmp_path)
    assert items is not None
    assert items.values()[:, 0].tolist() == np.concatenate([one.correct for one in result.test]).tolist()


@pytest.mark.parametrize(
    ("place", "value", "fault"),
    [
        ("outcomes", "", "items: outcomes cannot be read"),
        ("counts", [1, 2, 3], "items: clients have "),
        ("width", 3, "items: outcomes cannot be read"),
        ("seen", b64encode(b"x").decode(), "items: seen cannot be read"),
    ],
)
def test_items_that_are_damaged_are_refused(
    written: tuple[Path, dict[str, Any]], tmp_path: Path, place: str, value: object, fault: str
) -> None:
    changed = written[1] | {"items": written[1]["items"] | {place: value}}
    (tmp_path / "record.json").write_text(json.dumps(changed))
    with pytest.raises(RunError, match=fault):
        read_record(tmp_path / "record.json")


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"outcomes": zlib.compress(bytes(30_000_000), 9)}, "outcomes cannot be read"),
        ({"seen": zlib.compress(bytes(30_000_000), 9)}, "seen cannot be read"),
        ({"counts": [10**12]}, "counts must be"),
        ({"counts": [-5, 10]}, "counts must be"),
        ({"sides": 0}, "sides 0"),
    ],
)
def test_hostile_items_take_no_more_memory_than_honest_ones(change: dict[str, Any], fault: str) -> None:
    items = msgspec.structs.replace(TestItems.from_ranks([np.full((5, 2), 3.0)], [np.zeros(5)]), **change)
    read = items.where_seen if "seen" in change else items.values
    tracemalloc.start()
    with pytest.raises(ValueError, match=fault):
        read()
    assert tracemalloc.get_traced_memory()[1] < 1_000_000
    tracemalloc.stop()


def test_ranks_that_are_not_those_of_the_figures_are_refused(
    written: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    items = read_record(written[0] / RECORD_FILE).items
    assert items is not None
    ranks = items.ranks()
    ranks[0] += 1
    parts = [ranks[rows] for rows in items.client_slices()]
    other = TestItems.from_ranks(parts, [items.where_seen()[rows] for rows in items.client_slices()])
    changed = written[1] | {"items": written[1]["items"] | {"outcomes": b64encode(other.outcomes).decode()}}
    (tmp_path / "record.json").write_text(json.dumps(changed))
    with pytest.raises(RunError, match=r"items: .* has mrr"):
        read_record(tmp_path / "record.json")


def test_the_shared_models_ranks_are_kept_beside(tmp_path: Path) -> None:
    run_of(TINY.replace(algorithm="fedlu"), tmp_path)
    items, (_, result) = read_record(tmp_path / RECORD_FILE).items_shared, load_run(tmp_path)
    assert items is not None
    np.testing.assert_array_equal(items.ranks(), np.concatenate(result.shared_test_ranks))
