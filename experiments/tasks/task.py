"""A task as experiments see it: how to compute and name a run's figures.

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
        of_all: over all clients. by_leak: of the parts of the test items that `RunTask.leaked` names.
        shared: of the shared models, where clients use private ones; else empty.
        items: outcome on each test item; None where clients report sums alone. items_shared: of the shared models.
    """

    of_all: Figures
    by_client: dict[str, Figures]
    by_leak: dict[str, Figures]
    shared: Figures
    items: TestItems | None = None
    items_shared: TestItems | None = None


class FirstPolicy(NamedTuple):
    """The two runs of `fkgsec check --init`, and the figures that it proposes limits on.

    Attributes:
        defense: of the second run. about: the defense in words. settings: options of a quick run.
        measures: of leakage; those that tell the two runs apart get a limit.
    """

    defense: str
    about: str
    settings: Mapping[str, Any]
    measures: tuple[str, ...]


@dataclass(frozen=True)
class RunTask:
    """A task as experiments see it.

    Attributes:
        name: in `fkgsec.federation.recipes`. about: the task in words. does: predicate of its algorithms.
        metric: headline figure of utility and of validation, in 0..1; larger is better.
        metrics: description of every figure of utility. labels: names of figures in tables, where they differ.
        items: noun for test items. leaked: descriptions of the parts of `Reached.by_leak`. standing: predicate of leaked items.
        network: a spec's model and size in words. columns: the same by column of a listing.
        cases: default cases of `fkgsec compare`.
        embedded: for embedded data by name, options of a quick first run.
        sizes: names of the sizes that `describe` counts for each client. sizes_title: description of them.
        reached: utility of a finished run.
        marked: noun for sensitive parts of the data, if any. sensitive: their names. warnings: caveats, a line each.
        statistics: tables of `fkgsec data stats`, and the same as plain values.
        memory: bytes of a run by part. smaller: options that reduce it.
        timed_by: the options of a spec that decide the time of an epoch and a validation.
        time_validation: CPU seconds of one validation of all clients.
        read_lines: of a spec and its data, what was read from a user's own file, in a few lines.
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
        """Name of a figure of utility in tables."""
        return self.labels.get(figure, figure)


def cpu_seconds(run: Callable[[], object]) -> float:
    """Measure CPU seconds of a second call of `run`, since the first may also compile."""
    run()
    began = time.process_time()
    run()
    return time.process_time() - began


_MODULES = {"kge": "fkgsec.experiments.tasks.kge", "graph": "fkgsec.experiments.tasks.graph"}


def task_named(name: str) -> RunTask:
    """Return the task of this name; `KeyError` for a task that has algorithms but no experiments."""
    return importlib.import_module(_MODULES[name]).TASK


def task_of(spec: RunSpec) -> RunTask:
    """The task of a spec."""
    return task_named(spec.task)


def all_tasks() -> list[RunTask]:
    """Every task that has experiments."""
    return [task_named(name) for name in _MODULES]
