"""Options of an audit of unlearning, and what its verdict tolerates. Nothing here loads torch."""

from __future__ import annotations

import msgspec

from fkgsec.errors import SpecError

DOUBTFUL = 0.1
MIN_SHADOWS = 4  # each triple twice in, twice out: with fewer there is no spread to take a likelihood from
MIN_REFERENCES = 3  # two to hold the third against
DEFAULT_REFERENCES = 4


class Thresholds(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a user tolerates.

    Attributes:
        distinguishability: the largest max(AUC, 1 - AUC) that still passes, in (0.5, 1]. At the default an attacker who is
            shown a forgotten triple and one that was never seen may pick the right one in two cases of three.
        share: the largest share of the forget set, in (0, 1), that a client that asked may still remember, with 95 % confidence.
        others_share: the same for the models of all other clients together.
        error: chance in (0, 0.5) of calling "not forgotten" what re-training would not be told from, over all measures and tests.
    """

    distinguishability: float = 2 / 3
    error: float = 0.05
    share: float = 0.1
    others_share: float = 0.25

    @property
    def alarm(self) -> float:
        """p-value of a single test below which nothing is certified."""
        return DOUBTFUL * self.error

    def __post_init__(self) -> None:
        if not 0.5 < self.distinguishability <= 1:
            raise SpecError(f"distinguishability must lie in (0.5, 1]; got {self.distinguishability}")
        if not 0 < self.error < 0.5:
            raise SpecError(f"error must lie in (0, 0.5); got {self.error}")
        for name in ("share", "others_share"):
            if not 0 < getattr(self, name) < 1:
                raise SpecError(f"{name} must lie in (0, 1); got {getattr(self, name)}")


class AuditOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How an audit is made.

    Attributes:
        references: re-trainings of the audit's own; 0: none (the verdict is never "forgotten"), else at least `MIN_REFERENCES`.
        shadows: federations trained with half of the forget set; 0, else even and at least `MIN_SHADOWS`.
        plants: trainings with a share of the forget set left in: twice the tolerated share, then that itself, and so on by turns.
        relearn_steps: of training on the forget set; 0: none.
        audit_seed: of controls and of all trainings; None: drawn from the operating system.
    """

    references: int = DEFAULT_REFERENCES
    shadows: int = MIN_SHADOWS
    plants: int = 1
    relearn_steps: int = 20
    audit_seed: int | None = None

    def __post_init__(self) -> None:
        if self.shadows and (self.shadows < MIN_SHADOWS or self.shadows % 2):
            raise SpecError(f"shadows must be 0 or an even number of at least {MIN_SHADOWS}; got {self.shadows}")
        if self.references and self.references < MIN_REFERENCES:
            raise SpecError(f"references must be 0 or at least {MIN_REFERENCES}; got {self.references}")
        for name in ("plants", "relearn_steps", "audit_seed"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise SpecError(f"{name} must be at least 0; got {value}")
