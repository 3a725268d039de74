"""Names and values from outside, where they are shown: no commands for a terminal, no links, no formulas, no bombs."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import typer
from rich.table import Table
from typer.testing import CliRunner

from fkgsec.errors import RunError, SpecError
from fkgsec.experiments.cli.console import expected_errors, make_console
from fkgsec.experiments.cli.main import app
from fkgsec.experiments.gate.verdict_formats import _sarif_text
from fkgsec.experiments.reporting.reading import find_records
from fkgsec.experiments.reporting.sheets import as_csv
from fkgsec.experiments.runs.documents import read_document
from fkgsec.experiments.runs.record import read_if_of, read_record
from fkgsec.experiments.runs.spec import make_spec
from fkgsec.text import printable, shown

ESCAPE = "\x1b]0;owned\x07\x1b[2J\x9b31mred\u202e"


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    rows = [f'{ESCAPE}{number % 7},=HYPERLINK(1),e{number % 5},train,"{ESCAPE}"' for number in range(40)]
    (tmp_path / "g.csv").write_text("\n".join(["head,relation,tail,split,client", *rows]) + "\n", encoding="utf-8")
    return tmp_path / "g.csv"


def test_control_characters_are_written_out() -> None:
    assert printable(ESCAPE + "\n") == r"\x1b]0;owned\x07\x1b[2J\x9b31mred\u202e\n"
    assert printable("a\tb\nc", lines=True) == "a\tb\nc"
    assert printable("Café 病院") == "Café 病院"
    assert shown(10**5000) == "a number of 16,610 bits"


def test_tables_and_lines_of_the_console_command_nothing() -> None:
    console, out = make_console(), io.StringIO()
    console.file = out
    table = Table(ESCAPE, title=ESCAPE)
    table.add_row(ESCAPE)
    console.print(table)
    console.print(ESCAPE)
    assert out.getvalue().count("\n") > 3
    assert not set(out.getvalue()) & set("\x1b\x07\x9b\u202e")


@pytest.mark.parametrize("command", [["data", "stats"], ["train", "--rounds", "0"], ["attack", "--colluder", ESCAPE]])
def test_commands_on_hostile_names(command: list[str], hostile: Path) -> None:
    done = CliRunner().invoke(app, [*command, "--data", str(hostile)])
    assert not isinstance(done.exception, ValueError | KeyError)
    shown_at_all = done.output
    assert shown_at_all
    assert not set(shown_at_all) & set("\x1b\x07\x9b\u202e")


def test_a_message_in_sarif_is_no_link_and_csv_no_formula() -> None:
    assert _sarif_text("[a](javascript:alert(1))\x1b", "b") == "[a] (javascript:alert(1))\ufffd\nb"
    frame = pd.DataFrame({"run": ["=1+1", "+1", "-x", "@a", "plain", None], "value": [-1.0] * 6}).astype(
        {"run": "string"}
    )
    assert as_csv(frame).splitlines() == [
        "run,value", "'=1+1,-1.0", "'+1,-1.0", "'-x,-1.0", "'@a,-1.0", "plain,-1.0", ",-1.0",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("rounds: 1:30", "got '1:30'"),
        ("rounds: 010", "got '010'"),
        ("rounds: 1_0", "got '1_0'"),
        ("rounds: 0x10", "got '0x10'"),
        (f"rounds: {'9' * 5000}", "not a value"),
        ("data: !!python/object/apply:os.system ['id']", "tags are not supported"),
        ("rounds: !!bool x", "tags are not supported"),
        ("data: !!timestamp x", "tags are not supported"),
        ('data: "\\ud800"', "half of a surrogate pair"),
        ("leak: " + "[" * 3000 + "]" * 3000, "nested too deeply"),
        ("[" * 10_000, "nested too deeply"),
        ("leak: &a [*a]", "aliases are not supported"),
        ("rounds: 1\nrounds: 2", ":2: rounds: given twice"),
        ("algorithm: " + "x" * 100_000, "xxx..."),
        ("rounds: [" + ",".join("x" * 10_000) + "]", "got ['x', 'x'"),
        ('"\\e[31mx": 1', r"\x1b[31mx: unknown key"),
    ],
)  # fmt: skip
def test_specs(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text(text)
    with pytest.raises(SpecError) as caught:
        make_spec(tmp_path / "spec.yaml", {})
    assert says in str(caught.value)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 2000


def test_plain_values_are_read_as_they_look(tmp_path: Path) -> None:
    text = "a: 1e-3\nb: .5\nc: -2\nd: yes\ne: 2026-01-01\nf: ~\ng: [1, 2.5]\nh: '7'\n"
    (tmp_path / "plain.yaml").write_text(text)
    expected = {"a": 0.001, "b": 0.5, "c": -2, "d": True, "e": "2026-01-01", "f": None, "g": [1, 2.5], "h": "7"}
    assert read_document(tmp_path / "plain.yaml").content == expected


@pytest.mark.parametrize(
    "content", ["[" * 100_000 + "]" * 100_000, '{"a":' * 100_000 + "1" + "}" * 100_000, "[]", "\xff"]
)
def test_one_hostile_record_does_not_hide_the_others(content: str, tmp_path: Path) -> None:
    records = Path(__file__).parents[2] / "results"
    (tmp_path / "good").mkdir()
    (tmp_path / "good" / "record.json").write_bytes((records / "ddb14-fed5-fedr-6rounds.json").read_bytes())
    (tmp_path / "bad").mkdir()
    bad = tmp_path / "bad" / "record.json"
    bad.write_bytes(content.encode("latin-1"))
    found = find_records([tmp_path])
    assert list(found.records) == ["good"]
    assert len(found.damaged) == 1
    with pytest.raises(RunError):
        read_record(bad)
    if content != "[]":
        with pytest.raises(RunError):
            read_if_of(bad, "fkgsec/comparison/1", dict)


def test_refusals_of_the_machine_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    errors = (
        OSError(30, "Read-only file system", "/run/record.json"),
        MemoryError("Unable to allocate 355. PiB"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory"),
        SpecError("x" * 10_000_000 + ESCAPE),
    )
    for error in errors:

        def command(error: Exception = error) -> None:
            raise error

        with pytest.raises(typer.Exit) as ended:
            expected_errors(command)()
        assert ended.value.exit_code == 2
        line = capsys.readouterr().err
        assert line.startswith("fkgsec: ")
        assert line.count("\n") == 1
        assert len(line) < 2100
    with pytest.raises(RuntimeError, match="a bug"):
        expected_errors(lambda: (_ for _ in ()).throw(RuntimeError("a bug")))()


@pytest.mark.parametrize(
    "closed", ["stdout", *(pytest.param(one, marks=pytest.mark.slow) for one in ("stderr", "ascii"))]
)
def test_streams_that_are_closed_or_take_ascii_alone(closed: str, hostile: Path) -> None:
    command = f"{sys.executable} -m fkgsec.experiments.cli.main data stats --data {hostile}"
    redirect = {"stdout": ">&-", "stderr": "2>&-", "ascii": ""}[closed]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"} if closed == "ascii" else dict(os.environ)
    done = subprocess.run(f"{command} {redirect}", shell=True, capture_output=True, text=True, env=environment)
    assert "Traceback" not in done.stderr
    assert done.returncode == (2 if closed == "stdout" else 0)
    assert ("standard output is closed" in done.stderr) == (closed == "stdout")


def test_json_keeps_names_as_they_are(hostile: Path) -> None:
    done = CliRunner().invoke(app, ["data", "stats", "--data", str(hostile), "--json", "-"])
    assert json.loads(done.stdout)["statistics"][0]["client"] == ESCAPE
