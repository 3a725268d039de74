"""What is searched: options and their values, as they stand on the command line.

    searched = read_searches(["learning_rate=log:1e-4:1e-2", "gamma=5,9,12"], spec)
    searched["gamma"].values                        # (5.0, 9.0, 12.0)

`NAME=A,B,C` takes one of these values, `NAME=LOW:HIGH` any between two, both included, evenly; `NAME=log:LOW:HIGH` evenly by
their logarithm. Whole numbers stay whole where the option takes nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from fkgsec.errors import SpecError
from fkgsec.experiments.runs.choices import suggestion
from fkgsec.experiments.runs.spec import option_names
from fkgsec.experiments.tasks.spec import RunSpec
from fkgsec.federation.settings import fields_of
from fkgsec.text import shown

FIXED = {
    "data": "all trials train on the same data", "clients": "all trials train on the same data",
    "partition": "all trials train on the same data", "size": "all trials train on the same data",
    "split_seed": "all trials train on the same data", "triple_columns": "all trials train on the same data",
    "normalise": "all trials train on the same data", "clean": "all trials train on the same data",
    "seed": "the best of several seeds is luck; train the best options with --seeds",
    "algorithm": "each has settings of its own; tune them one by one",
    "defense": "validation does not see what it protects; tune below each defense",
    "protocol_seed": "it is for tests", "device": "it changes no figure",
    "eval_sides": "it changes what validation measures", "eval_sample": "it changes what validation measures",
    "eval_candidates": "it changes what validation measures", "eval_every": "it changes when validation looks",
    "select": "it changes what validation measures", "rank_scope": "it changes what validation measures",
}  # fmt: skip
"""Options that are not searched, and why."""


class Searched(NamedTuple):
    """One option's values: `values` to choose from; or `low` to `high`, both included, evenly or by their logarithm."""

    text: str
    values: tuple[Any, ...] = ()
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    whole: bool = False


def read_searches(given: Sequence[str], spec: RunSpec) -> dict[str, Searched]:
    """By option what is searched, in the order given.

    Args:
        spec: what stays as it is.

    Raises:
        SpecError: nothing is searched; an option that there is not, twice, or not to be tuned; values that it does not take.
    """
    if not given:
        raise SpecError("search: nothing is searched; give --search learning_rate=log:1e-4:1e-2 or the like")
    found: dict[str, Searched] = {}
    for one in given:
        name, equals, text = (part.strip() for part in one.partition("="))
        name = name.replace("-", "_")
        if not equals or not text:
            raise SpecError(f"search: {shown(one)} is not NAME=VALUES, such as gamma=5,9,12 or dim=16:256")
        if name not in (known := tunable(spec)):
            why = f": {FIXED[name]}" if name in FIXED else suggestion(name, known)
            raise SpecError(f"search: {shown(name)} is not an option that can be tuned{why}")
        if name in found:
            raise SpecError(f"search: {name} is given twice")
        found[name] = _read(name, text, spec)
    return found


def tunable(spec: RunSpec) -> list[str]:
    """Options of training, by name."""
    attacks = set(type(spec).attacks_type.__struct_fields__)
    own = [field.name for field in fields_of(type(spec.settings))]
    return [name for name in (*_plain(spec), *own) if name not in FIXED and name not in attacks]


def _plain(spec: RunSpec) -> list[str]:
    settings = set(option_names(spec.task))
    return [name for name in type(spec).options_type.__struct_fields__ if name in settings]


def _read(name: str, text: str, spec: RunSpec) -> Searched:
    log = text.startswith("log:")
    bounds = text.removeprefix("log:").split(":")
    whole = _is_whole(name, spec)
    if not log and len(bounds) != 2:
        values = tuple(_value(name, one.strip()) for one in text.split(","))
        for value in values:
            _check(name, value, spec)
        if len(set(values)) < len(values):
            raise SpecError(f"search: {name}: a value is given twice in {shown(text)}")
        return Searched(text, values)
    try:
        low, high = (float(one) for one in bounds)
    except ValueError as error:
        raise SpecError(f"search: {name}: {shown(text)} is not LOW:HIGH, two numbers") from error
    if not (math.isfinite(low) and math.isfinite(high) and low < high and (low > 0 or not log)):
        raise SpecError(f"search: {name}: {shown(text)}: LOW must lie below HIGH{', above 0' if log else ''}")
    if whole and (low % 1 or high % 1):
        raise SpecError(f"search: {name} takes whole numbers; got {shown(text)}")
    for bound in (low, high):
        _check(name, int(bound) if whole else bound, spec)
    return Searched(text, (), low, high, log, whole)


def _is_whole(name: str, spec: RunSpec) -> bool:
    """Whether the option takes whole numbers: half a one is refused."""
    try:
        _check(name, 2.5, spec)
    except SpecError as error:
        return "whole number" in str(error) or "`int`" in str(error)
    return False


def _value(name: str, text: str) -> Any:
    """A value as a file would have it: a number where it is one, true and false, else text."""
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    if not text:
        raise SpecError(f"search: {name}: a value is empty")
    return text


def with_values(spec: RunSpec, values: dict[str, Any]) -> Any:
    """The spec with these values. Raises `SpecError` where they do not go together."""
    return spec.replace(**values)


def _check(name: str, value: Any, spec: RunSpec) -> None:
    """Raises `SpecError` for a value that the option does not take, whatever the others are."""
    try:
        with_values(spec, {name: value})
    except SpecError as error:
        raise SpecError(f"search: {error}") from error
