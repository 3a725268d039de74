"""The report of one or several runs, made from records and per-item scores alone, and its HTML page.

    page = render(assemble(read_runs([Path("runs/fede"), Path("runs/secagg")])))

The page is one file that loads nothing, in the same bytes for the same input.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec
import pandas as pd

from fkgsec.attacks.options import RECONSTRUCTION, threat_models
from fkgsec.attacks.registry import ATTACKS
from fkgsec.experiments.gate.judge import Checked
from fkgsec.experiments.reporting.frames import each_victim, figure_frame, over_all
from fkgsec.experiments.reporting.html.figures import Chart, convergence_charts, cost_charts, figure_charts, roc_charts
from fkgsec.experiments.reporting.html.verdicts import Judged, judged_part
from fkgsec.experiments.reporting.items import RULE, Examples, Run, examples_of, rebuilt, relations_sheet, risk_sheets
from fkgsec.experiments.reporting.matrix import LEGEND, Matrix, has_matrix, matrix, written
from fkgsec.experiments.reporting.pages import render_page
from fkgsec.experiments.reporting.sheets import (
    Column,
    Sheet,
    cell_order,
    cell_text,
    count,
    interval,
    mebibytes,
    rows_of,
)
from fkgsec.experiments.reporting.tables import clients_sheet, figure_sheet, runs_sheet
from fkgsec.experiments.reporting.verdict import SAYS_NOT, Verdict, figure_text, question_text, verdict_of
from fkgsec.experiments.reporting.words import figure_reasons, protection_lines, temperature_remark
from fkgsec.experiments.runs.record import Record
from fkgsec.experiments.runs.spec import CONSORTIUM
from fkgsec.experiments.runs.stored import encode_stored
from fkgsec.experiments.tasks.task import task_of
from fkgsec.experiments.unlearning.verification import Verification
from fkgsec.version import __version__

GLOSSARY = (
    ("Victim", "a client that does not collude with the adversary. “all” is all victims together."),
    (
        "Baseline (base)",
        "the same figure for the same adversary without access to the training messages. Only what exceeds it leaks.",
    ),
    ("Upper bound (max)", "the largest value the figure can have with what the adversary knows."),
    ("Interval", "95% confidence interval of this training. Several seeds show how much trainings differ."),
    ("Bytes", "length of all serialized messages, both ways, alignment included. An exact count."),
)

LEAK = (("Leak", "share of the colluding client's entity-embedding pairs that the adversary knows."),)


@dataclass(frozen=True)
class Card:
    """A run in short, and its provenance. `facts` are those that not all runs of the report share."""

    name: str
    about: str
    verdict: Verdict
    findings: tuple[tuple[str, str, str], ...]
    utility: str
    cost: str
    promises: tuple[str, ...]
    facts: tuple[tuple[str, str], ...]
    spec: str


@dataclass(frozen=True)
class Federation:
    """The runs on the same data.

    Attributes:
        rebuilds: whether attacks rebuild triples, which have sections of their own.
        without_scores: attacked runs without per-item scores.
    """

    identity: str
    name: str
    about: str
    rebuilds: bool
    lead: tuple[str, ...]
    warnings: tuple[str, ...]
    cards: tuple[Card, ...]
    adversaries: Sheet | None
    charts: tuple[Chart, ...]
    overview: Sheet
    utility: Sheet
    matrix: Matrix | None
    victims: Sheet | None
    rocs: tuple[Chart, ...]
    risks: tuple[Sheet, ...]
    relations: tuple[Sheet, ...]
    curves: tuple[Chart, ...]
    examples: tuple[Examples, ...]
    without_scores: tuple[str, ...]
    clients: Sheet


@dataclass(frozen=True)
class Report:
    """Everything on the page. `facts` are those that all runs share."""

    title: str
    about: str
    notices: tuple[str, ...]
    judged: tuple[Judged, ...]
    federations: tuple[Federation, ...]
    facts: tuple[tuple[str, str], ...]
    glossary: tuple[tuple[str, str], ...]
    version: str


def assemble(
    runs: Sequence[Run], *, examples: bool = True, judged: Sequence[tuple[str, Checked | Verification]] = ()
) -> Report:
    """Assemble the report of these runs; runs on different data stand in federations of their own.

    Args:
        runs: at least one, with names that differ. examples: whether to show triples of the victims. judged: by name the
            verdicts of a policy and audits of forgetting to show first.
    """
    by_data: dict[str, list[Run]] = {}
    for run in runs:
        by_data.setdefault(run.record.data.hash, []).append(run)
    facts = {run.name: _facts(run.record) for run in runs}
    shared = {
        key: value
        for key, value in facts[runs[0].name].items()
        if all(mine.get(key) == value for mine in facts.values())
    }
    apart = {name: {key: value for key, value in mine.items() if key not in shared} for name, mine in facts.items()}
    names = [group[0].record.data.name for group in by_data.values()]
    federations = [
        _federation(
            f"f{number}", f"{name} ({digest[:8]})" if names.count(name) > 1 else name, group, apart, examples=examples
        )
        for number, (name, (digest, group)) in enumerate(zip(names, by_data.items(), strict=True), start=1)
    ]
    tasks = {task.about: task for task in (task_of(run.record.spec) for run in runs)}
    return Report(
        title=f"Privacy report: {', '.join(federation.name for federation in federations)}",
        about=f"{count(len(runs), 'run')} of federated {' and '.join(tasks)}: what leaked, utility and cost",
        notices=tuple(_notices(runs, federations)),
        judged=tuple(judged_part(name, verdict, runs) for name, verdict in judged),
        federations=tuple(federations),
        facts=tuple(shared.items()),
        glossary=(
            *GLOSSARY,
            *(LEAK if "kge" in {task.name for task in tasks.values()} else ()),
            *(item for task in tasks.values() for item in task.metrics.items()),
            *_metrics(runs),
        ),
        version=__version__,
    )


def _metrics(runs: Sequence[Run]) -> list[tuple[str, str]]:
    keys = dict.fromkeys((figure.attack, figure.metric) for run in runs for figure in run.record.figures)
    metrics = {attack: ATTACKS[attack].metrics for attack, _ in keys if attack in ATTACKS}
    return [(f"{attack}.{name}", metrics[attack][name]) for attack, name in keys if name in metrics.get(attack, ())]


def render(report: Report, *, back: str = "") -> str:
    """Render the page. Every text is escaped; the only script is inline and named by its hash in the page's policy.

    Args:
        back: address of a page that it links to first.
    """
    heat = {"legend": LEGEND, "written": written, "interval": interval}
    return render_page(
        "report.html.j2",
        report=report,
        back=back,
        says_not=SAYS_NOT,
        text=cell_text,
        order=cell_order,
        heat=heat,
        rule=RULE,
    )


def _notices(runs: Sequence[Run], federations: Sequence[Federation]) -> Iterator[str]:
    if len(federations) > 1:
        names = ", ".join(federation.name for federation in federations)
        yield f"These runs are on {len(federations)} different federations: {names}. Their figures do not compare."
    if any(federation.examples or federation.risks for federation in federations):
        if all(run.record.spec.data == CONSORTIUM for run in runs):
            yield "The patients on this page are generated. They are not real persons."
        else:
            yield "This page repeats triples of the victims' training data. Keep it as private as the data, or use --no-examples."


def _federation(
    identity: str, name: str, runs: Sequence[Run], facts: dict[str, dict[str, str]], *, examples: bool
) -> Federation:
    record, records = runs[0].record, {run.name: run.record for run in runs}
    train, test = (sum(sizes[split] for sizes in record.data.clients.values()) for split in ("train", "test"))
    task = task_of(record.spec)
    reconstructed = any(figure.attack == RECONSTRUCTION for run in runs for figure in run.record.figures)
    found = {name: record.figures for name, record in records.items()}
    notes = dict.fromkeys(f"{run.name}: {line}" for run in runs for line in figure_reasons(run.record.figures))
    silent = [f"{run.name}: not attacked." for run in runs if not run.record.attacked]
    victims = _by_advantage(figure_frame(found, each_victim))
    overview = _by_advantage(figure_frame(found, over_all))
    return Federation(
        identity=identity,
        name=name,
        about=f"{count(len(record.data.clients), 'client')}, {train:,} training and {test:,} test {task.items}",
        rebuilds=task.name == ATTACKS[RECONSTRUCTION].task and (reconstructed or not any(map(len, found.values()))),
        lead=tuple(_lead(runs)),
        warnings=tuple(dict.fromkeys(warning for run in runs for warning in run.record.data.warnings)),
        cards=tuple(_card(run, facts[run.name]) for run in runs),
        adversaries=_adversaries(runs),
        charts=(*figure_charts(identity, runs), *cost_charts(identity, runs)),
        overview=figure_sheet(
            overview, "Figures over all victims; what adds most to its baseline first", (*notes, *silent)
        ),
        utility=runs_sheet(records),
        matrix=matrix(records) if has_matrix(records) else None,
        victims=figure_sheet(victims, "Figures of each victim; what adds most to its baseline first")
        if len(victims)
        else None,
        rocs=roc_charts(identity, runs),
        risks=risk_sheets(runs) if examples else (),
        relations=tuple(table for run in runs if (table := relations_sheet(run)) is not None),
        curves=convergence_charts(identity, runs),
        examples=tuple(chosen for run in runs if examples and (chosen := examples_of(run)) is not None),
        without_scores=tuple(run.name for run in runs if rebuilt(run.record) and run.scores is None),
        clients=clients_sheet(record),
    )


def _by_advantage(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.sort_values("advantage", ascending=False, kind="stable", na_position="last")


def _lead(runs: Sequence[Run]) -> Iterator[str]:
    """State for each leading figure the run in which attacks add most and least to the baseline, and how the runs differ."""
    frame = pd.concat([verdict_of(run.record.figures).measured.assign(run=run.name) for run in runs])
    for key, rows in frame.assign(key=frame["attack"] + "." + frame["metric"]).groupby("key", sort=False):
        best = rows_of(_by_advantage(rows).drop_duplicates("run"))
        most, least = best[0], best[-1]
        yield f"{key} adds most to its baseline in “{most['run']}”: {figure_text(most)} ({question_text(most)})."
        if least is not most:
            apart = "" if least["high"] < most["low"] or most["high"] < least["low"] else " The two intervals overlap."
            yield f"It adds least in “{least['run']}”: {figure_text(least)} ({question_text(least)}).{apart}"
    if len(runs) > 1:
        specs = [run.record.spec.document() for run in runs]
        shared = [name for name in specs[0] if all(name in spec for spec in specs)]
        names = [name for name in shared if any(spec[name] != specs[0][name] for spec in specs)]
        yield f"The runs differ in: {', '.join(names)}." if names else "All runs have the same options."
    if remark := temperature_remark({run.name: run.record for run in runs}):
        yield f"{remark} Utility and leakage differ for that reason, too."


def _card(run: Run, facts: dict[str, str]) -> Card:
    record, spec = run.record, run.record.spec
    task, judged = task_of(spec), verdict_of(record.figures)
    label, reached = task.label(task.metric), record.utility[task.metric]
    leaked, unseen = record.utility_by_leak["leaked"][task.metric], record.unseen[task.metric]
    utility = [f"Test {label} {interval(reached)}." if reached.n else f"No test {task.items}."]
    if leaked.n:
        utility.append(
            f"{leaked.n:,} of the {reached.n:,} test {task.items} {task.standing}; "
            f"{label} on the other {unseen.n:,}: {interval(unseen)}."
        )
    if record.utility_shared:
        utility.append(f"The shared model: {interval(record.utility_shared[task.metric])}.")
    seconds = sum(entry.seconds for entry in record.rounds)
    return Card(
        name=run.name,
        about=f"{spec.algorithm}, {task.network(spec)}, {f'defense {spec.defense}' if spec.defense else 'no defense'}",
        verdict=judged,
        findings=tuple((row["status"], figure_text(row), question_text(row)) for row in rows_of(judged.measured)),
        utility=" ".join(utility),
        cost=f"{mebibytes(record.bytes.up)} MiB to the server, {mebibytes(record.bytes.down)} MiB back, "
        f"{count(len(record.rounds) - 1, 'round')}, {seconds:.1f} s on {record.environment.device}.",
        promises=tuple(protection_lines(record)),
        facts=tuple(facts.items()),
        spec=encode_stored(spec).decode(),
    )


def _adversaries(runs: Sequence[Run]) -> Sheet | None:
    """Return each attack and threat model with its runs; None when none was run."""
    attacked: dict[tuple[str, str, str], list[str]] = {}
    for run in runs:
        known = threat_models(run.record.spec.task)
        for figure in run.record.figures:
            model = known.get(figure.threat_model)
            about = model.lines[run.record.spec.task] if model else ""
            does = ATTACKS[figure.attack].about if figure.attack in ATTACKS else "an attack that is not installed"
            attacked.setdefault((figure.attack, does, f"{figure.threat_model}: {about}"), []).append(run.name)
    rows = tuple((*key, "; ".join(dict.fromkeys(names))) for key, names in attacked.items())
    heads = ("attack", "what it does", "who attacks", "runs")
    return Sheet("The adversaries", tuple(map(Column, heads)), rows) if rows else None


def _facts(record: Record) -> dict[str, str]:
    """Where a run came from, and every option that is not the default's."""
    where, spec = record.environment, record.spec.document()
    plain = type(record.spec)().settled().document()
    default = msgspec.to_builtins(type(record.spec.settings)()) | plain
    changed = {
        f"option {name}": f"{_option(value)} (default: {_option(default[name])})"
        for name, value in spec.items()
        if value != default[name]
    }
    commit = f"{where.commit}{' with uncommitted changes' if where.dirty else ''}"
    return {
        "command": where.command or "not recorded (run from Python)",
        "seed": str(record.seed),
        "commit": commit if where.commit else "not recorded (outside a checkout)",
        "data": f"{record.data.name}, hash {record.data.hash}",
        "device": f"{where.device}, {count(where.threads, 'thread')}",
        "platform": f"{where.platform}, Python {where.python}",
        "versions": ", ".join(f"{name} {version}" for name, version in where.versions.items()),
        "record": record.schema,
        **changed,
    }


def _option(value: object) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(str(item) for item in value) or "none"
    return "none" if value is None or value == "" else str(value)
