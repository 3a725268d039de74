"""The reference: pages made from the command line, the registries, and the types of specs, records and policies.

    python -m experiments.docs.reference --out reference       # as Markdown, without building the site

The site is made from the same pages (`experiments.docs.hook`).
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Annotated, Any

import typer

from experiments.cli.console import expected_errors
from experiments.docs.fields import exit_page, policy_page, record_page, spec_page
from experiments.docs.figure_picture import picture
from experiments.docs.pages.algorithms import algorithm_pages, file_name
from experiments.docs.pages.attacks import attack_pages
from experiments.docs.pages.commands import command_pages
from experiments.docs.pages.defenses import PROTOCOLS, defense_pages, protocol_pages
from experiments.docs.pictures import pictures, threats_page
from fkgsec.federation.recipes import RECIPES

PACKAGES = ("fkgsec", "attacks", "defenses")
_INDEX = """# Reference

Made from the registries and types of this version when the site is built, so that it says what the program does.

| page | what it has |
|---|---|
| [Commands](commands/index.md) | every command and option |
| [Algorithms](algorithms/index.md), [attacks](attacks/index.md) | a page each |
| [Defenses](defenses/index.md), [protocols](protocols/index.md) | a page each |
| [Threat models](threats.md) | who knows and sees what, with pictures |
| [Keys of a spec](spec.md) | what `--config` and policies take |
| [Fields of a record](record.md) | what `record.json` holds |
| [Policies](policy.md) | what `fkgsec check` can limit |
| [Exit statuses](exit.md) | of every command |
| [Python](python.md) | the names that scripts import |
"""


@functools.cache
def generated_files() -> dict[str, str]:
    """Every generated file of the site by its path in docs/."""
    sections = {
        "commands": command_pages(),
        "algorithms": algorithm_pages(),
        "attacks": attack_pages(),
        "defenses": defense_pages(),
        "protocols": protocol_pages(),
    }
    pages = {f"reference/{name}/{file}": text for name, made in sections.items() for file, text in made.items()}
    return {
        "reference/index.md": _INDEX,
        **pages,
        "reference/threats.md": threats_page(),
        "reference/spec.md": spec_page(),
        "reference/record.md": record_page(),
        "reference/policy.md": policy_page(),
        "reference/exit.md": exit_page(),
        "reference/python.md": _python_page(),
        **{f"reference/threats/{name}.svg": drawn for name, drawn in pictures().items()},
        "reference/figures/beside.svg": picture(),
    }


def _python_page() -> str:
    """The public names, which mkdocstrings describes."""
    lines = ["# Python", "", "What scripts import; the names below are tested to be there. Examples open most modules."]
    for package in PACKAGES:
        lines += [
            "",
            f"::: {package}",
            "    options: {show_root_heading: true, show_root_full_path: true, heading_level: 2}",
        ]
    return "\n".join(lines)


def navigation() -> dict[str, Any]:
    """The sections of the navigation that consist of generated pages, by name."""

    def section(name: str, entries: dict[str, str]) -> dict[str, Any]:
        return {
            name: [
                f"reference/{name.lower()}/index.md",
                *({title: f"reference/{name.lower()}/{file}"} for title, file in entries.items()),
            ]
        }

    commands = {f"fkgsec {file[:-3]}": file for file in command_pages() if file != "index.md"}
    return {
        "Reference": [
            "reference/index.md",
            section("Commands", commands),
            section("Algorithms", {name: file_name(name) for name in RECIPES}),
            section("Attacks", {file[:-3]: file for file in attack_pages() if file != "index.md"}),
            section("Defenses", {file[:-3]: file for file in defense_pages() if file != "index.md"}),
            section("Protocols", {name: f"{name}.md" for name in PROTOCOLS}),
            {"Threat models": "reference/threats.md"},
            {"Keys of a spec": "reference/spec.md"},
            {"Fields of a record": "reference/record.md"},
            {"Policies": "reference/policy.md"},
            {"Exit statuses": "reference/exit.md"},
            {"Python": "reference/python.md"},
        ]
    }


def main(out: Annotated[Path, typer.Option("--out", help="folder to write the pages to")]) -> None:
    """Write the reference as Markdown."""
    for path, text in generated_files().items():
        place = out / Path(path).relative_to("reference")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text + "\n")
    typer.echo(f"Written {len(generated_files())} files to {out}")


if __name__ == "__main__":
    typer.run(expected_errors(main))
