"""The lock file: what the constraints pin, everything with hashes, and the packages that are installed."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
LOCK = (ROOT / "requirements.lock").read_text()
PINNED = dict(re.findall(r"^([A-Za-z0-9_.-]+)==(\S+) \\$", LOCK, re.MULTILINE))


def plain(name: str) -> str:
    """A package's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


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
