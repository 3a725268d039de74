"""Success of planting false triples: their ranks in each victim's model, compared with false triples that nobody planted.

    figures = score_planted(Planted({"hospital-2": FalseTriples(planted, control)}, attacked), truth)

`hits@10`, `mrr`: filtered rank of the tail of planted triples, in the model that the victim predicts with, after a run with the
adversary. Only triples whose entities and relation the victim trains count. The baseline is the larger one of two: `control`,
false triples drawn in the same way that nobody planted, in the same model; `clean run`, the planted triples after the run of
the same seed without the adversary. For all victims together, a triple counts once per victim, as if these were independent.

Source: Ma et al. 2024 (WWW), who rank tails. Differs: the filter is the victim's own triples, as for its test triples; there
candidates exclude all heads and tails of the poison.
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
# Draws per false triple before giving up.
TRIALS = 50
HITS = f"hits@{WITHIN}"
METRICS = {
    HITS: f"planted false triples whose tail a victim ranks among the first {WITHIN}",
    "mrr": "mean reciprocal rank of the tail of planted false triples",
    **damage.METRICS,
}
ITEMS = {HITS: "planted triples", "mrr": "planted triples", **damage.ITEMS}


class FalseTriples(NamedTuple):
    """False triples to plant, and equally many controls that nobody plants: names, object `[k, 3]` each, without duplicates."""

    planted: np.ndarray
    control: np.ndarray


def draw_false(
    true_triples: np.ndarray, count: int, rng: np.random.Generator, entities: Collection[str] | None = None
) -> FalseTriples:
    """Draw false triples to plant and controls; fewer of both if there are not enough.

    A false triple has a head of the true triples, and a relation and a tail of theirs that the head has in none of them. A
    triple that is true at any client is not false: the evaluator removes it (`without_true`), since no adversary knows it.

    Source: Ma et al. 2024, "Poisoning Attack on Federated Knowledge Graph Embedding" (WWW), and its code (FKGEPoison), which
    draw relation and tail among those of one victim's triples, different from those of one triple of the head. Differs:
    different from those of all its triples.

    Args:
        true_triples: triples of names that the adversary knows, object `[n, 3]`.
        count: number of triples to plant.
        rng: draws heads, relations and tails.
        entities: entities among which heads and tails are drawn; None: all.
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
        # Neither a relation of the head nor one of its tails: plainly false, as far as the adversary knows.
        if relation not in relations[head] and tail not in tails[head]:
            # A dictionary removes duplicates and keeps the order of the draws.
            drawn[head, relation, tail] = None
        if len(drawn) == 2 * count:
            break
    listed = np.array(list(drawn), dtype=object).reshape(-1, 3)
    half = len(listed) // 2
    return FalseTriples(listed[:half], listed[half : 2 * half])


def without_true(truth: Truth, plans: Mapping[str, FalseTriples]) -> dict[str, FalseTriples]:
    """Remove triples that occur in some split of some client from each victim's plan.

    Args:
        plans: false triples by victim.
    """
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
    """Select triples whose entities and relation a client trains.

    Args:
        triples: names, object `[n, 3]`.

    Returns:
        The triples in its local IDs, int64 `[k, 3]`.
    """
    client_graph, graph = truth.unshuffled(client), truth.graph
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
    """Return the first of the run's last `attack_rounds` rounds; 0 if these are all."""
    last, attack_rounds = laboratory.last_round, laboratory.options.attack_rounds
    return max(0, last - attack_rounds + 1) if attack_rounds is not None and attack_rounds < last else 0


class Attacked(NamedTuple):
    """The runs with an adversary.

    Attributes:
        runs: index of the run by variant, see `View.run`.
        acts: first round in which the adversary deviates, by variant.
        begins: first round in which its hooks are called.
    """

    runs: Mapping[str, int]
    acts: Mapping[str, int]
    begins: int


class Planted(NamedTuple):
    """False triples that were planted.

    Attributes:
        triples: triples of names, by victim.
        attacked: the runs with the adversary.
        adversaries: clients that it controls.
    """

    triples: Mapping[str, FalseTriples]
    attacked: Attacked
    adversaries: tuple[str, ...] = ()


def train_with(laboratory: Laboratory, make: Mapping[str, Callable[[], Adversary]], begins: int) -> Attacked:
    """Train the run once more with each of these adversaries.

    Args:
        make: builds the adversary of each variant.
        begins: first round in which they act.
    """
    runs, acts = {}, {}
    for way, make_adversary in make.items():
        adversary = make_adversary()
        view = laboratory.train(adversary)
        runs[way], acts[way] = view.run, adversary.acts
        # The run ended before the adversary acted; further variants would end in the same way.
        if view.round < adversary.acts:
            break
    return Attacked(runs, acts, begins)


def results_of(truth: Truth, attacked: Attacked) -> dict[str, KgeResult]:
    """Look up the runs by variant.

    Args:
        truth: evaluator's knowledge.
        attacked: the runs with the adversary.

    Raises:
        NotAttacked: a run ended before its adversary acted.
    """
    results = {way: truth.runs[number] for way, number in attacked.runs.items()}
    for way, result in results.items():
        if result.best_round < attacked.acts[way]:
            raise NotAttacked(
                f"the run ended in round {result.rounds[-1].round}, before round {attacked.acts[way]}, in which the adversary "
                f"begins ({way})"
            )
    return results


def late(attacked: Mapping[str, KgeResult], begins: int) -> str | None:
    """Remark on an adversary that begins late: since when it acts, and where validation would not keep its effect.

    Args:
        attacked: run with the adversary, by variant.
        begins: its first round; 0: it acts in all rounds, and there is no remark.
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
    """Rank the planted triples with each victim's model, and measure the damage.

    Args:
        claims: planted triples and the attacked runs.

    Returns:
        Figures of every victim and of all together.
    """
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
        # Baseline 1: the same triples in the run without the adversary. Baseline 2: controls in the attacked run.
        rank_of["clean run"] = tail_ranks(truth.result, place, planted)
        for way, run in attacked.items():
            rank_of[f"control, {way}"] = tail_ranks(run, place, control)
        ranks.append(rank_of)
        figures += _figures(truth, victim, rank_of, list(attacked), remark)
    if ranks:
        # A planted triple is tried once per victim that can express it.
        together = {name: np.concatenate([rank[name] for rank in ranks]) for name in ranks[0]}
        figures += _figures(truth, ALL, together, list(attacked), remark, num_attacked=len(ranks))
    return figures + damage.damage(truth, attacked, claims.adversaries, remark)


def tail_ranks(result: KgeResult, place: int, triples: np.ndarray) -> np.ndarray:
    """Return the filtered ranks of tails in the model that a client predicts with.

    Args:
        triples: int `[n, 3]`, in its local IDs.

    Returns:
        float64 `[n]`, from 1.
    """
    # The model that the client predicts with.
    stage = "trained" if result.options.evaluates_before_broadcast else "tables"
    model, tables = result.predictor("private" if result.private else stage, place)
    client = result.graph.clients[place]
    # Filter as for the victim's own test triples.
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
    """Compute the figures of both metrics from the ranks of each variant, of the clean run, and of each variant's control."""
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
