"""A page for each algorithm: where it comes from, its parts and settings, what defends and what attacks it, what it costs."""

from __future__ import annotations

import functools
import importlib
import inspect
import json
import pkgutil
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import fkgsec.algorithms
import fkgsec.algorithms.graphs
from attacks.registry import attacks_of
from attacks.view import threat_models
from defenses.options import check_defense
from experiments.docs.docstrings import as_markdown, bibliography, cell, remarks
from experiments.docs.measured import of_algorithm
from experiments.tasks.task import all_tasks, task_named
from fkgsec.errors import SpecError
from fkgsec.exchange import AGGREGATIONS, CODECS, aggregation, codec
from fkgsec.exchange.codec import ClientCodec
from fkgsec.exchange.transport import Transport
from fkgsec.federation.recipes import RECIPES, Recipe, algorithms_of
from fkgsec.federation.settings import SettingField, fields_of

ROOT = Path(__file__).parents[3]
GOLDEN = ROOT / "tests/golden/records.json"
DEFENSES = (
    "secagg",
    "psu,secagg",
    "secagg,suppress:t=2",
    "dp:clip=0.1,epsilon=8",
    "secagg,dp:clip=0.1,epsilon=8",
    "robust:rule=clip",
)
EVALUATED = {"global": "after the broadcast of a round", "local": "each client's own, as its training left it"}
PRIVATE = {
    "none": "",
    "entities": "each client keeps a second model, with entity rows of its own and the same relation table",
    "whole": "each client keeps a second model, with tables of its own",
}


def algorithm_pages() -> dict[str, str]:
    """The pages by file name, and an index."""
    pages = {file_name(name): _page(name, recipe) for name, recipe in RECIPES.items()}
    return {"index.md": _index(), **pages}


def file_name(name: str) -> str:
    """Of the page of an algorithm: `fede-svd+` is fede-svd-plus.md."""
    return f"{name.replace('+', '-plus')}.md"


def _index() -> str:
    lines = [
        "# Algorithms",
        "",
        "Each is a row of parts that the one loop reads (`fkgsec.federation.recipes`). `--algorithm` takes the name, as "
        "does `--target`. A new one is a new row: [a new algorithm](../../tutorials/new-algorithm.md).",
    ]
    for task in all_tasks():
        lines += ["", f"## {task.about[:1].upper()}{task.about[1:]}", "", "| name | shared | from |", "|---|---|---|"]
        for name, recipe in algorithms_of(task.name).items():
            shared = ", ".join(recipe.shared) or ("all data, at one party" if recipe.pooled else "nothing")
            lines.append(f"| [`{name}`]({file_name(name)}) | {shared} | {cell(recipe.source)} |")
    return "\n".join([*lines, *bibliography("\n".join(lines))])


def _page(name: str, recipe: Recipe) -> str:
    module = module_of(recipe)
    told = as_markdown(module.__doc__ or "")
    lines = [f"# {name}", "", told, "", f"**Source.** {recipe.source}"]
    for word in ("Source", "Differs"):
        if said := [one for one in remarks(module, word) if one not in " ".join(told.split())]:
            head = "Of its parts" if word == "Source" else word
            lines += ["", f"**{head}.**", "", *(f"- {cell(one)}" for one in said)]
    lines += ["", "## Parts", "", *_parts(recipe), "", "## Settings", "", *_settings(recipe)]
    if recipe.shared:
        lines += ["", "## What crosses, and who sees it", "", *_exchange(recipe)]
        lines += ["", "## What it costs", "", *_cost(name)]
    if measured := of_algorithm(name, recipe.task):
        lines += ["", "## What leaked", "", "In clear, to attacks that need no further training:", "", *measured]
    lines += [
        "",
        "## What defends it",
        "",
        *_defenses(name, recipe),
        "",
        "## What attacks it",
        "",
        *_attacks(name, recipe),
    ]
    return "\n".join([*lines, *bibliography("\n".join(lines))])


@functools.cache
def _modules() -> tuple[ModuleType, ...]:
    packages = (fkgsec.algorithms, fkgsec.algorithms.graphs)
    return tuple(
        importlib.import_module(f"{package.__name__}.{one.name}")
        for package in packages
        for one in pkgutil.iter_modules(package.__path__)
        if not one.ispkg  # a package has its modules' recipes, too, but not what they say
    )


def module_of(recipe: Recipe) -> ModuleType:
    """The module that an algorithm is made in. Raises `SpecError` for one of another package."""
    for module in _modules():
        if any(one is recipe for one in vars(module).values()):
            return module
    raise SpecError(f"algorithm {recipe.name!r} is made in no module of fkgsec.algorithms")


def _parts(recipe: Recipe) -> list[str]:
    aggregated, coded = AGGREGATIONS[recipe.aggregation], CODECS[recipe.codec]
    rows = {
        "task": task_named(recipe.task).about,
        "shared tables": ", ".join(recipe.shared) or "none",
    }
    if recipe.shared:
        rows |= {
            "crosses by the codec": f"`{recipe.codec}`"
            + (", which chooses rows by their values" if coded.chooses_rows else ""),
            "becomes, at the server": f"`{recipe.aggregation}`, which needs {aggregated.needs}",
        }
    rows |= {
        "second model": PRIVATE[recipe.private],
        "judged": EVALUATED[recipe.evaluated],
        "optimizer": "lives on between rounds" if recipe.keep_optimizer else "new in every round",
    }
    return ["| part | here |", "|---|---|", *(f"| {key} | {value} |" for key, value in rows.items() if value)]


def _exchange(recipe: Recipe) -> list[str]:
    """What the modules of its codec and its aggregation say: which rows cross, what becomes of them, what that tells whom."""
    kinds = (CODECS[recipe.codec].client, AGGREGATIONS[recipe.aggregation])
    told = []
    if kinds[0] is ClientCodec:
        told.append(f"Whole rows as they are, both ways.\n{leakage(Transport)}")
    for kind in kinds:
        module = sys.modules[kind.__module__]
        words = kind.__doc__ if module in (codec, aggregation) else module.__doc__
        told.append("" if kind is ClientCodec else as_markdown(words or "").partition("Legend:")[0].strip())
    return [re.sub(r"\n+(Leakage|Source):", r"\n\n**\1:**", "\n\n".join(one for one in dict.fromkeys(told) if one))]


def leakage(part: Any) -> str:
    """The paragraph of a docstring that says what is told to whom, without what follows it. Raises `SpecError`."""
    for block in inspect.cleandoc(part.__doc__ or "").split("\n\n"):
        if block.startswith("Leakage:"):
            return " ".join(block.split())
    raise SpecError(f"{part.__name__} does not say what it leaks")


def _settings(recipe: Recipe) -> list[str]:
    """Its own options, with the paper's values as defaults."""
    fields = fields_of(recipe.settings)
    if not fields:
        return ["It has none of its own."]
    rows = (
        f"| `--{one.name.replace('_', '-')}` | {one.default} | {allowed_of(one)} | {cell(one.help)} |" for one in fields
    )
    return ["| option | default | allowed | meaning |", "|---|---|---|---|", *rows]


def allowed_of(field: SettingField) -> str:
    """What a setting may be."""
    if field.choices:
        return ", ".join(field.choices)
    if field.kind is bool:
        return "true, false"
    if field.low is None:
        return "a number" if field.kind in (int, float) else "text"
    high = "" if field.high is None else f" and at most {field.high:,.12g}"
    return f"{'above' if field.above else 'at least'} {field.low:,.12g}{high}"


@functools.cache
def _golden() -> dict[str, dict[str, dict[str, list[int]]]]:
    return json.loads(GOLDEN.read_text())["cases"]


def _cost(name: str) -> list[str]:
    """Bytes of a round beside FedE's, of the tiny runs whose figures a test holds."""
    cases = _golden()
    if name not in cases:
        return ["Bytes of graph classification, measured: [Bytes](../../graphs.md#bytes)."]

    def of_rounds(case: str, way: str) -> float:
        rounds = cases[case]["figures"][f"rounds/bytes_{way}"][1:]
        return sum(rounds) / len(rounds)

    rows = []
    for way in ("up", "down"):
        mine, fede = of_rounds(name, way), of_rounds("fede", way)
        rows.append(f"| {way} | {mine:,.0f} | {fede:,.0f} | {mine / fede:.2f} |")
    return [
        "| bytes a round | this | `fede` | ratio |",
        "|---|---|---|---|",
        *rows,
        "",
        "As serialised, mean of three rounds of all three clients, 300 triples, dimension 8; headers and names weigh more in so "
        f"small a run than in yours, for which `fkgsec train --algorithm {name} --rounds 3` prints them. A test holds the "
        "figures (`tests/golden`).",
    ]


def _defenses(name: str, recipe: Recipe) -> list[str]:
    if not recipe.shared:
        return ["Nothing crosses that could be defended."]
    rows = []
    for text in DEFENSES:
        try:
            options = task_named(recipe.task).spec(algorithm=name, defense=text)
            check_defense(options)
            why = "runs"
        except SpecError as error:
            why = f"refused: {error}"
        rows.append(f"| `{text}` | {cell(why)} |")
    return ["| `--defense` | outcome |", "|---|---|", *rows, "", "What each hides: [defenses](../defenses/index.md)."]


def _attacks(name: str, recipe: Recipe) -> list[str]:
    if recipe.pooled:
        return ["One party holds all data: there is no federation to attack."]
    rows = []
    for attack_name, attack in attacks_of(recipe.task).items():
        models = [one for one in threat_models(recipe.task).values() if attack.needs_under(one).fit(one)]
        able = [one.name for one in models if attack.needs_under(one).never(name, one) is None]
        reasons = dict.fromkeys(str(attack.needs_under(one).never(name, one)) for one in models if one.name not in able)
        said = ", ".join(f"`{one}`" for one in able) or cell(f"cannot: {'; '.join(reasons) or 'no threat model fits'}")
        rows.append(f"| [`{attack_name}`](../attacks/{attack_name}.md) | {said} |")
    return ["| attack | threat models under which it can be asked, in clear |", "|---|---|", *rows]
