"""Plan that all parties of a private set union agree on before it starts, checked once.

plan = Plan(b"session", ("a", "b", "c"), safe_threshold(3), public_keys, cap=5000)
plan.num_cells(0)                                                   # of the first table; four times as many each time it grows
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fkgsec.protocols import MAX_ATTEMPTS
from fkgsec.protocols.core.errors import ProtocolError, SettingError
from fkgsec.protocols.core.prg import Ring, digest
from fkgsec.protocols.psu.table import MAX_CELLS, SALT_BYTES, Parameters, cells_for
from fkgsec.protocols.secagg.setting import Setting, Vector

START_CAP = 1024
GROWTH = 4
# Beyond a stated cap: up to about four times as many items.
MAX_CAP_GROWTHS = 1
# Attempts at a size that was tried before. By chance, one or two tables in a hundred fail.
MAX_REPEATS = 1
TABLE = "table"  # the name of the one vector that is summed


class NothingToHideBehind(ProtocolError):
    """A union of fewer than two clients: the server would learn its set."""


@dataclass(frozen=True)
class Plan:
    """Plan that all parties of a union agree on before it starts.

    Attributes:
        session: names this union; public, never used twice.
        parties, threshold, identities: as in `secagg.Setting`, over the complete graph. (The order of a regular graph follows
            from the session, and so from a salt that the server chooses.)
        cap: public bound on the union's items: one for up to 36 bytes of UTF-8, else one for each 16 bytes. A larger union takes
            a second table, four times as large, and no third, so a client that makes tables overflow costs the others no more.
            None: start at 1,024 and grow up to `max_attempts`. The earlier tables add a third to the last, which may be
            four times larger than one for the right cap.
        max_attempts: largest number of tables, each four times the one before, or of its size if that was damaged
            (`MAX_REPEATS`).

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
        # Fail before the first message: the largest table must be possible, and the parties must make a valid setting.
        self.num_cells(self.max_growths)
        self.setting(Parameters(self.session, bytes(SALT_BYTES), self.num_cells(0)), 0)

    @property
    def max_growths(self) -> int:
        """How often the table may grow. Clients refuse a larger one."""
        return self.max_attempts - 1 if self.cap is None else min(self.max_attempts - 1, MAX_CAP_GROWTHS)

    def num_cells(self, growths: int) -> int:
        """Compute the number of cells of a table that grew `growths` times.

        Args:
            growths: 0 for the first size; each growth multiplies it by `GROWTH`.

        Raises:
            SettingError: more cells than a table can have.
        """
        num_cells = cells_for(START_CAP if self.cap is None else self.cap) * GROWTH**growths
        if num_cells > MAX_CELLS:
            raise SettingError(f"attempt {growths} would take {num_cells} cells; at most {MAX_CELLS} are possible")
        return num_cells

    def setting(self, parameters: Parameters, attempt: int) -> Setting:
        """Return the setting of secure aggregation for one attempt's tables. It needs the whole cohort to survive.

        Args:
            parameters: salt and size of the table, which the session is bound to.
            attempt: from 0; the round of the session.
        """
        # Clients that received different salts or sizes get different sessions, and so open nothing together. All parties must
        # survive: the difference of two sums over different cohorts would show what the missing clients alone hold.
        return Setting(
            session=digest("private set union", parameters.session, parameters.salt, parameters.num_cells),
            round=attempt,
            parties=self.parties,
            threshold=self.threshold,
            vectors=(Vector(TABLE, parameters.length, Ring.MERSENNE61),),
            identities=self.identities,
            min_survivors=len(self.parties),
        )
