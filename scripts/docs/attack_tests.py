"""Tests that show what each attack can and cannot find, read from their marks.

    @pytest.mark.planted("degrees", "norms that follow degrees: rank correlation above .98", {"degree": 70})
    @pytest.mark.null("degrees", "shuffled norms: the interval includes 0")

A planted signal states, by metric, the number of items that it is found in. `fkgsec.attacks.planted` has the same numbers, and a
verdict never says NO EVIDENCE of fewer items.

>>> sorted(attack_tests(TESTS)["degrees"])
['null', 'planted']
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
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
        items: of a planted signal, by metric the number of items that it is found in.
    """

    path: Path
    function: str
    about: str
    slow: bool
    items: Mapping[str, int] = MappingProxyType({})


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
                for kind, attack, about, items in _marks(function):
                    test = AttackTest(path, function.name, about, slow, items)
                    collected.setdefault(attack, {}).setdefault(kind, []).append(test)
    return collected


def planted_items(tests: Sequence[AttackTest]) -> dict[str, int]:
    """Return by metric the fewest items in which a test of the fast suite finds a planted signal."""
    fast = [test.items for test in tests if not test.slow]
    metrics = sorted({metric for items in fast for metric in items})
    return {metric: min(items[metric] for items in fast if metric in items) for metric in metrics}


def _marks(function: ast.FunctionDef) -> Iterator[tuple[str, str, str, Mapping[str, int]]]:
    for mark in function.decorator_list:
        if isinstance(mark, ast.Call) and isinstance(mark.func, ast.Attribute) and mark.func.attr in (PLANTED, NULL):
            # Marks have literal arguments: attack, description and, for a planted signal, items by metric.
            attack, about, *items = (ast.literal_eval(argument) for argument in mark.args)
            yield mark.func.attr, attack, about, items[0] if items else {}
