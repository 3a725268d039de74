"""A table of a paper as a file: its cells, what each is run with, and the paper's figures.

    experiment = read_experiment(find_experiment("zhang2024_feds_table2_cpu"))
    for cell in select_cells(experiment.cells, "TransE R3"):
        print(cell.name, cell.spec, cell.figures)

A file names its settings twice over: `paper_settings`, which the paper states, and `our_settings`, each with a `why`, for
what it leaves open. They stand at the top, in a column, in a row, or in an exception (one column of a row); the later of
these wins. A row may leave one option to validation (`choose`). The shipped files lie in `experiments/specs`, called
author-year-algorithm-table.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from fkgsec.errors import SpecError
from fkgsec.experiments.cli.options import DATA_FIELDS
from fkgsec.experiments.papers.document import (
    LEAKAGE,
    RELATIVE,
    Asked,
    Average,
    Column,
    Document,
    Forgetting,
    Metric,
    Ours,
    Row,
    Settings,
    Shown,
    Variant,
    View,
)
from fkgsec.experiments.runs.documents import read_shared
from fkgsec.experiments.runs.spec import RunSpec, make_spec, option_names
from fkgsec.text import shown
from fkgsec.unlearning.options import UnlearnOptions

Kind = TypeVar("Kind")


class Cell(NamedTuple):
    """One figure box of the table.

    Attributes:
        candidates: what to run, at seed 0: one, one for each value that `chosen` may have, or none where `missing` says why.
        stated: the options that the file states for this cell, with why if the value is ours (None: the paper's).
        figures: the paper's.
        baseline: name of the cell that relative figures refer to; empty without one.
        shown: which model's utility, see `Row`. average: over clients, see `Document`.
        chosen: the option whose value validation decides; empty where there is one candidate.
        same_as: whose runs these are, and why, where they are another row's. trained: the row that has the settings.
        victim, leak: which of an attack's figures, see `Row` and `Column`.
        asked: of a table of unlearning, what is made of the candidates' runs; level, triples: see `Column`.
    """

    name: str
    row: str
    column: str
    candidates: tuple[RunSpec, ...]
    stated: Mapping[str, str | None]
    figures: Mapping[Metric, float | None]
    baseline: str
    missing: str
    shown: Shown = "own"
    chosen: str = ""
    same_as: str = ""
    victim: int = 0
    leak: float | None = None
    asked: Asked | None = None
    level: str = ""
    triples: str = ""
    trained: str = ""
    average: Average = "items"

    @property
    def other_data(self) -> str:
        """What of the data or their division is not the paper's, and why, so that the cell's figures are not its; else empty."""
        ours = ((option, self.stated.get(option)) for option in DATA_FIELDS)
        return next((f"other {option}: {why.split(';')[0]}" for option, why in ours if why), "")

    @property
    def spec(self) -> RunSpec | None:
        """The first candidate; None where nothing can be run."""
        return self.candidates[0] if self.candidates else None

    def choice(self, spec: RunSpec) -> str:
        """The value that a candidate gives to the option `chosen`, as text."""
        value = spec.document()[self.chosen]
        return f"{value:g}" if isinstance(value, float) else str(value)


class Stated(NamedTuple):
    """One setting as a file states it: for which cells, its value, and why if it is ours (None: the paper's)."""

    where: str
    option: str
    value: Any
    why: str | None


class Experiment(NamedTuple):
    """A file, read and checked: every cell that can be run is a valid spec.

    Attributes:
        base: the file whose settings these change; empty for one at the paper's own.
    """

    name: str
    title: str
    paper: str
    table: str
    notes: tuple[str, ...]
    attack: bool
    seeds: tuple[int, ...]
    cells: tuple[Cell, ...]
    settings: tuple[Stated, ...]
    also: tuple[Metric, ...] = ()
    base: str = ""

    @property
    def metrics(self) -> list[Metric]:
        """The metrics of the paper's figures, in the order in which they first appear, and those that stand beside them."""
        return list(dict.fromkeys([*(metric for cell in self.cells for metric in cell.figures), *self.also]))


def shipped_experiments() -> dict[str, Path]:
    """The files that come with fkgsec, by name."""
    folder = Path(str(resources.files("fkgsec.experiments").joinpath("specs")))
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def find_experiment(name_or_path: str) -> Path:
    """The shipped file of that name, or the file at that path. Raises `SpecError` with the closest names."""
    shipped = shipped_experiments()
    if name_or_path in shipped:
        return shipped[name_or_path]
    if Path(name_or_path).is_file():
        return Path(name_or_path)
    close = difflib.get_close_matches(name_or_path, shipped, n=3)
    hint = f"did you mean {' or '.join(close)}?" if close else "`fkgsec experiment list` names the shipped ones"
    raise SpecError(f"{name_or_path}: neither a shipped experiment nor a file; {hint}")


def read_experiment(path: Path) -> Experiment:
    """Read and check a file: its keys, options, columns and baselines, and that every cell is a valid spec.

    Raises:
        SpecError: one line with the file, the place in it, the value and what is allowed.
    """
    raw = _load(path)
    if "base" not in raw:
        return _experiment(path, _convert(raw, Document, path))
    if "shows" in raw:
        return _view(path, _convert(raw, View, path))
    variant = _convert(raw, Variant, path)
    document = _base(path, variant.base)
    document = msgspec.structs.replace(
        document,
        title=variant.title,
        notes=(*document.notes, *variant.notes),
        seeds=variant.seeds or document.seeds,
    )
    return _experiment(path, document, variant)


def _base(path: Path, name: str) -> Document:
    """The document of another file of the same folder."""
    from fkgsec.data.formats.folders import can_name_a_file

    if not can_name_a_file(name):
        raise SpecError(f"{path}: base: the name of a file beside it, without .yaml; got {shown(name)}")
    base = path.with_name(f"{name}.yaml")
    return _convert(_load(base), Document, base)


def _view(path: Path, view: View) -> Experiment:
    """Another file's cells, which keep their runs and settings, with other figures."""
    document = _base(path, view.base)
    whole = _experiment(path, msgspec.structs.replace(document, title=view.title, table=view.table))
    try:
        kept = select_cells(whole.cells, view.only)
    except SpecError as error:
        raise SpecError(f"{path}: {error}") from error
    names = [cell.name for cell in kept]
    for name, figures in view.figures.items():
        if name not in names:
            raise SpecError(f"{path}: figures: no cell {name!r}; cells are called {names[0]!r} to {names[-1]!r}")
        if strange := sorted(set(figures) - set(view.shows)):
            raise SpecError(
                f"{path}: figures, {name}: {strange[0]} is not among what it shows: {', '.join(view.shows)}"
            )
    cells = tuple(cell._replace(figures=view.figures.get(cell.name, {}), baseline="") for cell in kept)
    return whole._replace(cells=cells, notes=view.notes, also=view.shows)


def _load(path: Path) -> dict[str, Any]:
    loaded = read_shared(path).content
    if not isinstance(loaded, dict):
        raise SpecError(f"{path}: a mapping with title, columns and rows is expected, found {type(loaded).__name__}")
    return loaded


def _convert(raw: dict[str, Any], kind: type[Kind], path: Path) -> Kind:
    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        text, _, place = str(error).partition(" - at ")
        place = re.sub(r"`|\$\.?", "", place).removeprefix("key in ")
        # rows[3] says less than the row's own name.
        found = re.match(r"(rows|columns)\[(\d+)\]", place)
        if found and isinstance(one := raw[found[1]][int(found[2])], dict) and "name" in one:
            place = f"{found[1]}, {one['name']}{place[found.end() :]}"
        raise SpecError(f"{path}: {f'{place}: ' if place else ''}{text.replace('`array`', 'a list')}") from error


def _experiment(path: Path, document: Document, variant: Variant | None = None) -> Experiment:
    """Check a document, and make its cells."""
    _check(path, document)
    columns = [column.name for column in document.columns]
    rows = [row.name for row in document.rows]
    last = Settings(our_settings=variant.our_settings) if variant else Settings()
    # A variant's settings need not fit rows that it leaves out.
    kept = select_names([f"{row} {column}" for row in rows for column in columns], variant.only if variant else "")
    by_name = {row.name: row for row in document.rows}
    cells = tuple(
        _cell(path, row, by_name.get(row.same_as, row), column, (document, last))
        for row in document.rows
        for column in document.columns
        if f"{row.name} {column.name}" in kept
    )
    used = {
        (row.same_as or row.name, column)
        for row in document.rows
        for column in columns
        if f"{row.name} {column}" in kept
    }
    stated = [
        ("all cells", document),
        *((column.name, column) for column in document.columns if any((row, column.name) in used for row in rows)),
        ("all cells, unlearning", document.unlearning),
        *((f"{row.name}, unlearning", row.forgetting) for row in document.rows if row.forgetting),
        *(
            (place, level)
            for row in document.rows
            for place, level, used_in in [
                (row.name, row, columns),
                *((f"{row.name} {column}", one, [column]) for column, one in row.exceptions.items()),
            ]
            if any((row.name, column) in used for column in used_in)
        ),
        ("all cells, above all", last),
    ]
    return Experiment(
        path.stem,
        document.title,
        document.paper,
        document.table,
        document.notes,
        document.attack,
        document.seeds,
        cells,
        tuple(one for where, level in stated for one in _stated(where, level)),
        document.also,
        variant.base if variant else "",
    )


def _check(path: Path, document: Document) -> None:
    """Raises `SpecError` for names that stand twice or refer to nothing, and for figures that cannot be had."""
    _check_unlearning(path, document)
    columns = [column.name for column in document.columns]
    rows = [row.name for row in document.rows]
    for what, names in (("columns", columns), ("rows", rows)):
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice or not names:
            raise SpecError(f"{path}: {what}: {f'{twice[0]!r} stands twice' if twice else 'at least one is needed'}")
    if not document.seeds or min(document.seeds) < 0 or len(set(document.seeds)) < len(document.seeds):
        raise SpecError(f"{path}: seeds: different numbers from 0 on are needed; got {list(document.seeds)}")
    for row in document.rows:
        place = f"{path}: rows, {row.name}"
        for what, named in (("figures", row.figures), ("exceptions", row.exceptions)):
            for name in named:
                if name not in columns:
                    raise SpecError(f"{place}: {what}: no column {name!r}; allowed: {', '.join(columns)}")
        if row.baseline and row.baseline not in rows:
            raise SpecError(f"{place}: baseline: no row {row.baseline!r}; allowed: {', '.join(rows)}")
        _check_same(place, row, {one.name: one for one in document.rows})
        metrics = {metric for figures in row.figures.values() for metric in figures}
        if row.victim < 0:
            raise SpecError(f"{place}: victim: clients are counted from 1; got {row.victim}")
        if metrics & set(RELATIVE) and not row.baseline:
            raise SpecError(f"{place}: baseline: {', '.join(sorted(metrics & set(RELATIVE)))} need one")
        if metrics & set(LEAKAGE) and not document.attack:
            raise SpecError(f"{place}: figures: err and trr need attack: true")
        if row.choose and (len(row.choose.values) < 2 or _twice(row.choose.values)):
            raise SpecError(
                f"{place}: choose: values: different ones, two or more, are needed; got {list(row.choose.values)}"
            )


def _check_unlearning(path: Path, document: Document) -> None:
    """Raises `SpecError` unless all rows and columns say what they are of, or none does."""
    parts = [("rows", one.name, one.forgetting is not None) for one in document.rows]
    parts += [("columns", one.name, bool(one.level and one.triples)) for one in document.columns]
    whose = {says for _, _, says in parts}
    if len(whose) > 1:
        kind, name, _ = next(part for part in parts if not part[2])
        needed = "forgetting" if kind == "rows" else "level and triples"
        raise SpecError(f"{path}: {kind}, {name}: {needed}: missing in a table of unlearning")
    if isinstance(document.forget, float) and not 0 < document.forget < 1:
        raise SpecError(f"{path}: forget: a share between 0 and 1, or published; got {document.forget}")
    if whose == {True} and (document.attack or any(row.baseline for row in document.rows)):
        raise SpecError(f"{path}: attack, baseline: a table of unlearning has neither")


def _check_same(place: str, row: Row, rows: Mapping[str, Row]) -> None:
    """Raises `SpecError` for a row that is another's without saying why, or that is not there, or that has settings."""
    if not row.same_as:
        return
    if row.same_as == row.name or row.same_as not in rows or rows[row.same_as].same_as:
        allowed = ", ".join(name for name, other in rows.items() if name != row.name and not other.same_as)
        raise SpecError(f"{place}: same_as: no row {row.same_as!r} with runs of its own; allowed: {allowed}")
    if not row.why:
        raise SpecError(f"{place}: why: say why its runs are those of {row.same_as}")
    if row.paper_settings or row.our_settings or row.exceptions or row.choose:
        raise SpecError(
            f"{place}: same_as: its runs are those of {row.same_as}, which has the settings; leave them out"
        )


def _cell(path: Path, row: Row, trained: Row, column: Column, around: tuple[Settings, Settings]) -> Cell:
    """The cell of a row and a column; `trained` is the row whose runs these are, `around` what holds for all cells."""
    name = f"{row.name} {column.name}"
    document, last = around
    values: dict[str, Any] = {}
    stated: dict[str, str | None] = {}
    stating = [document, column, trained, trained.exceptions.get(column.name, Settings())]
    choose = trained.choose
    if choose:  # as one of the levels, so that a wrong option or value is reported like any other
        stating.append(Settings(our_settings={choose.option: Ours(choose.values[0], choose.why)}))
    known = option_names()
    for level in (*stating, last):
        both = sorted(set(level.paper_settings) & set(level.our_settings))
        if both:
            raise SpecError(f"{path}: {name}: {both[0]} is both the paper's and ours; one of them")
        for option in (*level.paper_settings, *level.our_settings):
            if option == "seed":
                raise SpecError(f"{path}: {name}: seed: give seeds, a list, at the top of the file")
            if option not in known:
                close = difflib.get_close_matches(option, known, n=1)
                raise SpecError(f"{path}: {name}: no option {option!r}{f'; did you mean {close[0]}?' if close else ''}")
        values |= level.paper_settings | {option: ours.value for option, ours in level.our_settings.items()}
        stated |= dict.fromkeys(level.paper_settings) | {
            option: ours.why for option, ours in level.our_settings.items()
        }
    missing = row.missing or column.missing
    chosen = choose.option if choose and choose.option not in last.our_settings else ""
    choices = [values | {chosen: value} for value in choose.values] if choose and chosen else [values]
    try:
        candidates = () if missing else tuple(make_spec(None, choice) for choice in choices)
    except SpecError as error:
        raise SpecError(f"{path}: {name}: {str(error).removeprefix('options: ')}") from error
    baseline = f"{row.baseline} {column.name}" if row.baseline else ""
    figures = row.figures.get(column.name, {})
    same = f"trained as {trained.name}: {row.why}" if row.same_as else ""
    asked = _asked(f"{path}: {name}", row.forgetting, document)
    average = row.average or (document.average if isinstance(document, Document) else None)
    return Cell(
        name, row.name, column.name, candidates, stated, figures, baseline, missing, row.shown, chosen, same, row.victim,
        column.leak, asked, column.level, column.triples, trained.name,
        average or ("clients" if candidates and candidates[0].task == "graph" else "items"),
    )  # fmt: skip


def _asked(place: str, forgetting: Forgetting | None, document: Settings) -> Asked | None:
    """What a row of a table of unlearning is of. Raises `SpecError` for settings that unlearning has not."""
    if forgetting is None or not isinstance(document, Document):
        return None
    values: dict[str, Any] = {}
    for level in (document.unlearning, forgetting):
        values |= level.paper_settings | {option: ours.value for option, ours in level.our_settings.items()}
    try:
        options = msgspec.convert(values, UnlearnOptions) if forgetting.role == "unlearned" else None
    except (msgspec.ValidationError, SpecError) as error:
        raise SpecError(f"{place}: forgetting: {error}") from error
    return Asked(role=forgetting.role, options=options, forget=document.forget)


def _twice(values: Sequence[Any]) -> bool:
    return any(value in values[:place] for place, value in enumerate(values))


def _stated(where: str, level: Settings) -> Iterable[Stated]:
    for option, value in level.paper_settings.items():
        yield Stated(where, option, value, None)
    for option, ours in level.our_settings.items():
        yield Stated(where, option, ours.value, ours.why)
    if isinstance(level, Row) and level.choose:
        values = " or ".join(map(str, level.choose.values))
        yield Stated(where, level.choose.option, f"{values}, by validation MRR", level.choose.why)


def select_cells(cells: Sequence[Cell], only: str) -> list[Cell]:
    """The cells whose name has what `only` says: a comma is an or, a space an and; empty takes all.

    A word that some cell's name has as a whole word means that word ("FedE" is not "FedE-KD"); any other may stand anywhere
    in the name. Capitals do not matter.

    Raises:
        SpecError: nothing is left.
    """
    kept = select_names([cell.name for cell in cells], only)
    return [cell for cell in cells if cell.name in kept]


def select_names(names: Sequence[str], only: str) -> set[str]:
    """The names of cells that `select_cells` leaves."""
    folded = {name: name.casefold() for name in names}
    whole = {word for name in folded.values() for word in name.split()}

    def has(name: str, word: str) -> bool:
        return word in name.split() if word in whole else word in name

    alternatives = [part.split() for part in only.casefold().split(",") if part.strip()]
    chosen = {
        name
        for name in names
        if not alternatives or any(all(has(folded[name], word) for word in words) for words in alternatives)
    }
    if not chosen:
        raise SpecError(f"only: no cell has {only!r}; cells are called {names[0]!r} to {names[-1]!r}")
    return chosen
