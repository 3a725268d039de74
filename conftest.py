"""Skip the Triton kernels on systems for which Triton has no builds, and doctests of files without an example."""

import importlib.util
from collections.abc import Generator
from pathlib import Path

import pytest
from _pytest.doctest import DoctestModule

collect_ignore_glob = (
    [] if importlib.util.find_spec("triton") else ["fkgsec/kge/gpu_kernels.py", "tests/kge/test_gpu_kernels.py"]
)


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(
    file_path: Path,
) -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """Leave out doctests of the nine in ten files that have none: to search all objects of these for examples takes seconds."""
    collectors = yield
    return [one for one in collectors if not isinstance(one, DoctestModule) or ">>>" in file_path.read_text()]
