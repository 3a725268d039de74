"""Every output under names that nobody thought of: pictures, pages, tables, CSV, Markdown, JUnit, SARIF, lines of the terminal.

A record of ours gets hostile names for its clients, data, relations and warnings; whatever they are, each format is made, has no
control characters, and what stands in it cannot become its syntax.
"""

import csv
import io
import json
import os
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from fkgsec.estimate import proportion
from fkgsec.experiments.cli.console import make_console
from fkgsec.experiments.gate.judge import Checked
from fkgsec.experiments.gate.verdict_formats import (
    detail_lines,
    limits_sheet,
    to_json,
    to_junit,
    to_markdown,
    to_sarif,
)
from fkgsec.experiments.gate.verdicts import Verdict
from fkgsec.experiments.reporting import tables
from fkgsec.experiments.reporting.frames import each_victim, figure_frame, figures
from fkgsec.experiments.reporting.html.page import assemble, render
from fkgsec.experiments.reporting.items import Run
from fkgsec.experiments.reporting.listing import listing_table
from fkgsec.experiments.reporting.pictures import draw_comparison, draw_picture
from fkgsec.experiments.reporting.sheets import as_csv, markdown_lines, print_sheets
from fkgsec.experiments.reporting.words import reading_aid
from fkgsec.experiments.runs.record import Record, read_record
from fkgsec.experiments.runs.run import data_name
from fkgsec.experiments.runs.stored import encode_stored

RESULTS = Path(__file__).parents[2] / "results"
MANY = int(os.environ.get("FKGSEC_INPUTS", "60"))  # sets of names
NASTY = (
    "$\\frac$", "$x$", "<script>alert(1)</script>", "</td><img src=x onerror=alert(1)>", "=HYPERLINK(1)", "@a", "-1+1", "|a|",
    "`b`", "[a](javascript:alert(1))", "\x1b]0;x\x07", "\u202eabc", "a\nb", "\r", "\x00", "]]>", "&amp;", "%s{0}", "..", "a/b",
    "x" * 3000, "\u0301" * 50, "\U0001f4a9", "'\"", "病院", "\\n", "{{ 7 * 7 }}",
)  # fmt: skip
NAME = st.one_of(st.sampled_from(NASTY), st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=12))
HOLDERS = ("data", "environment", "figures", "utility_by_client")  # of names
CONTROLS = set(map(chr, (*range(9), *range(11, 32), *range(0x7F, 0xA0), 0x202E)))


def renamed(value: Any, names: dict[str, str]) -> Any:
    """A document in which these strings, as keys and values, are others."""
    if isinstance(value, str):
        return names.get(value, value)
    if isinstance(value, list):
        return [renamed(one, names) for one in value]
    if isinstance(value, dict):
        return {renamed(key, names): renamed(one, names) for key, one in value.items()}
    return value


def hostile(record: Record, drawn: list[str]) -> Record:
    """The record with other names for its clients (each of its own), its data, a sensitive relation and a warning."""
    clients = list(record.data.clients)
    names = {client: f"{drawn[place % len(drawn)]}{place}" for place, client in enumerate(clients)}
    document = renamed(json.loads(encode_stored(record)), names)
    document["data"] |= {"name": drawn[0], "sensitive": [drawn[1]], "warnings": [drawn[2]]}
    document["environment"] |= {"command": drawn[3], "device": drawn[0]}
    kinds = {one.name: one.type for one in msgspec.structs.fields(record)}
    changed = {name: msgspec.convert(document[name], kinds[name]) for name in HOLDERS}
    return msgspec.structs.replace(record, **changed)


class Tags(HTMLParser):
    """The tags of a page, and the attributes that could run something."""

    def __init__(self) -> None:
        super().__init__()
        self.scripts, self.handlers, self.links = 0, list[str](), list[str]()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.scripts += tag == "script"
        self.handlers += [name for name, _ in attrs if name.startswith("on")]
        self.links += [
            value for name, value in attrs if name in ("href", "src") and value and not value.startswith("#")
        ]


def clean(text: str) -> None:
    assert not set(text) & CONTROLS


def tags_of(page: str) -> Tags:
    found = Tags()
    found.feed(page)
    return found


def check_page(record: Record, plain: Record) -> None:
    page = render(assemble([Run(record.data.name, record)]))
    found, usual = tags_of(page), tags_of(render(assemble([Run("plain", plain)])))
    assert (found.scripts, found.handlers) == (usual.scripts, [])
    assert [link for link in found.links if link not in usual.links and not link.startswith("data:")] == []


def check_tables(record: Record) -> None:
    console, out = make_console(), io.StringIO()
    console.file = out
    runs = {record.data.name: record}
    frame = figures(runs)
    compared = tables.comparison_sheets(runs, {record.data.name: []})
    print_sheets(console, [*tables.run_sheets(record), *compared], once=1)
    console.print(listing_table(frame, 80)[0])
    for line in reading_aid(record):
        console.print(line)
    clean(out.getvalue())
    rows = list(csv.reader(io.StringIO(as_csv(frame))))
    assert {len(row) for row in rows} == {len(frame.columns)}
    assert not [cell for row in rows[1:] for cell in row if cell[:1] in "=@\t\r" and cell]
    found = figure_frame({record.data.name: record.figures}, each_victim)
    for sheet in (tables.runs_sheet(runs), tables.figure_sheet(found, "Figures")):
        lines = markdown_lines(sheet)
        assert all("\n" not in line for line in lines)
        clean("\n".join(lines))


def check_verdicts(drawn: list[str]) -> None:
    verdict = Verdict(
        f"{drawn[0]}/utility.mrr", "utility.mrr", drawn[0], drawn[1], "share", "min", 0.5, proportion(1, 9), "fail", drawn[2],
        [drawn[3], drawn[1]], [drawn[2]], 3,
    )  # fmt: skip
    checked = Checked(
        "s",
        "policy.yaml",
        "fail",
        "report",
        1,
        [verdict],
        None,
        None,
        {"fkgsec": "0", "torch": drawn[3]},
        {drawn[0]: {0: "abc"}},
    )
    console, out = make_console(), io.StringIO()
    console.file = out
    print_sheets(console, [limits_sheet(checked, narrow=True)])
    for line in detail_lines(checked):
        console.print(line)
    clean(out.getvalue())
    assert len(ET.fromstring(to_junit(checked)).findall(".//testcase")) == 1
    text = json.loads(to_sarif(checked))["runs"][0]["results"][0]["message"]["text"]
    clean(text)
    assert "](" not in text
    clean(to_markdown(checked))
    assert json.loads(to_json(checked))["verdicts"][0]["message"] == drawn[2]


def records() -> dict[str, Record]:
    """One of each task, attacked."""
    found = {"triples": read_record(RESULTS / "ddb14-fed5-fedr-6rounds.json")}
    for path in sorted((RESULTS / "tables").rglob("*.json")) + sorted((RESULTS / "attacks").rglob("*.json")):
        if len(found) == 3:
            break
        try:
            record = read_record(path)
        except Exception:
            continue
        key = "graphs" if record.spec.task == "graph" else "attacks"
        found.setdefault(key, record)
    return found


def tried(max_examples: int) -> int:
    """How many sets of names every output met."""
    count, plain = 0, records()

    @settings(
        max_examples=max_examples, derandomize=True, database=None, deadline=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(st.lists(NAME, min_size=4, max_size=4))
    def one(drawn: list[str]) -> None:
        nonlocal count
        count += 1
        for record in plain.values():
            changed = hostile(record, drawn)
            assert "/" not in data_name(changed.data)
            assert draw_picture(changed)[:4] == b"\x89PNG"
            check_page(changed, record)
            check_tables(changed)
        first = hostile(plain["triples"], drawn)
        assert draw_comparison({drawn[0]: first, f"{drawn[0]}!": first})[:4] == b"\x89PNG"
        check_verdicts(drawn)

    one()
    return count


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Glyph")
def test_hostile_names() -> None:
    assert tried(MANY) >= MANY
