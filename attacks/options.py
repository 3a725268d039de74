"""What can be set of the attacks on a run of any task; a task's own options extend it.

class GraphAttackOptions(BaseAttackOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    task: ClassVar[str] = "graph"
    shadows: int = 0
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from attacks.view import threat_models
from fkgsec.errors import SpecError


class BaseAttackOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which attacks, under what.

    Attributes:
        task: whose runs a subclass is for, a name in `attacks.view.ATTACKED`; not an option itself.
        threat: names of `THREAT_MODELS` that apply to the task; empty takes each attack's own, or those that fit the algorithm
            (`attacks.view.default_threats`).
        colluder: name of the colluding client; None takes the first.
        seed: of all that attacks draw: their own, from which nothing in a run is drawn alike.
        attack: names of `attacks.registry.ATTACKS`; empty: the task's default. They are looked up when they are run, so that a
            record is read where one is not installed.
    """

    task: ClassVar[str] = ""

    threat: tuple[str, ...] = ()
    colluder: str | None = None
    seed: int = 0
    attack: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        allowed = threat_models(self.task)
        for name in self.threat:
            if name not in allowed:
                raise SpecError(f"threat must be one of {', '.join(allowed)}; got {name!r}")
        for field, value in msgspec.structs.asdict(self).items():
            if isinstance(value, tuple) and len(set(value)) < len(value):
                raise SpecError(f"{field} names a value twice: {', '.join(map(str, value))}")
