"""What a step trains on, drawn on the device: positives in the order of the epoch, and negatives by Philox, known triples masked.

Legend: `B` slots, one for each positive that a step can have, all clients together; `K` candidates, the positive first;
`C` clients; `T` training triples of all clients.

Column K of `candidates` `[B, K + 1]` holds the row of the entity that stays, so that one sort serves all rows that a step moves.
Numbers are those of `fkgsec.kge.negatives.NegativeSampler` with counters.
"""

# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false, reportIndexIssue=false
from __future__ import annotations

import triton
import triton.language as tl

TAIL, BOTH, EACH = (
    0,
    1,
    2,
)  # what a step corrupts: tails; tails and heads in turn; every batch's heads and then its tails


@triton.jit
def batch_and_side(state, SIDES: tl.constexpr):
    """The number of the batch that a step trains, and 1 where it corrupts tails, -1 where heads; `state`: step, epoch, round."""
    step, epoch, number = tl.load(state), tl.load(state + 1), tl.load(state + 2)
    batch, head = step, step * 0
    if SIDES == 1:
        head = (step + epoch + number) % 2
    if SIDES == 2:
        batch, head = step // 2, 1 - step % 2
    return batch, (1 - 2 * head).to(tl.float32)


@triton.jit
def positions(state, clients, b, BATCH, SIDES: tl.constexpr):
    """Of a slot: its place in the client's order, whether it has a triple, how many the batch has, and the side (1 or -1)."""
    batch, side = batch_and_side(state, SIDES)
    place = batch * BATCH + (b - tl.load(clients))
    count, active = tl.load(clients + 1), tl.load(clients + 2)
    live = (place < count) & (active > 0)
    in_batch = tl.minimum(count - batch * BATCH, BATCH)
    return place, live, tl.maximum(in_batch, 1), side


@triton.jit
def draw_candidates(
    state, slot_client, clients, keys, order, triples, groups, start, members, pool,
    candidates, relations, weights, BATCH, NEGATIVES, NUM_TRIPLES, NUM_RELATIONS,
    SIDES: tl.constexpr, SEARCH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Fill a slot's row of `candidates` int32 `[B, K + 1]`, `relations` int32 `[B]` and `weights` float32 `[B]`.

    A slot without a triple has candidates -1, relation `NUM_RELATIONS` and weight 0.

    Args:
        state: int64 `[3]`: step, epoch, round. slot_client: int32 `[B]`.
        clients: int32 `[C, 6]`: first slot, triples, whether it is active, first triple, first place of its pool, size of the
            pool. keys: int64 `[C]`.
        order: int64 `[T]`, rows of `triples` int32 `[T, 3]`, in stacked rows. groups: int32 `[2, T]`, on side tail, then head.
        start, members: int64, int32: those of group g are `members[start[g] : start[g + 1]]`, sorted, of both sides.
        SEARCH: halvings that find a member in the largest group.
    """
    b = tl.program_id(0)
    client = tl.load(slot_client + b)
    mine = clients + client * 6
    place, live, in_batch, side = positions(state, mine, b, BATCH, SIDES)
    row = tl.load(order + tl.load(mine + 3) + place, mask=live, other=0)
    tail = side > 0
    head_row, relation, tail_row = (
        tl.load(triples + row * 3),
        tl.load(triples + row * 3 + 1),
        tl.load(triples + row * 3 + 2),
    )
    columns = NEGATIVES + 2
    out = candidates + b.to(tl.int64) * columns
    tl.store(out, tl.where(live, tl.where(tail, tail_row, head_row), -1))
    tl.store(out + columns - 1, tl.where(live, tl.where(tail, head_row, tail_row), -1))
    tl.store(relations + b, tl.where(live, relation, NUM_RELATIONS))
    tl.store(weights + b, tl.where(live, 1.0 / in_batch.to(tl.float32), 0.0))
    group = tl.load(groups + tl.where(tail, 0, NUM_TRIPLES) + row)
    begin, end = tl.load(start + group), tl.load(start + group + 1)
    slot = (b - tl.load(mine)).to(tl.int64)
    first_of_pool, size = tl.load(mine + 4), tl.load(mine + 5).to(tl.uint64)
    key = tl.load(keys + client)
    limit = tl.where(live, NEGATIVES, 0)
    for low in range(0, NEGATIVES, BLOCK):
        k = low + tl.arange(0, BLOCK)
        inside = k < NEGATIVES
        number = slot * NEGATIVES + k
        none = k * 0
        w0, w1, w2, w3 = tl.philox(
            key,
            (number // 4).to(tl.uint32),
            (none + tl.load(state)).to(tl.uint32),
            (none + tl.load(state + 1)).to(tl.uint32),
            (none + tl.load(state + 2)).to(tl.uint32),
        )
        lane = number % 4
        word = tl.where(lane < 2, tl.where(lane == 0, w0, w1), tl.where(lane == 2, w2, w3))
        chosen = ((word.to(tl.uint64) * size) >> 32).to(tl.int64)
        wanted = tl.load(pool + first_of_pool + chosen, mask=k < limit, other=-1)
        left, right = begin + none, end + none
        for _ in range(SEARCH):
            middle = (left + right) >> 1
            searching = left < right
            member = tl.load(members + middle, mask=searching, other=0)
            left = tl.where(searching & (member < wanted), middle + 1, left)
            right = tl.where(searching & (member >= wanted), middle, right)
        known = (left < end) & (tl.load(members + left, mask=left < end, other=-1) == wanted)
        tl.store(out + 1 + k, tl.where(known, -1, wanted), mask=inside)
