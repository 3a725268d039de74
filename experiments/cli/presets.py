"""Options of a run with the source of each: the command line, a file, a paper (`--preset`), or the embedded data.

    chosen = choose(None, {"dim": 64}, preset="fedr")
    chosen.spec                    # FedR's training with embeddings of dimension 64
    chosen.whose                   # {"dim": "given", "rounds": "preset fedr: Zhang et al. 2022", "batch_size": ...}

A paper's values come from its table in `experiments/specs`: the values of all cells, and those of the row with the same
algorithm and model. The table's data set is ignored. A file or the command line overrides these values.
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

# Table of each preset. A preset has the name of the paper's algorithm.
TABLES = {
    "fedr": "zhang2022_fedr_table2",
    "feds": "zhang2024_feds_table2",
    "fedlu": "zhu2023_fedlu_table1",
    "pfedeg": "zhang2024_pfedeg_table1",
    "cefgl": "liu2024_cefgl_table1",
}
GIVEN = "given"
# A preset never replaces the user's data.
OF_DATA = ("data", "clients", "partition", "size")

Preset = Annotated[
    str | None,
    typer.Option(
        "--preset",
        help=f"use a paper's values for options that you leave out: {', '.join(TABLES)} (from its table, see "
        "`fkgsec experiment list`; data options excepted)",
        autocompletion=complete_from(lambda: tuple(TABLES)),
    ),
]


class Chosen(NamedTuple):
    """Spec of a run, and the source of each option that differs from its default."""

    spec: Any
    whose: dict[str, str]


def choose(config: Path | None, options: Mapping[str, Any], preset: str | None = None, *, rows: bool = True) -> Chosen:
    """Build a spec from options, then a file, then a preset or the options of embedded data; the earlier source wins.

    Args:
        config: YAML or JSON file with options.
        options: options of the command line; None values count as absent.
        preset: key of `TABLES`.
        rows: also take the preset's settings for its algorithm's row; False for a comparison of several algorithms.

    Raises:
        SpecError: as `make_spec`, and for an unknown preset.
    """
    options = {name: value for name, value in options.items() if value is not None}
    content = {} if config is None else read_document(config).content
    in_file = content if isinstance(content, dict) else {}  # `make_spec` reports what is wrong with it
    whose = {str(name): str(config) for name in in_file}
    whose |= dict.fromkeys(options, GIVEN)
    values = {} if preset is None else preset_values(preset, in_file | options, rows=rows)
    values = {name: value for name, value in values.items() if name not in whose}
    whose |= {name: source for name, (_, source) in values.items()}
    spec = make_spec(config, {name: value for name, (value, _) in values.items()} | options)
    # The embedded data are a first look: they train for few rounds unless the user chose a length.
    if config is None and preset is None:
        quick = {name: value for name, value in task_of(spec).embedded.get(spec.data, {}).items() if name not in whose}
        spec, whose = spec.replace(**quick), whose | dict.fromkeys(quick, f"the embedded {spec.data}'s")
    return Chosen(spec, whose)


def preset_values(preset: str, stated: Mapping[str, Any], *, rows: bool = True) -> dict[str, tuple[Any, str]]:
    """Return a paper's options, each with its value and source.

    Args:
        preset: key of `TABLES`; a misspelled one is reported with the nearest.
        stated: the run's other options; algorithm and model select the table's row.
        rows: see `choose`.
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
    # Later levels override earlier ones: the row is more specific than the table.
    values: dict[str, tuple[Any, str]] = {}
    for level in levels:
        values |= {option: (value, source) for option, value in level.get("paper_settings", {}).items()}
        # The paper leaves these out, or this library departs from it; the table says why.
        for option, ours in level.get("our_settings", {}).items():
            values[option] = (ours["value"], f"preset {name}: {ours['why']}")
        # The paper selects this value on validation data. A single run takes the first candidate.
        if choice := level.get("choose"):
            why = f"preset {name}: the first of {choice['values']}: {choice['why']}"
            values[choice["option"]] = (choice["values"][0], why)
    values["algorithm"] = (algorithm, source)
    return {option: value for option, value in values.items() if option not in OF_DATA}


def longer(chosen: Chosen) -> list[str]:
    """Tell the user how to train longer if the embedded data set the number of rounds.

    Args:
        chosen: a run's spec and sources.

    Returns:
        One line, or none if the user or a preset chose the rounds.
    """
    if not chosen.whose.get("rounds", "").startswith("the embedded"):
        return []
    usual = type(chosen.spec)().rounds
    stop = "for all of them" if not chosen.spec.patience else "until validation stops improving"
    return [
        f"A first look: {chosen.spec.rounds} rounds, the default for {chosen.spec.data}. "
        f"--rounds {usual}, the default for other data, trains {stop} and takes several times as long."
    ]
