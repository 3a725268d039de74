"""Comparison of a federation under several defenses: utility, leakage by threat model, bytes, seconds."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pandas as pd

from fkgsec.attacks.figure import Figure
from fkgsec.attacks.frames import COLUMNS, HEADS, figures_to_frame, summary_rows
from fkgsec.attacks.options import RECONSTRUCTION, UPDATE_RECOVERY
from fkgsec.attacks.registry import ATTACKS, DEFAULT, run_attacks
from fkgsec.attacks.view import ALL
from fkgsec.defenses.transport import make_transport
from fkgsec.errors import SpecError
from fkgsec.exchange import MakeTransport
from fkgsec.experiments.cli.progress import Observe
from fkgsec.experiments.reporting import pictures
from fkgsec.experiments.reporting.matrix import has_matrix, matrix
from fkgsec.experiments.runs.baseline import alone_spec, exchanges
from fkgsec.experiments.runs.record import Record, read_if_of
from fkgsec.experiments.runs.run import RECORD_FILE, check_run, data_name, execute, load_run
from fkgsec.experiments.runs.stored import encode_stored
from fkgsec.experiments.runs.writing import make_folder, refused, write_atomically
from fkgsec.experiments.tasks.memory import check_memory
from fkgsec.experiments.tasks.spec import RunSpec
from fkgsec.experiments.tasks.task import task_named, task_of
from fkgsec.federation.loop import Observer, run_identity
from fkgsec.federation.recipes import RECIPES, algorithms_of
from fkgsec.frames import block
from fkgsec.unlearning.forget_sets import Forget
from fkgsec.unlearning.unlearning import UnlearnOptions, unlearn

SCHEMA = "fkgsec/comparison/1"
COMPARISON_FILE, PICTURE_FILE = "comparison.json", "comparison.png"


UPDATE_AID = (
    "update-recovery: the cosine of the adversary's estimate to the true change of a row in the round (mean over rows; 1: "
    "known), and the estimate's error over the change (0: known, 1: as good as none). base: an adversary that takes the mean "
    "change of those who hold the row. max: the worst that a figure can be."
)


class Case(msgspec.Struct, frozen=True):
    """Configuration with the user's name for it, its record, and the figures of attacks on a later unlearning."""

    name: str
    record: Record
    unlearned: list[Figure] = []


class Comparison(msgspec.Struct, frozen=True):
    """All cases, the first being the baseline.

    Attributes:
        schema: schema of the file.
        unlearning: digest of the unlearning; empty without one.
    """

    schema: str
    cases: list[Case]
    unlearning: str = ""

    def to_frame(self) -> pd.DataFrame:
        """Return a row for each figure.

        Returns:
            Columns `case`, `unlearned` (True for attacks on the unlearning round), and those of a record's frame.
        """
        frames = [
            frame.assign(case=case.name, unlearned=unlearned)
            for case in self.cases
            for frame, unlearned in ((case.record.to_frame(), False), (figures_to_frame(case.unlearned), True))
            if len(frame)
        ]
        return pd.concat(frames, ignore_index=True).reindex(columns=["case", "unlearned", *COLUMNS])

    def _repr_html_(self) -> str:
        rows = []
        for case in self.cases:
            rows += [
                (case.name, "utility", name, None, None, ALL, figure, None, None)
                for name, figure in case.record.utility.items()
            ]
            rows += [(case.name, *row) for row in summary_rows(case.record.figures)]
        return block("Comparison", [f"{len(self.cases)} cases"], heads=("case", *HEADS), rows=rows)


class Unlearning(NamedTuple):
    """Forget set of clients, and the method that removes it after a run."""

    forget: Forget
    options: UnlearnOptions

    @property
    def digest(self) -> str:
        """SHA-256 of both."""
        forget = {name: np.asarray(triples).tolist() for name, triples in self.forget.items()}
        return hashlib.sha256(msgspec.json.encode([forget, self.options], order="sorted")).hexdigest()


def _attack_unlearning(
    run: Path, spec: RunSpec, unlearning: Unlearning, exchange: MakeTransport, observer: Observer
) -> list[Figure]:
    """Unlearn on a finished run and attack that round as `spec` says; nothing is written.

    Reconstruction is left out: a round of unlearning reveals how rows changed. Attacks that train federations are left
    out, too: they would attack the run before it once more.
    """
    _, result = load_run(run, exchange=exchange)
    method = unlearning.options.method
    observer.run_started(f"unlearning by {method}", spec.rounds if method == "retrain" else 1)
    after = unlearn(result, unlearning.forget, unlearning.options, observer=observer, make_transport=exchange)
    options = spec.attack_options()
    # Attack the round of unlearning with what remains; update recovery always applies.
    names = (name for name in options.attack or DEFAULT if name != RECONSTRUCTION and not ATTACKS[name].trains)
    attacks = tuple(names) or (UPDATE_RECOVERY,)
    return run_attacks(after, msgspec.structs.replace(options, attack=attacks)).figures


def read_comparison(path: Path) -> Comparison | None:
    """Read a comparison; None if the file contains something else.

    Raises:
        RunError: the file cannot be read.
    """
    return read_if_of(path, SCHEMA, Comparison)


def case_spec(spec: RunSpec, name: str) -> RunSpec:
    """Return the spec of a case. The case `single` is the clients of `spec` alone, with its optimizer schedule.

    Args:
        spec: options of all cases.
        name: "none", an algorithm, a defense, or algorithm/defense.

    Raises:
        SpecError: any other name, or an algorithm of another task.
    """
    algorithms, (algorithm, slash, defense) = algorithms_of(spec.task), name.strip().partition("/")
    if not slash and not algorithm:
        raise SpecError("case: the name is empty; use none for no defense")
    if algorithm in RECIPES and algorithm not in algorithms:
        raise SpecError(
            f"case: {algorithm} {task_named(RECIPES[algorithm].task).does}; {spec.algorithm} {task_of(spec).does}"
        )
    if not slash:
        algorithm, defense = (name, "") if name in algorithms else (spec.algorithm, "" if name == "none" else name)
    if algorithm not in algorithms:
        raise SpecError(f"case: {algorithm!r} is not an algorithm; allowed: {', '.join(algorithms)}")
    if exchanges(spec) and not defense and algorithm == alone_spec(spec).algorithm:
        return spec.replace(algorithm=algorithm, settings=alone_spec(spec).settings)
    return spec.replace(algorithm=algorithm, defense=defense)


def base_algorithm(cases: Sequence[str]) -> str | None:
    """Return the default algorithm for the task of the first case that names an algorithm; None if no case does.

    >>> base_algorithm(["secagg", "cefgl"]), base_algorithm(["none", "fedr/psu"]), base_algorithm(["none"])
    ('fedavg', 'fede', None)
    """
    named = [algorithm for case in cases if (algorithm := case.partition("/")[0]) in RECIPES]
    return task_named(RECIPES[named[0]].task).spec().algorithm if named else None


def compare(
    spec: RunSpec,
    graph: Any,
    folder: Path,
    cases: Sequence[str],
    *,
    observe: Observe,
    overwrite: bool = False,
    unlearning: Unlearning | None = None,
    exchange: MakeTransport = make_transport,
    at_once: int = 1,
    whose: Mapping[str, str] | None = None,
) -> Comparison:
    """Train and attack every case in its own folder. Finished cases are read back, and an interrupted one continues.

    Args:
        spec: options of all cases, without a defense.
        graph: the clients' data.
        folder: folder of the comparison.
        cases: see `case_spec`.
        observe: gives each case its observer.
        overwrite: replace a finished comparison of other cases or options; finished trainings are only attacked anew.
        unlearning: forget set and method to apply to every finished case.
        exchange: makes the transport; experiments pass one with an adversary in it.
        at_once: see `execute`.
        whose: see `execute`.

    Raises:
        RunError: the folder has a finished comparison of something else.
        SpecError, ThreatModelError: a case is named twice or makes no sense; nothing was trained.
    """
    if spec.defense:
        raise SpecError("defense does not apply to a comparison, whose cases name defenses; leave it out")
    # Check all cases before training the first, which may take hours.
    specs: dict[str, RunSpec] = {}
    for name in cases:
        case = case_spec(spec, name)
        # `fede` and `none` may be the same run; training it twice would waste hours.
        if same := [other for other, earlier in specs.items() if other == name or earlier == case]:
            raise SpecError(f"case: {name!r} is the same run as {same[0]!r}; name each once")
        check_run(case, graph, attack=True)
        if at_once and not (folder / folder_name(name) / RECORD_FILE).exists():
            check_memory(case, graph)
        specs[name] = case
    forgotten = unlearning.digest if unlearning else ""
    if (folder / COMPARISON_FILE).exists() and not overwrite:
        earlier = _finished(folder / COMPARISON_FILE, specs, graph)
        # Cases, options and data agree; the unlearning may still differ.
        if earlier.unlearning == forgotten:
            return earlier
        raise refused(folder / COMPARISON_FILE, "has another unlearning, or none")
    make_folder(folder)
    done = []
    for name, case in specs.items():
        run = folder / folder_name(name)
        with observe(case, name) as observer:
            finished = execute(
                case, graph, run, attack=True, observer=observer, overwrite=overwrite, exchange=exchange,
                at_once=at_once, whose=whose,
            )  # fmt: skip
            updates = _attack_unlearning(run, case, unlearning, exchange, observer) if unlearning else []
        done.append(Case(name, finished.record, updates))
    comparison = Comparison(SCHEMA, done, forgotten)
    records = {case.name: case.record for case in done}
    write_atomically(folder / PICTURE_FILE, pictures.draw_comparison(records))
    if has_matrix(records) or len(records) > pictures.MOST_CASES:
        about = f"{graph.name} · {spec.model} · {len(graph.clients)} clients · leakage by adversary and configuration"
        write_atomically(folder / pictures.MATRIX_FILE, pictures.saved(pictures.matrix_figure(matrix(records), about)))
    # The comparison comes last: its presence means that the folder is complete.
    write_atomically(folder / COMPARISON_FILE, encode_stored(comparison))
    return comparison


def default_folder(spec: RunSpec, graph: Any) -> Path:
    """Return the default folder of a comparison: runs/compare-<data>-<8 digits of its options>."""
    # The same options on the same data find the same folder, so a repeated command resumes.
    identity = [run_identity(graph, spec.federation_options()), spec.attack_options()]
    return Path("runs") / f"compare-{data_name(graph)}-{hashlib.sha256(msgspec.json.encode(identity)).hexdigest()[:8]}"


def _finished(path: Path, specs: Mapping[str, RunSpec], graph: Any) -> Comparison:
    """Read a finished comparison. Raises `RunError` if it has other cases, options or data."""
    comparison = read_comparison(path)
    cases = {} if comparison is None else {case.name: case.record for case in comparison.cases}
    settled = {name: spec.settled() for name, spec in specs.items()}
    same = {name: record.spec.settled() for name, record in cases.items()} == settled
    if comparison is None or not same or any(record.data.hash != graph.hash for record in cases.values()):
        raise refused(path, f"compares other cases, options or data ({', '.join(cases) or 'none'})")
    return comparison


def folder_name(case: str) -> str:
    """Convert a case into a folder's name.

    >>> folder_name("fedr/psu,secagg"), folder_name("dp:clip=0.5"), folder_name("fede-svd+")
    ('fedr-psu-secagg', 'dp-clip-0.5', 'fede-svd+')
    """
    return re.sub(r"[^\w.+]+", "-", case).strip("-")
