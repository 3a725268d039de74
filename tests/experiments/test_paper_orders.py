"""The orders that the papers claim, on real data at a size for two cores, and one that does not hold.

Run with `FKGSEC_DATA=... pytest -m slow`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pytest

from fkgsec.data.catalogue import DATA_VARIABLE
from fkgsec.experiments.runs.spec import Spec
from fkgsec.federation.loop import run_federation

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not os.environ.get(DATA_VARIABLE), reason=f"{DATA_VARIABLE} names no data folder"),
]


class Trained(NamedTuple):
    """Test MRR, validation MRR after each check, and bytes of all rounds."""

    mrr: float
    checks: list[float]
    num_bytes: int


def train(data: str, settings: Mapping[str, Any], **further: Any) -> Trained:
    spec = Spec(data=data, device="cpu", patience=0, **{**settings, **further})
    result = run_federation(spec.load_graph(), spec.federation_options())
    return Trained(
        float(np.mean(np.concatenate([1 / ranks.ravel() for ranks in result.test_ranks]))),
        [entry.valid for entry in result.rounds if entry.valid is not None],
        sum(entry.bytes_up + entry.bytes_down for entry in result.rounds),
    )


@pytest.fixture(scope="module")
def ddb14() -> dict[str, Trained]:
    """20 rounds on DDB14-Fed5."""
    settings = {"dim": 80, "num_negatives": 32, "rounds": 20, "learning_rate": 0.005, "eval_every": 4}
    algorithms = ("fedep", "feds", "fedepl", "fede", "fede-svd", "fede-svd+")
    return {name: train("DDB14-Fed5", settings, algorithm=name) for name in algorithms}


def test_feds_is_as_good_as_fedep_for_half_the_bytes(ddb14: dict[str, Trained]) -> None:
    """feds.txt Tables II, III."""
    assert ddb14["feds"].mrr > 0.98 * ddb14["fedep"].mrr
    assert ddb14["feds"].num_bytes < 0.52 * ddb14["fedep"].num_bytes


def test_a_smaller_dimension_for_the_same_bytes_is_worse_than_feds(ddb14: dict[str, Trained]) -> None:
    """feds.txt Table IV."""
    assert ddb14["fedepl"].num_bytes == pytest.approx(ddb14["feds"].num_bytes, rel=0.15)
    assert ddb14["fedepl"].mrr < 0.9 * ddb14["feds"].mrr


def test_low_rank_updates_are_slower_to_converge(ddb14: dict[str, Trained]) -> None:
    """feds.txt Table I: after as many rounds FedE is ahead of FedE-SVD, and that of FedE-SVD+."""
    for full, low_rank, orthogonal in zip(
        *(ddb14[name].checks for name in ("fede", "fede-svd", "fede-svd+")), strict=True
    ):
        assert full > low_rank > orthogonal


def test_fedlu_is_above_fede_where_its_models_learn_little_from_each_other() -> None:
    """fedlu.txt Table 1 has FedLU (local) above FedE on C3, and credits mutual distillation.

    Here it is with negatives weighed alike in both, as in its code, and a mu of 0.3, or of none, which is a client alone
    (fedlu.txt 5.4). The paper's mu of 2 costs the local model its lead.
    """
    settings = {"dim": 32, "num_negatives": 16, "rounds": 15, "learning_rate": 0.002, "batch_size": 1024, "gamma": 9.0}
    fede = train("FB15k-237-C3", settings, algorithm="fede", temperature=0.0)
    fedlu = {mu: train("FB15k-237-C3", settings, algorithm="fedlu", mu=mu) for mu in (0.0, 0.3, 2.0)}
    assert fedlu[0.0].mrr > 1.03 * fede.mrr
    assert fedlu[0.3].mrr > 1.03 * fede.mrr
    assert fedlu[2.0].mrr < 1.01 * fede.mrr
