"""How long `fkgsec view` takes to show a folder of runs: from the start of the command to its whole first page.

    python -m experiments.view.opening                             # 200 copies of a committed record
    python -m experiments.view.opening --runs 1000 --times 5

Wall seconds count whatever else runs on the machine; CPU seconds are those of the command's own process up to its end.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from experiments.cli.console import expected_errors
from fkgsec.errors import RunError

RECORD = Path(__file__).parents[1] / "results/attacks/nations-transe.json"
_PROGRAM = "import sys; sys.argv[0] = 'fkgsec'; from experiments.cli.start import main; main()"


class Opening(NamedTuple):
    """One start: seconds until the page was there, CPU seconds and the largest resident memory (MiB) of the process."""

    wall_s: float
    cpu_s: float
    memory_mib: float


def make_runs(folder: Path, record: Path, count: int) -> None:
    """Put so many run folders with this record into a folder."""
    for number in range(count):
        run = folder / f"run-{number}"
        run.mkdir(parents=True)
        shutil.copyfile(record, run / "record.json")


def open_list(folder: Path, count: int) -> Opening:
    """Start the viewer on a folder of `count` runs, read its first page, and end it.

    Raises:
        RunError: it ended early, or its page does not list them all.
    """
    words = ["view", str(folder), "--port", "0", "--no-browser"]
    began = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-u", "-c", _PROGRAM, *words], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    said = process.stdout.readline()
    page = ""
    if found := re.search(r"http://\S+", said):
        browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
        page = browser.open(found[0], timeout=60).read().decode()
    wall_s = time.perf_counter() - began
    process.send_signal(signal.SIGINT)
    used = os.wait4(process.pid, 0)[2]
    process.stdout.close()
    process.returncode = 0  # it was waited for
    if page.count("/run/") < count:
        raise RunError(f"fkgsec view did not list {count} runs; it said {said!r}")
    return Opening(wall_s, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)


def main(
    runs: Annotated[int, typer.Option("--runs", min=1, help="copies of the record")] = 200,
    times: Annotated[int, typer.Option("--times", min=1, help="starts")] = 3,
    record: Annotated[Path, typer.Option("--record", help="of a finished run")] = RECORD,
) -> None:
    """Start `fkgsec view` on so many runs, several times."""
    with tempfile.TemporaryDirectory() as place:
        make_runs(Path(place), record, runs)
        for _ in range(times):
            one = open_list(Path(place), runs)
            typer.echo(f"{runs} runs: {one.wall_s:.2f} s, of it CPU {one.cpu_s:.2f} s; {one.memory_mib:.0f} MiB")


if __name__ == "__main__":
    typer.run(expected_errors(main))
