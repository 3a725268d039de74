"""The lock files: what the constraints pin, everything with hashes, and the packages that are installed."""

import re
import tomllib
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
LOCK = (ROOT / "requirements.lock").read_text()
RUN_LOCK = (ROOT / "requirements.run.lock").read_text()
PINNED = dict(re.findall(r"^([A-Za-z0-9_.-]+)==(\S+) \\$", LOCK, re.MULTILINE))


def plain(name: str) -> str:
    """A package's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def blocks(lock: str) -> dict[str, set[str]]:
    """The lines of each package by its plain name, without comments."""
    parts = re.split(r"^(?=[A-Za-z0-9])", lock, flags=re.MULTILINE)[1:]
    lines = [[line.rstrip("\\ ") for line in part.splitlines() if not line.lstrip().startswith("#")] for part in parts]
    return {plain(re.match(r"[\w.-]+", one[0])[0]): set(one) for one in lines}  # type: ignore[index]


def test_every_package_has_a_hash() -> None:
    blocks = re.split(r"^(?=[A-Za-z0-9])", LOCK, flags=re.MULTILINE)[1:]
    assert len(blocks) == len(PINNED) > 100
    assert all(re.search(r"--hash=sha256:[0-9a-f]{64}$", block, re.MULTILINE) for block in blocks)
    assert "://" not in LOCK.replace("https://download.pytorch.org/whl/cpu", "")


def test_it_has_the_versions_of_the_constraints_and_all_that_we_ask_for() -> None:
    locked = {plain(name): version.partition("+")[0] for name, version in PINNED.items()}
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and line[0] != "#"]
    constraints = {plain(name): version for name, _, version in (line.partition("==") for line in lines)}
    assert {name: version for name, version in constraints.items() if locked.get(name, version) != version} == {}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    assert {plain(re.match(r"[\w.-]+", one)[0]) for one in asked} <= set(locked)  # type: ignore[index]


def test_the_lock_of_a_run_says_of_its_packages_what_the_full_one_says() -> None:
    full = blocks(LOCK)
    assert {name: lines for name, lines in blocks(RUN_LOCK).items() if full.get(name) != lines} == {}
    assert "requirements.run.lock" in LOCK.split("==")[0]


def test_the_lock_of_a_run_has_what_its_packages_need_and_no_more() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    ahead = [Requirement(one) for one in [*project["dependencies"], *project["optional-dependencies"]["rdf"]]]
    needed: dict[str, set[str]] = {}  # the extras asked of each package
    while ahead:
        one = ahead.pop()
        extras = needed.get(plain(one.name), set()) | one.extras
        if needed.get(plain(one.name)) != extras:
            needed[plain(one.name)] = extras
            wanted = [Requirement(line) for line in metadata.requires(one.name) or ()]
            ahead += [
                need
                for need in wanted
                if any(not need.marker or need.marker.evaluate({"extra": extra}) for extra in ("", *extras))
            ]
    assert set(blocks(RUN_LOCK)) == set(needed)


def test_the_image_installs_the_lock_of_a_run_with_its_hashes() -> None:
    (command,) = re.findall(r"pip install .*-r (.*)", (ROOT / "Dockerfile").read_text())
    assert command == "requirements.run.lock"
    assert "--require-hashes" in (ROOT / "Dockerfile").read_text()
