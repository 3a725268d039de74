"""What the page says of attacks that reconstruct nothing: for each run and figure the value, its interval and its base.

    lead(runs)                                # for each attack the run in which it finds most
    overview(runs).rows                       # of each run and figure, with utility and bytes

Figures are those that summaries go by, of all victims together or of the worst one where an attack has none over all.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from attacks.figure import Figure
from attacks.registry import ATTACKS, RECONSTRUCTION
from attacks.view import ALL, threat_models
from experiments.reporting.frames import attack_name, figure_frame, over_all, rows_of, run_frame, where_measured
from experiments.reporting.html.charts import Dot, Group
from experiments.reporting.html.model import Chart, Finding, Run, Statement
from experiments.reporting.html.notation import score_text
from experiments.reporting.html.tables import dot_chart
from experiments.reporting.html.words import WORDS, Verdict, verdict
from experiments.reporting.sheets import Column, Sheet
from experiments.reporting.tables import FIGURE, figure_reasons
from experiments.tasks.task import task_of

MOST_CHARTS = 4


def measured(run: Run) -> list[Figure]:
    """The figures of a run that summaries go by, as far as they were measured."""
    return [one for one in over_all(run.record.figures) if not one.reason]


def lead(runs: Sequence[Run]) -> list[str]:
    """For each attack the run in which it finds most, by what it adds to its base, and the one in which it finds least."""
    lines = []
    for key in dict.fromkeys(one.key for run in runs for one in measured(run)):
        attack, _, metric = key.partition(".")
        if attack in ATTACKS and metric != next(iter(ATTACKS[attack].metrics)):
            continue  # an attack is summed up by its first metric
        found = sorted(
            ((run, one) for run in runs for one in measured(run) if one.key == key), key=lambda pair: -pair[1].advantage
        )
        lines.append(f"{attack} finds most in “{found[0][0].name}”: {_sentence(found[0][0], found[0][1])}")
        (run, least), (_, most) = found[-1], found[0]
        if run is not found[0][0]:
            apart = least.estimate.high < most.estimate.low or least.estimate.low > most.estimate.high
            tail = "" if apart else " No interval lies apart from the other's."
            lines.append(f"It finds least in “{run.name}”: {_sentence(run, least)}{tail}")
    if untouched := [run.name for run in runs if run.record.attacked and not measured(run)]:
        lines.append(f"Nothing could be attacked in {', '.join(untouched)}; the reason is given with the run.")
    return lines


def _sentence(run: Run, one: Figure) -> str:
    whose = "all victims together" if one.victim == ALL else one.victim
    words = _against_base(run, one)
    tail = f": {WORDS[run.record.spec.task].verdicts[words][1]}" if words else ""
    return f"{_stated(one)}, of {whose} under {attack_name(one.threat_model, one.leak)}{tail}."


def _stated(one: Figure) -> str:
    base = "" if one.baseline is None else f", where the base is {one.baseline.value:.3f}"
    return f"{one.label.replace('_', ' ')} {score_text(one.estimate)}{base}"


def _against_base(run: Run, one: Figure) -> Verdict | None:
    """What the interval says of the base, turned round where less is worse; None without a base."""
    if one.baseline is None:
        return None
    found = verdict(one.estimate, one.baseline.value)
    turned: dict[Verdict, Verdict] = {"above": "below", "open": "open", "below": "above"}
    return turned[found] if one.less_is_worse else found


def card_findings(run: Run) -> tuple[Finding, ...]:
    """What each attack but reconstruction found in a run under each threat model, in sentences."""
    found: dict[str, list[Statement]] = {}
    for one in measured(run):
        if one.attack == RECONSTRUCTION:
            continue
        place = f"{one.threat_model}, {one.attack}"
        whose = "all victims together" if one.victim == ALL else one.victim
        found.setdefault(place, []).append(Statement(f"{_stated(one)}; of {whose}.", _against_base(run, one)))
    reasons = tuple(map(Statement, figure_reasons(run.record)))
    if not measured(run) and reasons and not run.record.leakage:
        return (Finding("every threat model", reasons),)
    return tuple(Finding(place, tuple(statements)) for place, statements in found.items())


def adversaries(runs: Sequence[Run]) -> Sheet | None:
    """Each attack and threat model once, with the runs that they were made on; None when none was."""
    attacked: dict[tuple[str, str, str], list[str]] = {}
    for run in runs:
        lines = threat_models(run.record.spec.task)
        for one in run.record.figures:
            known = lines.get(one.threat_model)
            about = known.lines[run.record.spec.task] if known else ""
            does = ATTACKS[one.attack].about if one.attack in ATTACKS else "an attack that is not installed"
            attacked.setdefault((one.attack, does, f"{one.threat_model}: {about}"), []).append(run.name)
    rows = tuple((*key, "; ".join(dict.fromkeys(names))) for key, names in attacked.items())
    heads = ("attack", "what it does", "who attacks", "runs")
    return Sheet("The adversaries", tuple(map(Column, heads)), rows) if rows else None


def overview(runs: Sequence[Run]) -> Sheet:
    """A row for each run and figure, what adds most to its base first, beside utility and bytes."""
    records = {run.name: run.record for run in runs}
    task = task_of(runs[0].record.spec)
    costs = {row["run"]: {name: row[name] for name in (task.metric, "bytes")} for row in rows_of(run_frame(records))}
    rows = rows_of(where_measured(figure_frame(records, over_all)))
    rows.sort(key=lambda row: -row["advantage"])
    rows += [{"run": run.name, "attack": "not attacked"} for run in runs if not run.record.attacked]
    frame = pd.DataFrame([row | costs[row["run"]] for row in rows], dtype=object)
    heads = {
        "run": "run", "attack": "attack", "threat_model": "threat model", "victim": "victim", **FIGURE,
        "baseline": Column("base", "exact"), "attainable": Column("max", "exact"),
        task.metric: Column(f"test {task.label(task.metric)}", "score"), "bytes": "MiB",
    }  # fmt: skip
    title = "Utility, what attacks found, and bytes; what adds most to its base first"
    return Sheet.of(title, frame, heads, notes=_reasons(runs))


def _reasons(runs: Sequence[Run]) -> list[str]:
    """Why figures were not measured, each reason once, behind the runs that it holds for where these are not all."""
    found: dict[str, list[str]] = {}
    for run in runs:
        for line in figure_reasons(run.record):
            found.setdefault(line, []).append(run.name)
    return [line if len(names) == len(runs) else f"{', '.join(names)}: {line}" for line, names in found.items()]


def charts(identity: str, runs: Sequence[Run]) -> tuple[Chart, ...]:
    """The figures of each attack as dots with their intervals; of those that can be below zero, the tables alone tell."""
    keys = dict.fromkeys(one.key for run in runs for one in measured(run))
    shown = [
        key for key in keys if all(one.estimate.low >= 0 for run in runs for one in measured(run) if one.key == key)
    ]
    return tuple(
        dot_chart(f"{identity}-attack{number}", key, "upright bar: base", [_group(run, key) for run in runs], "value")
        for number, key in enumerate(shown[:MOST_CHARTS])
    )


def _group(run: Run, key: str) -> Group:
    own = [one for one in measured(run) if one.key == key]
    marks = list(dict.fromkeys(one.threat_model for one in own))
    dots = [
        Dot(
            ", ".join(part for part in (attack_name(one.threat_model, one.leak), one.variant) if part),
            score_text(one.estimate),
            one.estimate,
            one.baseline.value if one.baseline else None,
            marks.index(one.threat_model),
        )
        for one in own
    ]
    return Group(run.name, tuple(dots), "" if dots else "not measured" if run.record.attacked else "not attacked")
