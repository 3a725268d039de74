"""Filtered ranks of whole runs, one triple and one candidate at a time."""

import numpy as np
import torch

from fkgsec.data.graph import ClientGraph, FederatedGraph
from fkgsec.kge.models import ClientTables, KgeModel


def naive_ranks(model: KgeModel, tables: ClientTables, client: ClientGraph, split: str) -> np.ndarray:
    """Filtered realistic ranks `[n, 2]`, tails then heads."""
    known = {tuple(triple) for triple in client.triples.tolist()}
    ranks = []
    for true in map(tuple, getattr(client, split).tolist()):
        both = []
        for column in (2, 0):
            rivals = [(*true[:column], entity, *true[column + 1 :]) for entity in range(client.num_entities)]
            heads, relations, tails = torch.tensor([true, *(rival for rival in rivals if rival not in known)]).T
            rated = model.score(tables.entities[heads], tables.relations[relations], tables.entities[tails])
            both.append(1 + int((rated[1:] > rated[0]).sum()) + int((rated[1:] == rated[0]).sum()) / 2)
        ranks.append(both)
    return np.array(ranks)


def naive_mrr(model: KgeModel, tables: list[ClientTables], graph: FederatedGraph, split: str = "valid") -> float:
    """Their mean reciprocal over all clients."""
    pairs = zip(tables, graph.clients, strict=True)
    return float(np.mean(1 / np.concatenate([naive_ranks(model, own, client, split) for own, client in pairs])))
