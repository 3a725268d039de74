"""What a defended transport makes of codecs and aggregations: what runs follows from their declarations, weights included."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from fkgsec.data.graph import FederatedGraph
from fkgsec.defenses import make_transport
from fkgsec.errors import SpecError
from fkgsec.exchange import Holding, Transport
from fkgsec.federation.loop import run_federation
from fkgsec.federation.messages import Channel, LowRankRows
from fkgsec.federation.options import replace
from fkgsec.kge.options import KgeOptions
from fkgsec.unlearning.unlearning import UnlearnOptions, unlearn

PARTIES = ("client/a", "client/b", "client/c")
HELD = {"client/a": ["x", "y", "z"], "client/b": ["x", "y"], "client/c": ["x"]}
WEIGHTS = dict(zip(PARTIES, (3, 5, 11), strict=True))


def weighted(defense: str, options: KgeOptions, rows: dict[str, Tensor], algorithm: str = "fede") -> Transport:
    """A transport after one round of clients of different weights."""
    given = replace(options, defense=defense, algorithm=algorithm)
    transport = make_transport(Channel(), given, PARTIES, ["entities"], "weights")
    transport.align("entities", {p: Holding(names, len(names), WEIGHTS[p]) for p, names in HELD.items()})
    transport.initialise("entities", torch.zeros(3, 4))
    transport.broadcast(0, "entities", PARTIES)
    transport.upload(1, "entities", rows)
    return transport


def by_name(transport: Transport) -> dict[str, list[float]]:
    table = transport.server["entities"]
    return dict(zip(table.names, table.rows.tolist(), strict=True))


@pytest.mark.parametrize("defense", ["secagg", "psu,secagg", "secagg:bits=64", "secagg,suppress:t=2"])
def test_weighted_sums_are_the_weighted_means_in_clear(defense: str, options: KgeOptions) -> None:
    rows = {party: torch.from_numpy(np.random.default_rng(len(names)).normal(size=(len(names), 4)).astype(np.float32))
            for party, names in HELD.items()}  # fmt: skip
    clear, secure = weighted("", options, rows), weighted(defense, options, rows)
    expected, got = by_name(clear), by_name(secure)
    by_hand = sum(WEIGHTS[party] * rows[party][0] for party in PARTIES) / sum(WEIGHTS.values())
    torch.testing.assert_close(torch.tensor(expected["x"]), by_hand)
    for name in expected:
        kept = "suppress" in defense and name == "z"  # one client has it
        assert got[name] == ([0.0] * 4 if kept else pytest.approx(expected[name], abs=1e-5))
    *counted, opened = secure.channel.transcript.opened(1)
    weights = dict(zip(secure.server["entities"].names, opened.sums()[1].tolist(), strict=True))
    assert weights == {"x": 19, "y": 8, "z": 0 if "suppress" in defense else 3}
    if counted:  # holders, not weights, decide what is suppressed
        assert np.frombuffer(counted[0].holders, dtype="<i8").tolist() == [3, 2, 1]
    says = "weights: the server learns the sum of the weights of the holders of each row of entities"
    assert any(line.startswith(says) and line.endswith("is 11") for line in secure.protection().remarks)
    assert not any("weight" in line for line in weighted_alike(defense, options).protection().remarks)
    added = sum(secure.inputs["entities"][party].numpy() for party in PARTIES)
    assert np.array_equal(added, opened.sums()[0])


def weighted_alike(defense: str, options: KgeOptions) -> Transport:
    transport = make_transport(Channel(), replace(options, defense=defense), PARTIES, ["entities"], "weights")
    transport.align("entities", {party: Holding(names, len(names)) for party, names in HELD.items()})
    transport.initialise("entities", torch.zeros(3, 4))
    return transport


def test_noise_in_the_ring_is_for_weights_of_one(options: KgeOptions) -> None:
    rows = {party: torch.zeros(len(names), 4) for party, names in HELD.items()}
    with pytest.raises(SpecError, match=r"noise discrete is for weights of 1"):
        weighted("secagg,dp:clip=1,epsilon=8", options, rows)
    weighted("secagg,dp:clip=1,epsilon=8,noise=gaussian", options, rows)


def test_feds_combines_with_weights_in_clear_and_under_sums(options: KgeOptions) -> None:
    """x of b: own 5 times, a's 3 times, c's 11 times, over 19; whichever side leaves its own part out."""
    options = replace(options, algorithm="feds", sparsity=1.0, sparse_rounds=0)
    rows = {party: torch.rand(len(names), 4, generator=torch.Generator().manual_seed(3)) + place
            for place, (party, names) in enumerate(HELD.items())}  # fmt: skip
    by_hand = sum(WEIGHTS[party] * rows[party][0] for party in PARTIES) / 19
    for defense in ("", "secagg"):
        transport = weighted(defense, options, rows, "feds")
        for party, received in transport.broadcast(1, "entities", PARTIES).items():
            torch.testing.assert_close(received.merged(rows[party])[0], by_hand, atol=1e-5, rtol=0)


@pytest.mark.parametrize("defense", ["secagg", "psu,secagg", "secagg:dropout=0.25", "psu,secagg,suppress:t=2"])
def test_factorised_changes_under_sums(
    defense: str, graph: Callable[[int], FederatedGraph], options: KgeOptions
) -> None:
    """FedE-SVD: the same tables as in clear up to the encoding; factors come down, and nothing of one client goes up."""
    options = replace(options, algorithm="fede-svd", rank=1, columns=2, rounds=3, eval_every=3, learning_rate=0.01)
    secure = run_federation(graph(5), replace(options, defense=defense), make_transport=make_transport)
    kinds = {(entry.direction, entry.kind) for entry in secure.transcript.entries if entry.round}
    assert ("down", "low-rank-rows") in kinds
    assert ("up", "low-rank-rows") not in kinds
    if defense in ("secagg", "psu,secagg"):
        clear = run_federation(graph(5), options)
        for one, other in zip(secure.tables, clear.tables, strict=True):
            torch.testing.assert_close(one.entities, other.entities, atol=2e-3, rtol=0)
        down = [m for m in secure.transcript.messages(3) if isinstance(m, LowRankRows)]
        assert len(down) == 5
    asking = graph(5).clients[0]
    method = UnlearnOptions(method="finetune", decay_epochs=1)
    after = unlearn(secure, {asking.name: asking.train[:5]}, method, make_transport=make_transport)
    assert after.rounds[1].num_survivors in ((5,) if "dropout" not in defense else (0, 3, 4, 5))


HELD_BY_MANY = {f"client/{place}": [f"row {8 * place + number}" for number in range(8)] for place in range(12)}
HELD_BY_MANY["client/0"] = [f"row {number}" for number in range(4000)]
TABLE_BYTES = 4 * 4000 * 16  # of elements or of float32


def with_large_table(options: KgeOptions) -> Transport:
    """A transport of twelve clients, whose table has 4,000 rows; each uploads eight of them."""
    parties = list(HELD_BY_MANY)
    transport = make_transport(Channel(), replace(options, defense="psu,secagg"), parties, ["entities"], "bytes")
    transport.align("entities", {party: Holding(own, 8) for party, own in HELD_BY_MANY.items()})
    transport.initialise("entities", torch.zeros(4000, 16))
    transport.broadcast(0, "entities", parties)
    return transport


def traced_bytes(work: Callable[[], object]) -> tuple[int, int]:
    """What is in memory afterwards that was not before, and the most that was at once."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()


def test_clients_hold_what_they_sent_and_no_tables(options: KgeOptions) -> None:
    """Of a table of 4,000 rows each sends eight, and between rounds has these as ring elements and as numbers."""
    transport = with_large_table(options)

    def upload() -> None:
        transport.upload(1, "entities", {party: torch.ones(8, 16) for party in HELD_BY_MANY})
        transport.channel.transcript.retain(set(), set())

    grown, _ = traced_bytes(upload)
    assert grown < TABLE_BYTES
    inputs = transport.inputs["entities"]
    assert inputs["client/1"].shape == (4000, 16)
    rows = [transport.server["entities"].names.index(name) for name in HELD_BY_MANY["client/1"]]
    assert inputs["client/1"][rows].eq(1).all()
    assert inputs["client/1"].count_nonzero() == 8 * 16
