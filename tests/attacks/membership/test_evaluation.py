"""Made-up scores through the whole attack: signs of the ways, labels, what shadows saw, intervals, choice of the best."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.special import expit, logit
from sklearn.metrics import roc_auc_score

from fkgsec import FederatedGraph, KgeModel, KgeOptions, generate_consortium
from fkgsec.attacks.figure import STRONGEST, Figure
from fkgsec.attacks.kge.laboratory import KgeLaboratory
from fkgsec.attacks.kge.view import KgeView, VictimView
from fkgsec.attacks.membership import inference
from fkgsec.attacks.membership.audits import contains, to_local
from fkgsec.attacks.membership.evaluation import Group, group_figures
from fkgsec.attacks.membership.figures import placements
from fkgsec.attacks.membership.intervals import dyadic_auc, dyadic_tpr
from fkgsec.attacks.options import THREAT_MODELS, KgeAttackOptions
from fkgsec.attacks.registry import Truth
from fkgsec.estimate import critical_value


def truth_of(graph: FederatedGraph | None = None) -> Truth:
    """Of a run that needs no training: a model's holder attacks every client."""
    result = SimpleNamespace(options=KgeOptions(), graph=graph)
    victims = [client.name for client in graph.clients] if graph else []
    rng = np.random.default_rng(0)
    return Truth(inference.ATTACK, THREAT_MODELS["models"], 0, 0.0, [result], victims, ("",), KgeAttackOptions(), rng)


def group_of(seed: int, m: int = 160, c: int = 200, entities: int = 30) -> Group:
    """Scores of two ways that vary by entity, members and controls mixed in order; no entity stands in both."""
    rng = np.random.default_rng(seed)
    triples = rng.integers(0, entities, (m + c, 3))
    triples[:, 2] = (triples[:, 0] + rng.integers(1, entities, m + c)) % entities  # no loops
    member, liked = rng.permutation(m + c) < m, rng.normal(size=2 * entities)
    triples[:, [0, 2]] += entities * member[:, None]
    ways = {
        name: liked[triples[:, [0, 2]]].sum(axis=1) + rng.normal(size=m + c) + gain * member
        for name, gain in (("global, score", 3.0), ("global, loss", 1.0))
    }
    return Group("a", triples, member, ways, {name: rng.normal(size=m + c) for name in ("names", "degrees")})


def naive_deviation(members: np.ndarray, controls: np.ndarray, ends: np.ndarray) -> float:
    """Of an AUC: products of the influences of all two triples that share an entity, one by one."""
    placed = placements(members, controls)
    influence = np.concatenate([(one - placed.members.mean()) / len(one) for one in (placed.members, placed.controls)])
    sharing = [[bool({*one} & {*other}) for other in ends.tolist()] for one in ends.tolist()]
    return float(np.sqrt(influence @ np.array(sharing) @ influence))


def test_auc_counts_that_heads_and_tails_are_shared_and_that_the_best_was_chosen() -> None:
    for seed in range(3):
        group = group_of(seed)
        figures = {one.variant: one for one in group_figures(truth_of(), group) if one.metric == "auc"}
        for variant, compared in (("global, score", 1), ("global, loss", 1), (STRONGEST, 4)):  # two ways, two guesses
            values = group.ways[variant if compared == 1 else "global, score"]
            members, controls = values[group.member], values[~group.member]
            ends = np.concatenate([group.triples[group.member], group.triples[~group.member]])[:, [0, 2]]
            auc, found = roc_auc_score(group.member, values), figures[variant].estimate
            half = critical_value(compared) * naive_deviation(members, controls, ends) / (auc * (1 - auc))
            assert found.value == pytest.approx(auc)
            assert (found.low, found.high) == pytest.approx((expit(logit(auc) - half), expit(logit(auc) + half)))
            assert found == dyadic_auc(members, controls, ends, compared=compared)
        assert (figures[STRONGEST].by, figures[STRONGEST].compared) == ("global, score", 4)


@pytest.mark.parametrize("metric", ["auc", "tpr@0.01", "advantage", "auc_shared", "tpr@0.01_shared"])
def test_every_figure_of_the_strongest_is_wider_than_the_way_that_it_is(metric: str) -> None:
    figures = {one.variant: one for one in group_figures(truth_of(), group_of(4)) if one.metric == metric}
    strongest = figures[STRONGEST]
    own = figures[str(strongest.by)].estimate
    assert strongest.compared > 1
    assert strongest.estimate.value == own.value
    assert strongest.estimate.low < own.low < own.high < strongest.estimate.high


def test_tpr_counts_shared_entities_of_members_and_of_controls() -> None:
    group = group_of(5, m=300, c=400)
    members, controls = group.parts(group.ways["global, score"])
    apart = np.arange(2 * len(group.member)).reshape(-1, 2)
    of_members, of_controls = apart.copy(), apart.copy()
    of_members[np.argsort(members), 0] = np.arange(300) // 30  # thirty of one head are scored alike
    of_controls[300 + np.argsort(controls), 1] = np.arange(400) // 40
    for max_fpr in (0.01, 0.1):
        alone = dyadic_tpr(members, controls, apart, max_fpr)
        for shared in (of_members, of_controls):
            found = dyadic_tpr(members, controls, shared, max_fpr)
            assert found.high - found.low > 1.1 * (alone.high - alone.low)
    made = next(one for one in group_figures(truth_of(), group) if one.metric == "tpr@0.01")
    assert made.estimate == dyadic_tpr(members, controls, group.ends, 0.01)


@dataclass(frozen=True)
class Planted:
    """Stands for rows: what a model of this graph would say if training on a triple raised it by 4, over its difficulty."""

    graph: FederatedGraph
    victim: str
    seed: int

    def signals(self, named: np.ndarray, temperature: float | None = None) -> dict[str, np.ndarray]:
        client = next(one for one in self.graph.clients if one.name == self.victim)
        ids = [{name: number for number, name in enumerate(one)} for one in (self.graph.entities, self.graph.relations)]
        numbers = [[ids[column == 1][name] for column, name in enumerate(triple)] for triple in named]
        triples = to_local(self.graph, client, np.array(numbers))
        rng = np.random.default_rng(self.seed)
        difficulty = np.sin(12.9898 * triples @ [1.0, 2.0, 3.0])  # the same in every model
        scores = 3 * difficulty + 4 * contains(client.train, triples) + rng.normal(0, 0.3, len(triples))
        losses = np.logaddexp(0, -scores)
        found = {"score": scores, "log_probability": -losses, "log_rank": np.log1p(np.exp(3 - scores))}
        return found if temperature is None else found | {"loss": losses}


@pytest.fixture(scope="module")
def whole() -> list[Figure]:
    """All figures of a run of which every model knows what it was trained on."""
    graph = generate_consortium(clients=3, size=1500, seed=1)
    truth = truth_of(graph)
    made: list[FederatedGraph] = []

    def train(shadow: FederatedGraph, options: object) -> FederatedGraph:
        made.append(shadow)
        return shadow

    victims = tuple(VictimView(client.name, None, None, None, "") for client in graph.clients)
    view = KgeView(threat_model=truth.threat_model, round=0, victims=victims, model=KgeModel("transe", 8))
    result = SimpleNamespace(
        options=KgeOptions(),
        graph=graph,
        rounds=[SimpleNamespace(round=1)],
        protection=SimpleNamespace(guarantees={}),
        transcript=SimpleNamespace(entries=[]),
    )
    laboratory = KgeLaboratory(result, train, KgeAttackOptions(shadows=4), [], lambda _: replace(view))
    with pytest.MonkeyPatch.context() as patch:
        # What is held of a shadow comes of the graph that was trained on last.
        patch.setattr(
            inference,
            "scoring_models",
            lambda asked, victim: {
                "global": Planted(graph, victim.name, 99)
                if asked is view
                else Planted(made[-1], victim.name, len(made))
            },
        )
        claims = inference.claim(view, laboratory, np.random.default_rng(0))
    return inference.score(claims, truth)


def test_every_way_takes_members_for_members(whole: list[Figure]) -> None:
    """With its sign swapped, its labels or what its shadows saw, a way falls below chance or to that of the score."""
    aucs = {
        one.variant.removeprefix("global, ").removesuffix(", same graph"): one.estimate.value
        for one in whole
        if (one.metric, one.victim) == ("auc", "all") and one.variant != STRONGEST
    }
    assert {*aucs} == {"score", "loss", "rank", "calibrated", "lira", "lira-linear", "rmia"}
    for way in ("score", "loss", "rank"):
        assert 0.8 < aucs[way] < 0.97, way
    for way in ("calibrated", "lira", "lira-linear", "rmia"):
        assert aucs[way] > 0.99, (way, aucs[way])


def test_the_strongest_is_chosen_among_all_ways_and_guesses(whole: list[Figure]) -> None:
    for one in whole:
        if one.variant == STRONGEST and one.metric in ("auc", "tpr@0.01") and not one.reason:
            assert one.compared == 7 + 2
            assert one.estimate.method.endswith(", best of 9")


def test_calibration_leaves_out_shadows_that_saw_the_triple() -> None:
    """A triple that shadows score 4 when in and 0 when out, and the model 1, lies 1 above, whichever shadows it was in."""
    inside = np.array([[True, False], [False, True], [True, False], [False, True]])
    scores = np.where(inside, 4.0, 0.0) + np.array([[0.1], [0.1], [-0.1], [-0.1]])
    own = {"score": np.ones(2), **dict.fromkeys(("log_probability", "log_rank", "loss"), np.zeros(2))}
    shadows = [dict.fromkeys(("score", "log_probability", "log_rank"), values) for values in scores]
    ways = inference._ways(own, shadows, inside, "same-graph")
    assert ways["calibrated, same graph"] == pytest.approx([1.0, 1.0])
