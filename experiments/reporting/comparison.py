"""Runs on the same federation side by side, in the terminal and as a picture. Each function takes the records by name of the run.

records = {case.name: case.record for case in comparison.cases}
print_tables(console, [*leakage_tables(records), convergence_table(records)])
Path("comparison.png").write_bytes(draw_comparison(records))
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.table import Table

from attacks.reconstruction.leakage import Leakage, headline_rows
from attacks.view import ALL, THREAT_MODELS
from experiments.reporting.convergence import convergence, relative_cost
from experiments.reporting.picture import BLUE, GREEN, GREY, ORANGE
from experiments.reporting.tables import INFERENCE_TITLE, attainable, inferences_of, make_table, protection_lines
from experiments.runs.record import Record
from fkgsec.estimate import Estimate

COLOURS = (ORANGE, GREEN, BLUE, GREY)


def leakage_tables(records: Mapping[str, Record]) -> list[Table]:
    """What leaked in each run of all victims together, and by which inference."""
    return [comparison_table(records), inference_table(records)]


def comparison_table(records: Mapping[str, Record]) -> Table:
    """A row for each case and threat model, by the strongest inference; base is the best guess without what crossed, max the
    most that the adversary's names and relations can give."""
    leaks = {row.leak for record in records.values() for row in record.leakage}
    at = f" (leak {min(leaks):g})" if len(leaks) == 1 else ""
    table = make_table(
        f"Leakage of all victims together{at}", "case", "threat", "ERR", "base", "max", "TRR", "base", "max"
    )
    for case, record in records.items():
        name = case.replace(",", ",\n")
        for row in pooled(record):
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


def inference_table(records: Mapping[str, Record]) -> Table:
    """TRR of all victims together by each inference, which the strongest of the first table is chosen from."""
    rows = [over_all(record.leakage) for record in records.values()]
    names = inferences_of(row for group in rows for row in group)
    table = make_table(INFERENCE_TITLE, "case", "threat", *names, "prior", "strongest")
    for (case, record), group in zip(records.items(), rows, strict=True):
        by_name = {(row.threat_model, row.leak, row.inference): row for row in group}
        first = case.replace(",", ",\n")
        for best in pooled(record):
            found = [by_name.get((best.threat_model, best.leak, name)) for name in names]
            cells = ["n/a" if row is None or row.reason else _short(row.trr.value) for row in found]
            last = ["n/a", "–"] if best.reason else [_short(best.trr_prior.value), best.trr_by or "–"]
            table.add_row(first, f"{best.threat_model} {best.leak:g}".replace("+", "+\n"), *cells, *last)
            first = ""
    return table


def protection_by_case(records: Mapping[str, Record]) -> list[str]:
    """What the defenses protect, each sentence once; behind the case's name where it is of one case alone."""
    owners: dict[str, list[str]] = {}
    for case, record in records.items():
        for line in protection_lines(record):
            owners.setdefault(line, []).append(case)
    return [line if len(names) > 1 else f"{names[0]}: {line}" for line, names in owners.items()]


def _margin(figure: Estimate) -> str:
    """The value and the wider half of its interval; both bounds are in the record."""
    half = max(figure.value - figure.low, figure.high - figure.value)
    return f"{_short(figure.value)} ±{_short(half)}"


def _short(share: float) -> str:
    return f"{share:.3f}".removeprefix("0")


def convergence_table(records: Mapping[str, Record]) -> Table:
    """Test MRR, bytes and seconds; rounds and bytes to convergence, and bytes to 98 % and 99 % of the first case's MRR over
    those that it took."""
    first, baseline = next(iter(records.items()))
    table = make_table(
        f"Utility, cost, convergence by validation MRR (P@98, P@99: bytes to that share of {first}'s, over its own)",
        "case", "MRR", "MiB", "s", "R@CG", "MRR@CG", "P@CG MiB", "P@98", "P@99",
    )  # fmt: skip
    for case, record in records.items():
        found = convergence(record)
        size, seconds = (record.bytes.up + record.bytes.down) / 2**20, sum(entry.seconds for entry in record.rounds)
        shares = [relative_cost(record, baseline, share) for share in (0.98, 0.99)]
        table.add_row(
            case.replace(",", ",\n"),
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


def draw_comparison(records: Mapping[str, Record]) -> bytes:
    """A PNG: MRR, ERR and TRR by threat model beside their baselines, bytes and seconds; a row for each case."""
    cases = list(records.values())
    figure = Figure(figsize=(14, 1.8 + 0.7 * len(cases)), layout="constrained")
    utility, err, trr, size, seconds = figure.subplots(1, 5, sharey=True, width_ratios=[2, 3, 3, 1.5, 1.5])
    places = list(range(len(cases)))[::-1]
    figures = [case.utility["mrr"] for case in cases]
    errors = [[f.value - f.low for f in figures], [f.high - f.value for f in figures]]
    utility.barh(
        places, [f.value for f in figures], height=0.6, color=GREY, xerr=errors, error_kw={"lw": 1, "capsize": 2}
    )
    utility.set(xlabel="test MRR (filtered)", title="Utility")
    _draw_leakage(err, places, cases, "err")
    _draw_leakage(trr, places, cases, "trr")
    num_bytes = [(case.bytes.up + case.bytes.down) / 2**20 for case in cases]
    size.barh(places, num_bytes, height=0.6, color=GREY)
    size.set(xlabel="MiB in all", title="Bytes")
    seconds.barh(places, [sum(entry.seconds for entry in case.rounds) for case in cases], height=0.6, color=GREY)
    seconds.set(xlabel="s", title="Time")
    utility.set_yticks(places, [name.replace(",dp:", ",\ndp:") for name in records], fontsize=8)
    figure.legend(*err.get_legend_handles_labels(), loc="outside lower center", ncols=5, fontsize=8)
    first = cases[0]
    figure.suptitle(f"{first.data.name} · {first.spec.model} · {len(first.data.clients)} clients", fontsize=11)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=120)
    return buffer.getvalue()


def _draw_leakage(axes: Axes, places: list[int], cases: Sequence[Record], name: str) -> None:
    """Bars of one rate, a colour for each threat model (its highest leak ratio), a black line at the baseline."""
    rows = [
        {row.threat_model: row for row in sorted(pooled(case), key=lambda row: row.leak) if not row.reason}
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
