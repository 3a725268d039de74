"""No figure moves unnoticed: tiny runs of everything against `records.json`. See README.md beside this file."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from fkgsec.experiments.runs.record import vector_level
from tests.golden.cases import CASES
from tests.golden.compare import REL, REL_ELSEWHERE, differences
from tests.golden.figures import Golden

RECORDS = json.loads(Path(__file__).with_name("records.json").read_text())
LIKE_THE_FILE = (vector_level(), torch.__version__.split("+")[0]) == (
    RECORDS["made"]["vectors"],
    RECORDS["made"]["versions"]["torch"].split("+")[0],
)
"""Whether sums are taken in the order of the file: by like vector units and the same torch."""
AMPLIFIES = {"unlearn-fedlu-soft": 1e-2}
"""Relative tolerances on another CPU, where `REL_ELSEWHERE` is too small: soft labels amplify rounding errors."""
MARKED = [pytest.param(case.name, marks=[pytest.mark.slow] if case.slow else [], id=case.name) for case in CASES]


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Golden:
    return Golden(tmp_path_factory.mktemp("golden"))


@pytest.mark.parametrize("name", MARKED)
@pytest.mark.filterwarnings("default")
def test_figures(golden: Golden, name: str) -> None:
    case: Mapping[str, Any] = RECORDS["cases"][name]
    relative = REL if LIKE_THE_FILE else AMPLIFIES.get(name, REL_ELSEWHERE)
    moved = [str(one) for one in differences(case["figures"], golden.outcome(name).figures, relative=relative)]
    assert not moved, f"{len(moved)} figures of {name} moved:\n" + "\n".join(moved[:20])


def test_bits(golden: Golden) -> None:
    """Tables are equal to the last bit on vector units and a torch like those of the file."""
    made = RECORDS["made"]
    if not LIKE_THE_FILE:
        pytest.skip(f"records.json was made on {made['vectors']} with torch {made['versions']['torch']}")
    moved = [
        case.name
        for case in CASES
        if not case.slow and golden.outcome(case.name).digests != RECORDS["cases"][case.name]["digests"]
    ]
    assert not moved, f"the tables of {len(moved)} cases have other bits (figures: see test_figures):\n" + "\n".join(
        moved
    )


def test_every_case_is_in_the_file_and_nothing_else() -> None:
    assert list(RECORDS["cases"]) == [case.name for case in CASES]
    for case in CASES:
        assert RECORDS["cases"][case.name]["command"] == case.command


def test_a_difference_is_found() -> None:
    assert list(differences({"a": [1.0, 2], "b": "x"}, {"a": [1.0 + 1e-7, 2], "b": "x"})) == []
    found = list(differences({"a": [1.0, 2], "b": 1}, {"a": [1.00001, 3], "c": 0}))
    assert [str(one) for one in found] == [
        "a [0] was 1.0, is 1.00001", "a [1] was 2, is 3", "b was 1, is missing", "c was missing, is 0",
    ]  # fmt: skip
    assert [f"{one.size:.2g}" for one in found] == ["1e-05", "0.33", "inf", "inf"]
    assert [str(one) for one in differences({"a": None}, {"a": 0.5})] == ["a was None, is 0.5"]
