"""The papers that docstrings cite by a short name such as fedr.txt, as the files of their tables cite them."""

from __future__ import annotations

import functools
import re

from experiments.papers.spec import shipped_experiments


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
