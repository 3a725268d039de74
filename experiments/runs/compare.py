"""The same federation under several defenses, side by side: utility, leakage by threat model, bytes, seconds."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd

from fkgsec.attacks.figure import Figure
from fkgsec.attacks.frames import COLUMNS, HEADS, figures_to_frame, summary_rows
from fkgsec.attacks.view import ALL
from fkgsec.defenses.transport import make_transport
from fkgsec.errors import RunError, SpecError
from fkgsec.exchange import MakeTransport
from fkgsec.experiments.cli.progress import Observe
from fkgsec.experiments.reporting import pictures
from fkgsec.experiments.reporting.matrix import has_matrix, matrix
from fkgsec.experiments.runs.record import Record, read_if_of
from fkgsec.experiments.runs.recovery import Unlearning, attacked_after_unlearning
from fkgsec.experiments.runs.run import RECORD_FILE, check_run, data_name, execute
from fkgsec.experiments.runs.stored import encode_stored
from fkgsec.experiments.runs.writing import refused, write_atomically
from fkgsec.experiments.tasks.memory import check_memory
from fkgsec.experiments.tasks.spec import RunSpec
from fkgsec.experiments.tasks.task import task_named, task_of
from fkgsec.federation.loop import run_identity
from fkgsec.federation.recipes import RECIPES, algorithms_of
from fkgsec.frames import block

SCHEMA = "fkgsec/comparison/1"
COMPARISON_FILE, PICTURE_FILE, MATRIX_FILE = "comparison.json", "comparison.png", "matrix.png"


class Case(msgspec.Struct, frozen=True):
    """One configuration: how the user called it, its record, and what attacks find when clients then unlearn."""

    name: str
    record: Record
    unlearned: list[Figure] = []


class Comparison(msgspec.Struct, frozen=True):
    """All of them; the first is what the others are compared with. `unlearning` is of what was unlearnt, empty if nothing was."""

    schema: str
    cases: list[Case]
    unlearning: str = ""

    def to_frame(self) -> pd.DataFrame:
        """A row for each figure of each case: columns `case`, `unlearned` (found after clients unlearnt), and a record's."""
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
                (case.name, "utility", name, None, None, ALL, one, None, None)
                for name, one in case.record.utility.items()
            ]
            rows += [(case.name, *row) for row in summary_rows(case.record.figures)]
        return block("Comparison", [f"{len(self.cases)} cases"], heads=("case", *HEADS), rows=rows)


def read_comparison(path: Path) -> Comparison | None:
    """The comparison in a file; None when the file is something else. Raises `RunError` when it cannot be read."""
    return read_if_of(path, SCHEMA, Comparison)


def case_spec(spec: RunSpec, name: str) -> RunSpec:
    """The spec of a case: "none", an algorithm, a defense, or algorithm/defense.

    Raises `SpecError` for a name that is none of these.
    """
    known, (algorithm, slash, defense) = algorithms_of(spec.task), name.strip().partition("/")
    if not slash and not algorithm:
        raise SpecError("case: an empty name; write none for no defense")
    if algorithm in RECIPES and algorithm not in known:
        raise SpecError(
            f"case: {algorithm} {task_named(RECIPES[algorithm].task).does}; {spec.algorithm} {task_of(spec).does}"
        )
    if not slash:
        algorithm, defense = (name, "") if name in known else (spec.algorithm, "" if name == "none" else name)
    if algorithm not in known:
        raise SpecError(f"case: {algorithm!r} is no algorithm; allowed: {', '.join(known)}")
    return spec.replace(algorithm=algorithm, defense=defense)


def base_algorithm(cases: Sequence[str]) -> str | None:
    """The default algorithm of the task that the algorithms among the cases are of; None where none of them is one.

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
    """Train and attack every case in a folder of its own; finished ones are read back, a killed one goes on.

    Args:
        observe: gives each case its observer. unlearning: what every case is to forget afterwards.
        overwrite: write over a finished comparison of other cases or options; what is trained already is only attacked anew.
        exchange: how tables cross; tests and experiments give one with an adversary in it. at_once, whose: see `execute`.

    Raises:
        RunError: the folder has a finished comparison of something else.
        SpecError, ThreatModelError: a case that is named twice or makes no sense, before anything is trained.
    """
    if spec.defense:
        raise SpecError("defense does not apply to a comparison, whose cases name defenses; leave it out")
    specs: dict[str, RunSpec] = {}
    for name in cases:
        made = case_spec(spec, name)
        same = [other for other, known in specs.items() if known == made]
        if same or name in specs:
            raise SpecError(f"case: {name!r} is the same run as {(same or [name])[0]!r}; name each once")
        check_run(made, graph, attack=True)
        if at_once and not (folder / folder_name(name) / RECORD_FILE).exists():
            check_memory(made, graph)
        specs[name] = made
    asked = unlearning.digest if unlearning else ""
    if (folder / COMPARISON_FILE).exists() and not overwrite:
        found = _finished(folder / COMPARISON_FILE, specs, graph)
        if found.unlearning == asked:
            return found
        raise refused(folder / COMPARISON_FILE, "unlearnt something else, or nothing")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{folder}: cannot be made ({error.strerror})") from error
    done = []
    for name, one in specs.items():
        with observe(one, name) as observer:
            finished = execute(
                one, graph, folder / folder_name(name), attack=True, observer=observer, overwrite=overwrite,
                exchange=exchange, at_once=at_once, whose=whose,
            )  # fmt: skip
            run = folder / folder_name(name)
            updates = attacked_after_unlearning(run, one, unlearning, exchange, observer) if unlearning else []
        done.append(Case(name, finished.record, updates))
    comparison = Comparison(SCHEMA, done, asked)
    content = encode_stored(comparison)
    records = {case.name: case.record for case in done}
    write_atomically(folder / PICTURE_FILE, pictures.draw_comparison(records))
    if has_matrix(records):
        about = (
            f"{graph.name} · {spec.model} · {len(graph.clients)} clients · what each adversary gets, by configuration"
        )
        write_atomically(folder / MATRIX_FILE, pictures.saved(pictures.matrix_figure(matrix(records), about)))
    write_atomically(folder / COMPARISON_FILE, content)
    return comparison


def default_folder(spec: RunSpec, graph: Any) -> Path:
    """runs/compare-<data>-<8 digits of options and data>: the same comparison finds its own folder again."""
    digest = hashlib.sha256(
        msgspec.json.encode([run_identity(graph, spec.federation_options()), spec.attack_options()])
    )
    return Path("runs") / f"compare-{data_name(graph)}-{digest.hexdigest()[:8]}"


def _finished(path: Path, specs: Mapping[str, RunSpec], graph: Any) -> Comparison:
    """The comparison in a file. Raises `RunError` when it is not of these cases, options and data."""
    found = read_comparison(path)
    cases = {} if found is None else {case.name: case.record for case in found.cases}
    same = {name: record.spec.settled() for name, record in cases.items()} == {
        name: spec.settled() for name, spec in specs.items()
    }
    if found is None or not same or any(record.data.hash != graph.hash for record in cases.values()):
        raise refused(path, f"compares other cases, options or data ({', '.join(cases) or 'none'})")
    return found


def folder_name(case: str) -> str:
    """The case as a folder's name.

    >>> folder_name("fedr/psu,secagg"), folder_name("dp:clip=0.5"), folder_name("fede-svd+")
    ('fedr-psu-secagg', 'dp-clip-0.5', 'fede-svd+')
    """
    return re.sub(r"[^\w.+]+", "-", case).strip("-")
