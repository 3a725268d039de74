"""Timed rounds are whole rounds."""

import pytest

from benchmarks.rounds import time_round
from fkgsec.data.consortium import generate_consortium
from fkgsec.defenses.transport import make_transport
from fkgsec.federation.loop import Federation
from fkgsec.kge.options import KgeOptions


def test_a_timed_round_is_uploaded_by_all_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    options = KgeOptions(dim=4, batch_size=64, num_negatives=2, local_epochs=1, defense="secagg", device="cpu")
    federation = Federation(generate_consortium(clients=3, size=300, seed=0), options, make_transport)
    assert time_round(federation, 1).cpu > 0
    monkeypatch.setattr(Federation, "train", lambda *_: None)  # clients refuse to upload what they did not train
    with pytest.raises(RuntimeError, match="did not train"):
        time_round(Federation(federation.graph, options, make_transport), 1)
