"""Figures of committed records that reference pages show: every attack on six configurations, every algorithm attacked alike."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import NamedTuple

from experiments.reporting.summary import matrix_lines

RESULTS = Path(__file__).parents[1] / "results/attacks"
REASON = re.compile(r"\* (n/a \d+): (.*)")


class Measured(NamedTuple):
    """A matrix of committed comparisons: adversaries by case, and what each number behind "n/a" stands for."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    reasons: dict[str, str]
    files: str
    about: str
    yours: str

    def where(self, shown: list[str]) -> list[str]:
        """The reasons of a table's cells without a figure, the size of the runs, and the command that prints all of them."""
        told = [f"- {name}: {why}" for name, why in self.reasons.items() if any(f" {name} |" in line for line in shown)]
        return [
            *told,
            *([""] if told else []),
            f"{self.about}; *base* is what the same adversary has without what crossed. Yours: `{self.yours}`. Printed by",
            "",
            f"```\npython -m experiments.reporting.summary --matrix experiments/results/attacks/{self.files}\n```",
        ]


@functools.cache
def _measured(files: str, about: str, yours: str) -> Measured | None:
    """The matrix of these files; none where nothing is recorded."""
    found = sorted(RESULTS.glob(files))
    if not found:
        return None
    lines = matrix_lines(found)
    head, *rows = (
        tuple(cell.strip() for cell in line.strip("|").split(" | "))
        for line in lines
        if line.startswith("|") and "---" not in line
    )
    reasons = {told[1]: told[2] for line in lines if (told := REASON.fullmatch(line))}
    return Measured(head, tuple(rows), reasons, files, about, yours)


def _configurations() -> Measured | None:
    """Every attack on six configurations of defenses."""
    return _measured(
        "matrix/hospitals-seed*.json",
        "Embedded hospitals, five clients, 4,000 triples, 12 rounds, dimension 16; mean over three seeds (least to largest)",
        "fkgsec compare --attack all",
    )


def _algorithms(task: str) -> Measured | None:
    """Attacks that need no further training, on every algorithm of a task."""
    yours = "fkgsec compare --case ALGORITHM --case OTHER"
    if task == "graph":
        about = "Generated graphs, four clients, 24 rounds, width 16; one seed, 95 % intervals"
        return _measured("algorithms/motifs.json", about, yours)
    about = "Embedded hospitals, five clients, 4,000 triples, 12 rounds, dimension 16; one seed, 95 % intervals"
    return _measured("algorithms/hospitals.json", about, yours)


def of_attack(name: str) -> list[str]:
    """The table of an attack: a row for each of its figures and configuration; empty where no record has it."""
    made = _configurations()
    mine = [row for row in made.rows if row[0].startswith(f"{name}.")] if made else []
    if not made or not mine:
        return []
    shown = [
        "| configuration | " + " | ".join(row[0] for row in mine) + " |",
        "|---|" + "---|" * len(mine),
        *(
            f"| {'in clear' if case == 'none' else f'`{case}`'} | " + " | ".join(row[place] for row in mine) + " |"
            for place, case in list(enumerate(made.head))[1:]
        ),
    ]
    return [*shown, "", *made.where(shown)]


def of_defense(name: str) -> list[str]:
    """Every attack in clear and under the configurations that have a defense; empty where no record has it."""
    made = _configurations()
    head = made.head if made else ()
    columns = [
        place for place, one in enumerate(head) if place and any(part.split(":")[0] == name for part in one.split(","))
    ]
    return _beside(made, "none", "in clear", columns) if made and columns else []


def of_algorithm(name: str, task: str) -> list[str]:
    """What attacks got of an algorithm in clear, beside that of the task's first one; empty where no record has it."""
    made, first = _algorithms(task), "fedavg" if task == "graph" else "fede"
    if made is None or name not in made.head:
        return []
    return _beside(made, first, f"`{first}`", [made.head.index(name)] if name != first else [])


def _beside(made: Measured, first: str, called: str, columns: list[int]) -> list[str]:
    """Columns of a matrix beside that of one case; without the rows that say of none of them anything but why not."""
    kept = [0, made.head.index(first), *columns]
    named = ["figure", called, *(f"`{made.head[place]}`" for place in columns)]
    told = [row for row in made.rows if any(not row[place].startswith("n/a") for place in kept[1:])]
    shown = [
        "| " + " | ".join(named) + " |",
        "|---|" + "---|" * (len(kept) - 1),
        *("| " + " | ".join(row[place] for place in kept) + " |" for row in told),
    ]
    return [*shown, "", *made.where(shown)]
