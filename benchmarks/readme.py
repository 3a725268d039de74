"""How long what pages show takes, and how much room: measured here, kept as a record, and printed into docs/start.md.

    python -m benchmarks.readme --write      # from a clean checkout, on a machine that does nothing else

Each part is run in an empty folder as a reader would run it, and its commands are read from the pages and the Makefile. CPU
seconds are user and system time of all its processes: they hardly depend on what else the machine does, wall seconds do. A test
checks that the page says what the record says.
"""

from __future__ import annotations

import os
import platform
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
import typer

from fkgsec.errors import RunError
from fkgsec.experiments.cli.console import expected_errors
from fkgsec.experiments.runs.record import processor
from fkgsec.experiments.runs.writing import write_atomically

SCHEMA = "fkgsec/readme-times/1"
ROOT = Path(__file__).parents[1]
RECORD = ROOT / "results/times/readme.json"
PAGE = ROOT / "docs/start.md"  # which shows the table
FORGET, GATE = ROOT / "docs/tutorials/forget.md", ROOT / "docs/tutorials/gate.md"
UNMEASURED = "How long each part takes, and how much room, `python -m benchmarks.readme` measures on your machine."
BEGIN, END = "<!-- times -->\n", "<!-- /times -->\n"
QUIET_LOAD = 0.5  # of other processes, before anything is measured


class Part(NamedTuple):
    """Commands that belong together, in bash, and the statuses that they may exit with."""

    name: str
    commands: list[str]
    statuses: tuple[int, ...] = (0,)


class Measured(msgspec.Struct, frozen=True):
    """What one part took. `disk_mib` is what it left in its folder, `memory_mib` the most that one of its processes held."""

    name: str
    commands: list[str]
    wall_s: float
    cpu_s: float
    disk_mib: float
    memory_mib: float


class Times(msgspec.Struct, frozen=True):
    """The record: where and when the machine was how busy, and every part."""

    schema: str
    commit: str | None
    dirty: bool | None
    cores: int
    processor: str
    platform: str
    python: str
    load: float
    command: str
    parts: list[Measured]


def parts_of(forgetting: str, policies: str, makefile: str) -> list[Part]:
    """What is measured: the demo with and without its installation, unlearning with its verification, and the gate."""
    demo = re.search(r"^\t\$\(BIN\)/(fkgsec attack .*?)(?: --out \$\(RUN\))$", makefile, flags=re.MULTILINE)
    forget, gate = (
        re.search(r"^```bash\n(.*?)^```", page, flags=re.DOTALL | re.MULTILINE) for page in (forgetting, policies)
    )
    if demo is None or forget is None or gate is None:
        raise RunError("Makefile, forget.md, gate.md: the demo, or the commands to forget or to check, were not found")

    def lines(block: str) -> list[str]:
        return [re.split(r"\s+#", line)[0] for line in block.splitlines() if line.strip()]

    root = str(ROOT)
    return [
        Part(
            "setting up",
            [
                f"{sys.executable} -m venv venv",
                "venv/bin/pip install --quiet --upgrade pip",
                f"venv/bin/pip install --quiet -c {root}/constraints.txt {root}",
            ],
        ),
        Part("`make demo`, set up", [f"{demo[1]} --out demo"]),
        Part("letting a client forget, all commands", lines(forget[1]), (0, 1, 3)),
        Part("a policy, both commands", lines(gate[1]), (0, 1, 3)),
    ]


def measure(part: Part) -> Measured:
    """Run a part in a folder of its own. Raises `RunError` with the end of what it printed when a command fails."""
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    with tempfile.TemporaryDirectory() as scratch:
        before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        for command in part.commands:
            done = subprocess.run(
                ["bash", "-c", command], cwd=scratch, env=environment, capture_output=True, text=True, check=False
            )
            if done.returncode not in part.statuses:
                raise RunError(f"{command}: exit status {done.returncode}: {done.stderr.strip()[-300:]}")
        wall, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
        disk = sum(path.stat().st_size for path in Path(scratch).rglob("*") if path.is_file() and not path.is_symlink())
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    commands = [command.replace(str(ROOT), ".").replace(sys.executable, "python") for command in part.commands]
    # The peak is of the largest process so far; Linux counts it in KiB.
    return Measured(part.name, commands, wall, cpu, disk / 2**20, after.ru_maxrss / 2**10)


def times_lines(times: Times) -> list[str]:
    """The table of docs/start.md. Wall seconds of a busy machine are not printed."""
    quiet = times.load <= QUIET_LOAD
    busy = "" if quiet else "; it was busy with other work, so wall seconds are left out"
    return [
        f"| on {times.cores} cores | {'wall s | ' * quiet}CPU s | MiB left on disk |",
        f"|---|{'---|' * quiet}---|---|",
        *(
            f"| {part.name} | {f'{_rounded(part.wall_s)} | ' * quiet}{_rounded(part.cpu_s)} | {_rounded(part.disk_mib)} |"
            for part in times.parts
        ),
        "",
        "CPU seconds are of all processes together, the start of Python and the compilation of loops included",
        f"({times.processor}{busy}). Setting up has the download of packages in it, where pip's cache lacks them.",
        "`python -m benchmarks.readme` measured it; a test holds the table to",
        "[the record](../results/times/readme.json).",
    ]


def _rounded(value: float) -> str:
    """Two digits: 1234 is 1200."""
    return f"{float(f'{value:.2g}'):,g}" if value < 10 else f"{int(float(f'{value:.2g}')):,}"


def read_times(path: Path = RECORD) -> Times:
    """The committed record. Raises `RunError`."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Times)
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error.strerror})") from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise RunError(f"{path}: not a record of schema {SCHEMA} ({error})") from error


def with_table(readme: str, times: Times | None) -> str:
    """The page with this table between its marks, or without a record what to run. Raises `RunError` where there are none."""
    head, begin, rest = readme.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise RunError(f"docs/start.md: needs {BEGIN.strip()} and {END.strip()}, each on a line of its own")
    return head + BEGIN + "\n".join(times_lines(times) if times else [UNMEASURED]) + "\n" + END + tail


def _git(*arguments: str) -> str | None:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


def main(
    write: Annotated[
        bool, typer.Option("--write", help="keep the record, and put the table into docs/start.md")
    ] = False,
    only: Annotated[str, typer.Option("--only", help="parts whose name has this; the others stay as recorded")] = "",
) -> None:
    """Measure what the pages show; the table goes to standard output."""
    if shutil.which("bash") is None:
        raise RunError("bash is needed")
    load, status = os.getloadavg()[0], _git("status", "--porcelain")
    commit = _git("rev-parse", "HEAD")
    earlier = {part.name: part for part in read_times().parts} if only and RECORD.exists() else {}
    parts = []
    for part in parts_of(FORGET.read_text(), GATE.read_text(), (ROOT / "Makefile").read_text()):
        if only and only not in part.name:
            parts += [earlier[part.name]] if part.name in earlier else []
            continue
        typer.echo(f"{part.name} ...", err=True)
        parts.append(measure(part))
    times = Times(
        schema=SCHEMA,
        commit=commit,
        dirty=None if status is None else bool(status),
        cores=os.cpu_count() or 1,
        processor=processor(),
        platform=f"{platform.system()} {platform.machine()}",
        python=platform.python_version(),
        load=load,
        command="python -m benchmarks.readme --write" + (f" --only {only!r}" if only else ""),
        parts=parts,
    )
    typer.echo("\n".join(times_lines(times)))
    if write:
        RECORD.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(RECORD, msgspec.json.format(msgspec.json.encode(times), indent=2) + b"\n")
        write_atomically(PAGE, with_table(PAGE.read_text(), times).encode())


if __name__ == "__main__":
    typer.run(expected_errors(main))
