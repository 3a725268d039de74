"""Local training equals a naive loop with torch's own autograd and Adam; `test_alone` compares stacks with clients alone."""

import numpy as np
import pytest
import torch
from torch import Tensor

from fkgsec.data.consortium import generate_consortium
from fkgsec.data.graph import ClientGraph, FederatedGraph
from fkgsec.errors import TrainingError
from fkgsec.federation.loop import run_federation
from fkgsec.federation.options import replace
from fkgsec.kge.local.stack import ClientStack
from fkgsec.kge.local.training import LocalTrainer
from fkgsec.kge.models import KgeModel
from fkgsec.kge.negatives import KnownTriples, NegativeSampler
from fkgsec.kge.options import KgeOptions
from fkgsec.kge.ranking import filtered_ranks
from fkgsec.randomness import generator

CPU = torch.device("cpu")


def stack_of(graphs: list[ClientGraph], keys: list[int], options: KgeOptions) -> ClientStack:
    return ClientStack(graphs, keys, options.kge_model(), options.seed, CPU)


@pytest.mark.parametrize("algorithm", ["fede", "fedr"])
def test_a_federation_equals_the_naive_loop(algorithm: str, uneven: FederatedGraph, options: KgeOptions) -> None:
    """Two rounds, kept at the last one: every client ends with the tables of `naive_federation`."""
    options = replace(options, algorithm=algorithm, eval_every=2)
    result = run_federation(uneven, options)
    federation_by_hand = naive_federation(uneven, options)
    for place, tables in enumerate(result.tables):
        torch.testing.assert_close(tables.entities, federation_by_hand[place]["entities"], atol=1e-5, rtol=0)
        torch.testing.assert_close(tables.relations, federation_by_hand[place]["relations"], atol=1e-5, rtol=0)


def naive_federation(graph: FederatedGraph, options: KgeOptions) -> list[dict[str, Tensor]]:
    """FedE or FedR in plain words: each client alone, autograd over the whole formula, dictionaries on the server."""
    table, ids = ("entities", "entity_ids") if options.algorithm == "fede" else ("relations", "relation_ids")
    model = options.kge_model()
    stack = stack_of(list(graph.clients), [0, 1, 2], options)
    clients = [
        {name: stack.rows(name, place).detach().clone() for name in ("entities", "relations")} for place in range(3)
    ]
    order: list[int] = []
    for client in graph.clients:
        order += [number for number in getattr(client, ids).tolist() if number not in order]
    width = model.entity_width if table == "entities" else model.relation_width
    first = model.initial_rows(len(order), width, generator(options.seed, "initial rows", table, "server"))
    vocabulary = graph.entities if table == "entities" else graph.relations
    by_name = sorted(order, key=lambda number: vocabulary[number])
    shared = {number: first[place] for place, number in enumerate(by_name)}
    for number in range(options.rounds + 1):
        if number:
            for place, client in enumerate(graph.clients):
                naive_local_round(client, place, clients[place], number, options)
            for row in order:
                uploads = []
                for place, client in enumerate(graph.clients):
                    column = [0, 2] if table == "entities" else [1]
                    held = getattr(client, ids)[np.unique(client.train[:, column])].tolist()
                    if row in held:
                        uploads.append(clients[place][table][getattr(client, ids).tolist().index(row)])
                if uploads:
                    shared[row] = torch.stack(uploads).mean(0)
        for place, client in enumerate(graph.clients):
            clients[place][table] = torch.stack([shared[row] for row in getattr(client, ids).tolist()])
    return clients


def naive_local_round(
    client: ClientGraph, key: int, tables: dict[str, Tensor], number: int, options: KgeOptions
) -> None:
    """One client's epochs with nn-style parameters, a new torch Adam, and the loss written out for each positive."""
    model: KgeModel = options.kge_model()
    entities, relations = (tables[name].clone().requires_grad_() for name in ("entities", "relations"))
    adam = torch.optim.Adam([entities, relations], lr=options.learning_rate)
    sampler = NegativeSampler(
        client.train, num_relations=client.num_relations, candidates=np.arange(client.num_trained_entities)
    )
    for epoch in range(options.local_epochs):
        shuffled = generator(options.seed, "shuffle", key, number, epoch).permutation(len(client.train))
        draws = generator(options.seed, "negatives", key, number, epoch)
        for step, low in enumerate(range(0, len(shuffled), options.batch_size)):
            rows = shuffled[low : low + options.batch_size]
            side = "head" if (step + epoch + number) % 2 else "tail"
            negatives = sampler.sample(rows, options.num_negatives, side, draws)
            positive_loss, negative_loss = [], []
            for (head, relation, tail), wrong in zip(client.train[rows], negatives, strict=True):
                kept = wrong[wrong >= 0].long()
                heads = entities[kept] if side == "head" else entities[head].expand(len(kept), -1)
                tails = entities[kept] if side == "tail" else entities[tail].expand(len(kept), -1)
                scores = model.score(heads, relations[relation].expand(len(kept), -1), tails)
                weights = torch.softmax(options.sampling_temperature * scores, 0).detach()
                negative_loss.append(-(weights * torch.nn.functional.logsigmoid(-scores)).sum())
                score = model.score(entities[head], relations[relation], entities[tail])
                positive_loss.append(-torch.nn.functional.logsigmoid(score))
            loss = (torch.stack(positive_loss).mean() + torch.stack(negative_loss).mean()) / 2
            adam.zero_grad()
            loss.backward()
            adam.step()
    tables["entities"], tables["relations"] = entities.detach(), relations.detach()


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


def test_clients_that_sit_out_a_round_keep_their_tables(uneven: FederatedGraph, options: KgeOptions) -> None:
    stack = stack_of(list(uneven.clients), [0, 1, 2], options)
    before = [stack.rows("entities", place).clone() for place in range(3)]
    assert set(LocalTrainer(stack, options).train_round(1, [0, 2])) == {0, 2}
    assert torch.equal(stack.rows("entities", 1), before[1])
    assert not torch.equal(stack.rows("entities", 0), before[0])
    assert not torch.equal(stack.rows("entities", 2), before[2])


def test_adam_is_kept_or_forgotten_as_the_recipe_says(uneven: FederatedGraph, options: KgeOptions) -> None:
    """`single` keeps its moments: two rounds of one epoch differ from two rounds with a new Adam."""
    stacks = [stack_of(list(uneven.clients), [0, 1, 2], options) for _ in range(2)]
    trainers = [LocalTrainer(stack, options) for stack in stacks]
    for number in (1, 2):
        trainers[1].begin_round()
        for trainer in trainers:
            trainer.train_round(number, [0, 1, 2])
    assert not torch.allclose(stacks[0].tables["entities"], stacks[1].tables["entities"], atol=1e-5)


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
