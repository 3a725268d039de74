"""Every long command, killed anywhere and given again: in the end the same records, and nothing half written lies about.

Half of the kills come before a change of a file, which are the moments that matter, half after a random time. What goes on after
a kill is killed again, up to five times, before it may end.
"""

import os
import random
import signal
from pathlib import Path

import pytest

from tests.faults.workloads import NAMES, Trials, passed

KILLS = int(os.environ.get("FKGSEC_KILLS", "25"))  # of each command
IN_A_ROW = 5


def without_picture(folder: Path) -> list[Path]:
    """Runs that count as finished, since they have their record, and lack their picture."""
    return [path.parent for path in folder.rglob("record.json") if not (path.parent / "picture.png").exists()]


def kill_once(trials: Trials, name: str, draw: random.Random, *, late: bool) -> tuple[bool, str, list[str]]:
    """Run a command until it is killed: whether it was (it may end before), when it was to be, and what was wrong."""
    reference, _ = trials.undisturbed(name)
    if late or draw.random() < 0.5:  # the last changes are those of records and pictures
        last = max(1, reference.events // 2)
        at_event = draw.randint(max(1, reference.events - 8), reference.events) if late else draw.randint(1, last)
        moment, ended = f"event {at_event}", trials.run(name, at_event=at_event)
    else:
        after_s = draw.uniform(0.01, reference.seconds / 2)
        moment, ended = f"{after_s:.2f} s", trials.run(name, after_s=after_s)
    wrong = [f"{bare} has no picture" for bare in without_picture(trials.place)]
    killed = ended.status == -signal.SIGKILL
    if not killed and not passed(name, ended.status):
        wrong.append(f"status {ended.status}: {ended.err}")
    return killed, moment, wrong


def tried(trials: Trials, name: str, kills: int) -> list[str]:
    """Kill a command so often; returns what was wrong. What is done hangs on the command's name alone, and on its speed."""
    count, number, found = 0, 0, list[str]()
    while count < kills:
        trials.undisturbed(name)
        trials.fresh()
        draw, moments, wrong, killed = random.Random(f"{name} {number}"), list[str](), list[str](), True
        while killed and len(moments) < IN_A_ROW and count < kills:
            killed, moment, seen = kill_once(trials, name, draw, late=number % 4 == 0 and not moments)
            count += killed
            moments.append(moment)
            wrong += seen
        found += [f"{name}, {moments}: {one}" for one in (*wrong, *trials.given_again(name))]
        number += 1
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_kills(name: str, trials: Trials) -> None:
    assert tried(trials, name, KILLS) == []
