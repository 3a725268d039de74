"""What a record was computed from, by digests that stand in the record itself.

    origin = Origin(fingerprint(tensors, progress), digest_of(scores))
    seal = seal_of(document)                      # and of the record's own words

A digest finds damage and mixing up, not forgery: whoever can write the record can write its digests.
"""

from __future__ import annotations

import copy
import hashlib
from pathlib import Path
from typing import Any

import msgspec

from fkgsec.errors import RunError

_REMEDY = "make the record anew where the checkpoint is the right one (--overwrite; for fkgsec check --fresh)"


class Origin(msgspec.Struct, frozen=True):
    """Digests, sha256 in hexadecimal; that of the data is `record.data.hash`.

    Attributes:
        checkpoint: what the run left (`fkgsec.federation.checkpoint.fingerprint`). Runs of equal bits have equal ones, however
            long they took and wherever they were interrupted.
        scores: of the file with the score of every attacked item; "" where there is none.
        record: of everything else in the record.
        files: of the pictures and tables beside the record, by name; empty in records of before.
        agreement: of a deployed run what its parties agreed on (`Agreement.digest`), which its checkpoint is named by; else "".
    """

    checkpoint: str
    scores: str = ""
    record: str = ""
    agreement: str = ""
    files: dict[str, str] = {}


def digest_of(content: bytes) -> str:
    """sha256 in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def seal_of(document: dict[str, Any]) -> str:
    """The digest of a record's JSON without that digest; layout and order of its keys do not count."""
    plain = copy.copy(document)
    if isinstance(origin := plain.get("origin"), dict):
        plain["origin"] = origin | {"record": ""}
    return digest_of(msgspec.json.encode(plain, order="sorted"))


def check_checkpoint(path: Path, origin: Origin | None, fingerprint: str) -> None:
    """Raises `RunError` for a record that was computed from another checkpoint than the one beside it; old ones say nothing."""
    if origin is not None and origin.checkpoint != fingerprint:
        raise RunError(
            f"{path}: was not computed from the checkpoint of its folder, which holds other tables, rounds or messages; "
            f"{_REMEDY}"
        )


def check_files(folder: Path, origin: Origin | None) -> None:
    """Raises `RunError` for a picture or table in a record's folder that is not as written with it; missing ones pass."""
    for name, digest in origin.files.items() if origin else ():
        path = folder / Path(name).name
        try:
            content = path.read_bytes() if path.exists() else None
        except OSError as error:
            raise RunError(f"{path}: cannot be read ({error.strerror})") from error
        if content is not None and digest_of(content) != digest:
            raise RunError(f"{path}: not the one that was written with its record, or damaged; {_REMEDY}")


def check_scores(path: Path, origin: Origin | None, content: bytes | None) -> None:
    """Raises `RunError` for scores that are not those which the record was written with; None: there are none.

    Args:
        path: of the scores.
    """
    if origin is None or origin.scores == ("" if content is None else digest_of(content)):
        return
    what = "missing" if content is None else "not the scores of its record, or damaged"
    raise RunError(f"{path}: {what}; {_REMEDY}")
