"""A page for each attack: what it asks, of what threat models, what it needs, its metrics, and what it got."""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from attacks.registry import ATTACKS, Attack, attacks_of
from attacks.view import threat_models
from experiments.docs.docstrings import as_markdown, bibliography, cell
from experiments.docs.measured import of_attack
from experiments.tasks.task import all_tasks, task_named

DOCS = Path(__file__).parents[3] / "docs"


def attack_pages() -> dict[str, str]:
    """The pages by file name, and an index."""
    return {"index.md": _index(), **{f"{name}.md": _page(attack) for name, attack in ATTACKS.items()}}


def _index() -> str:
    lines = [
        "# Attacks",
        "",
        "`fkgsec attack --attack NAME` runs one on a federation or on a finished run (`--run`), `--attack all` every one, and "
        "`fkgsec attack --attack list` prints this page's tables. Each of their figures can be limited by a policy. "
        "A new one is a few lines: [a new attack](../../tutorials/new-attack.md).",
    ]
    for task in all_tasks():
        lines += ["", f"## {task.about[:1].upper()}{task.about[1:]}", "", "| attack | asks | needs |", "|---|---|---|"]
        lines += [
            f"| [`{name}`]({name}.md) | {cell(one.about)} | {cell(one.need_words)} |"
            for name, one in attacks_of(task.name).items()
        ]
    return "\n".join(lines)


def module_of(attack: Attack) -> ModuleType:
    """The module that says what an attack is: the one that has it, or, of an attack that a function makes, that of its `run`."""
    for name, module in list(sys.modules.items()):
        if name.startswith("attacks.") and any(one is attack for one in vars(module).values()):
            return module
    run: Any = attack.run
    run = inspect.unwrap(getattr(run, "func", run))
    return sys.modules[getattr(run, "__module__", type(run).__module__)]


def _guides(name: str) -> list[str]:
    """Pages that somebody wrote and that name the attack, with their titles; none where there is no documentation beside."""
    made = []
    for path in sorted(DOCS.rglob("*.md")):
        text = path.read_text()
        if re.search(rf"`{re.escape(name)}[`.]|--attack {re.escape(name)}\b(?!-)", text):
            title = re.search(r"^# (.+)$", text, re.MULTILINE)
            made.append(f"- [{title[1] if title else path.stem}](../../{path.relative_to(DOCS).as_posix()})")
    return made


def _page(attack: Attack) -> str:
    models = threat_models(attack.task)
    told = as_markdown(module_of(attack).__doc__ or "")
    lines = [f"# {attack.name}", "", f"*{cell(attack.about)}.* Needs {attack.need_words}.", "", told]
    if attack.trains:
        lines += ["", "It has the run trained once more, so it takes as long as a training."]
    lines += ["", "## Threat models", "", "| `--threat` | who, and what is known |", "|---|---|"]
    default = attack.threats or attack.threat_models[:1]
    for name in attack.threat_models:
        mark = " (default)" if name in default and attack.choose is None else ""
        lines.append(f"| `{name}`{mark} | {cell(models[name].lines[attack.task])} |")
    lines += ["", "## Figures", "", "| measure | what it is | worse for the victim |", "|---|---|---|"]
    for metric, about in attack.metrics.items():
        direction = "less" if metric in attack.errors else "more"
        lines.append(f"| `{attack.name}.{metric}` | {cell(about)} | {direction} |")
    lines += ["", f"On runs of {task_named(attack.task).about}. As limits of a policy: [limits](../policy.md#limits)."]
    if measured := of_attack(attack.name):
        lines += ["", "## What it got", "", *measured]
    if guides := _guides(attack.name):
        lines += ["", "## More of it", "", *guides]
    return "\n".join([*lines, *bibliography("\n".join(lines))])
