"""Whole rounds in fused steps against `LocalTrainer` on the CPU with the same draws: every recipe that has them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fkgsec.data.graph import FederatedGraph
from fkgsec.errors import TrainingError
from fkgsec.federation.options import FederationOptions, replace
from fkgsec.federation.recipes import RECIPES, algorithms_of
from fkgsec.kge.device import fused, where
from fkgsec.kge.local.objectives import OBJECTIVES
from fkgsec.kge.local.rule import LocalRule, WeightedObjective
from fkgsec.kge.local.stack import ClientStack
from fkgsec.kge.local.training import TABLES, LocalTrainer, TrainingSubset

CPU = torch.device("cpu")
OWN_STEPS = ("fede-svd+",)


class Drifting(LocalRule):
    def begin_round(self, round: int) -> None:
        self.weight = 1 / round

    def objective(self) -> WeightedObjective:
        return WeightedObjective(OBJECTIVES["squared"], getattr(self, "weight", 1.0))


class Own(LocalRule):
    def objective(self) -> WeightedObjective:
        return WeightedObjective(OBJECTIVES["squared"]._replace(reduction="mean"), 1.0)


@pytest.fixture
def options() -> FederationOptions:
    return FederationOptions(
        dim=5, batch_size=4, num_negatives=5, local_epochs=1, learning_rate=0.01, draws="philox", negative_sides="tail"
    )


def trainer_of(
    graph: FederatedGraph,
    options: FederationOptions,
    device: torch.device,
    monkeypatch: pytest.MonkeyPatch,
    *,
    kernels: bool,
) -> tuple[list[ClientStack], LocalTrainer]:
    recipe, relations, private = RECIPES[options.algorithm], None, None
    keys = range(len(graph.clients))
    if recipe.private != "none":
        private = ClientStack(graph.clients, keys, options.private_model(), 0, device, purpose="initial private rows")
        relations = private.tables["relations"] if recipe.private == "entities" else None
    stack = ClientStack(graph.clients, keys, options.kge_model(), 0, device, relations=relations)
    trainer = LocalTrainer(stack, options, private)
    with monkeypatch.context() as patch:
        if not kernels:
            patch.setattr(where, "DEVICES", ("none",))
        assert (trainer._fused is not None) == kernels
    return [stack, *([private] if private else [])], trainer


def assert_same_rounds(
    graph: FederatedGraph,
    options: FederationOptions,
    device: torch.device,
    monkeypatch: pytest.MonkeyPatch,
    rounds: list[list[int]],
) -> None:
    """Rounds of these clients, each from rows that were received."""
    runs = []
    for place, kernels in ((CPU, False), (device, True)):
        stacks, trainer = trainer_of(graph, options, place, monkeypatch, kernels=kernels)
        losses = []
        for number, clients in enumerate(rounds, start=1):
            for client in range(len(graph.clients)):
                for table in RECIPES[options.algorithm].shared:
                    rows = stacks[0].rows(table, client).detach()
                    noise = np.random.default_rng([number, client]).normal(scale=0.05, size=tuple(rows.shape))
                    received = rows + torch.from_numpy(noise.astype(np.float32)).to(rows.device)
                    trainer.receive(table, client, received, first=number == 1)
                    if number > 1:  # in the first, training begins where the distance is not 0
                        rows.copy_(received)
            trainer.begin_round()
            losses.append(trainer.train_round(number, clients))
        runs.append((losses, stacks, trainer.tensors()))
    (expected, on_cpu, kept), (actual, on_device, kept_there) = runs
    for one, other in zip(expected, actual, strict=True):
        assert other == pytest.approx(one, rel=1e-5)
    for one, other in zip(on_cpu, on_device, strict=True):
        for table in TABLES:
            torch.testing.assert_close(
                other.tables[table].detach().cpu(), one.tables[table].detach(), rtol=1e-4, atol=2e-5
            )
    assert set(kept) == set(kept_there)  # a checkpoint holds the same, wherever it was made
    for name, tensor in kept.items():
        torch.testing.assert_close(kept_there[name].cpu(), tensor, rtol=1e-4, atol=2e-5)


CASES: list[dict[str, Any]] = [
    {"algorithm": "fede", "model": "transe", "negative_sides": "each"},
    {"algorithm": "fedr", "model": "rotate", "negative_sides": "both", "local_epochs": 2},
    {"algorithm": "feds", "model": "distmult", "temperature": 0.0},
    {"algorithm": "single", "model": "complex"},
    {"algorithm": "fedprox", "proximal": "squared"},
    {"algorithm": "fedprox", "proximal": "distance", "model": "rotate"},
    {"algorithm": "fedec"},
    {"algorithm": "pfedeg", "mu": 0.5, "model": "complex"},
    {"algorithm": "fedlu"},
    {"algorithm": "fedlu", "variant": "published", "model": "rotate"},
    {"algorithm": "fede-kd", "model": "transe"},
]


@pytest.mark.parametrize("given", CASES, ids=lambda given: "-".join(str(value) for value in given.values()))
def test_a_round_equals_the_cpu(
    given: dict[str, Any],
    pair: FederatedGraph,
    options: FederationOptions,
    device: torch.device,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert_same_rounds(pair, replace(options, **given), device, monkeypatch, [[0, 1]])


def test_three_rounds_one_without_the_larger_client(
    pair: FederatedGraph, options: FederationOptions, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FedEC looks at the rows of the last training, and Adam begins anew."""
    assert_same_rounds(pair, replace(options, algorithm="fedec"), device, monkeypatch, [[0, 1], [0], [0, 1]])


def test_every_recipe_is_fused_or_says_why_not(options: FederationOptions) -> None:
    for algorithm in algorithms_of("kge"):
        sized = {"dim": 15, "rank": 2, "columns": 3} if "svd" in algorithm else {}
        chosen = replace(options, algorithm=algorithm, **sized)
        rule = (RECIPES[algorithm].local or LocalRule)(chosen)
        reason = fused.why_not_fused(chosen, rule, CPU, plain=True)
        assert reason == (f"{algorithm} has steps of its own here" if algorithm in OWN_STEPS else "")
    for drifting, reason in ((Drifting(options), "another in every round"), (Own(options), "an objective of its own")):
        assert reason in fused.why_not_fused(options, drifting, CPU, plain=True)
    rule = LocalRule(options)
    assert fused.why_not_fused(replace(options, draws="numpy"), rule, CPU, plain=True) == (
        "they need the option draws=philox, and it is numpy"
    )
    assert "this is meta" in fused.why_not_fused(options, rule, torch.device("meta"), plain=True)
    assert "steps of its own" in fused.why_not_fused(options, rule, CPU, plain=False)


def test_adam_goes_on_from_a_checkpoint_of_the_cpu(
    pair: FederatedGraph, options: FederationOptions, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`single` keeps its moments: a round on the CPU, then one in kernels, or both on the CPU."""
    options = replace(options, algorithm="single")
    (stack,), trainer = trainer_of(pair, options, CPU, monkeypatch, kernels=False)
    trainer.train_round(1, [0, 1])
    (there,), resumed = trainer_of(pair, options, device, monkeypatch, kernels=True)
    for table in TABLES:
        there.tables[table].detach().copy_(stack.tables[table].detach())
    resumed.load(trainer.tensors())
    resumed.train_on(1, TrainingSubset.all(pair.clients[1].train))  # whose buffers are made anew
    trainer.train_round(2, [0, 1])
    resumed.train_round(2, [0, 1])
    for table in TABLES:
        torch.testing.assert_close(
            there.tables[table].detach().cpu(), stack.tables[table].detach(), rtol=1e-4, atol=2e-5
        )


def test_a_loss_that_is_not_finite_leaves_the_tables_as_they_were(
    pair: FederatedGraph, options: FederationOptions, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    (stack,), trainer = trainer_of(pair, options, device, monkeypatch, kernels=True)
    stack.rows("relations", 1).detach()[:] = float("nan")
    before = stack.tables["entities"].detach().clone()
    with pytest.raises(
        TrainingError, match=r"^the loss of client large is nan in round 7, epoch 1, step 1; lower learning_rate"
    ):
        trainer.train_round(7, [0, 1])
    assert torch.equal(stack.tables["entities"].detach(), before)
