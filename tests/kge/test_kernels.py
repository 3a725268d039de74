"""The hot loops against autograd in float64, Python loops and sets; and that they give the same bits every time."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fkgsec.kge import kernels
from fkgsec.kge.kernels import CandidateLoss
from fkgsec.kge.kinds import DOT, L1, MODULUS

Loss = Callable[..., CandidateLoss]
every_kind = pytest.mark.parametrize("kind", [L1, MODULUS, DOT], ids=["l1", "modulus", "dot"])


class Batch(NamedTuple):
    """The inputs of `candidate_loss`, in float64."""

    queries: Tensor
    table: Tensor
    candidates: Tensor
    weights: Tensor
    margin: float = 3.0
    temperature: float = 0.7


def random_batch(positives: int = 6, negatives: int = 9, rows: int = 12, width: int = 8, seed: int = 0) -> Batch:
    """Some negatives are masked, many are repeated, some equal the positive."""
    rng = np.random.default_rng(seed)
    candidates = rng.integers(0, rows, size=(positives, 1 + negatives)).astype(np.int32)
    candidates[:, 1:][rng.random((positives, negatives)) < 0.2] = -1
    # Rounded to float32, so that every path starts from the same numbers.
    floats = (rng.normal(size=shape).astype(np.float32) for shape in [(positives, width), (rows, width), (positives,)])
    queries, table, weights = (torch.from_numpy(values).double() for values in floats)
    return Batch(queries, table, torch.from_numpy(candidates), weights.abs())


def naive_similarity(kind: int, x: Tensor, y: Tensor) -> Tensor:
    if kind == L1:
        return -(x - y).abs().sum()
    if kind == DOT:
        return torch.dot(x, y)
    return -torch.complex(*(x - y).chunk(2)).abs().sum()


def naive_loss(kind: int, batch: Batch) -> CandidateLoss:
    """fedr.txt B.2 with f as a score: -log s(f_0) - sum_k p_k log s(-f_k), p = softmax(alpha f) without gradient."""
    queries, table = batch.queries.clone().requires_grad_(), batch.table.clone().requires_grad_()
    losses = []
    for query, candidates in zip(queries, batch.candidates.tolist(), strict=True):
        positive, *negatives = candidates
        scores = [batch.margin + naive_similarity(kind, query, table[row]) for row in negatives if row >= 0]
        loss = -torch.nn.functional.logsigmoid(batch.margin + naive_similarity(kind, query, table[positive]))
        highest = max((score.item() for score in scores), default=0.0)
        shares = [math.exp(batch.temperature * (score.item() - highest)) for score in scores]
        for score, share in zip(scores, shares, strict=True):
            loss = loss - share / sum(shares) * torch.nn.functional.logsigmoid(-score)
        losses.append(loss)
    total = torch.stack(losses)
    (total * batch.weights).sum().backward()
    assert queries.grad is not None
    assert table.grad is not None
    return CandidateLoss(total.detach(), queries.grad, table.grad)


def compiled_loss(kind: int, batch: Batch) -> CandidateLoss:
    return kernels.candidate_loss(
        kind,
        batch.queries.float(),
        batch.table.float(),
        batch.candidates,
        batch.weights.float(),
        margin=batch.margin,
        temperature=batch.temperature,
    )


def torch_loss(kind: int, batch: Batch) -> CandidateLoss:
    """The path of float64 and of other devices, in float32 so that it is held to the same input."""
    queries, table, weights = batch.queries.float(), batch.table.float(), batch.weights.float()
    return kernels._candidate_loss_torch(
        kind, queries, table, batch.candidates, weights, batch.margin, batch.temperature
    )


def double_loss(kind: int, batch: Batch) -> CandidateLoss:
    return kernels.candidate_loss(kind, *batch[:4], margin=batch.margin, temperature=batch.temperature)


def assert_same(actual: CandidateLoss, expected: CandidateLoss, tolerance: float = 1e-5) -> None:
    for name, left, right in zip(expected._fields, actual, expected, strict=True):
        np.testing.assert_allclose(left.cpu().double(), right, rtol=tolerance, atol=tolerance, err_msg=name)


def same_bits(left: CandidateLoss, right: CandidateLoss) -> bool:
    return all(torch.equal(x, y) for x, y in zip(left, right, strict=True))


PATHS = {"compiled": compiled_loss, "torch": torch_loss, "double": double_loss}
every_path = pytest.mark.parametrize("path", PATHS.values(), ids=PATHS.keys())


@every_path
@every_kind
class TestCandidateLoss:
    @settings(max_examples=15, deadline=None)
    @given(
        positives=st.integers(1, 7),
        negatives=st.integers(0, 9),
        rows=st.integers(1, 12),
        width=st.integers(1, 18),
        seed=st.integers(0, 2**32 - 1),
    )
    def test_equals_autograd(
        self, path: Loss, kind: int, positives: int, negatives: int, rows: int, width: int, seed: int
    ) -> None:
        batch = random_batch(positives, negatives, rows, width + (width % 2 if kind == MODULUS else 0), seed)
        assert_same(path(kind, batch), naive_loss(kind, batch))

    def test_kink_takes_the_subgradient_of_autograd(self, path: Loss, kind: int) -> None:
        batch = random_batch()
        batch.candidates[:, 1:] = torch.arange(9)
        batch.queries[0] = batch.table[batch.candidates[0, 0]]  # the positive itself
        batch.queries[1] = batch.table[batch.candidates[1, 5]]  # a negative
        batch.queries[2, ::4] = batch.table[2, ::4]  # some numbers of one
        batch.queries[2, 2] = batch.table[2, 2]  # both parts of one complex number, of width 8
        batch.queries[2, 6] = batch.table[2, 6]
        assert_same(path(kind, batch), naive_loss(kind, batch))

    @pytest.mark.parametrize("margin", [500.0, -500.0])
    def test_large_scores_do_not_overflow(self, path: Loss, kind: int, margin: float) -> None:
        batch = random_batch()._replace(margin=margin, temperature=1.0)
        result = path(kind, batch)
        assert all(torch.isfinite(part).all() for part in result)
        # float32 scores near 500 are 3e-5 apart, and the softmax sees that.
        assert_same(result, naive_loss(kind, batch), tolerance=5e-4)

    def test_nan_in_the_table_is_a_nan_loss_where_it_is_used(self, path: Loss, kind: int) -> None:
        batch = random_batch(positives=4, negatives=2)
        batch.candidates[:] = torch.tensor([[5, 1, 2], [0, 5, 2], [0, 1, 5], [0, 1, 2]])
        batch.table[5] = math.nan
        result = path(kind, batch)
        assert torch.isnan(result.losses).tolist() == [True, True, True, False]
        assert torch.isnan(result.query_gradient[:3]).any(1).all()
        assert torch.isfinite(result.query_gradient[3]).all()

    def test_no_positive(self, path: Loss, kind: int) -> None:
        batch = random_batch()
        empty = batch._replace(queries=batch.queries[:0], candidates=batch.candidates[:0], weights=batch.weights[:0])
        losses, query_gradient, table_gradient = path(kind, empty)
        assert (losses.shape, query_gradient.shape) == ((0,), (0, 8))
        assert table_gradient.shape == (12, 8)
        assert not table_gradient.any()


@every_kind
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_scores_and_what_is_carried_back(kind: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Candidates that do not count score 0; a small bound makes the torch operations go in parts."""
    monkeypatch.setattr(kernels, "CHUNK_BYTES", 5000)
    batch = random_batch()
    derivatives = torch.from_numpy(np.random.default_rng(1).normal(size=batch.candidates.shape))
    queries, table = batch.queries.clone().requires_grad_(), batch.table.clone().requires_grad_()
    scores = torch.zeros(batch.candidates.shape, dtype=torch.float64)
    for b, k in (batch.candidates >= 0).nonzero().tolist():
        scores[b, k] = batch.margin + naive_similarity(kind, queries[b], table[int(batch.candidates[b, k])])
    expected = torch.autograd.grad((scores * derivatives).sum(), [queries, table])
    scored = kernels.candidate_scores(
        kind, batch.queries.to(dtype), batch.table.to(dtype), batch.candidates, margin=batch.margin
    )
    for actual, wanted in zip(
        (scored.scores, *scored.vjp(derivatives.to(dtype))), (scores.detach(), *expected), strict=True
    ):
        torch.testing.assert_close(actual.double(), wanted, rtol=1e-5, atol=1e-5)


@every_kind
class TestCompiledLoss:
    def test_same_bits_for_every_number_of_threads(self, kind: int, threads: Callable[[int], None]) -> None:
        batch = random_batch(positives=67, negatives=32, rows=41, width=20)
        threads(1)
        alone = compiled_loss(kind, batch)
        threads(2)
        assert same_bits(compiled_loss(kind, batch), alone)


@every_kind
def test_chunks_of_the_torch_path_add_up(kind: int, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = random_batch()
    whole = double_loss(kind, batch)
    monkeypatch.setattr(kernels, "CHUNK_BYTES", 1)
    assert_same(double_loss(kind, batch), whole, tolerance=1e-12)


def test_a_sum_depends_on_no_number_of_threads(threads: Callable[[int], None]) -> None:
    values = torch.randn(100_003, generator=torch.Generator().manual_seed(0))
    sums = []
    for count in (1, 2):
        threads(count)
        sums.append(kernels.ordered_sum(values))
    assert sums[0] == sums[1] == pytest.approx(math.fsum(values.tolist()), abs=1e-9)


@pytest.mark.gpu
@every_kind
def test_cuda_loss_equals_autograd(kind: int) -> None:
    for batch in (random_batch(), random_batch(positives=33, negatives=64, rows=50, width=130, seed=1)):
        queries, table, weights = (part.float().cuda() for part in (batch.queries, batch.table, batch.weights))
        result = kernels.candidate_loss(
            kind, queries, table, batch.candidates.cuda(), weights, margin=batch.margin, temperature=batch.temperature
        )
        assert result.losses.device.type == "cuda"
        assert_same(result, naive_loss(kind, batch), tolerance=1e-4)


class TestSimilarityMatrix:
    @every_kind
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    @settings(max_examples=25, deadline=None)
    @given(count=st.integers(0, 9), rows=st.integers(0, 9), width=st.integers(1, 9), seed=st.integers(0, 2**32 - 1))
    def test_equals_pair_by_pair(
        self, kind: int, dtype: torch.dtype, count: int, rows: int, width: int, seed: int
    ) -> None:
        rng = np.random.default_rng(seed)
        width *= 2 if kind == MODULUS else 1
        queries, table = (torch.from_numpy(rng.normal(size=(n, width))) for n in (count, rows))
        expected = np.array([[naive_similarity(kind, x, y) for y in table] for x in queries]).reshape(count, rows)
        actual = kernels.similarity_matrix(kind, queries.to(dtype), table.to(dtype))
        assert actual.dtype == dtype
        assert actual.shape == (count, rows)
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)

    @every_kind
    def test_same_bits_for_every_number_of_threads(self, kind: int, threads: Callable[[int], None]) -> None:
        batch = random_batch(positives=67, rows=101, width=64)
        threads(1)
        alone = kernels.similarity_matrix(kind, batch.queries.float(), batch.table.float())
        threads(2)
        assert torch.equal(kernels.similarity_matrix(kind, batch.queries.float(), batch.table.float()), alone)

    @pytest.mark.parametrize(
        "kind",
        [
            L1,
            MODULUS,
            DOT,
        ],
    )
    def test_equal_rows_get_equal_bits(self, kind: int) -> None:
        """Ranking finds ties by equality, so where an entity stands in the table must not change its score."""
        rng = np.random.default_rng(0)
        for count, rows in [(1, 5), (2, 5), (5, 7), (50, 13), (5, 101), (3, 1001)]:
            queries = torch.from_numpy(rng.normal(size=(count, 100)).astype(np.float32))
            table = torch.from_numpy(rng.normal(size=(1, 100)).astype(np.float32)).repeat(rows, 1)
            scores = kernels.similarity_matrix(kind, queries, table)
            assert torch.equal(scores, scores[:, :1].expand(count, rows)), (count, rows)

    @pytest.mark.gpu
    @every_kind
    def test_cuda(self, kind: int) -> None:
        batch = random_batch(positives=33, rows=50, width=130)
        actual = kernels.similarity_matrix(kind, batch.queries.float().cuda(), batch.table.float().cuda())
        expected = kernels.similarity_matrix(kind, batch.queries, batch.table)
        torch.testing.assert_close(actual.cpu().double(), expected, rtol=1e-4, atol=1e-4)


class Known(NamedTuple):
    """Groups of known members as sets, and as the arrays of `mask_known`; the last group is empty."""

    sets: list[set[int]]
    start: Tensor
    members: Tensor


def known_members(sets: list[set[int]]) -> Known:
    sets = [*sets, set()]
    start = torch.tensor([0, *np.cumsum([len(members) for members in sets])])
    members = torch.tensor([member for group in sets for member in sorted(group)], dtype=torch.int32)
    return Known(sets, start, members)


def assert_masks_members(known: Known, groups: list[int], candidates: Tensor, device: str) -> None:
    on_device = candidates.clone().to(device)
    result = kernels.mask_known(
        on_device, torch.tensor(groups, device=device), known.start.to(device), known.members.to(device)
    )
    expected = [
        [-1 if candidate in known.sets[group] else candidate for candidate in row]
        for group, row in zip(groups, candidates.tolist(), strict=True)
    ]
    assert result.dtype == torch.int32
    assert result.tolist() == expected
    assert on_device.tolist() == expected  # in place


class TestMaskKnown:
    @settings(max_examples=60, deadline=None)
    @given(data=st.data())
    def test_equals_sets(self, data: st.DataObject) -> None:
        known = known_members(data.draw(st.lists(st.sets(st.integers(0, 8)), max_size=5)))
        groups = data.draw(st.lists(st.integers(0, len(known.sets) - 1), min_size=1, max_size=5))
        width = data.draw(st.integers(0, 6))
        row = st.lists(st.integers(-1, 11), min_size=width, max_size=width)
        rows = data.draw(st.lists(row, min_size=len(groups), max_size=len(groups)))
        candidates = torch.tensor(rows, dtype=torch.int32).reshape(len(groups), width)
        assert_masks_members(known, groups, candidates, "cpu")

    @pytest.mark.gpu
    def test_cuda(self) -> None:
        rng = np.random.default_rng(0)
        for _ in range(20):
            sets = [set(rng.integers(0, 9, size=rng.integers(0, 9)).tolist()) for _ in range(5)]
            candidates = torch.from_numpy(rng.integers(-1, 12, size=(7, 20)).astype(np.int32))
            assert_masks_members(known_members(sets), rng.integers(0, 6, size=7).tolist(), candidates, "cuda")


@pytest.mark.parametrize("width", [8, 33, 128])
def test_l1_gradients_have_the_same_bits_whether_rows_lie_in_a_cache(
    width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two clients, kinks, candidates that do not count, rows that many ask for and rows that nobody does."""
    draw = torch.Generator().manual_seed(width)
    queries, table = (torch.randn(count, width, generator=draw) for count in (60, 90))
    queries[3] = table[5]
    candidates = torch.cat(
        [torch.randint(-1, 40, (30, 50), generator=draw), torch.randint(41, 90, (30, 50), generator=draw)]
    )
    given = (queries, table, candidates.int(), torch.rand(60, generator=draw))
    segments = kernels.Segments(np.array([0, 30, 60]), np.array([0, 40, 90]))
    found = []
    for cached_bytes in (2**30, 0):
        monkeypatch.setattr(kernels, "CACHED_BYTES", cached_bytes)
        found.append(kernels.candidate_loss(L1, *given, margin=2.0, temperature=1.0, segments=segments))
    for one, other in zip(*found, strict=True):
        assert one.numpy().tobytes() == other.numpy().tobytes()
    assert found[0].table_gradient[40].count_nonzero() == 0


def test_a_gradient_goes_where_it_is_asked_to() -> None:
    draw = torch.Generator().manual_seed(0)
    queries, table = torch.randn(4, 8, generator=draw), torch.randn(9, 8, generator=draw)
    candidates = torch.randint(0, 9, (4, 5), generator=draw).int()
    out = torch.full((9, 8), float("nan"))
    given = (L1, queries, table, candidates, torch.ones(4))
    fresh = kernels.candidate_loss(*given, margin=2.0, temperature=1.0)
    used = kernels.candidate_loss(*given, margin=2.0, temperature=1.0, out=out)
    assert used.table_gradient.data_ptr() == out.data_ptr()
    assert torch.equal(fresh.table_gradient, out)


@pytest.mark.parametrize(("rows", "columns"), [(0, 3), (1, 1), (7, 33), (40, 1_000)])
def test_competitors_are_those_above_and_level(rows: int, columns: int) -> None:
    """With many ties, infinities and rows that do not lie one after the other in memory."""
    drawn = torch.randint(-3, 4, (rows, 2 * columns), generator=torch.Generator().manual_seed(0)).float()
    drawn[drawn == 3] = torch.inf
    scores = drawn[:, ::2]
    true = scores[:, 0]
    expected = [[own, sum(score > own for score in row), row.count(own)] for row in scores.tolist() for own in row[:1]]
    for kept in (scores, scores.double()):
        above, level = kernels.count_competitors(kept, true.to(kept.dtype))
        assert [list(one) for one in zip(true.tolist(), above.tolist(), level.tolist(), strict=True)] == expected


@every_kind
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("width", [1, 6, 10])
def test_rows_of_another_width_than_the_queries_are_refused(kind: int, dtype: torch.dtype, width: int) -> None:
    """A compiled loop would read beyond their end; torch operations would repeat rows of width 1."""
    batch = random_batch(width=8)
    queries, rows = batch.queries.to(dtype), batch.table[:, :1].repeat(1, width).to(dtype)
    candidates, weights = batch.candidates, batch.weights.to(dtype)
    for call in (
        lambda: kernels.similarity_matrix(kind, queries, rows),
        lambda: kernels.candidate_scores(kind, queries, rows, candidates, margin=3.0),
        lambda: kernels.candidate_loss(kind, queries, rows, candidates, weights, margin=3.0, temperature=1.0),
    ):
        with pytest.raises(ValueError, match=f"width {width}, allowed: 8"):
            call()
