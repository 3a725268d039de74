"""Settings of an algorithm: a frozen struct beside its recipe, read by options, specs and the command line.

    class Settings(AlgorithmSettings, frozen=True):
        mu: Annotated[float, Meta(ge=0, le=1_000_000, description="weight of the proximal term")] = 0.1
        proximal: Annotated[Literal["distance", "squared"], Meta(description="how far rows moved")] = "squared"

    Settings(mu=-1)        # SpecError: mu must lie in 0..1,000,000; got -1
    [one.help for one in fields_of(Settings)]

A field is a number with its range, a choice of words, or a flag; each has a default, the paper's value, and a description.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec import inspect

from fkgsec.arguments import checked
from fkgsec.errors import SpecError


class AlgorithmSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The settings of an algorithm that has none; those of the others extend it. Checked when made."""

    def __post_init__(self) -> None:
        for field in fields_of(type(self)):
            msgspec.structs.force_setattr(self, field.name, field.checked(getattr(self, field.name)))

    @property
    def evaluates_before_broadcast(self) -> bool:
        """Return whether shared models are validated and tested after local training, before the broadcast of a round."""
        return False

    @property
    def resets_optimizer(self) -> bool:
        """Return whether each round starts a new optimizer although the recipe keeps it."""
        return False

    def num_present(self, count: int, round: int, seed: int) -> int:
        """Return how many of the participants of a round are there; the others have dropped out."""
        return count

    def exchanges(self, round: int, seed: int) -> bool:
        """Return whether shared rows cross in a round (1 is the first); in others clients train on from what they have."""
        return True

    def given(self) -> dict[str, Any]:
        """The settings that are not at their defaults, by name."""
        return {
            setting.name: value
            for setting in fields_of(type(self))
            if (value := getattr(self, setting.name)) != setting.default
        }


class SettingField(NamedTuple):
    """Setting of an algorithm.

    Attributes:
        kind: int, float, bool or str. default: what the algorithm takes when nothing is given.
        low, high: the range of a number, both ends allowed, `low` not where `above`, `high` not where `below`; None: no bound.
        choices: the words allowed; empty for numbers and flags.
        help: a line for `--help`, without default and range.
    """

    name: str
    kind: type
    default: Any
    low: float | None = None
    high: float | None = None
    above: bool = False
    choices: tuple[str, ...] = ()
    help: str = ""
    below: bool = False

    def checked(self, value: Any) -> Any:
        """The value as its kind, so that 4 and 4.0 are one. Raises `SpecError` with the name, the value and what is allowed."""
        value = checked(self.name, Literal[self.choices] if self.choices else self.kind, value)
        if self.kind in (bool, str):
            return value
        low = -math.inf if self.low is None else self.low
        high = math.inf if self.high is None else self.high
        inside = low <= value <= high and not (self.above and value == low) and not (self.below and value == high)
        if not (inside and math.isfinite(value)):
            raise SpecError(f"{self.name} must {self.range}; got {value}")
        return self.kind(value)

    @property
    def range(self) -> str:
        """The numbers allowed, in words that follow "must"."""
        if self.low is not None and self.high is not None and not (self.above or self.below):
            return f"lie in {self.low:g}..{self.high:,}"
        if self.low == 0 and self.above and self.high is None:
            return "be a positive number"
        low = "" if self.low is None else f"{'above' if self.above else 'at least'} {self.low:g}"
        high = "" if self.high is None else f"{'below' if self.below else 'at most'} {self.high:,}"
        return f"be {' and '.join(filter(None, (low, high))) or 'a finite number'}"


@functools.cache
def fields_of(kind: type[AlgorithmSettings]) -> tuple[SettingField, ...]:
    """The settings that a struct declares, in its order. Raises `SpecError` for a field without default or of another type."""
    return tuple(_field_of(kind, field) for field in msgspec.structs.fields(kind))


def _field_of(kind: type[AlgorithmSettings], field: msgspec.structs.FieldInfo) -> SettingField:
    field_type, help = inspect.type_info(field.type), ""
    if isinstance(field_type, inspect.Metadata):
        help, field_type = str((field_type.extra_json_schema or {}).get("description", "")), field_type.type
    if field.required:
        raise SpecError(f"{kind.__name__}.{field.name}: a setting needs a default")
    match field_type:
        case inspect.IntType() | inspect.FloatType():
            low = field_type.ge if field_type.gt is None else field_type.gt
            number = int if isinstance(field_type, inspect.IntType) else float
            high = field_type.le if field_type.lt is None else field_type.lt
            above, below = field_type.gt is not None, field_type.lt is not None
            return SettingField(field.name, number, field.default, low, high, above, (), help, below)
        case inspect.LiteralType():
            return SettingField(field.name, str, field.default, choices=tuple(map(str, field_type.values)), help=help)
        case inspect.BoolType() | inspect.StrType():
            plain = bool if isinstance(field_type, inspect.BoolType) else str
            return SettingField(field.name, plain, field.default, help=help)
    raise SpecError(f"{kind.__name__}.{field.name}: a setting is a number, a choice of words, text or a flag")


def make_settings(
    kind: type[AlgorithmSettings], values: AlgorithmSettings | Mapping[str, Any] | None, algorithm: str
) -> AlgorithmSettings:
    """The settings of an algorithm: those given, the others at their defaults.

    Args:
        values: of this algorithm; or by name, where None stands for the default; or of another algorithm, whose settings
            that are not at their defaults must be settings of this one, too.

    Raises:
        SpecError: a setting that the algorithm does not have, or a value that is not allowed.
    """
    if isinstance(values, AlgorithmSettings) and type(values) is kind:
        return values
    if not isinstance(values, AlgorithmSettings | Mapping | None):
        raise SpecError(f"settings must be those of {algorithm}, as a mapping or {kind.__qualname__}; got {values!r}")
    named = values.given() if isinstance(values, AlgorithmSettings) else dict(values or {})
    named = {name: value for name, value in named.items() if value is not None}
    names = [setting.name for setting in fields_of(kind)]
    for name in named:
        if name not in names:
            raise SpecError(f"{name} does not apply to {algorithm}, which has no such part; leave it out")
    return kind(**named)
