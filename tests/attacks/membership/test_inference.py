"""The membership attack on whole runs: one that memorised, models that never saw what they are asked about, and defenses."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial

import msgspec
import numpy as np
import pytest
from scipy.stats import mannwhitneyu

from fkgsec import ClientGraph, FederatedGraph, KgeOptions, generate_consortium
from fkgsec.attacks import Figure, KgeAttackOptions, run_attacks
from fkgsec.attacks.figure import STRONGEST, headline
from fkgsec.attacks.membership.evaluation import ITEM, METRICS, OF_SHARED
from fkgsec.attacks.membership.inference import TOO_FEW
from fkgsec.attacks.registry import Attacked
from fkgsec.attacks.view import ALL
from fkgsec.defenses import make_transport
from fkgsec.errors import SpecError
from fkgsec.federation.loop import run_federation
from fkgsec.kge.result import KgeResult

MEMORISED = KgeOptions(
    algorithm="fedlu", dim=24, gamma=4, rounds=30, local_epochs=2, eval_every=30, batch_size=64, num_negatives=16,
    learning_rate=0.02, device="cpu",
)  # fmt: skip
SMALL = KgeOptions(
    algorithm="fede", dim=16, gamma=4, rounds=8, local_epochs=2, eval_every=8, patience=0, batch_size=64,
    num_negatives=8, learning_rate=0.02, device="cpu",
)  # fmt: skip
FREE = ("score", "loss", "rank")
OF_SHADOWS = tuple(f"{way}, same graph" for way in ("calibrated", "lira", "lira-linear", "rmia"))
WHO = {"models": ("local", "global"), "client": ("broadcast",), "server+triples": ("upload",)}
train = partial(run_federation, make_transport=make_transport)


@pytest.fixture(scope="module")
def graph() -> FederatedGraph:
    return generate_consortium(clients=3, size=3000, seed=1)


@pytest.fixture(scope="module")
def memorised(graph: FederatedGraph) -> KgeResult:
    return run_federation(graph, MEMORISED)


@pytest.fixture(scope="module")
def attacked(memorised: KgeResult) -> Attacked:
    return attack(memorised)


@cache
def federation(defense: str = "", size: int = 2000) -> KgeResult:
    """With noise that is the same each time: of fresh noise one in some dozens passes for a signal."""
    options = msgspec.structs.replace(SMALL, defense=defense, protocol_seed=0 if defense else None)
    return train(generate_consortium(clients=3, size=size, seed=1), options)


def attack(result: KgeResult, *threats: str, **options: object) -> Attacked:
    return run_attacks(result, KgeAttackOptions(attack=("membership",), threat=threats, **options), train=train)


def strongest(figures: list[Figure], metric: str = "auc", victim: str = ALL, threat: str = "models") -> Figure:
    (one,) = (
        f for f in headline(figures) if (f.metric, f.victim, f.threat_model) == (metric, victim, threat)
    )  # fmt: skip
    return one


@pytest.mark.planted(
    "membership", "a memorized training split: AUC above .5, interval included", {"auc": 82, "auc_shared": 120}
)
def test_a_run_that_memorised_is_noticed_by_everybody_and_one_that_learnt_nothing_by_nobody(
    memorised: KgeResult, attacked: Attacked
) -> None:
    figures = attacked.figures
    for threat in WHO:
        assert strongest(figures, threat=threat).estimate.low > 0.5 or threat == "client"  # which can ask about few
    assert strongest(figures, "auc_shared").estimate.low > 0.5
    assert strongest(figures, threat="client").estimate.value > 0.55
    idle = run_federation(
        memorised.graph, msgspec.structs.replace(MEMORISED, rounds=1, local_epochs=1, learning_rate=1e-7, eval_every=1)
    )
    for one in attack(idle).figures:
        if one.metric.startswith("auc") and not one.reason:
            assert one.estimate.low <= 0.5 <= one.estimate.high, one


def test_every_victim_way_and_rows_and_what_data_alone_tell(memorised: KgeResult, attacked: Attacked) -> None:
    found, scores = attacked
    names = [client.name for client in memorised.graph.clients]
    for threat, rows in WHO.items():
        own = [one for one in found if (one.threat_model, one.metric) == (threat, "auc")]
        victims = names if threat == "models" else names[1:]
        assert [one.victim for one in own if one.variant == STRONGEST] == [*victims, ALL]
        assert {one.variant for one in own} == {STRONGEST, *(f"{name}, {way}" for name in rows for way in FREE)}
        for one in own:
            guesses = set() if threat == "models" else {"names", "degrees"}  # whoever holds models alone has no triple
            assert {*one.guesses} == {"chance", *guesses}
            assert one.compared == (len(rows) * len(FREE) + len(guesses) if one.variant == STRONGEST else 1)
            assert one.remark is None  # controls are fair
        together = strongest(found, threat=threat)
        assert together.num_attacked == len(victims)
        for guess in guesses:
            m, c = together.counts["members"], together.counts["controls"]
            assert abs(together.guesses[guess].value - 0.5) < 3 * np.sqrt((m + c + 1) / (12 * m * c))
    assert {one.metric for one in found if one.threat_model == "models"} == {*METRICS, *OF_SHARED}
    low = [one for one in found if one.metric == "tpr@0.001"]
    assert all("0.1% false alarms take 1,000 never-seen triples" in str(one.reason) for one in low)
    again, rows = attack(memorised)
    assert again == found
    assert rows.equals(scores)
    assert attack(memorised, seed=1).figures != found


def test_the_table_of_triples_gives_the_figures_again(memorised: KgeResult) -> None:
    found, scores = attack(memorised, "models")
    assert set(scores["item"]) == {ITEM}
    trained = {
        (graph.name, *(memorised.graph.entities[h], memorised.graph.relations[r], memorised.graph.entities[t]))
        for graph in memorised.graph.clients
        for h, r, t in graph.to_global(graph.train)
    }
    for victim, rows in scores.groupby("victim"):
        inside = rows["trained"].to_numpy(dtype=bool)
        values = rows["statistic"].to_numpy()
        figure = next(
            one for one in found if (one.metric, one.victim, one.variant) == ("auc", victim, rows["by"].iloc[0])
        )
        members, controls = values[inside], values[~inside]
        assert figure.estimate.value == pytest.approx(
            mannwhitneyu(members, controls).statistic / len(members) / len(controls)
        )
        assert figure.estimate.value == max(
            one.estimate.value
            for one in found
            if (one.metric, one.victim) == ("auc", victim) and one.variant != STRONGEST
        )
        alarms = [(controls >= value).mean() for value in values]
        assert rows["false_alarms"].to_numpy() == pytest.approx(alarms)
        if victim == ALL:
            continue
        for row, own in zip(rows.itertuples(), inside, strict=True):
            assert ((victim, row.head, row.relation, row.tail) in trained) == own


def claimed(result: KgeResult, seed: int) -> KgeResult:
    """The run's models beside data that say of test triples, some at random, that they were trained on, and nothing else."""
    rng, clients = np.random.default_rng(seed), []
    for client in result.graph.clients:
        order = rng.permutation(np.unique(client.test, axis=0))
        cut = 2 * len(order) // 3
        clients.append(
            ClientGraph(client.name, client.entity_ids, client.relation_ids, order[:cut], client.valid, order[cut:])
        )
    return replace(result, graph=replace(result.graph, clients=tuple(clients)))


@pytest.mark.null("membership", "triples that no model saw, 12 draws: mean AUC .5")
def test_triples_that_no_model_saw_give_chance_whatever_is_said_of_them(graph: FederatedGraph) -> None:
    """Truth that was shuffled: over many of its draws the mean of each way is .5."""
    whole = generate_consortium(clients=3, size=3000, seed=1)
    moved = []
    for client in whole.clients:  # more test triples, so that there are some to claim
        order = np.random.default_rng(0).permutation(len(client.train))
        left = client.train[order[: len(order) // 2]]
        missing = client.train[order[len(order) // 2 :]]
        moved.append(ClientGraph(client.name, client.entity_ids, client.relation_ids, left, client.valid, missing))
    result = run_federation(replace(whole, clients=tuple(moved)), SMALL)
    found: dict[str, list[float]] = {}
    for seed in range(12):
        for one in attack(claimed(result, seed), "models", seed=seed).figures:
            if (one.metric, one.victim) == ("auc", ALL) and one.variant != STRONGEST:
                found.setdefault(one.variant, []).append(one.estimate.value)
    assert len(found) == 6
    for way, values in found.items():
        error = np.std(values, ddof=1) / np.sqrt(len(values))
        assert error < 0.02, way
        assert abs(np.mean(values) - 0.5) < 3.5 * error, way


def test_noise_must_stop_it_in_all_that_crossed_and_sums_cannot() -> None:
    clear, noisy, sums = (
        attack(federation(defense)).figures for defense in ("", "dp:unit=row,clip=0.1,epsilon=5", "secagg")
    )
    for figures in (clear, sums):
        assert strongest(figures, "auc_shared").estimate.low > 0.5
        assert strongest(figures).estimate.low > 0.5
    assert strongest(sums).estimate.value == pytest.approx(strongest(clear).estimate.value, abs=0.03)
    assert {one.variant.split(",")[0] for one in sums if one.threat_model == "server+triples"} >= {"sum"}
    for metric, threat in (("auc_shared", "models"), ("auc", "client"), ("auc", "server+triples")):
        assert strongest(noisy, metric, threat=threat).estimate.low <= 0.5, (metric, threat)
    assert strongest(noisy).by is not None
    assert str(strongest(noisy).by).startswith("local")  # which no defense of messages is for


@pytest.mark.slow
def test_shadow_federations_sharpen_it_under_a_defense_too() -> None:
    for defense in ("", "secagg"):
        result = federation(defense, 3000)
        for knowledge in ("same-graph", "similar-graph"):
            made: list[str] = []

            def counting(graph: FederatedGraph, options: KgeOptions, **how: object) -> KgeResult:
                made.append(graph.hash)  # noqa: B023
                return train(graph, options, **how)  # type: ignore[arg-type]

            options = KgeAttackOptions(attack=("membership",), shadows=4, shadow_knowledge=knowledge)
            found = run_attacks(result, options, train=counting).figures
            assert len(made) == len(set(made)) == 4  # the adversaries share them
            own = {one.variant: one.estimate for one in found if (one.metric, one.victim) == ("auc", ALL)}
            if knowledge == "same-graph":
                assert {one.partition(", ")[2] for one in own} >= {*FREE, *OF_SHADOWS}
                for model in ("local", "global"):
                    for way in ("lira, same graph", "lira-linear, same graph", "rmia, same graph"):
                        assert own[f"{model}, {way}"].value > own[f"{model}, loss"].value
                for threat in ("models", "server+triples"):
                    assert "same graph" in str(strongest(found, threat=threat).by)
            else:
                assert {one.rpartition(", ")[2] for one in own} >= {"similar graph"}


@pytest.mark.slow
def test_shadows_find_nothing_in_models_that_saw_none() -> None:
    result = federation(size=3000)
    found: dict[str, list[float]] = {}
    for seed in range(6):
        for one in attack(claimed(result, seed), "models", seed=seed, shadows=4).figures:
            if (one.metric, one.victim) == ("auc", ALL) and one.variant != STRONGEST:
                found.setdefault(one.variant, []).append(one.estimate.value)
    assert len(found) == 14
    for way, values in found.items():
        error = np.std(values, ddof=1) / np.sqrt(len(values))
        assert abs(np.mean(values) - 0.5) < max(4 * error, 0.03), way


def test_without_never_seen_triples_there_is_nothing_to_compare_with(memorised: KgeResult) -> None:
    def without_test(client: ClientGraph) -> ClientGraph:
        none = np.empty((0, 3), dtype=np.int64)
        return ClientGraph(client.name, client.entity_ids, client.relation_ids, client.train, client.valid, none)

    graph = memorised.graph
    bare = replace(memorised, graph=replace(graph, clients=tuple(map(without_test, graph.clients))))
    for one in attack(bare).figures:
        assert one.reason == TOO_FEW


def test_needs_that_are_not_met_give_a_reason() -> None:
    result = federation()
    for threat in ("server", "collusion"):  # it is not run under another one than was asked for
        figures = attack(result, threat).figures
        assert {one.threat_model for one in figures} == {threat}
        (reason,) = {one.reason for one in figures}
        assert str(reason).startswith("it needs clients' models; or a client alone; or ")
    options = KgeAttackOptions(attack=("membership",), threat=("models",), shadows=4)
    defended = run_attacks(federation("secagg"), options).figures  # with no transport of the defense
    assert {one.reason for one in defended} == {
        "the run was defended: it can be trained again with that defense's transport alone"
    }
    elsewhere = run_attacks(replace(result, rounds=[]), options).figures
    assert {one.reason for one in elsewhere} == {
        "its tables were trained elsewhere: it cannot be trained again with an adversary in it"
    }


def test_relations_alone_are_no_broadcast_to_ask(trained_runs: dict[str, KgeResult]) -> None:
    for threat, reason in (
        ("client", "no entity embedding is broadcast"),
        ("server+triples", "none of its entity embeddings was transmitted"),
    ):
        figures = attack(trained_runs["fedr"], threat).figures
        assert {one.reason for one in figures} <= {reason, TOO_FEW}
        assert reason in {one.reason for one in figures}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"shadows": 3}, "shadows must be 0 or an even number from 4 on; got 3"),
        ({"shadows": 2}, "shadows must be 0 or an even number from 4 on; got 2"),
        ({"shadows": -4}, "shadows must be 0 or an even number from 4 on; got -4"),
        ({"shadows": 4, "shadow_knowledge": "all"}, "shadow_knowledge must be one of same-graph, similar-graph; got 'all'"),
        ({"shadow_knowledge": "similar-graph"}, "shadow_knowledge applies to shadow federations; set shadows, too"),
    ],
)  # fmt: skip
def test_settings_of_shadows(given: dict[str, object], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        KgeAttackOptions(**given)
