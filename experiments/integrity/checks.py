"""Check that a run's folder is as it was written: digests, bytes, rounds, and figures against their scores.

    for check in check_folder(Path("runs/mine")):
        print(check.what, check.outcome, check.why)          # checkpoint holds

Nothing is trained or attacked here; `fkgsec.experiments.integrity.recompute` does that on request. A record without digests or
without its checkpoint cannot be compared. It is unverifiable, which is not a fault.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
import pandas as pd
from torch import Tensor

from fkgsec.attacks.reconstruction.leakage import items_behind
from fkgsec.attacks.view import ALL
from fkgsec.errors import FkgsecError, RunError
from fkgsec.experiments.integrity.origin import check_checkpoint, check_files, seal_of
from fkgsec.experiments.integrity.signing import check_signature
from fkgsec.experiments.reporting.frames import attack_name
from fkgsec.experiments.runs.record import Record, read_record
from fkgsec.experiments.runs.run import (
    ATTACKS,
    PICTURE_FILE,
    RECORD_FILE,
    SCORES_FILE,
    SPEC_FILE,
    read_scores,
    read_spec,
)
from fkgsec.federation import checkpoint, packing
from fkgsec.federation.checkpoint import Progress
from fkgsec.federation.loop import CHECKPOINT
from fkgsec.federation.messages import SparseRows, decode
from fkgsec.federation.options import run_identity

Outcome = Literal["holds", "broken", "unverifiable"]
WITHOUT_DIGESTS = "written by a version without digests"
_ROUNDING = 1e-9
# A missing picture can be drawn again, and contains no figures.
_DRAWN = "picture"


class Check(NamedTuple):
    """Check with its outcome; `why` is empty if it holds."""

    what: str
    outcome: Outcome
    why: str = ""


def run_folder_of(folder: Path) -> Path:
    """Return the folder of a record's checkpoint, which is two folders above that of a later attack.

    Args:
        folder: folder of a run, or of a later attack on it.
    """
    return folder.parent.parent if folder.parent.name == ATTACKS else folder


def check_folder(folder: Path) -> list[Check]:
    """Run every check of a folder's record that needs no training. Damage gives "broken", and raises nothing.

    Args:
        folder: folder of a run, or of a later attack on it.
    """
    path = folder / RECORD_FILE
    try:
        record = read_record(path)
    except FkgsecError as error:
        return [Check("record", "broken", str(error))]
    origin = record.origin
    checks = [check_record_file(path)]

    def _spec() -> None:
        if read_spec(folder).settled() != record.spec.settled():
            raise RunError(f"{folder / SPEC_FILE}: has other options than the record")

    def _scores() -> str | None:
        frame = read_scores(folder / SCORES_FILE, record)
        check_shares(folder / SCORES_FILE, record, frame)
        return f"{folder / SCORES_FILE}: does not exist" if frame is None and record.rebuilt else None

    def _files() -> str | None:
        check_files(folder, origin)
        return None if origin and origin.files else WITHOUT_DIGESTS

    if (folder / SPEC_FILE).exists():
        checks.append(checked("spec", _spec))
    checks += _beside_checkpoint(path, record, run_folder_of(folder) / CHECKPOINT)
    checks.append(checked("scores", _scores))
    # Deployed runs have no pictures.
    if not (origin and origin.agreement):
        checks.append(checked("files", _files))
        names = {PICTURE_FILE, *(origin.files if origin else ())}
        # A deleted picture is reported, but `require_whole` tolerates it.
        missing = [path for name in sorted(names) if not (path := folder / Path(name).name).exists()]
        checks += [Check(_DRAWN, "broken", f"{path}: missing") for path in missing]
    return checks


def check_record_file(path: Path) -> Check:
    """Check a record without its folder, by its digest.

    Args:
        path: file of the record.
    """

    def _record() -> str | None:
        origin = read_record(path).origin
        if origin is not None and origin.record != seal_of(msgspec.json.decode(path.read_bytes())):
            raise RunError(f"{path}: its content has changed since it was written")
        return None if origin else WITHOUT_DIGESTS

    return checked("record", _record)


def signature_check(path: Path, key: Path | None) -> list[Check]:
    """Check that the owner of a public key signed a record; a missing signature is broken.

    Args:
        path: file of the record.
        key: file of the public key; None checks nothing.
    """
    return [checked("signature", lambda: check_signature(path, key))] if key else []


def require_whole(folder: Path) -> None:
    """Raise `RunError` for the first broken file in a run's folder, before its figures are used.

    Args:
        folder: folder of a run.
    """
    for check in check_folder(folder):
        if check.outcome == "broken" and check.what != _DRAWN:
            raise RunError(f"{check.why} (for details use fkgsec verify-run {folder})")


def checked(what: str, check: Callable[[], str | None]) -> Check:
    """Run a check and return its outcome.

    Args:
        what: name of the check.
        check: raises `FkgsecError` if something is broken; returns the reason if it cannot be checked, else None.
    """
    try:
        missing = check()
    except FkgsecError as error:
        return Check(what, "broken", str(error))
    return Check(what, "unverifiable", missing) if missing else Check(what, "holds")


def _beside_checkpoint(path: Path, record: Record, place: Path) -> Iterator[Check]:
    """Check the checkpoint, and the parts of a record that repeat it."""
    loaded: list[tuple[Mapping[str, Tensor], Progress]] = []

    def read() -> str | None:
        """Load it once; loading checks its own digest."""
        if not place.exists():
            return f"{place}: does not exist"
        # Deployed runs are named by the parties' agreement instead of options and data.
        if record.origin is not None and record.origin.agreement:
            identity = record.origin.agreement
        else:
            options = record.spec.federation_options()
            # The record spells out values that the spec may leave open.
            if (place.parent / SPEC_FILE).exists():
                spec = read_spec(place.parent)
                same = spec.settled().federation_options() == record.spec.settled().federation_options()
                options = spec.federation_options() if same else options
            identity = run_identity(record.data, options)
        try:
            loaded.append(checkpoint.load(place, identity))
        except RunError as error:
            # Old records without digests may have checkpoints that this version cannot read.
            if record.origin is None and "another version" in str(error):
                return str(error)
            raise
        check_checkpoint(path, record.origin, checkpoint.fingerprint(*loaded[0]))
        return None if record.origin else WITHOUT_DIGESTS

    yield checked("checkpoint", read)
    if loaded:
        yield checked("rounds", lambda: _check_rounds(path, record, loaded[0][1]))
        yield checked("bytes", lambda: _check_bytes(path, record, *loaded[0]))


def _check_rounds(path: Path, record: Record, progress: Progress) -> None:
    if not progress.finished:
        raise RunError(
            f"{path}: belongs to a finished run, but its checkpoint stopped after round {len(progress.rounds) - 1}"
        )
    if any(getattr(record, name) != getattr(progress, name) for name in ("rounds", "best_round", "metric")):
        pairs = zip(record.rounds, progress.rounds, strict=False)
        differs = next(
            (f"round {entry.round}" for entry, other in pairs if entry != other),
            "their number, the best one or the metric",
        )
        raise RunError(f"{path}: its rounds differ from the checkpoint ({differs})")


def _check_bytes(path: Path, record: Record, tensors: Mapping[str, Tensor], progress: Progress) -> None:
    """Check that bytes are the sums of the transcript's lines, and that stored messages are as long as their lines state."""
    lines, last = progress.entries, len(record.rounds) - 1
    for direction in ("up", "down"):
        # Sum the messages of each round from the transcript.
        counted = [0] * len(record.rounds)
        for line in lines:
            if line.direction == direction and line.round < len(counted):
                counted[line.round] += line.num_bytes
        if counted != getattr(record.bytes, f"{direction}_by_round"):
            raise RunError(f"{path}: bytes {direction} are {sum(counted):,} in the checkpoint's transcript")
    try:
        frames = packing.frames_of(packing.view_below("frame.", tensors))
    except (ValueError, KeyError) as error:  # a checkpoint without a digest may be damaged
        raise RunError(f"{path}: the checkpoint's messages cannot be read ({error})") from error
    for number, messages in frames.items():
        # Every stored message must match one line of the transcript, and no line twice.
        unmatched = Counter(
            (line.sender, line.receiver, line.kind, line.table, line.num_bytes)
            for line in lines
            if line.round == number
        )
        for frame in messages:
            message = decode(frame)
            line = (message.sender, message.receiver, message.label, message.table, len(frame))
            # Stored only to record which rows were sent.
            if isinstance(message, SparseRows) and message.width == 0:
                continue
            if not unmatched[line]:
                raise RunError(
                    f"{path}: round {number} keeps {len(frame):,} bytes of {message.sender} that no line counts"
                )
            unmatched[line] -= 1
        # The checkpoint stores the messages of these rounds; others keep only their lines.
        if number in (0, record.best_round, last) and (lost := sum(unmatched.values())):
            raise RunError(f"{path}: round {number} lacks {lost} of its messages")
    if missing := {0, record.best_round, last} & {line.round for line in lines} - set(frames):
        raise RunError(f"{path}: round {min(missing)} lacks all of its messages")


def check_shares(path: Path, record: Record, scores: pd.DataFrame | None) -> None:
    """Raise `RunError` unless ERR and TRR of every victim are the shares of its items that the scores mark as correct.

    Figures of other attacks are not shares of items; `fkgsec.experiments.integrity.recompute` computes them again.

    Args:
        path: file of the scores, for errors.
        record: record of the attack.
        scores: per-item scores; None checks nothing.
    """
    if scores is None or not len(scores) or not record.rebuilt:
        return
    # Missing columns mean that the file belongs to something else.
    columns = {"item", "victim", "threat_model", "leak", "right"}
    if missing := sorted(columns - set(scores)):
        raise RunError(f"{path}: not the scores of an attack; missing columns: {', '.join(missing)}")
    for rebuilt in record.rebuilt:
        # A baseline's figure is an expectation, which items cannot confirm.
        if rebuilt.reason or rebuilt.victim == ALL or rebuilt.by in ("baseline", "majority", "prior"):
            continue
        right = items_behind(rebuilt, scores)["right"].to_numpy(dtype=bool)
        if not len(right) or abs(right.mean() - rebuilt.estimate.value) > _ROUNDING:
            raise RunError(
                f"{path}: not the scores of its record: {attack_name(rebuilt.threat_model, rebuilt.leak)}, {rebuilt.victim}, "
                f"{rebuilt.metric}: {right.sum():,} of {len(right):,} right, but the record has {rebuilt.estimate.value:.6f} of "
                f"{rebuilt.estimate.n:,}"
            )
