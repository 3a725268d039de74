r"""The paper's figures compared with ours, from finished records alone: as structs, Markdown, terminal tables and a picture.

table = table_of(experiment, results)
Path("table.md").write_text("\n".join(table_lines(table)))
print_sheets(console, figure_sheets(table, ["TransE FedE R3"]))
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

import msgspec
import numpy as np
from matplotlib.figure import Figure as Picture
from scipy.special import stdtrit

from fkgsec.attacks.figure import headline
from fkgsec.attacks.reconstruction.leakage import PAPER, PUBLISHED
from fkgsec.attacks.view import ALL
from fkgsec.estimate import Estimate, exact
from fkgsec.experiments.papers.document import RELATIVE, SIZES, Metric, Stated
from fkgsec.experiments.papers.forgetting import Forgotten
from fkgsec.experiments.papers.results import Made, Results, run_of
from fkgsec.experiments.papers.spec import Cell, Experiment
from fkgsec.experiments.reporting import pictures
from fkgsec.experiments.reporting.convergence import convergence, relative_cost, round_reaching
from fkgsec.experiments.reporting.pictures import BLUE, GREY
from fkgsec.experiments.reporting.sheets import NONE, Column, Sheet, markdown_lines
from fkgsec.experiments.runs.record import Record
from fkgsec.experiments.tasks.items import Average
from fkgsec.experiments.tasks.task import task_of

SCHEMA = "fkgsec/experiment/1"
Status = Literal["done", "not run", "failed", "not at hand"]


class Figure(msgspec.Struct, frozen=True):
    """Figure of a cell.

    Attributes:
        paper: the paper's; None if it prints none.
        ours: the mean over seeds with its interval over seeds, or the single record's figure; None with the `reason`.
        difference: ours minus the paper's.
        sampled: with several seeds, the interval for the draw of test items: the mean ends of the seeds' own intervals.
    """

    metric: Metric
    paper: float | None
    ours: Estimate | None
    difference: float | None
    reason: str = ""
    sampled: tuple[float, float] | None = None


class TableCell(msgspec.Struct, frozen=True):
    """Cell with its figures.

    Attributes:
        reason: why it was not run or failed.
        remarks: qualify its figures.
    """

    name: str
    row: str
    column: str
    status: Status
    reason: str
    seeds: list[int]
    figures: list[Figure]
    remarks: list[str]


class PaperTable(msgspec.Struct, frozen=True):
    """All cells of a table, with its settings."""

    schema: str
    name: str
    title: str
    paper: str
    table: str
    notes: list[str]
    settings: list[Stated]
    metrics: list[Metric]
    cells: list[TableCell]
    items: str = "triples"


_AID = (
    "Brackets are 95 % intervals: over seeds where there are several, else over the test {items} of the one run. "
    "Difference: ours minus the paper's."
)
_SAMPLED_AID = (
    " Where there are several seeds all have the same test {items}; the last column is the interval for the draw of these, the "
    "mean of the seeds' own."
)
_SHARE, _RATIO, _COUNT, _MEAN = "{:.4f}", "{:.4f}x", "{:.0f}", "{:.2f}"
# Title and format of each metric.
STYLES: dict[Metric, tuple[str, str]] = {
    "mrr": ("MRR", _SHARE),
    "hits@1": ("Hits@1", _SHARE),
    "hits@3": ("Hits@3", _SHARE),
    "hits@5": ("Hits@5", _SHARE),
    "hits@10": ("Hits@10", _SHARE),
    "p@cg": ("P@CG, bytes until convergence over the baseline's", _RATIO),
    "p@99": ("P@99, bytes to 99 % of the baseline's MRR, over its own", _RATIO),
    "p@98": ("P@98, bytes to 98 % of the baseline's MRR, over its own", _RATIO),
    "r@cg": ("R@CG, rounds until convergence", _COUNT),
    "err": ("ERR, all victims", _SHARE),
    "trr": ("TRR, all victims", _SHARE),
    "accuracy": ("Test accuracy, mean over clients", _SHARE),
    "clean": ("Test accuracy, on graphs without a twin in train", _SHARE),
    "bytes": ("Bytes to and from the server in all rounds", "{:.2f} MiB"),
    "rounds@0.2": ("Rounds until validation MRR reached 0.2", _COUNT),
    "rounds@0.4": ("Rounds until validation MRR reached 0.4", _COUNT),
    "loss": ("Training loss at the round that is kept", _SHARE),
    "valid": ("Validation at the round that is kept", _SHARE),
    "entities": ("Entities of a client, mean", _MEAN),
    "relations": ("Relations of a client, mean", _MEAN),
}


def written(metric: Metric, figure: Estimate | float) -> str:
    """Return a figure as text, with its interval unless it is exact.

    Args:
        metric: decides the format.
        figure: ours, or the paper's number.
    """
    style = STYLES[metric][1].format
    if not isinstance(figure, Estimate):
        return style(figure)
    interval = "" if figure.method == "exact" else f" [{style(figure.low)}, {style(figure.high)}]"
    return style(figure.value) + interval


def measure(metric: Metric, record: Made, baseline: Made | None, cell: Cell) -> Estimate | str:
    """Return a cell's figure of one run, or the reason why there is none.

    Sizes are means over clients, and exact. Costs come from one run and have no interval of their own (method "exact").

    Args:
        record: the run, or an unlearned model.
        baseline: the run that relative figures refer to.
        cell: selects model, victim and average.

    Source: feds.txt IV-B for P@CG, P@98, P@99 and R@CG, by `fkgsec.experiments.reporting.convergence`.
    """
    if isinstance(record, Forgotten):
        return record.measure(metric, cell.level, cell.triples)
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
        return _leakage(metric, record, cell.victim, cell.leak)
    if metric in SIZES:
        # Counts of the data have no error.
        sizes = [client[metric] for client in record.data.clients.values()]
        return exact(sum(sizes) / len(sizes), len(sizes))
    if metric in ("rounds@0.2", "rounds@0.4"):
        reached = round_reaching(record, float(metric.partition("@")[2]))
        return "never reached" if reached is None else exact(reached, 1)
    if metric in ("loss", "valid"):
        value = getattr(record.rounds[record.best_round], metric)
        return "not measured" if value is None else exact(value, 1)
    if cell.shown == "shared" and not record.utility_shared:
        return "no shared model was measured"
    if metric == "bytes":
        return exact((record.bytes.up + record.bytes.down) / 2**20, 1)
    if metric == "clean":
        figure = record.unseen[task_of(record.spec).metric]
    elif cell.shown == "shared":
        figure = record.utility_shared[metric]
    else:
        figure = utility_of(record, metric, cell.average)
    return figure if figure.n else f"no test {task_of(record.spec).items}"


def utility_of(record: Record, metric: Metric, average: Average) -> Estimate:
    """Return utility over clients, weighted by test items or equally.

    Args:
        record: a finished run.
        metric: metric of utility.
        average: "items" weighs clients by test items, "clients" equally.
    """
    figures = [by_metric[metric] for by_metric in record.utility_by_client.values() if by_metric[metric].n]
    if average == ("clients" if task_of(record.spec).name == "graph" else "items") or not figures:
        return record.utility[metric]
    counts = np.array([figure.n for figure in figures], dtype=np.float64)
    weights = counts / counts.sum() if average == "items" else np.full(len(figures), 1 / len(figures))
    value = float(weights @ [figure.value for figure in figures])
    # Clients have disjoint test items: errors of a weighted mean add in quadrature.
    below, above = (
        math.sqrt(float(weights**2 @ [(figure.value - getattr(figure, end)) ** 2 for figure in figures]))
        for end in ("low", "high")
    )
    return Estimate(value, value - below, value + above, int(counts.sum()), f"mean over {average}")


def _leakage(metric: Metric, record: Record, victim: int, leak: float | None) -> Estimate | str:
    """Return ERR or TRR by the papers' inference, of one victim or all, at one leak ratio."""
    names = list(record.data.clients)
    if victim > len(names):
        return f"there are {len(names)} clients"
    figures = [figure for figure in record.rebuilt if figure.metric == metric and leak in (None, figure.leak or 0.0)]
    # The papers' own inference, not the strongest one.
    figures = [figure for figure in figures if figure.variant in (PAPER, PUBLISHED)] or headline(figures)
    chosen = [figure for figure in figures if figure.victim == (names[victim - 1] if victim else ALL)]
    if not (chosen or victim):
        chosen = figures  # of the only victim
    if len(chosen) != 1:
        return f"{len(chosen)} threats and leak ratios; name one of each"
    return chosen[0].reason or chosen[0].estimate


def over_seeds(figures: Sequence[Estimate]) -> Estimate:
    """Return a single figure unchanged; of several the mean, with Student's 95 % interval over seeds.

    Args:
        figures: one figure per seed, at least one.

    >>> print(over_seeds([exact(value, 1) for value in (1.0, 2.0, 3.0)]))
    2.0000 [-0.4841, 4.4841]
    """
    if len(figures) == 1:
        return figures[0]
    values = np.array([figure.value for figure in figures])
    # Few seeds: Student's interval accounts for the estimated deviation.
    center, n = float(values.mean()), len(values)
    half = float(stdtrit(n - 1, 0.975)) * float(values.std(ddof=1)) / math.sqrt(n)
    return Estimate(center, center - half, center + half, n, "student")


def table_of(
    experiment: Experiment, results: Results, failed: Mapping[str, str] | None = None, *, whole: bool = False
) -> PaperTable:
    """Return the paper's table with the finished records.

    Args:
        experiment: the table.
        results: the finished runs.
        failed: why cells failed, by name.
        whole: see `Results.of`.
    """
    runs = {cell.name: results.of(cell, whole=whole) for cell in experiment.cells}
    cells = []
    for cell in experiment.cells:
        reason, records = cell.missing or (failed or {}).get(cell.name, ""), runs[cell.name]
        figures = [
            _figure(metric, cell, records, runs.get(cell.baseline, {}))
            for metric in experiment.metrics
            if metric in cell.figures or metric not in RELATIVE or cell.baseline
        ]
        remarks = [cell.same_as] if cell.same_as else []
        if cell.chosen:
            remarks += [_choice(cell, seed, results.tried(cell)[seed]) for seed in records]
        remarks += [line for seed, record in records.items() for line in _remarks(seed, run_of(record), experiment)]
        status: Status = "not at hand" if cell.missing else "failed" if reason else "done" if records else "not run"
        cells.append(TableCell(cell.name, cell.row, cell.column, status, reason, list(records), figures, remarks))
    return PaperTable(
        SCHEMA,
        experiment.name,
        experiment.title,
        experiment.paper,
        experiment.table,
        list(experiment.notes),
        list(experiment.settings),
        experiment.metrics,
        cells,
        next((task_of(cell.spec).items for cell in experiment.cells if cell.spec), "items"),
    )


def _figure(metric: Metric, cell: Cell, runs: Mapping[int, Made], baselines: Mapping[int, Made]) -> Figure:
    paper, figures = cell.figures.get(metric), list[Estimate]()
    for seed, record in runs.items():
        # Relative figures compare runs with the same seed.
        figure = measure(metric, record, baselines.get(seed), cell)
        if isinstance(figure, str):
            return Figure(metric, paper, None, None, f"seed {seed}: {figure}" if len(runs) > 1 else figure)
        figures.append(figure)
    if not figures:
        return Figure(metric, paper, None, None)
    ours, sampled = over_seeds(figures), None
    # Seeds share their test items, whose error does not shrink in the mean. So the ends are averaged.
    if len(figures) > 1 and all(figure.method != "exact" for figure in figures):
        low, high = (float(np.mean([getattr(figure, end) for figure in figures])) for end in ("low", "high"))
        sampled = low, high
    return Figure(metric, paper, ours, None if paper is None else ours.value - paper, sampled=sampled)


def _choice(cell: Cell, seed: int, tried: Sequence[Made]) -> str:
    """State the value that validation selected, the validation of each value, and the values that are not run."""
    reached = {cell.choice(run.spec): run.rounds[run.best_round].valid for run in map(run_of, tried)}
    best = max(reached, key=lambda value: reached[value] or 0.0)
    values = [value if mrr is None else f"{mrr:.4f} with {value}" for value, mrr in reached.items()]
    missing = [value for spec in cell.candidates if (value := cell.choice(spec)) not in reached]
    line = f"seed {seed}: {cell.chosen} {best} by validation MRR, {', '.join(values)}"
    return line + (f"; not run: {', '.join(missing)}" if missing else "")


def _remarks(seed: int, record: Record, experiment: Experiment) -> Iterator[str]:
    """Yield reasons for caution: a run was still improving or still waiting, or has test items in train."""
    # The best round is the last: more rounds might have helped.
    if record.rounds[record.best_round].valid is not None and record.best_round == record.rounds[-1].round:
        yield f"seed {seed}: still improving at its last round, {record.best_round}"
    if 0 < record.best_round <= getattr(record.spec.settings, "warmup_rounds", 0):
        yield f"seed {seed}: kept at round {record.best_round}, before its models learnt from each other"
    task = task_of(record.spec)
    parts = {name: figures[task.metric] for name, figures in record.utility_by_leak.items()}
    # A table with this metric shows it itself.
    if parts["leaked"].n and "clean" not in experiment.metrics:
        shares = (f"{part.value:.4f} on {part.n:,} {task.leaked[name]}" for name, part in parts.items() if part.n)
        yield f"seed {seed}: {task.label(task.metric)} of test {task.items} {', '.join(shares)}"


def reading_aid(table: PaperTable) -> str:
    """Explain the brackets."""
    sampled = any(figure.sampled for cell in table.cells for figure in cell.figures)
    return (_AID + _SAMPLED_AID * sampled).format(items=table.items)


def table_lines(table: PaperTable) -> list[str]:
    """Return the table in Markdown: notes, figures, remarks, and every setting with its source."""
    lines = [f"# {table.title}", "", f"{table.table} of {table.paper}. {reading_aid(table)}", ""]
    lines += [f"* {note}" for note in table.notes] + [""] * bool(table.notes)
    for metric in table.metrics:
        sheet = _figure_sheet(table.cells, metric, table.items)
        lines += [f"## {sheet.title}", "", *markdown_lines(sheet), ""]
    remarks = remark_lines(table.cells)
    lines += ["## Remarks", "", *(f"* {remark}" for remark in remarks), ""] if remarks else []
    return [*lines, "## Settings", "", *markdown_lines(settings_sheet(table.settings))]


def settings_sheet(settings: Iterable[Stated]) -> Sheet:
    """Return the settings of a file with their sources.

    Args:
        settings: settings as the file states them.
    """
    rows = tuple(
        (stated.where, stated.option, str(stated.value), "the paper's" if stated.why is None else "ours", stated.why)
        for stated in settings
    )
    return Sheet("Settings", tuple(map(Column, ("cells", "option", "value", "whose", "why"))), rows)


def figure_sheets(table: PaperTable, cells: Sequence[TableCell]) -> list[Sheet]:
    """Return a table of cells for each metric.

    Args:
        cells: its cells to show.
    """
    sheets = [_figure_sheet(cells, metric, table.items) for metric in table.metrics]
    return [sheet for sheet in sheets if sheet.rows]


def remark_lines(cells: Sequence[TableCell]) -> list[str]:
    """Return the remarks of cells, and why cells failed or cannot be run; each reason once.

    Args:
        cells: cells to show.
    """
    remarks = [f"{cell.name}, {remark}" for cell in cells for remark in cell.remarks]
    missing = dict.fromkeys(f"Not at hand: {cell.reason}" for cell in cells if cell.status == "not at hand")
    failed = [f"{cell.name} failed, {cell.reason}" for cell in cells if cell.status == "failed"]
    return [*remarks, *missing, *failed]


def _figure_sheet(cells: Sequence[TableCell], metric: Metric, items: str) -> Sheet:
    """Return the paper's figure, ours with its interval (or why there is none), their difference and our seeds."""
    rows = []
    for cell in cells:
        for figure in (figure for figure in cell.figures if figure.metric == metric):
            paper = NONE if figure.paper is None else written(metric, figure.paper)
            ours = written(metric, figure.ours) if figure.ours else figure.reason or cell.status
            difference = figure.difference
            sign = "" if difference is None else f"{'+' if difference >= 0 else '-'}{written(metric, abs(difference))}"
            sampled = f"[{', '.join(written(metric, end) for end in figure.sampled)}]" if figure.sampled else ""
            rows.append((cell.name, paper, ours, sign, ", ".join(map(str, cell.seeds)), sampled))
    heads = ("cell", "paper", "ours", "difference", "seeds", f"test {items}")
    # No cell has several seeds.
    if not any(row[-1] for row in rows):
        heads, rows = heads[:-1], [row[:-1] for row in rows]
    return Sheet(STYLES[metric][0], tuple(map(Column, heads)), tuple(rows))


def draw_table(table: PaperTable) -> bytes:
    """Return a PNG with a panel for each metric and a line for each finished cell (all cells if none is): paper rings,
    our dots.
    """
    # An empty table still shows the paper's figures.
    cells = [cell for cell in table.cells if any(figure.ours for figure in cell.figures)] or table.cells
    picture = Picture(figsize=(2.5 + 3.2 * len(table.metrics), 1.6 + 0.22 * len(cells)), layout="constrained")
    panels = picture.subplots(1, len(table.metrics), sharey=True, squeeze=False)[0]
    for metric, axes in zip(table.metrics, panels, strict=True):
        figures = [(-y, figure) for y, cell in enumerate(cells) for figure in cell.figures if figure.metric == metric]
        theirs = [(figure.paper, y) for y, figure in figures if figure.paper is not None]
        axes.scatter(
            [x for x, _ in theirs], [y for _, y in theirs], s=28, facecolors="none", edgecolors=GREY, label="paper"
        )
        ours = [(figure.ours, y) for y, figure in figures if figure.ours is not None]
        axes.errorbar(
            [x.value for x, _ in ours], [y for _, y in ours],
            xerr=[[x.value - x.low for x, _ in ours], [x.high - x.value for x, _ in ours]],
            fmt="o", ms=4, color=BLUE, capsize=2, lw=1, label="ours",
        )  # fmt: skip
        axes.set_title(STYLES[metric][0].split(",")[0], fontsize=10)
        axes.grid(axis="y", lw=0.3)
        axes.set_yticks([-y for y in range(len(cells))], [cell.name for cell in cells], fontsize=7)
    panels[0].set_ylim(-len(cells), 1)
    picture.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize=8)
    picture.suptitle(f"{table.title}\n{table.table}, {table.paper.partition(',')[0]}", fontsize=10)
    return pictures.saved(picture)
