"""All missing cells of the papers' tables at their own settings, run by run, the cheapest first, until time is up.

    with held(Path("runs/all")):
        queue = Queue(Path("runs/all"), wanted_runs(read_experiments(), results, num_seeds=1), costs, sizes)
        for entry in queue.work(until=time.monotonic() + 3600, observe=unobserved, threads=1):
            print(entry.name, entry.state, entry.error)

`queue.json` in the folder says how each run stands. It is written whole after every change, by the one process that holds the
folder, so that a machine may stop at any time. A run that time cuts off is kept: its checkpoint lies in its folder, and the next
start goes on with it. A run that failed is tried again at the next start, after all others.
"""

from __future__ import annotations

import contextlib
import math
import shlex
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from multiprocessing.connection import wait
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from experiments.cli.progress import Observe, Trained
from experiments.papers.document import Asked
from experiments.papers.estimates import Costs, Estimated
from experiments.papers.runner import Results, folder_name, read_made, run_key, run_of
from experiments.papers.spec import Cell, Experiment, select_names
from experiments.papers.workers import Job, Worker
from experiments.runs.record import write_atomically
from experiments.runs.run import RECORD_FILE
from experiments.runs.spec import RunSpec
from experiments.runs.writing import locked
from fkgsec.errors import FkgsecError, RunError
from fkgsec.federation.checkpoint import RoundEntry
from fkgsec.federation.loop import Observer

SCHEMA = "fkgsec/queue/1"
QUEUE_FILE = "queue.json"
State = Literal["waiting", "begun", "done", "failed", "impossible"]
_SAVE_EVERY_S = 10.0
UNLEARNING_WORK = (
    1.2  # an epoch of decay over one of training, measured on FB15k-237-C3 (experiments/results/unlearning)
)


class Wanted(NamedTuple):
    """A run that cells are missing; `cells` says which, `attack` whether one of them needs it attacked."""

    spec: RunSpec
    attack: bool
    cells: tuple[str, ...]
    command: str
    asked: Asked | None = None

    @property
    def folder_name(self) -> str:
        """See `experiments.papers.runner.folder_name`."""
        return folder_name(self.spec, self.asked)

    @property
    def base(self) -> str:
        """The folder of the run that is unlearned; empty where nothing is, or nothing is needed for it."""
        return folder_name(self.spec) if self.asked and self.asked.role != "retrained" else ""


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """How a run of the queue stands. `seconds`: spent on it so far. `error`: of a run that failed or cannot be made."""

    name: str
    cells: tuple[str, ...]
    command: str
    state: State = "waiting"
    rounds_done: int = 0
    round_s: float = 0.0
    rounds: int = 0
    attack_s: float = 0.0
    says: str = ""
    seconds: float = 0.0
    error: str = ""

    @property
    def left_s(self) -> float:
        """Seconds that it is expected to take yet."""
        return Estimated(self.round_s, self.rounds, "", self.attack_s).left(self.rounds_done)


class Stored(msgspec.Struct, frozen=True):
    """The file. `sizes`: training items by data, so that they are not read again to estimate."""

    schema: str
    entries: list[Entry]
    sizes: dict[str, int]


def wanted_runs(
    experiments: Sequence[Experiment], results: Mapping[bool, Results], *, num_seeds: int, only: str = ""
) -> list[Wanted]:
    """The runs that the cells of all tables at the papers' own settings are missing; those that cells share, once.

    Args:
        results: of finished runs, by whether attacks count. only: as for `select_cells`, in `TABLE-FILE CELL`.

    Raises:
        SpecError: `only` leaves no cell.
    """
    tables = [one for one in experiments if not one.base]
    kept = select_names([f"{one.name} {cell.name}" for one in tables for cell in one.cells], only)
    found: dict[Hashable, Wanted] = {}
    attacked: dict[Hashable, Hashable] = {}  # a run that is attacked serves cells that need no attack
    for table in sorted(tables, key=lambda one: not one.attack):
        for cell in table.cells:
            if f"{table.name} {cell.name}" not in kept:
                continue
            for spec in _missing(cell, table, results[table.attack], num_seeds):
                name, plain = f"{table.name}: {cell.name}", (run_key(spec, attack=False), spec.seed, cell.asked)
                key = attacked.get(plain, (run_key(spec, attack=table.attack), spec.seed, cell.asked))
                if table.attack:
                    attacked.setdefault(plain, key)
                one = found.setdefault(
                    key, Wanted(spec, table.attack, (), _command(table, cell, spec.seed), cell.asked)
                )
                found[key] = one._replace(cells=(*one.cells, name))
    return list(found.values())


def _missing(cell: Cell, table: Experiment, results: Results, num_seeds: int) -> Iterator[RunSpec]:
    """What a cell lacks of so many seeds, each with all candidates; seeds that are finished count, whichever they are."""
    by_candidate = [results.of_spec(spec, cell.asked) for spec in cell.candidates]
    whole = set.intersection(*(set(found) for found in by_candidate)) if by_candidate else set()
    first = table.seeds[0]
    fresh = [seed for seed in range(first, first + num_seeds + len(whole)) if seed not in whole]
    for seed in fresh[: max(0, num_seeds - len(whole))]:
        for spec, found in zip(cell.candidates, by_candidate, strict=True):
            if seed not in found:
                yield spec.replace(seed=seed)


def _command(table: Experiment, cell: Cell, seed: int) -> str:
    """What makes this run by itself, among others of that cell."""
    count = seed - table.seeds[0] + 1
    return shlex.join(["fkgsec", "experiment", "run", table.name, "--only", cell.name, "--seeds", str(count)])


def papers_rounds(experiments: Iterable[Experiment]) -> dict[RunSpec, int]:
    """By run, the round at which the papers print that their own had converged (R@CG)."""
    found = {}
    for cell in (cell for one in experiments if not one.base for cell in one.cells):
        printed = cell.figures.get("r@cg")
        if printed is not None:
            found |= {run_key(spec, attack=False): round(printed) for spec in cell.candidates}
    return found


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Be the one writer of a queue, from before it is read. Raises `RunError` where another process is."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{folder}: cannot be made ({error.strerror})") from error
    with locked(folder):
        yield


class Queue:
    """The runs in a folder, and how each stands.

    Args:
        folder: of the queue. wanted: what is missing now; what an earlier start knew of it is read from the file.
        costs: what each is expected to take. sizes: which `costs` reads and adds to; written with the queue.

    Raises:
        RunError: the file is there, and is no queue.
    """

    def __init__(self, folder: Path, wanted: Sequence[Wanted], costs: Costs, sizes: dict[str, int]) -> None:
        self.folder, self._sizes = folder, sizes
        self._wanted = {one.folder_name: one for one in wanted}
        earlier = {entry.name: entry for entry in read_queue(folder).entries}
        self.entries: dict[str, Entry] = {}
        for name, one in self._wanted.items():
            known = earlier.get(name, Entry(name=name, cells=one.cells, command=one.command))
            state: State = "begun" if known.state == "begun" else "failed" if known.state == "failed" else "waiting"
            known = msgspec.structs.replace(known, cells=one.cells, command=one.command, state=state)
            base_done = bool(one.base) and (folder / one.base / RECORD_FILE).exists()
            self.entries[name] = estimated(known, one, costs, base_done=base_done)
        # Finished, or not asked for this time: nothing that an earlier start knew is forgotten.
        self._others = [entry for name, entry in earlier.items() if name not in self.entries]

    def plan(self) -> list[Entry]:
        """What is to be run, in order: the cheapest first, by what is left of it; what failed before, last."""
        open_ = [entry for entry in self.entries.values() if entry.state in ("waiting", "begun", "failed")]
        return sorted(open_, key=lambda entry: (entry.state == "failed", entry.left_s, entry.name))

    def impossible(self) -> list[Entry]:
        """Runs whose data cannot be read."""
        return [entry for entry in self.entries.values() if entry.state == "impossible"]

    def work(self, *, until: float, observe: Observe, threads: int = 1, force: bool = False) -> Iterator[Entry]:
        """Make one run after the other until `until` (as `time.monotonic` has it); yields each as it then stands.

        The last is cut off where it does not end in time: up to its last checkpoint it is kept.
        """
        self.save()
        for entry in self.plan():
            if time.monotonic() >= until:
                return
            yield self._run(entry, until, observe, threads, at_once=0 if force else 1)

    def _run(self, entry: Entry, until: float, observe: Observe, threads: int, *, at_once: int) -> Entry:
        """One run, in a process of its own, which is ended when time is up."""
        wanted, began = self._wanted[entry.name], time.monotonic()
        self._set(entry.name, state="begun", error="")

        def seen(round_: int) -> None:
            spent = entry.seconds + time.monotonic() - began
            self._set(entry.name, rounds_done=max(round_, entry.rounds_done), seconds=spent, every_s=_SAVE_EVERY_S)

        worker = Worker(threads=threads, attack=wanted.attack, overwrite=False, at_once=at_once)
        error: Exception | None = None
        try:
            job = Job(
                f"{', '.join(entry.cells[:3])}", wanted.spec, self.folder / entry.name, entry.command, wanted.asked,
                self.folder / wanted.base,
            )  # fmt: skip
            worker.begin(job, _counting(observe, seen))
            ended = None
            while ended is None:
                if not wait([worker.connection], timeout=max(0.0, until - time.monotonic())):
                    return self._set(entry.name, seconds=entry.seconds + time.monotonic() - began)
                ended = worker.read()
            error = ended[1]
        finally:
            worker.close(kill=True)
        spent = entry.seconds + time.monotonic() - began
        if error is None and job.record_file.exists():
            rounds_done = run_of(read_made(job.record_file)).rounds[-1].round
            return self._set(entry.name, state="done", seconds=spent, rounds_done=rounds_done)
        said = " ".join(str(error or "left no record").split())
        return self._set(entry.name, state="failed", seconds=spent, error=said)

    def _set(self, name: str, *, every_s: float = 0.0, **changes: object) -> Entry:
        """Change an entry; written at once, or where `every_s` says so only when the last time is as long ago."""
        self.entries[name] = msgspec.structs.replace(self.entries[name], **changes)
        if time.monotonic() - self._saved_at >= every_s:
            self.save()
        return self.entries[name]

    _saved_at = float("-inf")

    def save(self) -> None:
        """Write the file, whole. Raises `RunError` where it cannot be written."""
        entries = [*self._others, *self.entries.values()]
        content = msgspec.json.format(msgspec.json.encode(Stored(SCHEMA, entries, self._sizes)), indent=1)
        write_atomically(self.folder / QUEUE_FILE, content + b"\n")
        self._saved_at = time.monotonic()


def estimated(entry: Entry, wanted: Wanted, costs: Costs, *, base_done: bool) -> Entry:
    """The entry with what it is expected to take; that of unlearning as so many rounds after those of its base run."""
    try:
        found = costs.of(wanted.spec, attack=wanted.attack)
    except FkgsecError as error:
        return msgspec.structs.replace(entry, state="impossible", error=" ".join(str(error).split()))
    rounds, says = found.rounds, found.says
    if wanted.base:
        options, epochs = wanted.asked and wanted.asked.options, getattr(wanted.spec, "local_epochs", 1)
        further = 1 if options is None else 1 + math.ceil(UNLEARNING_WORK * options.decay_epochs / epochs)
        rounds = further if base_done else rounds + further
        says += f"; {further} more to unlearn and measure" + ("; its run is there" if base_done else "")
    return msgspec.structs.replace(entry, round_s=found.round_s, rounds=rounds, attack_s=found.attack_s, says=says)


class _Counting(Observer):
    """Passes rounds on, and says how many are done."""

    def __init__(self, inner: Observer, seen: Callable[[int], None]) -> None:
        self._inner, self._seen = inner, seen

    def run_started(self, name: str, num_rounds: int) -> None:
        """Of shadow federations, whose rounds are none of the run's."""
        self._seen = lambda round_: None
        self._inner.run_started(name, num_rounds)

    def round_done(self, entry: RoundEntry) -> None:
        """Count, and pass on."""
        self._inner.round_done(entry)
        self._seen(entry.round)


def _counting(observe: Observe, seen: Callable[[int], None]) -> Observe:
    @contextlib.contextmanager
    def counted(options: Trained, name: str) -> Iterator[Observer]:
        with observe(options, name) as inner:
            yield _Counting(inner, seen)

    return counted


def read_queue(folder: Path) -> Stored:
    """What an earlier start left; empty without a file. Raises `RunError` for a file that is no queue."""
    path = folder / QUEUE_FILE
    if not path.exists():
        return Stored(SCHEMA, [], {})
    try:
        stored = msgspec.json.decode(path.read_bytes(), type=Stored)
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error.strerror})") from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RunError(f"{path}: not a queue of schema {SCHEMA} ({error}); move it away to begin anew") from error
    if stored.schema != SCHEMA:
        raise RunError(f"{path}: not a queue of schema {SCHEMA} but of {stored.schema!r}")
    return stored
