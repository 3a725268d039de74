"""Small federations, an exchange that remembers its uploads, and one that is driven by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest
import torch
from torch import Tensor

from fkgsec.data.consortium import generate_consortium
from fkgsec.data.graph import FederatedGraph
from fkgsec.defenses.transport import DefendedTransport
from fkgsec.exchange import Holding, Uploaded
from fkgsec.federation.loop import run_federation
from fkgsec.federation.messages import Channel, Opened
from fkgsec.federation.recipes import Table
from fkgsec.kge.options import KgeOptions
from fkgsec.kge.result import KgeResult


class Upload(NamedTuple):
    """One call of `upload`: what clients handed over, the table before and after, what the server opened."""

    round: int
    table: Table
    rows: dict[str, Tensor]
    before: Tensor
    after: Tensor
    outcome: Uploaded
    opened: list[Opened]


class RememberingTransport(DefendedTransport):
    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.uploads: list[Upload] = []

    def upload(self, round: int, table: Table, rows: Mapping[str, Tensor], **refusals: Any) -> Uploaded:
        before = self.server[table].rows.clone()
        outcome = super().upload(round, table, rows, **refusals)
        kept = {party: own.clone() for party, own in rows.items()}
        opened = [note for note in self.channel.transcript.opened(round) if note.table == table]
        self.uploads.append(Upload(round, table, kept, before, self.server[table].rows.clone(), outcome, opened))
        return outcome


class Run(NamedTuple):
    result: KgeResult
    exchange: RememberingTransport


@pytest.fixture
def options() -> KgeOptions:
    return KgeOptions(
        dim=8,
        batch_size=128,
        num_negatives=7,
        local_epochs=1,
        rounds=2,
        eval_every=1,
        patience=0,
        seed=5,
        device="cpu",
        protocol_seed=0,
    )


@pytest.fixture(scope="session")
def graph() -> Callable[[int], FederatedGraph]:
    """A federation of so many clients."""
    return cache(lambda clients: generate_consortium(clients=clients, size=300 * clients, seed=1))


@pytest.fixture(scope="session")
def remembered() -> Callable[..., Run]:
    """Run a federation; returns its result, and its exchange with all uploads."""

    def run(graph: FederatedGraph, options: KgeOptions, **arguments: object) -> Run:
        made: list[RememberingTransport] = []

        def make(*parts: Any) -> RememberingTransport:
            made.append(RememberingTransport(*parts))
            return made[-1]

        return Run(run_federation(graph, options, make_transport=make, **arguments), made[0])

    return run


@pytest.fixture
def by_hand(options: KgeOptions) -> Callable[..., RememberingTransport]:
    """An aligned exchange of entities between parties that hold given names, after the first broadcast."""

    def build(
        defense: str, held: Mapping[str, Sequence[str]], *, width: int = 3, **changes: object
    ) -> RememberingTransport:
        changed = msgspec.structs.replace(options, defense=defense, **changes)
        exchange = RememberingTransport(Channel(), changed, list(held), ["entities"], "by hand")
        exchange.align("entities", {party: Holding(list(names), len(names)) for party, names in held.items()})
        names = exchange.server["entities"].names
        rows = np.random.default_rng(7).normal(size=(len(names), width)).astype(np.float32)
        # A name's first row does not depend on the order of the names.
        exchange.initialise("entities", torch.from_numpy(rows[np.argsort(np.argsort(names))]))
        exchange.broadcast(0, "entities", exchange.parties)
        return exchange

    return build
