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
        part: what it keeps from the server.
        server: "none", nothing is kept; "follows the protocol", it holds while the server sends what it should; "active", also
            where the server sends what it likes.
        colluders: how many of a round's clients may tell the server all that they know. Clients that the server runs (Sybils)
            count as such.
        threshold, num_clients: shares that open a secret, and clients of a round; None where nothing is shared.
        limit: what it holds short of, in words.
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
    """Upper limit of what the messages of a run, and of the runs it continues, give away.

    Attributes:
        remarks: a line for each protection and what it assumes; empty in clear.
        guarantees: of differential privacy, by the table that each covers (or by the tables, where one covers several).
        withstands: which server each part of it withstands; empty in clear.
    """

    remarks: tuple[str, ...] = ()
    guarantees: Mapping[str, Guarantee] = field(default_factory=dict)
    withstands: tuple[Withstands, ...] = ()

    def lines(self) -> list[str]:
        """The remarks, a line for each part with the server that it withstands, and one for each guarantee."""
        servers = [guarantee.describe() for guarantee in self.withstands]
        return [
            *self.remarks,
            *servers,
            *(f"dp, {tables}: {guarantee.describe()}" for tables, guarantee in self.guarantees.items()),
        ]


NOTHING = Protection()
