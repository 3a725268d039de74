"""Pages name no durations, which `python -m benchmarks.readme` measures."""

import re
from pathlib import Path

import pytest

from benchmarks.readme import Part, measure, parts_of_pages
from fkgsec.errors import RunError

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", ROOT / "docs/start.md", *sorted((ROOT / "docs/tutorials").glob("*.md")))
# Not of how long something takes.
OTHERWISE = ("prints seconds per round",)


def test_no_page_names_a_duration() -> None:
    for line in "\n".join(page.read_text() for page in PAGES).splitlines():
        if not any(words in line for words in OTHERWISE):
            assert not re.search(r"\b(seconds|minutes?|hours?)\b|\b\d+ s\b", line), line


def test_the_commands_are_those_that_pages_show() -> None:
    setup, demo, forget, gate = parts_of_pages()
    assert len(setup.commands) == 3
    assert demo.commands[0].startswith("fkgsec attack ")
    assert len(forget.commands) > 1
    assert len(gate.commands) > 1


def test_measuring() -> None:
    part = Part("part", ["head -c 3145728 /dev/zero > file", "python -c 'sum(range(3_000_000))'; exit 3"], (0, 3))
    costs = measure(part)
    assert costs["MiB left on disk"] == 3
    assert costs["CPU s"] > 0
    assert costs["wall s"] > 0
    with pytest.raises(RunError, match="exit status 3"):
        measure(part._replace(statuses=(0,)))
