"""The strongest of several inferences, what an adversary could reach at all, and zeros that have a reason."""

from __future__ import annotations

import itertools

import msgspec
import numpy as np
import pandas as pd
import pytest

from fkgsec import ClientGraph, FederatedGraph, KgeOptions, generate_consortium
from fkgsec.attacks import run_attacks
from fkgsec.attacks.figure import Figure, headline, over_victims
from fkgsec.attacks.options import THREAT_MODELS, KgeAttackOptions
from fkgsec.attacks.reconstruction.leakage import items_behind
from fkgsec.attacks.reconstruction.scoring import strongest
from fkgsec.attacks.registry import build_view
from fkgsec.attacks.view import ALL
from fkgsec.defenses import make_transport
from fkgsec.estimate import exact, proportion
from fkgsec.federation.loop import run_federation
from fkgsec.kge.models import ModelName
from tests.attacks.pairs import Pair, reconstruct
from tests.attacks.pairs import strongest as strongest_of

NONE = np.zeros((0, 3), dtype=np.int64)


def trr(inference: str, right: int, n: int = 300, base: float = 0.0, reason: str | None = None) -> Figure:
    """A TRR by hand: `right` of `n` triples."""
    guess = exact(base, n)
    return Figure(
        "reconstruction", "trr", "collusion", "b", proportion(right, n), guess, leak=1.0, colluder="a", reason=reason,
        variant=inference, guesses={"majority": guess, "prior": guess},
    )  # fmt: skip


def err(inference: str, right: int, n: int = 300) -> Figure:
    """An ERR by hand: `right` of `n` entities, a tenth by chance."""
    return Figure("reconstruction", "err", "collusion", "b", proportion(right, n), exact(0.1, n), variant=inference)


@pytest.fixture(scope="module")
def attacked(trained_runs) -> tuple[list[Pair], pd.DataFrame]:
    return reconstruct(trained_runs["fede"], KgeAttackOptions(leak=(0.4, 1.0), unlinked_heads=0))


class TestFigures:
    def test_headline_are_the_strongest_and_what_has_no_variants(self, attacked) -> None:
        rows, _ = attacked
        figures = [figure for row in rows for figure in (row.err, row.trr)]
        other = Figure("shapes", "auc", "server", "b", exact(0.7, 9))
        shown = headline([*figures, other])
        assert shown == [*(figure for row in strongest_of(rows) for figure in (row.err, row.trr)), other]

    def test_of_errors_less_is_worse(self) -> None:
        mild, bad = (
            Figure("x", "error", "server", victim, exact(value, 9), exact(1.0, 9), less_is_worse=True)
            for victim, value in (("a", 0.9), ("b", 0.2))
        )
        assert over_victims([mild, bad]) == [bad]
        assert (round(mild.advantage, 9), round(bad.advantage, 9)) == (0.1, 0.8)


class TestAttainable:
    @pytest.mark.parametrize("threat", ["collusion", "identifiers"])
    def test_against_names_and_relations_of_view_and_truth(self, trained_runs, threat: str) -> None:
        result = trained_runs["fede"]
        graph, shares = result.graph, {}
        for leak in (0.3, 1.0):
            view = build_view(result, THREAT_MODELS[threat], colluder=graph.clients[0].name, leak=leak, seed=0)
            known, relations = set(view.colluder.entity_names), set(view.colluder.relation_names)
            options = KgeAttackOptions(threat=(threat,), leak=(leak,), unlinked_heads=0)
            rows, _ = reconstruct(result, options)
            for client in graph.clients[1:]:
                held = [graph.entities[number] for number in client.entity_ids[: client.num_trained_entities]]
                named = [name in known or threat == "identifiers" for name in held]
                triples = [
                    (graph.entities[h], graph.relations[r], graph.entities[t])
                    for h, r, t in client.to_global(client.train)
                ]
                rebuilt = [r in relations and (threat == "identifiers" or {h, t} <= known) for h, r, t in triples]
                for row in rows:
                    if row.victim == client.name:
                        assert row.err.attainable == pytest.approx(np.mean(named))
                        assert row.trr.attainable == pytest.approx(np.mean(rebuilt))
                        shares[leak, client.name] = (row.err.attainable, row.trr.attainable)
        if threat == "collusion":
            for client in graph.clients[1:]:
                assert 0 < shares[0.3, client.name][1] < shares[0.3, client.name][0] < shares[1.0, client.name][0] < 1

    @pytest.mark.parametrize("algorithm", ["fede", "fedr"])
    def test_no_figure_and_no_baseline_is_above_it(self, trained_runs, algorithm: str) -> None:
        threats = ("collusion", "identifiers" if algorithm == "fede" else "collusion+entities")
        rows, _ = reconstruct(
            trained_runs[algorithm], KgeAttackOptions(threat=threats, leak=(0.2, 1.0), unlinked_heads=0)
        )
        reached = 0
        for row in rows:
            if not row.reason:
                reached += row.err.attainable > 0
                assert max(row.err.estimate.value, row.err.baseline.value) <= row.err.attainable + 1e-12
                assert (
                    max(row.trr.estimate.value, row.trr.guesses["majority"].value, row.trr.guesses["prior"].value)
                    <= row.trr.attainable + 1e-12
                )
        assert reached > 10


class TestZeroWithAReason:
    def test_where_no_relation_is_shared(self) -> None:
        """Divided by relations: names are told, no triple can be."""
        graph = generate_consortium(clients=2, size=500, seed=3)
        clients = []
        for place, client in enumerate(graph.clients):
            triples = client.to_global(client.train)
            clients.append(ClientGraph.from_global(client.name, triples[triples[:, 1] % 2 == place], NONE, NONE))
        divided = FederatedGraph("divided", graph.entities, graph.relations, tuple(clients))
        options = KgeOptions(
            dim=8, rounds=1, local_epochs=1, eval_every=1, patience=0, num_negatives=4, learning_rate=0.05, device="cpu"
        )
        rows, _ = reconstruct(run_federation(divided, options), KgeAttackOptions(leak=(1.0,), unlinked_heads=0))
        assert {row.threat_model for row in rows} == {"collusion", "identifiers"}
        for row in rows:
            assert (row.trr.estimate.value, row.trr.attainable, row.reason) == (0, 0, None)
            assert row.trr.remark.startswith("no relation is shared with the colluder")
            assert row.err.attainable > 0.2

    def test_a_leak_too_small_to_know_anything_says_so(self, trained_runs) -> None:
        rows, _ = reconstruct(trained_runs["fede"], KgeAttackOptions(threat=("collusion",), leak=(1e-6,)))
        assert {row.trr.attainable for row in rows} == {0}
        for row in strongest_of(rows):
            assert "so TRR is 0 by construction" in row.trr.remark
            assert "no relation is shared" not in row.trr.remark

    def test_no_remark_where_triples_can_be_rebuilt(self, attacked) -> None:
        assert {row.trr.remark for row in attacked[0] if row.leak == 1} == {None}


class TestStrongest:
    def test_is_the_largest_and_ties_go_to_the_first(self) -> None:
        best = strongest([trr("cosine", 60), trr("score", 90), trr("names", 90)])
        assert (best.variant, best.by, best.estimate.value, best.compared) == ("strongest", "score", 0.3, 5)
        assert best.estimate == proportion(90, 300, compared=5)
        assert best.advantage == best.estimate.value
        named = strongest([err("cosine", 150), err("score", 150)])
        assert (named.estimate, named.by) == (err("cosine", 150).estimate, "attack")

    def test_is_never_below_a_baseline(self) -> None:
        best = strongest([trr("cosine", 60, base=0.25), trr("score", 30, base=0.25)])
        assert (best.estimate.value, best.advantage, best.by) == (0.25, 0, "majority")
        assert best.estimate.low < 0.25 < best.estimate.high
        drawn = strongest([err("cosine", 3)])
        assert (drawn.estimate.value, drawn.advantage, drawn.by) == (0.1, 0, "baseline")

    def test_of_a_victim_that_could_not_be_attacked_the_reason_stays(self) -> None:
        best = strongest([trr("cosine", 0, reason="nothing crossed"), trr("score", 0, reason="nothing crossed")])
        assert (best.variant, best.reason, best.by) == ("strongest", "nothing crossed", None)

    @pytest.mark.parametrize("alike", [0.0, 0.9])
    def test_its_interval_covers_the_best_rate_and_one_without_correction_does_not(self, alike: float) -> None:
        """Five attacks of one true rate on the same items, each item told by luck that they share with chance `alike`."""
        rng, rate, n, draws, names = np.random.default_rng(0), 0.3, 300, 2000, [*"abcde"]
        covered = plain = 0
        for _ in range(draws):
            own, shared = rng.random((len(names), n)), rng.random(n)
            right = np.where(rng.random(n) < alike, shared, own) < rate
            best = strongest([trr(name, int(count), n) for name, count in zip(names, right.sum(axis=1), strict=True)])
            uncorrected = proportion(int(right.sum(axis=1).max()), n)
            covered += best.estimate.low <= rate <= best.estimate.high
            plain += uncorrected.low <= rate <= uncorrected.high
        assert covered / draws >= 0.95
        assert plain / draws < (0.91 if alike == 0 else 0.945)


class TestOnRuns:
    def test_one_row_for_each_inference_and_one_for_the_best(self, attacked) -> None:
        rows, _ = attacked
        by_attack: dict[tuple, dict[str, Pair]] = {}
        for row in rows:
            by_attack.setdefault((row.threat_model, row.leak, row.victim), {})[row.variant] = row
        assert len(by_attack) == 2 * 2 * 3
        for group in by_attack.values():
            best = group.pop("strongest")
            assert list(group)[:3] == ["cosine", "score", "names"]
            most = max(row.trr.estimate.value for row in group.values())
            assert best.trr.estimate.value == max(
                most, best.trr.guesses["majority"].value, best.trr.guesses["prior"].value
            )
            assert len({row.err.estimate for row in group.values()}) == 1
            assert best.trr.compared == len(group) + 2
            assert best.trr.advantage >= 0 <= best.err.advantage

    def test_items_are_those_of_each_rows_inference(self, attacked) -> None:
        rows, scores = attacked
        for row, item in itertools.product(rows, ("entity", "triple")):
            if row.trr.by in ("majority", "prior") and item == "triple":
                continue
            found = row.err if item == "entity" else row.trr
            items, figure = items_behind(found, scores), found.estimate
            assert len(items) == figure.n
            assert items["right"].mean() == pytest.approx(figure.value)
            assert not [name for name in items if name.startswith(("right_", "guessed_relation_"))]
            if item == "triple":
                ends = (items["guessed_head"] == items["head"]) & (items["guessed_tail"] == items["tail"])
                assert (items["right"] == (ends & (items["guessed_relation"] == items["relation"]))).all()

    def test_names_are_those_of_the_colluders_triples(self, attacked) -> None:
        """Where names are read, naive Bayes on guessed names is the prior itself."""
        rows, _ = attacked
        for row in rows:
            if row.variant == "names" and row.threat_model == "identifiers":
                assert row.trr.estimate.value == pytest.approx(row.trr.guesses["prior"].value)
                assert row.trr.estimate.value > 0
            if row.variant == "names" and row.threat_model == "collusion" and row.victim == ALL and row.leak == 1:
                assert row.trr.estimate.value > row.trr.guesses["prior"].value


NULL = KgeOptions(
    dim=16, gamma=4, rounds=2, local_epochs=1, eval_every=2, patience=0, batch_size=128, num_negatives=8,
    learning_rate=1e-6, device="cpu", protocol_seed=3,
)  # fmt: skip


@pytest.mark.parametrize(
    ("algorithm", "defense", "model"),
    [("fede", "", "transe"), ("feds", "", "rotate"), ("fede", "secagg", "complex"), ("fede", "psu,secagg", "rotate")],
)
def test_a_federation_that_learned_nothing_exposes_names_and_leaks_none(
    algorithm: str, defense: str, model: ModelName
) -> None:
    """Who holds which row follows from the protocol: no figure of naming is headed LEAKS without any training."""
    options = msgspec.structs.replace(NULL, algorithm=algorithm, defense=defense, model=model)
    run = run_federation(generate_consortium(clients=3, size=900, seed=1), options, make_transport=make_transport)
    asked = KgeAttackOptions(
        attack=("reconstruction", "structure"), threat=("collusion",), leak=(0.5,), unlinked_heads=0
    )
    figures = [one for one in headline(run_attacks(run, asked, leak_draws=1).figures) if not one.reason]
    assert len(figures) >= 3 * 2
    for one in figures:
        assert one.estimate.high <= one.attainable + 1e-12
        assert not one.beyond or one.by_protocol, one
    if defense != "psu,secagg":  # where the guess itself is what counts of holders tell
        assert any(one.by_protocol for one in figures)
