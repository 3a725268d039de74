"""What trials of attacks on sums share."""

import numpy as np
import pytest

from fkgsec.attacks import update_recovery
from fkgsec.kge.result import KgeResult


@pytest.fixture
def shuffled_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The truth has each client's changes at other rows than those that it made them to."""
    real = update_recovery.client_rows

    def others_changes(result: KgeResult, place: int, table: str) -> tuple:
        names, start, end = real(result, place, table)
        order = np.random.default_rng(place).permutation(len(names))
        return names, start, start + (end - start)[order]

    monkeypatch.setattr(update_recovery, "client_rows", others_changes)
