"""What pages say of time and room is what `python -m benchmarks.readme` measured."""

import re
from pathlib import Path

import msgspec
import pytest

from benchmarks.readme import (
    BEGIN,
    END,
    FORGET,
    GATE,
    RECORD,
    Measured,
    Part,
    Times,
    measure,
    parts_of,
    read_times,
    times_lines,
    with_table,
)
from fkgsec.errors import RunError

ROOT = Path(__file__).parents[2]
START = (ROOT / "docs/start.md").read_text()
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs/tutorials").glob("*.md")))
# Not of how long something takes.
OTHERWISE = ("prints seconds per round",)


def parts() -> list[Part]:
    return parts_of(FORGET.read_text(), GATE.read_text(), (ROOT / "Makefile").read_text())


TIMES = read_times() if RECORD.exists() else None
measured = pytest.mark.skipif(TIMES is None, reason="nothing is recorded, and the page says nothing")


def test_the_table_is_the_records() -> None:
    assert with_table(START, TIMES) == START


def test_no_duration_stands_outside_the_table() -> None:
    rest = START[: START.index(BEGIN)] + START[START.index(END) :]
    for line in "\n".join([rest, *(page.read_text() for page in PAGES)]).splitlines():
        if not any(words in line for words in OTHERWISE):
            assert not re.search(r"\b(seconds|minutes?|hours?)\b|\b\d+ s\b", line), line


@measured
def test_the_record_is_of_the_commands_that_pages_show() -> None:
    times = read_times()
    asked = {part.name: part.commands for part in parts()}
    assert any(part.name.startswith("`make demo`") for part in times.parts)
    for part in times.parts:
        assert part.commands == asked[part.name] or part.name == "setting up"
    assert times.commit
    assert times.dirty is False
    assert times.cores == 2


def test_a_busy_machine_shows_no_wall_seconds() -> None:
    part = Measured("part", ["true"], 123.4, 45.6, 7.89, 100.0)
    times = Times("", None, None, 2, "a processor", "Linux", "3.11", 0.0, "", [part])
    quiet, busy = (times_lines(msgspec.structs.replace(times, load=load)) for load in (0.1, 3.0))
    assert "wall s" in quiet[0]
    assert quiet[2] == "| part | 120 | 46 | 7.9 |"
    assert busy[2] == "| part | 46 | 7.9 |"
    assert "wall s" not in busy[0]
    assert any("busy with other work" in line for line in busy)


def test_measuring(tmp_path: Path) -> None:
    part = Part("part", ["head -c 3145728 /dev/zero > file", "python -c 'sum(range(3_000_000))'; exit 3"], (0, 3))
    found = measure(part)
    assert found.disk_mib == 3
    assert 0 < found.cpu_s
    assert found.wall_s > 0
    with pytest.raises(RunError, match="exit status 3"):
        measure(part._replace(statuses=(0,)))


@measured
@pytest.mark.slow
def test_the_demo_takes_what_the_record_says() -> None:
    """CPU seconds, which a busy machine moves by far less than a factor of three."""
    (demo,) = [part for part in parts() if part.name.startswith("`make demo`")]
    (recorded,) = [part for part in read_times().parts if part.name == demo.name]
    found = measure(demo)
    assert recorded.cpu_s / 3 < found.cpu_s < recorded.cpu_s * 3
    assert recorded.disk_mib / 1.5 < found.disk_mib < recorded.disk_mib * 1.5
