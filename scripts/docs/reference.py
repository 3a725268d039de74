"""Reference pages of the documentation site, generated from registries and types when mkdocs builds it.

    make docs                                  # mkdocs build --strict; scripts/docs/mkdocs_hooks.py adds these pages

Generated pages are not committed, so no page can be older than the code.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

import msgspec

from fkgsec import errors
from fkgsec.attacks.options import THREAT_MODELS, threat_models
from fkgsec.attacks.registry import attacks_of
from fkgsec.defenses import transport
from fkgsec.defenses.options import KINDS
from fkgsec.experiments.cli.describe import (
    DEFENSES,
    attributes,
    default_of,
    is_struct,
    refusal,
    settings_of_struct,
    type_words,
)
from fkgsec.experiments.cli.options import FLAGS
from fkgsec.experiments.gate import policy
from fkgsec.experiments.gate.audits import Question
from fkgsec.experiments.gate.measures import MEASURES
from fkgsec.experiments.reporting.sheets import Column, Sheet, markdown_lines
from fkgsec.experiments.runs.record import Record
from fkgsec.experiments.tasks.task import all_tasks
from fkgsec.federation.recipes import Recipe, algorithms_of
from fkgsec.federation.settings import fields_of as settings_of
from scripts.docs.attack_tests import NULL, PLANTED, TESTS, attack_tests, planted_items
from scripts.docs.threat_pictures import draw

ROOT = Path(__file__).parents[2]
PROTOCOLS = ("secagg", "psu", "noise")
_CODE = re.compile(r"(`[^`]*`)")


# Docstrings as Markdown.


def escaped(text: str) -> str:
    """Escape HTML outside backticks.

    Args:
        text: Markdown.
    """
    return "".join(part if part.startswith("`") else part.replace("<", "&lt;") for part in _CODE.split(text))


def cell(text: str) -> str:
    """Put text on one line of a table.

    Args:
        text: Markdown.
    """
    return escaped(" ".join(text.split())).replace("|", "\\|")


def summary(documented: Any) -> str:
    """Return the first paragraph of a docstring, on one line.

    Args:
        documented: an object with a docstring.
    """
    return " ".join(inspect.cleandoc(documented.__doc__ or "").partition("\n\n")[0].split())


def as_markdown(docstring: str) -> str:
    """Convert a docstring: examples become code, titled sections become paragraphs. Sections such as Args are left out.

    Args:
        docstring: in Google style.
    """
    blocks = []
    for block in re.split(r"\n\s*\n", inspect.cleandoc(docstring)):
        lines = block.splitlines()
        if re.match(r"(Args|Attributes|Returns|Raises|Yields)\b[^\n]*:$", lines[0]):
            continue
        if all(line.startswith("    ") for line in lines):
            blocks.append("\n".join(["```python", *(line[4:] for line in lines), "```"]))
        elif len(lines) > 1 and not lines[0].startswith("-") and all(line.startswith("    ") for line in lines[1:]):
            blocks += [f"**{escaped(lines[0].rstrip(':'))}.**", escaped("\n".join(line[4:] for line in lines[1:]))]
        else:  # Markdown needs an empty line before a list, and an indentation of four in it
            text = re.sub(
                r"(?<=[^\n])\n(?=(?:- |1\. ))", "\n\n", block, count=0 if lines[0].startswith(("- ", "1")) else 1
            )
            blocks.append(escaped(re.sub(r"^ {1,3}(?=\S)", "    ", text, flags=re.MULTILINE)))
    return "\n\n".join(blocks)


def source_of(module: Any) -> str:
    """Return a module's docstring as Markdown, for below a heading of level 2.

    Args:
        module: the module.
    """
    return as_markdown(module.__doc__ or "")


# Types.


def fields_of(kind: type[Any]) -> dict[str, Any]:
    """Return the types of a struct's fields by name.

    Args:
        kind: a struct, see `is_struct`.
    """
    # msgspec structs and named tuples list their fields; dataclasses have a function.
    names = getattr(kind, "__struct_fields__", None) or getattr(kind, "_fields", None)
    types = get_type_hints(kind)
    return {name: types[name] for name in names or [field.name for field in dataclasses.fields(kind)]}


def structs_of(kind: Any, seen: set[Any]) -> Iterator[type[Any]]:
    """Yield a struct and all structs in its fields, each once.

    Args:
        kind: any type.
        seen: structs to skip; extended in place.
    """
    if is_struct(kind) and kind not in seen:
        seen.add(kind)
        yield kind
        for field in fields_of(kind).values():
            yield from structs_of(field, seen)
    # Structs inside containers and unions.
    for part in get_args(kind):
        yield from structs_of(part, seen)


def table(heads: Iterable[str], rows: Iterable[tuple[Any, ...]]) -> list[str]:
    """Return a Markdown table.

    Args:
        heads: of the columns.
        rows: cells.
    """
    return ["", *markdown_lines(Sheet("", tuple(map(Column, heads)), tuple(rows)), cell), ""]


# Pages.


def algorithms_page() -> Iterator[str]:
    """Yield every algorithm: source, shared tables, settings, possible defenses, and its module's docstring."""
    yield "# Algorithms\n\n`--algorithm NAME` takes one, as does `--target`. [Add your own](../tutorials/new-algorithm.md)."
    for task in all_tasks():
        yield f"\n## {task.about[:1].upper()}{task.about[1:]}\n\n`refused` names why a defense cannot run with an algorithm."
        recipes = algorithms_of(task.name)
        yield from table(
            ("algorithm", "shares", *(f"`{text}`" for text in DEFENSES)),
            (
                (
                    f"[`{name}`](#{anchor(name)})",
                    ", ".join(recipe.shared) or "nothing",
                    *(_defended(recipe, text) for text in DEFENSES),
                )
                for name, recipe in recipes.items()
            ),
        )
        for name, recipe in recipes.items():
            yield f"\n### {name} {{ #{anchor(name)} }}\n\n**Source.** {escaped(recipe.source)}\n"
            settings = settings_of(recipe.settings)
            if settings:
                yield from table(
                    ("option", "default", "allowed", "meaning"),
                    (
                        (f"`--{field.name.replace('_', '-')}`", field.default, field.allowed, field.help)
                        for field in settings
                    ),
                )
        # Algorithms that share a rule share its explanation.
        rules: dict[str, list[str]] = {}
        for name, recipe in recipes.items():
            if recipe.rule:
                rules.setdefault(recipe.rule.__module__, []).append(name)
        for module, users in rules.items():
            named = ", ".join(f"`{name}`" for name in users)
            text = source_of(importlib.import_module(module))
            yield f"\n### Details of {named} {{ #details-{anchor(users[0])} }}\n\n{text}"


def anchor(name: str) -> str:
    """Return the anchor of an algorithm: `fede-svd+` is fede-svd-plus.

    Args:
        name: of the algorithm.
    """
    return name.replace("+", "-plus")


def _defended(recipe: Recipe, defense: str) -> str:
    if not recipe.shared:
        return ""
    reason = refusal(recipe, defense)
    return "runs" if reason is None else f"refused: {reason}"


def attacks_page() -> Iterator[str]:
    """Yield every attack: question, needs, threat models, metrics, and its module's docstring."""
    yield "# Attacks\n\n`fkgsec attack --attack NAME` runs one, `--attack all` all. [Add your own](../tutorials/new-attack.md)."
    tests = attack_tests(TESTS)
    yield "\n## What each attack can find\n"
    yield (
        "Every attack is tested twice: it finds a planted signal of the strength below, and it finds nothing in the null. "
        "An attack may miss weaker signals. A verdict says `NO EVIDENCE` only of as many items as the planted signal has, "
        "or more."
    )
    yield from table(
        ("attack", "finds", "items", "finds nothing in"),
        (
            (
                f"[`{name}`](#{name})",
                "; ".join(test.about for test in kinds[PLANTED]),
                ", ".join(f"`{metric}` {count:,}" for metric, count in planted_items(kinds[PLANTED]).items()),
                "; ".join(test.about for test in kinds[NULL]),
            )
            for name, kinds in sorted(tests.items())
        ),
    )
    for task in all_tasks():
        yield f"\n## {task.about[:1].upper()}{task.about[1:]}"
        yield from table(
            ("attack", "asks", "needs"),
            (
                (f"[`{name}`](#{name})", attack.about, attack.need_words)
                for name, attack in attacks_of(task.name).items()
            ),
        )
        for name, attack in attacks_of(task.name).items():
            yield f"\n### {name} {{ #{name} }}\n\n{source_of(_module_of_attack(attack))}\n"
            models = threat_models(task.name)
            yield from table(
                ("`--threat`", "who, and what is known"),
                ((f"`{model}`", models[model].lines[task.name]) for model in attack.threat_models),
            )
            yield from table(
                ("measure", "what it is", "worse for the victim"),
                (
                    (f"`{name}.{metric}`", about, "less" if metric in attack.errors else "more")
                    for metric, about in attack.metrics.items()
                ),
            )


def _module_of_attack(attack: Any) -> Any:
    """Return the module that explains an attack: the one that defines it, else the one that defines its `run`."""
    # Attacks do not know their module: search all modules for the object.
    for path in sorted((ROOT / "attacks").rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        if path.stem != "__init__" and any(value is attack for value in vars(importlib.import_module(name)).values()):
            return importlib.import_module(name)
    run: Any = inspect.unwrap(getattr(attack.run, "func", attack.run))
    return importlib.import_module(getattr(run, "__module__", type(run).__module__))


def defenses_page() -> Iterator[str]:
    """Yield every defense with its settings."""
    yield "# Defenses\n\n`--defense` takes one or more, separated by commas: `psu,secagg:dropout=0.1,suppress:t=2`."
    for name, kind in KINDS.items():
        yield f"\n## {name}\n\n{as_markdown(kind.about or kind.__doc__ or '')}\n"
        module = importlib.import_module(kind.__module__)
        if module.__name__ != "fkgsec.defenses.options":
            yield source_of(module)
        yield from table(
            ("setting", "default", "type", "meaning"),
            ((f"`{name}`", *others) for name, *others in settings_of_struct(kind)),
        )
    yield f"\n## What each hides\n\n{source_of(transport)}"


def protocols_page() -> Iterator[str]:
    """Yield every package of protocols."""
    package = importlib.import_module("fkgsec.protocols")
    yield f"# Protocols\n\n{source_of(package)}\n\nThey have had no external audit."
    for name in PROTOCOLS:
        yield f"\n## fkgsec.protocols.{name} {{ #{name} }}\n\n{source_of(importlib.import_module(f'fkgsec.protocols.{name}'))}\n"
        yield f"::: fkgsec.protocols.{name}\n    options: {{show_root_heading: false, heading_level: 3}}\n"


def threats_page() -> Iterator[str]:
    """Yield every threat model with its picture."""
    yield "# Threat models\n\n`--threat` names an adversary. Red marks the adversary and what it sees."
    for name, model in THREAT_MODELS.items():
        yield f"\n## {name}\n\n![{cell(model.about)}](threats/{name}.svg){{ .threat }}\n"
        for task in all_tasks():
            if task.name in model.lines:
                able = [
                    attack for attack, definition in attacks_of(task.name).items() if name in definition.threat_models
                ]
                links = ", ".join(f"[`{attack}`](attacks.md#{attack})" for attack in able)
                yield f"- {task.about}: {cell(model.lines[task.name])}. Attacks: {links or 'none'}."


def commands_page() -> Iterator[str]:
    """Yield every command, as typer documents it."""
    import typer
    from typer.cli import get_docs_for_click

    from fkgsec.experiments.cli.main import app

    command: Any = typer.main.get_command(app)
    # Without parsing: only the names of commands and options are needed.
    context = command.make_context("fkgsec", ["--help"], resilient_parsing=True)
    text = get_docs_for_click(obj=command, ctx=context, name="fkgsec", title="Commands")
    yield re.sub(r"\n{3,}", "\n\n", text)


def spec_page() -> Iterator[str]:
    """Yield every key of a run's spec."""
    yield "# Keys of a spec\n\n`--config spec.yaml` takes these keys. Options override it; their names have `-` for `_`."
    for task in all_tasks():
        yield f"\n## {task.about[:1].upper()}{task.about[1:]}"
        yield from table(
            ("key", "default", "type", "meaning"),
            (
                (f"`{field.name}`", default_of(field), type_words(field.type), FLAGS[field.name].help)
                for field in msgspec.structs.fields(task.spec)
                if field.name != "settings"
            ),
        )
    yield "[Algorithms](algorithms.md) have further settings."


def record_page() -> Iterator[str]:
    """Yield every field of a record."""
    yield "# Fields of a record\n\n`record.json` in a run folder."
    yield " `fkgsec.experiments.runs.record.read_record` returns it as a struct."
    for struct in structs_of(Record, set()):
        if hasattr(struct, "options_type"):
            continue  # a spec, which has a page
        about = attributes(struct.__doc__, list(fields_of(struct)))
        yield f"\n## {struct.__name__}\n\n{as_markdown(struct.__doc__ or '')}"
        yield from table(
            ("field", "type", "meaning"),
            ((f"`{name}`", type_words(kind), about.get(name, "")) for name, kind in fields_of(struct).items()),
        )


def policy_page() -> Iterator[str]:
    """Yield the keys and measures of a policy."""
    keys = attributes(Question.__doc__, list(Question._fields))
    yield f"# Policies\n\n{as_markdown(policy.__doc__ or '').replace('```python', '```yaml')}\n"
    yield "`fkgsec check --init` proposes a policy; see [a gate in CI](../tutorials/gate.md).\n\n## Keys of a limit"
    yield from table(("key", "meaning"), ((f"`{name}`", words) for name, words in keys.items()))
    yield "## Limits"
    yield from table(
        ("measure", "bound", "kind", "task", "meaning"),
        (
            (f"`{name}`", f"`{measure.bound}`", measure.kind, measure.task or "all", measure.about)
            for name, measure in MEASURES.items()
        ),
    )


def exit_page() -> Iterator[str]:
    """Yield the exit statuses of every command."""
    yield "# Exit statuses\n\nWrong input is one line on standard error: what, where, and what is allowed."
    # The first is the base class, which is never raised itself.
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.FkgsecError)]
    rows = [(kind.exit_status, summary(kind)) for kind in kinds[1:]]
    last = (130, "interrupted; the same command continues the run")
    yield from table(("status", "meaning"), [(0, "done"), *rows, last])
    yield "`fkgsec check`, `verify` and `verify-run` have further statuses, which their [help](commands.md) lists."


def python_page() -> Iterator[str]:
    """Yield the public names, which mkdocstrings describes."""
    yield "# Python\n\nWhat scripts import."
    for package in ("fkgsec", "fkgsec.attacks", "fkgsec.defenses"):
        yield f"\n::: {package}\n    options: {{show_root_heading: true, show_root_full_path: true, heading_level: 2}}"


PAGES = {
    "commands": commands_page,
    "algorithms": algorithms_page,
    "attacks": attacks_page,
    "defenses": defenses_page,
    "protocols": protocols_page,
    "threats": threats_page,
    "spec": spec_page,
    "record": record_page,
    "policy": policy_page,
    "exit": exit_page,
    "python": python_page,
}


def reference_files() -> dict[str, str]:
    """Return every generated file by its path in docs/."""
    files = {f"reference/{name}.md": "\n".join(page()) for name, page in PAGES.items()}
    return files | {f"reference/threats/{name}.svg": draw(model) for name, model in THREAT_MODELS.items()}
