"""Inference from which rows a victim sends, for FedS, whose clients send in most rounds only the rows that changed most.

Threat model: "server". Required knowledge: which rows each client sends, one bit per row and round, whatever noise their values
have. `degree`: Spearman's correlation of an entity's number of training triples with how often its row was sent in sparse
rounds (`frequency`), or how seldom (`rarity`): rows with many triples converge first where models learn fast. `linked`: AUC of
linked pairs by how much more often both rows were sent in one round than their separate frequencies predict.

Baselines: 0 and 0.5. The remark on `linked` states what the entities' true degrees would reveal, which the server does not
know. Clients send only rows that another client shares, so pairs with other rows are no candidates. Source: ours.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from fkgsec.attacks.figure import Figure
from fkgsec.attacks.kge.view import KgeView, VictimView
from fkgsec.attacks.laboratory import Laboratory
from fkgsec.attacks.membership.figures import placements
from fkgsec.attacks.membership.intervals import LEAST, spearman
from fkgsec.attacks.questions import LINKS
from fkgsec.attacks.registry import Attack, Needs, Truth, score_each
from fkgsec.attacks.uploads.pairs import Pairs, candidate_pairs, linked_pairs, ranking_auc
from fkgsec.attacks.view import NotAttacked, claim_each
from fkgsec.estimate import exact

METRICS = {
    "degree": "rank correlation of an entity's number of triples with how often its row was sent",
    "linked": "AUC of linked pairs by how often both rows were sent in one round",
}


def claim(
    view: KgeView, laboratory: Laboratory, rng: np.random.Generator
) -> dict[str, tuple[np.ndarray, Pairs] | NotAttacked]:
    """Read the rows that each victim sent in each sparse round, bool `[rounds, n]`, and draw the pairs to rank.

    Args:
        laboratory: not used; the attack trains nothing.
        rng: draws candidate pairs of large victims.
    """

    def sent(victim: VictimView) -> tuple[np.ndarray, Pairs]:
        """Read one victim's pattern."""
        if victim.sent is None:
            raise NotAttacked("no upload of it said which of its rows it has")
        return victim.sent, candidate_pairs(victim.sent.shape[1], rng)

    return claim_each(view.victims, sent)


def together(sent: np.ndarray, pairs: Pairs) -> np.ndarray:
    """Count the rounds in which both rows of a pair were sent, minus the number expected from their frequencies.

    Args:
        sent: rows sent in each round, bool `[rounds, n]`.

    Returns:
        float64 `[P]`.
    """
    counts, times = sent[:, pairs.rows].T.astype(np.float64) @ sent, sent.sum(axis=0)
    # If rows were sent independently, both would be sent in times_i * times_j / rounds rounds.
    expected = times[pairs.rows][:, None] * times[None, :] / len(sent)
    return (counts - expected)[pairs.mask]


@score_each
def score(truth: Truth, victim: str, claim: tuple[np.ndarray, Pairs]) -> list[Figure]:
    """Compute both figures of a victim, for rows that were sent at least once, and for pairs of these."""
    sent, pairs = claim
    train = truth.client(victim).train
    degree = np.bincount(train[:, [0, 2]].ravel(), minlength=sent.shape[1])[: sent.shape[1]]
    ever = np.asarray(sent.any(axis=0))
    counts = {"rounds": len(sent), "rows": int(ever.sum())}
    if ever.sum() < LEAST:
        raise NotAttacked(f"{ever.sum()} rows of it were sent; a correlation takes {LEAST}")
    # FedS sends the rows that changed most (feds.txt Eq. 1 and 2), so the frequency reflects how much training touches
    # a row.
    often = sent.sum(axis=0)[ever]
    correlations = {
        "frequency": partial(spearman, often, degree[ever]),
        "rarity": partial(spearman, -often, degree[ever]),
    }
    chance = {"chance": exact(0.0, int(ever.sum()))}
    figures = truth.figures("degree", victim, correlations, chance, attainable=1.0, counts=counts)
    linked = linked_pairs(train, pairs, np.arange(sent.shape[1]))
    both = ever[pairs.first] & ever[pairs.second]
    scores, linked = together(sent, pairs)[both], linked[both]
    if min(linked.sum(), (~linked).sum()) < 2:
        reason = f"{linked.sum()} of {len(linked)} pairs are linked; it takes 2 linked ones and 2 others"
        return figures + truth.not_attacked(victim, reason, ["linked"])
    some = Pairs(pairs.rows, pairs.mask, pairs.first[both], pairs.second[both])
    popular = np.log1p(degree[some.first]) + np.log1p(degree[some.second])
    # For comparison: the AUC of an adversary that knows every entity's degree.
    auc = placements(popular[linked], popular[~linked]).members.mean()
    return figures + truth.figures(
        "linked",
        victim,
        {"together": partial(ranking_auc, scores, linked, some)},
        {"chance": exact(0.5, len(linked))},
        attainable=1.0,
        counts=counts | {"pairs": len(linked), "linked": int(linked.sum())},
        remark=f"by true degrees, which it does not know: {auc:.3f}",
    )


ATTACK = Attack(
    "patterns",
    "infers degrees and links from which rows a victim sends",
    Needs(server=True),
    METRICS,
    claim,
    score,
    threats=("server",),
    questions=dict.fromkeys(METRICS, LINKS),
    items={"degree": "entities of a victim", "linked": "pairs of a victim's rows"},
)
