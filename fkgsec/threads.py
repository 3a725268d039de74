"""Restriction of torch to one thread, for results whose bits must not depend on the number of threads.

with one_thread():
    loss.backward()
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Restrict torch to one thread: the order of its sums depends on the number of threads, and small products gain
    nothing by more.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
