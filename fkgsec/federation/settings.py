"""Settings of an algorithm: a frozen struct next to its recipe, read by options, specs and the command line.

    class Settings(AlgorithmSettings, frozen=True):
        mu: Annotated[float, Meta(ge=0, le=1_000_000, description="weight of the proximal term")] = 0.1
        proximal: Annotated[Literal["distance", "squared"], Meta(description="distance term")] = "squared"

    Settings(mu=-1)        # SpecError: mu must lie in 0..1,000,000; got -1
    [setting.help for setting in fields_of(Settings)]

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
    """Settings of an algorithm without settings; those of others extend it. Validated on construction."""

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
        """Return the number of participants of a round that do not drop out.

        Args:
            count: number of participants.
            seed: of the run.
        """
        return count

    def exchanges(self, round: int, seed: int) -> bool:
        """Return whether shared rows are exchanged in a round; in other rounds clients train on from their own rows.

        Args:
            round: number of the round, from 1.
            seed: of the run.
        """
        return True

    def given(self) -> dict[str, Any]:
        """Return the settings that are not at their defaults, by name."""
        return {
            setting.name: value
            for setting in fields_of(type(self))
            if (value := getattr(self, setting.name)) != setting.default
        }


class SettingField(NamedTuple):
    """Setting of an algorithm.

    Attributes:
        name: of the setting.
        kind: int, float, bool or str.
        default: value if the user gives none.
        low, high: bounds of a number; None: no bound.
        above, below: whether `low` and `high` themselves are excluded.
        choices: allowed words; empty for numbers and flags.
        help: line for `--help`, without default and range.
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
        """Return the value as its kind, so that 4 and 4.0 are equal.

        Args:
            value: from the user.

        Raises:
            SpecError: the value is not allowed; the message has the name, the value and what is allowed.
        """
        value = checked(self.name, Literal[self.choices] if self.choices else self.kind, value)
        if self.kind in (bool, str):
            return value
        low = -math.inf if self.low is None else self.low
        high = math.inf if self.high is None else self.high
        # `above` and `below` exclude the bounds themselves.
        inside = low <= value <= high and not (self.above and value == low) and not (self.below and value == high)
        if not (inside and math.isfinite(value)):
            verb = "lie in" if ".." in self.allowed else "be"
            raise SpecError(f"{self.name} must {verb} {self.allowed}; got {value}")
        return self.kind(value)

    @property
    def allowed(self) -> str:
        """The values allowed, in words.

        >>> SettingField("mu", float, 0.1, low=0, high=10).allowed, SettingField("size", int, 3, low=1).allowed
        ('0..10', 'at least 1')
        """
        if self.choices:
            return ", ".join(self.choices)
        if self.kind in (bool, str):
            return "true, false" if self.kind is bool else "text"
        # The usual closed range has the shortest wording.
        if self.low is not None and self.high is not None and not (self.above or self.below):
            return f"{self.low:g}..{self.high:,}"
        if self.low == 0 and self.above and self.high is None:
            return "a positive number"
        low = "" if self.low is None else f"{'above' if self.above else 'at least'} {self.low:g}"
        high = "" if self.high is None else f"{'below' if self.below else 'at most'} {self.high:,}"
        return " and ".join(filter(None, (low, high))) or "a finite number"


@functools.cache
def fields_of(kind: type[AlgorithmSettings]) -> tuple[SettingField, ...]:
    """Return the settings that a struct declares, in order.

    Args:
        kind: the struct.

    Raises:
        SpecError: a field has no default or an unsupported type.
    """
    return tuple(_field_of(kind, field) for field in msgspec.structs.fields(kind))


def _field_of(kind: type[AlgorithmSettings], field: msgspec.structs.FieldInfo) -> SettingField:
    field_type, help = inspect.type_info(field.type), ""
    # The description and the range are annotations of the type.
    if isinstance(field_type, inspect.Metadata):
        help, field_type = str((field_type.extra_json_schema or {}).get("description", "")), field_type.type
    if field.required:
        raise SpecError(f"{kind.__name__}.{field.name}: a setting needs a default")
    match field_type:
        case inspect.IntType() | inspect.FloatType():
            # msgspec has separate fields for inclusive and exclusive bounds.
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
    """Construct the settings of an algorithm, with defaults for those left out.

    Args:
        kind: struct of the algorithm.
        values: settings of this algorithm; or a mapping by name, where None stands for the default; or settings of another
            algorithm, whose non-default settings must exist in this one.
        algorithm: its name, for messages.

    Raises:
        SpecError: the algorithm does not have a setting, or a value is not allowed.
    """
    if isinstance(values, AlgorithmSettings) and type(values) is kind:
        return values
    if not isinstance(values, AlgorithmSettings | Mapping | None):
        raise SpecError(f"settings must be those of {algorithm}, as a mapping or {kind.__qualname__}; got {values!r}")
    named = values.given() if isinstance(values, AlgorithmSettings) else dict(values or {})
    # None from the command line or a file means "not given".
    named = {name: value for name, value in named.items() if value is not None}
    names = [setting.name for setting in fields_of(kind)]
    for name in named:
        if name not in names:
            raise SpecError(f"{name} does not apply to {algorithm}, which has no such part; leave it out")
    return kind(**named)
