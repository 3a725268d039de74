"""Admission of records to the scoreboard and the claims: those that contradict neither themselves nor each other.

    admitted = admit(records)
    print(len(admitted.records), admitted.left_out)      # 41, ["fedr transe on DDB14-Fed5, seed 1: its checkout had changes"]

Records are not signed: anyone who can write a record can write any figure into it. These checks find mistakes.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from fkgsec.experiments.papers.forgetting import Forgotten
from fkgsec.experiments.papers.queue import data_of
from fkgsec.experiments.papers.results import Made, run_key, run_of
from fkgsec.experiments.runs.record import Record
from fkgsec.experiments.tasks.task import task_of
from fkgsec.text import printable

_RISING = ("hits@1", "hits@3", "hits@5", "hits@10")
_ROUNDED = 1e-6
# Columns of a page's paragraphs.
PROSE = 128
# Checks of the records behind a page, in the page's words.
LIMITS = (
    "Records are not signed: you can write any figure into one. These are the checks. A record has the digest of its "
    "content (older records have none). It names a commit, and its checkout had no changes. Its run ended at the round "
    "that its settings name, and the best round is the one with the best validation. Figures are shares, rise from hits@1 to "
    "hits@10, and no average over clients is above every client's figure. Records of one data set have the same data, and no "
    "two seeds have the same losses. Nobody can check which seeds were run and which of them are in the folder. A division "
    "of the data by any seed counts, and so does either random generator."
)


class Admitted(NamedTuple):
    """Admitted records, and a line for each other one."""

    records: list[Made]
    left_out: list[str]


def admit(records: Iterable[Made]) -> Admitted:
    """Select records in their order: of two that contradict each other, the first counts.

    Args:
        records: finished runs and unlearned models.
    """
    admitted, left_out = list[Made](), list[str]()
    data: dict[Hashable, Hashable] = {}
    runs: dict[Hashable, dict[int, Made]] = {}
    for record in records:
        spec, unlearned = record.spec, record.asked if isinstance(record, Forgotten) else None
        key = (run_key(spec, attack=False), unlearned, spec.split_seed, data_hash(record))
        # Records with the same key are seeds of one run.
        seeds = runs.setdefault(key, {})
        if reason := next(itertools.chain(_problems(record), _conflicts(record, seeds), _other_data(record, data)), ""):
            role = f" {unlearned.role}" if unlearned else ""
            left_out.append(f"{spec.algorithm} {spec.model}{role} on {spec.data}, seed {record.seed}: {reason}")
            continue
        seeds.setdefault(record.seed, record)
        admitted.append(record)
    return Admitted(admitted, left_out)


def left_out_lines(left_out: Iterable[str]) -> list[str]:
    """Return a Markdown line for each record that was left out.

    Args:
        left_out: lines of `admit`; control characters are escaped.
    """
    lines = [f"* Left out: {printable(' '.join(line.split()))}" for line in left_out]
    return [*lines, *[""] * bool(lines)]


def _problems(record: Made) -> Iterator[str]:
    """Yield contradictions within a record: its commit, its rounds, its figures."""
    run = run_of(record)
    for part in (record.environment, run.environment):
        # Only code that others can check out can confirm a figure.
        if part.dirty or not part.commit:
            yield "its checkout had changes" if part.dirty else "it names no commit"
    last = run.rounds[-1].round
    if (end := end_of(run)) is None:
        yield f"it ends at round {last}, and its settings do not ({run.spec.rounds} rounds at most)"
    if end != last:
        yield f"it ends at round {last}, and its settings at round {end}"
    if any(entry.loss is None for entry in run.rounds[1:]):
        yield "it has a round without a loss"
    checks = [entry for entry in run.rounds if entry.valid is not None]
    best = max(checks, key=lambda entry: (entry.valid, -entry.round), default=None)
    if best is not None and best.round != run.best_round:
        yield f"it keeps round {run.best_round}, and validation is best at round {best.round}"
    groups = [run.utility, run.utility_shared, *run.utility_by_client.values(), *run.utility_by_leak.values()]
    groups += [{part.metric: part.estimate} for part in run.rebuilt if not part.reason]
    groups += [row.figures for row in record.quality] if isinstance(record, Forgotten) else []
    for group in groups:
        # Figures over no items have no value to check.
        reached = {name: figure.value for name, figure in group.items() if figure.n}
        if strange := [name for name, value in reached.items() if not 0 <= value <= 1]:
            yield f"its {strange[0]} is {reached[strange[0]]:g}"
        for low, high in itertools.pairwise(name for name in _RISING if name in reached):
            if reached[low] > reached[high]:
                yield f"its {low} is {reached[low]:g}, above its {high}"
        if reached.get("mrr", 1.0) < reached.get("hits@1", 0.0):
            yield f"its mrr is {reached['mrr']:g}, below its hits@1"
    for name, figure in run.utility.items():
        clients = [part[name].value for part in run.utility_by_client.values() if name in part and part[name].n]
        if clients and not min(clients) - _ROUNDED <= figure.value <= max(clients) + _ROUNDED:
            yield f"its {name} is {figure.value:.4f}, those of its clients {min(clients):.4f} to {max(clients):.4f}"


def _conflicts(record: Made, seeds: Mapping[int, Made]) -> Iterator[str]:
    """Yield contradictions with earlier records of the same run: other figures of one seed, or one training under two seeds."""
    for seed, other in seeds.items():
        if seed != record.seed:
            losses, theirs = ([entry.loss or 0.0 for entry in run_of(side).rounds[1:]] for side in (record, other))
            # Different seeds cannot give equal losses: one record was copied under another seed.
            same = any(losses) and len(losses) == len(theirs) and np.allclose(losses, theirs, rtol=1e-6, atol=0)
            if same:
                yield f"it has the losses of seed {seed}, round by round"
            continue
        # Other code may give other figures; the same code may not.
        same_code = record.environment.commit == other.environment.commit
        if same_code and not np.allclose(_figures(other), _figures(record), rtol=1e-4):
            yield "another record of the same run has other figures"


def _figures(record: Made) -> list[float]:
    if isinstance(record, Forgotten):
        return [figure.value for row in record.quality for figure in row.figures.values()]
    return [record.utility[task_of(record.spec).metric].value]


def data_hash(record: Made) -> str:
    """Return the hash of the data before unlearning."""
    return record.data_hash if isinstance(record, Forgotten) else record.data.hash


def end_of(record: Record) -> int | None:
    """Return the first round at which the settings end a run, by number or by validation; None if none does.

    Args:
        record: a finished run.
    """
    best, bad_checks = None, 0
    for entry in record.rounds:
        if entry.valid is not None:
            better = best is None or entry.valid > best
            best, bad_checks = (entry.valid, 0) if better else (best, bad_checks + 1)
        if entry.round == record.spec.rounds or 0 < record.spec.patience <= bad_checks:
            return entry.round
    return None


def _other_data(record: Made, data: dict[Hashable, Hashable]) -> Iterator[str]:
    """Yield contradictions with the first record of the same data or forget set, which is added to `data`."""
    named = data_of(record.spec)
    run = run_of(record)
    sizes = tuple((client, *sorted(of.items())) for client, of in run.data.clients.items())
    if data.setdefault(("sizes", run.data.hash), sizes) != sizes:
        yield "its clients have other sizes than those of others with the same data"
    hashes: list[tuple[Hashable, str]] = [(named, data_hash(record))]
    if isinstance(record, Forgotten):
        hashes.append(((named, record.asked.forget), record.forget_hash))
    for key, digest in hashes:
        if (first := data.setdefault(key, digest)) != digest:
            yield f"its data have hash {digest[:12]}, those of others {str(first)[:12]}"
