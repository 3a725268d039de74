"""Infer a client's rows from the difference of two secure sums, or from sums of rows that should have been suppressed.

Threat model of both: "server", active. Required knowledge: opened sums with their holder counts. The first two rounds are
trained once more for each victim with the same seed and options.

`dropout-difference`: the server drops the victim from the sum of round 1, as if it had disconnected. It sends the table of
round 0 again, and sums all clients in round 2. The holder counts differ by the victim's rows. The sums differ by the victim's
upload and by the changes in the others' training. `holders`: accuracy of the server's claims whether the victim holds each row
of the table; baseline: the more frequent answer. `cosine`: mean cosine similarity between inferred and true updates; baseline:
no change.

`count-lies`: under `suppress:t=...` the server tells all clients that every row has enough holders. `rare_rows`: share of the
victim's rows with too few holders, which an honest server's sum leaves out, whose sum this server opens; baseline: none.

Under `secagg:complete=true` clients confirm no sum that lacks a participant. Nothing prevents a lie about counts, since only
the server sees them. Noise in the ring bounds what such a sum reveals.

Source: ours, after Lam et al. 2021, "Gradient disaggregation", for differences of sums.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from fkgsec.attacks import update_recovery
from fkgsec.attacks.figure import Figure
from fkgsec.attacks.kge.laboratory import KgeLaboratory
from fkgsec.attacks.kge.view import KgeView
from fkgsec.attacks.needs import Needs
from fkgsec.attacks.questions import ENTITIES, UPLOADS
from fkgsec.attacks.registry import Attack, Truth, score_each
from fkgsec.attacks.view import NotAttacked, claim_each
from fkgsec.estimate import mean, proportion
from fkgsec.federation.adversary import Adversary
from fkgsec.federation.messages import SERVER, client_party
from fkgsec.federation.recipes import RECIPES, Table
from fkgsec.kge.result import KgeResult
from fkgsec.randomness import generator

DROPOUT_DIFFERENCE, COUNT_LIES = "dropout-difference", "count-lies"
# Round whose sum has all clients.
LAST = 2


class DroppingServer(Adversary):
    """A server that drops one client from the sum of round 1, and then sends the table of round 0 again.

    Args:
        victim: party that is dropped.
    """

    def __init__(self, victim: str) -> None:
        super().__init__(SERVER)
        self.victim = victim
        self._first: dict[tuple[Table, str], Tensor] = {}

    def identity(self) -> str:
        """Describe the adversary for the identity of its run."""
        return f"{super().identity()} drops {self.victim}"

    def drops(self, round: int, party: str) -> bool:
        """Drop the victim from the sum of round 1."""
        return round == 1 and party == self.victim

    def broadcast(self, round: int, table: Table, receiver: str, rows: Tensor) -> Tensor:
        """Send the table of round 0 again after round 1."""
        # Clients that start from the same rows change them alike, so that the others' inputs nearly cancel in the
        # difference.
        if round == 0:
            self._first[table, receiver] = rows.clone()
        return self._first.get((table, receiver), rows) if round == 1 else rows


class LyingServer(Adversary):
    """A server that tells clients to send every row, however few clients hold it."""

    def __init__(self) -> None:
        super().__init__(SERVER)

    def rows_to_send(self, round: int, table: Table, enough: np.ndarray) -> np.ndarray:
        """Claim that every row has enough holders."""
        return np.ones_like(enough)


Dropped = tuple[int, tuple[np.ndarray, np.ndarray] | None]
"""Index of a run without the victim in one sum; and the rows of the table that the server claims the victim holds, bool `[N]`,
with its inferred uploads, float64 `[N, W]`, or None if a sum was not opened."""


Lied = tuple[int, int, np.ndarray | None]
"""Indices of the runs without and with the lie, and the rows that the latter's sum opens, bool `[N]`; None without a sum."""


def run_dropout(view: KgeView, laboratory: KgeLaboratory, rng: np.random.Generator) -> dict[str, Dropped | NotAttacked]:
    """Infer each victim's rows from two sums."""

    def drop(victim: Any) -> Dropped:
        """Attack one victim."""
        attacked = laboratory.train_first(view, DroppingServer(client_party(victim.name)), LAST)
        table = laboratory.settings.recipe.shared[0]
        # holders: counts of (all) - counts of (all but the victim). upload: sum of (all) - sum of (all but the victim).
        without, whole = (attacked.sum_of(table, round) for round in (1, LAST))
        if without is None or whole is None:
            return attacked.run, None
        return attacked.run, (whole[1] - without[1] > 0, whole[0] - without[0])

    return claim_each(view.victims, drop)


def run_lies(view: KgeView, laboratory: KgeLaboratory, rng: np.random.Generator) -> Lied:
    """Open the sums of rows with too few holders, by a lie about the counts."""
    # The attack targets suppression of rare rows only.
    if not laboratory.suppresses:
        raise NotAttacked("no rows are suppressed, so there is no count to lie about")
    honest, lying = (laboratory.train_first(view, adversary, LAST) for adversary in (None, LyingServer()))
    opened = lying.sum_of(laboratory.settings.recipe.shared[0], LAST)
    return honest.run, lying.run, None if opened is None else opened[1] > 0


@score_each
def score_dropout(truth: Truth, victim: str, claim: Dropped) -> list[Figure]:
    """Compute the figures of `dropout-difference` for a victim."""
    number, difference = claim
    run: KgeResult = truth.runs[number]
    table = RECIPES[run.options.algorithm].shared[0]
    holds, guess = update_recovery.holds_rows(run, victim, table)
    true, start, rows = update_recovery.moved_rows(run, victim, table)
    inferred, share, remark = np.zeros_like(true), guess, ""
    # A client that refuses to confirm the smaller sum prevents the attack; the figure then equals its baseline.
    if difference is None:
        remark = "no sum without the victim was opened, so there is nothing to compare"
    else:
        is_held, uploads = difference
        share = proportion(int((is_held == holds).sum()), len(holds))
        inferred = np.where(is_held[rows][:, None], uploads[rows] - start, 0.0)
    rng = generator(truth.seed, "difference of sums", victim)
    cosines = [mean(update_recovery.cosines(true, guess), rng) for guess in (inferred, np.zeros_like(true))]
    return [
        truth.figure("holders", victim, share, baseline=guess, attainable=1.0, remark=remark),
        truth.figure("cosine", victim, cosines[0], baseline=cosines[1], attainable=1.0, remark=remark),
    ]


def score_lies(claims: Lied, truth: Truth) -> list[Figure]:
    """Compute the figures of `count-lies` for each victim."""
    number, _, opened = claims
    honest: KgeResult = truth.runs[number]
    table = RECIPES[honest.options.algorithm].shared[0]
    sums = [entry for entry in honest.transcript.opened(LAST) if entry.table == table and entry.total]
    figures = []
    for victim in truth.victims:
        holds, _ = update_recovery.holds_rows(honest, victim, table)
        # Rows that the honest run suppressed: the victim holds them, and the sum has no holder.
        rare = holds & (sums[0].sums()[1] == 0) if sums else holds
        if not (sums and rare.any()):
            reason = "enough clients hold each of its rows" if sums else "no sum was opened"
            figures += truth.not_attacked(victim, reason)
            continue
        num, num_opened = int(rare.sum()), 0 if opened is None else int(opened[rare].sum())
        baseline = proportion(0, num)
        figures.append(
            truth.figure("rare_rows", victim, proportion(num_opened, num), baseline=baseline, attainable=1.0)
        )
    return figures


DROPOUT = Attack(
    DROPOUT_DIFFERENCE,
    "reads what one client holds off two secure sums, one of them without the client; trains two rounds for each victim",
    Needs(server=True),
    {
        "holders": "share of rows of which the server tells whether the victim holds them",
        "cosine": "mean cosine similarity between inferred and true updates",
    },
    run_dropout,
    score_dropout,
    threats=("server",),
    questions={"holders": ENTITIES, "cosine": UPLOADS},
    items={"holders": "rows of the table", "cosine": "rows that changed"},
    trains=True,
)
LIES = Attack(
    COUNT_LIES,
    "opens sums of rows with few holders by telling clients that enough hold them; trains two rounds for each victim",
    Needs(server=True),
    {"rare_rows": "share of the victim's rows with too few holders whose sum is opened"},
    run_lies,
    score_lies,
    threats=("server",),
    questions={"rare_rows": UPLOADS},
    items={"rare_rows": "rows of the victim with too few holders"},
    trains=True,
)
