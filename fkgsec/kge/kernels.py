"""The hot loops: similarities, the loss over candidates with its explicit gradient, and the lookup of known triples.

Legend: `B` positives, `K` candidates of each (the positive first, then negatives), `N` table rows, `W` width.

On the CPU, numba compiles them. A compiled loop reads a row from memory once for all its candidates; tensor operations
would write arrays of `B x K x W` values in every step. On CUDA and for float64 the same mathematics runs as torch
operations over chunks. The candidates' loss in float32 on CUDA has Triton kernels (`gpu_kernels`). Tests compare all of
them with autograd.

On the CPU the order of every sum depends neither on the number of threads nor on the rest of the call. Several tables
stacked into one give the same bits as each alone, if `segments` says where each begins. Losses in torch operations over
such scores must use `logsigmoid` and `exp`. The last bit of `sigmoid` and `softplus` differs between the vector loop
and its remainder.
"""

from __future__ import annotations

import functools
import importlib.util
import warnings
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from fkgsec.kge.kinds import DOT, L1
from fkgsec.kge.loss import negative_sampling_loss

CHUNK_BYTES = 256 * 2**20  # bound on one temporary of the torch paths
CACHED_BYTES = 8 * 2**20  # of a client's table, up to which its rows are taken to lie in a cache


class CandidateLoss(NamedTuple):
    """Loss of each positive `[B]`, and the gradient of its weighted sum to queries `[B, W]` and table `[N, W]`."""

    losses: Tensor
    query_gradient: Tensor
    table_gradient: Tensor


Similarity: TypeAlias = "int | Callable[[Tensor, Tensor], Tensor]"
"""A kind of `fkgsec.kge.kinds`, which is compiled, or a function of two tensors `[..., W]`, broadcast, in torch operations."""


class Segments(NamedTuple):
    """Starts of C tables that are stacked into one, int64 `[C + 1]` both.

    Queries `queries[c] : queries[c + 1]` have all their candidates among rows `rows[c] : rows[c + 1]`, which are rows `first` on
    of a larger stack.
    """

    queries: np.ndarray
    rows: np.ndarray
    first: int = 0

    def of(self, stack: Tensor) -> Tensor:
        """Return these rows of a larger stack, as a view.

        Args:
            stack: float `[rows of the stack, W]`.
        """
        return stack[self.first : self.first + int(self.rows[-1])]


def similarity(kind: Similarity, x: Tensor, y: Tensor) -> Tensor:
    """Compute the similarity of rows: minus L1 distance, minus summed complex moduli, dot product, or a function.

    Args:
        kind: one of `fkgsec.kge.kinds`, or a function of `x` and `y`.
        x, y: float `[..., W]`, broadcast.
    """
    if callable(kind):
        return kind(x, y)
    if kind == DOT:
        return (x * y).sum(-1)
    difference = x - y
    if kind == L1:
        return -difference.abs().sum(-1)
    real, imaginary = difference.chunk(2, dim=-1)
    return -torch.stack([real, imaginary]).norm(dim=0).sum(-1)


def similarity_matrix(kind: Similarity, queries: Tensor, rows: Tensor) -> Tensor:
    """Compute the similarities `[B, N]` of all queries to all rows, without a temporary of `B x N x W`.

    Args:
        kind: one of `fkgsec.kge.kinds`, or a function of two tensors `[..., W]`.
        queries: float `[B, W]`.
        rows: float `[N, W]`.

    Raises:
        ValueError: queries and rows differ in width.
    """
    _check_widths(kind, queries, rows)
    if runs_compiled(queries) and isinstance(kind, int):
        out = torch.empty(len(queries), len(rows))
        compiled_loops().similarity_matrix(kind, _array(queries), _array(rows), out.numpy())
        return out
    if kind == DOT:
        return queries @ rows.T
    if kind == L1:
        return -torch.cdist(queries, rows, p=1)
    # Moduli have no fast distance in torch: compare blocks of queries with all rows.
    step = max(1, CHUNK_BYTES // max(1, rows.numel() * rows.element_size()))
    return torch.cat(
        [similarity(kind, part[:, None], rows) for part in queries.split(step)] or [queries.new_empty(0, len(rows))]
    )


def candidate_loss(
    kind: Similarity,
    queries: Tensor,
    table: Tensor,
    candidates: Tensor,
    weights: Tensor,
    *,
    margin: float,
    temperature: float,
    segments: Segments | None = None,
    out: Tensor | None = None,
) -> CandidateLoss:
    """Compute the self-adversarial negative sampling loss of given candidates, with its gradient.

    The loss of one positive is `fkgsec.kge.loss.negative_sampling_loss` of its scores.

    Args:
        kind: one of `fkgsec.kge.kinds`, or a function of two tensors `[..., W]`.
        queries: float `[B, W]`.
        table: float `[N, W]`.
        candidates: int32 `[B, K]` rows of `table`; column 0 is the positive; -1 marks a candidate that does not count.
        weights: float `[B]`, the weight of each positive's loss in the sum whose gradient is returned.
        margin: added to similarities.
        temperature: alpha of the self-adversarial weights, which carry no gradient.
        segments: starts of stacked tables, from 0 to B and from 0 to N; one table when None.
        out: float `[N, W]` that takes the table's gradient. Memory that was used before costs much less to fill.

    Raises:
        ValueError: queries and table rows differ in width.

    Source: fedr.txt B.2 (Sun et al. 2019, Eq. 5, 6). Differs: f is the score (larger is better), as in the published
    code.
    """
    _check_widths(kind, queries, table)
    if runs_compiled(queries) and isinstance(kind, int):
        # CPU, float32: sort candidates by row, score them, turn scores into derivatives, then sum gradients.
        loops, candidate_rows = compiled_loops(), _array(candidates)
        order = loops.order_candidates(loops.get_num_threads(), candidate_rows, len(table))
        scores, losses = _compiled_scores(kind, queries, table, candidates, margin, order), torch.empty(len(queries))
        loops.weigh_candidates(scores.numpy(), candidate_rows, _array(weights), np.float32(temperature), losses.numpy())
        return CandidateLoss(losses, *_compiled_gradients(kind, queries, table, scores, order, segments, out))
    if isinstance(kind, int) and queries.dtype == torch.float32 and queries.is_cuda and triton_is_there():
        from fkgsec.kge import gpu_kernels

        arguments = (kind, queries, table, candidates, weights)
        return CandidateLoss(*gpu_kernels.candidate_loss(*arguments, margin=margin, temperature=temperature, out=out))
    return _candidate_loss_torch(kind, queries, table, candidates, weights, margin, temperature, out)


class CandidateScores(NamedTuple):
    """Scores of candidates, and how to carry a loss of them back to the rows.

    Attributes:
        scores: float `[B, K]`; 0 where a candidate does not count.
        vjp: vector-Jacobian product: d loss / d scores `[B, K]` to d loss / d queries `[B, W]` and d loss / d table `[N, W]`.
    """

    scores: Tensor
    vjp: Callable[[Tensor], tuple[Tensor, Tensor]]


def candidate_scores(
    kind: Similarity,
    queries: Tensor,
    table: Tensor,
    candidates: Tensor,
    *,
    margin: float,
    segments: Segments | None = None,
    out: Tensor | None = None,
) -> CandidateScores:
    """Score given candidates, for losses other than `candidate_loss`.

    Args:
        kind, queries, table, candidates, margin, segments: as in `candidate_loss`.
        out: float `[N, W]` that takes the table's gradient when `vjp` is called.

    Raises:
        ValueError: queries and table rows differ in width.
    """
    _check_widths(kind, queries, table)
    if runs_compiled(queries) and isinstance(kind, int):
        loops = compiled_loops()
        order = loops.order_candidates(loops.get_num_threads(), _array(candidates), len(table))
        scores = _compiled_scores(kind, queries, table, candidates, margin, order)
        vjp = functools.partial(_compiled_gradients, kind, queries, table, order=order, segments=segments, out=out)
        return CandidateScores(scores, vjp)
    return CandidateScores(
        _scores_torch(kind, queries, table, candidates, margin),
        functools.partial(_gradients_torch, kind, queries, table, candidates, out=out),
    )


def mask_known(candidates: Tensor, groups: Tensor, start: Tensor, members: Tensor) -> Tensor:
    """Replace by -1 every candidate that is a member of its row's group.

    Args:
        candidates: int32 `[B, K]`, changed in place.
        groups: int64 `[B]`.
        start: int64; group g has `members[start[g]:start[g + 1]]`.
        members: int32, ascending within a group.

    Returns:
        `candidates`.
    """
    if candidates.device.type == "cpu" and numba_is_there():
        loops, arrays = compiled_loops(), (groups.numpy(), start.numpy(), members.numpy())
        loops.mask_known(loops.get_num_threads(), candidates.numpy(), *arrays)
        return candidates
    # searchsorted needs at least one key.
    if not len(members):
        return candidates
    # Pack (group, member) into one ascending number, so that one search looks up all candidates.
    span = int(members.max()) + 1
    sizes = start[1:] - start[:-1]
    keys = torch.repeat_interleave(torch.arange(len(sizes), device=members.device), sizes) * span + members
    wanted = groups[:, None] * span + candidates
    place = torch.searchsorted(keys, wanted).clamp_max(len(keys) - 1)
    return candidates.masked_fill_((keys[place] == wanted) & (candidates < span), -1)


def count_competitors(scores: Tensor, true: Tensor) -> tuple[Tensor, Tensor]:
    """Count the scores of each row that exceed its true score, and those that equal it.

    Args:
        scores: float `[B, N]`.
        true: float `[B]`.

    Returns:
        Both counts, int64 `[B]`.
    """
    if runs_compiled(scores):
        above, level = np.empty(len(scores), dtype=np.int64), np.empty(len(scores), dtype=np.int64)
        compiled_loops().count_competitors(_array(scores), _array(true), above, level)
        return torch.from_numpy(above), torch.from_numpy(level)
    return (scores > true[:, None]).sum(1), (scores == true[:, None]).sum(1)


def in_large_pages(shape: Sequence[int]) -> Tensor:
    """Allocate uninitialized float32 memory in large pages, which numpy requests from the system and torch does not.

    The gradient of a 100 MB table costs several times as much to touch in small pages.

    Args:
        shape: of the tensor.
    """
    return torch.from_numpy(np.empty(tuple(shape), dtype=np.float32))


def ordered_sum(values: Tensor) -> float:
    """Sum a vector in an order that depends on its length alone.

    torch's own order depends on the number of threads from 32,768 numbers on.

    Args:
        values: float `[n]`.
    """
    return float(values.detach().cpu().numpy().sum(dtype=np.float64))


@functools.cache
def compiled_loops() -> ModuleType:
    """Return the compiled loops, ready to run. A machine that computes on CUDA alone needs no numba."""
    from fkgsec.kge import cpu_kernels

    cpu_kernels.compile_once()
    return cpu_kernels


@functools.cache
def numba_is_there() -> bool:
    """Return whether numba can be imported, and warn if not: the CPU then uses torch operations."""
    if importlib.util.find_spec("numba") is not None:
        return True
    warnings.warn(
        "numba is not installed, so training and ranking on the CPU run as torch operations, which takes many times as long; "
        "figures may differ in their last digits from those of compiled loops",
        RuntimeWarning,
        stacklevel=2,
    )
    return False


@functools.cache
def triton_is_there() -> bool:
    """Return whether triton can be imported. Without it, CUDA computes the candidates' loss by torch operations."""
    return importlib.util.find_spec("triton") is not None


def _check_widths(kind: Similarity, queries: Tensor, rows: Tensor) -> None:
    """Reject rows that a compiled loop would read beyond their end, or that torch operations would broadcast."""
    if isinstance(kind, int) and queries.shape[-1] != rows.shape[-1]:
        raise ValueError(f"rows have width {rows.shape[-1]}, allowed: {queries.shape[-1]}, the width of the queries")


def runs_compiled(x: Tensor) -> bool:
    """Return whether `compiled_loops` take a tensor: in float32, on the CPU, with numba.

    Args:
        x: float, of any shape.
    """
    return x.device.type == "cpu" and x.dtype == torch.float32 and numba_is_there()


def _array(x: Tensor) -> np.ndarray:
    return x.detach().contiguous().numpy()


def _compiled_scores(
    kind: int,
    queries: Tensor,
    table: Tensor,
    candidates: Tensor,
    margin: float,
    order: tuple[np.ndarray, np.ndarray, np.ndarray],
) -> Tensor:
    scores = torch.zeros(candidates.shape)
    compiled_loops().candidate_scores(kind, _array(queries), _array(table), np.float32(margin), *order, scores.numpy())
    return scores


def _compiled_gradients(
    kind: int,
    queries: Tensor,
    table: Tensor,
    derivatives: Tensor,
    order: tuple[np.ndarray, np.ndarray, np.ndarray],
    segments: Segments | None,
    out: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    query_gradient = in_large_pages(queries.shape)
    table_gradient = in_large_pages(table.shape) if out is None else out
    loops = compiled_loops()
    # Two passes read each row twice; that pays only where the rows of a segment stay in the cache.
    in_cache = _array(table).nbytes <= CACHED_BYTES * (len(segments.rows) - 1 if segments else 1)
    by_rows_and_queries = kind == L1 and in_cache
    loop = loops.l1_gradients if by_rows_and_queries else functools.partial(loops.candidate_gradients, kind)
    loop(
        loops.get_num_threads(),
        _array(queries),
        _array(table),
        *(segments or Segments(np.array([0, len(queries)]), np.array([0, len(table)])))[:2],
        *order,
        _array(derivatives),
        query_gradient.numpy(),
        table_gradient.numpy(),
    )
    return query_gradient, table_gradient


def _parts(candidates: Tensor, table: Tensor) -> list[slice]:
    """Slice the positives so that the rows of one slice fit `CHUNK_BYTES`."""
    B, K = candidates.shape
    # Four temporaries of [positives, K, W]: rows, differences, and the gradients of both.
    step = max(1, CHUNK_BYTES // (4 * K * table.shape[1] * table.element_size()))
    return [slice(low, min(low + step, B)) for low in range(0, B, step)]


def _scores_torch(kind: Similarity, queries: Tensor, table: Tensor, candidates: Tensor, margin: float) -> Tensor:
    parts = [
        margin + similarity(kind, queries[part][:, None], table[candidates[part].clamp_min(0).long()])
        for part in _parts(candidates, table)
    ]
    return torch.cat(parts or [queries.new_empty(candidates.shape)]).masked_fill(candidates < 0, 0)


def _gradients_torch(
    kind: Similarity,
    queries: Tensor,
    table: Tensor,
    candidates: Tensor,
    derivatives: Tensor,
    out: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    def weighed(part: slice, scores: Tensor, counts: Tensor) -> Tensor:
        """Sum the scores by their derivatives. A NaN derivative of a masked candidate must not reach the sum."""
        return (scores * derivatives[part].masked_fill(~counts, 0)).sum()

    return _backward_torch(kind, queries, table, candidates, 0.0, weighed, out)


def _candidate_loss_torch(
    kind: Similarity,
    queries: Tensor,
    table: Tensor,
    candidates: Tensor,
    weights: Tensor,
    margin: float,
    temperature: float,
    out: Tensor | None = None,
) -> CandidateLoss:
    losses = torch.empty_like(weights)

    def weighed(part: slice, scores: Tensor, counts: Tensor) -> Tensor:
        """Sum the losses by their weights, and keep them."""
        of_part = negative_sampling_loss(scores, counts, temperature=temperature)
        losses[part] = of_part.detach()
        return (of_part * weights[part]).sum()

    return CandidateLoss(losses, *_backward_torch(kind, queries, table, candidates, margin, weighed, out))


def _backward_torch(
    kind: Similarity,
    queries: Tensor,
    table: Tensor,
    candidates: Tensor,
    margin: float,
    total: Callable[[slice, Tensor, Tensor], Tensor],
    out: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Compute the gradients of a sum to queries and table, part by part.

    Args:
        total: maps some positives, their scores `[b, K]` and which of these count to the sum.
    """
    query_gradient = torch.empty_like(queries)
    table_gradient = torch.zeros_like(table) if out is None else out.zero_()
    for part in _parts(candidates, table):
        chosen, counts = candidates[part].clamp_min(0).long(), candidates[part] >= 0
        with torch.enable_grad():
            query = queries[part].detach().requires_grad_()
            rows = table[chosen].masked_fill(~counts[:, :, None], 0).detach().requires_grad_()
            scores = margin + similarity(kind, query[:, None], rows)
            query_gradient[part], row_gradient = torch.autograd.grad(total(part, scores, counts), [query, rows])
        table_gradient.index_add_(0, chosen.flatten(), row_gradient.flatten(0, 1))
    return query_gradient, table_gradient
