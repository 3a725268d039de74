"""Verdicts: every limit is judged on the confidence bound, not on the point.

    judge(Estimate(0.04, 0.03, 0.05, 100, "wilson"), "max", allowed=0.05)      # "pass": the whole interval holds
    verdict = judge_limit(limit, runs)

A limit holds when the whole 95 % interval lies on its right side, fails when the whole interval lies on the wrong one, and is
inconclusive when the interval straddles it. Of samples whose true figure is at the limit, about 2.5 % therefore pass and as many
fail; the others are inconclusive. What training adds from seed to seed is in the interval only where a policy names several
seeds. What could not be measured fails. A limit on leakage that lies at or above the most that the adversary can reach at all is
vacuous: nothing can break it, so that it protects nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec
from scipy import stats

from fkgsec.estimate import Estimate
from fkgsec.experiments.gate.baseline import Baseline, BaselineRun, compared_figures, whole_range, worse_by
from fkgsec.experiments.gate.evidence import evidence_lines
from fkgsec.experiments.gate.measures import MEASURES, Bound, Kind, NotMeasured, Question, Reach, find_figure
from fkgsec.experiments.gate.policy import NO_WORSE, Limit, NoWorse, Policy
from fkgsec.experiments.runs.intervals import over_seeds, width
from fkgsec.experiments.runs.run import RECORD_FILE, Finished
from fkgsec.experiments.runs.spec import CONSORTIUM

Status = Literal["pass", "fail", "vacuous", "inconclusive"]
_EXAMPLES = 3  # of the embedded data, which are nobody's
_MOST_SEEDS = 1000
_NEAREST = 1e-12  # of a figure to its limit: closer, no sample tells them apart


class Verdict(msgspec.Struct, frozen=True):
    """One limit, judged.

    Attributes:
        id: `federation/measure/threat/leak/victim`, the same in every run.
        rule: the measure, or `no_worse_than`.
        about: what was measured, in words.
        kind: of the figure; how much worse something is, is a share.
        bound, allowed: the limit. measured: the figure with its interval; None when there is none.
        message: one sentence that says why.
        evidence: what stands behind it, for what does not pass.
        records: the record of each seed.
        line: where the policy says so.
        attainable: the most that the adversary can reach with what it knows; None where that has no meaning.
        baseline: what the same adversary gets without what crossed in the rounds, the most over seeds; None where there is none.
        reached_by: which inference or guess the attack's figure is of, the strongest that was tried; None for other figures.
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
    """The finished runs of one federation by seed, and how many of the victims' items a verdict may spell out.

    `num_examples` None: some of the embedded data, none of other data.
    """

    by_seed: Mapping[int, Finished]
    num_examples: int | None


def judge(figure: Estimate, bound: Bound, allowed: float) -> Status:
    """Where the whole interval lies.

    >>> judge(Estimate(0.04, 0.03, 0.05, 100, "wilson"), "max", 0.05)
    'pass'
    """
    if bound == "max":
        return "pass" if figure.high <= allowed else "fail" if figure.low > allowed else "inconclusive"
    return "pass" if figure.low >= allowed else "fail" if figure.high < allowed else "inconclusive"


def overall(statuses: Sequence[Status]) -> Status:
    """Fail when anything fails or nothing was judged, else vacuous when anything is, else inconclusive, else pass."""
    if "fail" in statuses or not statuses:
        return "fail"
    if "vacuous" in statuses:
        return "vacuous"
    return "inconclusive" if "inconclusive" in statuses else "pass"


def judge_limit(limit: Limit, runs: Runs) -> Verdict:
    """The verdict on one limit from the runs of its federation."""
    measure = MEASURES[limit.measure]

    def read(seed: int) -> Estimate:
        """The figure of one run."""
        return measure.read(runs.by_seed[seed], limit.question)

    verdict = _verdict(_Claim(limit, limit.measure, limit.id, limit.measure), read, runs)
    if verdict.measured is None or measure.reach is None:
        return verdict
    figures = [find_figure(one.record, measure.key, limit.question) for one in runs.by_seed.values()]
    by = dict.fromkeys(one.by or one.variant for one in figures)
    bases = [one.baseline.value for one in figures if one.baseline is not None]
    verdict = msgspec.structs.replace(
        verdict, reached_by=", ".join(name for name in by if name) or None, baseline=max(bases, default=None)
    )
    reaches = [measure.reach(one, limit.question) for one in runs.by_seed.values()]
    return _within_reach(verdict, max(one.least for one in reaches), _most(reaches), limit, runs)


def _most(reaches: Sequence[Reach]) -> Reach | None:
    """The one that reaches furthest; None where a record does not say how far."""
    if any(one.most is None for one in reaches):
        return None
    return max(reaches, key=lambda one: one.most or 0.0)


def _within_reach(verdict: Verdict, least: float, most: Reach | None, limit: Limit, runs: Runs) -> Verdict:
    """The verdict when the adversary has `least` without attacking, and can have no more than `most`.

    The interval stays that of the attack: it is what was judged, and is not clipped to either.
    """
    attainable = None if most is None else most.most
    verdict = msgspec.structs.replace(verdict, attainable=attainable)
    allowed = show(limit.allowed, verdict.kind)
    figure = verdict.measured
    if verdict.status == "inconclusive" and figure and attainable is not None and figure.value > attainable - _NEAREST:
        message = (
            f"{show_figure(figure, verdict.kind)} is the most that this adversary can reach and lies above {allowed}; a larger "
            "sample does not change that"
        )
        return msgspec.structs.replace(verdict, status="fail", message=message)
    if verdict.status != "fail" and least > limit.allowed:
        message = (
            f"{show_figure(verdict.measured, verdict.kind)} by the attack, but without embeddings the same adversary guesses "
            f"{show(least, verdict.kind)}, which lies above {allowed}"
        )
        return msgspec.structs.replace(verdict, status="fail", message=message, evidence=_evidence(limit, runs))
    if verdict.status != "fail" and most is not None and attainable is not None and attainable <= limit.allowed:
        why = f"; {most.remark}" if most.remark else ""
        message = (
            f"nothing can break this limit: with what it knows this adversary reaches at most {show(attainable, verdict.kind)}, "
            f"and {allowed} is allowed{why}. Set a limit below that, or judge a stronger adversary (a larger leak, identifiers)"
        )
        return msgspec.structs.replace(verdict, status="vacuous", message=message, evidence=_evidence(limit, runs))
    return verdict


def judge_no_worse(policy: Policy, rule: NoWorse, baseline: Baseline, name: str, runs: Runs) -> list[Verdict]:
    """A verdict on every figure that the baseline or the policy has of a federation: is it worse by no more than is allowed?"""
    then = {run.seed: run for run in baseline.federations[name]}
    asked = compared_figures(policy, name)
    known = {key for run in then.values() for key in run.figures}
    verdicts = [_no_worse(key, *asked[key], name, rule, then, runs) for key in asked]
    for key in sorted(known - set(asked)):
        # A figure that is no longer asked for must not vanish from the gate unseen.
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
        """By how much one run is worse than the run of the same seed was."""
        if question is None:
            raise NotMeasured("the baseline has it, the policy does not ask for it any more; use --update-baseline")
        return worse_by(runs.by_seed[seed], then[seed], key, measure, question)

    limit = Limit(measure, name, question or Question(), rule.by, rule.line)
    place = f"{name}/{NO_WORSE}/{key.partition('/')[2]}"
    verdict = _verdict(_Claim(limit, NO_WORSE, place, f"{measure} worse by"), read, runs)
    if verdict.status == "fail" or question is None:
        return verdict
    whole = max(whole_range(runs.by_seed[seed], then[seed], key, measure, question) for seed in runs.by_seed)
    if not 0 < whole <= rule.by:
        return verdict
    message = (
        f"nothing can break this limit: the figure lies between 0 and {whole:.4f}, and may be worse by {rule.by:.4f}. "
        "Allow less"
    )
    return msgspec.structs.replace(verdict, status="vacuous", message=message, evidence=_evidence(limit, runs))


class _Claim(NamedTuple):
    """A limit, the rule and id that its verdict is known by, and what is measured."""

    limit: Limit
    rule: str
    id: str
    measured: str

    @property
    def bound(self) -> Bound:
        return "max" if self.rule == NO_WORSE else MEASURES[self.limit.measure].bound

    @property
    def kind(self) -> Kind:
        return "share" if self.rule == NO_WORSE else MEASURES[self.limit.measure].kind


def _verdict(claim: _Claim, read: Callable[[int], Estimate], runs: Runs) -> Verdict:
    """Judge what `read` gives for each seed; what cannot be read fails."""
    limit, figure = claim.limit, None
    evidence: list[str] = []
    try:
        figures = [read(seed) for seed in runs.by_seed]
    except NotMeasured as reason:
        status, message = "fail", f"not measured, so it cannot pass: {reason}"
    else:
        figure = over_seeds(figures)
        status = judge(figure, claim.bound, limit.allowed)
        message = (
            f"{show_figure(figure, claim.kind)} {_relation(status, claim.bound)} {show(limit.allowed, claim.kind)}"
        )
        if status == "inconclusive":
            message += f": {what_would_settle(figures, limit.allowed, MEASURES[limit.measure].items)}"
        if status != "pass":
            evidence = _evidence(limit, runs)
    return Verdict(
        id=claim.id,
        rule=claim.rule,
        federation=limit.federation,
        about=", ".join(part for part in (claim.measured, limit.question.words()) if part),
        kind=claim.kind,
        bound=claim.bound,
        allowed=limit.allowed,
        measured=figure,
        status=status,
        message=message,
        evidence=evidence,
        records=[(one.folder / RECORD_FILE).as_posix() for one in runs.by_seed.values()],
        line=limit.line,
    )


def _relation(status: Status, bound: Bound) -> str:
    if status == "inconclusive":
        return "straddles"
    if status == "pass":
        return "is at most" if bound == "max" else "is at least"
    return "lies above" if bound == "max" else "lies below"


def _evidence(limit: Limit, runs: Runs) -> list[str]:
    lines = []
    for seed, one in runs.by_seed.items():
        default = _EXAMPLES if one.record.spec.data == CONSORTIUM else 0
        count = default if runs.num_examples is None else runs.num_examples
        found = evidence_lines(one, limit.measure, limit.question, count)
        lines += [f"seed {seed}: {line}" if len(runs.by_seed) > 1 else line for line in found]
    return lines


def what_would_settle(figures: Sequence[Estimate], allowed: float, items: str) -> str:
    """How many more items or seeds would move the interval off the limit, if the figure stayed where it is.

    Args:
        figures: of each seed; their interval straddles `allowed`. items: what the sample is made of.

    A width falls with the root of the number of items. Wilson's is the score test turned around: whether it reaches a limit is
    a matter of the variance at the limit. More seeds narrow only what differs between seeds, more items only what one seed has.
    """
    figure, parts = over_seeds(figures), width(figures)
    seeds, size = len(figures), figure.n // len(figures)
    gap = abs(figure.value - allowed)
    if gap < _NEAREST:
        return "the figure is on the limit, where no sample settles it; move the limit"
    item_half = parts.items_low if figure.value > allowed else parts.items_high
    if item_half < gap:  # then it is the seeds that differ
        wanted = math.sqrt(gap**2 - item_half**2)
        deviation = parts.seeds * math.sqrt(seeds) / float(stats.t.ppf(0.975, seeds - 1))
        for count in range(seeds + 1, _MOST_SEEDS + 1):
            if float(stats.t.ppf(0.975, count - 1)) * deviation / math.sqrt(count) <= wanted:
                return f"about {count - seeds} more seeds (now {seeds}) would settle it, if mean and spread stay"
        return f"more than {_MOST_SEEDS:,} seeds would be needed; move the limit"
    enough = parts.seeds < gap
    left = gap**2 - parts.seeds**2 if enough else gap**2 / 2  # else half of the gap is left to further seeds
    if "wilson" in figure.method and 0 < figure.value < 1:
        half = (parts.items_low + parts.items_high) / 2
        item_half = half * math.sqrt(allowed * (1 - allowed) / (figure.value * (1 - figure.value)))
    more = max(1, math.ceil(size * (item_half**2 / left - 1)))
    return f"about {more:,} more {items}{'' if enough else ' and more seeds'} (now {size:,}) would settle it, if the figure stays"


def show(value: float, kind: Kind) -> str:
    """A value in the unit of its kind.

    >>> show(5e6, "bytes"), show(0.05, "share"), show(8, "epsilon")
    ('5,000,000 B', '0.0500', '8')
    """
    return {"bytes": f"{value:,.0f} B", "share": f"{value:.4f}", "epsilon": f"{value:g}"}[kind]


def show_figure(figure: Estimate | None, kind: Kind) -> str:
    """The value, and its interval where it has one."""
    if figure is None:
        return "not measured"
    low, value, high = (show(part, kind) for part in (figure.low, figure.value, figure.high))
    return value if figure.method == "exact" else f"{value} [{low}, {high}]"
