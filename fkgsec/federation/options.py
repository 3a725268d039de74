"""The options of a federation: what is trained, how, and for how long. Frozen; checked when made."""

from __future__ import annotations

import math
from typing import Any, Literal, get_args

import msgspec
import torch

from fkgsec.errors import SpecError
from fkgsec.federation.costs import equal_cost_dim
from fkgsec.federation.objectives import ObjectiveName
from fkgsec.federation.recipes import RECIPES
from fkgsec.kge.models import KgeModel, ModelName
from fkgsec.kge.ranking import Sides

EntityScope = Literal["own", "all", "published"]
Affinity = Literal["shared", "embedding"]
Start = Literal["received", "own"]
Form = Literal["paper", "published"]
Proximal = Literal["distance", "squared"]
NegativeSides = Literal["tail", "both", "each"]
Evaluate = Literal["after", "before"]
PrivateStart = Literal["own", "server"]

_RANGES = {
    "mu": (0, 1_000_000),
    "sparsity": (0, 1),
    "sync_every": (0, 1_000_000),
    "mixing": (0, 1),
    "rank": (1, 1_000_000),
    "columns": (1, 1_000_000),
    "low_share": (0, 1),
    "wait": (0, 1_000_000),
}
_CHOICES: dict[str, Any] = {
    "affinity": Affinity,
    "start": Start,
    "form": Form,
    "proximal": Proximal,
    "evaluate": Evaluate,
    "private_start": PrivateStart,
}


class FederationOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of one federation. Defaults are those of fedr.txt appendix B where it names them.

    The options from `mu` to `private_start` belong to some algorithms only (`Recipe.settings`, which has their defaults); None
    takes the algorithm's own, and one that the algorithm does not have is an error.

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
        mu: weight of the recipe's further objective, or of its distillation.
        proximal: how far a client's table is from the one received: "squared", mu / 2 |w - w_t|^2, as FedProx defines it and
            the code of FedLU's authors has it; or "distance", mu |w - w_t|, as their paper words it.
        tau: temperature of the contrastive objective.
        sparsity: share p of its shared rows that a client and the server send in a round between two synchronisations.
        sync_every: so many rounds lie between two in which all rows are sent; 0: none ever is.
        affinity: how PFedEG weighs two clients, by the entities that they share or by the embeddings of these.
        mixing: PFedEG's p, the share of the others' knowledge in what a client receives.
        start: what a round's training starts from, the rows received or the client's own (`_Reg` in pfedeg.txt 4.4).
        rank, columns: an update of an entity is a matrix of so many columns, of which so many singular values are sent.
        low_share: dimension of the model that is shared over that of the one that is not.
        wait: so many rounds pass before FedLU's two models learn from each other; 0 is the paper's Algorithm 1. Ours: its code
            begins without, too, but switches each direction on by what validation says of both models.
        form: "paper", or "published": as FedLU's code does.
        evaluate: whether shared models are validated, kept and tested "after" the broadcast of a round, or "before" it, as local
            training left them (FedLU's code, in FedE, FedProx and FedEC, too).
        private_start: first entity rows of the model that a client keeps to itself: drawn on its "own", or those that the
            "server" sends in round 0, so that both models start alike (FedLU's code).
        defense: what resists the server, in the words of `defenses.options`; empty: nothing does.
        seed: everything random in training derives from it: first rows, order, negatives, participants, simulated dropouts.
            Not what protocols draw: keys, masks, shares and noise come from the operating system.
        protocol_seed: for tests only: fixes what protocols draw, so that whoever has the number opens every upload.
        device: "auto" (CUDA if there is one), "cpu", "cuda", "cuda:1", ...

    Differs: FedLU's code (nju-websoft/FedLU) has the other values of `form`, `evaluate` and `private_start`, and "each" for
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
    mu: float | None = None
    proximal: Proximal | None = None
    tau: float = 0.2
    sparsity: float | None = None
    sync_every: int | None = None
    affinity: Affinity | None = None
    mixing: float | None = None
    start: Start | None = None
    rank: int | None = None
    columns: int | None = None
    low_share: float | None = None
    wait: int | None = None
    form: Form | None = None
    evaluate: Evaluate | None = None
    private_start: PrivateStart | None = None
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
        for name in ("learning_rate", "tau"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise SpecError(f"{name} must be a positive number; got {value}")
        self._check_settings()
        self._check_temperature()
        if not 0 < self.participation <= 1:
            raise SpecError(f"participation must lie in (0, 1]; got {self.participation}")
        self.kge_model()
        self.private_model()

    def _check_settings(self) -> None:
        settings = RECIPES[self.algorithm].settings
        defaults = {field.name: field.default for field in msgspec.structs.fields(FederationOptions)}
        for name in sorted({name for recipe in RECIPES.values() for name in recipe.settings} - set(settings)):
            if getattr(self, name) != defaults[name]:
                raise SpecError(f"{name} does not apply to {self.algorithm}, which has no such part; leave it out")
        for name, (low, high) in _RANGES.items():
            if name in settings and not low <= float(self.setting(name)) <= high:
                raise SpecError(f"{name} must lie in {low:g}..{high:,}; got {self.setting(name)}")
        for name, allowed in _CHOICES.items():
            if name in settings and self.setting(name) not in get_args(allowed):
                raise SpecError(f"{name} must be one of {', '.join(get_args(allowed))}; got {self.setting(name)!r}")
        if "rank" in settings:
            rank, columns, width = (
                int(self.setting("rank")),
                int(self.setting("columns")),
                self.kge_model().entity_width,
            )
            if width % columns or columns >= width // columns or rank > columns:
                raise SpecError(
                    f"rank and columns: an update of {width} numbers is no matrix of {columns} columns, more rows, and {rank} "
                    "singular values"
                )

    def _check_temperature(self) -> None:
        given = self.temperature
        if given is None:
            return
        if not (math.isfinite(given) and given >= 0):
            raise SpecError(f"temperature must be at least 0; got {given}")
        if given != self.sampling_temperature:
            raise SpecError(
                f"temperature does not apply to {self.algorithm} (form {self.setting('form')}, {self.model}), which weighs "
                f"negatives alike; leave it out or give 0; got {given:g}"
            )

    def setting(self, name: str) -> float | str:
        """An option that the algorithm has, as given or the algorithm's own."""
        given = getattr(self, name)
        return RECIPES[self.algorithm].settings[name] if given is None else given

    @property
    def objective(self) -> ObjectiveName:
        """What clients add to their loss."""
        recipe = RECIPES[self.algorithm]
        if "proximal" not in recipe.settings:
            return recipe.objective
        return "distance" if self.setting("proximal") == "distance" else "squared"

    @property
    def evaluates_before_broadcast(self) -> bool:
        """Whether shared models are validated, kept and tested as local training left them."""
        recipe = RECIPES[self.algorithm]
        return self.setting("evaluate") == "before" if "evaluate" in recipe.settings else recipe.evaluated == "local"

    def num_participants(self, num_clients: int) -> int:
        """How many clients take part in a round, at least one; halves are rounded up."""
        return max(1, math.floor(self.participation * num_clients + 0.5))

    def kge_model(self) -> KgeModel:
        """The model whose rows are shared."""
        recipe, dim = RECIPES[self.algorithm], self.dim
        if recipe.equal_cost:
            dim = equal_cost_dim(float(self.setting("sparsity")), int(self.setting("sync_every")), dim)
        if "low_share" in recipe.settings:
            dim = math.ceil(float(self.setting("low_share")) * dim)
        return KgeModel(self.model, dim, self.gamma, self.init_epsilon)

    def private_model(self) -> KgeModel:
        """The model that a client keeps to itself, in algorithms that have one."""
        return KgeModel(self.model, self.dim, self.gamma, self.init_epsilon)

    @property
    def sampling_temperature(self) -> float:
        """Of the weights of negatives, in training and wherever its loss is computed again."""
        if "form" in RECIPES[self.algorithm].settings:
            return self.fedlu_temperature(str(self.setting("form")))
        return 1.0 if self.temperature is None else self.temperature

    def fedlu_temperature(self, form: str) -> float:
        """FedLU weighs negatives alike (fedlu.txt Eq. 7), its code so but for RotatE."""
        if form != "published" or self.model != "rotate":
            return 0.0
        return 1.0 if self.temperature is None else self.temperature

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
