"""Tests that show what each attack can and cannot find, read from their marks.

    @pytest.mark.planted("degrees", "norms that follow degrees: rank correlation above .98")
    @pytest.mark.null("degrees", "shuffled norms: the interval includes 0")

>>> sorted(attack_tests(TESTS)["degrees"])
['null', 'planted']
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

TESTS = Path(__file__).parents[2] / "tests" / "attacks"
PLANTED, NULL = "planted", "null"


class AttackTest(NamedTuple):
    """Test of an attack with a known outcome.

    Attributes:
        path: file of the test.
        function: its name.
        about: signal or data, and the outcome that the test asserts.
        slow: whether it runs with `-m slow` only.
    """

    path: Path
    function: str
    about: str
    slow: bool


def attack_tests(folder: Path) -> dict[str, dict[str, list[AttackTest]]]:
    """Collect marked tests by attack and kind, which is `PLANTED` or `NULL`, without importing them.

    Args:
        folder: with `test_*.py` files.
    """
    collected: dict[str, dict[str, list[AttackTest]]] = {}
    for path in sorted(folder.rglob("test_*.py")):
        for function in ast.walk(ast.parse(path.read_text())):
            if isinstance(function, ast.FunctionDef) and function.name.startswith("test_"):
                # Source text suffices: importing the tests would import torch for a documentation page.
                slow = any(ast.unparse(mark) == "pytest.mark.slow" for mark in function.decorator_list)
                for kind, attack, about in _marks(function):
                    test = AttackTest(path, function.name, about, slow)
                    collected.setdefault(attack, {}).setdefault(kind, []).append(test)
    return collected


def _marks(function: ast.FunctionDef) -> Iterator[tuple[str, str, str]]:
    for mark in function.decorator_list:
        if isinstance(mark, ast.Call) and isinstance(mark.func, ast.Attribute) and mark.func.attr in (PLANTED, NULL):
            # Marks have two literal arguments: attack and description.
            attack, about = (ast.literal_eval(argument) for argument in mark.args)
            yield mark.func.attr, attack, about
