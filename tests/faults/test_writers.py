"""Folders that two processes write in, or that cannot be written: one line, and what is there stays."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fkgsec.errors import RunError
from fkgsec.experiments.runs.run import execute
from fkgsec.experiments.runs.spec import make_spec
from fkgsec.experiments.runs.writing import LOCK_FILE, locked, write_atomically
from fkgsec.federation.checkpoint import Progress, load, save

TINY = {"size": 600, "dim": 4, "rounds": 1, "seed": 0}
HOLD = """
import sys
from pathlib import Path
from fkgsec.experiments.runs.writing import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def holder(folder: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout
    assert process.stdout.readline() == "held\n"
    return process


def test_another_process_is_refused_by_name_and_a_killed_one_holds_nothing(tmp_path: Path) -> None:
    other = holder(tmp_path)
    with pytest.raises(RunError, match=f"another process is writing here .process {other.pid} on "), locked(tmp_path):
        pass
    spec = make_spec(None, TINY)
    with pytest.raises(RunError, match="another process is writing here"):
        execute(spec, spec.load_graph(), tmp_path, attack=False)
    assert [path.name for path in tmp_path.iterdir()] == [LOCK_FILE]
    other.kill()
    other.wait()
    assert (tmp_path / LOCK_FILE).exists()  # stale, and no hindrance
    with locked(tmp_path):
        assert str(os.getpid()) in (tmp_path / LOCK_FILE).read_text()
        with pytest.raises(RunError, match=str(os.getpid())), locked(tmp_path):
            pass
    assert not (tmp_path / LOCK_FILE).exists()
    for stream in (other.stdin, other.stdout):
        assert stream
        stream.close()


def test_a_lock_is_no_link_to_somewhere_else(tmp_path: Path) -> None:
    (tmp_path / LOCK_FILE).symlink_to(tmp_path / "victim")
    with pytest.raises(RunError, match="cannot be written"), locked(tmp_path):
        pass
    assert not (tmp_path / "victim").exists()


def test_a_folder_in_the_way_of_a_file_is_one_line(tmp_path: Path) -> None:
    for way in ("record.json", "picture.png.part"):
        (tmp_path / way / "inside").mkdir(parents=True)
    for name in ("record.json", "picture.png"):
        with pytest.raises(RunError, match="cannot be written"):
            write_atomically(tmp_path / name, b"content")


def test_what_is_written_beside_a_file_does_not_follow_a_link(tmp_path: Path) -> None:
    (tmp_path / "record.json.part").symlink_to(tmp_path / "victim")
    write_atomically(tmp_path / "record.json", b"content")
    assert (tmp_path / "record.json").read_bytes() == b"content"
    assert not (tmp_path / "victim").exists()


def test_a_checkpoint_has_the_rights_of_other_files(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        save(tmp_path / "checkpoint", {}, Progress("run"))
    finally:
        os.umask(before)
    assert (tmp_path / "checkpoint").stat().st_mode & 0o777 == 0o640


def test_a_checkpoint_that_may_not_be_read_is_not_called_damaged(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"cannot be read \(No such file"):
        load(tmp_path / "checkpoint", "run")
    if not os.getuid():
        pytest.skip("root may read everything")
    save(tmp_path / "checkpoint", {}, Progress("run"))
    (tmp_path / "checkpoint").chmod(0)
    with pytest.raises(RunError, match=r"cannot be read \(Permission denied"):
        load(tmp_path / "checkpoint", "run")
