"""Settings of attacks on graph classification.

options = GraphAttackOptions(attack=("graph-membership",), threat=("models",), shadows=4)
"""

from __future__ import annotations

from typing import ClassVar

from attacks.options import BaseAttackOptions
from attacks.view import GRAPH
from fkgsec.errors import SpecError


class GraphAttackOptions(BaseAttackOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What attacks on graph classification can be set to.

    Attributes (beside those of `BaseAttackOptions`):
        shadows: federations that the adversary trains for membership, each as long as the attacked one, on random halves of the
            candidates; 0 trains none, otherwise an even number from 4 on.
        malicious: clients that plant a backdoor: the colluder, and those that follow it.
        poisoned: share of its training graphs that each of them poisons.
        trigger_size: nodes of the trigger, as a share of the colluder's mean number. trigger_density: probability of its edges.
        target_class: what triggered graphs are to be classified as.
    """

    task: ClassVar[str] = GRAPH

    shadows: int = 0
    malicious: int = 1
    poisoned: float = 0.2
    trigger_size: float = 0.2
    trigger_density: float = 0.8
    target_class: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.colluder, tuple):
            raise SpecError(f"colluder must be one client where graphs are classified; got {', '.join(self.colluder)}")
        if self.shadows and (self.shadows < 4 or self.shadows % 2):
            raise SpecError(f"shadows must be 0 or an even number from 4 on; got {self.shadows}")
        for name, least in (("malicious", 1), ("target_class", 0)):
            if getattr(self, name) < least:
                raise SpecError(f"{name} must be at least {least}; got {getattr(self, name)}")
        for name in ("poisoned", "trigger_size", "trigger_density"):
            if not 0 < getattr(self, name) <= 1:
                raise SpecError(f"{name} must lie in (0, 1]; got {getattr(self, name)}")
