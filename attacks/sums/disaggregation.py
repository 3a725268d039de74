"""What each client's training changed, from the sums of many rounds in which different clients took part (disaggregation).

    found = run_attacks(result, AttackOptions(attack=("disaggregation",)), train=train)
    for one in found.figures:
        print(one.victim, one.metric, one.estimate, one.baseline)      # hospital-2  cosine  0.60 ...  0.31 ...

Threat model: "server", one that follows the protocol, alone. Of each sum it knows who is in it and how many of these hold each
row. A sum less what its holders had been sent is the sum of their changes; as a client changes a row alike in neighbouring
rounds, the changes of all clients are the least squares solution of the last sums, row by row. Who holds a row it tells in the
same way, from the counts. Where the same clients are in every sum, there is nothing to compare.

The transcript of a run keeps few sums, the server all: so the run is trained once more with the same seed and options, which
gives the same sums (under a defense from a script, by `run_attacks(..., train=...)` with its transport).

`cosine`, `relative_error`: of a victim's change in the best round, as in `attacks.update_recovery`, with the same baseline: no
change. Ways: `rounds`, by the sums of many rounds; `aggregate`, by the last sum alone, which the protocol exposes.

Source: Lam et al. 2021, "Gradient disaggregation: breaking privacy in federated learning by reconstructing the user participant
matrix"; here the participants are known. Differs: row by row, since not every client holds every row; with a ridge penalty and
weights that fall with age, since changes do vary; and such that they add up to the last sum. Without these three the estimate
is worse than the mean change of the last sum alone where training is young.

Legend: `R` sums, `C` clients, `N` rows, `W` width.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from attacks import update_recovery
from attacks.figure import Figure
from attacks.registry import Attack, Needs, Truth
from attacks.sums.plan import Plan, obstacle, plan
from fkgsec.federation.loop import FederationResult
from fkgsec.federation.messages import Opened, client_party
from fkgsec.federation.recipes import RECIPES
from fkgsec.randomness import generator

DISAGGREGATION = "disaggregation"
METRICS = {name: update_recovery.METRICS[name] for name in ("cosine", "relative_error")}
ROUNDS = "rounds"
SUMS_PER_CLIENT = 2
RIDGE, HALF_LIFE = 1.0, 3.0


def disaggregate(
    sums: Sequence[Opened], parties: Sequence[str], *, ridge: float = RIDGE, half_life: float = HALF_LIFE
) -> np.ndarray:
    """Each client's change of each row in the last of these sums, float64 `[C, N, W]`; 0 where it holds none.

    Args:
        sums: of one table in the order of the rounds, from the first one on.
        ridge: penalty on squared changes; 0 without any. half_life: after so many rounds a sum counts half.
    """
    members = np.array([[party in one.survivors for party in parties] for one in sums], dtype=np.float64)  # [R, C]
    counts = np.stack([one.sums()[1] for one in sums]).astype(np.float64)  # [R, N]
    holds = np.linalg.pinv(members) @ counts > 0.5  # [C, N]
    changes, known = _changes(sums)
    window = slice(max(0, len(sums) - SUMS_PER_CLIENT * len(parties)), len(sums))
    rounds = np.array([one.round for one in sums])[window]
    weights = 0.5 ** ((rounds[-1] - rounds) / half_life)
    found = np.zeros((len(parties), *changes.shape[1:]))
    patterns, pattern_of = np.unique(np.concatenate([holds, known[window]]), axis=1, return_inverse=True)
    for number, pattern in enumerate(patterns.T):
        rows = np.flatnonzero(pattern_of.ravel() == number)
        held, usable = pattern[: len(parties)], pattern[len(parties) :]
        design, weighted = (members[window] * held)[usable], (members[window] * held * weights[:, None])[usable]
        system = np.linalg.pinv(weighted.T @ design + ridge * np.eye(len(parties))) @ weighted.T  # [C, R]
        observed = changes[window][usable][:, rows]
        own = np.einsum("cr,rnw->cnw", system, observed)
        if usable[-1] and design[-1].any():  # the last sum is what it is: what is left of it goes to all in it alike
            left = observed[-1] - np.einsum("c,cnw->nw", design[-1], own)
            own += design[-1][:, None, None] * left / design[-1].sum()
        found[:, rows] = own
    return found


def _changes(sums: Sequence[Opened]) -> tuple[np.ndarray, np.ndarray]:
    """The sums of changes float64 `[R, N, W]`, and where they are known, bool `[R, N]`: of rows that were summed before."""
    totals, holders = zip(*(one.sums() for one in sums), strict=True)
    sent = np.full_like(totals[0], np.nan)
    changes, known = np.zeros((len(sums), *sent.shape)), np.zeros((len(sums), len(sent)), dtype=bool)
    for number, (total, count) in enumerate(zip(totals, holders, strict=True)):
        there = count > 0
        known[number] = there & ~np.isnan(sent).any(axis=1)
        changes[number][known[number]] = (total - count[:, None] * sent)[known[number]]
        sent[there] = total[there] / count[there, None]
    return changes, known


def score(plan: Plan, truth: Truth) -> list[Figure]:
    """Train the run once more for its sums; figures of every victim."""
    result: FederationResult = truth.result
    if reason := obstacle(truth):
        return [figure for victim in plan.victims for figure in truth.not_attacked(victim, reason)]
    rounds = range(1, result.best_round + 1)
    again: FederationResult = truth.view.train(result.graph, result.options, rounds_needed=rounds)
    table = RECIPES[result.options.algorithm].shared[0]
    sums = [one for number in rounds for one in again.transcript.opened(number) if one.table == table and one.total]
    parties = [client_party(client.name) for client in again.graph.clients]
    if not sums or sums[-1].round != again.best_round:
        reason = f"no sum of round {again.best_round} was opened"
    elif len({frozenset(one.survivors) for one in sums}) < 2:
        reason = "the same clients are in every sum"
    if reason:
        return [figure for victim in plan.victims for figure in truth.not_attacked(victim, reason)]
    found = disaggregate(sums, parties)
    return [
        figure
        for victim in plan.victims
        for figure in _figures(truth, again, victim, found[parties.index(client_party(victim))])
    ]


def _figures(truth: Truth, again: FederationResult, victim: str, estimated: np.ndarray) -> list[Figure]:
    table = RECIPES[again.options.algorithm].shared[0]
    by_last_sum = update_recovery.by_the_server(truth, again, victim, table)
    if isinstance(by_last_sum, str):
        return truth.not_attacked(victim, by_last_sum)
    place = next(place for place, client in enumerate(again.graph.clients) if client.name == victim)
    names, start, end = update_recovery.client_rows(again, place, table)
    row_of = {name: row for row, name in enumerate(again.row_names[table])}
    changed = [
        row_of[name] for name, moved in zip(names, update_recovery.changed_rows(start, end), strict=True) if moved
    ]
    changes = by_last_sum._replace(inferred={ROUNDS: estimated[changed], **by_last_sum.inferred})
    return update_recovery.figures_of(truth, victim, changes, generator(truth.seed, "disaggregation", victim))


ATTACK = Attack(
    DISAGGREGATION,
    "takes secure sums of many rounds apart, where participants change; trains the run once more for its sums",
    Needs(server=True),
    METRICS,
    plan,
    score,
    threats=("server",),
    items=dict.fromkeys(METRICS, "rows that changed"),
    errors=("relative_error",),
    in_order=True,
    trains=True,
)
