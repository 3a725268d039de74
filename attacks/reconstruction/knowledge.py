"""Baselines and upper bounds of an adversary's knowledge without any embedding: the chance of a drawn name, and the most that it
can output; and the names that the protocol exposes whatever was trained.

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

NO_NAME = ""  # where the adversary makes no guess


def among(names: np.ndarray, others: Iterable[str]) -> np.ndarray:
    """True for each name that is among others, bool `[n]`; by hashing, since sorting 90,000 strings takes seconds."""
    members = set(others)
    return np.fromiter((name in members for name in names), dtype=bool, count=len(names))


@dataclass(frozen=True, eq=False)
class Knowledge:
    """An adversary's knowledge of a victim's names and relations whatever was trained.

    Attributes:
        drawn: names among which an adversary without embeddings draws; None: it knows each entity's name. chance: of one of these
            to be right.
        namable: names that it can output; None: all. relations: names of relations that it can output.
        exposed: names that the protocol shows, see `exposed_names`; None: all.
        aligned: whether names that crossed give every entity away, whether or not an embedding did.
    """

    drawn: frozenset[str] | None
    chance: float
    namable: frozenset[str] | None
    relations: frozenset[str]
    exposed: frozenset[str] | None
    aligned: bool

    @classmethod
    def of(cls, view: KgeView, victim: VictimView) -> Knowledge:
        """That of a view."""
        colluder, summed = view.colluder, "entities" in victim.claims
        leaked = frozenset(() if colluder is None else colluder.entity_names)
        drawn, chance, namable = leaked, 1 / max(1, len(leaked)), leaked
        read = victim.entity_names is not None
        if summed:
            table = view.secure["entities"]
            namable = frozenset(name for name in table.names if name is not None)
            aligned = bool(table.holdings) and view.threat_model.identifiers  # as where uploads are in plaintext
            claimed = 1 if table.holdings else sum(name is not None for name in victim.claims["entities"].names)
            drawn, chance = None if aligned else namable, claimed / max(1, len(namable))
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
        """For each entity the chance that an adversary without embeddings names it: certain with identifiers, else a draw."""
        return np.ones(len(names)) if self.drawn is None else among(names, self.drawn) * self.chance

    def attainable_names(self, names: np.ndarray) -> np.ndarray:
        """True for each name `[n]` of a victim's entities that the adversary can output."""
        return np.ones(len(names), dtype=bool) if self.namable is None else among(names, self.namable)

    def attainable(self, names: np.ndarray, pairs: np.ndarray, relations: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """True for each entity's name, and for each triple's names and relation, that the adversary can output.

        Args:
            names: true names of the victim's entities `[n]`. pairs: int64 `[P, 2]`, its triples' ends; relations: their names.
        """
        named = self.attainable_names(names)
        return named, named[pairs].all(axis=1) & among(relations, self.relations)

    def exposed_names(self, names: np.ndarray) -> np.ndarray:
        """Names of a victim's entities that the protocol shows, object `[n]`, `NO_NAME` where it shows none.

        A server that averages rows knows which rows of its clients are of the same entity, so that the colluder's leaked names
        are those of the victim's rows, too. Where names cross with alignment, or counts of holders name rows of a sum, it reads
        these.

        Args:
            names: true names of the entities `[n]`.
        """
        return names if self.exposed is None else np.where(among(names, self.exposed), names, NO_NAME)


def chance_of_pair(chance: np.ndarray, pairs: np.ndarray) -> np.ndarray:
    """The chance that both names of a pair are right; the two ends of a self-loop are one row, drawn once."""
    return np.where(pairs[:, 0] == pairs[:, 1], chance[pairs[:, 0]], chance[pairs].prod(axis=1))


def why_no_triple(named: np.ndarray, *, shares_relation: bool) -> str:
    """Return why nothing of a victim is attainable: `named` of its entities, and whether it shares a relation."""
    if not shares_relation:
        return (
            "no relation is shared with the colluder, as in every federation divided by relations, so TRR is 0 by construction "
            "and says nothing of protection"
        )
    if not named.any():
        return "none of its entities is among the names that the adversary knows, so TRR is 0 by construction"
    return "none of its triples has both ends and its relation among those that the adversary knows, so TRR is 0 by construction"
