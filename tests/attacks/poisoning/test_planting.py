"""Ranks of planted tails: against a naive loop, where they were put by hand, and where nobody put them."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from fkgsec.attacks import KgeAttackOptions, run_attacks
from fkgsec.attacks.poisoning.planting import tail_ranks
from fkgsec.attacks.registry import ATTACKS, attacks_of
from fkgsec.federation.adversary import Adversary
from fkgsec.federation.loop import run_federation
from fkgsec.kge.result import KgeResult


def test_ranks_are_those_of_a_naive_loop(federate) -> None:
    result: KgeResult = federate()
    client, tables = result.graph.clients[1], result.tables[1]
    rng = np.random.default_rng(0)
    asked = rng.integers(0, [client.num_trained_entities, client.num_relations, client.num_trained_entities], (12, 3))
    for triple, rank in zip(asked, tail_ranks(result, 1, asked), strict=True):
        head, relation, tail = triple.tolist()
        distances = (tables.entities[head] + tables.relations[relation] - tables.entities).abs().sum(dim=1)
        true = {t for h, r, t in client.triples.tolist() if (h, r) == (head, relation)} - {tail}
        better = [n for n in range(len(distances)) if n not in true and distances[n] < distances[tail]]
        assert rank == pytest.approx(1 + len(better), abs=0.51)  # ties stand in the middle


def planted_by_hand(graph, options, adversary: Adversary, **given: object) -> KgeResult:
    """The run as it is, with the rows of the poison's heads such that their tails are nearest; one tail for each head."""
    result = run_federation(graph, options)
    poison, attacker = adversary.poison, result.graph.clients[0]  # type: ignore[attr-defined]
    for place, client in enumerate(graph.clients):
        local = {int(number): row for row, number in enumerate(client.entity_ids)}
        kinds = {int(number): row for row, number in enumerate(client.relation_ids)}
        rows, relations = result.tables[place].entities, result.tables[place].relations
        for head, kind, tail in attacker.to_global(poison).tolist():
            if head in local and tail in local and kind in kinds:
                rows[local[head]] = rows[local[tail]] - relations[kinds[kind]]
    return result


@pytest.mark.null("client-poison", "a run without an adversary: Hits@10 and MRR of the clean run")
@pytest.mark.planted(
    "client-poison",
    "20 triples written into the victims' rows: Hits@10 above every baseline, intervals included",
    {"hits@10": 20},
)
def test_what_is_planted_by_hand_is_found_and_what_nobody_plants_is_chance(federate) -> None:
    result: KgeResult = federate()
    options = KgeAttackOptions(attack=("client-poison",), poison_triples=20)
    found = {
        (one.victim, one.metric, one.variant): one
        for one in run_attacks(result, options, train=planted_by_hand).figures
    }
    for victim in ("hospital-2", "hospital-3", "all"):
        one = found[victim, "hits@10", "plain"]
        assert one.estimate.low > max(guess.high for guess in one.guesses.values())
    honest = run_attacks(result, options, train=lambda graph, options, adversary: run_federation(graph, options))
    for one in honest.figures:
        assert one.baseline is not None
        assert one.estimate.value <= one.baseline.value + 1e-12
        if one.metric in ("hits@10", "mrr") and one.variant == "plain":
            assert one.estimate.value == pytest.approx(one.guesses["clean run"].value)
        if one.metric == "mrr-drop":
            assert one.estimate.value == 0.0


@pytest.mark.parametrize("attack", ["client-poison", "client-spoil", "server-poison"])
def test_what_cannot_be_trained_again_is_no_zero(attack: str, federate, fabricate, trained_runs) -> None:
    """A defended run without its transport, tables from elsewhere, and a threat model that does not have the adversary."""
    options = KgeAttackOptions(attack=(attack,))
    defended = run_attacks(federate("secagg"), options)
    assert {one.reason for one in defended.figures} == {
        "the run was defended: it can be trained again with that defense's transport alone"
    }
    result: KgeResult = federate()
    elsewhere = run_attacks(replace(result, rounds=[]), options)
    assert all("trained elsewhere" in (one.reason or "") for one in elsewhere.figures)
    lacking = run_attacks(result, KgeAttackOptions(attack=(attack,), threat=("collusion",)))
    assert {one.reason for one in lacking.figures} == {f"it needs {ATTACKS[attack].needs.words()}"}
    if attack == "server-poison":
        reasons = {one.reason for one in run_attacks(trained_runs["fedr"], options).figures}
        assert reasons == {"fedr transmits no entity embedding"}


class Trained(Exception):
    """An attack had the run trained once more."""


@pytest.mark.slow
@pytest.mark.parametrize("attack", attacks_of("kge"))
def test_what_trains_says_so(attack: str, federate) -> None:
    """A round of unlearning is attacked by what does not: the others would train the run before it."""

    def train(*given: object, **named: object) -> KgeResult:
        raise Trained

    options, trained = KgeAttackOptions(attack=(attack,), unlinked_heads=0), False
    for defense in ("", "secagg", "secagg,suppress:t=2"):  # some need a sum or a least count, some single uploads
        try:
            run_attacks(federate(defense), options, leak_draws=0, train=train)
        except Trained:
            trained = True
    assert trained == ATTACKS[attack].trains


@pytest.mark.parametrize(("attack", "begins"), [("client-poison", 6), ("server-poison", 5), ("client-spoil", 6)])
def test_of_the_last_rounds_alone_it_poisons_these(attack: str, begins: int, federate) -> None:
    """Of eight rounds the last three; a server's model starts from the broadcast before them. More than there are: all."""
    seen = []

    def train(graph, options, adversary: Adversary) -> KgeResult:
        seen.append(adversary.begins)
        return federate()

    for number in (3, 8, 50):
        run_attacks(federate(), KgeAttackOptions(attack=(attack,), attack_rounds=number), train=train)
    count = len(seen) // 3
    assert seen == [begins] * count + [0] * 2 * count


def test_a_run_that_ends_before_the_adversary_begins_is_no_zero(federate) -> None:
    def train(graph, options, adversary: Adversary) -> KgeResult:
        return replace(federate(), best_round=5, rounds=federate().rounds[:6])

    options = KgeAttackOptions(attack=("client-poison",), attack_rounds=3)
    assert {one.reason for one in run_attacks(federate(), options, train=train).figures} == {
        "the run ended in round 5, before round 6, in which the adversary begins (plain)"
    }


@pytest.mark.parametrize("attack", ["client-poison", "client-spoil"])
def test_what_validation_would_not_keep_is_measured_and_said(attack: str, federate) -> None:
    """Of an adversary in the last rounds alone; one in all of them says nothing of rounds."""

    def train(graph, options, adversary: Adversary) -> KgeResult:
        result: KgeResult = federate()
        rounds = [msgspec.structs.replace(one, valid=0.9 if one.round == 4 else 0.1) for one in result.rounds]
        return replace(result, rounds=rounds if getattr(adversary, "boost", 2.0) > 1 else result.rounds)

    for number, expected in ((3, "from round 6 on; validation would keep round 4 ("), (None, None)):
        found = run_attacks(federate(), KgeAttackOptions(attack=(attack,), attack_rounds=number), train=train).figures
        for one in found:
            if one.metric == "rows-cut" or expected is None:
                assert one.remark is None
            else:
                assert (one.remark or "").startswith(expected)
                assert "plain" not in (one.remark or "")


def test_a_server_that_begins_late_takes_clients_that_all_take_part(federate) -> None:
    result = federate()
    result = replace(result, options=msgspec.structs.replace(result.options, participation=0.5))
    found = run_attacks(result, KgeAttackOptions(attack=("server-poison",), attack_rounds=3)).figures
    assert {one.reason for one in found} == {
        "a server that begins late has not sent rows to the clients that sat out; it takes participation 1"
    }
