"""Federations of PyKEEN's interactions: a round as our own models take it, what crosses, resumes, attacks, defenses, files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fkgsec.data.graph import FederatedGraph
from fkgsec.federation.loop import Observer, run_federation
from fkgsec.federation.options import replace
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


class Killed(Observer):
    """Ends a run from inside, as a kill would, after a round."""

    def round_done(self, entry: Any) -> None:
        if entry.round == 2:
            raise KeyboardInterrupt


def equal(one: KgeResult, other: KgeResult) -> bool:
    ours, theirs = one.tensors(), other.tensors()
    return set(ours) == set(theirs) and all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())


@pytest.mark.slow
@pytest.mark.parametrize("model", ["TransH", "ConvE(output_channels=4)"])
def test_a_resumed_run_equals_one_that_was_not_stopped(model: str, uneven: FederatedGraph, tmp_path: Path) -> None:
    """ConvE has dropout and running averages."""
    options = small(model, rounds=4)
    whole = run_federation(uneven, options)
    with pytest.raises(KeyboardInterrupt):
        run_federation(uneven, options, tmp_path, Killed(), checkpoint_every_s=0)
    resumed = run_federation(uneven, options, tmp_path, checkpoint_every_s=0)
    assert equal(resumed, whole)
    resumed.save(tmp_path / "result")
    assert equal(KgeResult.load(tmp_path / "result", uneven, options), whole)
    torch.manual_seed(1)  # whatever else draws from torch's generator
    assert equal(run_federation(uneven, options), whole)
