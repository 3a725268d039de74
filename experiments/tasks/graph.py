"""Graph classification in experiments: spec, utility, data and wording."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta

from fkgsec.attacks.options import GraphAttackOptions
from fkgsec.data.catalogue import tu_files
from fkgsec.estimate import Estimate, proportion
from fkgsec.experiments.tasks.spec import RunSpec, SharedOptions, with_attacks
from fkgsec.experiments.tasks.task import Figures, FirstPolicy, Reached, RunTask, cpu_seconds
from fkgsec.federation.recipes import RECIPES
from fkgsec.gnn.options import GnnOptions
from fkgsec.graphs.collection import GROUPS, KNOWN, load_federation

if TYPE_CHECKING:
    import numpy as np

    from fkgsec.experiments.reporting.sheets import Sheet
    from fkgsec.experiments.tasks.items import TestItems
    from fkgsec.gnn.result import GnnResult
    from fkgsec.graphs.sets import FederatedGraphs
    from fkgsec.graphs.twins import Twins

MOTIFS = "motifs"


if TYPE_CHECKING:

    class _Options(GnnOptions, GraphAttackOptions, SharedOptions, frozen=True, kw_only=True):
        """The options of a run and those of attacks on it."""

else:
    _Options = with_attacks(GnnOptions, GraphAttackOptions)


class GraphSpec(_Options, RunSpec, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A federation of graph classifiers, its data and the attack on it.

    Attributes (in addition to those of `GnnOptions` and `GraphAttackOptions`):
        data, clients, partition, size, clean: see `fkgsec.graphs.collection.load_federation`.
    """

    options_type: ClassVar[type[GnnOptions]] = GnnOptions
    attacks_type: ClassVar[type[GraphAttackOptions]] = GraphAttackOptions

    data: str = MOTIFS
    # Of `fkgsec.graphs.split.GRAPH_PARTITIONS`, which loads more.
    partition: Literal["random", "chunks"] | None = None
    clean: Annotated[bool, Meta(description="keep isomorphic graphs on one side of the split")] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        msgspec.structs.force_setattr(self, "colluder", self.attack_options().colluder)
        self.check()

    def load_graph(self) -> FederatedGraphs:
        """Load or generate the graphs and divide them; see `fkgsec.graphs.collection.load_federation`."""
        names = ("clients", "partition", "size", "clean")
        return load_federation(self.data, seed=self.split_seed, **{name: getattr(self, name) for name in names})


def is_graph_data(name: str) -> bool:
    """Return True for graphs to classify: generated ones, sets or groups of the TU collection, or a folder in its format.

    Args:
        name: value of `--data`.

    >>> is_graph_data("CHEM"), is_graph_data("MUTAG,BZR"), is_graph_data("motifs"), is_graph_data("FB15k-237")
    (True, True, True, False)
    """
    names = {word.casefold() for word in (MOTIFS, *GROUPS, *KNOWN)}
    return any(part.strip().casefold() in names for part in name.split(",")) or bool(tu_files(Path(name).expanduser()))


@functools.lru_cache(maxsize=1)
def twins_of(graph: FederatedGraphs) -> Twins:
    """Find the twins of a federation, once for warnings, sizes and figures.

    Args:
        graph: the federation. Only the last one is cached, because its graphs stay in memory.
    """
    from fkgsec.graphs.twins import find_twins

    return find_twins(graph)


def _with_twin(graph: FederatedGraphs) -> list[np.ndarray]:
    """Mark each client's test graphs that have a twin in any client's train split, bool `[n]`."""
    masks, clients = twins_of(graph).masks, range(len(graph.clients))
    return [masks[client, "test", "twin_own"] | masks[client, "test", "twin_other"] for client in clients]


def _reached(result: GnnResult) -> Reached:
    """Average over the clients with equal weights, as the papers do."""
    twins = _with_twin(result.graph)
    of_all, by_client = result.utility()
    return Reached(
        # A federation without any test graph has no accuracy.
        of_all or _accuracy(None),
        by_client,
        {
            "leaked": _accuracy(result.accuracy(twins)),
            "clean": _accuracy(result.accuracy([~mask for mask in twins])),
        },
        {},
        _items(result),
    )


def _items(result: GnnResult) -> TestItems:
    """Mark correctly classified test graphs, and those with a twin in training."""
    import numpy as np

    from fkgsec.experiments.tasks.items import TestItems

    masks = twins_of(result.graph).masks
    seen = [
        np.where(masks[place, "test", "twin_own"], 2, masks[place, "test", "twin_other"])
        for place in range(len(result.test))
    ]
    correct = np.concatenate([predictions.correct for predictions in result.test])
    return TestItems.pack(correct[:, None], [len(predictions.classes) for predictions in result.test], seen)


def _accuracy(figure: Estimate | None) -> Figures:
    return {"accuracy": proportion(0, 0) if figure is None else figure}


def _describe(graph: FederatedGraphs) -> dict[str, dict[str, int]]:
    return {
        client.name: {
            "graphs": len(client.graphs),
            "classes": client.graphs.num_classes,
            "nodes": client.graphs.num_nodes,
            "train": len(client.train),
            "valid": len(client.valid),
            "test": len(client.test),
            "twins": int(twins.sum()),
        }
        for client, twins in zip(graph.clients, _with_twin(graph), strict=True)
    }


def _memory(spec: GraphSpec, graph: FederatedGraphs) -> dict[str, float]:
    """Estimate the memory of each client's network and of its largest batches."""
    import numpy as np
    import torch

    from fkgsec.gnn.training import JUDGED_AT_ONCE, GraphRule
    from fkgsec.graphs.features import feature_width

    recipe = RECIPES[spec.algorithm]
    rule: GraphRule = (recipe.rule or GraphRule)(spec.federation_options())
    networks, shared, widest = 0, 0, 0
    for client in graph.clients:
        # Tensors on this device have shapes but no memory.
        with torch.device("meta"):
            network = rule.network(feature_width(client.graphs), client.graphs.num_classes)
        sizes = {name: 4 * parameter.numel() for name, parameter in network.named_parameters()}
        networks += sum(sizes.values())
        shared += sum(size for name, size in sizes.items() if name.startswith(rule.shared))
        # Evaluation uses larger batches than training if `batch_size` is small.
        at_once = min(len(client.graphs), max(spec.batch_size, JUDGED_AT_ONCE))
        # Worst case: the largest graphs of a client meet in one batch.
        nodes = int(np.sort(client.graphs.sizes)[-at_once:].sum())
        values = feature_width(client.graphs) + spec.width * (_LAYER * spec.layers + _LAYER)
        widest = max(widest, 4 * nodes * values)
    nodes = sum(client.graphs.num_nodes for client in graph.clients)
    return {
        "networks and optimizer": _NETWORKS * networks,
        "models kept": _KEPT * networks,
        "messages": _MESSAGES * shared,
        "checkpoint": _KEPT * networks + _MESSAGES * shared,
        "batches": widest,
        "data": _NODE * nodes,
    }


# Copies of networks and of messages in memory at once, values per node and layer, and bytes per node.
_NETWORKS = 5  # values, Adam's two moments, gradients, private ones
# Models of the best round before and after its broadcast, and of the round that may replace it.
_KEPT = 6
# Rounds 0, the best, the last and those before, to the server and back.
_MESSAGES = 9
_LAYER = 6
_NODE = 400


def _statistics(graph: FederatedGraphs) -> tuple[list[Sheet], dict[str, Any]]:
    """Return sizes of each client's graphs, and the features of their nodes."""
    from fkgsec.experiments.reporting.sheets import Column, Sheet
    from fkgsec.graphs.features import feature_kind, feature_width

    described = _describe(graph)
    kinds = {client.name: f"{feature_width(client.graphs)} {feature_kind(client.graphs)}" for client in graph.clients}
    rows = tuple((name, *(f"{count:,}" for count in sizes.values()), kinds[name]) for name, sizes in described.items())
    columns = tuple(map(Column, ("client", *TASK.sizes, "features")))
    statistics = [{"client": name, **sizes, "features": kinds[name]} for name, sizes in described.items()]
    values = {"statistics": statistics, "split_leaks": twins_of(graph).table.to_dict("records")}
    return [Sheet(f"{graph.name}: {len(rows)} clients", columns, rows)], values


TASK = RunTask(
    name="graph",
    about="graph classification",
    does="classifies graphs",
    spec=GraphSpec,
    metric="accuracy",
    metrics={"accuracy": "share of correctly classified test graphs, mean over clients"},
    labels={},
    items="graphs",
    utility_title=lambda spec: "Utility: test accuracy (all: mean over clients)",
    leaked={"leaked": "with a twin in train", "clean": "without a twin"},
    standing="have a twin in some client's train split",
    network=lambda spec: f"{spec.model}, {spec.layers} layers of {spec.width}",
    columns=lambda spec: {"layers": spec.layers, "width": spec.width},
    cases=("none", "local-gc", "secagg", "fedstar", "cefgl", "cefgl/secagg"),
    first_policy=FirstPolicy(
        "secagg",
        "secure sums",
        # Without dropout and with large steps, networks memorize something that can leak.
        {"rounds": 30, "width": 32, "dropout": 0.0, "learning_rate": 0.01},
        ("graph-membership.auc", "graph-membership.advantage"),
    ),
    embedded={MOTIFS: {"rounds": 20}},
    sizes=("graphs", "classes", "nodes", "train", "valid", "test", "twins"),
    sizes_title="graphs, their classes and nodes, graphs of each split, test graphs with an isomorphic one in train",
    marked="",
    reached=_reached,
    describe=_describe,
    sensitive=lambda graph: [],
    warnings=lambda graph: [*graph.warnings, *filter(None, [twins_of(graph).warning()])],
    statistics=_statistics,
    memory=_memory,
    smaller="a smaller width or batch_size, or fewer clients",
    timed_by=lambda spec: (
        spec.document() | dict.fromkeys(("seed", "protocol_seed", "rounds", "patience", "eval_every"))
    ),
    time_validation=lambda task, graph: cpu_seconds(task.validate),
)
