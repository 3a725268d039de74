"""The verdict on attacked runs. Terminal, comparisons, HTML pages and lists of runs print this one.

found = verdict_of(record.figures)
found.label, found.sentence                     # "leaks", "leaks. 2 of 3 figures beat their baseline ..."
verdict_lines(found, SURE)                      # and for each metric the strongest adversary
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import pandas as pd

from fkgsec.attacks.figure import BELOW, EXPOSED, GIVEN, LEAKS, OPEN, STATUSES, UNATTACKED, Figure
from fkgsec.attacks.registry import ATTACKS
from fkgsec.attacks.view import ALL
from fkgsec.estimate import Estimate
from fkgsec.experiments.reporting.frames import figure_frame, leading_by_place, leading_figures
from fkgsec.experiments.reporting.sheets import interval, rows_of, short
from fkgsec.experiments.runs.intervals import over_seeds
from fkgsec.experiments.runs.record import Record
from fkgsec.experiments.tasks.task import task_of

RULE = (
    "A figure leaks where its whole 95% interval beats the baseline: the same adversary without access to the messages of the "
    "rounds. It is exposed where reading what the protocol shows gives as much, whatever was trained."
)
SAYS_NOT = (
    "Intervals are of this training; other seeds differ more. The verdict covers only the adversaries that were run. A figure "
    "below its baseline does not prove that nothing leaks."
)
MOST_LINES = 6
ENDS = {"baseline": "base", "attainable": "max"}
BASE = (
    "base: the baseline, the same adversary without access to the messages of the rounds. max: the upper bound of the figure. "
    "EXPOSED: the protocol shows it to this adversary, whatever was trained."
)
SURE = "[low, high]: 95 % interval of this training. Use --seeds 3 to see how much trainings differ."
SURE_TABLES = "[low, high]: 95 % interval of these tables. Tables of other trainings differ."
SURE_OVER = "[low, high]: 95 % interval over items and trainings. base, max: of the training where they are worst."


class Verdict(NamedTuple):
    """Verdict on a run, several trainings or audited tables.

    Attributes:
        label: the verdict in a word or two. brief: how many figures leak. sentence: label, counts and their meaning.
        rule: how a figure is compared with its baseline.
        figures: rows of `figure_frame` that the verdict rests on, the worst first.
    """

    label: str
    brief: str
    sentence: str
    rule: str
    figures: pd.DataFrame

    @property
    def measured(self) -> pd.DataFrame:
        """The figures that could be attacked."""
        return self.figures.loc[self.figures["status"] != UNATTACKED]


def verdict(figures: pd.DataFrame) -> Verdict:
    """Judge the rows of `figure_frame` by their status."""
    order = [STATUSES.index(status) for status in figures["status"]]
    added = -figures["advantage"].fillna(figures["value"]).fillna(0.0)
    ranked = figures.assign(order=order, added=added).sort_values(["order", "added"], kind="stable")
    ranked = ranked.drop(columns=["order", "added"])
    counts = {status: order.count(number) for number, status in enumerate(STATUSES)}
    attacked = len(figures) - counts[UNATTACKED]
    leaking, exposed = counts[LEAKS], counts[EXPOSED]
    if not len(figures):
        return Verdict("none", "not attacked", "none. No attack was run. Use fkgsec attack --run RUN.", RULE, ranked)
    if not attacked:
        why = "nothing to attack: the adversaries have nothing to work on (reasons below)."
        return Verdict("nothing to attack", "nothing to attack", why, RULE, ranked)
    label = "leaks" if leaking else "exposed" if exposed else "no leak is shown"
    brief = ", ".join(f"{status} in {counts[status]} of {attacked}" for status in (LEAKS, EXPOSED) if counts[status])
    beat = "beats its baseline" if leaking == 1 else "beat their baseline"
    sentences = (
        (True, f"{label}."),
        (leaking or not exposed, f"{leaking} of {attacked} figures {beat} by inference (95 % CI excludes it)."),
        (
            exposed,
            f"{exposed} of {attacked} {_are(exposed)} exposed: the protocol shows as much, whatever was trained.",
        ),
        (counts[OPEN], f"{counts[OPEN]} {_are(counts[OPEN])} inconclusive (95 % CI includes the baseline)."),
        (counts[BELOW], f"{counts[BELOW]} {_are(counts[BELOW])} below the baseline: guessing is the better attack."),
        (counts[GIVEN], f"{counts[GIVEN]} {_are(counts[GIVEN])} not applicable: the baseline is at the upper bound."),
        (counts[UNATTACKED], f"{counts[UNATTACKED]} not attacked (reasons below)."),
    )
    sentence = " ".join(text for applies, text in sentences if applies)
    return Verdict(label, brief or f"no leak shown in {attacked}", sentence, RULE, ranked)


def _are(number: int) -> str:
    return "is" if number == 1 else "are"


def verdict_of(listed: Sequence[Figure]) -> Verdict:
    """Judge the leading figures of what was attacked."""
    return verdict(figure_frame({"": listed}, leading_figures))


def verdict_over(records: Sequence[Record]) -> Verdict:
    """Judge several trainings together: intervals cover items and trainings, and the worst baseline counts.

    A figure that some training does not have counts as not attacked.
    """
    by_training = [leading_by_place(record.figures) for record in records]
    places = dict.fromkeys(place for found in by_training for place in found)
    combined = [_over([found.get(place) for found in by_training]) for place in places]
    return verdict(figure_frame({"": leading_figures(combined)}))


def _over(cells: Sequence[Figure | None]) -> Figure:
    """Combine one figure of several trainings."""
    figures = [figure for figure in cells if figure is not None]
    if unmeasured := [figure for figure in figures if figure.reason]:
        return unmeasured[0]
    if len(figures) < len(cells):
        return msgspec.structs.replace(figures[0], reason="not measured in every training")
    worst = min if figures[0].less_is_worse else max
    bases = [figure.baseline for figure in figures if figure.baseline is not None]
    bounds = [figure.attainable for figure in figures if figure.attainable is not None]
    exposed = [figure.exposed for figure in figures if figure.exposed is not None]
    return msgspec.structs.replace(
        figures[0],
        estimate=over_seeds([figure.estimate for figure in figures]),
        baseline=worst(bases, key=lambda base: base.value) if bases else None,
        attainable=worst(bounds) if len(bounds) == len(figures) else None,
        exposed=worst(exposed, key=lambda shown: shown.value) if len(exposed) == len(figures) else None,
        victim=" or ".join(dict.fromkeys(figure.victim for figure in figures)),
        by=" or ".join(dict.fromkeys(figure.by for figure in figures if figure.by)) or None,
    )


def verdict_lines(found: Verdict, sure: str, title: str = "Verdict") -> list[str]:
    """Return the verdict, for each metric the adversary that gets most, and how to read it."""
    worst = found.measured.drop_duplicates(["attack", "metric"])
    lines = [f"{title}: {found.sentence}"]
    for row in rows_of(worst.head(MOST_LINES)):
        metrics = ATTACKS[row["attack"]].metrics if row["attack"] in ATTACKS else {}
        lines.append(f"  {row['status']:<11} {figure_text(row)}: {metrics.get(row['metric'], row['label'])}")
        lines.append(f"              ({question_text(row)})")
    if more := len(found.measured) - len(worst.head(MOST_LINES)):
        lines.append(f"  and {more} more in the tables below, of weaker adversaries or other questions")
    return [*lines, *([BASE, sure] if len(worst) else [])]


def figure_text(row: Mapping[str, Any]) -> str:
    """Write `.906 [.872, .941], base .380, max 1.000`."""
    ends = [f", {head} {short(row[name])}" for name, head in ENDS.items() if row[name] is not None]
    return interval(Estimate(row["value"], row["low"], row["high"], 1, "")) + "".join(ends)


def question_text(row: Mapping[str, Any]) -> str:
    """Write `reconstruction.trr under identifiers, leak 0.5; all victims`."""
    whose = "all victims" if row["victim"] == ALL else f"worst victim: {row['victim']}"
    by = f", by {row['by']}" if row["by"] not in (None, "attack") else ""
    return f"{row['attack']}.{row['label']} under {row['place']}{by}; {whose}"


def comparison_lines(records: Mapping[str, Record]) -> list[str]:
    """Return for each case how much leaks, its worst figure, and what it costs in utility."""
    lines = ["Verdict by case, with the figure that adds most to its base:"]
    for case, record in records.items():
        task, found = task_of(record.spec), verdict_of(record.figures)
        utility = record.utility[task.metric]
        costs = f"test {task.label(task.metric)} {interval(utility)}" if utility.n else ""
        lines.append(f"  {case}: {found.brief}; {costs}")
        lines += [f"      {figure_text(row)}: {question_text(row)}" for row in rows_of(found.measured.head(1))]
    return [*lines, BASE, SURE]
