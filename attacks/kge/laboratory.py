"""A laboratory of knowledge-graph embedding, which also draws candidate triples and trains shadow federations.

candidates = laboratory.candidates(view)
shadow = laboratory.shadow(0, "same-graph")
shadow.member["hospital-2"]                     # bool, which of candidates["hospital-2"] this federation trained on
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fkgsec.attacks.clients.asking import draw_dictionary
from fkgsec.attacks.kge.view import KgeView
from fkgsec.attacks.laboratory import Laboratory
from fkgsec.attacks.membership.audits import contains, named_triples
from fkgsec.attacks.membership.candidates import (
    asked_candidates,
    draw_candidates,
    shadow_federation,
    shadow_options,
)
from fkgsec.attacks.options import ShadowKnowledge
from fkgsec.attacks.view import NotAttacked
from fkgsec.errors import FkgsecError, TrainingError
from fkgsec.federation.adversary import Adversary


class Shadow(NamedTuple):
    """A shadow federation as its adversary knows it.

    Attributes:
        view: the same adversary's view of the shadow federation.
        member: by victim, bool `[k]`, which of its candidates were trained on.
        data: by victim, all other triples that were trained on, as names, object `[t, 3]`.
    """

    view: KgeView
    member: Mapping[str, np.ndarray]
    data: Mapping[str, np.ndarray]


class KgeLaboratory(Laboratory[KgeView]):
    """Repeats a run of knowledge-graph embedding for the adversary of one view, see `Laboratory`."""

    def check_sums(self, view: KgeView) -> None:
        """Check that there is a sum to take apart, and that the run can be trained again for its sums.

        Raises:
            NotAttacked: otherwise.
        """
        if not view.secure:
            raise NotAttacked("uploads are transmitted one by one, or not at all: there is no sum to take apart")
        self.check_repeatable()

    def train_first(self, view: KgeView, adversary: Adversary | None, last: int) -> KgeView:
        """Train the first rounds of a run with sums and an adversary.

        Args:
            view: view of the attacked run.
            adversary: active adversary, or None for an honest run.
            last: last round to train.

        Raises:
            NotAttacked: the run has no sums, cannot be repeated, or ended because a client refused.
        """
        self.check_sums(view)
        try:
            return self.train(adversary, last=last)
        except NotAttacked:
            raise
        # A client that refuses a request ends the run: the attack failed, which is a result, not an error.
        except FkgsecError as error:
            raise NotAttacked(f"the run ended with the attack in it: {error}") from error

    def candidates(self, view: KgeView) -> dict[str, np.ndarray]:
        """Draw candidate triples for membership inference: some were trained on, the others are matched controls.

        Args:
            view: view of the attacked run.

        Returns:
            Names, object `[c, 3]`, for each victim with enough triples.
        """
        graph, model = self._runs[0].graph, view.threat_model
        # The evaluator draws the same candidates from the same seed (`membership.inference.score`).
        self._audits = [audit for audit in draw_candidates(graph, self.seed) if audit.reason is None]
        alone = model.colluder and not model.server
        self._asked = {
            audit.name: asked_candidates(graph, audit, self.colluders, self.seed, alone=alone) for audit in self._audits
        }
        return {
            audit.name: named_triples(graph, graph.clients[audit.place], audit.triples[self._asked[audit.name]])
            for audit in self._audits
            if any(victim.name == audit.name for victim in view.victims)
        }

    def dictionary(self) -> Sequence[str]:
        """Draw the entity names that the adversary guesses; some of them belong to other clients."""
        return draw_dictionary(self._runs[0].graph, self.colluders, self.options.guesses, self.seed).names

    def shadow(self, number: int, knowledge: ShadowKnowledge) -> Shadow:
        """Train a federation on half of the candidates, see `fkgsec.attacks.membership.candidates`.

        Args:
            number: index of the shadow federation; an even one and its successor split the candidates between them.
            knowledge: data of the shadow federation besides the candidates.

        Raises:
            NotAttacked: the run cannot be repeated, or the federation broke down.
        """
        self.check_repeatable()
        graph = self._runs[0].graph
        # Same algorithm and settings as the attacked run, on data that the adversary chooses.
        federation, chosen = shadow_federation(graph, self._audits, number, seed=self.seed, knowledge=knowledge)
        try:
            result = self.train_own(federation, shadow_options(self._runs[0].options, number, seed=self.seed))
        except TrainingError as error:
            raise NotAttacked(f"shadow federation {number + 1} broke down: {error}") from error
        clients = [(audit, federation.clients[audit.place]) for audit in self._audits]
        return Shadow(
            self._view_of(result),
            {name: member[self._asked[name]] for name, member in chosen.items()},
            {
                audit.name: named_triples(graph, client, client.train[~contains(audit.triples, client.train)])
                for audit, client in clients
            },
        )
