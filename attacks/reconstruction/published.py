"""The counts of FedR's notebooks, so that Tables 1 and 4 of fedr.txt can be met with the definitions that made them.

They are not what the paper's text says, and not what `fkgsec.attacks.reconstruction.evaluation` reports by default:

* FedE: "ERR" is the share of the victim's entities that are in the leaked pool, an overlap of sets; no embedding is looked
  at. "TRR" takes every linked pair of the victim with both ends in the pool, their names given, and
  the cosine between t - h *of the server's shared embeddings* and the colluder's relations.
* FedR: entities are inferred from embeddings, with the leak ratio subsampling the *victim's* entities; "TRR" counts distinct
  entities named right that stand in a linked pair, over the number of triples.

Source: the notebooks rec_attack_*.ipynb beside FedR's code. Differs: the FedR notebook applies the leak ratio to the victim;
here it applies to the colluder, as the paper says, which is the same at 1.0, the only ratio that Table 4 uses.
"""

from __future__ import annotations

import numpy as np
import torch

from fkgsec.attacks.kge.view import VictimView
from fkgsec.attacks.reconstruction.inference import Known, best_relations, infer_entities


def count_published(
    view: Known, victim: VictimView, entity_names: np.ndarray, pairs: np.ndarray, relations: np.ndarray
) -> tuple[tuple[float, float], tuple[float, float]]:
    """The notebooks' counts of one victim: of right entities, and of right triples.

    Beside each stands what an adversary without embeddings would expect to count.

    Args:
        entity_names: true names `[n]` of the victim's rows (the notebooks read them).
        pairs: int64 `[P, 2]` rows of the victim's training triples; relations: their true relation names `[P]`.
    """
    assert view.colluder is not None
    pool = view.colluder.entity_names
    named = np.isin(entity_names, pool)
    if victim.relations is not None:
        right, chance, linked = infer_entities(view, victim).names == entity_names, named / len(pool), np.unique(pairs)
        return (int(right.sum()), float(chance.sum())), (int(right[linked].sum()), float(chance[linked].sum()))
    given = named[pairs].all(axis=1)
    order = np.argsort(pool)
    rows = torch.from_numpy(order[np.searchsorted(pool, entity_names[pairs[given]], sorter=order)])
    heads, tails = view.colluder.shared_entities[rows[:, 0]], view.colluder.shared_entities[rows[:, 1]]
    guesses = view.colluder.relation_names[best_relations(view.model, view.colluder.relations, heads, tails, "cosine")]
    true, count = relations[given], int(named.sum())
    majority = int((true == view.colluder.majority_relation).sum())
    return (count, count), (int((guesses == true).sum()), majority)
