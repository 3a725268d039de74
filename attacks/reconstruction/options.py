"""Settings of attacks on knowledge-graph embedding: which, under what, and how reconstruction infers.

options = AttackOptions(threat=("collusion",), leak=(0.3, 1.0), unlinked_heads=0)
"""

from __future__ import annotations

from typing import ClassVar, Literal

import msgspec

from attacks.membership.shadows import MIN_SHADOWS, ShadowKnowledge
from attacks.options import BaseAttackOptions
from attacks.reconstruction.inference import Inference
from attacks.reconstruction.leakage import PAPER
from attacks.view import KGE
from fkgsec.errors import SpecError
from fkgsec.kge.models import MOST

Metric = Literal["paper", "published"]


class KgeAttackOptions(BaseAttackOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of attacks; `inference`, `metric` and `unlinked_heads` are of reconstruction alone.

    Attributes (beside those of `BaseAttackOptions`):
        leak: leak ratios in (0, 1]; which share leaks follows from `seed`, as the sampled heads do.
        inference: how relations are inferred, several of `INFERENCES`, see `attacks.reconstruction.inference`; empty takes all
            that fit. One name may stand for a list of one.
        metric: "paper" (the definitions above), "published" (the notebooks' counts).
        unlinked_heads: heads sampled for the attack without linked pairs; 0 leaves it out.
        auxiliary: share of each victim's training triples, in (0, 1), that the server has where the threat model gives it some.
        probes: entities that an active client moves at once; where these are most of its entities, nobody follows any one.
        probe_size: how far, in each number of their rows.
        probe_round: when it begins; None: so late that the answer crosses in the last of its rounds.
        probe_rounds: in how many of its rounds it makes the same moves; several say more where changes are clipped.
        guesses: names of each victim that a client guesses, beside as many that nobody holds.
        poison_triples: false triples that an active adversary plants. poison_copies: how often each stands in its training.
        attack_rounds: in how many of the last rounds an adversary that poisons acts, and one that watches many rounds looks;
            None: in all. Few are replayed in seconds, and say less (docs/poisoning.md).
        boost: what a malicious client multiplies the change of their rows by.
        shadows: federations that the adversary of membership trains, each as long as the attacked one: 0, or an even number from
            4 on. shadow_knowledge: what it trains them on, see `attacks.membership.shadows`.
    """

    task: ClassVar[str] = KGE

    leak: tuple[float, ...] = (0.5,)
    inference: tuple[Inference, ...] | Inference = ()
    metric: Metric = "paper"
    unlinked_heads: int = 200
    auxiliary: float = 0.1
    probes: int = 300
    probe_size: float = 3.0
    probe_round: int | None = None
    probe_rounds: int = 1
    guesses: int = 100
    poison_triples: int = 40
    poison_copies: int = 25
    boost: float = 5.0
    attack_rounds: int | None = None
    shadows: int = 0
    shadow_knowledge: ShadowKnowledge = "same-graph"

    def __post_init__(self) -> None:
        if isinstance(self.inference, str):
            msgspec.structs.force_setattr(self, "inference", (self.inference,))
        super().__post_init__()
        if self.metric == "published" and set(self.inference) - {PAPER}:
            raise SpecError("inference must be cosine with metric published: the notebooks know no other")
        for leak in self.leak:
            if not 0 < leak <= 1:
                raise SpecError(f"leak must lie in (0, 1]; got {leak}")
        if not self.leak:
            raise SpecError("leak needs at least one ratio")
        if not 0 < self.auxiliary < 1:
            raise SpecError(f"auxiliary must lie between 0 and 1, both excluded; got {self.auxiliary}")
        for name, value in (
            ("probes", self.probes),
            ("probe_round", self.probe_round),
            ("probe_rounds", self.probe_rounds),
            ("attack_rounds", self.attack_rounds),
        ):
            if value is not None and value < 1:
                raise SpecError(f"{name} must be at least 1; got {value}")
        if self.guesses < 2:
            raise SpecError(f"guesses must be at least 2; got {self.guesses}")
        if not 0 < self.probe_size <= MOST:
            raise SpecError(f"probe_size must be above 0 and at most {MOST:,.0f}; got {self.probe_size}")
        for name in ("poison_triples", "poison_copies"):
            if not 1 <= getattr(self, name) <= 10_000:
                raise SpecError(f"{name} must lie in 1..10,000; got {getattr(self, name)}")
        if not 1 <= self.boost <= MOST:
            raise SpecError(f"boost must lie in 1..{MOST:,.0f}; got {self.boost:g}")
        if self.shadows and (self.shadows < MIN_SHADOWS or self.shadows % 2):
            raise SpecError(f"shadows must be 0 or an even number from {MIN_SHADOWS} on; got {self.shadows}")
        if not self.shadows and self.shadow_knowledge != "same-graph":
            raise SpecError(
                "shadow_knowledge applies to shadow federations, of which there are none; give shadows, too"
            )
        if self.unlinked_heads < 0:
            raise SpecError(f"unlinked_heads must be at least 0; got {self.unlinked_heads}")


AttackOptions = KgeAttackOptions  # as scripts call it that were written when there was one task
