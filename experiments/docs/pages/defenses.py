"""A page for each defense and each protocol: what it hides from whom, its settings, and what attacks got under it."""

from __future__ import annotations

import importlib
from typing import Any

import msgspec

from defenses import bound_broadcasts, broadcasts, privacy, robust, transport
from defenses.options import KINDS, DefenseOptions
from experiments.docs.docstrings import as_markdown, cell, described, remarks, summary
from experiments.docs.fields import default_of, type_words
from experiments.docs.measured import of_defense

# The modules that say how a defense works, beside the struct of its settings.
BEHIND: dict[str, tuple[Any, ...]] = {
    "psu": (),
    "secagg": (broadcasts, bound_broadcasts),
    "suppress": (),
    "dp": (privacy,),
    "robust": (robust,),
}
PROTOCOL_OF = {"psu": "psu", "secagg": "secagg", "dp": "noise"}
PROTOCOLS = ("secagg", "psu", "noise")


def defense_pages() -> dict[str, str]:
    """The pages by file name, and an index."""
    return {"index.md": _index(), **{f"{name}.md": _page(name, kind) for name, kind in KINDS.items()}}


def protocol_pages() -> dict[str, str]:
    """A page for each package of protocols, and an index."""
    lines = [
        "# Protocols",
        "",
        as_markdown(importlib.import_module("protocols").__doc__ or "").partition("\n\n")[0],
        "",
        "They have had no external audit.",
        "",
        "| package | what it does |",
        "|---|---|",
    ]
    pages = {}
    for name in PROTOCOLS:
        package = importlib.import_module(f"protocols.{name}")
        lines.append(f"| [`protocols.{name}`]({name}.md) | {cell(summary(package.__doc__))} |")
        pages[f"{name}.md"] = "\n".join(
            [f"# protocols.{name}", "", as_markdown(package.__doc__ or ""), "", *_measured(name)]
        )
    return {"index.md": "\n".join(lines), **pages}


def _measured(name: str) -> list[str]:
    bench = {"secagg": ("protocols", "sessions"), "psu": ("protocols",), "noise": ("protocols",)}[name]
    commands = "\n".join(f"python -m benchmarks.{one}" for one in bench)
    return [
        "## What it costs",
        "",
        "Bytes and seconds on your machine, beside the floor of the ciphers alone:",
        "",
        f"```\n{commands}\n```",
        "",
        f"::: protocols.{name}",
        "    options: {members: true, show_root_heading: false, heading_level: 2, show_docstring_description: true}",
    ]


def _index() -> str:
    lines = [
        "# Defenses",
        "",
        "`--defense` takes one or more with commas between them, each with its settings: `psu,secagg:dropout=0.1,suppress:t=2`.",
        "",
        "| name | what it does |",
        "|---|---|",
        *(f"| [`{name}`]({name}.md) | {cell(_about(kind))} |" for name, kind in KINDS.items()),
        "",
        as_markdown(transport.__doc__ or ""),
    ]
    return "\n".join(lines)


def _about(kind: type[DefenseOptions]) -> str:
    return kind.about or summary(kind.__doc__)


def _page(name: str, kind: type[DefenseOptions]) -> str:
    lines = [f"# {name}", ""]
    if kind.__doc__ and summary(kind.__doc__) != "See the module.":
        lines += [as_markdown(kind.__doc__), ""]
    for module in BEHIND.get(name, ()):
        lines += [as_markdown(module.__doc__ or ""), ""]
        lines += [f"**Differs.** {cell(one)}\n" for one in remarks(module, "Differs") if one not in " ".join(lines)]
    if name in PROTOCOL_OF:
        protocol = PROTOCOL_OF[name]
        lines += [
            f"The protocol, what each party sees and what it assumes: [`protocols.{protocol}`](../protocols/{protocol}.md).",
            "",
        ]
    lines += ["## Settings", "", *_settings(kind)]
    if measured := of_defense(name):
        lines += ["", "## What attacks got under it", "", *measured]
    return "\n".join(lines)


def _settings(kind: type[DefenseOptions]) -> list[str]:
    fields = msgspec.structs.fields(kind)
    told = described(kind.__doc__, [one.name for one in fields])
    rows = (
        f"| `{one.name}` | {default_of(one)} | {type_words(one.type)} | {cell(told.get(one.name, ''))} |"
        for one in fields
    )
    return ["| setting | default | type | meaning |", "|---|---|---|---|", *rows] if fields else ["It has none."]
