"""What the spec of a run has, whatever it trains: `fkgsec.experiments.tasks.kge.Spec` and
`fkgsec.experiments.tasks.graph.GraphSpec` are such.

    spec = make_spec(None, {"algorithm": "cefgl", "data": "MUTAG,BZR"})     # a GraphSpec, since cefgl classifies graphs
    result = run_federation(spec.load_graph(), spec.federation_options())

A spec is a flat document: every option of the command line is a field of it, and a key of `--config spec.yaml`.
"""

from __future__ import annotations

from typing import Any, ClassVar, Self

import msgspec

from fkgsec.defenses.options import check_defense
from fkgsec.errors import SpecError
from fkgsec.federation.options import flat, replace

MOST_SEEDS = 10_000  # that one command trains


def with_attacks(options: type[Any], attacks: type[Any]) -> Any:
    """The type of options of a run that has the options of attacks on it, too; `seed` is the run's.

    Structs cannot have two bases with fields, so this adds the fields of the second one.
    """
    fields = [field for field in msgspec.structs.fields(attacks) if field.name not in options.__struct_fields__]
    body = {"__module__": __name__, "__annotations__": {field.name: field.type for field in fields}}
    defaults = {field.name: field.default for field in fields}
    name = f"{options.__name__}And{attacks.__name__}"
    make: Any = type(options)
    return make(name, (options,), body | defaults, frozen=True, kw_only=True, forbid_unknown_fields=True)


class RunSpec:
    """A federation, its data and the attack on it: a mixin for structs that extend the options of a task.

    Attributes:
        task: the task. options_type: its options, which `run_federation` takes. attacks_type: those of attacks on it.
        data: what the clients hold. clients: over how many it is divided. partition: how. size: of what is generated.
        split_seed: of divisions and generated data; `seed` redraws neither.
        attack_seed: what attacks draw comes from; None: the number of the run's seed.
        The others are those of `RunOptions` and of the options of attacks.
    """

    __slots__ = ()

    task: ClassVar[str]
    options_type: ClassVar[type[Any]]
    attacks_type: ClassVar[type[Any]]
    algorithm: str
    model: str
    settings: Any
    defense: str
    rounds: int
    eval_every: int
    patience: int
    seed: int
    device: str
    data: str
    clients: int | None
    partition: Any  # a word of the task, or None
    size: int | None
    split_seed: int
    threat: tuple[str, ...]
    colluder: tuple[str, ...] | str | None
    attack: tuple[str, ...]
    attack_seed: int | None

    def check(self) -> None:
        """Raises `SpecError` for what no task allows."""
        options: Any = self  # a spec is a struct of options, which a mixin cannot say
        check_defense(options)
        for name in ("split_seed", "attack_seed"):
            if (value := getattr(self, name)) is not None and value < 0:
                raise SpecError(f"{name} must be at least 0; got {value}")
        for name in ("clients", "size"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise SpecError(f"{name} must be at least 1; got {value}")

    def federation_options(self) -> Any:
        """The part that `run_federation` takes, an `options_type`."""
        return self.options_type(**{name: getattr(self, name) for name in self.options_type.__struct_fields__})

    def attack_options(self) -> Any:
        """The part that `fkgsec.attacks.registry.run_attacks` takes, an `attacks_type`."""
        options = self.attacks_type(**{name: getattr(self, name) for name in self.attacks_type.__struct_fields__})
        return options if self.attack_seed is None else msgspec.structs.replace(options, seed=self.attack_seed)

    def settled(self) -> Self:
        """The same run with what is left to the algorithm spelled out; the device aside, which changes no option."""
        return self.replace(device="auto")

    def replace(self, **changes: Any) -> Self:
        """The spec with these changes; settings of the algorithm by their own names."""
        options: Any = self
        return replace(options, **changes)

    def document(self) -> dict[str, Any]:
        """Every option as plain values by its name, as it stands in files and on the command line."""
        return flat(msgspec.to_builtins(self))

    def load_graph(self) -> Any:
        """The clients' data. Raises `DataError` where they cannot be read, `SpecError` for options that do not fit them."""
        raise NotImplementedError
