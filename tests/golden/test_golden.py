"""No figure moves unnoticed: tiny runs of everything against `records.json`. See README.md beside this file."""

import json
import math
import platform
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.golden.cases import CASES
from tests.golden.figures import Golden

RECORDS = json.loads(Path(__file__).with_name("records.json").read_text())
REL, ABS = 1e-6, 1e-9
MARKED = [pytest.param(case.name, marks=[pytest.mark.slow] if case.slow else [], id=case.name) for case in CASES]


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Golden:
    return Golden(tmp_path_factory.mktemp("golden"))


def differences(expected: Any, found: Any, place: str = "") -> Iterator[str]:
    """Where two figures differ by more than the tolerance, in words; a figure that only one side has counts."""
    if isinstance(expected, dict) and isinstance(found, dict):
        for key in [*expected, *(key for key in found if key not in expected)]:
            if key not in found or key not in expected:
                yield f"{place}{key}: {'is new' if key in found else 'is gone'}"
            else:
                yield from differences(expected[key], found[key], f"{place}{key} ")
    elif isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        for number, (one, other) in enumerate(zip(expected, found, strict=True)):
            yield from differences(one, other, f"{place}[{number}] ")
    elif isinstance(expected, float) or isinstance(found, float):
        numbers = isinstance(expected, int | float) and isinstance(found, int | float)
        if not numbers or not math.isclose(expected, found, rel_tol=REL, abs_tol=ABS):
            yield f"{place}was {expected}, is {found}"
    elif expected != found:
        yield f"{place}was {expected}, is {found}"


@pytest.mark.parametrize("name", MARKED)
@pytest.mark.filterwarnings("default")
def test_figures(golden: Golden, name: str) -> None:
    case: Mapping[str, Any] = RECORDS["cases"][name]
    moved = list(differences(case["figures"], golden.outcome(name).figures))
    assert not moved, f"{len(moved)} figures of {name} moved:\n" + "\n".join(moved[:20])


def test_bits(golden: Golden) -> None:
    """Tables to the last bit, on a machine and a torch like those of the file; elsewhere a sum may be taken in another order."""
    made = RECORDS["made"]
    here = (platform.machine(), torch.__version__.split("+")[0])
    if here != (made["machine"], made["versions"]["torch"].split("+")[0]):
        pytest.skip(f"records.json was made on {made['machine']} with torch {made['versions']['torch']}")
    moved = [
        f"{case.name}: {', '.join(differences(RECORDS['cases'][case.name]['digests'], golden.outcome(case.name).digests))}"
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
    assert list(differences({"a": [1.0, 2]}, {"a": [1.00001, 3], "c": 0})) == [
        "a [0] was 1.0, is 1.00001",
        "a [1] was 2, is 3",
        "c: is new",
    ]
    assert list(differences({"a": None}, {"a": 0.5})) == ["a was None, is 0.5"]
