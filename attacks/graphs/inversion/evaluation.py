"""Gradient inversion as an attack on a run: which of its parts apply to an upload, and the figures.

Threat model: "server+graphs", an honest-but-curious server. Required knowledge: the broadcast, a client's upload, the public
settings, and graphs of the data set that nobody trains on. An upload is a gradient if a client makes one step of plain gradient
descent (`optimizer=sgd`, `local_epochs=1`, `local_steps=1`). What else can be recovered depends on what is shared:

| metric | requirements |
|---|---|
| `distinct` | GIN; the convolutions suffice, with dropout and any number of graphs in the step |
| `neighbourhoods` | also a shared layer of features (`share=all`), and nodes with one label each |
| `exact`, `similarity` | also one graph in the step (`batch_size=1`), no dropout, `readout=sum` |

If the layer of features is private, its embeddings of labels are unknown, and only `distinct` is attempted here. That is no
proof that nothing more can be recovered. A first step of Adam uploads the signs of a gradient, further ones a mixture; neither
preserves its row space.

Source: after Drencheva et al. 2025 (GRAIN); differences are in `fkgsec.attacks.graphs.inversion.inference` and `blocks`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fkgsec.attacks.figure import NOT_ATTACKED, Figure
from fkgsec.attacks.graphs.inversion.inference import Inverted, Step, invert
from fkgsec.attacks.graphs.inversion.similarity import LabelledGraph, similarity
from fkgsec.attacks.graphs.view import GraphVictim, GraphView
from fkgsec.attacks.laboratory import Laboratory, PublicSettings
from fkgsec.attacks.needs import Needs
from fkgsec.attacks.options import GRAPH
from fkgsec.attacks.questions import GRAPHS
from fkgsec.attacks.registry import Attack, Truth
from fkgsec.attacks.view import ALL
from fkgsec.estimate import exact, proportion
from fkgsec.gnn.result import GnnResult
from fkgsec.gnn.training import batch_order
from fkgsec.graphs.features import feature_kind
from fkgsec.graphs.sets import GraphSet
from fkgsec.graphs.twins import twin_groups

NAME = "gradient-inversion"
# Algorithms whose single step follows the gradient; fedprox's proximal term is zero in the first step.
GRADIENTS = (
    "fedavg",
    "fedgcn",
    "fedper",
    "fedprox-gc",
)
# Draws of auxiliary graphs for baselines.
DRAWS = 200
METRICS = {
    "exact": "share of graphs recovered up to isomorphism",
    "similarity": "share of nodes recovered with their surroundings, mean over depths 0 to 2",
    "neighbourhoods": "labels of a node and its neighbours: those found or there, the share of both",
    "distinct": "share of uploads that tell how many different neighbourhoods are in them",
}


@dataclass(frozen=True)
class Claim:
    """Recovery from one upload.

    Attributes:
        inverted: recovered neighborhoods and graph.
        distinct: inferred number of different neighborhoods.
        reasons: why a metric was not attacked.
        auxiliary: graphs of the data set, for guesses without the upload.
    """

    inverted: Inverted
    distinct: int
    reasons: Mapping[str, str]
    auxiliary: GraphSet


def claim(view: GraphView, laboratory: Laboratory, rng: np.random.Generator) -> dict[str, Claim]:
    """Recover the graphs in each victim's upload.

    Args:
        laboratory: not used; the attack trains nothing.
        rng: draws the order of searches.
    """
    return {victim.name: _claim(view.settings, victim, rng) for victim in view.victims}


def _claim(settings: PublicSettings, victim: GraphVictim, rng: np.random.Generator) -> Claim:
    # `Needs` guarantees all three.
    assert victim.auxiliary is not None
    assert victim.broadcast is not None
    assert victim.upload is not None
    reasons = _obstacles(settings, victim.num_graphs, victim.auxiliary, "pre.weight" in victim.broadcast)
    if "distinct" in reasons:
        return Claim(Inverted(frozenset()), 0, reasons, victim.auxiliary)
    # One step of gradient descent: the difference of parameters is the gradient.
    step = Step.between(victim.broadcast, victim.upload, settings.learning_rate, settings.weight_decay)
    inverted = Inverted(frozenset())
    if "neighbourhoods" not in reasons:
        inverted = invert(step, settings.layers, victim.auxiliary, rng, whole="exact" not in reasons)
    return Claim(inverted, step.layer(0).last.rank(), reasons, victim.auxiliary)


def _obstacles(settings: PublicSettings, num_graphs: int | None, auxiliary: GraphSet, layer: bool) -> dict[str, str]:
    """Explain, by metric, why there is nothing to attack.

    Args:
        layer: True if the layer of features is shared.
    """
    # Optimizer steps behind one upload; a gradient is visible only after a single step.
    num_steps = settings.local_epochs
    if num_graphs is not None:
        batches = -(-num_graphs // settings.batch_size)
        num_steps *= min(batches, settings.local_steps or batches)
    all_metrics = (
        (settings.algorithm not in GRADIENTS, f"what {settings.algorithm} uploads is no step of gradient descent"),
        (settings.optimizer != "sgd", "clients train with Adam, whose first step tells the signs of a gradient alone"),
        (num_steps != 1, f"an upload is of {num_steps} local steps, no gradient of one"),
        (settings.model != "gin", f"{settings.model} is not attacked, gin is"),
        (feature_kind(auxiliary) == "attributes", "nodes have attributes, which are not from a finite alphabet"),
    )
    of_labels = (
        (not layer, "the layer that reads features is each client's own"),
        (feature_kind(auxiliary) != "labels" or len(auxiliary.num_labels) != 1, "nodes do not have one label each"),
    )
    of_graphs = (
        (settings.batch_size != 1, f"a step is over {settings.batch_size} graphs; single ones are recovered alone"),
        (settings.dropout > 0, "dropout hides what all but the first convolution read"),
        (settings.readout != "sum", f"the readout is {settings.readout}; graphs are recovered from sums"),
    )
    reasons: dict[str, str] = {}
    for metrics, obstacles in (
        (tuple(METRICS), all_metrics),
        (tuple(METRICS)[:3], of_labels),
        (tuple(METRICS)[:2], of_graphs),
    ):
        for metric in metrics:
            first = next((reason for applies, reason in obstacles if applies), None)
            if first is not None:
                reasons.setdefault(metric, first)
    return reasons


def stepped_graphs(result: GnnResult, name: str, round: int) -> GraphSet:
    """Return the graphs of a client's first step in a round."""
    client = next(client for client in result.graph.clients if client.name == name)
    order = batch_order(result.options, len(client.train), name, round, 0)[: result.options.batch_size]
    return client.graphs.subset(client.train[order])


def score(claims: Mapping[str, Claim], truth: Truth) -> list[Figure]:
    """Measure each metric of each victim, and over all victims that could be attacked."""
    figures: list[Figure] = []
    measured: dict[str, list[tuple[float, float]]] = {metric: [] for metric in METRICS}
    for victim, claim in claims.items():
        for metric, reason in claim.reasons.items():
            figures.append(truth.figure(metric, victim, NOT_ATTACKED, reason=reason))
        graphs = stepped_graphs(truth.result, victim, truth.round)
        for metric in METRICS:
            if metric not in claim.reasons:
                value, chance = MEASURES[metric](claim, graphs, claim.auxiliary, truth.rng)
                measured[metric].append((value, chance))
                figures.append(_figure(truth, metric, victim, [(value, chance)]))
    for metric, values in measured.items():
        if values:
            figures.append(_figure(truth, metric, ALL, values))
    return figures


def _figure(truth: Truth, metric: str, victim: str, values: Sequence[tuple[float, float]]) -> Figure:
    reached, chances = (np.array(column) for column in zip(*values, strict=True))
    return truth.figure(
        metric, victim, proportion(min(float(reached.sum()), len(values)), len(values)),
        baseline=exact(float(chances.mean()), len(values)), attainable=1.0, num_attacked=len(values),
    )  # fmt: skip


def _labelled(graphs: GraphSet) -> list[LabelledGraph]:
    return [LabelledGraph.of(graphs, number) for number in range(len(graphs))]


def _exact(claim: Claim, graphs: GraphSet, auxiliary: GraphSet, rng: np.random.Generator) -> tuple[float, float]:
    """Return 1 if the graph is isomorphic; baseline: the share of auxiliary graphs that are."""
    guess = [] if claim.inverted.graph is None else [claim.inverted.graph.like(graphs)]
    groups = twin_groups(graphs, auxiliary, *guess)
    return float(bool(guess) and groups[-1] == groups[0]), float((groups[1 : 1 + len(auxiliary)] == groups[0]).mean())


def _similarity(claim: Claim, graphs: GraphSet, auxiliary: GraphSet, rng: np.random.Generator) -> tuple[float, float]:
    """Return the similarity of the graph, 0 if none was found; baseline: the mean of auxiliary graphs."""
    (true,), guess = _labelled(graphs), claim.inverted.graph
    # A guess without the upload: other graphs of the data set.
    others = _labelled(auxiliary.subset(rng.permutation(len(auxiliary))[:DRAWS]))
    value = 0.0 if guess is None else similarity(true, guess)
    return value, float(np.mean([similarity(true, other) for other in others]))


def _neighbourhoods(
    claim: Claim, graphs: GraphSet, auxiliary: GraphSet, rng: np.random.Generator
) -> tuple[float, float]:
    """Return the Jaccard index; baseline: the mean over draws of equally many auxiliary graphs."""
    true = _all_neighbourhoods(graphs)

    def jaccard(guess: set[tuple[int, ...]]) -> float:
        """Return the Jaccard index with the true neighborhoods."""
        return len(true & guess) / len(true | guess)

    others = [jaccard(_all_neighbourhoods(_drawn(auxiliary, len(graphs), rng))) for _ in range(DRAWS)]
    return jaccard(set(claim.inverted.neighbourhoods)), float(np.mean(others))


def _distinct(claim: Claim, graphs: GraphSet, auxiliary: GraphSet, rng: np.random.Generator) -> tuple[float, float]:
    """Return 1 if the number is correct; baseline: the share of draws of equally many auxiliary graphs with that number."""
    true = len(_all_neighbourhoods(graphs))
    others = [len(_all_neighbourhoods(_drawn(auxiliary, len(graphs), rng))) == true for _ in range(DRAWS)]
    return float(claim.distinct == true), float(np.mean(others))


def _all_neighbourhoods(graphs: GraphSet) -> set[tuple[int, ...]]:
    return set().union(*(graph.neighbourhoods() for graph in _labelled(graphs)))


def _drawn(auxiliary: GraphSet, count: int, rng: np.random.Generator) -> GraphSet:
    return auxiliary.subset(rng.permutation(len(auxiliary))[:count])


MEASURES = {"exact": _exact, "similarity": _similarity, "neighbourhoods": _neighbourhoods, "distinct": _distinct}

ATTACK = Attack(
    NAME,
    "recovers graphs from the gradient of a single local step of plain SGD (--optimizer sgd, --local-epochs 1, one batch)",
    Needs(single_uploads=("parameters",), server=True, auxiliary=True),
    METRICS,
    claim,
    score,
    threats=("server+graphs",),
    questions=dict.fromkeys(METRICS, GRAPHS),
    items=dict.fromkeys(METRICS, "uploads"),
    task=GRAPH,
)
