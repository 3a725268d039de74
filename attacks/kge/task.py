"""Attacks on runs of knowledge-graph embedding: one attack under each threat model and leak ratio.

Which entities leak is random. The evaluator holds the finished run, so it repeats a `redrawn` attack with other leaked entities
of the same number (`LEAK_DRAWS`). The variance between draws widens the interval over items (`widen`). The interval then covers
the mean over draws for this training run. It does not cover other training runs: use several seeds for that. At a leak ratio of
1 nothing is drawn. Source: ours.

Attacks receive the rows of clients in a random order (`RowOrder`), so that the index of a row reveals nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor

from fkgsec.attacks.figure import Figure
from fkgsec.attacks.kge.laboratory import KgeLaboratory
from fkgsec.attacks.kge.view import TABLES, KgeView, VictimView, kge_view
from fkgsec.attacks.options import THREAT_MODELS, KgeAttackOptions, ThreatModel
from fkgsec.attacks.registry import DEFAULT, Attack, AttackedTask, Case, attack_view
from fkgsec.data.graph import SPLITS, ClientGraph, FederatedGraph
from fkgsec.estimate import over_draws
from fkgsec.federation.loop import run_federation, run_identity
from fkgsec.federation.recipes import RECIPES, Table
from fkgsec.kge.options import KgeOptions
from fkgsec.kge.result import KgeResult
from fkgsec.randomness import generator

# Attacks of a server without a colluder.
ALONE = ("edges", "degrees")


class RowOrder:
    """A random order of each client's rows.

    Clients number their rows along the vocabulary (`ClientGraph.from_global`), and messages keep that order. The index alone
    would therefore name hidden entities. All views of one order have a client's rows in the same order, so that they
    can be compared over rounds. Rows of a secure sum keep the server's order. Rows that no training triple names stay behind the
    others.
    """

    def __init__(self, graph: FederatedGraph, seed: int) -> None:
        self._graph, self._seed = graph, seed
        self._orders: dict[tuple[str, Table], np.ndarray] = {}

    def shuffled(self, view: KgeView) -> KgeView:
        """Return the view with each victim's rows in this order.

        Args:
            view: view of any run of the same clients.
        """
        victims = []
        for victim in view.victims:
            client = next(client for client in self._graph.clients if client.name == victim.name)
            counts = {"entities": client.num_trained_entities, "relations": client.num_trained_relations}
            orders: dict[Table, np.ndarray] = {
                table: self._order(victim.name, table, rows, counts[table])
                for table in TABLES
                if table not in victim.claims and (rows := victim.rows(table)) is not None
            }
            victims.append(_rearranged(victim, orders))
        return replace(view, victims=tuple(victims))

    def clients(self) -> dict[str, ClientGraph]:
        """Return the clients whose rows were shuffled, by name, with local IDs that follow the order."""
        seen = {name for name, _ in self._orders}
        return {
            client.name: _renumbered(client, *(self._orders.get((client.name, table)) for table in TABLES))
            for client in self._graph.clients
            if client.name in seen
        }

    def _order(self, victim: str, table: Table, rows: Tensor, num_trained: int) -> np.ndarray:
        """Return the original row at each new index, int64 `[n]`."""
        # One order per client and table for all views, so that rows can be compared over rounds.
        if (victim, table) not in self._orders:
            # Only trained rows are uploaded, so they must stay in front.
            count, rng = min(num_trained, len(rows)), generator(self._seed, "row order", victim, table)
            self._orders[victim, table] = np.concatenate([rng.permutation(count), np.arange(count, len(rows))])
        return self._orders[victim, table]


def _rearranged(victim: VictimView, orders: Mapping[Table, np.ndarray]) -> VictimView:
    """Reorder the rows of these tables; other tables stay unchanged."""
    changes: dict[str, Any] = {
        table: rows[torch.from_numpy(order)]
        for table, order in orders.items()
        if (rows := victim.rows(table)) is not None
    }
    if (order := orders.get("entities")) is not None:
        changes["entity_names"] = None if victim.entity_names is None else victim.entity_names[order]
        changes["sent"] = None if victim.sent is None else victim.sent[:, order]
    received = {
        table: rows[torch.from_numpy(orders[table])] if table in orders else rows
        for table, rows in victim.received.items()
    }
    aligned = {
        table: rows[orders[table][: len(rows)]] if table in orders else rows for table, rows in victim.aligned.items()
    }
    return replace(victim, received=received, aligned=aligned, **changes)


def _renumbered(client: ClientGraph, entities: np.ndarray | None, relations: np.ndarray | None) -> ClientGraph:
    """Renumber a client's local IDs to match its shuffled rows."""
    ids, places = [], []
    for ids_of, order in ((client.entity_ids, entities), (client.relation_ids, relations)):
        whole = np.arange(len(ids_of))
        if order is not None:
            # After unlearning, more rows may have been transmitted than the client still has.
            count = min(len(order), len(ids_of))
            whole[:count] = order[:count]
        ids.append(ids_of[whole])
        # The inverse permutation: new local ID of each old one.
        places.append(np.argsort(whole))
    splits = {
        split: np.stack([places[1 if column == 1 else 0][triples[:, column]] for column in range(3)], axis=1)
        for split in SPLITS
        for triples in (getattr(client, split),)
    }
    return ClientGraph(client.name, *ids, **splits)


def default_attacks(algorithm: str, threat: Sequence[str] = ()) -> tuple[str, ...]:
    """Return reconstruction and update recovery; for a server without a colluder also the attacks that need no help.

    Args:
        algorithm: name in `RECIPES`; every algorithm has the same defaults.
        threat: requested threat models; empty: no choice was made.
    """
    models = [THREAT_MODELS[name] for name in threat]
    alone = any(model.server for model in models) and not any(model.colluder for model in models)
    return (*DEFAULT, *ALONE) if alone else DEFAULT


def default_threats(algorithm: str) -> tuple[str, ...]:
    """Return the threat models from the papers and from practice that fit an algorithm."""
    shared = RECIPES[algorithm].shared
    if "entities" in shared:
        return ("collusion", "identifiers")
    return ("collusion", "collusion+entities") if shared else ("collusion",)


def cases(
    attack: Attack,
    result: KgeResult,
    options: KgeAttackOptions,
    leak_draws: int,
    train: Callable[..., KgeResult],
) -> list[Case]:
    """Run one attack under each of its threat models and leak ratios.

    Args:
        leak_draws: number of further draws of leaked entities for a `redrawn` attack.
        train: trains federations for the attack.

    Returns:
        Figures and item scores, by threat model and then by leak ratio.
    """
    threats = attack.fitting(options.threat, result.options.algorithm)
    # A defended run without its transport cannot be trained again; attacks state this themselves.
    if train is not run_federation or not result.options.defense:
        train = Remembered(train)
    colluders = options.colluders(result.graph.clients)

    def draw(names: Sequence[str], leak: float, options: KgeAttackOptions) -> dict[str, Case]:
        """Run the attack under each threat model, on the leaked entities that the options' seed draws."""
        memory: dict[Any, Any] = {}
        return {
            name: attack_under(attack, result, THREAT_MODELS[name], options, colluders, leak, train, memory)
            for name in names
        }

    # Threat models without a leak run once, with the first leak ratio.
    leaking = [name for name in threats if THREAT_MODELS[name].leaks]
    case_of: dict[tuple[str, float], Case] = {}
    for leak in options.leak:
        first = draw(threats if leak == options.leak[0] else leaking, leak, options)
        # Redraw only what random leaks can change: at a ratio of 1 the leaked entities are always the same.
        chance = [
            name for name, (figures, _) in first.items()
            if leak < 1 and name in leaking and any(not figure.reason for figure in figures)
        ]  # fmt: skip
        others = [
            draw(chance, leak, msgspec.structs.replace(options, seed=seed, unlinked_heads=0))
            for seed in (other_seeds(options.seed, leak_draws) if attack.redrawn and chance else [])
        ]
        for name, (figures, scores) in first.items():
            items = [table.assign(threat_model=name, leak=leak) for table in scores]
            case_of[name, leak] = widen(figures, [other[name][0] for other in others if name in other]), items
    return [case_of[name, leak] for name in threats for leak in options.leak if (name, leak) in case_of]


def other_seeds(seed: int, count: int) -> list[int]:
    """Derive seeds of further draws from the attack's seed.

    Args:
        seed: seed of the attack.
        count: number of further draws.
    """
    return [int(generator(seed, "other leaked entities", number).integers(2**62)) for number in range(count)]


def widen(figures: Sequence[Figure], others: Sequence[Sequence[Figure]]) -> list[Figure]:
    """Extend intervals and upper bounds of figures to cover the draw of leaked entities.

    The upper bound of a figure differs between draws. An interval that covers them ends at the largest one.

    Args:
        figures: figures of the first draw.
        others: figures of the same attack for each further draw. A draw in which a victim could not be attacked is left out for
            that victim.
    """
    drawn = [{(figure.question, figure.victim): figure for figure in again if not figure.reason} for again in others]

    def widened(figure: Figure) -> Figure:
        """Extend one figure by the draws that have it."""
        key = figure.question, figure.victim
        # Draws in which this victim could be attacked.
        same = [again[key] for again in drawn if key in again]
        bounds = [each.attainable for each in (figure, *same) if each.attainable is not None]
        bound = None if figure.attainable is None or figure.less_is_worse else max(bounds)
        values = [each.estimate.value for each in same]
        # Total variance: over items within the first draw, plus between draws.
        estimate = over_draws(figure.estimate, values, "leaks", 1.0 if bound is None else bound)
        outcomes = figure.outcomes
        if outcomes is not None and len(same) == len(drawn) > 0:
            outcomes = msgspec.structs.replace(outcomes, draws=(figure.estimate.value, *values))
        return msgspec.structs.replace(
            figure, estimate=estimate, attainable=figure.attainable if bound is None else bound, outcomes=outcomes
        )

    return [figure if figure.reason else widened(figure) for figure in figures]


class Remembered:
    """Trains each federation once, so that the threat models of an attack with shadow federations share them."""

    def __init__(self, train: Callable[..., KgeResult]) -> None:
        self._train = train
        self._results: dict[str, KgeResult] = {}

    def __call__(self, graph: FederatedGraph, options: KgeOptions, **how: Any) -> KgeResult:
        """Train a run, or return an equal one. Runs with further arguments, such as an adversary, are trained each time."""
        # An adversary, or rounds to keep, makes the run different from any other.
        if how:
            return self._train(graph, options, **how)
        identity = run_identity(graph, options)
        if identity not in self._results:
            self._results[identity] = self._train(graph, options)
        return self._results[identity]


def attack_under(
    attack: Attack,
    result: KgeResult,
    model: ThreatModel,
    options: KgeAttackOptions,
    colluders: Sequence[str],
    leak: float,
    train: Callable[..., KgeResult] = run_federation,
    memory: dict[Any, Any] | None = None,
) -> Case:
    """Run an attack under one threat model.

    Args:
        colluders: names of the colluding clients; the first one acts.
        leak: leak ratio in (0, 1].
        train: trains federations for the attack.
        memory: cache shared by threat models, see `Laboratory`.

    Returns:
        Figures and item scores.
    """
    order = RowOrder(result.graph, options.seed)

    def view_of(run: KgeResult) -> KgeView:
        """Build the view of a run under the same threat model, with shuffled rows."""
        # Shuffle the rows: their order in messages would name the entities that a threat model hides.
        view = kge_view(run, model, colluder=colluders, leak=leak, seed=options.seed, auxiliary=options.auxiliary)
        return order.shuffled(view)

    laboratory = KgeLaboratory(result, train, options, colluders, view_of, memory)
    return attack_view(attack, view_of(result), laboratory, order.clients)


ATTACKED_TASK = AttackedTask(KgeAttackOptions, default_attacks, default_threats, kge_view, cases)
