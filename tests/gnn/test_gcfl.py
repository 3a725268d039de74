"""GCFL in a federation: its first cut by hand, what crosses, and what is left of it without cuts."""

import itertools

import pytest
import torch

from fkgsec.exchange.tensors.clusters import GRADIENT_NORM
from fkgsec.federation.loop import run_federation
from fkgsec.federation.messages import SERVER, Rows
from fkgsec.federation.options import replace
from fkgsec.gnn.models import ENCODER
from fkgsec.gnn.options import GnnOptions
from fkgsec.gnn.task import GraphTask
from fkgsec.graphs.sets import FederatedGraphs

SMALL = GnnOptions(algorithm="gcfl", width=8, rounds=2, batch_size=16, device="cpu", seed=6)
CUT = {"epsilon1": 100.0, "epsilon2": 0.0, "first_cut": 0}
SIZES = (48, 40, 32)


def convolutions(model: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat([one.flatten() for name, one in sorted(model.items()) if name.startswith(ENCODER)])


def test_the_first_cut_by_hand(motifs: FederatedGraphs) -> None:
    result = run_federation(motifs, replace(SMALL, rounds=1, settings=CUT))
    task = GraphTask(motifs, SMALL)
    before = convolutions(task.trainers[0].model.state_dict()).clone()
    task.train(1, [0, 1, 2], lambda: None)
    updates = [convolutions(trainer.model.state_dict()) - before for trainer in task.trainers]
    similarity = {
        pair: 1 + float(torch.nn.functional.cosine_similarity(updates[pair[0]], updates[pair[1]], dim=0))
        for pair in itertools.combinations(range(3), 2)
    }
    # The one whose two similarities are least goes; the others share.
    alone = min(range(3), key=lambda place: sum(value for pair, value in similarity.items() if place in pair))
    others = [place for place in range(3) if place != alone]
    found = [convolutions(model) for model in result.models]
    assert torch.allclose(found[alone], before + updates[alone], atol=1e-6)
    mean = sum(SIZES[place] * updates[place] for place in others) / sum(SIZES[place] for place in others)
    assert torch.allclose(found[others[0]], before + mean, atol=1e-6)
    assert torch.equal(found[others[0]], found[others[1]])


@pytest.mark.parametrize("algorithm", ["gcfl", "gcfl+", "gcfl+dws"])
def test_without_a_cut_it_is_fedavg(algorithm: str, motifs: FederatedGraphs) -> None:
    """To the rounding of updates: the default thresholds wait for round 21."""
    fedavg = run_federation(motifs, replace(SMALL, algorithm="fedavg"))
    result = run_federation(motifs, replace(SMALL, algorithm=algorithm))
    for one, other in zip(result.models, fedavg.models, strict=True):
        assert all(torch.allclose(one[name], other[name], atol=1e-5) for name in one)


def test_a_gradient_norm_goes_up_and_does_not_come_back(motifs: FederatedGraphs) -> None:
    """A row of 8 numbers more than FedAvg's 36, in uploads alone, whose first is the norm of the last batch's gradient."""
    result = run_federation(motifs, replace(SMALL, algorithm="gcfl+", rounds=1))
    rows = {m.sender if m.receiver == SERVER else m.receiver: m for m in result.transcript.messages(1)}
    assert {m.num_rows for m in rows.values() if isinstance(m, Rows) and m.receiver == SERVER} <= {37}
    counts = [m.num_rows for m in result.transcript.messages(1) if isinstance(m, Rows)]
    assert counts == [37] * 3 + [36] * 3
    assert [m.num_rows for m in result.transcript.messages(0) if isinstance(m, Rows)] == [36] * 3
    task = GraphTask(motifs, replace(SMALL, algorithm="gcfl+"))
    task.train(1, [1], lambda: None)
    squares = sum(float(one.grad.square().sum()) for one in task.trainers[1].shared.values())  # type: ignore[union-attr]
    upload = next(m for m in result.transcript.messages(1) if m.sender == "client/molecules-2")
    assert isinstance(upload, Rows)
    assert upload.unpack()[-1].tolist() == pytest.approx([squares**0.5] + [0] * 7, rel=1e-5)
    assert result.row_names["parameters"][-1] == f"{GRADIENT_NORM}/0"
