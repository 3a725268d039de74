"""Read one client's upload off a secure sum by not asking the other clients to train.

Threat model: "server", active. Required knowledge: opened sums with their holder counts. In round 2 the server asks only the
victim to train, and then asks all clients to upload. A client that does not check the order of requests uploads the server's
own broadcast. The sum minus (holders - 1) times the broadcast is then exactly the victim's upload. Clients that check the order
(`fkgsec.federation.order`) refuse, and no sum is opened.

The first two rounds are trained twice for each victim: with clients as they are, and with clients that check no order, to show
what the check prevents. `cosine`, `relative_error`: of the victim's change in round 2, as in `fkgsec.attacks.update_recovery`;
they end in `_unchecked` for clients that check no order. Baseline: no change.

Source: ours, after Pasquini et al. 2022, "Eluding secure aggregation in federated learning via model inconsistency".
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from torch import Tensor

from fkgsec.attacks import update_recovery
from fkgsec.attacks.figure import Figure
from fkgsec.attacks.kge.laboratory import KgeLaboratory
from fkgsec.attacks.kge.view import KgeView
from fkgsec.attacks.questions import UPLOADS
from fkgsec.attacks.registry import Attack, Needs, Truth
from fkgsec.attacks.view import NotAttacked
from fkgsec.estimate import mean
from fkgsec.federation.adversary import Adversary
from fkgsec.federation.messages import SERVER, client_party
from fkgsec.federation.recipes import RECIPES, Table
from fkgsec.kge.result import KgeResult
from fkgsec.randomness import generator

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
        victim: party that is asked to train.
        checks_order: True if clients check the order of requests.

    Attributes:
        sent: rows `[N, W]` by table that it broadcast before it asked for uploads in `ROUND`.
    """

    def __init__(self, victim: str, *, checks_order: bool) -> None:
        super().__init__(SERVER)
        self.victim, self.checks_order = victim, checks_order
        self.sent: dict[Table, Tensor] = {}

    def identity(self) -> str:
        """Describe the adversary for the identity of its run."""
        return f"{super().identity()} trains {self.victim} alone, order checked: {self.checks_order}"

    def broadcast(self, round: int, table: Table, receiver: str, rows: Tensor) -> Tensor:
        """Record the broadcast before the attacked round."""
        # The sum of the attacked round contains this broadcast once per client that did not train.
        if round == ROUND - 1 and receiver == self.victim:
            self.sent[table] = rows.clone()
        return rows

    def tensors(self) -> dict[Table, Tensor]:
        """Return the state for a checkpoint."""
        return self.sent

    def load(self, tensors: Mapping[Table, Tensor]) -> None:
        """Restore the state from a checkpoint."""
        self.sent = dict(tensors)

    def asks_to_train(self, round: int, party: str) -> bool:
        """Ask only the victim to train in the attacked round."""
        return round != ROUND or party == self.victim


Claim = tuple[int, np.ndarray | None]
"""Index of a run, and the victim's inferred upload, float64 `[N, W]`, NaN where the server has none; None without a sum."""
Claims = Mapping[tuple[str, bool], Claim | NotAttacked]
"""Claim by victim and by whether clients check the order of requests; or why the run ended."""


def run(view: KgeView, laboratory: KgeLaboratory, rng: np.random.Generator) -> Claims:
    """Train the first rounds with the attack, with clients that check the order and with clients that do not."""
    laboratory.check_sums(view)
    table, claims = laboratory.settings.recipe.shared[0], {}
    for victim in view.victims:
        for checks_order in (True, False):
            server = MisorderingServer(client_party(victim.name), checks_order=checks_order)
            try:
                attacked = laboratory.train_first(view, server, ROUND)
            except NotAttacked as reason:
                claims[victim.name, checks_order] = reason
                continue
            upload = None
            if (opened := attacked.sum_of(table, ROUND)) is not None:
                total, holders = opened
                # Every other holder uploaded the broadcast unchanged: upload = sum - (holders - 1) * broadcast.
                upload = total - np.maximum(holders - 1, 0)[:, None] * server.sent[table].double().numpy()
                upload = np.where(holders[:, None] > 0, upload, np.nan)
            claims[victim.name, checks_order] = attacked.run, upload
    return claims


def score(claims: Claims, truth: Truth) -> list[Figure]:
    """Compute the figures of every victim."""
    figures = []
    for (victim, checks_order), claim in claims.items():
        suffix = "" if checks_order else "_unchecked"
        if isinstance(claim, NotAttacked):
            figures += truth.not_attacked(victim, claim, [f"cosine{suffix}", f"relative_error{suffix}"])
        else:
            figures += _figures(claim, truth, victim, suffix)
    return figures


def _figures(claim: Claim, truth: Truth, victim: str, suffix: str) -> list[Figure]:
    run, upload = claim
    attacked: KgeResult = truth.runs[run]
    table = RECIPES[attacked.options.algorithm].shared[0]
    true, start, rows = update_recovery.moved_rows(attacked, victim, table)
    inferred = nothing = np.zeros_like(true)
    remark = ""
    if upload is None:
        excluded = attacked.rounds[ROUND].excluded
        # Clients that check the order refuse to upload without a request to train.
        remark = f"{len(excluded)} clients refused: {next(iter(excluded.values()), 'no sum was opened')}"
    else:
        inferred = np.nan_to_num(update_recovery.at_rows(upload, rows) - start)
    rng = generator(truth.seed, "misordered requests", victim, suffix)
    cosine, no_cosine = (mean(update_recovery.cosines(true, guess), rng) for guess in (inferred, nothing))
    error, no_error = (update_recovery.relative_error(true, guess, rng) for guess in (inferred, nothing))
    return [
        truth.figure(f"cosine{suffix}", victim, cosine, baseline=no_cosine, attainable=1.0, remark=remark),
        truth.figure(f"relative_error{suffix}", victim, error, baseline=no_error, attainable=0.0, remark=remark),
    ]


ATTACK = Attack(
    "server-order",
    "reads one client's upload from a secure sum: other clients are not asked to train; trains four rounds per victim",
    Needs(server=True),
    METRICS,
    run,
    score,
    threats=("server",),
    questions=dict.fromkeys(METRICS, UPLOADS),
    items=dict.fromkeys(METRICS, "rows that changed"),
    errors=("relative_error", "relative_error_unchecked"),
    trains=True,
)
