"""Cells of unlearning tables: raw, re-trained and unlearned models on a forget set.

    asked = Asked(role="unlearned", options=UnlearnOptions(epochs=10, decay_epochs=10), forget="published")
    made = make_forgotten(spec, asked, folder, base=Path("runs/fedlu"))
    print(made.measure("hits@1", "local", "forget"))                         # 0.1458 [0.1226, 0.1755]

Raw and unlearned models share a base run, which is trained if it does not exist yet. Re-trained models are trained on the
retained triples. Source: fedlu.txt 5.3: filtered ranks among each client's own entities, then the mean over clients; the
filter includes forgotten triples.
"""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import numpy as np

from fkgsec.attacks.membership.audits import client_models, known_triples
from fkgsec.data.catalogue import locate
from fkgsec.data.graph import FederatedGraph
from fkgsec.defenses.transport import make_transport
from fkgsec.errors import RunError
from fkgsec.estimate import Estimate
from fkgsec.experiments.integrity.origin import Origin, seal_of
from fkgsec.experiments.papers.document import Asked, Triples
from fkgsec.experiments.runs.record import Environment, Record, environment_of, make_record, read_if_of
from fkgsec.experiments.runs.run import execute, load_run
from fkgsec.experiments.runs.spec import require_triples
from fkgsec.experiments.runs.stored import encode_stored
from fkgsec.experiments.runs.writing import locked, refused, write_atomically
from fkgsec.experiments.tasks.kge import Spec
from fkgsec.experiments.tasks.memory import check_memory
from fkgsec.experiments.tasks.spec import RunSpec
from fkgsec.experiments.unlearning.certificate import mean_of
from fkgsec.federation.loop import Observer, run_federation
from fkgsec.federation.options import CHECKPOINT_EVERY_S
from fkgsec.kge.ranking import filtered_ranks, utility
from fkgsec.kge.result import KgeResult
from fkgsec.randomness import generator
from fkgsec.unlearning.forget_sets import Forget, read_forget, retaining
from fkgsec.unlearning.unlearning import unlearn

SCHEMA = "fkgsec/forgotten/1"
FORGOTTEN_FILE = "forgotten.json"
SHOWN = ("mrr", "hits@1")


class Quality(msgspec.Struct, frozen=True):
    """Filtered link prediction of a client's model ("local", "global") on its forget or test triples."""

    client: str
    model: str
    triples: Triples
    figures: dict[str, Estimate]


class Forgotten(msgspec.Struct, frozen=True, kw_only=True):
    """Record of a cell in an unlearning table, `forgotten.json`.

    Attributes:
        run: record of the base run; for a re-trained model that of the re-training, whose data are the retained triples.
        data_hash: hash of the raw data.
        forget_hash: hash of the retained data.
        num_forget: number of triples to forget, by client.
        quality: quality of every client, model and set of triples.
        seconds: seconds of unlearning alone.
        origin: the digest of this record.
    """

    schema: str
    run: Record
    asked: Asked
    data_hash: str
    forget_hash: str
    num_forget: dict[str, int]
    quality: list[Quality]
    seconds: float
    environment: Environment
    origin: Origin

    @property
    def spec(self) -> RunSpec:
        """The run's spec."""
        return self.run.spec

    @property
    def seed(self) -> int:
        """The seed of the run and of unlearning."""
        return self.run.seed

    def measure(self, metric: str, model: str, triples: str) -> Estimate | str:
        """Return the mean over clients, or the reason why there is none.

        Args:
            metric: `mrr` or `hits@1`.
            model: `local` or `global`.
            triples: `forget` or `test`.
        """
        # Source: fedlu.txt 5.3: the mean over clients.
        rows = [row.figures for row in self.quality if (row.model, row.triples) == (model, triples)]
        if not rows or metric not in rows[0]:
            return f"no {metric} of {model or 'any'} models on {triples or 'any'} triples"
        return mean_of([figures[metric] for figures in rows])


def forget_sets(spec: Spec, graph: FederatedGraph, forget: str | float) -> Forget:
    """Return the triples that every client wants to forget.

    Args:
        spec: the run.
        graph: the clients' data.
        forget: "published", or a share of each client's training triples.

    Raises:
        DataError: no sets are published with the data.
    """
    if isinstance(forget, str):
        return read_forget(Path(spec.data) if Path(spec.data).is_dir() else locate(spec.data), graph)
    chosen = {}
    for client in graph.clients:
        triples = np.unique(client.train, axis=0)
        # By client and by the seed of the division: a new training seed forgets the same triples.
        order = generator(spec.split_seed, "forget set", client.name).permutation(len(triples))
        chosen[client.name] = triples[order[: max(1, round(forget * len(triples)))]]
    return chosen


def make_forgotten(
    spec: RunSpec,
    asked: Asked,
    folder: Path,
    *,
    base: Path | None = None,
    observer: Observer | None = None,
    at_once: int = 1,
) -> Forgotten:
    """Make a cell in `folder`, or read it if it is finished. A killed training resumes from its checkpoint.

    Args:
        base: folder of the base run, which is trained there if it is missing; re-trained models have none.
        observer: of the trainings. at_once: as for `execute`.

    Raises:
        RunError: the folder has another record. DataError: there is no such forget set.
    """
    kge: Spec = require_triples(spec, "experiment")
    graph = kge.load_graph()
    forget = forget_sets(kge, graph, asked.forget)
    retained = retaining(graph, forget)
    folder.mkdir(parents=True, exist_ok=True)
    # Another process must not write the same record.
    with locked(folder):
        if (earlier := read_forgotten(folder / FORGOTTEN_FILE)) is not None:
            if (earlier.spec.settled(), earlier.asked, earlier.forget_hash) != (kge.settled(), asked, retained.hash):
                raise refused(folder / FORGOTTEN_FILE, "belongs to another cell")
            return earlier
        seconds = 0.0
        if asked.role == "retrained":
            if at_once:
                check_memory(kge, retained, at_once=at_once)
            options = kge.federation_options()
            # Re-training is the gold standard of unlearning: a model that never saw the triples.
            result = run_federation(retained, options, folder, observer, CHECKPOINT_EVERY_S, make_transport)
            run = make_record(kge, result)
        else:
            assert base is not None, "raw and unlearned models have a base run"
            run = execute(kge, graph, base, attack=False, observer=observer, at_once=at_once).record
            result = load_run(base)[1]
            if asked.options:
                began, unlearning = time.perf_counter(), msgspec.structs.replace(asked.options, seed=kge.seed)
                result = unlearn(result, forget, unlearning, make_transport=make_transport)
                seconds = time.perf_counter() - began
        forgotten = Forgotten(
            schema=SCHEMA,
            run=run,
            asked=asked,
            data_hash=graph.hash,
            forget_hash=retained.hash,
            num_forget={name: len(triples) for name, triples in forget.items()},
            quality=measure_quality(result, graph, forget),
            seconds=seconds,
            environment=environment_of(kge.federation_options()),
            origin=Origin(""),
        )
        # The digest covers the JSON as written, so it is added last.
        seal = seal_of(msgspec.json.decode(encode_stored(forgotten)))
        forgotten = msgspec.structs.replace(forgotten, origin=Origin("", record=seal))
        write_atomically(folder / FORGOTTEN_FILE, encode_stored(forgotten))
        return forgotten


def measure_quality(result: KgeResult, graph: FederatedGraph, forget: Forget) -> list[Quality]:
    """Return MRR and Hits@1 of every client's models on its forget set and on its test triples.

    Args:
        result: result of the run.
        graph: the raw data.
        forget: triples to forget, by client.
    """
    rows = []
    for index, client in enumerate(graph.clients):
        # Source: fedlu.txt 5.3: filtered ranks; the filter includes forgotten triples.
        filtered = known_triples(client, result.options)
        sets: dict[Triples, np.ndarray] = {"forget": forget.get(client.name, client.train[:0]), "test": client.test}
        for name, (model, tables) in client_models(result, index).items():
            for what, triples in sets.items():
                if len(triples):
                    ranks = filtered_ranks(model, tables.entities, tables.relations, triples, filtered)
                    figures = utility(ranks, result.options.seed)
                    rows.append(
                        Quality(client.name, name, what, {key: figures[key] for key in figures if key in SHOWN})
                    )
    return rows


def read_forgotten(path: Path) -> Forgotten | None:
    """Read a record; None if the file does not exist or has another schema.

    Args:
        path: file of the record.

    Raises:
        RunError: it is damaged, or has changed since it was written.
    """
    forgotten = read_if_of(path, SCHEMA, Forgotten) if path.exists() else None
    if forgotten is not None and forgotten.origin.record != seal_of(msgspec.json.decode(path.read_bytes())):
        raise RunError(f"{path}: has changed since it was written: its digest differs")
    return forgotten
