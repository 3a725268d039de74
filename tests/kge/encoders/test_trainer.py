"""Training with an encoder: the same bits alone, in a federation, after a resume and with more threads; what crosses."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fkgsec.data.graph import FederatedGraph
from fkgsec.errors import SpecError
from fkgsec.federation.loop import run_federation
from fkgsec.federation.messages import Rows
from fkgsec.federation.recipes import algorithms_of
from fkgsec.kge.encoders.trainer import LOCAL
from fkgsec.kge.local.task import KgeTask
from fkgsec.kge.result import KgeResult
from fkgsec.unlearning.options import UnlearnOptions
from fkgsec.unlearning.unlearning import unlearn
from tests.kge.encoders.conftest import MODELS, tiny

every_model = pytest.mark.parametrize("model", MODELS)


def equal(one: KgeResult, other: KgeResult) -> bool:
    """Whether two results have the same tensors."""
    ours, theirs = one.tensors(), other.tensors()
    return set(ours) == set(theirs) and all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())


@every_model
def test_a_client_alone_trains_to_the_bits_that_it_gets_beside_others(model: str, uneven: FederatedGraph) -> None:
    """Without exchange, so that nothing but training could differ; the first client's key is its place in both."""
    options = tiny(model, algorithm="single", eval_every=3)  # the last round is kept, whatever others reach
    together = run_federation(uneven, options)
    alone = run_federation(replace(uneven, clients=uneven.clients[:1]), options)
    for kind in ("trained", "encoded"):
        ours, theirs = getattr(alone, kind)[0], getattr(together, kind)[0]
        assert torch.equal(ours.entities, theirs.entities)
        assert torch.equal(ours.relations, theirs.relations)
    assert np.array_equal(alone.test_ranks[0], together.test_ranks[0])


@every_model
def test_the_number_of_threads_changes_no_bit(
    model: str, threads: Callable[[int], None], consortium: FederatedGraph
) -> None:
    """Tables of more than the 32,768 numbers from which on torch divides its work among threads."""
    results = []
    for count in (1, 2):
        threads(count)
        results.append(run_federation(consortium, tiny(model, dim=184, rounds=1, local_epochs=1, batch_size=512)))
        assert torch.get_num_threads() == count
    assert results[0].trained[0].entities.numel() > 32_768
    assert equal(*results)


@every_model
@pytest.mark.parametrize(("algorithm", "table"), [("fede", "entities"), ("fedr", "relations")])
def test_input_rows_cross_and_networks_stay(model: str, algorithm: str, table: str, uneven: FederatedGraph) -> None:
    result = run_federation(uneven, tiny(model, algorithm=algorithm, rounds=2))
    messages = [message for message in result.transcript.messages(2) if isinstance(message, Rows)]
    assert {message.table for message in messages} == {table}
    for place, client in enumerate(uneven.clients):
        [upload] = [one.unpack() for one in messages if one.sender.endswith(client.name)]
        assert torch.equal(upload, getattr(result.trained[place], table)[: len(upload)])
        assert upload.shape[1] == 8
    task = KgeTask(uneven, tiny(model, algorithm=algorithm))
    assert not any(name.startswith(LOCAL) for name in task.snapshot(shared_only=True))
    local = [name for name in task.snapshot() if name.startswith(LOCAL)]
    assert {name.split(".")[1] for name in local} == {"0", "1", "2"}


@pytest.mark.parametrize(("trains_from", "followed"), [("received", [1, 2, 3]), ("checks", [2]), ("own", [])])
def test_rows_that_training_starts_from(trains_from: str, followed: list[int], uneven: FederatedGraph) -> None:
    """Broadcasts of rounds 1 to 3 are changed, of which the second is validated; later training shows which of them count."""
    counted = []
    for changed in (1, 2, 3):
        uploads = []
        for shift in (0.0, 1.0):
            task = KgeTask(uneven, tiny("noge", trains_from=trains_from, local_epochs=1))
            for round in range(1, 5):
                task.begin_round()
                task.train(round, [0, 1, 2], lambda: None)
                trained = task.rows("entities", 0).clone()
                if round == changed:
                    task.rows("entities", 0).add_(shift)
                    assert not shift or not torch.equal(task.rows("entities", 0), trained)
            uploads.append(trained)
        if not torch.equal(*uploads):
            counted.append(changed)
    assert counted == followed


@pytest.mark.parametrize(
    ("model", "algorithm"),
    [*(("noge", name) for name in algorithms_of("kge")), ("kb-gat", "fedr"), ("kb-gat", "fedlu")],
)
def test_algorithms_run_or_are_refused_in_one_line(model: str, algorithm: str, uneven: FederatedGraph) -> None:
    """Those that change local training or have a second model are refused, all others run."""
    recipe = algorithms_of("kge")[algorithm]
    if recipe.local is not None or recipe.private != "none":
        told = f"the local training of {algorithm} does not know; it goes with single, collective, fede"
        with pytest.raises(SpecError, match=re.escape(told)):
            tiny(model, algorithm=algorithm)
        return
    settings = {"rank": 1, "columns": 2} if algorithm == "fede-svd" else {}
    dim = 12 if algorithm == "fedepl" else 8  # of which two thirds are shared, as two quaternions
    options = tiny(model, algorithm=algorithm, rounds=1, dim=dim, settings=settings)
    result = run_federation(uneven, options)
    assert all(np.isfinite(ranks).all() for ranks in result.test_ranks)


@every_model
def test_unlearning_runs_by_training_again_alone(model: str, uneven: FederatedGraph) -> None:
    result = run_federation(uneven, tiny(model, rounds=1))
    forget = {"large": uneven.clients[1].train[:3]}
    with pytest.raises(SpecError, match=f"method finetune does not know the network of {model}"):
        unlearn(result, forget, UnlearnOptions(method="finetune"))
    after = unlearn(result, forget, UnlearnOptions(method="retrain"))
    assert len(after.graph.clients[1].train) == len(uneven.clients[1].train) - 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "transe", "dropout": 0.5}, "dropout does not apply to the model transe"),
        ({"model": "transe", "trains_from": "own"}, "trains_from does not apply to the model transe"),
        ({"model": "noge", "decoder_epochs": 5}, "decoder_epochs does not apply to the model noge"),
        ({"model": "kb-gat", "label_smoothing": 0.1}, "label_smoothing does not apply to the model kb-gat"),
        ({"model": "noge", "dropout": 1.0}, "dropout must be at least 0 and below 1; got 1.0"),
        ({"model": "kb-gat", "decoder_negatives": 0}, "decoder_negatives must be at least 1; got 0"),
        ({"model": "noge", "trains_from": "never"}, "trains_from must be one of received, checks, own; got 'never'"),
        ({"model": "noge", "num_negatives": 5}, "num_negatives does not apply to the model noge"),
        ({"model": "noge", "temperature": 1.0}, "temperature does not apply to fede"),
        ({"model": "noge", "negative_scope": "published"}, "negative_scope must be one of own, all for the model noge"),
        ({"model": "transh"}, "model must be one of transe, rotate, distmult, complex, noge, kb-gat; got 'transh'"),
    ],
)
def test_options_that_do_not_fit_are_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        tiny(changes["model"], **{name: value for name, value in changes.items() if name != "model"})
