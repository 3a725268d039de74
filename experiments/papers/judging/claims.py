"""Whether the papers' headline claims hold, decided from records by one rule, and the page that says so.

    verdicts = judge_claims(read_claims(), read_experiments(), records, verifications)
    print([(one.claim.claim, one.outcome) for one in verdicts])

A claim says that one row of a table is above another, or near it, in every column. Each such pair of cells tests it; pairs with
the same second cell share its run, and are one test. `claims.yaml` has what the papers claim, and nothing of what came out.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from experiments.papers.document import Metric, Shown
from experiments.papers.judging.admission import admit
from experiments.papers.runner import Results, run_of
from experiments.papers.spec import Cell, Experiment
from experiments.papers.table import Made, measure, over_seeds
from experiments.runs.documents import read_document
from experiments.runs.record import Record, read_if_of
from experiments.tasks.task import task_of
from experiments.unlearning.summary import mean_of
from experiments.unlearning.verification import SCHEMA, Verification
from fkgsec.errors import RunError, SpecError
from fkgsec.estimate import Estimate

CLAIMS_FILE = Path(__file__).with_name("claims.yaml")
MIN_TESTS, LEAST, MOST = 3, 0.25, 0.75
Reading = Literal["for", "against", "undecided"]
Outcome = Literal["holds", "does not hold", "open"]


class Claim(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a paper claims.

    Attributes:
        words: the paper's own. where: in it.
        metric: what the rows are compared by. margin: the share of the second row's that the first may lack to be near it; 0
            asks for more than the second's.
        most_bytes: until convergence, at most, as a share of the second's; None: bytes do not count.
        pairs: of rows, the one that is to be above or near, and the other. why: of the margins.
        unlearning: of a claim on forget and test scores in place of pairs the rows that are unlearned, re-trained and raw.
    """

    claim: str
    paper: str
    where: str
    words: str
    metric: Metric
    tables: tuple[str, ...]
    pairs: tuple[tuple[str, str], ...] = ()
    margin: float = 0.0
    most_bytes: float | None = None
    why: str = ""
    unlearning: tuple[tuple[str, str, str], ...] = ()


class Pair(NamedTuple):
    """One test of a claim.

    Attributes:
        name: of the two. full: whether both are run at the paper's own settings. first, second: their figures.
        excess: first - (1 - margin) second, which is above 0 where the claim holds. remark: what must be known beside.
        test: which one it is part of.
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


class Judged(NamedTuple):
    """A claim, its pairs, how many tests the paper's tables have of it, and how many of these its printed figures are for."""

    claim: Claim
    outcome: Outcome
    pairs: tuple[Pair, ...]
    num_wanted: int
    num_printed_for: int

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
        return msgspec.convert(read_document(path).content, tuple[Claim, ...])
    except msgspec.ValidationError as error:
        raise SpecError(f"{path}: {error}") from error


def read_verifications(places: Iterable[Path]) -> tuple[dict[str, Verification], list[str]]:
    """The verifications of unlearned runs in these JSON files, and in all below these folders, by name; and unreadable ones."""
    found, unreadable = dict[str, Verification](), list[str]()
    for place in places:
        for path in sorted(place.rglob("*.json")) if place.is_dir() else [place]:
            try:
                read = read_if_of(path, SCHEMA, Verification)
            except RunError as error:
                unreadable.append(str(error))
            else:
                found |= {path.stem: read} if read else {}
    return found, unreadable


def judge_claims(
    claims: Iterable[Claim],
    experiments: Sequence[Experiment],
    records: Iterable[Made],
    verifications: Mapping[str, Verification],
) -> list[Judged]:
    """Every claim with its tests and its outcome.

    Args:
        experiments: all files. records: of finished runs. verifications: of unlearned runs, by name.

    Raises:
        SpecError: a claim names a table or row that is not there.
    """
    results = Results(attack=False)
    for record in admit(records).records:
        results.add(record)
    return [_judge(claim, experiments, results, verifications) for claim in claims]


def _judge(
    claim: Claim, experiments: Sequence[Experiment], results: Results, verifications: Mapping[str, Verification]
) -> Judged:
    tables = [one for one in experiments if one.name in claim.tables or one.base in claim.tables]
    if lost := [name for name in claim.tables if name not in {one.name for one in tables}]:
        raise SpecError(f"{claim.claim}: tables: no file {lost[0]!r}")
    if claim.unlearning:
        pairs = [pair for table in tables for pair in _unlearning_pairs(claim, table, results)]
        pairs += _audit_pairs(claim, verifications)
        printed = _printed_unlearning(claim, [table for table in tables if not table.base])
    else:
        pairs = [pair for table in tables for pair in _table_pairs(claim, table, results)]
        printed = _printed(claim, [table for table in tables if not table.base])
    outcome = outcome_of(readings_of([pair for pair in pairs if pair.full]), num_wanted=len(printed))
    return Judged(claim, outcome, tuple(pairs), len(printed), sum(printed.values()))


def _printed(claim: Claim, tables: Iterable[Experiment]) -> dict[str, bool]:
    """By test whether all of its pairs are for the claim in the figures that the paper prints."""
    found = dict[str, bool]()
    for table in tables:
        for cells in _cells(claim, table):
            first, second = (cell.figures[claim.metric] or 0.0 for cell in cells)
            test = _test_of(table, cells[1])
            found[test] = found.get(test, True) and first > (1 - claim.margin) * second
    return found


def _test_of(table: Experiment, second: Cell) -> str:
    return f"{table.name}: {second.name}"


def readings_of(pairs: Iterable[Pair]) -> list[Reading]:
    """One reading for each test: that of its pairs where they agree."""
    by_test = dict[str, set[Reading]]()
    for pair in pairs:
        by_test.setdefault(pair.test, set()).add(pair.reading)
    return [next(iter(found)) if len(found) == 1 else "undecided" for found in by_test.values()]


def outcome_of(readings: Sequence[Reading], *, num_wanted: int = 0) -> Outcome:
    """What the tests at full settings say together.

    Args:
        num_wanted: how many tests there would be; a `LEAST` share of them must be run, and `MIN_TESTS`.

    >>> outcome_of(["for", "for"]), outcome_of(["for", "for", "for", "undecided"]), outcome_of(["against"] * 3)
    ('open', 'holds', 'does not hold')
    >>> outcome_of(["for"] * 3, num_wanted=60), outcome_of(["for"] * 15, num_wanted=60)
    ('open', 'holds')
    """
    if len(readings) >= max(MIN_TESTS, LEAST * num_wanted):
        for reading, outcome in (("for", "holds"), ("against", "does not hold")):
            if readings.count(reading) >= MOST * len(readings):
                return outcome  # type: ignore[return-value]
    return "open"


def _cells(claim: Claim, table: Experiment) -> Iterator[tuple[Cell, Cell]]:
    """The pairs of cells that a claim is of, where the paper prints a figure for both.

    Raises:
        SpecError: a claim on rows that the table has not.
    """
    lost = {row for pair in claim.pairs for row in pair} - {cell.row for cell in table.cells}
    if lost and not table.base:
        raise SpecError(f"{claim.claim}: pairs: no row {min(lost)!r} in {table.name}")
    cells = {(cell.row, cell.column): cell for cell in table.cells if cell.figures.get(claim.metric) is not None}
    columns = list(dict.fromkeys(cell.column for cell in table.cells))
    for first, second in claim.pairs:
        for column in columns:
            if (first, column) in cells and (second, column) in cells:
                yield cells[first, column], cells[second, column]


def _table_pairs(claim: Claim, table: Experiment, results: Results) -> Iterator[Pair]:
    for cells in _cells(claim, table):
        runs = [{seed: run_of(one) for seed, one in results.of(cell, whole=True).items()} for cell in cells]
        seeds = sorted(set(runs[0]) & set(runs[1]))
        if seeds:
            name = f"{table.name}: {cells[0].row}, {cells[1].row}, {cells[0].column}"
            test = _test_of(table, cells[1])
            yield _pair(claim, name, test, not table.base, runs, seeds, [cell.shown for cell in cells])


def _pair(
    claim: Claim,
    name: str,
    test: str,
    full: bool,
    runs: Sequence[Mapping[int, Record]],
    seeds: Sequence[int],
    shown: Sequence[Shown],
) -> Pair:
    figures = [
        [_must(measure(claim.metric, found[seed], None, own)) for seed in seeds]
        for found, own in zip(runs, shown, strict=True)
    ]
    excess = over_seeds([_excess(first, second, claim.margin) for first, second in zip(*figures, strict=True)])
    remarks = [line for found in runs for line in _remarks([found[seed] for seed in seeds])]
    reading = reading_of(excess)
    if claim.most_bytes is not None:
        shares = [measure("p@cg", runs[0][seed], runs[1][seed]) for seed in seeds]
        sent = over_seeds([_must(share) for share in shares])
        remarks.append(f"{sent.value:.2f} of the bytes until convergence")
        fewer = Estimate(
            *(claim.most_bytes - one for one in (sent.value, sent.high, sent.low)), n=sent.n, method="difference"
        )
        reading = _together({reading, reading_of(fewer, at_zero="for")})
    commands = dict.fromkeys(found[seed].environment.command for found in runs for seed in seeds)
    first, second = map(over_seeds, figures)
    return Pair(name, full, first, second, excess, reading, tuple(seeds), "; ".join(remarks), tuple(commands), test)


def _must(figure: Estimate | str) -> Estimate:
    if isinstance(figure, str):
        raise SpecError(f"metric: {figure}")
    return figure


def _excess(first: Estimate, second: Estimate, margin: float) -> Estimate:
    """first - (1 - margin) second of one seed; half-widths add as those of independent figures.

    The two are of the same test items, so that the interval is wider than a paired one; records keep no ranks by item.
    """
    share = 1 - margin
    value = first.value - share * second.value
    below = math.hypot(first.value - first.low, share * (second.high - second.value))
    above = math.hypot(first.high - first.value, share * (second.value - second.low))
    return Estimate(value, value - below, value + above, min(first.n, second.n), "difference")


def reading_of(excess: Estimate, *, at_zero: Reading = "undecided") -> Reading:
    """Which side of 0 the whole interval is on. Args: at_zero: of one that begins there."""
    return at_zero if excess.low == 0 else "for" if excess.low > 0 else "against" if excess.high < 0 else "undecided"


def _together(readings: Collection[Reading]) -> Reading:
    """Of a claim with two parts: for it where both are, against it where one is."""
    return "against" if "against" in readings else "for" if set(readings) == {"for"} else "undecided"


def _remarks(records: Sequence[Record]) -> Iterator[str]:
    """Of one side's seeds: what is reached on test items that do not leak from train, and whether training had ended."""
    task, name = task_of(records[0].spec), records[0].spec.algorithm
    clean = [record.unseen[task.metric] for record in records]
    if any(record.utility_by_leak["leaked"][task.metric].n for record in records):
        value = math.fsum(one.value for one in clean) / len(clean)
        yield f"{name} {value:.4f} on {clean[0].n:,} test {task.items} outside training"
    if any(record.best_round == record.rounds[-1].round and record.spec.patience for record in records):
        yield f"{name} was still improving"


LEVELS = ("local", "global")
Parts = dict[tuple[str, str], Cell]
"""Cells of one model by role and triples: ("raw", "test")."""


def _unlearning_cells(claim: Claim, table: Experiment) -> Iterator[tuple[str, str, Parts]]:
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


def _unlearning_pairs(claim: Claim, table: Experiment, results: Results) -> Iterator[Pair]:
    """Of each model, local and global: re-trained less unlearned on forget triples, and what is kept of test triples.

    Both are of one raw run, and one test.
    """
    for row, level, cells in _unlearning_cells(claim, table):
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
        lower = over_seeds([_excess(*pair, 0.0) for pair in zip(retrained, unlearned, strict=True)])
        kept = over_seeds([_excess(*pair, claim.margin) for pair in zip(tested, raw, strict=True)])
        remark = f"test {over_seeds(tested).value:.4f}, raw {over_seeds(raw).value:.4f}: {reading_of(kept)}"
        commands = dict.fromkeys(one[seed].environment.command for one in found.values() for seed in seeds)
        yield Pair(
            f"{table.name}: {row} ({level})", not table.base, over_seeds(unlearned), over_seeds(retrained), lower,
            _together({reading_of(lower), reading_of(kept)}), tuple(seeds), remark, tuple(commands),
            f"{table.name}: {row}",
        )  # fmt: skip


def _printed_unlearning(claim: Claim, tables: Iterable[Experiment]) -> dict[str, bool]:
    """As `_printed`, of tables of unlearning."""
    found = dict[str, bool]()
    for table in tables:
        for row, _, cells in _unlearning_cells(claim, table):
            figures = {key: cell.figures.get(claim.metric) or 0.0 for key, cell in cells.items()}
            lower = figures["unlearned", "forget"] < figures["retrained", "forget"]
            kept = figures["unlearned", "test"] > (1 - claim.margin) * figures["raw", "test"]
            test = f"{table.name}: {row}"
            found[test] = found.get(test, True) and lower and kept
    return found


def _audit_pairs(claim: Claim, verifications: Mapping[str, Verification]) -> list[Pair]:
    """The same of each audit with FedLU's method, at whatever settings: audits stand beside, and decide nothing."""
    pairs = []
    for name, made in verifications.items():
        options = made.unlearning.options
        if options.method != "fedlu" or not (options.hard and options.soft) or made.reference is None:
            continue  # an ablation is no test of the method
        for model in LEVELS:
            means = {}
            for triples in ("forget", "test"):
                rows = [
                    row.figures
                    for row in made.forgetting.quality
                    if row.asked and (row.model, row.triples) == (model, triples)
                ]
                for role in ("raw", "retrained", "unlearned"):
                    if rows and all(role in one for one in rows):
                        means[triples, role] = mean_of([one[role][claim.metric] for one in rows])
            if len(means) < 6:
                continue
            lower = _excess(means["forget", "retrained"], means["forget", "unlearned"], 0.0)
            kept = _excess(means["test", "unlearned"], means["test", "raw"], claim.margin)
            reading = _together({reading_of(lower), reading_of(kept)})
            remark = (
                f"test {means['test', 'unlearned'].value:.4f}, raw {means['test', 'raw'].value:.4f}: {reading_of(kept)}"
            )
            commands = (made.unlearning.environment.command, made.environment.command)
            pairs.append(
                Pair(
                    f"{name} ({model}, {options.epochs} + {options.decay_epochs} epochs)", False, means["forget", "unlearned"],
                    means["forget", "retrained"], lower, reading, (options.seed,), remark, commands, name,
                )
            )  # fmt: skip
    return pairs
