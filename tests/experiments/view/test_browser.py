"""The viewer in headless Chromium: no sideways scroll, nothing for axe-core to find, filters with and without script."""

import json
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from experiments.gate.judge import CHECK_FILE
from experiments.gate.verdict_formats import to_json
from experiments.view.server import Viewer
from tests.experiments.reporting.html.test_verdicts import checked_on
from tests.experiments.view.conftest import NASTY

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    names = ("chromium", "chromium-browser", "google-chrome")
    path = next((found for name in names if (found := shutil.which(name))), None)
    if path is None:
        pytest.skip("no Chromium on this machine")
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path)
        yield chromium
        chromium.close()


@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (390, "dark"), (1280, "light"), (1280, "dark")])
def test_every_page_fits_and_is_accessible(browser: Any, viewer: Viewer, width: int, scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
    viewer.rescores = True
    page = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme).new_page()
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("dialog", lambda dialog: (said.append(dialog.message), dialog.dismiss()))
    page.goto(viewer.address)
    names = {run.name: run.identity for run in viewer.library.runs()}
    one, other = names[NASTY], names["rotate"]
    (audit,) = viewer.library.audits()
    checked = checked_on(json.loads((viewer.library.root / "rotate" / "record.json").read_text())["data"]["hash"])
    (viewer.library.root / CHECK_FILE).write_bytes(to_json(checked))  # a policy's verdict, in the reports of its runs
    job = viewer.jobs.start(["data", "list", "--nonsense"], "Attack a run")
    viewer.jobs.said(job)[0]._process.wait(timeout=120)
    paths = (
        "",
        "?algorithm=fede&sort=leaks",
        f"run/{one}",
        f"report/{one}",
        f"report/{other}",
        f"job/{job}",
        f"compare?run={one}&run={other}",
        f"audit/{audit.identity}",
    )
    for path in paths:
        page.goto(f"http://127.0.0.1:{viewer.port}/{path}")
        assert said == [], path
        assert page.evaluate("document.documentElement.scrollWidth") == width, path
        found = axe.Axe().run(page)
        assert [(one["id"], one["nodes"][0]["html"]) for one in found.response["violations"]] == [], path
        assert len(found.response["passes"]) > 15, path
    page.context.close()


def test_the_list_narrows_while_one_types_and_two_are_compared(browser: Any, viewer: Viewer) -> None:
    page = browser.new_context().new_page()
    page.goto(viewer.address)
    rows = page.locator("table.runs tbody tr:visible")
    everything = rows.count()
    page.fill("#text", "rotate")
    assert rows.count() == 1
    assert page.locator("#shown").inner_text() == f"1 of {everything} runs"
    page.fill("#text", "")
    assert rows.count() == everything
    button = page.get_by_role("button", name="Compare the two ticked")
    assert button.is_disabled()
    page.get_by_label("Compare transe", exact=True).check()
    page.get_by_label("Compare rotate", exact=True).check()
    button.click()
    assert page.get_by_role("heading", name="Settings that differ").is_visible()
    page.context.close()


def test_the_list_works_without_script(browser: Any, viewer: Viewer) -> None:
    page = browser.new_context(java_script_enabled=False).new_page()
    page.goto(viewer.address)
    page.select_option("#algorithm", "fedavg")
    page.get_by_role("button", name="Show").click()
    assert page.locator("table.runs tbody tr").count() == 1
    page.get_by_role("link", name="Clear").click()
    page.get_by_label("Compare transe", exact=True).check()
    page.get_by_role("button", name="Compare the two ticked").click()
    assert page.get_by_text("tick two runs to compare; 1 were ticked").is_visible()
    page.context.close()
