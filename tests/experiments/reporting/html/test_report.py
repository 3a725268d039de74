"""`fkgsec report`: what the page says is what records and scores say, names are inert, browsers and readers can use it."""

import base64
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec
import numpy as np
import pandas as pd
import pytest
import typer
from matplotlib.figure import Figure as Picture
from typer.testing import CliRunner

from fkgsec import estimate
from fkgsec.attacks.figure import headline
from fkgsec.attacks.reconstruction.leakage import items_behind
from fkgsec.data.consortium import RELATIONS, generate_consortium
from fkgsec.estimate import Estimate
from fkgsec.experiments.cli.console import expected_errors
from fkgsec.experiments.cli.main import app
from fkgsec.experiments.reporting.cli import report
from fkgsec.experiments.reporting.frames import each_victim, over_all
from fkgsec.experiments.reporting.html.charts import svg
from fkgsec.experiments.reporting.html.page import assemble, render
from fkgsec.experiments.reporting.items import _PHRASES, NUM_EXAMPLES, Run, triple_words
from fkgsec.experiments.reporting.pictures import MARKERS, bytes_by_run, convergence, panels
from fkgsec.experiments.reporting.reading import read_runs
from fkgsec.experiments.reporting.sheets import interval, short
from fkgsec.experiments.reporting.words import figure_reasons
from fkgsec.experiments.runs.compare import read_comparison
from fkgsec.experiments.runs.record import Record, read_record
from fkgsec.experiments.runs.spec import Spec
from fkgsec.experiments.runs.stored import decode_stored, encode_stored
from tests.pictures import rendering

SMALL = ["--size", "900", "--rounds", "2", "--dim", "8", "--num-negatives", "8", "--unlinked-heads", "20",
         "--eval-every", "1", "--device", "cpu"]  # fmt: skip
CASES = ("none", "fedr", "psu,secagg")
RESULTS = Path(__file__).parents[4] / "results"
VOID = {"meta", "link", "br", "img", "input", "wbr"}
NASTY = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&"

reporter = typer.Typer(pretty_exceptions_enable=False)
reporter.command()(expected_errors(report))


def run_report(*arguments: str | Path) -> tuple[int, str, str]:
    result = CliRunner().invoke(reporter, [str(argument) for argument in arguments], catch_exceptions=False)
    return result.exit_code, result.stdout, result.stderr


class Page(HTMLParser):
    """A page as a reader gets it: its elements, the text in each kind of them, and its tables by caption."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.stack: list[str] = []
        self.texts: list[tuple[tuple[str, ...], str]] = []
        self.tables: list[tuple[str, list[list[str]]]] = []
        self.orders: list[tuple[str, list[list[float | None]]]] = []
        self._rows: list[list[str]] = []
        self._orders: list[list[float | None]] = []
        self._caption = ""
        self.feed(html)
        assert not self.stack, f"not closed: {self.stack}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.stack.append(tag)
        if tag == "table":
            self._rows, self._orders, self._caption = [], [], ""
        elif tag == "tr":
            self._rows.append([])
            self._orders.append([])
        elif tag in ("td", "th"):
            self._rows[-1].append("")
            order = dict(attrs).get("data-order")
            self._orders[-1].append(None if order is None else float(order))

    def handle_endtag(self, tag: str) -> None:
        assert self.stack, f"</{tag}> without a start"
        assert self.stack.pop() == tag
        if tag == "table":
            self.tables.append((self._caption, self._rows))
            self.orders.append((self._caption, self._orders))

    def handle_data(self, data: str) -> None:
        self.texts.append((tuple(self.stack), data))
        if "caption" in self.stack:
            self._caption += data
        elif self.stack and self.stack[-1] in ("td", "th"):
            self._rows[-1][-1] += data

    @property
    def text(self) -> str:
        """What a reader reads: no script, no style, one space where there was white space."""
        shown = (data for stack, data in self.texts if not {"script", "style", "title"} & set(stack))
        return " ".join(" ".join(shown).split())

    def table(self, start: str) -> list[list[str]]:
        """The one table whose caption starts so: rows of cells, the head first."""
        (found,) = (rows for caption, rows in self.tables if caption.startswith(start))
        return [[cell.replace("\N{NO-BREAK SPACE}", " ").strip() for cell in row] for row in found]


def page_of(*runs: Run, **options: bool) -> Page:
    return Page(render(assemble(runs, **options)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison of small runs, attacked, with scores."""
    out = tmp_path_factory.mktemp("runs") / "compared"
    cases = [argument for case in CASES for argument in ("--case", case)]
    result = CliRunner().invoke(app, ["compare", *SMALL, *cases, "-q", "--out", str(out)])
    assert result.exit_code == 0, result.output
    return out


@pytest.fixture(scope="module")
def runs(folder: Path) -> list[Run]:
    return read_runs([folder])


@pytest.fixture(scope="module")
def page(runs: list[Run]) -> Page:
    return page_of(*runs)


def by_name(runs: list[Run], name: str) -> tuple[Record, pd.DataFrame]:
    (run,) = (run for run in runs if run.name == name)
    assert run.scores is not None
    return run.record, run.scores


# What is read.


def test_a_comparison_is_all_its_cases_and_a_folder_is_its_record(folder: Path, runs: list[Run]) -> None:
    assert [run.name for run in runs] == list(CASES)
    assert all(run.scores is not None for run in runs)
    (one,) = read_runs([folder / "fedr"])
    assert (one.name, one.record) == ("fedr", read_record(folder / "fedr" / "record.json"))
    assert one.scores is not None
    assert [run.name for run in read_runs([folder / "comparison.json", folder / "fedr", folder / "fedr" / "record.json"])] == [
        "compared: none", "compared: fedr", "compared: psu,secagg", "fedr", "fedr (2)",
    ]  # fmt: skip


def test_a_record_of_another_name_takes_no_scores_beside_it(folder: Path, tmp_path: Path) -> None:
    shutil.copy(folder / "none" / "record.json", tmp_path / "mine.json")
    shutil.copy(folder / "none" / "scores.parquet", tmp_path / "scores.parquet")
    (run,) = read_runs([tmp_path / "mine.json"])
    assert (run.name, run.scores) == ("mine", None)
    page = page_of(run)
    assert "Without per-item scores (scores.parquet, beside the record in a run folder): mine." in page.text
    assert "There are no scores of single triples to divide by relation." in page.text


def broken(folder: Path, tmp_path: Path, what: str) -> list[str | Path]:
    """The arguments of a wrong call."""
    shutil.copytree(folder / "none", tmp_path / "run")
    scores = tmp_path / "run" / "scores.parquet"
    if what in ("parquet", "columns", "other"):  # of before records said by a digest which scores are theirs
        record = json.loads((tmp_path / "run" / "record.json").read_text())
        (tmp_path / "run" / "record.json").write_text(json.dumps(record | {"origin": None}))
    if what == "record":
        (tmp_path / "run" / "record.json").write_text('{"schema": ')
    if what == "parquet":
        scores.write_bytes(b"PAR1")
    if what == "columns":
        pd.read_parquet(scores).drop(columns=["right"]).to_parquet(scores)
    if what == "swapped":
        pd.read_parquet(scores).iloc[::-1].to_parquet(scores)
    if what == "other":
        table = pd.read_parquet(scores)
        table.assign(right=~table["right"].astype(bool)).to_parquet(scores)
    out = {"suffix": tmp_path / "run" / "record.json", "out": tmp_path / "none" / "report.html"}
    (tmp_path / "empty").mkdir()
    runs = {"missing": [tmp_path / "nothing"], "empty": [tmp_path / "empty"], "text": [Path(__file__)]}
    return [*runs.get(what, [tmp_path / "run"]), "--out", out.get(what, tmp_path / "report.html")]


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("missing", "nothing: cannot be read (No such file or directory)"),
        ("empty", "no record.json or comparison.json in it or below"),
        ("text", "test_report.py: not JSON"),
        ("record", "record.json: not a record of schema"),
        ("parquet", "scores.parquet: cannot be read"),
        ("columns", "scores.parquet: not the scores of an attack; missing columns: right"),
        ("other", "scores.parquet: not the scores of its record: collusion, leak 0.5, hospital-2, "),
        ("swapped", "scores.parquet: not the scores of its record, or damaged"),
        ("suffix", "out must end with .html"),
        ("out", "report.html: cannot be written (No such file or directory)"),
    ],
)
def test_wrong_input_is_one_line_and_status_2(what: str, says: str, folder: Path, tmp_path: Path) -> None:
    arguments = broken(folder, tmp_path, what)
    before = (tmp_path / "run" / "record.json").read_bytes()
    status, out, err = run_report(*arguments)
    assert (status, out) == (2, "")
    assert err.startswith("fkgsec: ")
    assert says in err
    assert len(err.splitlines()) == 1
    assert (tmp_path / "run" / "record.json").read_bytes() == before
    assert not list(tmp_path.rglob("*.html*"))


# What is shown.


def test_every_figure_of_the_record_is_in_the_tables_with_its_interval_and_base(runs: list[Run], page: Page) -> None:
    overview, victims = page.table("Figures over all victims"), page.table("Figures of each victim")
    assert victims[0][:8] == ["run", "attack", "threat model", "victim", "metric", "figure", "base", "max"]
    expected = []
    for run in runs:
        for one in each_victim(run.record.figures):
            bounds = ["–" if end is None else short(end) for end in (one.baseline, one.attainable)]
            place = f"{one.threat_model}, leak {one.leak:g}" if one.leak is not None else one.threat_model
            known = [run.name, one.attack, place, one.victim, one.label]
            if one.reason:
                bounds = ["n/a" if end == "–" or number else end for number, end in enumerate(bounds)]
            expected.append([*known, "n/a" if one.reason else interval(one.estimate), *bounds, one.status])
    assert sorted(row[:9] for row in victims[1:]) == sorted(expected)
    assert {tuple(row[:9]) for row in overview[1:]} <= {tuple(row[:9]) for row in victims[1:]}
    utility = {row[0]: row[1] for row in page.table("Utility, cost and convergence")[1:]}
    assert utility == {run.name: interval(run.record.utility["mrr"]) for run in runs}


def test_what_adds_most_to_its_baseline_stands_first_without_any_script(page: Page) -> None:
    for start in ("Figures over all victims", "Figures of each victim"):
        (orders,) = (orders for caption, orders in page.orders if caption.startswith(start))
        named = zip(page.table(start)[1:], orders[1:], strict=True)
        measured = [row for cells, row in named if cells[1] == "reconstruction" and row[5] != -1.0]
        added = [float(row[5] or 0) - float(row[6] or 0) for row in measured]
        assert len(set(added)) > 1
        assert added == pytest.approx(sorted(added, reverse=True))


def test_relations_agree_with_a_naive_count_and_sensitive_ones_stand_first(runs: list[Run], page: Page) -> None:
    for name in CASES:
        record, scores = by_name(runs, name)
        rows = page.table(f"{name}: triples rebuilt by relation")
        attacks = [head for head in rows[0] if ", leak " in head]
        assert attacks
        sensitive = set(record.data.sensitive)
        body = [row for row in rows[1:] if row[0] not in ("sensitive relations", "all relations")]
        assert {row[0] for row in body} == set(scores["relation"].dropna())
        assert [row[1] == "sensitive" for row in body] == sorted((row[0] in sensitive for row in body), reverse=True)
        counts: Counter[tuple[str, str, bool]] = Counter()
        found = [one for one in headline(record.rebuilt) if (one.victim, one.metric) == ("all", "trr")]
        for best in (one for one in found if not one.reason):
            for one in items_behind(best, scores).itertuples():
                groups = ["all relations", *(["sensitive relations"] if one.relation in sensitive else [])]
                for group in (one.relation, *groups):
                    counts[f"{one.threat_model}, leak {one.leak:g}", group, bool(one.right)] += 1
        whole = {f"{one.threat_model}, leak {one.leak:g}": one.estimate for one in found}
        for row in rows[1:]:
            for attack in attacks:
                cell = row[rows[0].index(attack)]
                right, wrong = (counts[attack, row[0], kind] for kind in (True, False))
                if row[0] == "all relations":  # the attack's own figure, with its own interval
                    assert cell == interval(whole[attack])
                    continue
                figure = estimate.proportion(right, right + wrong)
                assert row[2] == f"{right + wrong:,}"
                assert cell == interval(figure)


def test_a_base_is_shown_where_the_scores_have_one(runs: list[Run]) -> None:
    record, scores = by_name(runs, "none")
    bare = scores.drop(columns="base", errors="ignore")
    chance = (bare["relation"] == "prescribed") * 0.25
    page = page_of(Run("none", record, bare.assign(base=chance)))
    rows = page.table("none: triples rebuilt")
    assert rows[0][3:] == ["collusion, leak 0.5", "base", "identifiers, leak 0.5", "base"]
    assert {row[0]: (row[4], row[6]) for row in rows[1:]}["prescribed"] == (".250", ".250")
    assert {row[0]: (row[4], row[6]) for row in rows[1:]}["treats"] == (".000", ".000")
    text = page_of(Run("none", record, bare)).text
    assert "The scores have no base by relation" in text


def test_examples_are_what_the_scores_say_and_follow_the_rule(runs: list[Run]) -> None:
    record, scores = by_name(runs, "none")
    (found,) = assemble([Run("none", record, scores)])["federations"][0]["examples"]
    chosen = scores[(scores["threat_model"] == "identifiers") & (scores["item"] == "triple")]
    assert found.attack == "identifiers, leak 0.5"
    words = {"right": set(), "claimed": set(), "true": set()}
    for one in chosen.itertuples():
        truth = (one.victim, triple_words(one.head, one.relation, one.tail, "consortium"))
        claim = (one.victim, triple_words(one.guessed_head, one.guessed_relation, one.guessed_tail, "consortium"))
        words["true"].add(truth)
        words["claimed"].add(claim)
        if one.right:
            words["right"].add(claim)
    assert len(found.right) == min(NUM_EXAMPLES, len(words["right"]))
    assert len(found.wrong) == NUM_EXAMPLES
    for example in found.right:
        assert (example.victim, example.claim) in words["right"]
        assert example.claim == example.truth
    for example in found.wrong:
        assert (example.victim, example.claim) in words["claimed"] - words["true"]
        assert (example.victim, example.truth) in words["true"]
        assert example.score == 1  # names were read
    assert f"{int(chosen['right'].sum()):,} are right" in found.counts


def test_the_surest_claims_are_chosen_sensitive_ones_first(runs: list[Run]) -> None:
    """Under collusion scores differ: no sensitive claim that was left out is surer than one that is shown."""
    record, scores = by_name(runs, "none")
    rebuilt = [one for one in record.rebuilt if one.threat_model == "collusion"]
    (found,) = assemble([Run("none", msgspec.structs.replace(record, figures=rebuilt), scores)])["federations"][0][
        "examples"
    ]
    chosen = pd.concat([items_behind(one, scores) for one in headline(rebuilt) if one.victim == "all"])
    score = {(one.victim, one.head): one.score for one in chosen.itertuples() if one.item == "entity"}
    wrong = {
        (one.victim, one.guessed_head, one.guessed_relation, one.guessed_tail): min(
            score[one.victim, one.head], score[one.victim, one.tail]
        )
        for one in chosen.itertuples()
        if one.item == "triple" and not one.right and one.guessed_relation in record.data.sensitive
    }
    assert len(wrong) > NUM_EXAMPLES
    best = sorted(wrong.values(), reverse=True)[:NUM_EXAMPLES]
    assert [example.score for example in found.wrong] == pytest.approx(best)


def test_a_claim_is_wrong_only_when_the_victim_has_no_such_triple(runs: list[Run]) -> None:
    """Two relations link a pair and the adversary says "owes" for both: one claim, which is right. Sensitive ones lead."""
    record = runs[0].record
    rebuilt = [one for one in record.rebuilt if (one.victim, one.threat_model) == ("hospital-2", "collusion")]
    data = msgspec.structs.replace(record.data, sensitive=["fears"])
    common = {"victim": "hospital-2", "threat_model": "collusion", "leak": 0.5}
    items: list[dict[str, Any]] = [
        {"item": "entity", "head": name, "score": score, "right": True}
        for name, score in (("a", 0.9), ("b", 0.5), ("d", 0.2))
    ]
    items += [
        {"item": "triple", "head": "a", "relation": relation, "tail": tail, "guessed_head": "a",
         "guessed_relation": claimed, "guessed_tail": claimed_tail, "right": right}
        for relation, tail, claimed, claimed_tail, right in (
            ("owes", "b", "owes", "b", True),
            ("knows", "b", "owes", "b", False),
            ("likes", "b", "likes", "", False),  # no claim
            ("likes", "b", "likes", "c", False),
            ("fears", "d", "fears", "d", True),
        )
    ]  # fmt: skip
    scores = pd.DataFrame([item | common for item in items])
    run = Run("planted", msgspec.structs.replace(record, figures=rebuilt, data=data), scores)
    (found,) = assemble([run])["federations"][0]["examples"]
    words = [[(one.claim, one.truth, one.score) for one in group] for group in (found.right, found.wrong)]
    assert words == [
        [("a — fears — d", "a — fears — d", 0.2), ("a — owes — b", "a — owes — b", 0.5)],
        [("a — likes — c", "a — likes — b", 0.5)],
    ]
    assert found.counts.startswith("4 claims about 5 training triples; 2 are right")


def test_no_examples_leaves_no_triple_of_a_victim_on_the_page(runs: list[Run]) -> None:
    with_examples, without = page_of(*runs).text, page_of(*runs, examples=False).text
    assert "The server learned about hospital-" in with_examples
    assert "patient " in with_examples
    assert "patient " not in without.replace("generated patients", "")
    assert "No claims are shown: they were left out" in without


def test_the_consortium_is_told_in_words_and_every_relation_has_some() -> None:
    assert set(_PHRASES) == set(RELATIONS)
    graph = generate_consortium(size=400)
    for client in graph.clients:
        for head, relation, tail in client.train[:200]:
            ends = [graph.entities[client.entity_ids[end]] for end in (head, tail)]
            said = triple_words(ends[0], graph.relations[client.relation_ids[relation]], ends[1], "consortium")
            assert ":" not in said
            assert "/" not in said
            assert "_" not in said


def test_the_page_names_adversaries_protection_and_differences(runs: list[Run], page: Page) -> None:
    assert {row[0] for row in page.table("The adversaries")[1:]} == {
        one.attack for run in runs for one in run.record.figures
    }
    for run in runs:
        for line in (*(f"{line}." for line in run.record.protection), *figure_reasons(run.record.figures)):
            assert line in page.text
    assert "The runs differ in: algorithm, defense." in page.text


def test_runs_that_were_not_trained_at_one_temperature_say_so(runs: list[Run], page: Page) -> None:
    assert "The temperature of negatives differs" not in page.text
    first, second, *_ = runs
    spec = msgspec.structs.replace(second.record.spec, temperature=0.0)
    uniform = Run("uniform", msgspec.structs.replace(second.record, spec=spec), second.scores)
    text = page_of(first, uniform).text
    assert f"The temperature of negatives differs: 0 in uniform; 1 in {first.name}" in text


def test_provenance_says_what_differs_from_the_default_and_has_the_whole_spec(runs: list[Run], page: Page) -> None:
    record = runs[0].record
    for text in (
        record.data.hash, record.environment.command, record.environment.python, record.environment.versions["torch"],
        "option dim 8 (default: 128)", "option size 900 (default: none)", "option defense psu,secagg (default: none)",
        "seed 0",
    ):  # fmt: skip
        assert text in page.text
    assert "option gamma" not in page.text
    specs = [decode_stored(data, Spec) for stack, data in page.texts if stack[-1:] == ("pre",)]
    assert specs == [run.record.spec for run in runs]


def test_curves_have_every_validation_and_bytes_add_up(runs: list[Run], page: Page) -> None:
    rows = page.table("Figures of the chart: Validation MRR by round")
    shown = [(row[0], int(row[1]), row[3]) for row in rows[1:]]
    checked = [
        (run.name, entry.round, short(entry.valid))
        for run in runs for entry in run.record.rounds if entry.valid is not None
    ]  # fmt: skip
    assert shown == checked
    assert len(shown) == 6
    (orders,) = (rows for caption, rows in page.orders if caption.startswith("Figures of the chart: Validation MRR by"))
    last = {row[0]: order[2] for row, order in zip(rows[1:], orders[1:], strict=True)}
    assert last == {run.name: run.record.bytes.up + run.record.bytes.down for run in runs}


# Runs that lack something.


def test_a_run_that_was_not_attacked_says_so(runs: list[Run]) -> None:
    record = msgspec.structs.replace(runs[0].record, figures=[])
    text = page_of(Run("quiet", record)).text
    for words in (
        "NOT ATTACKED",
        "No run was attacked.",
        "quiet: not attacked.",
    ):
        assert words in text
    assert "Without per-item scores" not in text


def test_runs_on_different_data_are_kept_apart(runs: list[Run]) -> None:
    other = runs[1].record
    other = msgspec.structs.replace(other, data=msgspec.structs.replace(other.data, hash="f" * 64))
    page = page_of(runs[0], Run("elsewhere", other))
    assert "These runs are on 2 different federations: consortium-3 (" in page.text
    overviews = [rows for caption, rows in page.tables if caption.startswith("Figures over all victims")]
    assert [{row[0] for row in rows[1:]} for rows in overviews] == [{"none"}, {"elsewhere"}]


def test_no_test_triples_no_validation_and_no_bytes(runs: list[Run]) -> None:
    record = runs[0].record
    nothing = Estimate(0.0, 0.0, 1.0, 0, "bootstrap")
    entries = [msgspec.structs.replace(entry, valid=None, bytes_up=0, bytes_down=0) for entry in record.rounds]
    sent = msgspec.structs.replace(record.bytes, up=0, down=0)
    record = msgspec.structs.replace(record, utility={"mrr": nothing}, rounds=entries, bytes=sent)
    text = page_of(Run("bare", record)).text
    assert "No test triples. 0 MiB to the server" in text
    assert "No validation was run." in text
    entries = [msgspec.structs.replace(entry, valid=0.1) for entry in entries]
    text = page_of(Run("bare", msgspec.structs.replace(record, rounds=entries))).text
    assert "Figures of the chart: Validation MRR by round" in text


@pytest.mark.slow
def test_the_committed_results_make_one_small_page(tmp_path: Path) -> None:
    files = sorted([*RESULTS.glob("*.json"), *RESULTS.glob("defended/*.json")])
    assert files
    status, out, _ = run_report(*files, "--out", tmp_path / "all.html")
    assert status == 0
    html = (tmp_path / "all.html").read_text(encoding="utf-8")
    assert len(html) < 3_000_000
    page = Page(html)
    for path in files:
        comparison = read_comparison(path)
        names = [f"{path.stem}: {case.name}" for case in comparison.cases] if comparison else [path.stem]
        for name in names:
            assert ("h3", name) in [(stack[-1], data) for stack, data in page.texts if stack]
    assert f"{sum(len(made.cases) if (made := read_comparison(path)) else 1 for path in files)} runs" in out


# The page itself.


@pytest.mark.usefixtures("rendered")
def test_one_file_that_loads_nothing_and_runs_one_script(runs: list[Run]) -> None:
    html = render(assemble(runs))
    page = Page(html)
    assert len(html.encode()) < 3_000_000
    assert "http://" not in html
    assert "https://" not in html
    assert "url(" not in html
    assert "@import" not in html
    for tag, attributes in page.elements:
        assert "src" not in attributes
        assert not any(name.startswith("on") for name in attributes)
        assert tag != "a" or str(attributes["href"]).startswith("#")
        assert tag != "link" or attributes == {"rel": "icon", "href": "data:,"}
        assert tag not in ("iframe", "object", "embed", "form", "base", "img")
    (policy,) = (a["content"] for tag, a in page.elements if a.get("http-equiv") == "Content-Security-Policy")
    (script,) = (data for stack, data in page.texts if stack[-1:] == ("script",))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert str(policy).startswith("default-src 'none'; ")
    assert f"script-src 'sha256-{digest}';" in str(policy)


@pytest.mark.usefixtures("rendered")
def test_links_and_labels_lead_somewhere_and_ids_are_unique(runs: list[Run]) -> None:
    other = msgspec.structs.replace(runs[0].record, data=msgspec.structs.replace(runs[0].record.data, hash="0" * 64))
    page = page_of(*runs, Run("elsewhere", other))
    ids = [str(attributes["id"]) for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    for tag, attributes in page.elements:
        for name in str(attributes.get("aria-labelledby") or "").split():
            assert name in ids
        if tag == "a":
            assert str(attributes["href"])[1:] in ids
    charts = [attributes for tag, attributes in page.elements if tag == "svg"]
    assert len(charts) == 2 * 8
    for attributes in charts:
        assert attributes["role"] == "img"
        assert len(str(attributes["aria-labelledby"]).split()) == 2  # title and description
    assert sum(tag == "details" for tag, _ in page.elements) == len(charts) + 4  # a table for each, a spec for each run
    assert [tag for tag, _ in page.elements if tag == "h1"] == ["h1"]


@pytest.mark.usefixtures("rendered")
def test_names_from_the_data_are_inert(runs: list[Run]) -> None:
    record, scores = by_name(runs, "none")
    data = msgspec.structs.replace(
        record.data, name=NASTY, warnings=[NASTY], sensitive=[NASTY],
        clients={f"{NASTY}{name}": sizes for name, sizes in record.data.clients.items()},
    )  # fmt: skip
    rebuilt = [
        msgspec.structs.replace(
            one, colluder=NASTY, victim=one.victim if one.victim == "all" else f"{NASTY}{one.victim}"
        )
        for one in record.rebuilt
    ]
    renamed = scores.assign(victim=NASTY + scores["victim"])
    for name in ("head", "tail", "guessed_head", "guessed_tail", "relation", "guessed_relation"):
        renamed[name] = renamed[name].map(lambda value: NASTY if isinstance(value, str) else value)
    spec = msgspec.structs.replace(record.spec, data=NASTY)
    where = msgspec.structs.replace(record.environment, command=NASTY, device=NASTY)
    record = msgspec.structs.replace(
        record, data=data, figures=rebuilt, spec=spec, environment=where, protection=[NASTY],
    )  # fmt: skip
    page = page_of(Run(NASTY, record, renamed))
    assert sum(tag == "script" for tag, _ in page.elements) == 1
    assert not any(tag == "img" for tag, _ in page.elements)
    places = {stack[-1] for stack, data in page.texts if NASTY in data}
    assert places >= {"h1", "h3", "title", "p", "li", "th", "td", "dd", "caption"}
    assert any(NASTY[:20] in data for stack, data in page.texts if stack[-1:] == ("text",))  # in a chart


@pytest.mark.usefixtures("rendered")
def test_the_same_input_gives_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    pages = []
    for name in ("one", "two"):
        assert run_report(folder, "--out", tmp_path / f"{name}.html")[0] == 0
        pages.append((tmp_path / f"{name}.html").read_bytes())
    assert pages[0] == pages[1]


@pytest.mark.slow
def test_the_bytes_do_not_hang_on_the_order_of_hashes(folder: Path, tmp_path: Path) -> None:
    pages = []
    code = "import sys, typer; from fkgsec.experiments.reporting.cli import report; typer.run(report)"
    for seed in ("1", "2"):
        out = tmp_path / f"{seed}.html"
        root = Path(__file__).parents[4]
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(root)}
        subprocess.run([sys.executable, "-c", code, folder, "--out", out], check=True, cwd=root, env=environment)
        pages.append(out.read_bytes())
    assert pages[0] == pages[1]


# Charts.


def test_bars_intervals_and_baselines_stand_where_their_figures_are(runs: list[Run]) -> None:
    records = {run.name: run.record for run in runs}
    (title, draw), *_ = (
        (title, draw) for title, draw in panels(records, 4).items() if title.startswith("reconstruction.")
    )
    axes = Picture().subplots()
    draw(axes)
    shown = [
        one
        for threat in dict.fromkeys(one.threat_model for run in runs for one in run.record.figures)
        for run in runs for one in over_all(run.record.figures)
        if one.key == title and one.threat_model == threat and not one.reason
    ]  # fmt: skip
    assert [patch.get_width() for patch in axes.patches] == [one.estimate.value for one in shown]
    ends = {tuple(segment[:, 0]) for lines in axes.collections for segment in lines.get_segments()}
    for one in shown:
        assert any(end == pytest.approx((one.estimate.low, one.estimate.high)) for end in ends)
        assert one.baseline is None or (one.baseline.value, one.baseline.value) in ends


def test_curves_pass_through_their_points_and_mark_the_best_round(runs: list[Run]) -> None:
    figure = convergence(runs, narrow=True)
    assert figure is not None
    for axes, points in zip(
        figure.axes,
        [
            lambda record: [entry.round for entry in record.rounds],
            lambda record: np.cumsum([entry.bytes_up + entry.bytes_down for entry in record.rounds]) / 2**20,
        ],
        strict=True,
    ):
        lines = axes.get_lines()
        for run, curve, mark in zip(runs, lines[::2], lines[1::2], strict=True):
            checked = [entry.valid is not None for entry in run.record.rounds]
            assert list(curve.get_xdata()) == pytest.approx(np.array(points(run.record))[checked].tolist())
            assert list(curve.get_ydata()) == [entry.valid for entry in run.record.rounds if entry.valid is not None]
            assert list(mark.get_ydata()) == [run.record.rounds[run.record.best_round].valid]


@pytest.mark.usefixtures("rendered")
def test_a_chart_is_text_in_the_colours_of_the_page_and_is_told_apart_without_them(runs: list[Run]) -> None:
    """Curves differ in marks; names are neither mathematics nor hidden."""
    names = ["$x_1$", "_hidden", "名前", "\x01"]
    named = [Run(name, runs[0].record) for name in names]
    for number, figure in enumerate((convergence(named), bytes_by_run(named))):
        assert figure is not None
        drawn = svg(figure, f"c{number}", "T<", "D")
        texts = {(text.text or "").strip("\u200b ") for text in ElementTree.fromstring(drawn).iter("text")}
        assert {*names[:3], "\\x01"} <= texts
        assert not re.search(r"url\(|#[0-9a-f]{6}|font-family|<style|https?:", drawn)
        assert f'<title id="c{number}-title">T&lt;</title><desc id="c{number}-desc">D</desc>' in drawn
    curves = convergence(named)
    assert curves is not None
    assert len({line.get_marker() for line in curves.axes[0].get_lines()} & set(MARKERS)) == len(names)


@pytest.mark.usefixtures("rendered")
def test_long_names_are_cut_in_charts_and_whole_in_their_table(runs: list[Run]) -> None:
    name = "psu,secagg,dp:unit=row,clip=0.1,epsilon=1000 " * 3
    federation = assemble([Run(name, runs[0].record)])["federations"][0]
    assert f">{name}<" not in federation["charts"][0].svg
    assert "..." in federation["charts"][0].svg
    assert federation["charts"][0].table.rows[0][0] == name


# In a browser.


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = next(
        (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
    )
    if path is None:
        pytest.skip("no Chromium on this machine")
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path)
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def address(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A page with all kinds of runs on two federations."""
    quiet = read_record(folder / "none" / "record.json")
    quiet = msgspec.structs.replace(quiet, figures=[], data=msgspec.structs.replace(quiet.data, hash="0" * 64))
    place = tmp_path_factory.mktemp("page")
    (place / "quiet.json").write_bytes(encode_stored(quiet))
    with rendering():
        assert run_report(folder, place / "quiet.json", "--out", place / "report.html")[0] == 0
    return (place / "report.html").as_uri()


@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (390, "dark"), (1280, "light"), (1280, "dark")])
def test_in_a_browser(browser: Any, address: str, width: int, scheme: str) -> None:
    """Nothing on the console, nothing loaded, on the screen within a second, no sideways scroll, axe-core finds nothing."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    said: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(address)
    assert said == []
    assert [url for url in asked if not url.startswith("data:")] == [address]
    assert page.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd") < 1000
    assert page.evaluate("document.documentElement.scrollWidth") == width
    found = axe.Axe().run(page)
    assert [violation["id"] for violation in found.response["violations"]] == []
    assert len(found.response["passes"]) > 20
    page.close()


def test_tables_sort_by_keyboard_and_stand_without_script(browser: Any, address: str) -> None:
    page = browser.new_page()
    page.goto(address)
    table = page.locator("table", has=page.locator("caption", has_text="Figures of each victim")).first
    names = "table => [...table.tBodies[0].rows].map(row => row.cells[0].textContent)"
    orders = "table => [...table.tBodies[0].rows].map(row => Number(row.cells[5].dataset.order))"
    button = table.get_by_role("button", name="run")
    button.focus()
    page.keyboard.press("Enter")
    assert table.evaluate(names) == sorted(table.evaluate(names))
    page.keyboard.press("Enter")
    assert table.evaluate(names) == sorted(table.evaluate(names), reverse=True)
    assert table.locator("th[aria-sort=descending]").inner_text().startswith("run")
    table.get_by_role("button", name="figure").click()
    assert table.evaluate(orders) == sorted(table.evaluate(orders), reverse=True)
    page.close()
    plain = browser.new_context(java_script_enabled=False).new_page()
    plain.goto(address)
    assert plain.locator("th button").count() == 0
    assert plain.locator("table").count() > 10
    plain.close()


@pytest.mark.usefixtures("rendered")
def test_a_name_does_not_run_in_a_browser(browser: Any, runs: list[Run], tmp_path: Path) -> None:
    record = runs[0].record
    data = msgspec.structs.replace(record.data, name=NASTY, warnings=[NASTY])
    html = render(assemble([Run(NASTY, msgspec.structs.replace(record, data=data), runs[0].scores)]))
    (tmp_path / "report.html").write_text(html, encoding="utf-8")
    page = browser.new_page()
    opened: list[str] = []
    page.on("dialog", lambda dialog: (opened.append(dialog.message), dialog.dismiss()))
    page.goto((tmp_path / "report.html").as_uri())
    assert opened == []
    assert NASTY in page.locator("h1").inner_text()
    page.close()


def test_it_prints_on_paper(browser: Any, address: str) -> None:
    page = browser.new_page(color_scheme="dark")
    page.goto(address)
    assert page.pdf(prefer_css_page_size=True).startswith(b"%PDF")
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.locator("nav").is_hidden()
    assert page.evaluate(
        "[...document.querySelectorAll('.scroll')].every(one => getComputedStyle(one).overflow === 'visible')"
    )
    page.close()
