"""What the viewer lists of records: the command line's verdicts, without torch, and a line for what is broken."""

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from attacks.registry import ATTACKS
from experiments.cli.training.verdict import LEAKS, NOT_ATTACKED, found_in
from experiments.runs.compare import read_comparison
from experiments.runs.record import Record, encode_record, is_record, read_record
from experiments.view.opening import make_runs, open_list
from experiments.view.pages import BEYOND, status_of
from experiments.view.summaries import LEADING, Library
from fkgsec.errors import RunError
from tests.experiments.view.conftest import ATTACKED, NASTY, RESULTS, put


def test_leading_metrics_are_those_of_the_attacks() -> None:
    leads = msgspec.json.decode(LEADING.read_bytes())
    assert leads == {name: list(attack.leading) for name, attack in ATTACKS.items()}


def test_a_list_of_runs_needs_no_torch(library: Library) -> None:
    code = (
        "import sys; from pathlib import Path; from experiments.view import cli; from experiments.view.summaries import Library\n"
        "from experiments.view.pages import Filters, list_page, run_page\n"
        "library = Library(Path(sys.argv[1])); list_page(library, Filters())\n"
        "[run_page(library, run, rescores=True, token='') for run in library.runs() if run.summary]\n"
        "print(len(library.runs()), *({'torch', 'pandas', 'scipy', 'matplotlib', 'numba'} & set(sys.modules)))"
    )
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", code, library.root], cwd=root, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["7"]


def check_list_beside_command_line(record: Record, place: Path) -> None:
    """The counts and the worst figure of a record, in the list and in what `fkgsec attack` says first."""
    put(place, encode_record(record).decode())
    (run,) = Library(place).runs()
    found = found_in(record)
    leaking = [one for one in found if one.status == LEAKS]
    asked = [one for one in found if one.status != NOT_ATTACKED]
    shown = [one for one in run.whole.leading if not one.reason]
    assert len(shown) == len(asked)
    assert sum(status_of(one) == BEYOND for one in shown) == len(leaking)
    assert run.whole.worst == (leaking[0].cell.figure if leaking else None)
    assert run.whole.reached == record.utility[record.metric]
    assert run.whole.num_bytes == record.bytes.up + record.bytes.down
    assert run.whole.seconds == sum(entry.seconds for entry in record.rounds)


@pytest.mark.parametrize("name", [ATTACKED, "attacks/graphs/properties-dp.json", "active/hospitals-sums-1.json"])
def test_the_list_says_what_the_command_line_says(name: str, tmp_path: Path) -> None:
    check_list_beside_command_line(read_record(RESULTS / name), tmp_path / "run")


@pytest.mark.slow
def test_the_list_says_what_the_command_line_says_of_every_committed_record(tmp_path: Path) -> None:
    number = 0
    for path in sorted(RESULTS.rglob("*.json")):
        comparison = read_comparison(path)
        records = [case.record for case in comparison.cases] if comparison else []
        records += [read_record(path)] if not comparison and is_record(path) else []
        for record in records:
            number += 1
            check_list_beside_command_line(record, tmp_path / str(number))
    assert number > 200


def test_runs_and_audits_are_found_at_any_depth(folder: Path) -> None:
    library = Library(folder)
    names = {run.name: run for run in library.runs()}
    assert set(names) == {"transe", "transe/attacks/score-1", "rotate", NASTY, "molecules", "old", "cut", "outside"}
    assert len({run.identity for run in names.values()}) == len(names)
    assert names["transe/attacks/score-1"].trained == folder / "transe"
    assert names["old"].whole.figures
    (audit,) = library.audits()
    assert audit.summary
    assert audit.summary.verdict.outcome in ("forgotten", "not forgotten", "inconclusive")


def test_what_is_broken_is_listed_with_a_line(library: Library) -> None:
    broken = {run.name: run.broken for run in library.runs() if run.broken}
    assert set(broken) == {"cut", "outside"}
    assert broken["cut"].startswith("cannot be read (")
    assert "is not inside its own interval [0.9, 0.95]" in broken["outside"]
    assert all("\n" not in line for line in broken.values())


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "cannot be read"),
        ("[1, 2]", "Expected `object`"),
        ('"\x00"', "cannot be read"),
        ("[" * 100_000, "cannot be read"),
        ('{"schema": "fkgsec/record/9"}', "missing required field"),
    ],
)
def test_no_content_stops_the_list(content: str, said: str, tmp_path: Path) -> None:
    put(tmp_path / "run", content)
    (run,) = Library(tmp_path).runs()
    assert said in run.broken


def test_what_a_whole_reading_finds_broken_is_listed_so_until_its_file_changes(library: Library) -> None:
    contradictory = json.loads((RESULTS / ATTACKED).read_text())
    contradictory["best_round"] = 10_000
    file = put(library.root / "wrong", json.dumps(contradictory))
    (run,) = (run for run in library.runs() if run.name == "wrong")
    assert run.broken == ""
    with pytest.raises(RunError, match="best_round"):
        library.record(run)
    assert "best_round" in library.run(run.identity).broken
    put(library.root / "wrong", ATTACKED)
    assert file.stat().st_size
    assert library.run(run.identity).broken == ""
    assert library.record(library.run(run.identity)).best_round < 10_000
    file.unlink()
    with pytest.raises(RunError, match="no such run"):
        library.run(run.identity)


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no such folder"):
        Library(tmp_path / "none")


def test_how_long_it_takes_is_measured_on_a_whole_page(tmp_path: Path) -> None:
    make_runs(tmp_path, RESULTS / ATTACKED, 3)
    opened = open_list(tmp_path, 3)
    assert 0 < opened.cpu_s
    assert 0 < opened.wall_s
    assert 20 < opened.memory_mib  # of this process, tests and all
    with pytest.raises(RunError, match="did not list 4 runs"):
        open_list(tmp_path, 4)
