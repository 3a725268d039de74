"""Options of every federation; a task extends them with its own.

    class ShapeOptions(RunOptions[ShapeResult], frozen=True, kw_only=True, forbid_unknown_fields=True):
        task: ClassVar[str] = "shapes"
        width: int = 64
    replace(ShapeOptions(algorithm="fed-shapes"), rounds=5)

Frozen, and validated on construction. Those of knowledge-graph embedding are `fkgsec.kge.options.KgeOptions`.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Generic, TypeVar

import msgspec
from msgspec import Meta

from fkgsec.arguments import Named, check_fields
from fkgsec.errors import SpecError
from fkgsec.federation.recipes import RECIPES, algorithms_of, all_settings
from fkgsec.federation.settings import fields_of, make_settings
from fkgsec.randomness import generator

if TYPE_CHECKING:
    import torch

    from fkgsec.federation.adversary import Adversary


RENAMED = {"sync_every": "sparse_rounds", "wait": "warmup_rounds", "form": "variant", "low_share": "shared_dim_ratio"}
"""New names of renamed settings, by the old name, which run identities use."""

CHECKPOINT_EVERY_S = 20.0

Result_co = TypeVar("Result_co", covariant=True)


class RunOptions(
    msgspec.Struct, Generic[Result_co], metaclass=Named, frozen=True, kw_only=True, forbid_unknown_fields=True
):
    """Options of every task. The type parameter is the type of result that `run_federation` returns for these options.

    Attributes:
        task: name of the task in `fkgsec.federation.task.TASKS` that a subclass adds options for; not an option itself.
        algorithm: a key of `RECIPES`.
        batch_size, learning_rate, local_epochs: local training with Adam.
        rounds: maximum number of rounds; `single` and `collective` count `local_epochs` epochs as a round.
        eval_every: number of rounds between validations; the last round is always validated.
        patience: stop after this many validations without a better one; 0 never stops early.
        participation: share of clients that train in a round, at least one client; only they are averaged.
        settings: settings of the algorithm, see its file in `fkgsec.algorithms`: a struct, or a mapping by name. Afterwards the
            validated struct, with defaults for settings that were left out.
        defense: defenses against the server, as `fkgsec.defenses.options` defines them; empty: none.
        seed: seed of all randomness in training: initial rows, order, negatives, participants, simulated dropouts. Protocols
            draw keys, masks, shares and noise from the operating system instead.
        protocol_seed: for tests only: fixes the draws of protocols, so that anyone who knows the number can open every upload.
        device: "auto" (CUDA if available), "cpu", "cuda", "cuda:1", ...
    """

    task: ClassVar[str] = ""

    algorithm: Annotated[str, Meta(description="algorithm of the federation, such as fede")] = "fede"
    batch_size: Annotated[int, Meta(description="triples or graphs per batch")] = 512
    learning_rate: Annotated[float, Meta(description="learning rate of the optimizer")] = 0.001
    local_epochs: Annotated[int, Meta(description="epochs that a client trains in a round")] = 3
    rounds: Annotated[int, Meta(description="maximum number of rounds")] = 300
    eval_every: Annotated[int, Meta(description="rounds between validations")] = 5
    patience: Annotated[
        int, Meta(description="validations without improvement before training stops; 0: never stop early")
    ] = 5
    participation: Annotated[float, Meta(description="share of clients that train in a round")] = 1.0
    settings: Any = None
    defense: Annotated[str, Meta(description="defenses, such as psu,secagg or dp:epsilon=8,clip=0.1")] = ""
    seed: Annotated[int, Meta(description="seed of all randomness in training")] = 0
    protocol_seed: Annotated[
        int | None,
        Meta(
            description="for tests only: fixes keys, masks and noise of the defense, which otherwise come from the "
            "operating system; without a defense there is nothing to fix"
        ),
    ] = None
    device: Annotated[str, Meta(description="auto, cpu, cuda or cuda:N")] = "auto"

    def __post_init__(self) -> None:
        check_fields(self)
        if self.algorithm not in RECIPES:
            allowed_names = algorithms_of(self.task) if self.task else RECIPES
            raise SpecError(f"algorithm must be one of {', '.join(allowed_names)}; got {self.algorithm!r}")
        if self.task and self.task != RECIPES[self.algorithm].task:
            fitting = ", ".join(algorithms_of(self.task))
            raise SpecError(
                f"algorithm {self.algorithm!r} is one of the task {RECIPES[self.algorithm].task!r}; {type(self).__name__} has "
                f"the options of {self.task!r}, whose algorithms are {fitting}"
            )
        for name in ("batch_size", "local_epochs", "rounds", "eval_every"):
            if getattr(self, name) < 1:
                raise SpecError(f"{name} must be at least 1; got {getattr(self, name)}")
        # 0 is allowed for these three; `protocol_seed` may be None.
        for name in ("patience", "seed", "protocol_seed"):
            if (getattr(self, name) or 0) < 0:
                raise SpecError(f"{name} must be at least 0; got {getattr(self, name)}")
        if not (math.isfinite(self.learning_rate) and self.learning_rate > 0):
            raise SpecError(f"learning_rate must be a positive number; got {self.learning_rate}")
        if not 0 < self.participation <= 1:
            raise SpecError(f"participation must lie in (0, 1]; got {self.participation}")
        # Users may give a mapping; afterwards the options always have the algorithm's struct.
        settings = make_settings(RECIPES[self.algorithm].settings, self.settings, self.algorithm)
        msgspec.structs.force_setattr(self, "settings", settings)

    @property
    def evaluates_before_broadcast(self) -> bool:
        """Return whether shared models are validated, selected and tested before the broadcast."""
        return RECIPES[self.algorithm].evaluated == "local" or self.settings.evaluates_before_broadcast

    @property
    def keeps_optimizer(self) -> bool:
        """Return whether the moments of local training's optimizer outlive a round."""
        return RECIPES[self.algorithm].keep_optimizer and not self.settings.resets_optimizer

    @property
    def keeps_last(self) -> bool:
        """Return whether the last round is the best round, whatever validation says."""
        return False

    @property
    def keeps_by_client(self) -> bool:
        """Return whether each client selects its own best round."""
        return False

    def exchanges(self, round: int) -> bool:
        """Return whether shared rows are exchanged in a round; every party can compute this."""
        return self.settings.exchanges(round, self.seed)

    def first_exchange(self) -> set[int]:
        """Return the first round in which shared rows are exchanged; empty if they never are."""
        return set(itertools.islice(filter(self.exchanges, range(1, self.rounds + 1)), 1))

    def num_participants(self, num_clients: int, round: int | None = None) -> int:
        """Return the number of clients that take part in a round, at least one; halves are rounded up.

        Args:
            num_clients: of the federation.
            round: number of the round; None: without dropouts.
        """
        # floor(x + 0.5): Python's round would round halves to even numbers.
        count = max(1, math.floor(self.participation * num_clients + 0.5))
        return count if round is None else self.settings.num_present(count, round, self.seed)

    def participants(self, num_clients: int, round: int) -> list[int]:
        """Draw the client indices of a round without replacement, in ascending order; every party can compute this.

        Args:
            num_clients: of the federation.
        """
        count = self.num_participants(num_clients, round)
        # Without an exchange every client trains on its own: there is nobody to sample for.
        if count == num_clients or not RECIPES[self.algorithm].shared:
            return list(range(num_clients))
        drawn = generator(self.seed, "participants", round).choice(num_clients, size=count, replace=False)
        return sorted(int(client) for client in drawn)

    def is_checked(self, round: int) -> bool:
        """Return whether models are validated in a round: every `eval_every`-th, and the last."""
        return round % self.eval_every == 0 or round == self.rounds

    def identity(self) -> dict[str, Any]:
        """Return the values that distinguish a run, by name: all options except the device and those that are None.

        `run_identity` adds the settings of the algorithm.
        """
        # The device does not change what a run is.
        encoded = msgspec.json.encode(msgspec.structs.replace(self, device="auto"))
        fields = msgspec.structs.asdict(msgspec.json.decode(encoded, type=type(self)))  # 4 and 4.0 are one value
        return {name: value for name, value in fields.items() if value is not None and name != "settings"}

    def torch_device(self) -> torch.device:
        """Return the device that `device` names. Raises `SpecError` if the machine does not have it."""
        import torch  # the command line reads options without it

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


Options = TypeVar("Options", bound=RunOptions)


def replace(options: Options, **changes: Any) -> Options:
    """Return options with changes.

    Args:
        options: to copy.
        changes: options by name; settings of the algorithm by their names, None for the default.

    >>> replace(RunOptions(algorithm="feds"), rounds=5, sparsity=0.3).settings.sparsity
    0.3
    """
    # Settings may be given by their own names, next to options.
    changes = nested(changes)
    if "settings" in changes and isinstance(changes["settings"], dict):
        changes["settings"] = options.settings.given() | changes["settings"]
    for name in changes:
        if name not in options.__struct_fields__:
            type(options)(**{name: changes[name]})  # raises the error for an unknown name
    return msgspec.structs.replace(options, **changes)


def nested(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Move the settings of algorithms under "settings", from a flat document as in files and on the command line.

    Args:
        fields: options and settings by name.
    """
    settings_by_name = all_settings()
    settings = {name: value for name, value in fields.items() if name in settings_by_name}
    rest = {name: value for name, value in fields.items() if name not in settings_by_name}
    return rest | {"settings": dict(rest.get("settings") or {}) | settings} if settings else rest


def flat(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Undo `nested`.

    Args:
        fields: plain values of an encoded struct of options.
    """
    settings = fields.get("settings")
    return {name: value for name, value in fields.items() if name != "settings"} | dict(settings or {})


def run_identity(
    graph: Any, options: RunOptions, adversary: Adversary | None = None, spelled: Collection[str] = ()
) -> str:
    """Hash what a checkpoint must agree with: data, options except the device, and the adversary.

    Equal values such as 4 and 4.0 hash alike. Settings at their defaults are excluded, so that a new setting does not change
    the identity of earlier runs. For their sake, renamed settings keep their old names here.

    Args:
        graph: with a `hash`.
        options: of the run.
        adversary: of the run, or None.
        spelled: settings to include although they are at their defaults.

    Returns:
        sha256 in hexadecimal.
    """
    old = {new: name for name, new in RENAMED.items()}
    named = options.settings.given() | {name: getattr(options.settings, name) for name in spelled}
    # Old names keep the identities of stored runs valid.
    identity = options.identity() | {old.get(name, name): value for name, value in named.items()}
    parts: list[Any] = [graph.hash, identity, *([adversary.identity()] if adversary else [])]
    return hashlib.sha256(msgspec.json.encode(parts, order="sorted")).hexdigest()


def run_identities(graph: Any, options: RunOptions, adversary: Adversary | None = None) -> tuple[str, ...]:
    """Return the run's identity, and those under which records of version 0.1 may name it.

    Those records included settings that users gave at their defaults. Version 0.1 had knowledge graphs only, whose
    algorithms have up to five settings; all combinations of the 19 settings of `cefgl` would take most of a minute.

    Args:
        graph, options, adversary: as in `run_identity`.
    """
    # Only settings at their defaults could have been spelled or left out.
    explicit = options.settings.given()
    old = RECIPES[options.algorithm].task == "kge"
    names = [setting.name for setting in fields_of(type(options.settings)) if old and setting.name not in explicit]
    choices = itertools.chain.from_iterable(itertools.combinations(names, count) for count in range(len(names) + 1))
    return tuple(run_identity(graph, options, adversary, spelled) for spelled in choices)
