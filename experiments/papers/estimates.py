"""What a run is expected to take, from records of runs that were measured, or a short timing where there is none.

    costs = Costs(records, papers_rounds={}, sizes={})
    found = costs.of(spec)
    print(found.seconds, found.says)                     # 5175.0, "25 s a round: transe fede on other data; 207 rounds: ..."

A round is taken to grow with the task's own measure of work (`RunTask.work`). Seconds are of whichever machine made the records,
and of what else it did then: an estimate orders a queue, and is no promise.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, MutableMapping
from typing import Any, NamedTuple

from experiments.papers.runner import run_key
from experiments.runs.record import Record
from experiments.tasks.spec import RunSpec
from experiments.tasks.task import task_of
from fkgsec.errors import FkgsecError
from fkgsec.federation.loop import run_federation
from fkgsec.threads import one_thread

ASSUMED_ROUNDS = 100  # where nobody has seen such a run end, and the paper does not print when its own did


class Estimated(NamedTuple):
    """What a run is expected to take, and where each half of it is from."""

    round_s: float
    rounds: int
    says: str

    @property
    def seconds(self) -> float:
        return self.round_s * self.rounds

    def left(self, rounds_done: int) -> float:
        """Seconds after so many rounds; one round at least, since validation says whether it was the last."""
        return self.round_s * max(1, self.rounds - rounds_done)


class _Measured(NamedTuple):
    """A record's share in estimates."""

    spec: RunSpec
    key: RunSpec
    round_s: float
    rate: float  # seconds by unit of work
    rounds: int
    stopped: bool  # by validation, before its bound


class Costs:
    """Estimates of runs.

    Args:
        records: whatever was measured. papers_rounds: of runs by `run_key`, when the paper says that its own had converged.
        sizes: training items by data; those that no record has are added as they are read.
        time_round: measures a unit of work of a spec; None: `timed_rate`.
    """

    def __init__(
        self,
        records: Iterable[Record],
        *,
        papers_rounds: Mapping[RunSpec, int],
        sizes: MutableMapping[str, int],
        time_round: Callable[[RunSpec], float] | None = None,
    ) -> None:
        self._sizes, self._papers_rounds = sizes, papers_rounds
        self._time_round, self._timed = time_round or timed_rate, dict[Hashable, float]()
        self._not_there: dict[str, FkgsecError] = {}
        self._measured: list[_Measured] = []
        for record in records:
            self._take(record)

    def _take(self, record: Record) -> None:
        if len(record.rounds) < 2:
            return
        num_train = sum(client["train"] for client in record.data.clients.values())
        self._sizes.setdefault(record.spec.data, num_train)
        round_s = statistics.fmean(entry.seconds for entry in record.rounds[1:])  # those with a validation take longer
        work = task_of(record.spec).work(record.spec, num_train)
        last = record.rounds[-1].round
        key = run_key(record.spec, attack=False)
        self._measured.append(_Measured(record.spec, key, round_s, round_s / work, last, last < record.spec.rounds))

    def of(self, spec: RunSpec) -> Estimated:
        """The estimate of a run. Raises what reading its data raises, where no record has them."""
        round_s, by = self._round(spec)
        rounds, of = self._rounds(spec)
        return Estimated(round_s, rounds, f"{round_s:.3g} s a round: {by}; {rounds} rounds: {of}")

    def _round(self, spec: RunSpec) -> tuple[float, str]:
        key = run_key(spec, attack=False)
        if same := [one.round_s for one in self._measured if one.key == key]:
            return statistics.median(same), "measured"
        work = task_of(spec).work(spec, self._num_train(spec))
        for says, like in _likenesses(spec):
            if found := [one.rate for one in self._measured if like(one.spec)]:
                return work * statistics.median(found), f"scaled from {says}"
        like = (spec.task, spec.model)
        if like not in self._timed:
            self._timed[like] = self._time_round(spec)
        return work * self._timed[like], "scaled from a short timing"

    def _rounds(self, spec: RunSpec) -> tuple[int, str]:
        key = run_key(spec, attack=False)
        if same := [one.rounds for one in self._measured if one.key == key]:
            return round(statistics.median(same)), "measured"
        if not spec.patience:
            return spec.rounds, "all"
        waits = spec.patience * spec.eval_every
        if key in self._papers_rounds:
            return min(spec.rounds, self._papers_rounds[key] + waits), "the paper's, and patience"
        alike = [one.rounds for one in self._measured if one.stopped and _trains_as(one.spec) == _trains_as(spec)]
        if alike:
            return min(spec.rounds, round(statistics.median(alike))), "as on other data"
        return min(spec.rounds, ASSUMED_ROUNDS + waits), "assumed"

    def _num_train(self, spec: RunSpec) -> int:
        if error := self._not_there.get(spec.data):  # whoever has no network waits for it once
            raise error
        if spec.data not in self._sizes:
            try:
                self._sizes[spec.data] = _num_train(spec.load_graph())
            except FkgsecError as error:
                self._not_there[spec.data] = error
                raise
        return self._sizes[spec.data]


def _likenesses(spec: RunSpec) -> Iterator[tuple[str, Callable[[RunSpec], bool]]]:
    """From the most alike on: what a record's spec has in common with this one, in words and as a test."""
    model = (spec.task, spec.model)
    yield (
        f"{spec.model} {spec.algorithm}",
        lambda one: ((one.task, one.model), one.algorithm) == (model, spec.algorithm),
    )
    yield spec.model, lambda one: (one.task, one.model) == model


def _trains_as(spec: Any) -> Hashable:
    """What decides when validation stops a run, the data aside."""
    return (
        spec.task, spec.algorithm, spec.model, spec.learning_rate, spec.local_epochs, spec.batch_size, spec.eval_every,
        spec.patience,
    )  # fmt: skip


def _num_train(graph: Any) -> int:
    return sum(len(client.train) for client in graph.clients)


def timed_rate(spec: RunSpec) -> float:
    """Seconds by unit of work of this spec's model, measured in the second of two rounds on small generated data."""
    task = task_of(spec)
    small = spec.replace(**{"rounds": 2, "eval_every": 2, "defense": "", **task.small})
    graph = small.load_graph()
    with one_thread():
        result = run_federation(graph, small.federation_options())
    num_train = _num_train(graph)
    return result.rounds[-1].seconds / task.work(small, num_train)
