"""YAML files with the line of every key, for errors that name the line. Duplicate keys are errors."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import yaml
from yaml.composer import ComposerError

from fkgsec.errors import SpecError
from fkgsec.experiments.runs.choices import suggestion
from fkgsec.text import printable

Where = tuple[str, ...]


class Document(NamedTuple):
    """Content of a file as plain dicts, lists and scalars, with the line of each key by its path from the top."""

    path: Path
    content: Any
    lines: dict[Where, int]

    def wrong(self, where: Where, message: str) -> NoReturn:
        """Raise `SpecError` with file, line and key.

        Args:
            where: path of the key.
            message: the problem.
        """
        named = [printable(".".join(where), 200)] if where else []
        raise SpecError(": ".join([f"{self.path}:{self.line(where)}", *named, message]))

    def line(self, where: Where) -> int:
        """Return the line of a key, or of the nearest key above it that has one.

        Args:
            where: path of the key.
        """
        # Values that defaults add have no line of their own.
        while where and where not in self.lines:
            where = where[:-1]
        return self.lines.get(where, 1)

    def mapping(self, where: Where, value: Any, allowed: Iterable[str] | None = None) -> dict[str, Any]:
        """Check that a value is a non-empty mapping, and return it.

        Args:
            where: path of the value.
            value: content at that path.
            allowed: allowed keys; None allows any.

        Raises:
            SpecError: not a mapping, empty, or an unknown key.
        """
        if not isinstance(value, dict) or not value:
            kind = "nothing" if value in (None, {}) else type(value).__name__
            self.wrong(where, f"expected a mapping; got {kind}")
        for key in value:
            if allowed is not None and key not in (names := list(allowed)):
                self.wrong((*where, key), f"unknown key{suggestion(key, names)}")
        return value


class _Loader(yaml.SafeLoader):
    """Loader of plain values: no sexagesimal or octal numbers of YAML 1.1, no tags."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Compose a node; reject one with a tag.

        Args:
            parent: the containing node.
            index: position in the containing node.
        """
        event = self.peek_event()
        if getattr(event, "tag", None) not in (None, "!"):
            raise ComposerError(None, None, "tags are not supported", event.start_mark)
        return super().compose_node(parent, index)


# YAML 1.1 reads 1:30 as 90 and 010 as 8. These patterns replace its resolvers.
_DECIMAL = r"[-+]?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"
_WORDS = (
    ("bool", "yes|Yes|YES|no|No|NO|true|True|TRUE|false|False|FALSE|on|On|ON|off|Off|OFF", "yYnNtTfFoO"),
    ("int", "[-+]?(?:0|[1-9][0-9]*)", "-+0123456789"),
    ("float", rf"{_DECIMAL}|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)", "-+0123456789."),
    ("null", "~|null|Null|NULL|", ["~", "n", "N", ""]),
)
_Loader.yaml_implicit_resolvers = {}
for _kind, _pattern, _first in _WORDS:
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_kind}", re.compile(f"(?:{_pattern})$"), list(_first))


def read_document(path: Path) -> Document:
    """Read a YAML file.

    Raises:
        SpecError: the file cannot be read, is not YAML, repeats a key or uses an alias; the message names the line.
    """
    return _parsed(path, _text(path))


def read_shared(path: Path) -> Document:
    """Read a file like `read_document`, but parse the same text only once.

    Args:
        path: a file. Its content is shared, so callers must not change it.
    """
    return _parsed_once(path, _text(path))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise SpecError(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise SpecError(f"{path}: not UTF-8 text (byte {error.start})") from error


def _parsed(path: Path, text: str) -> Document:
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        lines: dict[Where, int] = {}
        content = None if node is None else _plain(path, loader, node, (), lines, set())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise SpecError(
            f"{path}:{mark.line + 1 if mark else 1}: not YAML ({error.problem or error.context})"
        ) from error
    except yaml.YAMLError as error:
        raise SpecError(f"{path}: not YAML ({' '.join(str(error).split())})") from error
    except RecursionError as error:
        raise SpecError(f"{path}: YAML is nested too deeply") from error
    except OverflowError as error:  # an escape beyond the last Unicode character
        raise SpecError(f"{path}: not YAML ({error})") from error
    return Document(path, content, lines)


_parsed_once = functools.lru_cache(maxsize=64)(_parsed)


def _plain(path: Path, loader: _Loader, node: yaml.Node, where: Where, lines: dict[Where, int], seen: set[int]) -> Any:
    line = node.start_mark.line + 1
    # The first line of a value is the line of its key.
    lines.setdefault(where, line)
    if isinstance(node, yaml.ScalarNode):
        try:
            node.value.encode()
            return loader.construct_object(node)
        except UnicodeEncodeError as error:
            raise SpecError(f"{path}:{line}: {'.'.join(where)}: has half of a surrogate pair") from error
        except ValueError as error:  # more digits than Python converts
            raise SpecError(f"{path}:{line}: {'.'.join(where)}: not a value ({error})") from error
    # An alias refers to the same node object. Nested aliases could expand to any size.
    if id(node) in seen:
        raise SpecError(f"{path}:{line}: {'.'.join(where)}: aliases are not supported; write the value out")
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        return [
            _plain(path, loader, item, (*where, str(number)), lines, seen) for number, item in enumerate(node.value)
        ]
    mapping: dict[str, Any] = {}
    for key, value in node.value:
        line = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode):
            raise SpecError(f"{path}:{line}: a key must be a plain word")
        if key.value in mapping:
            raise SpecError(f"{path}:{line}: {'.'.join((*where, key.value))}: given twice")
        lines[(*where, key.value)] = line
        mapping[key.value] = _plain(path, loader, value, (*where, key.value), lines, seen)
    return mapping
