"""`python -m experiments.bench.gpu --minutes 25 --out DIR`: tests, speed and cells of the papers' tables, while time lasts.

Everything lies in DIR as soon as it is measured: `machine.json`, `tests.txt`, `speed.json`, and a folder for each cell. The same
command goes on where the last one ended. It needs torch, triton, numpy, msgspec, safetensors, pyarrow, rich and typer.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import msgspec
import torch
import typer
from rich.console import Console
from rich.table import Table

from experiments.bench.gpu.cells import embedded_cells, read_plan, run_cells
from experiments.bench.gpu.machine import Machine, measure_machine
from experiments.bench.gpu.speed import CASES, TRIED, Speed, benchmark
from fkgsec.data.catalogue import DATA_VARIABLE, load_dataset
from fkgsec.data.consortium import generate_consortium
from fkgsec.data.graph import FederatedGraph
from fkgsec.errors import DataError
from fkgsec.kge.options import KgeOptions

ROOT = Path(__file__).parents[3]
TESTS, OF_TESTS, OF_SPEED = (
    "tests/kge/device",
    0.25,
    0.5,
)  # shares of the time that have passed when these must have ended
CPU_TRIPLES, GPU_TRIPLES = 600, 44_500
SMALL = {"dim": 16, "num_negatives": 8, "batch_size": 64, "local_epochs": 1}

console = Console(width=None if Console().is_terminal else 130)


def run_tests(out: Path, seconds: float) -> str:
    """Run the tests of the kernels on the GPU, with their output in `tests.txt`; returns the last line."""
    if find_spec("pytest") is None or not (ROOT / TESTS).exists():
        return "tests: pytest or their folder is not there"
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not slow", "-p", "no:cacheprovider", TESTS]
    with (out / "tests.txt").open("w") as file:
        try:
            subprocess.run(command, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT, timeout=seconds, check=False)
        except subprocess.TimeoutExpired:
            file.write(f"\nended after {seconds:.0f} s\n")
    return (out / "tests.txt").read_text().strip().splitlines()[-1]


def bench_graph(triples: int | None, device: torch.device) -> FederatedGraph:
    """DDB14-Fed5 where the data folder has it and no size is given, else an embedded consortium of five clients."""
    if triples is None and os.environ.get(DATA_VARIABLE) and device.type == "cuda":
        try:
            graph = load_dataset("DDB14-Fed5", progress=False)
        except DataError as error:
            console.print(f"DDB14-Fed5 is not there ({error}); an embedded consortium of its size is measured")
        else:
            assert isinstance(graph, FederatedGraph)
            return graph
    default = GPU_TRIPLES if device.type == "cuda" else CPU_TRIPLES
    return generate_consortium(clients=5 if device.type == "cuda" else 2, size=triples or default, seed=0)


def measure_speed(out: Path, graph: FederatedGraph, options: KgeOptions, machine: Machine, deadline: float) -> None:
    """Fill `speed.json`, which an earlier call may have begun, and print it."""
    path = out / "speed.json"
    found = msgspec.json.decode(path.read_bytes(), type=list[Speed]) if path.exists() else []
    done = {speed.name for speed in found if not speed.error}
    found = [speed for speed in found if speed.name in done]
    left = [case for case in CASES if case.name not in done and (machine.device != "cpu" or case.name in TRIED)]
    for speed in benchmark(graph, options, machine, left, deadline):
        found.append(speed)
        path.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1))
        last = speed.error.strip().splitlines()[-1:] or [f"{speed.training:.4f} s a round's training"]
        console.print(f"{speed.name}: {last[0]}", highlight=False, markup=False)
    title = (
        f"One round on {graph.name}: dim {options.dim}, batch {options.batch_size}, {options.num_negatives} negatives"
    )
    table = Table(title=title)
    for name in ("case", "training s", "exchange s", "validation s", "triples/s", "of the floor", "first s"):
        table.add_column(name, justify="left" if name == "case" else "right")
    for speed in found:
        seconds = (speed.training, speed.exchange, speed.validation)
        cells = [f"{value:.4f}" for value in seconds] + [
            f"{speed.triples:,.0f}",
            f"{speed.roofline:.0%}",
            f"{speed.first:.1f}",
        ]
        table.add_row(speed.name, *(["failed"] if speed.error else cells))
    console.print(table)


def main(
    minutes: Annotated[
        float, typer.Option(help="when to end, after tests, speed and as many cells as there is time for")
    ] = 25,
    out: Annotated[Path, typer.Option(help="folder of all that is measured; a second call goes on in it")] = Path(
        "runs/gpu"
    ),
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N")] = "auto",
    triples: Annotated[
        int | None, typer.Option(help="measure an embedded consortium of so many, instead of DDB14-Fed5")
    ] = None,
) -> None:
    """Run the tests, the benchmark and cells of the papers' tables until time is up."""
    started = time.monotonic()
    out.mkdir(parents=True, exist_ok=True)
    given = KgeOptions(draws="philox", device=device, negative_sides="tail", eval_sides="tail")
    where = given.torch_device()
    small = where.type != "cuda"
    options = msgspec.structs.replace(given, **SMALL) if small else given
    machine = measure_machine(where)
    (out / "machine.json").write_bytes(msgspec.json.format(msgspec.json.encode(machine), indent=1))
    console.print(
        f"{machine.device}, torch {machine.versions['torch']}: copy {machine.bandwidth / 1e9:,.0f} GB/s, "
        f"matrix product {machine.peak / 1e12:.1f} TFLOP/s"
    )
    if small:
        console.print(
            "tests: they are for a CUDA device, which is not here; ordinary tests run them in the interpreter"
        )
    elif not (out / "tests.txt").exists():
        console.print(run_tests(out, 60 * minutes * OF_TESTS), markup=False)
    measure_speed(out, bench_graph(triples, where), options, machine, started + 60 * minutes * OF_SPEED)
    embedded = small or not os.environ.get(DATA_VARIABLE)
    cells = embedded_cells(triples or CPU_TRIPLES) if embedded else read_plan()
    for ended in run_cells(cells, out / "cells", device, machine, started + 60 * minutes):
        if ended.state != "was finished":
            what = f"{ended.rounds} rounds, {ended.seconds:.1f} s" + (
                "" if ended.mrr is None else f", MRR {ended.mrr:.4f}"
            )
            console.print(f"{ended.table}/{ended.name}: {ended.state}; {what}", highlight=False, markup=False)
    finished = sum((out / "cells" / cell.table / cell.name / "result.json").exists() for cell in cells)
    console.print(f"{finished} of {len(cells)} cells are finished, after {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    typer.run(main)
