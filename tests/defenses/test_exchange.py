"""Protected rounds against rounds in clear: the same numbers, less in sight, whoever falls silent and wherever a run stops."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from torch import Tensor

from fkgsec.data.graph import FederatedGraph
from fkgsec.defenses.transport import make_transport
from fkgsec.exchange import Holding, Transport, Uploaded
from fkgsec.federation.loop import run_federation
from fkgsec.federation.messages import SERVER, AnyMessage, Channel, Opened, ProtocolMessage, Rows, Transcript
from fkgsec.federation.recipes import RECIPES, Table
from fkgsec.kge.options import KgeOptions
from fkgsec.kge.result import KgeResult
from fkgsec.protocols import psu
from fkgsec.protocols.secagg.messages import MaskedUpload

replace = msgspec.structs.replace


def fraction_bits(num_clients: int, clip: int = 16, bits: int = 32) -> int:
    """The most with which a sum of `num_clients` values up to `clip` keeps its sign."""
    return max(f for f in range(31) if 2 * num_clients * clip * 2**f < 2**bits)


def bound(num_clients: int) -> float:
    """Half a unit of the last place for each client."""
    return num_clients * 0.5 * 2.0 ** -fraction_bits(num_clients)


def names_of(graph: FederatedGraph, table: Table) -> dict[str, list[str]]:
    """The names that each party holds, those that it uploads first."""
    vocabulary = graph.entities if table == "entities" else graph.relations
    return {
        f"client/{client.name}": [
            vocabulary[i] for i in (client.entity_ids if table == "entities" else client.relation_ids)
        ]
        for client in graph.clients
    }


def clear_sum(
    union: list[str], held: Mapping[str, list[str]], rows: Mapping[str, Tensor]
) -> tuple[np.ndarray, np.ndarray]:
    """Sum float64 `[n, width]` and holders `[n]` of uploads, row by row."""
    place = {name: number for number, name in enumerate(union)}
    total, holders = np.zeros((len(union), next(iter(rows.values())).shape[1])), np.zeros(len(union), dtype=np.int64)
    for party, own in rows.items():
        for name, row in zip(held[party], own.numpy().astype(np.float64), strict=False):
            total[place[name]] += row
            holders[place[name]] += 1
    return total, holders


def figures(result: KgeResult) -> tuple[object, ...]:
    """What a run learnt, without what crossed."""
    rounds = [(e.round, e.loss, e.valid, e.num_survivors, e.num_clipped) for e in result.rounds]
    ranks = [array.tolist() for array in result.test_ranks]
    tables = [torch.cat([t.entities.flatten(), t.relations.flatten()]).tolist() for t in result.tables]
    trained = [torch.cat([t.entities.flatten(), t.relations.flatten()]).tolist() for t in result.trained]
    return rounds, result.best_round, ranks, tables, trained


def masked_uploads(messages: list[AnyMessage]) -> dict[str, MaskedUpload]:
    """The last masked upload of each party."""
    sent = {}
    for message in messages:
        if isinstance(message, ProtocolMessage) and message.step == "secagg-masked-upload":
            sent[message.sender] = psu.decode_message(message.content)
    return sent


# The same numbers.


class SumsInClear(Transport):
    """What secure aggregation must compute: integers, summed in clear over given survivors (all, where none are given)."""

    survivors: Mapping[int, set[str]] = {}

    def upload(self, round: int, table: Table, rows: Mapping[str, Tensor], **refusals: Any) -> Uploaded:
        shared = self.server[table]
        scale = 2.0 ** fraction_bits(self.options.num_participants(len(self.parties)))
        total = np.zeros(shared.rows.shape, dtype=np.int64)
        holders = np.zeros(len(shared.names), dtype=np.int64)
        present = self.survivors.get(round, set(rows))
        for party in present:
            ids = shared.holdings[party][: len(rows[party])].numpy()
            np.add.at(total, ids, np.rint(rows[party].numpy().astype(np.float64) * scale).astype(np.int64))
            np.add.at(holders, ids, 1)
        mean = torch.from_numpy((total / scale / np.maximum(holders, 1)[:, None]).astype(np.float32))
        shared.rows = torch.where(torch.from_numpy(holders > 0)[:, None], mean, shared.rows)
        return Uploaded(len(present))


@pytest.mark.parametrize(
    ("algorithm", "clients", "defense"), [("fede", 2, "psu,secagg"), ("fede", 5, "secagg"), ("fedr", 3, "psu,secagg")]
)
def test_a_protected_run_is_the_run_of_the_same_integers_bit_for_bit(
    algorithm: str,
    clients: int,
    defense: str,
    graph: Callable[[int], FederatedGraph],
    options: KgeOptions,
    remembered: Callable,
) -> None:
    """And its table is the clear mean up to rounding."""
    options = replace(options, algorithm=algorithm)
    reference = run_federation(graph(clients), options, make_transport=SumsInClear)
    result, exchange = remembered(graph(clients), replace(options, defense=defense))
    assert figures(result) == figures(reference)
    (table,) = RECIPES[algorithm].shared
    held, union = names_of(graph(clients), table), exchange.server[table].names
    assert set(union) == set().union(*map(set, held.values()))
    assert len(exchange.uploads) == options.rounds
    for upload in exchange.uploads:
        total, holders = clear_sum(union, held, upload.rows)
        (opened,) = upload.opened
        opened_total, opened_holders = opened.sums()
        assert opened_holders.tolist() == holders.tolist()
        assert 0 < np.abs(opened_total - total).max() <= bound(clients) == opened.error
        some = holders > 0
        mean = total[some] / holders[some, None]
        error = np.abs(upload.after.numpy()[some].astype(np.float64) - mean)
        assert (error <= bound(clients) / holders[some, None] + np.abs(mean) * 2.0**-23).all()
        assert torch.equal(upload.after[~some], upload.before[~some])
    assert [entry.num_survivors for entry in result.rounds] == [0, clients, clients]


def test_inputs_of_the_survivors_add_up_to_what_was_opened(
    graph: Callable[[int], FederatedGraph], options: KgeOptions, remembered: Callable
) -> None:
    """Exactly, noise and suppression included: `KgeResult.inputs` is what an attack with a colluder subtracts."""
    for defense in ("psu,secagg", "secagg,suppress:t=2", "secagg,dp:clip=0.5,epsilon=5", "secagg:dropout=0.1"):
        result, _ = remembered(graph(5), replace(options, defense=defense))
        opened = [note for note in result.transcript.opened(result.best_round) if note.total]
        for note in opened:
            added = sum(result.inputs[note.table][party].numpy() for party in note.survivors)
            assert np.array_equal(added, note.sums()[0])
        assert opened


def test_values_beyond_the_clip_are_cut(by_hand: Callable) -> None:
    held = {"client/a": ["x", "y"], "client/b": ["x"]}
    exchange = by_hand("secagg:clip=2", held)
    rows = {
        "client/a": torch.tensor([[5.0, 1.0, 2.0], [0.0, -2.5, 0.5]]),
        "client/b": torch.tensor([[3.0, 1.0, -7.0]]),
    }
    assert exchange.upload(1, "entities", rows) == Uploaded(2)
    after = dict(zip(exchange.server["entities"].names, exchange.server["entities"].rows.tolist(), strict=True))
    assert after == {"x": [2.0, 1.0, 0.0], "y": [0.0, -2.0, 0.5]}


# What crosses.


def crossing(result: KgeResult, direction: str, round: int) -> list[bytes]:
    """The serialised messages of a retained round in one direction."""
    transcript = result.transcript
    lines = [line for line in transcript.entries if line.round == round]
    return [frame for line, frame in zip(lines, transcript.frames[round], strict=True) if line.direction == direction]


def test_no_name_crosses_before_the_union_is_told(graph: Callable[[int], FederatedGraph], options: KgeOptions) -> None:
    """With private set union. With secure aggregation alone the alignment says everything in clear."""
    union = {name.encode() for names in names_of(graph(3), "entities").values() for name in names}
    assert min(map(len, union)) >= 5  # else a name could occur in a key by chance
    seen = {}
    for defense in ("psu,secagg", "secagg"):
        result = run_federation(graph(3), replace(options, defense=defense), make_transport=make_transport)
        kinds = [line.kind for line in result.transcript.entries if line.round == 0]
        frames = result.transcript.frames[0]
        before = kinds.index("psu-union-list") if defense.startswith("psu") else len(kinds)
        seen[defense] = {name for name in union if any(name in frame for frame in frames[:before])}
        assert ("alignment" in kinds) == (defense == "secagg")
        if defense == "secagg":
            continue
        assert kinds[before:].count("psu-union-list") == 3
        assert all(name in frames[before] for name in union)
        up = crossing(result, "up", 0)
        assert not any(name in frame for name in union for frame in up)
    assert seen == {"psu,secagg": set(), "secagg": union}


def uploaded_bytes(uploads: Mapping[str, Tensor], num_clients: int) -> list[bytes]:
    """Every uploaded row, as float32 and as the ring elements that are masked."""
    rows = np.concatenate([own.numpy() for own in uploads.values()])
    integers = np.rint(rows.astype(np.float64) * 2.0 ** fraction_bits(num_clients)).astype(np.int64)
    return [row.astype("<f4").tobytes() for row in rows] + [row.astype("<u4").tobytes() for row in integers]


@pytest.mark.parametrize(
    ("algorithm", "defense"),
    [
        ("fede", "psu,secagg"),
        ("fede", "secagg:cipher=chacha20"),
        ("fedr", "secagg,suppress:t=2"),
        ("feds", "secagg"),
        ("fede", ""),
    ],
)
def test_no_row_goes_up_in_clear(
    algorithm: str,
    defense: str,
    graph: Callable[[int], FederatedGraph],
    options: KgeOptions,
    remembered: Callable,
) -> None:
    result, exchange = remembered(graph(3), replace(options, algorithm=algorithm, defense=defense or "secagg"))
    if not defense:  # the same rows, sent in clear: the search must find them
        channel = Channel()
        clear = Transport(channel, options, exchange.parties, RECIPES[algorithm].shared, "in clear")
        for upload in exchange.uploads:
            if upload.round == 1:
                held = names_of(graph(3), upload.table)
                clear.align(upload.table, {p: Holding(held[p], len(upload.rows[p])) for p in exchange.parties})
            clear.initialise(upload.table, upload.before)
            clear.upload(upload.round, upload.table, upload.rows)
        up = b"".join(channel.transcript.frames[options.rounds])
    else:
        kinds = {line.kind for line in result.transcript.entries if line.direction == "up" and line.round > 0}
        assert "rows" not in kinds
        assert "secagg-masked-upload" in kinds
        up = b"".join(crossing(result, "up", options.rounds))
    last = [upload for upload in exchange.uploads if upload.round == options.rounds]
    for upload in last:
        secret = uploaded_bytes(upload.rows, 3)
        found = sum(row in up for row in secret)
        assert found == (0 if defense else len(secret) / 2)
    assert last


# Seeds, and what a different owner changes.


def test_equal_rows_are_masked_anew_in_every_round_and_in_every_run(by_hand: Callable) -> None:
    held = {f"client/{name}": ["x", "y"] for name in "abc"}
    rows = {party: torch.ones(2, 3) for party in held}
    uploads = []
    for _ in range(2):
        exchange = by_hand("psu,secagg", held, protocol_seed=None)
        for number in (1, 2):
            exchange.upload(number, "entities", rows)
            sent = masked_uploads(exchange.channel.transcript.messages(number))
            assert sent.keys() == held.keys()
            uploads += [message.vectors["rows"] for message in sent.values()]
    assert len(set(uploads)) == len(uploads) == 12


def what_the_server_sees(
    exchange: Transport, table: Table, rows: Mapping[str, Tensor]
) -> tuple[list[str], list[Opened], list[tuple[object, ...]]]:
    exchange.upload(1, table, rows)
    transcript: Transcript = exchange.channel.transcript
    return exchange.server[table].names, transcript.opened(1), [tuple(line) for line in transcript.entries]


def test_who_holds_a_row_makes_no_difference_to_the_server(by_hand: Callable) -> None:
    """Clients trade rows, the sums stay: union, sums, holders and the kind and size of every message are the same.

    What differs is under masks (`test_hiding.py` in `tests/protocols/secagg` and `psu`). Without private set union
    the server does see who holds what.
    """
    row = {name: torch.from_numpy(np.random.default_rng(number).normal(size=3)) for number, name in enumerate("uvwxyz")}
    worlds = (
        {"a": "uvw", "b": "wx", "c": "yz"},
        {"a": "w", "b": "uvwxy", "c": "z"},
        {"a": "", "b": "w", "c": "uvwxyz"},
    )
    views, in_clear = [], []
    for world in worlds:
        held = {f"client/{party}": [f"entity {name}" for name in names] for party, names in world.items()}
        rows = {
            f"client/{party}": torch.stack([row[name] for name in names]).float() if names else torch.zeros(0, 3)
            for party, names in world.items()
        }
        views.append(what_the_server_sees(by_hand("psu,secagg", held), "entities", rows))
        in_clear.append(what_the_server_sees(by_hand("secagg", held), "entities", rows))
    assert views[0] == views[1] == views[2]
    assert in_clear[0] != in_clear[1] != in_clear[2]


# Dropouts.

HELD = {
    "client/a": ["all", "ab", "abc", "a"],
    "client/b": ["all", "ab", "abc"],
    "client/c": ["all", "abc", "cd"],
    "client/d": ["all", "cd", "de"],
    "client/e": ["all", "de"],
}


def drawn_rows(round: int) -> dict[str, Tensor]:
    rng = np.random.default_rng([11, round])
    return {
        party: torch.from_numpy(rng.normal(size=(len(names), 3)).astype(np.float32)) for party, names in HELD.items()
    }


def test_the_sum_is_that_of_the_survivors_and_a_round_of_too_few_changes_nothing(by_hand: Callable) -> None:
    exchange = by_hand("psu,secagg:dropout=0.25", HELD)
    seen = Counter()
    for number in range(1, 31):
        exchange.upload(number, "entities", drawn_rows(number))
        upload = exchange.uploads[-1]
        arrived = set(masked_uploads(exchange.channel.transcript.messages(number)))
        seen[upload.outcome.num_survivors] += 1
        if not upload.outcome.num_survivors:
            assert upload.opened == []
            assert torch.equal(upload.after, upload.before)
            continue
        (opened,) = upload.opened
        assert set(opened.survivors) == arrived
        assert len(arrived) == upload.outcome.num_survivors >= 4
        present = {party: upload.rows[party] for party in opened.survivors}
        total, holders = clear_sum(exchange.server["entities"].names, HELD, present)
        opened_total, opened_holders = opened.sums()
        assert opened_holders.tolist() == holders.tolist()
        assert np.abs(opened_total - total).max() <= bound(5)
        mean = total / np.maximum(holders, 1)[:, None]
        expected = np.where(holders[:, None] > 0, mean, upload.before.numpy())
        assert np.abs(upload.after.numpy() - expected).max() <= 1e-6
    assert seen.keys() == {0, 4, 5}  # void, one gone, nobody gone: the schedule has them all
    assert min(seen.values()) >= 3


# Suppression.


@pytest.mark.parametrize(("t", "gone"), [(2, {"a"}), (3, {"a", "ab", "cd", "de"})])
def test_rows_of_few_holders_never_enter_the_sum(t: int, gone: set[str], by_hand: Callable) -> None:
    exchange = by_hand(f"psu,secagg,suppress:t={t}", HELD)
    names = exchange.server["entities"].names
    kept = np.array([name not in gone for name in names])
    assert exchange.upload(1, "entities", drawn_rows(1)).num_survivors == 5
    upload = exchange.uploads[-1]
    counted, opened = upload.opened
    total, holders = clear_sum(names, HELD, upload.rows)
    assert counted.holders == holders.astype("<i8").tobytes()
    assert counted.total == b""
    opened_total, opened_holders = opened.sums()
    assert opened_holders.tolist() == np.where(kept, holders, 0).tolist()
    assert (opened_total[~kept] == 0).all()
    assert np.abs(opened_total[kept] - total[kept]).max() <= bound(5)
    assert torch.equal(upload.after[~kept], upload.before[~kept])
    for party, received in exchange.broadcast(1, "entities", exchange.parties).items():
        assert received.taken is not None
        assert received.taken.tolist() == [name not in gone for name in HELD[party]]


def test_a_round_whose_members_leave_between_counting_and_sending_opens_no_rows(by_hand: Callable) -> None:
    """Else a row that the counts said is common may be one client's, and the counts' change would show what the gone hold."""
    exchange = by_hand("secagg:dropout=0.3,threshold=3,suppress:t=2", HELD)
    left_between = 0
    for number in range(1, 21):
        exchange.upload(number, "entities", drawn_rows(number))
        upload = exchange.uploads[-1]
        exchange.broadcast(number, "entities", exchange.parties)
        gone = exchange.terms.dropouts(number, list(HELD)).keys()
        if upload.opened and gone & set(upload.opened[0].survivors):
            left_between += 1
            (counted,) = upload.opened
            assert counted.total == b""
            assert upload.outcome.num_survivors == 0
            assert torch.equal(upload.after, upload.before)
            for message in masked_uploads(exchange.channel.transcript.messages(number)).values():
                assert message.vectors.keys() == {"holders"}
    assert left_between >= 3


# Noise, on its way through the exchange.


def test_local_noise_goes_up_in_clear_and_leaves_nobody_as_it_was(
    graph: Callable[[int], FederatedGraph], options: KgeOptions, remembered: Callable
) -> None:
    """Without secure aggregation: what crosses is the last broadcast, the clipped change, and the claimed noise."""
    defense = "dp:clip=0.01,noise_multiplier=2,unit=row"
    result, exchange = remembered(graph(3), replace(options, defense=defense))
    sent = {
        message.sender: message.unpack()
        for message in result.transcript.messages(2)
        if isinstance(message, Rows) and message.receiver == SERVER
    }
    upload = exchange.uploads[1]
    received = exchange.uploads[0].after
    place = {name: number for number, name in enumerate(exchange.server["entities"].names)}
    added = []
    for party, names in names_of(graph(3), "entities").items():
        assert sent[party].shape == upload.rows[party].shape
        assert not (sent[party] == upload.rows[party]).any()
        added.append((sent[party] - received[[place[name] for name in names[: len(sent[party])]]]).numpy().ravel())
    noise = np.concatenate(added)
    # Standard deviation 2 x 0.02; the clipped change adds at most 0.01 to a row's norm.
    assert abs(noise.std() / 0.04 - 1) < 5 / np.sqrt(2 * len(noise)) + 0.02
    assert "per row" in result.protection.lines()[-1]


def test_every_participant_adds_noise_to_every_row_whether_it_holds_it_or_not(by_hand: Callable) -> None:
    """Sparse noise would name the rows that a client holds. The value of a row without a holder stays as it was."""
    held = {"client/a": ["x", "y"], "client/b": ["x"], "client/c": ["x", "z"]}
    exchange = by_hand("secagg,dp:clip=0.1,noise_multiplier=1", held, width=400, participation=0.67)
    received = exchange.server["entities"].rows.clone()
    rows = {party: received[: len(held[party])] for party in ("client/a", "client/b")}
    exchange.upload(1, "entities", rows)
    upload = exchange.uploads[-1]
    total, holders = upload.opened[0].sums()
    assert holders.tolist() == [2, 1, 0]
    assert torch.equal(upload.after[2], upload.before[2])
    # Two clients at a cohort of one (the other may collude): each alone has the whole noise, 1 x 0.2.
    clear, _ = clear_sum(exchange.server["entities"].names, held, rows)
    for number in range(3):
        spread = (total - clear)[number].std()
        assert abs(spread / (0.2 * np.sqrt(2)) - 1) < 5 / np.sqrt(800)
