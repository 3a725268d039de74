"""FedS in clear: the server puts each client's rows together over the rounds, and has nothing of those that never crossed."""

from __future__ import annotations

import functools
from collections import Counter
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

from fkgsec import ClientGraph, KgeOptions, generate_consortium
from fkgsec.attacks.options import THREAT_MODELS, KgeAttackOptions
from fkgsec.attacks.reconstruction.evaluation import NO_NAME
from fkgsec.attacks.reconstruction.inference import rank_pairs
from fkgsec.attacks.registry import build_view
from fkgsec.attacks.view import ALL, View
from fkgsec.exchange import Transport
from fkgsec.federation.checkpoint import RoundEntry
from fkgsec.federation.loop import Observer, run_federation
from fkgsec.federation.messages import (
    SERVER,
    Alignment,
    AnyMessage,
    Channel,
    Rows,
    SparseRows,
    Transcript,
    client_party,
    decode,
)
from fkgsec.federation.recipes import Table
from fkgsec.kge.result import KgeResult
from tests.attacks.pairs import Pair, reconstruct

ROUNDS = 6
CASES = [(0, 1.0), (2, 1.0), (2, 0.67), (20, 0.67)]
"""`sparse_rounds` and `participation`."""


class Hoard(Observer):
    """Keeps the messages of every round, which the run itself forgets."""

    def __init__(self) -> None:
        self.transcript: Transcript | None = None
        self.messages: dict[int, list[AnyMessage]] = {}

    def make_transport(self, channel: Channel, *parts: Any) -> Transport:
        self.transcript = channel.transcript
        return Transport(channel, *parts)

    def round_done(self, entry: RoundEntry) -> None:
        assert self.transcript is not None
        self.messages[entry.round] = [decode(frame) for frame in self.transcript.frames[entry.round]]


@functools.cache
def federate(sparse_rounds: int, participation: float = 1.0, seed: int = 0) -> tuple[KgeResult, Hoard]:
    """Three hospitals; in the first case the best round comes before the last."""
    options = KgeOptions(
        algorithm="feds", dim=16, gamma=4, rounds=ROUNDS, local_epochs=1, eval_every=1, patience=0, batch_size=64,
        num_negatives=8, learning_rate=0.05, settings={"sparsity": 0.2, "sparse_rounds": sparse_rounds},
        participation=participation, seed=seed, device="cpu",
    )  # fmt: skip
    hoard = Hoard()
    graph = generate_consortium(clients=3, size=900, seed=5)
    return run_federation(graph, options, observer=hoard, make_transport=hoard.make_transport), hoard


def uploaded_names(result: KgeResult) -> dict[str, list[str]]:
    """The names of the rows that each client trains, in its order."""
    names = result.graph.entities
    return {
        client_party(client.name): [names[number] for number in client.entity_ids[: client.num_trained_entities]]
        for client in result.graph.clients
    }


def seen_rows(result: KgeResult, hoard: Hoard, last: int) -> dict[str, dict[str, Tensor]]:
    """By client and name, the row as it crossed last in rounds 1 to `last`: message by message."""
    told = {message.sender: message.names for message in hoard.messages[0] if isinstance(message, Alignment)}
    holders = Counter(name for names in told.values() for name in names)
    seen: dict[str, dict[str, Tensor]] = {party: {} for party in told}
    for number in range(1, last + 1):
        for message in hoard.messages[number]:
            if message.receiver != SERVER:
                continue
            names = uploaded_names(result)[message.sender]
            if isinstance(message, SparseRows):
                places, rows, _ = message.unpack()
                sent = [names[place] for place in places.tolist()]
            else:  # a synchronised round: all rows that another client holds too
                assert isinstance(message, Rows)
                sent, rows = [name for name in names if holders[name] > 1], message.unpack()
            seen[message.sender] |= dict(zip(sent, rows, strict=True))
    return seen


def view_of(result: KgeResult, threat: str = "collusion", leak: float = 1.0) -> View:
    return build_view(result, THREAT_MODELS[threat], colluder=result.graph.clients[0].name, leak=leak, seed=0)


def attack(
    result: KgeResult, threat: str = "collusion", unlinked_heads: int = 0
) -> tuple[dict[str, Pair], pd.DataFrame]:
    options = KgeAttackOptions(threat=(threat,), leak=(0.6,), inference="cosine", unlinked_heads=unlinked_heads)
    rows, items = reconstruct(result, options)
    unlinked = {row.victim: row.unlinked for row in rows if row.variant == "strongest"}
    papers = [row for row in rows if row.variant == "cosine"]
    return {row.victim: replace(row, unlinked=unlinked[row.victim]) for row in papers}, items


@pytest.mark.parametrize(("sparse_rounds", "participation"), CASES)
def test_rows_are_put_together_as_they_crossed(sparse_rounds: int, participation: float) -> None:
    """Up to the attacked round, each as it was last seen, NaN where it never was."""
    result, hoard = federate(sparse_rounds, participation)
    assert set(hoard.messages) == set(range(ROUNDS + 1))
    names = uploaded_names(result)
    seen = seen_rows(result, hoard, result.best_round)
    for victim in view_of(result).victims:
        party = client_party(victim.name)
        assert victim.entities is not None
        assert victim.entity_names is None
        assert len(victim.entities) == len(names[party])
        for name, row in zip(names[party], victim.entities, strict=True):
            if name in seen[party]:
                assert torch.equal(row, seen[party][name])
            else:
                assert row.isnan().all()
        assert 0 < len(seen[party]) < len(names[party])


def test_the_cases_are_of_some_kind() -> None:
    """Else the other tests could not fail: rows of several rounds, rounds after the best one, triples that are rebuilt."""
    later = other = rebuilt = 0
    for case in CASES:
        result, hoard = federate(*case)
        best, last = (seen_rows(result, hoard, number) for number in (result.best_round, ROUNDS))
        before = seen_rows(result, hoard, result.best_round - 1)
        for party, rows in best.items():
            later += sum(name not in rows or not torch.equal(rows[name], row) for name, row in last[party].items())
            other += sum(name in before[party] and torch.equal(before[party][name], row) for name, row in rows.items())
        row = attack(result)[0][ALL]
        rebuilt += round(row.trr.estimate.value * row.trr.estimate.n)
    assert min(later, other, rebuilt) > 10


@pytest.mark.parametrize(("sparse_rounds", "participation"), CASES)
@pytest.mark.parametrize("threat", ["collusion", "identifiers"])
def test_what_never_crossed_is_never_named_or_used(threat: str, sparse_rounds: int, participation: float) -> None:
    """Names that crossed for alignment are read whether or not a row did; a relation is never guessed without both rows."""
    result, hoard = federate(sparse_rounds, participation)
    seen = seen_rows(result, hoard, result.best_round)
    _, items = attack(result, threat)
    for client in result.graph.clients[1:]:
        crossed = seen[client_party(client.name)].keys()
        entities, triples = (
            items.query(f"item == '{kind}' and victim == '{client.name}'") for kind in ("entity", "triple")
        )
        unseen = [row for row in entities.to_dict("records") if row["head"] not in crossed]
        for row in unseen:
            if threat == "collusion":
                assert (row["guessed_head"], row["score"], row["right"]) == (NO_NAME, 0, False)
            else:
                assert row["right"]
        rows = triples.to_dict("records")
        whole = [crossed >= {row["head"], row["tail"]} for row in rows]
        assert [row["guessed_relation"] != NO_NAME for row in rows] == whole
        assert not any(row["right"] for row, both in zip(rows, whole, strict=True) if not both)
        assert min(len(unseen), sum(whole), len(whole) - sum(whole)) > 10


@pytest.mark.parametrize("threat", ["collusion", "identifiers"])
def test_nothing_hangs_on_the_numbers_that_stand_for_what_never_crossed(threat: str) -> None:
    """Before it sends a row, a client's record of what it sent last holds the first row, which the server must not use."""
    result, _ = federate(0)
    table: Table = "entities"
    parties = result.observed[table]
    noise = np.random.default_rng(2)
    for place, same in ((False, True), (True, False)):
        changed = {
            party: own._replace(
                rows=torch.where(
                    (own.seen == place)[:, None], torch.from_numpy(noise.normal(size=own.rows.shape)).float(), own.rows
                )
            )
            for party, own in parties.items()
        }
        other = replace(result, observed={table: changed})
        figures = [
            {
                name: (row.err.estimate, row.trr.estimate, row.unlinked)
                for name, row in attack(run, threat, 20)[0].items()
            }
            for run in (result, other)
        ]
        assert (figures[0] == figures[1]) == same


@pytest.mark.parametrize(("sparse_rounds", "participation"), CASES)
def test_err_and_trr_by_hand(sparse_rounds: int, participation: float) -> None:
    """Over all entities and triples of a victim, those that never crossed among the missed. TransE: relations by t - h."""
    result, hoard = federate(sparse_rounds, participation)
    colluder = view_of(result, leak=0.6).colluder
    assert colluder is not None
    seen = seen_rows(result, hoard, result.best_round)
    leakage, _ = attack(result)
    found = 0
    for client in result.graph.clients[1:]:
        rows = seen[client_party(client.name)]
        names = {name: most_similar(row, colluder.entities, colluder.entity_names) for name, row in rows.items()}
        right = sum(name == guessed for name, guessed in names.items())
        rebuilt = 0
        for head, relation, tail in client.to_global(client.train):
            ends = result.graph.entities[head], result.graph.entities[tail]
            if all(names.get(name) == name for name in ends):
                guessed = most_similar(rows[ends[1]] - rows[ends[0]], colluder.relations, colluder.relation_names)
                rebuilt += guessed == result.graph.relations[relation]
        row = leakage[client.name]
        assert (row.err.estimate.value, row.err.estimate.n) == (
            right / client.num_trained_entities,
            client.num_trained_entities,
        )
        assert (row.trr.estimate.value, row.trr.estimate.n) == (rebuilt / len(client.train), len(client.train))
        found += right
    assert found > 10


def most_similar(row: Tensor, keys: Tensor, names: np.ndarray) -> str:
    cosines = [float(row @ key / (row.norm() * key.norm())) for key in keys]
    return str(names[int(np.argmax(cosines))])


class TestUnlinked:
    """Without linked pairs: candidates are pairs of rows that crossed, and no others."""

    @pytest.mark.parametrize("threat", ["collusion", "identifiers"])
    def test_pairs_of_rows_that_crossed(self, threat: str) -> None:
        result, hoard = federate(0)
        seen = seen_rows(result, hoard, result.best_round)
        names, view = uploaded_names(result), view_of(result, threat, 0.6)
        leakage, _ = attack(result, threat, 10_000)
        for victim in view.victims:
            party = client_party(victim.name)
            crossed = np.array([name in seen[party] for name in names[party]])
            ranking = rank_pairs(view, victim, np.arange(len(crossed)))
            expected = crossed[:, None] & crossed[None, :] & ~np.eye(len(crossed), dtype=bool)
            assert (np.isfinite(ranking.scores) == expected).all()
            unlinked = leakage[victim.name].unlinked
            assert unlinked
            assert (unlinked["precision"].counts["heads"], unlinked["precision"].counts["pairs"]) == (
                len(crossed),
                expected.sum(),
            )

    def test_the_baseline_draws_among_the_same_pairs(self) -> None:
        """Names are read: what share of the pairs that crossed has the colluder's most frequent relation."""
        result, hoard = federate(0)
        seen = seen_rows(result, hoard, result.best_round)
        view = view_of(result, "identifiers", 0.6)
        leakage, _ = attack(result, "identifiers", 10_000)
        assert view.colluder is not None
        for client in result.graph.clients[1:]:
            crossed, unlinked = seen[client_party(client.name)].keys(), leakage[client.name].unlinked
            pairs = {
                (result.graph.entities[head], result.graph.entities[tail])
                for head, relation, tail in client.to_global(client.train)
                if result.graph.relations[relation] == view.colluder.majority_relation
            }
            lucky = sum(head != tail and crossed >= {head, tail} for head, tail in pairs)
            assert lucky < len(pairs)
            assert unlinked
            assert unlinked["precision"].baseline.value == pytest.approx(lucky / unlinked["precision"].counts["pairs"])


def test_of_a_client_that_never_took_part_nothing_is_seen() -> None:
    """One round, of two participants of three: the third has a reason instead of a figure."""
    result, _ = federate(0)
    for seed in range(20):
        options = msgspec.structs.replace(result.options, rounds=1, eval_every=1, participation=0.67, seed=seed)
        short = run_federation(result.graph, options)
        up = {line.sender for line in short.transcript.entries if line.round == 1 and line.direction == "up"}
        absent: list[ClientGraph] = [
            client for client in short.graph.clients[1:] if client_party(client.name) not in up
        ]
        if absent:
            break
    else:
        pytest.fail("no seed has a victim that sits the round out")
    leakage, _ = attack(short)
    for victim in view_of(short).victims:
        there = victim.name != absent[0].name
        assert (victim.entities is not None) == there
        assert leakage[victim.name].reason == (None if there else "no embedding of this client was transmitted")
