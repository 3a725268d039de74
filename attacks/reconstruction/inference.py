"""Knowledge-graph reconstruction: infer entities and triples of the victims from the adversary's view.

Threat model: any of `fkgsec.attacks.options.THREAT_MODELS` with a colluder. Required knowledge: the colluder's
element-embedding pairs (EEP) and the victim's rows (LEE, LRE). Source: fedr.txt section 3.1 and Algorithm 2, i) for shared
entities (FedE) and ii) for shared relations (FedR).

Legend: `n` rows of the victim, `P` pairs, `W` width of an entity row, `R` relations that the adversary knows.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from fkgsec.attacks.kge.view import ColluderKnowledge, KgeView, VictimView
from fkgsec.kge.models import KgeModel

ByVector = Literal["cosine", "score"]
PAIRS_AT_ONCE = 4096
BLOCK_BYTES = 64 * 2**20
# Rounding of a cosine in float32: a matrix product gives equal keys slightly different values by column.
TIE = 1e-6


def nearest(queries: Tensor, keys: Tensor, block_bytes: int = BLOCK_BYTES) -> tuple[Tensor, Tensor]:
    """Find the most similar key of each query.

    Zero rows have cosine 0 to everything. Ties (up to `TIE`) go to the first key.

    Args:
        queries: float `[n, d]`.
        keys: float `[m, d]`.
        block_bytes: bound on the memory of similarities.

    Returns:
        Index of the key, int64 `[n]`, and its cosine, float `[n]`.
    """
    if not len(keys):
        raise ValueError("no keys to compare with")
    unit_keys = torch.nn.functional.normalize(keys, dim=1)
    step = max(1, block_bytes // (len(keys) * keys.element_size()))
    places, cosines = [], []
    # An empty tensor splits into one empty part.
    for part in queries.split(step):
        similar = torch.nn.functional.normalize(part, dim=1) @ unit_keys.T
        best = similar.amax(dim=1)
        places.append((similar >= best[:, None] - TIE).to(torch.uint8).argmax(dim=1))
        cosines.append(best)
    return torch.cat(places), torch.cat(cosines)


class Known(Protocol):
    """Knowledge to name and link rows: a scoring function, and the colluder's data."""

    @property
    def model(self) -> KgeModel:
        """Scoring function."""
        ...

    @property
    def colluder(self) -> ColluderKnowledge:
        """Knowledge of the colluder."""
        ...


class EntityGuesses(NamedTuple):
    """Inferred name of each row of the victim, and the cosine of the match (1 where the name was known)."""

    names: np.ndarray
    cosines: np.ndarray


def nothing_to_attack(view: KgeView, victim: VictimView) -> str | None:
    """Explain why the attack cannot start on a victim; None if it can.

    Args:
        view: the adversary's knowledge.
    """
    if victim.entities is None and victim.relations is None:
        return (
            "no sum that this client is in was opened" if view.secure else "no embedding of this client was transmitted"
        )
    if view.colluder is None:
        return "no element-embedding pair is known without a colluder"
    if "entities" in victim.claims and not len(victim.claims["entities"].rows):
        return "no row of the sum can be this client's (none was sent, or all are other clients')"
    if victim.entities is None:
        return "only relation embeddings were transmitted; no entity embedding was seen"
    return None


def infer_entities(view: Known, victim: VictimView) -> EntityGuesses:
    """Name every entity row of the victim by the leaked entity with the most similar embedding (Algorithm 2 lines 1-5).

    If the view has identifiers, the names are read, not inferred.

    Args:
        view: scoring function and colluder.
        victim: victim with entity rows.
    """
    if victim.entity_names is not None:
        claims = victim.claims.get("entities")
        return EntityGuesses(victim.entity_names, claims.certainty if claims else np.ones(len(victim.entity_names)))
    assert victim.entities is not None
    # Algorithm 2 lines 1-5: for each embedding in LEE, the entity of EEP with the greatest similarity.
    places, cosines = nearest(victim.entities, view.colluder.entities)
    return EntityGuesses(view.colluder.entity_names[places.numpy()], cosines.numpy())


def infer_entities_nearest(view: Known, victim: VictimView) -> EntityGuesses:
    """Name entities by the colluder's rows or by those of its last broadcast, whichever are closer to the victim's rows.

    Without noise, a broadcast is the mean of the uploads, the victim's among them, while the colluder's own rows have moved
    away during the round. Closer: by the mean over rows of the largest cosine. Source: ours.

    Args:
        view: scoring function and colluder.
        victim: victim with entity rows.
    """
    first = infer_entities(view, victim)
    if victim.entity_names is not None:
        return first
    assert victim.entities is not None
    places, cosines = nearest(victim.entities, view.colluder.shared_entities)
    if not float(cosines.nanmean()) > float(np.nanmean(first.cosines)):
        return first
    return EntityGuesses(view.colluder.entity_names[places.numpy()], cosines.numpy())


def infer_relations(view: Known, victim: VictimView, pairs: np.ndarray, by: ByVector = "cosine") -> np.ndarray:
    """Name the relation of linked pairs of the victim's rows (Algorithm 2 i).

    Args:
        view: scoring function and colluder.
        victim: victim with entity rows.
        pairs: indices of head and tail, int64 `[P, 2]`.
        by: "cosine", the paper's method: compares the relation vector that maximizes the score with the known ones by cosine.
            "score": takes the known relation that maximizes the score itself.

    Returns:
        Names `[P]`.
    """
    assert victim.entities is not None
    heads, tails = (victim.entities[torch.from_numpy(pairs[:, column])] for column in (0, 1))
    return view.colluder.relation_names[best_relations(view.model, view.colluder.relations, heads, tails, by)]


def best_relations(model: KgeModel, relations: Tensor, heads: Tensor, tails: Tensor, by: ByVector) -> np.ndarray:
    """Find the known relation that fits each pair of rows best.

    Args:
        relations: known relation rows, `[R, V]`.
        heads: float `[P, W]`.
        tails: float `[P, W]`.
        by: see `infer_relations`.

    Returns:
        Index of the relation, int64 `[P]`.
    """
    if by == "cosine":
        # Lines 7-10: r = t - h with TransE (`best_relation` for other models), then the most similar known relation.
        return nearest(model.best_relation(heads, tails), model.relation_vectors(relations))[0].numpy()
    blocks = zip(heads.split(PAIRS_AT_ONCE), tails.split(PAIRS_AT_ONCE), strict=True)
    return torch.cat([model.score_relations(*block, relations).argmax(dim=1) for block in blocks]).numpy()


def infer_relation_rows(view: Known, victim: VictimView) -> np.ndarray:
    """Name every uploaded relation row of the victim by cosine to the known ones (Algorithm 2 ii), names `[m]`.

    Rows of a secure sum have the same positions as the colluder's, so the relations that it holds are named by position.

    Args:
        view: scoring function and colluder.
        victim: victim with relation rows.
    """
    assert victim.relations is not None
    if "relations" in victim.claims:
        return victim.claims["relations"].names
    # Lines 12-15: each relation embedding in LRE is compared with those in EEP.
    relation_rows = view.model.relation_vectors(view.colluder.relations)
    places, _ = nearest(view.model.relation_vectors(victim.relations), relation_rows)
    return view.colluder.relation_names[places.numpy()]


class PairRanking(NamedTuple):
    """Ranked candidate pairs (heads[i], every row) without knowledge of linked ones: score and best relation, `[H, n]` each."""

    heads: np.ndarray
    scores: np.ndarray
    relations: np.ndarray


def rank_pairs(view: Known, victim: VictimView, heads: np.ndarray) -> PairRanking:
    """Score every pair of a head row and any row by the known relation that fits it best; a row is not paired with itself.

    Args:
        view: scoring function and colluder.
        victim: victim with entity rows.
        heads: indices of the rows to use as heads, int64 `[H]`; a sample, since all pairs need n squared times R scores.
    """
    assert victim.entities is not None
    rows, relations = victim.entities, view.colluder.relations
    # A running maximum over relations keeps memory at one H x n matrix.
    best_score = torch.full((len(heads), len(rows)), -torch.inf)
    best_relation = torch.zeros(len(heads), len(rows), dtype=torch.int64)
    anchors = rows[torch.from_numpy(heads)]
    for place, relation in enumerate(relations):
        scores = view.model.score_all(view.model.query(anchors, relation.expand(len(heads), -1), "tail"), rows)
        better = scores > best_score
        best_score = torch.where(better, scores, best_score)
        best_relation[better] = place
    best_score[torch.arange(len(heads)), torch.from_numpy(heads)] = -torch.inf
    return PairRanking(heads, best_score.numpy(), view.colluder.relation_names[best_relation.numpy()])


def expected_pairs(colluder: ColluderKnowledge, num_candidates: int) -> int:
    """Return the number of candidate pairs that the adversary claims to be linked, by the density of the colluder's graph.

    Args:
        num_candidates: number of candidate pairs.
    """
    return min(num_candidates, max(1, round(colluder.pair_density * num_candidates)))
