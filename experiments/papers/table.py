"""The paper's figures beside ours: measured from finished records alone, as structs, Markdown, terminal tables, a picture.

table = make_paper_table(experiment, {"TransE FedE R3": {0: record}}, failed={}, tried={})
Path("table.md").write_text("\n".join(table_lines(table)))
print_tables(console, terminal_tables(table, ["TransE FedE R3"]))
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
from matplotlib.figure import Figure as Picture
from rich.table import Table
from scipy.special import stdtrit

from fkgsec.attacks.figure import headline
from fkgsec.attacks.reconstruction.leakage import PAPER, PUBLISHED
from fkgsec.attacks.view import ALL
from fkgsec.estimate import Estimate, exact
from fkgsec.experiments.papers.document import RELATIVE, SIZES, Average, Metric, Shown
from fkgsec.experiments.papers.forgetting import Forgotten
from fkgsec.experiments.papers.spec import Cell, Experiment, Stated
from fkgsec.experiments.reporting.convergence import convergence, relative_cost, round_reaching
from fkgsec.experiments.reporting.pictures import BLUE, GREY, saved
from fkgsec.experiments.reporting.sheets import NONE, Column, Sheet, markdown_lines, terminal_table
from fkgsec.experiments.runs.record import Record
from fkgsec.experiments.tasks.task import task_of

SCHEMA = "fkgsec/experiment/1"
Made = Record | Forgotten
Status = Literal["done", "not run", "failed", "not at hand"]


class Figure(msgspec.Struct, frozen=True):
    """One figure of a cell.

    Attributes:
        paper: the paper's; None where it prints none.
        ours: the mean over seeds with its interval over seeds, or the one record's own; None with the `reason`.
        difference: ours minus the paper's.
        sampled: where there are several seeds, the mean of the ends of each one's own interval, for the test items that were
            drawn; None where a figure has none.
    """

    metric: Metric
    paper: float | None
    ours: Estimate | None
    difference: float | None
    reason: str = ""
    sampled: tuple[float, float] | None = None


class TableCell(msgspec.Struct, frozen=True):
    """One cell. `reason` says why it was not run or failed; `remarks` what its figures must be read with."""

    name: str
    row: str
    column: str
    status: Status
    reason: str
    seeds: list[int]
    figures: list[Figure]
    remarks: list[str]


class TableSetting(msgspec.Struct, frozen=True):
    """One setting as the file states it; `why` is None where it is the paper's."""

    where: str
    option: str
    value: Any
    why: str | None


class PaperTable(msgspec.Struct, frozen=True):
    """The whole table."""

    schema: str
    name: str
    title: str
    paper: str
    table: str
    notes: list[str]
    settings: list[TableSetting]
    metrics: list[Metric]
    cells: list[TableCell]
    items: str = "triples"


class _Style(NamedTuple):
    title: str
    format: Callable[[float], str]


_AID = (
    "Brackets are 95 % intervals: over seeds where there are several, else over the test {items} of the one run. "
    "Difference: ours minus the paper's."
)
_SAMPLED_AID = (
    " Where there are several seeds all have the same test {items}; the last column is the interval for the draw of these, the "
    "mean of the seeds' own."
)
_share, _ratio, _mebibytes = "{:.4f}".format, "{:.4f}x".format, "{:.2f} MiB".format
STYLES: dict[Metric, _Style] = {
    "mrr": _Style("MRR", _share),
    "hits@1": _Style("Hits@1", _share),
    "hits@3": _Style("Hits@3", _share),
    "hits@5": _Style("Hits@5", _share),
    "hits@10": _Style("Hits@10", _share),
    "p@cg": _Style("P@CG, bytes until convergence over the baseline's", _ratio),
    "p@99": _Style("P@99, bytes to 99 % of the baseline's MRR, over its own", _ratio),
    "p@98": _Style("P@98, bytes to 98 % of the baseline's MRR, over its own", _ratio),
    "r@cg": _Style("R@CG, rounds until convergence", "{:.0f}".format),
    "err": _Style("ERR, all victims", _share),
    "trr": _Style("TRR, all victims", _share),
    "accuracy": _Style("Test accuracy, mean over clients", _share),
    "clean": _Style("Test accuracy, on graphs without a twin in train", _share),
    "bytes": _Style("Bytes to and from the server in all rounds", _mebibytes),
    "rounds@0.2": _Style("Rounds until validation MRR reached 0.2", "{:.0f}".format),
    "rounds@0.4": _Style("Rounds until validation MRR reached 0.4", "{:.0f}".format),
    "loss": _Style("Training loss at the round that is kept", _share),
    "valid": _Style("Validation at the round that is kept", _share),
    "entities": _Style("Entities of a client, mean", "{:.2f}".format),
    "relations": _Style("Relations of a client, mean", "{:.2f}".format),
}


def reading_aid(table: PaperTable) -> str:
    """How to read the brackets."""
    sampled = any(figure.sampled for cell in table.cells for figure in cell.figures)
    return (_AID + _SAMPLED_AID * sampled).format(items=table.items)


def measure(
    metric: Metric,
    record: Record | Forgotten,
    baseline: Record | Forgotten | None,
    shown: Shown = "own",
    *,
    victim: int = 0,
    leak: float | None = None,
    level: str = "",
    triples: str = "",
    average: Average = "items",
) -> Estimate | str:
    """A figure of one run, or why there is none; utility is averaged over clients as `average` says.

    Sizes are means over clients, and exact. Costs are of one run and have no interval of their own (method "exact"); seeds give
    them one.

    Source: feds.txt IV-B for P@CG, P@98, P@99 and R@CG, by `fkgsec.experiments.reporting.convergence`.
    """
    if isinstance(record, Forgotten):
        return record.measure(metric, level, triples)
    if metric == "r@cg":
        return exact(convergence(record).round, 1)
    if metric in RELATIVE:
        if not isinstance(baseline, Record):
            return "its baseline is not run"
        if metric == "p@cg":
            base_bytes = convergence(baseline).num_bytes
            return exact(convergence(record).num_bytes / base_bytes, 1) if base_bytes else "its baseline sent nothing"
        cost = relative_cost(record, baseline, 0.98 if metric == "p@98" else 0.99)
        return "never reached" if cost is None else exact(cost, 1)
    if metric in ("err", "trr"):
        return _leakage(metric, record, victim, leak)
    if metric in SIZES:
        sizes = [client[metric] for client in record.data.clients.values()]
        return exact(sum(sizes) / len(sizes), len(sizes))
    if metric in ("rounds@0.2", "rounds@0.4"):
        reached = round_reaching(record, float(metric.partition("@")[2]))
        return "never reached" if reached is None else exact(reached, 1)
    if metric in ("loss", "valid"):
        kept = getattr(record.rounds[record.best_round], metric)
        return "not measured" if kept is None else exact(kept, 1)
    if shown == "shared" and not record.utility_shared:
        return "no shared model was measured"
    if metric == "bytes":
        return exact((record.bytes.up + record.bytes.down) / 2**20, 1)
    if metric == "clean":
        found = record.unseen[task_of(record.spec).metric]
    else:
        found = record.utility_shared[metric] if shown == "shared" else utility_of(record, metric, average)
    return found if found.n else f"no test {task_of(record.spec).items}"


def utility_of(record: Record, metric: Metric, average: Average) -> Estimate:
    """A figure of utility over clients: each weighs by its test items, or all weigh alike."""
    if average == ("clients" if task_of(record.spec).name == "graph" else "items"):
        return record.utility[metric]
    found = [figures[metric] for figures in record.utility_by_client.values() if figures[metric].n]
    if not found:
        return record.utility[metric]
    counts = np.array([one.n for one in found], dtype=np.float64)
    weights = counts / counts.sum() if average == "items" else np.full(len(found), 1 / len(found))
    value = float(weights @ [one.value for one in found])
    below, above = (
        math.sqrt(float(weights**2 @ [(one.value - getattr(one, end)) ** 2 for one in found]))
        for end in ("low", "high")
    )
    return Estimate(value, value - below, value + above, int(counts.sum()), f"mean over {average}")


def _leakage(metric: Metric, record: Record, victim: int, leak: float | None) -> Estimate | str:
    """ERR or TRR by the papers' inference, of one victim or all, at one leak ratio."""
    names = list(record.data.clients)
    if victim > len(names):
        return f"there are {len(names)} clients"
    found = [one for one in record.rebuilt if one.metric == metric and leak in (None, one.leak or 0.0)]
    found = [one for one in found if one.variant in (PAPER, PUBLISHED)] or headline(found)
    chosen = [one for one in found if one.victim == (names[victim - 1] if victim else ALL)]
    if not (chosen or victim):
        chosen = found  # of the only victim
    if len(chosen) != 1:
        return f"{len(chosen)} threats and leak ratios; name one of each"
    return chosen[0].reason or chosen[0].estimate


def over_seeds(figures: Sequence[Estimate]) -> Estimate:
    """One figure as it is; of several the mean, with Student's 95 % interval over them.

    >>> print(over_seeds([exact(value, 1) for value in (1.0, 2.0, 3.0)]))
    2.0000 [-0.4841, 4.4841]
    """
    if len(figures) == 1:
        return figures[0]
    values = np.array([figure.value for figure in figures])
    centre, n = float(values.mean()), len(values)
    half = float(stdtrit(n - 1, 0.975)) * float(values.std(ddof=1)) / math.sqrt(n)
    return Estimate(centre, centre - half, centre + half, n, "student")


def make_paper_table(
    experiment: Experiment,
    records: Mapping[str, Mapping[int, Made]],
    failed: Mapping[str, str],
    tried: Mapping[str, Mapping[int, Sequence[Made]]],
) -> PaperTable:
    """Set the paper's figures beside those of finished records.

    Args:
        records: of each cell by name, by seed. failed: why a cell failed, by name.
        tried: where a setting was chosen on validation, the records of all its values, by name and seed.
    """
    return PaperTable(
        SCHEMA,
        experiment.name,
        experiment.title,
        experiment.paper,
        experiment.table,
        list(experiment.notes),
        [TableSetting(*stated) for stated in experiment.settings],
        experiment.metrics,
        [
            _cell(cell, experiment.metrics, records, failed.get(cell.name, ""), tried.get(cell.name, {}))
            for cell in experiment.cells
        ],
        next((task_of(cell.spec).items for cell in experiment.cells if cell.spec), "items"),
    )


def _cell(
    cell: Cell,
    metrics: list[Metric],
    records: Mapping[str, Mapping[int, Made]],
    failed: str,
    tried: Mapping[int, Sequence[Made]],
) -> TableCell:
    runs = records.get(cell.name, {})
    status: Status = "not at hand" if cell.missing else "failed" if failed else "done" if runs else "not run"
    baselines = records.get(cell.baseline, {})
    figures = [
        _figure(metric, cell, runs, baselines)
        for metric in metrics
        if metric in cell.figures or metric not in RELATIVE or cell.baseline
    ]
    remarks = [_choice(cell, seed, runs[seed], found) for seed, found in tried.items() if seed in runs] + _remarks(
        runs, metrics
    )
    remarks = [cell.same_as, *remarks] if cell.same_as else remarks
    return TableCell(cell.name, cell.row, cell.column, status, cell.missing or failed, list(runs), figures, remarks)


def _figure(metric: Metric, cell: Cell, runs: Mapping[int, Made], baselines: Mapping[int, Made]) -> Figure:
    paper = cell.figures.get(metric)
    found = {
        seed: measure(
            metric,
            record,
            baselines.get(seed),
            cell.shown,
            victim=cell.victim,
            leak=cell.leak,
            level=cell.level,
            triples=cell.triples,
            average=cell.average,
        )
        for seed, record in runs.items()
    }
    reasons = {seed: reason for seed, reason in found.items() if isinstance(reason, str)}
    if reasons or not found:
        seed, reason = next(iter(reasons.items()), (0, ""))
        return Figure(metric, paper, None, None, f"seed {seed}: {reason}" if len(found) > 1 else reason)
    figures = [figure for figure in found.values() if not isinstance(figure, str)]
    ours = over_seeds(figures)
    return Figure(metric, paper, ours, None if paper is None else ours.value - paper, sampled=_sampled(figures))


def _sampled(figures: Sequence[Estimate]) -> tuple[float, float] | None:
    """The seeds of a cell share their test items, so that what these err by stays in the mean, and ends are averaged."""
    if len(figures) < 2 or any(figure.method == "exact" for figure in figures):
        return None
    return tuple(float(np.mean([getattr(figure, end) for figure in figures])) for end in ("low", "high"))  # type: ignore[return-value]


def _choice(cell: Cell, seed: int, best: Made, tried: Sequence[Made]) -> str:
    """What was chosen on validation, what each value reached there, and which values are not run."""
    runs = [one.run if isinstance(one, Forgotten) else one for one in tried]
    reached = {cell.choice(one.spec): one.rounds[one.best_round].valid for one in runs}
    values = [value if mrr is None else f"{mrr:.4f} with {value}" for value, mrr in reached.items()]
    missing = [value for spec in cell.candidates if (value := cell.choice(spec)) not in reached]
    said = f"seed {seed}: {cell.chosen} {cell.choice(best.spec)} by validation MRR, {', '.join(values)}"
    return said + (f"; not run: {', '.join(missing)}" if missing else "")


def _remarks(runs: Mapping[int, Made], metrics: Sequence[Metric]) -> list[str]:
    """What a reader must know before comparing: a run that was still improving or still waiting, test items in train.

    A table with the metric "clean" shows these itself.
    """
    remarks = []
    for seed, made in runs.items():
        record = made.run if isinstance(made, Forgotten) else made
        if record.rounds[record.best_round].valid is not None and record.best_round == record.rounds[-1].round:
            remarks.append(f"seed {seed}: still improving at its last round, {record.best_round}")
        if 0 < record.best_round <= getattr(record.spec.settings, "warmup_rounds", 0):
            remarks.append(f"seed {seed}: kept at round {record.best_round}, before its models learnt from each other")
        task = task_of(record.spec)
        parts = {name: figures[task.metric] for name, figures in record.utility_by_leak.items()}
        if parts["leaked"].n and "clean" not in metrics:
            said = (f"{part.value:.4f} on {part.n:,} {task.leaked[name]}" for name, part in parts.items() if part.n)
            remarks.append(f"seed {seed}: {task.label(task.metric)} of test {task.items} {', '.join(said)}")
    return remarks


def table_lines(table: PaperTable) -> list[str]:
    """The table in Markdown: figures, remarks, notes, and every setting with whose it is."""
    lines = [f"# {table.title}", "", f"{table.table} of {table.paper}. {reading_aid(table)}", ""]
    lines += [f"* {note}" for note in table.notes] + [""] * bool(table.notes)
    for metric in table.metrics:
        sheet = _figure_sheet(table.cells, metric, table.items)
        lines += [f"## {sheet.title}", "", *markdown_lines(sheet), ""]
    remarks = remark_lines(table, [cell.name for cell in table.cells])
    lines += ["## Remarks", "", *(f"* {remark}" for remark in remarks), ""] if remarks else []
    return [*lines, "## Settings", "", *markdown_lines(settings_sheet(table.settings))]


def settings_sheet(settings: Iterable[TableSetting | Stated]) -> Sheet:
    """What a file states, for which cells, and whose it is."""
    rows = tuple(
        (one.where, one.option, str(one.value), "the paper's" if one.why is None else "ours", one.why)
        for one in settings
    )
    heads = ("cells", "option", "value", "whose", "why")
    return Sheet("Settings", tuple(map(Column, heads)), rows)


def terminal_tables(table: PaperTable, names: Sequence[str]) -> list[Table]:
    """A table for each metric, with the cells of these names."""
    chosen = [cell for cell in table.cells if cell.name in names]
    sheets = [_figure_sheet(chosen, metric, table.items) for metric in table.metrics]
    return [terminal_table(sheet) for sheet in sheets if sheet.rows]


def remark_lines(table: PaperTable, names: Sequence[str]) -> list[str]:
    """The remarks of these cells, and why those that failed or cannot be run are not there; each reason once."""
    chosen = [cell for cell in table.cells if cell.name in names]
    remarks = [f"{cell.name}, {remark}" for cell in chosen for remark in cell.remarks]
    missing = dict.fromkeys(f"Not at hand: {cell.reason}" for cell in chosen if cell.status == "not at hand")
    failed = [f"{cell.name} failed, {cell.reason}" for cell in chosen if cell.status == "failed"]
    return [*remarks, *missing, *failed]


def _figure_sheet(cells: Sequence[TableCell], metric: Metric, items: str) -> Sheet:
    """Name, paper, ours with interval, difference, seeds (or why there are none), of the cells that have this metric."""
    write, rows = STYLES[metric].format, []
    for cell in cells:
        figure = next((one for one in cell.figures if one.metric == metric), None)
        if figure is None:
            continue
        paper, ours, difference = (
            NONE if figure.paper is None else write(figure.paper),
            figure.reason or cell.status,
            "",
        )
        if figure.ours is not None:
            ours, low, high = (write(value) for value in (figure.ours.value, figure.ours.low, figure.ours.high))
            ours += "" if figure.ours.method == "exact" else f" [{low}, {high}]"
        if figure.difference is not None:
            difference = f"{'+' if figure.difference >= 0 else '-'}{write(abs(figure.difference))}"
        sampled = "[{}, {}]".format(*map(write, figure.sampled)) if figure.sampled else ""
        rows.append((cell.name, paper, ours, difference, ", ".join(map(str, cell.seeds)), sampled))
    heads = ("cell", "paper", "ours", "difference", "seeds", f"test {items}")
    if not any(row[-1] for row in rows):  # no cell has several seeds
        heads, rows = heads[:-1], [row[:-1] for row in rows]
    return Sheet(STYLES[metric].title, tuple(map(Column, heads)), tuple(rows))


def draw_table(table: PaperTable) -> bytes:
    """A PNG: a panel for each metric, a line for each finished cell (each at all while none is), the paper a ring, ours a dot."""
    shown = [cell for cell in table.cells if any(figure.ours for figure in cell.figures)]
    cells = shown or table.cells
    metrics = table.metrics
    picture = Picture(figsize=(2.5 + 3.2 * len(metrics), 1.6 + 0.22 * len(cells)), layout="constrained")
    panels = picture.subplots(1, len(metrics), sharey=True, squeeze=False)[0]
    for metric, axes in zip(metrics, panels, strict=True):
        places = {cell.name: -number for number, cell in enumerate(cells)}
        figures = [(places[cell.name], one) for cell in cells for one in cell.figures if one.metric == metric]
        theirs = [(one.paper, y) for y, one in figures if one.paper is not None]
        axes.scatter(
            [x for x, _ in theirs], [y for _, y in theirs], s=28, facecolors="none", edgecolors=GREY, label="paper"
        )
        ours = [(one.ours, y) for y, one in figures if one.ours is not None]
        axes.errorbar(
            [x.value for x, _ in ours], [y for _, y in ours],
            xerr=[[x.value - x.low for x, _ in ours], [x.high - x.value for x, _ in ours]],
            fmt="o", ms=4, color=BLUE, capsize=2, lw=1, label="ours",
        )  # fmt: skip
        axes.set_title(STYLES[metric].title.split(",")[0], fontsize=10)
        axes.grid(axis="y", lw=0.3)
        axes.set_yticks(list(places.values()), list(places), fontsize=7)
    panels[0].set_ylim(-len(cells), 1)
    picture.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize=8)
    picture.suptitle(f"{table.title}\n{table.table}, {table.paper.partition(',')[0]}", fontsize=10)
    return saved(picture)
