"""The committed comparisons of every algorithm, which pages of algorithms show."""

from pathlib import Path

import pytest

from experiments.docs.measured import of_algorithm
from experiments.reporting import summary
from experiments.runs.compare import read_comparison

FOLDER = Path(summary.__file__).parents[1] / "results" / "attacks" / "algorithms"


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.json")), ids=lambda path: path.stem)
def test_every_algorithm_is_attacked_alike(path: Path) -> None:
    """On the same data with the same options, but for the temperature that is its own; its page shows it beside the first."""
    found = read_comparison(path)
    assert found is not None
    records = {case.name: case.record for case in found.cases}
    first = next(iter(records.values()))
    for algorithm, record in records.items():
        assert record.environment.dirty is False
        assert record.data.hash == first.data.hash
        same = record.spec.document() | {"algorithm": algorithm}
        shared = set(same) & set(first.spec.document()) - {"algorithm", "temperature"}
        assert [key for key in shared if same[key] != first.spec.document()[key]] == []
        if record is not first:
            assert (
                of_algorithm(algorithm, record.spec.task)[0] == f"| figure | `{first.spec.algorithm}` | `{algorithm}` |"
            )
