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

    def test_all_negatives_masked(self, path: Loss, kind: int) -> None:
        batch = random_batch()
        batch.candidates[0, 1:] = -1
        result = path(kind, batch)
        assert_same(result, naive_loss(kind, batch))
        score = batch.margin + naive_similarity(kind, batch.queries[0], batch.table[batch.candidates[0, 0]])
        assert result.losses[0].item() == pytest.approx(math.log1p(math.exp(-score)), rel=1e-5)

    def test_no_negative_at_all(self, path: Loss, kind: int) -> None:
        batch = random_batch(negatives=0)
        assert_same(path(kind, batch), naive_loss(kind, batch))

    def test_repeated_candidates_and_the_positive_among_the_negatives(self, path: Loss, kind: int) -> None:
        batch = random_batch(positives=2)
        batch.candidates[:] = 3
        batch.candidates[1, 4:] = 7
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

    @pytest.mark.parametrize("temperature", [0.0, 200.0])
    def test_even_and_one_sided_negatives(self, path: Loss, kind: int, temperature: float) -> None:
        batch = random_batch()._replace(temperature=temperature)
        assert_same(path(kind, batch), naive_loss(kind, batch), tolerance=5e-4)

    def test_weights_scale_gradients_and_not_losses(self, path: Loss, kind: int) -> None:
        batch = random_batch()
        weights = torch.zeros(6, dtype=torch.float64)
        weights[2] = 2.0
        whole, one = path(kind, batch), path(kind, batch._replace(weights=weights))
        assert torch.equal(whole.losses, one.losses)
        assert not one.query_gradient[[0, 1, 3, 4, 5]].any()
        unused = sorted(set(range(12)) - set(batch.candidates[2].tolist()))
        assert unused
        assert not one.table_gradient[unused].any()
        torch.testing.assert_close(
            one.query_gradient[2] * (batch.weights[2] / 2).to(one.query_gradient), whole.query_gradient[2]
        )

    def test_nan_in_the_table_is_a_nan_loss_where_it_is_used(self, path: Loss, kind: int) -> None:
        batch = random_batch(positives=4, negatives=2)
        batch.candidates[:] = torch.tensor([[5, 1, 2], [0, 5, 2], [0, 1, 5], [0, 1, 2]])
        batch.table[5] = math.nan
        result = path(kind, batch)
        assert torch.isnan(result.losses).tolist() == [True, True, True, False]
        assert torch.isnan(result.query_gradient[:3]).any(1).all()
        assert torch.isfinite(result.query_gradient[3]).all()

    @pytest.mark.parametrize("number", [math.inf, -math.inf])
    def test_infinity_in_the_table_never_gives_a_finite_loss(self, path: Loss, kind: int, number: float) -> None:
        batch = random_batch(positives=1, negatives=1)
        batch.candidates[:] = torch.tensor([[5, 5]])
        batch.table[5, 0] = number
        assert not torch.isfinite(path(kind, batch).losses).any()

    def test_no_positive(self, path: Loss, kind: int) -> None:
        batch = random_batch()
        empty = batch._replace(queries=batch.queries[:0], candidates=batch.candidates[:0], weights=batch.weights[:0])
        losses, query_gradient, table_gradient = path(kind, empty)
        assert (losses.shape, query_gradient.shape) == ((0,), (0, 8))
        assert table_gradient.shape == (12, 8)
        assert not table_gradient.any()

    def test_inputs_are_left_alone(self, path: Loss, kind: int) -> None:
        batch = random_batch()
        before = [part.clone() for part in batch[:4]]
        path(kind, batch)
        assert all(torch.equal(old, new) for old, new in zip(before, batch[:4], strict=True))

    def test_same_bits_twice(self, path: Loss, kind: int) -> None:
        batch = random_batch(positives=40, negatives=32, rows=30, width=20)
        assert same_bits(path(kind, batch), path(kind, batch))


@every_kind
class TestCompiledLoss:
    def test_same_bits_for_every_number_of_threads(self, kind: int, threads: Callable[[int], None]) -> None:
        batch = random_batch(positives=67, negatives=32, rows=41, width=20)
        threads(1)
        alone = compiled_loss(kind, batch)
        threads(2)
        assert same_bits(compiled_loss(kind, batch), alone)

    def test_stacked_tables_give_the_bits_of_each_alone(self, kind: int) -> None:
        """Three tables of other sizes in one call, the second without a query, told apart by `segments`."""
        sizes, counts = [53, 17, 30], [29, 0, 40]
        parts = [
            random_batch(count, 12, rows, 20, seed)
            for seed, (rows, count) in enumerate(zip(sizes, counts, strict=True))
        ]
        bounds, ends = np.cumsum([0, *sizes]), np.cumsum([0, *counts])
        queries, table, weights = (torch.cat([getattr(part, name) for part in parts]).float() for name in
                                   ("queries", "table", "weights"))  # fmt: skip
        candidates = torch.cat(
            [
                torch.where(part.candidates >= 0, part.candidates + int(first), -1).int()
                for part, first in zip(parts, bounds, strict=False)
            ]
        )
        stacked = kernels.candidate_loss(
            kind,
            queries,
            table,
            candidates,
            weights,
            margin=3.0,
            temperature=0.7,
            segments=kernels.Segments(ends, bounds),
        )
        for place, part in enumerate(parts):
            rows, mine = slice(bounds[place], bounds[place + 1]), slice(ends[place], ends[place + 1])
            cut = CandidateLoss(stacked.losses[mine], stacked.query_gradient[mine], stacked.table_gradient[rows])
            assert same_bits(cut, compiled_loss(kind, part))

    def test_layout_of_the_inputs_does_not_matter(self, kind: int) -> None:
        batch = random_batch()
        columns = batch._replace(
            queries=batch.queries.T.contiguous().T,
            table=batch.table.T.contiguous().T,
            candidates=batch.candidates.T.contiguous().T,
        )
        assert not columns.candidates.is_contiguous()
        assert same_bits(compiled_loss(kind, columns), compiled_loss(kind, batch))


@every_kind
@pytest.mark.parametrize("path", [compiled_loss, torch_loss, double_loss])
def test_masked_positive_does_not_count(kind: int, path: Loss) -> None:
    batch = random_batch(positives=1, negatives=4)
    batch.candidates[:] = torch.tensor([[-1, 1, 2, 3, 4]])
    scores = [batch.margin + naive_similarity(kind, batch.queries[0], row).item() for row in batch.table[1:5]]
    shares = np.exp(batch.temperature * np.array(scores))
    expected = (shares / shares.sum() * np.logaddexp(0, scores)).sum()
    result = path(kind, batch)
    assert result.losses.item() == pytest.approx(expected, rel=1e-5)
    assert not result.table_gradient[0].any()


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
    def test_chunks_change_nothing(self, kind: int, monkeypatch: pytest.MonkeyPatch) -> None:
        batch = random_batch()
        whole = kernels.similarity_matrix(kind, batch.queries, batch.table)
        monkeypatch.setattr(kernels, "CHUNK_BYTES", 1)
        torch.testing.assert_close(kernels.similarity_matrix(kind, batch.queries, batch.table), whole)

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

    @pytest.mark.gpu
    def test_cuda_with_nothing_known(self) -> None:
        assert_masks_members(known_members([]), [0, 0], torch.tensor([[1, 2], [0, -1]], dtype=torch.int32), "cuda")


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
