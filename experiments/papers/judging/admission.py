"""Which records count for the scoreboard and for claims: those that contradict neither themselves nor each other.

    admitted = admit(records)
    print(len(admitted.records), admitted.left_out)      # 41, ["fedr transe on DDB14-Fed5, seed 1: its checkout had changes"]

Records are not signed: whoever can write one can write any figure into it. What is found here is what goes wrong by mistake, and
what a careless hand leaves behind.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import NamedTuple

import numpy as np

from experiments.papers.forgetting import Forgotten
from experiments.papers.runner import run_key, run_of
from experiments.papers.table import Made
from experiments.runs.record import Record
from experiments.tasks.task import task_of

PROSE = 128  # columns of a page's paragraphs
LIMITS = (
    "Records are not signed: whoever can write one can write any figure into it. What is checked is that a record has "
    "the digest of its words (those of before have none), that its checkout had no changes, that its run came to the "
    "end that its settings name, that records of one data set are of the same data, and that no two seeds have the same "
    "losses. Which seeds were run, and which of these are in the folder, nobody can check; a division of the data by "
    "any seed counts, and so do draws of either generator."
)
"""What a page says of the records it rests on."""


class Admitted(NamedTuple):
    """The records that count, and a line for each other one."""

    records: list[Made]
    left_out: list[str]


def admit(records: Iterable[Made]) -> Admitted:
    """Sort out, in their order: of two records that contradict each other the first counts."""
    kept, left_out = list[Made](), list[str]()
    data: dict[Hashable, str] = {}
    runs: dict[Hashable, dict[int, Made]] = {}
    for record in records:
        spec, asked = record.spec, record.asked if isinstance(record, Forgotten) else None
        key = (run_key(spec, attack=False), asked, spec.split_seed, getattr(spec, "draws", None), _data_hash(record))
        seeds = runs.setdefault(key, {})
        if reason := _reason(record, seeds) or _of_other_data(record, data):
            role = f" {asked.role}" if asked else ""
            left_out.append(f"{spec.algorithm} {spec.model}{role} on {spec.data}, seed {record.seed}: {reason}")
            continue
        seeds.setdefault(record.seed, record)
        kept.append(record)
    return Admitted(kept, left_out)


def _reason(record: Made, seeds: Mapping[int, Made]) -> str:
    """Why a record does not count; empty if it does. `seeds`: earlier records of the same run."""
    run = run_of(record)
    if record.environment.dirty or run.environment.dirty:
        return "its checkout had changes"
    if not ended(run):
        return f"it ends at round {run.rounds[-1].round}, and its settings do not ({run.spec.rounds} rounds at most)"
    metric, losses = task_of(run.spec).metric, [entry.loss for entry in run.rounds]
    if not 0 <= (value := run.utility[metric].value) <= 1:
        return f"its {metric} is {value:g}"
    for seed, other in seeds.items():
        same_code = record.environment.commit == other.environment.commit
        if seed == record.seed and same_code and not np.allclose(_figures(other), _figures(record), rtol=1e-4):
            return "another record of the same run has other figures"
        if seed != record.seed and any(losses) and losses == [entry.loss for entry in run_of(other).rounds]:
            return f"it has the losses of seed {seed}, round by round"
    return ""


def _figures(record: Made) -> list[float]:
    if isinstance(record, Forgotten):
        return [one.value for row in record.quality for one in row.figures.values()]
    return [record.utility[task_of(record.spec).metric].value]


def _data_hash(record: Made) -> str:
    """Of the data before anything was forgotten."""
    return record.data_hash if isinstance(record, Forgotten) else record.data.hash


def ended(record: Record) -> bool:
    """Whether its last round is the one at which its settings end a run: by their number, or by validation."""
    best, bad_checks = None, 0
    for entry in record.rounds:
        if entry.valid is not None:
            better = best is None or entry.valid > best
            best, bad_checks = (entry.valid, 0) if better else (best, bad_checks + 1)
    return record.rounds[-1].round == record.spec.rounds or 0 < record.spec.patience <= bad_checks


def _of_other_data(record: Made, data: dict[Hashable, str]) -> str:
    """Of data that are called alike, or forgot alike; the hash of the first record is added to `data`."""
    spec = record.spec
    names = ("data", "clients", "partition", "size", "triple_columns", "normalise", "split_seed", "clean")
    called = tuple(getattr(spec, name, None) for name in names)
    hashes = [(called, _data_hash(record))]
    if isinstance(record, Forgotten):
        hashes.append(((called, record.asked.forget), record.forget_hash))
    for name, found in hashes:
        if (known := data.setdefault(name, found)) != found:
            return f"its data have hash {found[:12]}, those of others {known[:12]}"
    return ""
