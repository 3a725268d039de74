"""What the experiments must know of a task: how a run's figures come about, and what they are called. One object for each.

    task = task_of(spec)                      # by `spec.task`
    task.reached(result).of_all[task.metric]  # the headline figure of utility, with its interval

Records, tables, reports, listings and the gate read this and know no task by name.
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
    from fkgsec.experiments.tasks.items import TestItems

Figures = dict[str, Estimate]


class Reached(NamedTuple):
    """What the kept models reach on test items, by the name of the figure.

    Attributes:
        of_all: over all clients. by_client: of each.
        by_leak: of the parts of the test items that `RunTask.parts` names.
        shared: of the shared models where clients keep and use others; else empty.
        items: the outcome on each test item; None where clients report sums alone. items_shared: of the shared models.
    """

    of_all: Figures
    by_client: dict[str, Figures]
    by_leak: dict[str, Figures]
    shared: Figures
    items: TestItems | None = None
    items_shared: TestItems | None = None


class Listed(NamedTuple):
    """A table of statistics: heads, and rows of texts."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


class Statistics(NamedTuple):
    """What the data are, as tables and as plain values for a file."""

    tables: tuple[Listed, ...]
    document: dict[str, Any]


class FirstPolicy(NamedTuple):
    """What `fkgsec check --init` runs and proposes limits on.

    Attributes:
        defense: what it is run with, and without. about: the defense in words. settings: options of the run, quick ones.
        measures: of leakage, which a limit stands on where it tells the two runs apart.
    """

    defense: str
    about: str
    settings: Mapping[str, Any]
    measures: tuple[str, ...]


@dataclass(frozen=True)
class RunTask:
    """A task as experiments see it.

    Attributes:
        name: in `fkgsec.federation.recipes`. about: what it is called. does: what its algorithms do, after a name.
        spec: the type of its specs.
        metric: the name of the headline figure of utility and of what validation measures; larger is better, in 0..1.
        metrics: every figure of utility, by name with a line. labels: how a figure is written in tables, where not by its name.
        items: what the test items are. utility_title: above a table of utility. over_clients: how clients are put together.
        leaked: what the parts of `Reached.by_leak` are called. standing: what the leaked items do.
        network: a spec's model and its size in words. columns: these by column of a listing, None where it has no such.
        cases: what `fkgsec compare` compares where nothing is named.
        first_policy: what `fkgsec check --init` proposes.
        embedded: of data that come with fkgsec, by name, options that the command line takes for a quick first look.
        sizes: the columns of a table of the clients' data, of what `describe` counts.
        sizes_title: what these columns are.
        reached: utility of a finished run. describe: the sizes of each client's data by name.
        marked: what the data may mark as sensitive; empty: nothing.
        sensitive: names of what the data mark as sensitive. warnings: what a reader must know of the data, a line each.
        statistics: of the data, for `fkgsec data stats`.
        memory: bytes that a run takes beside the program itself, by part; see `fkgsec.experiments.tasks.memory`.
        smaller: what takes less of it.
        timed_by: of a spec what decides how long an epoch and a validation take, the data and the number of epochs aside.
        time_validation: CPU seconds of one validation of all clients, of a federation's task and its data.
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
    statistics: Callable[[Any], Statistics]
    memory: Callable[[Any, Any], Mapping[str, float]]
    smaller: str
    timed_by: Callable[[Any], Mapping[str, Any]]
    time_validation: Callable[[Any, Any], float]

    def label(self, figure: str) -> str:
        """How a figure of utility is written."""
        return self.labels.get(figure, figure)


def cpu_seconds(run: Callable[[], object]) -> float:
    """CPU seconds of a second call of `run`, since the first may also compile."""
    run()
    began = time.process_time()
    run()
    return time.process_time() - began


_MODULES = {"kge": "fkgsec.experiments.tasks.kge", "graph": "fkgsec.experiments.tasks.graph"}


def task_named(name: str) -> RunTask:
    """The task of this name; `KeyError` for a task that has algorithms but no experiments."""
    return importlib.import_module(_MODULES[name]).TASK


def task_of(spec: RunSpec) -> RunTask:
    """The task of a spec."""
    return task_named(spec.task)


def all_tasks() -> list[RunTask]:
    """Every task that has experiments."""
    return [task_named(name) for name in _MODULES]
