"""What one client uploaded, taken out of a secure sum by a server that sends the others nonsense (inconsistent broadcast).

    found = run_attacks(result, AttackOptions(attack=("server-active",)), train=train)
    for one in found.figures:
        print(one.victim, one.metric, one.estimate, one.baseline, one.remark)     # hospital-2  cosine  0.4 ...  refused: ...

Threat model: "server", one that sends what it likes. After one round it sends all clients but the victim rows of `FAR`, far
beyond what a sum can hold: they upload the largest value in each number, whatever they train. In the next sum, rows that the
victim does not hold are that value as many times as they have holders, and in all others what is left is the victim's upload.

An active attack changes the run: so its first two rounds are trained once more for each victim with the same seed and options
(under a defense from a script by `run_attacks(..., train=...)` with its transport), and once without the attack. Where clients
refuse the broadcast or the sum, the server has what it has without the attack, and a remark says who refused.

`cosine`, `relative_error`: of the victim's change in round 2, as in `fkgsec.attacks.update_recovery`, with the same baseline:
no change. Ways: `subtraction`, from the sum of the attacked run; `aggregate`, where the attack is refused, from the sum of the
run without it, which the protocol exposes. `holders`: the share of the table's rows of which the server tells whether the
victim holds them;
baseline: the commoner answer.

Source: Pasquini, Francati and Ateniese 2022, "Eluding secure aggregation in federated learning via model inconsistency".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fkgsec.attacks import update_recovery
from fkgsec.attacks.figure import Figure
from fkgsec.attacks.kge.view import KgeView
from fkgsec.attacks.laboratory import Laboratory
from fkgsec.attacks.registry import Attack, Needs, Truth
from fkgsec.attacks.sums.plan import obstacle, sums_of
from fkgsec.attacks.update_recovery import Changes
from fkgsec.errors import FkgsecError, TrainingError
from fkgsec.estimate import proportion
from fkgsec.federation.adversary import Adversary
from fkgsec.federation.messages import SERVER, Opened, client_party
from fkgsec.federation.recipes import Table
from fkgsec.kge.result import KgeResult
from fkgsec.randomness import generator

SERVER_ACTIVE, SUBTRACTION = "server-active", "subtraction"
LAST = 2  # round whose sum is taken apart
FAR = 1e9  # a value that no training brings back within what a sum can hold
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
    """What is left of a sum: bool `[N]`, rows that the victim holds; float64 `[N, W]`, its upload of these, NaN elsewhere."""

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
    held = there & ~same
    others = holders - held
    chosen, counts = (same, holders) if same.any() else (held & (others > 0), others)
    value = (total[chosen] / counts[chosen, None]).mean()
    rows = total - others[:, None] * value
    return Taken(held, np.where(held[:, None], rows, np.nan))


class Attacked(NamedTuple):
    """What the server has of one victim: of the run without the attack, and, unless clients refuse, of one with it.

    `told`: the run with the attack and what is left of its sum, or why clients refuse. `reason`: why there is nothing to measure.
    """

    by_sum: update_recovery.Recovered | None
    told: tuple[int, Taken] | str
    reason: str | None = None


class Claims(NamedTuple):
    """By victim what the server has; `honest`: the run without the attack, see `View.run`."""

    honest: int
    table: Table
    victims: Mapping[str, Attacked]


def run(view: KgeView, laboratory: Laboratory, rng: np.random.Generator) -> Claims | str:
    """Train the first rounds without and with the attack."""
    if reason := obstacle(view, laboratory):
        return reason
    table = laboratory.settings.recipe.shared[0]
    honest: KgeView = laboratory.train(last=LAST)
    by_sum = update_recovery.recover(honest, table)
    victims = {one.name: _attack(laboratory, one.name, table, by_sum.get(one.name)) for one in view.victims}
    return Claims(honest.run, table, victims)


def _attack(laboratory: Laboratory, victim: str, table: Table, by_sum: update_recovery.Recovered | None) -> Attacked:
    try:
        attacked: KgeView = laboratory.train(InconsistentServer(client_party(victim)), last=LAST)
    except TrainingError as error:
        return Attacked(by_sum, "", f"the run broke down with the attack in it: {error}")
    except FkgsecError as refusal:
        return Attacked(by_sum, f"refused, which ends the run: {refusal}")
    sums = [one for one in sums_of(attacked, table) if one.round == LAST]
    if not sums:
        return Attacked(by_sum, "", f"too many fell silent: no sum of round {LAST} was opened")
    return Attacked(by_sum, (attacked.run, left_of_sum(sums[0])))


def score(claims: Claims | str, truth: Truth) -> list[Figure]:
    """Figures of every victim: of a run in which the server attacks it, or of the honest one where that is refused."""
    if isinstance(claims, str):
        return [figure for victim in truth.victims for figure in truth.not_attacked(victim, claims)]
    return [figure for victim, claim in claims.victims.items() for figure in _figures(truth, claims, victim, claim)]


def _figures(truth: Truth, claims: Claims, victim: str, claim: Attacked) -> list[Figure]:
    table, honest = claims.table, truth.runs[claims.honest]
    changes = update_recovery.changes_of(truth, claims.honest, victim, table, claim.by_sum)
    if isinstance(changes, str) or claim.reason:
        return truth.not_attacked(victim, changes if isinstance(changes, str) else claim.reason or "")
    names = update_recovery.client_rows(honest, update_recovery.client_index(honest, victim), table)[0]
    holds = np.isin(honest.row_names[table], names)
    told = guess = proportion(int(max(holds.sum(), (~holds).sum())), len(holds))
    remark = claim.told if isinstance(claim.told, str) else None
    if not isinstance(claim.told, str):
        number, taken = claim.told
        changes = _changes(truth.runs[number], victim, table, taken)
        told = proportion(int((taken.held == holds).sum()), len(holds))
    rng = generator(truth.seed, "inconsistent broadcast", victim)
    return [
        *update_recovery.figures_of(truth, victim, changes, rng, remark=remark),
        truth.figure("holders", victim, told, baseline=guess, attainable=1.0, remark=remark),
    ]


def _changes(result: KgeResult, victim: str, table: Table, taken: Taken) -> Changes:
    """True and inferred changes of the client's rows that training changed; no claim is no change."""
    names, start, end = update_recovery.client_rows(result, update_recovery.client_index(result, victim), table)
    claimed = taken.rows[update_recovery.table_rows(result, names, table)]
    known = np.asarray(~np.isnan(claimed).any(axis=1))
    moved = update_recovery.changed_rows(start, end)
    inferred = np.where(known[:, None], claimed - start, 0.0)
    return Changes((end - start)[moved], {SUBTRACTION: inferred[moved]}, None, int(known[moved].sum()))


ATTACK = Attack(
    SERVER_ACTIVE,
    "takes one client's upload out of secure sums by sending the others nonsense; trains two rounds for each victim",
    Needs(server=True),
    METRICS,
    run,
    score,
    threats=("server",),
    items={"cosine": "rows that changed", "relative_error": "rows that changed", "holders": "rows of the table"},
    errors=("relative_error",),
    trains=True,
)
