"""Number of threads that torch computes with where bits must not depend on it.

with one_thread():
    loss.backward()
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Within it torch uses one thread: small products gain nothing by more, and how sums are added up depends on their number."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
