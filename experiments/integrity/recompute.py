"""Evaluate and attack a run's models again, and compare with its record: the expensive half of a verification.

for check in recomputed(Path("runs/mine")):
    print(check.what, check.outcome)                     # utility holds, attacks holds
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch

from fkgsec.attacks.registry import run_attacks
from fkgsec.defenses.transport import make_transport
from fkgsec.errors import FkgsecError
from fkgsec.estimate import Estimate
from fkgsec.experiments.integrity.checks import Check, run_folder_of
from fkgsec.experiments.runs.record import Environment, Record, environment_of, make_record, read_record
from fkgsec.experiments.runs.run import RECORD_FILE, load_run, read_spec
from fkgsec.experiments.tasks.memory import check_memory
from fkgsec.federation.loop import run_federation

_FIELDS = (
    "utility", "utility_by_client", "utility_by_leak", "utility_shared", "bytes", "rounds", "best_round", "protection",
    "guarantees", "withstands", "metric", "valid", "items", "items_shared",
)  # fmt: skip
_UTILITY = ("utility", "utility_by_client", "utility_by_leak", "utility_shared")
# Figures agree to the last bit only if these fields of the environments are equal.
SAME = ("vector_level", "device", "versions")
# Rounding may change a share by this much, or by one of few items. Invented figures are further away.
_LAST_DIGITS = 0.01


def recomputed(folder: Path, *, force: bool = False) -> Iterator[Check]:
    """Compute utility and attacks of a folder's record again from the checkpoint and the data. Trains only if attacks do.

    Figures agree to the last bit if CPU, device and versions are the record's; other differences are unverifiable.

    Args:
        folder: folder of a run, or of a later attack on it.
        force: skip the check that it fits into memory.

    Raises:
        SpecError: it does not fit into memory.
    """
    what = "utility"
    try:
        record = read_record(folder / RECORD_FILE)
        if record.origin is not None and record.origin.agreement:
            yield Check(what, "unverifiable", f"{folder}: only its parties have their data and models")
            return
        spec = read_spec(run_folder_of(folder))
        graph = spec.load_graph()
    except FkgsecError as error:
        yield Check(what, "broken", str(error))
        return
    if not force:
        check_memory(spec, graph)
    try:
        _, result = load_run(run_folder_of(folder))
        again = make_record(record.spec, result)
        if record.data.hash != again.data.hash:
            yield Check("data", "broken", f"{folder}: {record.data.name} has changed since")
            return
        # A new version may change the wording of warnings, but not sizes and hash.
        differing = [name for name in _FIELDS if getattr(record, name) != getattr(again, name)]
        differing += ["data"] if record.data.clients != again.data.clients else []
        near = all(_are_near(getattr(record, name), getattr(again, name)) for name in differing if name in _UTILITY)
        here = environment_of(result.options)
        yield _compared(what, folder, differing, record, here, near=near)
        if record.attacked:
            what = "attacks"
            train = functools.partial(run_federation, make_transport=make_transport)
            figures = run_attacks(result, record.spec.attack_options(), train=train).figures
            differing = [
                f"{figure.key} of {figure.victim} {other.estimate.value:.6f}, the record has {figure.estimate.value:.6f}"
                for figure, other in zip(record.figures, figures, strict=False)
                # Older records have no outcomes by item, which are then left out of the comparison.
                if figure != (other if figure.outcomes else msgspec.structs.replace(other, outcomes=None))
            ]
            if len(record.figures) != len(figures):
                differing = [f"{len(figures)} figures, the record has {len(record.figures)}"]
            yield _compared(what, folder, differing, record, here)
    except FkgsecError as error:
        yield Check(what, "broken", str(error))


def _are_near(stated: Any, computed: Any) -> bool:
    """Return True if figures, or dicts of figures, differ by no more than rounding on another machine."""
    if isinstance(stated, Estimate):
        most = max(_LAST_DIGITS, 1 / max(1, computed.n))
        ends = zip((stated.value, stated.low, stated.high), (computed.value, computed.low, computed.high), strict=True)
        return stated.n == computed.n and all(abs(end - other) <= most for end, other in ends)
    return stated.keys() == computed.keys() and all(_are_near(stated[name], computed[name]) for name in stated)


def _compared(
    what: str, folder: Path, differing: Sequence[str], record: Record, here: Environment, *, near: bool = True
) -> Check:
    if not differing:
        return Check(what, "holds")
    words = f"{folder}: {len(differing)} differ: {'; '.join(differing[:3])}"
    there = record.environment
    # On another CPU or version, small differences are expected and prove nothing.
    if near and (other := [name for name in SAME if getattr(there, name) != getattr(here, name)]):
        machine = ", ".join(other).replace("_", " ")
        return Check(
            what, "unverifiable", f"{words}; made on another machine ({machine}), where last digits may differ"
        )
    if here.threads != there.threads:
        words += f" with {there.threads} threads, here {torch.get_num_threads()}"
    return Check(what, "broken", words)
