"""An active server that sends clients different tables, against every recipe whose uploads are summed securely.

Each federation is run twice: protected, where it must end with an error that names the fault, and with unprotected clients, where
the server gets the target's upload. The second shows that the first would notice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from torch import Tensor

from benchmarks.active_server import active_server
from fkgsec.attacks import Figure, KgeAttackOptions, run_attacks
from fkgsec.data.graph import FederatedGraph
from fkgsec.defenses.broadcasts import BroadcastError
from fkgsec.defenses.transport import DefendedTransport, make_transport
from fkgsec.errors import SpecError
from fkgsec.federation.loop import Federation, run_federation
from fkgsec.federation.messages import AnyMessage, Channel, ProtocolMessage, Rows
from fkgsec.federation.options import replace
from fkgsec.federation.recipes import RECIPES, Table, algorithms_of
from fkgsec.kge.options import KgeOptions
from fkgsec.kge.result import KgeResult
from fkgsec.protocols.core.errors import ProtocolError

# Every recipe that runs under secagg; FedS is aligned in plaintext alone. `sparse_rounds=1`: all rows are sent after even rounds.
SUMMED = [
    name
    for name, recipe in algorithms_of("kge").items()
    if recipe.shared and recipe.codec in ("dense", "top-k") and recipe.aggregation != "affinity"
]
DEFENSES = ["secagg", "psu,secagg", "secagg,suppress:t=2", "psu,secagg,suppress:t=2", "secagg:dropout=0.1"]
SETTINGS: dict[str, dict[str, Any]] = {"feds": {"sparse_rounds": 1, "sparsity": 1.0}}


def fits(algorithm: str, defense: str) -> bool:
    return not (algorithm == "feds" and "psu" in defense)


def target_of(graph: FederatedGraph) -> str:
    return f"client/{graph.clients[0].name}"


def attacked(
    graph: FederatedGraph,
    options: KgeOptions,
    *,
    unprotected: bool = False,
    value: float = 1e9,
    at: int = 2,
    withheld: bool = False,
) -> KgeResult:
    """A federation of `at` + 1 rounds, evaluated at its end; the server attacks with the broadcast before its last round."""
    options = replace(options, rounds=at + 1, eval_every=at + 1)
    make = active_server(target_of(graph), at=at, value=value, unprotected=unprotected, withheld=withheld)
    return run_federation(graph, options, make_transport=make)


def recovered(result: KgeResult, threat: str = "server") -> dict[str, Figure]:
    """What the server alone gets of the target, by metric."""
    target, other = (client.name for client in result.graph.clients[:2])
    options = KgeAttackOptions(attack=("update-recovery",), threat=(threat,), leak=(1.0,), colluder=other)
    own = [one for one in run_attacks(result, options).figures if (one.victim, one.threat_model) == (target, threat)]
    return {one.metric.removesuffix("_relations"): one for one in own}


CASES = [(algorithm, defense) for algorithm in SUMMED for defense in DEFENSES if fits(algorithm, defense)]
QUICK = [("fede", "psu,secagg"), ("fedr", "secagg"), ("feds", "secagg,suppress:t=2")]


@pytest.mark.parametrize(
    ("algorithm", "defense"),
    [pytest.param(*case, marks=[] if case in QUICK else [pytest.mark.slow]) for case in CASES],
)
def test_a_split_broadcast_ends_the_run_or_gives_the_upload_away(
    algorithm: str, defense: str, graph: Callable[[int], FederatedGraph], options: KgeOptions
) -> None:
    options = replace(options, algorithm=algorithm, defense=defense, **SETTINGS.get(algorithm, {}))
    with pytest.raises(BroadcastError, match=r"refuses the broadcast of .* in round 2: the server sent 1e.09 in row"):
        attacked(graph(5), options)
    with pytest.raises(BroadcastError, match=r"before the sum of round 3: the server sent client/.* other tables than"):
        attacked(graph(5), options, value=15.9)
    row = recovered(attacked(graph(5), options, unprotected=True))
    assert row["cosine"].reason is None
    # With suppression, and in FedS, the rows of one holder are not in the sum; of the others nothing is left hidden.
    whole = "suppress" not in defense and algorithm != "feds"
    assert row["cosine"].estimate.value > (0.99 if whole else 0.6)
    assert row["relative_error"].estimate.value < (0.01 if whole else 0.8)
    assert row["relative_error"].baseline.value == 1


BARE = [
    (model, algorithm, defense)
    for model in ("complex", "rotate")
    for algorithm in SUMMED
    for defense in ("psu,secagg", "secagg", "psu,secagg,suppress:t=2", "psu,secagg:dropout=0.1")
    if algorithm != "feds"  # which says of itself that only a server that follows the protocol is withstood
]
QUICK_BARE = [("complex", "fede", "psu,secagg"), ("rotate", "fede", "psu,secagg,suppress:t=2")]


@pytest.mark.parametrize(
    ("model", "algorithm", "defense"),
    [pytest.param(*case, marks=[] if case in QUICK_BARE else [pytest.mark.slow]) for case in BARE],
)
def test_a_client_that_was_sent_no_rows_takes_part_in_no_sum(
    model: Any, algorithm: str, defense: str, graph: Callable[[int], FederatedGraph], options: KgeOptions
) -> None:
    """The others got zeros, at which no entity has a gradient; the target was told the commitment to these, as all were."""
    options = replace(options, algorithm=algorithm, model=model, defense=defense)
    target, table = target_of(graph(5)), RECIPES[algorithm].shared[0]
    says = f"{target} refuses the sum of {table} in round 3: since round 2 the server sent it no rows"
    with pytest.raises(BroadcastError, match=says):
        attacked(graph(5), options, value=0.0, withheld=True)
    # Other recipes have terms beside the loss that move what is zero, and suppressed rows are not in the sum.
    if algorithm == "fede" and "suppress" not in defense:
        row = recovered(attacked(graph(5), options, value=0.0, withheld=True, unprotected=True))
        assert row["cosine"].estimate.value > 0.99
        assert row["relative_error"].estimate.value < 0.01


class Withholding(Channel):
    """A server that shows each client no claim, so that only the session can tell."""

    def send(self, message: AnyMessage) -> AnyMessage:
        received = super().send(message)
        if isinstance(received, ProtocolMessage) and received.step == "broadcast-claims":
            return replace(received, content=msgspec.msgpack.encode([]))
        return received


@pytest.mark.parametrize("defense", ["psu,secagg", "secagg:neighbours=4,threshold=3"])
def test_without_claims_nothing_opens(
    defense: str, graph: Callable[[int], FederatedGraph], options: KgeOptions
) -> None:
    """The clients' sessions differ: masks and signatures of one mean nothing to another."""
    options = replace(options, defense=defense, rounds=3, eval_every=3)
    made = []

    def make(channel: Channel, *others: Any) -> Any:
        made.append(active_server(target_of(graph(5)), at=2, value=15.9)(Withholding(channel.transcript), *others))
        return made[-1]

    try:
        result = run_federation(graph(5), options, make_transport=make)
    except ProtocolError:
        return
    # Or those who differ are dropped, and with the target all others.
    assert all(target_of(graph(5)) not in opened.survivors for opened in result.transcript.opened(3))


class Tampering(Channel):
    """A server that changes one value of the table on its way to one client, and proves the untouched table."""

    def __init__(self, transcript: Any, receiver: str, round: int, value: float) -> None:
        super().__init__(transcript)
        self.receiver, self.round, self.value = receiver, round, value

    def send(self, message: AnyMessage) -> AnyMessage:
        received = super().send(message)
        if isinstance(received, Rows) and (received.receiver, received.round) == (self.receiver, self.round):
            rows = received.unpack()
            rows[3, 1] = self.value
            return Rows.pack(received.round, received.sender, received.receiver, received.table, rows)
        return received


@pytest.mark.parametrize("value", [0.5, float("nan"), -16.1])
def test_one_changed_value(value: float, graph: Callable[[int], FederatedGraph], options: KgeOptions) -> None:
    options = replace(options, defense="psu,secagg")
    receiver = f"client/{graph(3).clients[1].name}"

    def make(channel: Channel, *others: Any) -> Any:
        return make_transport(Tampering(channel.transcript, receiver, 1, value), *others)

    if value == 0.5:  # the client says that it was sent something else than the server and the others say
        last = run_federation(graph(3), options, make_transport=make).rounds[2]
        assert last.num_survivors == 0
        assert last.excluded.keys() == {receiver}
        assert "entities: BroadcastError: it says that it was sent other tables than" in last.excluded[receiver]
        return
    with pytest.raises(BroadcastError, match=f"{receiver} refuses the broadcast of entities in round 1"):
        run_federation(graph(3), options, make_transport=make)


class SplitForSitters(DefendedTransport):
    """After round 1 the server sends other tables to those who will sit round 2 out."""

    def _content_for(self, round: int, table: Table, party: str, content: Tensor) -> Tensor:
        return content + 0.125 if round == 1 and party in self.sitters else content


def test_a_client_that_sat_a_round_out_is_bound_to_what_it_was_sent_before(
    graph: Callable[[int], FederatedGraph], options: KgeOptions
) -> None:
    """What it received after round 1 is replaced after round 2; its history keeps it out of the sums that follow."""
    options = replace(options, defense="psu,secagg", participation=0.6, rounds=4, eval_every=4)
    made = []

    def make(*parts: Any) -> SplitForSitters:
        made.append(SplitForSitters(*parts))
        made[-1].sitters = set(made[-1].parties) - drawn(graph(5), options, 2)
        return made[-1]

    result = run_federation(graph(5), options, make_transport=make)
    for round in (3, 4):
        others = made[0].sitters & drawn(graph(5), options, round)
        assert len(others) == 1
        assert result.rounds[round].excluded.keys() == others
        assert result.rounds[round].num_survivors == 0  # of three with a threshold of three
    assert not result.rounds[2].excluded
    run_federation(graph(5), options, make_transport=make_transport)  # and of an honest server none ends


def drawn(graph: FederatedGraph, options: KgeOptions, round: int) -> set[str]:
    """The participants of a round."""
    federation = Federation(graph, options, make_transport)
    return {federation.parties[place] for place in federation.participants(round)}


def test_first_rows_beyond_the_clip_are_refused(graph: Callable[[int], FederatedGraph], options: KgeOptions) -> None:
    with pytest.raises(SpecError, match=r"secagg: clip must be at least 1\.5, which the first rows of entities reach"):
        run_federation(graph(3), replace(options, defense="secagg:clip=1"), make_transport=make_transport)
