"""What attacks on secure sums have in common: why there may be no sum to take apart, and what a server has of one.

if reason := obstacle(view, laboratory):
    return {victim.name: reason for victim in view.victims}
"""

from __future__ import annotations

import numpy as np

from fkgsec.attacks.kge.view import KgeView
from fkgsec.attacks.laboratory import Laboratory
from fkgsec.federation.messages import Opened
from fkgsec.federation.recipes import Table


def obstacle(view: KgeView, laboratory: Laboratory) -> str | None:
    """Why a run cannot be trained once more for its sums; None where it can."""
    if not view.secure:
        return "uploads cross one by one, or none does: there is no sum to take apart"
    return laboratory.defended


def sums_of(view: KgeView, table: Table) -> list[Opened]:
    """The sums of a table that the server opened, in the order of the rounds."""
    known = view.secure.get(table)
    return sorted((one for one in known.opened if one.total), key=lambda one: one.round) if known else []


def sum_of(view: KgeView, table: Table, round: int) -> tuple[np.ndarray, np.ndarray] | None:
    """The opened sum of a round, float64 `[N, W]`, and how many clients hold each row, `[N]`; None if none was opened."""
    return next((one.sums() for one in sums_of(view, table) if one.round == round), None)
