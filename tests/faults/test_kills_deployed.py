"""Server and parties of a deployed run, killed anywhere and started again: in the end record and models of an undisturbed run.

The parties are those of `fkgsec deploy party`, the server is that of `fkgsec deploy server` without Flower between
(`tests.faults.apart`).
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from fkgsec.experiments.deploy.core.measure import EMBEDDINGS
from tests.faults.forked import Commands, Ended
from tests.faults.workloads import outcome

KILLS = int(os.environ.get("FKGSEC_KILLS", "25"))  # of the server, and of a party
IN_A_ROW = 5
TINY = [
    "--size", "300", "--clients", "3", "--dim", "4", "--num-negatives", "4", "--batch-size", "64", "--rounds", "4", "--device",
    "cpu", "--eval-every", "1", "--patience", "0", "--laboratory",
]  # fmt: skip
SERVER = ["-m", "tests.faults.apart", "consortium"]


@pytest.fixture
def short(commands: Commands) -> Iterator[Path]:
    """A folder whose name leaves room for a socket's."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)
        commands.release()


class Apart:
    """A consortium in one place, which is started from nothing as often as is asked for."""

    def __init__(self, commands: Commands, root: Path, *options: str) -> None:
        self.commands, self.made, self.place = commands, root / "made", root / "place"
        self.made.mkdir()
        ended = commands.run(["deploy", "init", *TINY, *options, "--out", "consortium"], self.made)
        assert ended.status == 0, ended.err
        self.names = sorted(one.name for one in (self.made / "consortium" / "parties").iterdir())
        self.begin()
        self.whole = self.run()
        assert self.whole.status == 0, self.whole.err
        self.expected = self.left()

    def begin(self, kills: tuple[int, ...] = ()) -> int:
        """Start the parties of a fresh consortium, the first of which is killed so often; returns how often one was before."""
        killed = self.commands.release()
        shutil.rmtree(self.place, ignore_errors=True)
        shutil.copytree(self.made, self.place)
        for name in self.names:
            of_this = kills if name == self.names[0] else ()
            self.commands.keep(["deploy", "party", f"consortium/parties/{name}"], self.place, of_this)
        return killed

    def run(self, **faults: int | float) -> Ended:
        """The server, to its end."""
        return self.commands.run(SERVER, self.place, **faults)  # type: ignore[arg-type]

    def left(self) -> dict[str, object]:
        """The record, and every party's models of the best round."""
        found = outcome(self.place / "consortium")
        models = {name: found[f"parties/{name}/state/{EMBEDDINGS}"] for name in self.names}
        return models | {"record": found["server/run/record.json"]}


@pytest.mark.slow
@pytest.mark.parametrize("defense", ["", "psu,secagg"])
def test_kills_of_the_server(defense: str, commands: Commands, short: Path) -> None:
    apart = Apart(commands, short, *(["--defense", defense] if defense else []))
    count, number = 0, 0
    while count < KILLS:
        draw, moments, killed = random.Random(f"server {defense} {number}"), list[str](), True
        apart.begin()
        while killed and len(moments) < IN_A_ROW and count < KILLS:
            at_event = draw.randint(1, apart.whole.events // 2) if draw.random() < 0.5 else 0
            after_s = 0.0 if at_event else draw.uniform(0.01, apart.whole.seconds / 2)
            ended = apart.run(at_event=at_event, after_s=after_s)
            moments.append(f"event {at_event}" if at_event else f"{after_s:.2f} s")
            killed = ended.status == -signal.SIGKILL
            assert killed or ended.status == 0, (moments, ended)
            count += killed
        again = apart.run()
        assert (again.status, apart.left() == apart.expected) == (0, True), (moments, again)
        number += 1


@pytest.mark.slow
def test_kills_of_a_party(commands: Commands, short: Path) -> None:
    """In clear: under secure sums one that is killed in a session is out of that round, on purpose."""
    apart = Apart(commands, short)
    count, number = 0, 0
    while count < KILLS:
        draw = random.Random(f"party {number}")
        kills = tuple(draw.randint(1, 12) for _ in range(min(IN_A_ROW, KILLS - count)))
        apart.begin(kills)
        ended = apart.run()
        assert (ended.status, apart.left() == apart.expected) == (0, True), (kills, ended)
        killed = commands.release()
        assert killed > 0
        count += killed
        number += 1
