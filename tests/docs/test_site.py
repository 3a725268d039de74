"""The site builds strictly, every link of it leads somewhere, and neither building nor reading it asks anybody else."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).parents[2]
NO_NETWORK = """
import socket
def refuse(*_, **__):
    raise OSError("the build asked for the network")
socket.socket.connect = refuse
socket.getaddrinfo = refuse
"""
SOURCES = ("script", "img", "iframe", "source", "video", "audio", "embed")
LOADS = {**dict.fromkeys(SOURCES, "src"), "object": "data"}
FETCHED_LINKS = {"stylesheet", "icon", "preload", "prefetch", "preconnect", "dns-prefetch", "modulepreload", "manifest"}


class Links(HTMLParser):
    """What a page loads, where its links lead, and the places in it that links can lead to."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.targets: list[str] = []
        self.ids: set[str] = set()
        self.classes: set[str] = set()
        self.styles: list[str] = []
        self.policy = ""
        self.headings = 0
        self.unnamed: list[str] = []
        self.feed(page.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.ids |= {given[name] for name in ("id", "name") if name in given}
        self.classes |= set(given.get("class", "").split())
        self.styles.append(given.get("style", ""))
        self.headings += tag == "h1"
        if (tag == "img" and not given.get("alt")) or (tag == "html" and not given.get("lang")):
            self.unnamed.append(tag)
        if tag in LOADS and LOADS[tag] in given:
            self.loads.append(given[LOADS[tag]])
        if tag == "link" and FETCHED_LINKS & set(given.get("rel", "").split()):
            self.loads.append(given.get("href", ""))
        if tag == "meta" and given.get("http-equiv", "").lower() == "content-security-policy":
            self.policy = given["content"]
        if tag == "a" and "href" in given:
            self.targets.append(given["href"])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site; sockets are refused in the process that builds it, and a warning is an error."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "sitecustomize.py").write_text(NO_NETWORK)
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder / "site"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}", "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "site"


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Links]:
    return {path: Links(path) for path in sorted(site.rglob("*.html"))}


def test_no_page_loads_anything_from_elsewhere(pages: dict[Path, Links]) -> None:
    assert len(pages) > 10
    for path, page in pages.items():
        assert page.loads, path
        outside = [one for one in page.loads if urlsplit(one).scheme not in ("", "data") or one.startswith("//")]
        assert not outside, f"{path}: {outside}"
        assert "default-src 'self'" in page.policy, path
        # What makes the theme's script load mermaid or ask a forge for its stars.
        assert "mermaid" not in page.classes, path
        assert 'data-md-component="source"' not in path.read_text(), path
        assert not any("url(" in style and "//" in style for style in page.styles)


def test_style_sheets_and_pictures_load_nothing_from_elsewhere(site: Path) -> None:
    for path in (*site.rglob("*.css"), *site.rglob("*.svg")):
        text = path.read_text()
        assert not re.search(r"@import|url\(\s*['\"]?(?:https?:)?//|(?:href|src)=['\"](?:https?:)?//", text), path


def test_every_link_leads_somewhere(site: Path, pages: dict[Path, Links]) -> None:
    wrong = []
    for path, page in pages.items():
        if path.name == "404.html":  # its links are from the root of wherever the site stands
            continue
        for target in page.targets:
            parts = urlsplit(target)
            if parts.scheme in ("http", "https", "mailto"):
                continue
            place = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            place = place / "index.html" if place.is_dir() else place
            if not place.is_relative_to(site) or not place.exists():
                wrong.append(f"{path.relative_to(site)}: {target}")
            elif (
                parts.fragment
                and place in pages
                and unquote(parts.fragment) not in pages[place].ids | {"__skip", "top"}
            ):
                wrong.append(f"{path.relative_to(site)}: no {target}")
    assert not wrong, "\n".join(wrong)


def test_pages_can_be_read_aloud(pages: dict[Path, Links]) -> None:
    """A language, one main heading, words for every picture, a title for every part of the navigation."""
    for path, page in pages.items():
        assert page.headings == 1, path
        assert not page.unnamed, path
        text = path.read_text()
        labels = re.findall(r'<nav class="md-nav"[^>]*aria-labelledby="(__nav_[^"]+)"', text)
        titles = dict(re.findall(r'<label class="md-nav__title"[^>]* id="([^"]+)">(.*?)</label>', text, re.DOTALL))
        assert labels, path
        assert all(re.sub(r"<[^>]*>", "", titles[label]).strip() for label in labels), path


def test_the_checks_would_notice(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text(
        '<link rel="stylesheet" href="https://fonts.example/a.css"><script src="//cdn.example/x.js"></script>'
    )
    assert Links(page).loads == ["https://fonts.example/a.css", "//cdn.example/x.js"]
