"""Seconds of a round and of a validation on a device, beside what its floor allows, for each recipe, model and way of training.

The floor is that of `experiments.bench.rounds`: bytes that training must move over the copy bandwidth, operations over the peak,
whichever takes longer.
"""

from __future__ import annotations

import time
import traceback
import warnings
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from experiments.bench.gpu.machine import Machine, seconds_of
from experiments.bench.rounds import needs_of_round
from fkgsec.data.graph import FederatedGraph
from fkgsec.federation.loop import Federation
from fkgsec.federation.options import replace
from fkgsec.kge.device import where
from fkgsec.kge.options import KgeOptions


class Case(NamedTuple):
    """What is measured: options that differ from the benchmark's, and how epochs run."""

    name: str
    changes: dict[str, object]
    how: where.How = where.How()


CASES: tuple[Case, ...] = (
    *(
        Case(f"fede {model}", {"algorithm": "fede", "model": model})
        for model in ("transe", "rotate", "complex", "distmult")
    ),
    Case("fede transe, kernel by kernel", {"algorithm": "fede"}, where.How(graphs=False)),
    Case("fede transe, atomics", {"algorithm": "fede"}, where.How(ordered=False)),
    *(
        Case(f"{name} transe", {"algorithm": name})
        for name in ("fedr", "feds", "fedlu", "pfedeg", "fedprox", "fedec", "fede-kd")
    ),
    Case("fedlu rotate", {"algorithm": "fedlu", "model": "rotate"}),
    Case("fede transe, torch operations", {"algorithm": "fede", "draws": "numpy"}),
)

TRIED = (
    "fede transe",
    "fedlu transe",
    "fede transe, torch operations",
)  # on the CPU, where the benchmark is only tried out


class Speed(msgspec.Struct, frozen=True):
    """What one case took.

    Attributes:
        training, exchange, validation: seconds of local training in a round, of what crosses in it, and of ranking all
            validation triples. first: of the first round's training, in which kernels are compiled and captured.
        triples: a second, in training. roofline: share of the floor in the seconds of training.
        notes: warnings on the way. error: why there is no figure, empty where there are.
    """

    name: str
    training: float = 0.0
    exchange: float = 0.0
    validation: float = 0.0
    first: float = 0.0
    triples: float = 0.0
    roofline: float = 0.0
    notes: tuple[str, ...] = ()
    error: str = ""


def benchmark(
    graph: FederatedGraph, options: KgeOptions, machine: Machine, cases: Sequence[Case], deadline: float
) -> Iterator[Speed]:
    """Each case's speed, until `time.monotonic()` is at the deadline; one that fails does not stop the others."""
    for case in cases:
        if time.monotonic() >= deadline:
            return
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                speed = _measure(graph, replace(options, **case.changes), machine, case)
            except Exception:
                speed = Speed(case.name, error=traceback.format_exc())
        notes = tuple(dict.fromkeys(str(one.message) for one in caught if issubclass(one.category, RuntimeWarning)))
        yield msgspec.structs.replace(speed, notes=notes)


def _measure(graph: FederatedGraph, options: KgeOptions, machine: Machine, case: Case) -> Speed:
    before, where.how = where.how, case.how
    try:
        return _speed(graph, options, machine, case.name)
    finally:
        where.how = before


def _speed(graph: FederatedGraph, options: KgeOptions, machine: Machine, name: str) -> Speed:
    federation, device = Federation(graph, options), options.torch_device()
    federation.align()
    places = list(range(len(federation.parties)))
    rounds = iter(range(1, 100))

    def train() -> None:
        federation.task.begin_round()
        federation.task.train(next(rounds), places, lambda: None)

    def exchange() -> None:
        federation.upload(1, places)
        federation.broadcast(1)
        federation.channel.transcript.retain(set(), set())

    started = time.perf_counter()
    train()
    first = time.perf_counter() - started
    quick = first < 5  # else one more round says enough
    training = seconds_of(train, device, repeats=3 if quick else 1)
    triples = options.local_epochs * sum(len(client.train) for client in graph.clients)
    num_bytes, operations = needs_of_round(federation)
    floor = max(num_bytes / machine.bandwidth, operations / machine.peak)
    return Speed(
        name=name,
        training=training,
        exchange=seconds_of(exchange, device, repeats=2 if quick else 1),
        validation=seconds_of(federation.task.validate, device, repeats=2 if quick else 1),
        first=first,
        triples=triples / training,
        roofline=floor / training,
    )
