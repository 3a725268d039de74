"""Properties of a client's graphs: errors by hand, ridge regression against its closed form, skewed clients told apart."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from fkgsec.attacks import Figure, GraphAttackOptions, run_attacks
from fkgsec.attacks.graphs import properties
from fkgsec.attacks.graphs.properties import Properties, change, draws, ridge
from fkgsec.defenses import make_transport
from fkgsec.federation.loop import run_federation
from fkgsec.federation.options import replace
from fkgsec.gnn.options import GnnOptions
from fkgsec.gnn.result import GnnResult
from fkgsec.graphs.generate import generate_motifs
from fkgsec.graphs.sets import ClientGraphs, FederatedGraphs


def attack(result: GnnResult, threat: str = "server+graphs") -> list[Figure]:
    return run_attacks(result, GraphAttackOptions(attack=("property-inference",), threat=(threat,))).figures


class TestByHand:
    def test_errors(self) -> None:
        """Shares .5 .25 .25 of truth .25 .25 .5 are half of .25 + 0 + .25 off; a size of 30 for 20 is half too much."""
        true = Properties.of(np.array([0, 1, 2, 2]), np.array([10, 10, 20, 40]), 3)
        assert true.class_shares.tolist() == [0.25, 0.25, 0.5]
        assert true.mean_size == 20
        found = Properties(np.array([0.5, 0.25, 0.25]), 30.0)
        assert found.error(true) == {"class_share": 0.25, "mean_size": 0.5}
        assert true.error(true) == {"class_share": 0.0, "mean_size": 0.0}

    def test_what_is_read_is_a_share(self) -> None:
        read = Properties.read(np.array([-0.5, 1.5, np.log(7)]))
        assert read.class_shares.tolist() == [0, 1]
        assert read.mean_size == pytest.approx(7)

    def test_change_is_a_direction(self) -> None:
        before = {"b": torch.zeros(2), "a": torch.ones(1)}
        after = {"a": torch.ones(1), "b": torch.tensor([3.0, -4.0])}
        assert change(before, after).tolist() == pytest.approx([0, 0.6, -0.8])

    def test_draws_have_many_shares_and_sizes(self) -> None:
        [graphs] = generate_motifs(0, clients=1, size=80)
        drawn = list(itertools.islice(draws(graphs, 50, np.random.default_rng(0)), 60))
        shares = [Properties.of(one.classes, one.sizes, 2) for one in drawn]
        assert all(len(one) == 50 for one in drawn)
        assert min(one.class_shares[0] for one in shares) < 0.2
        assert max(one.class_shares[0] for one in shares) > 0.8
        assert np.ptp([one.mean_size for one in shares]) > 2


class TestRidge:
    def test_against_the_closed_form(self) -> None:
        """With one strength, kernel ridge regression is ridge regression over the centred features."""
        rng = np.random.default_rng(0)
        features, targets, asked = rng.normal(size=(20, 5)), rng.normal(size=(20, 1)), rng.normal(size=5) * 0.1
        centred = features - features.mean(axis=0)
        scale = (centred**2).sum() / 20
        closed = [
            (targets.mean() + (asked - features.mean(axis=0)) @ np.linalg.solve(
                centred.T @ centred + strength * scale * np.eye(5), centred.T @ (targets - targets.mean())
            ))[0]
            for strength in properties.STRENGTHS
        ]  # fmt: skip
        assert any(ridge(features, targets, asked)[0] == pytest.approx(one) for one in closed)

    def test_a_planted_target_is_read_and_a_shuffled_one_is_not(self) -> None:
        rng = np.random.default_rng(1)
        direction, targets = rng.normal(size=200), rng.uniform(0, 1, size=(64, 1))
        features = targets * direction + 0.3 * rng.normal(size=(64, 200))
        asked = [share * direction + 0.3 * rng.normal(size=200) for share in (0.1, 0.5, 0.9)]
        read = [ridge(features, targets, one)[0] for one in asked]
        assert np.allclose(read, [0.1, 0.5, 0.9], atol=0.1)
        shuffled = [[ridge(features, rng.permutation(targets), one)[0] for one in asked] for _ in range(40)]
        assert np.allclose(np.mean(shuffled, axis=0), targets.mean(), atol=0.1)


@pytest.fixture(scope="module")
def skewed() -> FederatedGraphs:
    """Three clients of one data set, with 10, 50 and 90 % of the second class."""
    [graphs] = generate_motifs(2, clients=1, size=240)
    pools = [list(np.flatnonzero(graphs.classes == one)) for one in (0, 1)]
    clients = []
    for number, count in enumerate((7, 35, 63)):
        own = [pools[1].pop() for _ in range(count)] + [pools[0].pop() for _ in range(70 - count)]
        order = np.random.default_rng(number).permutation(70)
        clients.append(
            ClientGraphs(f"client-{number}", graphs.subset(own), order[:50], order[50:60], order[60:], "molecules")
        )
    return FederatedGraphs("skewed", tuple(clients))


@pytest.mark.planted(
    "property-inference", "10, 50 and 90% of a class: error below half the baseline's", {"class_share": 3}
)
def test_class_shares_are_read_off_whole_networks(
    skewed: FederatedGraphs, small: GnnOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where all layers cross, the first round says them to within a few hundredths, of a run of several."""
    monkeypatch.setattr(properties, "NUM_CLIENTS", 32)
    result = run_federation(skewed, replace(small, settings={"share": "all"}, batch_size=64))
    found = {one.victim: one for one in attack(result) if one.metric == "class_share"}
    assert {one.round for one in found.values()} == {1}
    overall = found["all"]
    assert overall.baseline is not None
    assert overall.less_is_worse
    assert overall.attainable == 0
    assert overall.baseline.value > 0.2
    assert overall.estimate.value < 0.12
    assert overall.estimate.value < overall.baseline.value / 2
    assert max(one.estimate.value for one in found.values()) < properties.RESOLUTION
    assert overall.remark is None
    assert "are not told from them" in (found["client-1"].remark or "")  # its share is that of the auxiliary graphs
    assert set(found["client-0"].guesses) == {"auxiliary graphs", "mean of the draws"}


def test_noise_hides_class_shares(skewed: FederatedGraphs, small: GnnOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of what stands in uploads in plaintext, though one is there to be read."""
    monkeypatch.setattr(properties, "NUM_CLIENTS", 24)
    options = replace(small, settings={"share": "all"}, batch_size=64, rounds=1)
    errors = {}
    for defense in ("", "dp:epsilon=1,clip=0.1"):
        protected = replace(options, defense=defense, protocol_seed=3 if defense else None)
        result = run_federation(skewed, protected, make_transport=make_transport)
        [errors[defense]] = [one for one in attack(result) if (one.metric, one.victim) == ("class_share", "all")]
    clear, noisy = errors.values()
    assert not noisy.reason
    assert clear.estimate.value < 0.5 * clear.baseline.value
    assert noisy.estimate.value > 0.6 * noisy.baseline.value


@pytest.mark.null("property-inference", "random updates: error above .6 of the baseline's")
def test_whose_upload_is_read_matters(
    skewed: FederatedGraphs, small: GnnOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A control: with what a client did taken for noise, nothing is read."""
    result = run_federation(skewed, replace(small, settings={"share": "all"}, batch_size=64, rounds=1))
    rng = np.random.default_rng(0)

    def noise(before: object, after: object) -> np.ndarray:
        vector = rng.normal(size=500)
        return vector / np.linalg.norm(vector)

    monkeypatch.setattr(properties, "change", noise)
    monkeypatch.setattr(properties, "NUM_CLIENTS", 24)
    [overall] = [one for one in attack(result) if one.metric == "class_share" and one.victim == "all"]
    assert overall.baseline is not None
    assert overall.estimate.value > 0.6 * overall.baseline.value


@pytest.mark.parametrize(
    ("changes", "threat", "reason"),
    [
        ({"defense": "secagg"}, "server+graphs", "its parameters were transmitted only inside a sum"),
        ({"algorithm": "local-gc"}, "server+graphs", "none of its parameters was transmitted in the attacked round"),
        ({}, "server", "no graphs of its data set are known"),
        ({}, "models", "it needs each victim's parameters, a server, the first round"),
    ],
)
def test_where_nothing_is_inferred(
    skewed: FederatedGraphs, small: GnnOptions, changes: dict, threat: str, reason: str
) -> None:
    result = run_federation(skewed, replace(small, rounds=1, **changes), make_transport=make_transport)
    assert {one.reason for one in attack(result, threat)} == {reason}


def test_after_rounds_of_its_own_a_client_is_left_alone(skewed: FederatedGraphs, small: GnnOptions) -> None:
    """CEFGL's coin may let clients train before they first upload: the states that they upload from are unknown."""
    seed = next(seed for seed in range(50) if not replace(small, algorithm="cefgl", seed=seed).exchanges(1))
    result = run_federation(skewed, replace(small, algorithm="cefgl", seed=seed, rounds=8))
    reasons = {one.reason for one in attack(result)}
    assert len(reasons) == 1
    assert "rounds before, in states that are not known" in str(reasons.pop())
