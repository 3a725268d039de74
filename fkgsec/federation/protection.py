"""Protection of an exchange, as typed values for records and policies and as lines for people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from fkgsec.protocols.noise.guarantee import Guarantee

Server = Literal["none", "follows the protocol", "active"]
_SERVERS: dict[Server, str] = {
    "none": "no server",
    "follows the protocol": "a server that follows the protocol",
    "active": "an active server",
}


class Withstands(msgspec.Struct, frozen=True, kw_only=True):
    """Server model that one part of a protection withstands.

    Attributes:
        part: the information it hides from the server.
        server: "none": it hides nothing; "follows the protocol": it holds if the server follows the protocol; "active": it
            holds for any messages of the server.
        colluders: maximum number of a round's clients that may tell the server all they know. Clients that the server runs
            (Sybils) count.
        threshold, num_clients: number of shares that open a secret, and clients of a round; None without secret sharing.
        limit: exception to the claim, in words.
    """

    part: str
    server: Server
    colluders: int = 0
    threshold: int | None = None
    num_clients: int | None = None
    limit: str = ""

    def describe(self) -> str:
        """Describe it in one line for a report.

        >>> Withstands(part="uploads", server="active", colluders=2, threshold=4, num_clients=5).describe()
        'uploads: withstand an active server with up to 2 colluders, clients that it runs included (threshold 4 of 5)'
        """
        line = f"{self.part}: withstand {_SERVERS[self.server]}"
        if self.server != "none":
            line += f" with up to {self.colluders} colluders, clients that it runs included"
        if self.threshold is not None:
            line += f" (threshold {self.threshold} of {self.num_clients})"
        return f"{line}; {self.limit}" if self.limit else line


@dataclass(frozen=True)
class Protection:
    """Upper limit of the information in the messages of a run, and of the runs it continues.

    Attributes:
        remarks: one line per protection with its assumptions; empty in plaintext.
        guarantees: of differential privacy, by table (or by tables, if one covers several).
        withstands: server model of each part; empty in plaintext.
    """

    remarks: tuple[str, ...] = ()
    guarantees: Mapping[str, Guarantee] = field(default_factory=dict)
    withstands: tuple[Withstands, ...] = ()

    def lines(self) -> list[str]:
        """Return the remarks, one line per server model, and one per guarantee."""
        servers = [guarantee.describe() for guarantee in self.withstands]
        return [
            *self.remarks,
            *servers,
            *(f"dp, {tables}: {guarantee.describe()}" for tables, guarantee in self.guarantees.items()),
        ]


NOTHING = Protection()
