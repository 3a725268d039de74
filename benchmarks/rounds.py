"""`make bench`: seconds per round and validation, compared to this machine's lower bound, and their growth with the data.

The lower bound ("floor") of a round is the larger of two bounds, both measured in the same run:

* operations: those of the loss and its gradient, over this machine's peak (a float32 matrix product);
* bytes: each candidate's row read twice (score, gradient to the query), each table row of a step read once and its gradient
  written once, and Adam's seven passes over the parameters, over this machine's copy bandwidth. Many rows come from caches, not
  from memory, so a ratio near 1 does not mean that the kernel reaches the bandwidth.
"""

from __future__ import annotations

import itertools
import os
import platform
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, NamedTuple

import msgspec
import torch
import typer

from fkgsec.data.catalogue import DATA_VARIABLE, load_dataset
from fkgsec.data.consortium import generate_consortium
from fkgsec.data.graph import FederatedGraph, KnowledgeGraph
from fkgsec.data.partition import partition
from fkgsec.experiments.reporting.sheets import Column, Sheet, markdown_lines
from fkgsec.federation.loop import Federation
from fkgsec.federation.recipes import algorithms_of
from fkgsec.kge.local.task import KgeTask
from fkgsec.kge.models import MODELS
from fkgsec.kge.options import KgeOptions
from fkgsec.randomness import generator

# Operations of one batch element against one candidate, per value of the row: subtract, magnitude, add; and for the
# gradients to the query and to the row: compare, multiply, add each.
OPERATIONS = {"transe": 3 + 2 * 3, "rotate": 4 + 2 * 4, "distmult": 2 + 2 * 2, "complex": 2 + 2 * 2}
LARGE_BATCH = 4_096
FREEBASE = 310_116  # triples of FB15k-237
SIZES = (5_000, 15_000, 50_000, 150_000, 300_000, 1_000_000)


class Timed(NamedTuple):
    """Wall and CPU seconds of the fastest of several runs."""

    wall: float
    cpu: float


def best_of(count: int, work: Callable[[], object]) -> Timed:
    """Measure the fastest of several calls, after one that is not counted.

    Args:
        count: number of calls.
        work: to call.
    """
    work()
    times = []
    for _ in range(count):
        wall, cpu = time.perf_counter(), time.process_time()
        work()
        times.append((time.perf_counter() - wall, time.process_time() - cpu))
    return Timed(min(wall for wall, _ in times), min(cpu for _, cpu in times))


def print_table(title: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table in Markdown.

    Args:
        title: above the table.
        heads: of the columns.
        rows: cells.
    """
    sheet = Sheet(title, tuple(map(Column, heads)), tuple(map(tuple, rows)))
    print(f"{title}\n", *markdown_lines(sheet), "", sep="\n", flush=True)


def measure_floor() -> tuple[float, float]:
    """Measure the bytes per second of a copy of 512 MB (read and written), and the operations per second of a float32
    matrix product.
    """
    source, target = torch.ones(2**27), torch.empty(2**27)
    # A copy reads and writes every byte.
    bandwidth = 2 * source.nbytes / best_of(5, lambda: target.copy_(source)).wall
    x = torch.randn(2048, 2048)
    return bandwidth, 2 * 2048**3 / best_of(5, lambda: x @ x).wall


def needs_of_round(federation: Federation) -> tuple[int, float]:
    """Count the bytes and operations of one round; see the module.

    Args:
        federation: of knowledge graphs.
    """
    task, num_bytes, operations = federation.task, 0, 0.0
    assert isinstance(task, KgeTask)
    options, graphs = task.options, task.stack.graphs
    candidates = options.local_epochs * sum(len(graph.train) for graph in graphs) * (1 + options.num_negatives)
    # FedLU and FedE-KD train two models of the same candidates.
    for model in (stack.model for stack in (task.stack, task.private) if stack):
        # Steps of a round times the bytes of a client's tables: Adam moves every row.
        tables = sum(
            options.local_epochs * -(-len(graph.train) // options.batch_size)
            * 4 * (graph.num_entities * model.entity_width + graph.num_relations * model.relation_width)
            for graph in graphs
        )  # fmt: skip
        num_bytes += 2 * candidates * 4 * model.entity_width + (2 + 7) * tables
        operations += float(candidates) * model.entity_width * OPERATIONS[model.name]
    return num_bytes, operations


def time_round(federation: Federation, count: int, *, validate: bool = False) -> Timed:
    """Measure local training, upload, aggregation and broadcast.

    Args:
        federation: before its first round.
        count: number of rounds, of which the fastest counts.
        validate: whether to include validation.

    Raises:
        RuntimeError: a client refused to upload, so that the round would be too cheap.
    """
    federation.align()
    # All clients take part, so that rounds are comparable.
    everybody = list(range(len(federation.parties)))
    rounds = itertools.count(1)  # clients refuse a second broadcast of one round

    def one_round() -> None:
        """Run the next round."""
        number = next(rounds)
        federation.train(number, everybody, lambda: None)
        for outcome in federation.upload(number, everybody):
            if outcome.excluded:
                raise RuntimeError(f"round {number}: {outcome.excluded}")
        federation.broadcast(number)
        if validate:
            federation.task.validate()
        # Messages of earlier rounds must not fill the memory.
        federation.channel.transcript.retain(set(), set())

    return best_of(count, one_round)


def bench_graph() -> FederatedGraph:
    """Load DDB14-Fed5 if there is a data folder, else generate a consortium of its size."""
    if os.environ.get(DATA_VARIABLE):
        graph = load_dataset("DDB14-Fed5")
        assert not isinstance(graph, KnowledgeGraph)
        return graph
    return generate_consortium(clients=5, size=44_500, seed=0)


def main(
    repeats: Annotated[int, typer.Option(help="runs, of which the fastest counts")] = 3,
    growth: Annotated[bool, typer.Option(help="also measure growth from 5k to 1M triples")] = True,
) -> None:
    """Print the tables of `make bench`."""
    bandwidth, peak = measure_floor()
    graph = bench_graph()
    options = KgeOptions(negative_sides="tail", eval_sides="tail", device="cpu")
    print(
        f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads: copy {bandwidth / 1e9:.1f} GB/s, "
        f"matrix product {peak / 1e9:.0f} GFLOP/s"
    )
    others = [name for name in algorithms_of("kge") if name not in ("fede", "single", "collective")]
    cases = [("fede", model, "own") for model in MODELS] + [(name, "transe", "own") for name in others]
    rows, of_fede = [], dict[str, float]()
    for algorithm, model, scope in (*cases, ("fede", "transe", "all")):
        chosen = msgspec.structs.replace(
            options, algorithm=algorithm, model=model, negative_scope=scope, rank_scope=scope
        )
        federation = Federation(graph, chosen)
        seconds = time_round(federation, repeats).wall
        num_bytes, operations = needs_of_round(federation)
        floors = num_bytes / bandwidth, operations / peak
        validation = best_of(repeats, federation.task.validate).wall
        triples = options.local_epochs * sum(len(client.train) for client in graph.clients)
        # FedE comes first for each model, and is the reference of all others.
        relative = seconds / of_fede.setdefault(model, seconds)
        rows.append((
            f"{algorithm} ({scope})", model, f"{seconds:.2f}", f"{relative:.2f}", f"{triples / seconds:,.0f}", f"{floors[0]:.2f}",
            f"{floors[1]:.2f}", f"{seconds / max(floors):.1f}", f"{validation:.2f}",
        ))  # fmt: skip
    print_table(
        f"One round on {graph.name}: dim 128, batch 512, 256 negatives, 3 local epochs, {len(graph.clients)} clients",
        ("algorithm", "model", "s/round", "of FedE's", "triples/s", "floor bytes s", "floor ops s", "ratio to floor",
         "validation s"),
        rows,
    )  # fmt: skip
    if growth:
        for batch_size in (options.batch_size, LARGE_BATCH):
            chosen = msgspec.structs.replace(options, batch_size=batch_size)
            print_growth("embedded consortium", SIZES, consortium_of_size, chosen, bandwidth)
        if os.environ.get(DATA_VARIABLE):
            # The data set limits the size of its random parts.
            sizes = [size for size in SIZES if size < FREEBASE]
            print_growth("random part of FB15k-237", sizes, freebase_of_size, options, bandwidth)


def print_growth(
    what: str, sizes: Sequence[int], make: Callable[[int], FederatedGraph], options: KgeOptions, bandwidth: float
) -> None:
    """Print the seconds of one local epoch of FedE with TransE and 3 clients, for data of growing size.

    Each step moves every row of a client by its momentum, as in the published code. So the lower bound per triple grows
    with the
    client's entities over the batch size.

    Args:
        what: name of the data.
        sizes: numbers of triples.
        make: builds a graph of a size.
        options: of the federation.
        bandwidth: in bytes per second, from `measure_floor`.
    """
    rows = []
    for size in sizes:
        graph = make(size)
        federation = Federation(graph, msgspec.structs.replace(options, local_epochs=1))
        seconds, floor = time_round(federation, 2).wall, needs_of_round(federation)[0] / bandwidth
        count = sum(len(client.train) for client in graph.clients)
        entities = sum(client.num_entities for client in graph.clients) // len(graph.clients)
        rows.append((
            f"{size:,}", f"{count:,}", f"{entities:,}", f"{seconds:.2f}", f"{count / seconds:,.0f}", f"{floor:.2f}",
            f"{seconds / floor:.1f}",
        ))  # fmt: skip
    print_table(
        f"Growth: FedE, TransE, one local epoch, 3 clients, batch {options.batch_size:,}, {what}",
        ("triples", "train triples", "entities of a client", "s/round", "triples/s", "floor bytes s", "ratio"),
        rows,
    )


def consortium_of_size(size: int) -> FederatedGraph:
    """Generate a consortium.

    Args:
        size: number of triples.
    """
    return generate_consortium(clients=3, size=size, seed=0)


def freebase_of_size(size: int) -> FederatedGraph:
    """Draw a random part of FB15k-237, with triples divided at random.

    Args:
        size: number of triples.
    """
    graph = load_dataset("FB15k-237", progress=False)
    assert isinstance(graph, KnowledgeGraph)
    triples = generator(0, "bench").permutation(graph.triples)[:size]
    part = KnowledgeGraph(graph.name, graph.entities, graph.relations, triples, triples[:0], triples[:0])
    return partition(part, "triples", 3, 0)


if __name__ == "__main__":
    typer.run(main)
