"""Runs on disk: train (or resume, or reuse), attack, write the folder.

runs/mine/record.json, scores.parquet, picture.png    the run as it was first finished
runs/mine/membership-roc.png, membership-risk.csv     if membership was inferred
runs/mine/attacks/score-2f1c09a4d7/record.json        a later attack on it, identified by its options
"""

from __future__ import annotations

import functools
import hashlib
import io
import re
import shutil
import time
from collections.abc import Callable, Mapping
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
from fkgsec.experiments.runs.record import Record, make_record, read_record, sealed
from fkgsec.experiments.runs.stored import decode_stored, encode_stored
from fkgsec.experiments.runs.writing import locked, make_folder, refused, write_atomically
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
    run_identity,
)
from fkgsec.federation.messages import Channel, client_party
from fkgsec.federation.options import CHECKPOINT_EVERY_S
from fkgsec.federation.recipes import RECIPES
from fkgsec.federation.task import MakeTask

SPEC_FILE, RECORD_FILE, SCORES_FILE, PICTURE_FILE = "spec.json", "record.json", "scores.parquet", "picture.png"
ATTACKS = "attacks"


class Finished(NamedTuple):
    """A finished run: record, per-item scores of its attacks, folder, and `reused` if it existed before."""

    record: Record
    scores: pd.DataFrame
    folder: Path
    reused: bool = False


def default_folder(spec: RunSpec, graph: Any) -> Path:
    """Return the default folder of a run: runs/<data>-<algorithm>-<model>-<8 digits of options and data>."""
    digest = run_identity(graph, spec.federation_options())
    defense = "".join(f"+{name}" for name in parse_defense(spec.defense).names)
    # The class of a dotted name.
    model = re.sub(r"[^\w-]+", "-", spec.model.partition("(")[0].rpartition(".")[2])
    return Path("runs") / f"{data_name(graph)}-{spec.algorithm}{defense}-{model}-{digest[:8]}"


def data_name(graph: Any) -> str:
    """Convert the data's name into a part of a folder's name: a path's file, or several sets joined by plus."""
    return Path(graph.name).stem.replace(",", "+").replace(" ", "")


def warnings_of(spec: RunSpec, graph: Any) -> list[str]:
    """Return warnings about figures on these data, one per line: the loader's warnings and split leaks."""
    return task_of(spec).warnings(graph)


def check_run(spec: RunSpec, graph: Any, *, attack: bool) -> None:
    """Check before training that the run makes sense on these data.

    Args:
        spec: the run.
        graph: the clients' data.
        attack: whether the run will be attacked.

    Raises:
        ThreatModelError: the run cannot be attacked.
        SpecError: the defense does not fit the federation, or an attack is unknown.
    """
    if attack:
        check_attacks(spec.attack)
        check_attackable(graph, spec.algorithm, spec.colluder)
    parties = [client_party(client.name) for client in graph.clients]
    # Building a transport checks the defense; nothing is sent.
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
    """Train in `folder` (resuming an interrupted run), attack if `attack`, and write record, scores and picture.

    A finished record of the same run and attack is read back. A different attack on the same run gets its `attack_folder`.

    Args:
        spec: the run and its attack.
        graph: the clients' data.
        folder: the run's folder.
        attack: whether to attack the run.
        observer: progress of the training and of federations that attacks train.
        checkpoint_every_s: seconds between checkpoints.
        overwrite: replace a run of other options or data, and repeat an attack.
        exchange: makes the transport; experiments pass one with an adversary in it.
        at_once: number of such runs that must fit into memory; 0 skips the check.
        make_task: makes the task, see `run_federation`; None trains the clients in this process.
        whose: source of each option, for the record.

    Raises:
        RunError: the folder cannot be written, or contains another run.
        SpecError: the run does not fit into memory.
    """
    options = spec.federation_options()
    check_run(spec, graph, attack=attack)
    if at_once and not (folder / RECORD_FILE).exists():
        check_memory(spec, graph, at_once=at_once)
    make_folder(folder)
    if not overwrite and (finished := _finished(spec, graph, folder, attack=attack)) is not None:
        # Without a lock: the folder may be read-only.
        return finished
    with locked(folder):
        if overwrite:
            _clear_other_run(folder, run_identity(graph, options))
        # Another process may have finished the run while this one waited for the lock.
        elif (finished := _finished(spec, graph, folder, attack=attack)) is not None:
            return finished
        further = not overwrite and (folder / RECORD_FILE).exists()
        if not further:
            if (folder / CHECKPOINT).exists():
                # Refuse the checkpoint of another run before overwriting its spec.json.
                checkpoint.load(folder / CHECKPOINT, run_identity(graph, options))
            write_atomically(folder / SPEC_FILE, encode_stored(spec))
        result = run_federation(graph, options, folder, observer, checkpoint_every_s, exchange, make_task=make_task)
        target = attack_folder(folder, spec) if further else folder
        # Attacks train federations under the run's defense, with an honest transport.
        train = functools.partial(
            run_federation, make_transport=make_transport, make_task=make_task, start=folder / BEFORE_END
        )
        fingerprint = _fingerprint(folder, graph, options)
        return _report(
            spec, result, target, attack=attack, fingerprint=fingerprint, train=train, observer=observer, whose=whose
        )  # fmt: skip


def _finished(spec: RunSpec, graph: Any, folder: Path, *, attack: bool) -> Finished | None:
    """Read the run with this attack if it is finished. Raises `RunError` for the record of another run."""
    if not (folder / RECORD_FILE).exists():
        return None
    # Compare with the checkpoint if it is there; a copied record may come without it.
    fingerprint = None
    if (folder / CHECKPOINT).exists():
        fingerprint = _fingerprint(folder, graph, spec.federation_options())
    finished = _read_finished(folder)
    if not _is_run(finished.record, spec, graph):
        raise refused(folder / RECORD_FILE, "is of a run with other options or data")
    if fingerprint is not None:
        check_checkpoint(folder / RECORD_FILE, finished.record.origin, fingerprint)
    if not attack or _is_attack(finished.record, spec):
        return finished
    return _earlier(attack_folder(folder, spec), spec, graph, fingerprint)


def attack_folder(run: Path, spec: RunSpec) -> Path:
    """Return the folder of a later attack: attacks/<inferences>-<digest of the options that differ from defaults>.

    Args:
        run: the run's folder.
        spec: the run with the options of the attack.
    """
    options = spec.attack_options()
    defaults, values = type(options)(), msgspec.structs.asdict(options)
    # Without defaults, so that a new option does not rename the folders of earlier attacks.
    changed = {name: value for name, value in values.items() if value != getattr(defaults, name)}
    digest = hashlib.sha256(msgspec.json.encode(changed, order="sorted")).hexdigest()
    return run / ATTACKS / f"{'-'.join(values.get('inference', ())) or 'all'}-{digest[:10]}"


def reuse(
    folder: Path,
    changes: Mapping[str, object],
    out: Path | None,
    observer: Observer | None = None,
    *,
    overwrite: bool = False,
) -> tuple[Finished, Any]:
    """Attack a finished run again with other options. An earlier attack with the same options is read back.

    Args:
        folder: the finished run.
        changes: options of the attack by name. Without `threat`, named attacks run under their own threat models.
        out: folder to write; None for the run's `attack_folder`.
        observer: progress of federations that the attack trains.
        overwrite: repeat the attack, and replace another record in `out`.

    Returns:
        The finished attack, and the clients' data.

    Raises:
        RunError: the folder has no finished run, the data have changed since, or `out` has another record.
    """
    spec, result = load_run(folder)
    fingerprint = _fingerprint(folder, result.graph, result.options)
    # Use its own threat models, not those of the earlier attack.
    if "attack" in changes:
        changes = {"threat": (), **changes}
    spec = spec.replace(**changes)
    target = out or attack_folder(folder, spec)
    if (
        out is None
        and (folder / RECORD_FILE).exists()
        and _is_attack((finished := _read_finished(folder)).record, spec)
    ):
        if not overwrite:
            check_checkpoint(folder / RECORD_FILE, finished.record.origin, fingerprint)
            return finished, result.graph
        target = folder
    elif not overwrite and (earlier := _earlier(target, spec, result.graph, fingerprint)) is not None:
        return earlier, result.graph
    # An explicit folder may be on another, possibly read-only, disk.
    if out is not None:
        # Fail before the attack, which may take hours.
        make_folder(target)
    # The folder of the run may be read-only if the attack is written elsewhere.
    with locked(folder if out is None else target):
        train = functools.partial(run_federation, make_transport=make_transport, start=folder / BEFORE_END)
        finished = _report(spec, result, target, attack=True, fingerprint=fingerprint, train=train, observer=observer)
        return finished, result.graph


def _is_run(record: Record, spec: RunSpec, graph: Any) -> bool:
    same = record.spec.settled().federation_options() == spec.settled().federation_options()
    return same and record.data.hash == graph.hash


def _is_attack(record: Record, spec: RunSpec) -> bool:
    """Return True if a record has this attack, on any run."""
    return record.attacked and record.spec.attack_options() == spec.attack_options()


def _fingerprint(folder: Path, graph: Any, options: Any) -> str:
    """Return the fingerprint of a run's checkpoint."""
    return checkpoint.fingerprint(*checkpoint.load(folder / CHECKPOINT, run_identity(graph, options)))


def _earlier(folder: Path, spec: RunSpec, graph: Any, fingerprint: str | None) -> Finished | None:
    """Read the finished attack in a folder; None without a record. Raises `RunError` for a record of anything else."""
    if not (folder / RECORD_FILE).exists():
        return None
    finished = _read_finished(folder)
    if not (_is_run(finished.record, spec, graph) and _is_attack(finished.record, spec)):
        raise refused(folder / RECORD_FILE, "is of another run or attack")
    if fingerprint is not None:
        check_checkpoint(folder / RECORD_FILE, finished.record.origin, fingerprint)
    return finished


def _read_finished(folder: Path) -> Finished:
    record = read_record(folder / RECORD_FILE)
    scores = read_scores(folder / SCORES_FILE, record)
    return Finished(record, pd.DataFrame() if scores is None else scores, folder, reused=True)


def read_scores(path: Path, record: Record) -> pd.DataFrame | None:
    """Read the score of each attacked item.

    Args:
        path: file of scores.
        record: record of the attack, with the digest of the file.

    Returns:
        None if neither the file nor the record has scores.

    Raises:
        RunError: the file cannot be read, or does not belong to the record.
    """
    try:
        content = path.read_bytes() if path.exists() else None
        check_scores(path, record.origin, content)
        return None if content is None else pd.read_parquet(io.BytesIO(content))
    except (OSError, ArrowException) as error:
        raise RunError(f"{path}: cannot be read ({' '.join(str(error).split())})") from error


def _clear_other_run(folder: Path, identity: str) -> None:
    """Remove another run and its attacks from a folder; keep the checkpoint of the same run."""
    try:
        if (folder / CHECKPOINT).exists():
            checkpoint.load(folder / CHECKPOINT, identity)
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


def read_spec(folder: Path) -> Any:
    """Read the spec of a run folder. Raises `RunError` for other folders."""
    try:
        return decode_stored((folder / SPEC_FILE).read_bytes(), RunSpec)
    except OSError as error:
        raise RunError(f"{folder}: not a run folder ({SPEC_FILE}: {error.strerror})") from error
    except (msgspec.MsgspecError, SpecError, UnicodeDecodeError) as error:
        raise RunError(f"{folder / SPEC_FILE}: cannot be read ({error})") from error


def check_fits(folder: Path, *, at_once: int) -> None:
    """Check that runs like the one in a folder fit into memory.

    Args:
        folder: folder of a run.
        at_once: number of runs at the same time; 0 skips the check.

    Raises:
        SpecError: they do not fit.
    """
    if at_once:
        spec = read_spec(folder)
        check_memory(spec, spec.load_graph(), at_once=at_once)


def load_run(
    folder: Path, observer: Observer | None = None, exchange: MakeTransport = make_transport
) -> tuple[Any, Any]:
    """Load a finished run from its checkpoint.

    Args:
        folder: the run's folder.
        observer: receives the rounds of the run.
        exchange: makes the transport, as in training.

    Returns:
        The spec, and the task's result.

    Raises:
        RunError: the folder has no finished run, the data have changed since, or the checkpoint is not that of the record.
    """
    spec = read_spec(folder)
    graph, options = spec.load_graph(), spec.federation_options()
    if not (folder / CHECKPOINT).exists():
        raise RunError(f"{folder}: has no {CHECKPOINT}; finish the run first")
    record = folder / RECORD_FILE
    origin = read_record(record).origin if record.exists() else None
    result = load_result(
        folder / CHECKPOINT, graph, options, exchange,
        check=lambda tensors, progress: check_checkpoint(record, origin, checkpoint.fingerprint(tensors, progress)),
    )  # fmt: skip
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
    """Attack and write all files; the record comes last, so that a folder with a record is complete."""
    seconds = sum(entry.seconds for entry in result.rounds)
    # Federations that the attack trains resume after an interruption, like the run itself.
    trainings = Trainings(train, folder / TRAININGS, observer, count=spec.attack_options().shadows, seconds=seconds)
    # The time of attacks feeds later estimates (`papers.estimates`).
    began = time.perf_counter()
    figures, scores = run_attacks(result, spec.attack_options(), train=trainings) if attack else ([], pd.DataFrame())
    attack_s = time.perf_counter() - began if attack else None
    content = io.BytesIO()
    if not scores.columns.empty:
        scores.to_parquet(content, index=False)
    scores_digest = digest_of(content.getvalue()) if content.getvalue() else ""
    record = make_record(spec, result, figures, whose=whose, attack_s=attack_s)
    candidates = candidates_of(scores)
    files = {PICTURE_FILE: pictures.draw_picture(record)}
    if len(candidates):
        files[ROC_FILE] = pictures.saved(pictures.roc_figure(candidates))
        files[RISK_FILE] = as_csv(risk_table(candidates)).encode()
    # The record holds digests of all other files, and its own digest is computed last.
    origin = Origin(fingerprint, scores_digest, files={name: digest_of(written) for name, written in files.items()})
    record = sealed(msgspec.structs.replace(record, origin=origin))
    make_folder(folder)
    # Files of an earlier attack must not stay next to the new record.
    _remove(*(folder / name for name in (RECORD_FILE, SCORES_FILE, ROC_FILE, RISK_FILE)))
    if scores_digest:
        files[SCORES_FILE] = content.getvalue()
    for name, written in ({SPEC_FILE: encode_stored(spec)} | files | {RECORD_FILE: encode_stored(record)}).items():
        write_atomically(folder / name, written)
    trainings.clear()
    return Finished(record, scores, folder)
