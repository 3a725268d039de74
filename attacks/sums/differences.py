"""What one client holds, read off the difference of two secure sums, or off sums of rows that should have been suppressed.

    found = run_attacks(result, AttackOptions(attack=("dropout-difference", "count-lies")), train=train)

Threat model of both: "server", active. Both change the run: its first two rounds are trained once more for each victim with the
same seed and options.

`dropout-difference`: the server drops the victim from the sum of round 1, as if it had fallen silent, sends the table of round 0
again, and sums all clients in round 2. The counts of holders differ by the victim's rows. The sums differ by the victim's upload
and by how the others' trainings differ. `holders`: share of the table's rows of which the server tells whether the victim holds
them; baseline: the more frequent answer. `cosine`: mean cosine similarity between the inferred and the true update of the
victim's rows; baseline: no change, which a server claims without any message.

`count-lies`: under `suppress:t=...` the server tells all clients that every row has enough holders. `rare_rows`: share of the
victim's rows with too few holders, which an honest server's sum leaves out, whose sum this server opens; baseline: none.

What stops them: under `secagg:complete=true` clients confirm no sum that lacks a participant. Nothing stops a lie about counts,
since only the server sees them; noise in the ring bounds what such a sum tells.

Source: ours, after Lam et al. 2021, "Gradient disaggregation", for differences of sums.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec
import numpy as np
from torch import Tensor

from attacks import update_recovery
from attacks.figure import NOT_ATTACKED, Figure
from attacks.registry import Attack, Needs, Truth
from attacks.sums.plan import Plan, obstacle, plan
from fkgsec.errors import FkgsecError
from fkgsec.estimate import mean, proportion
from fkgsec.federation.adversary import Adversary
from fkgsec.federation.loop import FederationResult
from fkgsec.federation.messages import SERVER, Opened, client_party
from fkgsec.federation.recipes import RECIPES, Table
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


def score_dropout(plan: Plan, truth: Truth) -> list[Figure]:
    """Figures of `dropout-difference` for each victim."""
    figures = []
    for victim in plan.victims:
        run = _train(truth, DroppingServer(client_party(victim)))
        figures += truth.not_attacked(victim, run) if isinstance(run, str) else _dropout_figures(truth, victim, run)
    return figures


def score_lies(plan: Plan, truth: Truth) -> list[Figure]:
    """Figures of `count-lies` for each victim."""
    if "suppress" not in truth.result.options.defense:
        reason = "no rows are suppressed, so there is no count to lie about"
        return [figure for victim in plan.victims for figure in truth.not_attacked(victim, reason)]
    honest, lying = (_train(truth, adversary) for adversary in (None, LyingServer()))
    figures = []
    for victim in plan.victims:
        runs = [run for run in (honest, lying) if not isinstance(run, str)]
        reasons = [run for run in (honest, lying) if isinstance(run, str)]
        figures += truth.not_attacked(victim, reasons[0]) if reasons else [_lie_figure(truth, victim, *runs)]
    return figures


def _train(truth: Truth, adversary: Adversary | None) -> FederationResult | str:
    """The first rounds with the adversary in them, or the reason why there is nothing to attack."""
    if reason := obstacle(truth):
        return reason
    options = msgspec.structs.replace(truth.result.options, rounds=LAST, eval_every=LAST, patience=0)
    try:
        return truth.view.train(truth.result.graph, options, adversary=adversary)
    except FkgsecError as error:
        return f"the run ended with the attack in it: {error}"


def _dropout_figures(truth: Truth, victim: str, run: FederationResult) -> list[Figure]:
    table, index = _victim_table(run, victim)
    names, start, end = update_recovery.client_rows(run, index, table)
    row_of = {name: row for row, name in enumerate(run.row_names[table])}
    holds = np.isin(np.arange(len(row_of)), [row_of[name] for name in names])
    guess = proportion(int(max(holds.sum(), (~holds).sum())), len(holds))
    moved = np.abs(end - start).max(axis=1) > 0
    true, claimed = (end - start)[moved], np.zeros_like(start[moved])
    sums = {round: _sum_of(run, round, table) for round in (1, LAST)}
    without, whole = sums[1], sums[LAST]
    told, remark = guess, "no sum without the victim was opened, so there is nothing to compare"
    if without is not None and whole is not None:
        difference = whole[1] - without[1]
        told, remark = proportion(int(((difference > 0) == holds).sum()), len(holds)), ""
        rows = np.array([row_of[name] for name in names])[moved]
        found = (whole[0] - without[0])[rows] - start[moved]
        claimed = np.where((difference[rows] > 0)[:, None], found, 0.0)
    rng = generator(truth.seed, "difference of sums", victim)
    cosines = [mean(update_recovery.cosines(true, guess), rng) for guess in (claimed, np.zeros_like(true))]
    return [
        truth.figure("holders", victim, told, baseline=guess, attainable=1.0, remark=remark),
        truth.figure("cosine", victim, cosines[0], baseline=cosines[1], attainable=1.0, remark=remark),
    ]


def _lie_figure(truth: Truth, victim: str, honest: FederationResult, lying: FederationResult) -> Figure:
    table, index = _victim_table(honest, victim)
    mine = np.isin(honest.row_names[table], update_recovery.client_rows(honest, index, table)[0])
    sums = [_sum_of(run, LAST, table) for run in (honest, lying)]
    if sums[0] is None:
        return truth.figure("rare_rows", victim, NOT_ATTACKED, reason="no sum was opened")
    rare = mine & (sums[0][1] == 0)
    num = int(rare.sum())
    if not num:
        return truth.figure("rare_rows", victim, NOT_ATTACKED, reason="enough clients hold each of its rows")
    opened = 0 if sums[1] is None else int((sums[1][1][rare] > 0).sum())
    return truth.figure("rare_rows", victim, proportion(opened, num), baseline=proportion(0, num), attainable=1.0)


def _sum_of(run: FederationResult, round: int, table: Table) -> tuple[np.ndarray, np.ndarray] | None:
    """The opened sum of a round, float64 `[N, W]`, and how many clients hold each row, `[N]`; None if none was opened."""
    opened: list[Opened] = [one for one in run.transcript.opened(round) if one.table == table and one.total]
    return opened[0].sums() if opened else None


def _victim_table(run: FederationResult, victim: str) -> tuple[Table, int]:
    """The first shared table, and the victim's client index."""
    return RECIPES[run.options.algorithm].shared[0], [client.name for client in run.graph.clients].index(victim)


def _attack(
    name: str,
    about: str,
    metrics: Mapping[str, str],
    score: Callable[[Plan, Truth], list[Figure]],
    items: Mapping[str, str],
) -> Attack:
    needs = Needs(server=True)
    return Attack(
        name, about, needs, metrics, plan, score, threats=("server",), items=items, in_order=True, trains=True
    )


DROPOUT = _attack(
    DROPOUT_DIFFERENCE,
    "reads what one client holds off two secure sums, one of them without the client; trains two rounds for each victim",
    {
        "holders": "share of rows of which the server tells whether the victim holds them",
        "cosine": "mean cosine similarity between inferred and true updates",
    },
    score_dropout,
    {"holders": "rows of the table", "cosine": "rows that changed"},
)
LIES = _attack(
    COUNT_LIES,
    "opens sums of rows with few holders by telling clients that enough hold them; trains two rounds for each victim",
    {"rare_rows": "share of the victim's rows with too few holders whose sum is opened"},
    score_lies,
    {"rare_rows": "rows of the victim with too few holders"},
)
