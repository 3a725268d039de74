"""Adam as torch has it, to the bit, without `torch._dynamo`, whose import costs the first optimizer of a process over a second.

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

LARGE_BYTES = 4 * 2**20  # of a moment, from which numpy asks the system for large pages


class Adam:
    """The fused Adam of `torch.optim`, with the methods of an optimizer that training and checkpoints use.

    A parameter without a gradient stays as it is, and so do its moments and its step count.
    Source: Kingma & Ba 2015, Algorithm 1; `weight_decay` is added to the gradient.
    """

    def __init__(self, parameters: Iterable[Tensor], lr: float, weight_decay: float = 0.0) -> None:
        self._parameters = list(parameters)
        self._lr, self._weight_decay = lr, weight_decay
        self._state: dict[int, dict[str, Tensor]] = {}

    @torch.no_grad()
    def step(self) -> None:
        """Move every parameter that has a gradient."""
        moved = [place for place, parameter in enumerate(self._parameters) if parameter.grad is not None]
        if not moved:
            return
        for place in moved:
            if place not in self._state:
                self._state[place] = _fresh(self._parameters[place])
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
        """Forget the gradients."""
        for parameter in self._parameters:
            parameter.grad = None

    def state_dict(self) -> dict[str, Any]:
        """Moments and step counts under `state`, by the place of a parameter, of those that have moved."""
        return {"state": self._state}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Put back what `state_dict` gave."""
        self._state = {
            int(place): {name: tensor.clone().to(self._parameters[int(place)].device) for name, tensor in state.items()}
            for place, state in saved["state"].items()
        }


def _fresh(parameter: Tensor) -> dict[str, Tensor]:
    if parameter.device.type == "cpu" and parameter.dtype == torch.float32 and parameter.nbytes >= LARGE_BYTES:
        moment = torch.from_numpy(
            np.zeros(parameter.shape, dtype=np.float32)
        )  # in large pages, for which torch does not ask
    else:
        moment = torch.zeros_like(parameter, memory_format=torch.preserve_format)
    return {
        "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
        "exp_avg": moment,
        "exp_avg_sq": moment.clone(),
    }
