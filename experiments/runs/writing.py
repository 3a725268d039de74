"""The write guard: finished files are not overwritten unless the user asks for it.

    write_new(Path("tables.csv"), content, overwrite=False)

All commands follow one rule. An existing file with the same bytes stays and counts as written; one with other bytes is an
error that names it and `--overwrite`. Devices and pipes are written to. A folder appears whole or not at all. `fkgsec check`
removes its old reports (`--junit`, `--sarif`, `--markdown`, `--json`) at its start, so that a failing check leaves no earlier
verdict behind.

One process at a time writes in a folder (`locked`). The lock is the operating system's (`flock`) on the file `.lock`, so it is
free at once when its process is killed. The file names the process for the error of others. File systems without such locks lock
nothing.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import typer

from fkgsec.errors import RunError

LOCK_FILE = ".lock"
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)

Overwrite = Annotated[bool, typer.Option("--overwrite", help="replace an existing run whose settings differ")]
Force = Annotated[bool, typer.Option("--force", help="run even if the estimated memory exceeds what is available")]


def is_plain_place(path: Path) -> bool:
    """Return True if a path is free or a plain file, not a device, pipe or link."""
    return not path.is_symlink() and (path.is_file() or not path.exists())


def read_bytes(path: Path) -> bytes:
    """Read a file. Raises `RunError`."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error.strerror})") from error


def make_folder(folder: Path) -> None:
    """Make a folder and its parents. Raises `RunError`."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{folder}: cannot be made ({error.strerror})") from error


def write_atomically(path: Path, content: bytes) -> None:
    """Write beside the file and rename, so that a reader or a kill never sees half of it. Raises `RunError`.

    A path that is no plain file (/dev/stdout, a named pipe, a link) is written to directly.
    """
    part = path.with_name(path.name + ".part")
    try:
        if not is_plain_place(path):
            path.write_bytes(content)
            return
        part.unlink(missing_ok=True)  # of a killed process; or a link, which would be written through
        with part.open("xb") as handle:
            handle.write(content)
            handle.flush()
            os.fsync(handle.fileno())
        part.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):  # a file system that went read-only, a folder in the way
            part.unlink(missing_ok=True)
        raise RunError(f"{path}: cannot be written ({error.strerror})") from error


def refused(path: Path, what: str = "is there already and differs") -> RunError:
    """Build the error for a file that would be overwritten."""
    return RunError(f"{path}: {what}; name another place, or give --overwrite")


def write_new(path: Path, content: bytes, *, overwrite: bool) -> None:
    """Write a file that does not exist, has the same content, or may be overwritten. Raises `RunError`."""
    if not overwrite and is_plain_place(path) and path.exists():
        if read_bytes(path) != content:
            raise refused(path)
        return
    write_atomically(path, content)


def must_write(place: Path, *, same: Callable[[], bool], ours: Callable[[], bool], overwrite: bool) -> bool:
    """Return True if a folder must be written, False if the same is already there.

    Args:
        same: tells if the content is the same. ours: tells if this command wrote it; nothing else is ever replaced.

    Raises:
        RunError: something else is there.
    """
    if not place.exists() or (place.is_dir() and not any(place.iterdir())):
        return True
    if same():
        return False
    if not overwrite:
        raise refused(place)
    if not ours():
        raise RunError(f"{place}: was not written by this command, so --overwrite does not replace it")
    return True


@contextlib.contextmanager
def locked(folder: Path, name: str = LOCK_FILE) -> Iterator[None]:
    """Lock a folder. Raises `RunError` if another process has the lock, or the folder cannot be written."""
    path = folder / name
    try:
        handle = _take(path)
    except BlockingIOError as error:
        holder = "unknown"
        with contextlib.suppress(OSError):
            holder = path.read_text(encoding="utf-8", errors="replace")[:100] or holder
        raise RunError(f"{folder}: another process is writing here ({holder}); wait, or name another place") from error
    except OSError as error:
        raise RunError(f"{path}: cannot be written ({error.strerror})") from error
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # the folder itself may have been moved or removed
            path.unlink()
        os.close(handle)


def _take(path: Path) -> int:
    """Open and lock a file, again if its last owner removed it meanwhile."""
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(handle), path.stat()):
                    os.truncate(handle, 0)
                    os.write(handle, f"process {os.getpid()} on {socket.gethostname()}".encode())
                    return handle
        except OSError as error:
            if error.errno in _NO_LOCKS:
                return handle
            os.close(handle)
            raise
        os.close(handle)


def put_in_place(whole: Path, place: Path) -> None:
    """Rename a finished folder or file to its place, and then remove the folder that was there. Raises `OSError`."""
    aside = whole.with_name(f"{whole.name}.replaced")
    if place.is_dir() and any(place.iterdir()):
        place.rename(aside)
    whole.replace(place)
    if aside.is_dir():
        shutil.rmtree(aside)
