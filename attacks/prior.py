"""An adversary who knows what the attack knows, but has no embedding: relations guessed from names and triples alone."""

from __future__ import annotations

import numpy as np

from attacks.view import ColluderKnowledge


def guess_relations(colluder: ColluderKnowledge, heads: np.ndarray, tails: np.ndarray) -> np.ndarray:
    """The relation that the colluder's own triples suggest for two names: naive Bayes with add-one smoothing.

    Args:
        heads, tails: names `[P]`; one that the colluder does not know says nothing, and the relation's frequency decides.

    Returns: relation names `[P]`.

    Source: ours. The majority relation of FedR's setting ignores that an adversary who can read names knows, from the
    colluder, which relations they stand in; a leakage figure has to beat this one too.
    """
    num_names, num_relations = len(colluder.entity_names), len(colluder.relation_names)
    frequency = np.bincount(colluder.triples[:, 1], minlength=num_relations)
    order = np.argsort(colluder.entity_names)
    score = np.tile(np.log(frequency), (len(heads), 1)).astype(np.float32)
    for column, names in ((0, heads), (2, tails)):
        known = colluder.triples[colluder.triples[:, column] >= 0]
        counts = np.zeros((num_names, num_relations), dtype=np.float32)
        np.add.at(counts, (known[:, column], known[:, 1]), 1)
        likelihood = np.log((counts + 1) / (counts.sum(axis=0) + num_names))
        place = np.minimum(np.searchsorted(colluder.entity_names, names, sorter=order), num_names - 1)
        found = colluder.entity_names[order[place]] == names
        score[found] += likelihood[order[place[found]]]
    return colluder.relation_names[score.argmax(axis=1)]
