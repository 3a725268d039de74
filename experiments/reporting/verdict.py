"""Verdict on attacked runs: an answer to each question. Terminal, comparisons, HTML pages and lists of runs print it.

    verdict = verdict_of(record.figures)
    verdict.label, verdict.brief                    # "LEAKS", "LEAKS: triples; EXPOSED: entities, uploads"
    print_sheets(console, [verdict_sheet(verdict, "Verdict")])

The rule is `fkgsec.attacks.figure.Figure.answer`. The figures of a verdict are judged together: the level of each interval
follows from the number of figures (Bonferroni).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import NormalDist
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from fkgsec.attacks.figure import (
    EXPOSED,
    INCONCLUSIVE,
    LABELS,
    LEAKS,
    NO_EVIDENCE,
    NOT_APPLICABLE,
    POWER,
    SMALLEST_SHARE,
    Figure,
    headline,
    over_victims,
)
from fkgsec.attacks.options import THREAT_MODELS
from fkgsec.attacks.outcomes import paired_variance, same_items
from fkgsec.attacks.questions import INTEGRITY, LEAK_WORDS, OTHER, QUESTIONS
from fkgsec.attacks.registry import ATTACKS
from fkgsec.attacks.view import ALL
from fkgsec.estimate import at_level, critical_value
from fkgsec.experiments.reporting.frames import attack_name, leading_by_place, leading_figures
from fkgsec.experiments.reporting.sheets import Column, Sheet, interval, short
from fkgsec.experiments.runs.baseline import trains_alone
from fkgsec.experiments.runs.intervals import over_seeds
from fkgsec.experiments.runs.record import Record

NOT_ATTACKED = "NOT ATTACKED"
ALREADY_KNOWN = "KNOWN"
PROTOCOL = "the protocol"
RULE = (
    "LEAKS: an attack beats the baseline, corrected for the number of figures. EXPOSED: the protocol itself sends it, so no "
    "attack is needed; as serious as LEAKS. NO EVIDENCE: an effect of the stated size would have been seen. Baseline: the same "
    "adversary without the messages of the rounds."
)
SAYS_NOT = (
    "Intervals cover this training only; other seeds differ more. The verdict covers only the adversaries that were run. "
    "Where it says NO EVIDENCE, another adversary may still learn something."
)
SURE_ONE = "[low, high]: 95% interval for this training only; other seeds differ more."
SURE = "[low, high]: 95% interval for this training only; --seeds 3 covers three trainings."
SURE_TABLES = "[low, high]: 95% interval for these tables only; other trainings differ."
SURE_OVER = "[low, high]: 95% interval over items and trainings, with the worst baseline."
PAIRED = (
    "Excess: measured minus baseline, which is the same adversary without the messages of the rounds. The baseline knows what "
    "alignment reveals, so it changes with psu. "
    "The last column compares the measured values on the same items, corrected for the number of comparisons."
)
# More items than this many times those of the run are no advice.
MOST_TIMES = 100
# Letters of a reason in a table; longer reasons are printed below it.
MOST_LETTERS = 28
DIFFERENCES = {
    "≥": "(≥ x): a difference of x or more would have been seen.",
    "*": "*: compared as independent runs, because the items differ or their outcomes were not stored.",
}


class Answer(NamedTuple):
    """Answer to a question, by the figure that is worst for the victims.

    Attributes:
        question: a name in `QUESTIONS`.
        label: one of `LABELS`.
        figure: the figure.
        compared: number of figures judged together.
    """

    question: str
    label: str
    figure: Figure
    compared: int

    @property
    def word(self) -> str:
        """The label as tables print it; KNOWN if the baseline already finds everything."""
        if self.label == NOT_APPLICABLE and self.figure.baseline_at_bound and self.figure.estimate.value:
            return ALREADY_KNOWN
        return LEAK_WORDS.get(self.question, self.label) if self.label == LEAKS else self.label

    @property
    def about(self) -> str:
        """Description of the measure and its threat model, with the limits of the answer."""
        figure = self.figure
        if figure.reason is not None:
            return f"{figure.attack}, {attack_name(figure.threat_model, figure.leak)}: {figure.reason}"
        metrics = ATTACKS[figure.attack].metrics if figure.attack in ATTACKS else {}
        named = f"{metrics[figure.metric]} ({figure.key})" if figure.metric in metrics else figure.key
        measured = f"{named} by {figure.threat_model}{_whose(figure)}"
        if self.label == NO_EVIDENCE:
            return f"{measured}; an excess of {short(figure.visible_effect(self.compared))} would show"
        if self.label == INCONCLUSIVE:
            remark = f"; {figure.remark}" if figure.remark else ""
            return f"{measured}; {_what_decides(figure, self.compared)}{remark}"
        if self.label == NOT_APPLICABLE:
            reason = (
                "KNOWN: the adversary has it without the messages of the rounds"
                if figure.estimate.value
                else "there is nothing to find"
            )
            return f"{measured}; {reason}"
        return measured


class Verdict(NamedTuple):
    """Verdict on a run, several trainings or audited tables.

    Attributes:
        answers: one answer per attacked question, in the order of `QUESTIONS`.
        ranked: the judged figures with their labels, the worst first.
    """

    answers: tuple[Answer, ...]
    ranked: tuple[tuple[str, Figure], ...]

    @property
    def label(self) -> str:
        """The worst label of an answer."""
        return min((answer.label for answer in self.answers), key=LABELS.index, default=NOT_ATTACKED)

    @property
    def brief(self) -> str:
        """The questions that leak or are exposed, as `LEAKS: triples; EXPOSED: entities`; if there are none, the label."""
        words = (LEAKS, *LEAK_WORDS.values(), EXPOSED)
        parts = ((word, [answer.question for answer in self.answers if answer.word == word]) for word in words)
        return "; ".join(f"{word}: {', '.join(names)}" for word, names in parts if names) or self.label

    @property
    def measured(self) -> list[tuple[str, Figure]]:
        """The ranked figures that could be attacked."""
        return [(label, figure) for label, figure in self.ranked if figure.reason is None]


def verdict_of(listed: Sequence[Figure]) -> Verdict:
    """Judge the leading figures of all attacks together.

    Args:
        listed: figures of one run.
    """
    return judge(leading_figures(listed))


def judge(figures: Sequence[Figure]) -> Verdict:
    """Answer each question by the figure with the worst label, and among these by the largest excess.

    LEAKS and EXPOSED are equally bad, so that a small leak does not hide a large exposure.

    Args:
        figures: figures to judge together.
    """
    # Figures that cannot exceed their baseline are no hypotheses, so they need no correction.
    compared = max(1, sum(figure.reason is None and not figure.baseline_at_bound for figure in figures))
    answered = [(figure.answer(compared), figure) for figure in figures]
    labelled = [(label, _as_exposed(figure) if label == EXPOSED else figure) for label, figure in answered]
    ranked = tuple(sorted(labelled, key=_severity))
    worst: dict[str, Answer] = {}
    for label, figure in ranked:
        question = question_of(figure)
        worst.setdefault(question, Answer(question, label, figure, compared))
    return Verdict(tuple(worst[name] for name in QUESTIONS if name in worst), ranked)


def _as_exposed(figure: Figure) -> Figure:
    """Return what the protocol shows where an attack reached less: no adversary needs that attack."""
    shown, reached = figure.exposed, figure.estimate
    if shown is None:
        return figure
    best = reached.value
    if reached.num_seeds > 1:  # `shown` is of the worst training, which a mean may miss by chance
        best = reached.low if figure.less_is_worse else reached.high
    if best <= shown.value if figure.less_is_worse else best >= shown.value:
        return figure
    return msgspec.structs.replace(figure, estimate=shown, by=PROTOCOL)


def _severity(labelled: tuple[str, Figure]) -> tuple[int, float, int]:
    """Sort by label, then by excess; of equal figures the one of the weakest adversary comes first."""
    label, figure = labelled
    threats = list(THREAT_MODELS)
    place = threats.index(figure.threat_model) if figure.threat_model in threats else len(threats)
    return LABELS.index(LEAKS if label == EXPOSED else label), -round(figure.advantage, 3), place


def question_of(figure: Figure) -> str:
    """Return the question that a figure's metric answers.

    Args:
        figure: a figure, also of an attack that is not installed.
    """
    questions = ATTACKS[figure.attack].questions if figure.attack in ATTACKS else {}
    return questions.get(figure.metric, OTHER)


def verdict_over(records: Sequence[Record]) -> Verdict:
    """Judge several trainings together: intervals cover items and trainings, and the worst baseline counts.

    Args:
        records: trainings with different seeds. A figure missing in one of them counts as not attacked.
    """
    by_training = [leading_by_place(record.figures) for record in records]
    places = dict.fromkeys(place for figures in by_training for place in figures)
    return verdict_of([_over([figures.get(place) for figures in by_training]) for place in places])


def _over(cells: Sequence[Figure | None]) -> Figure:
    """Combine one figure of several trainings."""
    figures = [figure for figure in cells if figure is not None]
    # One training that could not be attacked makes the figure over trainings incomplete.
    if unmeasured := [figure for figure in figures if figure.reason]:
        return unmeasured[0]
    if len(figures) < len(cells):
        return msgspec.structs.replace(figures[0], reason="not measured in every training")
    # Conservative: no training's baseline, bound or exposure may make a leak look larger.
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


def verdict_sheet(verdict: Verdict, title: str, sure: str = SURE) -> Sheet:
    """Return the verdict as a table with a row for each question; notes name the adversaries and how to read it.

    Args:
        verdict: answers to print.
        title: printed above.
        sure: line about what the intervals cover.
    """
    columns = (
        Column("question"), Column("answer"), Column("measured", "figure"), Column("baseline", "value"),
        Column("at most", "value"),
    )  # fmt: skip
    rows = []
    for answer in verdict.answers:
        figure, cells = answer.figure, (None, None, None)
        if figure.reason is None:
            cells = figure.estimate, figure.baseline and figure.baseline.value, figure.attainable
        word = "n/a" if answer.word == NOT_APPLICABLE else answer.word
        rows.append((QUESTIONS[answer.question], word, *cells))
    return Sheet(title, columns, tuple(rows), notes=tuple(_notes(verdict, sure)))


def _notes(verdict: Verdict, sure: str) -> Iterator[str]:
    """Name the adversary of each answer, and explain how to read the table."""
    if not verdict.answers:
        yield "NOT ATTACKED. Use fkgsec attack --run RUN."
        return
    answered = [answer for answer in verdict.answers if answer.figure.reason is None]
    adversaries = list(dict.fromkeys(_adversary_line(answer.figure) for answer in answered))
    for answer in verdict.answers:
        more, stronger = _larger(answer, verdict), ""
        if more is not None and more.baseline is not None:
            line = _adversary_line(more)
            # Other answers may define the same adversary below.
            name = more.threat_model if line in adversaries else f"another adversary ({line})"
            stronger = f"; {name} reaches {short(more.estimate)}, of which {short(more.baseline)} without the messages"
        yield f"{answer.question}: {answer.about}{stronger}"
    yield from adversaries
    if leaks := {leak for answer in answered if (leak := answer.figure.leak) is not None}:
        shares = " or ".join(f"{leak:g}" for leak in sorted(leaks))
        yield f"leak {shares}: share of its entity-embedding pairs that the colluding client reveals to the server"
    labels = {answer.label for answer in verdict.answers}
    words = dict.fromkeys(answer.word for answer in verdict.answers if answer.label == LEAKS)
    compared = verdict.answers[0].compared
    # Explain only the labels that occur in this table.
    meanings = (
        (LEAKS, "an attack beats the baseline" + f" (corrected for {compared} figures)" * (compared > 1)),
        (EXPOSED, "the protocol itself sends it; as serious as LEAKS"),
        (INCONCLUSIVE, "neither a leak nor its absence is shown"),
        (NO_EVIDENCE, "the stated excess would have shown with 90 % probability"),
    )
    shown = {label: label for label in labels} | {LEAKS: ", ".join(words)}
    if legend := [f"{shown[label]}: {text}." for label, text in meanings if label in labels]:
        yield " ".join(legend)
    if answered:
        altered = " (for altered training: the run without the attack)" * (
            INTEGRITY in {answer.question for answer in answered}
        )
        bounded = any(answer.figure.attainable is not None for answer in answered)
        most = " At most: what it could reach with any attack." * bounded
        yield f"Baseline: the same adversary without the messages of the rounds{altered}.{most}"
        yield sure


def _larger(answer: Answer, verdict: Verdict) -> Figure | None:
    """Return the figure of an adversary with a higher value of the same measure but a smaller excess."""
    # The excess selects the adversary of an answer. A stronger one with a high baseline must still be named.
    shown = answer.figure
    others = [figure for _, figure in verdict.measured if figure.key == shown.key and not figure.less_is_worse]
    most = max(others, key=lambda figure: figure.estimate.value, default=shown)
    if shown.reason is not None or most.baseline is None or short(most.estimate) <= short(shown.estimate):
        return None
    return most


def _adversary_line(figure: Figure) -> str:
    """Describe the adversary's observations, without the source of its threat model."""
    if figure.threat_model not in THREAT_MODELS:
        return f"{figure.threat_model}: a threat model that is not installed"
    model = THREAT_MODELS[figure.threat_model]
    task = ATTACKS[figure.attack].task if figure.attack in ATTACKS else ""
    return f"{model.name}: {model.lines.get(task, model.about).partition(' (')[0]}"


def _what_decides(figure: Figure, compared: int) -> str:
    """State how many times more items would show the smallest effect of interest, or what else is missing."""
    effect, smallest = figure.visible_effect(compared), SMALLEST_SHARE * figure.room
    if effect <= smallest and not figure.planted_items:
        return "no test shows that this attack finds a planted signal, so that a low figure proves nothing"
    if effect <= smallest:
        return f"{figure.estimate.n:,} items are too few; the attack finds planted signals in {figure.planted_items:,} or more"
    if figure.estimate.method.endswith(" seeds"):
        return "more trainings would decide (--seeds)"
    # The visible effect shrinks with the square root of the number of items.
    times = math.ceil((effect / smallest) ** 2) if smallest else 0
    if times > MOST_TIMES and figure.baseline is not None:
        return f"the baseline leaves {short(figure.room)} to gain, which is too little to show"
    items = max(times, 2) * figure.estimate.n
    return f"{figure.estimate.n:,} items are too few; {items:,} would decide"


def adversary(figure: Figure) -> str:
    """Write `reconstruction.trr by identifiers, leak 0.5 (combined)`, with the worst victim if no figure covers all.

    Args:
        figure: a figure of an attack.
    """
    way = f" ({figure.by})" if figure.by not in (None, "attack") else ""
    place = attack_name(figure.threat_model, figure.leak)
    return f"{figure.attack}.{figure.label} by {place}{way}{_whose(figure)}"


def _whose(figure: Figure) -> str:
    return "" if figure.victim == ALL else f"; worst victim {figure.victim}"


def figure_text(figure: Figure) -> str:
    """Write `.906 [.872, .941], baseline .380, at most 1.000`.

    Args:
        figure: a measured figure.
    """
    ends = (("baseline", figure.baseline), ("at most", figure.attainable))
    return interval(figure.estimate) + "".join(f", {head} {short(end)}" for head, end in ends if end is not None)


def comparison_sheets(records: Mapping[str, Record]) -> list[Sheet]:
    """Return a table for each question: the same figure in each case, and its difference from the first case.

    Args:
        records: cases by name; the first one with the figure is the reference. Adversary, metric and victim are the
            same in each case, see `followed`. Differences are corrected for their number (Bonferroni).
    """
    by_question = followed(records)
    compared = max(1, len(by_question) * (len(records) - 1))
    sheets = []
    for question, reference_figure in by_question.items():
        rows, base, differences = [], None, []
        reasons: list[str] = []
        for case, record in records.items():
            figure = same_figure(record, reference_figure)
            if figure is None or figure.reason is not None:
                alone = trains_alone(record.spec)
                reason = "exchanges nothing" if alone else (figure and figure.reason) or "not attacked"
                # The cell gets a number, and a note below states the reason.
                if len(reason) > MOST_LETTERS:
                    reasons = list(dict.fromkeys([*reasons, reason]))
                    reason = f"n/a {reasons.index(reason) + 1}"
                rows.append((case, None, None, reason))
                continue
            apart = None
            if base is not None:
                apart = difference(figure, base[0], compared, ends=_ends(record, base[1]))
                differences.append(apart)
            base = base or (figure, record)
            rows.append((case, figure.estimate, figure.advantage, apart and str(apart)))
        whose = "" if reference_figure.victim == ALL else f", {reference_figure.victim}"
        threat = attack_name(reference_figure.threat_model, reference_figure.leak)
        place = f"{reference_figure.key} by {threat}{whose}"
        notes = [text for sign, text in DIFFERENCES.items() if any(sign in str(apart) for apart in differences)]
        notes += [f"n/a {number}: {reason}" for number, reason in enumerate(reasons, start=1)]
        reference = next((row[0] for row in rows if row[1] is not None), "")
        columns = (
            Column("case"), Column("measured", "figure"), Column("excess", "value"), Column(f"against {reference}"),
        )  # fmt: skip
        sheets.append(Sheet(f"{QUESTIONS[question]} {place}", columns, tuple(rows), notes=tuple(notes)))
    return sheets


def followed(records: Mapping[str, Record]) -> dict[str, Figure]:
    """Return for each question the figure that a comparison follows.

    A defense may stop one adversary and leave another as strong as before, so no single case selects the adversary.

    Args:
        records: cases by name.

    Returns:
        By question, the figure that most cases measured, and among these the one with the largest sum of excesses.
    """
    best: dict[str, tuple[tuple[int, float], Figure]] = {}
    for record in records.values():
        for _, figure in verdict_of(record.figures).measured:
            others = [same_figure(other, figure) for other in records.values()]
            there = [other for other in others if other is not None and other.reason is None]
            rank = len(there), round(sum(other.advantage for other in there), 6)
            question = question_of(figure)
            if question not in best or rank > best[question][0]:
                best[question] = rank, figure
    return {question: best[question][1] for question in QUESTIONS if question in best}


def same_figure(record: Record, reference: Figure) -> Figure | None:
    """Return the figure of a record that matches another record's figure.

    Args:
        record: the record to search.
        reference: figure of another record.

    Returns:
        The figure of the same victim, else the leading one under the same threat model; None if there is none.
    """
    same = [figure for figure in headline(record.figures) if figure.question[:4] == reference.question[:4]]
    of_victim = next((figure for figure in same if figure.victim == reference.victim), None)
    return of_victim if of_victim is not None and not same[0].reason else next(iter(over_victims(same)), None)


def _ends(*records: Record) -> dict[str, bytes]:
    """Return the ends of the items by the items' digest; nothing for runs with different data or seeds."""
    # Only the same data and the same seed give the same items.
    if len({(record.data.hash, record.seed) for record in records}) > 1:
        return {}
    outcomes_list = [figure.outcomes for record in records for figure in record.figures if figure.outcomes]
    return {outcomes.items: outcomes.ends for outcomes in outcomes_list if outcomes.ends}


class Difference(NamedTuple):
    """Difference between a figure in two configurations, with its interval.

    Attributes:
        visible: smallest difference that would be shown with a probability of at least 0.9; 0 if all outcomes are equal.
        paired: True if outcomes of the same items were compared, False if the runs count as independent.
    """

    value: float
    low: float
    high: float
    visible: float
    paired: bool

    @property
    def shown(self) -> bool:
        """True if the interval excludes 0."""
        return not self.low <= 0 <= self.high

    def __str__(self) -> str:
        sign = "" if self.paired else " *"
        if not self.shown:
            least = f" (≥ {short(self.visible)})" if self.visible else ""
            return f"no difference shown{least}{sign}"
        word, least, most = ("higher", self.low, self.high) if self.value > 0 else ("lower", -self.high, -self.low)
        return f"{word} by {short(abs(self.value))} [{short(least)}, {short(most)}]{sign}"


def difference(
    figure: Figure, base: Figure, compared: int = 1, *, ends: Mapping[str, bytes] = MappingProxyType({})
) -> Difference:
    """Compare a figure with that of another configuration, item by item if both have outcomes of the same items.

    Both figures use the strongest variant of their run, so that the choice favors neither. If leaked entities are drawn
    several times, draws are paired, too. Without the same items, errors are added as if independent: the interval is
    then too wide rather than too narrow.

    Args:
        figure: the figure to compare.
        base: the same figure of the reference configuration.
        compared: number of differences judged together; the level is 1 - 0.05 / compared (Bonferroni).
        ends: by the items' digest, see `fkgsec.attacks.outcomes.Outcomes.ends`.

    Source: McNemar 1947, DeLong et al. 1988; see `fkgsec.attacks.outcomes`.
    """
    value, critical = figure.estimate.value - base.estimate.value, critical_value(compared)
    power = NormalDist().inv_cdf(POWER)
    ours, theirs = figure.outcomes, base.outcomes
    if ours is not None and theirs is not None and same_items(ours, theirs) and ours.items in ends:
        # Same items: the variance of the difference is that of the per-item differences, which share most of
        # their noise.
        variance = paired_variance(ours, theirs, ends[ours.items])
        half = critical * math.sqrt(variance.total)
        # The difference d with d = (critical + power) sqrt(variance + per_difference d).
        both = critical + power
        linear = both**2 * variance.per_difference / 2
        visible = linear + math.sqrt(linear**2 + both**2 * variance.total) if variance.total else 0.0
        return Difference(value, value - half, value + half, visible, paired=True)
    # Independent errors: half-widths add in quadrature, each side with the ends that face each other.
    now, then = (at_level(side.estimate, compared, least=-math.inf, most=math.inf) for side in (figure, base))
    low = math.hypot(now.value - now.low, then.high - then.value)
    high = math.hypot(now.high - now.value, then.value - then.low)
    return Difference(value, value - low, value + high, max(low, high) * (1 + power / critical), paired=False)
