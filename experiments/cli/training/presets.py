"""A run's options by whose value each is: given, of a file, of a paper (`--preset`), or of the embedded data.

    chosen = choose(None, {"dim": 64}, preset="fedr")
    chosen.spec                    # FedR's training with rows of 64 numbers
    chosen.whose                   # {"dim": "given", "rounds": "preset fedr: Zhang et al. 2022", "batch_size": ...}

A paper's values are those of its table in `experiments/specs`: what the file states for all cells and for the row of the
algorithm and model; the table's data are not taken. What a file or the command line gives beside it wins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
"""The table, by the paper's algorithm, which is the preset's name."""
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
    """A run's spec, and whose value each option is that is not at its default for want of anything else."""

    spec: Any
    whose: dict[str, str]


def choose(config: Path | None, given: Mapping[str, Any], preset: str | None = None, *, rows: bool = True) -> Chosen:
    """The spec from what was given, a file, and a preset or what the embedded data are trained with; the earlier wins.

    Args:
        rows: whether a preset has settings of its algorithm's row; else those of all rows alone, as for a comparison of several.

    Raises:
        SpecError: as `make_spec`, and for a preset that there is not.
    """
    given = {name: value for name, value in given.items() if value is not None}
    content = {} if config is None else read_document(config).content
    in_file = content if isinstance(content, dict) else {}  # `make_spec` says what is wrong with it
    whose = {str(name): str(config) for name in in_file}
    whose |= dict.fromkeys(given, GIVEN)
    stated: dict[str, Any] = {}
    if preset is not None:
        own = {
            name: value
            for name, value in preset_values(preset, in_file | given, rows=rows).items()
            if name not in whose
        }
        stated = {name: value for name, (value, _) in own.items()}
        whose |= {name: why for name, (_, why) in own.items()}
    spec = make_spec(config, stated | given)
    if config is None and preset is None:
        quick = {name: value for name, value in task_of(spec).embedded.get(spec.data, {}).items() if name not in whose}
        spec, whose = spec.replace(**quick), whose | dict.fromkeys(quick, f"the embedded {spec.data}'s")
    return Chosen(spec, whose)


def preset_values(preset: str, stated: Mapping[str, Any], *, rows: bool = True) -> dict[str, tuple[Any, str]]:
    """A paper's options beside those stated: each with its value, and whose it is.

    Args:
        stated: what else is said of the run; its algorithm and model tell the row.
    """
    from fkgsec.experiments.papers.spec import find_experiment

    name = spelled("preset", preset, TABLES)
    document = read_document(find_experiment(TABLES[name])).content
    algorithm = spelled("algorithm", stated.get("algorithm", name), allowed_words("algorithm"))
    model = spelled("model", stated.get("model"), allowed_words("model"))
    levels = [document, *([_row(document["rows"], algorithm, model)] if rows else [])]
    authors = document["paper"].partition(",")[0]
    found: dict[str, tuple[Any, str]] = {}
    for level in levels:
        found |= {
            option: (value, f"preset {name}: {authors}") for option, value in level.get("paper_settings", {}).items()
        }
        for option, ours in level.get("our_settings", {}).items():
            found[option] = (ours["value"], f"preset {name}: {ours['why']}")
        if choice := level.get("choose"):
            found[choice["option"]] = (
                choice["values"][0],
                f"preset {name}: the first of {choice['values']}: {choice['why']}",
            )
    found["algorithm"] = (algorithm, f"preset {name}: {authors}")
    return {option: one for option, one in found.items() if option not in OF_DATA}


def _row(rows: Sequence[Mapping[str, Any]], algorithm: str, model: str | None) -> Mapping[str, Any]:
    """The first row that trains this; empty where the table has none, so that what holds for all rows is taken."""
    for row in rows:
        own = row.get("paper_settings", {})
        if own.get("algorithm") == algorithm and model in (None, own.get("model")):
            return row
    return {}


def longer(chosen: Chosen) -> list[str]:
    """How to train longer, where the embedded data have set the rounds."""
    if not chosen.whose.get("rounds", "").startswith("the embedded"):
        return []
    usual = type(chosen.spec)().rounds
    stop = "all of them" if not chosen.spec.patience else "until validation stops it"
    return [
        f"A first look: {chosen.spec.rounds} rounds, which {chosen.spec.data} gets where nothing else is said. "
        f"--rounds {usual}, as other data get, trains {stop}, several times as long."
    ]
