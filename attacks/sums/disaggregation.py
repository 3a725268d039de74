"""Infer each client's changes from the sums of many rounds in which different clients took part (disaggregation).

Threat model: "server", honest but curious, without a colluder. Required knowledge: of each sum, its participants and how many
of them hold each row. A sum minus what its holders had received is the sum of their changes. A client changes a row alike in
neighboring rounds, so the changes of all clients are the least-squares solution of the last sums, row by row. The counts
determine the holders of a row in the same way. If the same clients are in every sum, there is nothing to compare. The
transcript keeps few sums, so the run is trained once more with the same seed and options, which gives the same sums.

`cosine`, `relative_error`: of a victim's change in the best round, as in `fkgsec.attacks.update_recovery`. Inference methods:
`rounds` uses the sums of many rounds; `aggregate` uses the last sum alone, which the protocol exposes.

Source: Lam et al. 2021, "Gradient disaggregation: breaking privacy in federated learning by reconstructing the user participant
matrix"; here the participants are known. Differs: solved row by row, since not every client holds every row; with a ridge
penalty and weights that decrease with age, since changes vary between rounds; and such that the changes add up to the last sum.

Legend: `R` sums, `C` clients, `N` rows, `W` width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fkgsec.attacks import update_recovery
from fkgsec.attacks.figure import Figure
from fkgsec.attacks.kge.laboratory import KgeLaboratory
from fkgsec.attacks.kge.view import KgeView
from fkgsec.attacks.questions import UPLOADS
from fkgsec.attacks.registry import Attack, Needs, Truth
from fkgsec.attacks.view import NotAttacked
from fkgsec.federation.messages import Opened, client_party
from fkgsec.federation.recipes import Table
from fkgsec.randomness import generator

METRICS = {name: update_recovery.METRICS[name] for name in ("cosine", "relative_error")}
ROUNDS = "rounds"
SUMS_PER_CLIENT = 2
RIDGE, HALF_LIFE = 1.0, 3.0


def disaggregate(
    sums: Sequence[Opened], parties: Sequence[str], *, ridge: float = RIDGE, half_life: float = HALF_LIFE
) -> np.ndarray:
    """Infer each client's change of each row in the last of these sums, float64 `[C, N, W]`; 0 where it holds none.

    Args:
        sums: of one table, in the order of rounds, starting with the first.
        parties: parties in the order of the result.
        ridge: penalty on squared changes, at least 0.
        half_life: number of rounds after which a sum has half its weight.
    """
    takes_part = [[party in opened.survivors for party in parties] for opened in sums]
    # Counts are linear in the holdings: counts = members @ holds, so the pseudoinverse estimates who holds a row.
    members = np.array(takes_part, dtype=np.float64)  # [R, C]
    counts = np.stack([opened.sums()[1] for opened in sums]).astype(np.float64)  # [R, N]
    holds = np.linalg.pinv(members) @ counts > 0.5  # [C, N]
    changes, is_known = _changes(sums)
    # Only recent sums: changes vary over rounds, and `SUMS_PER_CLIENT` equations per unknown suffice.
    window = slice(max(0, len(sums) - SUMS_PER_CLIENT * len(parties)), len(sums))
    rounds = np.array([opened.round for opened in sums])[window]
    weights = 0.5 ** ((rounds[-1] - rounds) / half_life)
    changes_of = np.zeros((len(parties), *changes.shape[1:]))
    # Rows with the same holders and the same usable sums have the same linear system; solve each system once.
    patterns, pattern_of = np.unique(np.concatenate([holds, is_known[window]]), axis=1, return_inverse=True)
    for number, pattern in enumerate(patterns.T):
        rows = np.flatnonzero(pattern_of.ravel() == number)
        holding, usable = pattern[: len(parties)], pattern[len(parties) :]
        design, weighted = (members[window] * holding)[usable], (members[window] * holding * weights[:, None])[usable]
        # Weighted ridge regression of the observed sums of changes on the participants: (A'WA + ridge I)^-1 A'W.
        system = np.linalg.pinv(weighted.T @ design + ridge * np.eye(len(parties))) @ weighted.T  # [C, R]
        observed = changes[window][usable][:, rows]
        estimates = np.einsum("cr,rnw->cnw", system, observed)
        # The last sum is exact: distribute what the regression leaves unexplained equally among its holders.
        if usable[-1] and design[-1].any():
            left = observed[-1] - np.einsum("c,cnw->nw", design[-1], estimates)
            estimates += design[-1][:, None, None] * left / design[-1].sum()
        changes_of[:, rows] = estimates
    return changes_of


def _changes(sums: Sequence[Opened]) -> tuple[np.ndarray, np.ndarray]:
    """Return the sums of changes, float64 `[R, N, W]`, and where they are known, bool `[R, N]`: rows that were summed before."""
    totals, holders = zip(*(opened.sums() for opened in sums), strict=True)
    sent = np.full_like(totals[0], np.nan)
    changes, is_known = np.zeros((len(sums), *sent.shape)), np.zeros((len(sums), len(sent)), dtype=bool)
    for number, (total, count) in enumerate(zip(totals, holders, strict=True)):
        there = count > 0
        is_known[number] = there & ~np.isnan(sent).any(axis=1)
        # sum of changes = sum of uploads - count * broadcast, where the broadcast is the mean of the previous sum.
        changes[number][is_known[number]] = (total - count[:, None] * sent)[is_known[number]]
        sent[there] = total[there] / count[there, None]
    return changes, is_known


class Claims(NamedTuple):
    """The server's estimate of each victim's training.

    Attributes:
        run: index of the repeated run, see `View.run`.
        table: the summed table.
        changes: inferred changes of the table's rows by victim, float64 `[N, W]`.
        by_last_sum: estimates from the last sum alone, by victim.
    """

    run: int
    table: Table
    changes: Mapping[str, np.ndarray]
    by_last_sum: Mapping[str, update_recovery.Recovered]


def run(view: KgeView, laboratory: KgeLaboratory, rng: np.random.Generator) -> Claims:
    """Train the run once more for its sums, and take these apart."""
    laboratory.check_sums(view)
    table = laboratory.settings.recipe.shared[0]
    again: KgeView = laboratory.train(rounds=range(1, view.round + 1))
    sums = again.sums_of(table)
    if not sums or sums[-1].round != again.round:
        raise NotAttacked(f"no sum of round {again.round} was opened")
    # Constant participation gives one equation per row, whatever the number of rounds.
    if len({frozenset(opened.survivors) for opened in sums}) < 2:
        raise NotAttacked("the same clients are in every sum")
    parties = again.secure[table].parties
    changes = dict(zip(parties, disaggregate(sums, parties), strict=True))
    of_victims = {victim.name: changes[client_party(victim.name)] for victim in again.victims}
    return Claims(again.run, table, of_victims, update_recovery.recover(again, table))


def score(claims: Claims, truth: Truth) -> list[Figure]:
    """Compute the figures of every victim."""
    figures, again, table = [], truth.runs[claims.run], claims.table
    for victim in truth.victims:
        try:
            last = update_recovery.changes_of(truth, claims.run, victim, table, claims.by_last_sum.get(victim))
        except NotAttacked as reason:
            figures += truth.not_attacked(victim, reason)
            continue
        names, start, end = update_recovery.client_rows(again, truth.index(victim), table)
        rows = update_recovery.table_rows(again, names, table)[update_recovery.changed_rows(start, end)]
        # Compare with the last sum alone, which the protocol exposes without this attack.
        changes = last._replace(inferred={ROUNDS: claims.changes[victim][rows], **last.inferred})
        rng = generator(truth.seed, "disaggregation", victim)
        figures += update_recovery.figures_of(truth, victim, changes, rng)
    return figures


ATTACK = Attack(
    "disaggregation",
    "separates secure sums of many rounds with changing participants; trains the run once more for its sums",
    Needs(server=True),
    METRICS,
    run,
    score,
    threats=("server",),
    questions=dict.fromkeys(METRICS, UPLOADS),
    items=dict.fromkeys(METRICS, "rows that changed"),
    errors=("relative_error",),
    trains=True,
)
