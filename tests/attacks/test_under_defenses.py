"""Attacks on knowledge graphs under a defense that must stop them, under one that cannot, and with other truth than the run's."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from fkgsec.attacks import Figure, KgeAttackOptions, run_attacks, update_recovery
from fkgsec.attacks.figure import STRONGEST
from fkgsec.attacks.poisoning import untargeted
from fkgsec.attacks.view import ALL
from fkgsec.defenses import make_transport
from fkgsec.errors import SpecError
from fkgsec.federation.adversary import Adversary
from fkgsec.federation.loop import run_federation

CLIP, NOISE = "robust:rule=clip", "dp:unit=row,clip=0.1,epsilon=8"
VICTIMS = ("hospital-2", "hospital-3")


@pytest.fixture(scope="module")
def found(federate):
    """Figures of an attack under a defense by victim, metric and way; of reconstruction, under collusion at leak 1."""

    @functools.cache
    def run(attack: str, defense: str = "", algorithm: str = "fede") -> dict[tuple[str, str, str], Figure]:
        threat = ("collusion",) if attack == "reconstruction" else ("server",)
        options = KgeAttackOptions(attack=(attack,), threat=threat, leak=(1.0,), unlinked_heads=40)
        train = functools.partial(run_federation, make_transport=make_transport)
        figures = run_attacks(federate(defense, algorithm), options, train=train).figures
        return {(one.victim, one.metric, one.variant): one for one in figures}

    return run


def test_changes_in_clear_are_known_whatever_a_rule_makes_of_them(found) -> None:
    for victim in VICTIMS:
        assert found("update-recovery", CLIP)[victim, "cosine", ""].estimate.value == pytest.approx(1.0, abs=1e-5)


def test_noise_hides_changes(found) -> None:
    for victim in VICTIMS:
        assert found("update-recovery", NOISE)[victim, "cosine", ""].estimate.high < 0.3


@pytest.mark.null("update-recovery", "changes of other rows: cosine within .1 of 0")
def test_other_changes_than_those_that_were_made_are_not_recovered(federate, monkeypatch: pytest.MonkeyPatch) -> None:
    real = update_recovery.client_rows

    def others_changes(result: object, place: int, table: str) -> tuple:
        names, start, end = real(result, place, table)
        return names, start, start + (end - start)[np.random.default_rng(place).permutation(len(names))]

    monkeypatch.setattr(update_recovery, "client_rows", others_changes)
    options = KgeAttackOptions(attack=("update-recovery",), threat=("server",))
    cosines = [one for one in run_attacks(federate(), options).figures if one.metric == "cosine"]
    assert [one.victim for one in cosines] == list(VICTIMS)
    assert all(abs(one.estimate.value) < 0.1 for one in cosines)


def test_a_rule_of_the_server_keeps_it_from_no_name_and_no_triple(found) -> None:
    for defense in ("", CLIP):
        figures = found("reconstruction", defense)
        for victim in VICTIMS:
            for metric, way in (("err", STRONGEST), ("trr", STRONGEST), ("average_precision", "learned")):
                one = figures[victim, metric, way]
                assert one.estimate.low > one.baseline.value, (defense, victim, metric)


def test_of_other_triples_than_those_that_were_trained_on_nothing_is_learnt(federate, relabelled, found) -> None:
    """Relations of pairs that nobody trained on are told as the most frequent one is, and links among them hardly."""
    options = KgeAttackOptions(attack=("reconstruction",), threat=("collusion",), leak=(1.0,), unlinked_heads=40)
    true, kinds, links = found("reconstruction"), [], []
    for seed in range(3):
        figures = run_attacks(relabelled(federate(), seed), options).figures
        by = {(one.victim, one.metric, one.variant): one for one in figures}
        kinds.append(by[ALL, "trr", "learned"].estimate.value / true[ALL, "trr", "learned"].estimate.value)
        for victim in VICTIMS:
            ranked = victim, "average_precision", "learned"
            links.append(by[ranked].estimate.value / true[ranked].estimate.value)
    assert np.mean(kinds) < 0.6
    assert np.mean(links) < 0.3, links


def test_entity_rows_that_stay_at_home_are_named_by_chance_even_where_they_are_known(federate, found) -> None:
    """Those of FedR, which lie in spaces of their own, whoever hands them over; in FedE every leaked name is found."""
    options = KgeAttackOptions(
        attack=("reconstruction",), threat=("collusion+entities",), leak=(1.0,), unlinked_heads=0
    )
    apart = run_attacks(federate("", "fedr"), options).figures
    for victim in VICTIMS:
        [one] = [one for one in apart if (one.victim, one.metric, one.variant) == (victim, "err", STRONGEST)]
        assert not one.reason
        assert one.estimate.low <= one.baseline.value
        shared = found("reconstruction")[victim, "err", STRONGEST]
        assert one.estimate.value < 0.05 < 0.5 * shared.attainable < shared.estimate.value


def test_noise_hides_relations_and_links_and_no_name(found) -> None:
    """Nothing is left beyond what names tell. Rows are told apart by noise as by anything else: the colluder was sent it, too."""
    clear, noisy = found("reconstruction"), found("reconstruction", NOISE)
    assert noisy[ALL, "trr", "learned"].estimate.value < 0.5 * clear[ALL, "trr", "learned"].estimate.value
    for victim in VICTIMS:
        assert noisy[victim, "trr", STRONGEST].estimate.value == noisy[victim, "trr", "names"].estimate.value
        links = victim, "average_precision", "learned"
        assert noisy[links].estimate.value < 0.5 * clear[links].estimate.value
        assert noisy[victim, "err", STRONGEST].estimate.value == clear[victim, "err", STRONGEST].estimate.value


def test_noise_on_values_does_not_hide_which_rows_are_sent_and_is_refused(federate) -> None:
    with pytest.raises(SpecError, match=r"chooses rows by their values"):
        federate(NOISE, "feds")


@pytest.mark.null("client-spoil", "an honest client: no MRR lost")
def test_a_client_that_does_what_it_should_spoils_nothing(federate, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RandomRows", "SignFlip", "ShuffledIdentities"):
        monkeypatch.setattr(untargeted, name, lambda party, *given: Adversary(party))
    options = KgeAttackOptions(attack=("client-spoil",))
    for one in run_attacks(federate(), options).figures:
        assert one.estimate.value == 0.0
