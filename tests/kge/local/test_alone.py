"""A client trained alone ends with the bits that it gets in any stack, whatever the model, the recipe and the threads."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from fkgsec.data.graph import ClientGraph, FederatedGraph
from fkgsec.federation.options import replace
from fkgsec.federation.recipes import RECIPES, algorithms_of
from fkgsec.kge.local import training
from fkgsec.kge.local.stack import ClientStack
from fkgsec.kge.local.training import TABLES, LocalTrainer, TrainingSubset
from fkgsec.kge.models import MODELS
from fkgsec.kge.options import KgeOptions
from fkgsec.randomness import generator
from fkgsec.unlearning.interference import INTERFERENCE, AlternatingTrainer, interference

CPU = torch.device("cpu")
# Odd sizes, so that hardly a row or matrix begins where a vector unit would like it to.
MATRICES = {"dim": 35, "rank": 2, "columns": 5}
SETTINGS = {"fede-svd": MATRICES, "fede-svd+": MATRICES}


class Party(NamedTuple):
    """Clients that are trained in one stack."""

    stacks: list[ClientStack]
    trainer: LocalTrainer

    def table(self, client: int) -> dict[str, Tensor]:
        """All that the client at this place holds."""
        return {
            f"{number} {table}": stack.rows(table, client).detach()
            for number, stack in enumerate(self.stacks)
            for table in TABLES
        }


def party(graphs: Sequence[ClientGraph], keys: Sequence[int], options: KgeOptions) -> Party:
    recipe, relations, private = RECIPES[options.algorithm], None, None
    if recipe.private != "none":
        private = ClientStack(graphs, keys, options.private_model(), options.seed, CPU, purpose="initial private rows")
        relations = private.tables["relations"] if recipe.private == "entities" else None
    stack = ClientStack(graphs, keys, options.kge_model(), options.seed, CPU, relations=relations)
    return Party([stack, *([private] if private else [])], LocalTrainer(stack, options, private))


def train(party: Party, keys: Sequence[int], rounds: Sequence[Sequence[int]], seed: int) -> list[dict[int, float]]:
    """Rounds of the clients with these keys that take part; before each, every client receives shared rows. Losses by key."""
    losses = []
    for number, participants in enumerate(rounds, start=1):
        for client, key in enumerate(keys):
            for table in TABLES:
                rows = party.stacks[0].rows(table, client).detach()
                noise = generator(seed, "received", table, key, number).normal(scale=0.02, size=tuple(rows.shape))
                received = rows + torch.from_numpy(noise.astype(np.float32))
                party.trainer.receive(table, client, received, first=number == 1)
                rows.copy_(received)
        party.trainer.begin_round()
        here = [client for client, key in enumerate(keys) if key in participants]
        if here:
            losses.append({keys[client]: loss for client, loss in party.trainer.train_round(number, here).items()})
    return losses


@pytest.mark.parametrize(
    ("algorithm", "model"),
    [(algorithm, list(MODELS)[place % len(MODELS)]) for place, algorithm in enumerate(algorithms_of("kge"))],
)
def test_alone_and_stacked_give_the_same_bits(
    algorithm: str, model: str, uneven: FederatedGraph, options: KgeOptions
) -> None:
    """Three unequal clients; one of them sits out the second round of three."""
    settings = {"dim": 15, **SETTINGS.get(algorithm, {})}
    options = replace(options, model=model, algorithm=algorithm, **settings)
    everybody, rounds = [0, 1, 2], [[0, 1, 2], [0, 1], [0, 1, 2]]
    stacked = party(uneven.clients, everybody, options)
    assert [len(group) for group in stacked.trainer._groups(stacked.stacks[0].order)] == [3]
    together = train(stacked, everybody, rounds, options.seed)
    for key, graph in enumerate(uneven.clients):
        alone = party([graph], [key], options)
        losses = train(alone, [key], rounds, options.seed)
        assert [loss[key] for loss in losses] == [loss[key] for loss in together if key in loss]
        for name, rows in alone.table(0).items():
            assert torch.equal(rows, stacked.table(key)[name]), f"client {graph.name}, table {name}"


@pytest.mark.parametrize(
    ("algorithm", "model"),
    [("fedec", "complex"), ("fedlu", "transe"), ("fede-svd+", "distmult")],
)
def test_clients_divided_among_caches_get_the_same_bits(
    algorithm: str, model: str, uneven: FederatedGraph, options: KgeOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The two largest of three clients take their steps together, the third by itself; the largest sits out the second round."""
    options = replace(options, model=model, algorithm=algorithm, **{"dim": 15, **SETTINGS.get(algorithm, {})})
    everybody, outcomes = [0, 1, 2], []
    for divided in (False, True):
        clients = party(uneven.clients, everybody, options)
        order, steps = clients.stacks[0].order, clients.trainer.num_steps(everybody)
        if divided:
            held = sum(clients.stacks[0].rows("entities", client).nbytes for client in order[:2])
            monkeypatch.setattr(training, "CACHED_BYTES", 4 * len(clients.stacks) * held)
            assert clients.trainer._groups(order) == [order[:2], order[2:]]
            assert clients.trainer.num_steps(everybody) > steps
        losses = train(clients, everybody, [everybody, order[1:], everybody], options.seed)
        outcomes.append((losses, [clients.table(client) for client in everybody]))
    (losses, tables), (losses_divided, tables_divided) = outcomes
    assert losses == losses_divided
    for one, other in zip(tables, tables_divided, strict=True):
        assert all(torch.equal(rows, other[name]) for name, rows in one.items())


@pytest.mark.parametrize("variant", INTERFERENCE)
def test_a_client_unlearns_alone_as_in_a_stack(variant: str, uneven: FederatedGraph, options: KgeOptions) -> None:
    """The forget sets have 3, 8 and 13 triples."""
    options = replace(options, algorithm="fedlu", dim=15)
    together, losses = unlearned(uneven.clients, [0, 1, 2], options, variant)
    for key, graph in enumerate(uneven.clients):
        alone, own_losses = unlearned([graph], [key], options, variant)
        assert [loss[0] for loss in own_losses] == [loss[key] for loss in losses]
        for name, rows in alone.table(0).items():
            assert torch.equal(rows, together.table(key)[name]), f"client {graph.name}, table {name}"


def unlearned(
    graphs: Sequence[ClientGraph], keys: Sequence[int], options: KgeOptions, variant: str
) -> tuple[Party, list[dict[int, float]]]:
    """The clients after an epoch of retroactive interference, and the losses of its passes."""
    made = party(graphs, keys, options)
    loss = functools.partial(interference, hard=True, soft=True, mu_soft=0.1, variant=variant)
    forget = {client: TrainingSubset(graphs[client].train, np.arange(3 + 5 * key)) for client, key in enumerate(keys)}
    trainer = AlternatingTrainer(made.stacks[0], options, made.stacks[1], forget, loss)
    losses = []
    for moves in INTERFERENCE[variant]:
        trainer.moves = moves
        losses.append(trainer.train_round(1, list(forget)))
    return Party(made.stacks, trainer), losses


@pytest.mark.parametrize(
    ("algorithm", "model"),
    [("fedec", "complex"), ("fedlu", "transe"), ("fede-svd+", "distmult")],
)
def test_the_number_of_threads_changes_no_bit(
    algorithm: str, model: str, threads: Callable[[int], None], consortium: FederatedGraph, options: KgeOptions
) -> None:
    """Tables and scores of more than the 32,768 numbers from which on torch divides its work among threads."""
    options = replace(
        options, model=model, algorithm=algorithm, dim=129, batch_size=512, num_negatives=99, local_epochs=1,
        **({"rank": 2, "columns": 3} if algorithm == "fede-svd+" else {}),
    )  # fmt: skip
    outcomes = []
    for count in (1, 2):
        threads(count)
        stacked = party(consortium.clients, [0, 1, 2], options)
        assert stacked.stacks[0].tables["entities"].numel() > 2 * 32_768
        losses = train(stacked, [0, 1, 2], [[0, 1, 2]] * 2, options.seed)
        outcomes.append((losses, [stacked.table(client) for client in range(3)]))
    (losses_of_one, tables_of_one), (losses_of_two, tables_of_two) = outcomes
    assert losses_of_one == losses_of_two
    for one, two in zip(tables_of_one, tables_of_two, strict=True):
        assert all(torch.equal(rows, two[name]) for name, rows in one.items())
