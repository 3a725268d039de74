"""The report's first lines: what leaked, a policy's verdict and an audit's beside it, and what none of them says."""

import json
import re
from pathlib import Path

import msgspec
import pytest
import typer
from typer.testing import CliRunner

from fkgsec.attacks.questions import QUESTIONS
from fkgsec.errors import RunError
from fkgsec.estimate import Estimate
from fkgsec.experiments.cli.console import expected_errors
from fkgsec.experiments.gate import CHECK_FILE, SCHEMA
from fkgsec.experiments.gate.judge import Checked
from fkgsec.experiments.gate.verdict_formats import to_json
from fkgsec.experiments.gate.verdicts import Verdict
from fkgsec.experiments.reporting.cli import report
from fkgsec.experiments.reporting.html.page import assemble, certificate_part, policy_part, render
from fkgsec.experiments.reporting.items import Example, Examples, Run
from fkgsec.experiments.reporting.verdict import verdict_of
from fkgsec.experiments.runs.record import Record, read_record
from fkgsec.experiments.unlearning.verification import read_verification
from fkgsec.federation.options import run_identities

RESULTS = Path(__file__).parents[4] / "results"
ATTACKED, AUDIT = RESULTS / "attacks" / "nations-transe.json", RESULTS / "unlearning" / "c3-delete.json"
NASTY = "<script>alert(1)</script>"

reporter = typer.Typer(pretty_exceptions_enable=False)
reporter.command()(expected_errors(report))


@pytest.fixture(scope="module")
def record() -> Record:
    return read_record(ATTACKED)


def checked_on(digest: str, name: str = "policy.yaml") -> Checked:
    """A policy of one limit that failed, as `fkgsec check --json` writes it."""
    verdict = Verdict(
        id="a/reconstruction.trr", rule="reconstruction.trr", federation="hospitals", about="reconstruction.trr, server",
        kind="share", bound="max", allowed=0.1, measured=Estimate(0.4, 0.3, 0.5, 100, "wilson"), status="fail",
        message="0.4000 [0.3000, 0.5000] lies above 0.1000", evidence=[], records=[], line=3, baseline=0.2,
    )  # fmt: skip
    return Checked(SCHEMA, name, "fail", "report", 1, [verdict], None, None, {}, {"hospitals": {0: digest}})


def test_the_verdict_stands_first_and_is_the_command_lines(record: Record) -> None:
    page = render(assemble([Run("mine", record)]))
    verdict = verdict_of(record.figures)
    assert f"Verdict: {verdict.brief}</strong>" in page
    assert all(f">{QUESTIONS[answer.question]}<" in page for answer in verdict.answers)
    assert page.index("Verdict: ") < page.index("What this does not say") < page.index("<svg")
    silent = msgspec.structs.replace(record, figures=[])
    assert "Verdict: NOT ATTACKED" in render(assemble([Run("mine", silent)]))


def test_any_attack_counts(record: Record) -> None:
    """Runs that were attacked by anything but reconstruction were said not to be attacked."""
    others = [one for one in record.figures if one.attack != "reconstruction"]
    assert others
    leaking = msgspec.structs.replace(record, figures=others)
    (federation,) = assemble([Run("mine", leaking)])["federations"]
    assert federation["victims"] is not None
    assert {row[1] for row in federation["victims"].rows} == {one.attack for one in others}
    assert federation["cards"][0]["verdict"].label != "NOT ATTACKED"
    silent = msgspec.structs.replace(record, figures=[])
    assert assemble([Run("mine", silent)])["federations"][0]["cards"][0]["verdict"].label == "NOT ATTACKED"


def test_a_policy_comes_first_with_what_it_does_not_say(record: Record) -> None:
    page = render(assemble([Run("mine", record)], judged=[("check", checked_on(record.data.hash))]))
    places = [
        page.index(one) for one in ("Policy policy.yaml: fail", "A policy judges only the limits", "In short</h2>")
    ]
    assert places == sorted(places)
    for shown in ("0.4000 [0.3000, 0.5000]", "≤ 0.1000", "0.2000"):
        assert shown in page
    assert policy_part(checked_on(record.data.hash), [Run("mine", record)])["notice"] == ""


def test_the_verdict_that_a_check_left_beside_a_run_is_found(record: Record, tmp_path: Path) -> None:
    """Without being asked for, once, and only where it is on the run's data."""
    run, kept, page = tmp_path / "runs" / "mine", tmp_path / "runs" / CHECK_FILE, tmp_path / "report.html"
    run.mkdir(parents=True)
    (run / "record.json").write_bytes(ATTACKED.read_bytes())
    for digest, given, times in ((record.data.hash, [], 1), (record.data.hash, [kept], 1), ("0" * 64, [], 0)):
        kept.write_bytes(to_json(checked_on(digest)))
        said = CliRunner().invoke(reporter, [*map(str, [run, *given]), "--out", str(page), "--overwrite"])
        assert said.exit_code == 0, said.output
        assert page.read_text().count(">Policy policy.yaml: fail<") == times


def test_a_policy_of_other_data_is_said_to_be_one(record: Record) -> None:
    notice = policy_part(checked_on("0" * 64), [Run("mine", record)])["notice"]
    assert notice == "The policy was judged on other data than mine and does not cover these runs."


def test_an_audit_has_its_reasons_and_says_whose_it_is(record: Record) -> None:
    made = read_verification(AUDIT)
    assert made is not None
    foreign = certificate_part("audit", made, [Run("mine", record)])
    assert foreign["notice"] == "The audited run is not on this page."
    assert foreign["title"] == f"Forgetting (audit): {made.verdict.outcome}"
    assert set(made.verdict.reasons) <= set(foreign["lines"])
    identity = run_identities(record.data, record.spec.federation_options())[0]
    of_this = msgspec.structs.replace(made, unlearning=msgspec.structs.replace(made.unlearning, identity=identity))
    assert certificate_part("audit", of_this, [Run("mine", record)])["notice"] == ""


def test_the_command_tells_verdicts_from_runs(record: Record, tmp_path: Path) -> None:
    (tmp_path / "check.json").write_bytes(msgspec.json.encode(checked_on(record.data.hash, NASTY)))
    (tmp_path / "audit").mkdir()
    (tmp_path / "audit" / "verification.json").write_bytes(AUDIT.read_bytes())
    given = [str(ATTACKED), str(tmp_path / "check.json"), str(tmp_path / "audit"), "--out", str(tmp_path / "page.html")]
    done = CliRunner().invoke(reporter, given, catch_exceptions=False)
    assert done.exit_code == 0, done.stderr
    page = (tmp_path / "page.html").read_text()
    assert "Policy &lt;script&gt;" in page
    assert NASTY not in page
    assert "Forgetting (audit)" in page
    alone = CliRunner().invoke(reporter, [str(tmp_path / "check.json"), "--out", str(tmp_path / "other.html")])
    assert (alone.exit_code, alone.stderr.count("\n")) == (RunError.exit_status, 1)
    (tmp_path / "bad.json").write_text(json.dumps({"schema": SCHEMA}))
    broken = CliRunner().invoke(
        reporter, [str(ATTACKED), str(tmp_path / "bad.json"), "--out", str(tmp_path / "b.html")]
    )
    assert (broken.exit_code, broken.stderr.count("\n")) == (RunError.exit_status, 1)


def test_a_score_that_is_the_same_in_all_examples_is_left_out(record: Record) -> None:
    made = assemble([Run("mine", record)])
    (federation,) = made["federations"]

    def page(*scores: float) -> str:
        right = tuple(Example("h", "claim", "truth", score) for score in scores)
        examples = (Examples("mine", "server", "counts", right, ()),)
        return render(made | {"federations": [federation | {"rebuilds": True, "examples": examples}]})

    assert not re.search(r"Score 1\.000", page(1.0, 1.0))
    assert re.findall(r"Score (\S+)\.<", page(1.0, 0.5)) == ["1.000", "0.500"]
