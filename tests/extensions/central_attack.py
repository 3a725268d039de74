"""An attack with an option of its own: entities with many links lie closer to all other rows."""

from typing import Annotated

import numpy as np
import torch
from msgspec import Meta

from fkgsec import Attack, AttackSettings, Needs


class CentralSettings(AttackSettings, frozen=True):
    norm: Annotated[float, Meta(ge=1, description="order of the norm that distances are measured by")] = 1.0


def run(view, laboratory, rng, *, settings):
    return {v.name: -torch.cdist(v.entities, v.entities, p=settings.norm).mean(1).numpy() for v in view.victims}


def score(claims, truth):
    figures = []
    for victim, closeness in claims.items():
        degrees = np.bincount(truth.client(victim).train[:, [0, 2]].ravel(), minlength=len(closeness))
        hub = degrees > np.median(degrees)
        figures += truth.membership(victim, closeness[hub], closeness[~hub])
    return figures


NEEDS, METRICS = Needs(single_uploads=("entities",)), {"auc": "AUC of entities with many links"}
CENTRAL = Attack("central", "tells hubs by their rows", NEEDS, METRICS, run, score, settings=CentralSettings)
