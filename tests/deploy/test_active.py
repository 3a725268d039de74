"""A server that asks what the rounds do not: out of order, again, of other rounds or in other steps. It gets nothing by it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from fkgsec.attacks.figure import Figure
from fkgsec.defenses.transport import make_transport
from fkgsec.errors import RunError
from fkgsec.experiments.deploy.core.messages import Answer, Item, Reply, Request
from fkgsec.federation.loop import run_federation
from fkgsec.federation.messages import SERVER, Rows
from fkgsec.protocols.core.rounds import Silence

NAME = "hospital-1"


def say(apart: Any, serial: int, *items: Item, name: str = NAME) -> list[Answer]:
    """The answers of a party to a request that its server makes up."""
    request = msgspec.msgpack.encode(Request(apart.terms.digest, serial, list(items)))
    reply = msgspec.msgpack.decode(apart.parties[name].answer(request), type=Reply)
    assert not reply.error
    return reply.answers


def lasting(apart: Any, name: str = NAME) -> int:
    return apart.parties[name].memory.lasting + 1


def test_names_do_not_leave_in_clear_where_a_private_union_was_agreed_on(consortium: Callable[..., Any]) -> None:
    apart = consortium(defense="psu,secagg")
    (answer,) = say(apart, 1, Item(step="alignment", table="entities"))
    assert answer.frames is None
    assert "by private set union" in answer.silence


def test_no_round_but_those_of_the_run_makes_a_party_enter_a_session_again(consortium: Callable[..., Any]) -> None:
    apart = consortium(defense="secagg", rounds=2)
    apart.train()
    party = apart.parties[NAME]
    before = dict(party.memory.uploads)
    for serial, number in enumerate((0, -1, 2, 0, 3), start=1000):
        (answer,) = say(apart, serial, Item(step="upload", round=number, table="entities"))
        assert not answer.frames
        assert party.memory.uploads == before


def test_a_private_union_is_made_once(consortium: Callable[..., Any]) -> None:
    apart = consortium(defense="psu,secagg", rounds=1)
    asked: list[bytes] = []
    apart.fault = lambda stage, party, request: asked.append(request) if party == f"client/{NAME}" else None
    apart.train()
    first = next(one for one in map(_request, asked) if any(item.step == "union" for item in one.items))
    (frames,) = (item.frames for item in first.items if item.step == "union")
    for serial, round in ((1000, 0), (1001, 1)):
        (answer,) = say(apart, serial, Item(step="union", round=round, table="entities", frames=frames))
        assert not answer.frames
    apart.restart(NAME)
    (answer,) = say(apart, 1002, Item(step="union", table="entities", frames=frames))
    assert "union entities in round 0 comes too late" in answer.silence


def test_a_party_that_is_restarted_in_a_private_union_enters_no_second_one(consortium: Callable[..., Any]) -> None:
    """The server may have the first one's tables: a second one of other parties would tell what those hold who left."""
    apart = consortium(defense="psu,secagg", rounds=1)
    apart.fault = lambda stage, party, request: Silence("unplugged") if stage.endswith("unmask") else None
    with pytest.raises(RunError, match="no answer"):
        apart.train()
    assert not apart.parties[NAME].memory.unions
    apart.restart(NAME)
    (answer,) = say(apart, 1000, Item(step="union", table="entities"))
    assert not answer.frames
    assert "was in the union of entities, and enters no second one" in answer.silence


def _request(content: bytes) -> Request:
    return msgspec.msgpack.decode(content, type=Request)


def test_a_party_answers_each_round_once_and_measures_one_model(consortium: Callable[..., Any]) -> None:
    apart, asked = consortium(rounds=2, eval_every=2, randomness="operating system"), list[Request]()
    apart.fault = lambda stage, party, request: asked.append(_request(request)) if party == f"client/{NAME}" else None
    apart.train()
    sent = [item for one in asked for item in one.items if item.step == "broadcast"]
    party, number, serial = apart.parties[NAME], lasting(apart), 1000
    before = party.task.snapshot()
    for item, reason in (
        (sent[-1], "broadcast entities in round 2 was taken already"),
        (sent[0], "broadcast entities in round 0 was taken already"),
        (Item(step="validate", round=2), "validate in round 2 was taken already"),
        (Item(step="validate", round=1), "which is not validated"),
        (Item(step="validate", round=4), "validate in round 4; allowed: 1..2"),
        (Item(step="train", round=3), "train in round 3; allowed: 1..2"),
        (Item(step="upload", round=3, table="entities"), "upload entities in round 3; allowed: 1..2"),
    ):
        for restarted in (False, True):
            if restarted:
                apart.restart(NAME)
            serial += 1
            again = msgspec.structs.replace(item, lasting=number) if item.lasting else item
            (answer,) = say(apart, serial, again)
            assert reason in answer.silence
    for name, rows in apart.parties[NAME].task.snapshot().items():
        assert rows.equal(before[name])
    _, first = say(apart, 2000, Item(step="keep", round=2, lasting=number), Item(step="measure", round=2))
    assert first.content
    apart.restart(NAME)
    another = [Item(step="candidate", round=1, lasting=number + 1), Item(step="keep", round=1, lasting=number + 2)]
    _, kept = say(apart, 2001, *another)
    assert "candidate in round 1 comes too late" in kept.silence
    assert say(apart, 2002, Item(step="measure", round=1)) == [first]  # of the same model


def test_the_models_that_were_measured_are_those_that_are_audited(consortium: Callable[..., Any]) -> None:
    apart = consortium(rounds=2, size=600, randomness="operating system", attack=("membership",))
    apart.train()
    party = apart.parties[NAME]
    best, number = party.best["best"].round, lasting(apart)
    say(apart, 1000, Item(step="measure", round=best))
    say(apart, 1001, *(Item(step=s, round=3 - best, lasting=number + k) for k, s in enumerate(("candidate", "keep"))))
    (answer,) = say(apart, 1002, Item(step="audit", round=3 - best))
    assert {one.round for one in msgspec.msgpack.decode(answer.content, type=list[Figure])} == {best}


def stopped_at_its_first_upload(consortium: Callable[..., Any]) -> tuple[Any, tuple[Item, ...], Item]:
    """Parties under `dp` that lost the server in round 1; and what one was asked before its upload, and the request of that."""
    apart, asked = consortium(defense="dp:clip=0.01,noise_multiplier=5", rounds=2), list[Request]()

    def stopping(stage: str, party: str, request: bytes) -> Silence | None:
        if party == f"client/{NAME}":
            asked.append(_request(request))
        return Silence("unplugged") if stage.startswith("round 1") else None

    apart.fault = stopping
    with pytest.raises(RunError, match="no answer"):
        apart.train()
    first = next(one for one in reversed(asked) if any(item.step == "upload" for item in one.items))
    return apart, tuple(first.items[:-1]), first.items[-1]


def test_no_reply_leaves_a_party_that_could_not_write_what_it_must_remember(
    consortium: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed, it would not know that it was in the round, and add the same noise to other rows."""
    apart, before, upload = stopped_at_its_first_upload(consortium)
    say(apart, 100, *before)

    def full(party: Any) -> None:
        raise RunError("no space is left")

    with monkeypatch.context() as disk:
        disk.setattr("fkgsec.experiments.deploy.party.save_memory", full)
        for serial in (101, 101, 102):  # the same request, and another one
            with pytest.raises(RunError, match="no space"):
                say(apart, serial, upload)
    (later,) = say(apart, 103, upload)
    assert not later.frames
    apart.restart(NAME)
    (again,) = say(apart, 104, upload)
    assert "enters no second one" in again.silence


def test_a_restarted_party_adds_its_noise_to_no_other_rows_of_the_round(consortium: Callable[..., Any]) -> None:
    """The noise of `dp` derives from its lasting secret: twice the same over other rows, it would cancel in the difference."""
    apart, before, upload = stopped_at_its_first_upload(consortium)
    assert (upload.step, upload.round) == ("upload", 1)
    assert not any(one.silence for one in say(apart, 100, *before))
    (sent,) = say(apart, 101, upload)
    assert sent.frames
    apart.restart(NAME)
    (again,) = say(apart, 102, upload)
    assert "enters no second one" in again.silence
    say(apart, 103, Item(step="train", round=2))
    (again,) = say(apart, 104, upload)
    assert not again.frames
    assert "comes too late" in again.silence


def test_under_dp_every_party_adds_noise_of_its_own_and_the_guarantee_is_the_laboratorys(
    consortium: Callable[..., Any],
) -> None:
    apart = consortium(defense="dp:clip=0.01,noise_multiplier=5", rounds=1)
    server, _ = apart.train()
    together = run_federation(apart.graph, apart.terms.options, make_transport=make_transport)
    assert server.exchange.protection().guarantees == together.protection.guarantees
    sigma = server.exchange.terms.noise["entities"].sigma
    assert sigma == pytest.approx(0.1)
    noises = []
    sent = {one.receiver: one.unpack() for one in _rows(server, 0)}
    for one in _rows(server, 1):
        if one.receiver == SERVER:
            change = one.unpack() - sent[one.sender][: one.num_rows]
            assert float(change.std()) == pytest.approx(sigma, rel=0.1)
            noises.append(change.flatten()[:300])
    assert len(noises) == 3
    assert torch.corrcoef(torch.stack(noises)).fill_diagonal_(0).abs().max() < 0.25


def test_under_dp_and_secagg_the_sum_has_the_noise_of_every_party_and_nothing_else(
    consortium: Callable[..., Any],
) -> None:
    apart = consortium(defense="psu,secagg:bits=64,dp:clip=0.01,noise_multiplier=5", rounds=2)
    server, _ = apart.train()
    together = run_federation(apart.graph, apart.terms.options, make_transport=make_transport)
    assert server.exchange.protection().guarantees == together.protection.guarantees
    terms = server.exchange.terms
    encoding, sigma = terms.encodings["entities"], terms.noise["entities"].sigma
    summed, noises = 0, []
    for party in apart.parties.values():
        part = party.defended.parts["entities"]
        plain = np.zeros(part.values.shape)
        plain[party.defended._held("entities", part.kept.contribution)] = part.kept.contribution.rows.numpy()
        summed = part.elements + summed  # modulo the ring
        noises.append((part.elements - encoding.encode(plain)[0]).view(np.int64).ravel())
        count = len(noises[-1])
        # Six standard errors each: one run of some hundred millions fails by chance.
        assert float(noises[-1].std()) == pytest.approx(sigma, rel=6 / (2 * count) ** 0.5)
        assert abs(float(noises[-1].mean())) < 6 * sigma / count**0.5
    (opened,) = server.transcript.opened(2)
    assert np.array_equal(encoding.decode(summed), opened.sums()[0])
    assert np.abs(np.corrcoef(noises) - np.eye(3)).max() < 6 / count**0.5


def _rows(server: Any, number: int) -> list[Rows]:
    return [one for one in server.transcript.messages(number) if isinstance(one, Rows)]
