"""A backdoor by a subgraph trigger: malicious clients train on graphs with a trigger, labeled with the target class.

Threat model: "client", active. Required knowledge: its own graphs. A client draws a trigger and poisons its training graphs,
and so do as many others as `malicious` says; otherwise they follow the protocol. The attack changes the run, so the run is
trained once more with the same seed and options and with poisoned training graphs. (Under a defense, use `run_attacks(...,
train=...)` with its transport from a script.) The attack is measured on each client's final model.

Only clients of the malicious clients' data set are measured, since classes of another one mean something else. The figure of
all covers honest clients; malicious ones are listed beside it. Success is the share of test graphs of other classes that are
classified as the target once they contain the trigger. Its baseline is the same share for the models of the clean run.

Source: Xu et al. 2022, "More is Better (Mostly): On the Backdoor Attacks in Federated Graph Neural Networks", and its code
(bkd_fedgnn): an Erdos-Renyi trigger, whose size is a share of the mean number of nodes, replaces the edges among random nodes.
Differs: all malicious clients have one trigger (their centralized attack; there each may have its own part of it), of the first
client's mean size (there of the whole data set, trimmed); poisoned graphs are random (there the first ones).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from fkgsec.attacks.figure import Figure
from fkgsec.attacks.graphs.models import GraphModel
from fkgsec.attacks.graphs.view import GraphView
from fkgsec.attacks.laboratory import Laboratory, PublicSettings
from fkgsec.attacks.options import GRAPH
from fkgsec.attacks.questions import INTEGRITY
from fkgsec.attacks.registry import Attack, Needs, Truth
from fkgsec.attacks.view import ALL, NotAttacked
from fkgsec.estimate import exact, mean, proportion
from fkgsec.gnn.result import GnnResult
from fkgsec.graphs.sets import ClientGraphs, GraphSet
from fkgsec.randomness import generator

NAME = "backdoor"
# Variant of figures of the malicious clients themselves.
MALICIOUS = "malicious"
METRICS = {
    "success": "share of triggered test graphs of other classes that are classified as the target",
    "clean-drop": "accuracy on graphs without a trigger, lost against the clean run",
}


class Trigger(NamedTuple):
    """A graph to hide in others: bool `[t, t]`, symmetric, without loops."""

    adjacency: np.ndarray

    @classmethod
    def drawn(cls, num_nodes: int, density: float, rng: np.random.Generator) -> Trigger:
        """Draw an Erdos-Renyi graph.

        Args:
            density: probability of each edge.
            rng: draws the edges.
        """
        # Erdos-Renyi graph: each pair of nodes is an edge independently.
        upper = np.triu(rng.random((num_nodes, num_nodes)) < density, k=1)
        return cls(upper | upper.T)

    def __len__(self) -> int:
        return len(self.adjacency)

    def hidden_in(self, graphs: GraphSet, rng: np.random.Generator) -> GraphSet:
        """Hide the trigger in each graph: random nodes get the trigger's edges among each other, and no others.

        Args:
            graphs: graphs with at least as many nodes as the trigger.
            rng: draws the nodes.

        Raises:
            ValueError: a graph has fewer nodes.
        """
        if len(graphs.sizes) and graphs.sizes.min() < len(self):
            raise ValueError(f"trigger: it has {len(self)} nodes; a graph has {graphs.sizes.min()}")
        # Position of each node in the trigger, -1 outside.
        role = np.full(graphs.num_nodes, -1)
        for first, size in zip(graphs.node_ptr[:-1], graphs.sizes, strict=True):
            role[first + rng.permutation(size)[: len(self)]] = np.arange(len(self))
        edges = graphs.edges()
        # Xu et al.: all edges among the chosen nodes are replaced by the trigger's.
        # Edges never cross graphs, so two chosen ends belong to one trigger.
        remaining = edges[(role[edges] < 0).any(axis=1)]
        chosen = np.flatnonzero(role >= 0).reshape(len(graphs), len(self))
        places = np.take_along_axis(chosen, np.argsort(role[chosen], axis=1), axis=1)
        added = places[:, np.argwhere(self.adjacency)].reshape(-1, 2)
        return _with_edges(graphs, np.concatenate([remaining, added]), graphs.classes)


def _with_edges(graphs: GraphSet, edges: np.ndarray, classes: np.ndarray) -> GraphSet:
    """Replace the edges and classes of a set."""
    return replace(
        GraphSet.from_edges(
            graphs.name, graphs.sizes, edges, classes, graphs.labels, graphs.attributes,
            num_classes=graphs.num_classes, num_labels=graphs.num_labels, max_degree=graphs.max_degree,
        ),
        warnings=graphs.warnings,
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class Plan:
    """The malicious clients' agreement.

    Attributes:
        trigger: graph that they hide.
        clients: their names.
        target: class that triggered graphs should get.
        share: share of training graphs that each poisons.
    """

    trigger: Trigger
    clients: tuple[str, ...]
    target: int
    share: float


def poisoned(client: ClientGraphs, plan: Plan, rng: np.random.Generator) -> ClientGraphs:
    """Poison a share of a client's training graphs with the trigger and the target class.

    Poisoned graphs are random ones of other classes with more nodes than the trigger; all of these if there are too few.

    Args:
        client: a malicious client's graphs.
        plan: agreement of the malicious clients.
        rng: draws graphs and nodes.
    """
    graphs, trigger = client.graphs, plan.trigger
    # A graph of the target class cannot be poisoned, and a smaller graph cannot hide the trigger.
    usable = client.train[(graphs.classes[client.train] != plan.target) & (graphs.sizes[client.train] > len(trigger))]
    chosen = rng.permutation(usable)[: int(plan.share * len(client.train))]
    if not len(chosen):
        return client
    triggered, before, classes = trigger.hidden_in(graphs.subset(chosen), rng), graphs.edges(), graphs.classes.copy()
    classes[chosen] = plan.target
    before = before[~np.isin(graphs.graph_of[before[:, 0]], chosen)]
    shift = np.repeat(graphs.node_ptr[chosen] - triggered.node_ptr[:-1], triggered.sizes)
    edges = triggered.edges()
    return replace(client, graphs=_with_edges(graphs, np.concatenate([before, edges + shift[edges]]), classes))


class Planted(NamedTuple):
    """The malicious clients' plan, and the index of the run with it, see `View.run`."""

    plan: Plan
    run: int


def plant(view: GraphView, laboratory: Laboratory, rng: np.random.Generator) -> Planted:
    """Draw a trigger from the adversary's graphs, and train the run with poisoned training graphs.

    Args:
        rng: draws the trigger.

    Raises:
        NotAttacked: the run cannot be repeated, the target class does not exist, or the trigger is too small.
    """
    assert view.colluder is not None
    options, graphs = laboratory.options, view.colluder.graphs
    num_nodes = int(options.trigger_size * graphs.subset(view.colluder.train).sizes.mean())
    others = [victim.name for victim in view.victims][: options.malicious - 1]
    laboratory.check_repeatable()
    if options.target_class >= graphs.num_classes:
        raise NotAttacked(f"its classes are 0 to {graphs.num_classes - 1}; the target is {options.target_class}")
    if num_nodes < 2:
        raise NotAttacked("the trigger would have fewer than 2 nodes")
    trigger = Trigger.drawn(num_nodes, options.trigger_density, rng)
    plan = Plan(trigger, (view.colluder.name, *others), options.target_class, options.poisoned)

    def poison(client: ClientGraphs) -> ClientGraphs:
        """Poison one client's training graphs."""
        return poisoned(client, plan, generator(laboratory.seed, "poisoned graphs", client.name))

    return Planted(plan, laboratory.train(data=dict.fromkeys(plan.clients, poison)).run)


def score(claims: Planted, truth: Truth) -> list[Figure]:
    """Measure each client, and all honest clients of the same data set together."""
    plan, clean, attacked = claims.plan, truth.result, truth.runs[claims.run]
    vocabulary = truth.unshuffled(plan.clients[0]).vocabulary
    figures: list[Figure] = []
    honest = []
    for place, client in enumerate(truth.graph.clients):
        if client.vocabulary != vocabulary:
            figures += truth.not_attacked(client.name, "its classes are not those of the malicious clients")
            continue
        rng = generator(truth.seed, "triggered graphs", client.name)
        measured = _measure(clean, attacked, place, plan.target, plan.trigger, rng)
        malicious = client.name in plan.clients
        figures += _figures(truth, client.name, [measured], MALICIOUS if malicious else "")
        if not malicious:
            honest.append(measured)
    return figures + (_figures(truth, ALL, honest) if honest else [])


def _measure(
    clean: GnnResult, attacked: GnnResult, place: int, target: int, trigger: Trigger, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Measure one client.

    Returns: whether the poisoned and the clean model classify each triggered graph as the target, bool `[n]` both; and for each
    test graph 1 if only the clean model is correct, -1 if only the poisoned one is, float64 `[m]`.
    """
    client = clean.graph.clients[place]
    triggerable = client.test[
        (client.graphs.classes[client.test] != target) & (client.graphs.sizes[client.test] > len(trigger))
    ]
    success = [np.zeros(0, dtype=bool)] * 2
    if len(triggerable):
        triggered = trigger.hidden_in(client.graphs.subset(triggerable), rng)
        success = []
        # The model that the client classifies with at the best round.
        for result in (attacked, clean):
            trained = result.trained[place] if result.options.evaluates_before_broadcast else {}
            model = GraphModel(PublicSettings.of(result.options), {**result.models[place], **trained})
            success.append(model.probabilities(triggered).argmax(axis=1) == target)
    # Paired by test graph, so that only graphs whose answer changed count.
    lost = clean.test[place].correct.astype(np.float64) - attacked.test[place].correct
    return success[0], success[1], lost


def _figures(truth: Truth, victim: str, measured: Sequence[Iterable[np.ndarray]], variant: str = "") -> list[Figure]:
    """Compute the figures of several clients, whose graphs count equally, from the results of `_measure`."""
    success, before, drop = (np.concatenate(part) for part in zip(*measured, strict=True))
    rng = generator(truth.seed, "clean drop", victim)
    about = {"variant": variant, "num_attacked": len(measured), "attainable": 1.0}
    reason = "it has no test graph of another class that the trigger fits in"
    figures = [truth.figure("success", victim, reason=reason, variant=variant)]
    if len(success):
        reached, baseline = (proportion(int(part.sum()), len(part)) for part in (success, before))
        figures = [truth.figure("success", victim, reached, baseline=baseline, **about)]
    if len(drop):
        figures.append(truth.figure("clean-drop", victim, mean(drop, rng), baseline=exact(0.0, len(drop)), **about))
    return figures


ATTACK = Attack(
    NAME,
    "clients poison their training so that a subgraph triggers a class; trains the run once more",
    Needs(colluder=True),
    METRICS,
    plant,
    score,
    threats=("client",),
    questions=dict.fromkeys(METRICS, INTEGRITY),
    items={"success": "triggered test graphs", "clean-drop": "test graphs"},
    task=GRAPH,
    trains=True,
)
