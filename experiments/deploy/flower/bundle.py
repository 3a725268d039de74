"""The app bundle: what Flower sends to the SuperNodes and starts there and on the SuperLink.

    write_bundle(Path("consortium/server/app"))

It has the code that carries frames and nothing else: no key, no data, no option of a run.
"""

from __future__ import annotations

from pathlib import Path

from fkgsec.experiments.deploy.flower.installed import VERSION
from fkgsec.version import __version__

PACKAGE = "fkgsec_relay"
SOURCE = Path(__file__).absolute().parent / "inside" / PACKAGE
PYPROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "fkgsec-relay"
version = "{version}"
description = "Carries the frames of an fkgsec federation"
license = "Apache-2.0"
dependencies = ["flwr=={flower}"]

[tool.hatch.build.targets.wheel]
packages = ["fkgsec_relay"]

[tool.flwr.app]
publisher = "fkgsec"

[tool.flwr.app.components]
serverapp = "fkgsec_relay.server:app"
clientapp = "fkgsec_relay.client:app"

[tool.flwr.app.config]
"""


def write_bundle(folder: Path) -> None:
    """Write it. Raises `OSError`."""
    (folder / PACKAGE).mkdir(parents=True)
    (folder / "pyproject.toml").write_text(PYPROJECT.format(version=__version__, flower=VERSION))
    for path in sorted(SOURCE.glob("*.py")):
        (folder / PACKAGE / path.name).write_bytes(path.read_bytes())
