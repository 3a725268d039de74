"""A judged policy as a table, JUnit XML, SARIF 2.1.0 and Markdown. All is made from `Checked` alone, and has no clock in it.

    Path("check.sarif").write_bytes(to_sarif(checked))
    console.print(verdict_table(checked))

Names in evidence come from somebody's data: each format escapes what would be read as its own syntax, and control characters
become U+FFFD.
"""

from __future__ import annotations

import hashlib
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any, get_args
from urllib.parse import quote

import msgspec
from rich.table import Table
from rich.text import Text

from fkgsec.experiments.gate.judge import Checked
from fkgsec.experiments.gate.measures import MEASURES
from fkgsec.experiments.gate.policy import NO_WORSE
from fkgsec.experiments.gate.verdicts import Status, Verdict, show, show_figure
from fkgsec.experiments.reporting.sheets import make_table

SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_STYLES = {"pass": "green", "fail": "bold red", "vacuous": "yellow", "inconclusive": "yellow"}
_REPLACED, _QUOTE = "\ufffd", "'"
_NOT_XML = re.compile(r"[^\t\n\r\x20-\uD7FF\uE000-\uFFFD\U00010000-\U0010FFFF]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


def verdict_table(checked: Checked) -> Table:
    """A row for each limit; fits 80 columns."""
    table = make_table(f"Policy {checked.policy}", "limit", "measured", "base", "max", "allowed", "verdict")
    several = len(checked.data) > 1
    for verdict in checked.verdicts:
        name = verdict.about.replace(", ", ",\n  ", 1)
        table.add_row(
            f"{verdict.federation}:\n{name}" if several else name,
            _measured(verdict).replace(" [", "\n["),
            _base(verdict),
            _attainable(verdict),
            _allowed(verdict).replace("at most", "≤").replace("at least", "≥"),
            Text(verdict.status, style=_STYLES[verdict.status]),
        )
    return table


def summary_line(checked: Checked) -> str:
    """How many limits passed, failed, and could not be decided."""
    counts = {status: sum(one.status == status for one in checked.verdicts) for status in get_args(Status)}
    parts = [f"{count} {status}" for status, count in counts.items() if count]
    return f"{checked.status}: {', '.join(parts)} of {len(checked.verdicts)} limits"


def headline_lines(checked: Checked) -> list[str]:
    """What stands first: how many limits hold; of each that does not what was measured, how sure, beside which base."""
    lines = [f"Verdict: {summary_line(checked)}; exit status {checked.exit_status}"]
    for verdict in checked.verdicts:
        if verdict.status != "pass":
            base = "" if verdict.baseline is None else f" (base {show(verdict.baseline, verdict.kind)})"
            lines.append(f"  {verdict.status:<12} {verdict.federation}, {verdict.about}{base}: {verdict.message}")
    return [_CONTROL.sub(_REPLACED, line) for line in lines]


def detail_lines(checked: Checked) -> list[str]:
    """For each limit that does not pass: why, with the evidence and where the record lies."""
    lines = []
    for verdict in checked.verdicts:
        if verdict.status != "pass":
            lines.append(f"{verdict.status}: {verdict.id} (line {verdict.line}): {verdict.message}")
            lines += [f"  {line}" for line in _evidence(verdict)]
    return [_CONTROL.sub(_REPLACED, line) for line in lines]


def to_json(checked: Checked) -> bytes:
    """Everything, indented."""
    return msgspec.json.format(msgspec.json.encode(checked), indent=2) + b"\n"


def to_junit(checked: Checked) -> bytes:
    """One suite for each federation, one test case for each limit.

    A limit that fails is a failure, one that could not be decided an error: a build is red without having been found wrong.
    It is a failure, or skipped, where inconclusive counts as fail or as pass. A limit that nothing can break is never skipped.

    Source: Jenkins' junit-10.xsd, which GitLab's and GitHub's readers accept too.
    """
    undecided = {"report": "error", "fail": "failure", "pass": "skipped"}[checked.when_inconclusive]
    vacuous = "failure" if checked.when_inconclusive == "fail" else "error"
    tags = {"fail": "failure", "vacuous": vacuous, "inconclusive": undecided}
    root = ET.Element("testsuites", name="fkgsec check")
    counts: dict[str, int] = {"tests": 0, "failures": 0, "errors": 0}
    for federation in checked.data:
        verdicts = [one for one in checked.verdicts if one.federation == federation]
        found = [tags.get(one.status) for one in verdicts]
        here = {"tests": len(found), "failures": found.count("failure"), "errors": found.count("error")}
        counts = {key: counts[key] + here[key] for key in counts}
        suite = ET.SubElement(root, "testsuite", name=_xml(federation), skipped=str(found.count("skipped")))
        suite.attrib.update({key: str(count) for key, count in here.items()})
        properties = ET.SubElement(suite, "properties")
        for key, value in _provenance(checked, federation).items():
            ET.SubElement(properties, "property", name=key, value=_xml(value))
        for verdict, tag in zip(verdicts, found, strict=True):
            case = ET.SubElement(
                suite,
                "testcase",
                name=_xml(verdict.id.partition("/")[2]),
                classname=_xml(f"{Path(checked.policy).stem}.{federation}"),
            )
            if tag:
                kind = "not measured" if verdict.measured is None else verdict.status
                result = ET.SubElement(case, tag, type=kind, message=_xml(verdict.message))
                result.text = _xml("\n".join(_case_lines(verdict)))
            else:
                ET.SubElement(case, "system-out").text = _xml("\n".join(_case_lines(verdict)))
    root.attrib.update({key: str(count) for key, count in counts.items()})
    ET.indent(root)
    return ET.tostring(root, encoding="utf-8", xml_declaration=True) + b"\n"


def to_sarif(checked: Checked) -> bytes:
    """A result for each limit that does not pass, at its line of the policy; rule ids are the measures' names.

    Source: SARIF 2.1.0 (OASIS).
    """
    rules = [*MEASURES, NO_WORSE]
    undecided = {"report": "warning", "fail": "error", "pass": "note"}[checked.when_inconclusive]
    vacuous = "error" if checked.when_inconclusive == "fail" else "warning"
    levels = {"fail": "error", "vacuous": vacuous, "inconclusive": undecided}
    policy = quote(checked.policy)
    results = [
        {
            "ruleId": verdict.rule,
            "ruleIndex": rules.index(verdict.rule),
            "level": levels[verdict.status],
            "message": {
                "text": _sarif_text(f"{verdict.federation}: {verdict.about}: {verdict.message}", *_evidence(verdict))
            },
            "locations": [
                {
                    "physicalLocation": {
                        "artifactLocation": {"uri": policy},
                        "region": {"startLine": verdict.line},
                    },
                    "logicalLocations": [{"fullyQualifiedName": verdict.id}],
                }
            ],
            "partialFingerprints": {"fkgsecLimit/v1": hashlib.sha256(verdict.id.encode()).hexdigest()},
            "properties": {
                "status": verdict.status,
                "bound": verdict.bound,
                "allowed": verdict.allowed,
                "measured": msgspec.to_builtins(verdict.measured),
                "baseline": verdict.baseline,
                "attainable": verdict.attainable,
                "reachedBy": verdict.reached_by,
                "records": verdict.records,
            },
        }
        for verdict in checked.verdicts
        if verdict.status != "pass"
    ]
    driver = {
        "name": "fkgsec",
        "version": checked.versions["fkgsec"],
        "rules": [_rule(name) for name in rules],
    }
    run: dict[str, Any] = {
        "tool": {"driver": driver},
        "automationDetails": {"id": f"fkgsec check/{policy}"},
        "columnKind": "unicodeCodePoints",
        "results": results,
        "properties": {
            "status": checked.status,
            "fkgsecCommit": checked.commit,
            "data": msgspec.to_builtins(checked.data, str_keys=True),
        },
    }
    log = {"$schema": SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}
    return msgspec.json.format(msgspec.json.encode(log), indent=2) + b"\n"


def to_markdown(checked: Checked) -> str:
    """A summary for a pull request: a table of all limits, then what stands behind those that do not pass.

    What comes from data or policy stands in code spans, where it is neither syntax nor a mention of anybody.
    """
    lines = [
        f"## fkgsec check: {checked.status}",
        "",
        f"{_code(summary_line(checked))}, {_code(checked.policy)}. Ranges are 95 % intervals; a limit holds when the whole "
        "interval does. `base` is what this adversary gets without what crossed in the rounds, `max` the most that it can "
        "reach at all with what it knows.",
        "",
        "| verdict | federation | limit | measured | base | max | allowed |",
        "|---|---|---|---|---|---|---|",
    ]
    for verdict in checked.verdicts:
        cells = [
            _cell(verdict.federation),
            _cell(verdict.about),
            _measured(verdict) + (f" by {_cell(verdict.reached_by)}" if verdict.reached_by else ""),
            _base(verdict),
            _attainable(verdict),
            _allowed(verdict),
        ]
        lines.append(f"| {_bold(verdict)} | {' | '.join(cells)} |")
    for verdict in checked.verdicts:
        if verdict.status != "pass":
            lines += ["", f"{_bold(verdict)}: {_code(verdict.id)}", "", f"- {_code(verdict.message)}"]
            lines += [f"- {_code(line)}" for line in _evidence(verdict)]
    lines += ["", "<details><summary>Made by</summary>", ""]
    for federation in checked.data:
        parts = [f"{key} {value}" for key, value in _provenance(checked, federation).items()]
        lines.append(f"- {_code(federation)}: {_code(', '.join(parts))}")
    return "\n".join([*lines, "", "</details>", ""])


def _bold(verdict: Verdict) -> str:
    return verdict.status if verdict.status == "pass" else f"**{verdict.status}**"


def _rule(name: str) -> dict[str, Any]:
    about = (
        "a figure is worse than the baseline's by more than is allowed" if name == NO_WORSE else MEASURES[name].about
    )
    return {
        "id": name,
        "shortDescription": {"text": f"{about[0].upper()}{about[1:]}"},
        "fullDescription": {
            "text": f"{about[0].upper()}{about[1:]}. Judged on the 95 % confidence bound; what could not be measured fails."
        },
        "defaultConfiguration": {"level": "error"},
        "properties": {"tags": ["security", "privacy", "federated-learning"]},
    }


def _measured(verdict: Verdict) -> str:
    return show_figure(verdict.measured, verdict.kind)


def _base(verdict: Verdict) -> str:
    return "" if verdict.baseline is None else show(verdict.baseline, verdict.kind)


def _attainable(verdict: Verdict) -> str:
    return "" if verdict.attainable is None else show(verdict.attainable, verdict.kind)


def _allowed(verdict: Verdict) -> str:
    return f"{'at most' if verdict.bound == 'max' else 'at least'} {show(verdict.allowed, verdict.kind)}"


def _evidence(verdict: Verdict) -> list[str]:
    return [*verdict.evidence, f"record: {', '.join(verdict.records)}"]


def _case_lines(verdict: Verdict) -> list[str]:
    return [
        f"{verdict.about}: measured {_measured(verdict)}"
        + (f" by {verdict.reached_by}" if verdict.reached_by else "")
        + f", allowed {_allowed(verdict)}"
        + (f", attainable {_attainable(verdict)}" if verdict.attainable is not None else ""),
        verdict.message,
        *_evidence(verdict),
    ]


def _provenance(checked: Checked, federation: str) -> dict[str, str]:
    commit = "none" if checked.commit is None else checked.commit + ("-dirty" if checked.dirty else "")
    hashes = ", ".join(f"{hash[:12]} (seed {seed})" for seed, hash in checked.data[federation].items())
    return {"data": hashes, "fkgsec commit": commit, **checked.versions}


def _xml(text: str) -> str:
    return _NOT_XML.sub(_REPLACED, text)


def _sarif_text(*lines: str) -> str:
    """Lines of a message, which a reader shows on a terminal or a page: it would make a link of [words](address)."""
    return "\n".join(_CONTROL.sub(_REPLACED, line).replace("](", "] (") for line in lines)


def _code(text: str) -> str:
    """A code span on one line."""
    return f"`{_CONTROL.sub(_REPLACED, ' '.join(text.split())).replace('`', _QUOTE)}`"


def _cell(text: str) -> str:
    """A code span in a table."""
    return _code(text).replace("|", r"\|")
