"""Verdicts: every limit is judged on the confidence bound, not on the point estimate.

    judge(Estimate(0.04, 0.03, 0.05, 100, "wilson"), "max", allowed=0.05)      # "pass": the whole interval holds
    verdict = judge_limit(limit, runs)

A limit passes if the whole 95 % interval satisfies it, fails if the whole interval violates it, and is inconclusive otherwise.
If the true figure equals the limit, about 2.5 % of samples pass and as many fail; the others are inconclusive. The
interval covers the spread between trainings only if a policy names several seeds. An unmeasured figure fails. A limit
on leakage at or above the adversary's upper bound is vacuous: nothing can break it, so it protects nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec
import pandas as pd

from fkgsec.attacks.view import ALL
from fkgsec.estimate import Estimate, proportion, student_value
from fkgsec.experiments.gate.baseline import Baseline, BaselineRun, compared_figures, whole_range, worse_by
from fkgsec.experiments.gate.measures import (
    GAIN,
    ITEMISED,
    MEASURES,
    Bound,
    Kind,
    NotMeasured,
    Question,
    alone_of,
    attacked_items,
    conspicuous,
    find_figure,
    unlearning_of,
    verification_of,
)
from fkgsec.experiments.gate.policy import NO_WORSE, Limit, NoWorse, Policy
from fkgsec.experiments.reporting.worth import gains
from fkgsec.experiments.runs.intervals import over_seeds, width
from fkgsec.experiments.runs.record import Record
from fkgsec.experiments.runs.run import RECORD_FILE, Finished
from fkgsec.experiments.runs.spec import CONSORTIUM

Status = Literal["pass", "fail", "vacuous", "inconclusive"]
# Items of the embedded data, which are generated.
_EXAMPLES = 3
_MOST_SEEDS = 1000
_MOST_RELATIONS = 6
# Smallest distance of a figure to its limit that a sample could resolve.
_NEAREST = 1e-12


class Verdict(msgspec.Struct, frozen=True):
    """Judged limit.

    Attributes:
        id: `federation/measure/threat/leak/victim`, the same in every run.
        rule: the measure, or `no_worse_than`.
        about: the measured figure, in words.
        kind: kind of the figure. How much worse a figure is counts as a share. A gain may be negative.
        bound, allowed: the limit.
        measured: the figure with its interval; None if there is none.
        message: the reason in one sentence.
        evidence: details about a limit that does not pass.
        records: the record of each seed.
        line: line of the policy.
        attainable: upper bound for the adversary; None if it has no meaning.
        reached_by: the strongest inference or guess, whose figure this is; None for other figures.
        baseline: result of the same adversary without the training messages, the largest over seeds; None if there is none.
    """

    id: str
    rule: str
    federation: str
    about: str
    kind: Kind
    bound: Bound
    allowed: float
    measured: Estimate | None
    status: Status
    message: str
    evidence: list[str]
    records: list[str]
    line: int
    attainable: float | None = None
    reached_by: str | None = None
    baseline: float | None = None


class Runs(NamedTuple):
    """Finished runs of one federation by seed, and how many of the victims' items a verdict may print.

    Attributes:
        num_examples: None prints some of the embedded data, and none of other data.
    """

    by_seed: Mapping[int, Finished]
    num_examples: int | None


def judge(figure: Estimate, bound: Bound, allowed: float) -> Status:
    """Judge an interval against a limit.

    Args:
        figure: value with its 95 % interval.
        bound: "max" for an upper limit, "min" for a lower one.
        allowed: the limit.

    >>> judge(Estimate(0.04, 0.03, 0.05, 100, "wilson"), "max", 0.05)
    'pass'
    """
    if bound == "max":
        return "pass" if figure.high <= allowed else "fail" if figure.low > allowed else "inconclusive"
    return "pass" if figure.low >= allowed else "fail" if figure.high < allowed else "inconclusive"


def overall(statuses: Sequence[Status]) -> Status:
    """Return fail if any limit fails or none was judged, else vacuous, else inconclusive, else pass."""
    # A policy that judged nothing must not pass.
    if "fail" in statuses or not statuses:
        return "fail"
    if "vacuous" in statuses:
        return "vacuous"
    return "inconclusive" if "inconclusive" in statuses else "pass"


def judge_limit(limit: Limit, runs: Runs) -> Verdict:
    """Judge one limit from the runs of its federation.

    Args:
        runs: runs of the federation.
    """
    measure, question = MEASURES[limit.measure], limit.question
    verdict = _verdict(
        limit, limit.measure, limit.id, limit.measure, measure.bound, measure.kind, runs,
        lambda seed: measure.read(runs.by_seed[seed], question),
    )  # fmt: skip
    if verdict.measured is None or measure.reach is None:
        return verdict
    figures = [find_figure(run.record, measure.key, question) for run in runs.by_seed.values()]
    by = dict.fromkeys(figure.by or figure.variant for figure in figures)
    bases = [figure.baseline.value for figure in figures if figure.baseline is not None]
    reaches = [measure.reach(run, question) for run in runs.by_seed.values()]
    # The limit is vacuous only if no seed's adversary can break it.
    most = None if any(reach.most is None for reach in reaches) else max(reaches, key=lambda reach: reach.most or 0.0)
    verdict = msgspec.structs.replace(
        verdict,
        reached_by=", ".join(filter(None, by)) or None,
        baseline=max(bases, default=None),
        attainable=most and most.most,
    )
    status, message = _within_reach(verdict, max(reach.least for reach in reaches), most and most.remark)
    if status == verdict.status:
        return verdict
    evidence = verdict.evidence or _evidence(limit, runs)
    return msgspec.structs.replace(verdict, status=status, message=message, evidence=evidence)


def _within_reach(verdict: Verdict, least: float, remark: str | None) -> tuple[Status, str]:
    """Return status and message after comparison with the guess (`least`) and the upper bound.

    The interval stays that of the attack, which was judged, and is not clipped to either.
    """
    figure, attainable, allowed = verdict.measured, verdict.attainable, show(verdict.allowed, verdict.kind)
    if figure is None or verdict.status == "fail":
        return verdict.status, verdict.message
    shown = show_figure(figure, verdict.kind)
    if verdict.status == "inconclusive" and attainable is not None and figure.value > attainable - _NEAREST:
        most = "is the most that this adversary can reach and lies above"
        return "fail", f"{shown} {most} {allowed}; a larger sample would not change this"
    # The attack may do worse than a guess; the adversary would then guess.
    if least > verdict.allowed:
        guess = f"its baseline is {show(least, verdict.kind)}, which lies above {allowed}"
        return "fail", f"{shown} by the attack, but {guess}"
    if attainable is not None and attainable <= verdict.allowed:
        return "vacuous", (
            f"nothing can break this limit: with what it knows this adversary reaches at most {show(attainable, verdict.kind)}, "
            f"and {allowed} is allowed{f'; {remark}' if remark else ''}. Set a limit below that, or judge a stronger adversary "
            "(a larger leak, identifiers)"
        )
    return verdict.status, verdict.message


def judge_no_worse(policy: Policy, rule: NoWorse, baseline: Baseline, name: str, runs: Runs) -> list[Verdict]:
    """Judge whether each figure of the baseline or the policy is worse by more than allowed.

    Args:
        policy: federations and limits.
        rule: the baseline's file and the allowed difference.
        baseline: the earlier figures.
        name: name of the federation.
        runs: runs of the federation.
    """
    then = {run.seed: run for run in baseline.federations[name]}
    compared = compared_figures(policy, name)
    verdicts = [_no_worse(key, *of_key, name, rule, then, runs) for key, of_key in compared.items()]
    for key in sorted({key for run in then.values() for key in run.figures} - set(compared)):
        # A figure that left the policy must not vanish from the gate unnoticed.
        verdicts.append(_no_worse(key, key.split("/")[1], None, name, rule, then, runs))
    return verdicts


def _no_worse(
    key: str,
    measure: str,
    question: Question | None,
    name: str,
    rule: NoWorse,
    then: Mapping[int, BaselineRun],
    runs: Runs,
) -> Verdict:
    def read(seed: int) -> Estimate:
        """Return how much worse a run is than the earlier run with the same seed.

        Args:
            seed: seed of both runs.
        """
        if question is None:
            raise NotMeasured("the baseline has it, but the policy no longer needs it; use --update-baseline")
        return worse_by(runs.by_seed[seed], then[seed], key, measure, question)

    limit = Limit(measure, name, question or Question(), rule.by, rule.line)
    place = f"{name}/{NO_WORSE}/{key.partition('/')[2]}"
    verdict = _verdict(limit, NO_WORSE, place, f"{measure} worse by", "max", "share", runs, read)
    if verdict.status == "fail" or question is None:
        return verdict
    # A tolerance larger than the whole range could never fail.
    whole = max(whole_range(runs.by_seed[seed], then[seed], key, measure, question) for seed in runs.by_seed)
    if not 0 < whole <= rule.by:
        return verdict
    message = (
        f"nothing can break this limit: the figure lies between 0 and {whole:.4f}, and may be worse by {rule.by:.4f}. "
        "Allow less"
    )
    return msgspec.structs.replace(verdict, status="vacuous", message=message, evidence=_evidence(limit, runs))


def _verdict(
    limit: Limit,
    rule: str,
    id: str,
    measured: str,
    bound: Bound,
    kind: Kind,
    runs: Runs,
    read: Callable[[int], Estimate],
) -> Verdict:
    """Judge the figures that `read` returns for each seed; a figure that cannot be read fails."""
    figure, evidence = None, []
    try:
        figures = [read(seed) for seed in runs.by_seed]
    except NotMeasured as reason:
        status, message = "fail", f"not measured, so it cannot pass: {reason}"
    else:
        figure = over_seeds(figures)
        status = judge(figure, bound, limit.allowed)
        above, at = ("above", "most") if bound == "max" else ("below", "least")
        relation = {"inconclusive": "includes", "pass": f"is at {at}"}.get(status, f"lies {above}")
        message = f"{show_figure(figure, kind)} {relation} {show(limit.allowed, kind)}"
        if status == "inconclusive":
            message += f": {what_would_settle(figures, limit.allowed, MEASURES[limit.measure].items)}"
        if status != "pass":
            evidence = _evidence(limit, runs)
    return Verdict(
        id=id,
        rule=rule,
        federation=limit.federation,
        about=", ".join(filter(None, (measured, limit.question.words()))),
        kind=kind,
        bound=bound,
        allowed=limit.allowed,
        measured=figure,
        status=status,
        message=message,
        evidence=evidence,
        records=[(run.folder / RECORD_FILE).as_posix() for run in runs.by_seed.values()],
        line=limit.line,
    )


def _evidence(limit: Limit, runs: Runs) -> list[str]:
    lines = []
    for seed, run in runs.by_seed.items():
        default = _EXAMPLES if run.record.spec.data == CONSORTIUM else 0
        count = default if runs.num_examples is None else runs.num_examples
        prefix = f"seed {seed}: " if len(runs.by_seed) > 1 else ""
        lines += [f"{prefix}{line}" for line in evidence_lines(run, limit.measure, limit.question, count)]
    return lines


def what_would_settle(figures: Sequence[Estimate], allowed: float, items: str) -> str:
    """State how many more items or seeds would move the interval off the limit, if the figure stayed the same.

    The width shrinks with the root of the number of items. Wilson's interval inverts the score test: whether it reaches
    a limit depends on the variance at the limit. More seeds narrow only the spread between seeds, more items only that
    within a seed.

    Args:
        figures: figure of each seed; their combined interval straddles `allowed`.
        allowed: the limit.
        items: noun for the items of the sample.
    """
    figure, (items_low, items_high, seeds_half) = over_seeds(figures), width(figures)
    seeds, size = len(figures), figure.n // len(figures)
    gap = abs(figure.value - allowed)
    if gap < _NEAREST:
        return "the figure equals the limit, which no sample can settle; move the limit"
    item_half = items_low if figure.value > allowed else items_high
    # The spread between seeds is the cause.
    if item_half < gap:
        wanted = math.sqrt(gap**2 - item_half**2)
        deviation = seeds_half * math.sqrt(seeds) / student_value(seeds)
        for count in range(seeds + 1, _MOST_SEEDS + 1):
            if student_value(count) * deviation / math.sqrt(count) <= wanted:
                return f"about {count - seeds} more seeds (now {seeds}) would decide, if mean and spread stay"
        return f"more than {_MOST_SEEDS:,} seeds would be needed; move the limit"
    enough = seeds_half < gap
    # Leave half of the gap to further seeds.
    left = gap**2 - seeds_half**2 if enough else gap**2 / 2
    if "wilson" in figure.method and 0 < figure.value < 1:
        half = (items_low + items_high) / 2
        item_half = half * math.sqrt(allowed * (1 - allowed) / (figure.value * (1 - figure.value)))
    more = max(1, math.ceil(size * (item_half**2 / left - 1)))
    return f"about {more:,} more {items}{'' if enough else ' and more seeds'} (now {size:,}) would decide, if the figure stays"


def show(value: float, kind: Kind) -> str:
    """Write a value in the unit of its kind.

    Args:
        value: a figure or a limit.
        kind: kind of the measure.

    >>> show(5e6, "bytes"), show(0.05, "share"), show(8, "epsilon")
    ('5,000,000 B', '0.0500', '8')
    """
    return {"bytes": f"{value:,.0f} B", "share": f"{value:.4f}", "gain": f"{value:.4f}", "epsilon": f"{value:g}"}[kind]


def show_figure(figure: Estimate | None, kind: Kind) -> str:
    """Write a value, with its interval if it has one.

    Args:
        figure: None if not measured.
        kind: kind of the measure.
    """
    if figure is None:
        return "not measured"
    low, value, high = (show(part, kind) for part in (figure.low, figure.value, figure.high))
    return value if figure.method == "exact" else f"{value} [{low}, {high}]"


# Evidence: rebuilt relations and triples, bytes by direction, guarantees of the defense.


def evidence_lines(finished: Finished, measure: str, question: Question, num_examples: int) -> list[str]:
    """Return evidence for a verdict, in sentences without a full stop.

    Args:
        finished: the run.
        num_examples: number of rebuilt triples (or named entities) to print. They are the victims' data.
    """
    name = measure.rpartition(".")[2]
    if MEASURES[measure].attack is not None:
        return _attack(finished, MEASURES[measure].key, question, num_examples)
    if measure.startswith("utility."):
        parts = [f"{client} {figures[name]}" for client, figures in finished.record.utility_by_client.items()]
        return [f"{name} by client: {', '.join(parts)}"]
    if measure == GAIN:
        each = gains(finished.record, alone_of(finished, question), len(finished.record.data.clients))
        return [f"gain by client: {', '.join(f'{client} {gain}' for client, gain in each.items() if client != ALL)}"]
    if MEASURES[measure].kind == "bytes":
        return _bytes(finished.record)
    if measure.startswith("membership."):
        figure = conspicuous(finished, question)
        base = max((guess.value for guess in figure.guesses.values()), default=0.0)
        return [
            f"strongest of {figure.compared} ways: {figure.by}, AUC {figure.estimate} over {figure.counts['members']:,} members "
            f"and {figure.counts['controls']:,} never-seen triples; the baseline is {base:.4f}"
        ]
    if measure.startswith("unlearning."):
        verdict = verification_of(finished, question).verdict
        return [f"verified: {verdict.outcome}", *verdict.reasons]
    if measure == "epsilon":
        unlearning = unlearning_of(finished, question)
        stated = unlearning.protection if unlearning else finished.record.protection
        return [line for line in stated if line.startswith("dp")]
    return []


def _attack(finished: Finished, key: str, question: Question, num_examples: int) -> list[str]:
    try:
        figure = find_figure(finished.record, key, question)
    except NotMeasured:
        return []
    lines = []
    if figure.baseline is not None:
        guess = f"the best guess without the training messages gets {figure.baseline.value:.4f}"
        lines.append(f"the attack got {figure.estimate.value:.4f}, {guess}")
    if key not in ITEMISED:
        return lines
    if sources := find_figure(finished.record, ITEMISED[0], question).counts:
        by_source = ", ".join(f"{source} {count:,}" for source, count in sources.items())
        lines.append(f"rows were summed; sources that revealed the holders of the named entities: {by_source}")
    items = attacked_items(finished, key, question)
    if not len(items):
        return lines
    triples = figure.metric == "trr"
    if triples:
        lines.append(_by_relation(items, finished.record))
    hits = items.loc[items["right"].to_numpy(dtype=bool)]
    # Sensitive ones come first.
    ordinary = ~hits["relation"].isin(finished.record.data.sensitive).to_numpy()
    for _, hit in hits.iloc[ordinary.argsort(kind="stable")].head(num_examples).iterrows():
        words = f"{hit['head']} {hit['relation']} {hit['tail']}" if triples else hit["head"]
        lines.append(f"rebuilt, of {hit['victim']}: {words}")
    return lines


def _by_relation(items: pd.DataFrame, record: Record) -> str:
    """State the relations with the largest share rebuilt, by the lower end of the interval; sensitive ones are marked."""
    rebuilt: list[tuple[float, str]] = []
    for relation, group in items.groupby("relation", sort=True)["right"]:
        right, count = int(group.to_numpy(dtype=bool).sum()), len(group)
        mark = " (sensitive)" if relation in record.data.sensitive else ""
        if right:
            # The lower end: three of three triples are less certain than ninety of a hundred.
            rebuilt.append((proportion(right, count).low, f"{relation}{mark} {right:,} of {count:,}"))
    if not rebuilt:
        return "no triple was rebuilt"
    rebuilt.sort(key=lambda relation: -relation[0])
    return f"most rebuilt relations: {', '.join(text for _, text in rebuilt[:_MOST_RELATIONS])}"


def _bytes(record: Record) -> list[str]:
    trained = record.rounds[1:]
    if not trained:
        return []
    largest = max(trained, key=lambda entry: entry.bytes_up + entry.bytes_down)
    alignment = record.rounds[0].bytes_up + record.rounds[0].bytes_down
    return [
        f"largest round {largest.round}: {largest.bytes_up:,} B up, {largest.bytes_down:,} B down; alignment {alignment:,} B; "
        f"{len(trained)} rounds, {record.bytes.up:,} B up and {record.bytes.down:,} B down in all"
    ]
