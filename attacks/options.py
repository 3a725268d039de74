"""What can be set of the attacks on a run of any task; a task's own options extend it.

class GraphAttackOptions(BaseAttackOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    task: ClassVar[str] = "graph"
    shadows: int = 0
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec

from attacks.view import threat_models
from fkgsec.arguments import Named, check_fields
from fkgsec.errors import SpecError


class BaseAttackOptions(msgspec.Struct, metaclass=Named, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which attacks, under what.

    Attributes:
        task: whose runs a subclass is for, a name in `attacks.registry.ATTACKED`; not an option itself.
        threat: names of `THREAT_MODELS` that apply to the task; empty takes each attack's own, or those that fit the algorithm
            (`attacks.registry.default_threats`).
        colluder: name of the colluding client, or of several, whose knowledge is pooled; None takes the first client.
        seed: of all that attacks draw: their own, from which nothing in a run is drawn alike.
        attack: names of `attacks.registry.ATTACKS`; empty: the task's default. They are looked up when they are run, so that a
            record is read where one is not installed.
    """

    task: ClassVar[str] = ""

    threat: tuple[str, ...] = ()
    colluder: tuple[str, ...] | str | None = None
    seed: int = 0
    attack: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_fields(self)
        if isinstance(self.colluder, tuple) and len(self.colluder) < 2:  # one is the same however it is said
            msgspec.structs.force_setattr(self, "colluder", self.colluder[0] if self.colluder else None)
        allowed = threat_models(self.task)
        for name in self.threat:
            if name not in allowed:
                raise SpecError(f"threat must be one of {', '.join(allowed)}; got {name!r}")
        for field, value in msgspec.structs.asdict(self).items():
            if isinstance(value, tuple) and len(set(value)) < len(value):
                raise SpecError(f"{field} names a value twice: {', '.join(map(str, value))}")

    def colluders(self, clients: Sequence[Any]) -> tuple[str, ...]:
        """Names of the colluding clients of a federation, the one that acts first: of one that is active, it alone is."""
        if isinstance(self.colluder, tuple):
            return self.colluder
        return (self.colluder or clients[0].name,)
