"""Attacks on runs of models with an encoder: input rows are what crosses, encoded rows what a client predicts with."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fkgsec.attacks.options import THREAT_MODELS, KgeAttackOptions
from fkgsec.attacks.registry import build_view, run_attacks
from fkgsec.data.consortium import generate_consortium
from fkgsec.errors import RunError
from fkgsec.federation.loop import run_federation
from fkgsec.kge.options import KgeOptions
from fkgsec.kge.result import KgeResult

MODELS = ("noge", "kb-gat")
SMALL: dict[str, Any] = {
    "noge": {"batch_size": 256, "rounds": 8},
    "kb-gat": {"batch_size": 64, "rounds": 3, "decoder_epochs": 1, "decoder_negatives": 2},
}


@pytest.fixture(scope="module", params=MODELS)
def result(request: pytest.FixtureRequest) -> KgeResult:
    """Three hospitals with some hundred triples each."""
    graph = generate_consortium(clients=3, size=900, seed=0)
    own = SMALL[request.param]
    options = KgeOptions(model=request.param, dim=16, eval_every=own["rounds"], learning_rate=0.01, device="cpu", **own)
    return run_federation(graph, options)


def test_the_server_and_a_traitor_see_input_rows(result: KgeResult) -> None:
    colluder = result.graph.clients[0].name
    view = build_view(result, THREAT_MODELS["collusion"], colluder=colluder, leak=1.0, seed=0)
    assert view.colluder is not None
    assert view.model == result.options.kge_model()
    for place, victim in enumerate(view.victims, start=1):
        assert victim.entities is not None
        assert np.array_equal(victim.entities, result.trained[place].entities[: len(victim.entities)])
    assert np.array_equal(view.colluder.entities, result.trained[0].entities[: len(view.colluder.entities)])


def test_reconstruction_and_membership_run(result: KgeResult) -> None:
    """At a full leak, shared entities are named by their rows; what models say of triples is measured for both of a client's."""
    options = KgeAttackOptions(
        attack=("reconstruction", "membership"), threat=("collusion", "models"), leak=(1.0,), unlinked_heads=0
    )
    figures = [one for one in run_attacks(result, options, leak_draws=0).figures if one.victim == "all"]
    named = [one for one in figures if (one.metric, one.threat_model) == ("err", "collusion")]
    assert named
    assert [one for one in named if one.baseline is None or one.estimate.low <= one.baseline.high] == []
    membership = [one for one in figures if (one.attack, one.metric) == ("membership", "auc")]
    assert {one.variant for one in membership} == {
        "strongest",
        *(f"{model}, {way}" for model in ("local", "global") for way in ("score", "loss", "rank")),
    }
    assert all(0 < one.estimate.value < 1 and one.estimate.n > 10 for one in membership)


def test_input_rows_alone_say_nothing_of_predictions(result: KgeResult) -> None:
    with pytest.raises(
        RunError, match=f"{result.options.model}: input rows alone say nothing of what a client predicts"
    ):
        replace(result, encoded=[], trained_encoded=[]).predictor("tables", 0)
