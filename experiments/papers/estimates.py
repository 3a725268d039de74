"""What a run is expected to take: ten training steps and one validation batch are timed on its own data, at its own width.

    costs = Costs(records, papers_rounds={})
    found = costs.of(spec)
    print(found.seconds, found.says)         # 920.0, "4.6 s a round; 200 rounds: the bound of its settings"

Seconds are CPU seconds of one thread of this machine. The user's cache folder keeps timings by CPU model and by what decides how
long a step takes. Runs that differ only in seed, learning rate or number of rounds share a timing.
"""

from __future__ import annotations

import contextlib
import hashlib
import platform
import statistics
import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numba
import numpy as np

from fkgsec.data.catalogue import cache_folder
from fkgsec.errors import FkgsecError, RunError
from fkgsec.experiments.papers.runner import run_key
from fkgsec.experiments.papers.workers import data_of
from fkgsec.experiments.runs.record import Record
from fkgsec.experiments.runs.writing import write_atomically
from fkgsec.experiments.tasks.spec import RunSpec
from fkgsec.experiments.tasks.task import task_of
from fkgsec.federation.task import TASKS, Task
from fkgsec.threads import one_thread

TIMINGS_FILE = "timings.json"
WARM_UP_STEPS, TIMED_STEPS, TIMED_CLIENTS = 3, 10, 4
MOST_S = 5.0  # of one client: slow steps are timed fewer times
THREADS = 1
ESTIMATOR = (
    f"CPU seconds of one thread: {TIMED_STEPS} training steps and one validation batch are timed on this machine, on the run's "
    "data and at its width, without exchanges. Rounds: from records of the same run; else the paper's own plus patience; else "
    "from records of like runs, which validation stopped on other data or with other models; else the bound of the settings. "
    "Attacks: from records of the same attacks, by training items; else left out."
)


class Timed(msgspec.Struct, frozen=True):
    """CPU seconds of one epoch of all clients, and of one validation; training and test items. of: what was timed."""

    epoch_s: float
    validation_s: float
    num_train: int
    num_test: int
    of: str


class Estimated(NamedTuple):
    """What a run is expected to take, and where the number of rounds is from. `attack_s`: of its attacks."""

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


class Timings:
    """Timings of this machine, those of earlier processes included.

    Args:
        folder: of the file; None: the user's cache folder.
        measure: times a spec on its data; None: `time_spec`.
    """

    def __init__(self, folder: Path | None = None, measure: Callable[[RunSpec, Any], Timed] | None = None) -> None:
        self._path, self._measure = (folder or cache_folder()) / TIMINGS_FILE, measure or time_spec
        self._found: dict[str, Timed] = {}
        self._not_there: dict[Hashable, FkgsecError] = {}
        self._graph: tuple[Hashable, Any] = (None, None)
        with contextlib.suppress(OSError, msgspec.MsgspecError):  # a file that is damaged is made anew
            self._found = msgspec.json.decode(self._path.read_bytes(), type=dict[str, Timed])

    def missing(self, specs: Iterable[RunSpec]) -> list[RunSpec]:
        """One spec for each timing that is still to be made, those of the same data side by side."""
        by_key = {key: spec for spec in specs if (key := _timing_key(spec)) not in self._found}
        return sorted(by_key.values(), key=lambda spec: repr(data_of(spec)))

    def of(self, spec: RunSpec, graph: Any = None) -> Timed:
        """The timing of a spec, made where there is none. Args: graph: its data, where they are read. Raises `FkgsecError`."""
        key = _timing_key(spec)
        if key not in self._found:
            self._found[key] = self._measure(spec, self._load(spec) if graph is None else graph)
            with contextlib.suppress(OSError, RunError):  # a folder that cannot be written only costs another timing
                self._path.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(self._path, msgspec.json.format(msgspec.json.encode(self._found), indent=1))
        return self._found[key]

    def _load(self, spec: RunSpec) -> Any:
        data = data_of(spec)
        if error := self._not_there.get(data):  # who has no network waits for it once
            raise error
        if self._graph[0] != data:
            try:
                self._graph = data, spec.load_graph()
            except FkgsecError as error:
                self._not_there[data] = error
                raise
        return self._graph[1]


def _timing_key(spec: RunSpec) -> str:
    """Of what decides how long an epoch and a validation take, the CPU, and the number of threads."""
    settings = {"task": spec.task, **task_of(spec).timed_by(spec)}
    document = msgspec.json.encode([settings, list(data_of(spec)), cpu_model(), THREADS], order="sorted")
    return hashlib.sha256(document).hexdigest()[:24]


def cpu_model() -> str:
    """The name that the CPU gives itself."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def time_spec(spec: RunSpec, graph: Any) -> Timed:
    """Time a spec on its data, in this process, with one thread."""
    options, threads = spec.federation_options(), numba.get_num_threads()
    numba.set_num_threads(THREADS)
    try:
        with one_thread():
            task: Task = TASKS[spec.task](graph, options)
            epoch_s = time_training(task) / getattr(spec, "local_epochs", 1)
            validation_s = task_of(spec).time_validation(task, graph)
    finally:
        numba.set_num_threads(threads)
    num_train, num_test = (sum(len(getattr(one, split)) for one in graph.clients) for split in ("train", "test"))
    return Timed(
        epoch_s, validation_s, num_train, num_test, f"{spec.data}, {spec.algorithm}, {spec.model} on {cpu_model()}"
    )


def time_training(task: Task) -> float:
    """CPU seconds of a round of training of all clients.

    Steps of at most `TIMED_CLIENTS` clients are timed, from the smallest to the largest; the others lie between them.
    """
    sizes = np.array(task.sizes, dtype=np.float64)
    order = np.argsort(sizes, kind="stable")
    chosen = order[np.unique(np.linspace(0, len(order) - 1, min(TIMED_CLIENTS, len(order))).round().astype(int))]
    seconds = [_step_s(task, int(place)) * task.num_steps([int(place)]) for place in chosen]
    return float(np.interp(sizes, sizes[chosen], seconds).sum())


class _Enough(Exception):
    """Ends a timing in the middle of a round."""


def _step_s(task: Task, place: int) -> float:
    """CPU seconds of a training step of one client, over `TIMED_STEPS` steps; a small client takes several rounds for these."""
    stamps: list[float] = []

    def on_step() -> None:
        stamps.append(time.process_time())
        if len(stamps) > WARM_UP_STEPS + TIMED_STEPS or (len(stamps) > 1 and stamps[-1] - stamps[0] > MOST_S):
            raise _Enough

    with contextlib.suppress(_Enough):
        for number in range(1, WARM_UP_STEPS + TIMED_STEPS + 2):
            task.begin_round()
            task.train(number, [place], on_step)
    first = min(WARM_UP_STEPS, len(stamps) - 2)
    return (stamps[-1] - stamps[first]) / (len(stamps) - 1 - first)


class _Measured(NamedTuple):
    """What estimates take from a record."""

    trains_as: tuple[Hashable, ...]
    rounds: int
    stopped: bool  # by validation, before its bound
    attacks: Hashable
    attack_rate: float | None  # seconds by training item


class Costs:
    """Estimates of runs.

    Args:
        records: of runs, for rounds and attacks. papers_rounds: of runs by `run_key`, when the paper's own had converged.
        timings: of this machine; None: `Timings()`.
    """

    def __init__(
        self, records: Iterable[Record], *, papers_rounds: Mapping[RunSpec, int], timings: Timings | None = None
    ) -> None:
        self.timings, self._papers_rounds = timings or Timings(), papers_rounds
        self._same: dict[RunSpec, list[_Measured]] = {}
        for record in records:
            num_train = sum(client["train"] for client in record.data.clients.values())
            last, attack_s = record.rounds[-1].round, record.environment.attack_s
            one = _Measured(
                _trains_as(record.spec), last, last < record.spec.rounds, _attacked_as(record.spec),
                None if attack_s is None else attack_s / num_train,
            )  # fmt: skip
            if last:
                self._same.setdefault(run_key(record.spec, attack=False), []).append(one)

    def of(self, spec: RunSpec, *, attack: bool = False, graph: Any = None) -> Estimated:
        """The estimate of a run. Args: attack: it is attacked too. graph: its data. Raises what reading its data raises."""
        timed = self.timings.of(spec, graph)
        epochs, share = getattr(spec, "local_epochs", 1), getattr(spec, "participation", 1.0)
        round_s = timed.epoch_s * epochs * share + timed.validation_s / spec.eval_every
        rounds, of = self._rounds(spec)
        says = f"{round_s:.3g} s a round; {rounds} rounds: {of}"
        if not attack:
            return Estimated(round_s, rounds, says)
        measured = [one for found in self._same.values() for one in found]
        attacks = _attacked_as(spec)
        rates = [one.attack_rate for one in measured if one.attacks == attacks and one.attack_rate is not None]
        if not rates:
            return Estimated(round_s, rounds, f"{says}; without its attacks, of which there is no record")
        attack_s = timed.num_train * statistics.median(rates)
        return Estimated(round_s, rounds, f"{says}; {attack_s:.3g} s of attacks: measured, by training items", attack_s)

    def _rounds(self, spec: RunSpec) -> tuple[int, str]:
        key = run_key(spec, attack=False)
        if same := [one.rounds for one in self._same.get(key, ())]:
            return round(statistics.median(same)), "records of the same run"
        if not spec.patience:
            return spec.rounds, "all"
        if key in self._papers_rounds:
            waits = spec.patience * spec.eval_every
            return min(spec.rounds, self._papers_rounds[key] + waits), "the paper's, and patience"
        trains_as = _trains_as(spec)
        for number, what in ((len(trains_as), "on other data"), (-1, "on other data and with other models")):
            like = [
                one.rounds
                for found in self._same.values()
                for one in found
                if one.stopped and one.trains_as[:number] == trains_as[:number]
            ]
            if like:
                return min(spec.rounds, round(statistics.median(like))), f"records of like runs {what}"
        return spec.rounds, "the bound of its settings"


def _trains_as(spec: Any) -> tuple[Hashable, ...]:
    """What decides when validation stops a run, the data aside; the model stands last."""
    return (
        spec.task, spec.algorithm, spec.learning_rate, spec.local_epochs, spec.batch_size, spec.eval_every, spec.patience,
        spec.model,
    )  # fmt: skip


def _attacked_as(spec: RunSpec) -> Hashable:
    """What decides how long attacks on a run take, the data aside."""
    options = msgspec.structs.replace(spec.attack_options(), seed=0)
    return spec.task, spec.model, spec.algorithm, msgspec.json.encode(options)
