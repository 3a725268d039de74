"""What clients add to their loss: worked by hand from the papers, and whole runs against plain loops with autograd.

Legend: `s_g`, `s_p` cosines of a row to the one received and to the one that the client's last training left.
"""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fkgsec.data.graph import ClientGraph, FederatedGraph
from fkgsec.errors import TrainingError
from fkgsec.federation.loop import run_federation
from fkgsec.federation.options import replace
from fkgsec.kge.local.objectives import OBJECTIVES, ObjectiveName, contrastive, squared_distance
from fkgsec.kge.local.stack import ClientStack
from fkgsec.kge.local.training import TABLES, LocalTrainer
from fkgsec.kge.negatives import NegativeSampler
from fkgsec.kge.options import KgeOptions
from fkgsec.randomness import generator

CPU = torch.device("cpu")
UNUSED = torch.zeros(0)
NAN = float("nan")

# One row of width 2 for each of five entities, what the client's last training left of it, and a move away from it.
ROWS = torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 4.0], [1.0, 1.0], [0.0, -1.0]])
MOVES = torch.tensor([[3.0, 4.0], [0.0, 0.0], [1.0, -2.0], [0.5, 0.0], [-1.0, 1.0]])


def test_squared_distance_by_hand() -> None:
    # |(3, 4)|^2 / 2 = 25 / 2; 0; (1 + 4) / 2; 0.25 / 2; (1 + 1) / 2
    losses, gradient = squared_distance(ROWS + MOVES, ROWS, UNUSED, NAN)
    assert losses.tolist() == [12.5, 0.0, 2.5, 0.125, 1.0]
    # d/dw of |w - w_t|^2 / 2 is w - w_t: the move itself.
    assert torch.equal(gradient, MOVES)


def test_contrastive_by_hand() -> None:
    # -log(exp(s_g / tau) / (exp(s_g / tau) + exp(s_p / tau))) = log(1 + exp(x)), x = (s_p - s_g) / tau, with tau 0.2.
    # Row 0: (1, 0) to (0.6, 0.8) has s_g 0.6, to (0, 1) s_p 0: x = -3, log(1 + e^-3) = 0.04858735
    # Row 1: (0, 2) to (0, 1) has s_g 1, to (1, 0) s_p 0: x = -5, log(1 + e^-5) = 0.00671535
    # Row 2: (1, 1) to (1, 7) has s_g 8 / (sqrt 2 sqrt 50) = 0.8, to (1, 1) s_p 1: x = 1, log(1 + e) = 1.31326169
    rows = torch.tensor([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]])
    received = torch.tensor([[0.6, 0.8], [0.0, 1.0], [1.0, 7.0]])
    previous = torch.tensor([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    losses, gradient = contrastive(rows, received, previous, 0.2)
    assert losses.tolist() == pytest.approx([0.04858735, 0.00671535, 1.31326169], abs=1e-6)
    # The gradient is sigmoid(x) / tau (ds_p - ds_g), and ds = (unit other - s unit row) / |row|.
    # Row 0: ds_p = (0, 1), ds_g = (0.6, 0.8) - 0.6 (1, 0) = (0, 0.8); 0.04742587 / 0.2 (0, 0.2) = (0, 0.04742587)
    # Row 1: ds_p = (1, 0) / 2, ds_g = 0; 0.00669285 / 0.2 (0.5, 0) = (0.01673213, 0)
    # Row 2: ds_p = 0, ds_g = ((1, 7) / sqrt 50 - 0.8 (1, 1) / sqrt 2) / sqrt 2 = (-0.3, 0.3);
    #        0.73105858 / 0.2 (0.3, -0.3) = (1.09658787, -1.09658787)
    by_hand = torch.tensor([[0.0, 0.04742587], [0.01673213, 0.0], [1.09658787, -1.09658787]])
    torch.testing.assert_close(gradient, by_hand, atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", sorted(OBJECTIVES))
def test_rows_of_zeros_and_far_rows_stay_finite(name: ObjectiveName) -> None:
    rows = torch.tensor([[0.0, 0.0], [1e6, -1e6], [1e-20, 0.0]])
    losses, gradient = OBJECTIVES[name].row_loss(rows, torch.ones(3, 2), -torch.ones(3, 2), 0.2)
    assert torch.isfinite(losses).all()
    assert torch.isfinite(gradient).all()


@pytest.mark.parametrize(
    ("algorithm", "model", "settings"),
    [
        ("fede", "transe", {}),
        ("fedr", "complex", {}),
        ("fedprox", "distmult", {"mu": 2.0}),
        ("fedprox", "transe", {"mu": 2.0, "proximal": "distance"}),
        ("fedec", "rotate", {"mu": 2.0}),
        ("fedec", "transe", {"mu": 2.0, "learning_rate": 0.02, "rounds": 5, "eval_every": 5, "participation": 0.67}),
    ],
)
def test_a_federation_equals_the_naive_loop(
    algorithm: str, model: str, settings: dict[str, Any], uneven: FederatedGraph, options: KgeOptions
) -> None:
    """Where not all take part, a client that comes back is told from its own last model, however old."""
    options = replace(options, algorithm=algorithm, model=model, **{"eval_every": 2} | settings)
    result = run_federation(uneven, options)
    by_hand, losses = naive_federation(uneven, options)
    assert [entry.loss for entry in result.rounds[1:]] == pytest.approx(losses, abs=1e-5)
    for place, tables in enumerate(result.tables):
        torch.testing.assert_close(tables.entities.double(), by_hand[place]["entities"], atol=1e-5, rtol=0)
        torch.testing.assert_close(tables.relations.double(), by_hand[place]["relations"], atol=1e-5, rtol=0)


def participants(options: KgeOptions, number: int) -> list[int]:
    count = options.num_participants(3)
    if count == 3:
        return [0, 1, 2]
    return sorted(generator(options.seed, "participants", number).choice(3, size=count, replace=False).tolist())


def naive_federation(graph: FederatedGraph, options: KgeOptions) -> tuple[list[dict[str, Tensor]], list[float]]:
    """The algorithm in plain words, float64: each client alone, autograd over the whole formula, a dictionary as server.

    Returns each client's tables and each round's loss.
    """
    model = options.kge_model()
    stack = ClientStack(graph.clients, [0, 1, 2], model, options.seed, CPU)
    clients = [
        {name: stack.rows(name, place).double().clone() for name in ("entities", "relations")} for place in range(3)
    ]
    if options.algorithm == "fedr":
        table, vocabulary, width = "relations", graph.relations, model.relation_width
        ids = [client.relation_ids.tolist() for client in graph.clients]
        uploaded = [own[: client.num_trained_relations] for own, client in zip(ids, graph.clients, strict=True)]
    else:
        table, vocabulary, width = "entities", graph.entities, model.entity_width
        ids = [client.entity_ids.tolist() for client in graph.clients]
        uploaded = [own[: client.num_trained_entities] for own, client in zip(ids, graph.clients, strict=True)]
    names = sorted(range(len(vocabulary)), key=vocabulary.__getitem__)
    held = [number for number in names if any(number in own for own in ids)]
    first = model.initial_rows(len(held), width, generator(options.seed, "initial rows", table, "server"))
    shared = {number: first[place].double() for place, number in enumerate(held)}
    previous: list[Tensor] = []
    losses = []
    for number in range(options.rounds + 1):
        if number:
            present = participants(options, number)
            means = []
            for place in present:
                means.append(
                    naive_local_round(graph.clients[place], place, clients[place], previous[place], number, options)
                )
                previous[place] = clients[place]["entities"].clone()
            losses.append(float(np.average(means, weights=[len(graph.clients[place].train) for place in present])))
            for row in held:
                uploads = [clients[place][table][ids[place].index(row)] for place in present if row in uploaded[place]]
                if uploads:
                    shared[row] = torch.stack(uploads).mean(0)
        for own, tables in zip(ids, clients, strict=True):
            tables[table] = torch.stack([shared[row] for row in own])
        if not number:
            previous = [tables["entities"].clone() for tables in clients]
    return clients, losses


def naive_local_round(
    client: ClientGraph,
    key: int,
    tables: dict[str, Tensor],
    previous: Tensor,
    number: int,
    options: KgeOptions,
) -> float:
    """One client's epochs with a new torch Adam; returns its mean loss."""
    model, received = options.kge_model(), tables["entities"].clone()
    entities, relations = (tables[name].clone().requires_grad_() for name in ("entities", "relations"))
    adam = torch.optim.Adam([entities, relations], lr=options.learning_rate)
    sampler = NegativeSampler(
        client.train, num_relations=client.num_relations, candidates=np.arange(client.num_trained_entities)
    )
    losses = []
    for epoch in range(options.local_epochs):
        shuffled = generator(options.seed, "shuffle", key, number, epoch).permutation(len(client.train))
        draws = generator(options.seed, "negatives", key, number, epoch)
        for step, low in enumerate(range(0, len(shuffled), options.batch_size)):
            rows = shuffled[low : low + options.batch_size]
            side = "head" if (step + epoch + number) % 2 else "tail"
            parts = []
            for (head, relation, tail), wrong in zip(
                client.train[rows], sampler.sample(rows, options.num_negatives, side, draws), strict=True
            ):
                kept = wrong[wrong >= 0].long()
                heads = entities[kept] if side == "head" else entities[head].expand(len(kept), -1)
                tails = entities[kept] if side == "tail" else entities[tail].expand(len(kept), -1)
                scores = model.score(heads, relations[relation].expand(len(kept), -1), tails)
                weights = torch.softmax(options.sampling_temperature * scores, 0).detach()
                positive = model.score(entities[head], relations[relation], entities[tail])
                parts.append(softplus(-positive) + (weights * softplus(scores)).sum())
            loss = torch.stack(parts).mean() / 2 + naive_objective(entities, received, previous, options)
            adam.zero_grad()
            loss.backward()
            adam.step()
            losses.append(float(loss.detach()))
    tables["entities"], tables["relations"] = entities.detach(), relations.detach()
    return float(np.mean(losses))


def softplus(values: Tensor) -> Tensor:
    return -torch.nn.functional.logsigmoid(-values)


def naive_objective(entities: Tensor, received: Tensor, previous: Tensor, options: KgeOptions) -> Tensor:
    """Of FedProx fedlu.txt section 2, mu / 2 |w - w_t|^2, or its footnote 3, mu |w - w_t|; of FedEC section 3 after
    MOON, mu times the rows' mean."""
    if options.algorithm in ("fede", "fedr"):
        return torch.zeros(())
    if getattr(options.settings, "proximal", "") == "distance":
        return options.settings.mu * ((entities - received) ** 2).sum().clamp_min(1e-24).sqrt()
    if options.algorithm == "fedprox":
        return options.settings.mu / 2 * ((entities - received) ** 2).sum()
    terms = []
    for row, global_row, own_row in zip(entities, received, previous, strict=True):
        s_g, s_p = (row @ other / (row.norm() * other.norm()) for other in (global_row, own_row))
        pull, push = torch.exp(s_g / options.settings.tau), torch.exp(s_p / options.settings.tau)
        terms.append(-torch.log(pull / (pull + push)))
    return options.settings.mu * torch.stack(terms).mean()


def test_a_term_that_is_not_finite_stops_before_the_update(uneven: FederatedGraph, options: KgeOptions) -> None:
    options = replace(options, algorithm="fedec")
    stack = ClientStack(uneven.clients, [0, 1, 2], options.kge_model(), options.seed, CPU)
    trainer = LocalTrainer(stack, options)
    trainer.previous["entities"][stack.span("entities", 2)] = NAN
    before = {table: stack.tables[table].clone() for table in TABLES}
    with pytest.raises(TrainingError, match=r"loss of client middle is nan in round 3, epoch 1, step 1"):
        trainer.train_round(3, [0, 1, 2])
    assert all(torch.equal(stack.tables[table], before[table]) for table in TABLES)
    # It is that client's alone: without it the others train.
    assert set(trainer.train_round(3, [0, 1])) == {0, 1}
    assert torch.isfinite(stack.tables["entities"]).all()
