"""What every algorithm for graphs stands: few and many clients, a client of few graphs, some who take part, a kill."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from fkgsec.federation.loop import Observer, run_federation
from fkgsec.federation.options import replace
from fkgsec.federation.recipes import algorithms_of
from fkgsec.gnn.options import GnnOptions
from fkgsec.gnn.result import GnnResult
from fkgsec.graphs.generate import generate_motifs
from fkgsec.graphs.sets import FederatedGraphs
from fkgsec.graphs.split import by_chance

AS_FEDAVG = {"fedper", "fedgcn"}  # by tests of their own they train to its bits
ALGORITHMS = tuple(sorted(set(algorithms_of("graph")) - AS_FEDAVG))
QUICK = {"gcfl", "spreadgnn"}  # of twenty clients, whose server treats each as another
SMALL = GnnOptions(width=8, rounds=4, batch_size=16, device="cpu", seed=6)
CUT = {"epsilon1": 100.0, "epsilon2": 0.0, "first_cut": 0}
EAGER: dict[str, dict[str, object]] = {
    "cefgl": {"exchange": 1.0, "drop_alpha": 1.0, "drop_beta": 2.0},
    "gcfl": CUT,
    "gcfl+": {**CUT, "seq_length": 1},
    "gcfl+dws": {**CUT, "seq_length": 1, "standardize": True},
}
"""Settings by which what an algorithm does late or seldom happens in four rounds."""


def flat(result: GnnResult) -> torch.Tensor:
    return torch.cat([tensor.flatten().double() for model in result.models for _, tensor in sorted(model.items())])


def options_of(algorithm: str) -> GnnOptions:
    return replace(SMALL, algorithm=algorithm, settings=EAGER.get(algorithm))


class Kill(Observer):
    def round_started(self, round: int, num_steps: int) -> None:
        if round == 4:
            raise KeyboardInterrupt


@pytest.fixture(scope="module")
def twenty() -> FederatedGraphs:
    return by_chance(generate_motifs(0, clients=1, size=240)[0], clients=20, seed=0)


@pytest.mark.parametrize(
    "algorithm", [one if one in QUICK else pytest.param(one, marks=pytest.mark.slow) for one in ALGORITHMS]
)
def test_twenty_clients_of_whom_some_take_part(
    algorithm: str, twenty: FederatedGraphs, tmp_path: Path, threads: Callable[[int], None]
) -> None:
    options = replace(options_of(algorithm), participation=0.4)
    whole = run_federation(twenty, options)
    present = [options.num_participants(20, round) for round in range(1, 5)]
    assert all(entry.num_survivors in (0, count) for entry, count in zip(whole.rounds[1:], present, strict=True))
    assert set(present) == {8} or algorithm == "cefgl"
    with pytest.raises(KeyboardInterrupt):
        run_federation(twenty, options, tmp_path, Kill(), checkpoint_every_s=0)
    threads(1)
    resumed = run_federation(twenty, options, tmp_path)
    assert torch.equal(flat(resumed), flat(whole))
    assert [entry.loss for entry in resumed.rounds] == [entry.loss for entry in whole.rounds]
