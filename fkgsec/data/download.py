"""Downloads that survive a broken connection and never leave a wrong file behind."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import requests
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from fkgsec.errors import DataError

ATTEMPTS = 5
FIRST_PAUSE_S = 0.5  # doubled after every failed attempt
TIMEOUT_S = 30.0  # without a byte
_CHUNK_BYTES = 1 << 16
_WORTH_RETRYING = (408, 425, 429, 500, 502, 503, 504)

Advance = Callable[[float], None]


def download_files(
    files: Sequence[tuple[str, Path, str, int]], *, title: str, advice: str, progress: bool = True
) -> None:
    """Download files, each first to `<file>.part`, resumed if one exists, then verified and renamed.

    Args:
        files: (address, path, sha256, size in bytes) each.
        title: of the progress bar.
        advice: what to do without a network; ends the message of a failed download.
        progress: show a bar on standard error.

    Raises:
        DataError: no connection, an HTTP error, a wrong checksum (the part is deleted), or a file that cannot be
            written.
    """
    with ExitStack() as stack:
        advance: Advance = lambda _: None  # noqa: E731 (shows nothing)
        if progress:
            columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
            bar = stack.enter_context(Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True)))
            task = bar.add_task(title, total=sum(size_bytes for *_, size_bytes in files))
            advance = partial(bar.advance, task)
        session = stack.enter_context(requests.Session())
        for address, path, sha256, size_bytes in files:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                part = path.with_name(path.name + ".part")
                _fetch(session, address, part, size_bytes, advice, advance)
                with part.open("rb") as file:
                    digest = hashlib.file_digest(file, "sha256").hexdigest()
                if digest != sha256:
                    part.unlink()
                    raise DataError(f"{address}: wrong file, expected sha256 {sha256}, found {digest}")
                # The final name exists only for a verified file.
                part.replace(path)
            except OSError as error:
                raise DataError(f"{path}: cannot be written ({error.strerror or error})") from error


def _fetch(session: requests.Session, address: str, part: Path, size_bytes: int, advice: str, advance: Advance) -> None:
    """Complete `part` to `size_bytes`, in several attempts if needed."""
    if part.exists():
        # Larger than the file can be: a part of something else.
        if part.stat().st_size > size_bytes:
            part.unlink()
        else:
            advance(part.stat().st_size)
    reason = ""
    for attempt in range(ATTEMPTS):
        if part.exists() and part.stat().st_size == size_bytes:
            return
        if attempt:
            time.sleep(FIRST_PAUSE_S * 2 ** (attempt - 1))
        try:
            refusal = _attempt(session, address, part, size_bytes, advance)
        except requests.RequestException as error:
            reason = _reason(error)
            continue
        if refusal is None:
            reason = "the connection was closed early"
            continue
        reason = f"HTTP status {refusal}"
        # A client error such as 404 will not go away.
        if refusal not in _WORTH_RETRYING:
            break
    if part.exists() and part.stat().st_size == size_bytes:
        return
    raise DataError(f"cannot download {address} ({reason}); try again later, {advice}")


def _attempt(session: requests.Session, address: str, part: Path, size_bytes: int, advance: Advance) -> int | None:
    """Request the bytes that `part` lacks. Returns the HTTP status if the server refused, else None."""
    have = part.stat().st_size if part.exists() else 0
    # Without "identity" a server may compress, and then ranges and sizes are those of the compressed file.
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
    with session.get(address, headers=headers, stream=True, timeout=TIMEOUT_S) as response:
        resumed = response.status_code == 206 and _starts_at(response, have)
        if response.status_code == 416 or (response.status_code == 206 and not resumed):
            # The server does not have that range, or sends another one: start over.
            part.unlink(missing_ok=True)
            advance(-have)
            return None
        if response.status_code not in (200, 206):
            return response.status_code
        if not resumed:
            advance(-have)
            have = 0
        # Sizes are checked here; urllib3's own check would drop the bytes that came just before the end.
        response.raw.enforce_content_length = False
        with part.open("ab" if resumed else "wb") as file:
            for chunk in response.iter_content(_CHUNK_BYTES):
                # Write at most one byte too many: enough to notice a wrong file, whatever the server sends.
                wanted_bytes = chunk[: size_bytes + 1 - have]
                file.write(wanted_bytes)
                have += len(wanted_bytes)
                advance(len(wanted_bytes))
                if have > size_bytes:
                    break
    if have > size_bytes:
        part.unlink()
        raise DataError(f"{address}: wrong file, expected {size_bytes:,} bytes, found more")
    return None


def _starts_at(response: requests.Response, start: int) -> bool:
    match = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
    return match is not None and int(match[1]) == start


def _reason(error: requests.RequestException) -> str:
    if isinstance(error, requests.Timeout) or "timed out" in str(error):
        return "timed out"
    if isinstance(error, requests.exceptions.ChunkedEncodingError):
        return "the connection was closed early"
    if isinstance(error, requests.ConnectionError):
        return "no connection"
    return type(error).__name__
