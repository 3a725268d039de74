"""Report of one or several runs, built from records and per-item scores alone, and its HTML page.

    page = render(assemble(read_runs([Path("runs/fede"), Path("runs/secagg")])))

The page is one file that loads nothing. The same input gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd

from fkgsec.attacks.options import RECONSTRUCTION, threat_models
from fkgsec.attacks.registry import ATTACKS
from fkgsec.experiments.gate import CHECK_FILE
from fkgsec.experiments.gate import SCHEMA as CHECK_SCHEMA
from fkgsec.experiments.gate.judge import Checked
from fkgsec.experiments.gate.verdict_formats import headline_lines, limits_sheet
from fkgsec.experiments.reporting.frames import each_victim, figure_frame, over_all
from fkgsec.experiments.reporting.html.charts import (
    comparison_charts,
    convergence_charts,
    matrix_chart,
    roc_charts,
)
from fkgsec.experiments.reporting.html.sections import SECTIONS
from fkgsec.experiments.reporting.items import RULE, Run, examples_of, rebuilt, relations_sheet, risk_sheets
from fkgsec.experiments.reporting.matrix import has_matrix, matrix
from fkgsec.experiments.reporting.pages import render_page
from fkgsec.experiments.reporting.sheets import (
    Column,
    Sheet,
    count,
    interval,
    mebibytes,
)
from fkgsec.experiments.reporting.tables import clients_sheet, figure_sheet, runs_sheet
from fkgsec.experiments.reporting.verdict import RULE as VERDICT_RULE
from fkgsec.experiments.reporting.verdict import (
    SAYS_NOT,
    SURE,
    adversary,
    comparison_sheets,
    figure_text,
    verdict_of,
    verdict_sheet,
)
from fkgsec.experiments.reporting.words import figure_reasons, protection_lines, temperature_remark
from fkgsec.experiments.reporting.worth import gain_sheet, worth_lines, worth_sheet
from fkgsec.experiments.runs.baseline import alone_among, exchanges, trains_alone
from fkgsec.experiments.runs.record import Record, read_if_of
from fkgsec.experiments.runs.spec import CONSORTIUM
from fkgsec.experiments.runs.stored import encode_stored
from fkgsec.experiments.tasks.task import task_of
from fkgsec.experiments.unlearning.options import AUDIT_FILE
from fkgsec.experiments.unlearning.verification import Verification, read_verification
from fkgsec.federation.options import run_identities
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


POLICY_SAYS_NOT = (
    "A policy judges only the limits and adversaries that it names. "
    "A limit that holds does not prove that nothing leaks."
)
AUDIT_SAYS_NOT = (
    "An audit bounds the share of data that may still be remembered. It does not prove that nothing is remembered."
)


def assemble(
    runs: Sequence[Run], *, examples: bool = True, judged: Sequence[tuple[str, Checked | Verification]] = ()
) -> dict[str, Any]:
    """Assemble the values of the template. Runs on different data become separate federations.

    Args:
        runs: at least one run, with distinct names.
        examples: show triples of the victims.
        judged: verdicts of a policy and audits of forgetting to show first, by name.
    """
    by_data: dict[str, list[Run]] = {}
    for run in runs:
        by_data.setdefault(run.record.data.hash, []).append(run)
    facts = {run.name: _facts(run.record) for run in runs}
    # Facts that all runs share are listed once, the others on each run's card.
    shared = {
        key: value
        for key, value in facts[runs[0].name].items()
        if all(of_run.get(key) == value for of_run in facts.values())
    }
    apart = {name: {key: value for key, value in of_run.items() if key not in shared} for name, of_run in facts.items()}
    names = [group[0].record.data.name for group in by_data.values()]
    # The first digits of the hash distinguish data sets with the same name.
    federations = [
        _federation(
            f"f{number}", f"{name} ({digest[:8]})" if names.count(name) > 1 else name, group, apart, examples=examples
        )
        for number, (name, (digest, group)) in enumerate(zip(names, by_data.items(), strict=True), start=1)
    ]
    tasks = {task.about: task for task in (task_of(run.record.spec) for run in runs)}
    metrics = {
        f"{name}.{metric}": about for name, attack in ATTACKS.items() for metric, about in attack.metrics.items()
    }
    measured = dict.fromkeys(figure.key for run in runs for figure in run.record.figures)
    return {
        "title": f"Privacy report: {', '.join(federation['name'] for federation in federations)}",
        "about": f"{count(len(runs), 'run')} of federated {' and '.join(tasks)}: what leaked, utility and cost",
        "notices": list(_notices(runs, federations)),
        "judged": [
            policy_part(verdict, runs) if isinstance(verdict, Checked) else certificate_part(name, verdict, runs)
            for name, verdict in judged
        ],
        "federations": federations,
        "sections": [(section.title, sheets) for section in SECTIONS.values() if (sheets := section.sheets(runs))],
        "facts": shared,
        "glossary": [
            *GLOSSARY,
            *(LEAK if "kge" in {task.name for task in tasks.values()} else ()),
            *(item for task in tasks.values() for item in task.metrics.items()),
            *((key, metrics[key]) for key in measured if key in metrics),
        ],
        "version": __version__,
    }


def render(report: dict[str, Any]) -> str:
    """Render the page. Every text is escaped; the page's policy allows only the one inline script, by its hash.

    Args:
        report: values of `assemble`.
    """
    return render_page("report.html.j2", report=report, says_not=SAYS_NOT, rule=RULE, verdict_rule=VERDICT_RULE)


def _notices(runs: Sequence[Run], federations: Sequence[dict[str, Any]]) -> Iterator[str]:
    if len(federations) > 1:
        names = ", ".join(federation["name"] for federation in federations)
        yield f"These runs are on {len(federations)} different federations: {names}. Their figures do not compare."
    if any(federation["examples"] or federation["risks"] for federation in federations):
        if all(run.record.spec.data == CONSORTIUM for run in runs):
            yield "The patients on this page are generated. They are not real persons."
        else:
            yield "This page repeats triples of the victims' training data. Keep it as private as the data, or use --no-examples."


def _federation(
    identity: str, name: str, runs: Sequence[Run], facts: dict[str, dict[str, str]], *, examples: bool
) -> dict[str, Any]:
    record, records = runs[0].record, {run.name: run.record for run in runs}
    train, test = (sum(sizes[split] for sizes in record.data.clients.values()) for split in ("train", "test"))
    task = task_of(record.spec)
    figures = {name: record.figures for name, record in records.items()}
    rebuilds = any(figure.attack == RECONSTRUCTION for listed in figures.values() for figure in listed)
    notes = dict.fromkeys(f"{run.name}: {line}" for run in runs for line in figure_reasons(run.record.figures))
    silent = [f"{run.name}: not attacked." for run in runs if not run.record.attacked]
    victims, overview = (_by_advantage(figure_frame(figures, pick)) for pick in (each_victim, over_all))
    # Sorting by advantage puts the most harmful figures first.
    first = "largest excess over the baseline first"
    return {
        "identity": identity,
        "name": name,
        "about": f"{count(len(record.data.clients), 'client')}, {train:,} training and {test:,} test {task.items}",
        # Whether attacks rebuild triples, which have sections of their own.
        "rebuilds": task.name == ATTACKS[RECONSTRUCTION].task and (rebuilds or not any(map(len, figures.values()))),
        "lead": list(_lead(runs)),
        "compared": [worth_sheet(records), *comparison_sheets(records)] if len(runs) > 1 else [],
        **_worth(runs),
        "warnings": dict.fromkeys(warning for run in runs for warning in run.record.data.warnings),
        "cards": [_card(run, facts[run.name]) for run in runs],
        "adversaries": _adversaries(runs),
        "charts": list(comparison_charts(identity, runs)),
        "overview": figure_sheet(overview, f"Figures over all victims; {first}", (*notes, *silent)),
        "utility": runs_sheet(records),
        "matrix": [matrix_chart(identity, matrix(records))] if has_matrix(records) else [],
        "victims": figure_sheet(victims, f"Figures of each victim; {first}") if len(victims) else None,
        "rocs": list(roc_charts(identity, runs)),
        "risks": risk_sheets(runs) if examples else (),
        "relations": list(filter(None, map(relations_sheet, runs))),
        "curves": list(convergence_charts(identity, runs)),
        "examples": list(filter(None, map(examples_of, runs))) if examples else [],
        "without_scores": [run.name for run in runs if rebuilt(run.record) and run.scores is None],
        "clients": clients_sheet(record),
    }


def _worth(runs: Sequence[Run]) -> dict[str, Any]:
    """Return the gains over the same clients alone, and the names of runs without such a run for comparison."""
    # A report may also contain the run of the clients alone itself.
    others = [run.record for run in runs if trains_alone(run.record.spec)]
    joined = [run for run in runs if exchanges(run.record.spec) and run.record.items is not None]
    pairs = {
        run.name: (run.record, alone)
        for run in joined
        if (alone := run.alone or alone_among(run.record, others)) and alone.items is not None
    }
    return {
        "gains": gain_sheet(pairs) if pairs else None,
        "worth": [
            f"{name}: {'. '.join(worth_lines([pair]))}" if len(pairs) > 1 else ". ".join(worth_lines([pair]))
            for name, pair in pairs.items()
        ],
        "without_alone": [run.name for run in joined if run.name not in pairs],
    }


def _by_advantage(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.sort_values("advantage", ascending=False, kind="stable", na_position="last")


def _lead(runs: Sequence[Run]) -> Iterator[str]:
    """State how the runs differ."""
    if len(runs) > 1:
        specs = [run.record.spec.document() for run in runs]
        shared = [name for name in specs[0] if all(name in spec for spec in specs)]
        names = [name for name in shared if any(spec[name] != specs[0][name] for spec in specs)]
        yield f"The runs differ in: {', '.join(names)}." if names else "All runs have the same options."
    if remark := temperature_remark({run.name: run.record for run in runs}):
        yield f"{remark} Utility and leakage differ for that reason, too."


def _card(run: Run, facts: dict[str, str]) -> dict[str, Any]:
    """Summarize a run with its provenance. `facts` are those that not all runs of the report share."""
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
    return {
        "name": run.name,
        "about": f"{spec.algorithm}, {task.network(spec)}, {f'defense {spec.defense}' if spec.defense else 'no defense'}",
        "verdict": judged,
        "sheet": verdict_sheet(judged, "Verdict", SURE),
        "findings": [(label, figure_text(figure), adversary(figure)) for label, figure in judged.measured],
        "utility": " ".join(utility),
        "cost": f"{mebibytes(record.bytes.up)} MiB to the server, {mebibytes(record.bytes.down)} MiB back, "
        f"{count(len(record.rounds) - 1, 'round')}, {seconds:.1f} s on {record.environment.device}.",
        "promises": protection_lines(record),
        "facts": facts,
        "spec": encode_stored(spec).decode(),
    }


def _adversaries(runs: Sequence[Run]) -> Sheet | None:
    """Return each attack and threat model with its runs; None if none was run."""
    attacked: dict[tuple[str, str, str], list[str]] = {}
    for run in runs:
        models = threat_models(run.record.spec.task)
        for figure in run.record.figures:
            model = models.get(figure.threat_model)
            about = model.lines[run.record.spec.task] if model else ""
            does = ATTACKS[figure.attack].about if figure.attack in ATTACKS else "an attack that is not installed"
            attacked.setdefault((figure.attack, does, f"{figure.threat_model}: {about}"), []).append(run.name)
    rows = tuple((*key, "; ".join(dict.fromkeys(names))) for key, names in attacked.items())
    heads = ("attack", "what it does", "who attacks", "runs")
    return Sheet("The adversaries", tuple(map(Column, heads)), rows) if rows else None


def _facts(record: Record) -> dict[str, str]:
    """Return the provenance of a run, and every option that differs from its default."""
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


# Verdicts of a policy, and audits of forgetting.


def read_judged(path: Path) -> Checked | Verification | None:
    """Read the policy's verdict or the audit at a path; None for anything else.

    Args:
        path: a folder of `fkgsec verify`, or a JSON file.

    Raises:
        RunError: the file is damaged.
    """
    if path.is_dir():
        inside = path / AUDIT_FILE
        return read_verification(inside) if inside.is_file() else None
    if path.suffix != ".json" or not path.is_file():
        return None
    return read_if_of(path, CHECK_SCHEMA, Checked) or read_verification(path)


def judged_beside(places: Sequence[Path], runs: Sequence[Run]) -> dict[Path, Checked]:
    """Read the verdicts that `fkgsec check` left next to runs, if they are on the same data; by file.

    Args:
        places: folders or files of the runs.

    Raises:
        RunError: such a file cannot be read.
    """
    # A verdict about other data in the same folder must not appear on this page.
    hashes = {run.record.data.hash for run in runs}
    folders = dict.fromkeys((place if place.is_dir() else place.parent).resolve().parent for place in places)
    verdicts: dict[Path, Checked] = {}
    for file in (folder / CHECK_FILE for folder in folders):
        checked = read_if_of(file, CHECK_SCHEMA, Checked) if file.is_file() else None
        if checked and hashes & {digest for by_seed in checked.data.values() for digest in by_seed.values()}:
            verdicts[file] = checked
    return verdicts


def policy_part(checked: Checked, runs: Sequence[Run]) -> dict[str, Any]:
    """Return a policy's verdict with a row for each limit, and a notice if it was judged on other data.

    Args:
        checked: a policy's verdict.
        runs: the runs of the page.
    """
    judged = {digest for by_seed in checked.data.values() for digest in by_seed.values()}
    foreign = sorted({run.name for run in runs if run.record.data.hash not in judged})
    first, *others = headline_lines(checked)
    notice = (
        f"The policy was judged on other data than {', '.join(foreign)} and does not cover these runs."
        if foreign
        else ""
    )
    return {
        "title": f"Policy {checked.policy}: {checked.status}",
        "sentence": first,
        "lines": tuple(line.strip() for line in others),
        "notice": notice,
        "says_not": POLICY_SAYS_NOT,
        "sheet": limits_sheet(checked, why=True),
    }


def certificate_part(name: str, audit: Verification, runs: Sequence[Run]) -> dict[str, Any]:
    """Return the outcome of an audit with its reasons, and a notice if it audits another run's unlearning.

    Args:
        name: the audit's name on the page.
        audit: a finished audit of unlearning.
        runs: the runs of the page.
    """
    # An audit names the run that it audited by its identity, so a copied folder is recognized, too.
    identities = {
        identity
        for run in runs
        if run.record.spec.task == "kge"
        for identity in run_identities(run.record.data, run.record.spec.federation_options())
    }
    request = ", ".join(f"{client}: {number:,} triples" for client, number in audit.unlearning.asked.items())
    foreign = audit.unlearning.identity not in identities
    return {
        "title": f"Forgetting ({name}): {audit.verdict.outcome}",
        "sentence": f"{audit.verdict.outcome}: {request}, unlearned by {audit.unlearning.options.method}.",
        "lines": (*audit.verdict.reasons, *audit.assumptions, *audit.remarks),
        "notice": "The audited run is not on this page." if foreign else "",
        "says_not": AUDIT_SAYS_NOT,
        "sheet": None,
    }
