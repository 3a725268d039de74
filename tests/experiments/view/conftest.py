"""A folder of committed records: attacked ones of both tasks, a further attack, an audit, an old one, broken ones."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import pytest

from experiments.view.server import Viewer
from experiments.view.summaries import Library

RESULTS = Path(__file__).parents[3] / "experiments" / "results"
ATTACKED, ROTATE, GRAPHS = (
    "attacks/nations-transe.json",
    "attacks/nations-rotate.json",
    "attacks/graphs/properties-dp.json",
)
NASTY = "<b onclick=alert(1)>&\"'"


def put(folder: Path, record: str, name: str = "record.json") -> Path:
    """A committed record, or any text, in a folder of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    content = (RESULTS / record).read_text() if record.endswith(".json") else record
    (folder / name).write_text(content, encoding="utf-8")
    return folder / name


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "runs"
    put(root / "transe", ATTACKED)
    put(root / "transe" / "attacks" / "score-1", ATTACKED)
    put(root / "rotate", ROTATE)
    put(root / NASTY, ATTACKED)
    put(root / "molecules", GRAPHS)
    put(root / "old", "fb15k237-c3-fedr-published.json")
    put(root / "cut", '{"schema": "fkgsec/record/2", "spec": ')
    put(root / "audit", "unlearning/c3-delete.json", "verification.json")
    outside = json.loads((RESULTS / ATTACKED).read_text())
    outside["utility"]["mrr"] |= {"low": 0.9, "high": 0.95}
    put(root / "outside", json.dumps(outside))
    return root


@pytest.fixture
def library(folder: Path) -> Library:
    shutil.rmtree(folder / "old")  # an old one needs what other records are read without
    return Library(folder)


@pytest.fixture
def viewer(library: Library) -> Iterator[Viewer]:
    with Viewer(library, port=0) as made, serving(made):
        yield made


@contextmanager
def serving(viewer: Viewer) -> Iterator[None]:
    """While it answers."""
    thread = Thread(target=viewer.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield
    finally:
        viewer.shutdown()
        thread.join()
