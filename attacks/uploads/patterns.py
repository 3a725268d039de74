"""What does it tell which rows a victim sends? Of FedS, whose clients send in most rounds the rows that changed most.

    found = run_attacks(result, AttackOptions(attack=("patterns",)))
    for one in headline(found.figures):
        print(one.victim, one.metric, one.estimate, one.counts)          # hospital-2  degree  0.15 ...

Threat model: "server"; it sees which rows cross, as one bit each, whatever noise their values have. `degree`: Spearman's
correlation of how often a row was sent in sparse rounds with the number of the victim's training triples at its entity; or of how
seldom (`rarity`), since rows of many triples settle first where models learn fast. `linked`:
AUC of linked pairs, by how much more often both were sent in one round than their own frequencies would have it.

Baselines 0 and 0.5; the remark on `linked` says what the entities' true degrees would tell, which the server does not know.
Only rows that another client holds, too, are ever sent; pairs of others are no candidates. Source: ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np

from fkgsec.attacks.figure import NOT_ATTACKED, Figure
from fkgsec.attacks.kge.view import KgeView, VictimView
from fkgsec.attacks.laboratory import Laboratory
from fkgsec.attacks.membership.figures import placements
from fkgsec.attacks.registry import Attack, Needs, Truth
from fkgsec.attacks.uploads.pairs import Pairs, RankingAuc, candidate_pairs, linked_pairs
from fkgsec.attacks.uploads.rank_correlation import LEAST, correlation
from fkgsec.attacks.uploads.ways import by_ways
from fkgsec.estimate import exact

PATTERNS = "patterns"
METRICS = {
    "degree": "rank correlation of an entity's number of triples with how often its row was sent",
    "linked": "AUC of linked pairs by how often both rows were sent in one round",
}


def claim(view: KgeView, laboratory: Laboratory, rng: np.random.Generator) -> dict[str, tuple[np.ndarray, Pairs] | str]:
    """By victim which of its rows it sent in each sparse round, bool `[rounds, n]`, and the pairs to rank; or why not."""
    return {victim.name: _claim(victim, rng) for victim in view.victims}


def _claim(victim: VictimView, rng: np.random.Generator) -> tuple[np.ndarray, Pairs] | str:
    if victim.sent is None:
        return "no upload of it said which of its rows it has"
    return victim.sent, candidate_pairs(victim.sent.shape[1], rng)


def together(sent: np.ndarray, pairs: Pairs) -> np.ndarray:
    """Rounds in which both rows of a pair were sent, less those that their frequencies would give: float64 `[P]`."""
    counts, own = sent[:, pairs.rows].T.astype(np.float64) @ sent, sent.sum(axis=0)
    expected = own[pairs.rows][:, None] * own[None, :] / len(sent)
    return (counts - expected)[pairs.mask]


def score(claims: Mapping[str, tuple[np.ndarray, Pairs] | str], truth: Truth) -> list[Figure]:
    """Both figures of every victim; of rows that were sent at least once, and of pairs of these."""
    figures = []
    for victim, found in claims.items():
        if isinstance(found, str):
            figures += truth.not_attacked(victim, found)
            continue
        (sent, pairs), client = found, truth.client(victim)
        degree = np.bincount(client.train[:, [0, 2]].ravel(), minlength=sent.shape[1])[: sent.shape[1]]
        ever = np.asarray(sent.any(axis=0))
        counts = {"rounds": len(sent), "rows": int(ever.sum())}
        if ever.sum() < LEAST:
            figures += truth.not_attacked(victim, f"{ever.sum()} rows of it were sent; a correlation takes {LEAST}")
            continue
        often = sent.sum(axis=0)[ever]
        ways = {
            "frequency": partial(correlation, scores=often, values=degree[ever]),
            "rarity": partial(correlation, scores=-often, values=degree[ever]),
        }
        chance = {"chance": exact(0.0, int(ever.sum()))}
        figures += by_ways(truth, "degree", victim, ways, chance, attainable=1.0, counts=counts)
        figures += _linked(truth, victim, sent, pairs, ever, degree, counts)
    return figures


def _linked(
    truth: Truth,
    victim: str,
    sent: np.ndarray,
    pairs: Pairs,
    ever: np.ndarray,
    degree: np.ndarray,
    counts: dict[str, int],
) -> list[Figure]:
    linked = linked_pairs(truth.client(victim).train, pairs, np.arange(sent.shape[1]))
    kept = ever[pairs.first] & ever[pairs.second]
    scores, linked = together(sent, pairs)[kept], linked[kept]
    if min(linked.sum(), (~linked).sum()) < 2:
        reason = f"{linked.sum()} of {len(linked)} pairs are linked; it takes 2 linked ones and 2 others"
        return [truth.figure("linked", victim, NOT_ATTACKED, reason=reason)]
    some = Pairs(pairs.rows, pairs.mask, pairs.first[kept], pairs.second[kept])
    popular = np.log1p(degree[some.first]) + np.log1p(degree[some.second])
    remark = (
        f"by true degrees, which it does not know: {placements(popular[linked], popular[~linked]).members.mean():.3f}"
    )
    ways = {"together": RankingAuc(scores, linked, some).estimate}
    counts = counts | {"pairs": len(linked), "linked": int(linked.sum())}
    chance = {"chance": exact(0.5, len(linked))}
    return by_ways(truth, "linked", victim, ways, chance, attainable=1.0, counts=counts, remark=remark)


ATTACK = Attack(
    PATTERNS,
    "reads degrees and links from which rows a victim sends",
    Needs(server=True),
    METRICS,
    claim,
    score,
    threats=("server",),
    items={"degree": "entities of a victim", "linked": "pairs of a victim's rows"},
)
