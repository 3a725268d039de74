"""`make bench`: what unlearning 1 % of the triples costs beside re-training, in the same process on the same run."""

from __future__ import annotations

import time
from typing import Annotated

import msgspec
import numpy as np
import typer
from rich.console import Console

from fkgsec.data.consortium import generate_consortium
from fkgsec.data.graph import FederatedGraph
from fkgsec.experiments.reporting.sheets import make_table
from fkgsec.federation.loop import run_federation
from fkgsec.kge.options import KgeOptions
from fkgsec.kge.result import KgeResult
from fkgsec.randomness import generator
from fkgsec.unlearning.forget_sets import Forget
from fkgsec.unlearning.unlearning import UnlearnOptions, unlearn

LIMIT = 0.1  # of re-training
METHODS = ("fedlu", "ascent", "relabel", "finetune", "retrain")


def sample_forget(graph: FederatedGraph, share: float, seed: int) -> Forget:
    """A share of each client's distinct training triples, at least one, at random. Source: fedlu.txt 5.3."""
    forget = {}
    for place, client in enumerate(graph.clients):
        distinct = np.unique(client.train, axis=0)
        order = generator(seed, "forget", place).permutation(len(distinct))
        forget[client.name] = distinct[order[: max(1, round(share * len(distinct)))]]
    return forget


def seconds_of(result: KgeResult, forget: Forget, options: UnlearnOptions) -> tuple[float, KgeResult]:
    """How long one method takes, and what it gives."""
    started = time.perf_counter()
    after = unlearn(result, forget, options)
    return time.perf_counter() - started, after


def main(
    rounds: Annotated[int, typer.Option(help="of training and of re-training; no early stop")] = 60,
    dim: Annotated[int, typer.Option(help="embedding dimension")] = 64,
    num_negatives: Annotated[int, typer.Option(help="negatives of each positive")] = 64,
    size: Annotated[int, typer.Option(help="triples of the consortium")] = 13_500,
    share: Annotated[float, typer.Option(help="of each client's triples, to forget")] = 0.01,
    epochs: Annotated[int | None, typer.Option(help="of unlearning; default: the method's")] = None,
    decay_epochs: Annotated[int | None, typer.Option(help="of passive decay; default: the method's")] = None,
) -> None:
    """Seconds of each method, as a share of re-training."""
    console = Console()
    graph = generate_consortium(clients=3, size=size, seed=0)
    options = KgeOptions(
        algorithm="fedlu",
        dim=dim,
        num_negatives=num_negatives,
        rounds=rounds,
        eval_every=rounds,
        patience=0,
        device="cpu",
    )
    run_federation(graph, msgspec.structs.replace(options, rounds=1))  # compiled, and in the caches
    started = time.perf_counter()
    raw = run_federation(graph, options)
    console.print(
        f"training: {time.perf_counter() - started:.1f} s, {rounds} rounds of FedLU, dim {dim}, {size:,} triples"
    )
    forget = sample_forget(graph, share, 0)
    default = UnlearnOptions()
    taken = {}
    for method in METHODS:
        own = msgspec.structs.replace(
            default,
            method=method,
            epochs=default.epochs if epochs is None else epochs,
            decay_epochs=default.decay_epochs if decay_epochs is None else decay_epochs,
        )
        taken[method] = seconds_of(raw, forget, own)
    table = make_table(f"Unlearning {share:.1%} of each client's triples", "method", "s", "of re-training", "test MRR")
    reference = taken["retrain"][0]
    for method, (seconds, after) in taken.items():
        mrr = float(np.concatenate([1 / ranks.ravel() for ranks in after.test_ranks]).mean())
        table.add_row(method, f"{seconds:.2f}", f"{seconds / reference:.3f}", f"{mrr:.3f}")
    console.print(table)
    console.print(
        f"fedlu takes {taken['fedlu'][0] / reference:.3f} of re-training; to be below {LIMIT:g}: "
        f"{'yes' if taken['fedlu'][0] < LIMIT * reference else 'no'}"
    )


if __name__ == "__main__":
    typer.run(main)
