"""Infer which clients hold data of one kind from the similarity of their updates.

Variants: "updates", the cosine of two clients' updates (upload minus broadcast), by which GCFL splits clusters and which any
server with single uploads can compute. "clusters", whether two clients received the same parameters before the attacked round.
Under GCFL, equal broadcasts mean one cluster.

Threat model: "server", honest but curious. Required knowledge: single uploads and broadcasts. Truth: whether two clients'
graphs belong to one data set.

Figure `same_data`: AUC over pairs of clients; chance is .5. Its interval assumes independent pairs, although pairs share
clients: with few clients it is too short.

Source: ours, after GCFL (Xie et al. 2021), whose server does this by design.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import numpy as np
import torch

from fkgsec.attacks.figure import Figure
from fkgsec.attacks.graphs.properties import change
from fkgsec.attacks.graphs.view import PARAMETERS, GraphView
from fkgsec.attacks.laboratory import Laboratory
from fkgsec.attacks.membership.figures import auc_of
from fkgsec.attacks.options import GRAPH
from fkgsec.attacks.questions import LINKS
from fkgsec.attacks.registry import Attack, Needs, Truth
from fkgsec.attacks.view import ALL
from fkgsec.estimate import exact

Pairs = Mapping[tuple[str, str], float]


def claim(view: GraphView, laboratory: Laboratory, rng: np.random.Generator) -> dict[str, dict[tuple[str, str], float]]:
    """Measure the similarity of each pair of clients, by variant."""
    # Only clients with an upload and a known broadcast have an update.
    seen = [victim for victim in view.victims if victim.broadcast is not None and victim.upload is not None]
    updates = {victim.name: change(victim.broadcast or {}, victim.upload or {}) for victim in seen}
    sent = {victim.name: view.layout.pack(victim.broadcast or {}) for victim in seen}
    pairs = list(itertools.combinations(updates, 2))
    return {
        "updates": {(first, other): float(updates[first] @ updates[other]) for first, other in pairs},
        # GCFL broadcasts one model per cluster.
        "clusters": {(first, other): float(torch.equal(sent[first], sent[other])) for first, other in pairs},
    }


def score(claims: Mapping[str, Pairs], truth: Truth) -> list[Figure]:
    """Compute the AUC of each variant over all pairs."""
    data_set = {client.name: client.vocabulary for client in truth.graph.clients}
    figures = []
    for variant, pairs in claims.items():
        # The truth: clients of one data set.
        same = np.array([data_set[first] == data_set[other] for first, other in pairs], dtype=bool)
        counts = {"same": int(same.sum()), "other": int((~same).sum())}
        if min(counts.values()) < 2:
            reason = (
                f"{counts['same']} pairs of clients hold one data set and {counts['other']} do not; it takes 2 of each"
            )
            figures.append(truth.figure("same_data", ALL, reason=reason, variant=variant))
            continue
        alike = np.array(list(pairs.values()))
        auc, base = auc_of(alike[same], alike[~same]), exact(0.5, len(same))
        figures.append(
            truth.figure("same_data", ALL, auc, baseline=base, attainable=1.0, variant=variant, counts=counts)
        )
    return figures


ATTACK = Attack(
    "client-kinship",
    "infers which clients hold graphs of the same data set, from updates or clusters",
    Needs(single_uploads=(PARAMETERS,), server=True),
    {"same_data": "AUC of telling pairs of clients with one data set from others"},
    claim,
    score,
    threats=("server",),
    questions={"same_data": LINKS},
    items={"same_data": "pairs of clients"},
    task=GRAPH,
)
