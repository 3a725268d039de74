"""Where two outcomes of a golden case differ.

[str(one) for one in differences({"mrr": [0.25, 0.2, 0.3]}, {"mrr": [0.26, 0.2, 0.3]})]
["mrr [0] was 0.25, is 0.26"]
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

REL, ABS = 1e-6, 1e-9
REL_ELSEWHERE = 1e-4  # on another CPU, whose vector units sum in another order
MISSING = "missing"


class Difference(NamedTuple):
    """One figure that moved; `MISSING` on the side that does not have it."""

    place: str
    was: Any
    found: Any

    def __str__(self) -> str:
        return f"{self.place}was {self.was}, is {self.found}"

    @property
    def size(self) -> float:
        """The relative change; infinite for what is no number on both sides."""
        if not all(isinstance(one, int | float) for one in (self.was, self.found)):
            return math.inf
        return abs(self.found - self.was) / max(abs(self.was), abs(self.found))


def differences(was: Any, found: Any, place: str = "", relative: float = REL) -> Iterator[Difference]:
    """Yield every figure that differs by more than `relative`; one that only one side has counts."""
    if isinstance(was, dict) and isinstance(found, dict):
        for key in [*was, *(key for key in found if key not in was)]:
            yield from differences(was.get(key, MISSING), found.get(key, MISSING), f"{place}{key} ", relative)
    elif isinstance(was, list) and isinstance(found, list) and len(was) == len(found):
        for number, (one, other) in enumerate(zip(was, found, strict=True)):
            yield from differences(one, other, f"{place}[{number}] ", relative)
    elif isinstance(was, float) or isinstance(found, float):
        numbers = isinstance(was, int | float) and isinstance(found, int | float)
        if not numbers or not math.isclose(was, found, rel_tol=relative, abs_tol=ABS):
            yield Difference(place, was, found)
    elif was != found:
        yield Difference(place, was, found)
