"""Knowledge-graph reconstruction: entities and triples of the victims from what the adversary saw.

Threat model: any of `fkgsec.attacks.options.THREAT_MODELS` with a colluder, whose embeddings are compared.
Source: fedr.txt section 3.1 and Algorithm 2, i) for shared entities (FedE) and ii) for shared relations (FedR).

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
TIE = 1e-6  # rounding of a cosine in float32: equal keys differ by the column in which a matrix product puts them


def nearest(queries: Tensor, keys: Tensor, block_bytes: int = BLOCK_BYTES) -> tuple[Tensor, Tensor]:
    """For each query `[n, d]` the place of the most similar key `[m, d]` and their cosine: int64 `[n]`, float `[n]`.

    Similarities are held for `block_bytes` at a time, never as one n x m matrix. Zero rows have cosine 0 to everything.
    Ties (up to `TIE`) go to the first key.
    """
    if not len(keys):
        raise ValueError("no keys to compare with")
    unit_keys = torch.nn.functional.normalize(keys, dim=1)
    step = max(1, block_bytes // (len(keys) * keys.element_size()))
    places, cosines = [], []
    for part in queries.split(step):  # an empty tensor splits into one empty part
        similar = torch.nn.functional.normalize(part, dim=1) @ unit_keys.T
        best = similar.amax(dim=1)
        places.append((similar >= best[:, None] - TIE).to(torch.uint8).argmax(dim=1))
        cosines.append(best)
    return torch.cat(places), torch.cat(cosines)


class Known(Protocol):
    """Knowledge to name and link rows: a scoring function, and what a colluder handed over."""

    @property
    def model(self) -> KgeModel: ...

    @property
    def colluder(self) -> ColluderKnowledge: ...


class EntityGuesses(NamedTuple):
    """For each row of the victim the inferred name and the cosine that decided it (1 where the name was known)."""

    names: np.ndarray
    cosines: np.ndarray


def nothing_to_attack(view: KgeView, victim: VictimView) -> str | None:
    """Return why the attack cannot start on this victim; None if it can."""
    if victim.entities is None and victim.relations is None:
        return "no sum that this client is in was opened" if view.secure else "no embedding of this client crossed"
    if view.colluder is None:
        return "no element-embedding pair is known without a colluder"
    if "entities" in victim.claims and not len(victim.claims["entities"].rows):
        return "no row of the sum can be this client's (none was sent, or all are other clients')"
    if victim.entities is None:
        return "only relation embeddings crossed; no entity embedding was seen"
    return None


def infer_entities(view: Known, victim: VictimView) -> EntityGuesses:
    """Name every entity row of the victim: the leaked entity with the most similar embedding (Algorithm 2 lines 1-5).

    With identifiers in the view the names are read, not inferred.
    """
    if victim.entity_names is not None:
        claims = victim.claims.get("entities")
        return EntityGuesses(victim.entity_names, claims.certainty if claims else np.ones(len(victim.entity_names)))
    assert victim.entities is not None
    places, cosines = nearest(victim.entities, view.colluder.entities)
    return EntityGuesses(view.colluder.entity_names[places.numpy()], cosines.numpy())


def infer_entities_nearest(view: Known, victim: VictimView) -> EntityGuesses:
    """Infer entities by the colluder's rows or by those of its last broadcast, whichever the victim's rows are nearer to.

    A broadcast is the mean of the uploads, the victim's among them, where nothing was added; the colluder's own rows have gone
    their own way in the round. Nearer: by the mean over rows of the greatest cosine. Source: ours.
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
    """Name the relation of linked pairs of the victim's rows, int64 `[P, 2]` (Algorithm 2 i).

    Args:
        by: "cosine", the paper's way: the relation vector that maximises the score, compared with the known ones by
            cosine; "score": the known relation that maximises the score itself.

    Returns: names `[P]`.
    """
    assert victim.entities is not None
    heads, tails = (victim.entities[torch.from_numpy(pairs[:, column])] for column in (0, 1))
    return view.colluder.relation_names[best_relations(view.model, view.colluder.relations, heads, tails, by)]


def best_relations(model: KgeModel, relations: Tensor, heads: Tensor, tails: Tensor, by: ByVector) -> np.ndarray:
    """The place of the known relation `[R, V]` that fits each pair of rows `[P, W]` best, int64 `[P]`."""
    if by == "cosine":
        return nearest(model.best_relation(heads, tails), model.relation_vectors(relations))[0].numpy()
    blocks = zip(heads.split(PAIRS_AT_ONCE), tails.split(PAIRS_AT_ONCE), strict=True)
    return torch.cat([model.score_relations(*block, relations).argmax(dim=1) for block in blocks]).numpy()


def infer_relation_rows(view: Known, victim: VictimView) -> np.ndarray:
    """Name every uploaded relation row of the victim by cosine to the known ones (Algorithm 2 ii), names `[m]`.

    Rows of a secure sum stand where the colluder's do, so those it holds are named by their place.
    """
    assert victim.relations is not None
    if "relations" in victim.claims:
        return victim.claims["relations"].names
    relation_rows = view.model.relation_vectors(view.colluder.relations)
    places, _ = nearest(view.model.relation_vectors(victim.relations), relation_rows)
    return view.colluder.relation_names[places.numpy()]


class PairRanking(NamedTuple):
    """Candidate pairs without a hint which are linked: score and best relation of (heads[i], every row), `[H, n]` each."""

    heads: np.ndarray
    scores: np.ndarray
    relations: np.ndarray


def rank_pairs(view: Known, victim: VictimView, heads: np.ndarray) -> PairRanking:
    """Score every pair (head row, any row) by the known relation that fits it best; a row is not paired with itself.

    Args:
        heads: int64 `[H]` rows of the victim to take as heads (a sample, since all pairs are n squared times R scores).
    """
    assert victim.entities is not None
    rows, relations = victim.entities, view.colluder.relations
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
    """Number of candidate pairs that the adversary claims to be linked: as many as the colluder's own density suggests."""
    return min(num_candidates, max(1, round(colluder.pair_density * num_candidates)))
