"""Papers' tables as files: their cells, the spec of each cell and the paper's figures.

    experiment = read_experiment(find_experiment("zhang2024_feds_table2_cpu"))
    for cell in select_cells(experiment.cells, "TransE R3"):
        print(cell.name, cell.spec, cell.figures)

A file has `paper_settings`, which the paper states, and `our_settings`, each with a `why`, for values that the paper does not
state. Both appear at the top, in a column, in a row, or in an exception (one column of a row); the later of these wins.
A row may leave one option to validation (`choose`). The shipped files are in `experiments/specs`, named
author-year-algorithm-table.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from fkgsec.data.formats.folders import can_name_a_file
from fkgsec.errors import SpecError
from fkgsec.experiments.cli.options import DATA_FIELDS
from fkgsec.experiments.papers.document import (
    LEAKAGE,
    RELATIVE,
    Asked,
    Average,
    Column,
    Derived,
    Document,
    Metric,
    Ours,
    Row,
    Settings,
    Shown,
    Stated,
)
from fkgsec.experiments.runs.documents import read_shared
from fkgsec.experiments.runs.spec import RunSpec, make_spec, option_names
from fkgsec.text import shown
from fkgsec.unlearning.options import UnlearnOptions

Kind = TypeVar("Kind")


class Cell(NamedTuple):
    """Cell of the table.

    Attributes:
        candidates: specs at seed 0: one, one for each value of `chosen`, or none if `missing` says why.
        stated: options that the file states for this cell; the value is the reason if it is ours, None if it is the paper's.
        figures: the paper's.
        baseline: name of the cell that relative figures refer to; empty without one.
        shown: model whose utility is shown, see `Row`.
        chosen: option that validation selects; empty with one candidate.
        same_as: the row that provides the runs, and why; empty without one.
        victim, leak: select an attack's figures, see `Row` and `Column`.
        asked: in an unlearning table, the model to make from the candidates' runs.
        level, triples: see `Column`.
        trained: the row that has the settings.
        average: average over clients, see `Document`.
        attack: True if runs are attacked.
        divided_by_seed: True if each seed divides the data anew, see `Document.divisions`.
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
    attack: bool = False
    divided_by_seed: bool = False

    @property
    def other_data(self) -> str:
        """Option in which the data or their division differ from the paper's, and why; empty if they are the paper's."""
        ours = ((option, self.stated.get(option)) for option in DATA_FIELDS)
        return next((f"other {option}: {why.split(';')[0]}" for option, why in ours if why), "")

    @property
    def spec(self) -> RunSpec | None:
        """The first candidate; None if nothing can be run."""
        return self.candidates[0] if self.candidates else None

    def with_seed(self, spec: RunSpec, seed: int) -> RunSpec:
        """Return the spec of one of the candidates' runs with this seed."""
        return spec.replace(seed=seed, **{"split_seed": seed} if self.divided_by_seed else {})

    def choice(self, spec: RunSpec) -> str:
        """Return a candidate's value of the option `chosen`, as text.

        Args:
            spec: one of the candidates.
        """
        value = spec.document()[self.chosen]
        return f"{value:g}" if isinstance(value, float) else str(value)


class Experiment(NamedTuple):
    """Checked file: every cell that can be run has valid specs.

    Attributes:
        base: the file whose settings this one changes; empty for a table at the paper's own settings.
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
        """The metrics of the paper's figures in the order of their first appearance, then the further ones."""
        return list(dict.fromkeys([*(metric for cell in self.cells for metric in cell.figures), *self.also]))


def shipped_experiments() -> dict[str, Path]:
    """Return the files that come with fkgsec, by name."""
    folder = Path(str(resources.files("fkgsec.experiments").joinpath("specs")))
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def find_experiment(name_or_path: str) -> Path:
    """Find a shipped file by name, or any file by path.

    Args:
        name_or_path: name without `.yaml`, or a path.

    Raises:
        SpecError: neither exists; names the closest names.
    """
    shipped = shipped_experiments()
    if name_or_path in shipped:
        return shipped[name_or_path]
    if Path(name_or_path).is_file():
        return Path(name_or_path)
    # Names are long; offer the closest ones.
    close = difflib.get_close_matches(name_or_path, shipped, n=3)
    hint = f"did you mean {' or '.join(close)}?" if close else "`fkgsec experiment list` names the shipped ones"
    raise SpecError(f"{name_or_path}: neither a shipped experiment nor a file; {hint}")


def read_experiment(path: Path) -> Experiment:
    """Read and check a file.

    Args:
        path: a table's file, or one derived from another.

    Raises:
        SpecError: one line with the file, the place in it, the value and what is allowed.
    """
    raw = _load(path)
    if "base" not in raw:
        document = _convert(raw, Document, path)
        return _experiment(path, document, Derived(base="", title=document.title))
    derived = _convert(raw, Derived, path)
    if not can_name_a_file(derived.base):
        raise SpecError(f"{path}: base: must name a file in the same folder, without .yaml; got {shown(derived.base)}")
    base = path.with_name(f"{derived.base}.yaml")
    return _experiment(path, _convert(_load(base), Document, base), derived)


def _load(path: Path) -> dict[str, Any]:
    loaded = read_shared(path).content
    if not isinstance(loaded, dict):
        raise SpecError(f"{path}: expected a mapping with title, columns and rows; got {type(loaded).__name__}")
    return loaded


def _convert(raw: dict[str, Any], kind: type[Kind], path: Path) -> Kind:
    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        text, _, place = str(error).partition(" - at ")
        place = re.sub(r"`|\$\.?", "", place).removeprefix("key in ")
        # A row's name is more helpful than rows[3].
        # msgspec counts rows; translate the number into the row's name.
        item = re.match(r"(rows|columns)\[(\d+)\]", place)
        if item and isinstance(part := raw[item[1]][int(item[2])], dict) and "name" in part:
            place = f"{item[1]}, {part['name']}{place[item.end() :]}"
        raise SpecError(f"{path}: {f'{place}: ' if place else ''}{text.replace('`array`', 'a list')}") from error


def _experiment(path: Path, document: Document, derived: Derived) -> Experiment:
    """Check a document and build the cells that the derived file keeps; its settings need not fit the others."""
    for problem in (*_problems(document), *(text for row in document.rows for text in _row_problems(row, document))):
        raise SpecError(f"{path}: {problem}")
    last = Settings(our_settings=derived.our_settings)
    pairs = {f"{row.name} {column.name}": (row, column) for row in document.rows for column in document.columns}
    try:
        names = select_names(list(pairs), derived.only)
    except SpecError as error:
        raise SpecError(f"{path}: {error}") from error
    pairs = {name: pair for name, pair in pairs.items() if name in names}
    cells = tuple(_cell(f"{path}: {name}", *pair, document, last) for name, pair in pairs.items())
    for name, figures in derived.figures.items():
        if name not in pairs:
            raise SpecError(
                f"{path}: figures: no cell {name!r}; cells are called {next(iter(pairs))!r} to {next(reversed(pairs))!r}"
            )
        if strange := sorted(set(figures) - set(derived.shows)):
            raise SpecError(
                f"{path}: figures, {name}: {strange[0]} is not among what it shows: {', '.join(derived.shows)}"
            )
    # The same runs with other figures: the base's figures and baselines do not apply.
    if derived.shows:
        cells = tuple(cell._replace(figures=derived.figures.get(cell.name, {}), baseline="") for cell in cells)
    return Experiment(
        path.stem,
        derived.title,
        document.paper,
        derived.table or document.table,
        derived.notes if derived.shows else (*document.notes, *derived.notes),
        document.attack,
        derived.seeds or document.seeds,
        cells,
        tuple(_stated(document, last, {(row.same_as or row.name, column.name) for row, column in pairs.values()})),
        derived.shows or document.also,
        "" if derived.shows else derived.base,
    )


def _stated(document: Document, last: Settings, used: set[tuple[str, str]]) -> Iterator[Stated]:
    """Yield every setting of the file that applies to a row and column in `used`."""
    levels: list[tuple[str, Settings]] = [("all cells", document)]
    levels += [(column.name, column) for column in document.columns if any(name == column.name for _, name in used)]
    levels.append(("all cells, unlearning", document.unlearning))
    levels += [(f"{row.name}, unlearning", row.forgetting) for row in document.rows if row.forgetting]
    for row in document.rows:
        levels += [(row.name, row)] if any(name == row.name for name, _ in used) else []
        levels += [
            (f"{row.name} {name}", exception) for name, exception in row.exceptions.items() if (row.name, name) in used
        ]
    for where, level in (*levels, ("all cells, above all", last)):
        for option, value in level.values.items():
            yield Stated(where, option, value, level.reasons[option])
        if isinstance(level, Row) and level.choose:
            values = " or ".join(map(str, level.choose.values))
            yield Stated(where, level.choose.option, f"{values}, by validation MRR", level.choose.why)


def _problems(document: Document) -> Iterator[str]:
    """Yield problems of a document as a whole."""
    parts = [("rows", row.name, row.forgetting is not None) for row in document.rows]
    parts += [("columns", column.name, bool(column.level and column.triples)) for column in document.columns]
    unlearning = {complete for _, _, complete in parts}
    if len(unlearning) > 1:
        kind, name, _ = next(part for part in parts if not part[2])
        needed = "forgetting" if kind == "rows" else "level and triples"
        yield f"{kind}, {name}: {needed}: missing in a table of unlearning"
    if isinstance(document.forget, float) and not 0 < document.forget < 1:
        yield f"forget: a share between 0 and 1, or published; got {document.forget}"
    if unlearning == {True} and (document.attack or any(row.baseline for row in document.rows)):
        yield "attack, baseline: not allowed in a table of unlearning"
    for kind in ("columns", "rows"):
        names = [name for what, name, _ in parts if what == kind]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice or not names:
            yield f"{kind}: {f'{twice[0]!r} stands twice' if twice else 'at least one is needed'}"
    if not document.seeds or min(document.seeds) < 0 or len(set(document.seeds)) < len(document.seeds):
        yield f"seeds: different numbers from 0 on are needed; got {list(document.seeds)}"


def _row_problems(row: Row, document: Document) -> Iterator[str]:
    """Yield problems of a row: unknown names, figures that no run gives, settings in a row without its own runs."""
    place, columns = f"rows, {row.name}", [column.name for column in document.columns]
    # Rows refer to each other by name.
    rows = {other.name: other for other in document.rows}
    for what, named in (("figures", row.figures), ("exceptions", row.exceptions)):
        for name in named:
            if name not in columns:
                yield f"{place}: {what}: no column {name!r}; allowed: {', '.join(columns)}"
    if row.baseline and row.baseline not in rows:
        yield f"{place}: baseline: no row {row.baseline!r}; allowed: {', '.join(rows)}"
    if row.same_as:
        allowed = [name for name, other in rows.items() if name != row.name and not other.same_as]
        if row.same_as not in allowed:
            yield f"{place}: same_as: no row {row.same_as!r} with runs of its own; allowed: {', '.join(allowed)}"
        if not row.why:
            yield f"{place}: why: must state why its runs are those of {row.same_as}"
        if row.paper_settings or row.our_settings or row.exceptions or row.choose:
            yield f"{place}: same_as: its runs are those of {row.same_as}, which has the settings; leave them out"
    metrics = {metric for figures in row.figures.values() for metric in figures}
    if row.victim < 0:
        yield f"{place}: victim: clients are counted from 1; got {row.victim}"
    if metrics & set(RELATIVE) and not row.baseline:
        yield f"{place}: baseline: {', '.join(sorted(metrics & set(RELATIVE)))} need one"
    if metrics & set(LEAKAGE) and not document.attack:
        yield f"{place}: figures: err and trr need attack: true"
    if row.choose:
        values = row.choose.values
        if len(values) < 2 or any(value in values[:number] for number, value in enumerate(values)):
            yield f"{place}: choose: values: different ones, two or more, are needed; got {list(values)}"


def _cell(place: str, row: Row, column: Column, document: Document, last: Settings) -> Cell:
    """Return the cell of a row and a column; `last` applies to all cells and wins."""
    trained = next((other for other in document.rows if other.name == row.same_as), row)
    # Later levels win: document, column, row, exception, choice, derived file.
    levels = [document, column, trained, trained.exceptions.get(column.name, Settings())]
    choose = trained.choose
    # A level of its own, so that a wrong option or value is reported like any other.
    if choose:
        levels.append(Settings(our_settings={choose.option: Ours(choose.values[0], choose.why)}))
    values: dict[str, Any] = {}
    stated: dict[str, str | None] = {}
    allowed = option_names()
    for level in (*levels, last):
        # A value has one source.
        if both := sorted(set(level.paper_settings) & set(level.our_settings)):
            raise SpecError(f"{place}: {both[0]} is both the paper's and ours; remove one")
        # Unknown options fail here, where the place in the file is still known.
        for option in level.values:
            if option == "seed":
                raise SpecError(f"{place}: seed: use seeds, a list, at the top of the file")
            if option not in allowed:
                close = difflib.get_close_matches(option, allowed, n=1)
                raise SpecError(f"{place}: no option {option!r}{f'; did you mean {close[0]}?' if close else ''}")
        values |= level.values
        stated |= level.reasons
    missing = row.missing or column.missing
    chosen = choose.option if choose and choose.option not in last.our_settings else ""
    choices = [values | {chosen: value} for value in choose.values] if choose and chosen else [values]
    try:
        candidates = () if missing else tuple(make_spec(None, choice) for choice in choices)
    except SpecError as error:
        raise SpecError(f"{place}: {str(error).removeprefix('options: ')}") from error
    unlearned = None
    if row.forgetting:
        options = None
        if row.forgetting.role == "unlearned":
            try:
                options = msgspec.convert(document.unlearning.values | row.forgetting.values, UnlearnOptions)
            except (msgspec.ValidationError, SpecError) as error:
                raise SpecError(f"{place}: forgetting: {error}") from error
        unlearned = Asked(role=row.forgetting.role, options=options, forget=document.forget)
    of_graphs = candidates and candidates[0].task == "graph"
    return Cell(
        f"{row.name} {column.name}", row.name, column.name, candidates, stated, row.figures.get(column.name, {}),
        f"{row.baseline} {column.name}" if row.baseline else "", missing, row.shown, chosen,
        f"trained as {trained.name}: {row.why}" if row.same_as else "", row.victim, column.leak, unlearned, column.level,
        column.triples, trained.name, row.average or document.average or ("clients" if of_graphs else "items"),
        document.attack, document.divisions == "by seed",
    )  # fmt: skip


def select_cells(cells: Sequence[Cell], only: str) -> list[Cell]:
    """Select cells by words of their names. Case does not matter.

    A word that is a whole word of some cell's name means that word ("FedE" is not "FedE-KD"); any other may occur
    anywhere in the name.

    Args:
        cells: cells to select from.
        only: words; a comma means or, a space means and. Empty selects all.

    Raises:
        SpecError: no cell matches.
    """
    names = select_names([cell.name for cell in cells], only)
    return [cell for cell in cells if cell.name in names]


def select_names(names: Sequence[str], only: str) -> set[str]:
    """Select names by words, as `select_cells` does.

    Args:
        names: names to select from.
        only: words.

    Raises:
        SpecError: no name matches.
    """
    folded = {name: name.casefold() for name in names}
    # "FedE" must not select "FedE-KD", but "R3" selects all columns of that name.
    whole = {word for name in folded.values() for word in name.split()}

    def _has(name: str, word: str) -> bool:
        return word in name.split() if word in whole else word in name

    alternatives = [part.split() for part in only.casefold().split(",") if part.strip()] or [[]]
    chosen = {name for name in names if any(all(_has(folded[name], word) for word in words) for words in alternatives)}
    if not chosen:
        raise SpecError(f"only: no cell has {only!r}; cells are called {names[0]!r} to {names[-1]!r}")
    return chosen
