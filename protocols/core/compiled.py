"""numba's `njit` with a cache where one can be kept, and without one where none can: in a read-only container, say.

    @compiled(parallel=True)
    def total(values): ...

    total.stats.cache_path      # where the machine code is kept; None: it is compiled anew in every process

numba looks in `NUMBA_CACHE_DIR`, beside the source and in the user's cache folder, and its decorator raises where it may write
in none of them. Then a folder of the user's own below the temporary one serves; where that cannot be had either, nothing is kept.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from numba import njit
from numba.core import config as _config


def compiled(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Return a decorator that compiles with `numba.njit` and caches the machine code if a writable folder exists.

    Args:
        options: keyword arguments of `numba.njit` other than `cache`.
    """

    def decorate(function: Callable[..., Any]) -> Any:
        """Compile with the first cache that can be had."""
        try:
            return njit(cache=True, **options)(function)
        except RuntimeError:  # "no locator available"
            folder = own_temporary_folder()
        if folder is None:
            return njit(**options)(function)
        config: Any = _config  # its names are set at run time
        before, config.CACHE_DIR = config.CACHE_DIR, str(folder)
        try:
            return njit(cache=True, **options)(function)
        except RuntimeError:
            return njit(**options)(function)
        finally:
            config.CACHE_DIR = before

    return decorate


def own_temporary_folder() -> Path | None:
    """Return a cache folder that only this user can read and write, the same for all processes; None if there is none."""
    try:
        # A cache holds machine code and pickles, and anybody can write to the temporary folder.
        # A folder there is used only if this user owns it and nobody else can open it.
        folder = Path(tempfile.gettempdir()) / f"fkgsec-numba-{os.getuid()}"
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    except (OSError, AttributeError):  # no temporary folder, no right to write there; a system without user numbers
        return None
    private = stat.S_ISDIR(status.st_mode) and not status.st_mode & 0o077 and status.st_uid == os.getuid()
    return folder if private and os.access(folder, os.W_OK | os.X_OK) else None
