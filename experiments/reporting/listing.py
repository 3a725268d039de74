"""Finished runs side by side: searched, filtered, sorted, and written for spreadsheets and trackers.

    frame = sort(select(figures(find_records([Path("runs")]).records), ["algorithm=fede", "metric=trr"]), "value")

The rows are those of `frames.figures`: one for each figure over all victims, and one for a run that was not attacked.
`--where headline=true` keeps the figures that verdicts use.
"""

from __future__ import annotations

import operator
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any, NamedTuple

import pandas as pd
from rich.console import Console
from rich.table import Table

from fkgsec.attacks.options import RECONSTRUCTION
from fkgsec.attacks.reconstruction.leakage import UNLINKED
from fkgsec.errors import FkgsecError, RunError, SpecError
from fkgsec.experiments.reporting.frames import over_all
from fkgsec.experiments.reporting.sheets import NONE, Sheet, rows_of, terminal_table, written_rows
from fkgsec.experiments.runs.compare import COMPARISON_FILE, Case, read_comparison
from fkgsec.experiments.runs.record import Record, read_record
from fkgsec.experiments.runs.run import RECORD_FILE
from fkgsec.experiments.runs.writing import refused

SETTINGS = (
    "algorithm", "defense", "model", "data", "clients", "dim", "layers", "width", "temperature", "rounds", "seed", "commit",
    "dirty",
)  # fmt: skip
HEADS = {
    "mrr": "MRR", "hits@10": "Hits@10", "bytes_up": "MiB up", "bytes_down": "MiB down", "seconds": "s", "place": "threat",
    "label": "metric", "value": "figure", "baseline": "base", "attainable": "max",
}  # fmt: skip
FIGURE = ("attack", "place", "label", "value", "baseline", "attainable", "status")
LEAST_FIRST = (
    "dirty", "commit", "seed", "seconds", "hits@10", "bytes_down", "bytes_up", "rounds", "temperature", "dim", "width", "layers",
    "clients", "model",
)  # fmt: skip
WIDE = 10_000  # more than any listing takes
_CONDITION = re.compile(r"\s*([\w@]+)\s*(!=|<=|>=|=|<|>)\s*(.*?)\s*")
_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
EXPERIMENT = "fkgsec"  # what MLflow calls them together


class Found(NamedTuple):
    """Records by the name of their run, and a line for each file that cannot be read."""

    records: dict[str, Record]
    damaged: list[str]


def find_records(paths: Sequence[Path]) -> Found:
    """The record of every finished run.

    Args:
        paths: folders, searched for record.json at any depth, and files of any name that are records or comparisons. A run
            is called by its folder's path below the one that was searched, or by its file's name (and the case).

    Raises:
        RunError: a path that is not there, or no record at all.
    """
    records: dict[str, Record] = {}
    damaged: list[str] = []
    for root in paths:
        if not root.exists():
            raise RunError(f"{root}: no such file or folder")
        for file in sorted(root.rglob(RECORD_FILE)) if root.is_dir() else [root]:
            try:
                comparison = None if file.name == RECORD_FILE else read_comparison(file)
                cases = comparison.cases if comparison else [Case("", read_record(file))]
            except FkgsecError as error:  # that of a value which this version does not allow names no file
                damaged.append(str(error) if str(error).startswith(str(file)) else f"{file}: {error}")
                continue
            name = _run_name(root, file)
            name = file.as_posix() if any(f"{name} {case.name}".strip() in records for case in cases) else name
            records |= {f"{name} {case.name}".strip(): case.record for case in cases}
    if not records and not damaged:
        raise RunError(
            f"{', '.join(map(str, paths))}: no {RECORD_FILE} at any depth; fkgsec train and attack write them"
        )
    return Found(records, damaged)


def _run_name(root: Path, file: Path) -> str:
    if root == file:
        return file.parent.resolve().name if file.name in (RECORD_FILE, COMPARISON_FILE) else file.stem
    return root.resolve().name if file.parent == root else file.parent.relative_to(root).as_posix()


def select(frame: pd.DataFrame, conditions: Sequence[str]) -> pd.DataFrame:
    """The rows that meet every condition, such as `algorithm=fede`, `mrr>0.3` or `defense!=`. A missing value meets none.

    Raises:
        SpecError: something else, an unknown column, or a value that is not of the column's kind.
    """
    for condition in conditions:
        parts = _CONDITION.fullmatch(condition)
        if parts is None:
            raise SpecError(f"where: expected COLUMN, one of {' '.join(_COMPARE)}, and a value; got {condition!r}")
        name, sign, value = parts.groups()
        cells = pd.Series(frame[_column("where", name, frame)])
        met = _COMPARE[sign](cells, _value_like(cells, name, value)).fillna(False).astype(bool)
        frame = frame.loc[met]
    return frame


def _value_like(column: pd.Series, name: str, value: str) -> str | float | bool:
    if column.dtype == "string":
        return value
    if column.dtype == "boolean":
        if value.lower() not in ("true", "false"):
            raise SpecError(f"where: {name} is true or false; got {value!r}")
        return value.lower() == "true"
    try:
        return float(value)
    except ValueError as error:
        raise SpecError(f"where: {name} is a number; got {value!r}") from error


def sort(frame: pd.DataFrame, name: str, *, reverse: bool = False) -> pd.DataFrame:
    """By a column: numbers from the largest, words from A; the other way when `reverse`. Missing values come last.

    Raises:
        SpecError: an unknown column.
    """
    words = frame[_column("sort", name, frame)].dtype == "string"
    return frame.sort_values(name, ascending=words != reverse, kind="stable", na_position="last")


def _column(option: str, name: str, frame: pd.DataFrame) -> str:
    if name not in frame:
        raise SpecError(f"{option}: no column {name!r}; there are {', '.join(frame.columns)}")
    return name


def listing_table(frame: pd.DataFrame, width: int) -> tuple[Table, list[str]]:
    """Return the listing for a terminal of this width: settings that all runs share stand in the title.

    Returns: the table, and the names of the columns that were left out because they do not fit (`LEAST_FIRST`).
    """
    shown = frame.assign(commit=frame["commit"].str[:8], defense=frame["defense"].replace("", NONE))
    rows = rows_of(shown.drop_duplicates("run"))
    known = [name for name in SETTINGS if name in frame]
    varied = [name for name in known if len({row[name] for row in rows}) > 1]
    settings = Sheet.of("", shown.head(1), dict.fromkeys(known, ""))
    values = zip(known, *written_rows(settings), strict=True) if rows else ()
    shared = [f"{name} {value}" for name, value in values if name not in varied and value != NONE]
    title = f"{len(rows)} run{'s' * (len(rows) != 1)}{'; all: ' * bool(shared)}{', '.join(shared)}"
    utility = [name for name in ("mrr", "hits@10", "accuracy") if name in frame]
    attacked = FIGURE if len(frame["attack"].dropna()) else ()
    names = ["run", *varied, *utility, *attacked, "bytes_up", "bytes_down", "seconds"]
    once = names.index("attack") if attacked else 0
    left_out: list[str] = []
    table = terminal_table(Sheet(title, (), ()))
    for name in ["", *(name for name in LEAST_FIRST if name in names)]:
        if name:
            once -= names.index(name) < once
            names.remove(name)
            left_out.append(name)
        made = Sheet.of(title, shown, {head: HEADS.get(head, head) for head in names})
        table = terminal_table(made, once=once)
        if Console(width=WIDE).measure(table).maximum <= width:
            break
    return table, left_out


# Trackers: loggers of finished records. Nothing is logged while a run goes on.


def final_figures(record: Record) -> dict[str, float]:
    """Final figures, of leakage the headline's, by a name that every tracker takes: letters, digits, `_`, `-`, `.` and `/`."""
    named = {name.replace("@", "_at_"): estimate.value for name, estimate in record.utility.items() if estimate.n}
    for one in over_all(record.figures):
        if one.reason or one.metric in UNLINKED:
            continue
        at = one.threat_model.replace("+", "_") + ("" if one.leak is None else f"/leak_{one.leak:g}")
        name = one.metric if one.attack == RECONSTRUCTION else f"{one.attack}_{one.metric}"
        named |= {f"{name}/{at}": one.estimate.value, f"{name}_advantage/{at}": one.advantage}
    return {**named, "bytes_up": float(record.bytes.up), "bytes_down": float(record.bytes.down)}


def curves(record: Record) -> list[tuple[int, dict[str, float]]]:
    """What each round says, by round: loss, validation, bytes and seconds; what a round did not measure is left out."""
    return [
        (entry.round, {f"round/{name}": float(value) for name, value in fields.items() if value is not None})
        for entry in record.rounds
        for fields in [
            {
                **{name: getattr(entry, name) for name in ("loss", "bytes_up", "bytes_down", "seconds")},
                f"valid_{record.metric}": entry.valid,
            }
        ]
    ]


def settings(record: Record) -> dict[str, str | int | float]:
    """Every option of the run and the data it had, as plain values; lists are joined by commas, None is the word."""
    fields = record.spec.document()
    plain = {
        name: value if isinstance(value, str | int | float) else ",".join(map(str, value)) if value else str(value)
        for name, value in fields.items()
    }
    return {**plain, "data_hash": record.data.hash, "commit": str(record.environment.commit)}


def log_tensorboard(records: Mapping[str, Record], folder: Path, *, overwrite: bool = False) -> None:
    """Write an event file for each run into a folder of its name below `folder`.

    Args:
        overwrite: remove the event files of earlier runs there first, with which these would mix.

    Raises:
        RunError: the extra is not installed, the folder cannot be written, or it holds events.
    """
    try:
        from torch.utils.tensorboard.writer import SummaryWriter
    except ImportError as error:
        raise RunError("tensorboard is not installed: pip install 'fkgsec[tensorboard]'") from error
    for name, record in records.items():
        below = "/".join(part for part in PurePath(name).parts if part not in ("/", ".."))
        earlier = list((folder / below).glob("events.*"))
        if earlier and not overwrite:
            raise refused(folder / below, "holds events already, which these would mix with")
        try:
            for file in earlier:
                file.unlink()
            with SummaryWriter(str(folder / below)) as writer:
                for number, values in curves(record):
                    for key, value in values.items():
                        writer.add_scalar(key, value, number)
                writer.add_hparams(settings(record), final_figures(record), run_name=".")
        except OSError as error:
            raise RunError(f"{folder / below}: cannot be written ({error.strerror})") from error


def log_mlflow(records: Mapping[str, Record], uri: str) -> None:
    """Log each run to the MLflow tracking server at `uri`, in the experiment `fkgsec`.

    Raises:
        RunError: the extra is not installed, or the server does not take them.
    """
    try:
        from mlflow import MlflowClient  # pyright: ignore[reportMissingImports]
        from mlflow.entities import Metric, Param  # pyright: ignore[reportMissingImports]
        from mlflow.exceptions import MlflowException  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise RunError("mlflow is not installed: pip install 'fkgsec[mlflow]'") from error
    try:
        client = MlflowClient(tracking_uri=uri)
        known = client.get_experiment_by_name(EXPERIMENT)
        experiment = known.experiment_id if known else client.create_experiment(EXPERIMENT)
        now = int(time.time() * 1000)
        for name, record in records.items():
            tags = {"mlflow.source.git.commit": str(record.environment.commit), "command": record.environment.command}
            run = client.create_run(experiment, run_name=name, tags=tags).info.run_id
            client.log_batch(run, params=[Param(key, str(value)) for key, value in settings(record).items()])
            points = [*curves(record), (record.best_round, final_figures(record))]
            metrics = [Metric(key, value, now, step) for step, values in points for key, value in values.items()]
            for start in range(0, len(metrics), 1000):  # as many as a request may hold
                client.log_batch(run, metrics=metrics[start : start + 1000])
            client.set_terminated(run)
    except (MlflowException, ImportError, OSError) as error:  # a database needs more than the client that the extra has
        raise RunError(f"mlflow at {uri}: {' '.join(str(error).split())}") from error
