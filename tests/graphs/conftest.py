"""Folders in TU format, written from graphs."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fkgsec.graphs.sets import GraphSet


def write_lines(path: Path, rows: np.ndarray) -> None:
    rows = rows.reshape(len(rows), -1)
    path.write_text("".join(", ".join(map(str, row)) + "\n" for row in rows.tolist()))


@pytest.fixture
def write_tu(tmp_path: Path) -> Callable[[GraphSet], Path]:
    """Write a set as a folder, its edges in a shuffled order and each in both directions as they stand."""

    def write(graphs: GraphSet) -> Path:
        folder = tmp_path / graphs.name
        folder.mkdir()
        edges = np.random.default_rng(0).permutation(graphs.edges())
        write_lines(folder / f"{graphs.name}_A.txt", edges + 1)
        write_lines(folder / f"{graphs.name}_graph_indicator.txt", graphs.graph_of + 1)
        write_lines(folder / f"{graphs.name}_graph_labels.txt", graphs.classes * 2 - 1)
        if graphs.num_labels:
            write_lines(folder / f"{graphs.name}_node_labels.txt", graphs.labels + 3)
        if graphs.attributes.shape[1]:
            write_lines(folder / f"{graphs.name}_node_attributes.txt", graphs.attributes)
        return folder

    return write
