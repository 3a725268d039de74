"""The commands that the fault tool tries, in a process that has what they need loaded, and what they read."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.forked import Commands
from tests.faults.workloads import prepare


@pytest.fixture(scope="module")
def commands() -> Iterator[Commands]:
    with Commands() as made:
        yield made


@pytest.fixture(scope="module")
def home(commands: Commands, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the commands read."""
    folder = tmp_path_factory.mktemp("home")
    prepare(commands, folder)
    return folder
