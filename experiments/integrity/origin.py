"""Origin of a record: digests of its inputs, stored in the record itself.

    origin = Origin(fingerprint(tensors, progress), digest_of(scores))
    seal = seal_of(document)                      # digest of the record's own content

A digest detects damage and exchanged files, not forgery: anyone who can write the record can write its digests.
"""

from __future__ import annotations

import copy
import hashlib
from pathlib import Path
from typing import Any

import msgspec

from fkgsec.errors import RunError

_REMEDY = "if the checkpoint is correct, renew the record (--overwrite; for fkgsec check --fresh)"


class Origin(msgspec.Struct, frozen=True):
    """Digests, sha256 in hexadecimal; that of the data is `record.data.hash`.

    Attributes:
        checkpoint: digest of the run's result (`fkgsec.federation.checkpoint.fingerprint`). Runs with equal bits have
            equal digests, however long they took and wherever they were interrupted.
        scores: digest of the file with the score of every attacked item; empty without such a file.
        record: digest of everything else in the record.
        agreement: for a deployed run, digest of the parties' agreement (`Agreement.digest`), which names its
            checkpoint; else empty.
        files: digests of the pictures and tables next to the record, by name; empty in older records.
    """

    checkpoint: str
    scores: str = ""
    record: str = ""
    agreement: str = ""
    files: dict[str, str] = {}


def digest_of(content: bytes) -> str:
    """Return sha256 in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def seal_of(document: dict[str, Any]) -> str:
    """Return the digest of a record's JSON without that digest; layout and order of its keys do not matter.

    Args:
        document: decoded record.json.
    """
    plain = copy.copy(document)
    if isinstance(origin := plain.get("origin"), dict):
        # A digest cannot cover itself.
        plain["origin"] = origin | {"record": ""}
    return digest_of(msgspec.json.encode(plain, order="sorted"))


def check_checkpoint(path: Path, origin: Origin | None, fingerprint: str) -> None:
    """Raise `RunError` for a record that was computed from another checkpoint. Older records cannot be checked.

    Args:
        path: file of the record, for the error.
        origin: origin of the record.
        fingerprint: fingerprint of the checkpoint in the folder.
    """
    if origin is not None and origin.checkpoint != fingerprint:
        raise RunError(
            f"{path}: was not computed from the checkpoint in its folder, which has other tables, rounds or messages; "
            f"{_REMEDY}"
        )


def check_files(folder: Path, origin: Origin | None) -> None:
    """Raise `RunError` for a picture or table in a record's folder that was changed; missing files pass.

    Args:
        folder: folder of the record.
        origin: origin of the record.
    """
    for name, digest in origin.files.items() if origin else ():
        path = folder / Path(name).name
        try:
            content = path.read_bytes() if path.exists() else None
        except OSError as error:
            raise RunError(f"{path}: cannot be read ({error.strerror})") from error
        if content is not None and digest_of(content) != digest:
            raise RunError(f"{path}: was not written with its record, or is damaged; {_REMEDY}")


def check_scores(path: Path, origin: Origin | None, content: bytes | None) -> None:
    """Raise `RunError` for scores that were not written with the record.

    Args:
        path: file of the scores, for the error.
        origin: origin of the record.
        content: content of the file; None if it does not exist.
    """
    # Records without digests cannot be checked, which is not damage.
    if origin is None or origin.scores == ("" if content is None else digest_of(content)):
        return
    what = "missing" if content is None else "not the scores of its record, or damaged"
    raise RunError(f"{path}: {what}; {_REMEDY}")
