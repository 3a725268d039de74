"""The size of things: short functions and files, small folders, no parameter handed through many functions that do not use it.

Imports are checked in `test_imports`.
"""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("fkgsec", "attacks", "defenses", "protocols", "experiments")
FILES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
MAX_FUNCTION, MAX_FILE, MAX_FOLDER, MAX_HANDED_ON = 80, 600, 20, 6
Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(path: Path) -> Iterator[Function]:
    return (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, Function))


def length(function: Function) -> int:
    """Lines from `def` to the end, without the docstring."""
    assert function.end_lineno
    documented = ast.get_docstring(function) is not None
    docstring = function.body[0].end_lineno - function.body[0].lineno + 1 if documented else 0  # type: ignore[operator]
    return function.end_lineno - function.lineno + 1 - docstring


@pytest.mark.parametrize("package", PACKAGES)
def test_functions_fit_on_a_screen(package: str) -> None:
    long = [
        f"{path.relative_to(ROOT)}:{function.lineno} {function.name} has {length(function)} lines"
        for path in FILES
        if path.is_relative_to(ROOT / package)
        for function in functions(path)
        if length(function) > MAX_FUNCTION
    ]
    assert not long


def test_files_are_read_in_one_sitting() -> None:
    lines = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in FILES}
    assert {name: count for name, count in lines.items() if count > MAX_FILE} == {}


def test_folders_are_taken_in_at_a_glance() -> None:
    modules: dict[str, int] = defaultdict(int)
    for path in FILES:
        modules[str(path.parent.relative_to(ROOT))] += path.name != "__init__.py"
    assert {folder: count for folder, count in modules.items() if count > MAX_FOLDER} == {}


def parameters(function: Function) -> set[str]:
    arguments = function.args
    return {argument.arg for argument in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]}


def handed_on(function: Function) -> dict[str, set[str]]:
    """The parameters that a function only gives to others as they are: by name, the functions it gives them to."""
    given: dict[str, set[str]] = defaultdict(set)
    passed: dict[str, int] = defaultdict(int)
    read: dict[str, int] = defaultdict(int)
    for node in ast.walk(function):
        if isinstance(node, ast.Name):
            read[node.id] += 1
        if isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            for value in [*node.args, *(keyword.value for keyword in node.keywords)]:
                if isinstance(value, ast.Name):
                    passed[value.id] += 1
                    given[value.id].add(called)
    return {name: given[name] for name in parameters(function) if passed[name] and passed[name] == read[name]}


def test_no_parameter_is_handed_through_functions_that_do_not_use_it() -> None:
    by_name: dict[str, list[dict[str, set[str]]]] = defaultdict(list)
    for path in FILES:
        for function in functions(path):
            by_name[function.name].append(handed_on(function))
    # Calls are followed by name, where one function of ours alone has it.
    alone = {name: found[0] for name, found in by_name.items() if len(found) == 1}

    def depth(function: str, parameter: str, seen: frozenset[str]) -> int:
        if function not in alone or parameter not in alone[function] or function in seen:
            return 0
        return 1 + max(depth(called, parameter, seen | {function}) for called in alone[function][parameter])

    chains = {
        f"{parameter} from {function}": depth(function, parameter, frozenset())
        for function, given in alone.items()
        for parameter in given
    }
    assert max(chains.values()) > 1  # something is followed at all
    assert {chain: count for chain, count in chains.items() if count > MAX_HANDED_ON} == {}
