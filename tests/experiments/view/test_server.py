"""The viewer's server: who may ask, what it answers, and that it only reads unless told otherwise."""

import html
import http.client
import json
import re
import urllib.request
from email.message import Message
from html.parser import HTMLParser
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from typer.testing import CliRunner

from experiments.cli.main import app
from experiments.gate.judge import CHECK_FILE
from experiments.gate.verdict_formats import to_json
from experiments.reporting.html.notation import score_text
from experiments.view.pages import Filters, filters_of, list_page
from experiments.view.rescoring import attack_command, evaluate_command
from experiments.view.server import MOST_BYTES, Viewer
from experiments.view.summaries import Library, Viewed
from fkgsec.errors import RunError, SpecError
from tests.experiments.reporting.html.test_verdicts import checked_on
from tests.experiments.view.conftest import NASTY, serving


def ask(
    viewer: Viewer, path: str, *, method: str = "GET", body: str = "", opens: bool = True, **headers: str
) -> tuple[int, str, Message]:
    """Status, page and headers of one request, which follows nothing."""
    connection = http.client.HTTPConnection("127.0.0.1", viewer.port, timeout=30)
    sent = {"Host": f"127.0.0.1:{viewer.port}", "Cookie": f"{viewer.cookie}={viewer.token}" if opens else ""}
    sent |= {name.replace("_", "-"): value for name, value in headers.items()}
    connection.putrequest(method, path, skip_host=True)
    for name, value in sent.items():
        if value:
            connection.putheader(name, value)
    if body:
        connection.putheader("Content-Length", str(len(body)))
    connection.endheaders(body.encode() if body else None)
    answer = connection.getresponse()
    page = answer.read().decode()
    connection.close()
    return answer.status, page, answer.headers


def form(viewer: Viewer, path: str, **fields: str) -> tuple[int, str, Message]:
    """The same of a form that the viewer's own page sends."""
    kind: dict[str, Any] = {
        "Content_Type": "application/x-www-form-urlencoded",
        "Origin": f"http://127.0.0.1:{viewer.port}",
    }
    return ask(viewer, path, method="POST", body=urlencode({"token": viewer.token} | fields), **kind)


def named(viewer: Viewer, name: str) -> Viewed:
    (run,) = (run for run in viewer.library.runs() if run.name == name)
    return run


class Elements(HTMLParser):
    """Names and attributes of every element, and the text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


# Who may ask.


def test_a_browser_gets_in_by_the_address_that_was_printed(viewer: Viewer) -> None:
    jar = CookieJar()
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(jar))
    with opener.open(viewer.address) as answer:
        assert answer.url == f"http://127.0.0.1:{viewer.port}/"  # the token is gone from the address
        assert "Runs in" in answer.read().decode()
    (cookie,) = jar
    assert cookie.name == viewer.cookie
    assert (cookie.value, cookie.path) == (viewer.token, "/")
    assert cookie.has_nonstandard_attr("HttpOnly")
    assert cookie.get_nonstandard_attr("SameSite") == "Strict"


@pytest.mark.parametrize("path", ["/", "/?sort=leaks", "/compare", "/run/0000000000000000", "/job/1", "/?token=wrong"])
def test_nobody_gets_in_without_the_token(viewer: Viewer, path: str) -> None:
    status, page, headers = ask(viewer, path, opens=False)
    assert status == 403
    assert "transe" not in page
    assert "Set-Cookie" not in headers
    status, page, _ = ask(viewer, path, opens=False, Cookie=f"{viewer.cookie}=wrong")
    assert (status, "transe" in page) == (403, False)


def test_a_site_that_rebinds_its_name_to_this_machine_is_refused(viewer: Viewer) -> None:
    for host in (
        "evil.example",
        f"evil.example:{viewer.port}",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "[",
        "",
    ):
        status, page, _ = ask(viewer, "/", Host=host)
        assert (status, "transe" in page) == (403, False), host
    for host in (f"127.0.0.1:{viewer.port}", "localhost:9", "[::1]:80"):
        assert ask(viewer, "/", Host=host)[0] == 200, host


def test_pages_are_not_framed_kept_or_read_elsewhere(viewer: Viewer) -> None:
    _, page, headers = ask(viewer, "/")
    assert headers["Content-Security-Policy"] == "frame-ancestors 'none'"
    assert headers["Cache-Control"] == "no-store"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert "Access-Control-Allow-Origin" not in headers
    assert "default-src 'none'" in page
    assert not re.search(r"(src|href)=\"?(https?:)?//", page)


def test_it_only_reads(viewer: Viewer) -> None:
    path = f"/rescore/{named(viewer, 'transe').identity}"
    status, page, _ = form(viewer, path, how="attack")
    assert status == 403
    assert "only reads" in page
    assert ask(viewer, path, method="PUT")[0] == 501
    assert "fkgsec attack --run" in ask(viewer, f"/run/{named(viewer, 'transe').identity}")[1]


def test_another_origin_starts_nothing(viewer: Viewer) -> None:
    viewer.rescores = True
    path = f"/rescore/{named(viewer, 'transe').identity}"
    kind: dict[str, Any] = {"Content_Type": "application/x-www-form-urlencoded"}
    body = urlencode({"token": viewer.token, "how": "attack"})
    for origin in ("", "null", "http://evil.example", f"http://localhost:{viewer.port}"):
        assert ask(viewer, path, method="POST", body=body, Origin=origin, **kind)[0] == 403, origin
    own = f"http://127.0.0.1:{viewer.port}"
    assert ask(viewer, path, method="POST", body="token=no&how=attack", Origin=own, **kind)[0] == 403
    assert ask(viewer, path, method="POST", body=body, Origin=own, opens=False, **kind)[0] == 403
    assert ask(viewer, path, method="POST", body=body, Origin=own, Content_Type="text/plain")[0] == 415
    assert ask(viewer, path, method="POST", body="x" * (MOST_BYTES + 1), Origin=own, **kind)[0] == 413
    assert form(viewer, path, how="train")[0] == 400
    assert form(viewer, path, how="attack", out="/tmp/elsewhere")[0] == 400
    with pytest.raises(RunError, match="no job"):
        viewer.jobs.said(1)


# What it answers.


def test_every_name_is_inert(viewer: Viewer) -> None:
    run = named(viewer, NASTY)
    for path in ("/", f"/run/{run.identity}", f"/compare?run={run.identity}&run={named(viewer, 'rotate').identity}"):
        status, page, _ = ask(viewer, path)
        elements = Elements(page)
        assert status == 200
        assert NASTY in elements.text
        assert not any(name.startswith("on") for _, attributes in elements.found for name in attributes)
        assert "b" not in {tag for tag, _ in elements.found}
    name = urlencode({"text": NASTY})
    assert any(attributes.get("value") == NASTY for _, attributes in Elements(ask(viewer, f"/?{name}")[1]).found)


def test_the_list_filters_and_sorts_without_script(viewer: Viewer) -> None:
    def shown(query: str) -> list[str]:
        """The runs in the table, in their order."""
        page = ask(viewer, f"/?{query}")[1]
        return [html.unescape(name) for name in re.findall(r'<a href="/run/[0-9a-f]{16}">(.*?)</a>', page)]

    assert shown("algorithm=fedavg") == ["molecules"]
    assert shown("text=ROTATE+nations") == ["rotate"]
    assert shown("text=nowhere") == []
    everything = {run.name: run.whole for run in viewer.library.runs() if run.summary}
    utility = [everything[name].reached.value for name in shown("sort=utility")]
    assert utility == sorted(utility, reverse=True)
    assert len(utility) == len(everything)
    seconds = [everything[name].seconds for name in shown("sort=seconds&reverse=yes")]
    assert seconds == sorted(seconds)
    assert shown("sort=run") == shown("sort=run&reverse=yes")[::-1]


def test_what_is_asked_for_wrongly_is_said_in_a_line(viewer: Viewer) -> None:
    for path, status, said in (
        ("/?sort=nothing", 400, "sort must be one of run,"),
        ("/?colour=red", 400, "is no filter"),
        ("/compare", 400, "tick two runs"),
        (f"/compare?run={'0' * 16}&run={'1' * 16}", 404, "no such run"),
        ("/run/0000000000000000", 404, "no such run"),
        ("/run/../../etc/passwd", 404, "no such page"),
        ("/job/7", 404, "no job 7"),
        (f"/report/{named(viewer, 'cut').identity}", 404, "truncated"),
        (f"/run/{named(viewer, 'outside').identity}", 404, "interval"),
    ):
        got, page, _ = ask(viewer, path)
        assert got == status, path
        assert said in Elements(page).text, path


def test_broken_records_stand_in_the_list(viewer: Viewer) -> None:
    page = Elements(ask(viewer, "/")[1]).text
    assert "2 broken records" in page
    assert "cannot be read" in page


def test_a_run_says_first_what_leaks_and_what_that_does_not_say(viewer: Viewer) -> None:
    page = Elements(ask(viewer, f"/run/{named(viewer, 'transe').identity}")[1]).text
    assert re.search(r"It leaks: \d+ of \d+ leading figures beats? (its|their) baseline", page)
    assert page.index("It leaks") < page.index("What this does not say") < page.index("Every option")
    assert "transe/attacks/score-1" in page


def test_a_report_and_a_certificate_open(viewer: Viewer) -> None:
    status, page, _ = ask(viewer, f"/report/{named(viewer, 'molecules').identity}")
    assert status == 200
    assert "Privacy report" in page
    assert ("a", {"href": f"/run/{named(viewer, 'molecules').identity}"}) in Elements(page).found
    assert "judged-1" not in page
    run = named(viewer, "molecules")
    checked = checked_on(json.loads(run.file.read_text())["data"]["hash"])
    (viewer.library.root / CHECK_FILE).write_bytes(to_json(checked))
    assert "Policy policy.yaml: fail" in ask(viewer, f"/report/{run.identity}")[1]
    (audit,) = viewer.library.audits()
    status, page, _ = ask(viewer, f"/audit/{audit.identity}")
    assert status == 200
    assert "Unlearning:" in page
    assert ("a", {"href": "/"}) in Elements(page).found


def test_two_runs_stand_side_by_side(viewer: Viewer) -> None:
    """What differs comes first, then utility, leakage and bytes, each figure with its interval."""
    chosen = "&".join(f"run={named(viewer, name).identity}" for name in ("transe", "rotate"))
    status, page, _ = ask(viewer, f"/compare?{chosen}")
    text = Elements(page).text
    places = [
        text.index(one) for one in ("What differs by", "Settings that differ", "Utility", "Leakage", "Bytes and time")
    ]
    assert (status, places) == (200, sorted(places))
    assert re.search(r'<th scope="row">model</th>\s*<td[^>]*>transe</td>\s*<td[^>]*>rotate</td>', page)
    for name in ("transe", "rotate"):
        one = named(viewer, name).whole
        assert score_text(one.reached) in text
        assert one.worst is not None
        assert score_text(one.worst.estimate) in text
    same = text[text.index("Settings that both have") :]
    assert "algorithm" in same


def test_runs_of_different_tasks_are_said_not_to_compare(viewer: Viewer) -> None:
    chosen = "&".join(f"run={named(viewer, name).identity}" for name in ("transe", "molecules"))
    status, page, _ = ask(viewer, f"/compare?{chosen}")
    assert status == 200
    assert "The runs are of different tasks" in Elements(page).text


def test_filters_are_checked() -> None:
    assert filters_of({"algorithm": ["fede"], "reverse": ["yes"]}) == Filters(algorithm="fede", reverse=True)
    with pytest.raises(SpecError, match="sort must be one of"):
        filters_of({"sort": ["x"]})


def test_names_that_are_no_unicode_are_shown(library: Library) -> None:
    (library.root / "rotate").rename(library.root / "gr\udcfcn")
    assert "gr\\udcfcn" in list_page(library, Filters()).encode().decode()


# Scoring again.


def test_what_is_started_is_what_the_command_line_does(library: Library) -> None:
    (run,) = (run for run in library.runs() if run.name == "transe/attacks/score-1")
    folder = str((library.root / "transe").absolute())
    asked = {"leak": "0.3, 1.0", "attack": "", "inference": "--overwrite,score", "attack_seed": "7"}
    assert attack_command(run, asked) == [
        "attack", "--run", folder, "--quiet", "--leak=0.3", "--leak=1.0", "--inference=--overwrite", "--inference=score",
        "--attack-seed=7",
    ]  # fmt: skip
    assert evaluate_command(run) == ["verify-run", f"{folder}/attacks/score-1", "--recompute"]
    for wrong in ({"overwrite": "yes"}, {"out": "x"}, {"leak": "1" * 201}):
        with pytest.raises(SpecError):
            attack_command(run, wrong)


def test_while_one_is_scored_others_wait_and_what_is_unknown_stays_so(viewer: Viewer) -> None:
    viewer.rescores = True
    run, path = named(viewer, "transe"), f"/rescore/{named(viewer, 'transe').identity}"
    status, _, headers = form(viewer, path, how="evaluate")  # loads torch, before it finds no checkpoint
    assert (status, headers["Location"]) == (303, "/job/1")
    status, page, _ = form(viewer, path, how="evaluate")
    assert (status, f"another run is scored right now (Evaluate {run.name})" in page) == (409, True)
    for unknown in ("/rescore/" + "0" * 16, "/rescore/x"):
        assert form(viewer, unknown, how="evaluate")[0] == 404
    for unknown in ("/job/2", "/run/" + "0" * 16, "/report/" + "0" * 16):
        assert ask(viewer, unknown)[0] == 404
    assert ask(viewer, "/job/1")[0] == 200


@pytest.mark.slow
def test_a_run_is_attacked_again_from_its_page(tmp_path: Path) -> None:
    """What the form asks for is made, stands in the list, and nothing of the run was written over."""
    words = "--size 300 --clients 2 --dim 8 --rounds 1 --batch-size 64 --num-negatives 4 --device cpu -q"
    made = CliRunner().invoke(app, ["train", *words.split(), "--out", str(tmp_path / "runs" / "mine")])
    assert made.exit_code == 0, made.output
    before = (tmp_path / "runs" / "mine" / "record.json").read_bytes()
    with Viewer(Library(tmp_path / "runs"), port=0, rescores=True) as viewer, serving(viewer):
        path = f"/rescore/{named(viewer, 'mine').identity}"
        assert form(viewer, path, how="attack", leak="1", attack="reconstruction")[0] == 303
        viewer.jobs.said(1)[0]._process.wait(timeout=120)
        page = Elements(ask(viewer, "/job/1")[1]).text
        assert "Done. What it wrote is in the list of runs." in page, page
        (further,) = (run for run in viewer.library.runs() if run.name.startswith("mine/attacks/"))
        assert {one.leak for one in further.whole.figures} == {1.0}
        assert further.name in Elements(ask(viewer, "/")[1]).text
        assert form(viewer, path, how="attack", leak="none")[0] == 303
        viewer.jobs.said(2)[0]._process.wait(timeout=120)
        page = Elements(ask(viewer, "/job/2")[1]).text
        assert "Ended with exit status 2" in page
        assert "--leak must be a number" in page
    assert (tmp_path / "runs" / "mine" / "record.json").read_bytes() == before


# The command.


def run_view(*words: Any) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["view", *map(str, words), "--no-browser"])
    return result.exit_code, result.stderr


def test_errors_of_the_command_are_one_line(viewer: Viewer, tmp_path: Path) -> None:
    assert run_view(tmp_path / "none") == (
        2,
        f"fkgsec: {tmp_path / 'none'}: no such folder; fkgsec view takes a folder with runs in it\n",
    )
    status, said = run_view(tmp_path / "runs" / "rotate" / "..", "--port", viewer.port)
    assert (status, said.count("\n")) == (2, 1)
    assert f"port {viewer.port} is taken already" in said
    (tmp_path / "empty").mkdir()
    status, said = run_view(tmp_path / "empty")
    assert (status, said.count("\n")) == (2, 1)
    assert "no record.json at any depth" in said
