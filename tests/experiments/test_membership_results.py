"""The committed records of membership: the page's tables are what the records say, and so are its claims."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from fkgsec.attacks.figure import STRONGEST, Figure
from fkgsec.attacks.view import ALL
from fkgsec.experiments.reporting import summary
from fkgsec.experiments.reporting.summary import matrix_lines
from fkgsec.experiments.runs.compare import read_comparison
from fkgsec.experiments.runs.record import Record, read_record
from fkgsec.experiments.runs.spec import Spec

FOLDER = Path(summary.__file__).resolve().parents[2] / "results" / "attacks" / "membership"
PAGE = (FOLDER / "README.md").read_text()
DATA = ("hospitals", "umls")
WAYS = ("score", "loss", "rank", *(f"{way}, same graph" for way in ("calibrated", "lira", "lira-linear", "rmia")))
NOISE = "dp:unit=row,clip=0.1,epsilon=10"


def cases(path: Path) -> dict[str, Record]:
    found = read_comparison(path)
    assert found is not None
    return {case.name: case.record for case in found.cases}


@functools.cache
def runs(data: str) -> list[dict[str, Record]]:
    """The records of each seed."""
    return [cases(path) for path in sorted(FOLDER.glob(f"{data}-seed*.json"))]


def figure(record: Record, metric: str, variant: str = STRONGEST, threat: str = "models") -> Figure:
    (found,) = (
        one for one in record.figures
        if (one.metric, one.victim, one.threat_model, one.variant) == (metric, ALL, threat, variant)
    )  # fmt: skip
    return found


def ways_table(data: str) -> list[str]:
    """Markdown: of the models held, in clear, what each way gets; means over seeds."""
    lines = ["| way | AUC, global | TPR at 1 %, global | AUC, local | TPR at 1 %, local |", "|---|---|---|---|---|"]
    for way in WAYS:
        cells = []
        for model in ("global", "local"):
            for metric in ("auc", "tpr@0.01"):
                values = [figure(run["none"], metric, f"{model}, {way}").estimate.value for run in runs(data)]
                cells.append(f"{sum(values) / len(values):.3f} ({min(values):.3f}–{max(values):.3f})")
        lines.append(f"| {way} | {' | '.join(cells)} |")
    return lines


def seeds_table(data: str) -> list[str]:
    """Markdown: the strongest way of each adversary with its interval, by seed, configuration and metric."""
    asked = [("auc", "models"), ("auc_shared", "models"), ("auc", "client"), ("auc", "server+triples")]
    asked += [("tpr@0.01", "models"), ("tpr@0.01_shared", "models"), ("tpr@0.01", "server+triples")]
    lines = [
        f"| configuration | seed | {' | '.join(f'{metric}, {threat}' for metric, threat in asked)} |",
        "|---|---|" + "---|" * len(asked),
    ]
    for case in runs(data)[0]:
        for run in runs(data):
            found = [figure(run[case], metric, threat=threat).estimate for metric, threat in asked]
            cells = [f"{one.value:.3f} [{one.low:.3f}, {one.high:.3f}]" for one in found]
            lines.append(f"| {case} | {run[case].seed} | {' | '.join(cells)} |")
    return lines


def single_table() -> list[str]:
    """Markdown: FB15k-237 without shadows, by seed."""
    asked = [
        ("auc", "models"), ("auc_shared", "models"), ("tpr@0.01_shared", "models"), ("tpr@0.001_shared", "models"),
        ("auc", "client"), ("auc", "server+triples"),
    ]  # fmt: skip
    lines = [
        f"| seed | {' | '.join(f'{metric}, {threat}' for metric, threat in asked)} |",
        "|---|" + "---|" * len(asked),
    ]
    for path in sorted(FOLDER.glob("fb15k237-seed*.json")):
        record = read_record(path)
        found = [figure(record, metric, threat=threat) for metric, threat in asked]
        cells = [
            f"{one.estimate.value:.3f} [{one.estimate.low:.3f}, {one.estimate.high:.3f}]; base {one.baseline.value:.3f}"
            for one in found
            if one.baseline is not None
        ]
        lines.append(f"| {record.seed} | {' | '.join(cells)} |")
    return lines


def similar_table() -> list[str]:
    """Markdown: shadows of a similar graph beside those of the same one, by seed; AUC and TPR at 1 % of the strongest."""
    asked = [("auc", "models"), ("auc_shared", "models"), ("auc", "server+triples"), ("tpr@0.01_shared", "models")]
    lines = [
        f"| seed | {' | '.join(f'{metric}, {threat}' for metric, threat in asked)} | way of auc_shared |",
        "|---|" + "---|" * (len(asked) + 1),
    ]
    for path in sorted(FOLDER.glob("hospitals-similar-seed*.json")):
        record = read_record(path)
        found = [figure(record, metric, threat=threat).estimate for metric, threat in asked]
        cells = [f"{one.value:.3f} [{one.low:.3f}, {one.high:.3f}]" for one in found]
        lines.append(f"| {record.seed} | {' | '.join(cells)} | {figure(record, 'auc_shared').by} |")
    return lines


@pytest.mark.parametrize("data", DATA)
def test_the_tables_are_what_the_records_say(data: str) -> None:
    files = sorted(FOLDER.glob(f"{data}-seed*.json"))
    for table in (matrix_lines(files), ways_table(data), seeds_table(data)):
        assert "\n".join(table) in PAGE


def test_tables_of_single_records_are_what_these_say() -> None:
    for name, table in (("fb15k237", single_table()), ("hospitals-similar", similar_table())):
        for path in FOLDER.glob(f"{name}-seed*.json"):
            assert read_record(path).environment.dirty is False
            assert "\n".join(table) in PAGE


@pytest.mark.parametrize("data", DATA)
def test_shadows_find_more_sums_stop_nothing_and_noise_all_that_crossed(data: str) -> None:
    assert len(runs(data)) >= 2
    for run in runs(data):
        clear, sums, noisy = (run[case] for case in ("none", "secagg", NOISE))
        for record in run.values():
            assert record.environment.dirty is False
            assert isinstance(record.spec, Spec)
            assert record.spec.shadows == 4
        for metric in ("auc", "auc_shared"):
            assert figure(clear, metric).estimate.low > 0.6
            assert figure(sums, metric).estimate.low > 0.6
            ways = {way: figure(clear, "auc", f"global, {way}").estimate.value for way in WAYS}
            assert ways["rmia, same graph"] > ways["loss"]
            assert ways["lira-linear, same graph"] > ways["loss"]
        for threat, metric in (("models", "auc_shared"), ("client", "auc"), ("server+triples", "auc")):
            assert figure(noisy, metric, threat=threat).estimate.low <= 0.52
        assert figure(noisy, "auc").by is not None
        assert str(figure(noisy, "auc").by).startswith("local")
