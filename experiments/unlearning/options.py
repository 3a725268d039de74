"""Options of an audit of unlearning, and what its verdict tolerates. Nothing here loads torch."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from fkgsec.errors import SpecError

AUDIT_FILE = "verification.json"  # the record, in the folder of an audit
DOUBTFUL = 0.1  # of the tolerated error: a single test below it certifies nothing
MIN_SHADOWS = 4  # each triple twice in, twice out: with fewer there is no spread to take a likelihood from
MIN_REFERENCES = 3  # two to hold the third against
DEFAULT_REFERENCES = 4
DEFAULT_BUDGET = 16
DEFAULT_REQUEST = 200  # triples


class Look(NamedTuple):
    """A point at which an audit may decide: its re-trainings so far, and the part of the error that it spends."""

    references: int
    spending: float


def looks(references: int, budget: int) -> list[Look]:
    """Return the looks of a sequential audit.

    The number of re-trainings doubles from look to look and ends at `budget`. After a look the square of its part of the budget
    is spent of the error, so that most is left for the last look. By the union bound the error over all looks is at most the
    stated one, whatever the dependence between looks.

    Args:
        references: re-trainings at the first look; 0: one look without any. budget: most re-trainings, at least `references`.

    Source: the power family of spending functions (Kim and DeMets 1987, exponent 2). Differs: tests by the union bound, which
    needs no joint distribution.

    >>> [(look.references, look.spending) for look in looks(4, 16)]
    [(4, 0.0625), (8, 0.1875), (16, 0.75)]
    """
    if not references:
        return [Look(0, 1.0)]
    counts = [references]
    while counts[-1] < budget:
        counts.append(min(2 * counts[-1], budget))
    spent = [(count / counts[-1]) ** 2 for count in counts]
    return [Look(count, now - before) for count, now, before in zip(counts, spent, [0.0, *spent], strict=False)]


class Thresholds(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Tolerances of a verdict.

    Attributes:
        distinguishability: the largest max(AUC, 1 - AUC) that still passes, in (0.5, 1]. At the default an attacker who is
            shown a forgotten triple and one that was never seen may pick the right one in two cases of three.
        share: the largest share of the forget set, in (0, 1), that a client that asked may still remember, with 95 % confidence.
        others_share: the same for the models of all other clients together.
        error: chance in (0, 0.5) of calling "not forgotten" what re-training would not be told from, over all measures, tests and
            looks. The chance of calling "forgotten" a run that remembers the tolerated share is at most half of it.
    """

    distinguishability: Annotated[float, Meta(description="largest max(AUC, 1 - AUC) that passes")] = 2 / 3
    error: Annotated[
        float, Meta(description="largest chance of a wrong 'not forgotten', over all tests of the audit")
    ] = 0.05
    share: Annotated[float, Meta(description="largest share of the forget set that may still be remembered")] = 0.1
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
    """Settings of an audit.

    Attributes:
        references: re-trainings of the audit's own at its first look; 0: none (the verdict is never "forgotten"), else at least
            `MIN_REFERENCES`.
        budget: most re-trainings. While the verdict is inconclusive their number doubles up to it, see `looks`.
        shadows: federations trained with half of the forget set; 0, else even and at least `MIN_SHADOWS`.
        plants: trainings with a share of the forget set left in: twice the tolerated share, then that itself, and so on by turns.
        relearn_steps: of training on the forget set; 0: none.
        audit_seed: of controls and of all trainings; None: follows from the escrow and from what is audited, or without an escrow
            is drawn from the operating system.
        replay: whether a run of the method retrain is first repeated with its own seed; needs references.
        auditor: name for the certificate; None: not named.
    """

    references: Annotated[
        int, Meta(description=f"number of reference re-trainings to start with: 0, or at least {MIN_REFERENCES}")
    ] = DEFAULT_REFERENCES
    budget: Annotated[
        int,
        Meta(description="most references that the audit may add to decide the verdict"),
    ] = DEFAULT_BUDGET
    shadows: Annotated[
        int,
        Meta(description=f"federations trained with half of the forget set: 0, or even from {MIN_SHADOWS}"),
    ] = MIN_SHADOWS
    plants: Annotated[int, Meta(description="trainings that keep a part of the forget set, to test the audit")] = 1
    relearn_steps: Annotated[
        int, Meta(description="training steps on the forget set in the relearning test; 0: skip it")
    ] = 20
    audit_seed: Annotated[
        int | None,
        Meta(description="seed of an earlier audit, to repeat it in --out (default: a new one, which is printed)"),
    ] = None
    replay: Annotated[
        bool, Meta(description="first repeat a re-training; if it is identical bit by bit, no statistics are needed")
    ] = True
    auditor: Annotated[str | None, Meta(description="name of the auditor, for the certificate")] = None

    def __post_init__(self) -> None:
        if self.shadows and (self.shadows < MIN_SHADOWS or self.shadows % 2):
            raise SpecError(f"shadows must be 0 or an even number of at least {MIN_SHADOWS}; got {self.shadows}")
        if self.references and self.references < MIN_REFERENCES:
            raise SpecError(f"references must be 0 or at least {MIN_REFERENCES}; got {self.references}")
        if self.budget < self.references:
            raise SpecError(f"budget must be at least references, {self.references}; got {self.budget}")
        for name in ("plants", "relearn_steps", "audit_seed"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise SpecError(f"{name} must be at least 0; got {value}")
