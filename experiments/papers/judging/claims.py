"""Judge the papers' headline claims from records, by one rule.

    judged = judge_claims(read_claims(), read_experiments(), records)
    print([(claim.claim.claim, claim.outcome) for claim in judged])

A claim states that one row of a table is above another, or near it, in every column. Each such pair of cells tests it;
pairs that share a run are one test. `claims.yaml` contains the papers' claims, and no outcomes.

A difference varies with the test items and with the training. Two runs on one data set are compared item by item, within each
client. Seeds without outcomes by test item count only if no seed has such outcomes for both runs. The variance over
training is pooled over the seeds of all pairs of the claim, with a prior of `PRIOR_SEEDS` further seeds, so that no
pair is judged by the one degree of freedom of its own two seeds.
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
from fkgsec.experiments.papers.document import Metric
from fkgsec.experiments.papers.forgetting import Forgotten
from fkgsec.experiments.papers.judging.admission import admit, data_hash
from fkgsec.experiments.papers.results import Made, Results
from fkgsec.experiments.papers.spec import Cell, Experiment, select_names
from fkgsec.experiments.papers.table import measure, over_seeds
from fkgsec.experiments.runs.documents import read_document
from fkgsec.experiments.runs.record import Record
from fkgsec.experiments.tasks.items import TestItems, paired_variance
from fkgsec.experiments.tasks.task import task_of

CLAIMS_FILE = Path(__file__).with_name("claims.yaml")
MIN_TESTS, LEAST, MOST = 3, 0.25, 0.75
PRIOR_SEEDS = 4
# Prior standard deviation over seeds of the difference between two runs, with the weight of `PRIOR_SEEDS` seeds. Measured: 0.0009
# for the MRR of FedR minus Local (TransE, DDB14-Fed20, three seeds), 0.01 to 0.02 for accuracy (GIN, NCI1 and IMDB-BINARY, three
# seeds).
SEED_DEVIATION = {"accuracy": 0.02}
OTHER_DEVIATION = 0.001
LEVELS = ("local", "global")
Reading = Literal["for", "against", "undecided"]
Outcome = Literal["holds", "does not hold", "open"]


class Claim(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Claim of a paper.

    Attributes:
        where: place in the paper.
        words: the paper's own words.
        metric: metric that compares the rows.
        columns: words of the columns, as for `select_cells`; empty for all.
        pairs: pairs of rows; the first must be above or near the second.
        margin: relative tolerance below the second row's figure. Without margin and within, the first row must be above
            the second.
        within: absolute tolerance.
        least_share: smallest difference of interest of a claim of being above, as a share of the median printed difference. A
            pair whose whole interval is below that difference is against the claim. 0 for none.
        most_bytes: most bytes until convergence, as a share of the second row's; None if bytes do not count.
        bytes_table: file with the printed shares (P@CG).
        why: reasons for the margins.
        unlearning: instead of pairs, the unlearned, re-trained and raw rows of a claim on forget and test scores.
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


class Comparison(NamedTuple):
    """Comparison that a claim makes, before any run.

    Attributes:
        test: the test that it is part of; `together` combines its pairs.
        full: True at the paper's own settings, on the paper's data.
        sides: two cells each, and the share of the second that the first must exceed. Unlearning has two: forget and
            test scores.
        printed: for each side, `Pair.excess` of the paper's figures; -inf if the printed bytes are too many.
    """

    name: str
    table: str
    test: str
    column: str
    full: bool
    sides: tuple[tuple[Cell, Cell, float], ...]
    printed: tuple[float, ...]

    @property
    def cells(self) -> dict[str, Cell]:
        """The cells, by "TABLE-FILE: CELL"."""
        return {f"{self.table}: {cell.name}": cell for first, second, _ in self.sides for cell in (first, second)}


class Compared(NamedTuple):
    """Runs of two cells before their difference has an interval.

    Attributes:
        by_seed: the difference for each seed, float64 `[k]`.
        items: its variance over test items.
        unit: unit of that variance.
        num_paired: number of paired test items; 0 if the two figures count as independent.
    """

    first: Estimate
    second: Estimate
    by_seed: np.ndarray
    items: float
    unit: str
    num_paired: int = 0


class Pair(NamedTuple):
    """Comparison that was run.

    Attributes:
        full, test, column: see `Comparison`.
        excess: first - (1 - margin) second + within, which is above 0 if the claim holds; its `method` is the unit of
            variation.
        remark: qualifies the reading.
        compared: what `excess` was computed from; None for unlearning.
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
    """Claim and its outcome.

    Attributes:
        pairs: pairs that were run.
        printed: for each test of the paper's tables, `Comparison.printed`.
        smallest: smallest difference of interest, see `Claim.least_share`; 0 for none.
    """

    claim: Claim
    outcome: Outcome
    pairs: tuple[Pair, ...]
    printed: Mapping[str, list[float]]
    smallest: float = 0.0

    @property
    def printed_for(self) -> list[str]:
        """Tests whose printed figures are all for the claim."""
        return [test for test, excesses in self.printed.items() if min(excesses) > 0]

    @property
    def full(self) -> list[Pair]:
        """Pairs at the paper's own settings, which decide."""
        return [pair for pair in self.pairs if pair.full]

    @property
    def readings(self) -> list[Reading]:
        """The reading of each test that decides: for the claim if all its pairs are, against it if one is."""
        by_test = dict[str, set[Reading]]()
        for pair in self.full:
            by_test.setdefault(pair.test, set()).add(pair.reading)
        return [together(readings) for readings in by_test.values()]


def read_claims(path: Path = CLAIMS_FILE) -> tuple[Claim, ...]:
    """Read the claims of a file.

    Args:
        path: YAML file.

    Raises:
        SpecError: the file is wrong.
    """
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


def comparisons(claim: Claim, experiments: Sequence[Experiment]) -> list[Comparison]:
    """Return the comparisons of a claim, in its tables and in their reduced files.

    Args:
        experiments: all tables.

    Raises:
        SpecError: the claim names an unknown table, row or column.
    """
    tables = [table for table in experiments if table.name in claim.tables or table.base in claim.tables]
    if lost := [name for name in claim.tables if name not in {table.name for table in tables}]:
        raise SpecError(f"{claim.claim}: tables: no file {lost[0]!r}")
    # Claims about communication also need the printed shares of bytes.
    bytes_cells = [cell for table in experiments if table.name == claim.bytes_table for cell in table.cells]
    too_many = {cell.name for cell in bytes_cells if (cell.figures.get("p@cg") or 0.0) > (claim.most_bytes or math.inf)}
    firsts = [row for row, _ in claim.pairs]
    result = []
    for table in tables:
        for first, second in _row_pairs(claim, table):
            side = (first, second, 1 - claim.margin)
            excess = -math.inf if first.name in too_many else _printed(claim, *side) + claim.within
            # Pairs that share a run are one test.
            shared = first if len(set(firsts)) < len(firsts) else second
            name = f"{table.name}: {first.row}, {second.row}, {first.column}"
            full, test = not table.base and not first.other_data, f"{table.name}: {shared.name}"
            result.append(Comparison(name, table.name, test, first.column, full, (side,), (excess,)))
        for row, level, cells in _unlearning_cells(claim, table):
            sides = (
                (cells["retrained", "forget"], cells["unlearned", "forget"], 1.0),
                (cells["unlearned", "test"], cells["raw", "test"], 1 - claim.margin),
            )
            printed = tuple(_printed(claim, *side) for side in sides)
            name, test, column = f"{table.name}: {row} ({level})", f"{table.name}: {row}", cells["raw", "test"].column
            result.append(Comparison(name, table.name, test, column, not table.base, sides, printed))
    return result


def _printed(claim: Claim, first: Cell, second: Cell, share: float) -> float:
    above, below = (cell.figures.get(claim.metric) or 0.0 for cell in (first, second))
    return above - share * below


def _row_pairs(claim: Claim, table: Experiment) -> Iterator[tuple[Cell, Cell]]:
    """Yield the pairs of cells for which the paper prints both figures."""
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


def _unlearning_cells(claim: Claim, table: Experiment) -> Iterator[tuple[str, str, dict[tuple[str, str], Cell]]]:
    """Yield for each model of a table its row, its level, and its cells by role and triples."""
    cells = {(cell.row, cell.level, cell.triples): cell for cell in table.cells}
    for rows in claim.unlearning:
        roles = dict(zip(("unlearned", "retrained", "raw"), rows, strict=True))
        for level in LEVELS:
            keys = {(role, triples): (roles[role], level, triples) for role in roles for triples in ("forget", "test")}
            if all(key in cells for key in keys.values()):
                yield rows[0], level, {part: cells[key] for part, key in keys.items()}
            elif not table.base:
                raise SpecError(f"{claim.claim}: unlearning: rows {', '.join(rows)} are not all in {table.name}")


def judge_claims(claims: Iterable[Claim], experiments: Sequence[Experiment], records: Iterable[Made]) -> list[Judged]:
    """Judge every claim from the admitted records.

    Args:
        claims: claims to judge.
        experiments: all tables.
        records: the finished runs.

    Raises:
        SpecError: as `comparisons`.
    """
    results, judged = Results(admit(records).records), []
    for claim in claims:
        wanted, printed = comparisons(claim, experiments), dict[str, list[float]]()
        for comparison in wanted:
            if comparison.full:
                printed.setdefault(comparison.test, []).extend(comparison.printed)
        smallest = smallest_difference(claim, [excess for excesses in printed.values() for excess in excesses])
        undecided = Judged(claim, "open", tuple(_pairs(claim, wanted, results, smallest)), printed, smallest)
        judged.append(undecided._replace(outcome=outcome_of(undecided.readings, num_wanted=len(printed))))
    return judged


def smallest_difference(claim: Claim, printed: Sequence[float]) -> float:
    """Return the smallest difference of interest: a share of the median printed difference over all pairs; 0 for none.

    Args:
        claim: the claim, which sets the share.
        printed: printed differences.
    """
    return max(0.0, claim.least_share * statistics.median(printed)) if claim.least_share and printed else 0.0


def num_needed(num_wanted: int) -> int:
    """Return the number of tests that must be run before a claim is decided.

    Args:
        num_wanted: number of tests in the tables.
    """
    return max(MIN_TESTS, math.ceil(LEAST * num_wanted))


def outcome_of(readings: Sequence[Reading], *, num_wanted: int = 0) -> Outcome:
    """Return the outcome of the tests at full settings together.

    Args:
        readings: readings of the tests that were run.
        num_wanted: tests that the tables have; a `LEAST` share of them must be run, and `MIN_TESTS`.

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


def _pairs(claim: Claim, wanted: Iterable[Comparison], results: Results, smallest: float) -> Iterator[Pair]:
    """Yield every comparison that has runs of one seed; the variance over seeds is pooled over all of them."""
    measured = list[tuple[Comparison, list[int], list[list[Made]], list[Compared]]]()
    for comparison in wanted:
        cells = [cell for first, second, _ in comparison.sides for cell in (first, second)]
        runs = [results.of(cell, whole=True) for cell in cells]
        with_items = [
            {seed for seed, run in of_seed.items() if _items(run, cell) is not None}
            for of_seed, cell in zip(runs, cells, strict=True)
        ]
        # Runs are paired by seed. Seeds with outcomes by item on all sides win.
        if seeds := sorted(set.intersection(*with_items) or set.intersection(*map(set, runs))):
            both = [[of_seed[seed] for seed in seeds] for of_seed in runs]
            compared = [compare(claim, *side, both[2 * k : 2 * k + 2]) for k, side in enumerate(comparison.sides)]
            measured.append((comparison, seeds, both, compared))
    for full in (True, False):
        part = [entry for entry in measured if entry[0].full == full]
        differences = [difference for *_, compared in part for difference in compared]
        # Forget and test scores vary differently, so claims about unlearning do not pool them.
        pools = [[difference] for difference in differences] if claim.unlearning else [differences]
        intervals = iter([excess for pool in pools for excess in with_intervals(pool, claim.metric)])
        for comparison, seeds, runs, compared in part:
            excesses = [next(intervals) for _ in compared]
            readings: set[Reading] = {reading_of(excess, smallest) for excess in excesses}
            first, second, remarks = compared[0].first, compared[0].second, list[str]()
            if claim.unlearning:
                first, second = second, first  # unlearned, re-trained
                tested, raw = compared[1].first.value, compared[1].second.value
                remarks.append(f"test {tested:.4f}, raw {raw:.4f}: {reading_of(excesses[1])}")
            remarks += [line for records in runs for line in _remarks(records)]
            cell = comparison.sides[0][0]
            if claim.most_bytes is not None:
                shares = [_must(measure("p@cg", both[0], both[1], cell)).value for both in zip(*runs, strict=True)]
                remarks.append(f"{', '.join(f'{share:.2f}' for share in shares)} of the bytes until convergence")
                # A method must also save bytes in every seed for the claim to hold.
                fewer = [share <= claim.most_bytes for share in shares]
                readings.add("for" if all(fewer) else "undecided" if any(fewer) else "against")
            remarks += [cell.other_data] if cell.other_data else []
            commands = dict.fromkeys(run.environment.command for records in runs for run in records)
            yield Pair(
                comparison.name, full, first, second, excesses[0], together(readings), tuple(seeds), "; ".join(remarks),
                tuple(commands), comparison.test, comparison.column, None if claim.unlearning else compared[0],
            )  # fmt: skip


def compare(claim: Claim, first: Cell, second: Cell, share: float, runs: Sequence[Sequence[Made]]) -> Compared:
    """Compare two cells by their runs; the average over clients is that of the first row's paper.

    Args:
        claim: metric and tolerance.
        first: cell that must be above or near the second.
        second: the other cell.
        share: share of the second figure that the first must exceed.
        runs: runs of both cells, one for each seed.
    """
    items = [[_items(run, cell) for run in of_cell] for cell, of_cell in zip((first, second), runs, strict=True)]
    # Papers average differently; both sides of a comparison must use the same average.
    second = second._replace(average=first.average)
    figures = [
        [_must(measure(claim.metric, run, None, cell)) for run in of_cell]
        for cell, of_cell in zip((first, second), runs, strict=True)
    ]
    pairs = list(zip(*figures, strict=True))
    by_seed = np.array([above.value - share * below.value for above, below in pairs]) + claim.within
    both = over_seeds(figures[0]), over_seeds(figures[1])
    paired = [(ours, theirs) for ours, theirs in zip(*items, strict=True) if ours is not None and theirs is not None]
    divisions = [data_hash(run) for run in runs[0]]
    if len(paired) == len(by_seed) and divisions == [data_hash(run) for run in runs[1]]:
        # Each division of the data has its own test items; the mean over seeds weighs a division by its number of seeds.
        variance, num_items = 0.0, 0
        for division in dict.fromkeys(divisions):
            of_division = [
                pair for pair, its_division in zip(paired, divisions, strict=True) if its_division == division
            ]
            weight = len(of_division) / len(paired)
            variance += weight**2 * paired_variance(of_division, claim.metric, share, first.average)
            num_items += sum(of_division[0][0].counts)
        number = len(set(divisions))
        unit = f"{num_items:,} test items{f' of {number} divisions' if number > 1 else ''}, paired"
        return Compared(*both, by_seed, variance, unit, num_items)
    # Treat the runs as independent, which gives a wider interval than a paired comparison.
    halves = [math.hypot((above.high - above.low) / 2, share * (below.high - below.low) / 2) for above, below in pairs]
    variance = float(np.mean(np.square(halves))) / critical_value() ** 2
    return Compared(*both, by_seed, variance, "test items, not paired")


def _items(run: Made, cell: Cell) -> TestItems | None:
    """Return the outcomes by test item of the model that a cell shows; unlearned models have none."""
    if isinstance(run, Forgotten):
        return None
    return run.items_shared if cell.shown == "shared" else run.items


def with_intervals(compared: Sequence[Compared], metric: Metric) -> list[Estimate]:
    """Return 95 % intervals of each pair's mean difference over seeds.

    The variance is that over test items, plus that over seeds (pooled over all pairs with the prior) divided by the
    number of seeds.
    Degrees of freedom: Satterthwaite 1946.

    Args:
        compared: pairs whose variance over seeds is pooled.
        metric: selects the prior.
    """
    prior = SEED_DEVIATION.get(metric, OTHER_DEVIATION) ** 2
    freedom = PRIOR_SEEDS + sum(len(pair.by_seed) - 1 for pair in compared)
    squares = sum(float(((pair.by_seed - pair.by_seed.mean()) ** 2).sum()) for pair in compared)
    # Bayesian shrinkage of the variance over seeds: the prior counts as `PRIOR_SEEDS` further seeds.
    pooled = (PRIOR_SEEDS * prior + squares) / freedom
    intervals = []
    for pair in compared:
        value, number = float(pair.by_seed.mean()), len(pair.by_seed)
        of_seeds = pooled / number
        variance = pair.items + of_seeds
        # Satterthwaite: the pooled variance has `freedom` degrees, that over items counts as known.
        half = float(stdtrit(variance**2 * freedom / of_seeds**2, 0.975)) * math.sqrt(variance)
        unit = f"{pair.unit}; {number} seed{'' if number == 1 else 's'}"
        intervals.append(Estimate(value, value - half, value + half, number, unit))
    return intervals


def _must(figure: Estimate | str) -> Estimate:
    if isinstance(figure, str):
        raise SpecError(f"metric: {figure}")
    return figure


def reading_of(excess: Estimate, smallest: float = 0.0) -> Reading:
    """Return for if the whole interval is above 0, against if it is below the smallest difference of interest.

    An interval between 0 and that difference is for the claim, which does not state an amount.

    Args:
        excess: difference with its interval.
        smallest: smallest difference of interest.

    >>> [reading_of(Estimate(0.0, low, high, 9, "x"), 0.02) for low, high in ((0.001, 0.01), (-0.01, 0.01), (-0.01, 0.03))]
    ['for', 'against', 'undecided']
    """
    return "for" if excess.low > 0 else "against" if excess.high < smallest else "undecided"


def together(readings: Collection[Reading]) -> Reading:
    """Combine the parts of a claim: for it if all are, against it if one is.

    Args:
        readings: readings of the parts.
    """
    return "against" if "against" in readings else "for" if set(readings) == {"for"} else "undecided"


def _remarks(records: Sequence[Made]) -> Iterator[str]:
    """Yield reasons for caution about one side's runs: test items that training saw, and unfinished training."""
    runs = [record for record in records if isinstance(record, Record)]
    # A claim about unlearning.
    if not runs:
        return
    task, name = task_of(runs[0].spec), runs[0].spec.algorithm
    unseen = [run.unseen[task.metric] for run in runs]
    if any(run.utility_by_leak["leaked"][task.metric].n for run in runs):
        value = math.fsum(figure.value for figure in unseen) / len(unseen)
        part = task.leaked["new" if all("new" in run.utility_by_leak for run in runs) else "clean"]
        yield f"{name} {value:.4f} on {unseen[0].n:,} {part}"
    if any(run.best_round == run.rounds[-1].round and run.spec.patience for run in runs):
        yield f"{name} was still improving"
