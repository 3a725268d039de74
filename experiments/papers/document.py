"""What a file of `experiments/specs` may hold: settings, columns, rows and figures of a paper's table, as structs.

    document = msgspec.convert(loaded, Document)

`fkgsec.experiments.papers.spec` reads and checks them, and makes cells of them.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from fkgsec.unlearning.options import UnlearnOptions

Metric = Literal[
    "mrr", "hits@1", "hits@3", "hits@5", "hits@10", "p@cg", "p@99", "p@98", "r@cg", "err", "trr", "accuracy", "clean", "bytes",
    "rounds@0.2", "rounds@0.4", "loss", "valid", "entities", "relations",
]  # fmt: skip
Shown = Literal["own", "shared"]
Average = Literal["items", "clients"]
Level = Literal["", "local", "global"]
Triples = Literal["forget", "test"]
Role = Literal["raw", "retrained", "unlearned"]
RELATIVE = ("p@cg", "p@99", "p@98")
LEAKAGE = ("err", "trr")
SIZES = ("entities", "relations")


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What a cell of unlearning is of.

    Attributes:
        role: of the model: "raw" before unlearning, "retrained" on what is retained, "unlearned".
        options: of unlearning, at seed 0; None for the other roles.
        forget: "published", the sets that lie beside the data (`read_forget`), or a share of each client's training triples.
    """

    role: Role
    options: UnlearnOptions | None = None
    forget: Literal["published"] | float = "published"


class Ours(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A value that the paper leaves open, and why it is this one."""

    value: Any
    why: str


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of `Spec`, apart by who says so."""

    paper_settings: dict[str, Any] = {}
    our_settings: dict[str, Ours] = {}


class Choice(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An option whose value is chosen on validation: each of `values` is a run, and the best one's figures are the row's."""

    option: str
    values: tuple[Any, ...]
    why: str


class Column(Settings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A column of the table.

    Attributes:
        missing: why it cannot be run; its figures are shown all the same.
        leak: where runs are attacked at several leak ratios, the one that its figures are of.
        level, triples: of a table of unlearning which of a client's models its figures are of, and on which triples.
    """

    name: str
    missing: str = ""
    leak: float | None = None
    level: Level = ""
    triples: Triples | Literal[""] = ""


class Forgetting(Settings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a row's models forget; the settings are those of `UnlearnOptions`, which win over the document's.

    Attributes:
        role: whose figures these are, see `Asked`.
    """

    role: Role


class Row(Settings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A row of the table.

    Attributes:
        figures: the paper's, by column and metric; rates as shares of 1, None where the paper has a dash.
        baseline: the row that P@CG, P@99 and P@98 are relative to.
        exceptions: settings of this row in one column.
        shown: "shared" shows the utility of the shared model, where clients keep a second one ("global" in fedlu.txt).
        average: over clients, where the row's differs from the document's.
        missing: why the row cannot be run.
        same_as: another row, whose runs are this one's too, since the two algorithms are one here; `why` says why they are.
        choose: an option with several values, which wins over what else is stated of it, a variant's settings excepted.
        victim: which client the figures of an attack are of, counted from 1; 0: all victims.
        forgetting: what its models were made of, in a table of unlearning.
    """

    name: str
    figures: dict[str, dict[Metric, float | None]]
    baseline: str = ""
    exceptions: dict[str, Settings] = {}
    shown: Shown = "own"
    average: Average | None = None
    missing: str = ""
    same_as: str = ""
    why: str = ""
    choose: Choice | None = None
    victim: int = 0
    forgetting: Forgetting | None = None


class Document(Settings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file.

    Attributes:
        average: over clients, as the paper's code has it: "items" weighs each client by its test items, "clients" weighs all
            alike; None: as records have it.
        attack: attack every cell after its training. seeds: ours. also: metrics beside the paper's.
        forget: which triples are forgotten: "published" ones, or a share of each client's. unlearning: settings of all rows.
    """

    title: str
    paper: str
    table: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    average: Average | None = None
    attack: bool = False
    seeds: tuple[int, ...] = (0,)
    also: tuple[Metric, ...] = ()
    forget: Literal["published"] | float = "published"
    unlearning: Settings = Settings()


class Variant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Another file's table with other settings, smaller ones usually, which win over all of that file's.

    Attributes:
        base: the other file, without `.yaml`, in the same folder.
        only: the cells that stay, as for `select_cells`; empty keeps all.
    """

    base: str
    title: str
    our_settings: dict[str, Ours]
    notes: tuple[str, ...] = ()
    only: str = ""
    seeds: tuple[int, ...] | None = None


class View(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Other figures of another file's runs, at its settings: what a paper draws of the runs of one of its tables.

    Attributes:
        shows: in place of that file's figures. figures: those that the paper prints, by cell.
        base, only: as of a `Variant`.
    """

    base: str
    title: str
    table: str
    shows: tuple[Metric, ...]
    figures: dict[str, dict[Metric, float]] = {}
    notes: tuple[str, ...] = ()
    only: str = ""
