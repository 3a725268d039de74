"""Who knows what: the server has no object and no data of a client, and what crosses says no more than the record states."""

from __future__ import annotations

import dataclasses
import functools
import gc
import types
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from torch import Tensor

from fkgsec.data.graph import ClientGraph, FederatedGraph
from fkgsec.defenses.client import DefendedClient
from fkgsec.defenses.server import DefendedServer
from fkgsec.exchange.client import TableClient
from fkgsec.exchange.server import TableServer
from fkgsec.experiments.deploy.core.conversation import Conversation
from fkgsec.experiments.deploy.core.measure import DECIMALS, Group, check_measured, measure_models
from fkgsec.experiments.deploy.core.messages import Reply, Validated
from fkgsec.experiments.deploy.party import Party
from fkgsec.experiments.deploy.server import Server
from fkgsec.kge.local.task import KgeTask

OF_CLIENTS = (ClientGraph, FederatedGraph, KgeTask, TableClient, DefendedClient, Party)
OF_THE_SERVER = (TableServer, DefendedServer, Conversation, Server)


def reachable(start: object) -> Iterator[object]:
    """Everything that it refers to, through attributes, containers and closures; not through code, modules and classes."""
    seen, waiting = set[int](), [start]
    while waiting:
        one = waiting.pop()
        if id(one) in seen or isinstance(one, type | types.ModuleType | Tensor):
            continue
        seen.add(id(one))
        yield one
        if isinstance(one, types.FunctionType):
            waiting += [cell.cell_contents for cell in one.__closure__ or ()] + list(one.__defaults__ or ())
        elif isinstance(one, functools.partial):
            waiting += [one.func, *one.args, *one.keywords.values()]
        else:
            waiting += gc.get_referents(one)


@pytest.mark.parametrize("defense", ["", "psu,secagg"])
def test_server_and_parties_share_no_object(defense: str, consortium: Callable[..., Any]) -> None:
    apart = consortium(defense=defense, rounds=1)
    server, _ = apart.train()
    server.talk._ask = None  # the network, which in this process leads to the parties
    found = [one for one in reachable(server) if isinstance(one, OF_CLIENTS)]
    assert found == []
    for name, party in apart.parties.items():
        known = list(reachable(party))
        assert not [one for one in known if isinstance(one, OF_THE_SERVER)]
        assert [one for one in known if isinstance(one, Party)] == [party]
        assert {one.name for one in known if isinstance(one, ClientGraph)} == {name}


def test_under_psu_no_name_of_a_client_crosses_but_in_the_union(consortium: Callable[..., Any]) -> None:
    apart = consortium(defense="psu,secagg", rounds=2)
    record = apart.serve()
    up = [frame for frame in apart.crossed if is_reply(frame)]
    assert len(up) > 20
    for name in apart.graph.entities + apart.graph.relations:
        if len(name) > 3:
            assert not any(name.encode() in frame for frame in up)
    assert record.data.clients.keys() == set(apart.names)


def is_reply(frame: bytes) -> bool:
    try:
        return bool(msgspec.msgpack.decode(frame, type=Reply).party)
    except msgspec.MsgspecError:
        return False


def test_in_clear_no_relation_and_no_triple_crosses(consortium: Callable[..., Any]) -> None:
    apart = consortium(rounds=2)
    apart.serve()
    for name in apart.graph.relations:
        if len(name) > 3:
            assert not any(name.encode() in frame for frame in apart.crossed)


def test_deployed_parties_draw_from_their_own_systems_and_the_record_says_so(
    consortium: Callable[..., Any], tmp_path: Any
) -> None:
    apart = consortium(randomness="operating system", rounds=2, size=600)
    seeds = {party.task.options.seed for party in apart.parties.values()}
    assert len(seeds) == 3
    assert apart.terms.options.seed not in seeds
    record = apart.serve()
    assert any("every client drew its own" in line for line in record.protection)
    assert any("sum of its reciprocal ranks" in line for line in record.protection)
    measured = [frame for frame in apart.crossed if b"squares" in frame]
    assert len(measured) == 3
    assert not any(b"items" in frame for frame in measured)
    ranks = []
    for party in apart.parties.values():
        best = party.best["best"]
        (own,) = party.task.outcome(best.trained, best.final)["test_ranks"]
        ranks.append((1 / own).mean(axis=1))
    items = np.concatenate(ranks)
    mrr = record.utility["mrr"]
    assert mrr.value == pytest.approx(items.mean(), abs=3 * 10**-DECIMALS / len(items))
    assert mrr.n == len(items)
    spread = items.std() / np.sqrt(len(items))
    assert mrr.low == pytest.approx(items.mean() - 1.96 * spread, abs=spread)
    assert mrr.high == pytest.approx(items.mean() + 1.96 * spread, abs=spread)


def test_what_parties_say_of_ten_triples_are_few_numbers_of_few_digits(consortium: Callable[..., Any]) -> None:
    """Single ranks follow from sums of many resamples, and the digits of one sum may be those of one set of ranks."""
    apart = consortium(randomness="operating system", rounds=1, size=600)
    rng = np.random.default_rng(0)
    for _ in range(20):
        ranks = rng.integers(1, 100, (10, 2)).astype(np.float64)
        said = measure_models({"test_ranks": [ranks]}, 1, without_leaks(apart), apart.terms)
        check_measured(said, apart.terms, round=1, num_test=10, two_models=False)
        group = said.groups["all"]
        for number in (group.total, group.squares):
            assert number == round(number, DECIMALS)
        assert group == Group(10, group.total, group.hits, group.squares)
        assert said.figures["mrr"].value == group.total / 10
        items = (1 / ranks).mean(axis=1)
        assert said.figures["mrr"].high - group.total / 10 == pytest.approx(1.96 * items.std() / 10**0.5, abs=0.01)
    apart.serve()
    told = [
        msgspec.msgpack.decode(one.content, type=Validated).total
        for frame in apart.crossed
        if is_reply(frame)
        for one in msgspec.msgpack.decode(frame, type=Reply).answers
        if one.content and b"total" in one.content and b"groups" not in one.content
    ]
    assert len(told) == 3
    assert all(total == round(total, DECIMALS) for total in told)


def without_leaks(apart: Any) -> FederatedGraph:
    """A party's data with ten test triples, none of which stands in its train split."""
    graph = apart.parties["hospital-1"].data
    client = graph.clients[0]
    known = {tuple(triple) for triple in client.train.tolist()}
    test = np.array([triple for triple in client.test.tolist() if tuple(triple) not in known][:10])
    assert len(test) == 10
    return dataclasses.replace(graph, clients=(dataclasses.replace(client, test=test),))


def test_two_deployed_runs_of_one_seed_train_apart(consortium: Callable[..., Any]) -> None:
    apart = consortium(randomness="operating system", rounds=1)
    before = apart.parties["hospital-1"].task.snapshot()
    other = Party(
        apart.root / "elsewhere",
        "hospital-1",
        msgspec.structs.replace(apart.terms, identities={}),
        apart.party("hospital-1").data,
    )
    assert not torch.equal(before["entities"], other.task.snapshot()["entities"])
    apart.restart("hospital-1")
    assert torch.equal(before["entities"], apart.parties["hospital-1"].task.snapshot()["entities"])
