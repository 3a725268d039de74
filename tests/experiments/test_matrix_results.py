"""The committed matrix and the rules against poisoning: the page is what the command prints, and says what the records say."""

import re
from pathlib import Path

import pytest

from attacks.figure import Figure
from experiments.reporting import summary
from experiments.reporting.summary import matrix_lines
from experiments.runs.compare import read_comparison
from experiments.runs.record import Record

FOLDER = Path(summary.__file__).parents[1] / "results" / "attacks" / "matrix"
SEEDS = sorted(int(path.stem[-1]) for path in FOLDER.glob("rules-seed*.json"))


def cases(name: str) -> dict[str, Record]:
    found = read_comparison(FOLDER / f"{name}.json")
    assert found is not None
    return {case.name: case.record for case in found.cases}


def planted(record: Record, variant: str) -> Figure:
    (found,) = (
        one for one in record.figures if (one.victim, one.key, one.variant) == ("all", "client-poison.hits@10", variant)
    )
    return found


def test_the_tables_are_what_the_command_prints() -> None:
    page = (FOLDER / "README.md").read_text()
    for data in ("hospitals", "umls"):
        assert "\n".join(matrix_lines(sorted(FOLDER.glob(f"{data}-seed*.json")))) in page


@pytest.mark.parametrize("seed", SEEDS)
def test_a_clip_takes_what_boosting_gains_at_less_than_a_twentieth_of_mrr(seed: int) -> None:
    rules, clips = cases(f"rules-seed{seed}"), cases(f"clip-seed{seed}")
    clear, clipped = rules["none"], clips["robust:rule=clip,c=1.5"]
    assert planted(clear, "boosted").estimate.low > planted(clear, "plain").estimate.high
    assert planted(clipped, "boosted").estimate.low < planted(clipped, "plain").estimate.value
    assert planted(clipped, "boosted").estimate.high < planted(clear, "boosted").estimate.low
    assert clipped.utility["mrr"].value > 0.95 * clear.utility["mrr"].value
    page = (FOLDER / "README.md").read_text()
    for name, record in (rules | clips).items():
        one, boosted = (planted(record, way).estimate for way in ("plain", "boosted"))
        row = re.escape(
            f"| {seed} | {name.removeprefix('robust:')} | {one.value:.3f} [{one.low:.3f}, {one.high:.3f}] | "
        )
        assert re.search(f"(?m)^{row}{boosted.value:.3f} .*{record.utility['mrr'].value:.4f}", page)
