"""A laboratory of knowledge-graph embedding, which also trains shadow federations for whoever tells triples apart.

view = laboratory.with_candidates(view, ["hospital-1"])
shadow = laboratory.shadow(0, "same-graph")
shadow.member["hospital-2"]                     # bool, which of view.victims[0].candidates this one trained on
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from fkgsec.attacks.kge.view import KgeView
from fkgsec.attacks.laboratory import Laboratory
from fkgsec.attacks.membership.audits import contains, named_triples
from fkgsec.attacks.membership.candidates import asked_candidates, draw_candidates
from fkgsec.attacks.membership.shadows import shadow_federation, shadow_options
from fkgsec.attacks.options import ShadowKnowledge


class Shadow(NamedTuple):
    """A shadow federation as its adversary knows it.

    Attributes:
        view: what the adversary of the attacked run sees of it.
        member: by victim, bool `[k]`, which of its candidates were trained on. data: what else was, as names, object `[t, 3]`.
    """

    view: KgeView
    member: Mapping[str, np.ndarray]
    data: Mapping[str, np.ndarray]


class KgeLaboratory(Laboratory[KgeView]):
    """Repeats a run of knowledge-graph embedding for the adversary of one view, see `Laboratory`."""

    def with_candidates(self, view: KgeView, colluders: Sequence[str]) -> KgeView:
        """The view with triples of each victim to tell apart; none for a victim that has too few."""
        graph, model = self.runs[0].graph, view.threat_model
        self._audits = [one for one in draw_candidates(graph, self.seed) if one.reason is None]
        alone = model.colluder and not model.server
        self._asked = {
            one.name: asked_candidates(graph, one, colluders, self.seed, alone=alone) for one in self._audits
        }
        triples = {
            one.name: named_triples(graph, graph.clients[one.place], one.triples[self._asked[one.name]])
            for one in self._audits
        }
        victims = (replace(victim, candidates=triples.get(victim.name)) for victim in view.victims)
        return replace(view, victims=tuple(victims))

    def shadow(self, number: int, knowledge: ShadowKnowledge) -> Shadow:
        """Train a federation on half of the candidates, see `fkgsec.attacks.membership.shadows`.

        Raises:
            TrainingError: it broke down.
        """
        graph = self.runs[0].graph
        made, chosen = shadow_federation(graph, self._audits, number, seed=self.seed, knowledge=knowledge)
        result = self.train_own(made, shadow_options(self.runs[0].options, number, seed=self.seed))
        clients = [(one, made.clients[one.place]) for one in self._audits]
        return Shadow(
            self._view_of(result),
            {name: member[self._asked[name]] for name, member in chosen.items()},
            {
                audit.name: named_triples(graph, client, client.train[~contains(audit.triples, client.train)])
                for audit, client in clients
            },
        )
