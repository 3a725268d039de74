"""A page for each command: its help, examples and options, from the data that `fkgsec --help` is answered from."""

from __future__ import annotations

from experiments.cli.surface import Command, Parameter, read_surface
from experiments.docs.docstrings import cell, escaped
from experiments.docs.fields import flattened


def command_pages() -> dict[str, str]:
    """The pages by file name, and an index. Those of a group stand on one page."""
    surface = read_surface()
    lines = [
        "# Commands",
        "",
        "`fkgsec COMMAND --help` says the same. `fkgsec --install-completion` lets the shell complete them.",
        "",
    ]
    lines += ["| command | what it does |", "|---|---|"]
    pages = {}
    for command in surface:
        lines.append(f"| [`fkgsec {command.name}`]({command.name}.md) | {cell(command.help)} |")
        pages[f"{command.name}.md"] = _page(command)
    return {"index.md": "\n".join(lines), **pages}


def _page(command: Command) -> str:
    made = [f"# fkgsec {command.name}", *_body(command, 2)]
    for path, one in flattened(command.commands or (), command.name):
        made += ["", f"## fkgsec {path}", *_body(one, 3)]
    return "\n".join(made)


def _body(command: Command, level: int) -> list[str]:
    """Help, examples, arguments, and options by panel."""
    made = ["", escaped(command.help)]
    if command.epilog:
        examples = [line.strip() for line in command.epilog.splitlines() if line.strip().startswith("fkgsec ")]
        made += ["", "```", *examples, "```"]
    shown = [one for one in command.parameters if not one.hidden]
    for panel in dict.fromkeys(one.panel or ("Options" if one.flags else "Arguments") for one in shown):
        made += ["", f"{'#' * level} {panel} {{ #{command.name}-{panel.lower().replace(' ', '-')} }}", ""]
        made += ["| option | default | values | meaning |", "|---|---|---|---|"]
        made += [_row(one) for one in shown if (one.panel or ("Options" if one.flags else "Arguments")) == panel]
    return made


def _row(one: Parameter) -> str:
    name = ", ".join(f"`{flag}`" for flag in one.flags) or f"`{(one.metavar or one.name).upper()}`"
    default = "required" if one.required else "" if one.default is None else f"`{one.default}`"
    values = (
        one.kind
        if one.kind in ("int", "float", "path", "bool")
        else ", ".join(f"`{word}`" for word in one.kind.split("|") if "|" in one.kind)
    )
    low, high = one.min, one.max
    bounds = (
        ""
        if low is None and high is None
        else f" {'' if low is None else f'from {low:g}'}{'' if high is None else f' to {high:g}'}"
    )
    return f"| {name} | {default} | {values}{bounds}{', repeatable' if one.many else ''} | {cell(one.help)} |"
