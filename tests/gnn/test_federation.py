"""The graph task under the one loop: aggregation by hand, bits, resume, secure sums, results on disk."""

import numpy as np
import pytest
import torch

from fkgsec import generate_consortium
from fkgsec.errors import DataError, SpecError
from fkgsec.estimate import proportion
from fkgsec.federation.loop import run_federation
from fkgsec.federation.messages import SERVER, Rows
from fkgsec.federation.options import replace
from fkgsec.gnn.models import ENCODER
from fkgsec.gnn.options import GnnOptions
from fkgsec.gnn.result import GnnResult, Probabilities, mean_over_clients
from fkgsec.gnn.task import GraphTask
from fkgsec.graphs.generate import generate_motifs
from fkgsec.graphs.sets import FederatedGraphs
from fkgsec.graphs.split import by_chance

ALGORITHMS = ("local-gc", "fedavg", "fedper", "fedprox-gc")
SMALL = GnnOptions(width=8, rounds=3, batch_size=16, device="cpu")


def flat(result: GnnResult) -> torch.Tensor:
    return torch.cat([tensor.flatten().double() for model in result.models for _, tensor in sorted(model.items())])


@pytest.fixture(scope="module")
def finished(motifs: FederatedGraphs) -> dict[str, GnnResult]:
    """A run of each algorithm."""
    return {name: run_federation(motifs, replace(SMALL, algorithm=name)) for name in ALGORITHMS}


def test_the_mean_is_weighted_by_training_graphs(motifs: FederatedGraphs) -> None:
    """One round by hand: each client trained by itself, rows averaged with 48, 40 and 32."""
    result = run_federation(motifs, replace(SMALL, rounds=1))
    task = GraphTask(motifs, SMALL)
    alone = []
    for place, client in enumerate(motifs.clients):
        task.train(1, [place], lambda: None)
        alone.append(task.trainers[place].model.state_dict())
        assert len(client.train) == (48, 40, 32)[place]
    for name, tensor in alone[0].items():
        kept = [model[name] for model in result.models]
        if name.startswith(ENCODER):
            mean = sum(weight * model[name] for weight, model in zip((48, 40, 32), alone, strict=True)) / 120
            assert torch.allclose(kept[0], mean, atol=1e-6), name
            assert torch.equal(kept[0], kept[1])
            trained = result.trained[2].get(name, alone[2][name])  # a buffer does not cross
            assert torch.equal(trained, alone[2][name])  # bits: alone as in the federation
        else:
            assert torch.equal(kept[0], tensor), name
    assert result.rounds[1].valid == pytest.approx(
        np.mean([task_accuracy(motifs, result.models[place], place) for place in range(3)])
    )


def task_accuracy(motifs: FederatedGraphs, model: dict[str, torch.Tensor], place: int) -> float:
    trainer = GraphTask(motifs, SMALL).trainers[place]
    return float(trainer.classify(trainer.client.valid, model).correct.mean())


def test_what_crosses_are_rows_of_convolutions(finished: dict[str, GnnResult]) -> None:
    """GIN, two layers of 8: 2 (2 (8 x 8 + 8)) numbers, up and down, whatever the widths of features and classes."""
    result = finished["fedavg"]
    names = result.row_names["parameters"]
    assert len(names) == 2 * 2 * 9
    assert names[:2] == ["convs.0.nn.0.weight/0", "convs.0.nn.0.weight/1"]
    messages = result.transcript.messages(3)
    assert [type(message) for message in messages] == [Rows] * 6
    assert {len(message.data) for message in messages if isinstance(message, Rows)} == {4 * 36 * 8}
    assert sum(message.receiver == SERVER for message in messages) == 3
    assert finished["local-gc"].transcript.entries == []


def test_fedper_is_what_the_codes_call_fedavg(finished: dict[str, GnnResult]) -> None:
    assert torch.equal(flat(finished["fedper"]), flat(finished["fedavg"]))
    assert not torch.equal(flat(finished["local-gc"]), flat(finished["fedavg"]))
    assert not torch.equal(flat(finished["fedprox-gc"]), flat(finished["fedavg"]))


def test_fedgcn_without_edges_between_clients_is_fedavg(
    motifs: FederatedGraphs, finished: dict[str, GnnResult]
) -> None:
    """No edge of the federation joins two clients, so that there are no features to exchange; what is left is FedAvg."""
    for client in motifs.clients:
        own, edges = client.graphs.graph_of, client.graphs.edges()
        assert (own[edges[:, 0]] == own[edges[:, 1]]).all()
    assert torch.equal(flat(run_federation(motifs, replace(SMALL, algorithm="fedgcn"))), flat(finished["fedavg"]))


def test_selection_on_test_graphs_is_named(motifs: FederatedGraphs, finished: dict[str, GnnResult]) -> None:
    result = run_federation(motifs, replace(SMALL, select="test"))
    found = result.accuracy()
    assert found is not None
    assert result.valid == pytest.approx(found.value)
    assert result.valid == max(entry.valid for entry in result.rounds[1:] if entry.valid is not None)
    assert "the round was selected by test accuracy, which is too high" in result.summary()
    assert [entry.loss for entry in result.rounds] == [entry.loss for entry in finished["fedavg"].rounds]


def test_the_last_round_can_be_kept(motifs: FederatedGraphs) -> None:
    """The validation accuracy of all rounds stays in the result."""
    options = replace(SMALL, rounds=6)
    best, last = (run_federation(motifs, replace(options, select=select)) for select in ("validation", "last"))
    assert best.best_round < last.best_round == 6
    assert [entry.valid for entry in best.rounds] == [entry.valid for entry in last.rounds]
    assert not torch.equal(flat(best), flat(last))


def test_all_parameters_are_shared_by_clients_of_one_data_set(motifs: FederatedGraphs) -> None:
    divided = by_chance(generate_motifs(0, clients=1, size=80)[0], clients=2, seed=0)
    result = run_federation(divided, replace(SMALL, rounds=1, settings={"share": "all"}))
    for name, tensor in result.models[0].items():
        assert torch.equal(tensor, result.models[1][name])
    with pytest.raises(SpecError, match="molecules-1 has 4 features and 2 classes, molecules-2 5 and 2"):
        run_federation(motifs, replace(SMALL, settings={"share": "all"}))


def test_judged_as_training_left_them(motifs: FederatedGraphs, finished: dict[str, GnnResult]) -> None:
    before = run_federation(motifs, replace(SMALL, settings={"evaluate": "before"}))
    place, trainer = 0, GraphTask(motifs, SMALL).trainers[0]
    judged = trainer.classify(trainer.client.test, {**before.models[place], **before.trained[place]})
    assert np.array_equal(before.test[place].values, judged.values)
    assert [entry.loss for entry in before.rounds] == [entry.loss for entry in finished["fedavg"].rounds]


def test_accuracy_is_the_mean_over_clients_and_of_clean_graphs() -> None:
    sure, unsure = np.array([[1.0, 0.0]] * 4), np.array([[0.5, 0.5]] * 2)
    test = [Probabilities(sure, np.array([0, 0, 0, 1])), Probabilities(unsure, np.array([0, 1]))]
    result = GnnResult.__new__(GnnResult)
    object.__setattr__(result, "test", test)
    found = result.accuracy()
    assert found is not None
    assert [found.value, found.n] == [(3 / 4 + 1 / 2) / 2, 6]
    clean = result.accuracy([np.array([True, True, False, False]), np.array([False, False])])
    assert clean is not None
    assert [clean.value, clean.n] == [1.0, 2]
    assert result.accuracy([np.zeros(4, bool), np.zeros(2, bool)]) is None


def test_the_interval_of_a_mean_of_clients_covers() -> None:
    """Of 1,000 draws of 19, 41 and 200 test graphs about 950 intervals hold the true mean."""
    rng, shares, sizes = np.random.default_rng(0), np.array([0.7, 0.85, 0.95]), np.array([19, 41, 200])
    hits = 0
    for _ in range(1_000):
        found = mean_over_clients(
            [proportion(int(k), int(n)) for k, n in zip(rng.binomial(sizes, shares), sizes, strict=True)]
        )
        assert found is not None
        hits += found.low <= shares.mean() <= found.high
    assert 930 <= hits <= 985


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"weight_decay": -1.0}, "weight_decay must be at least 0; got -1.0"),
        ({"model": "gan"}, "model must be gin"),
        ({"select": "train"}, "select must be one of validation, test, last; got 'train'"),
        ({"algorithm": "fede"}, "algorithm 'fede' is one of the task 'kge'; GnnOptions has the options of 'graph'"),
        ({"settings": {"mu": 1.0}}, "mu does not apply to fedavg"),
        ({"settings": {"share": "half"}}, "share must be one of all, encoder; got 'half'"),
    ],
)
def test_options_that_are_refused(options: dict[str, object], fault: str) -> None:
    with pytest.raises(SpecError, match=fault):
        GnnOptions(**options)  # type: ignore[arg-type]


def test_data_of_another_task_are_refused(motifs: FederatedGraphs) -> None:
    with pytest.raises(DataError, match="FederatedGraph has no clients with graphs"):
        run_federation(generate_consortium(clients=2, size=600, seed=0), SMALL)
    with pytest.raises(DataError, match="needs at least 2 clients"):
        run_federation(FederatedGraphs("one", motifs.clients[:1]), SMALL)
    assert run_federation(
        FederatedGraphs("one", motifs.clients[:1]), replace(SMALL, algorithm="local-gc", rounds=1)
    ).test
