"""What an active adversary costs, by hand: whose triples count, in which direction, beside what, and with which interval."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fkgsec.attacks.figure import STRONGEST, Figure
from fkgsec.attacks.options import THREAT_MODELS, KgeAttackOptions
from fkgsec.attacks.poisoning.damage import damage
from fkgsec.attacks.poisoning.untargeted import ATTACK, RandomRows, ShuffledIdentities, SignFlip
from fkgsec.attacks.registry import Truth
from fkgsec.estimate import mean

RANKS = {"bad": [[10, 10]] * 40, "one": [[1, 1], [2, 2]] * 20, "two": [[1, 2]] * 40}


def client(name: str, relations: list[int]) -> Any:
    return SimpleNamespace(name=name, relation_ids=np.array(relations), num_trained_relations=1)


def run(**ranks: list[list[int]]) -> Any:
    """Three clients of FedR, of whose relations the first is trained; a screen cuts 9 of 10 rows of the malicious one.

    Without `ranks` it is the clean run; else it cuts 1 of 10 rows of the others, too.
    """
    clean = not ranks
    cut = {"client/bad": (9, 10), "client/one": (0 if clean else 1, 10), "client/two": (0 if clean else 1, 10)}
    return SimpleNamespace(
        options=SimpleNamespace(algorithm="fedr"),
        graph=SimpleNamespace(clients=(client("bad", [0, 1]), client("one", [0]), client("two", [1, 0]))),
        test_ranks=[np.array((RANKS | ranks)[name], dtype=np.float64) for name in RANKS],
        rounds=[SimpleNamespace(cut_rows=cut)] * 2,
    )


@pytest.fixture
def truth() -> Truth:
    rng = np.random.default_rng(0)
    return Truth(ATTACK, THREAT_MODELS["client"], 2, None, [run()], ["one", "two"], ("bad",), KgeAttackOptions(), rng)


@pytest.fixture
def found(truth: Truth) -> dict[tuple[str, str, str], Figure]:
    """Of a way that costs "two" half of its MRR and "one" nothing, and of one that costs nobody anything."""
    ways = {"worse": run(two=[[2, 4]] * 40, bad=[[1, 1]] * 40), "idle": run(bad=[[10, 10]] * 40)}
    figures = damage(truth, ways, ["bad"])
    return {(one.victim, one.metric, one.variant): one for one in figures}


def test_honest_clients_lose_what_the_clean_run_had_more(found) -> None:
    assert {victim for victim, _, _ in found} == {"one", "two", "all"}
    lost = {victim: found[victim, "mrr-drop", "worse"].estimate.value for victim in ("one", "two", "all")}
    assert lost == pytest.approx({"one": 0.0, "two": 0.375, "all": 0.1875})
    for victim in ("one", "two", "all"):
        one = found[victim, "mrr-drop", "worse"]
        assert one.baseline is not None
        assert (one.baseline.value, one.num_attacked) == (0.0, 2 if victim == "all" else 1)
        assert one.attainable == pytest.approx(0.75)
        assert found[victim, "mrr-drop", "idle"].estimate.value == 0.0
    assert found["all", "mrr-drop", STRONGEST].by == "worse"


def test_its_interval_is_that_of_as_many_triples_and_counts_the_choice(found) -> None:
    one, best = (found["all", "mrr-drop", way].estimate for way in ("worse", STRONGEST))
    usual = mean(np.repeat([0.0, 0.375], 40), np.random.default_rng(1))
    assert one.n == 80
    assert one.high - one.low == pytest.approx(usual.high - usual.low, rel=0.1)
    assert best.high - best.low > 1.1 * (one.high - one.low)


def test_rows_cut_are_those_of_honest_clients_beside_the_clean_run(found) -> None:
    one = found["all", "rows-cut", "worse"]
    assert one.baseline is not None
    assert (one.estimate.value, one.baseline.value) == (0.1, 0.0)


def test_who_shares_no_row_reaches_nobody_and_it_is_said(truth: Truth, found) -> None:
    """Rows that are not trained do not cross."""
    assert {one.remark for one in found.values()} == {None}
    truth.result.graph.clients[1].relation_ids[:] = 2
    for remark, expected in ((None, ""), ("from round 6 on", "from round 6 on; ")):
        remarks = {one.remark for one in damage(truth, {"idle": run()}, ["bad"], remark) if one.metric == "mrr-drop"}
        assert remarks == {f"{expected}no other client has a row of bad's: what it uploads reaches nobody"}
    assert {one.remark for one in damage(truth, {"idle": run()}, []) if one.metric == "mrr-drop"} == {None}


def test_a_client_that_spoils_does_nothing_that_a_defense_asks() -> None:
    for one in (RandomRows("a", 0), SignFlip("a"), ShuffledIdentities("a", 0)):
        assert not one.guarded
