"""Local training: what stops it, who sits out, whose negatives; `test_objectives` compares it with a naive loop."""

import numpy as np
import pytest
import torch

from fkgsec.data.consortium import generate_consortium
from fkgsec.data.graph import ClientGraph, FederatedGraph
from fkgsec.errors import TrainingError
from fkgsec.federation.loop import run_federation
from fkgsec.federation.options import replace
from fkgsec.kge.local.stack import ClientStack
from fkgsec.kge.local.training import LocalTrainer
from fkgsec.kge.negatives import KnownTriples
from fkgsec.kge.options import KgeOptions
from fkgsec.kge.ranking import filtered_ranks

CPU = torch.device("cpu")


def stack_of(graphs: list[ClientGraph], keys: list[int], options: KgeOptions) -> ClientStack:
    return ClientStack(graphs, keys, options.kge_model(), options.seed, CPU)


def test_a_loss_that_is_not_finite_stops_before_the_update(uneven: FederatedGraph, options: KgeOptions) -> None:
    stack = stack_of(list(uneven.clients), [0, 1, 2], options)
    stack.rows("relations", 1)[0, 0] = float("nan")
    before = {table: stack.tables[table].clone() for table in ("entities", "relations")}
    trainer = LocalTrainer(stack, options)
    with pytest.raises(TrainingError, match=r"loss of client large is nan in round 7, epoch 1, step \d+"):
        # Adam would spread the NaN to the whole row at the first step; the error comes before that.
        trainer.train_round(7, [0, 1, 2])
    finite = ~torch.isnan(before["relations"])
    assert torch.isfinite(stack.tables["relations"][finite]).all()
    assert torch.isfinite(stack.tables["entities"]).all()


def test_published_scope_corrupts_with_the_first_global_ids(uneven: FederatedGraph, options: KgeOptions) -> None:
    """FedE's code beside FedR takes the client's number of entities for a bound on global ids."""
    result = run_federation(
        uneven, replace(options, negative_scope="published", rank_scope="all", rounds=1, local_epochs=1)
    )
    assert {tables.entities.shape[0] for tables in result.tables} == {len(uneven.entities)}


@pytest.mark.parametrize("algorithm", ["fede", "feds", "pfedeg"])
def test_negatives_from_all_entities_and_ranks_among_own(options: KgeOptions, algorithm: str) -> None:
    """FedE's code (zjukg/FedE) draws negatives from all entities and ranks those of the client's own graph."""
    graph = generate_consortium(clients=3, size=300, seed=0)
    wide = replace(options, algorithm=algorithm, negative_scope="all", rank_scope="own", rounds=2, local_epochs=1)
    result, plain = (run_federation(graph, one) for one in (wide, replace(wide, negative_scope="own")))
    untrained = run_federation(graph, replace(wide, learning_rate=1e-12))
    judged = result.trained if wide.evaluates_before_broadcast else result.tables
    for client, tables, before, ranks in zip(graph.clients, judged, untrained.tables, result.test_ranks, strict=True):
        own = client.num_entities
        assert len(tables.entities) == len(graph.entities) > own
        assert not torch.allclose(tables.entities[own:], before.entities[own:], atol=1e-6)  # they serve as negatives
        known = [KnownTriples.build(client.triples, side, client.num_relations) for side in ("tail", "head")]
        rows = tables.entities[:own], tables.relations
        expected = filtered_ranks(options.kge_model(), *rows, client.test, known)
        np.testing.assert_array_equal(ranks, expected)
    for direction in ("up", "down"):  # a client exchanges its own entities alone
        assert result.transcript.num_bytes(direction) == plain.transcript.num_bytes(direction)
