"""Private set union, the server: the announcement of an attempt, and the union in the opened sum.

    announcement = announce(plan, 0, randomness)
    union = open_union(plan, announcement, total)

Between the two, secure aggregation opens the sum of the clients' tables, `total`.
"""

from __future__ import annotations

from fkgsec.protocols.core.errors import ProtocolError
from fkgsec.protocols.core.prg import Randomness, draw
from fkgsec.protocols.core.rounds import SERVER
from fkgsec.protocols.psu.messages import Announcement, UnionList
from fkgsec.protocols.psu.plan import TABLE, Plan
from fkgsec.protocols.psu.table import SALT_BYTES, Parameters, peel
from fkgsec.protocols.secagg.server import Sum

RETRY = "Start another union without some of the clients, at least two at a time: a difference could show what one alone holds"


class CohortChanged(ProtocolError):
    """A client left in the middle. `opened` says whether a table of the whole cohort may have been opened before.

    It may have been once shares were asked for: the server then holds every upload, and a share that it did not get from
    its sender it may get from a colluder, or later. `excluded` names those whose messages were at fault, with the reason; clients
    that fell silent are not in it.
    """

    def __init__(self, attempt: int, opened: bool, cause: ProtocolError) -> None:
        advice = (
            "a table of the whole cohort may have been opened, and a union of fewer clients could be differenced with it "
            "to learn what only the missing ones hold: wait for them"
            if opened
            else "no share was requested, so no table was opened: a new session without the missing ones reveals nothing of them"
        )
        super().__init__(f"attempt {attempt} of the union lost a client ({cause}); {advice}")
        self.opened = opened
        self.excluded = cause.excluded


class DamagedTable(ProtocolError):
    """Tables of a whole cohort that hold something else than items. Sums do not tell which client put it there."""

    def __init__(self, attempts: int, cause: Exception) -> None:
        super().__init__(
            f"damaged tables of the union: {attempts} (the last: {cause}). A client added something else than items. {RETRY}"
        )


class UnionTooLarge(ProtocolError):
    """A union that did not fit the largest table of its plan: it has too many items, or a client made it overflow."""

    def __init__(self, num_cells: int, cap: int | None, cause: Exception) -> None:
        largest = f"{num_cells // 1.4:,.0f} items at the most"
        limit = f"the cap is {cap:,}" if cap is not None else "no cap is set"
        super().__init__(
            f"the union does not fit the largest table of its plan ({cause}), which holds {largest}; {limit}. Raise the cap if "
            f"the union is larger. Otherwise a client made the table overflow. {RETRY}"
        )


def announce(plan: Plan, attempt: int, randomness: Randomness, growths: int | None = None) -> Announcement:
    """Announce an attempt, with a fresh salt.

    Args:
        attempt: from 0.
        randomness: source of the salt.
        growths: how often the table grew; None: once per attempt.
    """
    num_cells = plan.num_cells(attempt if growths is None else growths)
    return Announcement(plan.session, attempt, SERVER, draw(randomness, SALT_BYTES), num_cells)


def open_union(plan: Plan, announcement: Announcement, total: Sum) -> UnionList:
    """Read the union out of the opened sum of an attempt.

    Args:
        announcement: the one that the tables were made for.
        total: the sum that secure aggregation opened.

    Raises the errors of `table.peel`.
    """
    parameters = Parameters(plan.session, announcement.salt, announcement.num_cells)
    identifiers = peel(parameters, total.vectors[TABLE])
    return UnionList(plan.session, announcement.round, SERVER, tuple(identifiers))
