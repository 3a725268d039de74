"""The committed matrix and the rules against poisoning: the page is what the commands print, and says what the records say.

`python -m tests.experiments.test_matrix_results` prints the table of what is left under a clip.
"""

import functools
import re
from pathlib import Path

import numpy as np
import pytest

from fkgsec.attacks.figure import Figure
from fkgsec.estimate import Estimate
from fkgsec.experiments.reporting import summary
from fkgsec.experiments.reporting.summary import matrix_lines
from fkgsec.experiments.runs.compare import read_comparison
from fkgsec.experiments.runs.intervals import over_seeds
from fkgsec.experiments.runs.record import Record
from scripts.readme import table

FOLDER = Path(summary.__file__).resolve().parents[2] / "results" / "attacks" / "matrix"
SEEDS = sorted(int(path.stem[-1]) for path in FOLDER.glob("rules-seed*.json"))


@functools.cache
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


def test_the_page_has_the_table_of_the_readmes_picture() -> None:
    lines = table()
    assert "\n".join(lines) in (FOLDER / "README.md").read_text()
    update = next(line for line in lines if line.startswith("| A client's update, read by the server (cosine)"))
    assert update.count(" (.000)") == 5, "compared with an adversary without messages, who knows of no change"


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


CLIP = "robust:rule=clip"


def displaced(record: Record) -> list[Estimate]:
    """Of each victim the AUC of the probe by itself, trained triples among random pairs."""
    return [
        one.estimate
        for one in record.figures
        if (one.key, one.variant) == ("client-active.auc_pairs", "displacement") and not one.reason
    ]


def worst(figures: list[Estimate]) -> Estimate:
    return max(figures, key=lambda figure: figure.value)


def clip_table(data: str) -> list[str]:
    """Markdown: the probe and false triples in clear and under the clip, and what it costs; of each seed, and the means.

    Of the probe a seed shows the victim of whom it tells most; its mean is over all victims of all seeds.
    """
    heads = "seed | probe, none | probe, clip | intervals with .5 | plain, none | boosted, none | boosted, clip"
    lines = [f"| {heads} | test MRR, none | clip | change |", "|---" * 10 + "|"]
    found: list[tuple[list[Estimate], ...]] = []
    for path in [*sorted(FOLDER.glob(f"{data}-seed*.json")), None]:
        if path is None:
            name, cells = "all", tuple([one for row in found for one in row[column]] for column in range(7))
        else:
            clear, clipped = (cases(path.stem)[case] for case in ("none", CLIP))
            ways = [planted(record, way).estimate for record, way in (
                (clear, "plain"), (clear, "boosted"), (clipped, "boosted"),
            )]  # fmt: skip
            mrr = [[record.utility["mrr"]] for record in (clear, clipped)]
            name, cells = path.stem[-1], (displaced(clear), displaced(clipped), *([way] for way in ways), *mrr)
            found.append(cells)
        probe, probed = (worst(cell) if path else over_seeds(cell) for cell in cells[:2])
        *others, before, after = (over_seeds(cell) for cell in cells[2:])
        within = sum(one.low <= 0.5 <= one.high for one in cells[1])
        shown = [f"{one.value:.3f} [{one.low:.3f}, {one.high:.3f}]" for one in (probe, probed, *others)]
        shown.insert(2, f"{within} of {len(cells[1])}")
        change = 100 * (after.value / before.value - 1)
        lines.append(f"| {name} | {' | '.join(shown)} | {before.value:.4f} | {after.value:.4f} | {change:+.1f} % |")
    return lines


@pytest.mark.parametrize("data", ["hospitals", "umls"])
def test_what_a_clip_leaves_is_on_the_page(data: str) -> None:
    """The probe is not told from chance; boosted triples are believed as those that one client of usual weight plants."""
    assert "\n".join(clip_table(data)) in (FOLDER / "README.md").read_text()
    probed, plain, boosted, costs = [], [], [], []
    for path in sorted(FOLDER.glob(f"{data}-seed*.json")):
        clear, clipped = (cases(path.stem)[case] for case in ("none", CLIP))
        probed += displaced(clipped)
        plain.append(planted(clear, "plain").estimate)
        boosted.append(planted(clipped, "boosted").estimate)
        costs.append(1 - clipped.utility["mrr"].value / clear.utility["mrr"].value)
    left, one, more = (over_seeds(part) for part in (probed, plain, boosted))
    assert left.low <= 0.5 <= left.high
    assert np.mean([figure.value for figure in probed]) > 0.51  # and yet above it, which the page says
    assert more.low <= one.value <= more.high
    assert sum(costs) / len(costs) < 0.05


if __name__ == "__main__":
    for data in ("hospitals", "umls"):
        print("\n".join(clip_table(data)), end="\n\n")
