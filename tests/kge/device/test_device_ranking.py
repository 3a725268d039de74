"""Ranks counted on the device against those of the CPU, ties and known triples included."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fkgsec.kge.device import where
from fkgsec.kge.models import MODELS, KgeModel, Side
from fkgsec.kge.negatives import KnownTriples
from fkgsec.kge.ranking import filtered_ranks


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("side", ["tail", "head"])
def test_ranks_equal_the_cpu(name: str, side: Side, device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of whole numbers, two of them equal: ties are many; the last triple is not among the known ones."""
    rng = np.random.default_rng(1)
    model = KgeModel(name, 2)
    entities = torch.from_numpy(rng.integers(-2, 3, size=(9, model.entity_width)).astype(np.float32))
    entities[4] = entities[7]
    relations = torch.from_numpy(rng.integers(-1, 2, size=(2, model.relation_width)).astype(np.float32))
    triples = np.unique(rng.integers(0, [9, 2, 9], size=(40, 3)), axis=0)
    known = KnownTriples.build(triples[:-1], side, 2)
    asked = triples[::4]
    asked = np.concatenate([asked, triples[-1:]])
    monkeypatch.setattr(where, "DEVICES", ())
    expected = filtered_ranks(model, entities, relations, asked, [known])[:, 0]
    monkeypatch.setattr(where, "DEVICES", (device.type,))
    ranks = filtered_ranks(model, entities.to(device), relations.to(device), asked, [known])
    assert ranks[:, 0].tolist() == expected.tolist()
