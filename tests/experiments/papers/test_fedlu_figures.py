"""FedLU's figures of data and embeddings, which print no figure and train nothing of their own."""

import pytest

from fkgsec.experiments.papers.results import run_key
from fkgsec.experiments.papers.spec import find_experiment, read_experiment
from fkgsec.experiments.tasks.spec import RunSpec

FIGURES = ("figure3", "figure5", "figure6", "figure7")


def keys(*names: str) -> set[RunSpec]:
    cells = [cell for name in names for cell in read_experiment(find_experiment(f"zhu2023_fedlu_{name}")).cells]
    return {run_key(spec, attack=False) for cell in cells for spec in cell.candidates}


def test_their_runs_are_those_of_tables_1_and_4() -> None:
    assert keys(*FIGURES) < keys("table1", "table4")


@pytest.mark.parametrize(
    ("name", "cells", "data"),
    [
        ("figure3", 2, {"FB15k-237-C3", "FB15k-237-R3"}),
        ("figure5", 7, {"FB15k-237-C3"}),
        ("figure6", 4, {"FB15k-237-C5", "FB15k-237-R5", "FB15k-237-C10", "FB15k-237-R10"}),
        ("figure7", 7, {"FB15k-237-C5"}),
    ],
)
def test_their_cells_are_of_these_data_and_the_paper_prints_nothing(name: str, cells: int, data: set[str]) -> None:
    found = read_experiment(find_experiment(f"zhu2023_fedlu_{name}")).cells
    assert len(found) == cells
    assert {cell.spec.data for cell in found if cell.spec} == data
    assert not any(cell.figures for cell in found)
