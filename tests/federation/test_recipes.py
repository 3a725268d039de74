"""The rows of the table: FedEP's own figures, resumed runs, protected runs, and which options a recipe takes."""

import numpy as np
import pytest
import torch
from msgspec.structs import asdict

from fkgsec.data.graph import FederatedGraph
from fkgsec.federation.loop import run_federation
from fkgsec.federation.options import replace
from fkgsec.federation.recipes import RECIPES
from fkgsec.kge.models import ClientTables
from fkgsec.kge.options import KgeOptions
from fkgsec.kge.result import KgeResult
from tests.kge.naive import naive_mrr, naive_ranks

WHEN = ("before", "after")


def numbers(tables: list[ClientTables]) -> list[list[float]]:
    return [torch.cat([t.entities.flatten(), t.relations.flatten()]).tolist() for t in tables]


@pytest.fixture(scope="module")
def learning() -> KgeOptions:
    """Steps large enough that validation goes up and down, and that training and broadcast differ in it."""
    return KgeOptions(
        algorithm="fedep",
        dim=8,
        batch_size=32,
        num_negatives=7,
        local_epochs=2,
        learning_rate=0.05,
        rounds=4,
        eval_every=1,
        patience=0,
        seed=5,
        device="cpu",
    )


@pytest.fixture(scope="module")
def round_by_round(uneven: FederatedGraph, learning: KgeOptions) -> list[KgeResult]:
    """FedE, whose recipe is not in question, kept after 1, 2, 3 and 4 rounds."""
    fede = replace(learning, algorithm="fede")
    return [run_federation(uneven, replace(fede, rounds=number, eval_every=number)) for number in range(1, 5)]


def test_fedep_trains_as_fede_does(uneven: FederatedGraph, learning: KgeOptions) -> None:
    """Kept at the same round, all that was trained and sent is FedE's; the figures alone differ."""
    fedep = run_federation(uneven, replace(learning, eval_every=4))
    fede = run_federation(uneven, replace(learning, eval_every=4, algorithm="fede"))
    assert numbers(fedep.tables) == numbers(fede.tables)
    assert numbers(fedep.trained) == numbers(fede.trained)
    assert [(e.loss, e.bytes_up, e.bytes_down) for e in fedep.rounds] == [
        (e.loss, e.bytes_up, e.bytes_down) for e in fede.rounds
    ]
    assert fedep.transcript.frames == fede.transcript.frames
    assert [ranks.tolist() for ranks in fedep.test_ranks] != [ranks.tolist() for ranks in fede.test_ranks]
    assert fedep.rounds[-1].valid != fede.rounds[-1].valid


def test_fedep_validates_and_tests_what_training_left(
    uneven: FederatedGraph, learning: KgeOptions, round_by_round: list[KgeResult]
) -> None:
    result = run_federation(uneven, learning)
    local = [naive_mrr(learning.kge_model(), kept.trained, uneven) for kept in round_by_round]
    shared = [naive_mrr(learning.kge_model(), kept.tables, uneven) for kept in round_by_round]
    assert [entry.valid for entry in result.rounds[1:]] == pytest.approx(local, abs=1e-9)
    assert [kept.rounds[-1].valid for kept in round_by_round] == pytest.approx(shared, abs=1e-9)
    # The best round is that of the local figures, and here the other figures would choose another.
    assert result.best_round == 1 + int(np.argmax(local)) != 1 + int(np.argmax(shared))
    best = round_by_round[result.best_round - 1]
    assert numbers(result.trained) == numbers(best.trained)
    assert numbers(result.tables) == numbers(best.tables)
    for place, client in enumerate(uneven.clients):
        assert np.array_equal(
            result.test_ranks[place], naive_ranks(learning.kge_model(), best.trained[place], client, "test")
        )


@pytest.mark.parametrize("algorithm", ["fedprox", "fedec"])
def test_others_of_fedlus_code_are_judged_before_the_broadcast_too(
    algorithm: str, uneven: FederatedGraph, learning: KgeOptions
) -> None:
    options = replace(learning, algorithm=algorithm, rounds=2, eval_every=2)
    runs = [run_federation(uneven, replace(options, evaluate=when)) for when in WHEN]
    for result, tables in zip(runs, (runs[0].trained, runs[1].tables), strict=True):
        assert result.rounds[-1].valid == pytest.approx(naive_mrr(options.kge_model(), tables, uneven), abs=1e-9)
        for place, client in enumerate(uneven.clients):
            assert np.array_equal(
                result.test_ranks[place], naive_ranks(options.kge_model(), tables[place], client, "test")
            )
    assert numbers(runs[0].tables) == numbers(runs[1].tables)
    assert runs[0].rounds[-1].valid != runs[1].rounds[-1].valid


def test_patience_of_fedep_counts_local_figures(
    uneven: FederatedGraph, learning: KgeOptions, round_by_round: list[KgeResult]
) -> None:
    def last_round(figures: list[float]) -> int:
        """The first round that is no better than an earlier one; patience 1."""
        return next(n for n in range(2, 5) if figures[n - 1] <= max(figures[: n - 1]))

    local, shared = (
        [naive_mrr(learning.kge_model(), tables, uneven) for tables in kept]
        for kept in ([run.trained for run in round_by_round], [run.tables for run in round_by_round])
    )
    stopped = [
        run_federation(uneven, replace(learning, algorithm=algorithm, patience=1)).rounds[-1].round
        for algorithm in ("fedep", "fede")
    ]
    assert stopped == [last_round(local), last_round(shared)]


def test_defaults_are_those_of_the_paper(uneven: FederatedGraph, options: KgeOptions) -> None:
    """fedlu.txt 5.2: mu 0.1 for FedProx, half its squared distance as its code has it; tau 0.2 and mu 0.3 for FedEC."""
    options = replace(options, eval_every=2)
    assert asdict(RECIPES["fedprox"].settings()) == {
        "mu": 0.1, "proximal": "squared", "evaluate": "after", "variant": "paper",
    }  # fmt: skip
    assert asdict(RECIPES["fedec"].settings()) == {
        "mu": 0.3, "tau": 0.2, "evaluate": "after", "variant": "paper",
    }  # fmt: skip
    for algorithm, said in (("fedprox", {"mu": 0.1}), ("fedec", {"mu": 0.3, "tau": 0.2})):
        changes = ({}, said, {"mu": 2 * said["mu"]})
        results = [run_federation(uneven, replace(options, algorithm=algorithm, **change)) for change in changes]
        unsaid, paper, twice = (numbers(result.tables) for result in results)
        assert unsaid == paper != twice
