"""The same federation under several defenses, side by side: utility, leakage by threat model, bytes, seconds."""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.table import Table

from attacks.reconstruction.leakage import Leakage, headline_rows
from attacks.update_recovery import UpdateRecovery
from attacks.view import ALL, THREAT_MODELS
from defenses.options import check_defense
from defenses.transport import make_transport
from experiments.cli.progress import Observe
from experiments.reporting.convergence import convergence, relative_cost
from experiments.reporting.picture import BLUE, GREEN, GREY, ORANGE
from experiments.reporting.tables import INFERENCE_TITLE, attainable, inferences_of, make_table, protection_lines
from experiments.runs.record import Record, read_if_of, write_atomically
from experiments.runs.recovery import Unlearning, recovered_from_unlearning, recovery_table
from experiments.runs.run import check_run, execute
from experiments.runs.spec import Spec
from experiments.runs.stored import encode_stored
from experiments.runs.writing import refused
from fkgsec.data.graph import FederatedGraph
from fkgsec.errors import RunError, SpecError
from fkgsec.estimate import Estimate
from fkgsec.exchange import MakeTransport
from fkgsec.federation.loop import run_identity
from fkgsec.federation.options import replace
from fkgsec.federation.recipes import RECIPES

SCHEMA = "fkgsec/comparison/1"
COLOURS = (ORANGE, GREEN, BLUE, GREY)
COMPARISON_FILE, PICTURE_FILE = "comparison.json", "comparison.png"
DEFAULT_CASES = (
    "none",
    "fedr",
    "secagg",
    "psu,secagg",
    "psu,secagg,dp:unit=row,clip=0.1,epsilon=1000",
    "psu,secagg,dp:unit=row,clip=0.1,epsilon=10",
)


class Case(msgspec.Struct, frozen=True):
    """One configuration: how the user called it, its record, and what is known of a victim's change when clients then unlearn."""

    name: str
    record: Record
    unlearned: list[UpdateRecovery] = []


class Comparison(msgspec.Struct, frozen=True):
    """All of them; the first is what the others are compared with. `unlearning` is of what was unlearnt, empty if nothing was."""

    schema: str
    cases: list[Case]
    unlearning: str = ""


def read_comparison(path: Path) -> Comparison | None:
    """The comparison in a file; None when the file is something else. Raises `RunError` when it cannot be read."""
    return read_if_of(path, SCHEMA, Comparison)


def case_spec(spec: Spec, name: str) -> Spec:
    """The spec of a case: "none", an algorithm, a defense, or algorithm/defense.

    Raises `SpecError` for a name that is none of these.
    """
    algorithm, slash, defense = name.strip().partition("/")
    if not slash and not algorithm:
        raise SpecError("case: an empty name; write none for no defense")
    if not slash:
        algorithm, defense = (name, "") if name in RECIPES else (spec.algorithm, "" if name == "none" else name)
    if algorithm not in RECIPES:
        raise SpecError(f"case: {algorithm!r} is no algorithm; allowed: {', '.join(RECIPES)}")
    changed = replace(spec, algorithm=algorithm, defense=defense)
    check_defense(changed)
    return changed


def compare(
    spec: Spec,
    graph: FederatedGraph,
    folder: Path,
    cases: Sequence[str],
    *,
    observe: Observe,
    overwrite: bool = False,
    unlearning: Unlearning | None = None,
    exchange: MakeTransport = make_transport,
) -> Comparison:
    """Train and attack every case in a folder of its own; finished ones are read back, a killed one goes on.

    Args:
        observe: gives each case its observer. unlearning: what every case is to forget afterwards.
        overwrite: write over a finished comparison of other cases or options; what is trained already is only attacked anew.
        exchange: how tables cross; tests and experiments give one with an adversary in it.

    Raises:
        RunError: the folder has a finished comparison of something else.
        SpecError, ThreatModelError: a case that is named twice or makes no sense, before anything is trained.
    """
    if spec.defense:
        raise SpecError("defense does not apply to a comparison, whose cases name defenses; leave it out")
    specs: dict[str, Spec] = {}
    for name in cases:
        made = case_spec(spec, name)
        same = [other for other, known in specs.items() if known == made]
        if same or name in specs:
            raise SpecError(f"case: {name!r} is the same run as {(same or [name])[0]!r}; name each once")
        check_run(made, graph, attack=True)
        specs[name] = made
    asked = unlearning.digest if unlearning else ""
    if (folder / COMPARISON_FILE).exists() and not overwrite:
        found = _finished(folder / COMPARISON_FILE, specs, graph)
        if found.unlearning == asked:
            return found
        raise refused(folder / COMPARISON_FILE, "unlearnt something else, or nothing")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{folder}: cannot be made ({error.strerror})") from error
    done = []
    for name, one in specs.items():
        with observe(one, name) as observer:
            finished = execute(
                one, graph, folder / folder_name(name), attack=True, observer=observer, overwrite=overwrite,
                exchange=exchange,
            )  # fmt: skip
            run = folder / folder_name(name)
            updates = recovered_from_unlearning(run, one, unlearning, exchange, observer) if unlearning else []
        done.append(Case(name, finished.record, updates))
    comparison = Comparison(SCHEMA, done, asked)
    content = encode_stored(comparison)
    write_atomically(folder / PICTURE_FILE, draw_comparison(comparison))
    write_atomically(folder / COMPARISON_FILE, content)
    return comparison


def update_table(comparison: Comparison) -> Table:
    """Update recovery in the best round of each case, and in the round in which clients unlearnt where they did."""
    rounds = [
        (case.name, kind, updates)
        for case in comparison.cases
        for kind, updates in (("training", case.record.update_recovery), ("unlearning", case.unlearned))
    ]
    return recovery_table(rounds)


def default_folder(spec: Spec, graph: FederatedGraph) -> Path:
    """runs/compare-<data>-<8 digits of options and data>: the same comparison finds its own folder again."""
    digest = hashlib.sha256(
        msgspec.json.encode([run_identity(graph, spec.federation_options()), spec.attack_options()])
    )
    return Path("runs") / f"compare-{Path(graph.name).stem}-{digest.hexdigest()[:8]}"


def _finished(path: Path, specs: Mapping[str, Spec], graph: FederatedGraph) -> Comparison:
    """The comparison in a file. Raises `RunError` when it is not of these cases, options and data."""
    found = read_comparison(path)
    cases = {} if found is None else {case.name: case.record for case in found.cases}
    same = {name: record.spec.settled() for name, record in cases.items()} == {
        name: spec.settled() for name, spec in specs.items()
    }
    if found is None or not same or any(record.data.hash != graph.hash for record in cases.values()):
        raise refused(path, f"compares other cases, options or data ({', '.join(cases) or 'none'})")
    return found


def folder_name(case: str) -> str:
    """The case as a folder's name.

    >>> folder_name("fedr/psu,secagg"), folder_name("dp:clip=0.5"), folder_name("fede-svd+")
    ('fedr-psu-secagg', 'dp-clip-0.5', 'fede-svd+')
    """
    return re.sub(r"[^\w.+]+", "-", case).strip("-")


def comparison_table(comparison: Comparison) -> Table:
    """A row for each case and threat model, by the strongest inference; base is the best guess without what crossed, max the
    most that the adversary's names and relations can give."""
    leaks = {row.leak for case in comparison.cases for row in case.record.leakage}
    at = f" (leak {min(leaks):g})" if len(leaks) == 1 else ""
    table = make_table(
        f"Leakage of all victims together{at}", "case", "threat", "ERR", "base", "max", "TRR", "base", "max"
    )
    for case in comparison.cases:
        name = case.name.replace(",", ",\n")
        for row in pooled(case.record):
            figures = ["n/a"] * 6 if row.reason else [
                _margin(row.err), _short(row.err.value - row.err_advantage), attainable(row.err_attainable),
                _margin(row.trr), _short(row.trr.value - row.trr_advantage), attainable(row.trr_attainable),
            ]  # fmt: skip
            threat = row.threat_model if at else f"{row.threat_model} {row.leak:g}"
            table.add_row(name, threat.replace("+", "+\n"), *figures)
            name = ""
    return table


def mixed_temperatures(records: Iterable[Record]) -> bool:
    """Whether negatives are weighed alike in some runs and by their scores in others, which tells on utility and leakage."""
    return len({record.spec.sampling_temperature for record in records}) > 1


def temperature_remark(records: Mapping[str, Record]) -> str | None:
    """A sentence that parts runs by the temperature of their negatives; None where it is the same in all.

    Args:
        records: by the name of the run.
    """
    if not mixed_temperatures(records.values()):
        return None
    names: dict[float, list[str]] = {}
    for name, record in records.items():
        names.setdefault(record.spec.sampling_temperature, []).append(name)
    parts = "; ".join(f"{temperature:g} in {', '.join(which)}" for temperature, which in sorted(names.items()))
    return f"Not trained alike: the temperature of negatives is {parts} (0 weighs all alike)."


def inference_table(comparison: Comparison) -> Table:
    """TRR of all victims together by each inference, which the strongest of the first table is chosen from."""
    rows = [over_all(case.record.leakage) for case in comparison.cases]
    names = inferences_of(row for group in rows for row in group)
    table = make_table(INFERENCE_TITLE, "case", "threat", *names, "prior", "strongest")
    for case, group in zip(comparison.cases, rows, strict=True):
        by_name = {(row.threat_model, row.leak, row.inference): row for row in group}
        first = case.name.replace(",", ",\n")
        for best in pooled(case.record):
            found = [by_name.get((best.threat_model, best.leak, name)) for name in names]
            cells = ["n/a" if row is None or row.reason else _short(row.trr.value) for row in found]
            last = ["n/a", "–"] if best.reason else [_short(best.trr_prior.value), best.trr_by or "–"]
            table.add_row(first, f"{best.threat_model} {best.leak:g}".replace("+", "+\n"), *cells, *last)
            first = ""
    return table


def protection_by_case(comparison: Comparison) -> list[str]:
    """What the defenses protect, each sentence once; behind the case's name where it is of one case alone."""
    owners: dict[str, list[str]] = {}
    for case in comparison.cases:
        for line in protection_lines(case.record):
            owners.setdefault(line, []).append(case.name)
    return [line if len(names) > 1 else f"{names[0]}: {line}" for line, names in owners.items()]


def _margin(figure: Estimate) -> str:
    """The value and the wider half of its interval; both bounds are in the record."""
    half = max(figure.value - figure.low, figure.high - figure.value)
    return f"{_short(figure.value)} ±{_short(half)}"


def _short(share: float) -> str:
    return f"{share:.3f}".removeprefix("0")


def convergence_table(comparison: Comparison) -> Table:
    """Test MRR, bytes and seconds; rounds and bytes to convergence, and bytes to 98 % and 99 % of the first case's MRR over
    those that it took."""
    first = comparison.cases[0]
    table = make_table(
        f"Utility, cost, convergence by validation MRR (P@98, P@99: bytes to that share of {first.name}'s, over its own)",
        "case", "MRR", "MiB", "s", "R@CG", "MRR@CG", "P@CG MiB", "P@98", "P@99",
    )  # fmt: skip
    for case in comparison.cases:
        record, found = case.record, convergence(case.record)
        size, seconds = (record.bytes.up + record.bytes.down) / 2**20, sum(entry.seconds for entry in record.rounds)
        shares = [relative_cost(record, first.record, share) for share in (0.98, 0.99)]
        table.add_row(
            case.name.replace(",", ",\n"),
            _short(record.utility["mrr"].value) if record.utility["mrr"].n else "–",
            f"{size:.1f}" if size >= 10 else f"{size:.2f}",
            f"{seconds:.0f}" if seconds >= 10 else f"{seconds:.1f}",
            str(found.round),
            "–" if found.mrr is None else f"{found.mrr:.4f}",
            f"{found.num_bytes / 2**20:.2f}",
            *("–" if share is None else f"{share:.4g}x" for share in shares),
        )
    return table


def pooled(record: Record) -> list[Leakage]:
    """The headline rows over all victims; those of the one victim where there is but one."""
    return over_all(headline_rows(record.leakage))


def over_all(rows: list[Leakage]) -> list[Leakage]:
    """Of these rows those over all victims; all of them where there is but one victim."""
    return [row for row in rows if row.victim == ALL] or rows


def draw_comparison(comparison: Comparison) -> bytes:
    """A PNG: MRR, ERR and TRR by threat model beside their baselines, bytes and seconds; a row for each case."""
    cases = comparison.cases
    figure = Figure(figsize=(14, 1.8 + 0.7 * len(cases)), layout="constrained")
    utility, err, trr, size, seconds = figure.subplots(1, 5, sharey=True, width_ratios=[2, 3, 3, 1.5, 1.5])
    places = list(range(len(cases)))[::-1]
    figures = [case.record.utility["mrr"] for case in cases]
    errors = [[f.value - f.low for f in figures], [f.high - f.value for f in figures]]
    utility.barh(
        places, [f.value for f in figures], height=0.6, color=GREY, xerr=errors, error_kw={"lw": 1, "capsize": 2}
    )
    utility.set(xlabel="test MRR (filtered)", title="Utility")
    _draw_leakage(err, places, cases, "err")
    _draw_leakage(trr, places, cases, "trr")
    num_bytes = [(case.record.bytes.up + case.record.bytes.down) / 2**20 for case in cases]
    size.barh(places, num_bytes, height=0.6, color=GREY)
    size.set(xlabel="MiB in all", title="Bytes")
    seconds.barh(places, [sum(entry.seconds for entry in case.record.rounds) for case in cases], height=0.6, color=GREY)
    seconds.set(xlabel="s", title="Time")
    utility.set_yticks(places, [case.name.replace(",dp:", ",\ndp:") for case in cases], fontsize=8)
    figure.legend(*err.get_legend_handles_labels(), loc="outside lower center", ncols=5, fontsize=8)
    first = cases[0].record
    figure.suptitle(f"{first.data.name} · {first.spec.model} · {len(first.data.clients)} clients", fontsize=11)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=120)
    return buffer.getvalue()


def _draw_leakage(axes: Axes, places: list[int], cases: list[Case], name: str) -> None:
    """Bars of one rate, a colour for each threat model (its highest leak ratio), a black line at the baseline."""
    rows = [
        {row.threat_model: row for row in sorted(pooled(case.record), key=lambda row: row.leak) if not row.reason}
        for case in cases
    ]
    threats = [threat for threat in THREAT_MODELS if any(threat in found for found in rows)]
    height = 0.8 / max(1, len(threats))
    for number, threat in enumerate(threats):
        shown = [(place, found[threat]) for place, found in zip(places, rows, strict=True) if threat in found]
        at = [place + 0.4 - height * (number + 0.5) for place, _ in shown]
        figures = [getattr(row, name) for _, row in shown]
        errors = [[f.value - f.low for f in figures], [f.high - f.value for f in figures]]
        axes.barh(
            at, [f.value for f in figures], height=0.9 * height, color=COLOURS[number], label=threat,
            xerr=errors, error_kw={"lw": 1, "capsize": 2},
        )  # fmt: skip
        bases = [getattr(row, name).value - getattr(row, f"{name}_advantage") for _, row in shown]
        label = "best guess without the rounds" if number == 0 else "_"
        axes.vlines(bases, [y - height / 2 for y in at], [y + height / 2 for y in at], color="black", lw=2, label=label)
    for place, found in zip(places, rows, strict=True):
        if not found:
            axes.text(0.01, place, "nothing to attack", va="center", fontsize=7, color=GREY)
    axes.set(xlim=(0, 1.02), xlabel="share reconstructed", title=name.upper())
