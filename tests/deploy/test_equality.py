"""Parties apart come to the record, the tables, the messages and the order of messages of one process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fkgsec.defenses.transport import make_transport
from fkgsec.experiments.runs.record import Record, make_record, read_record
from fkgsec.federation.loop import run_federation
from fkgsec.kge.result import KgeResult

CASES = [
    *[(name, "") for name in ("fedr", "feds", "fedlu")],
    ("fede", "psu,secagg"),
    ("feds", "secagg"),
]
MORE = [
    *[(name, "") for name in ("fedep", "fedepl", "fedprox", "fedec", "pfedeg", "fede-svd", "fede-svd+", "fede-kd")],
    *[("fede", defense) for defense in ("robust:rule=median", "psu,secagg,suppress:t=2", "secagg:bits=64")],
    *[("fedr", "psu,secagg"), ("fedlu", "secagg"), ("feds", "secagg,suppress:t=2"), ("fede-svd", "secagg")],
]


@pytest.mark.parametrize(
    ("algorithm", "defense"), [*CASES, *(pytest.param(*case, marks=pytest.mark.slow) for case in MORE)]
)
def test_apart_is_together(
    algorithm: str,
    defense: str,
    consortium: Callable[..., Any],
    plain: Callable[[Record], dict[str, Any]],
    same_embeddings: Callable[..., bool],
) -> None:
    settings = {"columns": 2, "rank": 1} if algorithm.startswith("fede-svd") else {}
    apart = consortium(algorithm=algorithm, defense=defense, **settings)
    together = run_federation(apart.graph, apart.terms.options, make_transport=make_transport)
    assert isinstance(together, KgeResult)
    record = apart.serve()
    assert plain(record) == plain(make_record(apart.spec, together))
    assert plain(read_record(apart.root / "server" / "record.json")) == plain(record)
    assert same_embeddings(apart, together)


@pytest.mark.parametrize(("algorithm", "defense"), [("feds", ""), ("fede", "psu,secagg")])
def test_messages_cross_in_the_order_and_number_of_one_process(
    algorithm: str, defense: str, consortium: Callable[..., Any]
) -> None:
    apart = consortium(algorithm=algorithm, defense=defense, rounds=2)
    together = run_federation(apart.graph, apart.terms.options, make_transport=make_transport)
    server, _ = apart.train()
    assert server.transcript.entries == together.transcript.entries
    assert server.transcript.frames.keys() == together.transcript.frames.keys()
    if not defense:  # masks, keys and salts are fresh
        assert server.transcript.frames == together.transcript.frames


@pytest.mark.parametrize(
    ("defense", "first", "each"), [("", 1, 1), ("secagg,suppress:t=2", 1, 12), ("psu,secagg", 7, 6)]
)
def test_a_round_costs_few_requests(defense: str, first: int, each: int, consortium: Callable[..., Any]) -> None:
    apart = consortium(defense=defense, eval_every=2, rounds=4)
    apart.train()
    assert len(apart.stages) == first + 4 * each + 1  # the last validation waits for no further round


def test_a_run_that_may_end_with_a_round_asks_before_the_next(
    consortium: Callable[..., Any], plain: Callable[[Record], dict[str, Any]]
) -> None:
    apart = consortium(patience=1, rounds=12, learning_rate=0.3)
    together = run_federation(apart.graph, apart.terms.options)
    record = apart.serve()
    assert len(record.rounds) < 13
    assert plain(record) == plain(make_record(apart.spec, together))


def test_clients_that_sit_rounds_out(consortium: Callable[..., Any], plain: Callable[[Record], dict[str, Any]]) -> None:
    apart = consortium(participation=0.67, clients=3, rounds=4, defense="secagg,suppress:t=2")
    together = run_federation(apart.graph, apart.terms.options, make_transport=make_transport)
    assert plain(apart.serve()) == plain(make_record(apart.spec, together))
