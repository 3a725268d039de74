"""Cells of the papers' tables, run one after the other in order of worth until time is up; a later call goes on where this ended.

    for outcome in run_cells(read_plan(), out, torch.device("cuda"), machine, deadline): print(outcome)

A cell has a folder of its own: `checkpoint.safetensors`, from which it goes on and from which the command line makes its record
(`python -m experiments.bench.gpu.records`), and, once it is finished, `result.json` with every figure.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from experiments.bench.gpu.machine import Machine
from fkgsec.data.catalogue import load_dataset
from fkgsec.data.consortium import generate_consortium
from fkgsec.data.graph import FederatedGraph
from fkgsec.data.partition import partition
from fkgsec.errors import FkgsecError
from fkgsec.estimate import Estimate
from fkgsec.federation.checkpoint import RoundEntry
from fkgsec.federation.loop import Observer, run_federation
from fkgsec.federation.options import nested
from fkgsec.kge.local.evaluation import utility
from fkgsec.kge.options import KgeOptions

PLAN, RESULT = "cells.json", "result.json"
EMBEDDED = "consortium"
CHECKPOINT_EVERY_S = 5.0


class Cell(msgspec.Struct, frozen=True):
    """A run: its table (a file of `experiments/specs`), its folder's name, its data, and the options that are no defaults."""

    table: str
    name: str
    options: dict[str, Any]
    data: str
    clients: int | None = None
    partition: str | None = None
    split_seed: int = 0
    size: int = 0

    def federation_options(self, device: str) -> KgeOptions:
        """What `run_federation` takes."""
        return KgeOptions(**nested(self.options), device=device)

    def load_graph(self) -> FederatedGraph:
        """The clients' data, as a spec would load them. Raises `DataError` where they cannot be read."""
        if self.data == EMBEDDED:
            return generate_consortium(clients=self.clients or 3, size=self.size, seed=self.split_seed)
        graph = load_dataset(self.data, progress=False)
        if isinstance(graph, FederatedGraph):
            return graph
        return partition(graph, self.partition or "triples", self.clients or 3, self.split_seed)


class Result(msgspec.Struct, frozen=True):
    """A finished cell. `utility` is that of the models that the recipe judges, `shared` of shared models beside private ones.

    `seconds` are those of all rounds, over all calls.
    """

    cell: Cell
    machine: Machine
    data_hash: str
    best_round: int
    valid: float | None
    utility: dict[str, Estimate]
    shared: dict[str, Estimate]
    seconds: float
    rounds: list[RoundEntry]


class Ended(msgspec.Struct, frozen=True):
    """What became of a cell in this call: `state` is "finished", "was finished", "time is up" or why it failed."""

    table: str
    name: str
    state: str
    rounds: int = 0
    seconds: float = 0.0
    mrr: float | None = None


class _TimeIsUp(Exception):
    """Raised between two rounds."""


class _Clock(Observer):
    def __init__(self, deadline: float) -> None:
        self._deadline = deadline
        self.rounds = 0

    def round_started(self, round: int, num_steps: int) -> None:
        if time.monotonic() >= self._deadline:
            raise _TimeIsUp

    def round_done(self, entry: RoundEntry) -> None:
        self.rounds = entry.round


def read_plan() -> list[Cell]:
    """The cells of the papers' tables, most worth first; `python -m experiments.bench.gpu.plan` writes them from the specs."""
    text = resources.files("experiments").joinpath("bench/gpu").joinpath(PLAN).read_bytes()
    return msgspec.json.decode(text, type=list[Cell])


def embedded_cells(size: int) -> list[Cell]:
    """Where no data folder is given: small federations of the embedded consortium."""
    small = {"dim": 16, "num_negatives": 8, "batch_size": 64, "local_epochs": 1, "rounds": 2, "draws": "philox"}
    return [
        Cell(EMBEDDED, f"{algorithm}-transe-{size}", {**small, "algorithm": algorithm}, EMBEDDED, size=size)
        for algorithm in ("fede", "fedr", "fedlu")
    ]


def run_cells(cells: Sequence[Cell], out: Path, device: str, machine: Machine, deadline: float) -> Iterator[Ended]:
    """Run what is not finished, until `time.monotonic()` is at the deadline; one that fails does not stop the others."""
    graphs: dict[tuple[object, ...], FederatedGraph] = {}
    for cell in cells:
        folder = out / cell.table / cell.name
        if (folder / RESULT).exists():
            yield Ended(cell.table, cell.name, "was finished")
            continue
        if time.monotonic() >= deadline:
            return
        data = (cell.data, cell.clients, cell.partition, cell.split_seed, cell.size)
        clock, started = _Clock(deadline), time.monotonic()
        try:
            if data not in graphs:
                graphs = {data: cell.load_graph()}
            folder.mkdir(parents=True, exist_ok=True)
            result = _run(cell, graphs[data], folder, device, machine, clock)
        except _TimeIsUp:
            yield Ended(cell.table, cell.name, "time is up", clock.rounds, time.monotonic() - started)
            return
        except FkgsecError as error:
            yield Ended(cell.table, cell.name, str(error))
        except Exception:  # also an unexpected one: what is lent for half an hour is not lost over one cell
            yield Ended(cell.table, cell.name, traceback.format_exc())
        else:
            mrr = result.utility["mrr"].value if result.utility else None
            yield Ended(cell.table, cell.name, "finished", len(result.rounds) - 1, result.seconds, mrr)


def _run(cell: Cell, graph: FederatedGraph, folder: Path, device: str, machine: Machine, clock: Observer) -> Result:
    options = cell.federation_options(device)
    found = run_federation(graph, options, folder, clock, CHECKPOINT_EVERY_S)

    def figures(ranks: Sequence[np.ndarray]) -> dict[str, Estimate]:
        return utility(np.concatenate(ranks), options.seed) if any(map(len, ranks)) else {}

    result = Result(
        cell=cell,
        machine=machine,
        data_hash=graph.hash,
        best_round=found.best_round,
        valid=found.valid,
        utility=figures(found.test_ranks),
        shared=figures(found.shared_test_ranks),
        seconds=sum(entry.seconds for entry in found.rounds),
        rounds=list(found.rounds),
    )
    part = folder / f"{RESULT}.part"
    part.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=1))
    part.rename(folder / RESULT)
    return result
