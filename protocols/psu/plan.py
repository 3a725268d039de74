"""What all parties of a private set union agree on before it starts, checked once.

plan = Plan(b"session", ("a", "b", "c"), safe_threshold(3), public_keys, cap=5000)
plan.num_cells(0)                                                   # of the first table; four times as many each time it grows
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from protocols.core.errors import ProtocolError, SettingError
from protocols.core.prg import Ring, digest
from protocols.psu.table import MAX_CELLS, SALT_BYTES, Parameters, cells_for
from protocols.secagg.setting import Setting, Vector

START_CAP = 1024
GROWTH = 4
MAX_ATTEMPTS = 6  # up to a million items from `START_CAP`
MAX_REPEATS = 1  # attempts at a size that was tried before; by chance one or two tables in a hundred fail
TABLE = "table"  # the name of the one vector that is summed


class NothingToHideBehind(ProtocolError):
    """A union of fewer than two clients: the server would learn its set."""


@dataclass(frozen=True)
class Plan:
    """What all parties of a union agree on before it starts.

    Attributes:
        session: names this union; public, never used twice.
        parties, threshold, identities: as in `secagg.Setting`, over the complete graph: the order of a regular one follows
            from the session, and with it from a salt that the server chooses.
        cap: public bound on the union's items: one for up to 36 bytes of UTF-8, else one for each 16 bytes. A union beyond it
            takes more attempts. None: starts at 1,024. The tables before the last add a third to it, and it may be four
            times larger than one for the right cap.
        max_attempts: tables to try, each four times the one before, or of its size where that was damaged (`MAX_REPEATS`).

    Raises `NothingToHideBehind` for fewer than two parties, `SettingError` for other values that are not allowed.
    """

    session: bytes
    parties: tuple[str, ...]
    threshold: int
    identities: Mapping[str, bytes]
    cap: int | None = None
    max_attempts: int = MAX_ATTEMPTS

    def __post_init__(self) -> None:
        if len(self.parties) < 2:
            raise NothingToHideBehind(f"a union of {len(self.parties)} clients would show the server who holds it all")
        if self.max_attempts < 1:
            raise SettingError(f"max_attempts {self.max_attempts}: at least one is needed")
        self.num_cells(self.max_attempts - 1)
        self.setting(Parameters(self.session, bytes(SALT_BYTES), self.num_cells(0)), 0)

    def num_cells(self, growths: int) -> int:
        """Cells of a table after it grew so many times. Raises `SettingError` past what a table can have."""
        num_cells = cells_for(START_CAP if self.cap is None else self.cap) * GROWTH**growths
        if num_cells > MAX_CELLS:
            raise SettingError(f"attempt {growths} would take {num_cells} cells; at most {MAX_CELLS} are possible")
        return num_cells

    def setting(self, parameters: Parameters, attempt: int) -> Setting:
        """The secure aggregation of one attempt's tables: bound to the salt, and opened for the whole cohort or not."""
        return Setting(
            session=digest("private set union", parameters.session, parameters.salt, parameters.num_cells),
            round=attempt,
            parties=self.parties,
            threshold=self.threshold,
            vectors=(Vector(TABLE, parameters.length, Ring.MERSENNE61),),
            identities=self.identities,
            min_survivors=len(self.parties),
        )

    def without(self, excluded: Collection[str]) -> Plan:
        """The plan of a new session of the others, who take the same one up by themselves once they know whom it leaves out."""
        return replace(
            self,
            session=digest("private set union without", self.session, *sorted(excluded)),
            parties=tuple(party for party in self.parties if party not in excluded),
            identities={party: key for party, key in self.identities.items() if party not in excluded},
        )
