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

from fkgsec.data.graph import ClientGraph, FederatedGraph
from fkgsec.federation.options import replace
from fkgsec.kge.local.stack import ClientStack
from fkgsec.kge.local.training import TABLES, LocalTrainer
from fkgsec.kge.models import Side
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


def moves(stack: ClientStack, number: int) -> Tensor:
    """Something for every row, of normal size."""
    shape = tuple(stack.tables["entities"].shape)
    return torch.from_numpy(np.random.default_rng([21, number]).normal(size=shape).astype(np.float32))


@pytest.mark.parametrize("model", ["transe", "complex"])
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
