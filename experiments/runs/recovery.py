"""Attacks beside reconstruction in a comparison: on each case's attacked round, and on one in which clients then unlearn.

asked = Unlearning(forget, UnlearnOptions(method="finetune"))
figures = attacked_after_unlearning(Path("runs/mine"), spec, asked, make_transport, observer)
console.print(other_attacks_table([("psu,secagg", "unlearning", figures)]))
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from rich.table import Table

from attacks.figure import Figure, headline, over_victims
from attacks.registry import DEFAULT, RECONSTRUCTION, UPDATE_RECOVERY, run_attacks
from experiments.reporting.tables import make_table
from experiments.runs.run import load_run
from experiments.runs.spec import Spec
from fkgsec.exchange import MakeTransport
from fkgsec.federation.loop import Observer
from fkgsec.unlearning.forget_sets import Forget
from fkgsec.unlearning.unlearning import UnlearnOptions, unlearn

AID = (
    "update-recovery: the cosine of the adversary's estimate to the true change of a row in the round (mean over rows; 1: "
    "known), and the estimate's error over the change (0: known, 1: as good as none). base: an adversary that takes the mean "
    "change of those who hold the row. max: the worst that a figure can be."
)


class Unlearning(NamedTuple):
    """What clients ask to be forgotten after a run, and how."""

    forget: Forget
    options: UnlearnOptions

    @property
    def digest(self) -> str:
        """SHA-256 of both."""
        forget = {name: np.asarray(triples).tolist() for name, triples in self.forget.items()}
        return hashlib.sha256(msgspec.json.encode([forget, self.options], order="sorted")).hexdigest()


def attacked_after_unlearning(
    run: Path, spec: Spec, unlearning: Unlearning, exchange: MakeTransport, observer: Observer | None
) -> list[Figure]:
    """Unlearn on a finished run and attack that round, as `spec` says; nothing is written. Raises as `unlearn` does.

    Reconstruction is left out: what a round of unlearning gives away is how rows changed.
    """
    _, result = load_run(run, exchange=exchange)
    after = unlearn(
        result,
        unlearning.forget,
        unlearning.options,
        observer=observer,
        make_transport=exchange,
    )
    options = spec.attack_options()
    wanted = tuple(name for name in options.attack or DEFAULT if name != RECONSTRUCTION) or (UPDATE_RECOVERY,)
    return run_attacks(after, msgspec.structs.replace(options, attack=wanted)).figures


def other_attacks_table(rounds: Sequence[tuple[str, str, Sequence[Figure]]]) -> Table:
    """A row for each case, kind of round, measure and threat model, of all victims or the one that gives most away.

    Args:
        rounds: case, what its round was for, and figures, of which reconstruction's have a table of their own. A case and its
            round are named once.
    """
    table = make_table(
        "Other attacks: all victims together, or the one that gives most away",
        "case", "round", "threat", "victim", "measure", "figure", "base", "max",
    )  # fmt: skip
    before: tuple[str, ...] = ()
    for case, kind, figures in rounds:
        for one in over_victims(figure for figure in headline(figures) if figure.attack != RECONSTRUCTION):
            threat = one.threat_model if one.leak is None else f"{one.threat_model} {one.leak:g}"
            named = (case.replace(",", ",\n"), f"{kind} {one.round}", threat, one.victim)
            same = [place for place in range(4) if named[: place + 1] == before[: place + 1]]
            shown = ["" if place in same else name for place, name in enumerate(named)]
            base, most = (
                "–" if value is None else share_text(value)
                for value in (one.baseline and one.baseline.value, one.attainable)
            )
            table.add_row(
                *shown, one.key, *(["n/a"] * 3 if one.reason else [share_text(one.estimate.value), base, most])
            )
            before = named
    return table


def share_text(value: float) -> str:
    """Errors span many orders: three digits of those that matter, powers of ten of the others."""
    return f"{value:.3g}" if 0.001 <= abs(value) < 100 or not value else f"{value:.0e}"
