"""CEFGL: its steps by hand, its rounds with and without exchange, what is left of it without its parts."""

import pytest
import torch
from torch.nn import functional

from fkgsec.algorithms.graphs.cefgl import SPARSE, CEFGLRule
from fkgsec.algorithms.graphs.settings import CEFGLSettings
from fkgsec.errors import SpecError
from fkgsec.exchange.parts import tensor_places
from fkgsec.exchange.tensors.quantised import quantise
from fkgsec.exchange.tensors.truncated_svd import CORRECTION, truncated
from fkgsec.federation.loop import run_federation
from fkgsec.federation.messages import SERVER, QuantisedRows, Rows
from fkgsec.federation.options import replace
from fkgsec.gnn.batches import Batch
from fkgsec.gnn.models import ENCODER
from fkgsec.gnn.options import GnnOptions
from fkgsec.gnn.result import GnnResult
from fkgsec.gnn.task import GraphTask
from fkgsec.gnn.training import ClientTrainer
from fkgsec.graphs.sets import FederatedGraphs
from fkgsec.randomness import generator

FOUR_BITS = {"bits": 4, "rounding": "nearest"}
SMALL = GnnOptions(algorithm="cefgl", width=8, rounds=4, batch_size=16, device="cpu", seed=6, settings=FOUR_BITS)
ALL_ROUNDS = {"exchange": 1.0, **FOUR_BITS}
PLAIN = {
    "correction": "off",
    "alpha": 0.0,
    "singular_threshold": 0.0,
    "bits": 32,
    "exchange": 1.0,
    "components": "shared",
}


def flat(result: GnnResult) -> torch.Tensor:
    return torch.cat([one.flatten().double() for model in result.models for _, one in sorted(model.items())])


@pytest.fixture(scope="module")
def finished(motifs: FederatedGraphs) -> GnnResult:
    return run_federation(motifs, SMALL)


def test_without_its_parts_it_is_fedavg(motifs: FederatedGraphs) -> None:
    bare = run_federation(motifs, replace(SMALL, settings=PLAIN))
    fedavg = run_federation(motifs, replace(SMALL, algorithm="fedavg", settings=None))
    assert torch.equal(flat(bare), flat(fedavg))


@pytest.mark.parametrize("correction", ["dual", "printed"])
def test_a_round_of_a_client_by_hand(correction: str, motifs: FederatedGraphs) -> None:
    """One batch a phase, without dropout: both gradients by autograd of the whole objectives."""
    given = {"correction": correction, "l1": 0.1, "sparse_threshold": 5e-4}
    options = replace(SMALL, batch_size=64, dropout=0.0, weight_decay=0.0, settings=given)
    client, eta, alpha = motifs.clients[1], 1e-3, 0.6
    ours, theirs = (ClientTrainer(client, options, CEFGLRule(options), (ENCODER,)) for _ in range(2))
    theta = {name: one.detach() + 0.01 for name, one in theirs.shared.items()}
    h = {name: torch.full_like(one, 0.003) for name, one in theta.items()}
    for trainer in (ours, theirs):
        trainer.take(theta)
        trainer.memory = {f"{CORRECTION}{name}": one.clone() for name, one in h.items()}
    ours.train(2, lambda: None)

    def objective(phase: tuple[str, ...], convolutions: dict[str, torch.Tensor]) -> torch.Tensor:
        order = generator(6, "batches", client.name, 2, 0, *phase).permutation(len(client.train))
        batch = Batch.of(theirs.training.subset(order))
        return functional.cross_entropy(torch.func.functional_call(theirs.model, convolutions, (batch,)), batch.classes)

    # Eq. 6, with the terms as gradients.
    w = theirs.shared
    loss = objective((), dict(w))
    loss = loss + sum(alpha / 2 * (w[n] - theta[n]).square().sum() - (h[n] * w[n]).sum() for n in w)
    adam = torch.optim.Adam(theirs.model.parameters(), lr=eta)
    loss.backward()
    adam.step()
    # Eq. 8, the other layers along.
    s = {name: torch.zeros_like(one, requires_grad=True) for name, one in theta.items()}
    adam.zero_grad()
    objective(("fine-tuning",), {name: theta[name] + s[name] for name in s}).backward()
    adam.step()
    torch.optim.Adam(s.values(), lr=eta).step()
    for name, one in s.items():
        shrunk = one.detach().sign() * (one.detach().abs() - eta * 0.1).clamp_min(0)
        expected = torch.where(shrunk.abs() < 5e-4, 0.0, shrunk)
        assert torch.allclose(ours.private[f"{SPARSE}{name}"], expected, atol=1e-7), name
    # Eq. 7, and what Eq. 9 takes the mean of.
    for name, moved in w.items():
        grown = h[name] + (alpha if correction == "dual" else 1 / eta) * (theta[name] - moved.detach())
        assert torch.allclose(
            ours.memory[f"{CORRECTION}{name}"], grown, atol=1e-4 if correction == "printed" else 1e-6
        ), name
        sent = moved.detach() - (grown / alpha if correction == "dual" else eta * grown)
        assert torch.allclose(ours.outgoing[name], sent, atol=1e-6), name
    for name, one in theirs.model.state_dict().items():
        assert torch.allclose(ours.model.state_dict()[name], one, atol=2e-6), name


def test_the_next_table_by_hand(motifs: FederatedGraphs) -> None:
    """Quantised uploads, weighted mean, truncated matrices, quantised again: what clients hold after round 1."""
    options = replace(SMALL, rounds=1, settings={**ALL_ROUNDS, "singular_threshold": 0.3})
    result = run_federation(motifs, options)
    task = GraphTask(motifs, options)
    task.train(1, [0, 1, 2], lambda: None)
    places = tensor_places(task.layout.names)
    uploads = [quantise(task.rows("parameters", client), places, bits=4).values() for client in range(3)]
    mean = (48 * uploads[0] + 40 * uploads[1] + 32 * uploads[2]) / 120
    for own in places.values():
        if len(own) > 1:
            mean[own] = truncated(mean[own], threshold=0.3)
    expected = task.layout.unpack(quantise(mean, places, bits=4).values())
    for name, one in expected.items():
        assert torch.allclose(result.models[0][name], one, atol=1e-6), name
        assert torch.equal(result.models[0][name], result.models[2][name])


def test_rows_cross_in_the_rounds_that_the_coin_says(finished: GnnResult) -> None:
    heads = [number for number in range(1, 5) if SMALL.exchanges(number)]
    assert heads == [2, 4]
    crossed = {entry.round for entry in finished.transcript.entries if entry.direction == "up" and entry.round}
    assert crossed == set(heads)
    assert [entry.num_survivors for entry in finished.rounds] == [0, 0, 3, 0, 3]
    assert [entry.bytes_down > 0 for entry in finished.rounds] == [True, False, True, False, True]


def test_bytes_are_those_of_few_bits(motifs: FederatedGraphs, finished: GnnResult) -> None:
    """2 (2 (8 x 8 + 8)) numbers of four bits, and a step for each of eight tensors."""
    uploads = [one for one in finished.transcript.messages(4) if one.receiver == SERVER]
    assert all(
        isinstance(one, QuantisedRows) and len(one.data) == 36 * 8 // 2 and len(one.steps) <= 4 * 8 for one in uploads
    )
    assert any(isinstance(one, Rows) for one in finished.transcript.messages(0))  # the first table is whole
    dense = run_federation(motifs, replace(SMALL, settings={"bits": 32}))
    assert dense.transcript.num_bytes("up", 4) > 3 * finished.transcript.num_bytes("up", 4)


def test_what_is_judged_is_the_sum_of_both_parts(motifs: FederatedGraphs, finished: GnnResult) -> None:
    model = finished.models[0]
    hybrid = {name: one + model.get(f"{SPARSE}{name}", 0) for name, one in model.items() if not name.startswith(SPARSE)}
    trainer = GraphTask(motifs, replace(SMALL, algorithm="fedavg", settings=None)).trainers[0]
    assert (finished.test[0].values == trainer.classify(trainer.client.test, hybrid).values).all()
    sparse = torch.cat([one.flatten() for name, one in model.items() if name.startswith(SPARSE)])
    assert 0 < int((sparse != 0).sum()) < len(sparse)
    assert float(sparse[sparse != 0].abs().min()) >= 1e-4


@pytest.mark.parametrize("correction", ["dual", "printed"])
def test_both_uploads_say_what_one_does_in_twice_the_bytes(correction: str, motifs: FederatedGraphs) -> None:
    settings = {**ALL_ROUNDS, "correction": correction, "bits": 32}
    one = run_federation(motifs, replace(SMALL, rounds=2, settings=settings))
    both = run_federation(motifs, replace(SMALL, rounds=2, settings={**settings, "upload": "both"}))
    for first, second in zip(one.models, both.models, strict=True):
        assert all(torch.allclose(first[name], second[name], atol=1e-5) for name in first)
    up, down = (
        [m for m in both.transcript.messages(2) if (m.receiver == SERVER) == upwards] for upwards in (True, False)
    )
    assert [m.num_rows for m in up if isinstance(m, Rows)] == [72] * 3
    assert [m.num_rows for m in down if isinstance(m, Rows)] == [36] * 3
    few = run_federation(motifs, replace(SMALL, rounds=1, settings={**ALL_ROUNDS, "upload": "both"}))
    sizes = [len(m.data) for m in few.transcript.messages(1) if isinstance(m, QuantisedRows)]
    assert sizes == [72 * 4] * 3 + [36 * 4] * 3


def test_a_client_starts_at_its_own_shared_part(motifs: FederatedGraphs) -> None:
    """With one step of plain SGD from W for the anchor Theta: W - eta (gradient at W - h + alpha (W - Theta))."""
    given = {"start": "own", "components": "shared", "exchange": 1.0}
    options = replace(SMALL, batch_size=64, dropout=0.0, weight_decay=0.0, optimizer="sgd", settings=given)
    client, eta, alpha = motifs.clients[1], options.learning_rate, 0.6
    ours, theirs = (ClientTrainer(client, options, CEFGLRule(options), (ENCODER,)) for _ in range(2))
    theta = {name: one.detach() + 0.1 for name, one in ours.shared.items()}
    ours.take({name: one.detach() + 0.05 for name, one in ours.shared.items()})
    ours.train(1, lambda: None)
    own = {name: one.detach().clone() for name, one in ours.shared.items()}
    h = {name: ours.memory[f"{CORRECTION}{name}"].clone() for name in own}
    theirs.model.load_state_dict(ours.model.state_dict())
    ours.take(theta)
    ours.train(2, lambda: None)
    batch = Batch.of(theirs.training.subset(generator(6, "batches", client.name, 2, 0).permutation(len(client.train))))
    functional.cross_entropy(theirs.model(batch), batch.classes).backward()
    for name, parameter in theirs.shared.items():
        assert parameter.grad is not None
        expected = own[name] - eta * (parameter.grad - h[name] + alpha * (own[name] - theta[name]))
        assert torch.allclose(ours.shared[name], expected, atol=1e-6), name


def test_clients_drop_out_by_a_beta_distribution(motifs: FederatedGraphs) -> None:
    settings = CEFGLSettings(drop_alpha=2.0, drop_beta=2.0)
    rates = [1 - settings.num_present(1_000, round, 0) / 1_000 for round in range(1, 1_001)]
    assert abs(sum(rates) / 1_000 - 0.5) < 0.02
    assert abs(sum((rate - 0.5) ** 2 for rate in rates) / 1_000 - 1 / 20) < 0.005  # the variance of Beta(2, 2)
    assert CEFGLSettings(drop_alpha=1e6, drop_beta=1.0).num_present(10, 1, 0) == 1
    result = run_federation(motifs, replace(SMALL, settings={**ALL_ROUNDS, "drop_alpha": 1.0, "drop_beta": 1.0}))
    expected = [CEFGLSettings(drop_alpha=1.0, drop_beta=1.0).num_present(3, round, 6) for round in range(1, 5)]
    assert [entry.num_survivors for entry in result.rounds[1:]] == expected
    assert 0 < min(expected) < 3


def test_changed_levels_are_those_of_consecutive_broadcasts(motifs: FederatedGraphs) -> None:
    """By hand, from the broadcasts; rounds without an exchange have none."""
    result = run_federation(motifs, replace(SMALL, rounds=6, learning_rate=0.01), rounds_needed=range(7))
    exchanges = [number for number in range(1, 7) if SMALL.exchanges(number)]
    assert [entry.round for entry in result.rounds if entry.changed_levels is not None] == exchanges
    places = tensor_places(result.row_names["parameters"])
    matrices = torch.cat([own for own in places.values() if len(own) > 1])
    last = None
    for number in (0, *exchanges):
        message = next(m for m in result.transcript.messages(number) if m.sender == SERVER and m.receiver != SERVER)
        if isinstance(message, QuantisedRows):
            levels = message.unpack()[0]
        else:
            assert isinstance(message, Rows)
            levels = quantise(message.unpack(), places, bits=4).levels
        if last is not None:
            share = float((levels[matrices] != last[matrices]).double().mean())
            assert result.rounds[number].changed_levels == pytest.approx(share)
        last = levels


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ({"alpha": 0.0}, "alpha must be above 0 with correction=dual"),
        ({"alpha": 0.0, "correction": "off", "shrink": "soft"}, "alpha must be above 0"),
        ({"bits": 26}, "bits must be 2 to 20, or 32 for rows as they are; got 26"),
        ({"upload": "both", "correction": "off"}, "upload=both sends corrections, and correction=off has none"),
        ({"drop_alpha": 1.0}, "drop_alpha and drop_beta must both be above 0, or both 0; got 1.0, 0.0"),
    ],
)
def test_settings_that_are_refused(settings: dict[str, object], fault: str) -> None:
    with pytest.raises(SpecError, match=fault):
        GnnOptions(algorithm="cefgl", settings=settings)
