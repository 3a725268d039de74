"""What is done to files and messages before they are read (bytes flipped, cut, moved, put in), and what is asked of a reader.

    target = Target("spec", "spec.yaml", lambda folder: b"rounds: 3\n", lambda path: make_spec(path, {}))
    assert tried(target, tmp_path, 400) >= 400

Whatever comes, a reader gives a value or one of our errors, in a line, within seconds, and writes nothing. The inputs are
hypothesis's, from a fixed seed; one that fails is shown as it was found, since making it smaller takes minutes.
"""

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from fkgsec.errors import FkgsecError
from fkgsec.protocols.core.errors import ProtocolError

MOST_S, MOST_LETTERS = 10, 4000  # of CPU, so that other work on the machine does not count
QUICK, MANY = 8, int(os.environ.get("FKGSEC_INPUTS", "400"))  # inputs of a reader
Refusals = tuple[type[Exception], ...]
OURS: Refusals = (FkgsecError, ProtocolError)


class Target(NamedTuple):
    """A reader, the file that it reads (below a fresh folder), what a good one holds, what stands beside it, and its errors."""

    name: str
    file: str
    content: Callable[[Path], bytes]
    read: Callable[[Path], object]
    beside: Mapping[str, str] = MappingProxyType({})
    refusals: Refusals = OURS


NASTY = (
    b"\0", b"\xff\xfe", b"\x1b[2J", b"\n", b"\t", b"9" * 5000, b"[" * 5000, b"{" * 200, b'"', b"'", b"&a *a", b"-", b"../..",
    b"\xed\xa0\x80",
)  # fmt: skip
# Where in the file, what is done, how much of it, and what is put in.
CHANGES = st.lists(
    st.tuples(
        st.floats(0, 1),
        st.sampled_from(("flip", "cut", "drop", "repeat", "put")),
        st.integers(1, 200),
        st.one_of(st.sampled_from(NASTY), st.binary(min_size=1, max_size=20)),
    ),
    min_size=1,
    max_size=4,
)


def changed(content: bytes, changes: list[tuple[float, str, int, bytes]]) -> bytes:
    for where, what, size, put in changes:
        place = int(where * len(content))
        if what == "flip" and content:
            place = min(place, len(content) - 1)
            content = content[:place] + bytes([content[place] ^ (1 << size % 8)]) + content[place + 1 :]
        elif what == "cut":
            content = content[:place]
        elif what == "drop":
            content = content[:place] + content[place + size :]
        elif what == "repeat":
            content = content[: place + size] + content[place:]
        elif what == "put":
            content = content[:place] + put + content[place:]
    return content


def tried(target: Target, folder: Path, max_examples: int) -> int:
    """How many inputs a reader met, of which each gave a value or a refusal in a line."""
    file = folder / target.file
    file.parent.mkdir(parents=True, exist_ok=True)
    for name, beside in target.beside.items():
        (folder / name).write_text(beside)
    good = target.content(folder)
    for made in folder.glob("made*"):
        made.unlink()
    places = set(folder.rglob("*")) | {file}
    count = 0

    @settings(
        max_examples=max_examples, derandomize=True, database=None, deadline=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(changes=CHANGES)
    def one(changes: list[tuple[float, str, int, bytes]]) -> None:
        nonlocal count
        count += 1
        file.write_bytes(changed(good, changes))
        started = time.process_time()
        try:
            target.read(file)
        except target.refusals as error:
            line = str(error)
            assert len(line) < MOST_LETTERS
            assert "\n" not in line
        assert time.process_time() - started < MOST_S
        assert set(folder.rglob("*")) == places

    one()
    return count
