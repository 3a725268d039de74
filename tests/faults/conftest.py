"""The commands that the fault tool tries, in a process that has what they need loaded, and what they read."""

from collections.abc import Iterator

import pytest

from tests.faults.forked import Commands
from tests.faults.workloads import Trials, prepare


@pytest.fixture(scope="session")
def commands() -> Iterator[Commands]:
    with Commands() as made:
        yield made


@pytest.fixture(scope="session")
def trials(commands: Commands, tmp_path_factory: pytest.TempPathFactory) -> Trials:
    """Every long command, with what it reads."""
    home = tmp_path_factory.mktemp("home")
    prepare(commands, home)
    return Trials(commands, home, tmp_path_factory.mktemp("trials") / "place")
