"""Steps that a party takes once, remembered by all copies of its frozen states.

    >>> steps = Steps("client0")
    >>> steps.mark("confirm")
    >>> steps.mark("confirm")
    Traceback (most recent call last):
    ...
    fkgsec.protocols.core.errors.StateReused: client0: confirm was taken before; each step of a session is taken once

A party's state in a protocol is a frozen dataclass, and each step is a function of it. Some steps reveal secrets if they run
twice on one state with two messages: both kinds of share, or several answers about one set. Therefore a party carries one
`Steps` from its first state to its last. Each such step marks itself there before it reads its message, so an error uses it
up too.

These share the memory, and so are refused: the same state again, `copy.copy`, `copy.deepcopy` and `dataclasses.replace` of it,
and a state built from the fields of another. Pickling a state and using it in a forked process raise an error. Nothing in a
process can prevent code that makes a new `Steps` on purpose, or a restored image of the whole machine.
"""

from __future__ import annotations

import os
import threading
from typing import Any, NoReturn

from fkgsec.protocols.core.errors import StateReused


class Steps:
    """Steps that one party took in one session. Copying it returns the same object."""

    def __init__(self, party: str) -> None:
        self._party = party
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._taken: set[str] = set()

    def mark(self, step: str) -> None:
        """Mark a step as taken.

        Raises:
            StateReused: the step was taken before, by any thread, or the process was forked.
        """
        # A fork copies the memory, so parent and child could take the same step without noticing.
        if os.getpid() != self._process:
            raise StateReused(f"{self._party}: {step} in a copy of the process; the session goes on where it began")
        with self._lock:
            if step in self._taken:
                raise StateReused(f"{self._party}: {step} was taken before; each step of a session is taken once")
            self._taken.add(step)

    def __copy__(self) -> Steps:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Steps:
        return self

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise StateReused(
            f"{self._party}: a state of a session cannot be stored, since it could be used again from there"
        )
