"""What the adversary claims of one victim from its view alone: a name for each row, and for any pair of rows a relation.

    claims = claim(view, victim, RelationGuesser(view.model, view.colluder, seed=0), ("cosine", "learned"))
    claims.names["cosine"].names          # a name for each of the victim's rows

The evaluator asks for the relations of the pairs that the attack is given (the linked ones, fedr.txt's way), and for a ranking of
pairs where none is given (`fkgsec.attacks.reconstruction.evaluation`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fkgsec.attacks.kge.view import KgeView, VictimView
from fkgsec.attacks.options import Inference
from fkgsec.attacks.reconstruction.inference import (
    EntityGuesses,
    PairRanking,
    infer_entities,
    infer_entities_nearest,
    infer_relation_rows,
    nothing_to_attack,
    rank_pairs,
)
from fkgsec.attacks.reconstruction.knowledge import NO_NAME, Knowledge
from fkgsec.attacks.reconstruction.relation_guesses import BY_VECTOR, RelationGuesser

WITHOUT_LINKS: tuple[Inference, ...] = ("score", "learned")


class Nothing(NamedTuple):
    """Why an adversary can claim nothing of a victim; `aligned`: see `Knowledge`."""

    reason: str
    aligned: bool


@dataclass(frozen=True, eq=False)
class Claims:
    """What one adversary says of one victim.

    Attributes:
        victim: the rows that it has of it. knowledge: what it knows of names whatever was trained.
        names: by inference, a guess for each of these rows.
        guesser: what it learnt from the colluder. rankings: of candidate pairs, which names do not change; filled in.
    """

    victim: VictimView
    knowledge: Knowledge
    names: Mapping[Inference, EntityGuesses]
    guesser: RelationGuesser
    rankings: dict[tuple[str, str, str], PairRanking]

    def relations(
        self, pairs: np.ndarray, relation_rows: np.ndarray, named: Mapping[Inference, np.ndarray]
    ) -> dict[Inference, np.ndarray]:
        """Names `[P]` by inference: from the pair of entity rows (Algorithm 2 i), or from the uploaded relation row (ii).

        Args:
            pairs: int64 `[P, 2]` places of head and tail among the victim's rows, -1 for one that the adversary does not have.
            relation_rows: places `[P]` of the relation rows that link them. named: the names `[P, 2]` of the ends, by inference.

        Under ii the adversary is given which uploaded relation row links each pair, beside the pair: more than under i, so
        FedR's TRR does not compare with FedE's as it stands. Algorithm 2 leaves open how the relation row is found.
        A pair whose rows never crossed gets no guess: what names alone would tell is the baseline `prior`.
        """
        found: dict[Inference, np.ndarray] = {}
        if self.victim.relations is not None and "cosine" in named:
            seen = np.append(~self.victim.relations.isnan().any(dim=1).numpy(), False)[relation_rows]
            rows = np.append(infer_relation_rows(self.guesser, self.victim), NO_NAME)[relation_rows]
            found["cosine"] = np.where(seen, rows, NO_NAME)
        by_pair: list[Inference] = [by for by in named if by not in found]
        if by_pair:
            assert self.victim.entities is not None
            seen = np.append(~self.victim.entities.isnan().any(dim=1).numpy(), False)[pairs].all(axis=1)
            readers: list[Inference] = [by for by in by_pair if by not in BY_VECTOR]
            heads, tails = named[(readers or by_pair)[0]][seen].T
            guesses = self.guesser.guess(self.victim, pairs[seen], heads, tails, by_pair)
            for by, relations in guesses.items():
                found[by] = np.full(len(pairs), NO_NAME, dtype=object)
                found[by][seen] = relations
        return {by: found[by] for by in named}

    def ranking_by(self, heads: np.ndarray) -> dict[Inference, PairRanking]:
        """Candidate pairs of these rows `[H]` with every row, without a hint which are linked, by inference.

        `learned` is left out where it was not asked for, or nothing could be learnt.
        """
        found: dict[Inference, PairRanking] = {}
        for by in WITHOUT_LINKS:
            key = self.victim.name, self.victim.origin, by
            if key not in self.rankings:
                if by == "score":
                    self.rankings[key] = rank_pairs(self.guesser, self.victim, heads)
                elif by in self.names and self.guesser.links is not None:
                    assert self.victim.entities is not None
                    self.rankings[key] = self.guesser.links.rank(self.victim.entities, heads)
            if key in self.rankings:
                found[by] = self.rankings[key]
        return found


def claim(
    view: KgeView,
    victim: VictimView,
    guesser: RelationGuesser | None,
    inferences: Sequence[Inference],
    rankings: dict[tuple[str, str, str], PairRanking],
) -> Claims | Nothing:
    """What the adversary claims of a victim; why it can claim nothing.

    Entities are named the paper's way for the inferences that compare with relation vectors, else by the nearer of the
    colluder's rows.
    """
    knowledge, reason = Knowledge.of(view, victim), nothing_to_attack(view, victim)
    if reason:
        return Nothing(reason, knowledge.aligned)
    assert guesser is not None
    found: dict[Inference, EntityGuesses] = {}
    for infer, wanted in ((infer_entities, BY_VECTOR), (infer_entities_nearest, ("names", "learned", "combined"))):
        if set(wanted) & set(inferences):
            found |= dict.fromkeys((by for by in inferences if by in wanted), infer(view, victim))
    return Claims(victim, knowledge, {by: found[by] for by in inferences}, guesser, rankings)
