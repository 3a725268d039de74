"""One federation with several seeds: runs, figures over them, and what is refused."""

import json
import re
from pathlib import Path

import pytest

from fkgsec.estimate import Estimate
from fkgsec.experiments.runs.intervals import over_seeds
from fkgsec.experiments.runs.record import read_record
from fkgsec.experiments.runs.seeds import SCHEMA, SEEDS_FILE, OverSeeds, SeedsRecord, figures_over
from fkgsec.experiments.runs.stored import decode_stored
from tests.experiments.commands import fkgsec

SMALL = [
    "--size", "300", "--dim", "8", "--batch-size", "64", "--num-negatives", "8", "--rounds", "2", "--eval-every", "1",
    "--device", "cpu", "--unlinked-heads", "0", "--leak", "1", "--inference", "score",
]  # fmt: skip


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of two seeds, from 3 on, and what was printed."""
    folder = tmp_path_factory.mktemp("several") / "runs"
    status, out, err = fkgsec("attack", *SMALL, "--seed", "3", "--seeds", "2", "--out", folder)
    assert status == 0, err
    return folder, out


def test_each_seed_is_a_run_of_its_own_on_the_same_data(several: tuple[Path, str]) -> None:
    folder, _ = several
    records = [read_record(folder / f"seed-{seed}" / "record.json") for seed in (3, 4)]
    assert [record.seed for record in records] == [3, 4]
    assert records[0].data.hash == records[1].data.hash
    assert records[0].rounds[1].loss != records[1].rounds[1].loss


def test_the_record_has_every_figure_over_both(several: tuple[Path, str]) -> None:
    folder, _ = several
    made = decode_stored((folder / SEEDS_FILE).read_bytes(), SeedsRecord)
    records = [read_record(folder / name / "record.json") for name in made.runs]
    assert (made.schema, made.seeds, made.spec.seed) == (SCHEMA, [3, 4], 3)
    mrr = [record.utility["mrr"] for record in records]
    assert made.figures["utility.mrr"] == OverSeeds(over_seeds(mrr), [one.value for one in mrr])
    assert made.figures["utility.mrr"].over.value == pytest.approx(sum(one.value for one in mrr) / 2)
    assert made.figures["utility.mrr"].over.method.endswith(", 2 seeds")
    asked = ("trr", "identifiers", "all", "strongest")
    found = [
        one.estimate.value for record in records for one in record.rebuilt
        if (one.metric, one.threat_model, one.victim, one.variant) == asked
    ]  # fmt: skip
    assert made.figures["reconstruction.trr/identifiers/1/all"].values == found
    assert made.figures["bytes.total"].values == [record.bytes.up + record.bytes.down for record in records]
    assert made.figures == figures_over(records)


def test_the_table_shows_mean_interval_and_ends(several: tuple[Path, str]) -> None:
    folder, out = several
    figure = decode_stored((folder / SEEDS_FILE).read_bytes(), SeedsRecord).figures["utility.mrr"]
    (line,) = (line for line in out.splitlines() if line.startswith("utility.mrr"))
    shown = [figure.over.value, figure.over.low, figure.over.high, min(figure.values), max(figure.values)]
    assert [float(number) for number in re.findall(r"[.\d]+", line.removeprefix("utility.mrr"))] == [
        round(one, 3) for one in shown
    ]
    assert out.index("Over seeds") < out.index("Verdict over 2 trainings")
    table = out[out.index("Over seeds") : out.index("Each seed")]
    assert all(len(line) <= 80 for line in table.splitlines())


def test_the_same_again_is_read_more_seeds_are_added_and_others_refused(several: tuple[Path, str]) -> None:
    folder, _ = several
    trained = (folder / "seed-3" / "checkpoint.safetensors").stat().st_mtime_ns
    status, out, _ = fkgsec("attack", *SMALL, "--seed", "3", "--seeds", "2", "--out", folder, "--json", "-")
    assert status == 0
    printed, written = json.loads(out), json.loads((folder / SEEDS_FILE).read_text())
    assert set(printed.pop("gains")) == {*printed["data"]["clients"], "all"}
    assert written.pop("gains") == {}
    assert printed == written
    assert fkgsec("attack", *SMALL, "--seed", "3", "--seeds", "3", "--out", folder, "--quiet") == (0, "", "")
    assert (folder / "seed-3" / "checkpoint.safetensors").stat().st_mtime_ns == trained
    assert json.loads((folder / SEEDS_FILE).read_text())["seeds"] == [3, 4, 5]
    for other in (
        ["--seed", "3", "--seeds", "2"],
        ["--seed", "4", "--seeds", "3"],
        ["--seed", "3", "--seeds", "3", "--gamma", "4"],
    ):
        before = (folder / SEEDS_FILE).read_bytes()
        status, _, err = fkgsec("attack", *SMALL, *other, "--out", folder)
        assert (status, "is of other options, data or seeds" in err) == (2, True)
        assert (folder / SEEDS_FILE).read_bytes() == before


def test_the_guarantee_is_of_what_all_seeds_release(tmp_path: Path) -> None:
    """Each seed sends the same clients' data under noise of its own."""
    noisy = [*SMALL[: SMALL.index("--unlinked-heads")], "--defense", "dp:clip=0.5,epsilon=4"]
    status, out, err = fkgsec("train", *noisy, "--seeds", "2", "--out", tmp_path / "runs")
    assert status == 0, err
    made = decode_stored((tmp_path / "runs" / SEEDS_FILE).read_bytes(), SeedsRecord).guarantees["entities"]
    one = read_record(tmp_path / "runs" / "seed-0" / "record.json").guarantees["entities"]
    assert (one.rounds, made.rounds) == (2, 4)
    assert one.epsilon <= 4 < made.epsilon < 8
    assert f"dp, entities, all seeds together: {made.describe()}." in out


def test_errors_of_items_and_of_seeds_add_up() -> None:
    """By hand: seeds of deviation 0.02, 4.302653 x 0.02 / sqrt 3 = 0.049683; with 0.05 of the items, 0.070486."""
    figures = [Estimate(value, value - 0.05, value + 0.05, 100, "wilson") for value in (0.50, 0.52, 0.54)]
    over = over_seeds(figures)
    assert (over.value, over.low, over.high) == pytest.approx((0.52, 0.449514, 0.590486), abs=1e-5)
