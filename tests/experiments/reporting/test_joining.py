"""What joining gains against what it leaks: dominated configurations, seeds, and data that do not fit together."""

from pathlib import Path

import msgspec
import pytest

from fkgsec.errors import RunError
from fkgsec.estimate import Estimate
from fkgsec.experiments.reporting.joining import ALONE, Worth, joining_picture, joining_sheet, weigh
from fkgsec.experiments.reporting.reading import read_runs
from fkgsec.experiments.runs.record import Record
from tests.experiments.commands import fkgsec

SMALL = [
    "--size", "600", "--dim", "8", "--batch-size", "64", "--num-negatives", "8", "--rounds", "2", "--unlinked-heads", "10",
    "--device", "cpu", "--leak", "0.5",
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two seeds of three cases."""
    root = tmp_path_factory.mktemp("worth")
    cases = ["--case", "none", "--case", "single", "--case", "psu,secagg", "--seeds", "2"]
    assert fkgsec("compare", *SMALL, *cases, "--out", root, "--quiet")[0] == 0
    return root


@pytest.fixture(scope="module")
def records(folder: Path) -> list[Record]:
    return [run.record for run in read_runs([folder])]


def test_each_configuration_has_its_gain_and_leaks_over_all_seeds(folder: Path, records: list[Record]) -> None:
    worths = {worth.name: worth for worth in weigh(records)}
    assert worths.keys() == {"fede", "fede/psu,secagg", ALONE}
    reached = {
        (record.spec.algorithm, record.seed): record.utility["mrr"].value
        for record in records
        if not record.spec.defense
    }
    gains = [reached["fede", seed] - reached["single", seed] for seed in (0, 1)]
    assert worths["fede"].gain.value == pytest.approx(sum(gains) / 2)
    assert worths["fede"].num_seeds == 2
    assert worths["fede"].leaks["uploads"].value == pytest.approx(1.0)  # sent in plaintext
    assert worths["fede/psu,secagg"].leaks["uploads"].value < 1.0
    assert worths[ALONE].gain.value == 0
    status, out, _ = fkgsec("worth", folder, "--out", folder / "page")
    assert status == 0
    assert "alone" in out
    assert (folder / "page/worth.md").read_text().startswith("# What joining gains and what it leaks\n")
    assert (folder / "worth.md").read_text() == (folder / "page/worth.md").read_text()
    copies = [folder / f"copied-{seed}.json" for seed in range(2)]
    for seed, copied in enumerate(copies):
        copied.write_bytes((folder / f"seed-{seed}/comparison.json").read_bytes())
    assert fkgsec("worth", *copies, "--out", folder / "copied")[1] == out
    status, _, err = fkgsec("compare", *SMALL, "--case", "none", "--seeds", "2", "--out", folder / "lonely")
    assert (status, "name the case that trains them alone" in err) == (2, True)
    assert (folder / "page/worth.png").read_bytes()[:4] == b"\x89PNG"


def test_runs_that_do_not_fit_together_are_refused(records: list[Record]) -> None:
    alone = [record for record in records if record.spec.algorithm == "single"]
    others = [record for record in records if record.spec.algorithm != "single"]
    with pytest.raises(RunError, match="no run of the clients alone with seed 0"):
        weigh(others)
    with pytest.raises(RunError, match="no run of a federation"):
        weigh(alone)
    with pytest.raises(RunError, match="two runs of fede with seed 0"):
        weigh([*records, others[0]])
    longer = msgspec.structs.replace(others[0], spec=others[0].spec.replace(rounds=9))
    with pytest.raises(RunError, match="no run of the clients alone with seed 0 and the settings"):
        weigh([longer, *alone])
    silent = msgspec.structs.replace(others[0], figures=[])
    with pytest.raises(RunError, match="was not attacked"):
        weigh([silent, *alone])
    foreign = msgspec.structs.replace(others[0], data=msgspec.structs.replace(others[0].data, hash="other"))
    with pytest.raises(RunError, match="different data"):
        weigh([*records, foreign])


def test_a_row_that_leaks_more_and_gains_less_is_marked() -> None:
    def point(value: float) -> Estimate:
        return Estimate(value, value - 0.01, value + 0.01, 100, "normal")

    worths = [
        Worth("good", point(0.1), 50, {"triples": point(0.2)}, 5),
        Worth("bad", point(0.05), None, {"triples": point(0.3)}, 5, "good"),
        Worth(ALONE, point(0.0), None, {}, 5),
    ]
    sheet = joining_sheet(worths)
    assert [row[-1] for row in sheet.rows] == ["", "1", ""]
    assert [row[2] for row in sheet.rows] == [50, None, None]
    assert len(joining_picture(worths).axes) == 1
