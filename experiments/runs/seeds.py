"""Training with several seeds: a run folder for each, and figures with intervals over them.

    several, records = train_seeds(spec, graph, Path("runs/mine"), count=3, attack=True, observe=unobserved)
    several.figures["utility.mrr"].over            # mean over seeds; its interval covers items and seeds

runs/mine/seed-0/record.json, ...   as `fkgsec train` writes them; read back or resumed
runs/mine/seeds.json                this record

The seed changes all draws of training, and the share that leaks to an attack. Data and division stay the same (`split_seed`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from fkgsec.attacks.figure import headline
from fkgsec.errors import SpecError
from fkgsec.estimate import Estimate, exact
from fkgsec.experiments.cli.progress import Observe
from fkgsec.experiments.runs.intervals import over_seeds
from fkgsec.experiments.runs.record import DataRecord, Environment, Record, read_if_of
from fkgsec.experiments.runs.run import execute
from fkgsec.experiments.runs.stored import encode_stored
from fkgsec.experiments.runs.writing import refused, write_atomically
from fkgsec.experiments.tasks.spec import MOST_SEEDS, RunSpec
from fkgsec.federation.options import CHECKPOINT_EVERY_S
from fkgsec.federation.task import MakeTask
from fkgsec.protocols.noise.accounting import compose
from fkgsec.protocols.noise.guarantee import Guarantee

SCHEMA = "fkgsec/seeds/1"
SEEDS_FILE = "seeds.json"


class OverSeeds(msgspec.Struct, frozen=True):
    """Figure over several seeds: the mean with its interval (the largest for bytes), and each seed's value."""

    over: Estimate
    values: list[float]


class SeedsRecord(msgspec.Struct, frozen=True):
    """Results of several trainings of a federation.

    Attributes:
        spec: spec of the first run.
        seeds: seeds of the runs.
        runs: folders of the runs, next to this file.
        environment: environment of the first run.
        figures: figures that every run has, by name.
        guarantees: guarantees of differential privacy for the releases of all seeds together, by the tables that each covers.
        gains: see `Record`; over seeds.
    """

    schema: str
    spec: RunSpec
    seeds: list[int]
    runs: list[str]
    data: DataRecord
    environment: Environment
    figures: dict[str, OverSeeds]
    guarantees: dict[str, Guarantee] = {}
    gains: dict[str, Estimate] = {}


def train_seeds(
    spec: RunSpec,
    graph: Any,
    folder: Path,
    count: int,
    *,
    attack: bool,
    observe: Observe,
    checkpoint_every_s: float = CHECKPOINT_EVERY_S,
    overwrite: bool = False,
    at_once: int = 1,
    make_task: MakeTask | None = None,
    whose: Mapping[str, str] | None = None,
) -> tuple[SeedsRecord, list[Record]]:
    """Train (and attack) with several seeds. Finished runs are read back.

    Args:
        spec: options of all runs; its seed is the first.
        graph: the clients' data.
        folder: folder of the run folders.
        count: number of seeds.
        attack: whether to attack each run.
        observe: gives each run its observer.
        checkpoint_every_s: see `execute`.
        overwrite: see `execute`.
        at_once: see `execute`.
        make_task: see `execute`.
        whose: see `execute`.

    Returns:
        The summary, and the record of each run.

    Raises:
        SpecError: fewer than two seeds, or too many.
        RunError: `folder` has results of other options, data or seeds.
    """
    if not 2 <= count <= MOST_SEEDS:
        raise SpecError(f"seeds must lie in 2..{MOST_SEEDS:,}; got {count:,}")
    specs = [spec.replace(seed=seed) for seed in range(spec.seed, spec.seed + count)]
    if (folder / SEEDS_FILE).exists():
        earlier = read_if_of(folder / SEEDS_FILE, SCHEMA, SeedsRecord)
        # The summary names options and data of all its runs.
        same = earlier is not None and (earlier.spec, earlier.data.hash) == (spec, graph.hash)
        # More seeds may extend an earlier series; fewer would drop finished runs from it.
        if not overwrite and not (same and earlier and len(earlier.seeds) <= count):
            raise refused(folder / SEEDS_FILE, "is of other options, data or seeds")
    records = []
    for seed_spec in specs:
        name = f"seed {seed_spec.seed}"
        with observe(seed_spec, name) as observer:
            finished = execute(
                seed_spec, graph, folder / name.replace(" ", "-"), attack=attack, observer=observer,
                checkpoint_every_s=checkpoint_every_s, overwrite=overwrite, at_once=at_once, make_task=make_task,
                whose=whose,
            )  # fmt: skip
        records.append(finished.record)
    several = msgspec.structs.replace(record_of(records), spec=spec)
    write_atomically(folder / SEEDS_FILE, encode_stored(several))
    return several, records


def record_of(records: list[Record]) -> SeedsRecord:
    """Combine the records of at least one seed.

    Args:
        records: runs that differ only in their seed; the spec of the first one is kept.
    """
    first = records[0]
    return SeedsRecord(
        SCHEMA,
        first.spec,
        [record.seed for record in records],
        [f"seed-{record.seed}" for record in records],
        first.data,
        first.environment,
        figures_over(records),
        {tables: compose([record.guarantees[tables] for record in records]) for tables in first.guarantees},
    )


def figures_over(records: list[Record]) -> dict[str, OverSeeds]:
    """Combine the figures that all records have, over their seeds.

    Args:
        records: runs that differ only in their seed.
    """
    by_record = [_figures(record) for record in records]
    combined = {}
    for name in by_record[0]:
        # A figure missing for one seed would be a mean over different seeds.
        if all(name in figures for figures in by_record):
            estimates = [figures[name] for figures in by_record]
            combined[name] = OverSeeds(over_seeds(estimates), [estimate.value for estimate in estimates])
    return combined


def _figures(record: Record) -> dict[str, Estimate]:
    """Return the figures of utility, cost and attacks of a run by name; figures that could not be measured are left out."""
    figures = {f"utility.{name}": figure for name, figure in record.utility.items() if figure.n}
    figures |= {f"utility.shared.{name}": figure for name, figure in record.utility_shared.items() if figure.n}
    figures["bytes.total"] = exact(record.bytes.up + record.bytes.down, 1)
    for figure in headline(record.figures):
        if figure.reason is None:
            leak = [] if figure.leak is None else [f"{figure.leak:g}"]
            figures["/".join([f"{figure.attack}.{figure.label}", figure.threat_model, *leak, figure.victim])] = (
                figure.estimate
            )
    return figures
