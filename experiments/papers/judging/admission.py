"""Which records count for the scoreboard and for claims: those that contradict neither themselves nor each other.

    admitted = admit(records)
    print(len(admitted.records), admitted.left_out)      # 41, ["fedr transe on DDB14-Fed5, seed 1: its checkout had changes"]

Records are not signed: whoever can write one can write any figure into it. What is found here is what goes wrong by mistake, and
what a careless hand leaves behind.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable, Mapping
from typing import NamedTuple

import numpy as np

from fkgsec.experiments.papers.forgetting import Forgotten
from fkgsec.experiments.papers.runner import run_key, run_of
from fkgsec.experiments.papers.table import Made
from fkgsec.experiments.runs.record import Record
from fkgsec.experiments.tasks.task import task_of
from fkgsec.text import printable

_RISING = ("hits@1", "hits@3", "hits@5", "hits@10")
_ROUNDED = 1e-6
PROSE = 128  # columns of a page's paragraphs
LIMITS = (
    "Records are not signed: whoever can write one can write any figure into it. What is checked is that a record has "
    "the digest of its words (those of before have none), that it names a commit and its checkout had no changes, that its "
    "run came to the end that its settings name and no further, that it keeps the round that validation found best, that "
    "figures are shares, in the order that their names have, and none of all clients beyond what each reached, that "
    "records of one data set are of the same data, and that no two seeds have the same losses. Which seeds were run, and "
    "which of these are in the folder, nobody can check; a division of the data by any seed counts, and so do draws of "
    "either generator."
)
"""What a page says of the records it rests on."""


class Admitted(NamedTuple):
    """The records that count, and a line for each other one."""

    records: list[Made]
    left_out: list[str]


def admit(records: Iterable[Made]) -> Admitted:
    """Sort out, in their order: of two records that contradict each other the first counts."""
    kept, left_out = list[Made](), list[str]()
    data: dict[Hashable, Hashable] = {}
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


def left_out_lines(left_out: Iterable[str]) -> list[str]:
    """Of a page: a line each, whatever stands in a record's words."""
    lines = [f"* Left out: {printable(' '.join(line.split()))}" for line in left_out]
    return [*lines, *[""] * bool(lines)]


def _reason(record: Made, seeds: Mapping[int, Made]) -> str:
    """Why a record does not count; empty if it does. `seeds`: earlier records of the same run."""
    run = run_of(record)
    for one in (record.environment, run.environment):
        if one.dirty or not one.commit:
            return "its checkout had changes" if one.dirty else "it names no commit"
    if reason := _of_rounds(run) or _of_figures(record):
        return reason
    for seed, other in seeds.items():
        same_code = record.environment.commit == other.environment.commit
        if seed == record.seed and same_code and not np.allclose(_figures(other), _figures(record), rtol=1e-4):
            return "another record of the same run has other figures"
        if seed != record.seed and _same_losses(run, run_of(other)):
            return f"it has the losses of seed {seed}, round by round"
    return ""


def _of_rounds(run: Record) -> str:
    """Why its rounds are not those of a run of these settings; empty if they are."""
    last = run.rounds[-1].round
    if (end := end_of(run)) is None:
        return f"it ends at round {last}, and its settings do not ({run.spec.rounds} rounds at most)"
    if end != last:
        return f"it ends at round {last}, and its settings at round {end}"
    if any(entry.loss is None for entry in run.rounds[1:]):
        return "it has a round without a loss"
    checks = [entry for entry in run.rounds if entry.valid is not None]
    best = max(checks, key=lambda entry: (entry.valid, -entry.round), default=None)
    if best is not None and best.round != run.best_round:
        return f"it keeps round {run.best_round}, and validation is best at round {best.round}"
    return ""


def _of_figures(record: Made) -> str:
    """Why its figures cannot be what they are called; empty if they can."""
    run = run_of(record)
    groups = [run.utility, run.utility_shared, *run.utility_by_client.values(), *run.utility_by_leak.values()]
    groups += [{one.metric: one.estimate} for one in run.rebuilt if not one.reason]
    groups += [row.figures for row in record.quality] if isinstance(record, Forgotten) else []
    for group in groups:
        reached = {name: figure.value for name, figure in group.items() if figure.n}
        if strange := [name for name, value in reached.items() if not 0 <= value <= 1]:
            return f"its {strange[0]} is {reached[strange[0]]:g}"
        rising = [name for name in _RISING if name in reached]
        for low, high in itertools.pairwise(rising):
            if reached[low] > reached[high]:
                return f"its {low} is {reached[low]:g}, above its {high}"
        if reached.get("mrr", 1.0) < reached.get("hits@1", 0.0):
            return f"its mrr is {reached['mrr']:g}, below its hits@1"
    for name, figure in run.utility.items():
        of_clients = [one[name].value for one in run.utility_by_client.values() if name in one and one[name].n]
        if of_clients and not min(of_clients) - _ROUNDED <= figure.value <= max(of_clients) + _ROUNDED:
            return (
                f"its {name} is {figure.value:.4f}, those of its clients {min(of_clients):.4f} to {max(of_clients):.4f}"
            )
    return ""


def _same_losses(run: Record, other: Record) -> bool:
    losses, theirs = ([entry.loss or 0.0 for entry in one.rounds[1:]] for one in (run, other))
    return any(losses) and len(losses) == len(theirs) and np.allclose(losses, theirs, rtol=1e-6, atol=0)


def _figures(record: Made) -> list[float]:
    if isinstance(record, Forgotten):
        return [one.value for row in record.quality for one in row.figures.values()]
    return [record.utility[task_of(record.spec).metric].value]


def _data_hash(record: Made) -> str:
    """Of the data before anything was forgotten."""
    return record.data_hash if isinstance(record, Forgotten) else record.data.hash


def end_of(record: Record) -> int | None:
    """The first of its rounds at which its settings end a run, by their number or by validation; None: at none of them."""
    best, bad_checks = None, 0
    for entry in record.rounds:
        if entry.valid is not None:
            better = best is None or entry.valid > best
            best, bad_checks = (entry.valid, 0) if better else (best, bad_checks + 1)
        if entry.round == record.spec.rounds or 0 < record.spec.patience <= bad_checks:
            return entry.round
    return None


def _of_other_data(record: Made, data: dict[Hashable, Hashable]) -> str:
    """Of data that are called alike, or forgot alike; what the first record says of them is added to `data`."""
    spec = record.spec
    names = ("data", "clients", "partition", "size", "triple_columns", "normalise", "split_seed", "clean")
    called = tuple(getattr(spec, name, None) for name in names)
    run = run_of(record)
    sizes = tuple((client, *sorted(of.items())) for client, of in run.data.clients.items())
    if data.setdefault(("sizes", run.data.hash), sizes) != sizes:
        return "its clients have other sizes than those of others with the same data"
    hashes = [(called, _data_hash(record))]
    if isinstance(record, Forgotten):
        hashes.append(((called, record.asked.forget), record.forget_hash))
    for name, found in hashes:
        if (known := data.setdefault(name, found)) != found:
            return f"its data have hash {found[:12]}, those of others {str(known)[:12]}"
    return ""
