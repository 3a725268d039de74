"""The record of a run of graph classification: `graph-record.json` in its folder.

record = make_graph_record(spec, result)
record.accuracy, record.accuracy_clean           # on all test graphs, and on those without a twin in train
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from experiments.graphs.spec import GraphSpec
from experiments.runs.record import Environment, describe_environment
from fkgsec.errors import RunError
from fkgsec.estimate import Estimate, proportion
from fkgsec.federation.loop import run_identity
from fkgsec.gnn.result import GnnResult
from fkgsec.graphs.sets import FederatedGraphs
from fkgsec.graphs.twins import Twins, find_twins

RECORD_FILE = "graph-record.json"
SCHEMA = "fkgsec-graph-run/1"


class GraphRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A finished run.

    Attributes:
        spec: every option. identity: tells the run from others, by options and data. data, data_hash: name and digest.
        clients: by client its numbers of graphs, and how many of its test graphs have a twin in train.
        metric: of `valid` in `rounds`. best_round: whose models are kept and tested.
        accuracy: of test graphs, mean over clients; accuracy_clean: of those without a twin; by_client: each client's.
        bytes_up, bytes_down: serialised, of all rounds. protection: what the defense states, a line each.
        summary: what the command prints.
    """

    schema: str
    identity: str
    spec: dict[str, Any]
    data: str
    data_hash: str
    clients: dict[str, dict[str, int]]
    warnings: list[str]
    metric: str
    best_round: int
    accuracy: Estimate | None
    accuracy_clean: Estimate | None
    by_client: dict[str, Estimate]
    bytes_up: int
    bytes_down: int
    rounds: list[dict[str, Any]]
    protection: list[str]
    summary: list[str]
    environment: Environment


def make_graph_record(spec: GraphSpec, result: GnnResult) -> GraphRecord:
    """Of a finished run."""
    twins = find_twins(result.graph)
    places = range(len(result.graph.clients))
    clean = [~(twins.masks[place, "test", "twin_own"] | twins.masks[place, "test", "twin_other"]) for place in places]
    accuracy_clean = result.accuracy(clean)
    lines = result.summary().splitlines()
    if accuracy_clean is not None and not all(mask.all() for mask in clean):
        lines.insert(3, f"test accuracy without twins, mean over clients: {accuracy_clean}")
    return GraphRecord(
        schema=SCHEMA,
        identity=run_identity(result.graph, result.options),
        spec=spec.document(),
        data=result.graph.name,
        data_hash=result.graph.hash,
        clients=describe_clients(result.graph, twins),
        warnings=[*result.graph.warnings, *filter(None, [twins.warning()])],
        metric=result.metric,
        best_round=result.best_round,
        accuracy=result.accuracy(),
        accuracy_clean=accuracy_clean,
        by_client={
            client.name: proportion(int(one.correct.sum()), len(one.classes))
            for client, one in zip(result.graph.clients, result.test, strict=True)
        },
        bytes_up=result.transcript.num_bytes("up"),
        bytes_down=result.transcript.num_bytes("down"),
        rounds=[msgspec.structs.asdict(entry) for entry in result.rounds],
        protection=result.protection.lines(),
        summary=lines,
        environment=describe_environment(result),
    )


def describe_clients(graphs: FederatedGraphs, twins: Twins) -> dict[str, dict[str, int]]:
    """By client its numbers of graphs, classes, and test graphs that have a twin in train."""
    return {
        client.name: {
            "graphs": len(client.graphs),
            "train": len(client.train),
            "valid": len(client.valid),
            "test": len(client.test),
            "classes": client.graphs.num_classes,
            "nodes": client.graphs.num_nodes,
            "twins": int((twins.masks[place, "test", "twin_own"] | twins.masks[place, "test", "twin_other"]).sum()),
        }
        for place, client in enumerate(graphs.clients)
    }


def read_graph_record(path: Path) -> GraphRecord:
    """Read a record. Raises `RunError` for a file that is none."""
    try:
        record = msgspec.json.decode(path.read_bytes(), type=GraphRecord)
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error.strerror})") from error
    except msgspec.MsgspecError as error:
        raise RunError(f"{path}: not a record of graph classification ({error})") from error
    if record.schema != SCHEMA:
        raise RunError(f"{path}: schema {record.schema!r}; this version reads {SCHEMA}")
    return record
