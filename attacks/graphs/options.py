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
    """

    task: ClassVar[str] = GRAPH

    shadows: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shadows and (self.shadows < 4 or self.shadows % 2):
            raise SpecError(f"shadows must be 0 or an even number from 4 on; got {self.shadows}")
