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

`cosine`, `relative_error`: of the victim's change in round 2, as in `attacks.update_recovery`, with the same baseline: no change.
Ways: `subtraction`, from the sum of the attacked run; `aggregate`, where the attack is refused, from the sum of the run without
it, which the protocol exposes. `holders`: the share of the table's rows of which the server tells whether the victim holds them;
baseline: the commoner answer.

Source: Pasquini, Francati and Ateniese 2022, "Eluding secure aggregation in federated learning via model inconsistency".
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import numpy as np
import torch
from torch import Tensor

from attacks import update_recovery
from attacks.figure import Figure
from attacks.registry import Attack, Needs, Truth
from attacks.sums.plan import Plan, obstacle, plan
from attacks.update_recovery import Changes
from fkgsec.errors import FkgsecError, TrainingError
from fkgsec.estimate import proportion
from fkgsec.federation.adversary import Adversary
from fkgsec.federation.loop import FederationResult
from fkgsec.federation.messages import SERVER, Opened, client_party
from fkgsec.federation.recipes import RECIPES, Table
from fkgsec.randomness import generator

SERVER_ACTIVE, SUBTRACTION = "server-active", "subtraction"
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


def score(plan: Plan, truth: Truth) -> list[Figure]:
    """Train the first rounds without and with the attack; figures of every victim."""
    result: FederationResult = truth.result
    if reason := obstacle(truth):
        return [figure for victim in plan.victims for figure in truth.not_attacked(victim, reason)]
    options = msgspec.structs.replace(result.options, rounds=2, eval_every=2, patience=0)
    honest: FederationResult = truth.view.train(result.graph, options)
    return [figure for victim in plan.victims for figure in _attack(truth, honest, victim)]


def _attack(truth: Truth, honest: FederationResult, victim: str) -> list[Figure]:
    """Figures of one victim: of a run in which the server attacks it, or of the honest one where that is refused."""
    table = RECIPES[honest.options.algorithm].shared[0]
    by_sum = update_recovery.by_the_server(truth, honest, victim, table)
    if isinstance(by_sum, str):
        return truth.not_attacked(victim, by_sum)
    place = next(place for place, client in enumerate(honest.graph.clients) if client.name == victim)
    names, rows = set(update_recovery.client_rows(honest, place, table)[0]), honest.row_names[table]
    holds = np.array([name in names for name in rows])
    guess = proportion(int(max(holds.sum(), (~holds).sum())), len(holds))
    server, rng = InconsistentServer(client_party(victim)), generator(truth.seed, "inconsistent broadcast", victim)
    try:
        attacked: FederationResult = truth.view.train(honest.graph, honest.options, adversary=server)
    except TrainingError as error:
        return truth.not_attacked(victim, f"the run broke down with the attack in it: {error}")
    except FkgsecError as refusal:
        remark = f"refused, which ends the run: {refusal}"
        holders = truth.figure("holders", victim, guess, baseline=guess, attainable=1.0, remark=remark)
        return [*update_recovery.figures_of(truth, victim, by_sum, rng, remark=remark), holders]
    sums = [one for one in attacked.transcript.opened(2) if one.table == table]
    if not sums:
        return truth.not_attacked(victim, "too many fell silent: no sum of round 2 was opened")
    taken = left_of_sum(sums[0])
    told = proportion(int((taken.held == holds).sum()), len(holds))
    return [
        *update_recovery.figures_of(truth, victim, _changes(attacked, place, table, taken), rng),
        truth.figure("holders", victim, told, baseline=guess, attainable=1.0),
    ]


def _changes(result: FederationResult, place: int, table: Table, taken: Taken) -> Changes:
    """True and claimed changes of the client's rows that training changed; no claim is no change."""
    names, start, end = update_recovery.client_rows(result, place, table)
    row_of = {name: row for row, name in enumerate(result.row_names[table])}
    claimed = taken.rows[[row_of[name] for name in names]]
    known = np.asarray(~np.isnan(claimed).any(axis=1))
    moved = update_recovery.changed_rows(start, end)
    inferred = np.where(known[:, None], claimed - start, 0.0)
    return Changes((end - start)[moved], {SUBTRACTION: inferred[moved]}, None, int(known[moved].sum()))


ATTACK = Attack(
    SERVER_ACTIVE,
    "takes one client's upload out of secure sums by sending the others nonsense; trains two rounds for each victim",
    Needs(server=True),
    METRICS,
    plan,
    score,
    threats=("server",),
    items={"cosine": "rows that changed", "relative_error": "rows that changed", "holders": "rows of the table"},
    errors=("relative_error",),
    in_order=True,
    trains=True,
)
