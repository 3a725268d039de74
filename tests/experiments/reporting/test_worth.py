"""Gains over training alone: paired by test item, by client, and with intervals that hold together."""

import msgspec
import numpy as np
import pytest

from fkgsec.experiments.reporting.worth import gains, worth_sheet
from fkgsec.experiments.runs.baseline import trains_alone
from fkgsec.experiments.runs.record import Record
from fkgsec.experiments.runs.run import execute
from fkgsec.experiments.tasks.items import TestItems
from fkgsec.experiments.tasks.spec import RunSpec
from fkgsec.experiments.tasks.task import task_named

CLIENTS = 3


def made(algorithm: str, folder: object) -> Record:
    spec: RunSpec = (
        task_named("kge")
        .spec()
        .replace(
            algorithm=algorithm,
            baseline="entities" if algorithm == "single" else None,
            clients=CLIENTS,
            size=600,
            dim=8,
            batch_size=64,
            num_negatives=8,
            rounds=2,
            device="cpu",
        )
    )
    return execute(spec, spec.load_graph(), folder, attack=False).record  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Record]:
    folder = tmp_path_factory.mktemp("runs")
    return {name: made(name, folder / name) for name in ("fede", "single")}


def with_ranks(record: Record, ranks: np.ndarray) -> Record:
    """The record with other ranks of its test items, and the utility that follows."""
    assert record.items is not None
    rows = record.items.client_slices()
    items = TestItems.from_ranks([ranks[one] for one in rows], [record.items.where_seen()[one] for one in rows])
    utility = record.utility | {"mrr": msgspec.structs.replace(record.utility["mrr"], value=float((1 / ranks).mean()))}
    return msgspec.structs.replace(record, items=items, utility=utility)


def test_a_gain_is_the_difference_of_utilities_of_each_client(records: dict[str, Record]) -> None:
    each = gains(records["fede"], records["single"])
    assert list(each) == [*records["fede"].data.clients, "all"]
    for client, gain in each.items():
        of = [record.utility if client == "all" else record.utility_by_client[client] for record in records.values()]
        assert gain.value == pytest.approx(of[0]["mrr"].value - of[1]["mrr"].value, abs=1e-6)
    assert [trains_alone(record.spec) for record in records.values()] == [False, True]


def test_equal_runs_rarely_gain_and_pairing_narrows_the_interval(records: dict[str, Record]) -> None:
    """Ranks of one distribution: at most 5 % of runs gain or lose. Items that are hard for both leave the difference narrow."""
    rng = np.random.default_rng(1)
    base = records["single"]
    assert base.items is not None
    shape = base.items.values().shape
    told, trials = 0, 400
    for _ in range(trials):
        one, other = (with_ranks(base, rng.integers(1, 60, size=shape).astype(float)) for _ in range(2))
        gain = gains(one, other)["all"]
        told += not gain.low <= 0 <= gain.high
    assert told <= 0.05 * trials + 3 * np.sqrt(0.05 * 0.95 * trials)
    hard = rng.integers(1, 60, size=shape).astype(float)
    paired = gains(with_ranks(base, hard + 1), with_ranks(base, hard))["all"]
    apart = gains(with_ranks(base, rng.permutation(hard) + 1), with_ranks(base, hard))["all"]
    assert paired.high - paired.low < 0.5 * (apart.high - apart.low)
    assert paired.high < 0  # every item is ranked one place worse


def test_a_client_that_loses_is_counted(records: dict[str, Record]) -> None:
    base = records["single"]
    assert base.items is not None
    ranks = np.full(base.items.values().shape, 4.0)
    better = ranks.copy()
    better[base.items.client_slices()[0]] = 1.0
    worse = better.copy()
    worse[base.items.client_slices()[1]] = 40.0
    fede = msgspec.structs.replace(records["fede"], data=base.data)
    sheet = worth_sheet({"none": with_ranks(fede, worse), "single": with_ranks(base, ranks)})
    heads = [column.head for column in sheet.columns]
    assert sheet.rows[0][heads.index("gain / lose")] == "1 / 1 of 3"
    assert sheet.rows[1][heads.index("gain over alone")] is None
    without = worth_sheet({"none": fede})
    assert "gain over alone" not in [column.head for column in without.columns]
    papers = msgspec.structs.replace(base, spec=base.spec.replace(baseline=None))
    assert (
        worth_sheet({"none": with_ranks(fede, worse), "single": papers}).rows[0][heads.index("gain over alone")] is None
    )
    other_data = msgspec.structs.replace(base, data=msgspec.structs.replace(base.data, hash="0"))
    assert gains(fede, other_data) == {}
