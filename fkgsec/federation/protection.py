"""What an exchange protects, as typed values for records and policies and as lines for people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol


class PrivacyGuarantee(Protocol):
    """An (epsilon, delta) guarantee as a defense states it; `protocols.guarantee.Guarantee` is one."""

    @property
    def epsilon(self) -> float:
        """Of all releases together."""
        ...

    @property
    def delta(self) -> float:
        """Of all releases together."""
        ...

    @property
    def unit(self) -> str:
        """Whose data it protects."""
        ...

    def describe(self) -> str:
        """One line for a report."""
        ...


@dataclass(frozen=True)
class Protection:
    """What the messages of a run, and of the runs before it that it goes on from, give away at most.

    Attributes:
        remarks: a line for each protection and what it assumes; empty in clear.
        guarantees: of differential privacy, by the table that each covers (or by the tables, where one covers several).
    """

    remarks: tuple[str, ...] = ()
    guarantees: Mapping[str, PrivacyGuarantee] = field(default_factory=dict)

    def lines(self) -> list[str]:
        """The remarks, then a line for each guarantee."""
        return [*self.remarks, *(f"dp, {tables}: {one.describe()}" for tables, one in self.guarantees.items())]


NOTHING = Protection()
