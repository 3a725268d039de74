"""Nothing is asked of the network at import; that nothing is in a run, every trial of `tests/faults` holds."""

import subprocess
import sys

import pytest

IMPORT_ALL = """
import importlib, pkgutil, socket
asked = []
def refuse(*what, **more):
    asked.append(what)
    raise OSError("no network")
socket.socket.connect = socket.socket.connect_ex = socket.getaddrinfo = refuse
loaded = 0
for package in ("fkgsec",):
    for found in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
        if ".flower.inside" not in found.name and not found.name.endswith("__main__"):
            importlib.import_module(found.name)
            loaded += 1
print(loaded, asked)
"""


@pytest.mark.slow
def test_no_module_asks_for_the_network_when_it_is_imported() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", IMPORT_ALL], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    loaded, asked = done.stdout.split(" ", 1)
    assert int(loaded) > 300
    assert asked.strip() == "[]"
