"""`fkgsec describe NAME`: an algorithm, attack, defense or threat model with its source, settings and compatible parts.

for line in describe("feds"):
    print(line)
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

import msgspec
import typer

from fkgsec.attacks.options import THREAT_MODELS
from fkgsec.defenses.options import KINDS, check_defense
from fkgsec.errors import SpecError
from fkgsec.experiments.cli.console import complete_from, make_console, print_lines
from fkgsec.experiments.cli.options import description
from fkgsec.experiments.tasks.task import task_named
from fkgsec.federation.recipes import RECIPES, Recipe
from fkgsec.federation.settings import fields_of as settings_of

# One usable example of each defense, with the settings that it requires.
DEFENSES = ("secagg", "psu,secagg", "secagg,suppress:t=2", "dp:clip=0.1,epsilon=8", "robust:rule=clip")
EXAMPLES = "Examples:\n\n  fkgsec describe feds\n\n  fkgsec describe dp\n\n  fkgsec describe membership"


def describe_part(
    name: Annotated[
        str,
        typer.Argument(
            help="name of an algorithm, attack, defense or threat model",
            autocompletion=complete_from(lambda: (*RECIPES, *KINDS, *THREAT_MODELS)),
        ),
    ],
) -> None:
    """Describe an algorithm, attack, defense or threat model: what it is, its source and its settings."""
    print_lines(make_console(), describe(name))


def describe(name: str) -> list[str]:
    """Describe every part with this name; an algorithm and an attack may share it.

    Args:
        name: name of an algorithm, defense, threat model or attack.

    Returns:
        Lines for the terminal.

    Raises:
        SpecError: no part has this name; the message lists all names.
    """
    # The registry imports every attack; completion of names must stay fast.
    from fkgsec.attacks.registry import ATTACKS

    parts: list[str] = []
    if name in RECIPES:
        parts += _algorithm(name)
    if name in KINDS:
        parts += _defense(name)
    if name in THREAT_MODELS:
        parts += _threat_model(name)
    if name in ATTACKS:
        parts += _attack(name)
    if not parts:
        names = ", ".join((*RECIPES, *KINDS, *THREAT_MODELS, *ATTACKS))
        raise SpecError(f"nothing is named {name!r}; names: {names}")
    return parts


def _algorithm(name: str) -> Iterator[str]:
    from fkgsec.attacks.registry import attacks_of

    recipe = RECIPES[name]
    yield f"{name}: algorithm, {task_named(recipe.task).about}. Use --algorithm {name}."
    yield f"Source: {recipe.source}."
    if recipe.pooled:
        yield "One party trains on the data of all clients. There is no victim to attack."
    else:
        yield f"Clients send rows of: {', '.join(recipe.shared) or 'nothing'}."
    if recipe.shared:
        fitting = [defense for defense in DEFENSES if refusal(recipe, defense) is None]
        yield f"Defenses that it can run under: {'; '.join(fitting) or 'none'}."
        # An attack fits if the algorithm meets its needs under at least one of its threat models.
        able = [
            attack
            for attack, definition in attacks_of(recipe.task).items()
            if any(
                definition.needs_under(THREAT_MODELS[model]).never(name, THREAT_MODELS[model]) is None
                for model in definition.threat_models
            )
        ]
        yield f"Attacks whose needs it meets: {', '.join(able) or 'none'}."
    if fields := settings_of(recipe.settings):
        yield "Settings:"
        for field in fields:
            option = f"--{field.name.replace('_', '-')}"
            yield f"  {option} (default: {field.default}; {field.allowed}): {field.help}"


def refusal(recipe: Recipe, defense: str) -> str | None:
    """Return why an algorithm cannot run under a defense; None if it can.

    Args:
        defense: text of `--defense`, such as `psu,secagg`.
    """
    try:
        check_defense(task_named(recipe.task).spec(algorithm=recipe.name, defense=defense))
    except SpecError as error:
        return str(error)
    return None


def _defense(name: str) -> Iterator[str]:
    kind = KINDS[name]
    # A registered extension states its own text; built-in defenses use their docstring.
    about = (kind.about or inspect.cleandoc(kind.__doc__ or "").partition("\nAttributes")[0]).strip()
    yield f"{name}: defense. Use --defense {name}, with settings as in {name}:KEY=VALUE,KEY=VALUE."
    yield " ".join(about.split())
    yield from _setting_lines(kind)


def _threat_model(name: str) -> Iterator[str]:
    from fkgsec.attacks.registry import attacks_of

    model = THREAT_MODELS[name]
    yield f"{name}: threat model. Use --threat {name}."
    for task, line in model.lines.items():
        attacks = [attack for attack, definition in attacks_of(task).items() if name in definition.threat_models]
        yield f"{task_named(task).about}: {line}. Attacks: {', '.join(attacks) or 'none'}."


def _attack(name: str) -> Iterator[str]:
    from fkgsec.attacks.registry import ATTACKS

    attack = ATTACKS[name]
    yield f"{name}: attack, {task_named(attack.task).about}. Use --attack {name}."
    yield f"{attack.about[:1].upper()}{attack.about[1:]}."
    yield f"Needs: {attack.need_words}. Threat models: {', '.join(attack.threat_models)}."
    yield "Measures:"
    yield from (f"  {name}.{metric}: {about}" for metric, about in attack.metrics.items())
    if attack.settings is not None:
        yield from _setting_lines(attack.settings)


def _setting_lines(kind: type[msgspec.Struct]) -> Iterator[str]:
    if settings := settings_of_struct(kind):
        yield "Settings:"
    for setting in settings:
        default = setting.default if setting.default == "required" else f"default: {setting.default}"
        yield f"  {setting.name} ({default}; {setting.type.replace('`', '')}): {setting.meaning}"


class Setting(NamedTuple):
    """Field of a struct of settings, described in words."""

    name: str
    default: str
    type: str
    meaning: str


def settings_of_struct(kind: type[msgspec.Struct]) -> list[Setting]:
    """Describe the fields of a defense or of an attack's settings.

    Args:
        kind: a struct whose docstring has a section `Attributes:` or whose fields have descriptions.
    """
    fields = msgspec.structs.fields(kind)
    about = attributes(kind.__doc__, [field.name for field in fields])
    return [
        Setting(field.name, default_of(field), type_words(field.type), about.get(field.name) or description(field.type))
        for field in fields
    ]


def default_of(field: msgspec.structs.FieldInfo) -> str:
    """Return a struct field's default as text: `required` if it has none, `none` for None, `empty` for an empty value.

    Args:
        field: a field with a default or a default factory.
    """
    if field.required:
        return "required"
    value = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
    return "none" if value is None else str(value) or "empty"


def type_words(kind: Any) -> str:
    """Describe a type in Markdown.

    Args:
        kind: a type or annotation; a struct becomes a link to its section.

    >>> type_words(int | None), type_words(Literal["row", "client"])
    ('int or none', '`row`, `client`')
    """
    origin, parts = get_origin(kind), get_args(kind)
    if kind is NoneType:
        return "none"
    if origin is Annotated:
        return type_words(parts[0])
    if origin is Literal:
        return ", ".join(f"`{word}`" for word in parts)
    if origin in (Union, UnionType):
        # Different types may have the same words; name each once.
        return " or ".join(dict.fromkeys(map(type_words, parts)))
    if origin in (list, tuple):
        return f"list of {type_words(parts[0])}"
    if origin is dict:
        return f"{type_words(parts[1])} by {type_words(parts[0])}"
    return f"[{kind.__name__}](#{kind.__name__.lower()})" if is_struct(kind) else getattr(kind, "__name__", str(kind))


def is_struct(kind: Any) -> bool:
    """Return True for a type with named fields: a struct, a dataclass or a named tuple.

    Args:
        kind: anything found in an annotation.
    """
    return isinstance(kind, type) and (
        issubclass(kind, msgspec.Struct) or dataclasses.is_dataclass(kind) or hasattr(kind, "_fields")
    )


def attributes(docstring: str | None, names: list[str]) -> dict[str, str]:
    """Parse a docstring's section `Attributes:` into a description per name.

    Args:
        docstring: several attributes may share a line or, as in `low, high: range`, a description.
        names: names of the attributes to look for.
    """
    section = re.search(
        r"^Attributes[^\n]*:\n(.*?)(?=\n\S|\Z)", inspect.cleandoc(docstring or ""), re.DOTALL | re.MULTILINE
    )
    if section is None or not names:
        return {}
    # Longer names first, so that `clip_norm` is not read as `clip`.
    text, name = " ".join(section[1].split()), "|".join(sorted(map(re.escape, names), key=len, reverse=True))
    # An attribute starts a sentence or a line; its text ends where the next one starts.
    starts = list(re.finditer(rf"(?:^|(?<=[.;\s]))((?:{name})(?:, (?:{name}))*): ", text))
    ends = [start.start() for start in starts[1:]] + [len(text)]
    return {
        attribute: text[start.end() : end].strip()
        for start, end in zip(starts, ends, strict=True)
        for attribute in start[1].split(", ")
    }
