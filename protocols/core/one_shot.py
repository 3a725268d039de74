"""Steps that a party takes once: the memory of those taken, which all copies of its frozen states share.

    >>> taken = Taken("client0")
    >>> taken.mark("confirm")
    >>> taken.mark("confirm")
    Traceback (most recent call last):
    ...
    fkgsec.protocols.core.errors.StateReused: client0: confirm was taken before; each step of a session is taken once

The state of a party in a protocol is a frozen dataclass, and each step a function of it. Run twice on one state with two
messages, some steps give away together what each keeps: both kinds of share, or one answer after the other about a set.
A party therefore carries one `Taken` from its first state to its last, and every such step marks itself there before it
reads its message, so that it is spent after an error too.

What shares the memory, and so is refused: the state again, `copy.copy` and `copy.deepcopy` of it, `dataclasses.replace`, a
state built anew from the fields of another. What is refused at once: pickling it, and using it in a forked process. What
nothing in a process can prevent: code that makes a new `Taken` on purpose, and a restored image of the whole machine.
"""

from __future__ import annotations

import os
import threading
from typing import Any, NoReturn

from fkgsec.protocols.core.errors import StateReused


class Taken:
    """The steps that one party took in one session. Copies of it are itself."""

    def __init__(self, party: str) -> None:
        self._party = party
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._steps: set[str] = set()

    def mark(self, step: str) -> None:
        """Take the step. Raises `StateReused` when it was taken before, also by another thread, or in a forked process."""
        if os.getpid() != self._process:
            raise StateReused(f"{self._party}: {step} in a copy of the process; the session goes on where it began")
        with self._lock:
            if step in self._steps:
                raise StateReused(f"{self._party}: {step} was taken before; each step of a session is taken once")
            self._steps.add(step)

    def __copy__(self) -> Taken:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Taken:
        return self

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise StateReused(
            f"{self._party}: a state of a session cannot be stored, since it could be used again from there"
        )
