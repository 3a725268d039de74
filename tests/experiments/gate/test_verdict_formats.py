"""JUnit, SARIF, Markdown, JSON: valid by their published schemas, whatever names stand in the data."""

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
from lxml import etree
from rich.console import Console

from fkgsec.estimate import Estimate, exact, proportion
from fkgsec.experiments.gate import SCHEMA, WhenInconclusive
from fkgsec.experiments.gate.judge import Checked, exit_status
from fkgsec.experiments.gate.measures import MEASURES
from fkgsec.experiments.gate.verdict_formats import (
    detail_lines,
    headline_lines,
    limits_sheet,
    summary_line,
    to_json,
    to_junit,
    to_markdown,
    to_sarif,
)
from fkgsec.experiments.gate.verdicts import Verdict
from fkgsec.experiments.reporting.sheets import terminal_table

ASSETS = Path(__file__).parent / "assets"
JUNIT = etree.XMLSchema(etree.parse(ASSETS / "junit-10.xsd"))
SARIF = jsonschema.Draft4Validator(
    json.loads((ASSETS / "sarif-2.1.0-rtm.5.json").read_text()), format_checker=jsonschema.FormatChecker()
)
NASTY = "a|b `c` <script> & \x1b[31m @everyone \u202e\x00 ]]> \n## d"


def verdict(status: str, measured: Estimate | None, **changes: Any) -> Verdict:
    fields: dict[str, Any] = {
        "id": f"hospitals/reconstruction.trr/collusion/0.5/{status}",
        "rule": "reconstruction.trr",
        "federation": "hospitals",
        "about": "reconstruction.trr, collusion, leak 0.5",
        "kind": "share",
        "bound": "max",
        "allowed": 0.05,
        "measured": measured,
        "status": status,
        "message": f"a message on {status}",
        "evidence": [],
        "records": ["runs/check/hospitals-seed0-1/record.json"],
        "line": 7,
    }
    return Verdict(**{**fields, **changes})


def checked(when: WhenInconclusive = "report", policy: str = "policies/our policy.yaml") -> Checked:
    verdicts = [
        verdict("pass", proportion(3, 1000)),
        verdict("fail", proportion(300, 1000), evidence=[f"rebuilt, of b: {NASTY}"]),
        verdict("inconclusive", proportion(50, 1000), rule="no_worse_than"),
        verdict("vacuous", proportion(1, 1000), attainable=0.0123, reached_by="learned"),
        verdict("fail", None, id="relations/membership.auc", federation="relations", rule="membership.auc"),
        verdict(
            "pass",
            exact(1.2e6, 1),
            id="relations/bytes.total",
            federation="relations",
            rule="bytes.total",
            about="bytes.total",
            kind="bytes",
            allowed=5e6,
        ),
    ]
    return Checked(
        schema=SCHEMA,
        policy=policy,
        status="fail",
        when_inconclusive=when,
        exit_status=exit_status("fail", when),
        verdicts=verdicts,
        commit="0123456789abcdef",
        dirty=True,
        versions={"fkgsec": "0.1.0", "torch": "2.13.0"},
        data={"hospitals": {0: "aaaabbbbccccdddd", 1: "0000111122223333"}, "relations": {0: "aaaabbbbccccdddd"}},
    )


WHEN: tuple[WhenInconclusive, ...] = ("report", "pass", "fail")


@pytest.mark.parametrize("when", WHEN)
def test_junit_is_valid_and_has_a_case_for_each_limit(when: WhenInconclusive) -> None:
    content = to_junit(checked(when))
    JUNIT.assertValid(etree.fromstring(content))
    root = ET.fromstring(content)
    suites = {suite.get("name"): suite for suite in root}
    assert set(suites) == {"hospitals", "relations"}
    cases = {case.get("name"): case for case in suites["hospitals"].iter("testcase")}
    assert len(cases) == 4
    (failure,) = cases["reconstruction.trr/collusion/0.5/fail"].findall("failure")
    text = failure.text or ""
    assert "measured 0.3000 [0.2724, 0.3291], allowed at most 0.0500" in text
    assert "rebuilt, of b: a|b `c` <script> & \ufffd[31m @everyone" in text
    assert "runs/check/hospitals-seed0-1/record.json" in text
    (undecided,) = [child.tag for child in cases["reconstruction.trr/collusion/0.5/inconclusive"]]
    assert undecided == {"report": "error", "fail": "failure", "pass": "skipped"}[when]
    (vacuous,) = cases["reconstruction.trr/collusion/0.5/vacuous"]
    assert vacuous.tag == {"report": "error", "fail": "failure", "pass": "error"}[when]
    assert "] by learned, allowed at most 0.0500, attainable 0.0123" in (vacuous.text or "")
    assert [child.tag for child in cases["reconstruction.trr/collusion/0.5/pass"]] == ["system-out"]
    (unmeasured,) = suites["relations"].iter("failure")
    assert unmeasured.get("type") == "not measured"
    for suite in suites.values():
        for tag, key in (("failure", "failures"), ("error", "errors"), ("skipped", "skipped"), ("testcase", "tests")):
            assert suite.get(key) == str(len(list(suite.iter(tag))))
    for tag, key in (("failure", "failures"), ("error", "errors"), ("testcase", "tests")):
        assert root.get(key) == str(len(list(root.iter(tag))))


def test_the_junit_schema_would_notice() -> None:
    root = etree.fromstring(to_junit(checked()))
    del root[0].attrib["failures"]
    assert not JUNIT.validate(root)


@pytest.mark.parametrize("when", WHEN)
def test_sarif_is_valid_and_has_a_result_for_each_limit_that_does_not_pass(when: WhenInconclusive) -> None:
    log = json.loads(to_sarif(checked(when)))
    SARIF.validate(log)
    (run,) = log["runs"]
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert rules == [*MEASURES, "no_worse_than"]
    assert [result["ruleId"] for result in run["results"]] == [
        "reconstruction.trr", "no_worse_than", "reconstruction.trr", "membership.auc"
    ]  # fmt: skip
    for result in run["results"]:
        assert rules[result["ruleIndex"]] == result["ruleId"]
        place = result["locations"][0]["physicalLocation"]
        assert place == {"artifactLocation": {"uri": "policies/our%20policy.yaml"}, "region": {"startLine": 7}}
    failed, undecided, vacuous, unmeasured = run["results"]
    assert vacuous["level"] == {"report": "warning", "fail": "error", "pass": "warning"}[when]
    assert vacuous["properties"]["attainable"] == 0.0123
    assert vacuous["properties"]["reachedBy"] == "learned"
    assert failed["level"] == unmeasured["level"] == "error"
    assert undecided["level"] == {"report": "warning", "fail": "error", "pass": "note"}[when]
    assert failed["properties"]["measured"]["high"] == proportion(300, 1000).high
    assert unmeasured["properties"]["measured"] is None
    assert "rebuilt, of b" in failed["message"]["text"]
    prints = {result["partialFingerprints"]["fkgsecLimit/v1"] for result in run["results"]}
    assert len(prints) == 4


def test_a_finding_keeps_its_fingerprint_when_figures_change() -> None:
    one, other = (
        json.loads(
            to_sarif(msgspec.structs.replace(checked(), verdicts=[verdict("fail", figure, message=str(figure))]))
        )
        for figure in (proportion(300, 1000), proportion(400, 1000))
    )
    assert one["runs"][0]["results"][0]["message"] != other["runs"][0]["results"][0]["message"]
    assert one["runs"][0]["results"][0]["partialFingerprints"] == other["runs"][0]["results"][0]["partialFingerprints"]


def test_the_sarif_schema_would_notice() -> None:
    log = json.loads(to_sarif(checked()))
    log["runs"][0]["results"][0]["level"] = "bad"
    assert not SARIF.is_valid(log)


def test_markdown_lets_nothing_of_the_data_be_syntax() -> None:
    text = to_markdown(checked())
    lines = text.splitlines()
    assert lines[0] == "## fkgsec check: fail"
    assert [line for line in lines if line.startswith("#")] == lines[:1]
    table = [line for line in lines if line.startswith("| ")]
    assert len(table) == 1 + 6
    limit = "`hospitals: reconstruction.trr, collusion, leak 0.5`"
    assert f"| {limit} | `0.3000 [0.2724, 0.3291]` |  |  | `≤ 0.0500` | `fail` |" in table
    (nasty,) = [line for line in lines if "everyone" in line]
    assert nasty == "- `rebuilt, of b: a|b 'c' <script> & \ufffd[31m @everyone \ufffd\ufffd ]]> ## d`"
    assert "fkgsec commit 0123456789abcdef-dirty" in text
    assert "aaaabbbbcccc (seed 0), 000011112222 (seed 1)" in text


def test_markdown_says_by_which_inference_a_figure_was_reached() -> None:
    assert "] by learned` |" in to_markdown(checked())


def test_a_pipe_in_a_name_does_not_end_a_cell() -> None:
    one = verdict("fail", proportion(300, 1000), about="reconstruction.trr_advantage, collusion, leak 0.5, a|b")
    text = to_markdown(msgspec.structs.replace(checked(), verdicts=[one]))
    assert r"reconstruction.trr_advantage, collusion, leak 0.5, a\|b`" in text


def test_json_holds_everything() -> None:
    assert msgspec.json.decode(to_json(checked()), type=Checked) == checked()


def test_the_verdict_stands_first_with_the_figure_and_its_base() -> None:
    first, failed, *others = headline_lines(
        msgspec.structs.replace(checked(), verdicts=[verdict("fail", proportion(300, 1000), baseline=0.01)])
    )
    assert first == "Verdict: fail: 1 fail of 1 limits; exit status 1"
    assert (
        failed == "  fail         hospitals, reconstruction.trr, collusion, leak 0.5 (base 0.0100): a message on fail"
    )
    assert not others
    assert sum(line.startswith("  ") for line in headline_lines(checked())) == 4  # what passes is in the table


def test_the_table_fits_80_columns_and_names_what_does_not_pass() -> None:
    console = Console(width=80, markup=False)
    with console.capture() as capture:
        console.print(terminal_table(limits_sheet(checked(), narrow=True)))
    shown = capture.get()
    assert all(len(line) <= 80 for line in shown.splitlines())
    for word in (
        "hospitals:",
        "reconstruction.trr,",
        "0.3000",
        "[0.2724, 0.3291]",
        "≤ 5,000,000 B",
        "inconclusive",
    ):
        assert word in shown
    assert summary_line(checked()) == "fail: 2 pass, 2 fail, 1 vacuous, 1 inconclusive of 6 limits"
    details = detail_lines(checked())
    assert "fail: hospitals/reconstruction.trr/collusion/0.5/fail (line 7): a message on fail" in details
    assert not any("bytes.total" in line for line in details)
    assert not any("\x1b" in line for line in details)
