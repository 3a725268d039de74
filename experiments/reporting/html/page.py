"""The report of one or several runs: a view model, made from records and per-item scores alone, and its HTML page.

    page = render(assemble(read_runs([Path("runs/fede"), Path("runs/secagg")])))

Nothing is trained or attacked here. The page is one file without network, in the same bytes for the same input.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

import fkgsec
from attacks.reconstruction.leakage import Leakage
from attacks.registry import ATTACKS, RECONSTRUCTION
from attacks.view import ALL
from experiments.gate.judge import Checked
from experiments.reporting.comparison import temperature_remark
from experiments.reporting.frames import attack_name, pooled
from experiments.reporting.html import findings, membership, tables
from experiments.reporting.html.examples import RULE, examples_of
from experiments.reporting.html.model import Card, Federation, Finding, Report, Run, Statement
from experiments.reporting.html.notation import SAYS_NOT, count, mebibytes, score_text
from experiments.reporting.html.ranking import extremes, risk, worst_attack
from experiments.reporting.html.verdicts import judged_part, run_verdicts
from experiments.reporting.html.words import (
    FOUND,
    VERDICTS,
    WORDS,
    adversary,
    base_of,
    cell_order,
    cell_text,
    percent,
    share,
    verdict,
)
from experiments.reporting.matrix import LEGEND, has_matrix, matrix, written
from experiments.reporting.pages import render_page
from experiments.reporting.sheets import interval
from experiments.reporting.tables import protection_lines
from experiments.runs.record import Record
from experiments.runs.spec import CONSORTIUM
from experiments.runs.stored import encode_stored
from experiments.tasks.task import task_of
from experiments.unlearning.verification import Verification
from fkgsec import estimate


def assemble(
    runs: Sequence[Run], *, examples: bool = True, judged: Sequence[tuple[str, Checked | Verification]] = ()
) -> Report:
    """The view model of these runs; those on different data stand in federations of their own.

    Args:
        runs: at least one, with names that differ. examples: whether to show triples of the victims. judged: by name the
            verdicts of a policy and audits of forgetting to show before everything else.
    """
    by_data: dict[str, list[Run]] = {}
    for run in runs:
        by_data.setdefault(run.record.data.hash, []).append(run)
    facts = {run.name: _facts(run.record) for run in runs}
    first = facts[runs[0].name]
    common = {key: value for key, value in first.items() if all(own.get(key) == value for own in facts.values())}
    apart = {name: {key: value for key, value in own.items() if key not in common} for name, own in facts.items()}
    names = [group[0].record.data.name for group in by_data.values()]
    tasks = dict.fromkeys(task_of(run.record.spec).about for run in runs)
    words = [WORDS[name] for name in dict.fromkeys(run.record.spec.task for run in runs)]
    federations = []
    for number, (digest, group) in enumerate(by_data.items(), start=1):
        name = group[0].record.data.name
        name = f"{name} ({digest[:8]})" if names.count(name) > 1 else name
        federations.append(_federation(f"f{number}", name, group, apart, examples=examples))
    return Report(
        title=f"Privacy report: {', '.join(one.name for one in federations)}",
        about=f"{count(len(runs), 'run')} of federated {' and '.join(tasks)}: how good, what leaked, what it cost",
        notices=tuple(_notices(runs, federations)),
        judged=tuple(judged_part(name, made, runs) for name, made in judged),
        federations=tuple(federations),
        facts=tuple(common.items()),
        glossary=tuple(dict.fromkeys(term for one in words for term in one.glossary)),
        example_rule=RULE,
        version=fkgsec.__version__,
    )


def render(report: Report, *, back: str = "") -> str:
    """The page. Every text is escaped; the one script is inline and named by its hash in the page's own policy.

    Args:
        back: an address that it links to first, where it is a page among others.
    """
    heat = {"legend": LEGEND, "written": written, "interval": interval}
    return render_page(
        "report.html.j2", report=report, back=back, says_not=SAYS_NOT, text=cell_text, order=cell_order, heat=heat
    )


def _notices(runs: Sequence[Run], federations: Sequence[Federation]) -> list[str]:
    """What a reader must know before anything else."""
    notices = []
    if len(federations) > 1:
        notices.append(
            f"These runs are on {len(federations)} different federations: {', '.join(one.name for one in federations)}. "
            "Their figures do not compare; each has sections of its own."
        )
    if any(one.examples or one.risks for one in federations):
        if all(run.record.spec.data == CONSORTIUM for run in runs):
            notices.append("The patients on this page are generated; they are nobody.")
        else:
            notices.append(
                "This page repeats triples of the victims' training data. Keep it as you keep the data, or make it again with "
                "--no-examples."
            )
    return notices


def _federation(
    identity: str, name: str, runs: Sequence[Run], facts: dict[str, dict[str, str]], *, examples: bool
) -> Federation:
    record, records = runs[0].record, {run.name: run.record for run in runs}
    train, test = (sum(sizes[split] for sizes in record.data.clients.values()) for split in ("train", "test"))
    task = task_of(record.spec)
    rebuilt, attacked = (any(getattr(run.record, name) for run in runs) for name in ("leakage", "attacked"))
    # Sections on rebuilt triples; runs that other attacks alone were made on have the sections of any attack.
    rebuilds = task.name == ATTACKS[RECONSTRUCTION].task and (rebuilt or not attacked)
    return Federation(
        identity=identity,
        name=name,
        about=f"{count(len(record.data.clients), 'client')}, {train:,} training and {test:,} test {task.items}",
        rebuilds=rebuilds,
        words=WORDS[task.name],
        verdicts=tuple(run_verdicts(runs)),
        lead=(*(_lead(runs) if rebuilds else _plain_lead(runs)), *_differences(runs)),
        warnings=tuple(dict.fromkeys(warning for run in runs for warning in run.record.data.warnings)),
        cards=tuple(_card(run, facts[run.name]) for run in runs),
        adversaries=tables.adversaries(runs) if rebuilds else findings.adversaries(runs),
        charts=(
            *(tables.overview_charts(identity, runs) if rebuilds else findings.charts(identity, runs)),
            *tables.cost_charts(identity, runs),
        ),
        overview=tables.overview(runs) if rebuilds else findings.overview(runs),
        matrix=matrix(records) if has_matrix(records) else None,
        victims=tables.victims(runs),
        inferences=tables.inferences(runs),
        unlinked=tables.unlinked(runs),
        other_attacks=tables.other_attacks(runs),
        rocs=membership.roc_charts(identity, runs),
        risks=membership.risk_sheets(runs) if examples else (),
        relations=tuple(table for run in runs if (table := tables.relations(run)) is not None),
        curves=tables.convergence_charts(identity, runs),
        convergence=tables.convergence_table(runs),
        examples=tuple(found for run in runs if examples and (found := examples_of(run)) is not None),
        without_scores=tuple(run.name for run in runs if run.record.leakage and run.scores is None),
        clients=tables.clients(record),
    )


def _lead(runs: Sequence[Run]) -> list[str]:
    """The runs whose worst attack is the worst and the mildest where they can be told apart, and those without one."""
    attacked = [(run, row) for run in runs if (row := worst_attack(run.record)) is not None]
    lines = _ranking(attacked) if attacked else []
    reached = {run.name for run, _ in attacked}
    if untouched := [run.name for run in runs if run.record.leakage and run.name not in reached]:
        lines.append(f"Nothing could be attacked in {', '.join(untouched)}; the reason is given with the run.")
    if quiet := [run.name for run in runs if not run.record.attacked]:
        lines.append(f"Not attacked: {', '.join(quiet)}. What leaks there is not known.")
    return lines


def _plain_lead(runs: Sequence[Run]) -> list[str]:
    """What attacks that rebuild nothing found, and the runs that were not attacked."""
    lines = findings.lead(runs)
    if plain := [run.name for run in runs if not run.record.attacked]:
        lines.append(f"Not attacked, so nothing is known of what leaks: {', '.join(plain)}.")
    return lines


def _ranking(attacked: Sequence[tuple[Run, Leakage]]) -> list[str]:
    """Sentences on the worst attack of each run: most and least, or that all are equal."""
    most, least, untold, apart = extremes([row for _, row in attacked])
    run, row = attacked[most[0]] if most else max(attacked, key=lambda pair: risk(pair[1]))
    attack = attack_name(row.threat_model, row.leak)
    if most:
        lines = [f"Most is at risk in the run “{run.name}”{_like(attacked, most)}, under {attack}. {_outcome(row)}"]
    elif len(attacked) == 1:
        lines = [f"The worst attack on “{run.name}” is {attack}. {_outcome(row)}"]
    elif apart:
        lines = [
            f"Of {len(attacked)} runs that could be attacked, none is most at risk: by the first figure in which two of "
            f"them differ, their order goes round in a circle. In “{run.name}”, under {attack}: {_outcome(row)}"
        ]
    else:
        lines = [
            f"All {len(attacked)} runs that could be attacked are equally at risk, as far as these figures tell: no interval of "
            f"one lies apart from another's. In “{run.name}”, under {attack}: {_outcome(row)}"
        ]
    who, knows, saw = adversary(run.record, row)
    lines.append(f"The adversary there is {who}. Beforehand it knew {knows}. It saw {saw}.")
    if apart and untold:
        names = ", ".join(f"“{attacked[place][0].name}”" for place in untold)
        lines.append(f"No interval tells apart from any other: {names}.")
    if least:
        run, row = attacked[least[0]]
        size = mebibytes(run.record.bytes.up + run.record.bytes.down)
        lines.append(
            f"Of {len(attacked)} runs that could be attacked, least is at risk in “{run.name}”{_like(attacked, least)}; "
            f"its worst attack is {attack_name(row.threat_model, row.leak)}. {_outcome(row)} Its test MRR is "
            f"{score_text(run.record.utility['mrr'])}, and {size} MiB crossed."
        )
    return lines


def _like(attacked: Sequence[tuple[Run, Leakage]], places: Sequence[int]) -> str:
    """The runs that are equal to the first of these."""
    names = [f"“{attacked[place][0].name}”" for place in places[1:]]
    return f" (equal within intervals: {', '.join(names)})" if names else ""


def _outcome(row: Leakage) -> str:
    """What an attack got with the embeddings, and what it would have without them."""
    base = base_of(row, "trr")
    return (
        f"With the embeddings the adversary named {share(row.err)} of the victims' entities, without them "
        f"{percent(base_of(row, 'err'))}, and rebuilt {share(row.trr)} of their training triples, without them "
        f"{percent(base)}: {VERDICTS[verdict(row.trr, base)][1]}."
    )


def _differences(runs: Sequence[Run]) -> list[str]:
    """The options in which runs on the same data differ: what a comparison of them is about."""
    if len(runs) == 1:
        return []
    specs = [run.record.spec.document() for run in runs]
    # A setting that one algorithm alone has differs because the algorithm does.
    shared = [name for name in specs[0] if all(name in spec for spec in specs)]
    names = [name for name in shared if any(spec[name] != specs[0][name] for spec in specs)]
    lines = [f"The runs differ in: {', '.join(names)}." if names else "All runs have the same options."]
    # Records of before hold a temperature that the recipe ignored; what counts is the one that it trained with.
    remark = temperature_remark({run.name: run.record for run in runs})
    return [*lines, f"{remark} Utility and leakage differ by that too."] if remark else lines


def _card(run: Run, facts: dict[str, str]) -> Card:
    record, spec = run.record, run.record.spec
    task = task_of(spec)
    label, reached = task.label(task.metric), record.utility[task.metric]
    leaked, unseen = record.utility_by_leak["leaked"][task.metric], record.unseen[task.metric]
    utility = f"Test {label} {score_text(reached)}." if reached.n else f"No test {task.items}."
    if leaked.n:
        utility += (
            f" {leaked.n:,} of the {reached.n:,} test {task.items} {WORDS[task.name].remembered}; on the {unseen.n:,} "
            f"that no client trains on, as far as is known, the {label} is {score_text(unseen)}."
        )
    if record.utility_shared:
        shared = score_text(record.utility_shared[task.metric])
        utility += f" That is of the models the clients keep; the shared one has {shared}."
    seconds = sum(entry.seconds for entry in record.rounds)
    defense = f"defense {spec.defense}" if spec.defense else "no defense"
    return Card(
        name=run.name,
        about=f"{spec.algorithm}, {task.network(spec)}, {defense}",
        findings=(
            *(Finding(attack_name(row.threat_model, row.leak), tuple(_statements(run, row))) for row in pooled(record)),
            *findings.card_findings(run),
        ),
        utility=utility,
        cost=f"{mebibytes(record.bytes.up)} MiB to the server, {mebibytes(record.bytes.down)} MiB back, "
        f"{count(len(record.rounds) - 1, 'round')}, {seconds:.1f} s on {record.environment.device}.",
        promises=tuple(protection_lines(record)),
        facts=tuple(facts.items()),
        spec=encode_stored(spec).decode(),
    )


def _statements(run: Run, row: Leakage) -> list[Statement]:
    """What one attack found over all victims, in sentences."""
    everybody = row.victim == ALL
    whose, num_victims = "the victims'" if everybody else f"{row.victim}'s", len(run.record.data.clients) - 1
    if row.reason:
        lines = [f"Nothing to attack: {row.reason}. That is not a leakage of zero."]
        if row.err_baseline.value:
            lines.append(
                f"Names that crossed for alignment still give {share(row.err_baseline)} of {whose} entities away."
            )
        return [Statement(line) for line in lines]
    statements = [
        Statement(f"{lead} {share(figure)} of {whose} {figure.n:,} {items}; without embeddings {percent(base)}.",
                  verdict(figure, base))
        for lead, items, figure, base in (
            ("It named", "entities", row.err, base_of(row, "err")),
            ("Told which rows are linked, it rebuilt", "training triples", row.trr, base_of(row, "trr")),
        )
    ]  # fmt: skip
    statements += _sensitive(run, row)
    lines = _without_links(run.record, row)
    if row.sources:
        found = [f"{number:,} {FOUND[source]}" for source, number in row.sources.items()]
        lines.append(f"Rows are summed. Who holds the entities that it named right: {', '.join(found)}.")
    if everybody and row.num_attacked < num_victims:
        lines.append(f"{row.num_attacked} of {num_victims} victims could be attacked.")
    if row.metric == "published":
        lines.append("Counted as FedR's notebooks do (metric published), which is not what the paper defines.")
    return [*statements, *(Statement(line) for line in lines)]


def _sensitive(run: Run, row: Leakage) -> list[Statement]:
    """Rebuilt triples of the relations that the data mark as sensitive, where the scores are there; Wilson's interval."""
    if run.scores is None or not run.record.data.sensitive:
        return []
    triples = tables.attacked_items(run.scores, row, "triple")
    marked = np.isin(triples["relation"], run.record.data.sensitive)
    right = int(triples["right"][marked].sum())
    figure = estimate.proportion(right, int(marked.sum()))
    text = f"Of the {figure.n:,} sensitive ones it rebuilt {right:,}: {share(figure)}"
    if not figure.n:
        return []
    if "base" not in triples:
        return [Statement(f"{text}.")]
    base = float(triples["base"][marked].mean())
    return [Statement(f"{text}; without embeddings {percent(base)}.", verdict(figure, base))]


def _without_links(record: Record, row: Leakage) -> list[str]:
    """The attack that is not told which rows are linked, on the victim where it found most."""
    attack = (row.threat_model, row.leak)
    honest = {
        one.victim: one.unlinked for one in record.leakage if one.unlinked and (one.threat_model, one.leak) == attack
    }
    if not honest:
        return []
    victim, found = max(honest.items(), key=lambda item: item[1].recall.value)
    return [
        f"Not told which rows are linked, it found most at {victim}: {share(found.recall)} of the triples, and was right in "
        f"{share(found.precision)} of its claims."
    ]


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
