"""The expensive half of a verification: a run's models evaluated and attacked once more, beside what its record says.

for check in recomputed(Path("runs/mine")):
    print(check.what, check.outcome)                     # utility holds, attacks holds
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from fkgsec.attacks.figure import Figure
from fkgsec.attacks.registry import run_attacks
from fkgsec.defenses.transport import make_transport
from fkgsec.errors import FkgsecError
from fkgsec.estimate import Estimate
from fkgsec.experiments.integrity.checks import Check, run_folder_of
from fkgsec.experiments.runs.record import Environment, Record, describe_environment, make_record, read_record
from fkgsec.experiments.runs.run import RECORD_FILE, load_run, read_spec
from fkgsec.experiments.tasks.memory import check_memory
from fkgsec.federation.loop import run_federation

_FIELDS = (
    "data", "utility", "utility_by_client", "utility_by_leak", "utility_shared", "bytes", "rounds", "best_round", "protection",
    "guarantees", "withstands", "metric", "valid", "items", "items_shared",
)  # fmt: skip
_UTILITY = ("utility", "utility_by_client", "utility_by_leak", "utility_shared")
SAME = ("vector_level", "device", "versions")
"""Of an environment what must be equal for figures that are equal to the last bit."""
_LAST_DIGITS = 0.01  # of a share, or one item of few: what rounding may move; what was made up is further away


def recomputed(folder: Path, *, force: bool = False) -> Iterator[Check]:
    """Utility and attacks of the record in a folder, from the checkpoint and the data; trains nothing, unless attacks do.

    Equal to the last bit where CPU, device and versions are those of the record; what differs elsewhere is unverifiable.

    Args:
        force: do not ask whether it fits into memory.

    Raises:
        SpecError: it does not.
    """
    try:
        record = read_record(folder / RECORD_FILE)
        if record.origin is not None and record.origin.agreement:
            yield Check("utility", "unverifiable", f"{folder}: its parties have their data and models, and nobody else")
            return
        spec = read_spec(run_folder_of(folder))
        graph = spec.load_graph()
    except FkgsecError as error:
        yield Check("utility", "broken", str(error))
        return
    if not force:
        check_memory(spec, graph)
    try:
        _, result = load_run(run_folder_of(folder))
        again = make_record(record.spec, result)
    except FkgsecError as error:
        yield Check("utility", "broken", str(error))
        return
    if record.data.hash != again.data.hash:
        yield Check("data", "broken", f"{folder}: {record.data.name} has changed since")
        return
    here = describe_environment(result)
    # Warnings may be worded anew, sizes and hash not.
    plain = [_without_words(one) for one in (record, again)]
    differing = [name for name in _FIELDS if plain[0][name] != plain[1][name]]
    near = all(_are_near(plain[0][name], plain[1][name]) for name in differing if name in _UTILITY)
    yield _compared("utility", folder, differing, record, here, near=near)
    if record.attacked:
        train = functools.partial(run_federation, make_transport=make_transport)
        try:
            figures = run_attacks(result, record.spec.attack_options(), train=train).figures
        except FkgsecError as error:
            yield Check("attacks", "broken", str(error))
            return
        yield _compared("attacks", folder, _differing(record.figures, figures), record, here)


def _are_near(said: Any, found: Any) -> bool:
    """Whether figures, or dicts of such, differ by what rounding on another machine may do."""
    if isinstance(said, Estimate):
        most = max(_LAST_DIGITS, 1 / max(1, found.n))
        ends = zip((said.value, said.low, said.high), (found.value, found.low, found.high), strict=True)
        return said.n == found.n and all(abs(one - other) <= most for one, other in ends)
    return said.keys() == found.keys() and all(_are_near(said[name], found[name]) for name in said)


def _without_words(record: Record) -> dict[str, Any]:
    plain = {name: getattr(record, name) for name in _FIELDS}
    return plain | {"data": (record.data.hash, record.data.clients)}


def _differing(said: Sequence[Figure], found: Sequence[Figure]) -> list[str]:
    if len(said) != len(found):
        return [f"{len(found)} figures, the record has {len(said)}"]
    return [
        f"{one.key} of {one.victim} {other.estimate.value:.6f}, the record says {one.estimate.value:.6f}"
        for one, other in zip(said, found, strict=True)
        if one != other
    ]


def _compared(
    what: str, folder: Path, differing: Sequence[str], record: Record, here: Environment, *, near: bool = True
) -> Check:
    if not differing:
        return Check(what, "holds")
    told = f"{folder}: {len(differing)} differ: {'; '.join(differing[:3])}"
    there = record.environment
    threads = f" with {there.threads} threads, here {torch.get_num_threads()}" if here.threads != there.threads else ""
    if near and (other := [name for name in SAME if getattr(there, name) != getattr(here, name)]):
        named = ", ".join(other).replace("_", " ")
        return Check(what, "unverifiable", f"{told}; made on another machine ({named}), where last digits may differ")
    return Check(what, "broken", told + threads)
