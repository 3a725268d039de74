"""Upload of a client, taken out of a secure sum by a server that sends the others nonsense (inconsistent broadcast).

Threat model: "server", one that sends what it likes. After one round it sends all clients but the victim rows of `FAR`, far
beyond what a sum can hold: they upload the largest value in each number, whatever they train. In the next sum, rows that the
victim does not hold are that value times their holders, and in all others what is left is the victim's upload. The first two
rounds are trained once more for each victim.

Clients of `secagg` refuse such rows, and the attack does not apply. Nor can a server succeed with values that clients accept.
Each client binds the history of its broadcasts to the session of a sum (`fkgsec.defenses.bound_broadcasts`). A client with
another history than the rest is left out, or the sum does not open. So every sum contains only clients that were sent the same
tables, and tables that are the same for all cannot single out one upload.

`cosine`, `relative_error`: of the victim's change in round 2, as in `fkgsec.attacks.update_recovery`. `holders`: the share of the
table's rows of which the server tells whether the victim holds them; baseline: the commoner answer.

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
LAST = 2  # round whose sum is taken apart
FAR = 1e9  # a value that no training brings back within what a sum can hold
REFUSED = "clients refuse it, and a sum has only clients that were sent one table, whatever its values"
METRICS = {
    "cosine": update_recovery.METRICS["cosine"],
    "relative_error": update_recovery.METRICS["relative_error"],
    "holders": "share of rows of which the server tells whether the victim holds them",
}


class InconsistentServer(Adversary):
    """The server in the run: after round `at` all clients but one are sent `FAR` in every number.

    Args:
        spared: the party that is sent what the server has.
    """

    def __init__(self, spared: str, at: int = 1) -> None:
        super().__init__(SERVER)
        self.spared, self.at = spared, at

    def identity(self) -> str:
        return f"{super().identity()} spares {self.spared} in {self.at}"

    def broadcast(self, round: int, table: Table, receiver: str, rows: Tensor) -> Tensor:
        return rows if round != self.at or receiver == self.spared else torch.full_like(rows, FAR)


class Taken(NamedTuple):
    """Rest of a sum: bool `[N]`, rows that the victim holds; float64 `[N, W]`, its upload of these, NaN elsewhere."""

    held: np.ndarray
    rows: np.ndarray


def left_of_sum(opened: Opened) -> Taken:
    """The upload of one client in a sum in which all others put in one value throughout.

    Rows of others alone are constant, and tell that value; where there are none it is taken to be the mean of what others
    put in.
    """
    total, holders = opened.sums()
    there = holders > 0
    same = there & (np.ptp(total, axis=1) <= 2 * opened.error)
    holds = there & ~same
    others = holders - holds
    chosen, counts = (same, holders) if same.any() else (holds & (others > 0), others)
    value = (total[chosen] / counts[chosen, None]).mean()
    rows = total - others[:, None] * value
    return Taken(holds, np.where(holds[:, None], rows, np.nan))


class Attacked(NamedTuple):
    """Attack on a victim: the run with it, see `View.run`, and what is left of its sum."""

    table: Table
    run: int
    taken: Taken


def run(view: KgeView, laboratory: KgeLaboratory, rng: np.random.Generator) -> dict[str, Attacked | NotAttacked]:
    """Train the first rounds with the attack on each victim."""
    laboratory.check_sums(view)
    table = laboratory.settings.recipe.shared[0]

    def attack(victim: VictimView) -> Attacked:
        try:
            attacked: KgeView = laboratory.train(InconsistentServer(client_party(victim.name)), last=LAST)
        except NotAttacked:
            raise
        except FkgsecError as refusal:
            raise NotAttacked(f"{REFUSED}: {refusal}") from refusal
        sums = [opened for opened in attacked.sums_of(table) if opened.round == LAST]
        if not sums:
            raise NotAttacked(f"too many fell silent: no sum of round {LAST} was opened")
        return Attacked(table, attacked.run, left_of_sum(sums[0]))

    return claim_each(view.victims, attack)


@score_each
def score(truth: Truth, victim: str, claim: Attacked) -> list[Figure]:
    """Compare what is left of the sum with the victim's upload."""
    table, rest, result = claim.table, claim.taken, truth.runs[claim.run]
    names, start, end = update_recovery.client_rows(result, truth.index(victim), table)
    claimed = rest.rows[update_recovery.table_rows(result, names, table)]
    is_claimed = np.asarray(~np.isnan(claimed).any(axis=1))
    moved = update_recovery.changed_rows(start, end)
    inferred = np.where(is_claimed[:, None], claimed - start, 0.0)  # no claim is no change
    changes = Changes((end - start)[moved], {SUBTRACTION: inferred[moved]}, None, int(is_claimed[moved].sum()))
    holds, guess = update_recovery.holds_rows(result, victim, table)
    share = proportion(int((rest.held == holds).sum()), len(holds))
    rng = generator(truth.seed, "inconsistent broadcast", victim)
    return [
        *update_recovery.figures_of(truth, victim, changes, rng),
        truth.figure("holders", victim, share, baseline=guess, attainable=1.0),
    ]


ATTACK = Attack(
    SERVER_ACTIVE,
    "takes one client's upload out of secure sums by sending the others nonsense; trains two rounds for each victim",
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
