"""The loss over candidates, its gradients and the sums over rows: kernels of Triton against the CPU's, which autograd checks."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from fkgsec import philox
from fkgsec.adam import Adam
from fkgsec.kge import kernels
from fkgsec.kge.device import adam, draws, scoring, tables
from fkgsec.kge.device.learner import MODELS
from fkgsec.kge.device.sizes import block_of, tile_of
from fkgsec.kge.models import KgeModel, Side
from fkgsec.kge.negatives import CounterDraws, KnownTriples, NegativeSampler

DIM, ENTITIES, RELATIONS = 5, 7, 3
every_model = pytest.mark.parametrize("name", MODELS)


class Batch(NamedTuple):
    """What a step starts from: candidates int32 `[B, K + 1]`, the anchor last; weight 0 is a slot without a triple."""

    entities: Tensor
    relations: Tensor
    candidates: Tensor
    relation_of: Tensor
    weights: Tensor


class Outcome(NamedTuple):
    losses: Tensor
    slopes: Tensor
    entity_gradient: Tensor
    relation_gradient: Tensor


def batch_of(model: KgeModel, positives: int = 3, negatives: int = 5, seed: int = 0) -> Batch:
    """One slot more than positives, without a triple; some negatives masked, and each of the others drawn again and again."""
    rng = np.random.default_rng(seed)
    candidates = rng.integers(0, ENTITIES, size=(positives + 1, negatives + 2)).astype(np.int32)
    candidates[:, 1:-1][rng.random((positives + 1, negatives)) < 0.25] = -1
    candidates[positives] = -1
    relation_of = np.append(rng.integers(0, RELATIONS, positives), RELATIONS).astype(np.int32)
    weights = np.append(rng.random(positives), 0).astype(np.float32)
    rows = [
        rng.normal(size=shape).astype(np.float32)
        for shape in [(ENTITIES, model.entity_width), (RELATIONS, model.relation_width)]
    ]
    return Batch(*map(torch.from_numpy, (*rows, candidates, relation_of, weights)))


def on_the_cpu(model: KgeModel, batch: Batch, side: Side, temperature: float) -> Outcome:
    """Compiled loops for the candidates, autograd for the query: what `Learner` does."""
    live = batch.weights > 0
    candidates = batch.candidates[live]
    anchors = batch.entities[candidates[:, -1].long()].requires_grad_()
    relations = batch.relations[batch.relation_of[live].long()].requires_grad_()
    queries = model.query(anchors, relations, side)
    given = candidates[:, :-1].contiguous()
    found = kernels.candidate_loss(
        model.similarity,
        queries.detach(),
        batch.entities,
        given,
        batch.weights[live],
        margin=model.margin,
        temperature=temperature,
    )
    to_anchors, to_relations = torch.autograd.grad(queries, [anchors, relations], found.query_gradient)
    return Outcome(
        found.losses,
        torch.zeros(0),
        found.table_gradient.index_add(0, candidates[:, -1].long(), to_anchors),
        torch.zeros_like(batch.relations).index_add(0, batch.relation_of[live].long(), to_relations),
    )


def in_kernels(
    model: KgeModel,
    batch: Batch,
    side: Side,
    temperature: float,
    device: torch.device,
    *,
    atomics: bool = False,
    passes: bool = False,
) -> Outcome:
    """`passes`: scores first and gradients from slopes, as losses of two models go, in place of one pass."""
    batch = Batch(*(part.to(device) for part in batch))
    size, count, kind = len(batch.weights), batch.candidates.shape[1] - 1, MODELS[model.name]
    state = torch.tensor([0 if side == "tail" else 1, 0, 0], device=device)  # with sides in turn, step 1 corrupts heads
    block = block_of(model.dim)
    sizes = {
        "MODEL": kind,
        "TILE": min(4, tile_of(block, kind)),
        "BLOCK_D": block,
    }  # several tiles, the last one not full
    queries, to_anchors = (torch.zeros(size, model.entity_width, device=device) for _ in range(2))
    to_relations, scores = (
        torch.zeros(size, model.relation_width, device=device),
        torch.zeros(size, count, device=device),
    )
    highest, normaliser, losses = (torch.zeros(size, device=device) for _ in range(3))
    widths = (count, model.dim, model.entity_width, model.relation_width)
    phase = math.pi / model.initial_range
    given = (state, batch.entities, batch.relations, batch.candidates, batch.relation_of, batch.weights)
    scoring.candidate_pass[(size,)](
        *given, queries, scores, highest, normaliser, losses, to_anchors, to_relations, model.margin, temperature, phase, *widths,
        SIDES=draws.BOTH, **sizes,
    )  # fmt: skip
    one_pass = scores.clone()
    scoring.coefficients[(size, 2)](
        batch.candidates, scores, highest, normaliser, batch.weights, temperature, count, BLOCK=4 if count > 4 else 2
    )
    if passes:
        again = torch.zeros_like(scores)
        for buffer in (queries, to_anchors, to_relations):
            buffer.zero_()
        scoring.score_pass[(size,)](*given, queries, again, model.margin, phase, *widths, SIDES=draws.BOTH, **sizes)
        torch.testing.assert_close(again[:-1], one_pass[:-1], rtol=1e-6, atol=1e-6)
        scoring.query_pass[(size,)](*given, scores, to_anchors, to_relations, phase, *widths, SIDES=draws.BOTH, **sizes)
    gradients = torch.zeros_like(batch.entities)
    order, start = tables.by_row(batch.candidates, ENTITIES)
    rows = (batch.entities, queries)
    if atomics:
        tables.scatter_candidates[(size,)](*rows, batch.candidates, scores, to_anchors, gradients, *widths[:3], **sizes)
    else:
        tables.sum_candidates[(ENTITIES,)](*rows, scores, to_anchors, order, start, gradients, *widths[:3], **sizes)
    of_relations = torch.zeros_like(batch.relations)
    tables.sum_rows[(RELATIONS,)](
        to_relations, *tables.by_row(batch.relation_of, RELATIONS), of_relations, model.relation_width,
        TILE=2, BLOCK=block_of(model.relation_width),
    )  # fmt: skip
    assert not losses[-1:].any()  # nothing to learn from in the empty slot
    return Outcome(losses[:-1].cpu(), scores.cpu(), gradients.cpu(), of_relations.cpu())


def assert_same(actual: Outcome, expected: Outcome, tolerance: float = 1e-5) -> None:
    for name in ("losses", "entity_gradient", "relation_gradient"):
        left, right = getattr(actual, name), getattr(expected, name)
        torch.testing.assert_close(
            left, right, rtol=tolerance, atol=tolerance, msg=lambda text, name=name: f"{name}: {text}"
        )


@every_model
@pytest.mark.parametrize("side", ["tail", "head"])
def test_a_step_equals_the_cpu(name: str, side: Side, device: torch.device) -> None:
    model = KgeModel(name, DIM)
    batch = batch_of(model)
    assert_same(in_kernels(model, batch, side, 0.7, device), on_the_cpu(model, batch, side, 0.7))


@every_model
def test_scores_first_and_slopes_after_and_atomics_equal_the_cpu(name: str, device: torch.device) -> None:
    model = KgeModel(name, DIM)
    batch = batch_of(model, seed=1)
    assert_same(
        in_kernels(model, batch, "head", 1.0, device, atomics=True, passes=True), on_the_cpu(model, batch, "head", 1.0)
    )


@pytest.mark.parametrize("temperature", [0.0, 200.0])
@pytest.mark.parametrize("gamma", [-400.0, 400.0])
def test_even_and_one_sided_weights_and_large_scores(temperature: float, gamma: float, device: torch.device) -> None:
    model = KgeModel("transe", DIM, gamma=gamma, init_epsilon=500.0)
    batch = batch_of(model)
    assert_same(
        in_kernels(model, batch, "tail", temperature, device), on_the_cpu(model, batch, "tail", temperature), 5e-4
    )


@pytest.mark.parametrize("name", ["transe", "rotate"])
def test_a_kink_takes_the_subgradient_of_autograd(name: str, device: torch.device) -> None:
    """A relation of zeros and the anchor among the candidates: a distance of 0."""
    model = KgeModel(name, DIM)
    batch = batch_of(model)
    batch.relations.zero_()
    batch.candidates[0, :3], batch.candidates[1, 2] = batch.candidates[0, -1], batch.candidates[1, -1]
    assert_same(in_kernels(model, batch, "tail", 1.0, device), on_the_cpu(model, batch, "tail", 1.0))


def test_a_positive_without_negatives_and_one_negative(device: torch.device) -> None:
    model = KgeModel("complex", DIM)
    batch = batch_of(model, positives=2, negatives=1)
    batch.candidates[0, 1] = -1
    assert_same(in_kernels(model, batch, "tail", 1.0, device), on_the_cpu(model, batch, "tail", 1.0))


def test_nan_in_a_row_is_a_nan_loss_where_it_is_used(device: torch.device) -> None:
    model = KgeModel("transe", DIM)
    batch = batch_of(model, positives=3, negatives=2)
    batch.candidates[:3] = torch.tensor([[5, 1, 2, 0], [0, 5, 2, 1], [0, 1, 2, 3]])
    batch.entities[5] = math.nan
    outcome = in_kernels(model, batch, "tail", 1.0, device)
    assert torch.isnan(outcome.losses).tolist() == [True, True, False]


def test_sums_have_the_same_bits_twice(device: torch.device) -> None:
    model = KgeModel("rotate", DIM)
    batch = batch_of(model, positives=6)
    one, two = (in_kernels(model, batch, "tail", 1.0, device) for _ in range(2))
    assert all(torch.equal(left, right) for left, right in zip(one, two, strict=True))


def test_adam_equals_that_of_the_cpu(device: torch.device) -> None:
    """Three steps of two clients, of which the second rests once; a bad loss stops both."""
    rng = torch.Generator().manual_seed(0)
    rows, row_client = torch.randn(5, 3, generator=rng), torch.tensor([0, 0, 0, 1, 1], dtype=torch.int32)
    expected = [rows[:3].clone().requires_grad_(), rows[3:].clone().requires_grad_()]
    optimizers = [Adam([part], lr=0.1) for part in expected]
    actual, first, second = rows.to(device), torch.zeros(5, 3, device=device), torch.zeros(5, 3, device=device)
    steps, bad = torch.zeros(2, dtype=torch.int64, device=device), torch.zeros(1, dtype=torch.int32, device=device)
    divisors = torch.ones(2, 2, device=device)
    for number in range(4):
        gradients = torch.randn(5, 3, generator=rng)
        moving = torch.tensor([1, int(number != 1)], dtype=torch.int32, device=device)
        bad[0] = int(number == 3)
        adam.count_steps[(1,)](moving, steps, divisors, 2, BLOCK=2)
        adam.adam_step[(2,)](
            actual, gradients.to(device), first, second, row_client.to(device), moving, divisors, bad, 0.1, 15, 3,
            2, BLOCK=8,
        )  # fmt: skip
        for client, (part, optimizer) in enumerate(zip(expected, optimizers, strict=True)):
            part.grad = gradients[row_client == client]
            if number < 3 and (client == 0 or number != 1):
                optimizer.step()
    torch.testing.assert_close(actual.cpu(), torch.cat(expected).detach(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("side", ["tail", "head"])
def test_draws_are_those_of_the_cpu(side: Side, device: torch.device) -> None:
    """One client, a batch that is not full, a pool with gaps: against `NegativeSampler`, whose words are the published ones."""
    rng = np.random.default_rng(5)
    triples = np.unique(rng.integers(0, [6, 2, 6], size=(20, 3)), axis=0)[:7]
    pool, order, where = np.array([0, 1, 3, 4, 5]), rng.permutation(7), (3, 1, 6)  # step 3 is the second batch's tails
    where = (where[0] - (side == "head"), *where[1:])
    key, known = philox.key(2, "negatives", 0), [KnownTriples.build(triples, one, 2) for one in ("tail", "head")]
    sampler, counted = NegativeSampler(triples, num_relations=2, candidates=pool), CounterDraws(key, round=6, epoch=1)
    for _ in range(where[0]):
        counted.next_step()
    rows = order[4:]
    expected = sampler.sample(rows, 9, side, counted)
    offset = len(known[0].start) - 1
    groups = np.stack([known[0].groups(triples), known[1].groups(triples) + offset])
    start = np.concatenate([known[0].start, known[1].start[1:] + len(known[0].members)])
    members = np.concatenate([one.members for one in known])
    numbers = np.array([[0, 7, 1, 0, 0, 5]])

    def put(values: object, dtype: torch.dtype) -> Tensor:
        return torch.as_tensor(np.asarray(values), dtype=dtype, device=device)

    i32, i64 = torch.int32, torch.int64
    candidates, relations, weights = (torch.zeros(4, 11, dtype=i32, device=device), torch.zeros(4, dtype=i32, device=device),
                                      torch.ones(4, device=device))  # fmt: skip
    draws.draw_candidates[(4,)](
        put(where, i64), put([0] * 4, i32), put(numbers, i32), put([key], i64), put(order, i64), put(triples, i32),
        put(groups, i32), put(start, i64), put(members, i32), put(pool, i32), candidates, relations, weights, 4, 9, 7, 2,
        SIDES=draws.EACH, SEARCH=3, BLOCK=8,
    )  # fmt: skip
    anchor, positive = (0, 2) if side == "tail" else (2, 0)
    assert candidates[:3, 1:-1].tolist() == expected.tolist()
    assert candidates[:3, 0].tolist() == triples[rows, positive].tolist()
    assert candidates[:3, -1].tolist() == triples[rows, anchor].tolist()
    assert relations.tolist() == [*triples[rows, 1].tolist(), 2]
    assert (candidates[3] == -1).all()
    assert weights.tolist() == pytest.approx([1 / 3] * 3 + [0])
