"""A client that claims guessed names: random answers, real runs under defenses, and what becomes of the federation."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from fkgsec import FederatedGraph
from fkgsec.attacks import Figure, KgeAttackOptions, run_attacks
from fkgsec.attacks.clients.guess import Guesser
from fkgsec.attacks.laboratory import Laboratory
from fkgsec.attacks.options import THREAT_MODELS
from fkgsec.attacks.view import View
from fkgsec.defenses import make_transport
from fkgsec.errors import SpecError
from fkgsec.federation.adversary import Adversary
from fkgsec.federation.loop import run_federation
from fkgsec.kge.result import KgeResult

trained = functools.partial(run_federation, make_transport=make_transport)
VICTIMS = ("hospital-2", "hospital-3")


def figures(result: KgeResult, train: Callable = trained, **options: object) -> dict[tuple[str, str, str], Figure]:
    found = run_attacks(result, KgeAttackOptions(attack=("client-guess",), **options), train=train).figures
    return {(one.victim, one.metric, one.variant): one for one in found}


def test_a_dictionary_that_there_is_not_is_refused() -> None:
    with pytest.raises(SpecError, match=r"guesses must .*got 1"):
        KgeAttackOptions(guesses=1)


@pytest.mark.null("client-guess", "rows that all change at random, 6 figures: mean AUC .4 to .6")
def test_random_answers_tell_nothing(federate) -> None:
    """As if any row could come back changed, whoever holds it."""
    rng = np.random.default_rng(0)

    def train(graph: object, options: object, *, adversary: Guesser) -> KgeResult:
        rows = torch.zeros(int(adversary.guessed.max()) + 1, 16)
        adversary.upload(1, "entities", rows, rows)
        rows = torch.from_numpy(rng.normal(0, 1, rows.shape).astype(np.float32))
        adversary.upload(2, "entities", rows, rows)
        return federate()

    found = [figures(federate(), train, seed=seed)[victim, "auc", "rows"] for seed in range(3) for victim in VICTIMS]
    assert abs(np.mean([one.estimate.value for one in found]) - 0.5) < 0.1


@pytest.mark.planted(
    "client-guess", "5 names that another client holds: all of them, and no invented one", {"found": 5}
)
@pytest.mark.parametrize("defense", ["", "psu,secagg", "secagg,suppress:t=2", "dp:unit=row,clip=0.1,epsilon=8"])
def test_names_are_told_whatever_hides_rows(federate, defense: str) -> None:
    found = figures(federate(defense), guesses=5)
    for victim in VICTIMS:
        for way in ("rows", "list") if "psu" in defense else ("rows",):
            one = found[victim, "found", way]
            assert (one.estimate.value, one.baseline.value) == (1, 0)
            assert one.counts == {"held": 5, "invented": 5}
            assert found[victim, "auc", way].estimate.value == 1
        assert ((victim, "found", "list") in found) == ("psu" in defense)


def test_rows_of_two_holders_that_stay_at_home_are_not_told(federate) -> None:
    """A name that one victim holds is held by two with the client; one that both hold, by three."""
    result = federate("secagg,suppress:t=3")
    found = figures(result)
    own, *others = (set(one.entity_ids[: one.num_trained_entities].tolist()) for one in result.graph.clients)
    own |= set(result.graph.clients[0].entity_ids.tolist())
    for victim, held in zip(VICTIMS, others, strict=True):
        one = found[victim, "found", "rows"]
        assert one.estimate.value == len(others[0] & others[1] - own) / len(held - own)
        assert one.estimate.value < 0.9
        assert one.baseline.value == 0


def test_the_client_alone_claims_them(federate) -> None:
    graph = federate().graph
    client = graph.clients[0]
    foreign = graph.entities[np.setdiff1d(graph.clients[1].entity_ids, client.entity_ids)[0]]
    head, kind, _ = client.to_global(client.train)[0]
    known = graph.entities[head], graph.relations[kind]
    seen: list[Any] = []

    def train(graph: FederatedGraph, options: object, *, adversary: Adversary) -> KgeResult:
        seen.append(graph)
        return federate()

    laboratory = Laboratory(
        federate(),
        train,
        KgeAttackOptions(),
        ["hospital-1"],
        lambda _: View(threat_model=THREAT_MODELS["client"], round=1, victims=()),
    )
    triples = np.array([(*known, foreign), (*known, "nobody")], dtype=object)
    laboratory.train_with_triples(client.name, triples, lambda rows: seen.append(rows) or Guesser(client.name, rows))
    rows, made = seen
    assert made.entities == (*graph.entities, "nobody")
    assert made.clients[1:] == graph.clients[1:]
    claimed = made.clients[0]
    assert [made.entities[number] for number in claimed.entity_ids[rows]] == [foreign, "nobody"]
    assert len(claimed.train) == len(client.train) + 2
    assert rows.max() < claimed.num_trained_entities


def test_it_sends_guessed_rows_as_it_received_them_and_sees_what_others_do() -> None:
    guesser = Guesser("a", np.array([1, 2, 3]))
    rows = torch.full((4, 2), 1.0)
    own = rows + 5  # as its training leaves them
    assert torch.equal(guesser.upload(1, "entities", rows, own)[:, 0], torch.tensor([6.0, 1, 1, 1]))
    back = torch.tensor([[9.0, 9], [1, 1], [6, 6], [4, 5]])  # as it was sent, as it was trained, as another made it
    other = Guesser("a", np.array([1, 2, 3]))
    other.load(guesser.tensors())
    for one in (guesser, other):
        one.upload(2, "entities", back, own)
        torch.testing.assert_close(one.moved, torch.tensor([0.0, 0.0, 5**0.5]))
    assert guesser.identity() == other.identity() != Guesser("a", np.array([2])).identity()


def test_where_it_cannot_run_it_says_so(federate) -> None:
    assert {one.reason for one in figures(federate(algorithm="fedr")).values()} == {"no entity embedding is broadcast"}
    reasons = {one.reason for one in figures(federate("secagg"), run_federation).values()}
    assert reasons == {"the run was defended: it can be trained again with that defense's transport alone"}
    short = federate(rounds=1)
    assert {one.reason for one in figures(short).values()} == {
        "hospital-1 took part in no round after all clients had uploaded"
    }
