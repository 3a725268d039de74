"""Fields and methods that the specs of both tasks share.

    spec = make_spec(None, {"algorithm": "cefgl", "data": "MUTAG,BZR"})     # a GraphSpec, because cefgl classifies graphs
    result = run_federation(spec.load_graph(), spec.federation_options())

A spec is a flat document: every option of the command line is a field of it, and a key of `--config spec.yaml`.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Self

import msgspec
from msgspec import Meta

from fkgsec.defenses.options import check_defense
from fkgsec.errors import SpecError
from fkgsec.federation.options import flat, replace

MOST_SEEDS = 10_000  # that one command trains


class SharedOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of data and attacks that the specs of both tasks have."""

    clients: Annotated[int | None, Meta(description="number of clients to divide the data among, or to generate")] = (
        None
    )
    size: Annotated[int | None, Meta(description="number of triples (embedded consortium) or of generated graphs")] = (
        None
    )
    split_seed: Annotated[int, Meta(description="seed of splits and generated data; --seed does not change them")] = 0
    attack_seed: Annotated[int | None, Meta(description="seed of the attack (default: the value of --seed)")] = None


def with_attacks(options: type[Any], attacks: type[Any]) -> Any:
    """Return a struct with the options of a run, those of attacks, and the shared ones.

    Structs cannot have two bases with fields, so the type is created at run time. Fields of the run win, such as `seed`.

    Args:
        options: struct of a run's options.
        attacks: struct of the options of attacks.
    """
    # Fields of the run come first and keep their defaults.
    further = (*msgspec.structs.fields(attacks), *msgspec.structs.fields(SharedOptions))
    fields = [field for field in further if field.name not in options.__struct_fields__]
    body = {"__module__": __name__, "__annotations__": {field.name: field.type for field in fields}}
    defaults = {field.name: field.default for field in fields}
    name = f"{options.__name__}And{attacks.__name__}"
    make: Any = type(options)
    return make(name, (options,), body | defaults, frozen=True, kw_only=True, forbid_unknown_fields=True)


class RunSpec:
    """A federation, its data and the attack on it: a mixin for structs that extend the options of a task.

    Attributes:
        options_type: options of `run_federation`.
        attacks_type: options of attacks.
        clients: number of clients that share the data.
        partition: method of dividing the data.
        size: size of generated data.
        split_seed: seed of divisions and generated data; `seed` changes neither.
        attack_seed: seed of attacks; None for the run's.
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
    # A word of the task, or None.
    partition: Any
    size: int | None
    split_seed: int
    threat: tuple[str, ...]
    colluder: tuple[str, ...] | str | None
    attack: tuple[str, ...]
    attack_seed: int | None

    def check(self) -> None:
        """Check the options that both tasks have. Raises `SpecError`."""
        # A spec is a struct of options, which a mixin cannot declare.
        options: Any = self
        check_defense(options)
        for name, least in (("split_seed", 0), ("attack_seed", 0), ("clients", 1), ("size", 1)):
            if (value := getattr(self, name)) is not None and value < least:
                raise SpecError(f"{name} must be at least {least}; got {value}")

    def federation_options(self) -> Any:
        """Return the options of `run_federation`, an `options_type`."""
        return self.options_type(**{name: getattr(self, name) for name in self.options_type.__struct_fields__})

    def attack_options(self) -> Any:
        """Return the options of `fkgsec.attacks.registry.run_attacks`, an `attacks_type`."""
        options = self.attacks_type(**{name: getattr(self, name) for name in self.attacks_type.__struct_fields__})
        return options if self.attack_seed is None else msgspec.structs.replace(options, seed=self.attack_seed)

    def settled(self) -> Self:
        """Return the spec with values left to the algorithm filled in, and the device reset, because it changes no result."""
        return self.replace(device="auto")

    def replace(self, **changes: Any) -> Self:
        """Return a changed copy.

        Args:
            changes: options by name; an algorithm's settings by their own names.
        """
        options: Any = self
        return replace(options, **changes)

    def document(self) -> dict[str, Any]:
        """Return every option by its name in files and on the command line, as plain values."""
        return flat(msgspec.to_builtins(self))

    def load_graph(self) -> Any:
        """Load the clients' data.

        Raises:
            DataError: the data cannot be read.
            SpecError: options do not fit the data.
        """
        raise NotImplementedError
