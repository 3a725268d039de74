"""SpreadGNN: its multi-task term against autograd, a mean of neighbours by hand, what crosses, what is refused."""

from pathlib import Path

import pytest
import torch

from fkgsec.algorithms.graphs.spreadgnn import HEAD, SpreadGNNRule, multi_task_term, neighbours_of
from fkgsec.federation.loop import Observer, run_federation
from fkgsec.federation.messages import SERVER, Rows
from fkgsec.federation.options import replace
from fkgsec.gnn.models import ENCODER
from fkgsec.gnn.options import GnnOptions
from fkgsec.gnn.result import GnnResult
from fkgsec.gnn.task import GraphTask
from fkgsec.graphs.generate import generate_motifs
from fkgsec.graphs.sets import FederatedGraphs
from fkgsec.graphs.split import by_dataset

SMALL = GnnOptions(algorithm="spreadgnn", width=8, rounds=2, batch_size=16, device="cpu", seed=6)
AVERAGED = (ENCODER, "post.")


@pytest.fixture(scope="module")
def ring() -> FederatedGraphs:
    return by_dataset(generate_motifs(0, clients=5, size=200), seed=0, name="ring")


@pytest.fixture(scope="module")
def finished(ring: FederatedGraphs) -> GnnResult:
    return run_federation(ring, SMALL)


def test_a_killed_run_goes_on_with_the_same_bits_whatever_clients_are_called(
    ring: FederatedGraphs, tmp_path: Path
) -> None:
    """A checkpoint has what a client keeps of its neighbours by name; sums are over neighbours by place."""
    turned = FederatedGraphs("turned", ring.clients[::-1])
    options = replace(SMALL, rounds=6)
    whole = run_federation(turned, options)

    class Kill(Observer):
        def round_started(self, round: int, num_steps: int) -> None:
            if round == 2:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_federation(turned, options, tmp_path, Kill(), checkpoint_every_s=0)
    resumed = run_federation(turned, options, tmp_path)
    assert [entry.loss for entry in resumed.rounds] == [entry.loss for entry in whole.rounds]
    for one, other in zip(resumed.models, whole.models, strict=True):
        assert all(torch.equal(one[name], other[name]) for name in other)


def test_the_term_is_that_of_the_best_omega() -> None:
    """tr(Phi^T Omega^-1 Phi) / 2 with Omega = (Phi Phi^T)^(1/2) over its trace, differentiated with Omega aside."""
    phi = torch.randn(3, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    values, vectors = torch.linalg.eigh(phi @ phi.T)
    root = vectors @ torch.diag(values.sqrt()) @ vectors.T
    omega = root / root.trace()
    leaf = phi.clone().requires_grad_()
    term = (leaf.T @ torch.linalg.inv(omega) @ leaf).trace() / 2
    term.backward()
    value, gradient = multi_task_term(phi)
    assert value == pytest.approx(float(term.detach()))
    assert leaf.grad is not None
    assert torch.allclose(gradient, leaf.grad)
    value, gradient = multi_task_term(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))  # of norm 5, in one direction
    assert value == pytest.approx(12.5)
    assert torch.allclose(gradient, torch.tensor([[3.0, 4.0], [0.0, 0.0]]))


def test_neighbours_in_a_ring() -> None:
    assert [neighbours_of(place, 5, 1) for place in range(5)] == [[1, 4], [0, 2], [1, 3], [2, 4], [0, 3]]
    assert neighbours_of(2, 5, 9) == [0, 1, 3, 4]
    assert neighbours_of(0, 2, 1) == [1]


def test_the_mean_of_neighbours_by_hand(ring: FederatedGraphs) -> None:
    """Nothing is known of neighbours' last layers in round 1, so that clients train as alone; then 0 has 4, 0 and 1."""
    result = run_federation(ring, replace(SMALL, rounds=1))
    task = GraphTask(ring, SMALL)
    task.train(1, range(5), lambda: None)  # type: ignore[arg-type]
    alone = [trainer.model.state_dict() for trainer in task.trainers]
    for name, found in result.models[0].items():
        near = (0, 1, 4) if name.startswith(AVERAGED) and not name.endswith("eps") else (0,)
        assert torch.allclose(found, torch.stack([alone[place][name] for place in near]).mean(0), atol=1e-6), name


def test_what_the_last_layer_leans_on_in_round_two(ring: FederatedGraphs) -> None:
    task = GraphTask(ring, SMALL)
    trainer, rule = task.trainers[0], SpreadGNNRule(SMALL)
    for parameter in trainer.model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    assert rule.correct(trainer) == 0.0
    heads = {f"neighbour.{place}.{HEAD}": torch.full((2, 8), 0.1 * place) for place in (1, 4)}
    trainer.memory |= heads
    own = trainer.model.get_parameter(HEAD)
    value, gradient = multi_task_term(torch.cat([own.detach(), *heads.values()]))
    assert rule.correct(trainer) == pytest.approx(0.01 * value)
    assert own.grad is not None
    assert torch.allclose(own.grad, 0.01 * gradient[:2])
    bare = run_federation(ring, replace(SMALL, settings={"task_reg": 0.0}))
    leaning = run_federation(ring, SMALL)
    assert not torch.equal(bare.models[0][HEAD], leaning.models[0][HEAD])
    assert bare.rounds[1].loss == leaning.rounds[1].loss


def test_bytes_down_are_those_between_peers(finished: GnnResult) -> None:
    """36 rows of convolutions, 9 of the layer after the readout, 2 of the last: to each of two neighbours."""
    sizes = [(m.receiver == SERVER, m.num_rows) for m in finished.transcript.messages(2) if isinstance(m, Rows)]
    assert sizes == [(True, 47)] * 5 + [(False, 94)] * 5
    names = finished.row_names["parameters"]
    assert len(names) == 5 * 47
    assert names[0] == "molecules-1:convs.0.nn.0.weight/0"
