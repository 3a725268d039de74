"""What a run is expected to take, from records of runs that were measured, or a short timing where there is none.

    costs = Costs(records, papers_rounds={}, sizes={})
    found = costs.of(spec)
    print(found.seconds, found.says)                     # 5175.0, "25 s a round: transe fede on other data; 207 rounds: ..."

A round is taken to grow with the task's own measure of work (`RunTask.work`), attacks with the training items that they are on.
Seconds are of whichever machine made the records, and of what else it did then: an estimate orders a queue, and is no promise.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, MutableMapping
from typing import Any, NamedTuple

import msgspec

from attacks.registry import run_attacks
from experiments.papers.runner import run_key
from experiments.runs.record import Record
from experiments.tasks.spec import RunSpec
from experiments.tasks.task import task_of
from fkgsec.errors import FkgsecError
from fkgsec.federation.loop import run_federation
from fkgsec.threads import one_thread

ASSUMED_ROUNDS = 100  # where nobody has seen such a run end, and the paper does not print when its own did
NEAREST = 5
ESTIMATOR = (
    "Seconds: rounds times seconds a round, and the attacks; each as finished records have it of the same run, else scaled: a "
    f"round by its work from the {NEAREST} records of the model that are nearest in it, attacks by training items, and either "
    "from a short timing on generated data where there are no such records. Rounds: as in records of the same run, else the "
    f"paper's own plus patience, else as on other data, else {ASSUMED_ROUNDS} plus patience."
)


class Estimated(NamedTuple):
    """What a run is expected to take, and where each part of it is from. `attack_s`: of its attacks."""

    round_s: float
    rounds: int
    says: str
    attack_s: float = 0.0

    @property
    def seconds(self) -> float:
        return self.round_s * self.rounds + self.attack_s

    def left(self, rounds_done: int) -> float:
        """Seconds after so many rounds; one round at least, since validation says whether it was the last."""
        return self.round_s * max(1, self.rounds - rounds_done) + self.attack_s


class _Measured(NamedTuple):
    """A record's share in estimates."""

    spec: RunSpec
    trains_as: Hashable
    round_s: float
    work: float  # of a round
    rounds: int
    stopped: bool  # by validation, before its bound
    attacks: Hashable
    attack_rate: float | None  # seconds by training item


class Costs:
    """Estimates of runs.

    Args:
        records: whatever was measured. papers_rounds: of runs by `run_key`, when the paper says that its own had converged.
        sizes: training items by data; those that no record has are added as they are read.
        time_round: measures a unit of work of a spec; None: `timed_rate`. time_attacks: its attacks by training item; None:
            `timed_attack_rate`.
    """

    def __init__(
        self,
        records: Iterable[Record],
        *,
        papers_rounds: Mapping[RunSpec, int],
        sizes: MutableMapping[str, int],
        time_round: Callable[[RunSpec], float] | None = None,
        time_attacks: Callable[[RunSpec], float] | None = None,
    ) -> None:
        self._sizes, self._papers_rounds = sizes, papers_rounds
        self._time_round, self._timed = time_round or timed_rate, dict[Hashable, float]()
        self._time_attacks = time_attacks or timed_attack_rate
        self._not_there: dict[str, FkgsecError] = {}
        self._measured: list[_Measured] = []
        self._same: dict[RunSpec, list[_Measured]] = {}
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
        attack_s = record.environment.attack_s
        one = _Measured(
            record.spec, _trains_as(record.spec), round_s, work, last, last < record.spec.rounds,
            _attacked_as(record.spec), None if attack_s is None else attack_s / num_train,
        )  # fmt: skip
        self._measured.append(one)
        self._same.setdefault(run_key(record.spec, attack=False), []).append(one)

    def of(self, spec: RunSpec, *, attack: bool = False) -> Estimated:
        """The estimate of a run. Args: attack: it is attacked too. Raises what reading its data raises."""
        round_s, by = self._round(spec)
        rounds, of = self._rounds(spec)
        says = f"{round_s:.3g} s a round: {by}; {rounds} rounds: {of}"
        if not attack:
            return Estimated(round_s, rounds, says)
        attack_s, by = self._attacks(spec)
        return Estimated(round_s, rounds, f"{says}; {attack_s:.3g} s of attacks: {by}", attack_s)

    def _round(self, spec: RunSpec) -> tuple[float, str]:
        if same := [one.round_s for one in self._same.get(run_key(spec, attack=False), ())]:
            return statistics.median(same), "measured"
        work = task_of(spec).work(spec, self._num_train(spec))
        for says, like in _likenesses(spec):
            if found := [one for one in self._measured if like(one.spec)]:
                rates = [one.round_s / one.work for one in _nearest(found, work)]
                return work * statistics.median(rates), f"scaled from {says}"
        like = (spec.task, spec.model)
        if like not in self._timed:
            self._timed[like] = self._time_round(spec)
        return work * self._timed[like], "scaled from a short timing"

    def _attacks(self, spec: RunSpec) -> tuple[float, str]:
        attacks, items = _attacked_as(spec), self._num_train(spec)
        if same := [
            one.attack_rate for one in self._measured if one.attacks == attacks and one.attack_rate is not None
        ]:
            return items * statistics.median(same), "measured, by training items"
        if attacks not in self._timed:
            self._timed[attacks] = self._time_attacks(spec)
        return items * self._timed[attacks], "scaled from a short timing"

    def _rounds(self, spec: RunSpec) -> tuple[int, str]:
        key = run_key(spec, attack=False)
        if same := [one.rounds for one in self._same.get(key, ())]:
            return round(statistics.median(same)), "measured"
        if not spec.patience:
            return spec.rounds, "all"
        waits = spec.patience * spec.eval_every
        if key in self._papers_rounds:
            return min(spec.rounds, self._papers_rounds[key] + waits), "the paper's, and patience"
        trains_as = _trains_as(spec)
        alike = [one.rounds for one in self._measured if one.stopped and one.trains_as == trains_as]
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


def _nearest(found: Iterable[_Measured], work: float) -> list[_Measured]:
    """Those whose rounds are most nearly as much work: small ones mostly wait for other things than their work."""
    return sorted(found, key=lambda one: abs(math.log(one.work / work)))[:NEAREST]


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


def _attacked_as(spec: RunSpec) -> Hashable:
    """What decides how long attacks on a run take, the data aside."""
    return (
        spec.task,
        spec.model,
        spec.algorithm,
        msgspec.json.encode(msgspec.structs.replace(spec.attack_options(), seed=0)),
    )


def _num_train(graph: Any) -> int:
    return sum(len(client.train) for client in graph.clients)


def _small(spec: RunSpec) -> RunSpec:
    """The spec on small generated data, in two rounds that take as little as rounds of its model can."""
    small = spec.replace(**{"rounds": 2, "eval_every": 2, "defense": "", **task_of(spec).small})
    return small.replace(decoder_epochs=1) if getattr(spec, "decoder_epochs", None) else small


def timed_rate(spec: RunSpec) -> float:
    """Seconds by unit of work of this spec's model, measured in the second of two rounds on small generated data."""
    small = _small(spec)
    graph = small.load_graph()
    with one_thread():
        result = run_federation(graph, small.federation_options())
    return result.rounds[-1].seconds / task_of(spec).work(small, _num_train(graph))


def timed_attack_rate(spec: RunSpec) -> float:
    """Seconds of this spec's attacks by training item, measured on two rounds on small generated data."""
    small = _small(spec)
    graph = small.load_graph()
    with one_thread():
        result = run_federation(graph, small.federation_options())
        run_attacks(result, small.attack_options())  # the first also imports and compiles
        began = time.perf_counter()
        run_attacks(result, small.attack_options())
    return (time.perf_counter() - began) / _num_train(graph)
