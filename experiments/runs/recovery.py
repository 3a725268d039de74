"""Attacks beside reconstruction in a comparison: on each case's attacked round, and on one in which clients then unlearn.

asked = Unlearning(forget, UnlearnOptions(method="finetune"))
figures = attacked_after_unlearning(Path("runs/mine"), spec, asked, make_transport, observer)
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from fkgsec.attacks.figure import Figure
from fkgsec.attacks.options import RECONSTRUCTION, UPDATE_RECOVERY
from fkgsec.attacks.registry import ATTACKS, DEFAULT, run_attacks
from fkgsec.exchange import MakeTransport
from fkgsec.experiments.runs.run import load_run
from fkgsec.experiments.tasks.spec import RunSpec
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
    run: Path, spec: RunSpec, unlearning: Unlearning, exchange: MakeTransport, observer: Observer | None
) -> list[Figure]:
    """Unlearn on a finished run and attack that round, as `spec` says; nothing is written. Raises as `unlearn` does.

    Reconstruction is left out: what a round of unlearning gives away is how rows changed. So are attacks that train: they would
    attack the run before it once more.
    """
    _, result = load_run(run, exchange=exchange)
    if observer is not None:
        method = unlearning.options.method
        observer.run_started(f"unlearning by {method}", spec.rounds if method == "retrain" else 1)
    after = unlearn(
        result,
        unlearning.forget,
        unlearning.options,
        observer=observer,
        make_transport=exchange,
    )
    options = spec.attack_options()
    asked = (name for name in options.attack or DEFAULT if name != RECONSTRUCTION and not ATTACKS[name].trains)
    wanted = tuple(asked) or (UPDATE_RECOVERY,)
    return run_attacks(after, msgspec.structs.replace(options, attack=wanted)).figures
