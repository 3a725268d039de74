"""Adversaries: each hook does what it says and nothing more, what they know, and runs that go on after a kill."""

from collections.abc import Collection, Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fkgsec.data.graph import FederatedGraph
from fkgsec.defenses.transport import make_transport
from fkgsec.errors import RunError
from fkgsec.federation.adversary import Adversary
from fkgsec.federation.checkpoint import RoundEntry
from fkgsec.federation.loop import Observer, run_federation
from fkgsec.federation.messages import SERVER, Rows
from fkgsec.federation.options import replace
from fkgsec.federation.recipes import Table
from fkgsec.kge.options import KgeOptions
from fkgsec.kge.result import KgeResult


class Stop(Exception):
    """Ends a run from inside."""


class StopAfter(Observer):
    def round_done(self, entry: RoundEntry) -> None:
        if entry.round == 1:
            raise Stop


def tables(result: KgeResult) -> list[Tensor]:
    return [one.entities for one in result.tables]


def equal(one: KgeResult, other: KgeResult) -> bool:
    return all(torch.equal(*pair) for pair in zip(tables(one), tables(other), strict=True))


def test_an_honest_one_changes_no_bit(uneven: FederatedGraph, options: KgeOptions) -> None:
    for party in ("large", SERVER):
        honest = run_federation(uneven, options, adversary=Adversary(party))
        assert equal(honest, run_federation(uneven, options))
    secure = replace(options, defense="secagg", rounds=1)
    honest = run_federation(uneven, secure, make_transport=make_transport, adversary=Adversary(SERVER))
    assert equal(honest, run_federation(uneven, secure, make_transport=make_transport))


class Shouting(Adversary):
    """The server sends one client its rows doubled."""

    def broadcast(self, round: int, table: Table, receiver: str, rows: Tensor) -> Tensor:
        return 2 * rows if receiver == "client/small" and round else rows


def test_the_server_sends_what_it_likes(uneven: FederatedGraph, options: KgeOptions) -> None:
    options = replace(options, rounds=1)
    honest, shouted = run_federation(uneven, options), run_federation(uneven, options, adversary=Shouting(SERVER))
    assert torch.equal(shouted.tables[0].entities, 2 * honest.tables[0].entities)
    assert torch.equal(shouted.tables[1].entities, honest.tables[1].entities)


class Slowing(Adversary):
    """Uploads less of what it learnt with every round, which a checkpoint must remember."""

    def __init__(self, party: str) -> None:
        super().__init__(party)
        self.share = torch.ones(1)

    def upload(self, round: int, table: Table, received: Tensor, trained: Tensor) -> Tensor:
        self.share = self.share / 2
        return received + self.share * (trained - received)

    def tensors(self) -> dict[str, Tensor]:
        return {"share": self.share}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        self.share = tensors["share"]


def test_its_state_outlives_a_kill(uneven: FederatedGraph, options: KgeOptions, tmp_path: Path) -> None:
    options = replace(options, rounds=3)
    whole = run_federation(uneven, options, adversary=Slowing("large"))
    with pytest.raises(Stop):
        run_federation(uneven, options, tmp_path, StopAfter(), 0, adversary=Slowing("large"))
    with pytest.raises(RunError, match="belongs to a run with other options"):
        run_federation(uneven, options, tmp_path)
    assert equal(run_federation(uneven, options, tmp_path, adversary=Slowing("large")), whole)


class Patient(Adversary):
    def rounds_needed(self) -> Collection[int]:
        return (2,)


def test_the_transcript_keeps_what_is_named_and_the_broadcasts_before(
    uneven: FederatedGraph, options: KgeOptions
) -> None:
    options = replace(options, rounds=6, eval_every=6)
    plain = run_federation(uneven, options).transcript
    named = run_federation(uneven, options, adversary=Patient("large")).transcript
    assert set(plain.frames) == {0, 5, 6}
    assert set(named.frames) == {0, 1, 2, 5, 6}
    for number in (1, 5):
        assert all(isinstance(one, Rows) and one.sender == SERVER for one in named.messages(number))
    assert {one.receiver == SERVER for one in named.messages(2)} == {True, False}
