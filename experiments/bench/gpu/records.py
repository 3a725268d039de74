"""`python -m experiments.bench.gpu.records DIR`: records of cells that `experiments.bench.gpu` finished, from their checkpoints.

Run it where all of fkgsec is installed and the data are: nothing is trained. Each `record.json` lies beside its `result.json`,
which says on which machine the cell was trained; `fkgsec experiment show SPEC DIR/cells` shows the paper's table with them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from experiments.bench.gpu.cells import EMBEDDED, RESULT, Cell, Result
from experiments.runs.run import execute
from experiments.tasks.kge import Spec
from fkgsec.errors import RunError
from fkgsec.federation.options import nested


def spec_of(cell: Cell) -> Spec:
    """The spec of a cell, on the CPU, where its record is made."""
    size = cell.size if cell.data == EMBEDDED else None
    data = {
        "data": cell.data,
        "clients": cell.clients,
        "partition": cell.partition,
        "split_seed": cell.split_seed,
        "size": size,
    }
    return Spec(**nested(cell.options), **data, device="cpu")


def make_records(folder: Path) -> list[Path]:
    """Make the record of every finished cell below a folder that has none; returns the files.

    Raises:
        RunError: the data are others here.
    """
    made = []
    for path in sorted(folder.rglob(RESULT)):
        cell = msgspec.json.decode(path.read_bytes(), type=Result)
        spec = spec_of(cell.cell)
        graph = spec.load_graph()
        if graph.hash != cell.data_hash:
            raise RunError(f"{path}: was trained on data with hash {cell.data_hash}; those here have {graph.hash}")
        execute(spec, graph, path.parent, attack=False)
        made.append(path.with_name("record.json"))
    return made


def main(folder: Annotated[Path, typer.Argument(help="what --out was")]) -> None:
    """Make the records."""
    for path in make_records(folder):
        typer.echo(path)


if __name__ == "__main__":
    typer.run(main)
