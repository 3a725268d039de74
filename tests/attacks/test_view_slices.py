"""A view walked from end to end: no row, name or seed in it that its threat model does not allow."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from fkgsec import KgeOptions, generate_consortium
from fkgsec.attacks.kge.view import KgeView
from fkgsec.attacks.options import KGE, THREAT_MODELS, threat_models
from fkgsec.attacks.registry import build_view
from fkgsec.attacks.view import View
from fkgsec.defenses import make_transport
from fkgsec.federation.loop import run_federation
from fkgsec.kge.result import KgeResult

LEAK = 0.3


def walk(value: Any, path: str = "view") -> Iterator[tuple[str, Any]]:
    """Everything that can be reached from a value, with the way there; what a tensor is a part of included."""
    yield path, value
    if isinstance(value, torch.Tensor):
        if value.untyped_storage().nbytes() > value.numel() * value.element_size():
            yield (
                f"{path} (storage)",
                torch.tensor(value.untyped_storage().tolist(), dtype=torch.uint8).view(value.dtype),
            )
    elif isinstance(value, np.ndarray):
        yield from (item for one in value.ravel()[: 0 if value.dtype != object else None] for item in walk(one, path))
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from walk(key, f"{path} key")
            yield from walk(item, f"{path}[{key!r}]")
    elif isinstance(value, list | tuple | set | frozenset):
        for place, item in enumerate(value):
            yield from walk(item, f"{path}[{place}]")
    elif isinstance(value, msgspec.Struct):
        yield from (item for name in value.__struct_fields__ for item in walk(getattr(value, name), f"{path}.{name}"))
    elif dataclasses.is_dataclass(value):
        for one in dataclasses.fields(value):
            yield from walk(getattr(value, one.name), f"{path}.{one.name}")
    elif hasattr(value, "__dict__"):
        yield from (item for name, one in vars(value).items() for item in walk(one, f"{path}.{name}"))


@functools.cache
def federate(algorithm: str, defense: str) -> KgeResult:
    graph = generate_consortium(clients=3, size=400, seed=5)
    options = KgeOptions(
        algorithm=algorithm, defense=defense, dim=8, rounds=2, local_epochs=1, eval_every=1, patience=0, batch_size=64,
        num_negatives=4, learning_rate=0.05, device="cpu", seed=12345, protocol_seed=3 if defense else None,
    )  # fmt: skip
    return run_federation(graph, options, make_transport=make_transport)


def rows_in(view: View, width: int) -> np.ndarray:
    """Every row of that width in a view, float32 `[n, width]`."""
    found = [
        np.asarray(value, dtype=np.float32).reshape(-1, width)
        for _, value in walk(view)
        if isinstance(value, np.ndarray | torch.Tensor)
        and np.asarray(value).dtype.kind == "f"
        and np.asarray(value).size % width == 0
    ]
    return np.concatenate(found) if found else np.empty((0, width), dtype=np.float32)


def held_in(view: View, rows: torch.Tensor) -> int:
    """How many of these rows `[n, W]` a view holds."""
    seen = {row.tobytes() for row in rows_in(view, rows.shape[1])}
    return sum(row.tobytes() in seen for row in np.asarray(rows, dtype=np.float32))


OF_MESSAGES = [name for name, model in threat_models(KGE).items() if model.server and not model.auxiliary]
CASES = [("fede", ""), ("fedr", ""), ("fede", "secagg"), ("fede", "psu,secagg"), ("fedr", "psu,secagg")]


@pytest.mark.parametrize("threat", OF_MESSAGES)
@pytest.mark.parametrize(("algorithm", "defense"), CASES)
class TestWalk:
    @staticmethod
    @functools.cache
    def view(algorithm: str, defense: str, threat: str) -> tuple[KgeResult, KgeView]:
        result = federate(algorithm, defense)
        colluder = result.graph.clients[0].name
        return result, build_view(result, THREAT_MODELS[threat], colluder=colluder, leak=LEAK, seed=0)

    def test_rows_of_the_colluder_are_the_leaked_ones(self, algorithm: str, defense: str, threat: str) -> None:
        result, view = self.view(algorithm, defense, threat)
        graph, trained = result.graph.clients[0], result.trained[0]
        allowed = len(view.colluder.entity_names) if view.colluder else 0
        assert allowed == (max(1, int(LEAK * graph.num_trained_entities)) if THREAT_MODELS[threat].colluder else 0)
        own = trained.entities[: graph.num_trained_entities]
        others = np.isin(graph.entity_ids[: len(own)], np.concatenate([c.entity_ids for c in result.graph.clients[1:]]))
        # A row that nobody else holds is a sum of one, which the server opens itself.
        summed_alone = 0 if algorithm == "fedr" or not defense else int((~others).sum())
        assert held_in(view, own) <= allowed + summed_alone
        assert held_in(view, own[torch.from_numpy(others)]) <= allowed
        relations = trained.relations[: graph.num_trained_relations]
        known = len(view.colluder.relation_names) if view.colluder else 0
        if algorithm == "fede":
            assert held_in(view, relations) == known

    def test_private_rows_of_victims_are_not_there(self, algorithm: str, defense: str, threat: str) -> None:
        result, view = self.view(algorithm, defense, threat)
        for graph, trained in zip(result.graph.clients[1:], result.trained[1:], strict=True):
            if algorithm == "fede":
                assert held_in(view, trained.relations[: graph.num_trained_relations]) == 0
            elif not THREAT_MODELS[threat].victim_entities:
                assert held_in(view, trained.entities[: graph.num_trained_entities]) == 0
            assert held_in(view, trained.entities[graph.num_trained_entities :]) == 0

    def test_names_are_those_that_are_known(self, algorithm: str, defense: str, threat: str) -> None:
        result, view = self.view(algorithm, defense, threat)
        told = THREAT_MODELS[threat].identifiers
        entities = set(result.graph.entities) if told and algorithm == "fede" else set()
        relations = set(result.graph.relations) if told and algorithm == "fedr" else set()
        if view.colluder:
            entities |= set(view.colluder.entity_names)
            relations |= set(view.colluder.relation_names)
        words = {value for _, value in walk(view) if isinstance(value, str)}
        assert words & set(result.graph.entities) <= entities
        assert words & set(result.graph.relations) <= relations

    def test_no_seed_of_the_run_is_there(self, algorithm: str, defense: str, threat: str) -> None:
        result, view = self.view(algorithm, defense, threat)
        for path, value in walk(view):
            assert "seed" not in path
            assert not (isinstance(value, int) and value == result.options.seed)


def test_the_walk_finds_what_is_planted() -> None:
    """A control: the whole table behind a slice, and a row in a field of a part, are seen."""
    result = federate("fede", "secagg")
    view = build_view(result, THREAT_MODELS["collusion"], colluder=result.graph.clients[0].name, leak=LEAK, seed=0)
    own = result.trained[0].entities[: result.graph.clients[0].num_trained_entities]
    before = held_in(view, own)
    assert 0 < before < len(own)
    table = view.secure["entities"]
    for planted in (own, own[:1]):  # the second holds the storage of the first
        secure = {"entities": dataclasses.replace(table, known_parts={"client/x": planted})}
        assert held_in(dataclasses.replace(view, secure=secure), own) == len(own)
