"""Train a cell of a paper's table again from its committed record, and compare.

fkgsec experiment reproduce zhang2022_fedr_table2 'TransE Local DDB14 C20'
fkgsec experiment reproduce zhang2022_fedr_table2 'TransE FedE DDB14 C5' --rounds 5

If CPU type, device and package versions are the record's, every round must agree to the last bit. Other machines round sums of
float32 in another order; their figures must lie in the record's 95 % intervals.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from pathlib import Path

import msgspec
import numba
import torch

from fkgsec.defenses.transport import make_transport
from fkgsec.errors import RunError
from fkgsec.estimate import Estimate
from fkgsec.experiments.cli.console import make_console
from fkgsec.experiments.cli.progress import observe_on
from fkgsec.experiments.integrity.recompute import SAME
from fkgsec.experiments.papers.results import run_key
from fkgsec.experiments.papers.spec import Cell
from fkgsec.experiments.runs.record import Record, environment_of, is_record, read_record
from fkgsec.experiments.runs.run import RECORD_FILE, execute
from fkgsec.experiments.runs.writing import refused
from fkgsec.experiments.tasks.memory import check_memory
from fkgsec.federation.checkpoint import RoundEntry
from fkgsec.federation.loop import Observer, run_federation

DIFFERS = 1
# On other hardware: relative tolerance of a round's loss, absolute tolerance of its validation.
NEAR = {"loss": 0.01, "valid": 0.01}
COMPARED = ("loss", "valid", "bytes_up", "bytes_down")


class _Enough(Exception):
    """Stops a training after its first rounds."""


class _FirstRounds(Observer):
    """Observer that stores rounds and stops the training after some of them."""

    def __init__(self, count: int) -> None:
        self.rounds: list[RoundEntry] = []
        self._count = count

    def round_done(self, entry: RoundEntry) -> None:
        """Store the round, and stop the training if it is the last one."""
        self.rounds.append(entry)
        if entry.round >= self._count:
            raise _Enough


def find_record(cell: Cell, place: Path, seed: int | None = None) -> tuple[Path, Record]:
    """Find the first record of a cell, and its file.

    Args:
        place: a record, or a folder with records at any depth.
        seed: seed of the record; None for the lowest.

    Raises:
        RunError: there is none, or it cannot be read.
    """
    # The full key compares all settings; names alone serve to skip files early.
    keys = {run_key(spec, attack=False) for spec in cell.candidates}
    named = {(spec.algorithm, spec.data) for spec in cell.candidates}
    records: list[tuple[Path, Record]] = []
    for path in sorted(place.rglob("*.json")) if place.is_dir() else [place]:
        if not is_record(path):
            continue
        # Skip most files before decoding them completely, which is slow.
        spec = msgspec.json.decode(path.read_bytes()).get("spec")
        if isinstance(spec, dict) and (spec.get("algorithm"), spec.get("data")) in named:
            record = read_record(path)
            if run_key(record.spec, attack=False) in keys and (record.rebuilt or not cell.attack):
                records += [(path, record)] if seed in (None, record.seed) else []
    if not records:
        wanted = "" if seed is None else f" with seed {seed}"
        raise RunError(f"{place}: has no record of {cell.name}{wanted}; see `fkgsec experiment status {place}`")
    return min(records, key=lambda item: (item[1].seed, str(item[0])))


def again(
    record: Record, *, rounds: int | None = None, out: Path | None = None, force: bool = False, quiet: bool = True
) -> tuple[bool, str]:
    """Train by a record's spec, with its number of threads, and compare.

    Args:
        rounds: stop after this many and compare them; None trains to the end, attacks as the record did, and compares
            everything.
        out: run folder, to resume an interrupted training.
        force: skip the check that it fits into memory.
        quiet: print no progress.

    Returns:
        True if they agree, and the outcome in words.

    Raises:
        RunError: the data differ from the record's, or `out` has a finished run.
    """
    spec = record.spec.replace(device="cpu") if record.environment.device == "cpu" else record.spec
    graph = spec.load_graph()
    if graph.hash != record.data.hash:
        raise RunError(f"data: {graph.name} has hash {graph.hash[:12]}, the record {record.data.hash[:12]}")
    # Fail before the training, which may take hours.
    if not force:
        check_memory(spec, graph)
    # Sums over threads round differently, so use the record's number.
    torch.set_num_threads(record.environment.threads)
    numba.set_num_threads(min(record.environment.threads, numba.config.NUMBA_NUM_THREADS))  # type: ignore[attr-defined]
    here = environment_of(spec.federation_options())
    # These fields decide whether bits can agree at all.
    unlike = [name for name in SAME if getattr(here, name) != getattr(record.environment, name)]
    if rounds is not None:
        first = _FirstRounds(rounds)
        with suppress(_Enough):
            run_federation(graph, spec.federation_options(), observer=first, make_transport=make_transport)
        return compared_rounds(record, first.rounds, unlike)
    if out and (out / RECORD_FILE).exists():
        raise refused(out / RECORD_FILE, "is the record of a finished run")
    observe = observe_on(make_console(stderr=True), enabled=not quiet)
    with tempfile.TemporaryDirectory() if out is None else nullcontext(out) as folder, observe(spec, "") as observer:
        at_once = 0 if force else 1
        run = execute(spec, graph, Path(folder), attack=record.attacked, observer=observer, at_once=at_once)
    return compared(record, run.record, unlike)


def compared(record: Record, repeated: Record, unlike: Sequence[str] = ()) -> tuple[bool, str]:
    """Compare a whole training with a record.

    Args:
        repeated: the record of the repeated training.
        unlike: differences between the machines.

    Returns:
        True if they agree, and the outcome in words.
    """
    agrees, says = compared_rounds(record, repeated.rounds, ())
    # Rounds first: figures of equal rounds should be equal as well.
    ours, theirs = _figures(repeated), _figures(record)
    if agrees and ours == theirs and len(repeated.rounds) == len(record.rounds):
        return True, f"equal to the last bit: {says.partition(': ')[2]}, {len(ours)} figures"
    # Different names of figures mean different code; otherwise compare with the record's intervals.
    outside = ["other figures than the record's"] if ours.keys() != theirs.keys() else [
        f"{name} {ours[name].value:.6f}, the record {figure.value:.6f} [{figure.low:.6f}, {figure.high:.6f}]"
        for name, figure in theirs.items()
        if not figure.low <= ours[name].value <= figure.high
    ]  # fmt: skip
    where = f"on another machine ({_words(unlike)})" if unlike else "on like hardware"
    if unlike and not outside:
        return True, f"{len(theirs)} figures in the record's intervals, {where}"
    differing = outside or [says if not agrees else "last digits of figures"]
    return False, f"differs {where}: {differing[0]}"


def _figures(record: Record) -> dict[str, Estimate]:
    """Return all figures of utility and of attacks by name."""
    figures = dict(record.utility)
    for client, by_name in record.utility_by_client.items():
        figures |= {f"{name} of {client}": figure for name, figure in by_name.items()}
    for number, figure in enumerate(record.figures):
        figures[f"{figure.key} of {figure.victim}, {number}"] = figure.estimate
    return figures


def compared_rounds(record: Record, rounds: Sequence[RoundEntry], unlike: Sequence[str]) -> tuple[bool, str]:
    """Compare the first rounds of a training with those of a record: loss, validation and bytes.

    Args:
        rounds: rounds of the repeated training.
        unlike: differences between the machines.

    Returns:
        True if they agree, and the outcome in words.
    """
    pairs = list(zip(record.rounds, rounds, strict=False))
    words = f"rounds 1 to {len(pairs) - 1}: loss, validation, bytes"
    differing = [
        (entry, other)
        for entry, other in pairs
        if any(getattr(entry, name) != getattr(other, name) for name in COMPARED)
    ]
    if len(pairs) < len(rounds):
        return False, f"differs: the record has {len(record.rounds) - 1} rounds"
    if not differing:
        return True, f"equal to the last bit: {words}"
    # On other hardware, rounding errors grow with the rounds; only large differences count.
    far = [pair for pair in differing if any(_is_far(*pair, name) for name in NEAR)]
    if unlike and not far:
        return True, f"{words} near the record's, on another machine ({_words(unlike)})"
    entry, other = (far or differing)[0]
    name = next(name for name in COMPARED if getattr(other, name) != getattr(entry, name))
    return False, f"differs in round {entry.round}: {name} {getattr(other, name)}, the record {getattr(entry, name)}"


def _is_far(entry: RoundEntry, other: RoundEntry, name: str) -> bool:
    theirs, ours = getattr(entry, name), getattr(other, name)
    if theirs is None or ours is None:
        return theirs != ours
    return abs(theirs - ours) > NEAR[name] * (abs(theirs) if name == "loss" else 1)


def _words(names: Sequence[str]) -> str:
    return ", ".join(names).replace("_", " ")
