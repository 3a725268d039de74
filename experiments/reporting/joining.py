"""`fkgsec worth`: what joining gains and what it leaks, for each defense, over several trainings.

    worths = weigh(find_records([Path("runs/worth")]).records.values())
    print_sheets(console, [joining_sheet(worths)])
    Path("worth.png").write_bytes(saved(joining_picture(worths)))

A point is a configuration: an algorithm under a defense. Training alone is one of them, with no gain and no leak.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from matplotlib.figure import Figure as Picture

from fkgsec.attacks.figure import NO_EVIDENCE, NOT_APPLICABLE
from fkgsec.attacks.questions import QUESTIONS
from fkgsec.attacks.view import ALL
from fkgsec.errors import RunError
from fkgsec.estimate import Estimate
from fkgsec.experiments.reporting.pictures import draw_point, legend
from fkgsec.experiments.reporting.sheets import Column, Sheet
from fkgsec.experiments.reporting.verdict import verdict_over
from fkgsec.experiments.reporting.worth import gains_over
from fkgsec.experiments.runs.baseline import alone_among, trains_alone
from fkgsec.experiments.runs.record import Record

ALONE = "alone"


class Worth(NamedTuple):
    """A configuration's gain over training alone, and its leak, over several trainings.

    Attributes:
        gain: in the task's metric, of all clients. smallest: training triples (or graphs) of the smallest client that gains.
        leaks: by question the excess of the strongest figure over its baseline. num_seeds: trainings.
        dominated_by: a configuration that gains at least as much and leaks at most as much in every question; None without one.
    """

    name: str
    gain: Estimate
    smallest: int | None
    leaks: dict[str, Estimate]
    num_seeds: int
    dominated_by: str | None = None


def weigh(records: Iterable[Record]) -> list[Worth]:
    """Set gains against leaks for each configuration of attacked runs, the one that gains most first; training alone is last.

    Raises:
        RunError: runs on different data, two runs of one configuration and seed, no run of the same clients alone with the same
            settings, or a run that was not attacked.
    """
    every = list(records)
    # Gains compare only on the same test items.
    if len({record.data.hash for record in every}) > 1:
        raise RunError("worth: the runs are on different data; give those of one data set")
    by_case: dict[str, dict[int, Record]] = defaultdict(dict)
    alone = [record for record in every if trains_alone(record.spec)]
    for record in every:
        if trains_alone(record.spec):
            continue
        if record.seed in by_case[_name(record)]:
            raise RunError(f"worth: two runs of {_name(record)} with seed {record.seed}; give one of each")
        by_case[_name(record)][record.seed] = record
    worths = []
    for name, runs in by_case.items():
        pairs = []
        for seed, record in runs.items():
            if not record.figures:
                raise RunError(f"worth: {name} with seed {seed} was not attacked; fkgsec attack --run RUN attacks it")
            # Each training is compared with the same clients alone, under the same seed.
            baseline = alone_among(record, alone)
            if baseline is None:
                raise RunError(
                    f"worth: no run of the clients alone with seed {seed} and the settings of {name}; add "
                    "--case single to fkgsec compare"
                )
            pairs.append((record, baseline))
        num_clients = max(1, len(pairs[0][0].data.clients))
        # The intervals are corrected for all clients of all configurations, among which the smallest is sought.
        each = gains_over(pairs, num_clients * len(by_case))
        sizes = {client: sizes["train"] for client, sizes in pairs[0][0].data.clients.items()}
        # A client gains if the whole interval of its gain lies above 0.
        gaining = [sizes[client] for client, gain in each.items() if client != ALL and gain.low > 0]
        # An attack without evidence of a leak counts as no leak, and so does an attack that is not applicable.
        leaks = {
            answer.question: _nothing(answer.figure.estimate.n)
            if answer.label in (NO_EVIDENCE, NOT_APPLICABLE)
            else answer.figure.excess()
            for answer in verdict_over(list(runs.values())).answers
            if answer.figure.reason is None
        }
        worths.append(Worth(name, gains_over(pairs)[ALL], min(gaining, default=None), leaks, len(runs)))
    if not worths:
        raise RunError("worth: no run of a federation; fkgsec compare trains and attacks each case")
    num_seeds = len({record.seed for record in alone})
    # Training alone is the origin: no gain and no leak.
    worths.append(Worth(ALONE, _nothing(worths[0].gain.n), None, {}, num_seeds))
    return [
        worth._replace(dominated_by=next((other.name for other in worths if _dominates(other, worth)), None))
        for worth in sorted(worths, key=lambda worth: -worth.gain.value)
    ]


def _name(record: Record) -> str:
    return "/".join(filter(None, (record.spec.algorithm, record.spec.defense)))


def _nothing(count: int) -> Estimate:
    return Estimate(0.0, 0.0, 0.0, count, "exact")


def _dominates(other: Worth, worth: Worth) -> bool:
    """True if another configuration is as good in every respect, and better in one, by the figures themselves."""
    questions = {*other.leaks, *worth.leaks}
    # A question without a figure counts as no leak.
    leaks = [
        tuple(row.leaks[question].value if question in row.leaks else 0.0 for row in (other, worth))
        for question in questions
    ]
    # Pareto dominance: no worse in any respect, and better in at least one.
    no_worse = other.gain.value >= worth.gain.value and all(theirs <= ours for theirs, ours in leaks)
    return no_worse and (other.gain.value > worth.gain.value or any(theirs < ours for theirs, ours in leaks))


def joining_sheet(worths: Sequence[Worth]) -> Sheet:
    """Return gain, leaks and dominance of each configuration."""
    questions = [name for name in QUESTIONS if any(name in worth.leaks for worth in worths)]
    columns = (
        Column("configuration"), Column("gain", "figure"), Column("smallest", "count"),
        *(Column(question, "value") for question in questions), Column("beaten by"),
    )  # fmt: skip
    numbers = {worth.name: f"{number}" for number, worth in enumerate(worths, start=1)}
    rows = tuple(
        (
            f"{numbers[worth.name]} {worth.name}",
            worth.gain,
            worth.smallest,
            *(worth.leaks.get(question) for question in questions),
            numbers.get(worth.dominated_by or "", ""),
        )
        for worth in worths
    )
    seeds = " to ".join(str(number) for number in sorted({worth.num_seeds for worth in worths}))
    over = (
        "in one training; 95% interval over test items only"
        if seeds == "1"
        else f"mean of {seeds} trainings; 95% interval over test items and trainings"
    )
    notes = (
        f"gain: utility minus that of the clients alone, {over}.",
        "smallest: training items of the smallest client that gains, corrected for all clients and rows; empty: no gain shown.",
        f"{', '.join(questions)}: excess of the strongest attack over its baseline; .000: no leak shown.",
        "psu lowers the baseline, too: an excess with psu can be higher although the attack finds less (see fkgsec compare).",
        "beaten by: a row that gains at least as much and leaks no more in every column; empty: none.",
    )
    return Sheet("What joining gains and what it leaks", columns, rows, notes=notes)


def joining_picture(worths: Sequence[Worth]) -> Picture:
    """Draw gain over leak with both intervals, a panel for each question."""
    questions = [name for name in QUESTIONS if any(name in worth.leaks for worth in worths)]
    figure = Picture(figsize=(1.2 + 4.2 * len(questions), 4.8), layout="constrained")
    for axes, question in zip(
        figure.subplots(1, len(questions), sharey=True, squeeze=False)[0], questions, strict=True
    ):
        for number, worth in enumerate(worths):
            leak = worth.leaks.get(question, _nothing(1))
            draw_point(axes, leak, worth.gain, worth.name, number)
        # The dotted line is training alone: above it, joining pays.
        axes.axhline(0, color="grey", lw=0.8, ls=":")
        axes.set_xlabel(f"{question}: excess of the attack")
        axes.grid(alpha=0.25)
    figure.axes[0].set_ylabel("gain over training alone")
    legend(figure)
    figure.suptitle("What joining gains, and what it leaks (bars: 95% intervals)", fontsize=11)
    return figure
