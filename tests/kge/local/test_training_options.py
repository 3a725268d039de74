"""`triple_weights`, `redraw`, `entity_range` and `best_round`, one by one against plain loops, and the variant that sets them."""

from typing import ClassVar

import numpy as np
import pytest
import torch

from fkgsec.data.graph import FederatedGraph
from fkgsec.errors import SpecError
from fkgsec.federation.adversary import Adversary
from fkgsec.federation.loop import Federation, run_federation
from fkgsec.federation.options import replace
from fkgsec.kge.negatives import frequency_weights
from fkgsec.kge.options import TRAINING, KgeOptions
from fkgsec.kge.result import KgeResult


class TestTripleWeights:
    def test_by_hand(self) -> None:
        triples = np.array([[0, 0, 1], [0, 0, 2], [3, 0, 2], [0, 1, 2]])
        # (0, 0, .) stands twice and counts 5, (., 0, 1) once and counts 4; and so on.
        expected = [(5 + 4) ** -0.5, (5 + 5) ** -0.5, (4 + 5) ** -0.5, (4 + 4) ** -0.5]
        assert frequency_weights(triples) == pytest.approx(expected)


@pytest.mark.parametrize(("redraw", "repeats"), [("epoch", False), ("never", True)])
def test_draws_of_every_epoch_or_of_the_first(redraw: str, repeats: bool, uneven: FederatedGraph) -> None:
    """Models that hardly move have the same loss in every round where batches and negatives repeat, and nowhere else."""
    options = KgeOptions(
        algorithm="single", dim=8, num_negatives=4, batch_size=16, rounds=3, local_epochs=2, learning_rate=1e-9,
        negative_sides="each", redraw=redraw,
    )  # fmt: skip
    losses = [entry.loss for entry in run_federation(uneven, options).rounds[1:]]
    assert (losses == pytest.approx([losses[0]] * 3, rel=1e-6)) is repeats


@pytest.mark.parametrize(("model", "widths"), [("transe", 1), ("rotate", 2), ("complex", 2)])
def test_the_range_of_entities_by_the_width_of_a_row(model: str, widths: int, uneven: FederatedGraph) -> None:
    for algorithm in ("single", "fede", "fedlu"):
        options = KgeOptions(algorithm=algorithm, model=model, dim=16, gamma=6, entity_range="width")
        federation = Federation(uneven, options)
        federation.align()
        tables = federation.task.snapshot()
        for name, rows in tables.items():
            half = 8 / 16 / (widths if name.endswith("entities") else 1)
            assert 0.9 * half < float(rows.abs().max()) <= half, name


class TestBestRound:
    """Rounds that are validated one by one, and kept by client."""

    OPTIONS = KgeOptions(
        algorithm="single",
        dim=8,
        num_negatives=8,
        batch_size=16,
        rounds=8,
        eval_every=1,
        patience=0,
        learning_rate=0.05,
    )

    @pytest.mark.parametrize(
        ("algorithm", "kind"),
        [("fedlu", "private"), ("fede-before", "trained")],
    )
    def test_each_client_has_its_own(self, algorithm: str, kind: str, uneven: FederatedGraph) -> None:
        settings = {"evaluate": "before"} if algorithm == "fede-before" else {}
        options = replace(self.OPTIONS, algorithm=algorithm.removesuffix("-before"), settings=settings)
        kept = run_federation(uneven, replace(options, best_round="client"))
        # The run that ends with round k and validates nowhere else is kept at round k.
        ends = [run_federation(uneven, replace(options, rounds=k, eval_every=k)) for k in range(1, options.rounds + 1)]
        validated = np.array([validation(one, options, kind) for one in ends])
        best = validated.argmax(axis=0)
        assert len(set(best)) > 1, "clients whose best rounds are alike show nothing"
        for place, number in enumerate(best):
            ours, theirs = getattr(kept, kind)[place], getattr(ends[number], kind)[place]
            assert torch.equal(ours.entities, theirs.entities)
            assert torch.equal(ours.relations, theirs.relations)
            assert np.array_equal(kept.test_ranks[place], ends[number].test_ranks[place])
        sizes = [len(client.valid) for client in uneven.clients]
        expected = np.average(np.maximum.accumulate(validated), axis=1, weights=sizes)
        assert [entry.valid for entry in kept.rounds[1:]] == pytest.approx(expected)

    def test_training_ends_once_no_client_improves(self, uneven: FederatedGraph) -> None:
        options = replace(self.OPTIONS, rounds=40, patience=2, best_round="client")
        valid = [entry.valid for entry in run_federation(uneven, options).rounds[1:]]
        assert len(valid) < 40
        assert valid[-3:] == [valid[-1]] * 3
        assert valid[-4] < valid[-1]

    def test_what_does_not_go_with_it(self, uneven: FederatedGraph) -> None:
        options = replace(self.OPTIONS, algorithm="fede", best_round="client")
        with pytest.raises(SpecError, match="best_round"):
            Federation(uneven, options, adversary=Adversary(party=uneven.clients[0].name))
        with pytest.raises(SpecError, match="best_round"):
            replace(options, algorithm="collective")
        with pytest.raises(SpecError, match="best_round"):
            replace(options, eval_sample=5)


def validation(result: KgeResult, options: KgeOptions, kind: str) -> list[float]:
    """Each client's validation MRR by its models of this kind."""
    federation = Federation(result.graph, options)
    stack = federation.task.private if kind == "private" else federation.task.stack
    for place, tables in enumerate(getattr(result, kind)):
        stack.rows("entities", place).detach().copy_(tables.entities)
        stack.rows("relations", place).detach().copy_(tables.relations)
    return [total / count for total, count in federation.task.evaluator.reciprocal("valid")]


class TestVariant:
    PUBLISHED: ClassVar = {
        "triple_weights": "frequency",
        "redraw": "never",
        "entity_range": "width",
        "best_round": "client",
    }

    @pytest.mark.parametrize(
        ("algorithm", "other"),
        [
            ("single", {}),
            ("fedlu", {}),
            ("fede", {"best_round": "federation"}),
            ("fedprox", {"best_round": "federation"}),
            ("collective", {"best_round": "federation", "entity_range": "dim"}),
        ],
    )
    def test_it_sets_what_the_code_does(self, algorithm: str, other: dict[str, str]) -> None:
        options = KgeOptions(algorithm=algorithm, settings={"variant": "published"})
        assert {name: options.training(name) for name in TRAINING} == self.PUBLISHED | other
        assert {name: KgeOptions(algorithm=algorithm).training(name) for name in TRAINING} == TRAINING

    def test_an_option_that_is_given_wins(self) -> None:
        options = KgeOptions(algorithm="fedlu", redraw="epoch", settings={"variant": "published"})
        assert options.training("redraw") == "epoch"
        assert options.training("triple_weights") == "frequency"

    def test_algorithms_of_other_papers_have_none(self) -> None:
        with pytest.raises(SpecError, match="variant"):
            KgeOptions(algorithm="feds", settings={"variant": "published"})
