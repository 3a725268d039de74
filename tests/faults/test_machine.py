"""What a machine refuses or sends in the midst of a long command: room, memory, rights, signals. One line, nothing lost."""

import os
import signal
from pathlib import Path

import pytest

from tests.faults.forked import Commands, Ended
from tests.faults.sandbox import FKGSEC, read_only
from tests.faults.workloads import EVERY, NAMES, ROUNDS, SMALL, Trials, outcome, passed

NOBODY = 65_534
REFUSED = 2
MIB = 2**20


def in_one_line(name: str, ended: Ended) -> bool:
    """Whether a command was refused as it should be, or did not need what was taken from it."""
    lines = [line for line in ended.err.splitlines() if not line.startswith("warning: ")]
    refused = ended.status in (1, REFUSED) and all(line.startswith("fkgsec: ") for line in lines) and lines != []
    return passed(name, ended.status) or refused


def place_in(folder: Path) -> Path:
    (folder / "out").mkdir(parents=True)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("most", [0, 300, 3_000, 8_000, 20_000, 60_000])
def test_files_that_may_not_grow(name: str, most: int, trials: Trials) -> None:
    """As on a full disk or beyond a quota, every write past so many bytes fails; afterwards the command goes on."""
    trials.undisturbed(name)
    trials.fresh()
    ended = trials.run(name, file=most)
    assert in_one_line(name, ended), ended
    assert [path for path in trials.place.rglob("*.part") if path.is_file()] == []
    assert trials.given_again(name) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("mebibytes", [20, 100, 400])
def test_memory_that_ends(name: str, mebibytes: int, trials: Trials) -> None:
    trials.undisturbed(name)
    trials.fresh()
    ended = trials.run(name, memory=mebibytes * MIB)
    assert in_one_line(name, ended), ended
    assert trials.given_again(name) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals(name: str, sent: signal.Signals, trials: Trials) -> None:
    """An interrupt says that the run goes on; what ends it otherwise says nothing. Given again, it ends as ever."""
    events = trials.undisturbed(name)[0].events
    for share in (1, 2, 3):
        trials.fresh()
        ended = trials.run(name, kill=sent, at_event=max(1, events * share // 4))
        if sent == signal.SIGINT:
            assert ended.status == 130, ended
            assert ended.err.endswith("given again\n")
            assert "Traceback" not in ended.err
        else:
            assert ended.status == -sent, ended
        assert trials.given_again(name) == []


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be somebody else")
@pytest.mark.slow
def test_a_folder_of_somebody_else(commands: Commands, tmp_path: Path) -> None:
    """Read it, yes; write in it, no, and that is said with the name of what cannot be written."""
    for folder in (tmp_path, *list(tmp_path.parents)[:3]):
        folder.chmod(0o755)
    place = place_in(tmp_path / "place")
    training = ["train", *SMALL, *ROUNDS, "--out", "out"]
    assert commands.run(training, place).status == 0
    before = outcome(place)
    assert commands.run(training, place, user=NOBODY).status == 0  # finished: it is read
    assert commands.run(["verify-run", "out"], place, user=NOBODY).status == 0
    for arguments in (
        ["attack", "--run", "out", "--unlinked-heads", "0"],
        ["train", *SMALL, *ROUNDS, "--out", "out", "--overwrite"],
        ["train", *SMALL, *ROUNDS, *EVERY, "--seed", "5", "--out", "new"],
        ["unlearn", "--run", "out", "--forget", "out/record.json"],
    ):
        ended = commands.run(arguments, place, user=NOBODY)
        assert in_one_line("train", ended), ended
        assert ended.status == REFUSED
    (place / "out" / "checkpoint.safetensors").chmod(0o600)
    ended = commands.run(["attack", "--run", "out", "--unlinked-heads", "0"], place, user=NOBODY)
    assert "checkpoint.safetensors: cannot be read (Permission denied)" in ended.err
    assert outcome(place) == before


@pytest.mark.slow
@pytest.mark.parametrize("size", ["40k", "120k", "400k"])
def test_a_disk_that_is_full(size: str, tmp_path: Path) -> None:
    training = [*FKGSEC, "attack", *SMALL, *ROUNDS, *EVERY, "--unlinked-heads", "5", "--out", "run"]
    listed = f"{' '.join(training)}; echo status $?; find . -name '*.part'"
    done = read_only(["sh", "-c", listed], tmp_path, size=size, MPLCONFIGDIR="/tmp", NUMBA_CACHE_DIR=numba_cache())
    assert "Traceback" not in done.stderr
    assert "status 2" in done.stdout or "status 0" in done.stdout
    assert ".part" not in done.stdout


def numba_cache() -> str:
    """Where machine code lies already, since the small disk has no room for it."""
    from fkgsec.protocols.core.compiled import __file__ as compiled

    return os.environ.get("NUMBA_CACHE_DIR", str(Path(compiled).parent))
