"""Time, memory and disk space of the commands in README and tutorials, measured on this machine.

    python -m benchmarks.readme --only demo

Each part runs in an empty folder, as a reader would run it; its commands are read from the pages and the Makefile. CPU
seconds are user and system time of all its processes; unlike wall seconds, they hardly depend on other load.
"""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from benchmarks.rounds import print_table
from fkgsec.errors import RunError
from fkgsec.experiments.cli.console import expected_errors
from fkgsec.experiments.runs.record import processor

ROOT = Path(__file__).parents[1]
FORGET, GATE, MAKEFILE = ROOT / "docs/tutorials/forget.md", ROOT / "docs/tutorials/gate.md", ROOT / "Makefile"


class Part(NamedTuple):
    """Commands that belong together, in bash, and their allowed exit statuses."""

    name: str
    commands: list[str]
    statuses: tuple[int, ...] = (0,)


def parts_of_pages() -> list[Part]:
    """Return the demo with and without its installation, unlearning with its verification, and the gate."""
    # The Makefile runs the demo into a folder of its choice; here it goes into the scratch folder.
    demo = re.search(r"^\t\$\(BIN\)/(fkgsec attack .*?)(?: --out \$\(RUN\))$", MAKEFILE.read_text(), flags=re.MULTILINE)
    forget, gate = (
        re.search(r"^```bash\n(.*?)^```", page.read_text(), flags=re.DOTALL | re.MULTILINE) for page in (FORGET, GATE)
    )
    if demo is None or forget is None or gate is None:
        raise RunError("Makefile, forget.md, gate.md: the demo, or the commands to forget or to check, were not found")

    def lines(block: str) -> list[str]:
        """Return the commands of a code block, without comments."""
        # Comments explain the commands to readers.
        return [re.split(r"\s+#", line)[0] for line in block.splitlines() if line.strip()]

    pip = "venv/bin/pip install --quiet"
    setup = [f"{sys.executable} -m venv venv", f"{pip} --upgrade pip", f"{pip} -c {ROOT}/constraints.txt {ROOT}"]
    return [
        Part("setting up", setup),
        Part("`make demo`, set up", [f"{demo[1]} --out demo"]),
        Part("letting a client forget, all commands", lines(forget[1]), (0, 1, 3)),
        Part("a policy, both commands", lines(gate[1]), (0, 1, 3)),
    ]


def measure(part: Part) -> dict[str, float]:
    """Run a part in a separate folder.

    Args:
        part: to run.

    Returns:
        Wall and CPU seconds, MiB left on disk, and MiB of the largest process.

    Raises:
        RunError: a command failed; the message has the end of its output.
    """
    # The commands of this virtual environment come first.
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    with tempfile.TemporaryDirectory() as scratch:
        # Children only: this process does nothing in between.
        before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        for command in part.commands:
            done = subprocess.run(
                ["bash", "-c", command], cwd=scratch, env=environment, capture_output=True, text=True, check=False
            )
            if done.returncode not in part.statuses:
                raise RunError(f"{command}: exit status {done.returncode}: {done.stderr.strip()[-300:]}")
        wall_s, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
        disk = sum(path.stat().st_size for path in Path(scratch).rglob("*") if path.is_file() and not path.is_symlink())
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    # The peak is of the largest process so far; Linux counts it in KiB.
    return {
        "wall s": wall_s,
        "CPU s": cpu_s,
        "MiB left on disk": disk / 2**20,
        "MiB of memory": after.ru_maxrss / 2**10,
    }


def main(only: Annotated[str, typer.Option("--only", help="parts whose name has this")] = "") -> None:
    """Measure the parts and print a table."""
    title, heads, rows = f"{os.cpu_count()} cores, {processor()}, load average {os.getloadavg()[0]:.1f}", (), []
    for part in (part for part in parts_of_pages() if only in part.name):
        typer.echo(f"{part.name} ...", err=True)
        costs = measure(part)
        heads = ("part", *costs)
        rows.append((part.name, *(f"{cost:.3g}" for cost in costs.values())))
    print_table(title, heads, rows)


if __name__ == "__main__":
    typer.run(expected_errors(main))
