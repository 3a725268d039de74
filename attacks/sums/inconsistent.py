"""Isolate one client's upload in a secure sum, by sending the other clients extreme values (inconsistent broadcast).

Threat model: "server", active. Required knowledge: opened sums with their holder counts. After one round the server sends all
clients but the victim rows of `FAR`, far beyond what a sum can represent. They upload the largest value in each number,
whatever they train. In the next sum, rows that the victim does not hold are that value times their holders. In all other rows,
the rest is the victim's upload. The first two rounds are trained once more for each victim.

Clients of `secagg` refuse such rows, and the attack does not apply. A server cannot succeed with values that clients accept
either. Each client binds the history of its broadcasts to the session of a sum (`fkgsec.defenses.bound_broadcasts`). A client
with a different history is left out, or the sum does not open. So every sum contains only clients that received the same
tables, and equal tables cannot single out one upload.

`cosine`, `relative_error`: of the victim's change in round 2, as in `fkgsec.attacks.update_recovery`. `holders`: accuracy of
the server's claims whether the victim holds each row of the table; baseline: the more frequent answer.

Source: Pasquini, Francati and Ateniese 2022, "Eluding secure aggregation in federated learning via model inconsistency".
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fkgsec.attacks import update_recovery
from fkgsec.attacks.figure import Figure
from fkgsec.attacks.kge.laboratory import KgeLaboratory
from fkgsec.attacks.kge.view import KgeView, VictimView
from fkgsec.attacks.questions import ENTITIES, UPLOADS
from fkgsec.attacks.registry import Attack, Needs, Truth, score_each
from fkgsec.attacks.update_recovery import Changes
from fkgsec.attacks.view import NotAttacked, claim_each
from fkgsec.errors import FkgsecError
from fkgsec.estimate import proportion
from fkgsec.federation.adversary import Adversary
from fkgsec.federation.messages import SERVER, Opened, client_party
from fkgsec.federation.recipes import Table
from fkgsec.randomness import generator

SERVER_ACTIVE, SUBTRACTION = "server-active", "subtraction"
# Round whose sum is attacked.
LAST = 2
# So large that training cannot bring a row back into the range of a sum.
FAR = 1e9
REFUSED = "clients refuse it, and a sum has only clients that were sent one table, whatever its values"
METRICS = {
    "cosine": update_recovery.METRICS["cosine"],
    "relative_error": update_recovery.METRICS["relative_error"],
    "holders": "share of rows of which the server tells whether the victim holds them",
}


class InconsistentServer(Adversary):
    """A server that sends all clients but one the value `FAR` in every number, after round `at`.

    Args:
        spared: party that receives the true rows.
        at: round whose broadcast is manipulated.
    """

    def __init__(self, spared: str, at: int = 1) -> None:
        super().__init__(SERVER)
        self.spared, self.at = spared, at

    def identity(self) -> str:
        """Describe the adversary for the identity of its run."""
        return f"{super().identity()} spares {self.spared} in {self.at}"

    def broadcast(self, round: int, table: Table, receiver: str, rows: Tensor) -> Tensor:
        """Replace the rows of all receivers but the victim."""
        return rows if round != self.at or receiver == self.spared else torch.full_like(rows, FAR)


class Remainder(NamedTuple):
    """The victim's part of a sum.

    Attributes:
        holds: rows that the victim holds, bool `[N]`.
        rows: its upload of these, float64 `[N, W]`, NaN elsewhere.
    """

    holds: np.ndarray
    rows: np.ndarray


def left_of_sum(opened: Opened) -> Remainder:
    """Isolate the upload of one client in a sum to which all others contributed one constant value.

    Rows that the victim does not hold are constant and reveal that value. If there are none, the value is estimated by the mean
    contribution of the others.

    Args:
        opened: sum of the round after the manipulated broadcast.
    """
    total, holders = opened.sums()
    there = holders > 0
    # A row of equal numbers, up to the error of quantization, has no part of the victim.
    same = there & (np.ptp(total, axis=1) <= 2 * opened.error)
    # Step 1: rows of equal numbers come only from clients with the extreme broadcast.
    holds = there & ~same
    others = holders - holds
    chosen, counts = (same, holders) if same.any() else (holds & (others > 0), others)
    # The constant that each of the other holders contributed.
    value = (total[chosen] / counts[chosen, None]).mean()
    # Step 2: subtract the constant of all other holders; the rest is the victim's upload.
    rows = total - others[:, None] * value
    return Remainder(holds, np.where(holds[:, None], rows, np.nan))


class Attacked(NamedTuple):
    """Result of the attack on one victim.

    Attributes:
        table: the summed table.
        run: index of the run with the attack, see `View.run`.
        remainder: the victim's part of the sum.
    """

    table: Table
    run: int
    remainder: Remainder


def run(view: KgeView, laboratory: KgeLaboratory, rng: np.random.Generator) -> dict[str, Attacked | NotAttacked]:
    """Train the first rounds with the attack on each victim."""
    laboratory.check_sums(view)
    table = laboratory.settings.recipe.shared[0]

    def attack(victim: VictimView) -> Attacked:
        """Attack one victim."""
        try:
            attacked: KgeView = laboratory.train(InconsistentServer(client_party(victim.name)), last=LAST)
        except NotAttacked:
            raise
        # Honest clients of `secagg` refuse values outside the clip.
        except FkgsecError as refusal:
            raise NotAttacked(f"{REFUSED}: {refusal}") from refusal
        # Round 2 is the first sum after the manipulated broadcast of round 1.
        sums = [opened for opened in attacked.sums_of(table) if opened.round == LAST]
        if not sums:
            raise NotAttacked(f"too many fell silent: no sum of round {LAST} was opened")
        return Attacked(table, attacked.run, left_of_sum(sums[0]))

    return claim_each(view.victims, attack)


@score_each
def score(truth: Truth, victim: str, claim: Attacked) -> list[Figure]:
    """Compare the rest of the sum with the victim's upload."""
    table, rest, result = claim.table, claim.remainder, truth.runs[claim.run]
    names, start, end = update_recovery.client_rows(result, truth.index(victim), table)
    claimed = rest.rows[update_recovery.table_rows(result, names, table)]
    is_claimed = np.asarray(~np.isnan(claimed).any(axis=1))
    moved = update_recovery.changed_rows(start, end)
    # A row without a claim is inferred as unchanged.
    inferred = np.where(is_claimed[:, None], claimed - start, 0.0)
    changes = Changes((end - start)[moved], {SUBTRACTION: inferred[moved]}, None, int(is_claimed[moved].sum()))
    holds, guess = update_recovery.holds_rows(result, victim, table)
    share = proportion(int((rest.holds == holds).sum()), len(holds))
    rng = generator(truth.seed, "inconsistent broadcast", victim)
    return [
        *update_recovery.figures_of(truth, victim, changes, rng),
        truth.figure("holders", victim, share, baseline=guess, attainable=1.0),
    ]


ATTACK = Attack(
    SERVER_ACTIVE,
    "isolates one client's upload in secure sums by sending nonsense to the others; trains two rounds per victim",
    Needs(server=True),
    METRICS,
    run,
    score,
    threats=("server",),
    questions=dict.fromkeys(METRICS, UPLOADS) | {"holders": ENTITIES},
    items={"cosine": "rows that changed", "relative_error": "rows that changed", "holders": "rows of the table"},
    errors=("relative_error",),
    trains=True,
)
