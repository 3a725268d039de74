"""One client's upload, read off a secure sum by a server that does not ask the other clients to train.

    found = run_attacks(result, AttackOptions(attack=("server-order",)), train=train)
    for one in found.figures:
        print(one.victim, one.metric, one.estimate, one.baseline, one.remark)

Threat model: "server", active. In round 2 the server asks only the victim to train, and then asks all clients to upload. A client
that does not check the order of requests uploads the server's own broadcast, so that the sum minus (holders - 1) times the
broadcast is the victim's upload, exactly. Clients that check it (`fkgsec.federation.order`) refuse, and no sum is opened.

The attack changes the run, so its first two rounds are trained once more for each victim with the same seed and options: once
with clients as they are, and once with clients that check no order. The second shows what the design costs without the check.

`cosine`, `relative_error`: of the victim's change in round 2, as in `attacks.update_recovery`. They end in `_unchecked` for
clients that check no order. Baseline: no change, which a server claims without any message.

Source: ours, after Pasquini et al. 2022, "Eluding secure aggregation in federated learning via model inconsistency".
"""

from __future__ import annotations

import msgspec
import numpy as np

from attacks import update_recovery
from attacks.figure import NOT_ATTACKED, Figure
from attacks.registry import Attack, Needs, Truth
from attacks.sums.plan import Plan, obstacle, plan
from fkgsec.errors import FkgsecError
from fkgsec.estimate import mean
from fkgsec.federation.adversary import Adversary
from fkgsec.federation.loop import FederationResult
from fkgsec.federation.messages import SERVER, client_party
from fkgsec.federation.recipes import RECIPES
from fkgsec.randomness import generator

SERVER_ORDER = "server-order"
ROUND = 2
METRICS = {
    "cosine": "mean cosine similarity between inferred and true updates",
    "relative_error": "norm of the error of the inferred update over the norm of the true one",
    "cosine_unchecked": "the same cosine, if clients answered requests in any order",
    "relative_error_unchecked": "the same error, if clients answered requests in any order",
}


class MisorderingServer(Adversary):
    """A server that asks only one client to train in `ROUND`.

    Args:
        victim: the party that is asked to train.
        checks_order: whether clients check the order of requests.
    """

    def __init__(self, victim: str, *, checks_order: bool) -> None:
        super().__init__(SERVER)
        self.victim, self.checks_order = victim, checks_order

    def identity(self) -> str:
        return f"{super().identity()} trains {self.victim} alone, order checked: {self.checks_order}"

    def asks_to_train(self, round: int, party: str) -> bool:
        return round != ROUND or party == self.victim


def score(plan: Plan, truth: Truth) -> list[Figure]:
    """Train the first rounds with the attack, with clients that check the order and with clients that do not."""
    if reason := obstacle(truth):
        return [figure for victim in plan.victims for figure in truth.not_attacked(victim, reason)]
    return [
        figure
        for victim in plan.victims
        for suffix, checks_order in (("", True), ("_unchecked", False))
        for figure in _attack(truth, victim, suffix, checks_order=checks_order)
    ]


def _attack(truth: Truth, victim: str, suffix: str, *, checks_order: bool) -> list[Figure]:
    options = msgspec.structs.replace(truth.result.options, rounds=ROUND, eval_every=ROUND, patience=0)
    server = MisorderingServer(client_party(victim), checks_order=checks_order)
    table, index = _victim_table(truth, victim)
    try:
        run: FederationResult = truth.view.train(truth.result.graph, options, adversary=server)
    except FkgsecError as error:
        reason = f"the run ended with the attack in it: {error}"
        metrics = (f"cosine{suffix}", f"relative_error{suffix}")
        return [truth.figure(metric, victim, NOT_ATTACKED, reason=reason) for metric in metrics]
    names, start, end = update_recovery.client_rows(run, index, table)
    moved = np.abs(end - start).max(axis=1) > 0
    true, claimed, remark = (end - start)[moved], np.zeros_like(start[moved]), ""
    opened = [one for one in run.transcript.opened(ROUND) if one.table == table and one.total]
    if opened:
        total, holders = opened[0].sums()
        row_of = {name: row for row, name in enumerate(run.row_names[table])}
        rows = np.array([row_of[name] for name in names])[moved]
        others = np.maximum(holders[rows] - 1, 0)[:, None]
        found = total[rows] - others * start[moved]
        claimed = np.where(holders[rows][:, None] > 0, found - start[moved], 0.0)
    else:
        excluded = run.rounds[ROUND].excluded
        remark = f"{len(excluded)} clients refused: {next(iter(excluded.values()), 'no sum was opened')}"
    rng = generator(truth.seed, "misordered requests", victim, suffix)
    nothing = np.zeros_like(true)
    return [
        truth.figure(
            f"cosine{suffix}",
            victim,
            mean(update_recovery.cosines(true, claimed), rng),
            baseline=mean(update_recovery.cosines(true, nothing), rng),
            attainable=1.0,
            remark=remark,
        ),
        truth.figure(
            f"relative_error{suffix}",
            victim,
            update_recovery.relative_error(true, claimed, rng),
            baseline=update_recovery.relative_error(true, nothing, rng),
            attainable=0.0,
            remark=remark,
        ),
    ]


def _victim_table(truth: Truth, victim: str) -> tuple[str, int]:
    """The first shared table, and the victim's client index."""
    names = [client.name for client in truth.result.graph.clients]
    return RECIPES[truth.result.options.algorithm].shared[0], names.index(victim)


ATTACK = Attack(
    SERVER_ORDER,
    "reads one client's upload off a secure sum by not asking the other clients to train; trains four rounds for each victim",
    Needs(server=True),
    METRICS,
    plan,
    score,
    threats=("server",),
    items=dict.fromkeys(METRICS, "rows that changed"),
    errors=("relative_error", "relative_error_unchecked"),
    in_order=True,
    trains=True,
)
