"""Examples for the report: triples that the adversary claims, right ones and wrong ones, chosen by a rule and not by hand.

examples_of(Run("fede", record, scores)).right           # claims of which it was surest, sensitive relations first
"""

from __future__ import annotations

import numpy as np

from attacks.reconstruction.evaluation import NO_NAME
from experiments.reporting.frames import attack_name, pooled
from experiments.reporting.html.model import Example, Examples, Run
from experiments.reporting.html.tables import attacked_items
from experiments.reporting.html.words import share, triple_words
from fkgsec.randomness import generator

_Triple = tuple[str, str, str, str]  # victim, head, relation, tail
NUM_EXAMPLES = 3  # right ones, and as many wrong ones, of each run
RULE = (
    f"For each run, under the attack that puts most triples at risk: the {NUM_EXAMPLES} right and the {NUM_EXAMPLES} wrong "
    "claims of which the adversary was surest, claims of sensitive relations first, ties drawn with the seed of the run. The "
    "score is the lower one of the two that named head and tail: a cosine of embeddings; where rows are summed the certainty "
    "of who holds them; 1 where names were read. The relation has no score in the record."
)


def examples_of(run: Run) -> Examples | None:
    """Claims of one run by `RULE`; None when nothing was attacked, or the scores are not there."""
    rows = [row for row in pooled(run.record) if not row.reason]
    row = max(rows, key=lambda row: row.trr.value, default=None)
    if row is None or run.scores is None:
        return None
    entities, triples = attacked_items(run.scores, row, "entity"), attacked_items(run.scores, row, "triple")
    named = zip(entities["victim"], entities["head"], entities["score"], strict=True)
    score_of = {(victim, name): score for victim, name, score in named}
    ends = zip(triples["victim"], triples["head"], triples["tail"], strict=True)
    surety = np.array([min(score_of[victim, head], score_of[victim, tail]) for victim, head, tail in ends])
    victims = triples["victim"].tolist()
    truths, claims = (
        list(zip(victims, *(triples[f"{kind}{part}"].tolist() for part in ("head", "relation", "tail")), strict=True))
        for kind in ("", "guessed_")
    )
    claimed = np.array([NO_NAME not in claim for claim in claims], dtype=bool)
    marked = np.isin(triples["guessed_relation"], run.record.data.sensitive)
    draw = generator(run.record.seed, "report examples").permutation(len(claims))
    order = [place for place in np.lexsort((draw, -surety, ~marked)).tolist() if claimed[place]]
    # Where two relations link a pair one claim answers for both; it is wrong only when the victim has no such triple.
    known = set(truths)
    chosen: dict[bool, dict[_Triple, Example]] = {True: {}, False: {}}
    for place in order:
        claim, right, data = claims[place], bool(triples["right"][place]), run.record.spec.data
        found = chosen[right]
        if (right or claim not in known) and claim not in found and len(found) < NUM_EXAMPLES:
            said, true = (
                triple_words(head, relation, tail, data) for _, head, relation, tail in (claim, truths[place])
            )
            found[claim] = Example(claim[0], said, true, float(surety[place]))
    num_claims, num_right = int(claimed.sum()), int(triples["right"].sum())
    return Examples(
        run=run.name,
        attack=attack_name(row.threat_model, row.leak),
        counts=f"{num_claims:,} claims about {len(claims):,} training triples; {num_right:,} are right, {share(row.trr)} of the "
        "triples.",
        right=tuple(chosen[True].values()),
        wrong=tuple(chosen[False].values()),
    )
