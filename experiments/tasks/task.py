"""Interface between experiments and a task: how to compute and name a run's figures.

    task = task_of(spec)                      # by `spec.task`
    task.reached(result).of_all[task.metric]  # the headline figure of utility, with its interval

Records, tables, reports, listings and the gate use this object and know no task by name.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from fkgsec.estimate import Estimate
from fkgsec.experiments.tasks.spec import RunSpec

if TYPE_CHECKING:
    from fkgsec.experiments.reporting.sheets import Sheet
    from fkgsec.experiments.tasks.items import TestItems

Figures = dict[str, Estimate]


class Reached(NamedTuple):
    """Utility of the best round's models on test items, by the name of the figure.

    Attributes:
        of_all: figures over all clients.
        by_client: figures of each client.
        by_leak: figures of the parts of the test items that `RunTask.leaked` names.
        shared: figures of the shared models, if clients use private ones; else empty.
        items: outcome on each test item; None if clients report only sums.
        items_shared: outcome of the shared models on each test item.
    """

    of_all: Figures
    by_client: dict[str, Figures]
    by_leak: dict[str, Figures]
    shared: Figures
    items: TestItems | None = None
    items_shared: TestItems | None = None


class FirstPolicy(NamedTuple):
    """The two runs of `fkgsec check --init`, and the figures for which it proposes limits.

    Attributes:
        defense: defense of the second run.
        about: the defense in words.
        settings: options of a quick run.
        measures: measures of leakage; those that separate the two runs get a limit.
    """

    defense: str
    about: str
    settings: Mapping[str, Any]
    measures: tuple[str, ...]


@dataclass(frozen=True)
class RunTask:
    """A task as experiments see it.

    Attributes:
        name: name in `fkgsec.federation.recipes`.
        about: the task in words.
        does: predicate of its algorithms.
        spec: class of its specs.
        metric: headline figure of utility and of validation, in 0..1; larger is better.
        metrics: description of every figure of utility.
        labels: names of figures in tables, if they differ.
        items: noun for test items.
        utility_title: title of the table of utility, for a spec.
        leaked: descriptions of the parts of `Reached.by_leak`.
        standing: predicate of leaked items.
        network: a spec's model and size in words.
        columns: the same by column of a listing.
        cases: default cases of `fkgsec compare`.
        first_policy: the runs of `fkgsec check --init`.
        embedded: for embedded data by name, options of a quick first run.
        sizes: names of the sizes that `describe` counts for each client.
        sizes_title: description of the sizes.
        marked: noun for sensitive parts of the data, if any.
        reached: utility of a finished run.
        describe: sizes of each client's data.
        sensitive: names of the sensitive parts of the data.
        warnings: caveats about the data, a line each.
        statistics: tables of `fkgsec data stats`, and the same as plain values.
        memory: bytes of a run by part.
        smaller: options that reduce the memory.
        timed_by: options of a spec that decide the time of an epoch and a validation.
        time_validation: CPU seconds of one validation of all clients.
        read_lines: a few lines about the content of a user's own file, for a spec and its data.
    """

    name: str
    about: str
    does: str
    spec: type[Any]
    metric: str
    metrics: Mapping[str, str]
    labels: Mapping[str, str]
    items: str
    utility_title: Callable[[Any], str]
    leaked: Mapping[str, str]
    standing: str
    network: Callable[[Any], str]
    columns: Callable[[Any], dict[str, Any]]
    cases: tuple[str, ...]
    first_policy: FirstPolicy
    embedded: Mapping[str, Mapping[str, Any]]
    sizes: tuple[str, ...]
    sizes_title: str
    marked: str
    reached: Callable[[Any], Reached]
    describe: Callable[[Any], dict[str, dict[str, int]]]
    sensitive: Callable[[Any], list[str]]
    warnings: Callable[[Any], list[str]]
    statistics: Callable[[Any], tuple[list[Sheet], dict[str, Any]]]
    memory: Callable[[Any, Any], Mapping[str, float]]
    smaller: str
    timed_by: Callable[[Any], Mapping[str, Any]]
    time_validation: Callable[[Any, Any], float]
    read_lines: Callable[[Any, Any], list[str]] = lambda spec, graph: []

    def label(self, figure: str) -> str:
        """Return the name of a figure of utility in tables.

        Args:
            figure: key of `metrics`.
        """
        return self.labels.get(figure, figure)


def cpu_seconds(run: Callable[[], object]) -> float:
    """Measure CPU seconds of a second call, because the first may also compile.

    Args:
        run: called twice.
    """
    run()
    began = time.process_time()
    run()
    return time.process_time() - began


_MODULES = {"kge": "fkgsec.experiments.tasks.kge", "graph": "fkgsec.experiments.tasks.graph"}


def task_named(name: str) -> RunTask:
    """Return the task of this name.

    Args:
        name: `kge` or `graph`.

    Raises:
        KeyError: the task has algorithms but no experiments.
    """
    # Imported by name, because the module of a task imports this one.
    return importlib.import_module(_MODULES[name]).TASK


def task_of(spec: RunSpec) -> RunTask:
    """Return the task of a spec."""
    return task_named(spec.task)


def all_tasks() -> list[RunTask]:
    """Return the tasks that have experiments."""
    return [task_named(name) for name in _MODULES]
