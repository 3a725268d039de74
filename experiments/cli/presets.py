"""A run's options with the source of each: the command line, a file, a paper (`--preset`), or the embedded data.

    chosen = choose(None, {"dim": 64}, preset="fedr")
    chosen.spec                    # FedR's training with rows of 64 numbers
    chosen.whose                   # {"dim": "given", "rounds": "preset fedr: Zhang et al. 2022", "batch_size": ...}

A paper's values come from its table in `experiments/specs`: those of all cells, and those of the row with the algorithm and
model. The table's data are not taken. A file or the command line overrides them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from fkgsec.experiments.cli.console import complete_from
from fkgsec.experiments.runs.choices import spelled
from fkgsec.experiments.runs.documents import read_document
from fkgsec.experiments.runs.spec import allowed_words, make_spec
from fkgsec.experiments.tasks.task import task_of

TABLES = {
    "fedr": "zhang2022_fedr_table2",
    "feds": "zhang2024_feds_table2",
    "fedlu": "zhu2023_fedlu_table1",
    "pfedeg": "zhang2024_pfedeg_table1",
    "cefgl": "liu2024_cefgl_table1",
}
"""The table of each preset, which is named after the paper's algorithm."""
GIVEN = "given"
OF_DATA = ("data", "clients", "partition", "size")

Preset = Annotated[
    str | None,
    typer.Option(
        "--preset",
        help=f"take a paper's values for what is not given: {', '.join(TABLES)} (those of its table, see "
        "`fkgsec experiment list`; the data aside)",
        autocompletion=complete_from(lambda: tuple(TABLES)),
    ),
]


class Chosen(NamedTuple):
    """A run's spec, and the source of each option that is not at its default."""

    spec: Any
    whose: dict[str, str]


def choose(config: Path | None, options: Mapping[str, Any], preset: str | None = None, *, rows: bool = True) -> Chosen:
    """Build a spec from options, then a file, then a preset or the options of embedded data; the earlier wins.

    Args:
        rows: take a preset's settings of its algorithm's row, too; False for a comparison of several algorithms.

    Raises:
        SpecError: as `make_spec`, and for an unknown preset.
    """
    options = {name: value for name, value in options.items() if value is not None}
    content = {} if config is None else read_document(config).content
    in_file = content if isinstance(content, dict) else {}  # `make_spec` says what is wrong with it
    whose = {str(name): str(config) for name in in_file}
    whose |= dict.fromkeys(options, GIVEN)
    values = {} if preset is None else preset_values(preset, in_file | options, rows=rows)
    values = {name: value for name, value in values.items() if name not in whose}
    whose |= {name: source for name, (_, source) in values.items()}
    spec = make_spec(config, {name: value for name, (value, _) in values.items()} | options)
    if config is None and preset is None:
        quick = {name: value for name, value in task_of(spec).embedded.get(spec.data, {}).items() if name not in whose}
        spec, whose = spec.replace(**quick), whose | dict.fromkeys(quick, f"the embedded {spec.data}'s")
    return Chosen(spec, whose)


def preset_values(preset: str, stated: Mapping[str, Any], *, rows: bool = True) -> dict[str, tuple[Any, str]]:
    """Return a paper's options, each with its value and source.

    Args:
        stated: the run's other options; algorithm and model select the table's row.
    """
    from fkgsec.experiments.papers.spec import find_experiment

    name = spelled("preset", preset, TABLES)
    document = read_document(find_experiment(TABLES[name])).content
    algorithm = spelled("algorithm", stated.get("algorithm", name), allowed_words("algorithm"))
    model = spelled("model", stated.get("model"), allowed_words("model"))
    levels, source = [document], f"preset {name}: {document['paper'].partition(',')[0]}"
    for row in document["rows"] if rows else ():
        settings = row.get("paper_settings", {})
        if settings.get("algorithm") == algorithm and model in (None, settings.get("model")):
            levels.append(row)
            break
    values: dict[str, tuple[Any, str]] = {}
    for level in levels:
        values |= {option: (value, source) for option, value in level.get("paper_settings", {}).items()}
        for option, ours in level.get("our_settings", {}).items():
            values[option] = (ours["value"], f"preset {name}: {ours['why']}")
        if choice := level.get("choose"):
            why = f"preset {name}: the first of {choice['values']}: {choice['why']}"
            values[choice["option"]] = (choice["values"][0], why)
    values["algorithm"] = (algorithm, source)
    return {option: value for option, value in values.items() if option not in OF_DATA}


def longer(chosen: Chosen) -> list[str]:
    """Tell the user how to train longer, where the embedded data set the rounds."""
    if not chosen.whose.get("rounds", "").startswith("the embedded"):
        return []
    usual = type(chosen.spec)().rounds
    stop = "all of them" if not chosen.spec.patience else "until validation stops it"
    return [
        f"A first look: {chosen.spec.rounds} rounds, which {chosen.spec.data} gets where nothing else is said. "
        f"--rounds {usual}, as other data get, trains {stop}, several times as long."
    ]
