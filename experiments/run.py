"""A run on disk: train (or go on, or reuse), attack, write the folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec
import pandas as pd

from attacks.evaluation import Leakage, attack_federation
from attacks.view import check_attackable
from defenses.exchanges import make_exchange
from defenses.options import KINDS, parse_defense
from experiments.picture import draw_picture
from experiments.record import Record, encode_record, make_record, write_atomically
from experiments.spec import Spec
from experiments.stored import decode_stored
from fkgsec.data.graph import FederatedGraph
from fkgsec.data.split_leaks import split_leak_warning
from fkgsec.errors import RunError, SpecError
from fkgsec.federation import checkpoint
from fkgsec.federation.loop import (
    CHECKPOINT,
    CHECKPOINT_EVERY_S,
    FederationResult,
    Observer,
    run_federation,
    run_identity,
)
from fkgsec.federation.messages import Channel, client_party
from fkgsec.federation.recipes import RECIPES

SPEC_FILE, RECORD_FILE, SCORES_FILE, PICTURE_FILE = "spec.json", "record.json", "scores.parquet", "picture.png"


class Finished(NamedTuple):
    """What a command prints: the record, the per-item scores of the attack, and the folder with all of it."""

    record: Record
    scores: pd.DataFrame
    folder: Path


def default_folder(spec: Spec, graph: FederatedGraph) -> Path:
    """runs/<data>-<algorithm>-<model>-<8 digits of options and data>: the same run finds its own folder again."""
    digest = run_identity(graph, spec.federation_options())
    defense = "".join(f"+{name}" for name in KINDS if getattr(parse_defense(spec.defense), name) is not None)
    return Path("runs") / f"{Path(graph.name).stem}-{spec.algorithm}{defense}-{spec.model}-{digest[:8]}"


def warnings_of(graph: FederatedGraph) -> list[str]:
    """What a user must know before trusting a figure on these data: the reader's warnings and the split leaks, a line each."""
    leak = split_leak_warning(graph)
    return [*graph.warnings, *([leak] if leak else [])]


def check_run(spec: Spec, graph: FederatedGraph, *, attack: bool) -> None:
    """Say before anything is trained or written whether the run makes sense on these data.

    Raises:
        ThreatModelError: the run cannot be attacked. SpecError: the defense does not fit the federation.
    """
    if attack:
        check_attackable(graph, spec.algorithm, spec.colluder)
    parties = [client_party(client.name) for client in graph.clients]
    make_exchange(Channel(), spec.federation_options(), parties, RECIPES[spec.algorithm].shared, "check")


def execute(
    spec: Spec,
    graph: FederatedGraph,
    folder: Path,
    *,
    attack: bool,
    observer: Observer | None = None,
    checkpoint_every_s: float = CHECKPOINT_EVERY_S,
) -> Finished:
    """Train in `folder` (going on where a killed run stopped), attack if asked, and write record, scores and picture.

    Raises:
        RunError: the folder cannot be written, or holds another run.
    """
    options = spec.federation_options()
    check_run(spec, graph, attack=attack)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{folder}: cannot be made ({error.strerror})") from error
    if (folder / CHECKPOINT).exists():
        checkpoint.load(folder / CHECKPOINT, run_identity(graph, options))  # before spec.json is written over
    write_atomically(folder / SPEC_FILE, msgspec.json.format(msgspec.json.encode(spec), indent=2) + b"\n")
    result = run_federation(graph, options, folder, observer, checkpoint_every_s, make_exchange)
    return _report(spec, result, folder, attack=attack)


def reuse(
    folder: Path, changes: Mapping[str, object], out: Path | None, observer: Observer | None = None
) -> tuple[Finished, FederatedGraph]:
    """Attack a finished run again, with other attack options.

    Args:
        folder: the finished run. changes: attack options by name. out: where to write; None writes into `folder`.

    Raises:
        RunError: the folder holds no finished run, or the data have changed since.
    """
    spec, result = load_run(folder, observer)
    spec = msgspec.structs.replace(spec, **changes)
    target = out or folder
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{target}: cannot be made ({error.strerror})") from error
    return _report(spec, result, target, attack=True), result.graph


def load_run(folder: Path, observer: Observer | None = None) -> tuple[Spec, FederationResult]:
    """A finished run, from its checkpoint.

    Raises:
        RunError: the folder holds no finished run, or the data have changed since.
    """
    try:
        spec = decode_stored((folder / SPEC_FILE).read_bytes(), Spec)
    except OSError as error:
        raise RunError(f"{folder}: not a run folder ({SPEC_FILE}: {error.strerror})") from error
    except (msgspec.MsgspecError, SpecError) as error:
        raise RunError(f"{folder / SPEC_FILE}: cannot be read ({error})") from error
    graph, options = spec.load_graph(), spec.federation_options()
    if not (folder / CHECKPOINT).exists():
        raise RunError(f"{folder}: has no {CHECKPOINT}; finish the run first")
    _, progress = checkpoint.load(folder / CHECKPOINT, run_identity(graph, options))
    if not progress.finished:
        raise RunError(
            f"{folder}: stopped after round {len(progress.rounds) - 1}; finish it with the command that began it"
        )
    return spec, run_federation(graph, options, folder, observer, make_exchange=make_exchange)


def _report(spec: Spec, result: FederationResult, folder: Path, *, attack: bool) -> Finished:
    write_atomically(folder / SPEC_FILE, msgspec.json.format(msgspec.json.encode(spec), indent=2) + b"\n")
    (folder / SCORES_FILE).unlink(missing_ok=True)  # those of an earlier attack
    leakage: list[Leakage] = []
    scores = pd.DataFrame()
    if attack:
        leakage, scores = attack_federation(result, spec.attack_options())
        part = folder / (SCORES_FILE + ".part")
        try:
            scores.to_parquet(part, index=False)
            part.replace(folder / SCORES_FILE)
        except OSError as error:
            part.unlink(missing_ok=True)
            raise RunError(f"{folder / SCORES_FILE}: cannot be written ({error.strerror})") from error
    record = make_record(spec, result, leakage)
    write_atomically(folder / RECORD_FILE, encode_record(record))
    write_atomically(folder / PICTURE_FILE, draw_picture(record))
    return Finished(record, scores, folder)
