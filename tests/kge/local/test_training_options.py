"""`triple_weights`, `redraw`, `entity_range` and `best_round`, one by one against plain loops, and the variant that sets them."""

import os
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch.nn.functional import logsigmoid

from fkgsec.data.graph import FederatedGraph
from fkgsec.errors import SpecError
from fkgsec.federation.adversary import Adversary
from fkgsec.federation.checkpoint import RoundEntry
from fkgsec.federation.loop import Federation, Observer, run_federation
from fkgsec.federation.options import replace
from fkgsec.kge.local.stack import ClientStack
from fkgsec.kge.local.training import LocalTrainer
from fkgsec.kge.negatives import frequency_weights
from fkgsec.kge.options import TRAINING, KgeOptions
from fkgsec.kge.result import KgeResult

CPU = torch.device("cpu")


def umls() -> np.ndarray:
    """Triples of UMLS by number, where published data are at hand; else as many drawn ones."""
    path = Path(os.environ.get("FKGSEC_DATA", "")) / "UMLS" / "train.txt"
    if not path.is_file():
        return np.random.default_rng(0).integers(0, 9, size=(2_000, 3))
    rows = [line.split("\t") for line in path.read_text().splitlines()]
    columns = [np.unique([row[place] for row in rows], return_inverse=True)[1] for place in range(3)]
    return np.stack(columns, axis=1)


class TestTripleWeights:
    def test_by_hand(self) -> None:
        triples = np.array([[0, 0, 1], [0, 0, 2], [3, 0, 2], [0, 1, 2]])
        # (0, 0, .) stands twice and counts 5, (., 0, 1) once and counts 4; and so on.
        expected = [(5 + 4) ** -0.5, (5 + 5) ** -0.5, (4 + 5) ** -0.5, (4 + 4) ** -0.5]
        assert frequency_weights(triples) == pytest.approx(expected)

    def test_equals_a_count_by_dictionaries(self) -> None:
        triples, counts = umls(), {}
        for head, relation, tail in triples.tolist():
            for pair in ((head, relation), (tail, -relation - 1)):
                counts[pair] = counts.get(pair, 3) + 1
        naive = [(counts[h, r] + counts[t, -r - 1]) ** -0.5 for h, r, t in triples.tolist()]
        assert frequency_weights(triples) == pytest.approx(naive)

    @pytest.mark.parametrize("model", ["transe", "rotate", "complex"])
    def test_a_step_goes_down_on_the_weighted_loss(self, model: str, uneven: FederatedGraph) -> None:
        """One batch of one client: the gradient of autograd through the formula, seen as Adam's first step."""
        size = max(len(client.train) for client in uneven.clients)
        options = KgeOptions(
            algorithm="single", model=model, dim=4, num_negatives=5, batch_size=size, local_epochs=1,
            triple_weights="frequency", negative_sides="tail",
        )  # fmt: skip
        stack = ClientStack(uneven.clients, range(3), options.kge_model(), 0, CPU)
        place = int(np.argmax([len(client.train) for client in uneven.clients]))
        tables = {name: stack.rows(name, place).detach().clone().requires_grad_() for name in ("entities", "relations")}
        trainer = LocalTrainer(stack, options)
        rows, draws = trainer._draws(place, 1, 0)
        graph = uneven.clients[place]
        wrong = trainer._samplers[place].sample(rows, 5, "tail", draws).long()
        total, parts = frequency_weights(graph.train)[rows].sum(), []
        for triple, negatives, weight in zip(
            graph.train[rows], wrong, frequency_weights(graph.train)[rows], strict=True
        ):
            head, relation = tables["entities"][triple[0]], tables["relations"][triple[1]]
            tails = torch.cat([torch.tensor([triple[2]]), negatives[negatives >= 0]])
            scores = options.kge_model().score(head, relation, tables["entities"][tails])
            shares = torch.softmax(scores[1:].detach(), 0)
            parts.append(-(logsigmoid(scores[0]) + (shares * logsigmoid(-scores[1:])).sum()) / 2 * (weight / total))
        loss = torch.stack(parts).sum()
        loss.backward()
        ours = trainer.train_round(1, [place])
        assert ours[place] == pytest.approx(float(loss.detach()), rel=1e-5)
        for name, rows_before in tables.items():
            assert rows_before.grad is not None
            moved = rows_before.grad.abs() > 1e-6
            step = (stack.rows(name, place) - rows_before).detach()
            torch.testing.assert_close(
                step[moved], -options.learning_rate * rows_before.grad.sign()[moved], atol=2e-5, rtol=0
            )


@pytest.mark.parametrize(("redraw", "repeats"), [("epoch", False), ("never", True)])
def test_draws_of_every_epoch_or_of_the_first(redraw: str, repeats: bool, uneven: FederatedGraph) -> None:
    """Models that hardly move have the same loss in every round where batches and negatives repeat, and nowhere else."""
    options = KgeOptions(
        algorithm="single", dim=8, num_negatives=4, batch_size=16, rounds=3, local_epochs=2, learning_rate=1e-9,
        negative_sides="each", redraw=redraw,
    )  # fmt: skip
    losses = [entry.loss for entry in run_federation(uneven, options).rounds[1:]]
    assert (losses == pytest.approx([losses[0]] * 3, rel=1e-6)) is repeats


@pytest.mark.parametrize(("model", "widths"), [("transe", 1), ("rotate", 2), ("complex", 2)])
def test_the_range_of_entities_by_the_width_of_a_row(model: str, widths: int, uneven: FederatedGraph) -> None:
    for algorithm in ("single", "fede", "fedlu"):
        options = KgeOptions(algorithm=algorithm, model=model, dim=16, gamma=6, entity_range="width")
        federation = Federation(uneven, options)
        federation.align()
        tables = federation.task.snapshot()
        for name, rows in tables.items():
            half = 8 / 16 / (widths if name.endswith("entities") else 1)
            assert 0.9 * half < float(rows.abs().max()) <= half, name


class TestBestRound:
    """Rounds that are validated one by one, and kept by client."""

    OPTIONS = KgeOptions(
        algorithm="single",
        dim=8,
        num_negatives=8,
        batch_size=16,
        rounds=8,
        eval_every=1,
        patience=0,
        learning_rate=0.05,
    )

    @pytest.mark.parametrize(
        ("algorithm", "kind"),
        [("single", "tables"), ("fede", "tables"), ("fedlu", "private"), ("fede-before", "trained")],
    )
    def test_each_client_has_its_own(self, algorithm: str, kind: str, uneven: FederatedGraph) -> None:
        settings = {"evaluate": "before"} if algorithm == "fede-before" else {}
        options = replace(self.OPTIONS, algorithm=algorithm.removesuffix("-before"), settings=settings)
        kept = run_federation(uneven, replace(options, best_round="client"))
        # The run that ends with round k and validates nowhere else is kept at round k.
        ends = [run_federation(uneven, replace(options, rounds=k, eval_every=k)) for k in range(1, options.rounds + 1)]
        validated = np.array([validation(one, options, kind) for one in ends])
        best = validated.argmax(axis=0)
        assert len(set(best)) > 1, "clients whose best rounds are alike show nothing"
        for place, number in enumerate(best):
            ours, theirs = getattr(kept, kind)[place], getattr(ends[number], kind)[place]
            assert torch.equal(ours.entities, theirs.entities)
            assert torch.equal(ours.relations, theirs.relations)
            assert np.array_equal(kept.test_ranks[place], ends[number].test_ranks[place])
        sizes = [len(client.valid) for client in uneven.clients]
        expected = np.average(np.maximum.accumulate(validated), axis=1, weights=sizes)
        assert [entry.valid for entry in kept.rounds[1:]] == pytest.approx(expected)

    def test_training_ends_once_no_client_improves(self, uneven: FederatedGraph) -> None:
        options = replace(self.OPTIONS, rounds=40, patience=2, best_round="client")
        valid = [entry.valid for entry in run_federation(uneven, options).rounds[1:]]
        assert len(valid) < 40
        assert valid[-3:] == [valid[-1]] * 3
        assert valid[-4] < valid[-1]

    def test_a_killed_run_goes_on_with_what_it_kept(self, uneven: FederatedGraph, tmp_path: Path) -> None:
        class Killed(Observer):
            def round_done(self, entry: RoundEntry) -> None:
                if entry.round == 6:
                    raise KeyboardInterrupt

        options = replace(self.OPTIONS, best_round="client")
        whole = run_federation(uneven, options)
        with pytest.raises(KeyboardInterrupt):
            run_federation(uneven, options, tmp_path, Killed(), checkpoint_every_s=0)
        resumed = run_federation(uneven, options, tmp_path)
        for ours, theirs in zip(resumed.tables, whole.tables, strict=True):
            assert torch.equal(ours.entities, theirs.entities)
        assert [entry.valid for entry in resumed.rounds] == [entry.valid for entry in whole.rounds]

    def test_what_does_not_go_with_it(self, uneven: FederatedGraph) -> None:
        options = replace(self.OPTIONS, algorithm="fede", best_round="client")
        with pytest.raises(SpecError, match="best_round"):
            Federation(uneven, options, adversary=Adversary(party=uneven.clients[0].name))
        with pytest.raises(SpecError, match="best_round"):
            replace(options, algorithm="collective")
        with pytest.raises(SpecError, match="best_round"):
            replace(options, eval_sample=5)


def validation(result: KgeResult, options: KgeOptions, kind: str) -> list[float]:
    """Each client's validation MRR by its models of this kind."""
    federation = Federation(result.graph, options)
    stack = federation.task.private if kind == "private" else federation.task.stack
    for place, tables in enumerate(getattr(result, kind)):
        stack.rows("entities", place).detach().copy_(tables.entities)
        stack.rows("relations", place).detach().copy_(tables.relations)
    return [total / count for total, count in federation.task.evaluator.reciprocal("valid")]


class TestVariant:
    PUBLISHED: ClassVar = {
        "triple_weights": "frequency",
        "redraw": "never",
        "entity_range": "width",
        "best_round": "client",
    }

    @pytest.mark.parametrize(
        ("algorithm", "other"),
        [
            ("single", {}),
            ("fedlu", {}),
            ("fede", {"best_round": "federation"}),
            ("fedprox", {"best_round": "federation"}),
            ("collective", {"best_round": "federation", "entity_range": "dim"}),
        ],
    )
    def test_it_sets_what_the_code_does(self, algorithm: str, other: dict[str, str]) -> None:
        options = KgeOptions(algorithm=algorithm, settings={"variant": "published"})
        assert {name: options.training(name) for name in TRAINING} == self.PUBLISHED | other
        assert {name: KgeOptions(algorithm=algorithm).training(name) for name in TRAINING} == TRAINING

    def test_an_option_that_is_given_wins(self) -> None:
        options = KgeOptions(algorithm="fedlu", redraw="epoch", settings={"variant": "published"})
        assert options.training("redraw") == "epoch"
        assert options.training("triple_weights") == "frequency"

    def test_algorithms_of_other_papers_have_none(self) -> None:
        with pytest.raises(SpecError, match="variant"):
            KgeOptions(algorithm="feds", settings={"variant": "published"})
