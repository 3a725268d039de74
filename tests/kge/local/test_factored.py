"""FedE-SVD+: the last epoch of a round against a naive loop in which each entity has its own U, s and V (feds.txt VI-B).

Legend: `W` width of a row, taken as a matrix of `m` rows and `k` columns.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from fkgsec.algorithms.factored import FactoredRows
from fkgsec.data.graph import ClientGraph, FederatedGraph
from fkgsec.federation.loop import run_federation
from fkgsec.federation.options import replace
from fkgsec.kge.local.stack import ClientStack
from fkgsec.kge.local.training import TABLES, LocalTrainer
from fkgsec.kge.models import MODELS, Side
from fkgsec.kge.negatives import NegativeSampler
from fkgsec.kge.options import KgeOptions
from fkgsec.randomness import generator

CPU = torch.device("cpu")
ALL = [0, 1, 2]


class NaiveRow(NamedTuple):
    """One entity: the row received `[W]`, and the singular triplets of its update, which are trained."""

    received: Tensor
    left: Tensor
    values: Tensor
    right: Tensor

    def row(self) -> Tensor:
        return self.received + (self.left @ torch.diag(self.values) @ self.right.T).flatten()

    def orthogonality(self) -> Tensor:
        """Eq. 7 without alpha."""
        k = len(self.values)
        off = [side.T @ side - torch.eye(k, dtype=side.dtype) for side in (self.left, self.right)]
        return sum((part**2).sum() for part in off) / torch.tensor(k**2)


def naive_rows(rows: Tensor, received: Tensor, columns: int) -> list[NaiveRow]:
    """All singular triplets of each entity's update."""
    parts = []
    for row, before in zip(rows, received, strict=True):
        left, values, right = torch.linalg.svd((row - before).reshape(-1, columns), full_matrices=False)
        parts.append(NaiveRow(before, *(part.clone().requires_grad_() for part in (left, values, right.T))))
    return parts


def adam_of(parts: list[NaiveRow], learning_rate: float) -> torch.optim.Adam:
    return torch.optim.Adam([factor for part in parts for factor in part[1:]], lr=learning_rate)


def stacked(parts: list[NaiveRow]) -> Tensor:
    return torch.stack([part.row() for part in parts])


class TestSteps:
    """`FactoredRows` alone, under gradients that are given: the loss is their product with the rows, plus alpha times Eq. 7."""

    ALPHA, RATE, COLUMNS = 0.05, 0.02, 2

    @pytest.fixture
    def stack(self, uneven: FederatedGraph, options: KgeOptions) -> ClientStack:
        return ClientStack(uneven.clients, ALL, options.kge_model(), options.seed, CPU)

    @pytest.fixture
    def received(self, stack: ClientStack) -> Tensor:
        return stack.tables["entities"] - moves(stack, 1)

    def factored(self, stack: ClientStack, received: Tensor, alpha: float = ALPHA) -> FactoredRows:
        return FactoredRows(stack, "entities", received, columns=self.COLUMNS, alpha=alpha, learning_rate=self.RATE)

    @pytest.mark.parametrize("alpha", [0.0, 0.05, 5.0])
    def test_clients_step_as_each_would_alone(self, stack: ClientStack, received: Tensor, alpha: float) -> None:
        """Client 0 has one batch, client 2 two and client 1 three: its Adam has taken one step, theirs two and three."""
        factored = self.factored(stack, received, alpha)
        spans = [stack.span("entities", client) for client in ALL]
        naive = [naive_rows(stack.rows("entities", client), received[spans[client]], self.COLUMNS) for client in ALL]
        adams = [adam_of(parts, self.RATE) for parts in naive]
        for step, clients in enumerate([[0, 1, 2], [1, 2], [1]]):
            gradient = moves(stack, 10 + step)
            before = stack.tables["entities"].clone()
            losses = factored.step(gradient, clients)
            assert set(losses) == set(clients)
            for client in ALL:
                if client not in clients:
                    assert torch.equal(stack.rows("entities", client), before[spans[client]])
                    continue
                adams[client].zero_grad()
                kept = alpha * torch.stack([part.orthogonality() for part in naive[client]]).sum()
                (kept + (stacked(naive[client]) * gradient[spans[client]]).sum()).backward()
                adams[client].step()
                assert losses[client] == pytest.approx(float(kept.detach()), rel=1e-4, abs=1e-6)
                torch.testing.assert_close(
                    stack.rows("entities", client), stacked(naive[client]).detach(), atol=1e-5, rtol=0
                )

    def test_the_orthogonality_term_has_a_gradient(self, stack: ClientStack, received: Tensor) -> None:
        """It brings factors back that gradients have pulled apart; without it they stay where they are."""
        apart = []
        for alpha in (0.0, 5.0):
            fresh = ClientStack(stack.graphs, ALL, stack.model, 5, CPU)
            factored = self.factored(fresh, received, alpha)
            for step in range(10):
                factored.step(moves(stack, step), ALL)
            for _ in range(60):
                factored.step(torch.zeros_like(received), ALL)
            factors = [[part.detach() for part in parameters] for parameters in factored._parameters]
            sides = [side for left, _, right in factors for side in (left, right)]
            apart.append(max(float((side.transpose(1, 2) @ side - torch.eye(2)).abs().max()) for side in sides))
        assert apart[0] > 0.3
        assert apart[1] < 0.1

    def test_nothing_but_a_step_moves_rows(self, stack: ClientStack, received: Tensor) -> None:
        before = stack.tables["entities"].clone()
        factored = self.factored(stack, received)
        assert torch.equal(stack.tables["entities"], before)
        factored.step(moves(stack, 3), [1])
        assert not torch.equal(stack.rows("entities", 1), before[stack.span("entities", 1)])
        for client in (0, 2):
            assert torch.equal(stack.rows("entities", client), before[stack.span("entities", client)])

    def test_from_no_update_at_all_it_can_start(self, stack: ClientStack) -> None:
        """With one local epoch the last one is the first: singular values begin at zero, and only they have a gradient."""
        received = stack.tables["entities"].clone()
        factored = self.factored(stack, received)
        gradient = moves(stack, 4)
        factored.step(gradient, ALL)
        moved = (stack.tables["entities"] - received).unflatten(1, (-1, self.COLUMNS))
        # One step of Adam is the learning rate, against the sign of u_i^T G v_i; U and V of a zero matrix are the first axes.
        along = -self.RATE * torch.sign(torch.diagonal(gradient.unflatten(1, (-1, self.COLUMNS)), dim1=1, dim2=2))
        torch.testing.assert_close(torch.diagonal(moved, dim1=1, dim2=2), along, atol=1e-5, rtol=0)
        off = moved.clone()
        off[:, range(self.COLUMNS), range(self.COLUMNS)] = 0
        assert float(off.abs().max()) < 1e-6
        factored.step(gradient, ALL)  # now U and V have gradients, too
        moved = (stack.tables["entities"] - received).unflatten(1, (-1, self.COLUMNS)).clone()
        moved[:, range(self.COLUMNS), range(self.COLUMNS)] = 0
        assert float(moved.abs().max()) > 1e-4


def moves(stack: ClientStack, number: int) -> Tensor:
    """Something for every row, of normal size."""
    shape = tuple(stack.tables["entities"].shape)
    return torch.from_numpy(np.random.default_rng([21, number]).normal(size=shape).astype(np.float32))


@pytest.mark.parametrize("model", MODELS)
def test_whole_rounds_equal_the_naive_loop(model: str, uneven: FederatedGraph, options: KgeOptions) -> None:
    """Two rounds of four epochs, the last one of factors; between them every client receives other rows."""
    options = replace(
        options, algorithm="fede-svd+", model=model, local_epochs=4, learning_rate=0.005, rank=2, columns=2, mu=0.5
    )
    stack = ClientStack(uneven.clients, ALL, options.kge_model(), options.seed, CPU)
    trainer = LocalTrainer(stack, options)
    naive = [{table: stack.rows(table, client).clone() for table in TABLES} for client in ALL]
    for number in (1, 2):
        for client in ALL:
            rows = naive[client]["entities"] + 0.1 * moves(stack, number)[stack.span("entities", client)]
            stack.rows("entities", client).detach().copy_(rows)
            naive[client]["entities"] = rows
            trainer.receive("entities", client, rows, first=number == 1)
        trainer.begin_round()
        losses = trainer.train_round(number, ALL)
        for client, graph in enumerate(uneven.clients):
            loss = naive_round(graph, client, naive[client], number, options)
            assert losses[client] == pytest.approx(loss, rel=1e-5)
            for table in TABLES:
                torch.testing.assert_close(stack.rows(table, client), naive[client][table], atol=3e-5, rtol=0)


def naive_round(client: ClientGraph, key: int, tables: dict[str, Tensor], number: int, options: KgeOptions) -> float:
    """One client's epochs, in place; returns its mean loss. Relations keep their Adam through the last epoch."""
    received = tables["entities"].clone()
    entities, relations = (tables[name].clone().requires_grad_() for name in TABLES)
    adam = torch.optim.Adam([entities], lr=options.learning_rate)
    relations_adam = torch.optim.Adam([relations], lr=options.learning_rate)
    sampler = NegativeSampler(
        client.train, num_relations=client.num_relations, candidates=np.arange(client.num_trained_entities)
    )
    parts: list[NaiveRow] = []
    losses = []
    for epoch in range(options.local_epochs):
        if epoch == options.local_epochs - 1:
            parts = naive_rows(entities.detach(), received, int(options.settings.columns))
            adam = adam_of(parts, options.learning_rate)
        shuffled = generator(options.seed, "shuffle", key, number, epoch).permutation(len(client.train))
        draws = generator(options.seed, "negatives", key, number, epoch)
        for step, low in enumerate(range(0, len(shuffled), options.batch_size)):
            rows = shuffled[low : low + options.batch_size]
            side: Side = "head" if (step + epoch + number) % 2 else "tail"
            wrong = sampler.sample(rows, options.num_negatives, side, draws)
            table = stacked(parts) if parts else entities
            loss = triple_loss(table, relations, client.train[rows], wrong, side, options)
            if parts:
                loss = loss + float(options.settings.mu) * torch.stack([part.orthogonality() for part in parts]).sum()
            adam.zero_grad()
            relations_adam.zero_grad()
            loss.backward()
            adam.step()
            relations_adam.step()
            losses.append(float(loss.detach()))
    tables["entities"], tables["relations"] = stacked(parts).detach(), relations.detach()
    return float(np.mean(losses))


def triple_loss(
    entities: Tensor, relations: Tensor, positives: np.ndarray, wrong: Tensor, side: Side, options: KgeOptions
) -> Tensor:
    """FedE's loss of a batch, mean over its positives."""
    triples = torch.from_numpy(positives)[:, None].repeat(1, 1 + wrong.shape[1], 1)
    triples[:, 1:, 2 if side == "tail" else 0] = wrong.clamp_min(0)
    heads, kinds, tails = triples.unbind(2)
    scores = options.kge_model().score(entities[heads], relations[kinds], entities[tails])
    powers = torch.exp(
        options.sampling_temperature * (scores[:, 1:] - scores[:, 1:].amax(1, keepdim=True))
    ).detach() * (wrong >= 0)
    weights = powers / powers.sum(1, keepdim=True).clamp_min(1e-30)
    return (-logsigmoid(scores[:, 0]) - (weights * logsigmoid(-scores[:, 1:])).sum(1)).mean() / 2


def test_the_term_counts_in_the_federation(uneven: FederatedGraph, options: KgeOptions) -> None:
    """Without the last epoch of factors it would be FedE-SVD; without alpha, other rows."""
    options = replace(options, algorithm="fede-svd+", eval_every=2, rank=1, columns=2)
    plus, strong = (run_federation(uneven, replace(options, mu=mu)) for mu in (0.05, 50.0))
    plain = run_federation(uneven, replace(options, algorithm="fede-svd"))
    for other in (strong, plain):
        away = [
            float((ours.entities - theirs.entities).abs().max())
            for ours, theirs in zip(plus.trained, other.trained, strict=True)
        ]
        assert min(away) > 1e-4


def test_relations_are_trained_in_the_last_epoch_too(uneven: FederatedGraph, options: KgeOptions) -> None:
    """And by the Adam that they had: a round of one epoch moves both tables of every client."""
    options = replace(options, algorithm="fede-svd+", local_epochs=1, rank=2, columns=2)
    stack = ClientStack(uneven.clients, ALL, options.kge_model(), options.seed, CPU)
    before = {table: stack.tables[table].clone() for table in TABLES}
    LocalTrainer(stack, options).train_round(1, ALL)
    for table in TABLES:
        for client, graph in enumerate(uneven.clients):
            span = stack.span(table, client)
            count = graph.num_trained_entities if table == "entities" else graph.num_trained_relations
            assert bool((stack.tables[table] != before[table])[span][:count].any(1).all())
