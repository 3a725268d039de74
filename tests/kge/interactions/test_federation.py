"""Federations of PyKEEN's interactions: a round as our own models take it, what crosses, resumes, attacks, defenses, files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fkgsec.attacks.options import KgeAttackOptions
from fkgsec.attacks.registry import run_attacks
from fkgsec.data.graph import FederatedGraph
from fkgsec.defenses.transport import make_transport
from fkgsec.federation.loop import Observer, run_federation
from fkgsec.federation.messages import Rows
from fkgsec.federation.options import replace
from fkgsec.kge.local.task import KgeTask, _remark_once
from fkgsec.kge.options import KgeOptions
from fkgsec.kge.result import KgeResult
from tests.kge.interactions.conftest import needs_pykeen, small

pytestmark = [needs_pykeen, pytest.mark.filterwarnings("ignore")]
# RotatE of PyKEEN takes the L2 norm over components, ours the sum of moduli: they are one in one dimension.
SAME = [("transe", "TransE(p=1)", 8), ("distmult", "DistMult", 8), ("complex", "ComplEx", 8), ("rotate", "RotatE", 1)]


@pytest.mark.parametrize(
    ("own", "plugged", "dim", "algorithm"), [*((*case, "fede") for case in SAME), (*SAME[2], "fedr")]
)
def test_a_round_is_that_of_our_kernels(
    own: str, plugged: str, dim: int, algorithm: str, uneven: FederatedGraph
) -> None:
    """Rows after two epochs of each client, the broadcast, losses and ranks."""
    changes: dict[str, Any] = {"algorithm": algorithm, "dim": dim, "rounds": 1, "eval_every": 1}
    options = small(plugged, **changes)
    theirs = run_federation(uneven, options)
    ours = run_federation(uneven, replace(options, model=own))
    for kind in ("trained", "tables"):
        for one, other in zip(getattr(theirs, kind), getattr(ours, kind), strict=True):
            torch.testing.assert_close(one.entities, other.entities, rtol=0, atol=1e-4)
            torch.testing.assert_close(one.relations, other.relations, rtol=0, atol=1e-4)
    assert theirs.rounds[1].loss == pytest.approx(ours.rounds[1].loss, abs=1e-5)
    ranks = [np.concatenate(one.test_ranks) for one in (theirs, ours)]
    assert np.mean(ranks[0] == ranks[1]) > 0.95  # a rank may fall between two equal scores


def test_it_is_said_once_that_it_is_slower(uneven: FederatedGraph) -> None:
    _remark_once.cache_clear()
    with pytest.warns(
        RuntimeWarning, match=r"^pykeen:TransH trains by autograd through PyKEEN, .* several times as long"
    ) as said:
        [KgeTask(uneven, small("TransH")) for _ in range(2)]
    assert len([one for one in said if "autograd" in str(one.message)]) == 1


class Killed(Observer):
    """Ends a run from inside, as a kill would, after a round."""

    def round_done(self, entry: Any) -> None:
        if entry.round == 2:
            raise KeyboardInterrupt


def equal(one: KgeResult, other: KgeResult) -> bool:
    ours, theirs = one.tensors(), other.tensors()
    return set(ours) == set(theirs) and all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["fede", "single"])
@pytest.mark.parametrize("model", ["TransH", "ConvE(output_channels=4)"])
def test_a_resumed_run_equals_one_that_was_not_stopped(
    model: str, algorithm: str, uneven: FederatedGraph, tmp_path: Path
) -> None:
    """ConvE has dropout and running averages."""
    options = small(model, algorithm=algorithm, rounds=4)
    whole = run_federation(uneven, options)
    with pytest.raises(KeyboardInterrupt):
        run_federation(uneven, options, tmp_path, Killed(), checkpoint_every_s=0)
    resumed = run_federation(uneven, options, tmp_path, checkpoint_every_s=0)
    assert equal(resumed, whole)
    resumed.save(tmp_path / "result")
    assert equal(KgeResult.load(tmp_path / "result", uneven, options), whole)
    torch.manual_seed(1)  # whatever else draws from torch's generator
    assert equal(run_federation(uneven, options), whole)


@pytest.mark.parametrize(("algorithm", "table"), [("fede", "entities"), ("fedr", "relations")])
def test_rows_cross_and_filters_stay(algorithm: str, table: str, uneven: FederatedGraph) -> None:
    result = run_federation(uneven, small("ConvE(output_channels=4)", algorithm=algorithm, rounds=2))
    messages = [message for message in result.transcript.messages(2) if isinstance(message, Rows)]
    assert {message.table for message in messages} == {table}
    assert {message.unpack().shape[1] for message in messages} == {9 if table == "entities" else 8}
    first, second = (result.encoded[place].decoder for place in (0, 1))
    assert not torch.equal(first["hr2d.2.weight"], second["hr2d.2.weight"])  # each client has its own
    model, tables = result.predictor("tables", 0)
    assert torch.isfinite(
        model.score_all(model.query(tables.entities[:2], tables.relations[:2], "tail"), tables.entities)
    ).all()


@pytest.mark.slow
@pytest.mark.parametrize("model", ["TransH", "NTN(k=2)", "KG2E"])
def test_secure_sums_are_those_in_clear(model: str, uneven: FederatedGraph) -> None:
    """Up to the step of fixed-point numbers; relation rows of NTN are matrices."""
    options = small(model, algorithm="fedr", rounds=2)
    clear = run_federation(uneven, options)
    hidden = run_federation(uneven, replace(options, defense="psu,secagg"), make_transport=make_transport)
    for one, other in zip(hidden.tables, clear.tables, strict=True):
        torch.testing.assert_close(one.relations, other.relations, rtol=0, atol=2e-3)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["fede", "fedr"])
@pytest.mark.parametrize("model", ["TransH", "ConvE(output_channels=4)", "TransE(p=1)", "SE"])
def test_attacks_run(model: str, algorithm: str, consortium: FederatedGraph) -> None:
    """Reconstruction at a full leak names shared entities by their rows; membership asks each client's own model."""
    options = small(model, algorithm=algorithm, dim=16, rounds=6, eval_every=6, batch_size=64)
    attack = KgeAttackOptions(
        attack=("reconstruction", "membership", "edges"), threat=("collusion", "models", "server"), leak=(1.0,)
    )
    result = run_federation(consortium, options)
    figures = [one for one in run_attacks(result, attack, leak_draws=0).figures if one.victim == "all"]
    named = [one for one in figures if (one.metric, one.threat_model) == ("err", "collusion")]
    membership = [one for one in figures if (one.attack, one.metric) == ("membership", "auc")]
    assert membership
    assert all(0 < one.estimate.value < 1 and one.estimate.n > 10 for one in membership)
    if algorithm == "fede":
        assert named
        assert all(one.baseline is None or one.estimate.low > one.baseline.high for one in named)


def test_two_clients_of_options_that_are_equal_are_of_one_run() -> None:
    """The name as given is what a run is known by."""
    assert small("TransE(p=1)").identity() != small("TransE(p=2)").identity()
    assert KgeOptions(model="pykeen:TransH").identity()["model"] == "pykeen:TransH"
