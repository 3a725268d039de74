"""`make bench`: cost of unlearning 1 % of the triples relative to re-training, in the same process on the same run."""

from __future__ import annotations

import time
from typing import Annotated

import msgspec
import numpy as np
import typer

from benchmarks.rounds import print_table
from fkgsec.data.consortium import generate_consortium
from fkgsec.experiments.papers.forgetting import forget_sets
from fkgsec.experiments.tasks.kge import Spec
from fkgsec.federation.loop import run_federation
from fkgsec.kge.options import KgeOptions
from fkgsec.unlearning.unlearning import UnlearnOptions, unlearn

LIMIT = 0.1  # of re-training
METHODS = ("fedlu", "ascent", "relabel", "finetune", "retrain")


def main(
    rounds: Annotated[int, typer.Option(help="of training and of re-training; no early stop")] = 60,
    dim: Annotated[int, typer.Option(help="embedding dimension")] = 64,
    num_negatives: Annotated[int, typer.Option(help="negatives of each positive")] = 64,
    size: Annotated[int, typer.Option(help="triples of the consortium")] = 13_500,
    share: Annotated[float, typer.Option(help="of each client's triples, to forget")] = 0.01,
    epochs: Annotated[int | None, typer.Option(help="of unlearning; default: the method's")] = None,
    decay_epochs: Annotated[int | None, typer.Option(help="of passive decay; default: the method's")] = None,
) -> None:
    """Print the seconds of each method, as a share of re-training."""
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
    print(f"training: {time.perf_counter() - started:.1f} s, {rounds} rounds of FedLU, dim {dim}, {size:,} triples")
    forget = forget_sets(Spec(), graph, share)
    options_by_name = {"epochs": epochs, "decay_epochs": decay_epochs}
    # Options left out take the method's defaults.
    changes = {name: value for name, value in options_by_name.items() if value is not None}
    costs: dict[str, tuple[float, float]] = {}
    for method in METHODS:
        started = time.perf_counter()
        after = unlearn(raw, forget, msgspec.structs.replace(UnlearnOptions(), method=method, **changes))
        mrr = float(np.concatenate([1 / ranks.ravel() for ranks in after.test_ranks]).mean())
        costs[method] = time.perf_counter() - started, mrr
    reference = costs["retrain"][0]
    print_table(
        f"Unlearning {share:.1%} of each client's triples",
        ("method", "s", "of re-training", "test MRR"),
        [
            (method, f"{seconds:.2f}", f"{seconds / reference:.3f}", f"{mrr:.3f}")
            for method, (seconds, mrr) in costs.items()
        ],
    )
    # Unlearning is only worthwhile if it costs a fraction of re-training.
    cost = costs["fedlu"][0]
    print(
        f"fedlu takes {cost / reference:.3f} of re-training; to be below {LIMIT:g}: "
        f"{'yes' if cost < LIMIT * reference else 'no'}"
    )


if __name__ == "__main__":
    typer.run(main)
