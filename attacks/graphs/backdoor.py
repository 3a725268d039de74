"""A backdoor by a subgraph trigger: malicious clients train on graphs with a trigger and the class that it is to call for.

    options = GraphAttackOptions(attack=("backdoor",), malicious=2, target_class=0)
    run_attacks(result, options).figures             # all  success  0.61 [0.50, 0.71]  baseline 0.34

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
from typing import Any, NamedTuple

import numpy as np

from fkgsec.attacks.figure import NOT_ATTACKED, Figure
from fkgsec.attacks.graphs.models import GraphModel
from fkgsec.attacks.graphs.view import GraphView
from fkgsec.attacks.laboratory import Laboratory, PublicSettings
from fkgsec.attacks.options import GRAPH, GraphAttackOptions
from fkgsec.attacks.registry import Attack, Needs, Truth
from fkgsec.attacks.view import ALL
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
        kept = edges[(role[edges] < 0).any(axis=1)]  # within a graph, so that two chosen ends are of one trigger
        chosen = np.flatnonzero(role >= 0).reshape(len(graphs), len(self))
        places = np.take_along_axis(chosen, np.argsort(role[chosen], axis=1), axis=1)
        added = places[:, np.argwhere(self.adjacency)].reshape(-1, 2)
        made = GraphSet.from_edges(
            graphs.name,
            graphs.sizes,
            np.concatenate([kept, added]),
            graphs.classes,
            graphs.labels,
            graphs.attributes,
            num_classes=graphs.num_classes,
            num_labels=graphs.num_labels,
            max_degree=graphs.max_degree,
        )
        return replace(made, warnings=graphs.warnings)


@dataclass(frozen=True, eq=False)
class Plan:
    """What the malicious clients agree on.

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
    triggered = trigger.hidden_in(graphs.subset(chosen), rng)
    return replace(client, graphs=_replaced(graphs, chosen, triggered, plan.target))


def _replaced(graphs: GraphSet, numbers: np.ndarray, others: GraphSet, target: int) -> GraphSet:
    """The set with other edges in these graphs, which get the target for their class."""
    own, classes = graphs.edges(), graphs.classes.copy()
    classes[numbers] = target
    kept = own[~np.isin(graphs.graph_of[own[:, 0]], numbers)]
    shift = np.repeat(graphs.node_ptr[numbers] - others.node_ptr[:-1], others.sizes)
    edges = others.edges()
    return replace(
        GraphSet.from_edges(
            graphs.name,
            graphs.sizes,
            np.concatenate([kept, edges + shift[edges]]),
            classes,
            graphs.labels,
            graphs.attributes,
            num_classes=graphs.num_classes,
            num_labels=graphs.num_labels,
            max_degree=graphs.max_degree,
        ),
        warnings=graphs.warnings,
    )


class Planted(NamedTuple):
    """What the malicious clients did, and the run with it, see `View.run`."""

    plan: Plan
    run: int


def planned(options: GraphAttackOptions) -> Any:
    """The adversary under these options: it draws a trigger from its own graphs, and poisons its clients' training graphs."""

    def plant(view: GraphView, laboratory: Laboratory, rng: np.random.Generator) -> Planted | str:
        assert view.colluder is not None
        own = view.colluder.graphs.subset(view.colluder.train)
        num_nodes = int(options.trigger_size * own.sizes.mean())
        others = [victim.name for victim in view.victims][: options.malicious - 1]
        num_classes, target = view.colluder.graphs.num_classes, options.target_class
        trigger = Trigger.drawn(num_nodes, options.trigger_density, rng) if num_nodes >= 2 else None
        if laboratory.defended:
            return laboratory.defended
        if not view.settings.recipe.shared:
            return f"nothing crosses in {view.settings.algorithm}"
        if target >= num_classes:
            return f"its classes are 0 to {num_classes - 1}; the target is {target}"
        if trigger is None:
            return "the trigger would have fewer than 2 nodes"
        plan = Plan(trigger, (view.colluder.name, *others), target, options.poisoned)

        def poison(client: ClientGraphs) -> ClientGraphs:
            return poisoned(client, plan, generator(laboratory.seed, "poisoned graphs", client.name))

        return Planted(plan, laboratory.train(data=dict.fromkeys(plan.clients, poison)).run)

    return plant


def score(claims: Planted | str, truth: Truth) -> list[Figure]:
    """Each client's figures, and those of all honest clients of the same data set together."""
    if isinstance(claims, str):
        return [figure for victim in truth.victims for figure in truth.not_attacked(victim, claims)]
    plan, clean, attacked = claims.plan, truth.result, truth.runs[claims.run]
    vocabulary = next(one.vocabulary for one in truth.graph.clients if one.name == plan.clients[0])
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
    """Of one client: whether each triggered graph is called the target, by the poisoned run's model and by the clean one's, bool
    `[n]` both; and float64 `[m]`, of each test graph 1 where the clean model alone is right, -1 where the other alone is."""
    client = clean.graph.clients[place]
    asked = client.test[
        (client.graphs.classes[client.test] != target) & (client.graphs.sizes[client.test] > len(trigger))
    ]
    success = [np.zeros(0, dtype=bool)] * 2
    if len(asked):
        triggered = trigger.hidden_in(client.graphs.subset(asked), rng)
        success = [_model(one, place).probabilities(triggered).argmax(axis=1) == target for one in (attacked, clean)]
    lost = clean.test[place].correct.astype(np.float64) - attacked.test[place].correct
    return success[0], success[1], lost


def _model(result: GnnResult, place: int) -> GraphModel:
    """What a client classifies with at the kept round."""
    options = result.options
    own = result.trained[place] if options.evaluates_before_broadcast else {}
    return GraphModel(PublicSettings.of(options), {**result.models[place], **own})


def _figures(truth: Truth, victim: str, measured: Sequence[Iterable[np.ndarray]], variant: str = "") -> list[Figure]:
    """Of what `_measure` gives of several clients, whose graphs count alike."""
    success, before, drop = (np.concatenate(one) for one in zip(*measured, strict=True))
    rng, about = generator(truth.seed, "clean drop", victim), {"variant": variant, "num_attacked": len(measured)}
    reason = "it has no test graph of another class that the trigger fits in"
    found = [truth.figure("success", victim, NOT_ATTACKED, reason=reason, variant=variant)]
    if len(success):
        baseline = proportion(int(before.sum()), len(before))
        reached = proportion(int(success.sum()), len(success))
        found = [truth.figure("success", victim, reached, baseline=baseline, attainable=1.0, **about)]
    if len(drop):
        found.append(
            truth.figure("clean-drop", victim, mean(drop, rng), baseline=exact(0.0, len(drop)), attainable=1.0, **about)
        )
    return found


ATTACK = Attack(
    NAME,
    "clients poison their training so that a subgraph calls for a class; trains the run once more",
    Needs(colluder=True),
    METRICS,
    planned(GraphAttackOptions()),
    score,
    threats=("client",),
    items={"success": "triggered test graphs", "clean-drop": "test graphs"},
    configured=lambda options: replace(ATTACK, run=planned(options)),
    task=GRAPH,
    trains=True,
)
