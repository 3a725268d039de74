"""The committed attacks on graph classification: the table beside the records is what they say."""

import re
from pathlib import Path

from fkgsec.attacks.view import ALL
from fkgsec.experiments.runs.record import read_record

FOLDER = Path("results/attacks/graphs")
OF_WAYS = ("auc", "same_data")  # figures of which an attack has several
SHOWN = (*OF_WAYS, "columns", "exact", "neighbourhoods", "class_share", "mean_size", "success", "clean-drop")


def rows_of(path: Path) -> list[str]:
    """What the table says of a record: the best way of each figure, by threat model."""
    figures = [one for one in read_record(path).figures if one.victim == ALL and one.reason is None]
    best = {}
    for one in (one for one in figures if one.metric in SHOWN):
        kept = best.setdefault((one.metric, one.threat_model), one)
        if one.metric in OF_WAYS and one.estimate.value > kept.estimate.value:
            best[one.metric, one.threat_model] = one
    rows = []
    for (metric, threat), one in best.items():
        name = f"{metric}, {one.variant}" if metric == "auc" else metric
        shown = f"{one.estimate.value:.3f} [{one.estimate.low:.3f}, {one.estimate.high:.3f}]"
        rows.append(f"| `{path.stem}` | {name} ({threat}) | {shown} | {one.baseline.value:.3f} |")
    return rows


def test_the_table_is_what_the_records_say() -> None:
    written = re.findall(r"^\| `.*$", (FOLDER / "README.md").read_text(), re.M)
    said = [row for path in FOLDER.glob("*.json") for row in rows_of(path)]
    reasons = [row for row in written if "not attacked" in row]
    assert sorted(written) == sorted([*said, *reasons])
    for row in reasons:
        name, _, reason = row.strip("| ").partition("` | not attacked: ")
        record = read_record(FOLDER / f"{name.strip('`')}.json")
        assert {one.reason for one in record.figures} == {reason.rstrip("| ")}
