"""A shared table at the server: its rows, and which client holds which."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fkgsec.errors import RunError
from fkgsec.federation.messages import Alignment
from fkgsec.federation.recipes import Table


@dataclass
class SharedTable:
    """Shared table on the server, which knows rows by the names that clients sent.

    Attributes:
        parties: the clients, in their order.
        names: the union of names in order of first arrival.
        rows: float32 `[len(names), width]`.
        holdings: for each client that was aligned in plaintext, the rows it receives, int64; the first `num_uploaded[party]` of
            these it also uploads. Empty after private alignment.
        weights: by such a client, what it counts for in a mean. num_upwards: of its last rows, which it is not sent.
    """

    table: Table
    parties: Sequence[str] = ()
    names: list[str] = field(default_factory=list)
    rows: Tensor = field(default_factory=lambda: torch.empty(0, 0))
    holdings: dict[str, Tensor] = field(default_factory=dict)
    num_uploaded: dict[str, int] = field(default_factory=dict)
    weights: dict[str, int] = field(default_factory=dict)
    num_upwards: dict[str, int] = field(default_factory=dict)
    _place: dict[str, int] = field(default_factory=dict, init=False, repr=False, compare=False)

    def align(self, message: Alignment) -> None:
        """Enter a client's names.

        Args:
            message: its alignment.

        Raises:
            RunError: a second alignment of a client, a repeated name, a weight below 1, or too many rows that are not sent back.
        """
        if message.sender in self.holdings:
            raise RunError(f"{message.sender} sent a second alignment of {self.table}")
        if len(set(message.names)) != len(message.names):
            raise RunError(f"{message.sender} named a row of {self.table} twice")
        if message.weight < 1:
            raise RunError(
                f"{message.sender} gave {message.weight} as its weight in {self.table}; at least 1 is needed"
            )
        if not 0 <= message.num_upwards <= len(message.names):
            raise RunError(
                f"{message.sender} wants {message.num_upwards} of its {len(message.names)} rows of {self.table} not sent back"
            )
        place = self._place
        # The names were set from outside, such as from a checkpoint.
        if len(place) != len(self.names):
            place.update({name: number for number, name in enumerate(self.names)})
        # New names get the next index, in the order of arrival.
        for name in message.names:
            if name not in place:
                place[name] = len(self.names)
                self.names.append(name)
        self.holdings[message.sender] = torch.tensor([place[name] for name in message.names], dtype=torch.int64)
        self.num_uploaded[message.sender] = message.num_uploaded
        self.weights[message.sender] = message.weight
        self.num_upwards[message.sender] = message.num_upwards

    def sent(self, party: str) -> Tensor:
        """Return the rows that a client receives in plaintext, int64."""
        return self.holdings[party][: len(self.holdings[party]) - self.num_upwards.get(party, 0)]

    def uploaded(self, sender: str) -> Tensor:
        """Return the rows that a client uploads, int64. Raises `RunError` for an unknown sender."""
        if sender not in self.holdings:
            raise RunError(f"an upload of {self.table} by {sender}, who is unknown")
        return self.holdings[sender][: self.num_uploaded[sender]]

    def places(self, sender: str, num_rows: int) -> Tensor:
        """Return the rows of a client's upload.

        Args:
            num_rows: rows that the upload states.

        Raises:
            RunError: an unknown sender, or another number of rows.
        """
        ids = self.uploaded(sender)
        if num_rows != len(ids):
            raise RunError(f"{sender} uploaded {num_rows} rows of {self.table}; {len(ids)} expected")
        return ids

    def initialise(self, rows: Tensor) -> None:
        """Set the first rows, one per name."""
        self.rows = torch.as_tensor(rows)
