"""Validation of options by the types of their fields, with the same messages for Python, files and the command line.

    class Options(msgspec.Struct, metaclass=Named, frozen=True):
        rounds: int = 300

        def __post_init__(self) -> None:
            check_fields(self)

    Options(rounds=2.5)        # SpecError: rounds must be a whole number; got 2.5
    Options(roundz=3)          # SpecError: roundz is no option of Options; did you mean rounds?

Numbers of numpy become Python's; lists and one-dimensional arrays become tuples. Text is no number: "64" is rejected for an
integer. The options themselves check ranges.
"""

from __future__ import annotations

import difflib
import functools
import numbers
import operator
import sys
from collections.abc import Mapping
from types import NoneType
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from fkgsec.errors import SpecError
from fkgsec.text import shown

SettingsT = TypeVar("SettingsT", bound=msgspec.Struct)

_StructType: Any = type(msgspec.Struct)
_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
_MANY = {int: "whole numbers", float: "numbers", str: "names"}
_NOTHING = (NoneType, msgspec.UnsetType)


class Named(_StructType):
    """Metaclass of structs whose fields are options: an unknown name raises our error, which suggests the nearest one."""

    def __call__(cls, *positional: Any, **options: Any) -> Any:
        """Construct a struct. Raises `SpecError` for unknown names and for positional arguments."""
        names: tuple[str, ...] = cls.__struct_fields__
        if positional:
            raise SpecError(
                f"{cls.__name__} takes options by their names, as in {names[0]}=...; got {shown(positional[0])}"
            )
        for name in options:
            if name not in names:
                # Suggest the nearest option: most unknown names are typos.
                near = difflib.get_close_matches(name, names, n=1)
                hint = "; those of an algorithm alone stand in settings={...}" if "settings" in names else ""
                meant = f"; did you mean {near[0]}?" if near else f"{hint}; allowed: {', '.join(names)}"
                raise SpecError(f"{name} is no option of {cls.__name__}{meant}")
        return super().__call__(**options)


def check_fields(options: msgspec.Struct) -> None:
    """Check every field of a struct during construction, and convert values to Python's own numbers and tuples.

    Args:
        options: the struct; its fields are replaced.

    Raises:
        SpecError: a value has another type than its field; the message has the field, what is allowed and the value.
    """
    for name, kind in _kinds(type(options)):
        value = getattr(options, name)
        plain = checked(name, kind, value)
        if plain is not value:
            msgspec.structs.force_setattr(options, name, plain)


def check_values(kind: type[msgspec.Struct], values: dict[str, Any]) -> None:
    """Check values like `check_fields`, before a struct is constructed; unknown names are ignored.

    Args:
        kind: the struct.
        values: by field, such as from a file.
    """
    for name, field in _kinds(kind):
        if name in values:
            checked(name, field, values[name])


def settings_from(owner: str, kind: type[SettingsT], written: Mapping[str, str]) -> SettingsT:
    """Construct settings from the text that a user wrote for each.

    Args:
        owner: name for messages, such as "defense: dp".
        kind: the struct.
        written: text by setting.

    Raises:
        SpecError: a setting is unknown, or a value is not allowed.
    """
    try:
        return msgspec.convert(written, kind, strict=False)
    except msgspec.ValidationError as error:
        # msgspec reports the field as a path behind its message.
        field = str(error).partition(" - at `$.")
        key = field[2].rstrip("`")
        choices = get_args(get_type_hints(kind).get(key))
        allowed = f"; allowed: {', '.join(str(c) for c in choices)}" if choices and NoneType not in choices else ""
        raise SpecError(f"{owner}: {f'{key}: ' if key else ''}{field[0]}{allowed}") from error
    except SpecError as error:
        raise SpecError(f"{owner}: {error}") from error


def checked(name: str, kind: Any, value: Any) -> Any:
    """Convert a value to a type: int, float, bool, str, a `Literal`, a tuple of these, or a union; any other type
    accepts all values.

    Args:
        name: for messages.
        kind: the type.
        value: to convert.

    Raises:
        SpecError: the value has another type.

    >>> import numpy as np
    >>> checked("dim", int, np.int64(64)), checked("leak", tuple[float, ...], [0.5, 1])
    (64, (0.5, 1))
    >>> checked("dim", int, "64")
    Traceback (most recent call last):
    fkgsec.errors.SpecError: dim must be a whole number; got '64'
    """
    kinds = _alternatives(kind)
    # The common case first: options are constructed often, such as in sweeps.
    if type(value) in kinds and (type(value) in _NOTHING or type(value) in _WORDS):
        return value
    numpy = sys.modules.get("numpy")  # if it is not loaded, no value has its types
    if numpy and (isinstance(value, numpy.generic) or (isinstance(value, numpy.ndarray) and value.ndim == 1)):
        value = value.tolist()
    # Of a union such as `int | tuple[int, ...]`, the value's shape selects the member that errors name.
    listed = isinstance(value, list | tuple)
    filled = [alternative for alternative in kinds if alternative not in _NOTHING]
    return _as(
        name,
        next((alternative for alternative in filled if (get_origin(alternative) is tuple) == listed), filled[0]),
        value,
    )


def _as(name: str, kind: Any, value: Any) -> Any:
    if get_origin(kind) is Literal:
        if isinstance(value, str) and value in get_args(kind):
            return value
        raise SpecError(f"{name} must be one of {', '.join(map(str, get_args(kind)))}; got {shown(value)}")
    if get_origin(kind) is tuple:
        if isinstance(value, list | tuple):
            converted = tuple(checked(name, get_args(kind)[0], part) for part in value)
            # Return the same object if nothing changed, so that frozen structs are not rewritten.
            same = isinstance(value, tuple) and all(new is other for new, other in zip(converted, value, strict=True))
            return value if same else converted
        raise SpecError(f"{name} must be a list{_of(get_args(kind)[0])}; got {shown(value)}")
    if kind not in _WORDS:
        return value
    converted = _plain(kind, value)
    if converted is None:
        raise SpecError(f"{name} must be {_WORDS[kind]}; got {shown(value)}")
    return converted


def _plain(kind: type, value: Any) -> Any:
    """Return the value as Python's own type, the same object if possible; None if it has another type."""
    if kind in (bool, str):
        return (value if type(value) is kind else kind(value)) if isinstance(value, kind) else None
    # bool is a subclass of int, but True is no number of rounds.
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return None
    if isinstance(value, numbers.Integral):
        if kind is float and abs(operator.index(value)) > 2**1023:  # beyond any float
            return None
        return value if type(value) is int else operator.index(value)
    return None if kind is int else value if type(value) is float else float(value)


def _of(kind: Any) -> str:
    words = get_args(kind) if get_origin(kind) is Literal else ()
    return f" of {', '.join(words)}" if words else f" of {_MANY[kind]}" if kind in _MANY else ""


@functools.cache
def _alternatives(kind: Any) -> tuple[Any, ...]:
    """Return the types of a union without their annotations; the type itself if it is no union."""
    if get_origin(kind) is Annotated:
        return _alternatives(get_args(kind)[0])
    if get_origin(kind) in (Literal, tuple) or not get_args(kind):
        return (kind,)
    return tuple(inner for part in get_args(kind) for inner in _alternatives(part))


@functools.cache
def _kinds(struct: type[msgspec.Struct]) -> tuple[tuple[str, Any], ...]:
    fields = [(field.name, field.type) for field in msgspec.structs.fields(struct)]
    return tuple((name, kind) for name, kind in fields if any(_is_plain(inner) for inner in _alternatives(kind)))


def _is_plain(kind: Any) -> bool:
    return kind in _WORDS or get_origin(kind) in (Literal, tuple)
