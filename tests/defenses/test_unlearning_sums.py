"""The round in which clients unlearn under secure sums: what its sum gives away, and when it is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from benchmarks.active_server import EchoingOthers
from fkgsec.attacks import Figure, KgeAttackOptions, run_attacks
from fkgsec.attacks.forgetting.update_difference import moved_rows
from fkgsec.attacks.view import NotAttacked
from fkgsec.data.graph import FederatedGraph
from fkgsec.defenses.transport import make_transport
from fkgsec.errors import SpecError
from fkgsec.federation.loop import run_federation
from fkgsec.federation.messages import Channel
from fkgsec.kge.options import KgeOptions
from fkgsec.kge.result import KgeResult
from fkgsec.unlearning.forget_sets import Forget
from fkgsec.unlearning.unlearning import UnlearnOptions, unlearn

replace = msgspec.structs.replace


def asked(graph: FederatedGraph, *places: int) -> Forget:
    return {graph.clients[place].name: graph.clients[place].train[5:25] for place in places}


def of_target(result: KgeResult, place: int) -> dict[str, Figure]:
    """What the server alone knows of this client's change, by metric."""
    names = [client.name for client in result.graph.clients]
    options = KgeAttackOptions(attack=("update-recovery",), threat=("server",), leak=(1.0,), colluder=names[place - 1])
    own = [one for one in run_attacks(result, options).figures if one.victim == names[place]]
    return {one.metric.removesuffix("_relations"): one for one in own}


CASES = [
    ("fede", "psu,secagg", "finetune"), ("fede", "secagg,suppress:t=2", "relabel"), ("fedr", "secagg", "ascent"),
    ("fedlu", "psu,secagg", "fedlu"), ("feds", "secagg", "finetune"),
]  # fmt: skip


@pytest.fixture(scope="module")
def runs(graph: Callable[[int], FederatedGraph]) -> Callable[..., KgeResult]:
    """A finished run of five clients, trained once for each algorithm and defense."""
    made: dict[tuple[str, str], KgeResult] = {}
    options = KgeOptions(
        dim=8, batch_size=128, num_negatives=7, local_epochs=1, rounds=2, eval_every=1, patience=0, seed=5, device="cpu"
    )

    def run(algorithm: str, defense: str) -> KgeResult:
        key = algorithm, defense
        if key not in made:
            given = replace(options, algorithm=algorithm, defense=defense)
            made[key] = run_federation(graph(5), given, make_transport=make_transport)
        return made[key]

    return run


def unlearned(run: KgeResult, method: Any, make: Any = make_transport) -> KgeResult:
    """What the second client asked for."""
    options = UnlearnOptions(method=method, epochs=2, decay_epochs=2)
    return unlearn(run, asked(run.graph, 1), options, make_transport=make)


@pytest.mark.parametrize(("algorithm", "defense", "method"), CASES)
def test_others_train_and_hide_the_client_that_asked(
    algorithm: str, defense: str, method: Any, runs: Callable[..., KgeResult]
) -> None:
    run = runs(algorithm, defense)
    after = unlearned(run, method)
    assert not any(after.known.values())
    for place, client in enumerate(run.graph.clients):  # all trained, and none sends what it had
        table = "relations" if algorithm == "fedr" else "entities"
        start = after.started[table][f"client/{client.name}"]
        assert not torch.equal(start, getattr(after.trained[place], table))
    assert any(
        "unlearning: one sum of 1 clients that asked and 4 that trained" in line for line in after.protection.lines()
    )
    row = of_target(after, 1)
    if row["cosine"].reason is None and row["cosine"].counts["claimed"] == 0:
        assert row["relative_error"].estimate.value == row["relative_error"].baseline.value
    assert row["cosine"].reason is not None or row["relative_error"].estimate.value > 0.1
    if "psu" in defense:
        with pytest.raises(NotAttacked):
            moved_rows(run, after, run.graph.clients[1].name)


@pytest.mark.parametrize(("algorithm", "defense", "method"), [case for case in CASES if case[0] != "feds"])
def test_a_server_that_knows_the_others_parts_is_seen_to_subtract_them(
    algorithm: str,
    defense: str,
    method: Any,
    runs: Callable[..., KgeResult],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If the others may upload without training, the figures show the leak and the rows that moved. They refuse to."""
    run = runs(algorithm, defense)
    after = unlearned(run, method, EchoingOthers)
    monkeypatch.setattr(EchoingOthers, "checked", True)
    refused = unlearned(run, method, EchoingOthers).rounds[1]
    assert refused.num_survivors == 0
    assert sum("in which this client did not train" in why for why in refused.excluded.values()) == 4
    row = of_target(after, 1)
    if "suppress" not in defense:
        assert row["cosine"].estimate.value > 0.99
        assert row["relative_error"].estimate.value < 1e-3
    assert row["cosine"].counts["claimed"] > 0.7 * row["cosine"].estimate.n
    if algorithm == "fedr":
        return
    moved = moved_rows(run, after, run.graph.clients[1].name)
    assert isinstance(moved, np.ndarray)
    assert np.isfinite(moved).sum() > 0.5 * row["cosine"].estimate.n


@pytest.mark.parametrize(
    ("clients", "colluders", "says"),
    [
        (2, None, "a sum of 2 clients .* colluders=1"),
        (3, 2, "a sum of 3 clients .* colluders=2"),
    ],
)
def test_a_sum_that_hides_nothing_is_refused_before_anything_is_trained(
    clients: int, colluders: int | None, says: str, graph: Callable[[int], FederatedGraph], options: KgeOptions
) -> None:
    run = run_federation(graph(clients), replace(options, defense="psu,secagg"), make_transport=make_transport)
    made: list[Any] = []

    def make(*parts: Any) -> Any:
        made.append(make_transport(*parts))
        return made[-1]

    for method in ("finetune", "retrain"):
        asking = UnlearnOptions(method=method, colluders=colluders)
        with pytest.raises(SpecError, match=says):
            unlearn(run, asked(graph(clients), 0), asking, make_transport=make)
    assert all(not one.channel.transcript.entries for one in made)
    unlearn(
        run, asked(graph(clients), 0), UnlearnOptions(method="finetune", colluders=0), make_transport=make_transport
    )


def test_not_the_same_clients_train_along_whoever_asks(
    graph: Callable[[int], FederatedGraph], options: KgeOptions
) -> None:
    """With the others filled from the first place on, the one that stands apart would be the one that asked."""
    given = replace(options, defense="psu,secagg", participation=0.6)
    parties = [f"client/{client.name}" for client in graph(5).clients]
    exchange = make_transport(Channel(), given, parties, ("entities",), "run")
    senders = {asking: exchange.senders([asking], colluders=0) for asking in range(5)}
    assert all(asking in sent and len(sent) == 3 for asking, sent in senders.items())
    assert senders[3] != [0, 1, 3] or senders[4] != [0, 1, 4]
    assert {place for sent in senders.values() for place in sent} == set(range(5))


def test_colluders_are_of_a_defended_run(graph: Callable[[int], FederatedGraph], options: KgeOptions) -> None:
    run = run_federation(graph(3), options)
    with pytest.raises(SpecError, match="colluders=1 does not apply to a run without a defense"):
        unlearn(run, asked(graph(3), 0), UnlearnOptions(method="finetune", colluders=1))
    with pytest.raises(SpecError, match=r"colluders must .*got -1"):
        UnlearnOptions(colluders=-1)


def test_several_that_ask_share_the_sum(runs: Callable[..., KgeResult]) -> None:
    run = runs("fede", "psu,secagg")
    after = unlearn(
        run, asked(run.graph, 0, 2, 4), UnlearnOptions(method="finetune", decay_epochs=1), make_transport=make_transport
    )
    assert any("one sum of 3 clients that asked and 2 that trained" in line for line in after.protection.lines())


def test_two_requests_share_no_part_of_their_sums(runs: Callable[..., KgeResult]) -> None:
    """What the others draw depends on the request: else the difference of two sums would be the asking client's alone."""
    run = runs("fede", "psu,secagg")
    options = UnlearnOptions(method="finetune", decay_epochs=1)
    names = run.graph.clients[1].name
    one, other = (
        unlearn(run, {names: run.graph.clients[1].train[rows]}, options, make_transport=make_transport)
        for rows in (slice(5, 25), slice(5, 26))
    )
    assert not torch.equal(one.trained[3].entities, other.trained[3].entities)


def test_retraining_shares_no_upload_with_the_run(runs: Callable[..., KgeResult]) -> None:
    """Nor the first rows: equal draws made the others' first uploads equal, and the difference of two sums one client's."""
    run = runs("fede", "psu,secagg")
    again = unlearn(run, asked(run.graph, 1), UnlearnOptions(method="retrain"), make_transport=make_transport)
    assert again.options.seed != run.options.seed
    for place in (0, 2, 3, 4):
        assert not torch.equal(run.trained[place].entities, again.trained[place].entities)


@pytest.mark.parametrize(("algorithm", "defense"), [("fede", "psu,secagg"), ("feds", "secagg")])
def test_an_unlearning_that_sends_nothing_can_be_gone_on_from(
    algorithm: str, defense: str, runs: Callable[..., KgeResult]
) -> None:
    """The server's table and what clients were sent stay those of the run."""
    run = runs(algorithm, defense)
    first = unlearn(run, asked(run.graph, 1), UnlearnOptions(method="delete"), make_transport=make_transport)
    assert first.carried.keys() == run.carried.keys()
    options = UnlearnOptions(method="finetune", decay_epochs=1)
    second = unlearn(first, asked(first.graph, 2), options, make_transport=make_transport)
    assert second.rounds[1].num_survivors == 5
