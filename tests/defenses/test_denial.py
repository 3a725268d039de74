"""One client that strays costs the others at most one round."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from fkgsec.data.graph import FederatedGraph
from fkgsec.defenses.client import DefendedClient
from fkgsec.defenses.transport import make_transport
from fkgsec.federation.loop import run_federation
from fkgsec.federation.messages import client_party
from fkgsec.federation.options import replace
from fkgsec.federation.steps import Observer
from fkgsec.kge.options import KgeOptions
from fkgsec.protocols.secagg import client as secagg_client

PARTIES = [f"client {number}" for number in range(10)]
BAD = PARTIES[3]
HELD = {party: ["common", f"own {number}"] for number, party in enumerate(PARTIES)}


def rows_of(value: float) -> dict[str, torch.Tensor]:
    return {party: torch.full((2, 3), value + number / 10) for number, party in enumerate(PARTIES)}


def table(exchange: Any) -> dict[str, torch.Tensor]:
    shared = exchange.server["entities"]
    return dict(zip(shared.names, shared.rows.clone(), strict=True))


@pytest.fixture
def wrong_dealer(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """From here on a party deals well-sealed shares of another self mask than it committed to."""
    share = secagg_client.share

    def deal(bad: str) -> None:
        def dealing(state: Any, *args: Any, **more: Any) -> Any:
            if state.member.party != bad:
                return share(state, *args, **more)
            member = dataclasses.replace(state.member, self_seed=bytes(len(state.member.self_seed)))
            return share(dataclasses.replace(state, member=member), *args, **more)

        monkeypatch.setattr(secagg_client, "share", dealing)

    return deal


@pytest.fixture
def overflowing(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """From here on a party adds 2^30 to each ring element of its upload."""
    begin = DefendedClient.begin

    def overflow(bad: str) -> None:
        def beginning(self: DefendedClient, round: int, name: str, rows: torch.Tensor) -> Any:
            part = begin(self, round, name, rows)
            if self.party == bad:
                part = part._replace(elements=part.elements + part.elements.dtype.type(2**30))
                self.parts[name] = part
            return part

        monkeypatch.setattr(DefendedClient, "begin", beginning)

    return overflow


@pytest.mark.parametrize("defense", ["secagg", "psu,secagg"])
def test_a_dealer_of_wrong_shares_costs_one_round(
    defense: str, by_hand: Callable[..., Any], wrong_dealer: Callable[[str], None]
) -> None:
    exchange = by_hand(defense, HELD)
    wrong_dealer(BAD)
    survivors, before = [], table(exchange)
    for number in (1, 2, 3, 4):
        outcome = exchange.upload(number, "entities", rows_of(float(number)))
        survivors.append(outcome.num_survivors)
        assert "ClosedSecret" in outcome.excluded[BAD]
        exchange.broadcast(number, "entities", PARTIES)
    assert survivors == [0, 9, 9, 9]
    after = table(exchange)
    others = [4 + number / 10 for number in range(10) if PARTIES[number] != BAD]
    assert after["common"].numpy() == pytest.approx(np.mean(others), abs=1e-5)
    assert torch.equal(after["own 3"], before["own 3"])


def test_a_run_that_is_resumed_keeps_the_dealer_out(
    graph: Callable[[int], FederatedGraph],
    options: KgeOptions,
    wrong_dealer: Callable[[str], None],
    tmp_path: Path,
) -> None:
    options = replace(options, defense="secagg", rounds=3, eval_every=3)
    bad = client_party(graph(5).clients[1].name)
    wrong_dealer(bad)

    class Stopped(Exception):
        """In place of a kill."""

    class Stopping(Observer):
        def round_started(self, round: int, num_steps: int) -> None:
            if round == 2:
                raise Stopped

    with pytest.raises(Stopped):
        run_federation(graph(5), options, tmp_path, Stopping(), 0.0, make_transport=make_transport)
    resumed = run_federation(graph(5), options, tmp_path, make_transport=make_transport)
    assert [entry.num_survivors for entry in resumed.rounds] == [0, 0, 4, 4]
    assert all("ClosedSecret" in entry.excluded[bad] for entry in resumed.rounds[1:])


def test_a_holder_that_alters_its_share_bars_no_honest_client(
    by_hand: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of three clients all shares are needed, and nobody can tell who is at fault. Without the owner of the secret no later sum
    would open."""
    exchange = by_hand("secagg", {party: HELD[party] for party in PARTIES[:3]})
    unmask, honest, rounds = secagg_client.unmask, PARTIES[0], list[int]()

    def altering(state: Any, request: Any) -> Any:
        said = unmask(state, request)
        if said.sender != PARTIES[1] or rounds:
            return said
        rounds.append(said.round)
        shares = {**said.self_masks, honest: bytes(len(said.self_masks[honest]))}
        return msgspec.structs.replace(said, self_masks=shares)

    monkeypatch.setattr(secagg_client, "unmask", altering)
    survivors = []
    for number in (1, 2, 3):
        rows = {party: own for party, own in rows_of(float(number)).items() if party in PARTIES[:3]}
        survivors.append(exchange.upload(number, "entities", rows).num_survivors)
        exchange.broadcast(number, "entities", PARTIES[:3])
    assert rounds == [1]
    assert survivors == [0, 3, 3]


@pytest.mark.parametrize("defense", ["secagg", "psu,secagg"])
def test_rows_beyond_what_clients_can_give_keep_their_old_value(
    defense: str, by_hand: Callable[..., Any], overflowing: Callable[[str], None]
) -> None:
    """Else every client would refuse the broadcast, and no later round would open."""
    exchange = by_hand(defense, HELD)
    before = table(exchange)
    overflowing(BAD)
    outcome = exchange.upload(1, "entities", rows_of(1.0))
    exchange.broadcast(1, "entities", PARTIES)
    after = table(exchange)
    assert outcome.num_kept_rows > 0
    assert torch.equal(after["own 3"], before["own 3"])
    assert after["own 4"].numpy() == pytest.approx(1.4, abs=1e-5)
    overflowing("nobody")
    assert exchange.upload(2, "entities", rows_of(2.0)).num_survivors == 10
    assert exchange.broadcast(2, "entities", PARTIES).keys() == set(PARTIES)
    assert table(exchange)["common"].numpy() == pytest.approx(2.45, abs=1e-5)


@pytest.mark.parametrize("defense", ["secagg", "psu,secagg"])
def test_rows_that_more_clients_than_take_part_are_said_to_hold_keep_their_old_value(
    defense: str, by_hand: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that adds to the count of a row moves its mean toward 0, where no client would refuse it."""
    begin = DefendedClient.begin

    def beginning(self: DefendedClient, round: int, name: str, rows: torch.Tensor) -> Any:
        part = begin(self, round, name, rows)
        if self.party == BAD:
            self.parts[name] = part._replace(weights=part.weights + part.weights.dtype.type(1000))
        return self.parts[name]

    monkeypatch.setattr(DefendedClient, "begin", beginning)
    exchange = by_hand(defense, HELD)
    before = table(exchange)
    outcome = exchange.upload(1, "entities", rows_of(1.0))
    exchange.broadcast(1, "entities", PARTIES)
    after = table(exchange)
    assert outcome.num_kept_rows == 2
    for name in HELD[BAD]:
        assert torch.equal(after[name], before[name])
    assert after["own 4"].numpy() == pytest.approx(1.4, abs=1e-5)
