"""The `fkgsec view` command: one static HTML page that lists all runs and unlearning audits below a folder.

    page = render_page("overview.html.j2", runs=rows, audits=audits, damaged=lines, ...)

The page needs no server and loads nothing from elsewhere. `fkgsec report` writes the full report of a run or compares several.
"""

from __future__ import annotations

import webbrowser
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from fkgsec.attacks.figure import LEAKS
from fkgsec.errors import FkgsecError, RunError, SpecError
from fkgsec.experiments.runs.writing import Overwrite, write_new
from fkgsec.text import printable
from fkgsec.version import __version__

if TYPE_CHECKING:
    from fkgsec.experiments.runs.record import Record

EXAMPLES = "Examples:\n\n  fkgsec view\n\n  fkgsec view results --out results.html --no-browser"


class Row(NamedTuple):
    """One run in the list: sort keys beside the text of utility, bytes and seconds.

    Attributes:
        leaks: summary of the leading figures. worst: the figure that adds most to its baseline, empty if none beats it.
    """

    name: str
    algorithm: str
    defense: str
    data: str
    metric: str
    utility: float
    utility_text: str
    leaks: str
    worst: str
    num_bytes: int
    size: str
    seconds: float


class Audit(NamedTuple):
    """One unlearning audit in the list."""

    name: str
    outcome: str
    method: str
    asked: str


def row_of(name: str, record: Record) -> Row:
    """Summarize a record for the list."""
    from fkgsec.experiments.reporting.sheets import interval, mebibytes, rows_of
    from fkgsec.experiments.reporting.verdict import figure_text, question_text, verdict_of

    found = verdict_of(record.figures)
    worst = rows_of(found.figures.loc[found.figures["status"] == LEAKS].head(1))
    utility = record.utility[record.metric]
    data = f"{record.data.name}, {len(record.data.clients)} clients, seed {record.seed}"
    num_bytes = record.bytes.up + record.bytes.down
    return Row(
        printable(name), record.spec.algorithm, record.spec.defense or "none", data, record.metric, utility.value,
        interval(utility), found.brief, f"{figure_text(worst[0])}: {question_text(worst[0])}" if worst else "", num_bytes,
        mebibytes(num_bytes), sum(entry.seconds for entry in record.rounds),
    )  # fmt: skip


def render_overview(root: Path) -> str:
    """Render the page of all runs and audits below a folder.

    Raises:
        RunError: the folder does not exist, or has neither a record nor an audit at any depth.
    """
    from fkgsec.experiments.reporting.listing import find_records
    from fkgsec.experiments.reporting.pages import render_page
    from fkgsec.experiments.reporting.sheets import count
    from fkgsec.experiments.runs.run import RECORD_FILE

    if not root.is_dir():
        raise RunError(f"{root}: no such folder; fkgsec view takes a folder with runs in it")
    records: Mapping[str, Record] = {}
    damaged: list[str] = []
    if any(root.rglob(RECORD_FILE)):
        records, damaged = find_records([root])
    audits = list(_audits(root, damaged))
    if not records and not damaged and not audits:
        raise RunError(f"{root}: no {RECORD_FILE} at any depth; fkgsec train and attack write them")
    rows = [row_of(name, record) for name, record in records.items()]
    about = f"{count(len(rows), 'run')} below {printable(str(root))}" + (f", {len(damaged)} damaged" if damaged else "")
    return render_page(
        "overview.html.j2", about=about, runs=rows, audits=audits, damaged=[printable(line) for line in damaged],
        version=__version__,
    )  # fmt: skip


def _audits(root: Path, damaged: list[str]) -> Iterator[Audit]:
    from fkgsec.experiments.reporting.html.verdicts import AUDIT_FILE
    from fkgsec.experiments.reporting.sheets import count
    from fkgsec.experiments.unlearning.summary import read_verification

    for file in sorted(root.rglob(AUDIT_FILE)):
        try:
            audit = read_verification(file)
        except FkgsecError as error:
            damaged.append(str(error))
            continue
        if audit is not None:
            asked = ", ".join(
                f"{client}: {count(number, 'triple')}" for client, number in audit.unlearning.asked.items()
            )
            name = printable(file.parent.relative_to(root).as_posix())
            yield Audit(name, audit.verdict.outcome, audit.unlearning.options.method, asked)


def view(
    runs: Annotated[Path, typer.Argument(help="folder, searched for runs and audits at any depth")] = Path("runs"),
    *,
    out: Annotated[Path, typer.Option("--out", help="the page to write")] = Path("runs.html"),
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="open the page in a browser")] = True,
    overwrite: Overwrite = False,
) -> None:
    """Write one HTML page that lists all runs of a folder, to filter and sort, and open it."""
    if out.suffix not in (".html", ".htm"):
        raise SpecError(f"out must end with .html, so that no record is replaced; got {out}")
    page = render_overview(runs)
    write_new(out, page.encode(), overwrite=overwrite)
    typer.echo(f"Written to {out}: {page.count('<tr data-run')} runs")
    if browser:
        webbrowser.open(out.resolve().as_uri())
