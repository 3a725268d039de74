"""Settings of attacks: which, under what, and how reconstruction infers.

options = AttackOptions(threat=("collusion",), leak=(0.3, 1.0), unlinked_heads=0)
"""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

from attacks.reconstruction.inference import Inference
from attacks.reconstruction.leakage import INFERENCES, PAPER
from attacks.view import THREAT_MODELS
from fkgsec.errors import SpecError

Metric = Literal["paper", "published"]


class AttackOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of attacks; `inference`, `metric` and `unlinked_heads` are of reconstruction alone.

    Attributes:
        threat: names of `THREAT_MODELS`; empty takes those that fit the algorithm (`attacks.registry.default_threats`).
        leak: leak ratios in (0, 1].
        colluder: name of the colluding client; None takes the first.
        inference: how relations are inferred, several of `INFERENCES`, see `attacks.reconstruction.inference`; empty takes all
            that fit. One name may stand for a list of one.
        metric: "paper" (the definitions above), "published" (the notebooks' counts).
        unlinked_heads: heads sampled for the attack without linked pairs; 0 leaves it out.
        seed: of the leaked share and the sampled heads: the attack's own, from which nothing in a run is drawn alike.
        attack: names of `attacks.registry.ATTACKS`; empty: reconstruction and update recovery. They are looked up when they are
            run, so that a record is read where one is not installed.
    """

    threat: tuple[str, ...] = ()
    leak: tuple[float, ...] = (0.5,)
    colluder: str | None = None
    inference: tuple[Inference, ...] | Inference = ()
    metric: Metric = "paper"
    unlinked_heads: int = 200
    seed: int = 0
    attack: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in self.threat:
            if name not in THREAT_MODELS:
                raise SpecError(f"threat must be one of {', '.join(THREAT_MODELS)}; got {name!r}")
        if isinstance(self.inference, str):
            msgspec.structs.force_setattr(self, "inference", (self.inference,))
        for name in self.inference:
            if name not in INFERENCES:
                raise SpecError(f"inference must be one of {', '.join(INFERENCES)}; got {name!r}")
        for field in ("threat", "leak", "inference", "attack"):
            if len(set(getattr(self, field))) < len(getattr(self, field)):
                raise SpecError(f"{field} names a value twice: {', '.join(map(str, getattr(self, field)))}")
        if self.metric == "published" and set(self.inference) - {PAPER}:
            raise SpecError("inference must be cosine with metric published: the notebooks know no other")
        for leak in self.leak:
            if not 0 < leak <= 1:
                raise SpecError(f"leak must lie in (0, 1]; got {leak}")
        if self.metric not in get_args(Metric):
            raise SpecError(f"metric must be one of {', '.join(get_args(Metric))}; got {self.metric!r}")
        if not self.leak:
            raise SpecError("leak needs at least one ratio")
        if self.unlinked_heads < 0:
            raise SpecError(f"unlinked_heads must be at least 0; got {self.unlinked_heads}")
