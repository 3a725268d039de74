"""FedLU and FedE-KD as whole training: against plain loops over the papers' losses, one client at a time, with autograd.

Legend: `B` positives of a batch, `K` candidates of each, the positive in column 0; `own` and `shared` are scores of the model
that a client keeps to itself and of the one whose entity rows cross.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from fkgsec.data.graph import ClientGraph, FederatedGraph
from fkgsec.federation.loop import run_federation
from fkgsec.federation.options import replace
from fkgsec.kge.local.stack import ClientStack
from fkgsec.kge.local.training import TABLES, LocalTrainer
from fkgsec.kge.models import ClientTables, KgeModel, Side
from fkgsec.kge.negatives import NegativeSampler
from fkgsec.kge.options import KgeOptions
from fkgsec.randomness import generator
from tests.kge.naive import naive_mrr, naive_ranks

CPU = torch.device("cpu")
ALL = [0, 1, 2]

AS_CODED = {"variant": "published", "negative_sides": "each", "private_start": "server", "evaluate": "before"}
"""FedLU by its code, as far as options say it."""


@dataclass
class NaiveClient:
    """One client in float64, with the Adam of its own model."""

    graph: ClientGraph
    key: int
    own: dict[str, Tensor]
    shared: dict[str, Tensor]
    own_adam: torch.optim.Adam
    shared_adam: torch.optim.Adam


def doubles(stack: ClientStack, place: int) -> dict[str, Tensor]:
    return {t: stack.rows(t, place).detach().double().clone().requires_grad_() for t in TABLES}


def naive_client(graph: FederatedGraph, place: int, options: KgeOptions) -> NaiveClient:
    """First rows as `ClientStack` draws them, whose drawing is not in question. FedLU's two models share one relation table."""
    own = doubles(
        ClientStack(graph.clients, ALL, options.private_model(), options.seed, CPU, purpose="initial private rows"),
        place,
    )
    shared = doubles(ClientStack(graph.clients, ALL, options.kge_model(), options.seed, CPU), place)
    if options.algorithm == "fedlu":
        shared["relations"] = own["relations"]
    return NaiveClient(
        graph.clients[place],
        place,
        own,
        shared,
        torch.optim.Adam(own.values(), lr=options.learning_rate),
        shared_adam(shared, options),
    )


def shared_adam(shared: dict[str, Tensor], options: KgeOptions) -> torch.optim.Adam:
    """FedLU's global loss moves entities alone (fedlu.txt Eq. 6: the relations are the local model's)."""
    moved = [shared["entities"]] if options.algorithm == "fedlu" else shared.values()
    return torch.optim.Adam(moved, lr=options.learning_rate)


def candidates(positives: np.ndarray, wrong: Tensor, side: Side) -> tuple[Tensor, Tensor]:
    """Each positive and its corrupted copies, int64 `[B, K, 3]`, and which of them count, bool `[B, K]`."""
    triples = torch.from_numpy(positives)[:, None].repeat(1, 1 + wrong.shape[1], 1)
    triples[:, 1:, 2 if side == "tail" else 0] = wrong.clamp_min(0)
    return triples, torch.cat([torch.ones(len(wrong), 1, dtype=torch.bool), wrong >= 0], dim=1)


def scores(model: KgeModel, tables: dict[str, Tensor], triples: Tensor) -> Tensor:
    """`[B, K]`."""
    heads, relations, tails = triples.unbind(2)
    return model.score(tables["entities"][heads], tables["relations"][relations], tables["entities"][tails])


def predicted(scores: Tensor, counts: Tensor, temperature: float) -> Tensor:
    """fedlu.txt Eq. 7 at temperature 0; self-adversarial (feds.txt IV-B) at 1. `[B]`."""
    weights = shares(temperature * scores[:, 1:].detach(), counts[:, 1:])
    return -logsigmoid(scores[:, 0]) - (weights * logsigmoid(-scores[:, 1:])).sum(1)


def shares(scores: Tensor, counts: Tensor) -> Tensor:
    """fedlu.txt Eq. 9, 10: e^s over the sum of e^s, of what counts; zero where nothing does."""
    powers = torch.exp(scores) * counts
    return powers / powers.sum(1, keepdim=True).clamp_min(1e-300)


def divergence(scores: Tensor, others: Tensor, counts: Tensor) -> Tensor:
    """sum p log(p / q), `[B]`."""
    p, q = (torch.where(counts, shares(side, counts), 1.0) for side in (scores, others))
    return (p * torch.log(p / q)).masked_fill(~counts, 0).sum(1)


def naive_losses(
    own: Tensor, shared: Tensor, counts: Tensor, importance: Tensor, options: KgeOptions
) -> tuple[Tensor, Tensor]:
    """What the own model and what the shared model go down on, mean over the batch. `importance` sums to 1."""
    if options.algorithm == "fede-kd":  # feds.txt Eq. 6: one loss, and both models go down on it
        low, high = (
            predicted(shared, counts, options.sampling_temperature),
            predicted(own, counts, options.sampling_temperature),
        )
        both = divergence(shared, own, counts) + divergence(own, shared, counts)
        whole = (low + high + both / (low + high)).mean()
        return whole, whole
    mu = float(options.settings.mu)
    if options.settings.variant == "published":  # halved, and the teacher comes first
        teach = (divergence(shared.detach(), own, counts), divergence(own.detach(), shared, counts))
        # FedLU's code weighs negatives by their scores for RotatE alone.
        temperature = options.sampling_temperature if options.model == "rotate" else 0.0
        terms = [predicted(side, counts, temperature) * importance * len(own) / 2 for side in (own, shared)]
    else:  # fedlu.txt Eq. 8, 11
        teach = (divergence(own, shared.detach(), counts), divergence(shared, own.detach(), counts))
        terms = [predicted(side, counts, 0.0) for side in (own, shared)]
    local, world = (term + mu * taught for term, taught in zip(terms, teach, strict=True))
    return local.mean(), world.mean()


def naive_round(client: NaiveClient, number: int, options: KgeOptions) -> float:
    """One client's epochs; returns its mean loss, of both models together."""
    graph = client.graph
    client.shared_adam = shared_adam(client.shared, options)
    sampler = NegativeSampler(
        graph.train, num_relations=graph.num_relations, candidates=np.arange(graph.num_trained_entities)
    )
    losses, all_weights = [], naive_weights(graph.train)
    published = getattr(options.settings, "variant", "paper") == "published"
    for epoch in range(options.local_epochs):
        drawn = (0, 0) if published else (number, epoch)
        shuffled = generator(options.seed, "shuffle", client.key, *drawn).permutation(len(graph.train))
        draws = generator(options.seed, "negatives", client.key, *drawn)
        for step, low in enumerate(range(0, len(shuffled), options.batch_size)):
            rows = shuffled[low : low + options.batch_size]
            for side in naive_sides(step + epoch + number, options):
                wrong = sampler.sample(rows, options.num_negatives, side, draws)
                triples, counts = candidates(graph.train[rows], wrong, side)
                weights = all_weights[rows] if published else np.ones(len(rows))
                importance = torch.from_numpy(weights / weights.sum())
                losses.append(naive_step(client, triples, counts, importance, options))
    return float(np.mean(losses))


def naive_weights(triples: np.ndarray) -> np.ndarray:
    """`TrainDataset.count_frequency` and `__getitem__` of FedLU's code: 1 / sqrt(count(h, r) + count(t, r)), from 4 on."""
    counts: dict[tuple[str, int, int], int] = {}
    pairs = [(("head", int(h), int(r)), ("tail", int(t), int(r))) for h, r, t in triples]
    for both in pairs:
        for pair in both:
            counts[pair] = counts.get(pair, 3) + 1
    return np.array([(counts[first] + counts[second]) ** -0.5 for first, second in pairs])


def naive_sides(turn: int, options: KgeOptions) -> list[Side]:
    """A batch's steps: FedLU's code takes its heads, then its tails; else one of them, in turn."""
    if options.negative_sides == "each":
        return ["head", "tail"]
    return ["head"] if turn % 2 else ["tail"]


def naive_step(
    client: NaiveClient,
    triples: Tensor,
    counts: Tensor,
    importance: Tensor,
    options: KgeOptions,
) -> float:
    """Both models take a step; returns their loss."""
    own = scores(options.private_model(), client.own, triples)
    shared = scores(options.kge_model(), client.shared, triples)
    local, world = naive_losses(own, shared, counts, importance, options)
    moves = [(client.own_adam, local), (client.shared_adam, world)]
    slopes = [torch.autograd.grad(loss, adam.param_groups[0]["params"], retain_graph=True) for adam, loss in moves]
    for (adam, _), slope in zip(moves, slopes, strict=True):
        for parameter, gradient in zip(adam.param_groups[0]["params"], slope, strict=True):
            parameter.grad = gradient
        adam.step()
    return float(local.detach() if local is world else (local + world).detach())


def naive_federation(
    graph: FederatedGraph, options: KgeOptions
) -> tuple[list[NaiveClient], list[dict[str, Tensor]], list[float]]:
    """Clients after the last broadcast, their shared models before it, and each round's loss. The server is a dictionary."""
    clients = [naive_client(graph, place, options) for place in ALL]
    held = sorted({number for client in graph.clients for number in client.entity_ids.tolist()})
    held.sort(key=lambda number: graph.entities[number])
    width = options.kge_model().entity_width
    first = options.kge_model().initial_rows(
        len(held), width, generator(options.seed, "initial rows", "entities", "server"), table="entities"
    )
    server = {number: first[place].double() for place, number in enumerate(held)}
    losses, trained = [], []
    for number in range(options.rounds + 1):
        if number:
            means = [naive_round(client, number, options) for client in clients]
            losses.append(float(np.average(means, weights=[len(client.graph.train) for client in clients])))
            trained = [{t: rows.detach().clone() for t, rows in client.shared.items()} for client in clients]
            for entity in held:
                uploads = [
                    client.shared["entities"].detach()[client.graph.entity_ids.tolist().index(entity)]
                    for client in clients
                    if entity in client.graph.entity_ids[: client.graph.num_trained_entities]
                ]
                server[entity] = torch.stack(uploads).mean(0) if uploads else server[entity]
        for client in clients:
            rows = torch.stack([server[entity] for entity in client.graph.entity_ids.tolist()])
            client.shared["entities"].data.copy_(rows)
            if number == 0 and getattr(options.settings, "private_start", "own") == "server":
                client.own["entities"].data.copy_(rows)
    return clients, trained, losses


def distance(tables: ClientTables, naive: dict[str, Tensor]) -> float:
    """The largest difference of any number."""
    pairs = ((tables.entities, naive["entities"]), (tables.relations, naive["relations"]))
    return max(float((ours.double() - theirs.detach()).abs().max()) for ours, theirs in pairs)


@pytest.fixture
def apart(options: KgeOptions) -> KgeOptions:
    """Steps large enough that readings come apart; kept at the last round."""
    return replace(options, learning_rate=0.01, eval_every=2)


CASES = [
    ("fedlu", "rotate", {"mu": 0.5}),
    ("fedlu", "distmult", {"private_start": "server"}),
    *(("fedlu", model, {"variant": "published"}) for model in ("rotate", "complex")),
    ("fedlu", "transe", AS_CODED),
    ("fede-kd", "complex", {}),
    ("fede-kd", "transe", {"shared_dim_ratio": 1.0}),
]


@pytest.mark.parametrize(("algorithm", "model", "settings"), CASES)
def test_a_federation_equals_the_naive_loop(
    algorithm: str, model: str, settings: dict[str, object], uneven: FederatedGraph, apart: KgeOptions
) -> None:
    """Two rounds: both models of every client, before and after the broadcast, and the loss."""
    options = replace(apart, algorithm=algorithm, model=model, **settings)
    result = run_federation(uneven, options)
    clients, trained, losses = naive_federation(uneven, options)
    assert [entry.loss for entry in result.rounds[1:]] == pytest.approx(losses, rel=1e-5)
    for place, client in enumerate(clients):
        assert distance(result.private[place], client.own) < 2e-5
        assert distance(result.tables[place], client.shared) < 2e-5
        assert distance(result.trained[place], trained[place]) < 2e-5


def trainer_of(
    graphs: list[ClientGraph], keys: list[int], options: KgeOptions
) -> tuple[ClientStack, ClientStack, LocalTrainer]:
    """The shared and the private stack, and what trains them."""
    private = ClientStack(graphs, keys, options.private_model(), options.seed, CPU, purpose="initial private rows")
    relations = private.tables["relations"] if options.algorithm == "fedlu" else None
    stack = ClientStack(graphs, keys, options.kge_model(), options.seed, CPU, relations=relations)
    return stack, private, LocalTrainer(stack, options, private)


class TestWithoutDistillation:
    """fedlu.txt 5.4: "the global embedding degrades to the entity embedding in FedE and the local embeddings [...] to [...] the
    independent setting"."""

    def test_it_waits_for_so_many_rounds(self, uneven: FederatedGraph, apart: KgeOptions) -> None:
        tables: dict[str, list[dict[str, Tensor]]] = {}
        for name, settings in (("waits", {"warmup_rounds": 2}), ("never", {"mu": 0.0}), ("at once", {})):
            stack, private, trainer = trainer_of(
                list(uneven.clients), ALL, replace(apart, algorithm="fedlu", **settings)
            )
            tables[name] = []
            for number in (1, 2, 3):
                trainer.begin_round()
                trainer.train_round(number, ALL)
                both = {"shared": stack, "own": private}
                tables[name].append({key: one.tables["entities"].detach().clone() for key, one in both.items()})
        waits, never, at_once = tables["waits"], tables["never"], tables["at once"]
        for key in ("shared", "own"):
            for number in (0, 1):
                assert torch.equal(waits[number][key], never[number][key])
                assert not torch.equal(waits[number][key], at_once[number][key])
            assert not torch.equal(waits[2][key], never[2][key])


class TestHeadline:
    """What is reported is the private model's; the shared one's ranks stand beside it."""

    def test_the_shared_model_may_be_ranked_before_the_broadcast(
        self, uneven: FederatedGraph, apart: KgeOptions
    ) -> None:
        """As in FedLU's code. The broadcast, which is the mean over holders by hand, changes no other figure."""
        options = replace(apart, algorithm="fedlu", learning_rate=0.05)
        after, before = run_federation(uneven, options), run_federation(uneven, replace(options, evaluate="before"))
        assert [ranks.tolist() for ranks in before.test_ranks] == [ranks.tolist() for ranks in after.test_ranks]
        assert [entry.valid for entry in before.rounds] == [entry.valid for entry in after.rounds]
        for place, client in enumerate(uneven.clients):
            assert torch.equal(before.tables[place].entities, after.tables[place].entities)
            trained = naive_ranks(options.kge_model(), before.trained[place], client, "test")
            assert np.array_equal(before.shared_test_ranks[place], trained)
            assert not np.array_equal(before.shared_test_ranks[place], after.shared_test_ranks[place])
            for row, entity in enumerate(client.entity_ids[: client.num_trained_entities].tolist()):
                uploads = [
                    before.trained[other].entities[graph.entity_ids.tolist().index(entity)].double()
                    for other, graph in enumerate(uneven.clients)
                    if entity in graph.entity_ids[: graph.num_trained_entities]
                ]
                mean = torch.stack(uploads).mean(0)
                torch.testing.assert_close(before.tables[place].entities[row].double(), mean, atol=1e-6, rtol=0)

    def test_validation_is_too(self, uneven: FederatedGraph, apart: KgeOptions) -> None:
        """And so the best round is the private model's best; both models are kept as they were in it."""
        options = replace(apart, algorithm="fede-kd", learning_rate=0.05, eval_every=1, rounds=4)
        result = run_federation(uneven, options)
        kept = [run_federation(uneven, replace(options, rounds=number, eval_every=number)) for number in range(1, 5)]
        own = [naive_mrr(options.private_model(), run.private, uneven) for run in kept]
        assert [entry.valid for entry in result.rounds[1:]] == pytest.approx(own, abs=1e-9)
        assert result.best_round == 1 + int(np.argmax(own))
        assert own != pytest.approx([naive_mrr(options.kge_model(), run.tables, uneven) for run in kept], abs=1e-3)
        best = kept[result.best_round - 1]
        for name in ("private", "tables", "trained"):
            for tables, others in zip(getattr(result, name), getattr(best, name), strict=True):
                assert torch.equal(tables.entities, others.entities)
                assert torch.equal(tables.relations, others.relations)
