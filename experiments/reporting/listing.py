"""Finished runs side by side: found on disk, filtered, sorted, and written for spreadsheets and trackers.

A run gives one row for each threat model, leak ratio and inference that it was attacked with, over all victims together, and one
row for each figure of another attack, of the victim that gives most away, and one
row if it was not attacked; so the columns are the same for every run. `--where inference=strongest` leaves the headline figures.
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

from attacks.figure import Figure, over_victims
from attacks.reconstruction.leakage import Leakage
from experiments.reporting.comparison import over_all, pooled
from experiments.reporting.tables import make_table
from experiments.runs.compare import COMPARISON_FILE, Case, read_comparison
from experiments.runs.record import Record, read_record
from experiments.runs.run import RECORD_FILE
from experiments.runs.writing import refused
from fkgsec.errors import FkgsecError, RunError, SpecError
from fkgsec.estimate import Estimate

COLUMNS = {
    "run": "string", "algorithm": "string", "defense": "string", "model": "string", "data": "string",
    "clients": "Int64", "dim": "Int64", "temperature": "Float64", "rounds": "Int64", "kept": "Int64", "seed": "Int64",
    "mrr": "Float64", "mrr_low": "Float64", "mrr_high": "Float64", "hits@10": "Float64",
    "threat": "string", "leak": "Float64", "metric": "string", "inference": "string",
    "err": "Float64", "err_low": "Float64", "err_high": "Float64", "err_base": "Float64",
    "err_max": "Float64",
    "trr": "Float64", "trr_low": "Float64", "trr_high": "Float64", "trr_base": "Float64",
    "trr_max": "Float64", "reason": "string", "remark": "string",
    "attack": "string", "figure": "string", "value": "Float64", "value_low": "Float64", "value_high": "Float64",
    "value_base": "Float64", "value_max": "Float64",
    "bytes_up": "Int64", "bytes_down": "Int64", "seconds": "Float64", "commit": "string", "dirty": "boolean",
}  # fmt: skip
"""Every column and its pandas type, all of which have missing values: a figure that was not measured is missing, not zero."""

SETTINGS = (
    "algorithm",
    "defense",
    "model",
    "data",
    "clients",
    "dim",
    "temperature",
    "rounds",
    "seed",
    "commit",
    "dirty",
)
LEAKAGE = ("threat", "leak", "metric", "inference", "err", "err_base", "err_max", "trr", "trr_base", "trr_max")
OTHERS = ("attack", "figure", "value", "value_base", "value_max")
"""Columns of attacks other than reconstruction, shown where there are any."""

HEADERS = {
    "value_base": "base", "value_max": "max",
    "mrr": "MRR", "hits@10": "Hits@10", "err": "ERR", "err_base": "base", "trr": "TRR", "trr_base": "base",
    "err_max": "max", "trr_max": "max",
    "bytes_up": "MiB up", "bytes_down": "MiB down", "seconds": "s",
}  # fmt: skip
LEAST_FIRST = (
    "dirty",
    "commit",
    "seed",
    "seconds",
    "hits@10",
    "bytes_down",
    "bytes_up",
    "rounds",
    "temperature",
    "dim",
    "clients",
    "model",
)
WIDE = 10_000  # more than any listing takes
_CONDITION = re.compile(r"\s*([\w@]+)\s*(!=|<=|>=|=|<|>)\s*(.*?)\s*")
_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
NOTHING = "–"  # where a cell has no value
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


def listing(records: Mapping[str, Record]) -> pd.DataFrame:
    """A table with the columns `COLUMNS`. `*_low` and `*_high` are 95 % intervals, `*_base` the best baseline."""
    rows: list[dict[str, Any]] = []
    for name, record in records.items():
        run = _run_cells(name, record)
        attacked = [_leakage_cells(row) for row in over_all(record.leakage)]
        attacked += [_figure_cells(one) for one in over_victims(record.other_figures)]
        rows += [{**run, **cells} for cells in attacked] or [run]
    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    return frame.astype(COLUMNS)


def _run_cells(name: str, record: Record) -> dict[str, Any]:
    spec = record.spec
    return {
        "run": name,
        "algorithm": spec.algorithm,
        "defense": spec.defense,
        "model": spec.model,
        "data": record.data.name,
        "clients": len(record.data.clients),
        "dim": spec.dim,
        "temperature": spec.sampling_temperature,
        "rounds": len(record.rounds) - 1,
        "kept": record.best_round,
        "seed": record.seed,
        **_estimate_cells("mrr", record.utility["mrr"]),
        "hits@10": record.utility["hits@10"].value if record.utility["hits@10"].n else None,
        "bytes_up": record.bytes.up,
        "bytes_down": record.bytes.down,
        "seconds": sum(entry.seconds for entry in record.rounds),
        "commit": record.environment.commit,
        "dirty": record.environment.dirty,
    }


def _figure_cells(one: Figure) -> dict[str, Any]:
    cells = {"attack": one.attack, "figure": one.metric, "threat": one.threat_model, "leak": one.leak}
    if one.reason:
        return {**cells, "reason": one.reason}
    base = {"value_base": one.baseline.value if one.baseline else None, "value_max": one.attainable}
    return {**cells, **_estimate_cells("value", one.estimate), **base}


def _leakage_cells(row: Leakage) -> dict[str, Any]:
    cells = {
        "threat": row.threat_model,
        "leak": row.leak,
        "metric": row.metric,
        "inference": row.inference,
        "reason": row.reason,
        "remark": row.remark,
    }
    if row.reason:
        return cells
    bases = {"err_base": row.err.value - row.err_advantage, "trr_base": row.trr.value - row.trr_advantage}
    bases |= {"err_max": row.err_attainable, "trr_max": row.trr_attainable}
    return {**cells, **_estimate_cells("err", row.err), **_estimate_cells("trr", row.trr), **bases}


def _estimate_cells(name: str, figure: Estimate) -> dict[str, float]:
    return {name: figure.value, f"{name}_low": figure.low, f"{name}_high": figure.high} if figure.n else {}


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
        cells = pd.Series(frame[_column("where", name)])
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
    words = frame[_column("sort", name)].dtype == "string"
    return frame.sort_values(name, ascending=words != reverse, kind="stable", na_position="last")


def _column(option: str, name: str) -> str:
    if name not in COLUMNS:
        raise SpecError(f"{option}: no column {name!r}; there are {', '.join(COLUMNS)}")
    return name


def listing_table(frame: pd.DataFrame, width: int) -> tuple[Table, list[str]]:
    """The listing for a terminal of so many columns: settings that all runs share stand in the title.

    Returns: the table, and the names of the columns that were left out because they do not fit (`LEAST_FIRST`).
    """
    rows = _rows(frame)
    runs = {row["run"]: row for row in rows}
    varied = [name for name in SETTINGS if len({row[name] for row in runs.values()}) > 1]
    first = _cells(rows[0]) if rows else {}
    shared = [
        f"{name} {first[name]}" for name in SETTINGS if name not in varied and first.get(name, NOTHING) != NOTHING
    ]
    title = f"{len(runs)} run{'s' * (len(runs) != 1)}{'; all: ' * bool(shared)}{', '.join(shared)}"
    names = ["run", *varied, "mrr", "hits@10", "bytes_up", "bytes_down", "seconds"]
    if any(row["threat"] is not None for row in rows):
        kinds = [name for name in ("metric", "inference") if len({row[name] for row in rows} - {None}) > 1]
        bounds = {name for name in ("err_max", "trr_max") if any(row[name] is not None for row in rows)}
        figures = [name for name in LEAKAGE[4:] if not name.endswith("_max") or name in bounds]
        others = [name for name in OTHERS if any(row[name] is not None for row in rows)]
        names[-3:-3] = ["threat", "leak", *kinds, *figures, *others]
    left_out: list[str] = []
    table = _make_table(rows, title, names)
    for name in [name for name in LEAST_FIRST if name in names]:
        if Console(width=WIDE).measure(table).maximum <= width:
            break
        names.remove(name)
        left_out.append(name)
        table = _make_table(rows, title, names)
    return table, left_out


def _rows(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Its rows, missing values as None."""
    return frame.astype(object).where(frame.notna(), None).to_dict("records")  # type: ignore[return-value]


def _make_table(rows: list[dict[str, Any]], title: str, names: list[str]) -> Table:
    table = make_table(title, *(HEADERS.get(name, name) for name in names))
    for column in table.columns:
        column.overflow = "fold"  # a figure is never cut
    before = None
    for row in rows:
        again = row["run"] == before  # another threat model of the same run
        before, cells = row["run"], _cells(row)
        table.add_row(*("" if again and name not in (*LEAKAGE, *OTHERS) else cells[name] for name in names))
    return table


def _cells(row: Mapping[str, Any]) -> dict[str, str]:
    """What the terminal shows of a row, by column: shares without the leading zero, sizes in MiB."""
    cells = {name: NOTHING if value in (None, "") else str(value) for name, value in row.items()}
    for name in ("hits@10", "err_base", "err_max", "trr_base", "trr_max", "value_base", "value_max"):
        cells[name] = NOTHING if row[name] is None else _share(row[name])
    for name in ("mrr", "err", "trr", "value"):
        if row[name] is not None:
            half = max(row[name] - row[f"{name}_low"], row[f"{name}_high"] - row[name])
            cells[name] = f"{_share(row[name])} ±{_share(half)}"
    if row["reason"] is not None:
        cells |= dict.fromkeys((*LEAKAGE[4:], *OTHERS[2:]), "n/a")
    for name in ("bytes_up", "bytes_down"):
        cells[name] = f"{row[name] / 2**20:,.2f}"
    return {
        **cells,
        "seconds": f"{row['seconds']:,.1f}",
        "temperature": f"{row['temperature']:g}",
        "commit": cells["commit"][:8],
    }


def _share(value: float) -> str:
    return f"{value:.3f}".removeprefix("0")


# Trackers: loggers of finished records. Nothing is logged while a run goes on.


def figures(record: Record) -> dict[str, float]:
    """Final figures, of leakage the headline's, by a name that every tracker takes: letters, digits, `_`, `-`, `.` and `/`."""
    named = {name.replace("@", "_at_"): estimate.value for name, estimate in record.utility.items() if estimate.n}
    for row in pooled(record):
        if not row.reason:
            where = f"{row.threat_model.replace('+', '_')}/leak_{row.leak:g}"
            named |= {f"err/{where}": row.err.value, f"trr/{where}": row.trr.value}
            named |= {f"err_advantage/{where}": row.err_advantage, f"trr_advantage/{where}": row.trr_advantage}
    for one in over_victims(record.other_figures):
        if not one.reason:
            at = "" if one.leak is None else f"/leak_{one.leak:g}"
            named[f"{one.attack}_{one.metric}/{one.threat_model.replace('+', '_')}{at}"] = one.estimate.value
    return {**named, "bytes_up": float(record.bytes.up), "bytes_down": float(record.bytes.down)}


def curves(record: Record) -> list[tuple[int, dict[str, float]]]:
    """What each round says, by round: loss, validation MRR, bytes and seconds; what a round did not measure is left out."""
    return [
        (entry.round, {f"round/{name}": float(value) for name, value in fields.items() if value is not None})
        for entry in record.rounds
        for fields in [
            {name: getattr(entry, name) for name in ("loss", "valid_mrr", "bytes_up", "bytes_down", "seconds")}
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
                writer.add_hparams(settings(record), figures(record), run_name=".")
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
            points = [*curves(record), (record.best_round, figures(record))]
            metrics = [Metric(key, value, now, step) for step, values in points for key, value in values.items()]
            for start in range(0, len(metrics), 1000):  # as many as a request may hold
                client.log_batch(run, metrics=metrics[start : start + 1000])
            client.set_terminated(run)
    except (MlflowException, ImportError, OSError) as error:  # a database needs more than the client that the extra has
        raise RunError(f"mlflow at {uri}: {' '.join(str(error).split())}") from error
