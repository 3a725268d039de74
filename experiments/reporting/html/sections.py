"""Sections of the report page that other packages can add.

def sheets(runs):                                      # Sequence[Run]: `name`, `record`, `scores`
    rows = tuple((run.name, run.record.bytes.up) for run in runs)
    return [Sheet("Uploads", (Column("run"), Column("MiB", "MiB")), rows)]

SECTIONS.register("uploads", Section("Upload sizes", sheets))    # or an entry point of group `fkgsec.sections`
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fkgsec.experiments.reporting.items import Run
from fkgsec.experiments.reporting.sheets import Column, Sheet
from fkgsec.registry import Registry

__all__ = ["SECTIONS", "Column", "Run", "Section", "Sheet"]


@dataclass(frozen=True)
class Section:
    """A section of tables. A section without tables is left out.

    Attributes:
        title: heading and entry of the page's navigation.
        sheets: tables of the runs of the page.
    """

    title: str
    sheets: Callable[[Sequence[Run]], Sequence[Sheet]]


SECTIONS: Registry[Section] = Registry("section", "fkgsec.sections")
