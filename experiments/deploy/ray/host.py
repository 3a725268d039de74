"""What a worker process does: it trains and ranks some clients of a federation, as it is told their rows.

    host = Host()
    host.load("7f3a", pickled((graph, options, keys)))       # the clients of this worker, by their place in the federation
    losses, rows = host.train("7f3a", 1, [0, 2], rows)       # safetensors in and out
    host.ranks("7f3a", "judged", "valid", rows)

It keeps nothing between two calls that the next one needs, but the data: whoever calls has all rows and all state of optimisers,
so that a run goes on from a checkpoint whichever workers it had.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import safetensors.torch
from torch import Tensor

from fkgsec.errors import TrainingError
from fkgsec.kge.local.task import KgeTask
from fkgsec.kge.local.training import TrainingSubset

TRAINER = "trainer."
"""How the names of what an optimiser remembers begin, beside those of tables."""


class Host:
    """See the module. Its methods return a `TrainingError`, rather than raise it, so that it crosses as it is."""

    def __init__(self) -> None:
        self._name, self._steps = "", 0
        self._task: KgeTask | None = None

    def version(self) -> str:
        """Of fkgsec, on the machine of this worker."""
        from fkgsec.version import __version__

        return __version__

    def load(self, name: str, content: bytes) -> None:
        """Take over clients: a graph of these alone, the options, and each one's place in the federation (`pickled`).

        Unpickling runs what it is told to. So does Ray, by which alone a worker is called: only by who has the command's token.
        """
        graph, options, keys = pickle.loads(content)
        self._task, self._name = KgeTask(graph, options, keys), name

    def taken(self) -> int:
        """Steps of the round that is being trained."""
        return self._steps

    def train_on(self, name: str, place: int, triples: np.ndarray, rows: np.ndarray) -> None:
        """Let a client of this worker train on this instead of its own train split."""
        self._of(name).train_on(place, TrainingSubset(triples, rows))

    def train(
        self, name: str, round: int, places: Sequence[int], content: bytes
    ) -> tuple[dict[int, float], bytes] | TrainingError:
        """One round of these of its clients: their losses, and all rows and states as they are afterwards."""
        task, tensors = self._of(name), safetensors.torch.load(content)
        task.restore(tensors)
        task.begin_round()
        task.load_trainer_state(
            {key.removeprefix(TRAINER): one for key, one in tensors.items() if key.startswith(TRAINER)}
        )
        self._steps = 0
        try:
            losses = task.train(round, places, self._step)
        except TrainingError as error:
            return error
        return losses, packed({**task.snapshot(), **{TRAINER + key: one for key, one in task.trainer_state().items()}})

    def _step(self) -> None:
        self._steps += 1

    def ranks(self, name: str, kind: str, split: str, content: bytes) -> list[np.ndarray] | TrainingError:
        """Of each of its clients, the ranks of a split with these tables: as the "shared" models rank, or the "judged" ones."""
        task = self._of(name)
        try:
            return (task.shared_evaluator if kind == "shared" else task.evaluator).ranks(
                split, safetensors.torch.load(content)
            )
        except TrainingError as error:
            return error

    def _of(self, name: str) -> KgeTask:
        if self._task is None or self._name != name:
            raise RuntimeError(f"a worker of run {self._name!r} was asked for {name!r}")
        return self._task


def pickled(parts: Any) -> bytes:
    """What `Host.load` takes."""
    return pickle.dumps(parts)


def packed(tensors: Mapping[str, Tensor]) -> bytes:
    """Tensors by name as safetensors; none shares memory with another there."""
    return safetensors.torch.save({name: one.detach().cpu().contiguous().clone() for name, one in tensors.items()})
