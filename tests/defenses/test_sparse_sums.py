"""FedS under secure sums: against dictionaries in clear, Eq. 3 by hand, dropouts, suppression, what the server sees and reads."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from fkgsec.attacks.options import THREAT_MODELS
from fkgsec.attacks.registry import build_view
from fkgsec.data.graph import FederatedGraph
from fkgsec.defenses.transport import DefendedTransport, make_transport
from fkgsec.errors import SpecError
from fkgsec.exchange import Holding, Received, Transport, Uploaded
from fkgsec.federation.loop import run_federation
from fkgsec.federation.messages import Channel, Opened, ProtocolMessage
from fkgsec.federation.options import replace
from fkgsec.federation.recipes import Table
from fkgsec.kge.options import KgeOptions
from fkgsec.protocols import psu
from fkgsec.protocols.secagg.messages import MaskedUpload
from fkgsec.randomness import generator

TABLE: Table = "entities"
TOLERANCE = 1e-5


class RankedByTotals(Transport):
    """FedS in clear, but downloads are ranked by how many clients chose a row, the receiver included. Dictionaries by name.

    Attributes:
        survivors: by round, who is in the sum; all where a round is not named. Nobody: nothing was opened.
        fewest: rows that fewer clients chose stay with these.
        wanted: what each participant chose in the last round. chose: the same of who was in the sum, with the rows that were.
    """

    survivors: ClassVar[Mapping[int, set[str]]] = {}
    fewest: ClassVar[int] = 1

    def align(self, table: Table, held: Mapping[str, Holding]) -> None:
        super().align(table, held)
        self.names = {party: holding.names for party, holding in held.items()}
        self.holders = Counter(name for names in self.names.values() for name in names)

    def initialise(self, table: Table, rows: Tensor) -> None:
        super().initialise(table, rows)
        self.table = {name: rows[place].double() for place, name in enumerate(self.server[table].names)}
        self.sent = {party: {name: self.table[name] for name in names} for party, names in self.names.items()}

    def synchronised(self, round: int) -> bool:
        between = int(self.options.settings.sparse_rounds)
        return round == 0 or (between > 0 and round % (between + 1) == 0)

    def most(self, party: str) -> int:
        """Eq. 2."""
        shared = sum(self.holders[name] > 1 for name in self.names[party])
        return max(1, int(shared * float(self.options.settings.sparsity) + 1e-9))

    def upload(self, round: int, table: Table, rows: Mapping[str, Tensor], **refusals: Any) -> Uploaded:
        present = self.survivors.get(round, set(rows))
        self.wanted: dict[str, set[str]] = {}
        self.chose: dict[str, dict[str, Tensor]] = {}
        for party, own in rows.items():
            named = dict(zip(self.names[party], own.double(), strict=False))
            shared = [name for name in named if self.holders[name] > 1]
            if not self.synchronised(round):
                shared.sort(key=lambda name: float(cosine(named[name], self.sent[party][name])))
                shared = shared[: self.most(party)]
            self.wanted[party] = set(shared)
            if party in present:
                self.sent[party] |= {name: named[name] for name in shared}
                self.chose[party] = {name: named[name] for name in shared}
        self.counts = Counter(name for chosen in self.chose.values() for name in chosen)
        self.counts = Counter({name: count for name, count in self.counts.items() if count >= self.fewest})
        self.chose = {
            party: {name: row for name, row in chosen.items() if self.counts[name]}
            for party, chosen in self.chose.items()
        }
        self.totals = {
            name: torch.stack([chosen[name] for chosen in self.chose.values() if name in chosen]).sum(0)
            for name in self.counts
        }
        if self.synchronised(round):
            self.table |= {name: total / self.counts[name] for name, total in self.totals.items()}
        return Uploaded(len(present))

    def broadcast(self, round: int, table: Table, parties: Sequence[str]) -> dict[str, Received]:
        received = {}
        for party in parties:
            names = self.names[party]
            shared = [place for place, name in enumerate(names) if self.holders[name] > 1]
            rows, own_share = torch.zeros(len(names), self.server[table].rows.shape[1]), torch.zeros(len(names))
            if self.synchronised(round):
                for place in shared:
                    rows[place] = self.table[names[place]]
            else:
                rng = generator(self.options.seed, "download ties", table, round, self.parties.index(party))
                order = [
                    place for place in rng.permutation(len(names)) if place in shared and self.counts[names[place]]
                ]
                order.sort(key=lambda place: -self.counts[names[place]])
                shared = []
                for place in order[: self.most(party)]:
                    name, mine = names[place], self.chose.get(party, {})
                    # Eq. 3: the sum over the others, and how many they are.
                    others = self.totals[name] - mine.get(name, 0)
                    count = self.counts[name] - (name in mine)
                    if count:  # Eq. 4
                        rows[place], own_share[place] = others / (1 + count), 1 / (1 + count)
                        shared.append(place)
            taken = torch.zeros(len(names), dtype=torch.bool)
            taken[shared] = True
            received[party] = Received(rows, taken, own_share)
        return received


def cosine(row: Tensor, other: Tensor) -> Tensor:
    return row @ other / (row.norm() * other.norm())


def aligned(
    kind: type[Transport], held: Mapping[str, Sequence[str]], first: Mapping[str, Tensor], **settings: Any
) -> Any:
    """An exchange of FedS between parties that hold given names, after the first broadcast of given rows."""
    plain = KgeOptions(algorithm="feds", dim=len(next(iter(first.values()))), device="cpu")
    options = replace(plain, **settings)
    exchange = kind(Channel(), options, list(held), [TABLE], "by hand")
    exchange.align(TABLE, {party: Holding(list(names), len(names)) for party, names in held.items()})
    exchange.initialise(TABLE, torch.stack([first[name] for name in exchange.server[TABLE].names]).float())
    exchange.broadcast(0, TABLE, exchange.parties)
    return exchange


PARTIES = tuple(f"client/{name}" for name in "abcde")
NAMES = [f"name {number:02d}" for number in range(24)]
# Each holds 14 of 24 names, and one that nobody else holds.
HELD = {
    party: [NAMES[(5 * place + number) % 24] for number in range(14)] + [f"of {party} alone"]
    for place, party in enumerate(PARTIES)
}


def drawn(*key: int, size: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng([31, *key]).normal(size=size).astype(np.float32))


class Drift:
    """Clients whose training is a random move, behind one exchange or another."""

    def __init__(self, kind: type[Transport], width: int = 6, **settings: Any) -> None:
        everybody = sorted({name for names in HELD.values() for name in names})
        first = {name: drawn(0, place, size=width) for place, name in enumerate(everybody)}
        self.exchange = aligned(kind, HELD, first, sparsity=0.4, **settings)
        self.rows = {party: torch.stack([first[name] for name in names]) for party, names in HELD.items()}

    def round(self, number: int, absent: Sequence[str] = (), deaf: Sequence[str] = ()) -> Uploaded:
        """All but the absent train and upload, all but the deaf receive."""
        for place, party in enumerate(PARTIES):
            if party not in absent:
                shape = self.rows[party].shape
                self.rows[party] = self.rows[party] + drawn(1, number, place, size=shape.numel()).reshape(shape)
        present = {party: rows for party, rows in self.rows.items() if party not in absent}
        outcome = self.exchange.upload(number, TABLE, present)
        receivers = [party for party in PARTIES if party not in deaf]
        for party, received in self.exchange.broadcast(number, TABLE, receivers).items():
            self.rows[party] = received.merged(self.rows[party])
        return outcome

    def opened(self, number: int) -> list[Opened]:
        return self.exchange.channel.transcript.opened(number)


def assert_same_rows(one: Drift, other: Drift, number: int) -> None:
    for party in PARTIES:
        away = float((one.rows[party] - other.rows[party]).abs().max())
        assert away < TOLERANCE, f"{party} in round {number}"


# (a) The same but the sums.


@pytest.mark.parametrize("sparse_rounds", [0, 1, 2, 20])
def test_sums_alone_differ_from_the_naive_simulation(sparse_rounds: int) -> None:
    secure = Drift(DefendedTransport, defense="secagg", sparse_rounds=sparse_rounds)
    naive = Drift(RankedByTotals, sparse_rounds=sparse_rounds)
    for number in range(1, 8):
        absent, deaf = ([PARTIES[1]], [PARTIES[2]]) if number % 3 == 2 else ([], [])
        outcome = secure.round(number, absent, deaf)
        assert outcome == naive.round(number, absent, deaf) == Uploaded(5 - len(absent))
        assert_same_rows(secure, naive, number)


# (b) Eq. 3.

A, B, C, D = PARTIES[:4]


def test_what_a_client_subtracts_is_what_it_put_in_when_that_was_clipped() -> None:
    """Clip 2: a's row of 5 goes into the sum as 2, b's of 1 as 1. a adds b's 1 to its own 5: (5 + 1) / 2."""
    held = {A: ["p", "q"], B: ["p", "q"]}
    first = dict.fromkeys("pq", torch.tensor([1.0, 0.0]))
    exchange = aligned(DefendedTransport, held, first, defense="secagg:clip=2", sparsity=0.5, sparse_rounds=0)
    rows = {A: torch.tensor([[0.0, 5.0], [1.0, 0.0]]), B: torch.tensor([[0.0, 1.0], [1.0, 0.0]])}
    assert exchange.upload(1, TABLE, rows).num_clipped == 0
    assert [exchange.defended[party].clipped for party in (A, B)] == [{TABLE}, set()]
    received = exchange.broadcast(1, TABLE, [A, B])
    assert received[B].merged(rows[B]).tolist() == [[0.0, 1.5], [1.0, 0.0]]
    assert received[A].merged(rows[A]).tolist() == [[0.0, 3.0], [1.0, 0.0]]


# (c) Dropouts.


def test_who_dropped_out_does_not_subtract() -> None:
    """Its part is not in the sum. Rounds that too few survived leave every row where it was."""
    secure = Drift(DefendedTransport, defense="secagg:dropout=0.25", sparse_rounds=0)
    naive = Drift(RankedByTotals, sparse_rounds=0)
    sizes: Counter[int] = Counter()
    for number in range(1, 25):
        outcome = secure.round(number)
        opened = secure.opened(number)
        present = set(opened[0].survivors) if opened else set()
        naive.exchange.survivors = {number: present}
        assert naive.round(number) == outcome == Uploaded(len(present))
        assert_same_rows(secure, naive, number)
        sizes[len(present)] += 1
    assert sizes.keys() == {0, 4, 5}
    assert min(sizes.values()) >= 3


# (d) Suppression.


def test_no_row_of_one_chooser_is_opened() -> None:
    secure = Drift(DefendedTransport, defense="secagg,suppress:t=2", sparse_rounds=3)
    naive = Drift(RankedByTotals, sparse_rounds=3)
    naive.exchange.fewest = 2
    rare = 0
    for number in range(1, 8):
        secure.round(number)
        naive.round(number)
        assert_same_rows(secure, naive, number)
        counted, opened = secure.opened(number)
        chosen = Counter(name for names in naive.exchange.wanted.values() for name in names)
        names = secure.exchange.server[TABLE].names
        assert counted.total == b""
        counts = np.frombuffer(counted.holders, dtype="<i8")
        assert dict(zip(names, counts.tolist(), strict=True)) == {name: chosen[name] for name in names}
        total, holders = opened.sums()
        assert holders.tolist() == [chosen[name] if chosen[name] >= 2 else 0 for name in names]
        assert not total[holders == 0].any()
        assert total[holders > 0].any(axis=1).all()
        rare += sum(count == 1 for count in chosen.values())
    assert rare > 20
    assert not any("one client alone chose" in line for line in secure.exchange.protection().remarks)


@pytest.mark.parametrize(
    ("kind", "defense"),
    [
        (Transport, ""),
        (DefendedTransport, "secagg"),
        (DefendedTransport, "secagg,suppress:t=2"),
    ],
)
def test_what_nobody_sent_in_a_synchronised_round_stays_with_its_clients(kind: type[Transport], defense: str) -> None:
    """a and b, who hold "ab", sit the round out. b trains next: its row is of three rounds, the server's is the first one."""
    held = {A: ["ab", "all"], B: ["ab", "all"], C: ["all"], D: ["all"]}
    first = {"ab": torch.tensor([1.0, 0.0]), "all": torch.tensor([1.0, 0.0])}
    exchange = aligned(kind, held, first, defense=defense, sparsity=0.5, sparse_rounds=2)
    exchange.upload(3, TABLE, {C: torch.tensor([[1.0, 3.0]]), D: torch.tensor([[3.0, 1.0]])})
    own = torch.tensor([[3.0, 4.0], [5.0, 6.0]])
    assert exchange.broadcast(3, TABLE, [B])[B].merged(own).tolist() == [[3.0, 4.0], [2.0, 2.0]]


# (e) What the server sees.


def masked(exchange: Transport, number: int) -> dict[str, dict[str, bytes]]:
    """The masked vectors that each client sent in a round without suppression."""
    found = {}
    for message in exchange.channel.transcript.messages(number):
        if isinstance(message, ProtocolMessage) and message.step == "secagg-masked-upload":
            upload = psu.decode_message(message.content)
            assert isinstance(upload, MaskedUpload)
            found[message.sender] = dict(upload.vectors)
    return found


@pytest.mark.parametrize("sparse_rounds", [0, 1])
def test_one_message_says_nothing_of_what_was_chosen(sparse_rounds: int) -> None:
    """Vectors are as long as the table, whether a few rows, all or none are in them, and where zeros are no zero is seen."""
    width, names = 5, [f"name {number}" for number in range(600)]
    held = {A: names, B: names, C: [*names[:3], *(f"of c alone {number}" for number in range(40))]}
    first = {name: torch.ones(width) for names in held.values() for name in names}
    exchange = aligned(DefendedTransport, held, first, defense="secagg", sparsity=0.1, sparse_rounds=sparse_rounds)
    rows = {party: drawn(4, place, size=len(own) * width).reshape(-1, width) for place, (party, own) in
            enumerate(held.items())}  # fmt: skip
    lengths = set()
    for number in (1, 2):
        exchange.upload(number, TABLE, rows)
        for vectors in masked(exchange, number).values():
            lengths.add((len(vectors["rows"]), len(vectors["holders"])))
            holders = np.frombuffer(vectors["holders"], dtype="<u4")
            elements = np.frombuffer(vectors["rows"], dtype="<u4")
            # Of 640 uniform numbers below 2^32 the chance that any is 0 or 1 is 3e-7; in clear all of them are.
            assert not (holders <= 1).any()
            assert not (elements == 0).any()
            # Half of the elements are in the upper half, up to five deviations.
            for part in (holders, elements):
                assert abs(float((part >= 2**31).mean()) - 0.5) < 5 * 0.5 / np.sqrt(len(part))
    assert lengths == {(4 * 640 * width, 4 * 640)}


# (f) What does not fit.


HIDES = "needs a server that knows who holds each row; defense 'psu,secagg' hides it"
BY_VALUES = "chooses rows by their values; the noise of defense '{}' covers values alone"


@pytest.mark.parametrize(
    ("defense", "why"),
    [("psu,secagg", HIDES), ("dp:clip=1,epsilon=5", BY_VALUES), ("secagg,dp:clip=1,epsilon=5", BY_VALUES)],
)
def test_feds_takes_sums_and_suppression_only(
    defense: str, why: str, graph: Callable[[int], FederatedGraph], options: KgeOptions
) -> None:
    options = replace(options, algorithm="feds", defense=defense)
    with pytest.raises(SpecError) as error:
        run_federation(graph(3), options, make_transport=make_transport)
    assert str(error.value) == f"feds: codec 'top-k' {why.format(defense)}"


# (g) What the adversary makes of it.


@pytest.mark.parametrize("defense", ["secagg", "secagg,suppress:t=2"])
def test_a_row_that_one_victim_alone_chose_is_read_exactly(
    defense: str, graph: Callable[[int], FederatedGraph]
) -> None:
    """With the colluder's part or without it: that is subtracted. With t = 2, only where the colluder chose it too."""
    chose: dict[tuple[int, str], set[str]] = {}

    class Remembering(DefendedTransport):
        def upload(self, round: int, table: Table, rows: Mapping[str, Tensor], **refusals: Any) -> Uploaded:
            outcome = super().upload(round, table, rows, **refusals)
            for party, client in self.defended.items():
                chosen = client.parts[table].kept.contribution.chosen.tolist()
                chose[round, party] = set(itertools.compress(client.tables[table].holding.names, chosen))
            return outcome

    options = KgeOptions(
        algorithm="feds", dim=8, batch_size=128, num_negatives=7, local_epochs=1, rounds=3, eval_every=3, patience=0,
        learning_rate=0.05, settings={"sparsity": 0.6, "sparse_rounds": 0}, seed=5, device="cpu", defense=defense,
    )  # fmt: skip
    result = run_federation(graph(3), options, make_transport=Remembering)
    clients, entities = result.graph.clients, result.graph.entities
    sent = {client.name: chose[result.best_round, f"client/{client.name}"] for client in clients}
    view = build_view(result, THREAT_MODELS["collusion"], colluder=clients[0].name, leak=1.0, seed=0)
    error = result.transcript.opened(result.best_round)[-1].error + 8 * float(np.finfo(np.float32).eps)
    read = Counter[bool]()
    for victim in view.victims:
        claims = victim.claims[TABLE]
        row_names = [result.row_names[TABLE][row] for row in claims.rows]
        place = [client.name for client in clients].index(victim.name)
        trained = dict(
            zip(map(entities.__getitem__, clients[place].entity_ids), result.trained[place].entities, strict=True)
        )
        others = set().union(*(sent[client.name] for client in clients[1:] if client.name != victim.name))
        for name in sent[victim.name] - others:
            claimed = row_names.index(name)
            exact = float((claims.embeddings[claimed] - trained[name]).abs().max()) <= error
            with_the_colluder = name in sent[clients[0].name]
            assert exact == (with_the_colluder or "suppress" not in defense)
            assert claims.names[claimed] == name or not with_the_colluder
            read[with_the_colluder] += 1
    assert error < 2e-6
    assert min(read[True], read[False]) > 5
