"""One federation trained with several seeds: a run folder for each, and figures with intervals over them.

    several, records = train_seeds(spec, graph, Path("runs/mine"), count=3, attack=True, observe=unobserved)
    several.figures["utility.mrr"].over            # mean over seeds; its interval covers items and seeds

runs/mine/seed-0/record.json, ...   each as `fkgsec train` writes it, found again and gone on with as such
runs/mine/seeds.json                this record

The seeds differ in everything that training draws, and in the share that leaks to an attack; data and division are one
(`split_seed`). Source of the intervals: `fkgsec.experiments.runs.intervals.over_seeds`.
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
    """A figure over several seeds: the mean and its interval (of bytes the largest), and each seed's value in their order."""

    over: Estimate
    values: list[float]


class SeedsRecord(msgspec.Struct, frozen=True):
    """What several trainings of one federation came to.

    Attributes:
        spec: of the first. seeds: of all. runs: their folders, beside this file.
        figures: by name; those that every run has.
        environment: where the first was trained.
        guarantees: of differential privacy, of the releases of all seeds together, by the tables that each covers.
    """

    schema: str
    spec: RunSpec
    seeds: list[int]
    runs: list[str]
    data: DataRecord
    environment: Environment
    figures: dict[str, OverSeeds]
    guarantees: dict[str, Guarantee] = {}


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
    """Train (and attack) with `count` seeds from the spec's own on; finished runs in `folder` are read. Returns each record, too.

    Args:
        at_once, make_task, whose: see `execute`.

    Raises:
        SpecError: fewer than two seeds, or too many.
        RunError: `folder` holds what is of other options, or of seeds that are not among these.
    """
    if not 2 <= count <= MOST_SEEDS:
        raise SpecError(f"seeds must lie in 2..{MOST_SEEDS:,}; got {count:,}")
    specs = [spec.replace(seed=seed) for seed in range(spec.seed, spec.seed + count)]
    earlier = read_if_of(folder / SEEDS_FILE, SCHEMA, SeedsRecord) if (folder / SEEDS_FILE).exists() else None
    grown = earlier is not None and (earlier.spec, earlier.data.hash) == (spec, graph.hash)
    if (folder / SEEDS_FILE).exists() and not overwrite and not (grown and earlier and len(earlier.seeds) <= count):
        raise refused(folder / SEEDS_FILE, "is of other options, data or seeds")
    records = []
    for one in specs:
        with observe(one, f"seed {one.seed}") as observer:
            finished = execute(
                one,
                graph,
                folder / f"seed-{one.seed}",
                attack=attack,
                observer=observer,
                checkpoint_every_s=checkpoint_every_s,
                overwrite=overwrite,
                at_once=at_once,
                make_task=make_task,
                whose=whose,
            )
        records.append(finished.record)
    several = msgspec.structs.replace(record_of(records), spec=spec)
    write_atomically(folder / SEEDS_FILE, encode_stored(several))
    return several, records


def record_of(records: list[Record]) -> SeedsRecord:
    """What the records of several seeds, at least one, come to together; `spec` is as the first record has it."""
    first = records[0]
    return SeedsRecord(
        SCHEMA,
        first.spec,
        [one.seed for one in records],
        [f"seed-{one.seed}" for one in records],
        first.data,
        first.environment,
        figures_over(records),
        {tables: compose([one.guarantees[tables] for one in records]) for tables in first.guarantees},
    )


def figures_over(records: list[Record]) -> dict[str, OverSeeds]:
    """The figures that all records have, over their seeds."""
    by_record = [_figures(record) for record in records]
    shared = [name for name in by_record[0] if all(name in figures for figures in by_record)]
    return {
        name: OverSeeds(over_seeds(of_all := [figures[name] for figures in by_record]), [one.value for one in of_all])
        for name in shared
    }


def _figures(record: Record) -> dict[str, Estimate]:
    """Utility, cost and what attacks found in one run, by name; what was not attacked is left out."""
    figures = {f"utility.{name}": figure for name, figure in record.utility.items() if figure.n}
    figures |= {f"utility.shared.{name}": figure for name, figure in record.utility_shared.items() if figure.n}
    figures["bytes.total"] = exact(record.bytes.up + record.bytes.down, 1)
    for one in headline(record.figures):
        if one.reason is None:
            leak = [] if one.leak is None else [f"{one.leak:g}"]
            figures["/".join([f"{one.attack}.{one.label}", one.threat_model, *leak, one.victim])] = one.estimate
    return figures
