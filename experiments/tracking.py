"""Live trackers: each round of a training, and its final figures, in TensorBoard or MLflow while it runs.

    tracker = track(["tensorboard:events", "mlflow:http://localhost:5000"], spec, Path("runs/mine"), warn=print)
    with Tracked(progress, tracker) as observer:
        execute(spec, graph, Path("runs/mine"), attack=False, observer=observer)

What is logged is what `fkgsec results --tensorboard` and `--mlflow` log of finished runs, by the same names: loss, validation,
bytes and seconds by round; at the end options, final figures and the ends of their intervals. A tracker that fails is left out
from then on, with one warning: it never ends a training. Nothing is logged that opens a run: no protocol_seed, no password of
an address.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path, PurePath
from types import TracebackType
from typing import Any, Protocol, Self

from fkgsec.attacks.options import RECONSTRUCTION
from fkgsec.attacks.reconstruction.leakage import UNLINKED
from fkgsec.errors import RunError, SpecError
from fkgsec.experiments.cli.progress import Observe, Trained
from fkgsec.experiments.reporting.frames import over_all
from fkgsec.experiments.runs.record import Record, read_record
from fkgsec.experiments.runs.run import RECORD_FILE
from fkgsec.experiments.runs.writing import refused
from fkgsec.experiments.tasks.spec import RunSpec
from fkgsec.experiments.tasks.task import task_of
from fkgsec.federation.checkpoint import RoundEntry
from fkgsec.federation.loop import Observer
from fkgsec.text import printable

SECRETS = ("protocol_seed",)
EXPERIMENT = "fkgsec"  # what MLflow calls them together
EVENTS = "tensorboard"  # the folder in a run's own where no other is named
_AUTHORITY = re.compile(r"//[^/@\s]+@")
_PER_REQUEST = 1000  # metrics
_PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}


class Tracker(Protocol):
    """Where curves go."""

    def log(self, round: int, values: Mapping[str, float]) -> None:
        """Figures of a round."""
        ...

    def close(self, record: Record | None) -> None:
        """The run is over; None: it was not finished."""
        ...


class TensorBoard:
    """Event files in a folder; those of an earlier start of the same run are overlaid from round 0 on."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard.writer import SummaryWriter
        except ImportError as error:
            raise RunError("tensorboard is not installed: pip install 'fkgsec[tensorboard]'") from error
        self._writer = SummaryWriter(str(folder), purge_step=0)

    def log(self, round: int, values: Mapping[str, float]) -> None:
        """Written at once, so that a page that is open shows it."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, round)
        self._writer.flush()

    def close(self, record: Record | None) -> None:
        """Options beside figures, which TensorBoard shows as a table."""
        if record is not None:
            self._writer.add_hparams(public_settings(record), final_figures(record), run_name=".")
        self._writer.close()


class Mlflow:
    """A run on a tracking server; one that was killed goes on where the same command is given again."""

    def __init__(self, uri: str | None, name: str, identity: str) -> None:
        try:
            from mlflow import MlflowClient  # pyright: ignore[reportMissingImports]
            from mlflow.entities import Metric, Param  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise RunError("mlflow is not installed: pip install 'fkgsec[mlflow]'") from error
        for name, value in _PATIENCE.items():  # MLflow's own would hold a training up for many minutes
            os.environ.setdefault(name, value)
        self._metric, self._param = Metric, Param
        self._client = MlflowClient(tracking_uri=uri)
        experiment_known = self._client.get_experiment_by_name(EXPERIMENT)
        experiment = experiment_known.experiment_id if experiment_known else self._client.create_experiment(EXPERIMENT)
        # A run with this identity that is still open was interrupted, so go on with it.
        chosen = f"tags.fkgsec_run = '{identity}' and attributes.status = 'RUNNING'"
        runs = self._client.search_runs([experiment], filter_string=chosen, max_results=1)
        run = runs[0] if runs else self._client.create_run(experiment, run_name=name, tags={"fkgsec_run": identity})
        self._run = run.info.run_id

    def log(self, round: int, values: Mapping[str, float]) -> None:
        """One request."""
        now = int(time.time() * 1000)
        metrics = [self._metric(name, value, now, round) for name, value in values.items()]
        # MLflow limits the number of metrics in a request.
        for start in range(0, len(metrics), _PER_REQUEST):
            self._client.log_batch(self._run, metrics=metrics[start : start + _PER_REQUEST])

    def close(self, record: Record | None) -> None:
        """Options, final figures, commit and command; a run that was not finished stays open."""
        if record is None:
            return
        named = public_settings(record).items()
        self._client.log_batch(self._run, params=[self._param(key, str(value)) for key, value in named])
        tags = {
            "mlflow.source.git.commit": str(record.environment.commit),
            "command": without_passwords(record.environment.command),
        }
        for key, value in tags.items():
            self._client.set_tag(self._run, key, value)
        self.log(record.best_round, final_figures(record))
        self._client.set_terminated(self._run)


def without_passwords(text: str) -> str:
    """A text whose addresses have no user and password.

    >>> without_passwords("fkgsec train --track mlflow:https://me:secret@host/x")
    'fkgsec train --track mlflow:https://host/x'
    """
    return _AUTHORITY.sub("//", text)


def public_settings(record: Record) -> dict[str, str | int | float]:
    """Return the run's options but those that open it, and its data, as plain values; lists are joined by commas."""
    plain = {
        name: value if isinstance(value, str | int | float) else ",".join(map(str, value)) if value else str(value)
        for name, value in record.spec.document().items()
        if name not in SECRETS
    }
    return {**plain, "data_hash": record.data.hash, "commit": str(record.environment.commit)}


def final_figures(record: Record) -> dict[str, float]:
    """Return final figures by a name that every tracker takes: letters, digits, `_`, `-`, `.` and `/`.

    Of utility with the ends of the intervals, of leakage the headline's.
    """
    figures = {}
    for name, estimate in record.utility.items():
        if estimate.n:
            named = name.replace("@", "_at_")
            figures |= {named: estimate.value, f"{named}_low": estimate.low, f"{named}_high": estimate.high}
    for figure in over_all(record.figures):
        if figure.reason or figure.metric in UNLINKED:
            continue
        at = figure.threat_model.replace("+", "_") + ("" if figure.leak is None else f"/leak_{figure.leak:g}")
        name = figure.metric if figure.attack == RECONSTRUCTION else f"{figure.attack}_{figure.metric}"
        figures |= {f"{name}/{at}": figure.estimate.value, f"{name}_advantage/{at}": figure.advantage}
    return {**figures, "bytes_up": float(record.bytes.up), "bytes_down": float(record.bytes.down)}


def of_round(entry: RoundEntry, metric: str) -> dict[str, float]:
    """Return loss, validation, bytes and seconds of a round; what it did not measure is left out."""
    measured = {name: getattr(entry, name) for name in ("loss", "bytes_up", "bytes_down", "seconds")}
    named = {f"round/{name}": value for name, value in {**measured, f"valid_{metric}": entry.valid}.items()}
    return {name: float(value) for name, value in named.items() if value is not None}


def log_finished(tracker: Tracker, record: Record) -> None:
    """Log all rounds and the final figures of a finished run."""
    for entry in record.rounds:
        tracker.log(entry.round, of_round(entry, record.metric))
    tracker.close(record)


def log_tensorboard(records: Mapping[str, Record], folder: Path, *, overwrite: bool = False) -> None:
    """Write an event file for each finished run into a folder of its name below `folder`.

    Args:
        overwrite: remove the event files of earlier runs there first, with which these would mix.

    Raises:
        RunError: the extra is not installed, the folder cannot be written, or it holds events.
    """
    for name, record in records.items():
        place = folder / "/".join(part for part in PurePath(name).parts if part not in ("/", ".."))
        earlier = list(place.glob("events.*"))
        if earlier and not overwrite:
            raise refused(place, "holds events already, which these would mix with")
        try:
            for file in earlier:
                file.unlink()
            log_finished(TensorBoard(place), record)
        except OSError as error:
            raise RunError(f"{place}: cannot be written ({error.strerror})") from error


def log_mlflow(records: Mapping[str, Record], uri: str) -> None:
    """Log each finished run to the MLflow tracking server at `uri`, in the experiment `fkgsec`.

    Raises:
        RunError: the extra is not installed, or the server does not take them.
    """
    try:
        for name, record in records.items():
            log_finished(Mlflow(uri, name, uuid.uuid4().hex), record)
    except RunError:
        raise
    except Exception as error:  # whatever MLflow, its server or its database raises
        raise RunError(f"mlflow at {uri}: {' '.join(str(error).split())}") from error


class Trackers:
    """Several trackers of one run, each left out once it fails.

    Args:
        makers: by what is said of it, what opens a tracker. folder: of the run. warn: takes a line.
    """

    def __init__(
        self, makers: Mapping[str, Callable[[], Tracker]], folder: Path, metric: str, warn: Callable[[str], None]
    ) -> None:
        self._folder, self._metric, self._warn, self._makers = folder, metric, warn, dict(makers)
        self._open: dict[str, Tracker] = {}
        self._seen = 0

    def _start(self) -> None:
        """Open what is not open yet: not before there is a round to log, since the run may be refused."""
        while self._makers:
            name = next(iter(self._makers))
            make = self._makers.pop(name)
            with self._guarded(name):
                self._open[name] = make()

    @contextlib.contextmanager
    def _guarded(self, name: str) -> Any:
        try:
            yield
        except Exception as error:  # whatever a tracker, its server or its disk does
            self._fail(name, error)

    def _fail(self, name: str, error: Exception) -> None:
        self._open.pop(name, None)
        message = without_passwords(" ".join(str(error).split()) or type(error).__name__)
        self._warn(printable(f"warning: {name}: {message}; the training goes on without it", 500))

    def round_done(self, entry: RoundEntry) -> None:
        """Log a round."""
        self._start()
        self._seen += 1
        self._each(lambda tracker: tracker.log(entry.round, of_round(entry, self._metric)))

    def close(self, *, finished: bool) -> None:
        """Log the end, from the record in the run's folder; of a run that was finished before, its rounds too."""
        record: Record | None = None
        path = self._folder / RECORD_FILE
        if finished and path.exists():
            self._start()
            with self._guarded(str(path)):
                record = read_record(path)
        # A run that was finished before trained no round here, so log its rounds from the record.
        if record and not self._seen:
            self._each(functools.partial(log_finished, record=record))
        else:
            self._each(lambda tracker: tracker.close(record))
        self._open = {}

    def _each(self, act: Callable[[Tracker], None]) -> None:
        for name, tracker in list(self._open.items()):
            with self._guarded(name):
                act(tracker)


class Tracked(Observer):
    """Passes on what another observer is told, and tells trackers of the run's own rounds (not of shadow federations)."""

    def __init__(self, inner: AbstractContextManager[Observer], trackers: Trackers) -> None:
        """`inner` is entered and left with this one."""
        self._inner, self._observer, self._trackers = inner, Observer(), trackers
        self._own = True

    def __enter__(self) -> Self:
        self._observer = self._inner.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._trackers.close(finished=kind is None)
        self._inner.__exit__(kind, error, trace)

    def run_started(self, name: str, num_rounds: int) -> None:
        """Pass on the start of a further run, whose rounds are not logged."""
        self._own = False
        self._observer.run_started(name, num_rounds)

    def round_started(self, round: int, num_steps: int) -> None:
        """Pass on the start of a round."""
        self._observer.round_started(round, num_steps)

    def step_done(self) -> None:
        """Pass on the end of a step."""
        self._observer.step_done()

    def round_done(self, entry: RoundEntry) -> None:
        """Log a round of the run itself, and pass it on."""
        if self._own:
            self._trackers.round_done(entry)
        self._observer.round_done(entry)


def check_trackers(named: Sequence[str]) -> None:
    """Raises `SpecError` for a tracker that there is not, before anything is trained."""
    for text in named:
        kind, colon, where = text.partition(":")
        if kind not in ("tensorboard", "mlflow") or (colon and not where):
            raise SpecError(
                f"track must be tensorboard, tensorboard:FOLDER, mlflow or mlflow:ADDRESS; got {without_passwords(text)!r}"
            )


def track(named: Sequence[str], spec: RunSpec, folder: Path, warn: Callable[[str], None]) -> Trackers:
    """The trackers of a run.

    Args:
        named: `tensorboard`, into the run's folder, `tensorboard:FOLDER`, into one of the run's name below; `mlflow`, which
            MLFLOW_TRACKING_URI says, `mlflow:ADDRESS`.
        folder: of the run, whose name it goes by. warn: takes a line where a tracker fails.
    """
    identity = hashlib.sha256(f"{folder.resolve()} {spec.document()!r}".encode()).hexdigest()[:32]
    makers: dict[str, Callable[[], Tracker]] = {}
    for text in named:
        kind, _, where = text.partition(":")
        if kind == "tensorboard":
            makers[text] = functools.partial(TensorBoard, Path(where) / folder.name if where else folder / EVENTS)
        else:
            makers[without_passwords(text)] = functools.partial(Mlflow, where or None, folder.name, identity)
    task = task_of(spec)
    return Trackers(makers, folder, task.metric, warn)


def observe_tracked(
    observe: Observe, named: Sequence[str], place: Callable[[str], Path], warn: Callable[[str], None]
) -> Observe:
    """As `observe`, of several runs, each in the folder that `place` says of its name."""

    def both(options: Trained, name: str) -> AbstractContextManager[Observer]:
        """Return the observer of a run, with its trackers if there are any."""
        if not named or not isinstance(options, RunSpec):
            return observe(options, name)
        return Tracked(observe(options, name), track(named, options, place(name), warn))

    return both
