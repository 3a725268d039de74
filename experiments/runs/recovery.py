"""Update recovery in a comparison: of each case's last attacked round, and of a round in which clients unlearn afterwards.

asked = Unlearning(forget, UnlearnOptions(method="finetune"))
updates = recovered_from_unlearning(Path("runs/mine"), spec, asked, make_transport, observer)
console.print(recovery_table([("psu,secagg", "unlearning", updates)]))
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from rich.table import Table

from attacks.reconstruction.options import default_threats
from attacks.update_recovery import UpdateRecovery, attack_updates
from experiments.reporting.tables import make_table
from experiments.runs.run import load_run
from experiments.runs.spec import Spec
from fkgsec.estimate import Estimate
from fkgsec.exchange import MakeTransport
from fkgsec.federation.loop import Observer
from fkgsec.unlearning.forget_sets import Forget
from fkgsec.unlearning.unlearning import UnlearnOptions, unlearn

AID = (
    "Update recovery: of the victim whose change in the round the adversary knows best, the cosine of its estimate to the true "
    "change of a row (mean over rows; 1: known), and the estimate's error over the change (0: known, 1: as good as none). base: "
    "an adversary that takes the mean change of those who hold the row."
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


def recovered_from_unlearning(
    run: Path, spec: Spec, unlearning: Unlearning, exchange: MakeTransport, observer: Observer | None
) -> list[UpdateRecovery]:
    """Unlearn on a finished run and attack that round, as `spec` says; nothing is written. Raises as `unlearn` does."""
    _, result = load_run(run, exchange=exchange)
    after = unlearn(
        result,
        unlearning.forget,
        unlearning.options,
        observer=observer,
        make_transport=exchange,
    )
    attack = spec.attack_options()
    threats = attack.threat or default_threats(spec.algorithm)
    return attack_updates(after, threats, colluder=attack.colluder, leak=max(attack.leak), seed=attack.seed)


def most_exposed(updates: Iterable[UpdateRecovery]) -> list[UpdateRecovery]:
    """For each threat model the victim with the smallest relative error; one without figures only where all are."""
    best: dict[str, UpdateRecovery] = {}
    for row in updates:
        known = best.get(row.threat_model)
        if known is None or _rank(row) < _rank(known):
            best[row.threat_model] = row
    return list(best.values())


def _rank(row: UpdateRecovery) -> tuple[bool, float]:
    return row.reason is not None, row.relative_error.value


def recovery_table(rounds: Sequence[tuple[str, str, Sequence[UpdateRecovery]]]) -> Table:
    """A row for each case, kind of round and threat model, the most exposed victim; a case and its round are named once."""
    table = make_table(
        "Update recovery: the victim whose change in a round is known best",
        "case", "round", "threat", "victim", "cosine", "base", "error", "base",
    )  # fmt: skip
    named = ""
    for case, kind, updates in rounds:
        said = ""
        for row in most_exposed(updates):
            figures = (
                ["n/a"] * 4
                if row.reason
                else [
                    f"{row.cosine.value:.2f}", f"{row.base_cosine.value:.2f}",
                    error_text(row.relative_error), error_text(row.base_relative_error),
                ]
            )  # fmt: skip
            name, round = "" if case == named else case.replace(",", ",\n"), f"{kind} {row.round}"
            table.add_row(name, "" if round == said else round, row.threat_model, row.victim, *figures)
            named, said = case, round
    return table


def error_text(figure: Estimate) -> str:
    """Errors span many orders: three digits of those that matter, powers of ten of the others."""
    return f"{figure.value:.3g}" if 0.001 <= figure.value < 100 else f"{figure.value:.0e}"
