"""Whether a run's folder is as it was written: digests, bytes, rounds, and figures beside the scores that they are shares of.

    for check in check_folder(Path("runs/mine")):
        print(check.what, check.outcome, check.why)          # checkpoint holds

Nothing is trained or attacked here; `fkgsec.experiments.integrity.recompute` does that on request. What cannot be compared, as
a record of before digests or one whose checkpoint is not beside it, is said to be unverifiable, which is no fault.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

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
from fkgsec.federation.options import run_identities

Outcome = Literal["holds", "broken", "unverifiable"]
OF_BEFORE = "made by a version that wrote no digests"
_ROUNDING = 1e-9
_DRAWN = "picture"  # what is missing there can be made again, and nobody reads figures from it


class Check(NamedTuple):
    """One question and its answer; `why` is empty where it holds."""

    what: str
    outcome: Outcome
    why: str = ""


class Left(NamedTuple):
    """What a checkpoint says."""

    tensors: Mapping[str, Tensor]
    progress: Progress


def run_folder_of(folder: Path) -> Path:
    """Where the checkpoint of a record's folder lies: that of a further attack is the run's, two folders above."""
    return folder.parent.parent if folder.parent.name == ATTACKS else folder


def check_folder(folder: Path) -> list[Check]:
    """Every check of the record in a folder that takes no training. Nothing here raises for what is damaged: it is broken."""
    path = folder / RECORD_FILE
    try:
        record = read_record(path)
    except FkgsecError as error:
        return [Check("record", "broken", str(error))]
    checks = [_checked("record", lambda: _check_words(path, record))]
    if (folder / SPEC_FILE).exists():
        checks.append(_checked("spec", lambda: _check_spec(folder, record)))
    checks += _beside_checkpoint(path, record, run_folder_of(folder) / CHECKPOINT)
    checks.append(_checked("scores", lambda: _check_figures(folder / SCORES_FILE, record)))
    if not _is_deployed(record):
        checks.append(_checked("files", lambda: _check_files(folder, record)))
        named = {PICTURE_FILE, *(record.origin.files if record.origin else ())}
        missing = [path for name in sorted(named) if not (path := folder / Path(name).name).exists()]
        checks += [Check(_DRAWN, "broken", f"{path}: missing") for path in missing]
    return checks


def check_record_file(path: Path) -> Check:
    """Whether a record that stands alone is as it was written, by the digest of its words."""
    return _checked("record", lambda: _check_words(path, read_record(path)))


def signature_check(path: Path, key: Path | None) -> list[Check]:
    """Whether the owner of a public key signed a record; nothing without a key. A missing signature is broken."""
    return [_checked("signature", lambda: check_signature(path, key))] if key else []


def require_whole(folder: Path) -> None:
    """Raises `RunError` for the first thing in a run's folder that is broken, before anybody reads figures from it."""
    for check in check_folder(folder):
        if check.outcome == "broken" and check.what != _DRAWN:
            raise RunError(f"{check.why} (fkgsec verify-run {folder} says more)")


def _is_deployed(record: Record) -> bool:
    """Whether its parties sat apart; nobody draws such a run."""
    return record.origin is not None and record.origin.agreement != ""


def _checked(what: str, check: Callable[[], str | None]) -> Check:
    """The outcome of a check that raises where something is broken, and returns why it could not be made."""
    try:
        missing = check()
    except FkgsecError as error:
        return Check(what, "broken", str(error))
    return Check(what, "unverifiable", missing) if missing else Check(what, "holds")


def _check_words(path: Path, record: Record) -> str | None:
    if record.origin is None:
        return OF_BEFORE
    if record.origin.record != seal_of(msgspec.json.decode(path.read_bytes())):
        raise RunError(f"{path}: its content is not what was written")
    return None


def _check_files(folder: Path, record: Record) -> str | None:
    check_files(folder, record.origin)
    return None if record.origin and record.origin.files else OF_BEFORE


def _check_spec(folder: Path, record: Record) -> None:
    if read_spec(folder).settled() != record.spec.settled():
        raise RunError(f"{folder / SPEC_FILE}: has other options than the record")


def _beside_checkpoint(path: Path, record: Record, place: Path) -> Iterator[Check]:
    """Of the checkpoint itself and of what a record says that stands in it, too."""
    found: list[Left] = []

    def read() -> str | None:
        """Read it, once; its own digest is checked by that."""
        if not place.exists():
            return f"{place}: is not there"
        try:
            found.append(Left(*checkpoint.load(place, _identities(record, place.parent))))
        except RunError as error:
            if record.origin is None and "another version" in str(error):
                return str(error)
            raise
        check_checkpoint(path, record.origin, checkpoint.fingerprint(*found[0]))
        return None if record.origin else OF_BEFORE

    yield _checked("checkpoint", read)
    if found:
        yield _checked("rounds", lambda: _check_rounds(path, record, found[0].progress))
        yield _checked("bytes", lambda: _check_bytes(path, record, found[0]))


def _identities(record: Record, folder: Path) -> tuple[str, ...]:
    """What the checkpoint of this record is named by."""
    if record.origin is not None and record.origin.agreement:
        return (record.origin.agreement,)
    return run_identities(record.data, _options(record, folder))


def _options(record: Record, folder: Path) -> Any:
    """Those that a run goes by: the record's, as the run was given them, which leaves some to the algorithm."""
    if (folder / SPEC_FILE).exists():
        given = read_spec(folder)
        if given.settled().federation_options() == record.spec.settled().federation_options():
            return given.federation_options()
    return record.spec.federation_options()


def _check_rounds(path: Path, record: Record, progress: Progress) -> None:
    if not progress.finished:
        raise RunError(f"{path}: is of a finished run; its checkpoint stopped after round {len(progress.rounds) - 1}")
    said, found = (
        (record.rounds, record.best_round, record.metric),
        (progress.rounds, progress.best_round, progress.metric),
    )
    if said != found:
        differs = next(
            (f"round {one.round}" for one, other in zip(record.rounds, progress.rounds, strict=False) if one != other),
            "their number, the kept one or the metric",
        )
        raise RunError(f"{path}: says other rounds than the checkpoint ({differs})")


def _check_bytes(path: Path, record: Record, left: Left) -> None:
    """Bytes are the sums of the transcript's lines; a message that is kept has the length that its line says."""
    lines = left.progress.entries
    for direction in ("up", "down"):
        counted = [0] * len(record.rounds)
        for line in lines:
            if line.direction == direction and line.round < len(counted):
                counted[line.round] += line.num_bytes
        if counted != getattr(record.bytes, f"{direction}_by_round"):
            raise RunError(f"{path}: bytes {direction} are {sum(counted):,} in the checkpoint's transcript")
    try:
        frames = packing.frames_of(packing.view_below("frame.", left.tensors))
    except (ValueError, KeyError) as error:  # of a checkpoint without a digest
        raise RunError(f"{path}: the checkpoint's messages cannot be read ({error})") from error
    for number, kept in frames.items():
        said = Counter(
            (one.sender, one.receiver, one.kind, one.table, one.num_bytes) for one in lines if one.round == number
        )
        for frame in kept:
            message = decode(frame)
            line = (message.sender, message.receiver, message.label, message.table, len(frame))
            if isinstance(message, SparseRows) and message.width == 0:  # kept for which rows were sent alone
                continue
            if not said[line]:
                raise RunError(
                    f"{path}: round {number} keeps {len(frame):,} bytes of {message.sender} that no line counts"
                )
            said[line] -= 1
        whole = number in (0, record.best_round, len(record.rounds) - 1)
        if whole and (lost := sum(said.values())):
            raise RunError(f"{path}: round {number} lacks {lost} messages that its lines count")
    if missing := {0, record.best_round, len(record.rounds) - 1} & {line.round for line in lines} - set(frames):
        raise RunError(f"{path}: round {min(missing)} lacks all messages that its lines count")


def _check_figures(path: Path, record: Record) -> str | None:
    scores = read_scores(path, record)
    check_shares(path, record, scores)
    return None if scores is not None or not record.rebuilt else f"{path}: is not there"


def check_shares(path: Path, record: Record, scores: pd.DataFrame | None) -> None:
    """Raises `RunError` unless ERR and TRR of every victim are the shares of its items that the scores call right.

    Other attacks' figures are no shares of items; they are computed anew by `fkgsec.experiments.integrity.recompute`.
    """
    if scores is None or not len(scores) or not record.rebuilt:
        return
    columns = {"item", "victim", "threat_model", "leak", "right"}
    if missing := sorted(columns - set(scores)):
        raise RunError(f"{path}: not the scores of an attack; columns that are not there: {', '.join(missing)}")
    for one in record.rebuilt:
        # A baseline's figure is an expectation, of which no item tells.
        if one.reason or one.victim == ALL or one.by in ("baseline", "majority", "prior"):
            continue
        right = items_behind(one, scores)["right"].to_numpy(dtype=bool)
        if not len(right) or abs(right.mean() - one.estimate.value) > _ROUNDING:
            raise RunError(
                f"{path}: not the scores of its record: {attack_name(one.threat_model, one.leak)}, {one.victim}, "
                f"{one.metric}: {right.sum():,} of {len(right):,} right, the record says {one.estimate.value:.6f} of "
                f"{one.estimate.n:,}"
            )
