"""Records that no run gives are refused in a line that names the field; those of this repository are read."""

import json
from pathlib import Path
from typing import Any

import pytest

from fkgsec.errors import RunError
from fkgsec.experiments.runs.record import make_record, read_record
from fkgsec.experiments.runs.spec import make_spec
from fkgsec.experiments.runs.stored import encode_stored
from fkgsec.federation.loop import run_federation

ONE = {"value": 0.5, "low": 0.4, "high": 0.6, "n": 10, "method": "wilson"}
FIGURE = {
    "attack": "graph-membership", "metric": "auc", "threat_model": "models", "victim": "all", "estimate": ONE,
}  # fmt: skip


@pytest.fixture(scope="module")
def written() -> dict[str, Any]:
    """The record of a run of graph classification."""
    given = {"algorithm": "fedavg", "clients": 2, "size": 80, "rounds": 1, "width": 4, "device": "cpu"}
    spec = make_spec(None, given)
    return json.loads(encode_stored(make_record(spec, run_federation(spec.load_graph(), spec.federation_options()))))


def read_with(written: dict[str, Any], tmp_path: Path, place: str, value: object) -> None:
    changed = json.loads(json.dumps(written))
    *path, last = place.split("/")
    inside = changed
    for one in path:
        inside = inside[one]
    inside[last] = value
    (tmp_path / "record.json").write_text(json.dumps(changed))
    read_record(tmp_path / "record.json")


def test_what_a_run_writes_is_read(written: dict[str, Any], tmp_path: Path) -> None:
    read_with(written, tmp_path, "figures", [FIGURE])


@pytest.mark.parametrize(
    ("place", "value", "fault"),
    [
        ("metric", "mrr", "metric: fedavg is validated by accuracy; got 'mrr'"),
        ("seed", 5, "seed: the spec's is 0; got 5"),
        ("rounds", [], "rounds: must be numbered 0, 1, 2, ...; got none"),
        ("best_round", 9, "best_round: must be one of the rounds 0 to 1; got 9"),
        ("utility", {"mrr": ONE}, "utility: must have accuracy; got mrr"),
        ("utility/accuracy/n", -1, "utility: a figure rests on -1 items"),
        ("utility_by_client", {}, "utility_by_client: must be of molecules-1, "),
        ("utility_by_leak", {}, "utility_by_leak: must have leaked, clean; got none"),
        ("utility_shared", {"mrr": ONE}, "utility_shared: must have accuracy; got mrr"),
        ("data/clients/molecules-1", {"entities": 3}, "data.clients.molecules-1: must have graphs, "),
        ("data/clients/molecules-1/graphs", -1, "data.clients.molecules-1: a size is -1"),
        ("data/sensitive", ["treats"], "data.sensitive: data of graph classification mark nothing; got treats"),
        ("bytes/up", 1, "bytes: up must be "),
        ("bytes/down_by_round", [1], "bytes: down must be "),
        ("figures", [FIGURE | {"attack": "reconstruction"}], "figures[0]: reconstruction is not an attack on graph"),
        ("figures", [FIGURE | {"metric": "err"}], "figures[0]: metrics of graph-membership are auc, "),
        ("figures", [FIGURE | {"victim": "nobody"}], "figures[0]: victim must be a client or all; got 'nobody'"),
        ("figures", [FIGURE | {"threat_model": "identifiers"}], "figures[0]: threat_model must be one of server, "),
    ],
)
def test_what_no_run_writes_is_refused(
    place: str, value: object, fault: str, written: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(RunError) as caught:
        read_with(written, tmp_path, place, value)
    assert str(caught.value).startswith(f"{tmp_path / 'record.json'}: {fault}")
    assert "\n" not in str(caught.value)
