"""Whether false triples that were planted are believed: ranks in each victim's model, beside false triples that nobody planted.

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

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import numpy as np

from fkgsec.attacks.figure import Figure
from fkgsec.attacks.laboratory import Laboratory
from fkgsec.attacks.poisoning import damage
from fkgsec.attacks.poisoning.false_triples import FalseTriples, held_by, without_true
from fkgsec.attacks.registry import Measure, Truth
from fkgsec.attacks.view import ALL, NotAttacked
from fkgsec.estimate import Estimate, exact, mean_of_shares, proportion
from fkgsec.federation.adversary import Adversary
from fkgsec.kge.negatives import KnownTriples
from fkgsec.kge.ranking import filtered_ranks
from fkgsec.kge.result import KgeResult
from fkgsec.randomness import generator

WITHIN = 10
HITS = f"hits@{WITHIN}"
METRICS = {
    HITS: f"planted false triples whose tail a victim ranks among the first {WITHIN}",
    "mrr": "mean reciprocal rank of the tail of planted false triples",
    **damage.METRICS,
}
ITEMS = {HITS: "planted triples", "mrr": "planted triples", **damage.ITEMS}


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
    """By victim the false triples that were planted, of names; the runs with the adversary; the clients that it controls."""

    triples: Mapping[str, FalseTriples]
    attacked: Attacked
    adversaries: tuple[str, ...] = ()


def train_with(laboratory: Laboratory, make: Mapping[str, Callable[[], Adversary]], begins: int) -> Attacked:
    """Train the run once more with each of these adversaries."""
    runs, acts = {}, {}
    for way, one in make.items():
        adversary = one()
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
    """What is to be said of an adversary that begins in this round: since when it acts, and where validation would not keep that.

    None for one that acts in all rounds.
    """
    if not begins:
        return None
    foiled = []
    for way, one in attacked.items():
        checked = [entry for entry in one.rounds if entry.valid is not None]
        best = max(checked, key=lambda entry: entry.valid or 0.0, default=None)
        if best is not None and best.round < begins:
            foiled.append(f"round {best.round} ({way})")
    return "; ".join([f"from round {begins} on", *([f"validation would keep {', '.join(foiled)}"] if foiled else [])])


def score_planted(claims: Planted, truth: Truth) -> list[Figure]:
    """Rank the planted triples that are false with each victim's model: figures of every victim and of all, and the damage."""
    try:
        attacked = results_of(truth, claims.attacked)
    except NotAttacked as reason:
        return [figure for victim in truth.victims for figure in truth.not_attacked(victim, reason)]
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
        own = {way: tail_ranks(run, place, planted) for way, run in attacked.items()}
        own["clean run"] = tail_ranks(truth.result, place, planted)
        for way, run in attacked.items():
            own[f"control, {way}"] = tail_ranks(run, place, control)
        ranks.append(own)
        figures += _figures(truth, victim, own, list(attacked), remark)
    if ranks:
        together = {name: np.concatenate([own[name] for own in ranks]) for name in ranks[0]}
        figures += _figures(truth, ALL, together, list(attacked), remark, num_attacked=len(ranks))
    return figures + damage.damage(truth, attacked, claims.adversaries, remark)


def tail_ranks(result: KgeResult, place: int, triples: np.ndarray) -> np.ndarray:
    """Filtered ranks of tails in what a client predicts with, float64 `[n]`; triples in its local ids."""
    own = "trained" if result.options.evaluates_before_broadcast else "tables"
    model, tables = result.predictor("private" if result.private else own, place)
    client = result.graph.clients[place]
    known = KnownTriples.build(client.triples, "tail", client.num_relations)
    return filtered_ranks(model, tables.entities, tables.relations, triples, [known])[:, 0]


def _figures(
    truth: Truth,
    victim: str,
    ranks: Mapping[str, np.ndarray],
    ways: list[str],
    remark: str | None,
    num_attacked: int = 1,
) -> list[Figure]:
    """Of the two metrics; `ranks` by variant, of the clean run, and of controls by variant."""
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
