"""What ranks and refusals tell a malicious server that chooses the table, and how often: no more than the record states."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from fkgsec.experiments.deploy.core.messages import Validated, decode
from fkgsec.experiments.deploy.server import LEARNS, Server
from tests.deploy.test_redteam import send, started

FAR = 15.0
"""Within the clip of 16. Of a table of zeros these rows are far from all others."""
NUM_QUERIES = 20
OPTIONS = {
    "size": 600,
    "model": "transe",
    "defense": "psu,secagg",
    "randomness": "operating system",
    "rounds": 2 * NUM_QUERIES + 1,
    "patience": 0,
}


class Oracle:
    """A server that sends a table in each round, and has all parties validate it. Nobody trains."""

    def __init__(self, apart: Any) -> None:
        self.apart, (self.server, self.table, first) = apart, started(apart)
        self.zeros, self.round = torch.zeros_like(first), 0
        self.before = self.ask()

    def ask(self, *rows: int) -> dict[str, float]:
        """By party the sum of reciprocal ranks under a table of zeros but for these rows."""
        self.round += 1
        content = self.zeros.clone()
        content[list(rows)] = FAR
        self.server.exchange.central.opened[self.table] = True  # type: ignore[attr-defined]
        send(self.server, self.round, self.table, content, self.server.agreement.addresses, failed=False)
        return {party: decode(one().content, Validated).total for party, one in validation(self.server, self.round)}

    def places(self, party: str) -> list[int]:
        """Where a party's rows stand, in its own order."""
        client = self.apart.parties[party.removeprefix("client/")]
        return client.defended.places[self.table].tolist()

    def linked(self, party: str) -> list[tuple[int, int]]:
        """The pairs of rows that a party's validation triples join."""
        client, places = self.apart.parties[party.removeprefix("client/")].data.clients[0], self.places(party)
        return [(places[head], places[tail]) for head, _, tail in client.valid.tolist()]


def validation(server: Server, round: int) -> list[tuple[str, Any]]:
    return list(server.talk.post_all("validate", round=round).items())


def test_a_validation_tells_whether_a_party_holds_a_row(consortium: Callable[..., Any]) -> None:
    oracle = Oracle(consortium(**OPTIONS))
    rows = np.random.default_rng(0).permutation(len(oracle.zeros))[:NUM_QUERIES].tolist()
    said, truth = list[bool](), list[bool]()
    for row in rows:
        for party, total in oracle.ask(row).items():
            said.append(total != oracle.before[party])
            truth.append(row in oracle.places(party))
    most = max(np.mean(truth), 1 - np.mean(truth))
    assert np.mean(np.equal(said, truth)) > 0.9 > most
    assert "whether a client holds a row" in LEARNS[-1]


def test_a_validation_tells_whether_a_party_has_a_validation_triple_between_two_entities(
    consortium: Callable[..., Any],
) -> None:
    """Two rows that are alone at one place rank each other first."""
    oracle, rng = Oracle(consortium(**OPTIONS)), np.random.default_rng(0)
    said, truth = list[bool](), list[bool]()
    for number in range(NUM_QUERIES):
        pairs = oracle.linked(oracle.server.agreement.addresses[number % 3])
        head, tail = (
            pairs[number % len(pairs)] if number % 2 else rng.choice(len(oracle.zeros), 2, replace=False).tolist()
        )
        for party, total in oracle.ask(head, tail).items():
            said.append(total > oracle.before[party] + 0.5)
            truth.append((head, tail) in oracle.linked(party) or (tail, head) in oracle.linked(party))
    assert 5 < sum(truth) < len(truth) / 2
    assert np.equal(said, truth).all()
    assert "or a triple of the split between two entities" in LEARNS[-1]


def test_a_party_validates_once_in_each_validated_round(consortium: Callable[..., Any]) -> None:
    """Also after a restart, and for rounds that the run does not have."""
    apart = consortium(**(OPTIONS | {"rounds": 6, "eval_every": 2}))
    server, table, first = started(apart)
    answered: dict[str, int] = dict.fromkeys(server.agreement.addresses, 0)
    for round in range(1, 9):
        if round <= 6:
            server.exchange.central.opened[table] = True  # type: ignore[attr-defined]
            send(server, round, table, first + round, server.agreement.addresses, failed=False)
        for _ in range(3):
            for party, one in validation(server, round):
                answered[party] += not one().silence
            apart.restart(apart.names[0])
    assert set(answered.values()) == {3}
    assert "at most once in each validated round" in LEARNS[-1]


def test_a_party_refuses_once_in_a_run_because_training_moved_nothing(consortium: Callable[..., Any]) -> None:
    """With ComplEx, training moves rows of zeros only next to a row that the party holds. A party that refused takes part in no
    sum again, so that later tables tell nothing of it."""
    apart = consortium(**(OPTIONS | {"model": "complex", "rounds": 12}))
    server, table, first = started(apart, 1e-30)
    refused: dict[str, list[bool]] = {party: [] for party in server.agreement.addresses}
    for round in range(1, 12):
        server.exchange.central.opened[table] = True  # type: ignore[attr-defined]
        content = torch.zeros_like(first)
        content[round - 1] = 0.5
        send(server, round, table, content, server.agreement.addresses, failed=False)
        server.train(round + 1, server.participants(round + 1), lambda: None)
        (outcome,) = server.upload(round + 1, server.participants(round + 1))
        for party, told in refused.items():
            told.append("training changed no row" in outcome.excluded.get(party, ""))
    for told in refused.values():
        assert told == sorted(told)  # from the first refusal on all are
    assert any(told[-1] for told in refused.values())
    assert "a client refuses once" in LEARNS[-1]
