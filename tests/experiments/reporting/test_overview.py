"""The static page of all runs: figures of the records, damaged files, hostile names, audits, refusals."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fkgsec.errors import RunError
from fkgsec.experiments.cli.main import app
from fkgsec.experiments.reporting.cli import render_overview
from fkgsec.experiments.reporting.sheets import interval
from fkgsec.experiments.reporting.verdict import verdict_of
from fkgsec.experiments.runs.record import read_record

RESULTS = Path(__file__).parents[3] / "results"
ATTACKED, GRAPHS = "attacks/nations-transe.json", "attacks/graphs/properties-dp.json"
NASTY = "<b onclick=alert(1)>&\"'"


def put(folder: Path, record: str, name: str = "record.json") -> None:
    """Write a committed record, or any text, into a folder of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    content = (RESULTS / record).read_text() if record.endswith(".json") else record
    (folder / name).write_text(content, encoding="utf-8")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "runs"
    put(root / "transe", ATTACKED)
    put(root / NASTY, ATTACKED)
    put(root / "molecules", GRAPHS)
    put(root / "cut", '{"schema": "fkgsec/record/2", "spec": ')
    put(root / "audit", "unlearning/c3-delete.json", "verification.json")
    return root


def fkgsec(*arguments: object, status: int = 0) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == status, result.output
    return result.output


def test_the_page_has_every_run_audit_and_damaged_file(folder: Path) -> None:
    about, page = render_overview(folder)
    record = read_record(RESULTS / ATTACKED)
    assert about == "3 runs, 1 damaged"
    assert page.count(interval(record.utility["mrr"])) == 2
    assert re.search(r"<li>[^<]*cut[^<]*record\.json", page)
    assert '<th scope="row">audit</th>' in page
    verdict = json.loads((RESULTS / "unlearning/c3-delete.json").read_text())["verdict"]["outcome"]
    assert f'<td data-head="verdict">{verdict}</td>' in page


def test_names_are_escaped_and_nothing_is_loaded(folder: Path) -> None:
    _, page = render_overview(folder)
    assert "<b onclick" not in page
    assert "&lt;b onclick" in page
    assert not re.search(r"(src|href)=\"(https?:)?//", page)


def test_a_run_that_was_not_attacked_is_said_to_be_so(tmp_path: Path) -> None:
    put(tmp_path / "plain", "tables/kge/fedr-table2-transe-fedr-ddb14-c20-seed0.json")
    assert '<td data-head="leaks">NOT ATTACKED</td>' in render_overview(tmp_path)[1]
    put(tmp_path / "transe", ATTACKED)
    _, page = render_overview(tmp_path)
    assert f">{verdict_of(read_record(RESULTS / ATTACKED).figures).brief}</td>" in page
    assert page.count(">–</td>") < page.count("worst figure")


def test_folders_without_runs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"no record\.json at any depth"):
        render_overview(tmp_path)
    with pytest.raises(RunError, match="no such folder"):
        render_overview(tmp_path / "absent")


def test_the_command_writes_the_page_once(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "list.html"
    assert "3 runs" in fkgsec("view", folder, "--out", out, "--no-browser")
    before = out.read_bytes()
    put(folder / "more", ATTACKED)
    assert "differs" in fkgsec("view", folder, "--out", out, "--no-browser", status=2)
    assert out.read_bytes() == before
    fkgsec("view", folder, "--out", out, "--no-browser", "--overwrite")
    assert b"more" in out.read_bytes()
    assert "must end with .html" in fkgsec("view", folder, "--out", folder / "record.json", status=2)
