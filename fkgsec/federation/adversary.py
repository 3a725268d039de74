"""A party that misbehaves: hooks into a run, all honest by default.

    class Flipper(Adversary):
        def upload(self, round, table, received, trained):
            return 2 * received - trained            # the opposite of its update

    run_federation(graph, options, adversary=Flipper("hospital-2"))

An adversary has the knowledge of its own party and nothing else: a client its data and rows, the server the rows that it sends.
It is part of the run's identity and of its checkpoint. It names the rounds whose messages attacks will need.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from torch import Tensor

from fkgsec.federation.messages import SERVER
from fkgsec.federation.recipes import Table

__all__ = ["SERVER", "Adversary"]


class Adversary:
    """Malicious party, defined by its hooks.

    Args:
        party: the name of a client, or `SERVER`. A client's hooks are `training_subset` and `upload`, the server's all others.

    Attributes:
        guarded: whether the client applies its defenses (clipping, noise) to the rows that `upload` returns. Nobody can force a
            malicious client to do so.
        checks_order: whether the run's clients check the order of requests (`fkgsec.federation.order`). False measures a design
            without that check.
        begins: first round in which its hooks are called; earlier rounds equal those of the run without it. 0: from alignment.
        watches: number of rounds from `begins` in which it acts honestly. The best round is chosen among the rounds after
            them, even if validation preferred an earlier one: attacks evaluate the model after the adversary acted.
    """

    guarded: bool = True
    checks_order: bool = True
    begins: int = 0
    watches: int = 0

    @property
    def acts(self) -> int:
        """First round in which it may deviate from an honest party."""
        return self.begins + self.watches

    def __init__(self, party: str) -> None:
        self.party = party

    def identity(self) -> str:
        """Name the behavior. Adversaries with the same identity act the same; a subclass with settings adds them."""
        # Two adversaries that begin in different rounds give different runs.
        since = f" from round {self.begins} on" if self.begins else ""
        return f"{type(self).__module__}.{type(self).__qualname__}({self.party}){since}"

    def training_subset(self, triples: Any) -> Any | None:
        """Return the client's training items to use instead of its own, or None to keep them.

        Args:
            triples: the client's data, for knowledge graphs its `ClientGraph`; return a `TrainingSubset` with its local
                IDs.
        """
        return None

    def upload(self, round: int, table: Table, received: Tensor, trained: Tensor) -> Tensor:
        """Return the rows that the client passes to the exchange, `[n, width]`.

        Args:
            table: name of the shared table.
            received: the client's rows before the round's training.
            trained: the client's rows after it.
        """
        return trained

    def broadcast(self, round: int, table: Table, receiver: str, rows: Tensor) -> Tensor:
        """Return the rows that the server sends to a client, `[n, width]`.

        In secure sums `rows` is the whole table, `[N, width]`, and clients check that all of them received the same table.
        Different rows for each client open no sum; the same rows for all are accepted within the clip.

        Args:
            table: name of the shared table.
            receiver: party name of the client.
            rows: the rows that an honest server sends.
        """
        return rows

    def asks_to_train(self, round: int, party: str) -> bool:
        """Return whether the server asks a participant to train, before it asks all participants to upload.

        Args:
            party: party name of the client.
        """
        return True

    def drops(self, round: int, party: str) -> bool:
        """Return whether the server excludes a participant from a secure sum, as if it had dropped out before its
        upload.

        Args:
            party: party name of the client.
        """
        return False

    def rows_to_send(self, round: int, table: Table, enough: np.ndarray) -> np.ndarray:
        """Return the rows that the server asks clients to send under suppression, bool `[N]`.

        Args:
            table: name of the shared table.
            enough: bool `[N]`, rows with enough holders.
        """
        return enough

    def rounds_needed(self) -> Collection[int]:
        """Return the rounds whose messages the transcript must retain, besides those it retains anyway."""
        return ()

    def tensors(self) -> dict[str, Tensor]:
        """Return the adversary's state for a checkpoint, by name."""
        return {}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Load the state that `tensors` returned."""
