"""Every long command, killed anywhere and given again: in the end the same records, and nothing half written lies about.

Half of the kills come before a change of a file, which are the moments that matter, half after a random time.
"""

import os
import random
import shutil
import signal
from pathlib import Path

import pytest

from tests.faults.forked import Commands
from tests.faults.workloads import outcome, passed, workloads

KILLS = int(os.environ.get("FKGSEC_KILLS", "25"))  # of each command: 225 in all
NAMES = ("train", "train graphs", "attack", "compare", "experiment", "unlearn", "verify", "audit", "check")


def without_picture(folder: Path) -> list[Path]:
    """Runs that count as finished, since they have their record, and lack their picture."""
    return [path.parent for path in folder.rglob("record.json") if not (path.parent / "picture.png").exists()]


def killed(commands: Commands, name: str, arguments: list[str], place: Path, trials: range) -> list[str]:
    """Kill a command in each of these trials, in a fresh folder; returns what was wrong afterwards.

    What a trial does hangs on the command's name and its number alone.
    """
    wrong = list[str]()
    whole = place / "whole"
    (whole / "out").mkdir(parents=True)
    reference = commands.run(arguments, whole)
    assert passed(name, reference.status), reference.err
    expected = outcome(whole)
    shutil.rmtree(whole)
    for number in trials:
        (whole / "out").mkdir(parents=True)  # the same place, which stands in records
        draw, told = random.Random(f"{name} {number}"), []
        for _ in range(1 + (draw.random() < 0.3)):  # some are killed again while they go on
            first = 1 if number % 4 else max(1, reference.events - 8)  # the last are those of records and pictures
            at_event = draw.randint(first, reference.events) if number % 2 == 0 else 0
            after_s = 0.0 if at_event else draw.uniform(0.01, reference.seconds)
            ended = commands.run(arguments, whole, at_event=at_event, after_s=after_s)
            told.append(f"event {at_event}" if at_event else f"{after_s:.2f} s")
            wrong += [f"{name}, {told}: {bare} has no picture" for bare in without_picture(whole)]
            if ended.status != -signal.SIGKILL and not passed(name, ended.status):
                wrong.append(f"{name}, {told}: status {ended.status}: {ended.err}")
        again = commands.run(arguments, whole)
        found = outcome(whole)
        if not passed(name, again.status) or again.status != reference.status:
            wrong.append(f"{name}, {told}: given again, status {again.status}: {again.err}")
        elif found != expected:
            differing = [file for file in {*found, *expected} if found.get(file) != expected.get(file)]
            wrong.append(f"{name}, {told}: differ: {differing}")
        shutil.rmtree(whole)
    return wrong


@pytest.mark.slow
def test_a_training_that_is_killed_twice(commands: Commands, tmp_path: Path) -> None:
    arguments = workloads(tmp_path)["train"]
    assert killed(commands, "train", arguments, tmp_path, range(2)) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_kills(name: str, commands: Commands, home: Path, tmp_path: Path) -> None:
    assert killed(commands, name, workloads(home)[name], tmp_path, range(KILLS)) == []
