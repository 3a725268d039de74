"""Forget sets, and every method of forgetting on small federations."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from torch import Tensor

from fkgsec.algorithms.settings import Variant
from fkgsec.data.graph import ClientGraph, FederatedGraph
from fkgsec.defenses.transport import make_transport
from fkgsec.errors import DataError, SpecError
from fkgsec.exchange import Transport
from fkgsec.federation.loop import Observer, run_federation
from fkgsec.federation.messages import SERVER, Rows
from fkgsec.federation.options import replace
from fkgsec.federation.recipes import RECIPES, algorithms_of
from fkgsec.kge.models import ClientTables, KgeModel
from fkgsec.kge.options import KgeOptions
from fkgsec.kge.result import KgeResult
from fkgsec.randomness import generator
from fkgsec.unlearning.forget_sets import Forget, read_forget, retaining
from fkgsec.unlearning.methods import with_random_tails
from fkgsec.unlearning.unlearning import Method, UnlearnOptions, unlearn

OPTIONS = KgeOptions(
    algorithm="fedlu",
    dim=8,
    batch_size=32,
    num_negatives=7,
    local_epochs=2,
    rounds=2,
    eval_every=1,
    patience=0,
    seed=5,
    device="cpu",
    learning_rate=0.01,
)
SMALL: dict[str, dict[str, int]] = {"fede-svd": {"rank": 1, "columns": 2}, "fede-svd+": {"rank": 1, "columns": 2}}
CHANGING: tuple[Method, ...] = ("fedlu", "finetune", "ascent", "relabel")


@pytest.fixture(scope="module")
def run(uneven: FederatedGraph) -> KgeResult:
    return run_federation(uneven, OPTIONS)


@pytest.fixture(scope="module")
def forget(uneven: FederatedGraph) -> Forget:
    """Two triples of the largest client, alone."""
    return {"large": uneven.clients[1].train[[3, 40]]}


def values(result: KgeResult) -> dict[str, object]:
    """Everything of a result but its clock and its graph."""
    tables = {
        f"{name}.{place}.{table}": getattr(one, table).tolist()
        for name in ("tables", "trained", "private")
        for place, one in enumerate(getattr(result, name))
        for table in ("entities", "relations")
    }
    return tables | {
        "rounds": [replace(entry, seconds=0.0) for entry in result.rounds],
        "ranks": [ranks.tolist() for ranks in (*result.test_ranks, *result.shared_test_ranks)],
        "entries": list(result.transcript.entries),
        "frames": dict(result.transcript.frames),
    }


def same(first: ClientTables, second: ClientTables) -> bool:
    return torch.equal(first.entities, second.entities) and torch.equal(first.relations, second.relations)


def scores_of(model: KgeModel, tables: ClientTables, triples: np.ndarray) -> Tensor:
    heads, relations, tails = torch.tensor(triples).unbind(1)
    return model.score(tables.entities[heads], tables.relations[relations], tables.entities[tails])


def line(graph: FederatedGraph, client: ClientGraph, row: int) -> str:
    head, relation, tail = client.to_global(client.train)[row]
    return f"{graph.entities[head]}\t{graph.relations[relation]}\t{graph.entities[tail]}\n"


class TestReadForget:
    def test_a_file_of_a_client(self, uneven: FederatedGraph, tmp_path: Path) -> None:
        client, path = uneven.clients[1], tmp_path / "forget.txt"
        path.write_text(line(uneven, client, 7) + line(uneven, client, 2))
        read = read_forget(path, uneven, "large")
        assert list(read) == ["large"]
        assert read["large"].tolist() == client.train[[7, 2]].tolist()

    def test_without_a_client_it_is_the_only_holder(self, tmp_path: Path) -> None:
        clients = tuple(
            ClientGraph.from_global(name, np.array(triples), np.empty((0, 3)), np.empty((0, 3)))
            for name, triples in (("a", [[0, 0, 1], [1, 0, 2]]), ("b", [[1, 0, 2], [2, 0, 0]]))
        )
        graph = FederatedGraph("tiny", ("x", "y", "z"), ("r",), clients)
        path = tmp_path / "forget.txt"
        path.write_text("z\tr\tx\nx\tr\ty\n")
        read = read_forget(path, graph)
        assert {name: one.tolist() for name, one in read.items()} == {
            "a": [clients[0].train[0].tolist()],
            "b": [clients[1].train[1].tolist()],
        }
        path.write_text("z\tr\tx\ny\tr\tz\n")
        with pytest.raises(DataError, match=r"forget\.txt:2: \(y, r, z\) is held by a, b"):
            read_forget(path, graph)

    @pytest.mark.parametrize("nested", [True, False])
    def test_a_folder(self, nested: bool, uneven: FederatedGraph, tmp_path: Path) -> None:
        for client in (uneven.clients[0], uneven.clients[2]):
            path = tmp_path / client.name / "unlearn.txt" if nested else tmp_path / f"{client.name}.txt"
            path.parent.mkdir(exist_ok=True)
            path.write_text(line(uneven, client, 1))
        assert list(read_forget(tmp_path, uneven)) == ["small", "middle"]
        assert list(read_forget(tmp_path, uneven, "middle")) == ["middle"]
        with pytest.raises(DataError, match=r"no forget set .* of large"):
            read_forget(tmp_path, uneven, "large")

    def test_errors_name_line_and_triple(self, uneven: FederatedGraph, tmp_path: Path) -> None:
        client, path = uneven.clients[1], tmp_path / "forget.txt"
        first = line(uneven, client, 0)
        shown = first.strip().replace("\t", ", ")
        for content, said in (
            (
                first + "nobody\trelation 0\tentity 1\n",
                r"forget\.txt:2: \(nobody, relation 0, entity 1\) is not in the train",
            ),
            (first + line(uneven, client, 5) + first, rf"forget\.txt:3: \({shown}\) is named already at .*:1"),
            ("", r"forget\.txt: no triple"),
            (
                "".join(dict.fromkeys(line(uneven, client, row) for row in range(len(client.train)))),
                "client large: all of",
            ),
            ("one\ttwo\n", r"forget\.txt:1"),
        ):
            path.write_text(content)
            with pytest.raises(DataError, match=said):
                read_forget(path, uneven, "large")
        with pytest.raises(DataError, match=r"client must .*got 'huge'"):
            read_forget(path, uneven, "huge")


class TestRetaining:
    def test_ids_stay_and_all_copies_go(self) -> None:
        train = np.array([[0, 0, 1], [4, 1, 4], [0, 0, 1], [1, 0, 2]])
        client = ClientGraph.from_global("a", train, train[:1], train[3:])
        graph = FederatedGraph("tiny", tuple("vwxyz"), ("r", "s"), (client,))
        kept = retaining(graph, {"a": client.train[:2]}).clients[0]
        assert kept.train.tolist() == client.train[3:].tolist()
        assert kept.entity_ids.tolist() == client.entity_ids.tolist()
        assert kept.relation_ids.tolist() == client.relation_ids.tolist()
        assert len(graph.clients[0].train) == 4

    def test_errors(self, uneven: FederatedGraph) -> None:
        train = uneven.clients[1].train
        for forget, said in (
            ({"huge": train}, "no client is called huge"),
            ({"large": train[:0]}, "client large: the forget set is empty"),
            ({"large": train}, "client large: all of its"),
            ({"large": train[[1, 1]]}, "client large: .* is named twice"),
            ({"large": uneven.clients[1].test[:1]}, "client large: .*entity.* is not in its train split"),
        ):
            with pytest.raises(DataError, match=said):
                retaining(uneven, forget)


class TestOptions:
    @pytest.mark.parametrize(
        ("given", "said"),
        [
            ({"method": "pray"}, "method must be one of fedlu"),
            ({"variant": "both"}, "variant must be one of paper, published"),
            ({"hard": False, "soft": False}, "hard, soft"),
            ({"mu_soft": -1}, "mu_soft"),
            ({"epochs": 0}, "epochs must be at least 1"),
            ({"decay_epochs": -1}, "decay_epochs must be at least 0"),
            ({"method": "finetune", "decay_epochs": 0}, "decay_epochs must be at least 1 for finetune"),
            ({"learning_rate": 0.0}, "learning_rate"),
            ({"batch_size": 0}, "batch_size must be at least 1; got 0"),
        ],
    )
    def test_what_is_not_allowed(self, given: dict[str, object], said: str) -> None:
        with pytest.raises(SpecError, match=said):
            UnlearnOptions(**given)  # pyright: ignore[reportArgumentType]


class TestEveryMethod:
    @pytest.mark.parametrize("method", [*CHANGING, "delete"])
    def test_the_old_run_is_untouched_and_the_new_one_repeatable(
        self, method: Method, run: KgeResult, forget: Forget
    ) -> None:
        before = copy.deepcopy(values(run))
        options = UnlearnOptions(method=method, epochs=3, decay_epochs=2)
        first, second = unlearn(run, forget, options), unlearn(run, forget, options)
        assert values(run) == before
        assert values(first) == values(second)
        assert first.graph.hash == retaining(run.graph, forget).hash
        assert [entry.round for entry in first.rounds] == [0, 1]
        if method != "delete":
            assert values(unlearn(run, forget, replace(options, seed=1))) != values(first)

    @pytest.mark.parametrize("method", CHANGING)
    def test_who_did_not_ask_receives_what_was_forgotten(
        self, method: Method, run: KgeResult, forget: Forget, uneven: FederatedGraph
    ) -> None:
        after = unlearn(run, forget, UnlearnOptions(method=method, epochs=3, decay_epochs=2))
        asked, other = uneven.clients[1], uneven.clients[2]
        assert not same(after.private[1], run.private[1])
        assert not same(after.trained[1], run.tables[1])
        for place in (0, 2):
            assert same(after.private[place], run.private[place])
            assert same(after.trained[place], run.tables[place])
        _, here, there = np.intersect1d(asked.entity_ids, other.entity_ids, return_indices=True)
        here, there = here[here < asked.num_trained_entities], there[here < asked.num_trained_entities]
        # The mean over those who asked and hold a row is the row of the only one that asked.
        assert torch.equal(after.tables[2].entities[there], after.trained[1].entities[here])
        assert not torch.equal(after.tables[2].entities[there], run.tables[2].entities[there])
        alone = np.setdiff1d(np.arange(other.num_entities), there)
        assert torch.equal(after.tables[2].entities[alone], run.tables[2].entities[alone])
        sent = [(entry.sender, entry.receiver) for entry in after.transcript.entries if entry.round == 1]
        assert sent == [("client/large", "server"), *(("server", f"client/{c.name}") for c in uneven.clients)]
        assert after.rounds[1].num_survivors == 1

    def test_deleting_changes_no_embedding_and_sends_nothing(self, run: KgeResult, forget: Forget) -> None:
        after = unlearn(run, forget, UnlearnOptions(method="delete"))
        for name in ("tables", "private"):
            assert all(same(*pair) for pair in zip(getattr(after, name), getattr(run, name), strict=True))
        assert after.transcript.entries == []

    def test_retraining_is_a_run_on_what_is_retained(self, run: KgeResult, forget: Forget) -> None:
        after = unlearn(run, forget, UnlearnOptions(method="retrain"))
        assert values(after) == values(run_federation(retaining(run.graph, forget), OPTIONS))

    def test_interference_confuses_and_ascent_stays_finite(self, run: KgeResult, forget: Forget) -> None:
        """The forget triples fall, and among what is retained the mean stays nearer to where it was."""
        model, triples = OPTIONS.kge_model(), forget["large"]
        for method in ("fedlu", "ascent"):
            options = UnlearnOptions(method=method, epochs=60, decay_epochs=0, learning_rate=0.05)
            after = unlearn(run, forget, options)
            kept = after.graph.clients[1].train
            for old, new in ((run.private[1], after.private[1]), (run.tables[1], after.tables[1])):
                assert torch.isfinite(new.entities).all()
                fall = (scores_of(model, old, triples) - scores_of(model, new, triples)).mean()
                assert fall > 1
                assert fall > (scores_of(model, old, kept) - scores_of(model, new, kept)).mean()

    def test_relations_stand_still_under_fedlu(self, run: KgeResult, forget: Forget) -> None:
        for variant in ("paper", "published"):
            after = unlearn(run, forget, UnlearnOptions(variant=variant, epochs=2, decay_epochs=2))
            assert torch.equal(after.private[1].relations, run.private[1].relations)
            assert torch.equal(after.tables[1].relations, run.tables[1].relations)

    def test_the_published_form_sends_nothing_and_stops_at_the_first_drop(self, run: KgeResult, forget: Forget) -> None:
        class Steps(Observer):
            count = 0

            def step_done(self) -> None:
                self.count += 1

        options = UnlearnOptions(variant="published", epochs=1, decay_epochs=200, learning_rate=0.05)
        after = unlearn(run, forget, options, observer=(steps := Steps()))
        batches = -(-len(after.graph.clients[1].train) // OPTIONS.batch_size)
        decayed, rest = divmod(steps.count - 3, batches)
        assert rest == 0
        assert 2 <= decayed < 200
        last, before = (
            unlearn(run, forget, replace(options, decay_epochs=count)).rounds[1].valid
            for count in (decayed, decayed - 1)
        )
        assert last is not None
        assert before is not None
        assert last <= before
        assert after.transcript.entries == []
        assert same(after.tables[2], run.tables[2])
        assert not same(after.tables[1], run.tables[1])

    def test_the_loss_is_the_mean_over_clients_weighted_by_what_they_forget(
        self, run: KgeResult, uneven: FederatedGraph
    ) -> None:
        options = UnlearnOptions(epochs=2, decay_epochs=2)
        forget = {"large": uneven.clients[1].train[:2], "middle": uneven.clients[2].train[:35]}
        large, middle, both = (
            unlearn(run, asked, options).rounds[1].loss
            for asked in ({"large": forget["large"]}, {"middle": forget["middle"]}, forget)
        )
        assert large is not None
        assert middle is not None
        assert abs(large - middle) > 1e-3
        assert both == pytest.approx((2 * large + 35 * middle) / 37, rel=1e-5)

    def test_negatives_avoid_the_whole_graph_or_in_the_published_form_the_forget_set(self) -> None:
        """Every entity but the head itself is a tail of it, so only the published variant draws the others (tails come first)."""
        nothing = np.empty((0, 3))
        star = [[0, 0, tail] for tail in range(1, 7)]
        clients = tuple(ClientGraph.from_global(name, np.array(star), nothing, nothing) for name in "ab")
        graph = FederatedGraph("star", tuple("0123456"), ("r",), clients)
        run = run_federation(graph, replace(OPTIONS, num_negatives=64))
        expected: dict[Variant, bool] = {"paper": False, "published": True}
        for variant, moved in expected.items():
            options = UnlearnOptions(variant=variant, epochs=1, decay_epochs=0)
            after = unlearn(run, {"a": clients[0].train[:1]}, options)
            assert not torch.equal(after.tables[0].entities[1], run.tables[0].entities[1])
            assert torch.equal(after.tables[0].entities[2:], run.tables[0].entities[2:]) != moved

    def test_random_tails_make_no_known_triple(self) -> None:
        triples = np.array([[0, 0, tail] for tail in range(4)] + [[1, 0, 2]])
        rng = generator(0, "test")
        for _ in range(20):
            wrong = with_random_tails(triples, np.array([0, 3, 4]), np.arange(6), rng)
            assert wrong[:, :2].tolist() == [[0, 0], [0, 0], [1, 0]]
            assert set(wrong[:2, 2]) <= {4, 5}
            assert wrong[2, 2] != 2
        assert triples[0].tolist() == [0, 0, 0]
        with pytest.raises(DataError, match="every entity is a tail of"):
            with_random_tails(triples, np.array([0]), np.arange(4), rng)


@pytest.mark.parametrize("algorithm", algorithms_of("kge"))
def test_every_recipe(algorithm: str, uneven: FederatedGraph, forget: Forget) -> None:
    run = run_federation(uneven, replace(OPTIONS, algorithm=algorithm, rounds=1, **SMALL.get(algorithm, {})))
    for method in ("finetune", "ascent", "relabel", "delete"):
        after = unlearn(run, forget, UnlearnOptions(method=method, epochs=1, decay_epochs=1))
        assert same(after.trained[1], run.tables[1]) == (method == "delete")
        if not RECIPES[algorithm].pooled:
            assert same(after.trained[2], run.tables[2])
        assert all(torch.isfinite(one.entities).all() for one in after.tables)
        assert [len(ranks) for ranks in after.test_ranks] == [len(client.test) for client in uneven.clients]
    if RECIPES[algorithm].private != "entities":
        with pytest.raises(SpecError, match=f"method fedlu needs a run of fedlu; got one of {algorithm}"):
            unlearn(run, forget, UnlearnOptions())


def test_a_server_that_keeps_uploads_goes_on_from_those_of_the_run(uneven: FederatedGraph) -> None:
    """Of whoever does not ask, also in a second unlearning, the upload that it last sent, and nothing that it was sent since."""
    run = run_federation(uneven, replace(OPTIONS, algorithm="pfedeg", rounds=2))
    made: list[Transport] = []

    class Kept(Transport):
        def __init__(self, *parts: Any) -> None:
            super().__init__(*parts)
            made.append(self)

    last: dict[str, Tensor] = {}
    for place in (1, 2):
        last |= {m.sender: m.unpack() for m in run.transcript.messages(run.best_round) if isinstance(m, Rows)}
        forget = {uneven.clients[place].name: run.graph.clients[place].train[:3]}
        run = unlearn(run, forget, UnlearnOptions(method="finetune", decay_epochs=1), make_transport=Kept)
        sent = [m for m in run.transcript.messages(1) if isinstance(m, Rows) and m.receiver == SERVER]
        assert [m.sender for m in sent] == [made[-1].parties[place]]
        last |= {m.sender: m.unpack() for m in sent}
        kept = made[-1].servers["entities"].aggregation.tensors()
        for number, party in enumerate(made[-1].parties):
            assert torch.equal(kept[str(number)], last[party])


@pytest.mark.parametrize("method", ["finetune", "ascent", "relabel"])
def test_models_learn_from_each_other_however_long_training_waited(
    method: Method, run: KgeResult, forget: Forget
) -> None:
    def unlearned(**settings: Any) -> KgeResult:
        options = UnlearnOptions(method=method, epochs=1, decay_epochs=1)
        return unlearn(dataclasses.replace(run, options=replace(OPTIONS, **settings)), forget, options)

    taught, waited, alone = unlearned(), unlearned(warmup_rounds=100), unlearned(mu=0.0)
    for kind in ("tables", "private"):
        assert same(getattr(taught, kind)[1], getattr(waited, kind)[1])
        assert not same(getattr(taught, kind)[1], getattr(alone, kind)[1])


def test_a_pooled_party_that_would_lose_an_entity(uneven: FederatedGraph) -> None:
    train = np.array([[0, 0, 1], [1, 0, 2]])
    client = ClientGraph.from_global("a", train, np.empty((0, 3)), np.empty((0, 3)))
    run = run_federation(
        FederatedGraph("tiny", ("x", "y", "z"), ("r",), (client,)), replace(OPTIONS, algorithm="collective")
    )
    with pytest.raises(DataError, match="no triple names the entity z"):
        unlearn(run, {"a": client.train[1:]}, UnlearnOptions(method="retrain"))


def test_the_variant_is_read_by_its_old_name_and_written_by_its_own() -> None:
    old = b'{"method":"fedlu","form":"published"}'
    read = msgspec.json.decode(old, type=UnlearnOptions)
    assert read == UnlearnOptions(variant="published")
    written = msgspec.json.decode(msgspec.json.encode(read))
    assert written["variant"] == "published"
    assert "form" not in written
    with pytest.raises(SpecError, match="form is the old name of variant; got 'paper' beside 'published'"):
        msgspec.json.decode(b'{"form":"paper","variant":"published"}', type=UnlearnOptions)


def test_under_secure_sums_others_take_part(uneven: FederatedGraph, forget: Forget) -> None:
    run = run_federation(uneven, replace(OPTIONS, defense="secagg"), make_transport=make_transport)
    with pytest.raises(SpecError, match="transport sends plaintext"):
        unlearn(run, forget, UnlearnOptions())
    after = unlearn(run, forget, UnlearnOptions(epochs=2, decay_epochs=1), make_transport=make_transport)
    assert after.rounds[1].num_survivors == 3
    assert sorted(after.inputs["entities"]) == ["client/large", "client/middle", "client/small"]
    one, two = (uneven.clients[place].entity_ids for place in (1, 2))
    _, _, there = np.intersect1d(one, two, return_indices=True)
    moved = (after.tables[2].entities[there] - run.tables[2].entities[there]).abs().max()
    assert moved > 1e-3


def test_nobody_asks(run: KgeResult) -> None:
    with pytest.raises(DataError, match="no client asks"):
        unlearn(run, {}, UnlearnOptions())
