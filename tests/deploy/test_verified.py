"""The folder of a deployed run is checked like any other: record and checkpoint are as they were written, and belong together."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fkgsec.errors import RunError
from fkgsec.experiments.integrity.checks import Check, check_folder, require_whole
from fkgsec.experiments.integrity.recompute import recomputed
from fkgsec.experiments.runs.record import read_record
from fkgsec.federation.loop import CHECKPOINT


def outcomes(folder: Path) -> dict[str, str]:
    return {check.what: check.outcome for check in check_folder(folder)}


@pytest.mark.parametrize("defense", ["", pytest.param("psu,secagg", marks=pytest.mark.slow)])
def test_a_deployed_run_holds_and_a_changed_one_does_not(defense: str, consortium: Callable[..., Any]) -> None:
    apart = consortium(defense=defense, rounds=2)
    record = apart.serve()
    folder: Path = apart.root / "server"
    assert outcomes(folder) == dict.fromkeys(("record", "checkpoint", "rounds", "bytes", "scores"), "holds")
    require_whole(folder)
    assert record.origin is not None
    assert record.origin.agreement == apart.terms.digest.hex()
    assert list(recomputed(folder)) == [
        Check("utility", "unverifiable", f"{folder}: only its parties have their data and models")
    ]
    again = apart.serve()  # a server that is started after the end trains nothing, and says the same
    assert (again.rounds, again.utility, again.origin.checkpoint) == (
        record.rounds, record.utility, record.origin.checkpoint,
    )  # fmt: skip

    whole = (folder / CHECKPOINT).read_bytes()
    (folder / CHECKPOINT).write_bytes(whole[:-5] + bytes([whole[-5] ^ 1]) + whole[-4:])
    assert outcomes(folder) == {"record": "holds", "checkpoint": "broken", "scores": "holds"}
    with pytest.raises(RunError, match="damaged"):
        require_whole(folder)
    (folder / CHECKPOINT).write_bytes(whole)
    document = json.loads((folder / "record.json").read_text())
    document["utility"]["mrr"]["value"] += 0.01
    (folder / "record.json").write_text(json.dumps(document))
    assert read_record(folder / "record.json")
    with pytest.raises(RunError, match="its content has changed since it was written"):
        require_whole(folder)
