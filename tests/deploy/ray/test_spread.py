"""Training spread over workers gives the result of one process, whoever has which client."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from fkgsec.defenses.transport import make_transport
from fkgsec.errors import SpecError, TrainingError
from fkgsec.experiments.deploy.ray import Host, shared_out, spread_over
from fkgsec.experiments.runs.spec import make_spec
from fkgsec.experiments.tasks.kge import Spec
from fkgsec.federation.loop import Federation, Observer, load_result, run_federation
from fkgsec.kge.local.training import TrainingSubset
from fkgsec.kge.result import KgeResult

TINY = {
    "size": 300,
    "dim": 16,
    "batch_size": 64,
    "num_negatives": 8,
    "rounds": 3,
    "eval_every": 1,
    "learning_rate": 0.01,
    "device": "cpu",
    "clients": 5,
}


class Here:
    """The hosts of workers, in this process: what crosses to a worker crosses as bytes all the same."""

    def __init__(self, count: int) -> None:
        self.count, self.hosts = count, [Host() for _ in range(count)]
        self.calls: list[tuple[str, int]] = []

    def call(
        self, method: str, arguments: Mapping[int, tuple[Any, ...]], taken: Callable[[int], None] | None = None
    ) -> dict[int, Any]:
        found = {}
        for number, own in arguments.items():
            self.calls.append((method, number))
            found[number] = getattr(self.hosts[number], method)(*own)
            if taken:
                taken(self.hosts[number].taken())
        return found


def spec_of(**options: Any) -> Spec:
    return make_spec(None, TINY | options)


def assert_alike(one: KgeResult, other: KgeResult, *, frames: bool = True) -> None:
    mine, theirs = one.tensors(), other.tensors()
    assert mine.keys() == theirs.keys()
    unlike = [name for name in mine if not torch.equal(mine[name], theirs[name])]
    assert [name for name in unlike if frames or not name.startswith(("frame.", "note."))] == []
    said = [[(e.loss, e.valid, e.bytes_up, e.bytes_down, e.num_survivors) for e in run.rounds] for run in (one, other)]
    assert said[0] == said[1]


SLOW = [
    ("fede", 2, {}),
    ("feds", 2, {}),  # codecs that remember
    ("fede-kd", 2, {}),
    ("single", 2, {}),  # an Adam that lasts
]


@pytest.mark.parametrize(
    ("algorithm", "workers", "more"),
    [
        ("fedlu", 3, {}),  # two models, with one table of relations
        (
            "fedec",
            9,
            {"participation": 0.6},
        ),  # more workers than clients, of whom some sit out; received and previous rows
        *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW),
    ],
)
def test_a_spread_run_is_that_of_one_process(algorithm: str, workers: int, more: dict[str, Any]) -> None:
    spec = spec_of(algorithm=algorithm, **more)
    graph, options, here = spec.load_graph(), spec.federation_options(), Here(workers)
    assert_alike(run_federation(graph, options), run_federation(graph, options, make_task=spread_over(here)))
    assert len({number for method, number in here.calls if method == "train"}) > 1


def test_protocols_are_those_of_one_process() -> None:
    spec = spec_of(defense="psu,secagg", rounds=2)
    graph, options = spec.load_graph(), spec.federation_options()
    together = run_federation(graph, options, make_transport=make_transport)
    spread = run_federation(graph, options, make_transport=make_transport, make_task=spread_over(Here(2)))
    assert_alike(together, spread, frames=False)  # keys and masks are drawn anew


class Stopping(Observer):
    def round_done(self, entry: Any) -> None:
        if entry.round == 2:
            raise KeyboardInterrupt


@pytest.mark.parametrize("algorithm", ["fedlu", pytest.param("single", marks=pytest.mark.slow)])
def test_a_run_goes_on_with_other_workers(algorithm: str, tmp_path: Path) -> None:
    spec = spec_of(algorithm=algorithm, rounds=4)
    graph, options = spec.load_graph(), spec.federation_options()
    whole = run_federation(graph, options)
    with pytest.raises(KeyboardInterrupt):
        run_federation(graph, options, tmp_path, Stopping(), 0, make_task=spread_over(Here(3)))
    assert_alike(whole, run_federation(graph, options, tmp_path, make_task=spread_over(Here(2))))
    assert_alike(whole, load_result(tmp_path / "checkpoint.safetensors", graph, options))


class Counting(Observer):
    def __init__(self) -> None:
        self.due, self.taken = list[int](), list[int]()

    def round_started(self, round: int, num_steps: int) -> None:
        self.due.append(num_steps)
        self.taken.append(0)

    def step_done(self) -> None:
        self.taken[-1] += 1


def test_progress_counts_the_steps_of_one_process() -> None:
    spec, observer = spec_of(), Counting()
    run_federation(spec.load_graph(), spec.federation_options(), observer=observer, make_task=spread_over(Here(2)))
    assert observer.taken == observer.due
    assert len(observer.due) == 3


def test_a_loss_that_is_no_number_is_said_as_in_one_process() -> None:
    spec, said = spec_of(), list[str]()
    for how in (None, spread_over(Here(2))):
        federation = Federation(spec.load_graph(), spec.federation_options(), make_task=how)
        federation.task.stack.rows("relations", 1)[0, 0] = float("nan")  # type: ignore[attr-defined]
        with pytest.raises(TrainingError, match="of client hospital-2 is nan in round 3") as caught:
            federation.train(3, range(5), lambda: None)
        said.append(str(caught.value))
    assert said[0] == said[1]


def test_a_subset_reaches_the_worker_that_trains_on_it() -> None:
    spec = spec_of()
    graph, options = spec.load_graph(), spec.federation_options()
    rows = []
    for how in (None, spread_over(Here(2))):
        federation = Federation(graph, options, make_task=how)
        federation.task.train_on(1, TrainingSubset.all(graph.clients[1].train[:40]))
        federation.align()
        federation.train(1, range(5), lambda: None)()
        rows.append(federation.shared_rows()["entities"]["client/hospital-2"])
    assert torch.equal(*rows)


@pytest.mark.parametrize(
    ("options", "word"),
    [({"algorithm": "collective"}, "one client"), ({"model": "noge"}, "encoder"), ({"device": "cuda:9"}, "device")],
)
def test_what_workers_cannot_train_is_refused(options: dict[str, Any], word: str) -> None:
    spec = make_spec(None, {"size": 300, "clients": 3} | options)
    with pytest.raises(SpecError, match=word):
        spread_over(Here(2))(spec.load_graph(), spec.federation_options())


def test_every_client_is_with_one_worker() -> None:
    sizes = [7, 1, 9, 9, 2, 30, 4]
    groups = shared_out(sizes, 3)
    assert sorted(place for group in groups for place in group) == list(range(7))
    assert shared_out(sizes, 20) == sorted(([place] for place in range(7)), key=lambda one: (-sizes[one[0]], one[0]))
    assert max(sum(sizes[place] for place in group) for group in groups) == 30
