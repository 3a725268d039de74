"""Figures of docs/published-numbers.md and docs/artifact-evaluation.md: computed anew from files, tables and records."""

import os
import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from fkgsec.experiments.papers.reproduce import find_record
from fkgsec.experiments.papers.spec import find_experiment, read_experiment
from fkgsec.experiments.runs.record import read_record
from scripts.docs.published import (
    FILES,
    by_tenth,
    chance_of_multiples,
    draw,
    expected_by_tenth,
    fedr_cells,
    leak_shares,
    multiples,
    multiplicities,
    original_rows,
    printed,
    released_rows,
    shuffled_as_views,
)

ROOT = Path(__file__).parents[2]
RECORDS = ROOT / "results/tables"
PAGE = (ROOT / "docs/published-numbers.md").read_text()
ARTIFACT = (ROOT / "docs/artifact-evaluation.md").read_text()
needs_data = pytest.mark.skipif("FKGSEC_DATA" not in os.environ, reason="FKGSEC_DATA is not set")


def test_a_shuffle_of_views_copies_rows() -> None:
    rows = np.arange(3 * 20_000).reshape(-1, 3)
    counts = multiplicities(rows, shuffled_as_views(rows, seed=1))
    assert counts.sum() == len(rows)
    assert np.count_nonzero(counts) == pytest.approx(len(rows) / 2, rel=0.02)
    assert by_tenth(counts) == pytest.approx(expected_by_tenth(len(rows)), abs=0.1)
    exchanged = rows[np.random.default_rng(1).permutation(len(rows))]
    assert set(multiplicities(rows, exchanged)) == {1}, "a shuffle that exchanges rows repeats none"


@needs_data
def test_released_files_are_one_such_shuffle() -> None:
    original = original_rows()
    first, *others = (multiplicities(original, released_rows(clients)) for clients in FILES)
    assert (first.sum(), np.count_nonzero(first)) == (44_561, 22_249)
    assert all((counts == first).all() for counts in others)
    said = [f"{value:.2f}" for value in by_tenth(first)]
    assert f"| released files | {' | '.join(said)} |" in PAGE
    assert by_tenth(first) == pytest.approx(expected_by_tenth(len(original)), abs=0.05)


def test_leak_shares_are_those_of_the_page() -> None:
    for clients, share in leak_shares().items():
        row = re.search(rf"^\| DDB14-Fed{clients} .*? \(([\d.]+)%\)", PAGE, re.MULTILINE)
        assert row
        assert float(row[1]) == pytest.approx(100 * share, abs=0.06)


def test_fedr_figures_are_the_leak_share_and_little_more() -> None:
    shares, cells = leak_shares(), fedr_cells()
    above = [figure - shares[clients] for _, clients, figure in cells]
    assert len(cells) == 20
    assert [f"{value:.3f}" for value in (min(above), max(above))] == ["0.015", "0.050"]
    assert "is 0.015 to 0.050" in PAGE.replace("\n", " ")


def test_the_picture_has_every_cell() -> None:
    root = ElementTree.fromstring(draw())
    assert len(root.findall(".//{http://www.w3.org/2000/svg}circle")) == len(fedr_cells())


def test_accuracies_that_are_multiples() -> None:
    found, figures = multiples("liu2024_cefgl_table2")
    assert (len(found), figures) == (18, 72)
    methods = {row for row, _, _ in found}
    assert methods <= {
        f"{model} {name}" for model in ("GCN", "SAGE") for name in ("FedAvg", "FedProx", "FedPer", "GCFL", "FedStar")
    }
    expected, chance = chance_of_multiples(18, 72)
    assert f"expect {expected:.1f}" in PAGE
    assert f"probability of {chance:.0e}" in PAGE
    assert len(multiples("liu2024_cefgl_table1")[0]) == 1
    assert len(multiples("liu2024_cefgl_table2", 127)[0]) < 5, "another denominator finds none beyond chance"


@pytest.mark.parametrize("model", ["TransE", "ComplEx", "RotatE"])
def test_fedlu_tables(model: str) -> None:
    whole = printed("zhu2023_fedlu_table1", f"{model} Independent", "C3", "hits@1")
    less = printed("zhu2023_fedlu_table2", f"{model} re-trained", "local test", "hits@1")
    assert f"| {model} | {whole:.4f} | {less:.4f} | {less - whole:+.4f} |" in PAGE


def test_our_record_has_the_figure_of_the_page() -> None:
    figure = read_record(RECORDS / "kge/fedlu-table1-transe-independent-c3-seed0.json").utility["hits@1"]
    assert f"{figure.value:.4f} [{figure.low:.4f}, {figure.high:.4f}]" in PAGE


ROWS = re.findall(r"reproduce (\w+) '([^']+)'` \| (\d+) s \|", ARTIFACT)


@pytest.mark.parametrize(("table", "name", "seconds"), ROWS)
def test_cells_to_reproduce_have_a_record_that_took_as_long(table: str, name: str, seconds: str) -> None:
    experiment = read_experiment(find_experiment(table))
    cell = next(one for one in experiment.cells if one.name == name)
    place = RECORDS / ("cefgl" if "cefgl" in table else "kge")
    record = find_record(cell, place)[1]
    assert f"{sum(entry.seconds for entry in record.rounds):.0f}" == seconds


def test_the_page_names_cells() -> None:
    assert len(ROWS) == 7
