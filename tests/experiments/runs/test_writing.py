"""The write guard: nothing finished is written over unasked, by any command; what is no plain file is written to as it is."""

import os
import re
import shutil
import threading
from pathlib import Path

import msgspec
import pytest

from fkgsec.errors import RunError
from fkgsec.experiments.runs.record import read_record
from fkgsec.experiments.runs.run import ATTACKS, RECORD_FILE, attack_folder, execute, reuse
from fkgsec.experiments.runs.spec import Spec
from fkgsec.experiments.runs.writing import must_write, put_in_place, write_atomically, write_new
from tests.experiments.commands import fkgsec

SPEC = Spec(size=400, clients=2, dim=8, rounds=1, num_negatives=4, batch_size=64, unlinked_heads=0, device="cpu")
SMALL = ["--size", "400", "--clients", "2", "--dim", "8", "--rounds", "1", "--num-negatives", "4", "--batch-size", "64",
         "--device", "cpu"]  # fmt: skip
ASKS = "; name another place, or give --overwrite"


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A federation trained and attacked with a leak of 0.5."""
    folder = tmp_path_factory.mktemp("attacked") / "run"
    execute(SPEC, SPEC.load_graph(), folder, attack=True)
    return folder


@pytest.fixture
def run(attacked: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return shutil.copytree(attacked, tmp_path / "run")


class TestRuns:
    def test_another_attack_gets_a_record_of_its_own(self, run: Path) -> None:
        before = contents(run)
        assert fkgsec("attack", "--run", run, "--leak", "1", "--threat", "identifiers")[0] == 0
        after = contents(run)
        assert {name: after[name] for name in before} == before
        added = {Path(name).parent.as_posix() for name in after if name not in before}
        assert added == {
            attack_folder(Path(), msgspec.structs.replace(SPEC, leak=(1.0,), threat=("identifiers",))).as_posix()
        }
        (record,) = [read_record(path) for path in (run / ATTACKS).rglob(RECORD_FILE)]
        assert {(one.threat_model, one.leak) for one in record.rebuilt} == {("identifiers", 1.0)}

    def test_the_same_attack_finds_its_record_and_overwrite_makes_it_anew_and_no_other(self, run: Path) -> None:
        fkgsec("attack", "--run", run, "--leak", "1")
        before = contents(run)
        assert "Reused" in fkgsec("attack", "--run", run, "--leak", "1")[1]
        assert contents(run) == before
        (own,) = (run / ATTACKS).rglob(RECORD_FILE)
        whole, first = own.read_bytes(), (run / RECORD_FILE).read_bytes()
        own.write_bytes(whole.replace(b'"commit"', b'"commit" '))
        assert fkgsec("attack", "--run", run, "--leak", "1", "--overwrite")[0] == 0
        measured = re.compile(rb'"(attack_s|peak_bytes|record)": [^,\n]+')  # the last: the digest that they enter
        assert measured.sub(b"", own.read_bytes()) == measured.sub(b"", whole)
        assert (run / RECORD_FILE).read_bytes() == first

    def test_train_and_attack_into_a_finished_folder(self, run: Path) -> None:
        """The command that trained finds its record, other attack options add one, other training options are refused."""
        before = contents(run)
        for command in (["train"], ["attack", "--unlinked-heads", "0"]):
            assert fkgsec(*command, *SMALL, "--out", run)[0] == 0
            assert contents(run) == before
        assert fkgsec("attack", *SMALL, "--leak", "0.7", "--unlinked-heads", "0", "--out", run)[0] == 0
        assert len(list(run.rglob(RECORD_FILE))) == 2
        before = contents(run)
        status, _, err = fkgsec("train", *SMALL, "--gamma", "3", "--out", run)
        assert (status, f"{run}/" in err, len(err.splitlines())) == (2, True, 1)
        assert contents(run) == before
        assert fkgsec("train", *SMALL, "--gamma", "3", "--out", run, "--overwrite")[0] == 0
        assert read_record(run / RECORD_FILE).spec.gamma == 3
        assert not (run / ATTACKS).exists()

    def test_out_with_another_record(self, run: Path, tmp_path: Path) -> None:
        reuse(run, {"leak": (1.0,)}, tmp_path / "out")
        before = contents(tmp_path / "out")
        status, _, err = fkgsec("attack", "--run", run, "--leak", "0.3", "--out", tmp_path / "out")
        assert (status, err) == (2, f"fkgsec: {tmp_path}/out/record.json: is of another run or attack{ASKS}\n")
        assert contents(tmp_path / "out") == before
        assert fkgsec("attack", "--run", run, "--leak", "0.3", "--out", tmp_path / "out", "--overwrite")[0] == 0
        assert {one.leak for one in read_record(tmp_path / "out" / RECORD_FILE).rebuilt} == {0.3}

    def test_a_comparison_of_other_cases(self, tmp_path: Path) -> None:
        given = [*SMALL, "--unlinked-heads", "0", "--case", "none"]
        command = ["compare", *given, "--out", tmp_path / "compare", "--quiet"]
        assert fkgsec(*command)[0] == 0
        before = contents(tmp_path)
        for change in (["--case", "single"], ["--leak", "1"]):
            status, _, err = fkgsec(*command, *change)
            assert status == 2
            assert "comparison.json: compares other cases, options or data (none)" in err
            assert err.endswith(f"{ASKS}\n")
            assert contents(tmp_path) == before
        assert fkgsec(*command, "--leak", "1", "--overwrite")[0] == 0


class TestOtherOutputs:
    def test_files(self, run: Path, tmp_path: Path) -> None:
        out = tmp_path / "out.html"
        for command in (
            ["report", run, "--out", out],
            ["results", run, "--csv", out],
            ["results", run, "--parquet", out],
            ["attack", "--run", run, "--json", out],
            ["data", "stats", "--size", "200", "--json", out],
        ):
            out.write_text("somebody's")
            status, _, err = fkgsec(*command)
            assert (status, err.splitlines()[-1]) == (2, f"fkgsec: {out}: exists and differs{ASKS}"), command
            assert out.read_text() == "somebody's"
            out.unlink()
        out.write_text("somebody's")
        for words in (["--overwrite"], []):
            assert fkgsec(*command, *words)[0] == 0
            assert out.read_bytes() != b"somebody's"

    def test_folders(self, tmp_path: Path) -> None:
        out = tmp_path / "data"
        command = ["data", "generate", "--size", "200", "--clients", "2", "--out", out]
        assert "Written to" in fkgsec(*command)[1]
        before = contents(out)
        assert "Unchanged, identical files exist in" in fkgsec(*command)[1]
        status, _, err = fkgsec(*command, "--seed", "1")
        assert (status, err) == (2, f"fkgsec: {out}: exists and differs{ASKS}\n")
        assert contents(out) == before
        assert fkgsec(*command, "--seed", "1", "--overwrite")[0] == 0
        assert contents(out) != before
        (out / "mine.txt").write_text("somebody's")
        status, _, err = fkgsec(*command, "--overwrite")
        assert (status, "was not written by this command" in err) == (2, True)
        assert (out / "mine.txt").exists()
        assert [path.name for path in tmp_path.iterdir()] == ["data"]

    def test_reports_of_a_build_replace_their_like_and_nothing_else(self, tmp_path: Path) -> None:
        """An error of the policy comes after the way is made, so nothing is trained here."""
        policy, file = tmp_path / "policy.yaml", tmp_path / "record.json"
        policy.write_text("limits: {}")
        for option in ("--junit", "--sarif", "--markdown", "--json"):
            file.write_text('{"schema": "fkgsec/record/1"}')
            status, _, err = fkgsec("check", policy, option, file)
            assert (status, f"{file}: is not a {option[2:]} report of an earlier check{ASKS}" in err) == (2, True)
            assert file.exists()
        for option, earlier in (
            ("--junit", "<testsuites/>"),
            ("--sarif", '{"tool": {"driver": {"name": "fkgsec"}}}'),
            ("--markdown", "## fkgsec check: pass"),
            ("--json", '{"schema": "fkgsec/check/1"}'),
        ):
            file.write_text(earlier)
            status, _, err = fkgsec("check", policy, option, file)
            assert (status, "policy.yaml: federations: missing" in err, file.exists()) == (2, True, False)


class TestTheGuard:
    def test_equal_bytes_stay_untouched(self, tmp_path: Path) -> None:
        file = tmp_path / "file"
        write_new(file, b"1", overwrite=False)
        os.utime(file, ns=(1, 1))
        write_new(file, b"1", overwrite=False)
        assert file.stat().st_mtime_ns == 1
        with pytest.raises(RunError, match=f"file: exists and differs{ASKS}$"):
            write_new(file, b"2", overwrite=False)
        assert file.read_bytes() == b"1"
        write_new(file, b"2", overwrite=True)
        assert file.read_bytes() == b"2"

    def test_a_pipe_is_written_to_and_stays_a_pipe(self, tmp_path: Path) -> None:
        pipe = tmp_path / "pipe"
        os.mkfifo(pipe)
        read: list[bytes] = []
        reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
        reader.start()
        write_new(pipe, b"what is written", overwrite=False)
        reader.join(10)
        assert read == [b"what is written"]
        assert pipe.is_fifo()

    def test_a_link_is_followed_and_stays_a_link(self, tmp_path: Path) -> None:
        (tmp_path / "link").symlink_to(tmp_path / "file")
        write_atomically(tmp_path / "link", b"through it")
        assert (tmp_path / "link").is_symlink()
        assert (tmp_path / "file").read_bytes() == b"through it"

    @pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has it")
    def test_a_full_device_is_an_error_and_stays_a_device(self) -> None:
        with pytest.raises(RunError, match=r"/dev/full: cannot be written"):
            write_atomically(Path("/dev/full"), b"content")
        assert Path("/dev/full").is_char_device()

    def test_a_folder_is_replaced_whole(self, tmp_path: Path) -> None:
        place, whole = tmp_path / "place", tmp_path / "whole"
        for folder in (place, whole):
            folder.mkdir()
            (folder / folder.name).touch()
        assert must_write(place, same=lambda: False, ours=lambda: True, overwrite=True)
        put_in_place(whole, place)
        assert contents(tmp_path) == {"place/whole": b""}
