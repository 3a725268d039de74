"""Holdings of a client, read off the difference of two secure sums, or off sums of rows that should have been suppressed.

Threat model of both: "server", active. The first two rounds are trained once more for each victim with the same seed and options.

`dropout-difference`: the server drops the victim from the sum of round 1, as if it had fallen silent, sends the table of round 0
again, and sums all clients in round 2. The counts of holders differ by the victim's rows, the sums by the victim's upload and by
how the others' trainings differ. `holders`: share of the table's rows of which the server tells whether the victim holds them;
baseline: the more frequent answer. `cosine`: mean cosine similarity between inferred and true updates; baseline: no change.

`count-lies`: under `suppress:t=...` the server tells all clients that every row has enough holders. `rare_rows`: share of the
victim's rows with too few holders, which an honest server's sum leaves out, whose sum this server opens; baseline: none.

Under `secagg:complete=true` clients confirm no sum that lacks a participant. Nothing stops a lie about counts, since only the
server sees them; noise in the ring bounds what such a sum tells.

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
from fkgsec.attacks.questions import ENTITIES, UPLOADS
from fkgsec.attacks.registry import Attack, Needs, Truth, score_each
from fkgsec.attacks.view import NotAttacked, claim_each
from fkgsec.estimate import mean, proportion
from fkgsec.federation.adversary import Adversary
from fkgsec.federation.messages import SERVER, client_party
from fkgsec.federation.recipes import RECIPES, Table
from fkgsec.kge.result import KgeResult
from fkgsec.randomness import generator

DROPOUT_DIFFERENCE, COUNT_LIES = "dropout-difference", "count-lies"
LAST = 2  # round whose sum has all clients


class DroppingServer(Adversary):
    """A server that drops one client from the sum of round 1, and then sends the table of round 0 again.

    Args:
        victim: the party that is dropped.
    """

    def __init__(self, victim: str) -> None:
        super().__init__(SERVER)
        self.victim = victim
        self._first: dict[tuple[Table, str], Tensor] = {}

    def identity(self) -> str:
        return f"{super().identity()} drops {self.victim}"

    def drops(self, round: int, party: str) -> bool:
        return round == 1 and party == self.victim

    def broadcast(self, round: int, table: Table, receiver: str, rows: Tensor) -> Tensor:
        if round == 0:
            self._first[table, receiver] = rows.clone()
        return self._first.get((table, receiver), rows) if round == 1 else rows


class LyingServer(Adversary):
    """A server that tells clients to send every row, however few hold it."""

    def __init__(self) -> None:
        super().__init__(SERVER)

    def rows_to_send(self, round: int, table: Table, enough: np.ndarray) -> np.ndarray:
        return np.ones_like(enough)


Dropped = tuple[int, tuple[np.ndarray, np.ndarray] | None]
"""A run without the victim in one sum, and which rows of the table the server says the victim holds, bool `[N]`, with its uploads
of them, float64 `[N, W]`; None where a sum was not opened."""


Lied = tuple[int, int, np.ndarray | None]
"""The runs without and with the lie, and which rows the latter's sum opens, bool `[N]`; None where none was opened."""


def run_dropout(view: KgeView, laboratory: KgeLaboratory, rng: np.random.Generator) -> dict[str, Dropped | NotAttacked]:
    """Read each victim's rows off two sums."""

    def drop(victim: Any) -> Dropped:
        attacked = laboratory.train_first(view, DroppingServer(client_party(victim.name)), LAST)
        table = laboratory.settings.recipe.shared[0]
        without, whole = (attacked.sum_of(table, round) for round in (1, LAST))
        if without is None or whole is None:
            return attacked.run, None
        return attacked.run, (whole[1] - without[1] > 0, whole[0] - without[0])

    return claim_each(view.victims, drop)


def run_lies(view: KgeView, laboratory: KgeLaboratory, rng: np.random.Generator) -> Lied:
    """Open sums by the lie."""
    if not laboratory.suppresses:
        raise NotAttacked("no rows are suppressed, so there is no count to lie about")
    honest, lying = (laboratory.train_first(view, adversary, LAST) for adversary in (None, LyingServer()))
    opened = lying.sum_of(laboratory.settings.recipe.shared[0], LAST)
    return honest.run, lying.run, None if opened is None else opened[1] > 0


@score_each
def score_dropout(truth: Truth, victim: str, claim: Dropped) -> list[Figure]:
    """Figures of `dropout-difference` for a victim."""
    number, difference = claim
    run: KgeResult = truth.runs[number]
    table = RECIPES[run.options.algorithm].shared[0]
    holds, guess = update_recovery.holds_rows(run, victim, table)
    true, start, rows = update_recovery.moved_rows(run, victim, table)
    inferred, share, remark = np.zeros_like(true), guess, ""
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
    """Figures of `count-lies` for each victim."""
    number, _, opened = claims
    honest: KgeResult = truth.runs[number]
    table = RECIPES[honest.options.algorithm].shared[0]
    sums = [entry for entry in honest.transcript.opened(LAST) if entry.table == table and entry.total]
    figures = []
    for victim in truth.victims:
        holds, _ = update_recovery.holds_rows(honest, victim, table)
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
