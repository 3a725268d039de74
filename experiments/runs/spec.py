"""A run as one flat document: every option of the command line is a field here, and a key of `--config spec.yaml`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import typer

from attacks.reconstruction.inference import Inference
from attacks.reconstruction.options import AttackOptions, Metric
from attacks.registry import RECONSTRUCTION, check_attacks
from defenses.options import check_defense, parse_defense
from experiments.runs.choices import allowed, spelled, spelled_defense
from experiments.runs.documents import read_document
from fkgsec.data.catalogue import load_dataset
from fkgsec.data.consortium import generate_consortium
from fkgsec.data.graph import FederatedGraph
from fkgsec.data.partition import PARTITIONS, partition
from fkgsec.errors import SpecError
from fkgsec.federation.options import RENAMED as RENAMED_SETTINGS
from fkgsec.federation.options import FederationOptions, flat, nested
from fkgsec.federation.recipes import all_settings

CONSORTIUM = "consortium"
DEFAULT_CLIENTS = 3
DEFAULT_SIZE = 13_500
RENAMED = {"epsilon": "init_epsilon", **RENAMED_SETTINGS}
"""Options that have got another name, by the old one, which is accepted with a warning in this version alone."""


class Spec(FederationOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A federation, its data and the attack on it.

    Attributes (beside those of `FederationOptions` and `AttackOptions`):
        data: "consortium" (the embedded default), a catalogue name (`fkgsec data list`), a folder or a file.
        clients: how many clients a graph is divided among; None: 3, or what the data come with.
        partition: how a graph that is not divided yet is divided, one of `PARTITIONS`; None: triples at random.
        size: triples of the embedded consortium; None: `DEFAULT_SIZE`.
        split_seed: of the division of a graph among clients, and of the embedded consortium; `seed` redraws neither.
        attack_seed: `seed` of `AttackOptions`, which the attack's own draws come from; None: the number of the run's seed, so
            that several runs have several shares leaked.
    """

    data: str = CONSORTIUM
    clients: int | None = None
    partition: str | None = None
    size: int | None = None
    split_seed: int = 0
    threat: tuple[str, ...] = ()
    leak: tuple[float, ...] = (0.5,)
    colluder: str | None = None
    inference: tuple[Inference, ...] | Inference = ()
    metric: Metric = "paper"
    unlinked_heads: int = 200
    attack_seed: int | None = None
    attack: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        msgspec.structs.force_setattr(self, "inference", self.attack_options().inference)
        check_defense(self)
        if self.metric == "published" and parse_defense(self.defense).secagg:
            raise SpecError("metric published counts uploads in clear; take metric paper where they are summed")
        if self.attack_seed is not None and self.attack_seed < 0:
            raise SpecError(f"attack_seed must be at least 0; got {self.attack_seed}")
        if self.attack and RECONSTRUCTION not in self.attack and (self.inference or self.metric != "paper"):
            name = "inference" if self.inference else "metric"
            raise SpecError(
                f"{name} applies to the attack {RECONSTRUCTION}, which attack leaves out; leave it out, too"
            )
        if self.split_seed < 0:
            raise SpecError(f"split_seed must be at least 0; got {self.split_seed}")
        if self.clients is not None and self.clients < 1:
            raise SpecError(f"clients must be at least 1; got {self.clients}")
        if self.partition is not None and self.partition not in PARTITIONS:
            raise SpecError(f"partition must be one of {', '.join(PARTITIONS)}; got {self.partition!r}")
        if self.size is not None and self.size < 1:
            raise SpecError(f"size must be at least 1; got {self.size}")

    def federation_options(self) -> FederationOptions:
        """The part that `run_federation` takes."""
        return FederationOptions(**{name: getattr(self, name) for name in FederationOptions.__struct_fields__})

    def attack_options(self) -> AttackOptions:
        """The part that `attack_federation` takes."""
        options = AttackOptions(**{name: getattr(self, name) for name in AttackOptions.__struct_fields__})
        return options if self.attack_seed is None else msgspec.structs.replace(options, seed=self.attack_seed)

    def settled(self) -> Spec:
        """The same run with what is left to the algorithm spelled out; the device aside, which changes no option."""
        return msgspec.structs.replace(self, device="auto", temperature=self.sampling_temperature)

    def document(self) -> dict[str, Any]:
        """Every option as plain values by its name, as it stands in files and on the command line."""
        return flat(msgspec.to_builtins(self))

    def load_graph(self) -> FederatedGraph:
        """The federation of graphs that `data`, `clients`, `partition`, `size` and `split_seed` name.

        Raises:
            DataError: the data cannot be read. SpecError: options that do not fit the data.
        """
        if self.data == CONSORTIUM:
            if self.partition is not None:
                raise SpecError(
                    "partition does not apply to the embedded consortium, which is born divided; leave it out"
                )
            size = DEFAULT_SIZE if self.size is None else self.size
            return generate_consortium(clients=self.clients or DEFAULT_CLIENTS, size=size, seed=self.split_seed)
        if self.size is not None:
            raise SpecError("size applies to the embedded consortium only; leave it out")
        graph = load_dataset(self.data)
        if isinstance(graph, FederatedGraph):
            if self.partition is not None:
                raise SpecError(f"partition does not apply to {graph.name}, which is divided already; leave it out")
            if self.clients not in (None, len(graph.clients)):
                raise SpecError(f"clients is {self.clients}, but {graph.name} has {len(graph.clients)}; leave it out")
            return graph
        return partition(graph, self.partition or "triples", self.clients or DEFAULT_CLIENTS, self.split_seed)


def make_spec(config: Path | None, given: dict[str, Any]) -> Spec:
    """Defaults, overridden by the YAML or JSON file, overridden by what was given (None = not given).

    Raises:
        SpecError: the file cannot be read, or a field is unknown or has a value that is not allowed; names the field, the line
            of the file where it stands there, and the nearest name or word.
    """
    given = {key: value for key, value in given.items() if value is not None}
    if config is None:
        return _converted(current_names(given, "options"))
    document = read_document(config)
    loaded = document.mapping((), document.content, (*option_names(), *RENAMED))
    given = current_names(given, "options")
    fields = current_names(loaded, str(config))
    try:
        return _converted(fields | given)
    except SpecError as error:
        # Every message begins with the option's name; an option of the command line has no line in the file.
        name = re.split(r"\W", str(error), maxsplit=1)[0]
        written = next((old for old, new in RENAMED.items() if new == name and old in loaded), name)
        if written not in loaded or name in given:
            raise
        raise SpecError(f"{config}:{document.line((written,))}: {error}") from error


def allowed_words(name: str) -> tuple[str, ...]:
    """The words that an option of a run may have; empty where it is no choice of words.

    >>> allowed_words("eval_sides"), allowed_words("dim")
    (('tail', 'both'), ())
    """
    settings = all_settings("kge").get(name, {}).values()
    return tuple(dict.fromkeys(word for one in settings for word in one.choices)) or allowed(name, Spec)


def _converted(fields: dict[str, Any]) -> Spec:
    fields = {
        name: spelled(name, value, words) if (words := allowed_words(name)) else value for name, value in fields.items()
    }
    if isinstance(fields.get("defense"), str):
        fields["defense"] = spelled_defense(fields["defense"])
    try:
        spec = msgspec.convert(nested(fields), Spec)
    except msgspec.ValidationError as error:
        raise SpecError(_plain(str(error), fields)) from error
    check_attacks(spec.attack)
    return spec


def option_names() -> list[str]:
    """Every option that a run may have, those of single algorithms included."""
    return [*(name for name in Spec.__struct_fields__ if name != "settings"), *all_settings("kge")]


def current_names(fields: dict[str, Any], where: str) -> dict[str, Any]:
    """Options under their present names, with a warning on standard error for each old one. Raises `SpecError` for both."""
    for old in [name for name in fields if name in RENAMED]:
        new = RENAMED[old]
        if new in fields:
            raise SpecError(f"{where}: {old} is the old name of {new}; give one of them")
        typer.echo(f"warning: {where}: {old} is called {new} now; the old name is read in this version alone", err=True)
        fields = {RENAMED.get(name, name) if name == old else name: value for name, value in fields.items()}
    return fields


def _plain(message: str, fields: dict[str, Any]) -> str:
    """msgspec's message with the field's name first and its value."""
    text, _, path = message.partition(" - at `$.")
    name, text = path.rstrip("`").split("[")[0], text.replace("`array`", "a list")
    return f"{name}: {text}; got {fields.get(name)!r}" if name else text
