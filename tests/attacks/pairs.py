"""What reconstruction found, for tests that compare its figures: ERR and TRR of a victim by an inference, side by side."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import pandas as pd

from fkgsec.attacks import run_attacks
from fkgsec.attacks.figure import STRONGEST, Figure
from fkgsec.attacks.options import KgeAttackOptions
from fkgsec.attacks.reconstruction.leakage import RECONSTRUCTION, UNLINKED, rebuilt
from fkgsec.kge.result import KgeResult


@dataclass(frozen=True)
class Pair:
    """Other attributes are those of both figures, such as `victim` and `variant`.

    Attributes:
        unlinked: of the strongest, by metric its figure without linked pairs.
    """

    err: Figure
    trr: Figure
    unlinked: Mapping[str, Figure]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.err, name)


def pairs_of(figures: Iterable[Figure]) -> list[Pair]:
    listed = list(figures)
    unlinked: dict[tuple[object, ...], dict[str, Figure]] = {}
    for one in listed:
        if one.attack == RECONSTRUCTION and one.metric in UNLINKED and one.variant == STRONGEST:
            unlinked.setdefault((one.threat_model, one.leak, one.victim), {})[one.metric] = one
    pairs, found = [], rebuilt(listed)
    for err, trr in zip(found[::2], found[1::2], strict=True):
        place = err.threat_model, err.leak, err.victim
        assert (err.metric, trr.metric) == ("err", "trr")
        assert (*place, err.variant) == (trr.threat_model, trr.leak, trr.victim, trr.variant)
        pairs.append(Pair(err, trr, unlinked.get(place, {}) if err.variant == STRONGEST else {}))
    return pairs


def strongest(pairs: Iterable[Pair]) -> list[Pair]:
    return [pair for pair in pairs if pair.variant == STRONGEST]


def reconstruct(result: KgeResult, options: KgeAttackOptions, leak_draws: int = 0) -> tuple[list[Pair], pd.DataFrame]:
    """Run reconstruction alone. Further draws of leaked entities only widen intervals (tests/attacks/kge/test_leak_draws.py)."""
    found = run_attacks(result, msgspec.structs.replace(options, attack=(RECONSTRUCTION,)), leak_draws=leak_draws)
    return pairs_of(found.figures), found.scores
