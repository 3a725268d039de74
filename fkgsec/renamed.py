"""Keywords that have got another name: the old one is accepted in one version, with a warning.

@renamed(make_exchange="make_transport")
def run_federation(..., make_transport=...): ...
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

Parameters = ParamSpec("Parameters")
Value = TypeVar("Value")


def renamed(**names: str) -> Callable[[Callable[Parameters, Value]], Callable[Parameters, Value]]:
    """Accept these old keywords, each by its new name. Raises `TypeError` where both are given."""

    def decorate(function: Callable[Parameters, Value]) -> Callable[Parameters, Value]:
        @functools.wraps(function)
        def wrapper(*args: Any, **given: Any) -> Any:
            for old in names.keys() & given.keys():
                if names[old] in given:
                    raise TypeError(f"{function.__name__}(): {old} is the old name of {names[old]}; give one of them")
                told = f"{old} is called {names[old]} now; the old name is accepted in this version alone"
                warnings.warn(told, DeprecationWarning, stacklevel=2)
                given[names[old]] = given.pop(old)
            return function(*args, **given)

        return wrapper

    return decorate
