"""The write guard: what is finished is not written over unless it is asked for.

    write_new(Path("tables.csv"), content, overwrite=False)

One rule for every command. A file that is there with the same bytes stays and counts as written; one with other bytes is an
error that names it and `--overwrite`. A device or a pipe holds nothing, so it is written to. A folder appears whole or not at
all. Reports of a build (`fkgsec check --junit`, `--sarif`, `--markdown`, `--json`) are no exception of this module but of
that command, which makes way for them at its start, so that no earlier verdict is left behind by a check that fails.

One process at a time writes in a folder (`locked`). The lock is the operating system's (`flock`) on the file `.lock`, so that of
a process that was killed is free at once: nothing is stale, no file has to be deleted by hand. The file says who has it, for the
error of the others. File systems without such locks lock nothing; those of Linux have them, NFS included.
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

Overwrite = Annotated[bool, typer.Option("--overwrite", help="write over what is finished there and differs")]

Force = Annotated[bool, typer.Option("--force", help="train although the estimate says that memory does not suffice")]


def is_plain_place(path: Path) -> bool:
    """Whether a path is free or a plain file. A device, a pipe or a link is neither: it would be replaced, not written to."""
    return not path.is_symlink() and (path.is_file() or not path.exists())


def write_atomically(path: Path, content: bytes) -> None:
    """Write beside the file and rename, so that a reader or a kill never sees half of it. Raises `RunError`.

    What is there and no plain file (/dev/stdout, a named pipe, a link) is written to as it is.
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
    """The error of the rule."""
    return RunError(f"{path}: {what}; name another place, or give --overwrite")


def write_new(path: Path, content: bytes, *, overwrite: bool) -> None:
    """Write a file that is not there, is the same, or may be written over. Raises `RunError`."""
    if not overwrite and is_plain_place(path) and path.exists():
        try:
            same = path.read_bytes() == content
        except OSError as error:
            raise RunError(f"{path}: cannot be read ({error.strerror})") from error
        if not same:
            raise refused(path)
        return
    write_atomically(path, content)


def must_write(place: Path, *, same: Callable[[], bool], ours: Callable[[], bool], overwrite: bool) -> bool:
    """Whether a folder, or a file in its stead, is still to be written.

    Args:
        same: whether it holds what would be written. ours: whether it is of the kind that this command writes; nothing else
            is ever replaced.

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
        raise RunError(
            f"{place}: was not written by this command, and --overwrite replaces nothing else; name another place"
        )
    return True


@contextlib.contextmanager
def locked(folder: Path, name: str = LOCK_FILE) -> Iterator[None]:
    """Hold a folder, or by a lock file of another name something in it.

    Raises:
        RunError: another process holds it, or nothing can be written in it.
    """
    path = folder / name
    try:
        handle = _take(path)
    except BlockingIOError as error:
        holder = _holder(path)
        raise RunError(
            f"{folder}: another process is writing here ({holder}); wait for it, or name another place"
        ) from error
    except OSError as error:
        raise RunError(f"{path}: cannot be written ({error.strerror})") from error
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # the folder itself may have been moved or removed
            path.unlink()
        os.close(handle)


def _take(path: Path) -> int:
    """An open file that is locked and still the one of that name: whoever had it removes it when done."""
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


def _holder(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")[:100] or "unknown"
    except OSError:
        return "unknown"


def put_in_place(whole: Path, place: Path) -> None:
    """Rename a folder or file that is whole to its place; a folder that is there is removed then. Raises `OSError`."""
    aside = whole.with_name(f"{whole.name}.replaced")
    if place.is_dir() and any(place.iterdir()):
        place.rename(aside)
    whole.replace(place)
    if aside.is_dir():
        shutil.rmtree(aside)
