"""Success of planting false triples: their ranks in each victim's model, beside false triples that nobody planted.

    figures = score_planted(Planted({"hospital-2": FalseTriples(planted, control)}, attacked), truth)

`hits@10`, `mrr`: of the planted triples that a victim can be asked about (it trains their entities and relation), the filtered
rank of the tail in the model that it predicts with, after a run with the adversary in it. Two baselines, of which the larger is
shown: `control`, false triples drawn alike that nobody planted, in the same model; `clean run`, the planted ones after the run
of the same seed without the adversary. Of all together, a triple counts once for each victim that is asked, as if these were
independent.

Source: Ma et al. 2024 (WWW), who rank tails. Differs: the filter is the victim's own triples, as for its test triples; there
candidates are without all heads and tails of the poison.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import NamedTuple

import numpy as np

from fkgsec.attacks.figure import Figure
from fkgsec.attacks.laboratory import Laboratory
from fkgsec.attacks.poisoning import damage
from fkgsec.attacks.registry import Measure, Truth
from fkgsec.attacks.view import ALL, NotAttacked
from fkgsec.estimate import Estimate, exact, mean_of_shares, proportion
from fkgsec.federation.adversary import Adversary
from fkgsec.kge.negatives import KnownTriples
from fkgsec.kge.ranking import filtered_ranks
from fkgsec.kge.result import KgeResult
from fkgsec.randomness import generator

WITHIN = 10
TRIALS = 50  # for each false triple that is wanted
HITS = f"hits@{WITHIN}"
METRICS = {
    HITS: f"planted false triples whose tail a victim ranks among the first {WITHIN}",
    "mrr": "mean reciprocal rank of the tail of planted false triples",
    **damage.METRICS,
}
ITEMS = {HITS: "planted triples", "mrr": "planted triples", **damage.ITEMS}


class FalseTriples(NamedTuple):
    """False triples to plant, and as many drawn alike that nobody plants: names, object `[k, 3]` each; none stands twice."""

    planted: np.ndarray
    control: np.ndarray


def draw_false(
    true_triples: np.ndarray, count: int, rng: np.random.Generator, entities: Collection[str] | None = None
) -> FalseTriples:
    """Draw so many false triples to plant and to compare with; fewer where there are not as many, half of them each.

    A false triple has a head of the true triples, and a relation and a tail of theirs that the head has in none of them. What is
    true at any client is none (`without_true`): the evaluator leaves it out, since no adversary knows it.

    Source: Ma et al. 2024, "Poisoning Attack on Federated Knowledge Graph Embedding" (WWW), and its code (FKGEPoison), which draw
    relation and tail among those of one victim's triples, unlike those of one of the head's. Differs: unlike those of all of its.

    Args:
        true_triples: of names, object `[n, 3]`, known to the adversary.
        entities: heads and tails are drawn among these; None: any of theirs.
    """
    relations: dict[str, set[str]] = {}
    tails: dict[str, set[str]] = {}
    for head, relation, tail in true_triples:
        relations.setdefault(head, set()).add(relation)
        tails.setdefault(head, {head}).add(tail)
    heads = [head for head in true_triples[:, 0] if entities is None or head in entities]
    kinds = sorted(set(true_triples[:, 1]))
    ends = sorted(tail for tail in set(true_triples[:, 2]) if entities is None or tail in entities)
    drawn: dict[tuple[str, str, str], None] = {}
    for _ in range(TRIALS * 2 * count if heads and ends else 0):
        head, relation, tail = (pool[int(rng.integers(len(pool)))] for pool in (heads, kinds, ends))
        if relation not in relations[head] and tail not in tails[head]:
            drawn[head, relation, tail] = None
        if len(drawn) == 2 * count:
            break
    listed = np.array(list(drawn), dtype=object).reshape(-1, 3)
    half = len(listed) // 2
    return FalseTriples(listed[:half], listed[half : 2 * half])


def without_true(truth: Truth, plans: Mapping[str, FalseTriples]) -> dict[str, FalseTriples]:
    """The plans of each victim without triples that stand in some split of some client."""
    graph = truth.graph
    true = {
        (graph.entities[head], graph.relations[relation], graph.entities[tail])
        for client in graph.clients
        for head, relation, tail in client.to_global(client.triples).tolist()
    }
    return {
        victim: FalseTriples(*(part[[tuple(triple) not in true for triple in part]] for part in plan))
        for victim, plan in plans.items()
    }


def held_by(truth: Truth, client: str, triples: np.ndarray) -> np.ndarray:
    """Triples of names whose entities and relation a client trains, in its local ids, int64 `[k, 3]`."""
    client_graph, graph = truth.own(client), truth.graph
    entity, relation = (
        {names[number]: local for local, number in enumerate(ids[:count].tolist())}
        for names, ids, count in (
            (graph.entities, client_graph.entity_ids, client_graph.num_trained_entities),
            (graph.relations, client_graph.relation_ids, client_graph.num_trained_relations),
        )
    )
    local = [
        (entity[head], relation[kind], entity[tail])
        for head, kind, tail in triples
        if head in entity and tail in entity and kind in relation
    ]
    return np.array(local, dtype=np.int64).reshape(-1, 3)


def first_round(laboratory: Laboratory) -> int:
    """The first of the run's last `attack_rounds` rounds, 0 where these are all."""
    last, attack_rounds = laboratory.last_round, laboratory.options.attack_rounds
    return max(0, last - attack_rounds + 1) if attack_rounds is not None and attack_rounds < last else 0


class Attacked(NamedTuple):
    """The runs with an adversary by way, see `View.run`, and the first round in which it acts in each; `begins`: its first."""

    runs: Mapping[str, int]
    acts: Mapping[str, int]
    begins: int


class Planted(NamedTuple):
    """False triples that were planted, of names by victim; the runs with the adversary; the clients that it controls."""

    triples: Mapping[str, FalseTriples]
    attacked: Attacked
    adversaries: tuple[str, ...] = ()


def train_with(laboratory: Laboratory, make: Mapping[str, Callable[[], Adversary]], begins: int) -> Attacked:
    """Train the run once more with each of these adversaries."""
    runs, acts = {}, {}
    for way, make_adversary in make.items():
        adversary = make_adversary()
        view = laboratory.train(adversary)
        runs[way], acts[way] = view.run, adversary.acts
        if view.round < adversary.acts:
            break
    return Attacked(runs, acts, begins)


def results_of(truth: Truth, attacked: Attacked) -> dict[str, KgeResult]:
    """The runs by way. Raises `NotAttacked` if one ended before its adversary acted."""
    results = {way: truth.runs[number] for way, number in attacked.runs.items()}
    for way, result in results.items():
        if result.best_round < attacked.acts[way]:
            raise NotAttacked(
                f"the run ended in round {result.rounds[-1].round}, before round {attacked.acts[way]}, in which the adversary "
                f"begins ({way})"
            )
    return results


def late(attacked: Mapping[str, KgeResult], begins: int) -> str | None:
    """Remark on an adversary that begins in this round: since when it acts, and where validation would not keep that.

    None for one that acts in all rounds.
    """
    if not begins:
        return None
    foiled = []
    for way, view in attacked.items():
        checked = [entry for entry in view.rounds if entry.valid is not None]
        best = max(checked, key=lambda entry: entry.valid or 0.0, default=None)
        if best is not None and best.round < begins:
            foiled.append(f"round {best.round} ({way})")
    return "; ".join([f"from round {begins} on", *([f"validation would keep {', '.join(foiled)}"] if foiled else [])])


def score_planted(claims: Planted, truth: Truth) -> list[Figure]:
    """Rank the planted triples that are false with each victim's model: figures of every victim and of all, and the damage."""
    attacked = results_of(truth, claims.attacked)
    remark = late(attacked, claims.attacked.begins)
    figures: list[Figure] = []
    ranks: list[dict[str, np.ndarray]] = []
    for victim, plan in without_true(truth, claims.triples).items():
        planted, control = (held_by(truth, victim, part) for part in plan)
        if not (len(planted) and len(control)):
            reason = "no planted triple is of entities and a relation that it trains"
            figures += truth.not_attacked(victim, reason, [HITS, "mrr"])
            continue
        place = truth.index(victim)
        rank_of = {way: tail_ranks(run, place, planted) for way, run in attacked.items()}
        rank_of["clean run"] = tail_ranks(truth.result, place, planted)
        for way, run in attacked.items():
            rank_of[f"control, {way}"] = tail_ranks(run, place, control)
        ranks.append(rank_of)
        figures += _figures(truth, victim, rank_of, list(attacked), remark)
    if ranks:
        together = {name: np.concatenate([rank[name] for rank in ranks]) for name in ranks[0]}
        figures += _figures(truth, ALL, together, list(attacked), remark, num_attacked=len(ranks))
    return figures + damage.damage(truth, attacked, claims.adversaries, remark)


def tail_ranks(result: KgeResult, place: int, triples: np.ndarray) -> np.ndarray:
    """Filtered ranks of tails in what a client predicts with, float64 `[n]`; triples in its local ids."""
    stage = "trained" if result.options.evaluates_before_broadcast else "tables"
    model, tables = result.predictor("private" if result.private else stage, place)
    client = result.graph.clients[place]
    true_tails = KnownTriples.build(client.triples, "tail", client.num_relations)
    return filtered_ranks(model, tables.entities, tables.relations, triples, [true_tails])[:, 0]


def _figures(
    truth: Truth,
    victim: str,
    ranks: Mapping[str, np.ndarray],
    ways: list[str],
    remark: str | None,
    num_attacked: int = 1,
) -> list[Figure]:
    """Figures of both metrics; `ranks` by variant, of the clean run, and of controls by variant."""
    guesses = {name: ranks[name] for name in ranks if name not in ways}
    hits: dict[str, Measure] = {way: partial(_within, ranks[way]) for way in ways}
    reciprocal: dict[str, Measure] = {
        way: partial(mean_of_shares, 1 / ranks[way], generator(truth.seed, "planted", victim, way)) for way in ways
    }
    shared = {"attainable": 1.0, "num_attacked": num_attacked, "remark": remark}
    means = {name: exact(float((1 / of_guess).mean()), len(of_guess)) for name, of_guess in guesses.items()}
    return [
        *truth.figures(HITS, victim, hits, {name: _within(of_guess) for name, of_guess in guesses.items()}, **shared),
        *truth.figures("mrr", victim, reciprocal, means, **shared),
    ]


def _within(ranks: np.ndarray, compared: int = 1) -> Estimate:
    return proportion(int((ranks <= WITHIN).sum()), len(ranks), compared=compared)
