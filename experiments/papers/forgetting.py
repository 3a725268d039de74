"""Cells of unlearning: what raw, re-trained and unlearned models make of a forget set, from a run to its record.

    asked = Asked(role="unlearned", options=UnlearnOptions(epochs=10, decay_epochs=10), forget="published")
    made = make_forgotten(spec, asked, folder, base=Path("runs/fedlu"))
    print(made.measure("hits@1", "local", "forget"))                         # 0.1458 [0.1226, 0.1755]

Raw and unlearned models share a base run, which is trained where it is not there yet; re-trained ones are trained on what is
retained. Forget sets are measured as fedlu.txt 5.3 has it: filtered ranks among each client's own entities, then the mean over
clients, forgotten triples included in what is filtered.
"""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import numpy as np

from fkgsec.attacks.membership.audits import known_triples
from fkgsec.attacks.membership.models import client_models
from fkgsec.data.catalogue import locate
from fkgsec.data.graph import FederatedGraph
from fkgsec.defenses.transport import make_transport
from fkgsec.errors import RunError
from fkgsec.estimate import Estimate
from fkgsec.experiments.integrity.origin import Origin, seal_of
from fkgsec.experiments.papers.document import Asked, Triples
from fkgsec.experiments.runs.record import Environment, Record, environment_of, make_record, read_if_of
from fkgsec.experiments.runs.run import execute, load_run
from fkgsec.experiments.runs.spec import of_triples
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
from fkgsec.unlearning.options import UnlearnOptions
from fkgsec.unlearning.unlearning import unlearn

SCHEMA = "fkgsec/forgotten/1"
FORGOTTEN_FILE = "forgotten.json"


class Quality(msgspec.Struct, frozen=True):
    """Filtered link prediction of one of a client's models ("local", "global") on its forget or its test triples."""

    client: str
    model: str
    triples: Triples
    figures: dict[str, Estimate]


class Forgotten(msgspec.Struct, frozen=True, kw_only=True):
    """The record of such a cell, `forgotten.json`.

    Attributes:
        run: the record of the base run; of a re-trained model that of the re-training, whose data are what is retained.
        data_hash: of the raw data. forget_hash: of what is retained of them. num_forget: triples to forget, by client.
        quality: of every client, model and set of triples.
        seconds: of unlearning alone.
        origin: digests; None in none.
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
        """Of the run."""
        return self.run.spec

    @property
    def seed(self) -> int:
        """Of the run, and of unlearning."""
        return self.run.seed

    def measure(self, metric: str, model: str, triples: str) -> Estimate | str:
        """The mean over clients, or why there is none."""
        found = [one.figures for one in self.quality if (one.model, one.triples) == (model, triples)]
        if not found or metric not in found[0]:
            return f"no {metric} of {model or 'any'} models on {triples or 'any'} triples"
        return mean_of([figures[metric] for figures in found])


def forget_sets(spec: Spec, graph: FederatedGraph, forget: str | float) -> Forget:
    """What every client asks to be forgotten. Raises `DataError` where nothing is published beside the data."""
    if isinstance(forget, str):
        return read_forget(Path(spec.data) if Path(spec.data).is_dir() else locate(spec.data), graph)
    chosen = {}
    for client in graph.clients:
        triples = np.unique(client.train, axis=0)
        order = generator(spec.split_seed, "forget set", client.name).permutation(len(triples))
        chosen[client.name] = triples[order[: max(1, round(forget * len(triples)))]]
    return chosen


def make_forgotten(
    spec: RunSpec, asked: Asked, folder: Path, *, base: Path, observer: Observer | None = None, at_once: int = 1
) -> Forgotten:
    """Make such a cell in `folder`, or read it where it is made. A killed training goes on from its checkpoint.

    Args:
        base: the folder of the base run, which is trained there if it is not; re-trained models do without.
        observer: of the trainings. at_once: as for `execute`.

    Raises:
        RunError: the folder has the record of something else. DataError: there is no such forget set.
    """
    own: Spec = of_triples(spec, "experiment")
    graph = own.load_graph()
    forget = forget_sets(own, graph, asked.forget)
    retained = retaining(graph, forget)
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        if (known := read_forgotten(folder / FORGOTTEN_FILE)) is not None:
            if (known.spec.settled(), known.asked, known.forget_hash) != (own.settled(), asked, retained.hash):
                raise refused(folder / FORGOTTEN_FILE, "is of another cell")
            return known
        if asked.role == "retrained":
            if at_once:
                check_memory(own, retained, at_once=at_once)
            result = run_federation(
                retained, own.federation_options(), folder, observer, CHECKPOINT_EVERY_S, make_transport
            )
            run, seconds = make_record(own, result), 0.0
        else:
            run = execute(own, graph, base, attack=False, observer=observer, at_once=at_once).record
            raw = load_run(base)[1]
            began = time.perf_counter()
            result = raw if asked.options is None else _unlearned(own, raw, forget, asked.options)
            seconds = time.perf_counter() - began if asked.options else 0.0
        made = Forgotten(
            schema=SCHEMA,
            run=run,
            asked=asked,
            data_hash=graph.hash,
            forget_hash=retained.hash,
            num_forget={name: len(triples) for name, triples in forget.items()},
            quality=measure_quality(result, graph, forget),
            seconds=seconds,
            environment=environment_of(own.federation_options()),
            origin=Origin(""),
        )
        seal = seal_of(msgspec.json.decode(encode_stored(made)))
        made = msgspec.structs.replace(made, origin=Origin("", record=seal))
        write_atomically(folder / FORGOTTEN_FILE, encode_stored(made))
        return made


def _unlearned(spec: Spec, raw: KgeResult, forget: Forget, options: UnlearnOptions) -> KgeResult:
    return unlearn(raw, forget, msgspec.structs.replace(options, seed=spec.seed), make_transport=make_transport)


def measure_quality(result: KgeResult, graph: FederatedGraph, forget: Forget) -> list[Quality]:
    """MRR and Hits@1 of every client's models on what it asked to be forgotten and on its test triples."""
    rows = []
    for place, client in enumerate(graph.clients):
        known = known_triples(client, result.options)
        of_sets: dict[Triples, np.ndarray] = {"forget": forget.get(client.name, client.train[:0]), "test": client.test}
        for name, (model, tables) in client_models(result, place).items():
            for what, triples in of_sets.items():
                if len(triples):
                    ranks = filtered_ranks(model, tables.entities, tables.relations, triples, known)
                    figures = {
                        metric: one
                        for metric, one in utility(ranks, result.options.seed).items()
                        if metric in ("mrr", "hits@1")
                    }
                    rows.append(Quality(client.name, name, what, figures))
    return rows


def read_forgotten(path: Path) -> Forgotten | None:
    """The record in a file; None where there is no file, or one of something else.

    Raises:
        RunError: it is damaged, or was changed since it was written.
    """
    if not path.exists():
        return None
    found = read_if_of(path, SCHEMA, Forgotten)
    if found is not None and found.origin.record != seal_of(msgspec.json.decode(path.read_bytes())):
        raise RunError(f"{path}: was changed since it was written: its words have another digest")
    return found
