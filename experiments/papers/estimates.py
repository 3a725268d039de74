"""Expected CPU time of runs, based on ten timed training steps and a timed validation batch on each run's data.

    costs = Costs(records, papers_rounds(read_experiments()))
    estimate = costs.of(spec)
    print(estimate.seconds, estimate.says)   # 920.0, "4.6 s per round, 200 rounds (the most that the settings allow)"

Seconds are CPU seconds of one thread of this machine. The user's cache folder stores timings by CPU model and by the settings
that decide the duration of a step. Runs that differ only in seed, learning rate or number of rounds share a timing.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import statistics
import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
import numba
import numpy as np

from fkgsec.data.catalogue import cache_folder
from fkgsec.errors import FkgsecError, RunError
from fkgsec.experiments.cli.console import say
from fkgsec.experiments.papers.queue import Job, data_of
from fkgsec.experiments.papers.results import Made, run_key
from fkgsec.experiments.papers.spec import Experiment
from fkgsec.experiments.runs.record import Record, processor
from fkgsec.experiments.runs.run import RECORD_FILE
from fkgsec.experiments.runs.writing import write_atomically
from fkgsec.experiments.tasks.spec import RunSpec
from fkgsec.experiments.tasks.task import task_of
from fkgsec.federation.checkpoint import stands_at
from fkgsec.federation.loop import CHECKPOINT
from fkgsec.federation.task import TASKS, Task
from fkgsec.threads import one_thread

TIMINGS_FILE = "timings.json"
WARM_UP_STEPS, TIMED_STEPS, TIMED_CLIENTS = 3, 10, 4
# Seconds for one client; slow steps are timed fewer times.
MOST_S = 5.0
THREADS = 1
# Time of an epoch of decay relative to one of training, measured on FB15k-237-C3 (results/unlearning).
UNLEARNING_WORK = 1.2
ESTIMATOR = (
    f"CPU seconds of one thread: {TIMED_STEPS} training steps and one validation batch are timed on this machine, on the run's "
    "data and at its width, without exchanges. Rounds: from records of the same run; else the paper's own plus patience; else "
    "from records of like runs, which validation stopped on other data or with other models; else the bound of the settings. "
    "Attacks: from records of the same attacks, by training items; else left out."
)


class Timed(msgspec.Struct, frozen=True):
    """Timing of a run's settings.

    Attributes:
        epoch_s: CPU seconds of one epoch of all clients.
        validation_s: CPU seconds of one validation.
        num_train, num_test: numbers of training and test items.
        of: the timed settings.
    """

    epoch_s: float
    validation_s: float
    num_train: int
    num_test: int
    of: str


class Estimated(NamedTuple):
    """Expected cost of a run.

    Attributes:
        says: source of the number of rounds.
        attack_s: CPU seconds of its attacks.
    """

    round_s: float
    rounds: int
    says: str
    attack_s: float = 0.0

    @property
    def seconds(self) -> float:
        """CPU seconds of training and attacks."""
        return self.round_s * self.rounds + self.attack_s

    def left(self, rounds_done: int) -> float:
        """Return the remaining seconds; at least one round, because validation decides whether it was the last.

        Args:
            rounds_done: number of finished rounds.
        """
        return self.round_s * max(1, self.rounds - rounds_done) + self.attack_s


class Timings:
    """Timings of this machine, including those of earlier processes.

    Args:
        folder: folder of the file; None for the user's cache folder.
        measure: times a spec on its data; None for `time_spec`.
    """

    def __init__(self, folder: Path | None = None, measure: Callable[[RunSpec, Any], Timed] | None = None) -> None:
        self._path, self._measure = (folder or cache_folder()) / TIMINGS_FILE, measure or time_spec
        self._timed: dict[str, Timed] = {}
        self._unreadable: dict[Hashable, FkgsecError] = {}
        self._graph: tuple[Hashable, Any] = (None, None)
        # A damaged file is replaced.
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            self._timed = msgspec.json.decode(self._path.read_bytes(), type=dict[str, Timed])

    def missing(self, specs: Iterable[RunSpec]) -> list[RunSpec]:
        """Return one spec for each missing timing, grouped by data.

        Args:
            specs: specs to time.
        """
        # One spec per key suffices, because specs with the same key take the same time.
        by_key = {key: spec for spec in specs if (key := _timing_key(spec)) not in self._timed}
        return sorted(by_key.values(), key=lambda spec: repr(data_of(spec)))

    def take(self, specs: Iterable[RunSpec], *, quiet: bool = False) -> None:
        """Measure the missing timings.

        Args:
            specs: specs to time.
            quiet: print no progress.
        """
        missing = self.missing(specs)
        if missing and not quiet:
            say(f"Timing training steps of {len(missing)} settings on this machine, once. This reads the data.")
        for number, spec in enumerate(missing, 1):
            if not quiet:
                say(f"  {number} of {len(missing)}: {spec.data}, {spec.algorithm}, {spec.model}")
            with contextlib.suppress(FkgsecError):  # reported for each run
                self.of(spec)

    def of(self, spec: RunSpec, graph: Any = None) -> Timed:
        """Return the timing of a spec, which is measured if it is missing.

        Args:
            spec: the run.
            graph: its data, if they are loaded already.

        Raises:
            FkgsecError: the data cannot be loaded.
        """
        key = _timing_key(spec)
        if key not in self._timed:
            # Write after each measurement: timing all tables takes minutes and may be interrupted.
            self._timed[key] = self._measure(spec, self._load(spec) if graph is None else graph)
            # A read-only folder only costs another timing.
            with contextlib.suppress(OSError, RunError):
                self._path.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(self._path, msgspec.json.format(msgspec.json.encode(self._timed), indent=1))
        return self._timed[key]

    def _load(self, spec: RunSpec) -> Any:
        """Load the data of a spec. Unreadable data are tried only once, because a missing network takes long to fail."""
        data = data_of(spec)
        if error := self._unreadable.get(data):
            raise error
        if self._graph[0] != data:
            try:
                self._graph = data, spec.load_graph()
            except FkgsecError as error:
                self._unreadable[data] = error
                raise
        return self._graph[1]


def _timing_key(spec: RunSpec) -> str:
    """Return the key of the settings, CPU and threads that decide the duration of an epoch and a validation."""
    settings = {"task": spec.task, **task_of(spec).timed_by(spec)}
    document = msgspec.json.encode([settings, list(data_of(spec)), processor(), THREADS], order="sorted")
    return hashlib.sha256(document).hexdigest()[:24]


def time_spec(spec: RunSpec, graph: Any) -> Timed:
    """Time a spec on its data, in this process, with one thread.

    Args:
        spec: the run.
        graph: its data.
    """
    # numba's threads are global; restore them for the program that continues.
    threads = numba.get_num_threads()
    numba.set_num_threads(THREADS)
    try:
        with one_thread():
            task: Task = TASKS[spec.task](graph, spec.federation_options())
            epoch_s = time_training(task) / getattr(spec, "local_epochs", 1)
            validation_s = task_of(spec).time_validation(task, graph)
    finally:
        numba.set_num_threads(threads)
    num_train, num_test = (sum(len(getattr(client, split)) for client in graph.clients) for split in ("train", "test"))
    name = f"{spec.data}, {spec.algorithm}, {spec.model} on {processor()}"
    return Timed(epoch_s, validation_s, num_train, num_test, name)


def time_training(task: Task) -> float:
    """Return CPU seconds of a training round of all clients.

    At most `TIMED_CLIENTS` clients are timed, from the smallest to the largest; the others are interpolated by size.

    Args:
        task: a task before its first round.
    """
    sizes = np.array(task.sizes, dtype=np.float64)
    # Clients of a task train alike, so time depends on the size alone.
    order = np.argsort(sizes, kind="stable")
    chosen = order[np.unique(np.linspace(0, len(order) - 1, min(TIMED_CLIENTS, len(order))).round().astype(int))]
    seconds = [_step_s(task, int(index)) * task.num_steps([int(index)]) for index in chosen]
    return float(np.interp(sizes, sizes[chosen], seconds).sum())


class _Enough(Exception):
    """Ends a timing in the middle of a round."""


def _step_s(task: Task, index: int) -> float:
    """Return CPU seconds of a client's training step, over `TIMED_STEPS` steps; a small client needs several rounds for these."""
    stamps: list[float] = []

    def _on_step() -> None:
        stamps.append(time.process_time())
        # The first steps compile code and fill caches, so they are not measured.
        if len(stamps) > WARM_UP_STEPS + TIMED_STEPS or (len(stamps) > 1 and stamps[-1] - stamps[0] > MOST_S):
            raise _Enough

    with contextlib.suppress(_Enough):
        for number in range(1, WARM_UP_STEPS + TIMED_STEPS + 2):
            task.begin_round()
            task.train(number, [index], _on_step)
    # With few steps, even a warm-up step must be measured.
    first = min(WARM_UP_STEPS, len(stamps) - 2)
    return (stamps[-1] - stamps[first]) / (len(stamps) - 1 - first)


class Costs:
    """Estimates of runs.

    Args:
        records: source of rounds and of the cost of attacks; records of unlearning are ignored.
        papers_rounds: rounds after which the papers' own runs had converged, by `run_key`.
        timings: timings of this machine; None for `Timings()`.
    """

    def __init__(
        self,
        records: Iterable[Made],
        papers_rounds: Mapping[RunSpec, int] | None = None,
        timings: Timings | None = None,
    ) -> None:
        self.timings, self._papers_rounds = timings or Timings(), papers_rounds or {}
        self._records = [record for record in records if isinstance(record, Record) and record.rounds[-1].round]
        # Where validation stopped earlier runs is the best guess for similar ones.
        self._rounds_of: dict[RunSpec, list[int]] = {}
        self._stopped: list[tuple[tuple[Hashable, ...], int]] = []  # by validation
        for record in self._records:
            last = record.rounds[-1].round
            self._rounds_of.setdefault(run_key(record.spec, attack=False), []).append(last)
            if last < record.spec.rounds:
                self._stopped.append((_trains_as(record.spec), last))

    def of(self, spec: RunSpec, *, attack: bool = False, graph: Any = None) -> Estimated:
        """Estimate a run.

        Args:
            spec: the run.
            attack: include its attacks.
            graph: its data, if they are loaded already.

        Raises:
            FkgsecError: the data cannot be loaded.
        """
        timed = self.timings.of(spec, graph)
        # Only a share of the clients trains in a round.
        epochs, share = getattr(spec, "local_epochs", 1), getattr(spec, "participation", 1.0)
        round_s = timed.epoch_s * epochs * share + timed.validation_s / spec.eval_every
        rounds, source = self._rounds(spec)
        says = f"{round_s:.3g} s per round, {rounds} rounds ({source})"
        if not attack:
            return Estimated(round_s, rounds, says)
        attacks = _attacked_as(spec)
        # Attacks score every training item, so their time grows with the number of items.
        rates = [
            record.environment.attack_s / sum(client["train"] for client in record.data.clients.values())
            for record in self._records
            if record.environment.attack_s is not None and _attacked_as(record.spec) == attacks
        ]
        if not rates:
            return Estimated(round_s, rounds, f"{says}, without attacks: no record shows their time")
        attack_s = timed.num_train * statistics.median(rates)
        return Estimated(round_s, rounds, f"{says}, {attack_s:.3g} s of attacks (from records)", attack_s)

    def _rounds(self, spec: RunSpec) -> tuple[int, str]:
        key = run_key(spec, attack=False)
        if key in self._rounds_of:
            return round(statistics.median(self._rounds_of[key])), "records of the same run"
        # Without early stopping, a run trains all rounds.
        if not spec.patience:
            return spec.rounds, "all: early stopping is off"
        if key in self._papers_rounds:
            waits = spec.patience * spec.eval_every
            return min(spec.rounds, self._papers_rounds[key] + waits), "the paper's best round plus patience"
        # The same settings on other data first, then also with other models.
        for number, what in ((None, "on other data"), (-1, "on other data and with other models")):
            like = [last for trains_as, last in self._stopped if trains_as[:number] == _trains_as(spec)[:number]]
            if like:
                return min(spec.rounds, round(statistics.median(like))), f"records of similar runs {what}"
        return spec.rounds, "the most that the settings allow"


def _trains_as(spec: Any) -> tuple[Hashable, ...]:
    """Return the settings that decide when validation stops a run, apart from the data; the model is last."""
    names = ("task", "algorithm", "learning_rate", "local_epochs", "batch_size", "eval_every", "patience", "model")
    return tuple(getattr(spec, name) for name in names)


def _attacked_as(spec: RunSpec) -> Hashable:
    """Return the settings that decide the duration of attacks on a run, apart from the data."""
    options = msgspec.structs.replace(spec.attack_options(), seed=0)
    return spec.task, spec.model, spec.algorithm, msgspec.json.encode(options)


def papers_rounds(experiments: Iterable[Experiment]) -> dict[RunSpec, int]:
    """Return the rounds after which the papers' own runs had converged (R@CG), by `run_key`.

    Args:
        experiments: tables; derived files are ignored.
    """
    cells = [cell for table in experiments if not table.base for cell in table.cells]
    printed = [(spec, cell.figures.get("r@cg")) for cell in cells for spec in cell.candidates]
    return {run_key(spec, attack=False): round(rounds) for spec, rounds in printed if rounds is not None}


class Entry(NamedTuple):
    """Job with its state and its estimate.

    Attributes:
        error: why it cannot be made.
        num_bytes: memory, if it was estimated.
    """

    job: Job
    state: Literal["finished", "begun", "to make", "cannot be made"]
    estimate: Estimated
    rounds_done: int = 0
    error: str = ""
    num_bytes: float = 0.0

    @property
    def left_s(self) -> float:
        """Expected remaining CPU seconds."""
        return 0.0 if self.state in ("finished", "cannot be made") else self.estimate.left(self.rounds_done)


def entries_of(jobs: Iterable[Job], costs: Costs) -> list[Entry]:
    """Estimate jobs in the present state of their folders; a base run counts for the first job that needs it.

    Args:
        jobs: jobs to estimate.
        costs: estimates of runs.
    """
    # Several cells of an unlearning table may share a base run, which costs only once.
    bases, entries = set[Path](), list[Entry]()
    for job in jobs:
        done = 0
        # No checkpoint, or a damaged one.
        with contextlib.suppress(RunError):
            done = stands_at((job.base or job.folder) / CHECKPOINT)[1]
        try:
            estimate = costs.of(job.spec, attack=job.attack)
        except FkgsecError as error:  # its data cannot be read
            reason = " ".join(str(error).split())
            entries.append(Entry(job, "cannot be made", Estimated(0.0, 0, ""), done, reason))
            continue
        if job.base:
            # Unlearning decays for some epochs and then trains a round.
            options, epochs = job.asked and job.asked.options, getattr(job.spec, "local_epochs", 1)
            further = 1 if options is None else 1 + math.ceil(UNLEARNING_WORK * options.decay_epochs / epochs)
            rounds, says = estimate.rounds + further, f"{estimate.says}; {further} more to unlearn and measure"
            if job.base in bases or (job.base / RECORD_FILE).exists():
                rounds, done, says = further, 0, f"{says}; its run is there"
            bases.add(job.base)
            estimate = estimate._replace(rounds=rounds, says=says)
        entries.append(Entry(job, "begun" if done else "to make", estimate, done))
    return entries
