"""Docstrings as Markdown for the site: examples become code, headings with an indented body become paragraphs of their own.

>>> as_markdown("Does a thing to `[N, W]`.\\n\\n    run(x < y)\\n\\nSource: ours.")
'Does a thing to `[N, W]`.\\n\\n```python\\nrun(x < y)\\n```\\n\\nSource: ours.'
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Collection, Iterator
from types import ModuleType
from typing import Any

from experiments.papers.spec import shipped_experiments

_CODE = re.compile(r"(`[^`]*`)")
_SECTIONS = ("Args:", "Attributes", "Returns:", "Raises:", "Yields:")


def as_markdown(docstring: str) -> str:
    """A docstring without its sections on arguments and attributes, which pages show as tables."""
    made = []
    for block in re.split(r"\n\s*\n", inspect.cleandoc(docstring)):
        lines = block.splitlines()
        if lines[0].startswith(_SECTIONS) or (lines[0].startswith("Attributes (") and lines[0].endswith(":")):
            continue
        if all(line.startswith("    ") for line in lines):
            made.append("\n".join(["```python", *(line[4:] for line in lines), "```"]))
        elif (
            len(lines) > 1 and not lines[0].startswith(("-", "|")) and all(one.startswith("    ") for one in lines[1:])
        ):
            made += [f"**{escaped(lines[0].rstrip(':'))}.**", escaped("\n".join(line[4:] for line in lines[1:]))]
        elif any(line.startswith(("- ", "1. ", "2. ")) for line in lines):
            made.append(_list(lines))
        else:
            made.append(escaped(block))
    return "\n\n".join(made)


def _list(lines: list[str]) -> str:
    """A paragraph with a list in it: Markdown wants an empty line before, and four spaces before what goes on."""
    made: list[str] = []
    for line in lines:
        item = re.match(r"(- |\d+\. )", line)
        if item and made and not made[-1].startswith(("- ", "1", "2", "3", "4", "    ")):
            made.append("")
        made.append(escaped(line) if item or not line.startswith(" ") else f"    {escaped(line.strip())}")
    return "\n".join(made)


def escaped(text: str) -> str:
    """Text with what HTML would read spelled out, but for what stands between backticks."""
    parts = _CODE.split(text)
    return "".join(part if part.startswith("`") else part.replace("<", "&lt;") for part in parts)


def cell(text: str) -> str:
    """Text on one line for a table."""
    return escaped(" ".join(text.split())).replace("|", "\\|")


def summary(docstring: str | None) -> str:
    """The first paragraph, on one line."""
    return " ".join(inspect.cleandoc(docstring or "").partition("\n\n")[0].split())


def described(docstring: str | None, names: Collection[str]) -> dict[str, str]:
    """What a docstring says of these attributes; several may stand on one line, or share one description.

    >>> described('''A thing.
    ...
    ...     Attributes:
    ...         rank: of it. columns: of the matrix.
    ...         low, high: the range.
    ...     ''', ["rank", "columns", "low", "high"])
    {'rank': 'of it.', 'columns': 'of the matrix.', 'low': 'the range.', 'high': 'the range.'}
    """
    text = inspect.cleandoc(docstring or "")
    found = re.search(r"^Attributes[^\n]*:\n(.*?)(?=\n\S|\Z)", text, re.DOTALL | re.MULTILINE)
    if found is None or not names:
        return {}
    one = "|".join(sorted(map(re.escape, names), key=len, reverse=True))
    places = list(re.finditer(rf"(?:^|(?<=[.;\s]))((?:{one})(?:, (?:{one}))*): ", " ".join(found[1].split())))
    flat = " ".join(found[1].split())
    made = {}
    for place, after in zip(places, [*places[1:], None], strict=True):
        words = flat[place.end() : after.start() if after else len(flat)].strip()
        made |= dict.fromkeys(place[1].split(", "), words)
    return made


def remarks(part: Any, word: str) -> list[str]:
    """Every `Source` or `Differs` of a module, its classes and their methods and functions, each as one line."""
    found: dict[str, None] = {}
    for docstring in _docstrings(part):
        for block in re.split(r"\n\s*\n", docstring):
            for words in re.split(r"(?=\b(?:Source:|Differs\b))", " ".join(block.split())):
                if words.startswith(word):
                    found[re.sub(rf"^{word}:?\s*", "", words).strip()] = None
    return list(found)


def _docstrings(part: Any) -> Iterator[str]:
    yield inspect.cleandoc(part.__doc__ or "")
    for one in vars(part).values():
        if isinstance(part, ModuleType) and getattr(one, "__module__", None) != part.__name__:
            continue
        if inspect.isclass(one):
            yield from _docstrings(one)
        elif inspect.isfunction(one):
            yield inspect.cleandoc(one.__doc__ or "")


@functools.cache
def papers() -> dict[str, str]:
    """Authors, year and title by short name, of every paper with a file of a table: `fedr` is that of `zhang2022_fedr_table2`."""
    found = {}
    for stem, path in shipped_experiments().items():
        name = re.match(r"[a-z]+\d{4}_([a-z]+)_", stem)
        cited = re.search(r"^paper: '?(.*?)'?$", path.read_text(), re.MULTILINE)
        if name and cited:
            found[name[1]] = cited[1].replace("''", "'")
    return found


def bibliography(text: str) -> list[str]:
    """Lines of Markdown on the papers that a text cites, if any."""
    cited = [name for name in papers() if f"{name}.txt" in text]
    return ["", "## Papers", "", *(f"- `{name}.txt`: {papers()[name]}" for name in cited)] if cited else []
