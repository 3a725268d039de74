"""What an adversary's knowledge gives without any embedding: the chance of a drawn name, and the most that it can output; and the
names that the protocol exposes whatever was trained.

    named, rebuilt = attainable(view, victim, names, pairs, relations)   # bool [entities], bool [triples]
    shown = exposed_names(view, victim, names)                           # object [entities], "" where there is none

The evaluator computes these from the truth, beside what an attack got (`attacks.reconstruction.evaluation`).

Source: ours.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from attacks.kge.view import KgeView, VictimView

NO_NAME = ""  # where the adversary makes no guess


def among(names: np.ndarray, known: Iterable[str]) -> np.ndarray:
    """Whether each name is one of the known ones, bool `[n]`; by hashing, since sorting 90,000 strings takes seconds."""
    known = set(known)
    return np.fromiter((name in known for name in names), dtype=bool, count=len(names))


def chance_of_name(view: KgeView, victim: VictimView, names: np.ndarray) -> np.ndarray:
    """For each entity row the chance that an adversary without embeddings names it: certain with identifiers, else a draw."""
    assert view.colluder is not None
    if "entities" in victim.claims:
        table = view.secure["entities"]
        known = np.array([name for name in table.names if name is not None], dtype=object)
        if table.holdings:  # as where uploads are in clear: alignment was
            return np.ones(len(names)) if view.threat_model.identifiers else among(names, known) / max(1, len(known))
        num_claims = sum(name is not None for name in victim.claims["entities"].names)
        return among(names, known) * (num_claims / max(1, len(known)))
    if victim.entity_names is not None:
        return np.ones(len(names))
    return among(names, view.colluder.entity_names) / len(view.colluder.entity_names)


def chance_of_pair(chance: np.ndarray, pairs: np.ndarray) -> np.ndarray:
    """The chance that both names of a pair are right; the two ends of a self-loop are one row, drawn once."""
    return np.where(pairs[:, 0] == pairs[:, 1], chance[pairs[:, 0]], chance[pairs].prod(axis=1))


def attainable_names(view: KgeView, victim: VictimView, names: np.ndarray) -> np.ndarray:
    """Whether each name `[n]` of a victim's entities is among those that the adversary can output."""
    assert view.colluder is not None
    if "entities" in victim.claims:
        return among(names, [name for name in view.secure["entities"].names if name is not None])
    return (
        np.ones(len(names), dtype=bool) if victim.entity_names is not None else among(names, view.colluder.entity_names)
    )


def attainable(
    view: KgeView, victim: VictimView, names: np.ndarray, pairs: np.ndarray, relations: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Whether each entity's name, and each triple's names and relation, are among those that the adversary can output.

    Args:
        names: true names of the victim's entities `[n]`. pairs: int64 `[P, 2]`, its triples' ends; relations: their names `[P]`.
    """
    assert view.colluder is not None
    named = attainable_names(view, victim, names)
    known = list(view.colluder.relation_names)
    if "relations" in victim.claims:
        known += [name for name in victim.claims["relations"].names if name is not None]
    return named, named[pairs].all(axis=1) & among(relations, known)


def why_no_triple(named: np.ndarray, *, shares_relation: bool) -> str:
    """Why nothing of a victim is attainable: `named` of its entities, and whether it has a relation of the colluder's."""
    if not shares_relation:
        return (
            "no relation is shared with the colluder, as in every federation divided by relations, so TRR is 0 by construction "
            "and says nothing of protection"
        )
    if not named.any():
        return "none of its entities is among the names that the adversary knows, so TRR is 0 by construction"
    return "none of its triples has both ends and its relation among those that the adversary knows, so TRR is 0 by construction"


def exposed_names(view: KgeView, victim: VictimView, names: np.ndarray) -> np.ndarray:
    """Names of a victim's entities that the protocol shows, whatever was trained: object `[n]`, `NO_NAME` where it shows none.

    A server that averages rows knows which rows of its clients are of the same entity, so that the colluder's leaked names are
    those of the victim's rows, too. Where names cross with alignment, or counts of holders name rows of a sum, it reads these.

    Args:
        names: true names of the entities `[n]`.
    """
    assert view.colluder is not None
    known = np.empty(0, dtype=object)
    if victim.entity_names is not None:
        known = names if "entities" not in victim.claims else victim.entity_names
    elif victim.origin == "uploaded":
        known = view.colluder.entity_names
    return np.where(among(names, known), names, NO_NAME)
