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
from fkgsec.federation.loop import Federation, run_federation
from fkgsec.federation.options import replace
from fkgsec.kge.local.stack import ClientStack
from fkgsec.kge.local.training import TABLES, LocalTrainer
from fkgsec.kge.models import MODELS, ClientTables, KgeModel, Side
from fkgsec.kge.negatives import NegativeSampler
from fkgsec.kge.options import KgeOptions
from fkgsec.randomness import generator
from tests.kge.naive import naive_mrr, naive_ranks

CPU = torch.device("cpu")
ALL = [0, 1, 2]

READINGS = [
    ("fedlu", "relations by both"),
    ("fedlu", "new private Adam"),
    ("fedlu", "kept shared Adam"),
    ("fedlu", "one direction of the divergence"),
    ("fedlu", "own first rows"),
    ("fedlu", "tails first"),
    ("fedlu", "one side a batch"),
    ("fede-kd", "new private Adam"),
    ("fede-kd", "kept shared Adam"),
    ("fede-kd", "one direction of the divergence"),
    ("fede-kd", "a divisor that stands still"),
]
"""What the papers do not say, and a mistake would do."""
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
        shared_adam(shared, options, reading=""),
    )


def shared_adam(shared: dict[str, Tensor], options: KgeOptions, reading: str) -> torch.optim.Adam:
    """FedLU's global loss moves entities alone (fedlu.txt Eq. 6: the relations are the local model's)."""
    entities_alone = options.algorithm == "fedlu" and reading != "relations by both"
    return torch.optim.Adam([shared["entities"]] if entities_alone else shared.values(), lr=options.learning_rate)


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
    own: Tensor, shared: Tensor, counts: Tensor, importance: Tensor, options: KgeOptions, reading: str
) -> tuple[Tensor, Tensor]:
    """What the own model and what the shared model go down on, mean over the batch. `importance` sums to 1."""
    if options.algorithm == "fede-kd":  # feds.txt Eq. 6: one loss, and both models go down on it
        low, high = (
            predicted(shared, counts, options.sampling_temperature),
            predicted(own, counts, options.sampling_temperature),
        )
        both = divergence(shared, own, counts) + divergence(own, shared, counts)
        if reading == "one direction of the divergence":
            both = divergence(shared, own, counts)
        divisor = (low + high).detach() if reading == "a divisor that stands still" else low + high
        whole = (low + high + both / divisor).mean()
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
    if reading == "one direction of the divergence":
        teach = (teach[0], torch.zeros_like(teach[1]))
    local, world = (term + mu * taught for term, taught in zip(terms, teach, strict=True))
    return local.mean(), world.mean()


def naive_round(client: NaiveClient, number: int, options: KgeOptions, reading: str = "") -> float:
    """One client's epochs; returns its mean loss, of both models together."""
    graph = client.graph
    if reading == "new private Adam":
        client.own_adam = torch.optim.Adam(client.own.values(), lr=options.learning_rate)
    if reading != "kept shared Adam":
        client.shared_adam = shared_adam(client.shared, options, reading)
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
            for side in naive_sides(step + epoch + number, options, reading):
                wrong = sampler.sample(rows, options.num_negatives, side, draws)
                triples, counts = candidates(graph.train[rows], wrong, side)
                weights = all_weights[rows] if published else np.ones(len(rows))
                importance = torch.from_numpy(weights / weights.sum())
                losses.append(naive_step(client, triples, counts, importance, options, reading))
    return float(np.mean(losses))


def naive_weights(triples: np.ndarray) -> np.ndarray:
    """`TrainDataset.count_frequency` and `__getitem__` of FedLU's code: 1 / sqrt(count(h, r) + count(t, r)), from 4 on."""
    counts: dict[tuple[str, int, int], int] = {}
    pairs = [(("head", int(h), int(r)), ("tail", int(t), int(r))) for h, r, t in triples]
    for both in pairs:
        for pair in both:
            counts[pair] = counts.get(pair, 3) + 1
    return np.array([(counts[first] + counts[second]) ** -0.5 for first, second in pairs])


def naive_sides(turn: int, options: KgeOptions, reading: str) -> list[Side]:
    """A batch's steps: FedLU's code takes its heads, then its tails; else one of them, in turn."""
    if options.negative_sides == "each" and reading != "one side a batch":
        return ["tail", "head"] if reading == "tails first" else ["head", "tail"]
    return ["head"] if turn % 2 else ["tail"]


def naive_step(
    client: NaiveClient,
    triples: Tensor,
    counts: Tensor,
    importance: Tensor,
    options: KgeOptions,
    reading: str,
) -> float:
    """Both models take a step; returns their loss."""
    own = scores(options.private_model(), client.own, triples)
    shared = scores(options.kge_model(), client.shared, triples)
    local, world = naive_losses(own, shared, counts, importance, options, reading)
    moves = [(client.own_adam, local), (client.shared_adam, world)]
    slopes = [torch.autograd.grad(loss, adam.param_groups[0]["params"], retain_graph=True) for adam, loss in moves]
    for (adam, _), slope in zip(moves, slopes, strict=True):
        for parameter, gradient in zip(adam.param_groups[0]["params"], slope, strict=True):
            parameter.grad = gradient
        adam.step()
    return float(local.detach() if local is world else (local + world).detach())


def naive_federation(
    graph: FederatedGraph, options: KgeOptions, reading: str = ""
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
            means = [naive_round(client, number, options, reading) for client in clients]
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
            if (
                number == 0
                and getattr(options.settings, "private_start", "own") == "server"
                and reading != "own first rows"
            ):
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
    *(("fedlu", model, {}) for model in MODELS),
    *(("fedlu", model, {"variant": "published"}) for model in ("transe", "rotate", "complex")),
    ("fedlu", "rotate", {"mu": 0.5}),
    *(("fedlu", model, AS_CODED) for model in ("transe", "rotate", "complex")),
    ("fedlu", "transe", {"private_start": "server"}),
    *(("fede-kd", model, {}) for model in MODELS),
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


@pytest.mark.parametrize(("algorithm", "reading"), READINGS)
def test_other_readings_are_other_runs(algorithm: str, reading: str, uneven: FederatedGraph, apart: KgeOptions) -> None:
    """So the test above can fail: each gives tables far outside its tolerance."""
    of_the_code = reading in ("own first rows", "tails first", "one side a batch")
    options = replace(apart, algorithm=algorithm, **(AS_CODED if of_the_code else {}))
    result = run_federation(uneven, options)
    clients, _, _ = naive_federation(uneven, options, reading)
    away = [
        max(distance(result.private[place], client.own), distance(result.tables[place], client.shared))
        for place, client in enumerate(clients)
    ]
    assert max(away) > 1e-3


@pytest.mark.parametrize("algorithm", ["fedlu", "fede-kd"])
def test_who_sits_out_keeps_both_models(algorithm: str, uneven: FederatedGraph, apart: KgeOptions) -> None:
    stack, private, trainer = trainer_of(list(uneven.clients), ALL, replace(apart, algorithm=algorithm))

    def rows(client: int) -> list[Tensor]:
        return [one.rows(table, client).detach().clone() for one in (stack, private) for table in TABLES]

    trainer.train_round(1, ALL)
    before = [rows(client) for client in ALL]
    trainer.train_round(2, [0, 2])
    for client in ALL:
        same = [torch.equal(*pair) for pair in zip(before[client], rows(client), strict=True)]
        assert all(same) if client == 1 else not any(same)


def trainer_of(
    graphs: list[ClientGraph], keys: list[int], options: KgeOptions
) -> tuple[ClientStack, ClientStack, LocalTrainer]:
    """The shared and the private stack, and what trains them."""
    private = ClientStack(graphs, keys, options.private_model(), options.seed, CPU, purpose="initial private rows")
    relations = private.tables["relations"] if options.algorithm == "fedlu" else None
    stack = ClientStack(graphs, keys, options.kge_model(), options.seed, CPU, relations=relations)
    return stack, private, LocalTrainer(stack, options, private)


@pytest.mark.parametrize("private_start", ["own", "server"])
def test_both_models_may_start_from_the_rows_of_the_server(
    private_start: str, uneven: FederatedGraph, apart: KgeOptions
) -> None:
    """Three clients after round 0: by name, the rows of each one's second model are those that the server drew."""
    federation = Federation(uneven, replace(apart, algorithm="fedlu", private_start=private_start))
    federation.align()
    shared = federation.exchange.server["entities"]
    of_server = dict(zip(shared.names, shared.rows.tolist(), strict=True))
    assert federation.task.private
    for place, client in enumerate(uneven.clients):
        received = [of_server[uneven.entities[number]] for number in client.entity_ids.tolist()]
        assert federation.task.stack.rows("entities", place).tolist() == received
        assert (federation.task.private.rows("entities", place).tolist() == received) == (private_start == "server")
    relations = [stack.tables["relations"] for stack in (federation.task.stack, federation.task.private)]
    assert relations[0] is relations[1]


@pytest.mark.parametrize(("negative_sides", "steps"), [("tail", 3), ("both", 3), ("each", 6)])
def test_heads_and_tails_of_each_batch_are_two_steps(
    negative_sides: str, steps: int, uneven: FederatedGraph, apart: KgeOptions
) -> None:
    """The longest client has 3 batches; what is announced to an observer is what is done."""
    options = replace(apart, algorithm="fedlu", negative_sides=negative_sides, local_epochs=1)
    _, _, trainer = trainer_of(list(uneven.clients), ALL, options)
    done: list[None] = []
    trainer.train_round(1, ALL, lambda: done.append(None))
    assert len(done) == trainer.num_steps(ALL) == steps


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

    @pytest.mark.parametrize("variant", ["paper", "published"])
    @pytest.mark.parametrize("model", ["transe", "complex"])
    def test_fedlu_is_single_and_fede(
        self, model: str, variant: str, uneven: FederatedGraph, apart: KgeOptions
    ) -> None:
        """FedLU's negatives weigh alike at any temperature. FedE takes each step's relations from the independent client.

        Adam divides a gradient by its size plus 1e-8, which tells a loss from twice the loss where gradients are tiny: so
        steps are small here, and gamma is, which keeps scores and so gradients away from zero.
        """
        apart = replace(apart, gamma=2.0, learning_rate=0.001)
        options = replace(apart, algorithm="fedlu", model=model, variant=variant, mu=0.0)
        stack, private, fedlu = trainer_of(list(uneven.clients), ALL, options)
        plain = replace(apart, model=model, temperature=0.0, variant=variant)
        alone = ClientStack(uneven.clients, ALL, plain.kge_model(), plain.seed, CPU, purpose="initial private rows")
        single = LocalTrainer(alone, replace(plain, algorithm="single"))
        shared = ClientStack(uneven.clients, ALL, plain.kge_model(), plain.seed, CPU)
        fede = LocalTrainer(shared, plain)
        relations: list[Tensor] = []

        def keep() -> None:
            relations.append(alone.tables["relations"].detach().clone())

        def give() -> None:
            shared.tables["relations"].detach().copy_(relations.pop(0))

        scale, atol = (2 if variant == "paper" else 1), 2e-5  # the paper of FedLU does not halve the loss
        for number in (1, 2):
            for trainer in (fedlu, single, fede):
                trainer.begin_round()
            together = fedlu.train_round(number, ALL)
            keep()
            own = single.train_round(number, ALL, keep)
            give()
            world = fede.train_round(number, ALL, give)
            for place in ALL:
                assert together[place] == pytest.approx(scale * (own[place] + world[place]), rel=1e-5)
            for table in TABLES:
                torch.testing.assert_close(private.tables[table], alone.tables[table], atol=atol, rtol=0)
            torch.testing.assert_close(stack.tables["entities"], shared.tables["entities"], atol=atol, rtol=0)
            # What the federation makes of the rows is the same for both.
            for one in (stack, shared):
                one.tables["entities"].detach().mul_(0.9)

    def test_with_distillation_it_is_neither(self, uneven: FederatedGraph, apart: KgeOptions) -> None:
        ends = []
        for mu in (0.0, 2.0):
            stack, private, trainer = trainer_of(list(uneven.clients), ALL, replace(apart, algorithm="fedlu", mu=mu))
            trainer.train_round(1, ALL)
            ends.append((private.tables["entities"], private.tables["relations"], stack.tables["entities"]))
        for without, taught in zip(*ends, strict=True):
            assert float((without - taught).abs().max()) > 1e-3


class TestHeadline:
    """What is reported is the private model's; the shared one's ranks stand beside it."""

    @pytest.mark.parametrize("algorithm", ["fedlu", "fede-kd"])
    def test_ranks_are_those_of_the_private_model(
        self, algorithm: str, uneven: FederatedGraph, apart: KgeOptions
    ) -> None:
        options = replace(apart, algorithm=algorithm, learning_rate=0.05)
        result = run_federation(uneven, options)
        for place, client in enumerate(uneven.clients):
            own = naive_ranks(options.private_model(), result.private[place], client, "test")
            shared = naive_ranks(options.kge_model(), result.tables[place], client, "test")
            assert np.array_equal(result.test_ranks[place], own)
            assert np.array_equal(result.shared_test_ranks[place], shared)
            assert not np.array_equal(own, shared)

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

    @pytest.mark.parametrize("algorithm", ["fedlu", "fede-kd"])
    def test_validation_is_too(self, algorithm: str, uneven: FederatedGraph, apart: KgeOptions) -> None:
        """And so the best round is the private model's best; both models are kept as they were in it."""
        options = replace(apart, algorithm=algorithm, learning_rate=0.05, eval_every=1, rounds=4)
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

    def test_the_private_model_has_the_full_dimension(self, uneven: FederatedGraph, apart: KgeOptions) -> None:
        """feds.txt VI-A: 192 of 256 are shared; here 6 of 8, of complex numbers."""
        result = run_federation(uneven, replace(apart, algorithm="fede-kd", model="complex"))
        assert {tables.entities.shape[1] for tables in result.private} == {16}
        assert {tables.entities.shape[1] for tables in result.tables} == {12}
