"""The options of a federation: what is trained, how, and for how long. Frozen; checked when made."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal, TypeVar

import msgspec
import torch

from fkgsec.errors import SpecError
from fkgsec.federation.recipes import RECIPES, all_settings
from fkgsec.federation.settings import make_settings
from fkgsec.kge.models import KgeModel, ModelName
from fkgsec.kge.ranking import Sides

EntityScope = Literal["own", "all", "published"]
NegativeSides = Literal["tail", "both", "each"]

RENAMED = {"sync_every": "sparse_rounds", "wait": "warmup_rounds", "form": "variant", "low_share": "shared_dim_ratio"}
"""Settings of algorithms that have got another name, by the old one, which stored runs and their identities go by."""


class FederationOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of one federation. Defaults are those of fedr.txt appendix B where it names them.

    Attributes:
        algorithm: a row of `RECIPES`.
        model, dim, gamma, init_epsilon: the scoring function, see `KgeModel`.
        batch_size, num_negatives, learning_rate, local_epochs: local training with Adam.
        temperature: of the self-adversarial weights of negatives; 0 weighs all alike. None takes the algorithm's own, which
            `sampling_temperature` says: 1, or 0 for `fedlu`, which has no such weights and refuses any other value.
        rounds: at most so many; training of `single` and `collective` counts `local_epochs` epochs as a round.
        eval_every: validation after every so many rounds (and after the last).
        patience: stop after so many validations without a better MRR; 0 never stops early.
        participation: share of clients that train in a round, at least one; only they are averaged.
        negative_sides: corrupt tails only (fedr.txt); "both", tails and heads in alternate steps; or "each", every batch's heads
            and then its tails, a step each, so that an epoch has twice the steps (FedLU's code).
        eval_sides: rank tails only (fedr.txt) or both.
        entity_scope: "own", a client trains, corrupts with and ranks its own entities (FedR's code); "all", those of the
            whole federation; "published", ranks all and corrupts with the global ids 0..n-1, n being the number of the
            client's own (the FedE beside FedR's code takes local counts for global ids, so a fifth of a client's entities
            is never drawn and many of another client's are).
        settings: those that the algorithm alone has, see its file in `fkgsec.algorithms`: given as its struct or by name, and
            afterwards its struct, checked, with its own defaults for what was not given.
        defense: what resists the server, in the words of `defenses.options`; empty: nothing does.
        seed: everything random in training derives from it: first rows, order, negatives, participants, simulated dropouts.
            Not what protocols draw: keys, masks, shares and noise come from the operating system.
        protocol_seed: for tests only: fixes what protocols draw, so that whoever has the number opens every upload.
        device: "auto" (CUDA if there is one), "cpu", "cuda", "cuda:1", ...

    Differs: FedLU's code (nju-websoft/FedLU) has the other values of its settings (`fkgsec.algorithms.fedlu`), and "each" for
    `negative_sides`; the specs of its tables set them where the paper is silent. Of what else it does there is no option: it
    weighs triples by frequency, draws batches and negatives once for the run, keeps each client's models at that client's best
    validation, halves the initial range of RotatE's and ComplEx's entities, and begins each direction of distillation when
    validation stalls.
    """

    algorithm: str = "fede"
    model: ModelName = "transe"
    dim: int = 128
    gamma: float = 10.0
    init_epsilon: float = 2.0
    batch_size: int = 512
    num_negatives: int = 256
    temperature: float | None = None
    learning_rate: float = 0.001
    local_epochs: int = 3
    rounds: int = 300
    eval_every: int = 5
    patience: int = 5
    participation: float = 1.0
    negative_sides: NegativeSides = "both"
    eval_sides: Sides = "both"
    entity_scope: EntityScope = "own"
    settings: Any = None
    defense: str = ""
    seed: int = 0
    protocol_seed: int | None = None
    device: str = "auto"

    def __post_init__(self) -> None:
        if self.algorithm not in RECIPES:
            raise SpecError(f"algorithm must be one of {', '.join(RECIPES)}; got {self.algorithm!r}")
        for name in ("batch_size", "num_negatives", "local_epochs", "rounds", "eval_every"):
            if getattr(self, name) < 1:
                raise SpecError(f"{name} must be at least 1; got {getattr(self, name)}")
        for name in ("patience", "seed", "protocol_seed"):
            if (getattr(self, name) or 0) < 0:
                raise SpecError(f"{name} must be at least 0; got {getattr(self, name)}")
        if not (math.isfinite(self.learning_rate) and self.learning_rate > 0):
            raise SpecError(f"learning_rate must be a positive number; got {self.learning_rate}")
        settings = make_settings(RECIPES[self.algorithm].settings, self.settings, self.algorithm)
        msgspec.structs.force_setattr(self, "settings", settings)
        settings.check(self.kge_model().entity_width)
        self._check_temperature()
        if not 0 < self.participation <= 1:
            raise SpecError(f"participation must lie in (0, 1]; got {self.participation}")
        self.kge_model()
        self.private_model()

    def _check_temperature(self) -> None:
        given = self.temperature
        if given is None:
            return
        if not (math.isfinite(given) and given >= 0):
            raise SpecError(f"temperature must be at least 0; got {given}")
        if given != self.sampling_temperature:
            raise SpecError(
                f"temperature does not apply to {self.algorithm} with these settings and {self.model}, which weighs negatives "
                f"alike; leave it out or give 0; got {given:g}"
            )

    def setting(self, name: str) -> float | str:
        """A setting that the algorithm has, as given or at its default."""
        return getattr(self.settings, name)

    @property
    def evaluates_before_broadcast(self) -> bool:
        """Whether shared models are validated, kept and tested as local training left them."""
        return RECIPES[self.algorithm].evaluated == "local" or self.settings.evaluates_before_broadcast

    def num_participants(self, num_clients: int) -> int:
        """How many clients take part in a round, at least one; halves are rounded up."""
        return max(1, math.floor(self.participation * num_clients + 0.5))

    def kge_model(self) -> KgeModel:
        """The model whose rows are shared."""
        return KgeModel(self.model, self.settings.shared_dim(self.dim), self.gamma, self.init_epsilon)

    def private_model(self) -> KgeModel:
        """The model that a client keeps to itself, in algorithms that have one."""
        return KgeModel(self.model, self.dim, self.gamma, self.init_epsilon)

    @property
    def sampling_temperature(self) -> float:
        """Of the weights of negatives, in training and wherever its loss is computed again."""
        return self.settings.sampling_temperature(self.temperature, self.model)

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


Options = TypeVar("Options", bound=FederationOptions)


def replace(options: Options, **changes: Any) -> Options:
    """The options with these changes; settings of the algorithm by their own names, None for the default.

    >>> replace(FederationOptions(algorithm="feds"), rounds=5, sparsity=0.3).settings.sparsity
    0.3
    """
    changes = nested(changes)
    if "settings" in changes and isinstance(changes["settings"], dict):
        changes["settings"] = options.settings.given() | changes["settings"]
    return msgspec.structs.replace(options, **changes)


def nested(fields: Mapping[str, Any]) -> dict[str, Any]:
    """A flat document of options, as the command line and files have it, with the settings of algorithms under "settings"."""
    known = all_settings()
    settings = {name: value for name, value in fields.items() if name in known}
    rest = {name: value for name, value in fields.items() if name not in known}
    return rest | {"settings": dict(rest.get("settings") or {}) | settings} if settings else rest


def flat(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Undo `nested` for the plain values of an encoded struct of options."""
    settings = fields.get("settings")
    return {name: value for name, value in fields.items() if name != "settings"} | dict(settings or {})
