"""A run on disk: train (or go on, or reuse), attack, write the folder.

runs/mine/record.json, scores.parquet, picture.png       the run as it was first finished
runs/mine/membership-roc.png, membership-risk.csv        where membership was inferred, see
`fkgsec.experiments.reporting.membership` runs/mine/attacks/score-2f1c09a4d7/record.json, ...      a further attack on it,
found again by its options
"""

from __future__ import annotations

import functools
import hashlib
import io
import re
import shutil
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pandas as pd
from pyarrow import ArrowException

from fkgsec.attacks.registry import check_attacks, run_attacks
from fkgsec.attacks.view import check_attackable
from fkgsec.defenses.options import parse_defense
from fkgsec.defenses.transport import make_transport
from fkgsec.errors import RunError, SpecError
from fkgsec.exchange import MakeTransport
from fkgsec.experiments.integrity.origin import Origin, check_checkpoint, check_scores, digest_of
from fkgsec.experiments.reporting import pictures
from fkgsec.experiments.reporting.membership import RISK_FILE, ROC_FILE, candidates_of, risk_table
from fkgsec.experiments.reporting.sheets import as_csv
from fkgsec.experiments.runs.record import Record, encode_record, make_record, read_record, sealed
from fkgsec.experiments.runs.stored import decode_stored, encode_stored
from fkgsec.experiments.runs.writing import locked, refused, write_atomically
from fkgsec.experiments.tasks.memory import check_memory
from fkgsec.experiments.tasks.spec import RunSpec
from fkgsec.experiments.tasks.task import task_of
from fkgsec.experiments.tasks.trainings import TRAININGS, Trainings
from fkgsec.federation import checkpoint
from fkgsec.federation.loop import (
    BEFORE_END,
    CHECKPOINT,
    Observer,
    load_result,
    run_federation,
    run_identities,
    run_identity,
)
from fkgsec.federation.messages import Channel, client_party
from fkgsec.federation.options import CHECKPOINT_EVERY_S
from fkgsec.federation.recipes import RECIPES
from fkgsec.federation.task import MakeTask

SPEC_FILE, RECORD_FILE, SCORES_FILE, PICTURE_FILE = "spec.json", "record.json", "scores.parquet", "picture.png"
ATTACKS = "attacks"


class Finished(NamedTuple):
    """What a command prints: record, per-item scores of the attack, the folder with all of it, and whether that was there."""

    record: Record
    scores: pd.DataFrame
    folder: Path
    reused: bool = False


def default_folder(spec: RunSpec, graph: Any) -> Path:
    """runs/<data>-<algorithm>-<model>-<8 digits of options and data>: the same run finds its own folder again."""
    digest = run_identity(graph, spec.federation_options())
    defense = "".join(f"+{name}" for name in parse_defense(spec.defense).names)
    model = re.sub(r"[^\w-]+", "-", spec.model.partition("(")[0].rpartition(".")[2])  # of a dotted name the class
    return Path("runs") / f"{data_name(graph)}-{spec.algorithm}{defense}-{model}-{digest[:8]}"


def data_name(graph: Any) -> str:
    """The data as the part of a folder's name: of a path the file, of several sets all with a plus between them."""
    return Path(graph.name).stem.replace(",", "+").replace(" ", "")


def warnings_of(spec: RunSpec, graph: Any) -> list[str]:
    """What a user must know before trusting a figure on these data: the reader's warnings and the split leaks, a line each."""
    return task_of(spec).warnings(graph)


def check_run(spec: RunSpec, graph: Any, *, attack: bool) -> None:
    """Say before anything is trained or written whether the run makes sense on these data.

    Raises:
        ThreatModelError: the run cannot be attacked. SpecError: the defense does not fit the federation; an attack is unknown.
    """
    if attack:
        check_attacks(spec.attack)
        check_attackable(graph, spec.algorithm, spec.colluder)
    parties = [client_party(client.name) for client in graph.clients]
    make_transport(Channel(), spec.federation_options(), parties, RECIPES[spec.algorithm].shared, "check")


def execute(
    spec: RunSpec,
    graph: Any,
    folder: Path,
    *,
    attack: bool,
    observer: Observer | None = None,
    checkpoint_every_s: float = CHECKPOINT_EVERY_S,
    overwrite: bool = False,
    exchange: MakeTransport = make_transport,
    at_once: int = 1,
    make_task: MakeTask | None = None,
    whose: Mapping[str, str] | None = None,
) -> Finished:
    """Train in `folder` (going on where a killed run stopped), attack if asked, and write record, scores and picture.

    A finished record of the same run and attack is read back. Another attack on the same run gets a folder of its own below,
    see `attack_folder`.

    Args:
        overwrite: write over what differs: a run of other options or data is trained anew, an attack is made again.
        exchange: how tables cross; tests and experiments give one with an adversary in it.
        at_once: so many such runs must fit into memory; 0: nobody asks whether any does.
        make_task: where clients train, see `run_federation`; None: in this process.
        whose: by option whose value it is, for the record.

    Raises:
        RunError: the folder cannot be written, or holds another run. SpecError: it does not fit into memory.
    """
    options = spec.federation_options()
    check_run(spec, graph, attack=attack)
    if at_once and not (folder / RECORD_FILE).exists():
        check_memory(spec, graph, at_once=at_once)
    _make_folder(folder)
    if not overwrite and (finished := _finished(spec, graph, folder, attack=attack)) is not None:
        return finished  # a folder that is only read may be one that cannot be written
    with locked(folder):
        if overwrite:
            _clear_other_run(folder, run_identities(graph, options))
        elif (finished := _finished(spec, graph, folder, attack=attack)) is not None:
            return finished
        further = not overwrite and (folder / RECORD_FILE).exists()
        if not further:
            if (folder / CHECKPOINT).exists():
                checkpoint.load(folder / CHECKPOINT, run_identities(graph, options))  # before spec.json is written over
            write_atomically(folder / SPEC_FILE, _encode_spec(spec))
        result = run_federation(graph, options, folder, observer, checkpoint_every_s, exchange, make_task=make_task)
        target = attack_folder(folder, spec) if further else folder
        train = functools.partial(
            run_federation, make_transport=make_transport, make_task=make_task, start=folder / BEFORE_END
        )
        fingerprint = _fingerprint(folder, result)
        return _report(
            spec, result, target, attack=attack, fingerprint=fingerprint, train=train, observer=observer, whose=whose
        )  # fmt: skip


def _finished(spec: RunSpec, graph: Any, folder: Path, *, attack: bool) -> Finished | None:
    """The run with this attack where it was finished before. Raises `RunError` for the record of another run."""
    if not (folder / RECORD_FILE).exists():
        return None
    fingerprint = None
    if (folder / CHECKPOINT).exists():
        fingerprint = checkpoint.fingerprint(
            *checkpoint.load(folder / CHECKPOINT, run_identities(graph, spec.federation_options()))
        )
    found = _read_finished(folder)
    if found.record.data.hash != graph.hash or _trained(found.record.spec) != _trained(spec):
        raise refused(folder / RECORD_FILE, "is of a run with other options or data")
    if fingerprint is not None:
        check_checkpoint(folder / RECORD_FILE, found.record.origin, fingerprint)
    if not attack or _is_attack(found.record, spec):
        return found
    return _earlier(attack_folder(folder, spec), spec, graph, fingerprint)


def attack_folder(run: Path, spec: RunSpec) -> Path:
    """Where the record of a further attack goes: attacks/<inferences>-<digest of the options that are not the default's>."""
    options = spec.attack_options()
    plain, asked = type(options)(), msgspec.structs.asdict(options)
    changed = {name: value for name, value in asked.items() if value != getattr(plain, name)}
    digest = hashlib.sha256(msgspec.json.encode(changed, order="sorted")).hexdigest()
    return run / ATTACKS / f"{'-'.join(asked.get('inference', ())) or 'all'}-{digest[:10]}"


def reuse(
    folder: Path,
    changes: Mapping[str, object],
    out: Path | None,
    observer: Observer | None = None,
    *,
    overwrite: bool = False,
) -> tuple[Finished, Any]:
    """Attack a finished run again, with other attack options.

    Args:
        folder: the finished run. changes: attack options by name; without `threat`, named attacks run under their own threat
            models. observer: of federations that the attack trains.
        out: where to write; None: beside the run's own record, in its `attack_folder`. The same attack finds its record there,
            or in the run itself, and is not made again.
        overwrite: make it again, and write over another record in `out`.

    Raises:
        RunError: the folder holds no finished run, the data have changed since, or `out` has another record.
    """
    spec, result = load_run(folder)
    fingerprint = _fingerprint(folder, result)
    if "attack" in changes:  # under its own threat models, not those that the run was attacked under
        changes = {"threat": (), **changes}
    spec = spec.replace(**changes)
    target = out or attack_folder(folder, spec)
    if out is None and (folder / RECORD_FILE).exists() and _is_attack((own := _read_finished(folder)).record, spec):
        if not overwrite:
            check_checkpoint(folder / RECORD_FILE, own.record.origin, fingerprint)
            return own, result.graph
        target = folder
    elif not overwrite and (earlier := _earlier(target, spec, result.graph, fingerprint)) is not None:
        return earlier, result.graph
    if out is not None:
        _make_folder(target)  # before the attack, which takes longer than to find that it cannot be
    with locked(folder if out is None else target):
        train = functools.partial(run_federation, make_transport=make_transport, start=folder / BEFORE_END)
        found = _report(spec, result, target, attack=True, fingerprint=fingerprint, train=train, observer=observer)
        return found, result.graph


def _trained(spec: RunSpec) -> Any:
    return spec.settled().federation_options()


def _is_attack(record: Record, spec: RunSpec) -> bool:
    """Whether a record is of this attack, on whatever run."""
    return record.attacked and record.spec.attack_options() == spec.attack_options()


def _fingerprint(folder: Path, result: Any) -> str:
    """Of the checkpoint that a result was read from."""
    return checkpoint.fingerprint(*checkpoint.load(folder / CHECKPOINT, run_identities(result.graph, result.options)))


def _earlier(folder: Path, spec: RunSpec, graph: Any, fingerprint: str | None) -> Finished | None:
    """The finished attack in a folder, None where there is no record. Raises `RunError` for the record of anything else."""
    if not (folder / RECORD_FILE).exists():
        return None
    found = _read_finished(folder)
    same_run = found.record.data.hash == graph.hash and _trained(found.record.spec) == _trained(spec)
    if not (same_run and _is_attack(found.record, spec)):
        raise refused(folder / RECORD_FILE, "is of another run or attack")
    if fingerprint is not None:
        check_checkpoint(folder / RECORD_FILE, found.record.origin, fingerprint)
    return found


def _read_finished(folder: Path) -> Finished:
    record = read_record(folder / RECORD_FILE)
    scores = read_scores(folder / SCORES_FILE, record)
    return Finished(record, pd.DataFrame() if scores is None else scores, folder, reused=True)


def read_scores(path: Path, record: Record) -> pd.DataFrame | None:
    """The score of each attacked item; None where there is no file. Raises `RunError` for a file that is not the record's."""
    try:
        content = path.read_bytes() if path.exists() else None
        check_scores(path, record.origin, content)
        return None if content is None else pd.read_parquet(io.BytesIO(content))
    except (OSError, ArrowException) as error:
        raise RunError(f"{path}: cannot be read ({' '.join(str(error).split())})") from error


def _clear_other_run(folder: Path, identities: Collection[str]) -> None:
    """Remove what another run left in a folder, attacks on it too; the checkpoint of the same run stays."""
    try:
        if (folder / CHECKPOINT).exists():
            checkpoint.load(folder / CHECKPOINT, identities)
            return
    except RunError:
        _remove(folder / CHECKPOINT, folder / BEFORE_END)
    _remove(*(folder / name for name in (RECORD_FILE, SCORES_FILE, PICTURE_FILE, ROC_FILE, RISK_FILE)))
    for name in (ATTACKS, TRAININGS):
        shutil.rmtree(folder / name, ignore_errors=True)


def _remove(*files: Path) -> None:
    for file in files:
        try:
            file.unlink(missing_ok=True)
        except OSError as error:
            raise RunError(f"{file}: cannot be removed ({error.strerror})") from error


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{folder}: cannot be made ({error.strerror})") from error


def read_spec(folder: Path) -> Any:
    """The spec of a run folder. Raises `RunError` where it is none."""
    try:
        return decode_stored((folder / SPEC_FILE).read_bytes(), RunSpec)
    except OSError as error:
        raise RunError(f"{folder}: not a run folder ({SPEC_FILE}: {error.strerror})") from error
    except (msgspec.MsgspecError, SpecError, UnicodeDecodeError) as error:
        raise RunError(f"{folder / SPEC_FILE}: cannot be read ({error})") from error


def check_fits(folder: Path, *, at_once: int) -> None:
    """Raises `SpecError` where so many runs like the one in a folder need more memory than is free; 0: nobody asks."""
    if at_once:
        spec = read_spec(folder)
        check_memory(spec, spec.load_graph(), at_once=at_once)


def load_run(
    folder: Path, observer: Observer | None = None, exchange: MakeTransport = make_transport
) -> tuple[Any, Any]:
    """A finished run, from its checkpoint: its spec, and the result of its task.

    Raises:
        RunError: the folder holds no finished run, or the data have changed since.
    """
    spec = read_spec(folder)
    graph, options = spec.load_graph(), spec.federation_options()
    if not (folder / CHECKPOINT).exists():
        raise RunError(f"{folder}: has no {CHECKPOINT}; finish the run first")
    result = load_result(folder / CHECKPOINT, graph, options, exchange)
    if observer:
        for entry in result.rounds:
            observer.round_done(entry)
    return spec, result


def _report(
    spec: RunSpec,
    result: Any,
    folder: Path,
    *,
    attack: bool,
    fingerprint: str,
    train: Callable[..., Any],
    observer: Observer | None,
    whose: Mapping[str, str] | None = None,
) -> Finished:
    """Attack, and write what was found; the record comes last, so that what has one is whole."""
    seconds = sum(entry.seconds for entry in result.rounds)
    trainings = Trainings(train, folder / TRAININGS, observer, count=spec.attack_options().shadows, seconds=seconds)
    began = time.perf_counter()
    figures, scores = run_attacks(result, spec.attack_options(), train=trainings) if attack else ([], pd.DataFrame())
    attack_s = time.perf_counter() - began if attack else None
    content = io.BytesIO()
    if not scores.columns.empty:
        scores.to_parquet(content, index=False)
    of_scores = digest_of(content.getvalue()) if content.getvalue() else ""
    record = make_record(spec, result, figures, whose=whose, attack_s=attack_s)
    candidates = candidates_of(scores)
    beside = {PICTURE_FILE: pictures.draw_picture(record)}
    if len(candidates):
        beside |= {
            ROC_FILE: pictures.saved(pictures.roc_figure(candidates)),
            RISK_FILE: as_csv(risk_table(candidates)).encode(),
        }
    origin = Origin(fingerprint, of_scores, files={name: digest_of(written) for name, written in beside.items()})
    record = sealed(msgspec.structs.replace(record, origin=origin))
    _make_folder(folder)
    _remove(*(folder / name for name in (RECORD_FILE, SCORES_FILE, ROC_FILE, RISK_FILE)))  # those of an earlier attack
    write_atomically(folder / SPEC_FILE, _encode_spec(spec))
    if of_scores:
        write_atomically(folder / SCORES_FILE, content.getvalue())
    for name, written in beside.items():
        write_atomically(folder / name, written)
    write_atomically(folder / RECORD_FILE, encode_record(record))
    trainings.clear()
    return Finished(record, scores, folder)


def _encode_spec(spec: RunSpec) -> bytes:
    return encode_stored(spec)
