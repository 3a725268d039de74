"""Outputs of a tuning: a table, a CSV, a picture, and the best options as a spec file.

write_tuning(tuned, Path("runs/tuning"))         # trials.csv, trials.png, best.yaml
print_sheets(console, [trials_sheet(tuned)])
"""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import yaml
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullFormatter

from fkgsec.experiments.reporting import pictures
from fkgsec.experiments.reporting.pictures import BLUE, GREY, ORANGE
from fkgsec.experiments.reporting.sheets import Column, Sheet
from fkgsec.experiments.runs.writing import write_atomically
from fkgsec.experiments.tasks.task import task_of
from fkgsec.experiments.tuning.study import Trial, Tuning

CSV_FILE, PICTURE_FILE, BEST_FILE = "trials.csv", "trials.png", "best.yaml"
# Rows of the table in the terminal.
MOST_SHOWN = 15
# Searched options in the picture.
MOST_DRAWN = 4


def ordered(tuning: Tuning) -> list[Trial]:
    """Return the trials from the best on: finished ones, then pruned ones, then failed ones."""
    states = ("finished", "pruned", "failed")
    return sorted(tuning.trials, key=lambda trial: (states.index(trial.state), -(trial.valid or 0.0), trial.number))


def trials_sheet(tuning: Tuning) -> Sheet:
    """Return a table of the best trials."""
    label = task_of(tuning.spec).label(tuning.metric)
    columns = (
        Column("trial", "count"), *map(Column, tuning.searched), Column(f"validation {label}", "value"),
        Column("its round", "count"), Column("rounds", "count"), Column("seconds", "s"), Column("state"),
    )  # fmt: skip
    rows = []
    for trial in ordered(tuning)[:MOST_SHOWN]:
        values = (written(trial.values[name]) for name in tuning.searched)
        state = f"{trial.state}{f': {trial.reason}' if trial.reason else ''}"
        rows.append((trial.number, *values, trial.valid, trial.round, trial.rounds, trial.seconds, state))
    more = len(tuning.trials) - len(rows)
    notes = (f"{more} more in {CSV_FILE}",) if more else ()
    return Sheet(f"Trials, {len(tuning.trials)} in all", columns, tuple(rows), notes=notes)


def written(value: Any) -> str:
    """Return a value as the table shows it.

    Args:
        value: a number, a word or a flag.
    """
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def lines(tuning: Tuning) -> list[str]:
    """Describe the best trial, and the limits of this result.

    Args:
        tuning: a tuning with at least one finished trial.
    """
    best, label = tuning.best, task_of(tuning.spec).label(tuning.metric)
    chosen = ", ".join(f"{name} {written(value)}" for name, value in best.values.items())
    best_lines = [
        f"Best of {len(tuning.trials)} trials: {chosen}; validation {label} {best.valid:.4f} in round {best.round}.",
        "No trial saw the test split. The best of many validations overestimates utility: train with "
        f"--config {BEST_FILE} and evaluate on the test split once.",
    ]
    for tables, guarantee in tuning.guarantees.items():
        best_lines.append(
            f"dp, {tables}: all trials together spent {guarantee.describe()}. Add this to the epsilon in the record of a "
            "training with the best options, which covers that training alone."
        )
    return best_lines


def write_tuning(tuning: Tuning, folder: Path) -> None:
    """Write the CSV, the picture and the best options as a spec file.

    Args:
        tuning: a tuning with at least one finished trial.
        folder: existing folder to write to.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["trial", *tuning.searched, "valid", "round", "rounds", "seconds", "state", "reason"])
    for trial in tuning.trials:
        values = [trial.values[name] for name in tuning.searched]
        ends = [trial.valid, trial.round, trial.rounds, round(trial.seconds, 3), trial.state, trial.reason]
        writer.writerow([trial.number, *values, *ends])
    write_atomically(folder / CSV_FILE, out.getvalue().encode())
    write_atomically(folder / PICTURE_FILE, draw_trials(tuning))
    write_atomically(folder / BEST_FILE, best_document(tuning).encode())


def best_document(tuning: Tuning) -> str:
    """Return the best options for `fkgsec train --config`: searched options, and those that differ from their defaults.

    Args:
        tuning: a tuning with at least one finished trial.
    """
    best = tuning.best
    spec = tuning.spec.replace(**best.values)
    kind: Any = type(spec)
    plain, names = kind(algorithm=spec.algorithm).document(), ("algorithm", "model", "data", *tuning.searched)
    document = {name: value for name, value in spec.document().items() if name in names or value != plain.get(name)}
    head = (
        f"# The best of {len(tuning.trials)} trials by fkgsec tune, trial {best.number}: validation {tuning.metric} "
        f"{best.valid:.4f}\n# fkgsec train --config best.yaml\n"
    )
    return head + yaml.safe_dump(document, sort_keys=False, allow_unicode=True)


def draw_trials(tuning: Tuning) -> bytes:
    """Return a PNG: validation by trial with the best so far, and validation by each searched option.

    Args:
        tuning: a tuning with at least one finished trial.
    """
    names = list(tuning.searched)[:MOST_DRAWN]
    figure = Figure(figsize=(4.2 * (1 + len(names)), 4.2), layout="constrained")
    axes = figure.subplots(1, 1 + len(names), sharey=True, squeeze=False)[0]
    label = task_of(tuning.spec).label(tuning.metric)
    shown = [trial for trial in tuning.trials if trial.valid is not None]
    _points(axes[0], shown, [trial.number for trial in shown])
    # Pruned trials do not count: they might have improved, but were not finished.
    so_far, best = [], 0.0
    for trial in shown:
        best = max(best, (trial.valid or 0.0) if trial.state == "finished" else 0.0)
        so_far.append(best)
    axes[0].step([trial.number for trial in shown], so_far, where="post", color=GREY, linewidth=1, label="best so far")
    axes[0].set_xlabel("trial")
    axes[0].set_ylabel(f"validation {label}")
    axes[0].xaxis.set_major_locator(MaxNLocator(integer=True))
    axes[0].legend(fontsize=8, loc="best")
    for axis, name in zip(axes[1:], names, strict=True):
        values: list[Any] = [trial.values[name] for trial in shown]
        # Words and flags get a categorical axis.
        if not all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
            values = [str(value) for value in values]
        _points(axis, shown, values)
        if tuning.searched[name].startswith("log:"):
            axis.set_xscale("log")
            axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
            axis.xaxis.set_minor_formatter(NullFormatter())
        axis.set_xlabel(name)
    chosen = ", ".join(f"{name} {written(value)}" for name, value in tuning.best.values.items())
    figure.suptitle(f"{tuning.spec.algorithm} · best: {chosen}", fontsize=11)
    return pictures.saved(figure)


def _points(axis: Axes, trials: list[Trial], values: list[Any]) -> None:
    """Draw finished trials as discs, pruned ones as crosses."""
    for state, colour, mark in (("finished", BLUE, "o"), ("pruned", ORANGE, "x")):
        chosen = [place for place, trial in enumerate(trials) if trial.state == state]
        if chosen:
            ys = [trials[place].valid or 0.0 for place in chosen]
            axis.scatter([values[place] for place in chosen], ys, c=colour, marker=mark, s=28, label=state)
    axis.grid(alpha=0.3)
