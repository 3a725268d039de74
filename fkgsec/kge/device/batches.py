"""The triples that clients train on, where a step's slots lie, and what it draws of them, on the device.

Legend: `B` slots, one for each positive that a step can have; `K` candidates of each; `C` clients; `T` training triples of all.
"""

# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false, reportIndexIssue=false
from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fkgsec import philox
from fkgsec.kge.device import draws
from fkgsec.kge.device.fused import Subset
from fkgsec.kge.device.sizes import block_of
from fkgsec.kge.local.stack import ClientStack
from fkgsec.kge.models import Side
from fkgsec.kge.negatives import KnownTriples
from fkgsec.kge.options import KgeOptions

SIDES = {"tail": draws.TAIL, "both": draws.BOTH, "each": draws.EACH}
BOTH_SIDES: tuple[Side, ...] = ("tail", "head")


class Batches:
    """The triples of all clients, where their slots lie, and what a step draws of them; all on the device, in stacked rows."""

    def __init__(self, stack: ClientStack, subsets: Sequence[Subset], options: KgeOptions) -> None:
        device, order = stack.device, stack.order
        self.order_of_clients, self.batch_size = order, options.batch_size
        self.sides = SIDES[options.negative_sides]
        self.num_negatives = options.num_negatives
        counts = [len(subsets[client].rows) for client in order]
        self.counts = dict(zip(order, counts, strict=True))
        slots = [min(count, options.batch_size) for count in counts]
        passes = 2 if options.negative_sides == "each" else 1
        self.num_steps = passes * -(-max(counts) // options.batch_size)
        self.passes = passes
        firsts = [(stack.span("entities", client).start, stack.span("relations", client).start) for client in order]
        triples = [
            subsets[client].triples[subsets[client].rows] + np.array([entity, relation, entity])
            for client, (entity, relation) in zip(order, firsts, strict=True)
        ]
        groups, start, members = _lookup(stack, subsets)
        pools = [subsets[client].pool + entity for client, (entity, _) in zip(order, firsts, strict=True)]
        sizes = list(map(len, pools))
        numbers = np.zeros((len(order), 6), np.int32)  # as `draws.draw_candidates` says; who is active comes later
        numbers[:, 0], numbers[:, 1], numbers[:, 3] = _before(slots), counts, _before(counts)
        numbers[:, 4], numbers[:, 5] = _before(sizes), sizes

        def put(values: np.ndarray, dtype: type) -> Tensor:
            return torch.from_numpy(np.ascontiguousarray(values, dtype=dtype)).to(device)

        self.clients = put(numbers, np.int32)
        self.slot_client = put(np.repeat(np.arange(len(order)), slots), np.int32)
        keys = [philox.key(options.seed, "negatives", stack.keys[client]) for client in order]
        self.keys = put(np.array(keys), np.int64)
        shuffles = np.array([philox.key(options.seed, "shuffle", stack.keys[client]) for client in order])
        self.row_keys = put(np.repeat(shuffles, counts), np.int64)
        self.row_groups = put(np.repeat(np.arange(len(order)), counts), np.int64)
        self.row_places = put(np.concatenate([np.arange(count) for count in counts]), np.int64)
        self.triples, self.groups = put(np.concatenate(triples), np.int32), put(groups, np.int32)
        self.start, self.members = put(start, np.int64), put(members, np.int32)
        self.pool = put(np.concatenate(pools), np.int32)
        self.search = int((start[1:] - start[:-1]).max(initial=0)).bit_length()
        self.num_relations = len(stack.tables["relations"])
        self.state = torch.zeros(3, dtype=torch.int64, device=device)  # step, epoch, round
        self.order = torch.zeros(len(self.triples), dtype=torch.int64, device=device)
        size, columns = len(self.slot_client), options.num_negatives + 2
        self.candidates = torch.zeros(size, columns, dtype=torch.int32, device=device)
        self.relations = torch.zeros(size, dtype=torch.int32, device=device)
        self.weights = torch.zeros(size, device=device)

    def steps_of(self, client: int) -> int:
        """Steps of an epoch of the client at this place."""
        return self.passes * -(-self.counts[client] // self.batch_size)

    def begin_epoch(self) -> None:
        """The order of the epoch that `state` names, and its first step."""
        order = philox.orders(self.row_keys, self.row_places, self.row_groups, epoch=self.state[1], round=self.state[2])
        self.order.copy_(order)
        self.state[:1].zero_()

    def draw(self) -> None:
        """Fill `candidates`, `relations` and `weights`."""
        draws.draw_candidates[(len(self.slot_client),)](
            self.state, self.slot_client, self.clients, self.keys, self.order, self.triples, self.groups, self.start,
            self.members, self.pool, self.candidates, self.relations, self.weights, self.batch_size, self.num_negatives,
            len(self.triples), self.num_relations,
            SIDES=self.sides, SEARCH=self.search, BLOCK=min(256, block_of(self.num_negatives)),
        )  # fmt: skip

    def take_part(self, clients: Sequence[int]) -> None:
        """Say who trains in the round that follows."""
        active = [int(client in clients) for client in self.order_of_clients]
        self.clients[:, 2] = torch.tensor(active, dtype=torch.int32, device=self.clients.device)


def _before(counts: Sequence[int]) -> np.ndarray:
    return np.cumsum([0, *counts])[:-1]


def _lookup(stack: ClientStack, subsets: Sequence[Subset]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Known triples of all clients: the group of each training triple `[2, T]` (tails, heads), and groups' starts and members."""
    groups: list[list[np.ndarray]] = [[], []]
    starts, members, num_groups, num_members = [np.zeros(1, np.int64)], [np.zeros(0, np.int32)], 0, 0
    for number, side in enumerate(BOTH_SIDES):
        for client in stack.order:
            triples, rows, _ = subsets[client]
            known = KnownTriples.build(triples, side, stack.graphs[client].num_relations)
            groups[number].append(known.groups(triples)[rows] + num_groups)
            starts.append(known.start[1:] + num_members)
            members.append(known.members + np.int32(stack.span("entities", client).start))
            num_groups += len(known.start) - 1
            num_members += len(known.members)
    together = np.stack([np.concatenate(side) for side in groups])
    return together, np.concatenate(starts), np.concatenate([*members, np.zeros(1, np.int32)])
