"""Whether the papers' headline claims hold, decided from records by one rule, and the page that says so.

    verdicts = judge_claims(read_claims(), read_experiments(), records, verifications)
    print("\\n".join(page_lines(verdicts)))

A claim says that one row of a table is above another, or near it, in every column: each such pair of cells is one test of it.
`claims.yaml` has what the papers claim, and nothing of what came out.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from experiments.papers.document import Metric, Shown
from experiments.papers.runner import Results, run_key
from experiments.papers.spec import Cell, Experiment
from experiments.papers.table import STYLES, measure, over_seeds
from experiments.reporting.sheets import Column, Sheet, markdown_lines
from experiments.runs.documents import read_document
from experiments.runs.record import Record, read_if_of
from experiments.runs.spec import RunSpec, make_spec
from experiments.tasks.task import task_of
from experiments.unlearning.summary import mean_of
from experiments.unlearning.verification import SCHEMA, Verification
from fkgsec.errors import RunError, SpecError
from fkgsec.estimate import Estimate

CLAIMS_FILE = Path(__file__).with_name("claims.yaml")
MIN_PAIRS, MOST = 3, 0.75
PAPERS_EPOCHS = (10, 10)  # of interference (fedlu.txt 5.3) and, as its code has it, of decay
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
        unlearning: a claim on forget and test scores, whose pairs are audits of unlearned runs.
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
    unlearning: bool = False


class Pair(NamedTuple):
    """One test of a claim.

    Attributes:
        name: of the two. full: whether both are run at the paper's own settings. first, second: their figures.
        excess: first - (1 - margin) second, which is above 0 where the claim holds. remark: what must be known beside.
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


class Judged(NamedTuple):
    """A claim, its tests, how many there would be at the paper's own settings, and in how many the paper's figures are for it."""

    claim: Claim
    outcome: Outcome
    pairs: tuple[Pair, ...]
    num_wanted: int
    num_printed_for: int

    @property
    def full(self) -> list[Pair]:
        """The tests that count."""
        return [pair for pair in self.pairs if pair.full]


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
    records: Iterable[Record],
    verifications: Mapping[str, Verification],
) -> list[Judged]:
    """Every claim with its tests and its outcome.

    Args:
        experiments: all files. records: of finished runs. verifications: of unlearned runs, by name.

    Raises:
        SpecError: a claim names a table or row that is not there.
    """
    results = Results(attack=False)
    for record in records:
        results.add(record)
    return [_judge(claim, experiments, results, verifications) for claim in claims]


def _judge(
    claim: Claim, experiments: Sequence[Experiment], results: Results, verifications: Mapping[str, Verification]
) -> Judged:
    tables = [one for one in experiments if one.name in claim.tables or one.base in claim.tables]
    if lost := [name for name in claim.tables if name not in {one.name for one in tables}]:
        raise SpecError(f"{claim.claim}: tables: no file {lost[0]!r}")
    if claim.unlearning:
        cells = [cell for table in tables if not table.base for cell in table.cells]
        own = {run_key(spec, attack=False) for cell in cells for spec in cell.candidates}
        pairs, printed = _forgetting_pairs(claim, verifications, own), []
    else:
        pairs = [pair for table in tables for pair in _table_pairs(claim, table, results)]
        wanted = [cells for table in tables if not table.base for cells in _cells(claim, table)]
        printed = [[cell.figures[claim.metric] or 0.0 for cell in cells] for cells in wanted]
    outcome = outcome_of([pair.reading for pair in pairs if pair.full])
    return Judged(
        claim, outcome, tuple(pairs), len(printed),
        sum(first > (1 - claim.margin) * second for first, second in printed),
    )  # fmt: skip


def outcome_of(readings: Sequence[Reading]) -> Outcome:
    """What the tests at full settings say together.

    >>> outcome_of(["for", "for"]), outcome_of(["for", "for", "for", "undecided"]), outcome_of(["against"] * 3)
    ('open', 'holds', 'does not hold')
    """
    if len(readings) >= MIN_PAIRS:
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
        runs = [results.of(cell) for cell in cells]
        seeds = sorted(set(runs[0]) & set(runs[1]))
        if seeds:
            name = f"{table.name}: {cells[0].row}, {cells[1].row}, {cells[0].column}"
            yield _pair(claim, name, not table.base, runs, seeds, [cell.shown for cell in cells])


def _pair(
    claim: Claim,
    name: str,
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
        reading = reading if sent.high <= claim.most_bytes else "against"
    commands = dict.fromkeys(found[seed].environment.command for found in runs for seed in seeds)
    first, second = map(over_seeds, figures)
    return Pair(name, full, first, second, excess, reading, tuple(seeds), "; ".join(remarks), tuple(commands))


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


def reading_of(excess: Estimate) -> Reading:
    """Which side of 0 the whole interval is on."""
    return "for" if excess.low > 0 else "against" if excess.high < 0 else "undecided"


def _remarks(records: Sequence[Record]) -> Iterator[str]:
    """Of one side's seeds: what is reached on test items that do not leak from train, and whether training had ended."""
    task, name = task_of(records[0].spec), records[0].spec.algorithm
    clean = [record.utility_by_leak["clean"][task.metric] for record in records]
    if any(record.utility_by_leak["leaked"][task.metric].n for record in records):
        value = math.fsum(one.value for one in clean) / len(clean)
        yield f"{name} {value:.4f} on {clean[0].n:,} clean test {task.items}"
    if any(record.best_round == record.rounds[-1].round and record.spec.patience for record in records):
        yield f"{name} was still improving"


def _forgetting_pairs(claim: Claim, verifications: Mapping[str, Verification], own: Collection[RunSpec]) -> list[Pair]:
    """Of each audit with FedLU's method: re-trained less unlearned on forget triples, and what is kept of test triples.

    Args:
        own: runs at the paper's own settings (`run_key`), which count as full with its epochs.
    """
    pairs = []
    for name, made in verifications.items():
        options, run = made.unlearning.options, made.unlearning.run
        if options.method != "fedlu" or not (options.hard and options.soft) or made.reference is None:
            continue  # an ablation is no test of the method
        for model in ("local", "global"):
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
            readings = {reading_of(lower), reading_of(kept)}
            reading: Reading = "against" if "against" in readings else "for" if readings == {"for"} else "undecided"
            remark = (
                f"test {means['test', 'unlearned'].value:.4f}, raw {means['test', 'raw'].value:.4f}: {reading_of(kept)}"
            )
            full = run is not None and run_key(make_spec(None, run), attack=False) in own
            full = full and (options.epochs, options.decay_epochs) == PAPERS_EPOCHS
            commands = (made.unlearning.environment.command, made.environment.command)
            pairs.append(
                Pair(
                    f"{name} ({model}, {options.epochs} + {options.decay_epochs} epochs)", full, means["forget", "unlearned"],
                    means["forget", "retrained"], lower, reading, (options.seed,), remark, commands,
                )
            )  # fmt: skip
    return pairs


# The page.


def rule_lines() -> list[str]:
    """How claims are decided, in words."""
    return [
        "A claim is tested on pairs of cells of the paper's tables: one row against another, in one column. A pair is **for**",
        "it where the whole 95 % interval of the difference lies on the claim's side, **against** it where it lies on the other,",
        "else undecided. Of a row that is to be near another, the difference is to that row's figure less the margin. Intervals",
        "are over seeds, by the differences of each seed, where a pair has several; else over the test items of the one run,",
        "both figures taken as independent, which is wider than a paired interval.",
        "",
        f"**Only pairs at the paper's own settings decide.** A claim *holds* where {MIN_PAIRS} or more of them are run and",
        f"{MOST:.0%} are for it, it *does not hold* where as many are against it; else it is *open*. Pairs at reduced settings",
        "(smaller dimension, fewer rounds, fewer data) stand below the others and decide nothing: small models that were trained",
        "less may order methods otherwise. The last column applies the same comparison to the figures that the paper prints,",
        "which have no intervals there.",
    ]


def page_lines(judged: Sequence[Judged]) -> list[str]:
    """The page in Markdown."""
    command = "fkgsec experiment claims experiments/results --markdown docs/reproduction.md --overwrite"
    lines = ["# Do the papers' claims hold?", "", f"Written by `{command}`, from records alone.", "", *rule_lines(), ""]
    lines += markdown_lines(summary_sheet(judged))
    for one in judged:
        lines += [
            "",
            f"## {one.claim.claim}: {one.outcome}",
            "",
            f'{one.claim.paper}, {one.claim.where}: "{one.claim.words}".',
            "",
        ]
        lines += [_test_line(one), ""]
        for title, pairs in (
            ("At the paper's own settings", one.full),
            ("Reduced", [p for p in one.pairs if not p.full]),
        ):
            if pairs:
                lines += [f"{title}:", "", *markdown_lines(pairs_sheet(one.claim, pairs)), ""]
        lines += _command_lines(one)
    return lines


def summary_sheet(judged: Sequence[Judged]) -> Sheet:
    """A line for each claim."""
    rows = []
    for one in judged:
        counts = [str(sum(pair.reading == reading for pair in one.full)) for reading in ("for", "against", "undecided")]
        run, printed = str(len(one.full)), ""
        if one.num_wanted:
            run, printed = f"{run} of {one.num_wanted}", f"{one.num_printed_for} of {one.num_wanted}"
        rows.append((one.claim.claim, one.claim.paper, one.outcome, run, *counts, printed))
    heads = (
        "claim", "paper", "outcome", "pairs run at full settings", "for", "against", "undecided", "for it in the paper's figures",
    )  # fmt: skip
    return Sheet("Claims", tuple(map(Column, heads)), tuple(rows))


def _test_line(one: Judged) -> str:
    claim = one.claim
    what = STYLES[claim.metric].title
    if claim.unlearning:
        line = (
            f"For it: {what} of forget triples below re-training's, and that of test triples above {1 - claim.margin:.0%} of the "
            "raw run's; both means over clients, local and global models apart."
        )
    elif claim.margin:
        line = f"For it: {what} above {1 - claim.margin:.0%} of the second row's."
    else:
        line = f"For it: {what} above the second row's."
    if claim.most_bytes is not None:
        line += f" And at most {claim.most_bytes:.2f} of its bytes until convergence."
    return line + (f" ({claim.why}.)" if claim.why else "")


def pairs_sheet(claim: Claim, pairs: Sequence[Pair]) -> Sheet:
    """A line for each pair."""
    rows = [
        (
            pair.name,
            *map(str, (pair.first, pair.second, pair.excess)),
            ", ".join(map(str, pair.seeds)),
            pair.reading,
            pair.remark,
        )
        for pair in pairs
    ]
    first, second = ("unlearned", "re-trained") if claim.unlearning else ("the first", "the second")
    heads = ("pair", first, second, "difference", "seeds", "reading", "beside")
    return Sheet(claim.claim, tuple(map(Column, heads)), tuple(rows))


def _command_lines(one: Judged) -> list[str]:
    lines = []
    if commands := list(dict.fromkeys(command for pair in one.pairs for command in pair.commands)):
        lines += ["These records are of", "", "```", *commands, "```"]
    if len(one.full) < one.num_wanted:
        rows = dict.fromkeys(row for pair in one.claim.pairs for row in pair)
        words = ", ".join(f"{table} {row}" for table in one.claim.tables for row in rows)
        lines += ["", "What is missing is trained, the cheapest run first, by", "", "```"]
        lines += [f"fkgsec experiment run --all --hours 24 --nice --only '{words}'", "```"]
    return lines
