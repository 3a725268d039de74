"""Settings of unlearning: the method and its parameters.

UnlearnOptions(method="fedlu", variant="published", epochs=5)
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from fkgsec.algorithms.settings import Variant
from fkgsec.arguments import Named, check_fields
from fkgsec.errors import SpecError

Method = Literal["fedlu", "retrain", "finetune", "ascent", "relabel", "delete"]


class UnlearnOptions(msgspec.Struct, metaclass=Named, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of unlearning.

    Attributes:
        method: "fedlu": retroactive interference and passive decay (fedlu.txt 4.2). "retrain": the whole run again on the
            retained triples. "finetune": further training on them. "ascent": gradient ascent on the forget set. "relabel":
            further training on the retained triples and on the forget set with random tails. "delete": only remove the triples.
        variant: for "fedlu": "paper", or "published" as in FedLU's code.
        hard, soft: whether interference has this part (fedlu.txt Table 3).
        mu_soft: weight of soft confusion.
        epochs: over the forget set, for "fedlu" and "ascent". An epoch in variant "published" goes over it three times (global,
            local, both), so each model takes twice the steps; FedLU's code also corrupts heads and tails of each batch in turn.
        decay_epochs: over the retained triples: passive decay of "fedlu", training of "finetune" and "relabel". The paper's 10
            take the time of about four rounds of three epochs. More of them restore more of the forgotten triples.
        learning_rate, batch_size: None: the run's. A forget set that fits in one batch gives one step an epoch; FedLU's code has
            batches of 256 here.
        seed: of the order and the negatives of unlearning.
        colluders: clients in a secure sum that may share their part with the server; None: 1. The sum needs two more. Only for
            runs with a defense.
        form: the name of `variant` in files of version 0.1; read, and never written.
    """

    method: Annotated[Method, Meta(description="unlearning method")] = "fedlu"
    variant: Annotated[Variant, Meta(description="fedlu: as in the paper, or as in FedLU's code")] = "paper"
    hard: Annotated[bool, Meta(description="fedlu: hard confusion (Eq. 12)")] = True
    soft: Annotated[bool, Meta(description="fedlu: soft confusion (Eq. 13)")] = True
    mu_soft: Annotated[float, Meta(description="fedlu: weight of soft confusion")] = 0.1
    epochs: Annotated[int, Meta(description="epochs over the forget set")] = 10
    decay_epochs: Annotated[
        int, Meta(description="epochs over the retained triples (finetune, relabel, fedlu's decay)")
    ] = 10
    learning_rate: Annotated[float | None, Meta(description="learning rate of unlearning (default: the run's)")] = None
    batch_size: Annotated[int | None, Meta(description="triples per step of unlearning (default: the run's)")] = None
    seed: int = 0
    colluders: Annotated[
        int | None,
        Meta(description="secagg: number of clients that may collude with the server (default: 1)"),
    ] = None
    form: Variant | msgspec.UnsetType = msgspec.UNSET

    def __post_init__(self) -> None:
        check_fields(self)
        # Files of version 0.1 have `form`. Move its value, so that all other code sees `variant` alone.
        if self.form is not msgspec.UNSET:
            if self.variant not in ("paper", self.form):
                raise SpecError(f"form is the old name of variant; got {self.form!r} beside {self.variant!r}")
            msgspec.structs.force_setattr(self, "variant", self.form)
            msgspec.structs.force_setattr(self, "form", msgspec.UNSET)
        if not (self.hard or self.soft):
            raise SpecError("hard, soft: at least one must be true; interference without either forgets nothing")
        if not (math.isfinite(self.mu_soft) and self.mu_soft >= 0):
            raise SpecError(f"mu_soft must be at least 0; got {self.mu_soft}")
        for name, least in (("epochs", 1), ("decay_epochs", 0), ("batch_size", 1), ("seed", 0), ("colluders", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise SpecError(f"{name} must be at least {least}; got {value}")
        if self.method in ("finetune", "relabel") and self.decay_epochs < 1:
            raise SpecError(f"decay_epochs must be at least 1 for {self.method}; got {self.decay_epochs}")
        rate = self.learning_rate
        if rate is not None and not (math.isfinite(rate) and rate > 0):
            raise SpecError(f"learning_rate must be a positive number; got {rate}")
