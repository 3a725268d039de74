"""Formats of a judged policy: table, JUnit XML, SARIF 2.1.0 and Markdown. All depend on `Checked` alone, without a clock.

    Path("check.sarif").write_bytes(to_sarif(checked))
    console.print(terminal_table(limits_sheet(checked, narrow=True)))

Names in evidence come from users' data. Each format escapes its own syntax, and control characters become U+FFFD.
"""

from __future__ import annotations

import hashlib
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any, get_args
from urllib.parse import quote

import msgspec

from fkgsec.experiments.gate.judge import Checked
from fkgsec.experiments.gate.measures import MEASURES
from fkgsec.experiments.gate.policy import NO_WORSE
from fkgsec.experiments.gate.verdicts import Status, Verdict, show, show_figure
from fkgsec.experiments.reporting.sheets import Column, Sheet, markdown_lines

LEGEND = (
    "base: the same adversary without the messages of the rounds. max: what it could reach with any attack. An advantage is a "
    "figure minus its base."
)
SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_REPLACED, _QUOTE = "\ufffd", "'"
# XML 1.0 forbids these characters even as escapes; terminals obey control characters, and bidirectional ones reorder
# text.
_NOT_XML = re.compile(r"[^\t\n\r\x20-\uD7FF\uE000-\uFFFD\U00010000-\U0010FFFF]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


def limits_sheet(checked: Checked, *, why: bool = False, narrow: bool = False) -> Sheet:
    """Return a row for each limit.

    Args:
        checked: a judged policy.
        why: add the reasons.
        narrow: break names and intervals, so that a table without reasons fits in 80 columns.
    """
    rows = []
    for verdict in checked.verdicts:
        name, measured = verdict.about, show_figure(verdict.measured, verdict.kind)
        if narrow:
            name = name.replace("_advantage", "\n  _advantage").replace(", ", ",\n  ", 1)
            measured = measured.replace(" [", "\n[")
        rows.append((
            f"{verdict.federation}:\n{name}" if len(checked.data) > 1 or why else name,
            f"{measured}\nby {verdict.reached_by}" if verdict.reached_by else measured,
            *("" if end is None else show(end, verdict.kind) for end in (verdict.baseline, verdict.attainable)),
            f"{'≤' if verdict.bound == 'max' else '≥'} {show(verdict.allowed, verdict.kind)}",
            verdict.status,
            *([verdict.message] if why else []),
        ))  # fmt: skip
    heads = ("limit", "measured", "base", "max", "allowed", "verdict", *(["why"] if why else []))
    # Only limits on attacks have a baseline and an upper bound.
    legend = [LEGEND] if any(verdict.baseline is not None for verdict in checked.verdicts) else []
    return Sheet(f"Policy {checked.policy}", tuple(map(Column, heads)), tuple(rows), notes=tuple(legend))


def summary_line(checked: Checked) -> str:
    """State how many limits passed, failed, and were undecided."""
    counts = {status: sum(verdict.status == status for verdict in checked.verdicts) for status in get_args(Status)}
    parts = [f"{count} {status}" for status, count in counts.items() if count]
    return f"{checked.status}: {', '.join(parts)} of {len(checked.verdicts)} limits"


def headline_lines(checked: Checked) -> list[str]:
    """State the overall verdict, and for each limit that does not pass the measured value, its interval and its baseline."""
    lines = [f"Verdict: {summary_line(checked)}; exit status {checked.exit_status}"]
    for verdict in checked.verdicts:
        if verdict.status != "pass":
            base = "" if verdict.baseline is None else f" (base {show(verdict.baseline, verdict.kind)})"
            lines.append(f"  {verdict.status:<12} {verdict.federation}, {verdict.about}{base}: {verdict.message}")
    return [_CONTROL.sub(_REPLACED, line) for line in lines]


def detail_lines(checked: Checked) -> list[str]:
    """State the reason for each limit that does not pass, with the evidence and its record."""
    lines = []
    for verdict in checked.verdicts:
        if verdict.status != "pass":
            lines.append(f"{verdict.status}: {verdict.id} (line {verdict.line}): {verdict.message}")
            lines += [f"  {line}" for line in _evidence(verdict)]
    return [_CONTROL.sub(_REPLACED, line) for line in lines]


def to_json(checked: Checked) -> bytes:
    """Return everything as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(checked), indent=2) + b"\n"


def to_junit(checked: Checked) -> bytes:
    """Return one suite for each federation, with one test case for each limit.

    A failed limit is a failure. An undecided one is an error: the build is red although no fault was shown. It becomes
    a failure or is skipped if inconclusive counts as fail or as pass. A vacuous limit is never skipped.

    Source: Jenkins' junit-10.xsd, which GitLab and GitHub accept, too.
    """
    tags = {"fail": "failure", **_levels(checked, {"report": "error", "fail": "failure", "pass": "skipped"})}
    root = ET.Element("testsuites", name="fkgsec check")
    for federation in checked.data:
        suite = ET.SubElement(root, "testsuite", name=_xml(federation))
        properties = ET.SubElement(suite, "properties")
        for key, value in _provenance(checked, federation).items():
            ET.SubElement(properties, "property", name=key, value=_xml(value))
        for verdict in (verdict for verdict in checked.verdicts if verdict.federation == federation):
            # JUnit readers group cases by class name: one class per policy and federation.
            name, place = verdict.id.partition("/")[2], f"{Path(checked.policy).stem}.{federation}"
            case = ET.SubElement(suite, "testcase", name=_xml(name), classname=_xml(place))
            if tag := tags.get(verdict.status):
                kind = "not measured" if verdict.measured is None else verdict.status
                result = ET.SubElement(case, tag, type=kind, message=_xml(verdict.message))
            else:
                result = ET.SubElement(case, "system-out")
            result.text = _xml("\n".join(_case_lines(verdict)))
    for element in (root, *root):
        for key, tag in (("tests", "testcase"), ("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            if key != "skipped" or element is not root:
                element.set(key, str(len(list(element.iter(tag)))))
    ET.indent(root)
    return ET.tostring(root, encoding="utf-8", xml_declaration=True) + b"\n"


def _levels(checked: Checked, undecided: dict[str, str]) -> dict[str, str]:
    """Return a format's levels for inconclusive and vacuous limits; a vacuous limit never counts as pass."""
    when = checked.when_inconclusive
    return {"inconclusive": undecided[when], "vacuous": undecided["fail" if when == "fail" else "report"]}


def to_sarif(checked: Checked) -> bytes:
    """Return a result for each limit that does not pass, at its line of the policy. Rule IDs are the names of measures.

    Source: SARIF 2.1.0 (OASIS).
    """
    rules = [*MEASURES, NO_WORSE]
    levels = {"fail": "error", **_levels(checked, {"report": "warning", "fail": "error", "pass": "note"})}
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
            # Lets code scanning recognize the same limit after lines of the policy moved.
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
    """Return a summary for a pull request: a table of all limits, then details about those that do not pass.

    Text from data or policy is put in code spans, so that it is neither syntax nor a mention of a user.
    """
    lines = [
        f"## fkgsec check: {checked.status}",
        "",
        f"{_code(summary_line(checked))}, {_code(checked.policy)}. Ranges are 95% intervals; a limit holds if the whole "
        "interval keeps it. `base` is the result of the same adversary without the training messages, `max` the most that it can "
        "reach with its knowledge.",
        "",
        *markdown_lines(limits_sheet(checked), _cell),
    ]
    for verdict in checked.verdicts:
        if verdict.status != "pass":
            lines += ["", f"**{verdict.status}**: {_code(verdict.id)}", "", f"- {_code(verdict.message)}"]
            lines += [f"- {_code(line)}" for line in _evidence(verdict)]
    lines += ["", "<details><summary>Made by</summary>", ""]
    for federation in checked.data:
        parts = [f"{key} {value}" for key, value in _provenance(checked, federation).items()]
        lines.append(f"- {_code(federation)}: {_code(', '.join(parts))}")
    return "\n".join([*lines, "", "</details>", ""])


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


def _evidence(verdict: Verdict) -> list[str]:
    return [*verdict.evidence, f"record: {', '.join(verdict.records)}"]


def _case_lines(verdict: Verdict) -> list[str]:
    allowed = f"{'at most' if verdict.bound == 'max' else 'at least'} {show(verdict.allowed, verdict.kind)}"
    by = f" by {verdict.reached_by}" if verdict.reached_by else ""
    attainable = "" if verdict.attainable is None else f", attainable {show(verdict.attainable, verdict.kind)}"
    measured = show_figure(verdict.measured, verdict.kind)
    return [
        f"{verdict.about}: measured {measured}{by}, allowed {allowed}{attainable}",
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
    """Return the lines of a message. A reader would turn [words](address) into a link."""
    return "\n".join(_CONTROL.sub(_REPLACED, line).replace("](", "] (") for line in lines)


def _code(text: str) -> str:
    """Return a code span on one line."""
    return f"`{_CONTROL.sub(_REPLACED, ' '.join(text.split())).replace('`', _QUOTE)}`"


def _cell(text: str) -> str:
    """Return a code span for a table."""
    return _code(text).replace("|", r"\|") if text else ""
