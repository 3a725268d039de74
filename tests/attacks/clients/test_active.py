"""A client that moves rows and watches who follows: planted answers, those of others, runs under defenses, what it uploads."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor

from fkgsec.attacks import Figure, KgeAttackOptions, run_attacks
from fkgsec.attacks.clients.active import Answers, Plan, Prober
from fkgsec.attacks.view import ALL
from fkgsec.defenses import make_transport
from fkgsec.errors import SpecError, TrainingError
from fkgsec.federation.adversary import Adversary
from fkgsec.federation.checkpoint import RoundEntry
from fkgsec.federation.loop import run_federation
from fkgsec.federation.messages import Rows
from fkgsec.kge.models import MODELS, KgeModel, Side
from fkgsec.kge.result import KgeResult

PARTY = "client/hospital-1"
trained = functools.partial(run_federation, make_transport=make_transport)


def figures(result: KgeResult, train: Callable = trained, **options: object) -> dict[tuple[str, str, str], Figure]:
    found = run_attacks(result, KgeAttackOptions(attack=("client-active",), **options), train=train).figures
    return {(one.victim, one.metric, one.variant): one for one in found}


def answering(result: KgeResult, *, shuffled: bool = False, seed: int = 0) -> Callable[..., KgeResult]:
    """Trains nothing, but plays three rounds to the client, in which the other ends of a victim's triples follow those it moved.

    `shuffled`: it is told of the changes of other entities in their place.
    """
    colluder, victim = result.graph.clients
    model, rng = result.options.kge_model(), np.random.default_rng(seed)
    place = {number: row for row, number in enumerate(colluder.entity_ids.tolist())}

    def train(graph: object, options: object, *, adversary: Adversary) -> KgeResult:
        start = result.tables[0].entities[: colluder.num_trained_entities]
        moved = adversary.upload(1, "entities", start, start)
        change = 1e-3 * torch.from_numpy(rng.normal(0, 1, start.shape).astype(np.float32))
        for head, relation, tail in victim.to_global(victim.train).tolist():
            row = result.tables[1].relations[victim.relation_ids.tolist().index(relation)]
            sides: tuple[tuple[int, int, Side], ...] = ((head, tail, "tail"), (tail, head, "head"))
            for near, far, side in sides:
                one, other = place[near], place[far]
                change[other] += 0.01 * (model.query(moved[one], row, side) - model.query(start[one], row, side))
        change = change[torch.from_numpy(rng.permutation(len(change)))] if shuffled else change
        adversary.upload(2, "entities", moved, moved)
        adversary.upload(3, "entities", moved + change, moved + change)
        return result

    return train


def with_ranks(result: KgeResult) -> KgeResult:
    rounds = [RoundEntry(round=3, loss=None, valid=None, bytes_up=0, bytes_down=0, seconds=0.0)]
    return replace(result, test_ranks=[np.ones((4, 2))] * len(result.graph.clients), rounds=rounds)


@pytest.mark.planted("client-active", "20 triples whose ends follow the moves: AUC above .99", {"auc": 10})
@pytest.mark.parametrize("model", MODELS)
def test_planted_answers_are_read(linked_apart, model: str) -> None:
    result = with_ranks(linked_apart(model=model))
    found = figures(result, answering(result))
    one = found["victim", "auc_pairs", "displacement"]
    assert one.estimate.value > 0.99
    assert set(one.guesses) == {"chance", "names"}
    assert ("victim", "auc_pairs", "passive") in found
    assert (one.leak, one.colluder, one.counts["trained"]) == (None, "own", 20)
    unseen = found["victim", "auc", "displacement"]  # true triples that nobody trained on
    assert unseen.estimate.value > 0.99
    assert unseen.counts == {"trained": 5, "others": 5}
    assert found["victim", "cost", ""].estimate.value == 0


@pytest.mark.null("client-active", "answers of other entities, 6 draws: mean AUC .4 to .6")
def test_the_answers_of_others_tell_nothing(linked_apart) -> None:
    values = []
    for seed in range(6):
        result = with_ranks(linked_apart(seed=seed))
        found = figures(result, answering(result, shuffled=True, seed=seed))
        values.append(found["victim", "auc_pairs", "displacement"].estimate.value)
    assert abs(np.mean(values) - 0.5) < 0.1


SEEN = "displacement"


@pytest.fixture(scope="module")
def probed(federate) -> Callable[[str], dict[tuple[str, str, str], Figure]]:
    return functools.cache(lambda defense: figures(federate(defense), probes=60))


def of_victims(found: dict[tuple[str, str, str], Figure]) -> list[Figure]:
    return [found[victim, "auc_pairs", SEEN] for victim in ("hospital-2", "hospital-3")]


@pytest.mark.parametrize("defense", ["", "psu,secagg"])
def test_sums_cannot_stop_it(probed, defense: str) -> None:
    found = probed(defense)
    assert all(one.estimate.low > 0.5 for one in of_victims(found))
    assert np.mean([one.estimate.value for one in of_victims(found)]) > 0.6
    seen = found[ALL, "visibility", ""]
    if defense:
        assert seen.reason == "no party sees the whole change of one client"
    else:
        assert seen.estimate.value > 5
        assert seen.counts == {"rank": 1, "clients": 3}


@pytest.mark.parametrize(("clip", "near_chance"), [("robust:rule=clip,c=1", 0.5), ("robust:rule=clip", 0.52)])
def test_clipped_changes_bring_it_near_chance(probed, clip: str, near_chance: float) -> None:
    for clipped, clear in zip(*(of_victims(probed(one)) for one in (clip, "")), strict=True):
        assert clipped.estimate.low < near_chance
        assert clipped.estimate.value < clear.estimate.value


def test_what_it_uploads(federate) -> None:
    """Before the round what an honest client does; moved rows, what it received, and its training after, without noise."""
    for defense in ("", "dp:unit=row,clip=0.1,epsilon=8"):
        result = federate(defense)
        moved, moves = np.array([1, 4]), torch.full((2, 16), 3.0)
        prober = Prober("hospital-1", 6, moved, moves)
        after = trained(result.graph, result.options, adversary=prober, rounds_needed=(5, 6, 7, 8))
        sent = {one.round: one.unpack() for number in (5, 6, 7, 8) for one in uploads(after, number)}
        before, probe, answer = prober.received
        torch.testing.assert_close(sent[6][moved], before[moved] + moves)
        others = np.setdiff1d(np.arange(len(before)), moved)
        assert torch.equal(sent[6][others], before[others])
        assert torch.equal(sent[7], probe)
        assert not torch.equal(sent[8], answer)
        assert (sent[8] - answer).norm(dim=1).max() > 0.2  # a change beyond the clip, without noise or not
        clean = trained(result.graph, result.options, rounds_needed=(5,))
        assert torch.equal(sent[5], next(uploads(clean, 5)).unpack())


def uploads(result: KgeResult, number: int):
    return (one for one in result.transcript.messages(number) if isinstance(one, Rows) and one.sender == PARTY)


def test_it_goes_on_after_a_kill() -> None:
    prober = Prober("hospital-1", 1, np.array([0]), torch.ones(1, 4))
    rows: Tensor = torch.zeros(3, 4)
    for number in (1, 2):
        prober.upload(number, "entities", rows + number, rows)
    other = Prober("hospital-1", 1, np.array([0]), torch.ones(1, 4))
    other.load(prober.tensors())
    for one in (prober, other):
        assert torch.equal(one.upload(3, "entities", rows + 3, rows), rows)
    assert all(torch.equal(*pair) for pair in zip(prober.received, other.received, strict=True))
    assert prober.identity() == other.identity() != Prober("hospital-1", 2, np.array([0]), torch.ones(1, 4)).identity()


def test_several_rounds_of_the_same_moves_say_more_under_a_clip(federate, probed) -> None:
    once, often = (
        np.mean([one.estimate.value for one in of_victims(found)])
        for found in (probed("robust:rule=clip"), figures(federate("robust:rule=clip"), probes=60, probe_rounds=4))
    )
    assert often > once + 0.01


def test_it_uploads_the_moves_of_several_rounds_and_then_what_it_received() -> None:
    prober = Prober("hospital-1", 2, np.array([1]), torch.ones(1, 4), rounds=2)
    rows: Tensor = torch.zeros(3, 4)
    sent = [prober.upload(number, "entities", rows + number, rows - 1) - number for number in (2, 3, 4)]
    assert [one.sum(dim=1).tolist() for one in sent] == [[0, 4, 0], [0, 4, 0], [0, 0, 0]]
    assert not prober.is_answered
    assert torch.equal(prober.upload(5, "entities", rows + 5, rows - 1), rows - 1)
    assert prober.is_answered
    assert torch.equal(prober.received[-1] - prober.received[-2], rows + 1)


def test_where_it_cannot_run_it_says_so(federate) -> None:
    reasons = {one.reason for one in figures(federate(algorithm="fedr")).values()}
    assert reasons == {"no entity embedding is broadcast"}
    reasons = {one.reason for one in figures(federate(), probe_round=7).values()}
    assert reasons == {"hospital-1 took part in 2 rounds from round 7 on; a probe takes 3"}
    reasons = {one.reason for one in figures(federate(), probe_rounds=20).values()}
    assert reasons == {"hospital-1 took part in 8 rounds; a probe takes 22"}
    reasons = {one.reason for one in figures(federate("secagg"), run_federation).values()}
    assert reasons == {"the run was defended: it can be trained again with that defense's transport alone"}


@pytest.mark.parametrize("attack", ["client-active", "client-guess", "server-active"])
def test_a_run_that_breaks_down_with_it_loses_no_other_attack(federate, attack: str) -> None:
    result = federate("secagg" if attack == "server-active" else "")

    def train(*given: object, adversary: Adversary | None = None) -> KgeResult:
        if adversary:
            raise TrainingError("the loss of client hospital-2 is nan")
        return result

    found = run_attacks(result, KgeAttackOptions(attack=(attack, "client-passive")), train=train).figures
    broken = [one.reason for one in found if one.attack == attack]
    assert broken
    assert all("broke down" in reason and reason.endswith("is nan") for reason in broken)
    assert any(one.attack == "client-passive" for one in found)


@pytest.mark.parametrize(
    ("name", "value"), [("probes", 0), ("probe_size", 0.0), ("probe_round", 0), ("probe_rounds", 0)]
)
def test_a_probe_that_there_is_not_is_refused(name: str, value: float) -> None:
    with pytest.raises(SpecError, match=f"{name} must"):
        KgeAttackOptions(**{name: value})


def test_for_moves_that_were_not_made_chance_is_a_half() -> None:
    """Of a translation the opposite moves turn every score into its negative: over moves drawn by signs the mean AUC is .5."""
    rng = np.random.default_rng(0)
    before, changes, relations = (
        torch.from_numpy(rng.normal(size=(count, 8)).astype(np.float32)) for count in (30, 30, 3)
    )
    triples = np.stack([rng.integers(0, most, 40) for most in (30, 3, 30)], axis=1)
    moved = np.arange(30)
    plan = Plan(
        KgeModel("transe", 8, 10.0, 2.0),
        SimpleNamespace(relations=relations),
        lambda _: np.zeros(0),
        moved,
        before,
        None,
    )
    for _ in range(3):
        moves = torch.from_numpy((2 * rng.integers(0, 2, (30, 8)) - 1).astype(np.float32))
        there, back = (
            Answers(replace(plan, moves=sign * moves), before, changes).displacement(triples) for sign in (1, -1)
        )
        assert there == pytest.approx(-back, abs=1e-5)
        assert np.abs(there).max() > 0.1
