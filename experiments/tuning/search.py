"""Search space of a tuning, as on the command line.

    searched = read_searches(["learning_rate=log:1e-4:1e-2", "gamma=5,9,12"], spec)
    searched["gamma"].values                        # (5.0, 9.0, 12.0)

`NAME=A,B,C` selects one of these values; `NAME=LOW:HIGH` any value in the range, uniformly; `NAME=log:LOW:HIGH` uniformly on a
logarithmic scale. Bounds are included. Numbers are integers if the option accepts nothing else.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from fkgsec.errors import SpecError
from fkgsec.experiments.cli.options import DATA_FIELDS
from fkgsec.experiments.runs.choices import suggestion
from fkgsec.experiments.runs.spec import option_names
from fkgsec.experiments.tasks.spec import RunSpec
from fkgsec.federation.settings import fields_of
from fkgsec.text import shown

# Options that are not searched, and why.
FIXED = {
    **dict.fromkeys(DATA_FIELDS, "all trials train on the same data"),
    **dict.fromkeys(
        ("eval_sides", "eval_sample", "eval_candidates", "select", "rank_scope"), "it changes what validation measures"
    ),
    "eval_every": "it changes the rounds of validation",
    "seed": "the best of several seeds is luck; train the best options with --seeds",
    "algorithm": "each has its own settings; tune algorithms one by one",
    "defense": "validation does not measure protection; tune under each defense",
    "protocol_seed": "it is only for tests",
    "device": "it changes no figure",
}


class Searched(NamedTuple):
    """Values of an option: `values` to choose from, or a range from `low` to `high`, both included.

    Attributes:
        text: the values as on the command line.
        log: draw uniformly on a logarithmic scale.
        whole: draw integers.
    """

    text: str
    values: tuple[Any, ...] = ()
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    whole: bool = False


def read_searches(searches: Sequence[str], spec: RunSpec) -> dict[str, Searched]:
    """Read the searched values by option.

    Args:
        searches: values of `--search`.
        spec: the options that are not searched.

    Raises:
        SpecError: nothing is searched, an option is unknown, repeated or cannot be tuned, or it refuses a value.
    """
    if not searches:
        raise SpecError("search: no option is searched; add, for example, --search learning_rate=log:1e-4:1e-2")
    result: dict[str, Searched] = {}
    names = tunable(spec)
    for search in searches:
        name, equals, text = (part.strip() for part in search.partition("="))
        name = name.replace("-", "_")
        if not equals or not text:
            raise SpecError(f"search: {shown(search)} is not NAME=VALUES, such as gamma=5,9,12 or dim=16:256")
        if name not in names:
            why = f": {FIXED[name]}" if name in FIXED else suggestion(name, names)
            raise SpecError(f"search: {shown(name)} is not an option that can be tuned{why}")
        if name in result:
            raise SpecError(f"search: {name} is given twice")
        result[name] = _read(name, text, spec)
    return result


def tunable(spec: RunSpec) -> list[str]:
    """Return the names of the training options that can be tuned.

    Args:
        spec: selects task and algorithm.
    """
    settings, attacks = set(option_names(spec.task)), set(type(spec).attacks_type.__struct_fields__)
    names = [name for name in type(spec).options_type.__struct_fields__ if name in settings]
    names += [field.name for field in fields_of(type(spec.settings))]
    return [name for name in names if name not in FIXED and name not in attacks]


def _read(name: str, text: str, spec: RunSpec) -> Searched:
    log = text.startswith("log:")
    bounds = text.removeprefix("log:").split(":")
    # A colon separates a range; everything else is a list of values.
    if not log and len(bounds) != 2:
        values = tuple(_value(name, part.strip()) for part in text.split(","))
        for value in values:
            _check(name, value, spec)
        if len(set(values)) < len(values):
            raise SpecError(f"search: {name}: a value is given twice in {shown(text)}")
        return Searched(text, values)
    try:
        low, high = (float(bound) for bound in bounds)
    except ValueError as error:
        raise SpecError(f"search: {name}: {shown(text)} is not LOW:HIGH, two numbers") from error
    if not (math.isfinite(low) and math.isfinite(high) and low < high and (low > 0 or not log)):
        raise SpecError(f"search: {name}: {shown(text)}: LOW must lie below HIGH{', above 0' if log else ''}")
    # There is no type to ask: settings of algorithms and options differ. So try a fraction.
    whole = False
    try:
        _check(name, 2.5, spec)
    except SpecError as error:  # integer options refuse 2.5
        whole = "whole number" in str(error) or "`int`" in str(error)
    if whole and (low % 1 or high % 1):
        raise SpecError(f"search: {name} takes whole numbers; got {shown(text)}")
    # Both ends must be allowed; then every value between them is, too.
    for bound in (low, high):
        _check(name, int(bound) if whole else bound, spec)
    return Searched(text, (), low, high, log, whole)


def _value(name: str, text: str) -> Any:
    """Return a value as in a file: a number if possible, true and false, else text."""
    if not text:
        raise SpecError(f"search: {name}: a value is empty")
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return text


def _check(name: str, value: Any, spec: RunSpec) -> None:
    """Raise `SpecError` for a value that the option refuses."""
    try:
        spec.replace(**{name: value})
    except SpecError as error:
        raise SpecError(f"search: {error}") from error
