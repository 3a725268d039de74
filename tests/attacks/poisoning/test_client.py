"""A client that plants triples: what it trains on and uploads by hand, and whether it succeeds under several defenses."""

import numpy as np
import pytest
import torch

from fkgsec import ClientGraph
from fkgsec.attacks import KgeAttackOptions, headline, run_attacks
from fkgsec.attacks.poisoning.client import Poisoner

POISON = np.array([(1, 0, 3), (2, 1, 0)])


def test_it_trains_on_its_own_triples_and_the_copies() -> None:
    own = ClientGraph.from_global(
        "own", np.array([(0, 0, 1), (2, 1, 3), (3, 0, 4)]), np.zeros((0, 3)), np.zeros((0, 3))
    )
    subset = Poisoner("own", POISON, copies=3).training_subset(own)
    trained = subset.triples[subset.rows].tolist()
    assert trained == [*own.train.tolist(), *POISON.tolist() * 3]


def test_it_boosts_the_rows_of_the_poison_alone() -> None:
    received, trained = torch.zeros(6, 2), torch.ones(6, 2)
    rows = Poisoner("own", POISON, 3, boost=5.0).upload(1, "entities", received, trained.clone())
    assert rows[:, 0].tolist() == [5, 5, 5, 5, 1, 1]
    relations = Poisoner("own", np.array([(1, 2, 3)]), 3, boost=5.0).upload(1, "relations", received, trained.clone())
    assert relations[:, 0].tolist() == [1, 1, 5, 1, 1, 1]
    assert torch.equal(Poisoner("own", POISON, 3).upload(1, "entities", received, trained.clone()), trained)


def test_two_poisons_are_two_runs() -> None:
    names = {
        Poisoner("own", poison, copies, boost).identity()
        for poison in (POISON, POISON[:1])
        for copies in (2, 3)
        for boost in (1.0, 5.0)
    }
    assert len(names) == 8


def test_victims_believe_what_is_planted_and_not_what_is_drawn_alike(poisoned) -> None:
    found = poisoned("client-poison")
    one, boosted = found["hits@10", "plain"], found["hits@10", "boosted"]
    assert one.num_attacked == 2
    assert one.estimate.low > max(guess.high for guess in one.guesses.values())
    assert set(one.guesses) == {"clean run", "control, plain", "control, boosted"}
    assert boosted.estimate.value > one.estimate.value
    assert found["mrr", "strongest"].by == "boosted"


def test_in_few_last_rounds_it_plants_less(poisoned, federate) -> None:
    whole = poisoned("client-poison")["hits@10", "boosted"]
    options = KgeAttackOptions(attack=("client-poison",), attack_rounds=3)
    found = {(one.victim, one.metric, one.variant): one for one in run_attacks(federate(), options).figures}
    late = found["all", "hits@10", "boosted"]
    assert not late.reason
    assert late.guesses["clean run"] == whole.guesses["clean run"]  # of the same triples
    assert late.estimate.value < whole.estimate.value


@pytest.mark.slow
def test_secure_sums_do_not_stop_it(poisoned) -> None:
    """Nobody sees an upload; clients that clip themselves do not bound one that does not."""
    one = poisoned("client-poison", "secagg,robust:rule=clip,by=clients")["hits@10", "boosted"]
    assert one.estimate.low > one.baseline.high


def test_a_clip_by_the_server_takes_what_boosting_gains(poisoned) -> None:
    """It bounds the adversary to the weight of one honest client, and does not stop it."""
    open_, clipped = poisoned("client-poison"), poisoned("client-poison", "robust:rule=clip")
    gain = [found["mrr", "boosted"].estimate.value - found["mrr", "plain"].estimate.value for found in (open_, clipped)]
    assert gain[1] < gain[0] / 2
    assert clipped["hits@10", "boosted"].estimate.value < open_["hits@10", "boosted"].estimate.value / 2
    cut = clipped["rows-cut", "plain"]
    assert 0 < cut.estimate.value < 1
    assert cut.baseline.n == cut.estimate.n
    assert ("rows-cut", "plain") not in open_


def test_entity_rows_that_stay_at_home_stop_it(trained_runs) -> None:
    """FedR shares relation rows alone, which triples of one pair move little."""
    figures = headline(run_attacks(trained_runs["fedr"], KgeAttackOptions(attack=("client-poison",))).figures)
    found = {one.metric: one for one in figures if one.victim == "all"}
    for metric in ("hits@10", "mrr"):
        assert found[metric].estimate.low <= found[metric].baseline.value


@pytest.mark.slow
def test_noise_of_the_others_does_not_stop_who_adds_none(poisoned) -> None:
    one = poisoned("client-poison", "dp:unit=row,clip=0.1,epsilon=1")["hits@10", "boosted"]
    assert one.estimate.low > one.baseline.high
