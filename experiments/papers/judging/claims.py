"""Whether the papers' headline claims hold, decided from records by one rule.

    judged = judge_claims(read_claims(), read_experiments(), records)
    print([(one.claim.claim, one.outcome) for one in judged])

A claim says that one row of a table is above another, or near it, in every column. Each such pair of cells tests it; pairs that
share a run are one test. `claims.yaml` has what the papers claim, and nothing of what came out.

A difference varies with the test items and with the training. Two runs of one data set are compared item by item, within each
client. Seeds without outcomes by test item count only where no seed has such outcomes for both runs. Training varies as far as
the seeds of all pairs of the claim do, pooled with a prior of `PRIOR_SEEDS` further seeds, so that no pair is judged by the one
degree of freedom of its own two seeds.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
import numpy as np
from scipy.special import stdtrit

from fkgsec.errors import SpecError
from fkgsec.estimate import Estimate, critical_value
from fkgsec.experiments.papers.document import Average, Metric
from fkgsec.experiments.papers.judging.admission import admit
from fkgsec.experiments.papers.runner import Results, run_of
from fkgsec.experiments.papers.spec import Cell, Experiment, select_names
from fkgsec.experiments.papers.table import Made, measure, over_seeds
from fkgsec.experiments.runs.documents import read_document
from fkgsec.experiments.runs.record import Record
from fkgsec.experiments.runs.spec import RunSpec
from fkgsec.experiments.tasks.items import TestItems
from fkgsec.experiments.tasks.task import task_of

CLAIMS_FILE = Path(__file__).with_name("claims.yaml")
MIN_TESTS, LEAST, MOST = 3, 0.25, 0.75
PRIOR_SEEDS = 4
SEED_DEVIATION = {"accuracy": 0.02}
OTHER_DEVIATION = 0.001
"""Standard deviation over seeds of the difference between two runs, which `PRIOR_SEEDS` seeds stand for. Measured: 0.0009 for the
MRR of FedR less Local (TransE, DDB14-Fed20, three seeds), 0.01 to 0.02 for accuracy (GIN, NCI1 and IMDB-BINARY, three seeds)."""
Reading = Literal["for", "against", "undecided"]
Outcome = Literal["holds", "does not hold", "open"]


class Claim(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a paper claims.

    Attributes:
        words: the paper's own. where: in it.
        metric: what the rows are compared by. margin: the share of the second row's that the first may lack to be near it.
        within: the absolute difference that it may lack. Without either, the first is to be above the second.
        least_share: of a claim of being above, the share of the median printed difference that is the smallest difference of
            interest. A pair whose whole interval lies below that difference is against the claim. 0: no such difference.
        most_bytes: until convergence, at most, as a share of the second's; None: bytes do not count. bytes_table: where the
            paper prints these shares (P@CG).
        columns: words of the columns that the claim is of, as for `select_cells`; empty: all.
        pairs: of rows, the one that is to be above or near, and the other. why: of the margins.
        unlearning: of a claim on forget and test scores in place of pairs the rows that are unlearned, re-trained and raw.
    """

    claim: str
    paper: str
    where: str
    words: str
    metric: Metric
    tables: tuple[str, ...]
    columns: str = ""
    pairs: tuple[tuple[str, str], ...] = ()
    margin: float = 0.0
    within: float = 0.0
    least_share: float = 0.0
    most_bytes: float | None = None
    bytes_table: str = ""
    why: str = ""
    unlearning: tuple[tuple[str, str, str], ...] = ()


class Compared(NamedTuple):
    """Two rows before their difference has an interval.

    Attributes:
        by_seed: the difference of each seed, float64 `[k]`. items: its variance over test items. unit: what that is over.
        num_paired: test items that are compared one by one; 0 where the two figures are taken as independent.
    """

    first: Estimate
    second: Estimate
    by_seed: np.ndarray
    items: float
    unit: str
    num_paired: int = 0


class Pair(NamedTuple):
    """One comparison of a claim.

    Attributes:
        name: of the two. full: whether both are run at the paper's own settings, on its data.
        first, second: their figures. excess: first - (1 - margin) second + within, which is above 0 where the claim holds; its
            `method` names the unit of variation.
        remark: what must be known beside. test: which one it is part of. column: of the table.
        compared: what `excess` is of; None of unlearning.
    """

    name: str
    full: bool
    first: Estimate
    second: Estimate
    excess: Estimate
    reading: Reading
    seeds: tuple[int, ...]
    remark: str
    commands: tuple[str, ...]
    test: str
    column: str
    compared: Compared | None = None


class Judged(NamedTuple):
    """A claim and how it is decided.

    Attributes:
        pairs: that are run. printed: of each test that the paper's tables have, `Pair.excess` of its printed figures.
        smallest: the smallest difference of interest, see `Claim.least_share`; 0 without one.
    """

    claim: Claim
    outcome: Outcome
    pairs: tuple[Pair, ...]
    printed: Mapping[str, list[float]]
    smallest: float = 0.0

    @property
    def printed_for(self) -> list[str]:
        """The tests whose printed figures are all for the claim."""
        return [test for test, excesses in self.printed.items() if min(excesses) > 0]

    @property
    def full(self) -> list[Pair]:
        """The pairs that count."""
        return [pair for pair in self.pairs if pair.full]

    @property
    def readings(self) -> list[Reading]:
        """Of each test that counts."""
        return readings_of(self.full)


def read_claims(path: Path = CLAIMS_FILE) -> tuple[Claim, ...]:
    """The claims of a file. Raises `SpecError`."""
    try:
        claims = msgspec.convert(read_document(path).content, tuple[Claim, ...])
    except msgspec.ValidationError as error:
        raise SpecError(f"{path}: {error}") from error
    for claim in claims:
        if claim.least_share and (claim.margin or claim.within or not 0 < claim.least_share < 1):
            raise SpecError(
                f"{path}: {claim.claim}: least_share: a share between 0 and 1, and without margin and within; got "
                f"{claim.least_share}"
            )
    return claims


def judge_claims(claims: Iterable[Claim], experiments: Sequence[Experiment], records: Iterable[Made]) -> list[Judged]:
    """Every claim with its tests and its outcome.

    Raises:
        SpecError: a claim names a table, column or row that is not there.
    """
    results = Results(attack=False)
    for record in admit(records).records:
        results.add(record)
    return [_judge(claim, experiments, results) for claim in claims]


def tables_of(claim: Claim, experiments: Iterable[Experiment]) -> list[Experiment]:
    """The tables of a claim, and the reduced files of these. Raises `SpecError`."""
    tables = [one for one in experiments if one.name in claim.tables or one.base in claim.tables]
    if lost := [name for name in claim.tables if name not in {one.name for one in tables}]:
        raise SpecError(f"{claim.claim}: tables: no file {lost[0]!r}")
    return tables


def _judge(claim: Claim, experiments: Sequence[Experiment], results: Results) -> Judged:
    tables, printed = tables_of(claim, experiments), dict[str, list[float]]()
    for one in printed_pairs(claim, experiments):
        printed.setdefault(one.test, []).append(one.excess)
    smallest = smallest_difference(claim, [excess for found in printed.values() for excess in found])
    if claim.unlearning:
        pairs = [pair for table in tables for pair in _unlearning_pairs(claim, table, results)]
    else:
        pairs = list(_pairs(claim, tables, results, smallest))
    outcome = outcome_of(readings_of([pair for pair in pairs if pair.full]), num_wanted=len(printed))
    return Judged(claim, outcome, tuple(pairs), printed, smallest)


def smallest_difference(claim: Claim, printed: Sequence[float]) -> float:
    """The smallest difference of interest: a share of the median printed difference over all pairs; 0 without one."""
    return max(0.0, claim.least_share * statistics.median(printed)) if claim.least_share and printed else 0.0


class Printed(NamedTuple):
    """One comparison as the paper prints it.

    Attributes:
        test: that it is part of. cells: whose runs it needs, as "TABLE-FILE: CELL". spec: of one of these runs.
        excess: as `Pair.excess`; -inf where the printed bytes are too many.
    """

    test: str
    cells: tuple[str, ...]
    spec: RunSpec | None
    excess: float


def printed_pairs(claim: Claim, experiments: Sequence[Experiment]) -> Iterator[Printed]:
    """The comparisons of a claim by the papers' own figures, each figure once."""
    shares = {
        cell.name: cell.figures.get("p@cg")
        for one in experiments
        if one.name == claim.bytes_table
        for cell in one.cells
    }
    for table in (table for table in tables_of(claim, experiments) if not table.base):
        for row, _, cells in unlearning_cells(claim, table):
            names = tuple(f"{table.name}: {cell.name}" for cell in cells.values())
            for excess in printed_unlearning(claim, cells):
                yield Printed(f"{table.name}: {row}", names, cells["raw", "test"].spec, excess)
        for first, second in cells_of(claim, table):
            if first.other_data:
                continue
            above, below = (cell.figures[claim.metric] or 0.0 for cell in (first, second))
            excess = above - (1 - claim.margin) * below + claim.within
            too_many = claim.most_bytes is not None and (shares.get(first.name) or 0.0) > claim.most_bytes
            names = tuple(f"{table.name}: {cell.name}" for cell in (first, second))
            excess = -math.inf if too_many else excess
            yield Printed(test_of(claim, table, first, second), names, first.spec, excess)


def test_of(claim: Claim, table: Experiment, first: Cell, second: Cell) -> str:
    """The test that a pair is part of: pairs that share a run are one test."""
    firsts = [row for row, _ in claim.pairs]
    return f"{table.name}: {(first if len(set(firsts)) < len(firsts) else second).name}"


def readings_of(pairs: Iterable[Pair]) -> list[Reading]:
    """One reading for each test: that of its pairs where they agree."""
    by_test = dict[str, set[Reading]]()
    for pair in pairs:
        by_test.setdefault(pair.test, set()).add(pair.reading)
    return [next(iter(found)) if len(found) == 1 else "undecided" for found in by_test.values()]


def num_needed(num_wanted: int) -> int:
    """How many tests must be run before a claim is decided."""
    return max(MIN_TESTS, math.ceil(LEAST * num_wanted))


def outcome_of(readings: Sequence[Reading], *, num_wanted: int = 0) -> Outcome:
    """What the tests at full settings say together.

    Args:
        num_wanted: how many tests there would be; a `LEAST` share of them must be run, and `MIN_TESTS`.

    >>> outcome_of(["for", "for"]), outcome_of(["for", "for", "for", "undecided"]), outcome_of(["against"] * 3)
    ('open', 'holds', 'does not hold')
    >>> outcome_of(["for"] * 3, num_wanted=60), outcome_of(["for"] * 15, num_wanted=60)
    ('open', 'holds')
    """
    if len(readings) >= num_needed(num_wanted):
        for reading, outcome in (("for", "holds"), ("against", "does not hold")):
            if readings.count(reading) >= MOST * len(readings):
                return outcome  # type: ignore[return-value]
    return "open"


def cells_of(claim: Claim, table: Experiment) -> Iterator[tuple[Cell, Cell]]:
    """The pairs of cells that a claim is of, where the paper prints a figure for both.

    Raises:
        SpecError: a claim on rows or columns that the table has not.
    """
    lost = {row for pair in claim.pairs for row in pair} - {cell.row for cell in table.cells}
    if lost and not table.base:
        raise SpecError(f"{claim.claim}: pairs: no row {min(lost)!r} in {table.name}")
    cells = {(cell.row, cell.column): cell for cell in table.cells if cell.figures.get(claim.metric) is not None}
    columns = list(dict.fromkeys(cell.column for cell in table.cells))
    try:
        chosen = select_names(columns, claim.columns)
    except SpecError as error:
        if not table.base:
            raise SpecError(f"{claim.claim}: columns: {error}") from error
        chosen = set()
    for first, second in claim.pairs:
        for column in (column for column in columns if column in chosen):
            if (first, column) in cells and (second, column) in cells:
                yield cells[first, column], cells[second, column]


def _pairs(claim: Claim, tables: Iterable[Experiment], results: Results, smallest: float) -> Iterator[Pair]:
    """Every pair that has runs of one seed; the variance over seeds is pooled over all of them."""
    found = list[tuple[Experiment, Cell, Cell, list[dict[int, Record]], list[int], Compared]]()
    for table in tables:
        for first, second in cells_of(claim, table):
            runs = [
                {seed: run_of(one) for seed, one in results.of(cell, whole=True).items()} for cell in (first, second)
            ]
            with_items = [
                {seed for seed, run in of_seed.items() if _items(run, cell) is not None}
                for of_seed, cell in zip(runs, (first, second), strict=True)
            ]
            if seeds := sorted(set.intersection(*with_items) or set(runs[0]) & set(runs[1])):
                both = [[of_seed[seed] for seed in seeds] for of_seed in runs]
                found.append((table, first, second, runs, seeds, compare(claim, first, second, both)))
    for full in (True, False):
        part = [one for one in found if (not one[0].base and not one[1].other_data) == full]
        intervals = with_intervals([one[-1] for one in part], claim.metric)
        for (table, first, second, runs, seeds, compared), excess in zip(part, intervals, strict=True):
            remarks = [line for of_seed in runs for line in _remarks([of_seed[seed] for seed in seeds])]
            readings: set[Reading] = {reading_of(excess, smallest)}
            if claim.most_bytes is not None:
                shares = [_must(measure("p@cg", runs[0][seed], runs[1][seed])).value for seed in seeds]
                remarks.append(f"{', '.join(f'{share:.2f}' for share in shares)} of the bytes until convergence")
                fewer = [share <= claim.most_bytes for share in shares]
                readings.add("for" if all(fewer) else "undecided" if any(fewer) else "against")
            remarks += [first.other_data] if first.other_data else []
            commands = dict.fromkeys(of_seed[seed].environment.command for of_seed in runs for seed in seeds)
            yield Pair(
                f"{table.name}: {first.row}, {second.row}, {first.column}", full, compared.first, compared.second, excess,
                together(readings), tuple(seeds), "; ".join(remarks), tuple(commands), test_of(claim, table, first, second),
                first.column, compared,
            )  # fmt: skip


def compare(claim: Claim, first: Cell, second: Cell, runs: Sequence[Sequence[Record]]) -> Compared:
    """Two cells by their runs, one for each seed in both; the average over clients is that of the first row's paper."""
    figures = [
        [_must(measure(claim.metric, one, None, cell.shown, average=first.average)) for one in of_cell]
        for cell, of_cell in zip((first, second), runs, strict=True)
    ]
    share = 1 - claim.margin
    found = unpaired(figures[0], figures[1], share)
    found = found._replace(by_seed=found.by_seed + claim.within)
    items = [[_items(one, cell) for one in of_cell] for cell, of_cell in zip((first, second), runs, strict=True)]
    paired = [(one, other) for one, other in zip(*items, strict=True) if one is not None and other is not None]
    if len(paired) < len(found.by_seed) or len({one.data.hash for of_cell in runs for one in of_cell}) > 1:
        return found
    variance = paired_variance(paired, claim.metric, share, first.average)
    num_items = sum(paired[0][0].counts)
    return found._replace(items=variance, unit=f"{num_items:,} test items, paired", num_paired=num_items)


def _items(run: Record, cell: Cell) -> TestItems | None:
    """The outcomes by test item of the model that a cell shows."""
    return run.items_shared if cell.shown == "shared" else run.items


def unpaired(first: Sequence[Estimate], second: Sequence[Estimate], share: float) -> Compared:
    """Figures of each seed as if they were of independent test items, which is wider than a paired comparison."""
    both = list(zip(first, second, strict=True))
    by_seed = np.array([one.value - share * other.value for one, other in both])
    halves = [math.hypot((one.high - one.low) / 2, share * (other.high - other.low) / 2) for one, other in both]
    variance = float(np.mean(np.square(halves))) / critical_value() ** 2
    return Compared(over_seeds(first), over_seeds(second), by_seed, variance, "test items, not paired")


def paired_variance(
    pairs: Sequence[tuple[TestItems, TestItems]], metric: Metric, share: float, average: Average
) -> float:
    """Variance over test items of the mean difference, from each item's mean over seeds; clients are strata."""
    differences = np.mean([scores_of(one, metric) - share * scores_of(other, metric) for one, other in pairs], axis=0)
    clients = [differences[rows] for rows in pairs[0][0].client_slices() if rows.stop > rows.start]
    counts = np.array([len(one) for one in clients], dtype=np.float64)
    weights = counts / counts.sum() if average == "items" else np.full(len(clients), 1 / len(clients))
    overall = differences.var(ddof=1) if len(differences) > 1 else 0.25
    variances = np.array([one.var(ddof=1) if len(one) > 1 else overall for one in clients])
    return float((weights**2 * variances / counts).sum())


def scores_of(items: TestItems, metric: Metric) -> np.ndarray:
    """What each test item adds to a metric, float64 `[n]`: the mean over its sides."""
    if metric == "accuracy":
        return items.values()[:, 0]
    ranks = items.ranks()
    return (1 / ranks if metric == "mrr" else ranks <= int(metric.partition("@")[2])).mean(axis=1)


def with_intervals(compared: Sequence[Compared], metric: Metric) -> list[Estimate]:
    """The 95 % interval of each pair's mean difference over seeds.

    Its variance is that over test items, plus the variance over seeds, pooled over all pairs with the prior, over the number of
    seeds. Degrees of freedom: Satterthwaite 1946.
    """
    prior = SEED_DEVIATION.get(metric, OTHER_DEVIATION) ** 2
    freedom = PRIOR_SEEDS + sum(len(one.by_seed) - 1 for one in compared)
    squares = sum(float(((one.by_seed - one.by_seed.mean()) ** 2).sum()) for one in compared)
    pooled = (PRIOR_SEEDS * prior + squares) / freedom
    intervals = []
    for one in compared:
        value, number = float(one.by_seed.mean()), len(one.by_seed)
        of_seeds = pooled / number
        variance = one.items + of_seeds
        half = float(stdtrit(variance**2 * freedom / of_seeds**2, 0.975)) * math.sqrt(variance)
        unit = f"{one.unit}; {number} seed{'' if number == 1 else 's'}"
        intervals.append(Estimate(value, value - half, value + half, number, unit))
    return intervals


def _must(figure: Estimate | str) -> Estimate:
    if isinstance(figure, str):
        raise SpecError(f"metric: {figure}")
    return figure


def reading_of(excess: Estimate, smallest: float = 0.0) -> Reading:
    """For a claim where the whole interval lies above 0, against it where it lies below the smallest difference of interest.

    An interval between 0 and that difference is for the claim, whose words do not say by how much.

    >>> [reading_of(Estimate(0.0, low, high, 9, "x"), 0.02) for low, high in ((0.001, 0.01), (-0.01, 0.01), (-0.01, 0.03))]
    ['for', 'against', 'undecided']
    """
    return "for" if excess.low > 0 else "against" if excess.high < smallest else "undecided"


def together(readings: Collection[Reading]) -> Reading:
    """Of a claim with two parts: for it where both are, against it where one is."""
    return "against" if "against" in readings else "for" if set(readings) == {"for"} else "undecided"


def _remarks(records: Sequence[Record]) -> Iterator[str]:
    """Of one side's seeds: what is reached on test items that training did not see, and whether training had ended."""
    task, name = task_of(records[0].spec), records[0].spec.algorithm
    unseen = [record.unseen[task.metric] for record in records]
    if any(record.utility_by_leak["leaked"][task.metric].n for record in records):
        value = math.fsum(one.value for one in unseen) / len(unseen)
        part = task.leaked["new" if all("new" in one.utility_by_leak for one in records) else "clean"]
        yield f"{name} {value:.4f} on {unseen[0].n:,} {part}"
    if any(record.best_round == record.rounds[-1].round and record.spec.patience for record in records):
        yield f"{name} was still improving"


LEVELS = ("local", "global")
Parts = dict[tuple[str, str], Cell]
"""Cells of one model by role and triples: ("raw", "test")."""


def unlearning_cells(claim: Claim, table: Experiment) -> Iterator[tuple[str, str, Parts]]:
    """For each model of a table its name, the level, and its cells. Raises `SpecError` for rows that are not there."""
    cells = {(cell.row, cell.level, cell.triples): cell for cell in table.cells}
    for rows in claim.unlearning:
        for level in LEVELS:
            found = {
                (role, triples): cells.get((row, level, triples))
                for role, row in zip(("unlearned", "retrained", "raw"), rows, strict=True)
                for triples in ("forget", "test")
            }
            kept = {key: cell for key, cell in found.items() if cell is not None}
            if len(kept) == len(found):
                yield rows[0], level, kept
            elif not table.base:
                raise SpecError(f"{claim.claim}: unlearning: rows {', '.join(rows)} are not all in {table.name}")


def printed_unlearning(claim: Claim, cells: Parts) -> tuple[float, float]:
    """By how much the printed forget score is below re-training's, and the printed test score above what the margin leaves."""
    figures = {key: cell.figures.get(claim.metric) or 0.0 for key, cell in cells.items()}
    lower = figures["retrained", "forget"] - figures["unlearned", "forget"]
    return lower, figures["unlearned", "test"] - (1 - claim.margin) * figures["raw", "test"]


def _unlearning_pairs(claim: Claim, table: Experiment, results: Results) -> Iterator[Pair]:
    """Of each model, local and global: re-trained less unlearned on forget triples, and what is kept of test triples.

    Both are of one raw run, and one test.
    """
    for row, level, cells in unlearning_cells(claim, table):
        found = {key: results.of(cell, whole=True) for key, cell in cells.items()}
        seeds = sorted(set.intersection(*(set(by_seed) for by_seed in found.values())))
        if not seeds:
            continue
        figures = {
            key: [
                _must(measure(claim.metric, found[key][seed], None, level=level, triples=cell.triples))
                for seed in seeds
            ]
            for key, cell in cells.items()
        }
        parts = ("retrained", "forget"), ("unlearned", "forget"), ("unlearned", "test"), ("raw", "test")
        retrained, unlearned, tested, raw = (figures[part] for part in parts)
        lower, kept = (
            with_intervals([unpaired(*pair)], claim.metric)[0]
            for pair in ((retrained, unlearned, 1.0), (tested, raw, 1 - claim.margin))
        )
        remark = f"test {over_seeds(tested).value:.4f}, raw {over_seeds(raw).value:.4f}: {reading_of(kept)}"
        commands = dict.fromkeys(one[seed].environment.command for one in found.values() for seed in seeds)
        yield Pair(
            f"{table.name}: {row} ({level})", not table.base, over_seeds(unlearned), over_seeds(retrained), lower,
            together({reading_of(lower), reading_of(kept)}), tuple(seeds), remark, tuple(commands),
            f"{table.name}: {row}", cells["raw", "test"].column,
        )  # fmt: skip
