"""`fkgsec describe NAME`: an algorithm, attack, defense or threat model, its source, its settings and what goes with it.

for line_or_sheet in describe("feds"):
    print(line_or_sheet)
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec
import typer

from fkgsec.attacks.options import THREAT_MODELS
from fkgsec.defenses.options import KINDS, check_defense
from fkgsec.errors import SpecError
from fkgsec.experiments.cli.console import complete_from, make_console, print_lines
from fkgsec.experiments.tasks.task import task_named
from fkgsec.federation.recipes import RECIPES
from fkgsec.federation.settings import SettingField
from fkgsec.federation.settings import fields_of as settings_of

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
    """Return lines on every part with this name. Raises `SpecError` if there is none."""
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
        yield f"Clients send: {', '.join(recipe.shared) or 'nothing'}."
    if recipe.shared:
        yield f"Defenses that it can run under: {', '.join(_fitting_defenses(recipe)) or 'none'}."
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
            yield f"  {option} (default: {field.default}; {allowed(field)}): {field.help}"


def _fitting_defenses(recipe: Any) -> Iterator[str]:
    for text in ("secagg", "psu,secagg", "secagg,suppress:t=2", "dp:clip=0.1,epsilon=8", "robust:rule=clip"):
        try:
            check_defense(task_named(recipe.task).spec(algorithm=recipe.name, defense=text))
        except SpecError:
            continue
        yield text.partition(":")[0] if text.count(",") < 2 and ":" in text and not text.startswith("secagg") else text


def _defense(name: str) -> Iterator[str]:
    kind = KINDS[name]
    about = (kind.about or inspect.cleandoc(kind.__doc__ or "").partition("\nAttributes")[0]).strip()
    yield f"{name}: defense. Use --defense {name}, with settings as in {name}:KEY=VALUE,KEY=VALUE."
    yield " ".join(about.split())
    yield from _struct_lines(kind)


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
        yield from _struct_lines(attack.settings)


def _struct_lines(kind: type[msgspec.Struct]) -> Iterator[str]:
    """Yield a line for each field of a struct."""
    fields = msgspec.structs.fields(kind)
    about = attributes(kind.__doc__, [field.name for field in fields])
    if fields:
        yield "Settings:"
    for field in fields:
        default = "required" if field.required else f"default: {'none' if field.default is None else field.default}"
        yield f"  {field.name} ({default}; {_words(field.type)}): {about.get(field.name) or _description(field.type)}"


def _words(kind: Any) -> str:
    """Describe a type: its words, or `int` and the like."""
    parts = [part for part in get_args(kind) if part is not type(None)]
    if get_origin(kind) is Annotated:
        return _words(parts[0])
    if get_origin(kind) is Literal:
        return ", ".join(map(str, parts))
    return " or ".join(map(_words, parts)) if parts else getattr(kind, "__name__", str(kind))


def _description(kind: Any) -> str:
    return next((part.description or "" for part in get_args(kind) if isinstance(part, msgspec.Meta)), "")


def allowed(field: SettingField) -> str:
    """Describe the values that a setting of an algorithm can have.

    >>> allowed(SettingField("mu", float, 0.1, low=0, high=10))
    'at least 0 and at most 10'
    """
    if field.choices:
        return ", ".join(field.choices)
    if field.kind is bool:
        return "true, false"
    if field.low is None:
        return "a number" if field.kind in (int, float) else "text"
    high = "" if field.high is None else f" and {'below' if field.below else 'at most'} {field.high:,.12g}"
    return f"{'above' if field.above else 'at least'} {field.low:,.12g}{high}"


def attributes(docstring: str | None, names: list[str]) -> dict[str, str]:
    """Return what a docstring's `Attributes:` say of each name; several may share a line or a description."""
    section = re.search(
        r"^Attributes[^\n]*:\n(.*?)(?=\n\S|\Z)", inspect.cleandoc(docstring or ""), re.DOTALL | re.MULTILINE
    )
    if section is None or not names:
        return {}
    text, name = " ".join(section[1].split()), "|".join(sorted(map(re.escape, names), key=len, reverse=True))
    starts = list(re.finditer(rf"(?:^|(?<=[.;\s]))((?:{name})(?:, (?:{name}))*): ", text))
    ends = [start.start() for start in starts[1:]] + [len(text)]
    return {
        attribute: text[start.end() : end].strip()
        for start, end in zip(starts, ends, strict=True)
        for attribute in start[1].split(", ")
    }
