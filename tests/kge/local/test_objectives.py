"""What clients add to their loss: worked by hand from the papers, and whole runs against plain loops with autograd.

Legend: `s_g`, `s_p` cosines of a row to the one received and to the one that the client's last training left.
"""

import math
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
PREVIOUS = torch.tensor([[0.0, 1.0], [0.0, -1.0], [6.0, 8.0], [1.0, 7.0], [4.0, -3.0]])
MOVES = torch.tensor([[3.0, 4.0], [0.0, 0.0], [1.0, -2.0], [0.5, 0.0], [-1.0, 1.0]])


@pytest.fixture(scope="module")
def trio() -> FederatedGraph:
    """Three clients over five entities: a holds 0, 1, 2, 3; b holds 3, 4; c holds 0, 2, 4. Each has one batch."""
    empty = np.zeros((0, 3), dtype=np.int64)
    triples = {"a": [[0, 0, 1], [1, 0, 2], [2, 0, 3]], "b": [[3, 0, 4]], "c": [[0, 0, 4], [4, 0, 2]]}
    clients = tuple(ClientGraph.from_global(name, np.array(rows), empty, empty) for name, rows in triples.items())
    return FederatedGraph("trio", tuple("vwxyz"), ("r",), clients)


def trainer_of(graph: FederatedGraph, options: KgeOptions) -> tuple[ClientStack, LocalTrainer]:
    """A trainer whose tables hold `ROWS` (and relations of their own), and whose clients last left `PREVIOUS`."""
    stack = ClientStack(graph.clients, [0, 1, 2], options.kge_model(), options.seed, CPU)
    trainer = LocalTrainer(stack, options)
    fill(stack, ROWS)
    for client, part in enumerate(graph.clients):
        for rows in trainer.previous.values():
            rows[stack.span("entities", client)] = PREVIOUS[part.entity_ids.tolist()]
        trainer.receive("entities", client, ROWS[part.entity_ids.tolist()])
    return stack, trainer


def fill(stack: ClientStack, rows: Tensor) -> None:
    for client, part in enumerate(stack.graphs):
        stack.rows("entities", client).detach().copy_(rows[part.entity_ids.tolist()])


def momentum(trainer: LocalTrainer, client: int) -> Tensor:
    """Adam's first moment of a client's entities: 0.1 g after one step, 0.09 g_1 + 0.1 g_2 after two."""
    return trainer._learner.tensors()[f"{2 * client}.exp_avg"]


def test_squared_distance_by_hand() -> None:
    # |(3, 4)|^2 / 2 = 25 / 2; 0; (1 + 4) / 2; 0.25 / 2; (1 + 1) / 2
    losses, gradient = squared_distance(ROWS + MOVES, ROWS, UNUSED, NAN)
    assert losses.tolist() == [12.5, 0.0, 2.5, 0.125, 1.0]
    # d/dw of |w - w_t|^2 / 2 is w - w_t: the move itself.
    assert torch.equal(gradient, MOVES)


def test_squared_distance_is_zero_at_the_anchor() -> None:
    losses, gradient = squared_distance(ROWS, ROWS, UNUSED, NAN)
    assert torch.equal(losses, torch.zeros(5))
    assert torch.equal(gradient, torch.zeros(5, 2))


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


def test_contrastive_is_log_2_between_equal_similarities() -> None:
    # Received and previous are the same row, or mirror images of one another across the row.
    received, previous = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[1.0, 2.0], [3.0, -4.0]])
    losses, gradient = contrastive(torch.tensor([[2.0, -1.0], [1.0, 0.0]]), received, previous, 0.2)
    assert losses.tolist() == pytest.approx([math.log(2)] * 2, abs=1e-6)
    # Nothing pulls on the first; the second is turned towards the row received: 0.5 / 0.2 ((0, -0.8) - (0, 0.8))
    torch.testing.assert_close(gradient, torch.tensor([[0.0, 0.0], [0.0, -4.0]]), atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", sorted(OBJECTIVES))
def test_gradients_equal_finite_differences(name: ObjectiveName) -> None:
    rng = np.random.default_rng(2)
    rows, received, previous = (torch.from_numpy(rng.normal(size=(4, 3))) for _ in range(3))
    row_loss = OBJECTIVES[name].row_loss
    gradient = row_loss(rows, received, previous, 0.2)[1]
    step = 1e-6
    for row in range(4):
        for column in range(3):
            moved = torch.zeros_like(rows)
            moved[row, column] = step
            up, down = (row_loss(rows + sign * moved, received, previous, 0.2)[0] for sign in (1, -1))
            slope = (up - down) / (2 * step)
            assert float(slope[row]) == pytest.approx(float(gradient[row, column]), abs=1e-6)
            assert slope.count_nonzero() == 1  # a row's loss is of that row alone


@pytest.mark.parametrize("name", sorted(OBJECTIVES))
def test_rows_of_zeros_and_far_rows_stay_finite(name: ObjectiveName) -> None:
    rows = torch.tensor([[0.0, 0.0], [1e6, -1e6], [1e-20, 0.0]])
    losses, gradient = OBJECTIVES[name].row_loss(rows, torch.ones(3, 2), -torch.ones(3, 2), 0.2)
    assert torch.isfinite(losses).all()
    assert torch.isfinite(gradient).all()


def test_a_step_of_fedec_adds_the_mean_over_a_clients_rows(trio: FederatedGraph, options: KgeOptions) -> None:
    """One step from where the round began (s_g = 1) beside the same step of FedE; mu 2, tau 0.5."""
    plain = replace(options, dim=2, local_epochs=1)
    with_term = replace(plain, algorithm="fedec", mu=2.0, tau=0.5)
    (stack, trainer), (stack_plain, trainer_plain) = trainer_of(trio, with_term), trainer_of(trio, plain)
    losses, without = trainer.train_round(1, [0, 1, 2]), trainer_plain.train_round(1, [0, 1, 2])
    # s_p of the entities: 0, -1, 1, 8 / 10, 3 / 5; the losses log(1 + exp((s_p - 1) / 0.5)):
    # log(1 + e^-2) = 0.12692801, log(1 + e^-4) = 0.01814993, log 2 = 0.69314718, log(1 + e^-0.4) = 0.51301525,
    # log(1 + e^-0.8) = 0.37110067
    # Their means, times 2: client a (1.35124037 / 4), client b (0.88411592 / 2), client c (1.19117586 / 3).
    for client, added in enumerate([0.67562019, 0.88411592, 0.79411724]):
        assert losses[client] - without[client] == pytest.approx(added, abs=1e-5)
    # Gradients sigmoid((s_p - 1) / 0.5) / 0.5 ds_p, as above (ds_g = 0 at the row received):
    # 0: 0.11920292 / 0.5 (0, 1); 1 and 2: the rows are parallel, so 0; 3: 0.40131234 / 0.5 (-0.3, 0.3);
    # 4: 0.31002552 / 0.5 ((0.8, -0.6) - 0.6 (0, -1)) = 0.62005104 (0.8, 0)
    by_entity = torch.tensor([[0.0, 0.23840584], [0, 0], [0, 0], [-0.24078740, 0.24078740], [0.49604083, 0.0]])
    for client, (weight, part) in enumerate(zip([2 / 4, 2 / 2, 2 / 3], trio.clients, strict=True)):
        gradient = (momentum(trainer, client) - momentum(trainer_plain, client)) / 0.1
        torch.testing.assert_close(gradient, weight * by_entity[part.entity_ids.tolist()], atol=1e-5, rtol=0)
        # The term is of entities: relations take the same step.
        assert torch.equal(stack.rows("relations", client), stack_plain.rows("relations", client))
        assert torch.equal(trainer.previous["entities"][stack.span("entities", client)], stack.rows("entities", client))
    assert not torch.equal(stack.tables["entities"], stack_plain.tables["entities"])


def test_a_step_of_fedprox_adds_the_sum_over_a_clients_rows(trio: FederatedGraph, options: KgeOptions) -> None:
    """Two steps; after the first, at the anchor, every row is put at `ROWS + MOVES` by hand. mu 0.2."""
    plain = replace(options, dim=2, local_epochs=2)
    with_term = replace(plain, algorithm="fedprox", mu=0.2)
    outcomes = []
    for chosen in (with_term, plain):
        stack, trainer = trainer_of(trio, chosen)
        relations: list[Tensor] = []

        def put(stack: ClientStack = stack, relations: list[Tensor] = relations) -> None:
            fill(stack, ROWS + MOVES)
            relations.append(stack.tables["relations"].clone())

        outcomes.append((trainer.train_round(1, [0, 1, 2], put), [momentum(trainer, c) for c in range(3)], relations))
    (losses, moments, relations), (without, moments_plain, relations_plain) = outcomes
    # mu / 2 |w - w_t|^2 by entity: 0.2 (12.5, 0, 2.5, 0.125, 1); a: 3.025, b: 0.225, c: 3.2; the mean with a first step of 0.
    for client, added in enumerate([3.025 / 2, 0.225 / 2, 3.2 / 2]):
        assert losses[client] - without[client] == pytest.approx(added, abs=1e-5)
    for client, part in enumerate(trio.clients):
        gradient = (moments[client] - moments_plain[client]) / 0.1
        torch.testing.assert_close(gradient, 0.2 * MOVES[part.entity_ids.tolist()], atol=1e-5, rtol=0)
    assert all(torch.equal(*pair) for pair in zip(relations, relations_plain, strict=True))


@pytest.mark.parametrize("algorithm", ["fedprox", "fedec"])
def test_without_weight_it_is_fede_bit_for_bit(algorithm: str, uneven: FederatedGraph, options: KgeOptions) -> None:
    fede = run_federation(uneven, options)
    weightless = run_federation(uneven, replace(options, algorithm=algorithm, mu=0.0))
    weighted = run_federation(uneven, replace(options, algorithm=algorithm))
    frames = [run.transcript.frames[options.rounds] for run in (fede, weightless, weighted)]
    assert frames[0] == frames[1] != frames[2]
    assert [entry.loss for entry in fede.rounds] == [entry.loss for entry in weightless.rounds]
    for left, right in zip(fede.trained + fede.tables, weightless.trained + weightless.tables, strict=True):
        assert torch.equal(left.entities, right.entities)
        assert torch.equal(left.relations, right.relations)


@pytest.mark.parametrize(
    ("algorithm", "model", "settings"),
    [
        ("fede", "transe", {}),
        ("fedr", "transe", {}),
        ("fedprox", "transe", {"mu": 2.0}),
        ("fedprox", "transe", {"mu": 2.0, "proximal": "distance"}),
        ("fedec", "transe", {"mu": 2.0}),
        ("fedec", "rotate", {"mu": 2.0}),
    ],
)
def test_a_federation_equals_the_naive_loop(
    algorithm: str, model: str, settings: dict[str, Any], uneven: FederatedGraph, options: KgeOptions
) -> None:
    options = replace(options, algorithm=algorithm, model=model, rounds=3, eval_every=3, **settings)
    result = run_federation(uneven, options)
    by_hand, losses = naive_federation(uneven, options)
    assert [entry.loss for entry in result.rounds[1:]] == pytest.approx(losses, abs=1e-5)
    for place, tables in enumerate(result.tables):
        torch.testing.assert_close(tables.entities.double(), by_hand[place]["entities"], atol=1e-5, rtol=0)
        torch.testing.assert_close(tables.relations.double(), by_hand[place]["relations"], atol=1e-5, rtol=0)


@pytest.mark.parametrize("algorithm", ["fedprox", "fedec"])
def test_who_sits_out_keeps_what_its_last_training_left(
    algorithm: str, uneven: FederatedGraph, options: KgeOptions
) -> None:
    """Two of three take part; one that comes back is told from its own last model, however old, not from a broadcast."""
    options = replace(
        options, algorithm=algorithm, mu=2.0, learning_rate=0.02, rounds=5, eval_every=5, participation=0.67
    )
    present = [participants(options, number) for number in range(1, 6)]
    assert any(
        client in present[i] and client not in present[i + 1] and client in present[i + 2]
        for client in range(3)
        for i in range(3)
    )
    result = run_federation(uneven, options)
    by_hand, losses = naive_federation(uneven, options)
    assert [entry.loss for entry in result.rounds[1:]] == pytest.approx(losses, abs=1e-5)
    for place, tables in enumerate(result.tables):
        torch.testing.assert_close(tables.entities.double(), by_hand[place]["entities"], atol=1e-5, rtol=0)
        torch.testing.assert_close(tables.relations.double(), by_hand[place]["relations"], atol=1e-5, rtol=0)
    other, _ = naive_federation(uneven, options, refresh_absent=True)
    away = max(
        float((t.entities.double() - o["entities"]).abs().max()) for t, o in zip(result.tables, other, strict=True)
    )
    assert away > 1e-3 if algorithm == "fedec" else away < 1e-5


def participants(options: KgeOptions, number: int) -> list[int]:
    count = options.num_participants(3)
    if count == 3:
        return [0, 1, 2]
    return sorted(generator(options.seed, "participants", number).choice(3, size=count, replace=False).tolist())


def naive_federation(
    graph: FederatedGraph, options: KgeOptions, refresh_absent: bool = False
) -> tuple[list[dict[str, Tensor]], list[float]]:
    """The algorithm in plain words, float64: each client alone, autograd over the whole formula, a dictionary as server.

    `refresh_absent`: another reading, in which who sits out takes the broadcast for its previous model. Returns each client's
    tables and each round's loss.
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
            if refresh_absent:
                for place in set(range(3)) - set(present):
                    previous[place] = clients[place]["entities"].clone()
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


def test_rows_that_run_away_stop_fedprox(uneven: FederatedGraph, options: KgeOptions) -> None:
    """Squares overflow where FedE's distances do not yet."""
    options = replace(options, learning_rate=1e20)
    assert all(
        entry.loss is not None and np.isfinite(entry.loss) for entry in run_federation(uneven, options).rounds[1:]
    )
    with pytest.raises(TrainingError, match=r"loss of client \w+ is inf in round 1, epoch 1, step 2"):
        run_federation(uneven, replace(options, algorithm="fedprox"))


def test_the_first_training_of_fedec_has_nothing_to_be_told_from(uneven: FederatedGraph, options: KgeOptions) -> None:
    """Before a client has trained, its last model is what it received: log 2, no pull, the tables of FedE."""
    options = replace(options, rounds=1)
    fede, fedec = run_federation(uneven, options), run_federation(uneven, replace(options, algorithm="fedec"))
    step = replace(options, local_epochs=1, batch_size=512)
    losses = [run_federation(uneven, replace(step, algorithm=name)).rounds[1].loss for name in ("fede", "fedec")]
    assert losses[1] - losses[0] == pytest.approx(0.3 * math.log(2), abs=1e-6)
    for left, right in zip(fedec.trained, fede.trained, strict=True):
        torch.testing.assert_close(left.entities, right.entities, atol=1e-5, rtol=0)
