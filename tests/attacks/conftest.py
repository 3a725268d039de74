"""Runs to attack: short trained federations, and planted ones whose right answers are known by construction."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from torch import Tensor

from fkgsec import ClientGraph, FederatedGraph, KgeModel, KgeOptions, generate_consortium
from fkgsec.attacks import Figure, KgeAttackOptions, run_attacks
from fkgsec.attacks.figure import headline
from fkgsec.attacks.registry import Truth
from fkgsec.attacks.view import View
from fkgsec.data.graph import SPLITS
from fkgsec.defenses import make_transport
from fkgsec.federation.loop import run_federation
from fkgsec.federation.messages import SERVER, Alignment, Channel, Rows, client_party
from fkgsec.federation.recipes import RECIPES
from fkgsec.kge.models import ClientTables, ModelName
from fkgsec.kge.result import KgeResult
from scripts.docs.attack_tests import PLANTED

BEST_ROUND, LAST_ROUND = 2, 3
NUM_RELATIONS = 5
NONE = np.zeros((0, 3), dtype=np.int64)

Runs = dict[str, KgeResult]
MakeResult = Callable[..., KgeResult]
Flatten = Callable[[View], dict[str, np.ndarray]]


@pytest.fixture(autouse=True)
def _stated_items(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Check the items that marks of planted signals state by the figures that the test makes, where it makes any."""
    measured: dict[tuple[str, str], set[int]] = {}
    make = Truth.figure

    def figure(self: Truth, metric: str, *arguments: Any, **details: Any) -> Figure:
        made = make(self, metric, *arguments, **details)
        if not made.reason:
            measured.setdefault((made.attack, metric), set()).add(made.estimate.n)
        return made

    monkeypatch.setattr(Truth, "figure", figure)
    yield
    for mark in request.node.iter_markers(PLANTED):
        attack, _, *stated_items = mark.args
        items = stated_items[0] if stated_items else {}
        for metric, stated in items.items():
            counts = measured.get((attack, metric), {stated})
            assert stated in counts, (
                f"{attack}.{metric}: the mark states {stated} items; figures are of {sorted(counts)}"
            )


@pytest.fixture(scope="session")
def trained_runs() -> Runs:
    """Three hospitals, two rounds of FedE and of FedR."""
    graph = generate_consortium(clients=3, size=400, seed=5)
    options = KgeOptions(
        dim=16, gamma=4, rounds=2, local_epochs=1, eval_every=1, patience=0, batch_size=64, num_negatives=8,
        learning_rate=0.05, device="cpu",
    )  # fmt: skip
    return {name: run_federation(graph, msgspec.structs.replace(options, algorithm=name)) for name in ("fede", "fedr")}


def make_result(
    graph: FederatedGraph,
    trained: Sequence[ClientTables],
    shared: Sequence[ClientTables],
    *,
    algorithm: str = "fede",
    model: ModelName = "transe",
    dim: int = 16,
    participants: Sequence[str] | None = None,
) -> KgeResult:
    """A finished run with these tables; uploads of other rounds than the best are noise.

    Args:
        trained, shared: every client's tables before and after the broadcast of the best round, in its local ids.
        participants: clients that upload; all if not given.
    """
    options = KgeOptions(algorithm=algorithm, model=model, dim=dim, rounds=LAST_ROUND, device="cpu")
    channel = Channel()
    noise = torch.Generator().manual_seed(99)
    for table in RECIPES[algorithm].shared:
        for place, client in enumerate(graph.clients):
            party = client_party(client.name)
            vocabulary, ids, count = {
                "entities": (graph.entities, client.entity_ids, client.num_trained_entities),
                "relations": (graph.relations, client.relation_ids, client.num_trained_relations),
            }[table]
            channel.send(Alignment(0, party, SERVER, table, [vocabulary[number] for number in ids], count))
            for round in (1, BEST_ROUND, LAST_ROUND):
                rows = getattr(trained[place], table)[:count]
                if round != BEST_ROUND:
                    rows = torch.randn(rows.shape, generator=noise)
                if participants is None or client.name in participants:
                    channel.send(Rows.pack(round, party, SERVER, table, rows))
                channel.send(Rows.pack(round, SERVER, party, table, getattr(shared[place], table)))
    return KgeResult(
        graph=graph,
        options=options,
        rounds=[],
        best_round=BEST_ROUND,
        tables=list(shared),
        trained=list(trained),
        test_ranks=[],
        transcript=channel.transcript,
    )


@pytest.fixture(scope="session")
def fabricate() -> MakeResult:
    return make_result


@pytest.fixture(scope="session")
def planted() -> MakeResult:
    """A factory of planted runs, see `_planted`."""
    return _planted


def _planted(
    model: ModelName = "transe",
    algorithm: str = "fede",
    *,
    noise: float = 1e-3,
    shuffled: bool = False,
    clusters: int = 12,
    seed: int = 7,
) -> KgeResult:
    """Clients that hold the same vectors up to `noise`, with tail = head acted on by relation in every triple.

    Cluster `c` is a hub and one leaf for each relation: (hub, k, leaf k). The colluder holds the first two thirds of the
    clusters without the last relation, victim a the last two thirds, victim b every second. Each client tests the hub
    of a cluster that it does not train on. `shuffled` permutes the victims' entity rows.
    """
    dim, size = 16, NUM_RELATIONS + 1
    kge = KgeModel(model, dim)
    rng = torch.Generator().manual_seed(seed)
    hubs, relations = _random_rows(kge, clusters + 1, kge.entity_width, rng), _random_relations(kge, rng)
    leaves = kge.query(hubs[:, None], relations, "tail")
    entities = torch.cat([hubs[:, None], leaves], dim=1).reshape(-1, kge.entity_width)

    def triples(chosen: range, num_relations: int) -> np.ndarray:
        return np.array([(c * size, k, c * size + 1 + k) for c in chosen for k in range(num_relations)])

    third = clusters // 3
    parts = {
        "colluder": triples(range(2 * third), NUM_RELATIONS - 1),
        "victim a": triples(range(third, clusters), NUM_RELATIONS),
        "victim b": triples(range(0, clusters, 2), NUM_RELATIONS),
    }
    outside = np.array([(clusters * size, 0, 0 * size), (clusters * size, 0, size)])
    clients = tuple(ClientGraph.from_global(name, part, NONE, outside) for name, part in parts.items())
    names = tuple(f"c{number // size}/{number % size}" for number in range(len(entities)))
    graph = FederatedGraph("planted", names, tuple(f"r{k}" for k in range(NUM_RELATIONS)), clients)

    def noisy(rows: Tensor) -> Tensor:
        return rows + noise * torch.randn(rows.shape, generator=rng)

    shared = [
        ClientTables(entities[client.entity_ids.tolist()], relations[client.relation_ids.tolist()])
        for client in clients
    ]
    trained = []
    for tables, client in zip(shared, clients, strict=True):
        rows = noisy(tables.entities)
        if shuffled and client.name != "colluder":
            rows = rows[torch.randperm(len(rows), generator=rng)]
        trained.append(ClientTables(rows, noisy(tables.relations)))
    return make_result(graph, trained, shared, algorithm=algorithm, model=model, dim=dim)


def _random_rows(kge: KgeModel, count: int, width: int, rng: torch.Generator) -> Tensor:
    """Rows on which acting can be undone: any for TransE, signs for DistMult, unit complex numbers for the others."""
    if kge.name == "transe":
        return torch.randn(count, width, generator=rng)
    if kge.name == "distmult":
        return torch.randint(0, 2, (count, width), generator=rng) * 2.0 - 1
    phase = (torch.rand(count, width // 2, generator=rng) * 2 - 1) * math.pi
    return torch.cat([torch.cos(phase), torch.sin(phase)], dim=1)


def _random_relations(kge: KgeModel, rng: torch.Generator) -> Tensor:
    if kge.name == "rotate":
        return (torch.rand(NUM_RELATIONS, kge.dim, generator=rng) * 2 - 1) * kge.initial_range
    return _random_rows(kge, NUM_RELATIONS, kge.relation_width, rng)


@pytest.fixture(scope="session")
def flatten() -> Flatten:
    """Every array of a view by name, to compare views."""

    def flat(view: View) -> dict[str, np.ndarray]:
        arrays: dict[str, np.ndarray] = {"round": np.array(view.round)}
        if view.colluder:
            arrays |= {f"colluder {name}": np.asarray(value) for name, value in vars(view.colluder).items()}
        for victim in view.victims:
            parts = dict(vars(victim))
            for group in ("received", "aligned"):
                parts |= {f"{group} {table}": rows for table, rows in parts.pop(group).items()}
            for name, value in parts.items():
                arrays[f"{victim.name} {name}"] = np.asarray("absent" if value is None else value)
        return arrays

    return flat


# Short trained federations under several defenses, and attacks on them.

Federate = Callable[..., KgeResult]
Attacked = Callable[..., dict[tuple[str, str, str], Figure]]


@functools.cache
def _federate(defense: str = "", algorithm: str = "fede", rounds: int = 8, size: int = 700) -> KgeResult:
    graph = generate_consortium(clients=3, size=size, seed=5)
    options = KgeOptions(
        algorithm=algorithm, defense=defense, dim=16, rounds=rounds, eval_every=rounds, patience=0, batch_size=64,
        num_negatives=8, learning_rate=0.02, device="cpu", protocol_seed=3 if defense else None,
    )  # fmt: skip
    return run_federation(graph, options, make_transport=make_transport)


@pytest.fixture(scope="session")
def federate() -> Federate:
    """Three hospitals under a defense, trained once."""
    return _federate


@pytest.fixture(scope="session")
def attacked() -> Attacked:
    """Headline figures of one attack by (threat model, victim, metric)."""

    def run(result: KgeResult, attack: str, *threats: str, **options: object) -> dict[tuple[str, str, str], Figure]:
        asked = KgeAttackOptions(attack=(attack,), threat=threats, **options)
        return {(one.threat_model, one.victim, one.metric): one for one in headline(run_attacks(result, asked).figures)}

    return run


@pytest.fixture(scope="session")
def relabelled() -> Callable[[KgeResult, int], KgeResult]:
    """The run with other truth: the same models and messages, and each victim's triples with its entities permuted."""

    def other(result: KgeResult, seed: int) -> KgeResult:
        rng, graph = np.random.default_rng(seed), result.graph

        def permuted(client: ClientGraph) -> ClientGraph:
            place = np.arange(client.num_entities)
            place[: client.num_trained_entities] = rng.permutation(client.num_trained_entities)
            splits = {}
            for name in SPLITS:
                heads, kinds, tails = getattr(client, name).T
                splits[name] = np.stack([place[heads], kinds, place[tails]], axis=1)
            return dataclasses.replace(client, **splits)

        clients = (graph.clients[0], *map(permuted, graph.clients[1:]))
        return dataclasses.replace(result, graph=dataclasses.replace(graph, clients=clients))

    return other


@pytest.fixture(scope="session")
def near_pairs(fabricate) -> Callable[..., KgeResult]:
    """A factory of runs whose victim links the entities of each of 60 pairs, by relation k % 3, and these lie near each other.

    Relations are short, and translate: tail = head + relation + noise. The victim has 60 more triples of the same relations,
    which nobody trains on, and whose rows lie apart. `shuffled` permutes the victim's rows.
    """

    def make(*, shuffled: bool = False, seed: int = 3) -> KgeResult:
        rng, count, dim = np.random.default_rng(seed), 60, 16
        relations = torch.from_numpy(rng.normal(0, 0.05, (3, dim)).astype(np.float32))
        heads = torch.from_numpy(rng.normal(0, 1, (count, dim)).astype(np.float32))
        kinds = torch.arange(count) % 3
        tails = heads + relations[kinds] + torch.from_numpy(rng.normal(0, 0.01, (count, dim)).astype(np.float32))
        entities = torch.stack([heads, tails], dim=1).reshape(-1, dim)
        triples = np.array([(2 * place, place % 3, 2 * place + 1) for place in range(count)])
        unseen = np.array([(2 * place, place % 3, 2 * ((place + 3) % count) + 1) for place in range(count)])
        parts = ("colluder", triples[: count // 2], NONE), ("victim", triples, unseen)
        clients = tuple(ClientGraph.from_global(name, train, NONE, test) for name, train, test in parts)
        graph = FederatedGraph(
            "near pairs", tuple(f"e{number}" for number in range(2 * count)), ("r0", "r1", "r2"), clients
        )
        tables = [
            ClientTables(entities[one.entity_ids.tolist()], relations[one.relation_ids.tolist()]) for one in clients
        ]
        if shuffled:
            tables[1] = ClientTables(tables[1].entities[rng.permutation(2 * count)], tables[1].relations)
        return fabricate(graph, tables, tables)

    return make
