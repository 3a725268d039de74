"""The papers' figures in the shipped files, held against the papers' own texts where they are at hand.

FKGSEC_PAPERS names a folder with them: fedr.txt, feds.txt, fedlu.txt, pfedeg.txt.
"""

import os
import re
from pathlib import Path

import pytest

from fkgsec.experiments.papers.spec import Cell, read_experiment, shipped_experiments

PAPERS = os.environ.get("FKGSEC_PAPERS")
TEXTS = {"zhang2022_fedr": "fedr", "zhang2024_feds": "feds", "zhu2023_fedlu": "fedlu", "zhang2024_pfedeg": "pfedeg"}
FILES = [name for name in shipped_experiments() if name.rpartition("_")[0] in TEXTS]  # none that reduces another


def words_of(text: str) -> str:
    """The text with one space between words, and without marks of bold, underlines and multiples."""
    text = re.sub(r"</?[a-z]+>|\*|_|±[\d.]+", "", text)
    return " ".join(re.sub(r"(\d)x\b", r"\1", text).split())


def spellings(value: float) -> list[str]:
    """How a paper may print a figure: as it is, as per cent, as multiples of 0.0001, or with fewer digits."""
    return [f"{value:.4f}", f"{100 * value:.2f}", f"{1e4 * value:.2f}", f"{value:.2f}", f"{value:g}"]


def rows_of(name: str) -> list[list[float]]:
    rows: dict[str, list[Cell]] = {}
    for cell in read_experiment(shipped_experiments()[name]).cells:
        if cell.stated["data"] is None or "stand-in" not in str(cell.stated["data"]):  # which repeats another's figures
            rows.setdefault(cell.row, []).append(cell)
    return [[value for cell in row for value in cell.figures.values() if value is not None] for row in rows.values()]


@pytest.mark.skipif(not PAPERS, reason="FKGSEC_PAPERS is not set")
@pytest.mark.parametrize("name", FILES)
def test_every_printed_figure_stands_in_the_papers_text(name: str) -> None:
    text = words_of((Path(str(PAPERS)) / f"{TEXTS[name.rpartition('_')[0]]}.txt").read_text())
    printed = set(re.findall(r"\d+(?:\.\d+)?", text))
    for row in rows_of(name):
        for value in row:
            assert printed & set(spellings(value)), (name, value)


@pytest.mark.skipif(not PAPERS, reason="FKGSEC_PAPERS is not set")
@pytest.mark.parametrize(
    "name",
    [
        "zhang2022_fedr_table1", "zhang2022_fedr_table2", "zhang2022_fedr_table7", "zhang2024_feds_table2",
        "zhu2023_fedlu_table1", "zhu2023_fedlu_table4", "zhang2024_pfedeg_table1", "zhang2024_pfedeg_table2",
    ],
)  # fmt: skip
def test_rows_stand_in_the_papers_text_as_they_are(name: str) -> None:
    """Figure by figure in the same order, where the paper's table has our rows."""
    text = words_of((Path(str(PAPERS)) / f"{TEXTS[name.rpartition('_')[0]]}.txt").read_text())
    for row in filter(None, rows_of(name)):
        lines = {" ".join(map(style, row)) for style in ("{:.4f}".format, lambda value: f"{100 * value:.2f}")}
        assert any(line in text for line in lines), (name, row)
