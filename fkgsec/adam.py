"""Adam with the same bits as torch's, without `torch._dynamo`, whose import delays a process's first optimizer by a second.

adam = Adam([rows], lr=0.001)
rows.grad = gradient
adam.step()
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim.adam import adam as take_step

LARGE_BYTES = 4 * 2**20  # size of a moment from which numpy requests large pages


class Adam:
    """The fused Adam of `torch.optim`, with the methods that training and checkpoints use.

    A parameter without a gradient keeps its value, its moments and its step count.

    Args:
        parameters: leaf tensors.
        lr: learning rate.
        weight_decay: factor of the parameter that is added to its gradient.

    Source: Kingma & Ba 2015, Algorithm 1.
    """

    def __init__(self, parameters: Iterable[Tensor], lr: float, weight_decay: float = 0.0) -> None:
        self._parameters = list(parameters)
        self._lr, self._weight_decay = lr, weight_decay
        self._state: dict[int, dict[str, Tensor]] = {}

    @torch.no_grad()
    def step(self) -> None:
        """Update every parameter that has a gradient."""
        moved = [place for place, parameter in enumerate(self._parameters) if parameter.grad is not None]
        if not moved:
            return
        for place in moved:
            if place not in self._state:
                self._state[place] = _fresh(self._parameters[place])
        # Moments are created at a parameter's first gradient, so unused tables take no memory.
        states = [self._state[place] for place in moved]
        take_step(
            [self._parameters[place] for place in moved],
            [self._parameters[place].grad for place in moved],  # type: ignore[misc]
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            [state["step"] for state in states],
            fused=True,
            amsgrad=False,
            beta1=0.9,
            beta2=0.999,
            lr=self._lr,
            weight_decay=self._weight_decay,
            eps=1e-8,
            maximize=False,
        )

    def zero_grad(self) -> None:
        """Remove the gradients."""
        for parameter in self._parameters:
            parameter.grad = None

    def state_dict(self) -> dict[str, Any]:
        """Return moments and step counts under `state`, by index of the parameters that have moved."""
        return {"state": self._state}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Load the state that `state_dict` returned.

        Args:
            saved: with the key `state`.
        """
        # Copies, on the parameter's device: a checkpoint lies on the CPU.
        self._state = {
            int(place): {name: tensor.clone().to(self._parameters[int(place)].device) for name, tensor in state.items()}
            for place, state in saved["state"].items()
        }


def packed_state(optimizer: Adam | torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return an optimizer's state by "parameter index.name", for a checkpoint.

    Args:
        optimizer: after any number of steps.
    """
    state = optimizer.state_dict()["state"]
    return {f"{place}.{name}": tensor for place, values in state.items() for name, tensor in values.items()}


def load_packed_state(optimizer: Adam | torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Load the state that `packed_state` returned; an empty one changes nothing.

    Args:
        optimizer: of the same parameters.
        tensors: by "parameter index.name".
    """
    state: dict[int, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        place, name = key.split(".", 1)
        state.setdefault(int(place), {})[name] = tensor
    if state:
        optimizer.load_state_dict(optimizer.state_dict() | {"state": state})


def _fresh(parameter: Tensor) -> dict[str, Tensor]:
    if parameter.device.type == "cpu" and parameter.dtype == torch.float32 and parameter.nbytes >= LARGE_BYTES:
        # numpy allocates in large pages, torch does not.
        moment = torch.from_numpy(np.zeros(parameter.shape, dtype=np.float32))
    else:
        moment = torch.zeros_like(parameter, memory_format=torch.preserve_format)
    return {
        "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
        "exp_avg": moment,
        "exp_avg_sq": moment.clone(),
    }
