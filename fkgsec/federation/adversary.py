"""A party that misbehaves: hooks into a run, all honest by default.

    class Flipper(Adversary):
        def upload(self, round, table, received, trained):
            return 2 * received - trained            # the opposite of what it learnt

    run_federation(graph, options, adversary=Flipper("hospital-2"))

An adversary is given its own party's knowledge and nothing else: a client its own data and rows, the server the rows that it
sends. It is part of the run's identity and of its checkpoint, and names the rounds whose messages attacks will need.
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
        guarded: whether the client then does to what `upload` returns what its defenses ask of it (clipping its changes, adding
            its noise). Nobody can make a malicious client do so.
        checks_order: whether the run's clients check the order of requests (`fkgsec.federation.order`). False shows what a design
            without that check costs.
        begins: the first round in which its hooks are called; the rounds before are those of the run without it. 0: from
            alignment on.
        watches: for so many rounds from there on it does what an honest party does. The run keeps the best round of those after
            them, though validation may have found an earlier one better: what the adversary left is what is asked.
    """

    guarded: bool = True
    checks_order: bool = True
    begins: int = 0
    watches: int = 0

    @property
    def acts(self) -> int:
        """The first round in which it may do anything that an honest party does not."""
        return self.begins + self.watches

    def __init__(self, party: str) -> None:
        self.party = party

    def identity(self) -> str:
        """Names the behaviour: two adversaries of one identity do the same. With settings of one's own, add these."""
        since = f" from round {self.begins} on" if self.begins else ""
        return f"{type(self).__module__}.{type(self).__qualname__}({self.party}){since}"

    def training_subset(self, triples: Any) -> Any | None:
        """Return what the client trains on instead of its training items; None: these.

        Args:
            own: its data, for knowledge graphs its `ClientGraph`; then a `TrainingSubset` of its local ids is returned.
        """
        return None

    def upload(self, round: int, table: Table, received: Tensor, trained: Tensor) -> Tensor:
        """The rows that the client hands to the exchange, `[n, width]`.

        Args:
            received: its rows as the round's training began. trained: as training left them.
        """
        return trained

    def broadcast(self, round: int, table: Table, receiver: str, rows: Tensor) -> Tensor:
        """The rows that the server sends a client (a party's name), `[n, width]`, where an honest one sends `rows`.

        Under secure sums `rows` are those of the whole table, `[N, width]`, which clients check to be one table for all of them:
        other rows for each client open no sum, the same for all are accepted within the clip.
        """
        return rows

    def asks_to_train(self, round: int, party: str) -> bool:
        """Return whether the server asks a participant to train in a round, before it asks all participants to upload."""
        return True

    def drops(self, round: int, party: str) -> bool:
        """Return whether the server leaves a participant out of a secure sum, as if it had dropped out before its upload."""
        return False

    def rows_to_send(self, round: int, table: Table, enough: np.ndarray) -> np.ndarray:
        """The rows that the server tells clients to send under suppression, bool `[N]`. `enough`: rows with enough holders."""
        return enough

    def rounds_needed(self) -> Collection[int]:
        """Rounds whose messages the transcript is to keep, beside those that it keeps anyway."""
        return ()

    def tensors(self) -> dict[str, Tensor]:
        """State that a checkpoint must hold, by name."""
        return {}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Put back what `tensors` gave."""
