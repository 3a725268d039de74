"""Where kernels run, and how."""

from __future__ import annotations

import importlib.util
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
from torch import Tensor

DEVICES = ("cuda",)  # types; on the CPU kernels run in Triton's interpreter alone, for tests


class How(NamedTuple):
    """How an epoch runs on CUDA: as one captured graph or kernel by kernel, and with sums of gradients in order or by atomics.

    The defaults are fastest or nearly so and give every run the same bits; a benchmark compares them with the others.
    """

    graphs: bool = True
    ordered: bool = True


how = How()


def triton_is_there() -> bool:
    """Whether triton can be imported."""
    return importlib.util.find_spec("triton") is not None


def can_run(rows: Tensor) -> bool:
    """Whether kernels run where these rows lie."""
    return rows.device.type in DEVICES and rows.dtype == torch.float32 and triton_is_there()


def current(device: torch.device) -> AbstractContextManager[object]:
    """Within it kernels are launched on this device, which on a machine with several GPUs need not be the first."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
