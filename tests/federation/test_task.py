"""A second task beside knowledge graphs: its options, its result, its table, through the one loop."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from fkgsec.data.graph import FederatedGraph
from fkgsec.errors import DataError, RunError, SpecError
from fkgsec.exchange import Holding, Received, Transport
from fkgsec.federation import packing
from fkgsec.federation.loop import CHECKPOINT, load_result, run_federation
from fkgsec.federation.options import RunOptions, replace
from fkgsec.federation.recipes import RECIPES, Recipe, register
from fkgsec.federation.result import RunResult
from fkgsec.federation.task import TASKS
from fkgsec.kge.options import KgeOptions

NAMES = ("slope", "offset")


class Points(NamedTuple):
    """A client's points on the plane, `[n, 2]`, and their heights `[n]`."""

    name: str
    xs: np.ndarray
    heights: np.ndarray


@dataclass(frozen=True)
class Plane:
    """A federation of clients with points."""

    name: str
    clients: tuple[Points, ...]

    @property
    def hash(self) -> str:
        return hashlib.sha256(b"".join(one.xs.tobytes() + one.heights.tobytes() for one in self.clients)).hexdigest()


class PlaneOptions(RunOptions["PlaneResult"], frozen=True, kw_only=True, forbid_unknown_fields=True):
    task: ClassVar[str] = "plane"
    decay: float = 0.0


@dataclass(frozen=True, repr=False, kw_only=True)
class PlaneResult(RunResult):
    weights: list[Tensor]

    def outcome_tree(self) -> dict[str, packing.Tree]:
        return {"weights": {str(place): rows for place, rows in enumerate(self.weights)}}

    @classmethod
    def read_outcome(cls, tensors: Mapping[str, Tensor], num_clients: int) -> dict[str, Any]:
        return {"weights": [tensors[f"weights.{place}"] for place in range(num_clients)]}


class PlaneTask:
    """Linear regression: the rows of "parameters" are two coefficients and the offset, padded to a row."""

    options_type: ClassVar[type[RunOptions]] = PlaneOptions
    result_type: ClassVar[type[RunResult]] = PlaneResult
    metric = "minus squared error"
    judged_before_broadcast = False

    def __init__(self, graph: Any, options: Any) -> None:
        if not isinstance(graph, Plane):
            raise DataError(f"{type(graph).__name__}: a plane is expected")
        self.plane, self.options = graph, options
        self.names: Sequence[str] = [one.name for one in graph.clients]
        self.sizes: Sequence[int] = [len(one.heights) for one in graph.clients]
        self.models = torch.zeros(len(self.names), len(NAMES), 2)

    def data(self, place: int) -> Points:
        return self.plane.clients[place]

    def train_on(self, place: int, subset: Any) -> None:
        raise NotImplementedError

    def first_rows(self, table: str, names: Sequence[str]) -> Tensor:
        return torch.full((len(names), 2), 0.5)

    def holdings(self, table: str) -> list[Holding]:
        return [Holding(list(NAMES), len(NAMES), weight=size) for size in self.sizes]

    def rows(self, table: str, place: int) -> Tensor:
        return self.models[place]

    def receive(self, round: int, table: str, place: int, received: Received) -> None:
        self.models[place] = received.merged(self.models[place])

    def begin_round(self) -> None:
        return

    def num_steps(self, places: Any) -> int:
        return 1

    def _error(self, place: int, model: Tensor) -> Tensor:
        points = self.plane.clients[place]
        guessed = torch.from_numpy(points.xs).float() @ model[0] + model[1].sum()
        return (guessed - torch.from_numpy(points.heights).float()).square().mean()

    def train(self, round: int, places: Sequence[int], on_step: Any) -> dict[int, float]:
        losses = {}
        for place in places:
            model = self.models[place].clone().requires_grad_()
            loss = self._error(place, model) + self.options.decay * model.square().sum()
            loss.backward()
            assert model.grad is not None
            self.models[place] -= self.options.learning_rate * model.grad
            losses[place] = loss.item()
        on_step()
        return losses

    def validate(self) -> float:
        return -float(sum(self._error(place, self.models[place]) for place in range(len(self.names))))

    def snapshot(self, *, shared_only: bool = False) -> dict[str, Tensor]:
        return {"models": self.models.clone()}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        self.models.copy_(tensors["models"])

    def trainer_state(self) -> dict[str, Tensor]:
        return {}

    def load_trainer_state(self, tensors: Mapping[str, Tensor]) -> None:
        return

    def outcome(self, trained: Mapping[str, Tensor], final: Mapping[str, Tensor]) -> dict[str, Any]:
        return {"weights": list(final["models"])}


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    TASKS.register("plane", PlaneTask)
    register(Recipe("fed-plane", ("parameters",), "this test", task="plane"))
    yield
    RECIPES.remove("fed-plane")
    TASKS.remove("plane")


def plane(num_clients: int = 3) -> Plane:
    rng, clients = np.random.default_rng(0), []
    for place in range(num_clients):
        xs = rng.normal(size=(4 + 3 * place, 2))
        clients.append(Points(f"party-{place}", xs, xs @ [1.0, -2.0] + 0.25))
    return Plane("a plane", tuple(clients))


@pytest.fixture
def fitting(_registered: None) -> PlaneOptions:
    return PlaneOptions(algorithm="fed-plane", rounds=4, eval_every=1, learning_rate=0.1, device="cpu")


def test_the_loop_trains_it_and_weighs_its_clients(fitting: PlaneOptions) -> None:
    graph = plane()
    result = run_federation(graph, fitting)
    assert isinstance(result, PlaneResult)
    models, sizes = torch.full((3, 2, 2), 0.5), torch.tensor([4.0, 7.0, 10.0])
    by_hand = PlaneTask(graph, fitting)
    for round in range(1, 5):
        by_hand.models = models.clone()
        by_hand.train(round, [0, 1, 2], lambda: None)
        mean = (by_hand.models * sizes[:, None, None]).sum(0) / sizes.sum()
        models = mean.expand(3, 2, 2)
    for weights in result.weights:
        torch.testing.assert_close(weights, models[0])
    assert result.metric == "minus squared error"
    assert result.valid == max(entry.valid for entry in result.rounds[1:] if entry.valid is not None)
    assert result.row_names == {"parameters": list(NAMES)}
    assert repr(result).startswith(
        "PlaneResult(fed-plane, 3 clients of a plane: round 4 of 4, validation minus squared error -"
    )
    assert "MRR" not in result.summary()
    assert "validation minus squared error: -" in result.summary()


def test_it_goes_on_after_a_stop_and_is_read_again(fitting: PlaneOptions, tmp_path: Path) -> None:
    graph, whole = plane(), run_federation(plane(), fitting)
    run_federation(graph, fitting, tmp_path, checkpoint_every_s=0)
    with safe_open(tmp_path / CHECKPOINT, framework="pt") as handle:
        assert {"now.models", "best.final.models"} <= set(handle.keys())
    again = load_result(tmp_path / CHECKPOINT, graph, fitting)
    whole.save(tmp_path / "run")
    read = PlaneResult.load(tmp_path / "run", graph, fitting)
    for one in (again, read):
        assert torch.equal(torch.stack(one.weights), torch.stack(whole.weights))
        assert (one.metric, one.best_round) == (whole.metric, whole.best_round)
    with pytest.raises(RunError, match="belongs to a run with other options"):
        load_result(tmp_path / CHECKPOINT, graph, replace(fitting, decay=0.5))


def test_options_and_data_of_another_task_are_refused(uneven: FederatedGraph, fitting: PlaneOptions) -> None:
    with pytest.raises(
        SpecError, match="algorithm 'fed-plane' is one of the task 'plane'; KgeOptions has the options of"
    ):
        KgeOptions(algorithm="fed-plane")
    with pytest.raises(
        SpecError, match="options: fede is an algorithm of the task 'kge', which takes KgeOptions; got RunO"
    ):
        run_federation(uneven, RunOptions(algorithm="fede"))
    with pytest.raises(DataError, match="FederatedGraph: a plane is expected"):
        run_federation(uneven, fitting)
    with pytest.raises(DataError, match="a plane: fed-plane needs at least 2 clients; the federation has one"):
        run_federation(plane(1), fitting, make_transport=Transport)
