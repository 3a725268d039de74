"""PyKEEN and fkgsec at the same settings in one process: an epoch of training, and the filtered ranking of both sides.

    python -m benchmarks.peers.pykeen                        # FB15k-237, TransE and RotatE: some 40 minutes of one core
    python -m benchmarks.peers.pykeen --batches 6 --ranked 200

Both take the same triples with Adam, 256 uniform negatives of each and self-adversarial weights, on as many threads. PyKEEN's are
not filtered (its filter would cost it more), ours are. What is timed is the processor's time of this process, so that what else
runs on the machine slows both alike; ratios are what to read, seconds only beside the machine's floor. With `--batches` and
`--ranked` a part is timed and scaled up, of PyKEEN alone: ours is always whole.
"""

from __future__ import annotations

import functools
import importlib.util
import time
import warnings
from collections.abc import Callable
from typing import Annotated, Any, Literal, NamedTuple, get_args

import numpy as np
import torch
import typer
from rich.console import Console
from rich.table import Table

from benchmarks.rounds import measure_floor
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
    """Seconds of a processor, and the share of the work that was done for it; the rest is scaled."""

    seconds: float
    share: float = 1.0

    @property
    def whole(self) -> float:
        return self.seconds / self.share


def timed(work: Callable[[], object]) -> float:
    """Seconds that this process spent on it, all threads together."""
    began = time.process_time()
    work()
    return time.process_time() - began


class Ours:
    """One client with all triples."""

    def __init__(self, graph: KnowledgeGraph, name: Name) -> None:
        everything = ClientGraph.from_global("all", graph.train, graph.valid, graph.test)
        whole = FederatedGraph(graph.name, graph.entities, graph.relations, (everything,))
        self.options = KgeOptions(
            algorithm="single", model=name, dim=DIM, batch_size=BATCH, num_negatives=NEGATIVES, local_epochs=1,
            negative_sides="both", device="cpu",
        )  # fmt: skip
        self.task, self.graph = KgeTask(whole, self.options), everything

    def epoch(self) -> Cost:
        """The second one: the first loads what is compiled."""
        train = functools.partial(self.task.train, 1, [0], lambda: None)
        train()
        return Cost(timed(train))

    def ranking(self) -> Cost:
        """The test split, both sides, filtered by all splits; the index is made once for a run, and timed here."""
        model, tables = self.task.evaluator.predictor(0)

        def rank() -> None:
            sides = [
                KnownTriples.build(self.graph.triples, side, self.graph.num_relations) for side in ("tail", "head")
            ]
            filtered_ranks(model, tables.entities, tables.relations, self.graph.test, sides)

        filtered_ranks(model, tables.entities, tables.relations, self.graph.test[:1], [])
        return Cost(timed(rank))


class Theirs:
    """PyKEEN's model, training loop and evaluator; dimension, loss, sampler and optimizer as ours."""

    def __init__(self, graph: KnowledgeGraph, name: Name) -> None:
        from pykeen.losses import NSSALoss
        from pykeen.models import RotatE, TransE

        self._splits = [self._factory(graph, split) for split in (graph.train, graph.valid, graph.test)]
        loss = NSSALoss(margin=10.0, adversarial_temperature=1.0)
        made: Any = TransE if name == "transe" else RotatE
        norm = {"scoring_fct_norm": 1} if name == "transe" else {}
        self._model = made(triples_factory=self._splits[0], embedding_dim=DIM, loss=loss, random_seed=0, **norm)

    @staticmethod
    def _factory(graph: KnowledgeGraph, triples: np.ndarray) -> Any:
        from pykeen.triples import CoreTriplesFactory

        mapped = torch.from_numpy(np.array(triples))
        return CoreTriplesFactory(mapped, num_entities=len(graph.entities), num_relations=len(graph.relations))

    def epoch(self, batches: int | None) -> Cost:
        """An epoch over so many batches, after one over a single batch."""
        from pykeen.training import SLCWATrainingLoop

        train = self._splits[0]
        count = train.num_triples if batches is None else min(train.num_triples, batches * BATCH)

        def run(number: int) -> None:
            part = train.clone_and_exchange_triples(train.mapped_triples[:number])
            loop = SLCWATrainingLoop(
                model=self._model,
                triples_factory=part,
                optimizer=torch.optim.Adam(self._model.parameters(), lr=0.001),
                negative_sampler="basic",
                negative_sampler_kwargs={"num_negs_per_pos": NEGATIVES},
            )
            loop.train(part, num_epochs=1, batch_size=BATCH, use_tqdm=False, use_tqdm_batch=False)

        run(BATCH)
        return Cost(timed(lambda: run(count)), count / train.num_triples)

    def ranking(self, ranked: int | None) -> Cost:
        """So many test triples, both sides, filtered by all splits."""
        from pykeen.evaluation import RankBasedEvaluator

        train, valid, test = (split.mapped_triples for split in self._splits)
        count = len(test) if ranked is None else min(len(test), ranked)

        def run(number: int) -> None:
            RankBasedEvaluator(filtered=True).evaluate(
                self._model, test[:number], additional_filter_triples=[train, valid, test], use_tqdm=False
            )

        run(1)
        return Cost(timed(lambda: run(count)), count / len(test))


def compare(graph: KnowledgeGraph, name: Name, batches: int | None, ranked: int | None) -> dict[str, tuple[Cost, Cost]]:
    """By what is done: PyKEEN's cost and ours."""
    theirs, ours = Theirs(graph, name), Ours(graph, name)
    return {"epoch": (theirs.epoch(batches), ours.epoch()), "ranking": (theirs.ranking(ranked), ours.ranking())}


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
    bandwidth, peak = measure_floor()
    console = Console(width=None if Console().is_terminal else 120)
    console.print(f"{threads} threads: copy {bandwidth / 1e9:.1f} GB/s, matrix product {peak / 1e9:.0f} GFLOP/s")
    table = Table(title=f"{graph.name}: dim {DIM}, batch {BATCH}, {NEGATIVES} negatives; seconds of the processor")
    for head in ("model", "work", "PyKEEN s", "of it timed", "fkgsec s", "ratio"):
        table.add_column(head, justify="right")
    for name in get_args(Name):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyKEEN's, of its own dependencies
            found = compare(graph, name, batches, ranked)
        for work, (theirs, ours) in found.items():
            ratio = theirs.whole / ours.whole
            table.add_row(name, work, f"{theirs.whole:.1f}", f"{theirs.share:.0%}", f"{ours.whole:.2f}", f"{ratio:.1f}")
    console.print(table)


if __name__ == "__main__":
    typer.run(main)
