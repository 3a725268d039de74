"""Servers and parties that are killed and started again: the run ends as an undisturbed one, or a round without whom it lost."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file

from fkgsec.defenses.transport import make_transport
from fkgsec.errors import RunError
from fkgsec.experiments.deploy.core.measure import EMBEDDINGS
from fkgsec.experiments.deploy.core.messages import Answer, Reply, Request
from fkgsec.experiments.runs.record import Record, make_record
from fkgsec.federation import messages
from fkgsec.federation.loop import run_federation
from fkgsec.protocols.core.rounds import Silence


class Killed(BaseException):
    """In place of SIGKILL: nothing of the server runs after it."""


def dying(apart: Any) -> Callable[..., Any]:
    """A network in which the server dies at each request once, after the parties have answered it."""
    died: set[str] = set()

    def ask(stage: str, requests: Mapping[str, bytes]) -> Any:
        replies = list(apart.ask(stage, requests))
        if stage not in died:
            died.add(stage)
            raise Killed
        return replies

    return ask


def serve_through(apart: Any, ask: Callable[..., Any], **more: Any) -> tuple[Record, int]:
    """The record, and how often the server was started anew."""
    from fkgsec.experiments.deploy.server import serve

    for deaths in range(100):
        try:
            return serve(apart.spec, apart.terms, ask, apart.root / "server", **more), deaths
        except Killed:
            continue
    raise AssertionError("it never ends")


@pytest.mark.parametrize(
    ("algorithm", "defense", "every_s"),
    [
        ("feds", "", 0.0),
        ("fede", "psu,secagg", 1e9),
        pytest.param("fede", "psu,secagg", 0.0, marks=pytest.mark.slow),
        pytest.param("feds", "secagg,suppress:t=2", 0.0, marks=pytest.mark.slow),
    ],
)
def test_a_server_that_dies_at_every_request_ends_with_the_record_of_an_undisturbed_run(
    algorithm: str,
    defense: str,
    every_s: float,
    consortium: Callable[..., Any],
    plain: Callable[[Record], dict[str, Any]],
) -> None:
    apart = consortium(algorithm=algorithm, defense=defense, rounds=2)
    together = run_federation(apart.graph, apart.terms.options, make_transport=make_transport)
    record, deaths = serve_through(apart, dying(apart), checkpoint_every_s=every_s)
    assert deaths >= 4
    assert plain(record) == plain(make_record(apart.spec, together))


def test_a_party_that_is_restarted_between_requests_trains_on_with_the_same_bits(
    consortium: Callable[..., Any], plain: Callable[[Record], dict[str, Any]]
) -> None:
    apart = consortium(algorithm="fedlu", rounds=3)
    together = run_federation(apart.graph, apart.terms.options)

    def restarting(stage: str, party: str, request: bytes) -> None:
        apart.restart(party.removeprefix("client/"))

    apart.fault = restarting
    assert plain(apart.serve()) == plain(make_record(apart.spec, together))
    for place, name in enumerate(apart.names):
        own = load_file(apart.root / name / EMBEDDINGS)
        assert torch.equal(own["private.entities"], together.private[place].entities)


def test_a_party_killed_between_mask_and_unmask_is_in_the_sum_and_takes_part_again(
    consortium: Callable[..., Any], plain: Callable[[Record], dict[str, Any]]
) -> None:
    apart = consortium(defense="psu,secagg:threshold=2", rounds=3)
    together = run_federation(apart.graph, apart.terms.options, make_transport=make_transport)

    def killing(stage: str, party: str, request: bytes) -> Silence | None:
        if (stage, party) == ("round 2: confirm", "client/hospital-2"):
            apart.restart("hospital-2")
            return Silence("killed")
        return None

    apart.fault = killing
    server, progress = apart.train()
    # Its masked upload was in: the others' shares of its secrets open the sum, which is that of all three.
    assert [entry.num_survivors for entry in progress.rounds] == [0, 3, 3, 3]
    assert progress.rounds[3].valid == together.rounds[3].valid
    assert torch.equal(server.exchange.server["entities"].rows, _last_rows(together))


def _last_rows(together: Any) -> torch.Tensor:
    from fkgsec.federation.messages import Rows

    last = max(together.transcript.frames)
    sent = [one for one in together.transcript.messages(last) if isinstance(one, Rows)]
    return sent[0].unpack()


def test_a_party_restarted_after_the_private_union_has_it_still(
    consortium: Callable[..., Any], plain: Callable[[Record], dict[str, Any]]
) -> None:
    apart = consortium(defense="psu,secagg", rounds=2)
    together = run_federation(apart.graph, apart.terms.options, make_transport=make_transport)

    def restarting(stage: str, party: str, request: bytes) -> None:
        if stage == "round 1: broadcast-claim":
            apart.restart(party.removeprefix("client/"))

    apart.fault = restarting
    assert plain(apart.serve()) == plain(make_record(apart.spec, together))


def test_a_party_killed_before_its_upload_is_left_out_and_takes_part_again(consortium: Callable[..., Any]) -> None:
    apart = consortium(defense="secagg:threshold=2", rounds=3)

    def killing(stage: str, party: str, request: bytes) -> Silence | None:
        if (stage, party) == ("round 2: mask", "client/hospital-2"):
            apart.restart("hospital-2")
            return Silence("killed")
        return None

    apart.fault = killing
    _, progress = apart.train()
    assert [entry.num_survivors for entry in progress.rounds] == [0, 3, 2, 3]
    assert [sorted(entry.excluded) for entry in progress.rounds] == [[], [], ["client/hospital-2"], []]


@pytest.mark.parametrize(
    ("algorithm", "defense"),
    [("fede", ""), ("feds", "secagg:threshold=2"), ("fede", "secagg:threshold=2,suppress:t=2")],
)
def test_a_party_that_misses_a_round_is_told_what_it_missed(
    algorithm: str, defense: str, consortium: Callable[..., Any]
) -> None:
    apart = consortium(algorithm=algorithm, defense=defense, rounds=4)

    def away(stage: str, party: str, request: bytes) -> Silence | None:
        return Silence("timeout") if party == "client/hospital-3" and stage.startswith("round 2:") else None

    apart.fault = away
    record = apart.serve()
    assert [entry.num_survivors for entry in record.rounds] == [0, 3, 2, 3, 3]
    assert record.best_round in range(1, 5)


@pytest.mark.parametrize("round", [1, 2])
def test_a_round_without_any_upload_sends_no_sum_of_another_round(round: int, consortium: Callable[..., Any]) -> None:
    apart, counts = consortium(algorithm="feds", rounds=3), dict[int, list[int]]()

    def refusing(stage: str, party: str, request: bytes) -> bytes | None:
        items = msgspec.msgpack.decode(request, type=Request).items
        for frame in (one for item in items if item.step == "broadcast" and item.round for one in item.frames or ()):
            sent = messages.decode(frame)
            assert isinstance(sent, messages.SparseRows)
            counts.setdefault(sent.round, []).append(int(sent.unpack()[2].sum()))
        if stage != f"round {round}: upload":
            return None
        reply = msgspec.msgpack.decode(apart.parties[party.removeprefix("client/")].answer(request), type=Reply)
        answers = [*reply.answers[:-1], Answer(silence="no space is left")]
        return msgspec.msgpack.encode(msgspec.structs.replace(reply, answers=answers))

    apart.fault = refusing
    _, progress = apart.train()
    assert [entry.num_survivors for entry in progress.rounds[1:]] == [3 * (number != round) for number in (1, 2, 3)]
    assert counts[round] == [0, 0, 0]
    assert all(counts[3 - round])


def test_a_restarted_party_gives_no_second_share_of_a_session(consortium: Callable[..., Any]) -> None:
    apart = consortium(defense="secagg:threshold=2", rounds=1)
    seen: list[tuple[str, bytes]] = []

    def noting(stage: str, party: str, request: bytes) -> None:
        if party == "client/hospital-1":
            seen.append((stage, request))

    apart.fault = noting
    apart.train()
    unmask = next(request for stage, request in seen if stage == "round 1: unmask")
    party = apart.parties["hospital-1"]
    again = msgspec.msgpack.decode(unmask, type=Request)
    later = msgspec.msgpack.encode(Request(again.run, 1_000, again.items))
    replies = [msgspec.msgpack.decode(party.answer(later), type=Reply)]
    apart.restart("hospital-1")
    replies.append(msgspec.msgpack.decode(apart.parties["hospital-1"].answer(later), type=Reply))
    for reply in replies:
        assert all(not answer.frames for answer in reply.answers)
    assert "comes too late" in replies[1].answers[0].silence


def test_when_nobody_answers_the_server_stops_and_goes_on_when_started_again(
    consortium: Callable[..., Any], plain: Callable[[Record], dict[str, Any]]
) -> None:
    apart = consortium(rounds=2)
    together = run_federation(apart.graph, apart.terms.options)
    apart.fault = lambda stage, party, request: Silence("unplugged") if stage.startswith("round 2:") else None
    with pytest.raises(
        RunError, match=r"round 2: upload: no answer of client/hospital-1: unplugged; .* start the server"
    ):
        apart.serve()
    apart.fault = lambda stage, party, request: None
    assert plain(apart.serve()) == plain(make_record(apart.spec, together))
