"""A client that spoils training: its uploads by hand, and what they cost under several defenses."""

import dataclasses

import numpy as np
import pytest
import torch

from fkgsec import ClientGraph, FederatedGraph, KgeOptions
from fkgsec.attacks import KgeAttackOptions, headline, run_attacks
from fkgsec.attacks.poisoning.untargeted import RandomRows, ShuffledIdentities, SignFlip
from fkgsec.federation.adversary import Adversary
from fkgsec.kge.result import KgeResult

NONE = np.zeros((0, 3), dtype=np.int64)


def test_uploads_by_hand() -> None:
    received, trained = torch.zeros(40, 3), torch.linspace(-1, 3, 120).reshape(40, 3)
    assert torch.equal(SignFlip("a").upload(1, "entities", received, trained.clone()), -trained)
    rows = RandomRows("a", 3).upload(1, "entities", received, trained.clone())
    assert rows.shape == trained.shape
    assert rows.min() >= -1
    assert rows.max() <= 3
    assert abs(float(np.corrcoef(rows.ravel(), trained.ravel())[0, 1])) < 0.25
    assert torch.equal(rows, RandomRows("a", 3).upload(1, "entities", received, trained.clone()))
    for other in (RandomRows("a", 4).upload(1, "entities", received, trained),
                  RandomRows("a", 3).upload(2, "entities", received, trained)):  # fmt: skip
        assert not torch.equal(rows, other)
    assert RandomRows("a", 3).identity() != RandomRows("a", 4).identity()


def test_shuffled_identities_are_one_permutation_of_the_trained_entities() -> None:
    own = ClientGraph.from_global("a", np.array([(0, 0, 1), (2, 1, 3), (3, 0, 0)]), NONE, np.array([(5, 0, 1)]))
    subset = ShuffledIdentities("a", 1).training_subset(own)
    assert subset.rows.tolist() == [0, 1, 2]
    assert np.array_equal(subset.triples[:, 1], own.train[:, 1])
    pairs = {
        (int(before), int(after))
        for column in (0, 2)
        for before, after in zip(own.train[:, column], subset.triples[:, column], strict=True)
    }
    assert len(pairs) == 4  # one image each
    assert {after for _, after in pairs} == {0, 1, 2, 3}


@pytest.mark.planted("client-spoil", "every rank doubled: half of the others' MRR", {"mrr-drop": 13})
def test_doubled_ranks_cost_half_of_the_mrr(federate) -> None:
    result: KgeResult = federate()

    def train(graph: FederatedGraph, options: KgeOptions, adversary: Adversary) -> KgeResult:
        return dataclasses.replace(result, test_ranks=[2 * ranks for ranks in result.test_ranks])

    figures = headline(run_attacks(result, KgeAttackOptions(attack=("client-spoil",)), train=train).figures)
    lost = [figure for figure in figures if figure.metric == "mrr-drop"]
    assert [figure.victim for figure in lost] == ["hospital-2", "hospital-3", "all"]
    for figure in lost:
        assert figure.estimate.value == pytest.approx(figure.attainable / 2)
        assert figure.estimate.low > 0


@pytest.mark.slow
def test_honest_clients_lose_by_it_and_clips_by_clients_do_not_stop_it(poisoned) -> None:
    """The malicious one does not clip."""
    for defense in ("", "robust:rule=clip,by=clients"):
        one = poisoned("client-spoil", defense, size=1_500, rounds=12)["mrr-drop", "strongest"]
        assert one.estimate.low > 0
        assert one.by == "random"
        assert one.num_attacked == 2
        assert 0 < one.estimate.value < one.attainable


@pytest.mark.slow
def test_a_clip_stops_random_rows(poisoned) -> None:
    one = poisoned("client-spoil", "robust:rule=clip", size=1_500, rounds=12)["mrr-drop", "random"]
    assert one.estimate.low <= 0
