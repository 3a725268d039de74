"""The loop: bytes, early stopping, participation, determinism, checkpoints and resume."""

from pathlib import Path

import numpy as np
import pytest
import torch

from fkgsec.attacks.options import THREAT_MODELS
from fkgsec.attacks.registry import build_view
from fkgsec.data.graph import ClientGraph, FederatedGraph
from fkgsec.errors import DataError, RunError, SpecError
from fkgsec.federation import checkpoint
from fkgsec.federation.checkpoint import Progress, RoundEntry
from fkgsec.federation.loop import CHECKPOINT, run_federation, run_identity
from fkgsec.federation.messages import SERVER, Rows
from fkgsec.federation.options import replace
from fkgsec.kge.options import KgeOptions


@pytest.mark.parametrize(("algorithm", "model"), [("fede", "rotate"), ("fedr", "complex")])
def test_bytes_equal_the_messages_and_the_closed_form(
    algorithm: str, model: str, uneven: FederatedGraph, options: KgeOptions
) -> None:
    options = replace(options, algorithm=algorithm, model=model)
    result = run_federation(uneven, options)
    transcript, kge = result.transcript, options.kge_model()
    for entry in result.rounds:
        lines = [line for line in transcript.entries if line.round == entry.round]
        assert entry.bytes_up == sum(line.num_bytes for line in lines if line.receiver == SERVER)
        assert entry.bytes_down == sum(line.num_bytes for line in lines if line.sender == SERVER)
    kept = transcript.frames[options.rounds]
    sizes = [line.num_bytes for line in transcript.entries if line.round == options.rounds]
    assert [len(frame) for frame in kept] == sizes
    # Closed form: 4 bytes for each number of each row.
    width = kge.entity_width if algorithm == "fede" else kge.relation_width
    payloads = {
        (message.sender, message.receiver): len(message.data)
        for message in transcript.messages(options.rounds)
        if isinstance(message, Rows)
    }
    for client in uneven.clients:
        uploaded = client.num_trained_entities if algorithm == "fede" else client.num_trained_relations
        received = client.num_entities if algorithm == "fede" else client.num_relations
        assert payloads[f"client/{client.name}", SERVER] == 4 * width * uploaded
        assert payloads[SERVER, f"client/{client.name}"] == 4 * width * received


def test_participation_averages_participants_only(uneven: FederatedGraph, options: KgeOptions) -> None:
    options = replace(options, participation=0.34, rounds=4)
    result = run_federation(uneven, options)
    for number in range(1, 5):
        senders = {
            line.sender for line in result.transcript.entries if line.round == number and line.receiver == SERVER
        }
        receivers = {
            line.receiver for line in result.transcript.entries if line.round == number and line.sender == SERVER
        }
        assert len(senders) == 1
        assert len(receivers) == 3


def test_the_last_upload_of_every_client_is_kept(uneven: FederatedGraph, options: KgeOptions) -> None:
    """With partial participation the server still holds what a client sent earlier, and an attack must see it."""
    result = run_federation(uneven, replace(options, participation=0.34, rounds=8, eval_every=8))
    last = {
        line.sender: line.round for line in result.transcript.entries if line.kind == "rows" and line.receiver == SERVER
    }
    assert len(last) > 1
    assert result.transcript.latest_uploads(8) == set(last.values())
    for sender, number in last.items():
        assert any(message.sender == sender for message in result.transcript.messages(number))
    view = build_view(result, THREAT_MODELS["collusion"], colluder="small", leak=1.0, seed=0)
    for victim in view.victims:
        assert (victim.entities is not None) == (f"client/{victim.name}" in last)


def test_early_stopping_keeps_the_best_round(consortium: FederatedGraph, options: KgeOptions) -> None:
    options = replace(options, algorithm="single", rounds=60, patience=2, learning_rate=0.05, batch_size=256)
    result = run_federation(consortium, options)
    checked = [entry.valid for entry in result.rounds if entry.valid is not None]
    assert len(result.rounds) - 1 < 60
    assert result.best_round == int(np.argmax(checked)) + 1
    assert len(checked) == result.best_round + 2


def test_of_equal_rounds_the_first_is_kept_and_the_others_are_no_progress(
    consortium: FederatedGraph, options: KgeOptions
) -> None:
    """Steps too small to change a number leave every round with the same validation."""
    options = replace(options, algorithm="single", rounds=6, patience=2, learning_rate=1e-30)
    result = run_federation(consortium, options)
    assert len({entry.valid for entry in result.rounds[1:]}) == 1
    assert (result.best_round, result.rounds[-1].round) == (1, 3)


@pytest.mark.parametrize("keep", [0, 100, 0.5])
def test_a_truncated_checkpoint_is_refused(
    keep: float, uneven: FederatedGraph, options: KgeOptions, tmp_path: Path
) -> None:
    run_federation(uneven, options, tmp_path)
    path = tmp_path / CHECKPOINT
    content = path.read_bytes()
    path.write_bytes(content[: int(keep * len(content)) if 0 < keep < 1 else int(keep)])
    with pytest.raises(RunError, match="not a whole checkpoint"):
        run_federation(uneven, options, tmp_path)


def test_a_checkpoint_that_cannot_be_written_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "checkpoint.safetensors"
    progress = Progress("run", [RoundEntry(0, None, None, 1, 2, 0.5)])
    checkpoint.save(path, {"a": torch.ones(2)}, progress)

    def full_disk(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint.streamed, "save_file", full_disk)
    with pytest.raises(RunError, match=r"No space left on device.*the last one is untouched"):
        checkpoint.save(path, {"a": torch.zeros(2)}, progress)
    tensors, loaded = checkpoint.load(path, "run")
    assert torch.equal(tensors["a"], torch.ones(2))
    assert loaded.rounds == progress.rounds
    assert list(tmp_path.iterdir()) == [path]


def test_one_client_has_nobody_to_federate_with(uneven: FederatedGraph, options: KgeOptions) -> None:
    alone = FederatedGraph("alone", uneven.entities, uneven.relations, uneven.clients[:1])
    with pytest.raises(DataError, match="alone: fede needs at least 2 clients"):
        run_federation(alone, options)
    assert run_federation(alone, replace(options, algorithm="single")).best_round >= 1


def test_entities_that_only_stand_in_test_are_received_but_not_uploaded(options: KgeOptions) -> None:
    empty = np.zeros((0, 3), dtype=np.int64)
    train, test = np.array([[0, 0, 1], [1, 0, 2]]), np.array([[0, 0, 3]])
    clients = (
        ClientGraph.from_global("a", train, empty, test),
        ClientGraph.from_global("b", np.array([[3, 0, 0]]), empty, empty),
    )
    graph = FederatedGraph("unseen", ("x", "y", "z", "w"), ("r",), clients)
    result = run_federation(graph, options)
    messages = [m for m in result.transcript.messages(result.best_round) if isinstance(m, Rows)]
    assert {(m.sender, m.receiver): m.num_rows for m in messages} == {
        ("client/a", "server"): 3,
        ("client/b", "server"): 2,
        ("server", "client/a"): 4,
        ("server", "client/b"): 2,
    }


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        (
            "algorithm",
            "fedx",
            "algorithm must be one of single, collective, fede, .*; got 'fedx'",
        ),
        ("model", "transh", "model must be one of transe, rotate, distmult, complex, noge, kb-gat; got 'transh'"),
        ("dim", 0, "dim must lie in 1..1,000,000; got 0"),
        ("gamma", float("nan"), "gamma"),
        ("batch_size", 0, "batch_size must be at least 1; got 0"),
        ("num_negatives", -1, "num_negatives must be at least 1; got -1"),
        ("rounds", 0, "rounds must be at least 1; got 0"),
        ("patience", -1, "patience must be at least 0; got -1"),
        ("learning_rate", 0.0, "learning_rate must be a positive number; got 0.0"),
        ("temperature", float("inf"), "temperature must be at least 0; got inf"),
        ("temperature", 1e300, "temperature must be at most 1,000,000; got 1e"),
        ("participation", 0.0, r"participation must lie in \(0, 1\]; got 0.0"),
        ("participation", 1.5, r"participation must lie in \(0, 1\]; got 1.5"),
    ],
)
def test_options_out_of_range(field: str, value: object, message: str, options: KgeOptions) -> None:
    with pytest.raises(SpecError, match=message):
        replace(options, **{field: value})


@pytest.mark.parametrize("device", ["tpu", "cuda:99", "meta", ""])
def test_devices_that_are_not_there(device: str, options: KgeOptions) -> None:
    with pytest.raises(SpecError, match="device"):
        replace(options, device=device).torch_device()


def test_halves_of_participants_round_up(options: KgeOptions) -> None:
    shares = {0.01: 1, 0.2: 1, 0.5: 3, 0.7: 4, 1.0: 5}
    assert {share: replace(options, participation=share).num_participants(5) for share in shares} == shares


def test_a_defense_is_never_left_out(uneven: FederatedGraph, options: KgeOptions) -> None:
    with pytest.raises(SpecError, match=r"defense .secagg. is set"):
        run_federation(uneven, replace(options, defense="secagg"))


def test_the_identity_of_a_run_is_that_of_its_values(uneven: FederatedGraph, options: KgeOptions) -> None:
    """A margin given as 4 is 4.0; a setting left open is the same run; the device is no part; anything else is."""
    base = run_identity(uneven, replace(options, gamma=4.0))
    assert run_identity(uneven, replace(options, gamma=4)) == base
    assert run_identity(uneven, replace(options, gamma=4.0, device="cpu")) == base
    assert run_identity(uneven, replace(options, gamma=4.5)) != base
    assert run_identity(uneven, replace(options, gamma=4.0, seed=options.seed + 1)) != base
    fedprox = [replace(options, algorithm="fedprox", proximal=one) for one in (None, "distance")]
    assert len({run_identity(uneven, one) for one in fedprox}) == 2
