"""Write guard: finished files are not overwritten unless the user requests it.

    write_new(Path("tables.csv"), content, overwrite=False)

All commands follow one rule. An existing file with the same bytes stays and counts as written; one with other bytes is an
error that names it and `--overwrite`. Devices and pipes are written to. A folder appears whole or not at all. `fkgsec check`
removes its old reports (`--junit`, `--sarif`, `--markdown`, `--json`) at its start, so that a failing check leaves no earlier
verdict behind.

One process at a time writes in a folder (`locked`). The operating system holds the lock (`flock`) on the file `.lock`,
so it is free as soon as its process is killed. The file names the process for the error of others. On file systems
without such locks, nothing is locked.
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

Overwrite = Annotated[bool, typer.Option("--overwrite", help="replace an existing output that differs")]
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
    """Create a folder and its parents. Raises `RunError`."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{folder}: cannot be made ({error.strerror})") from error


def write_atomically(path: Path, content: bytes) -> None:
    """Write next to the file and rename, so that a reader or a kill never sees half of it.

    Args:
        path: file to write. A device, pipe or link, such as /dev/stdout, is written to directly.
        content: the whole file.

    Raises:
        RunError: the file cannot be written.
    """
    part = path.with_name(path.name + ".part")
    try:
        # /dev/stdout and pipes cannot be replaced by a rename.
        if not is_plain_place(path):
            path.write_bytes(content)
            return
        # Left by a killed process, or a link to elsewhere.
        part.unlink(missing_ok=True)
        with part.open("xb") as handle:
            handle.write(content)
            handle.flush()
            # Otherwise a power failure could leave an empty file under the final name.
            os.fsync(handle.fileno())
        part.replace(path)
    except OSError as error:
        # A file system that went read-only, a folder in the way.
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise RunError(f"{path}: cannot be written ({error.strerror})") from error


def refused(path: Path, what: str = "exists and differs") -> RunError:
    """Return the error for a file that would be overwritten.

    Args:
        what: predicate of the file.
    """
    return RunError(f"{path}: {what}; name another place, or give --overwrite")


def write_new(path: Path, content: bytes, *, overwrite: bool) -> None:
    """Write a file that does not exist, has the same content, or may be overwritten.

    Args:
        path: file to write.
        content: the whole file.
        overwrite: replace a file with other content.

    Raises:
        RunError: the file exists with other content, or cannot be written.
    """
    if not overwrite and is_plain_place(path) and path.exists():
        if read_bytes(path) != content:
            raise refused(path)
        return
    write_atomically(path, content)


def must_write(place: Path, *, same: Callable[[], bool], ours: Callable[[], bool], overwrite: bool) -> bool:
    """Return True if a folder must be written, False if the same content exists already.

    Args:
        place: the folder.
        same: returns True if the content is the same.
        ours: returns True if this command wrote the folder; nothing else is ever replaced.
        overwrite: replace a folder of this command.

    Raises:
        RunError: the folder contains something else.
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
    """Lock a folder for the duration of the context.

    Args:
        folder: the folder to write in.
        name: name of the lock file.

    Raises:
        RunError: another process has the lock, or the folder cannot be written.
    """
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
        # The folder itself may have been moved or removed.
        with contextlib.suppress(OSError):
            path.unlink()
        os.close(handle)


def _take(path: Path) -> int:
    """Open and lock a file; retry if its last owner removed it meanwhile."""
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with contextlib.suppress(FileNotFoundError):
                # The locked file may have been removed while this process opened it. Then the lock
                # protects nothing.
                if os.path.samestat(os.fstat(handle), path.stat()):
                    os.truncate(handle, 0)
                    os.write(handle, f"process {os.getpid()} on {socket.gethostname()}".encode())
                    return handle
        except OSError as error:
            # This file system has no locks.
            if error.errno in _NO_LOCKS:
                return handle
            os.close(handle)
            raise
        os.close(handle)


def put_in_place(whole: Path, place: Path) -> None:
    """Rename a finished folder or file to its place, and then remove the folder that was there.

    Args:
        whole: finished folder or file, on the same file system.
        place: final path.

    Raises:
        OSError: a rename failed.
    """
    # Renaming over a non-empty folder is an error, so it is moved aside first.
    aside = whole.with_name(f"{whole.name}.replaced")
    # An empty folder is replaced by the rename itself.
    if place.is_dir() and any(place.iterdir()):
        place.rename(aside)
    whole.replace(place)
    if aside.is_dir():
        shutil.rmtree(aside)
