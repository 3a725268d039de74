"""Parties that score attacks against their own truth: the figures of the laboratory, and nothing of the truth crosses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from fkgsec.attacks.figure import Figure
from fkgsec.attacks.options import KgeAttackOptions
from fkgsec.attacks.registry import run_attacks
from fkgsec.errors import RunError, SpecError
from fkgsec.experiments.deploy.agreement import Agreement
from fkgsec.experiments.deploy.core.audit import AUDITS, check_figures
from fkgsec.experiments.runs.record import read_record
from fkgsec.federation.loop import run_federation
from fkgsec.kge.options import KgeOptions

SERVER = ("edges", "degrees", "server-aux")


def by_key(figures: list[Figure]) -> dict[tuple[str, ...], Figure]:
    return {(one.victim, one.key, one.variant): one for one in figures}


@pytest.mark.slow
def test_figures_are_those_of_the_laboratory(consortium: Callable[..., Any]) -> None:
    apart = consortium(attack=(*SERVER, "membership"), size=600, rounds=4)
    record = apart.serve()
    together = run_federation(apart.graph, apart.terms.options)
    theirs = by_key(run_attacks(together, KgeAttackOptions(attack=SERVER)).figures)
    ours = by_key(record.figures)
    both = ours.keys() & theirs.keys()
    assert len({key[1] for key in both if not ours[key].reason}) >= 4
    assert {key[0] for key in both} == {"hospital-2", "hospital-3"}  # in one process the first client colludes
    for key in both:
        here, there = ours[key], theirs[key]
        assert here.estimate.low <= there.estimate.high
        assert there.estimate.low <= here.estimate.high
        if here.attack != "server-aux":  # which draws the triples that it asks about, and knows no other client's here
            assert (here.reason, here.estimate.n) == (there.reason, there.estimate.n)
            assert here.estimate.value == pytest.approx(there.estimate.value, abs=0.02)
    assert {one.victim for one in record.figures if one.attack == "membership"} == set(apart.names)
    assert read_record(apart.root / "server" / "record.json").figures == record.figures
    assert any(line.startswith("audit: ") for line in record.protection)
    triples = [name for name in apart.graph.relations if len(name) > 3]
    assert not any(name.encode() in frame for name in triples for frame in apart.crossed)


def test_a_party_that_restarts_still_scores_the_same(consortium: Callable[..., Any]) -> None:
    apart = consortium(attack=("edges", "membership"), rounds=2)
    apart.fault = lambda stage, party, request: apart.restart(party.removeprefix("client/"))
    restarted = apart.serve().figures
    assert restarted
    assert {one.victim for one in restarted} == set(apart.names)
    asked = len(apart.stages)
    assert apart.serve().figures == restarted  # from its checkpoint and journal
    assert len(apart.stages) == asked


@pytest.mark.parametrize(
    ("audit", "options", "reason"),
    [
        (
            ("reconstruction",),
            {},
            "audit: 'reconstruction' cannot be scored by one party alone; allowed: membership, edges",
        ),
        (
            ("edges",),
            {"defense": "secagg"},
            "audit: edges is of single uploads, which secagg sums; allowed: membership",
        ),
        (("degrees",), {"algorithm": "feds"}, "audit: degrees is of whole uploads, and feds sends parts"),
    ],
)
def test_what_no_party_can_score_alone_is_refused(audit: tuple[str, ...], options: dict[str, Any], reason: str) -> None:
    keys = {"a": "0" * 64, "b": "1" * 64}
    with pytest.raises(SpecError, match=reason):
        Agreement(run="0" * 32, options=KgeOptions(**options), parties=("a", "b"), identities=keys, audit=audit)


def test_figures_that_were_not_asked_for_are_refused(consortium: Callable[..., Any]) -> None:
    apart = consortium(attack=("membership",), rounds=1)
    server, _ = apart.train()
    figures, missing = server.audit()
    assert not missing
    own = [one for one in figures if one.victim == "hospital-1"]
    check_figures(own, ("membership",), "hospital-1", server.best)
    for changed in (
        {"victim": "hospital-2"},
        {"attack": "edges"},
        {"threat_model": "server"},
        {"metric": "x"},
        {"round": 9},
    ):
        wrong = [msgspec.structs.replace(own[0], **changed)]
        with pytest.raises(RunError, match="were asked for"):
            check_figures(wrong, ("membership",), "hospital-1", server.best)


def test_every_audit_is_an_attack_that_fits_its_adversary() -> None:
    from fkgsec.attacks.options import THREAT_MODELS
    from fkgsec.attacks.registry import ATTACKS

    for name, model in AUDITS.items():
        assert ATTACKS[name].needs.fit(THREAT_MODELS[model])
        assert not THREAT_MODELS[model].colluder
