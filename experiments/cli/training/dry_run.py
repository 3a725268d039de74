"""`--dry-run`: what a command would train, with whose settings, how long and in how much memory; nothing is trained or written.

    print_plan(console, chosen, graph, {"fede": Planned(chosen.spec, Path("runs/fede"))}, attack=True)

Seconds are `fkgsec.experiments.papers.estimates`', by a short timing on the data; memory is
`fkgsec.experiments.tasks.memory`'s. Neither is a bound.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import msgspec
import typer
from rich.console import Console

from fkgsec.experiments.cli.training.presets import Chosen
from fkgsec.experiments.tasks.memory import GIB, available, needed
from fkgsec.experiments.tasks.spec import RunSpec

if TYPE_CHECKING:
    from fkgsec.experiments.reporting.sheets import Sheet

DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run", help="say what would be done: settings and whose they are, runs, seconds, memory; nothing else"
    ),
]


class Planned(NamedTuple):
    """A run that would be made, and where."""

    spec: RunSpec
    folder: Path


def print_plan(
    console: Console,
    chosen: Chosen,
    graph: Any,
    runs: Mapping[str, Planned],
    *,
    attack: bool,
    records: Path = Path("runs"),
) -> None:
    """Settings, runs, seconds and memory as tables.

    Args:
        runs: by name, at least one. attack: whether they would be attacked. records: a folder of finished runs, for rounds.
    """
    from fkgsec.experiments.reporting.sheets import print_sheets

    console.print("Nothing is trained or written (--dry-run).", highlight=False)
    print_sheets(console, [_settings(chosen), _runs(graph, runs, records)])
    for line in (_defaults(chosen), *(_attacked(chosen.spec) if attack else ())):
        console.print(line, soft_wrap=True, highlight=False)


def _settings(chosen: Chosen) -> Sheet:
    """What is not left at its default, and whose it is."""
    from fkgsec.experiments.reporting.sheets import Column, Sheet

    values = chosen.spec.document()
    rows = tuple((name, _written(values.get(name)), whose) for name, whose in chosen.whose.items())
    return Sheet("Settings, and whose they are", (Column("option"), Column("value"), Column("whose")), rows)


def _defaults(chosen: Chosen) -> str:
    values = {name: value for name, value in chosen.spec.document().items() if name not in chosen.whose}
    said = [f"{name} {_written(value)}" for name, value in values.items() if value not in (None, "", [], ())]
    return f"At their defaults: {', '.join(said)}."


def _written(value: Any) -> str:
    return (
        ", ".join(map(_written, value))
        if isinstance(value, list | tuple)
        else f"{value:g}"
        if isinstance(value, float)
        else str(value)
    )


def _runs(graph: Any, runs: Mapping[str, Planned], records: Path) -> Sheet:
    """A row for each run with its estimates."""
    from fkgsec.experiments.papers.estimates import Costs
    from fkgsec.experiments.reporting.reading import find_records
    from fkgsec.experiments.reporting.sheets import Column, Sheet
    from fkgsec.experiments.runs.run import RECORD_FILE

    known = find_records([records]).records.values() if any(records.rglob(RECORD_FILE)) else ()
    costs = Costs(known)
    rows, notes, seconds, most = [], [], 0.0, 0.0
    for name, one in runs.items():
        done = (one.folder / RECORD_FILE).exists()
        found, size = costs.of(one.spec, graph=graph), sum(needed(one.spec, graph).values())
        seconds, most = seconds + (0.0 if done else found.seconds), max(most, size)
        rows.append(
            (
                name,
                f"{found.rounds}",
                f"{found.seconds:,.0f}",
                f"{size / GIB:.2f}",
                "finished" if done else "",
                str(one.folder),
            )
        )
        notes.append(f"{name}: {found.says}.")
    free = available()
    notes.append(
        f"In all about {seconds:,.0f} s of training on one thread of this machine, without attacks, and {most / GIB:.2f} GiB "
        f"at once; {free.says} leaves {free.num_bytes / GIB:.1f} GiB."
    )
    heads = ("run", "rounds", "s", "GiB", "state", "folder")
    return Sheet(
        f"Runs on {graph.name}: {len(graph.clients)} clients",
        tuple(map(Column, heads)),
        tuple(rows),
        notes=tuple(notes),
    )


def _attacked(spec: RunSpec) -> Iterator[str]:
    options = msgspec.to_builtins(spec.attack_options())
    asked = ", ".join(spec.attack) or "those that fit (fkgsec attack --attack list names all)"
    threats = ", ".join(spec.threat) or "those that fit"
    leaks = f"; leak {_written(options['leak'])}" if "leak" in options else ""
    yield f"Attacks: {asked}; threat models: {threats}{leaks}."
