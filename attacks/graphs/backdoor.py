"""A backdoor by a subgraph trigger: malicious clients train on graphs with a trigger and the class that it is to call for.

Threat model: "client", a client that draws a trigger and poisons its own training, and as many others as `malicious` says that do
the same; they follow the protocol otherwise. An active attack changes the run: so it is trained once more with the same seed and
options, the malicious clients' training graphs being poisoned (from a script, under a defense, by `run_attacks(..., train=...)`
with its transport). What is measured is what each client is left with.

Clients of the malicious clients' data set are measured, since classes of another mean something else; honest ones make up the
figure of all, malicious ones stand beside it. Success is the share of test graphs of other classes that are classified as the
target once they have the trigger; its baseline is that share for the models of the clean run.

Source: Xu et al. 2022, "More is Better (Mostly): On the Backdoor Attacks in Federated Graph Neural Networks", and its code
(bkd_fedgnn): an Erdos-Renyi trigger of a share of the mean number of nodes in place of the edges among random nodes.
Differs: all malicious clients have one trigger (their centralised attack; there each may have its own part of it), of the first
one's mean size (there of the whole data set, trimmed); which graphs are poisoned is random (there the first ones).
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
MALICIOUS = "malicious"  # the variant of figures of malicious clients themselves
METRICS = {
    "success": "share of triggered test graphs of other classes that are classified as the target",
    "clean-drop": "accuracy on graphs without a trigger, lost against the clean run",
}


class Trigger(NamedTuple):
    """A graph to hide in others: bool `[t, t]`, symmetric, without loops."""

    adjacency: np.ndarray

    @classmethod
    def drawn(cls, num_nodes: int, density: float, rng: np.random.Generator) -> Trigger:
        """Erdos and Renyi's: each edge with the same probability."""
        upper = np.triu(rng.random((num_nodes, num_nodes)) < density, k=1)
        return cls(upper | upper.T)

    def __len__(self) -> int:
        return len(self.adjacency)

    def hidden_in(self, graphs: GraphSet, rng: np.random.Generator) -> GraphSet:
        """The graphs with the trigger: among as many random nodes of each its edges, and no others.

        Raises:
            ValueError: a graph with fewer nodes.
        """
        if len(graphs.sizes) and graphs.sizes.min() < len(self):
            raise ValueError(f"trigger: it has {len(self)} nodes; a graph has {graphs.sizes.min()}")
        role = np.full(graphs.num_nodes, -1)  # in the trigger
        for first, size in zip(graphs.node_ptr[:-1], graphs.sizes, strict=True):
            role[first + rng.permutation(size)[: len(self)]] = np.arange(len(self))
        edges = graphs.edges()
        remaining = edges[(role[edges] < 0).any(axis=1)]  # within a graph, so that two chosen ends are of one trigger
        chosen = np.flatnonzero(role >= 0).reshape(len(graphs), len(self))
        places = np.take_along_axis(chosen, np.argsort(role[chosen], axis=1), axis=1)
        added = places[:, np.argwhere(self.adjacency)].reshape(-1, 2)
        return _with_edges(graphs, np.concatenate([remaining, added]), graphs.classes)


def _with_edges(graphs: GraphSet, edges: np.ndarray, classes: np.ndarray) -> GraphSet:
    """The set with other edges and classes."""
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
        trigger: what they hide in graphs. clients: their names.
        target: the class that triggered graphs are to have. share: of training graphs that each poisons.
    """

    trigger: Trigger
    clients: tuple[str, ...]
    target: int
    share: float


def poisoned(client: ClientGraphs, plan: Plan, rng: np.random.Generator) -> ClientGraphs:
    """A client with a share of its training graphs triggered and called the target.

    These are random ones of other classes with more nodes than the trigger; all such where there are fewer than the share.
    """
    graphs, trigger = client.graphs, plan.trigger
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
    """The malicious clients' plan, and the run with it, see `View.run`."""

    plan: Plan
    run: int


def plant(view: GraphView, laboratory: Laboratory, rng: np.random.Generator) -> Planted:
    """Draw a trigger from the adversary's own graphs, and poison its clients' training graphs."""
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
        return poisoned(client, plan, generator(laboratory.seed, "poisoned graphs", client.name))

    return Planted(plan, laboratory.train(data=dict.fromkeys(plan.clients, poison)).run)


def score(claims: Planted, truth: Truth) -> list[Figure]:
    """Measure each client, and all honest clients of the same data set together."""
    plan, clean, attacked = claims.plan, truth.result, truth.runs[claims.run]
    vocabulary = truth.own(plan.clients[0]).vocabulary
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
    """Measure a client: whether each triggered graph is called the target by the poisoned model and by the clean one, bool
    `[n]` both; and float64 `[m]`, of each test graph 1 where the clean model alone is right, -1 where the other alone is."""
    client = clean.graph.clients[place]
    triggerable = client.test[
        (client.graphs.classes[client.test] != target) & (client.graphs.sizes[client.test] > len(trigger))
    ]
    success = [np.zeros(0, dtype=bool)] * 2
    if len(triggerable):
        triggered = trigger.hidden_in(client.graphs.subset(triggerable), rng)
        success = []
        for result in (attacked, clean):  # what the client classifies with at the best round
            trained = result.trained[place] if result.options.evaluates_before_broadcast else {}
            model = GraphModel(PublicSettings.of(result.options), {**result.models[place], **trained})
            success.append(model.probabilities(triggered).argmax(axis=1) == target)
    lost = clean.test[place].correct.astype(np.float64) - attacked.test[place].correct
    return success[0], success[1], lost


def _figures(truth: Truth, victim: str, measured: Sequence[Iterable[np.ndarray]], variant: str = "") -> list[Figure]:
    """Figures of several clients, whose graphs count alike, from what `_measure` returns."""
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
    "clients poison their training so that a subgraph calls for a class; trains the run once more",
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
