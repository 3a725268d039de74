"""Baselines and upper bounds from an adversary's knowledge without any embedding, and the names that the protocol exposes.

    knowledge = Knowledge.of(view, victim)                          # when the attack runs
    named, rebuilt = knowledge.attainable(names, pairs, relations)  # bool [entities], bool [triples], of true names
    shown = knowledge.exposed_names(names)                          # object [entities], "" where there is none

Source: ours.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from fkgsec.attacks.kge.view import KgeView, VictimView

# Stands for an entity without a guess.
NO_NAME = ""


def among(names: np.ndarray, others: Iterable[str]) -> np.ndarray:
    """Test which names are among others, by hashing, since sorting 90,000 strings takes seconds.

    Args:
        names: object `[n]`.
        others: names to search in.

    Returns:
        bool `[n]`.
    """
    members = set(others)
    return np.fromiter((name in members for name in names), dtype=bool, count=len(names))


@dataclass(frozen=True, eq=False)
class Knowledge:
    """An adversary's knowledge of a victim's names and relations, independent of training.

    Attributes:
        drawn: names among which an adversary without embeddings draws; None: it knows each entity's name.
        chance: probability that such a draw is correct.
        namable: names that it can output; None: all.
        relations: names of relations that it can output.
        exposed: names that the protocol exposes, see `exposed_names`; None: all.
        aligned: True if transmitted names reveal every entity, whether or not an embedding was transmitted.
    """

    drawn: frozenset[str] | None
    chance: float
    namable: frozenset[str] | None
    relations: frozenset[str]
    exposed: frozenset[str] | None
    aligned: bool

    @classmethod
    def of(cls, view: KgeView, victim: VictimView) -> Knowledge:
        """Derive the knowledge from a view.

        Args:
            view: the adversary's knowledge.
        """
        colluder, summed = view.colluder, "entities" in victim.claims
        leaked = frozenset(() if colluder is None else colluder.entity_names)
        # Without identifiers: a random leaked name, and only leaked names can be output.
        drawn, chance, namable = leaked, 1 / max(1, len(leaked)), leaked
        read = victim.entity_names is not None
        if summed:
            table = view.secure["entities"]
            namable = frozenset(name for name in table.names if name is not None)
            # Names from alignment reveal the holders, as with plaintext uploads.
            aligned = bool(table.holdings) and view.threat_model.identifiers
            claimed = 1 if table.holdings else sum(name is not None for name in victim.claims["entities"].names)
            drawn, chance = None if aligned else namable, claimed / max(1, len(namable))
        # With identifiers every name is read.
        elif read:
            drawn = namable = None
        relations = set(() if colluder is None else colluder.relation_names)
        if "relations" in victim.claims:
            relations |= {name for name in victim.claims["relations"].names if name is not None}
        exposed: frozenset[str] | None = leaked if victim.origin == "uploaded" else frozenset()
        if victim.entity_names is not None:
            exposed = frozenset(victim.entity_names) if summed else None
        holdings = "entities" in view.secure and view.secure["entities"].holdings and view.threat_model.identifiers
        return cls(drawn, chance, namable, frozenset(relations), exposed, bool((read and not summed) or holdings))

    def chance_of_name(self, names: np.ndarray) -> np.ndarray:
        """Return the probability that an adversary without embeddings names each entity correctly, float `[n]`.

        It is 1 with identifiers; otherwise the adversary draws a name.

        Args:
            names: true names of the victim's entities, object `[n]`.
        """
        return np.ones(len(names)) if self.drawn is None else among(names, self.drawn) * self.chance

    def attainable_names(self, names: np.ndarray) -> np.ndarray:
        """Test which true names of a victim's entities `[n]` the adversary can output, bool `[n]`."""
        return np.ones(len(names), dtype=bool) if self.namable is None else among(names, self.namable)

    def attainable(self, names: np.ndarray, pairs: np.ndarray, relations: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Test which entities, and which triples with both names and the relation, the adversary can output.

        Args:
            names: true names of the victim's entities, object `[n]`.
            pairs: heads and tails of its triples, int64 `[P, 2]`.
            relations: names of their relations, object `[P]`.

        Returns:
            bool `[n]` and bool `[P]`.
        """
        named = self.attainable_names(names)
        return named, named[pairs].all(axis=1) & among(relations, self.relations)

    def exposed_names(self, names: np.ndarray) -> np.ndarray:
        """Return the names of a victim's entities that the protocol exposes, object `[n]`, `NO_NAME` where it exposes none.

        A server that averages rows knows which rows of its clients belong to the same entity, so the colluder's leaked names
        also name the victim's rows. If names are transmitted for alignment, or counts of holders name rows of a sum, the server
        reads these.

        Args:
            names: true names of the entities, object `[n]`.
        """
        return names if self.exposed is None else np.where(among(names, self.exposed), names, NO_NAME)


def chance_of_pair(chance: np.ndarray, pairs: np.ndarray) -> np.ndarray:
    """Return the probability that both names of a pair are correct; the two ends of a self-loop are one row, drawn once.

    Args:
        chance: probability per entity, float `[n]`.
        pairs: heads and tails, int64 `[P, 2]`.
    """
    return np.where(pairs[:, 0] == pairs[:, 1], chance[pairs[:, 0]], chance[pairs].prod(axis=1))


def why_no_triple(named: np.ndarray, *, shares_relation: bool) -> str:
    """Explain why no triple of a victim is attainable.

    Args:
        named: attainable entities, bool `[n]`.
        shares_relation: True if the colluder trains one of its relations.
    """
    if not shares_relation:
        return (
            "no relation is shared with the colluder, as in every federation divided by relations, so TRR is 0 by construction "
            "and says nothing of protection"
        )
    if not named.any():
        return "none of its entities is among the names that the adversary knows, so TRR is 0 by construction"
    return "none of its triples has both ends and its relation among those that the adversary knows, so TRR is 0 by construction"
