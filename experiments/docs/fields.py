"""Reference of what files hold: keys of specs, fields of records, limits of policies, exit statuses."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import msgspec

from experiments.cli.console import INTERRUPTED
from experiments.cli.options import FLAGS
from experiments.cli.surface import Command, read_surface
from experiments.docs.docstrings import as_markdown, cell, described, summary
from experiments.gate import policy
from experiments.gate.audits import Question
from experiments.gate.measures import MEASURES, PAPERS_WORDS
from experiments.papers.cli import A_CELL_FAILED
from experiments.runs.record import SCHEMA, Record
from experiments.runs.spec import allowed_words
from experiments.tasks.task import all_tasks, task_named
from fkgsec import errors
from fkgsec.federation.recipes import all_settings


class Field(NamedTuple):
    """A field of a struct."""

    name: str
    type: Any


def type_words(kind: Any) -> str:
    """A type as a table says it: `int | None` is "int or none", words of a `Literal` are listed."""
    if kind is NoneType:
        return "none"
    if get_origin(kind) is Literal:
        return ", ".join(f"`{one}`" for one in get_args(kind))
    if get_origin(kind) in (Union, UnionType):
        return " or ".join(dict.fromkeys(type_words(one) for one in get_args(kind)))
    if get_origin(kind) in (list, tuple):
        return f"list of {type_words(get_args(kind)[0])}"
    if get_origin(kind) is dict:
        key, value = get_args(kind)
        return f"{type_words(value)} by {type_words(key)}"
    if is_struct(kind):
        return f"[{kind.__name__}](#{kind.__name__.lower()})"
    return getattr(kind, "__name__", str(kind))


def default_of(field: Any) -> str:
    """What a field is when it is not given."""
    if field.required:
        return "required"
    value = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
    return "none" if value is None else cell(str(value)) or "empty"


def spec_page() -> str:
    """Every key of a run's spec, by task, as the command line describes it."""
    lines = [
        "# Keys of a spec",
        "",
        "`--config spec.yaml` takes any of these as keys, an option given beside it wins. `spec.json` in a run folder and "
        "`federations` of a policy have the same keys. On the command line `_` is `-`.",
        "",
        "```yaml\nalgorithm: fede\ndata: my-federation\nrounds: 40\ndefense: psu,secagg\nleak: [0.5, 1.0]\n```",
    ]
    for task in all_tasks():
        lines += [
            "",
            f"## {task.about[:1].upper()}{task.about[1:]}",
            "",
            "| key | default | allowed | meaning |",
            "|---|---|---|---|",
        ]
        for field in msgspec.structs.fields(task.spec):
            if field.name != "settings":
                words = ", ".join(f"`{word}`" for word in allowed_words(field.name, task.name)) or type_words(
                    field.type
                )
                lines.append(f"| `{field.name}` | {default_of(field)} | {words} | {cell(FLAGS[field.name].help)} |")
        lines += ["", f"### Settings of algorithms for {task.about}", "", "| key | of | meaning |", "|---|---|---|"]
        for name, by_algorithm in all_settings(task.name).items():
            helps = "; ".join(dict.fromkeys(one.help for one in by_algorithm.values()))
            lines.append(f"| `{name}` | {', '.join(f'`{one}`' for one in by_algorithm)} | {cell(helps)} |")
    return "\n".join(lines)


def record_page() -> str:
    """Every field of record.json and of what stands in it."""
    lines = [
        "# Fields of a record",
        "",
        f"`record.json` in a run folder, schema `{SCHEMA}`: what was asked, on which data, where, and every figure with its "
        "interval. Later versions read it, too: new fields have defaults. `experiments.runs.record.read_record` gives a struct.",
    ]
    for struct in structs_of(Record):
        if isinstance(struct, type) and hasattr(struct, "options_type"):
            continue  # a spec, which has a page
        fields = fields_of(struct)
        told = described(struct.__doc__, [one.name for one in fields])
        lines += [
            "",
            f"## {struct.__name__}",
            "",
            as_markdown(struct.__doc__ or ""),
            "",
            "| field | type | meaning |",
            "|---|---|---|",
        ]
        lines += [f"| `{one.name}` | {type_words(one.type)} | {cell(told.get(one.name, ''))} |" for one in fields]
    return "\n".join(lines).replace("RunSpec", "[spec](spec.md)")


def structs_of(kind: Any, seen: set[Any] | None = None) -> Iterator[type[Any]]:
    """A struct and those that stand in its fields, each once."""
    seen = set() if seen is None else seen
    if is_struct(kind):
        if kind in seen:
            return
        seen.add(kind)
        yield kind
        for field in fields_of(kind):
            yield from structs_of(field.type, seen)
    for part in get_args(kind):
        yield from structs_of(part, seen)


def policy_page() -> str:
    """What a policy can limit."""
    told = described(Question.__doc__, Question._fields)
    lines = [
        "# Policies",
        "",
        as_markdown(policy.__doc__ or "").replace("```python", "```yaml"),
        "",
        "`fkgsec check --init` proposes a policy; [a gate in CI](../tutorials/gate.md) shows one.",
        "",
        "## Keys of a limit",
        "",
        "Beside `max` or `min` and `federation`:",
        "",
        "| key | meaning |",
        "|---|---|",
        *(f"| `{name}` | {cell(words)} |" for name, words in told.items()),
        "",
        "## Limits",
        "",
        "Papers' words for some: "
        + ", ".join(f"`{short}` is `{name}`" for short, name in PAPERS_WORDS.items())
        + ". `_advantage` is what is "
        "left of a figure without its baseline.",
        "",
        "| measure | bound | kind | keys | of | meaning |",
        "|---|---|---|---|---|---|",
    ]
    for name, one in MEASURES.items():
        task, keys = task_named(one.task).about if one.task else "all", ", ".join(f"`{key}`" for key in one.keys)
        lines.append(f"| `{name}` | `{one.bound}` | {one.kind} | {keys} | {task} | {cell(one.about)} |")
    lines.append(f"| `{policy.NO_WORSE}` | `by` | share | `baseline` | all | figures of an earlier commit, in a file |")
    return "\n".join(lines)


def exit_page() -> str:
    """Exit statuses: those of every command, and what commands that judge say of their own."""
    expected = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, errors.FkgsecError)]
    lines = [
        "# Exit statuses",
        "",
        "| status | of every command |",
        "|---|---|",
        "| 0 | done |",
        *(f"| {one.exit_status} | {cell(summary(one.__doc__))} |" for one in expected[1:]),
        f"| {INTERRUPTED} | interrupted (Ctrl-C, SIGTERM, SIGHUP); the same command goes on where it was |",
        "",
        "Wrong input is one line on standard error: what, where, and what is allowed. Commands that judge say more:",
        "",
        "| command | statuses |",
        "|---|---|",
        f"| [`fkgsec experiment run`](commands/experiment.md) | Exits 0 done, {A_CELL_FAILED} a cell failed, 2 wrong input |",
    ]
    for path, command in flattened(read_surface()):
        if found := re.search(r"\bExits\b.*?(?=(?:\.\s)|\.?$)", " ".join(command.help.split())):
            lines.append(f"| [`fkgsec {path}`](commands/{path.split()[0]}.md) | {cell(found[0])} |")
    return "\n".join(lines)


def is_struct(kind: Any) -> bool:
    """Whether a type has fields of its own: a struct, a dataclass or a named tuple."""
    return isinstance(kind, type) and (
        issubclass(kind, msgspec.Struct) or dataclasses.is_dataclass(kind) or hasattr(kind, "_fields")
    )


def fields_of(kind: type[Any]) -> tuple[Field, ...]:
    """The fields of such a type, in their order."""
    names = getattr(kind, "__struct_fields__", None) or getattr(kind, "_fields", None)
    types = get_type_hints(kind)
    return tuple(Field(name, types[name]) for name in names or [one.name for one in dataclasses.fields(kind)])


def flattened(commands: tuple[Command, ...], before: str = "") -> Iterator[tuple[str, Command]]:
    """Commands and those in groups, each with all its words; a group stands before what is in it."""
    for one in commands:
        path = f"{before} {one.name}".strip()
        yield path, one
        yield from flattened(one.commands or (), path)
