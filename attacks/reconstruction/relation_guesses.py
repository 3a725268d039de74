"""Infer the relation of each linked pair of a victim, by every inference method.

    guesser = RelationGuesser(view.model, view.colluder, seed=0)
    guesses = guesser.guess(victim, pairs, head_names, tail_names, ("names", "combined"))  # relation names [P] of each

`cosine` and `score` compare with the colluder's relation rows (`fkgsec.attacks.reconstruction.inference`). `names` uses the
relations in which the colluder saw the two names (`fkgsec.attacks.reconstruction.prior`). `learned` is a linear classifier of
row pairs (`fkgsec.attacks.reconstruction.learned`), `mlp` a nonlinear one (`fkgsec.attacks.reconstruction.mlp`). `combined`
adds the logarithms of `learned` and `names`: log p(relation | rows) + 0.5 log p(relation | names). Names count half, since the
rows of two entities already contain much of the information in their names.

Source: ours, except cosine (fedr.txt Algorithm 2).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import get_args

import numpy as np
import torch

from fkgsec.attacks.kge.view import ColluderKnowledge, VictimView
from fkgsec.attacks.options import Inference
from fkgsec.attacks.reconstruction.inference import ByVector, infer_relations
from fkgsec.attacks.reconstruction.learned import RelationLearner, Way, learn_relations
from fkgsec.attacks.reconstruction.prior import NamePosterior, fit_names
from fkgsec.attacks.uploads.links import LinkLearner, learn_links
from fkgsec.kge.models import KgeModel

# Weight of the names' log-posterior relative to that of the rows.
NAMES_WEIGHT = 0.5
PAIRS_AT_ONCE = 16_384
BY_VECTOR: tuple[ByVector, ...] = ("cosine", "score")
LEARNED_WAYS: tuple[Way, ...] = get_args(Way)


class RelationGuesser:
    """Relations of pairs of rows, learned from one colluder's data.

    Threat models of one draw of leaked entities differ only in names, so comparisons of rows are computed once for all of them.
    """

    def __init__(self, model: KgeModel, colluder: ColluderKnowledge, seed: int) -> None:
        self.model, self.colluder, self.seed = model, colluder, seed
        self._by_vector: dict[tuple[str, str, ByVector], np.ndarray] = {}
        self._learners: dict[Way, RelationLearner] = {}

    def learner(self, way: Way) -> RelationLearner:
        """Return the classifier of a method, which is trained once.

        Args:
            way: "learned" or "mlp".
        """
        if way not in self._learners:
            self._learners[way] = learn_relations(self.model, self.colluder, self.seed, way)
        return self._learners[way]

    @cached_property
    def links(self) -> LinkLearner | None:
        """Classifier of linked pairs, trained on first use."""
        return learn_links(self.model, self.colluder, self.learner("learned"), self.seed)

    @cached_property
    def names(self) -> NamePosterior:
        """Classifier of relations by names, fitted on first use."""
        return fit_names(self.colluder)

    def guess(
        self,
        victim: VictimView,
        pairs: np.ndarray,
        heads: np.ndarray,
        tails: np.ndarray,
        inferences: Sequence[Inference],
    ) -> dict[Inference, np.ndarray]:
        """Infer the relation of each pair of the victim's rows, by each inference method.

        Args:
            victim: victim with entity rows.
            pairs: indices of head and tail in `victim.entities`, int64 `[P, 2]`.
            heads: inferred names of the heads `[P]`.
            tails: inferred names of the tails `[P]`.
            inferences: inference methods.

        Returns:
            Relation names `[P]` by inference method.
        """
        guesses: dict[Inference, np.ndarray] = {}
        for by in BY_VECTOR:
            if by in inferences:
                key = victim.name, victim.origin, by
                # Comparisons of rows do not depend on names: compute them once for all threat models.
                if key not in self._by_vector:
                    self._by_vector[key] = infer_relations(self, victim, pairs, by)
                guesses[by] = self._by_vector[key]
        probable: list[Inference] = [by for by in inferences if by not in BY_VECTOR]
        best: dict[Inference, np.ndarray] = {by: np.zeros(len(pairs), dtype=np.int64) for by in probable}
        for start in range(0, len(pairs) if probable else 0, PAIRS_AT_ONCE):
            block = slice(start, start + PAIRS_AT_ONCE)
            posteriors = self._posteriors(victim, pairs[block], heads[block], tails[block], probable)
            for by in probable:
                best[by][block] = posteriors[by].argmax(axis=1)
        for by in LEARNED_WAYS:
            if by in probable and self.learner(by).classifier is None:
                best[by][:] = self.learner(by).constant
        for by, places in best.items():
            guesses[by] = self.colluder.relation_names[places]
        return guesses

    def _posteriors(
        self,
        victim: VictimView,
        pairs: np.ndarray,
        heads: np.ndarray,
        tails: np.ndarray,
        inferences: Sequence[Inference],
    ) -> dict[Inference, np.ndarray]:
        """Return the log-probability of each relation for each pair, float32 `[P, R]`, by each method that is not `BY_VECTOR`."""
        assert victim.entities is not None
        posteriors: dict[Inference, np.ndarray] = {}
        if "names" in inferences or "combined" in inferences:
            posteriors["names"] = self.names.log_posterior(heads, tails)
        needed = {"learned" if by == "combined" else by for by in inferences}
        for way in LEARNED_WAYS:
            if way in needed:
                rows = (victim.entities[torch.from_numpy(pairs[:, end].copy())] for end in (0, 1))
                posteriors[way] = self.learner(way).log_posterior(*rows)
        if "combined" in inferences:
            # log p(relation | rows) + 0.5 log p(relation | names).
            posteriors["combined"] = posteriors["learned"] + NAMES_WEIGHT * posteriors["names"]
        return posteriors
