"""Structs of the files in `experiments/specs`: settings, columns, rows and figures of a paper's table.

    document = msgspec.convert(loaded, Document)

`fkgsec.experiments.papers.spec` reads and checks them, and builds cells from them.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from fkgsec.experiments.tasks.items import Average
from fkgsec.unlearning.options import UnlearnOptions

# Metrics of a table; the names are those of records where these have them.
Metric = Literal[
    "mrr", "hits@1", "hits@3", "hits@5", "hits@10", "p@cg", "p@99", "p@98", "r@cg", "err", "trr", "accuracy", "clean", "bytes",
    "rounds@0.2", "rounds@0.4", "loss", "valid", "entities", "relations",
]  # fmt: skip
Shown = Literal["own", "shared"]
Level = Literal["", "local", "global"]
Triples = Literal["forget", "test"]
Role = Literal["raw", "retrained", "unlearned"]
# Relative to a baseline row; measured by attacks; properties of the data.
RELATIVE = ("p@cg", "p@99", "p@98")
LEAKAGE = ("err", "trr")
SIZES = ("entities", "relations")


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """Model and forget set of a cell in an unlearning table.

    Attributes:
        role: "raw" before unlearning, "retrained" on the retained triples, or "unlearned".
        options: unlearning options at seed 0; None for the other roles.
        forget: "published" (the sets beside the data, see `read_forget`), or a share of each client's training triples.
    """

    role: Role
    options: UnlearnOptions | None = None
    forget: Literal["published"] | float = "published"


class Ours(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Value that the paper does not state, and the reason for ours."""

    value: Any
    why: str


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of a spec: the paper's, and ours if the paper states none."""

    paper_settings: dict[str, Any] = {}
    our_settings: dict[str, Ours] = {}

    @property
    def values(self) -> dict[str, Any]:
        """All values by option."""
        return self.paper_settings | {option: ours.value for option, ours in self.our_settings.items()}

    @property
    def reasons(self) -> dict[str, str | None]:
        """Reasons by option; None for the paper's own values."""
        return dict.fromkeys(self.paper_settings) | {option: ours.why for option, ours in self.our_settings.items()}


class Stated(msgspec.Struct, frozen=True):
    """Setting as a file states it.

    Attributes:
        where: cells that it applies to.
        why: reason for our value; None for the paper's.
    """

    where: str
    option: str
    value: Any
    why: str | None


class Choice(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Option that validation selects: each of `values` is a run, and the row shows the best one's figures."""

    option: str
    values: tuple[Any, ...]
    why: str


class Column(Settings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Column of the table.

    Attributes:
        missing: why it cannot be run; its figures are still shown.
        leak: leak ratio of its figures, if runs are attacked at several.
        level, triples: in an unlearning table, the client model and the triples of its figures.
    """

    name: str
    missing: str = ""
    leak: float | None = None
    level: Level = ""
    triples: Triples | Literal[""] = ""


class Forgetting(Settings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Role of a row's models (see `Asked`). Its settings are `UnlearnOptions` and override the document's."""

    role: Role


class Row(Settings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Row of the table.

    Attributes:
        figures: the paper's, by column and metric; rates as shares of 1, None for a dash.
        baseline: row that P@CG, P@99 and P@98 are relative to.
        exceptions: settings of this row in one column.
        shown: "shared" shows the utility of the shared model, if clients have a second one ("global" in fedlu.txt).
        average: average over clients, if the row's differs from the document's.
        missing: why the row cannot be run.
        same_as: another row that provides the runs.
        why: with `same_as`, why the two algorithms are equal here.
        choose: an option with several values; overrides everything but a derived file's settings.
        victim: client of an attack's figures, counted from 1; 0 for all victims.
        forgetting: role of its models in an unlearning table.
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
    """File of a table.

    Attributes:
        average: average over clients as in the paper's code: "items" weighs clients by test items, "clients" equally;
            None as in records.
        attack: attack every cell after its training.
        seeds: our seeds.
        also: further metrics to show.
        divisions: "by seed" divides the data anew for each seed; "one" keeps the division of seed 0.
        forget: see `Asked`.
        unlearning: settings of all unlearned rows.
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
    divisions: Literal["one", "by seed"] = "one"
    also: tuple[Metric, ...] = ()
    forget: Literal["published"] | float = "published"
    unlearning: Settings = Settings()


class Derived(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """File that changes another file's table: smaller settings, or other figures of the same runs.

    Attributes:
        base: the other file, without `.yaml`, in the same folder.
        our_settings: override all settings of the base.
        shows: metrics to show instead of the base's figures.
        figures: the paper's figures of these metrics, by cell.
        notes: added to the base's; with `shows`, they replace them.
        only: cells to keep, see `select_cells`; empty keeps all.
    """

    base: str
    title: str
    table: str = ""
    our_settings: dict[str, Ours] = {}
    shows: tuple[Metric, ...] = ()
    figures: dict[str, dict[Metric, float]] = {}
    notes: tuple[str, ...] = ()
    only: str = ""
    seeds: tuple[int, ...] | None = None
