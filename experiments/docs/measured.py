"""Figures of committed records that reference pages show: every attack on six configurations."""

from __future__ import annotations

import functools
from pathlib import Path

from experiments.reporting.summary import matrix_lines

FOLDER = Path(__file__).parents[1] / "results/attacks/matrix"
COMMAND = "python -m experiments.reporting.summary --matrix experiments/results/attacks/matrix/hospitals-seed*.json"


@functools.cache
def _rows() -> tuple[tuple[str, ...], ...]:
    lines = matrix_lines(sorted(FOLDER.glob("hospitals-seed*.json")))
    return tuple(
        tuple(cell.strip() for cell in line.strip("|").split(" | "))
        for line in lines
        if line.startswith("|") and "---" not in line
    )


def of_attack(name: str) -> list[str]:
    """The table of an attack: a row for each of its figures and configuration; empty where no record has it."""
    head, *rows = _rows()
    mine = [row for row in rows if row[0].startswith(f"{name}.")]
    if not mine:
        return []
    shown = [
        "| configuration | " + " | ".join(row[0] for row in mine) + " |",
        "|---|" + "---|" * len(mine),
        *(
            f"| {'in clear' if case == 'none' else f'`{case}`'} | " + " | ".join(row[place] for row in mine) + " |"
            for place, case in list(enumerate(head))[1:]
        ),
    ]
    return [*shown, "", *_where()]


def of_defense(name: str) -> list[str]:
    """Every attack in clear and under the configurations that have a defense; empty where no record has it."""
    head, *rows = _rows()
    columns = [
        place for place, one in enumerate(head) if place and any(part.split(":")[0] == name for part in one.split(","))
    ]
    if not columns:
        return []
    kept = [0, head.index("none"), *columns]
    named = ["figure", "in clear", *(f"`{head[place]}`" for place in columns)]
    shown = [
        "| " + " | ".join(named) + " |",
        "|---|" + "---|" * (len(kept) - 1),
        *("| " + " | ".join(row[place] for place in kept) + " |" for row in rows),
    ]
    return [*shown, "", *_where()]


def _where() -> list[str]:
    return [
        "Embedded hospitals, five clients, 4,000 triples, 12 rounds, dimension 16; mean over three seeds (least to largest); "
        "*base* is what the same adversary has without what crossed. Yours: `fkgsec compare --attack all`. "
        "`n/a`: reasons in `experiments/results/attacks/matrix/README.md`. Printed by",
        "",
        f"```\n{COMMAND}\n```",
    ]
