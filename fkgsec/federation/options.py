"""The options of a federation: what is trained, how, and for how long. Frozen; checked when made."""

from __future__ import annotations

import math
from typing import Literal

import msgspec
import torch

from fkgsec.errors import SpecError
from fkgsec.federation.recipes import RECIPES
from fkgsec.kge.models import KgeModel, ModelName
from fkgsec.kge.ranking import Sides

EntityScope = Literal["own", "all", "published"]


class FederationOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of one federation. Defaults are those of fedr.txt appendix B where it names them.

    Attributes:
        algorithm: a row of `RECIPES`.
        model, dim, gamma, epsilon: the scoring function, see `KgeModel`.
        batch_size, num_negatives, temperature, learning_rate, local_epochs: local training with Adam.
        rounds: at most so many; training of `single` and `collective` counts `local_epochs` epochs as a round.
        eval_every: validation after every so many rounds (and after the last).
        patience: stop after so many validations without a better MRR; 0 never stops early.
        participation: share of clients that train in a round, at least one; only they are averaged.
        negative_sides: corrupt tails only (fedr.txt) or tails and heads in alternate steps.
        eval_sides: rank tails only (fedr.txt) or both.
        entity_scope: "own", a client trains, corrupts with and ranks its own entities (FedR's code); "all", those of the
            whole federation; "published", ranks all and corrupts with the global ids 0..n-1, n being the number of the
            client's own (the FedE beside FedR's code takes local counts for global ids, so a fifth of a client's entities
            is never drawn and many of another client's are).
        mu: weight of the recipe's further objective (proximal, contrastive); None: the recipe's own.
        tau: temperature of the contrastive objective.
        defense: what resists the server, in the words of `defenses.options`; empty: nothing does.
        seed: everything random derives from it.
        device: "auto" (CUDA if there is one), "cpu", "cuda", "cuda:1", ...
    """

    algorithm: str = "fede"
    model: ModelName = "transe"
    dim: int = 128
    gamma: float = 10.0
    epsilon: float = 2.0
    batch_size: int = 512
    num_negatives: int = 256
    temperature: float = 1.0
    learning_rate: float = 0.001
    local_epochs: int = 3
    rounds: int = 300
    eval_every: int = 5
    patience: int = 5
    participation: float = 1.0
    negative_sides: Sides = "both"
    eval_sides: Sides = "both"
    entity_scope: EntityScope = "own"
    mu: float | None = None
    tau: float = 0.2
    defense: str = ""
    seed: int = 0
    device: str = "auto"

    def __post_init__(self) -> None:
        if self.algorithm not in RECIPES:
            raise SpecError(f"algorithm must be one of {', '.join(RECIPES)}; got {self.algorithm!r}")
        for name in ("batch_size", "num_negatives", "local_epochs", "rounds", "eval_every"):
            if getattr(self, name) < 1:
                raise SpecError(f"{name} must be at least 1; got {getattr(self, name)}")
        for name in ("patience", "seed"):
            if getattr(self, name) < 0:
                raise SpecError(f"{name} must be at least 0; got {getattr(self, name)}")
        if self.mu is not None:
            if RECIPES[self.algorithm].objective == "plain":
                raise SpecError(f"mu does not apply to {self.algorithm}, which has no further objective; leave it out")
            if not 0 <= self.mu <= 1e6:
                raise SpecError(f"mu must lie in 0..1,000,000; got {self.mu}")
        for name in ("learning_rate", "temperature", "tau"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise SpecError(f"{name} must be a positive number; got {value}")
        if not 0 < self.participation <= 1:
            raise SpecError(f"participation must lie in (0, 1]; got {self.participation}")
        self.kge_model()

    def num_participants(self, num_clients: int) -> int:
        """How many clients take part in a round, at least one; halves are rounded up."""
        return max(1, math.floor(self.participation * num_clients + 0.5))

    def kge_model(self) -> KgeModel:
        return KgeModel(self.model, self.dim, self.gamma, self.epsilon)

    def torch_device(self) -> torch.device:
        """The device that `device` names; raises `SpecError` when the machine does not have it."""
        if self.device == "auto":
            return torch.device("cuda" if torch.cuda.is_available() else "cpu")
        try:
            device = torch.device(self.device)
        except RuntimeError as error:
            raise SpecError(f"device must be auto, cpu or cuda[:N]; got {self.device!r}") from error
        if device.type not in ("cpu", "cuda"):
            raise SpecError(f"device must be auto, cpu or cuda[:N]; got {self.device!r}")
        if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
            raise SpecError(
                f"device {self.device!r} is not there; this machine has {torch.cuda.device_count()} CUDA devices"
            )
        return device
