"""R@CG, P@CG and P@98 against counts by hand."""

from pathlib import Path

import msgspec
import pytest

from fkgsec.experiments.reporting.convergence import bytes_to_reach, convergence, relative_cost
from fkgsec.experiments.reporting.summary import __file__ as summary_file
from fkgsec.experiments.runs.record import Record, read_record
from fkgsec.federation.checkpoint import RoundEntry

MRRS = {5: 0.10, 10: 0.20, 15: 0.195, 20: 0.21, 25: 0.205}


@pytest.fixture(scope="module")
def record() -> Record:
    """25 rounds of 10 + 20 bytes after an alignment of 100 + 200, validated every 5; the best is round 20."""
    template = read_record(Path(summary_file).resolve().parents[2] / "results" / "ddb14-fed5-fedr.json")
    rounds = [RoundEntry(0, None, None, 100, 200, 0.0)]
    rounds += [RoundEntry(number, 1.0, MRRS.get(number), 10, 20, 0.0) for number in range(1, 26)]
    return msgspec.structs.replace(template, rounds=rounds, best_round=20)


def test_cost_at_convergence(record: Record) -> None:
    found = convergence(record)
    assert (found.round, found.num_bytes, found.valid) == (20, 300 + 20 * 30, 0.21)


@pytest.mark.parametrize(("mrr", "rounds"), [(0.05, 5), (0.10, 5), (0.11, 10), (0.2, 10), (0.201, 20), (0.21, 20)])
def test_the_first_time_counts(record: Record, mrr: float, rounds: int) -> None:
    assert bytes_to_reach(record, mrr) == 300 + rounds * 30


def test_never_reached(record: Record) -> None:
    assert bytes_to_reach(record, 0.2101) is None


def test_relative_to_a_baseline(record: Record) -> None:
    # 98 % of 0.21 is 0.2058: both reach it in round 20, the other with twice the bytes of a round.
    double = [msgspec.structs.replace(entry, bytes_up=20, bytes_down=40) for entry in record.rounds[1:]]
    other = msgspec.structs.replace(record, rounds=[record.rounds[0], *double])
    assert relative_cost(other, record, 0.98) == (300 + 20 * 60) / (300 + 20 * 30)
    assert relative_cost(record, record, 0.99) == 1
    worse = [msgspec.structs.replace(entry, valid=0.1) for entry in record.rounds]
    assert relative_cost(msgspec.structs.replace(record, rounds=worse), record, 0.98) is None
    unchecked = [msgspec.structs.replace(entry, valid=None) for entry in record.rounds]
    assert relative_cost(record, msgspec.structs.replace(record, rounds=unchecked), 0.98) is None
