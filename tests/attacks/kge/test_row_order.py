"""The place of a row says nothing to an attack from outside, and truth goes by the same places."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fkgsec.attacks.figure import Figure
from fkgsec.attacks.kge.task import RowOrder
from fkgsec.attacks.laboratory import Laboratory
from fkgsec.attacks.needs import Needs
from fkgsec.attacks.options import THREAT_MODELS, KgeAttackOptions
from fkgsec.attacks.registry import ATTACKS, Attack, Truth, build_view, run_attacks
from fkgsec.attacks.view import View
from fkgsec.estimate import proportion
from fkgsec.kge.result import KgeResult


@pytest.mark.parametrize(("algorithm", "threat"), [("fede", "identifiers"), ("fedr", "collusion+entities")])
def test_rows_and_truth_move_together(trained_runs: dict[str, KgeResult], algorithm: str, threat: str) -> None:
    result = trained_runs[algorithm]
    view = build_view(result, THREAT_MODELS[threat], colluder=result.graph.clients[0].name, leak=0.5, seed=0)
    order = RowOrder(result.graph, seed=1)
    mixed, clients = order.shuffled(view), order.clients()
    for before, after in zip(view.victims, mixed.victims, strict=True):
        was = next(one for one in result.graph.clients if one.name == before.name)
        client = clients[before.name]
        assert before.entities is not None
        assert after.entities is not None
        moved = client.entity_ids[: len(after.entities)]
        assert moved.tolist() != was.entity_ids[: len(moved)].tolist()
        for row, number in zip(after.entities, moved, strict=True):
            assert torch.equal(row, before.entities[was.entity_ids.tolist().index(number)])
        for number, row in zip(after.aligned.get("entities", ()), after.entities, strict=False):
            assert torch.equal(row, before.entities[before.aligned["entities"].tolist().index(number)])
        if after.entity_names is not None:
            assert after.entity_names.tolist() == [result.graph.entities[number] for number in moved]
        for split in ("train", "valid", "test"):
            np.testing.assert_array_equal(
                client.to_global(getattr(client, split)), was.to_global(getattr(was, split)), split
            )
        assert client.num_trained_entities == was.num_trained_entities
        if before.relations is not None:
            assert after.relations is not None
            for row, number in zip(after.relations, client.relation_ids, strict=False):
                assert torch.equal(row, before.relations[was.relation_ids.tolist().index(number)])


def test_an_attack_that_looks_at_places_alone_names_nothing(
    trained_runs: dict[str, KgeResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes the rows of a victim for the colluder's entities in their order, and looks at no embedding."""

    def run(view: View, laboratory: Laboratory, rng: np.random.Generator) -> dict[str, np.ndarray]:
        assert view.colluder is not None
        pool, claims = view.colluder.entity_names, {}
        for victim in view.victims:
            assert victim.entities is not None
            claims[victim.name] = pool[np.arange(len(victim.entities)) * len(pool) // len(victim.entities)]
        return claims

    def score(claims: dict[str, np.ndarray], truth: Truth) -> list[Figure]:
        figures = []
        for victim, names in claims.items():
            ids = truth.client(victim).entity_ids[: len(names)]
            right = sum(truth.graph.entities[number] == name for number, name in zip(ids, names, strict=True))
            figures.append(truth.figure("named", victim, proportion(right, len(names))))
        return figures

    needs = Needs(colluder=True, single_uploads=("entities",))
    attack = Attack("places", "by their places", needs, {"named": "entities named"}, run, score, threats=("collusion",))
    ATTACKS.register("places", attack)
    try:
        shuffled = run_attacks(trained_runs["fede"], KgeAttackOptions(attack=("places",), leak=(1.0,))).figures
        monkeypatch.setattr(RowOrder, "shuffled", lambda _, view: view)
        in_order = run_attacks(trained_runs["fede"], KgeAttackOptions(attack=("places",), leak=(1.0,))).figures
    finally:
        ATTACKS.remove("places")
    named = [float(np.mean([one.estimate.value for one in found])) for found in (in_order, shuffled)]
    assert named[0] > 4 * named[1] + 0.05
