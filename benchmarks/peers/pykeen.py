"""PyKEEN and fkgsec at the same settings in one process: an epoch of training, and the filtered ranking of both sides.

    python -m benchmarks.peers.pykeen                        # FB15k-237, TransE and RotatE: some 40 minutes of one core
    python -m benchmarks.peers.pykeen --batches 6 --ranked 200

Both train the same triples with Adam, 256 uniform negatives per triple and self-adversarial weights, on equally many
threads. PyKEEN's negatives are not filtered (its filter would slow it down), ours are. The figures are CPU seconds of
this process, so that other load affects both alike. Compare ratios; read seconds only relative to the machine's lower
bound. With `--batches` and `--ranked`, PyKEEN is measured on a part and scaled up; fkgsec is always measured in full.
"""

from __future__ import annotations

import importlib.util
import time
import warnings
from collections.abc import Callable
from typing import Annotated, Any, Literal, NamedTuple, get_args

import numpy as np
import torch
import typer

from benchmarks.rounds import measure_floor, print_table
from fkgsec.data.catalogue import load_dataset
from fkgsec.data.graph import ClientGraph, FederatedGraph, KnowledgeGraph
from fkgsec.errors import DataError
from fkgsec.kge.local.task import KgeTask
from fkgsec.kge.negatives import KnownTriples
from fkgsec.kge.options import KgeOptions
from fkgsec.kge.ranking import filtered_ranks

Name = Literal["transe", "rotate"]
BATCH, NEGATIVES, DIM = 512, 256, 128


class Cost(NamedTuple):
    """CPU seconds, and the share of the work that they measure."""

    seconds: float
    share: float = 1.0

    @property
    def whole(self) -> float:
        """CPU seconds of the whole work, scaled up."""
        return self.seconds / self.share


def timed(work: Callable[[], object]) -> float:
    """Measure the CPU seconds of a call, over all threads of this process.

    Args:
        work: to call.
    """
    began = time.process_time()
    work()
    return time.process_time() - began


def ours(graph: KnowledgeGraph, name: Name) -> dict[str, Cost]:
    """Measure an epoch of one client with all triples, and the ranking of the test split, both sides, filtered by all
    splits.

    Args:
        graph: the data.
        name: of the model.
    """
    client = ClientGraph.from_global("all", graph.train, graph.valid, graph.test)
    options = KgeOptions(
        algorithm="single", model=name, dim=DIM, batch_size=BATCH, num_negatives=NEGATIVES, local_epochs=1,
        negative_sides="both", device="cpu",
    )  # fmt: skip
    task = KgeTask(FederatedGraph(graph.name, graph.entities, graph.relations, (client,)), options)
    model, tables = task.evaluator.predictor(0)

    def rank() -> None:  # the index of known triples is made once for a run, and timed here
        """Rank the test split."""
        sides = [KnownTriples.build(client.triples, side, client.num_relations) for side in ("tail", "head")]
        filtered_ranks(model, tables.entities, tables.relations, client.test, sides)

    task.train(1, [0], lambda: None)  # the first epoch loads what is compiled, and so does the first rank
    filtered_ranks(model, tables.entities, tables.relations, client.test[:1], [])
    return {"epoch": Cost(timed(lambda: task.train(1, [0], lambda: None))), "ranking": Cost(timed(rank))}


def make_theirs(graph: KnowledgeGraph, name: Name) -> tuple[Any, list[Any]]:
    """Build PyKEEN's model and splits, with our dimension and loss.

    Args:
        graph: the data.
        name: of the model.
    """
    from pykeen.losses import NSSALoss
    from pykeen.models import RotatE, TransE
    from pykeen.triples import CoreTriplesFactory

    sizes: dict[str, Any] = {"num_entities": len(graph.entities), "num_relations": len(graph.relations)}
    splits = [
        CoreTriplesFactory(torch.from_numpy(np.array(triples)), **sizes)
        for triples in (graph.train, graph.valid, graph.test)
    ]
    model: Any = TransE if name == "transe" else RotatE
    # The L1 norm, as in fkgsec.
    norm: dict[str, Any] = {"scoring_fct_norm": 1} if name == "transe" else {}
    loss = NSSALoss(margin=10.0, adversarial_temperature=1.0)
    return model(triples_factory=splits[0], embedding_dim=DIM, loss=loss, random_seed=0, **norm), splits


def theirs(graph: KnowledgeGraph, name: Name, batches: int | None, ranked: int | None) -> dict[str, Cost]:
    """Measure PyKEEN's epoch and its evaluator.

    Args:
        graph: the data.
        name: of the model.
        batches: number of batches; None: all.
        ranked: number of test triples; None: all.
    """
    from pykeen.evaluation import RankBasedEvaluator
    from pykeen.training import SLCWATrainingLoop

    model, splits = make_theirs(graph, name)
    train, (train_triples, valid, test) = splits[0], (split.mapped_triples for split in splits)

    def epoch(count: int) -> None:
        """Train on the first triples."""
        part = train.clone_and_exchange_triples(train_triples[:count])
        loop = SLCWATrainingLoop(
            model=model,
            triples_factory=part,
            optimizer=torch.optim.Adam(model.parameters(), lr=0.001),
            negative_sampler="basic",
            negative_sampler_kwargs={"num_negs_per_pos": NEGATIVES},
        )
        loop.train(part, num_epochs=1, batch_size=BATCH, use_tqdm=False, use_tqdm_batch=False)

    def rank(count: int) -> None:
        """Evaluate on the first test triples."""
        everything = [train_triples, valid, test]
        RankBasedEvaluator(filtered=True).evaluate(
            model, test[:count], additional_filter_triples=everything, use_tqdm=False
        )

    costs = {}
    for what, run, first, whole, part in (
        ("epoch", epoch, BATCH, len(train_triples), None if batches is None else batches * BATCH),
        ("ranking", rank, 1, len(test), ranked),
    ):
        # Scale by the share that was measured.
        count = whole if part is None else min(whole, part)
        # A small first call loads and compiles, outside the measurement.
        run(first)
        costs[what] = Cost(timed(lambda run=run, count=count: run(count)), count / whole)
    return costs


def main(
    data: Annotated[str, typer.Option(help="a data set of the catalogue, or a path")] = "FB15k-237",
    batches: Annotated[int | None, typer.Option(min=1, help="of PyKEEN's epoch; none: all")] = None,
    ranked: Annotated[int | None, typer.Option(min=1, help="test triples that PyKEEN ranks; none: all")] = None,
    threads: Annotated[int, typer.Option(min=1, help="of both")] = 1,
) -> None:
    """Print seconds and ratios."""
    import numba

    if importlib.util.find_spec("pykeen") is None:
        print("PyKEEN is not installed (it comes with the extra dev): nothing to compare with")
        return
    torch.set_num_threads(threads)
    numba.set_num_threads(threads)
    graph = load_dataset(data, progress=False)
    if not isinstance(graph, KnowledgeGraph):
        raise DataError(f"{data}: is divided among clients; give a graph that is not")
    # For comparison with other machines.
    bandwidth, peak = measure_floor()
    print(f"{threads} threads: copy {bandwidth / 1e9:.1f} GB/s, matrix product {peak / 1e9:.0f} GFLOP/s")
    rows = []
    for name in get_args(Name):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyKEEN's, of its own dependencies
            pykeen = theirs(graph, name, batches, ranked)
        for work, cost in ours(graph, name).items():
            other, ratio = pykeen[work], pykeen[work].whole / cost.whole
            rows.append((name, work, f"{other.whole:.1f}", f"{other.share:.0%}", f"{cost.whole:.2f}", f"{ratio:.1f}"))
    print_table(
        f"{graph.name}: dim {DIM}, batch {BATCH}, {NEGATIVES} negatives; seconds of the processor",
        ("model", "work", "PyKEEN s", "of it timed", "fkgsec s", "ratio"),
        rows,
    )


if __name__ == "__main__":
    typer.run(main)
