"""A server that plants triples: its mean by hand, equal tables under sums, and whether it succeeds under several defenses."""

import functools

import numpy as np
import pytest
import torch

from fkgsec import ClientGraph, FederatedGraph, KgeOptions, generate_consortium
from fkgsec.attacks import KgeAttackOptions, run_attacks
from fkgsec.attacks.figure import headline
from fkgsec.attacks.poisoning.server import ShadowHolder, ShadowModel
from fkgsec.data.graph import SPLITS
from fkgsec.defenses import make_transport
from fkgsec.federation.loop import run_federation
from fkgsec.federation.messages import SERVER
from fkgsec.federation.options import replace

OPTIONS = KgeOptions(dim=4, batch_size=4, num_negatives=2, local_epochs=1, learning_rate=0.1, device="cpu")
KNOWN, PLANTED = np.array([(0, 0, 1), (1, 1, 3)]), np.array([(0, 1, 3)])


def shadow() -> ShadowModel:
    return ShadowModel(KNOWN, PLANTED, 5, OPTIONS)


def test_a_shadow_trains_from_the_rows_that_were_sent() -> None:
    one = shadow()
    table = torch.arange(20.0).reshape(5, 4) / 20
    rows = one.train(1, table)
    assert one.rows.tolist() == [0, 1, 3]
    assert not torch.equal(rows, table[one.rows])
    assert torch.equal(shadow().train(1, table), rows)


@pytest.mark.parametrize("whole", [False, True])
def test_its_rows_enter_the_mean_as_one_more_holder(whole: bool) -> None:
    """Rows 1 and 3 of a client that holds rows 3, 1 and 4; row 2 nobody's of the shadow."""
    table = torch.arange(20.0).reshape(5, 4) / 20
    holders = np.array([1, 2, 1, 3, 1])
    held = {"client/a": np.array([3, 1, 4]), "client/b": np.array([0, 1, 2, 3, 4])}
    server = ShadowHolder(shadow(), {} if whole else held, holders, "")
    first = {party: table if whole else table[places] for party, places in held.items()}
    for party, rows in first.items():
        assert torch.equal(server.broadcast(0, "entities", party, rows.clone()), rows)
    trained = shadow().train(1, table)
    expected = table.clone()
    for row, own in zip((0, 1, 3), trained, strict=True):
        expected[row] = (holders[row] * table[row] + own) / (holders[row] + 1)
    for party, places in held.items():
        sent = server.broadcast(1, "entities", party, first[party].clone())
        torch.testing.assert_close(sent, expected if whole else expected[places])
    assert torch.equal(server.broadcast(1, "relations", "client/a", table), table)
    assert server.party == SERVER


def test_it_goes_on_after_a_kill() -> None:
    table = torch.arange(20.0).reshape(5, 4) / 20
    holders = np.array([1, 2, 1, 3, 1])
    one, other = (ShadowHolder(shadow(), {}, holders, "") for _ in range(2))
    for round in (0, 1):
        one.broadcast(round, "entities", "client/a", table.clone())
    other.load({name: tensor.clone() for name, tensor in one.tensors().items()})
    sent = [server.broadcast(2, "entities", "client/a", table.clone()) for server in (one, other)]
    assert torch.equal(*sent)


@pytest.mark.planted(
    "server-poison", "40 triples in 12 rounds: Hits@10 and MRR above the baseline, intervals included", {"hits@10": 40}
)
def test_victims_believe_what_it_plants(poisoned) -> None:
    found = poisoned("server-poison", size=1_500, rounds=12)
    one = found["mrr", "strongest"]
    assert one.by == "shadow"
    assert {variant for _, variant in found} == {"shadow", "strongest"}  # so that summaries show one of both
    assert one.num_attacked == 2
    for metric in ("hits@10", "mrr"):
        assert found[metric, "strongest"].estimate.low > found[metric, "strongest"].baseline.value


@pytest.mark.null("server-poison", "a server that plants nothing: Hits@10 and MRR of the clean run")
def test_of_a_server_that_plants_nothing_victims_believe_what_they_did(federate) -> None:
    asked = KgeAttackOptions(attack=("server-poison",))
    honest = run_attacks(federate(), asked, train=lambda graph, options, adversary: run_federation(graph, options))
    found = [figure for figure in honest.figures if figure.variant == "shadow" and figure.metric in ("hits@10", "mrr")]
    assert {figure.victim for figure in found} == {"hospital-2", "hospital-3", "all"}
    for figure in found:
        assert figure.estimate.value == pytest.approx(figure.guesses["clean run"].value)


@pytest.mark.slow
def test_where_no_row_has_enough_holders_to_be_sent_there_is_no_mean_that_it_enters() -> None:
    """Every entity has two holders, and rows of fewer than three are not sent: victims learn for themselves alone."""
    first, second = (generate_consortium(clients=2, size=900, seed=seed) for seed in (5, 6))
    names = [f"{part}: {name}" for part, graph in (("a", first), ("b", second)) for name in graph.entities]
    clients = tuple(
        ClientGraph.from_global(
            f"{part} {one.name}", *(np.add(one.to_global(getattr(one, split)), (shift, 0, shift)) for split in SPLITS)
        )
        for part, graph, shift in (("a", first, 0), ("b", second, len(first.entities)))
        for one in graph.clients
    )
    graph = FederatedGraph("pairs", tuple(names), first.relations, clients)
    options = replace(OPTIONS, dim=16, batch_size=64, num_negatives=8, learning_rate=0.02, rounds=10, eval_every=10)
    found = {}
    for defense in ("psu,secagg", "psu,secagg,suppress:t=3"):
        train = functools.partial(run_federation, make_transport=make_transport)
        result = train(graph, replace(options, defense=defense, protocol_seed=3))
        asked = KgeAttackOptions(attack=("server-poison",), auxiliary=0.4)
        figures = {(one.victim, one.metric): one for one in headline(run_attacks(result, asked, train=train).figures)}
        found[defense] = figures["all", "mrr"]
    reached, kept = found.values()
    assert reached.estimate.low > reached.baseline.value
    assert not kept.reason
    assert kept.estimate.low <= kept.baseline.value


@pytest.mark.slow
def test_private_union_and_sums_do_not_stop_it(poisoned) -> None:
    """All are sent one table, as the binding of broadcasts asks."""
    one = poisoned("server-poison", "psu,secagg")["mrr", "strongest"]
    assert one.estimate.low > one.baseline.value


@pytest.mark.slow
def test_no_rule_of_the_server_stops_the_server(poisoned) -> None:
    """It enters the mean after the rule; where entity rows stay at home there is no mean to enter (see `test_planting`)."""
    one = poisoned("server-poison", "robust:rule=clip", size=1_500, rounds=12)["hits@10", "strongest"]
    assert one.estimate.low > one.baseline.high
