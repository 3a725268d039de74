"""What a server sees of algorithms whose messages are not plain rows of all: each upload, and what a client trained from."""

import pytest
import torch

from fkgsec.attacks import GraphAttackOptions, run_attacks
from fkgsec.attacks.graphs.view import GraphView
from fkgsec.attacks.options import THREAT_MODELS
from fkgsec.attacks.registry import build_view
from fkgsec.federation.loop import run_federation
from fkgsec.federation.messages import client_party
from fkgsec.federation.options import replace
from fkgsec.gnn.options import GnnOptions
from fkgsec.graphs.sets import FederatedGraphs

CUT = {"epsilon1": 100.0, "epsilon2": 0.0, "first_cut": 0, "seq_length": 1}
CASES = {
    "fedstar": ("fedstar", {}),
    "gcfl+": ("gcfl+", CUT),
    "factors": ("cefgl", {"exchange": 1.0, "singular_threshold": 0.9, "bits": 8}),
    "both": ("cefgl", {"exchange": 1.0, "upload": "both", "bits": 32}),
    "spreadgnn": ("spreadgnn", {}),
}


@pytest.mark.parametrize("case", CASES)
def test_uploads_and_broadcasts_are_read(case: str, two_sets: FederatedGraphs, small: GnnOptions) -> None:
    algorithm, settings = CASES[case]
    result = run_federation(two_sets, replace(small, algorithm=algorithm, settings=settings))
    view = build_view(result, THREAT_MODELS["server"], colluder=two_sets.clients[0].name, seed=0)
    assert isinstance(view, GraphView)
    for place, victim in enumerate(view.victims):
        assert victim.upload is not None
        started = result.started["parameters"][client_party(victim.name)]
        if algorithm == "spreadgnn":
            # Its own last upload and its neighbours' make what it trained from; the relay's last message to it has theirs alone.
            assert victim.broadcast is None or view.round == 1
            assert not any("head" in name for name in victim.upload)
        else:
            assert victim.broadcast is not None
            assert torch.allclose(view.layout.pack(victim.broadcast), started[: len(view.layout.names)], atol=1e-6)
        if algorithm != "cefgl":
            assert all(torch.equal(victim.upload[name], one) for name, one in result.trained[place].items())
    if case in ("both", "spreadgnn"):
        assert run_attacks(result, GraphAttackOptions()).figures
