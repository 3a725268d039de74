"""Whether false triples that were planted are believed: ranks in each victim's model, beside false triples that nobody planted.

    plans = {"hospital-2": FalseTriples(planted, control)}
    figures = planted_figures(truth, plans, {"plain": attacked}, ["hospital-1"])

`hits@10`, `mrr`: of the planted triples that a victim can be asked about (it trains their entities and relation), the filtered
rank of the tail in the model that it predicts with, after a run with the adversary in it. Two baselines, of which the larger is
shown: `control`, false triples drawn alike that nobody planted, in the same model; `clean run`, the planted ones after the run
of the same seed without the adversary. Of all together, a triple counts once for each victim that is asked, as if these were
independent.

Source: Ma et al. 2024 (WWW), who rank tails. Differs: the filter is the victim's own triples, as for its test triples; there
candidates are without all heads and tails of the poison.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from fkgsec.attacks.figure import Figure
from fkgsec.attacks.laboratory import Laboratory
from fkgsec.attacks.poisoning import damage
from fkgsec.attacks.poisoning.false_triples import FalseTriples, held_by, without_true
from fkgsec.attacks.registry import Truth
from fkgsec.attacks.uploads.ways import Measure, by_ways
from fkgsec.attacks.view import ALL
from fkgsec.errors import TrainingError
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


def first_round(laboratory: Laboratory, attack_rounds: int | None) -> int:
    """The first of the run's last so many rounds, 0 where these are all."""
    last = laboratory.last_round
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


def train_with(laboratory: Laboratory, make: Mapping[str, Callable[[], Adversary]], begins: int) -> Attacked | str:
    """Train the run once more with each of these adversaries; why not, where training broke down."""
    runs, acts = {}, {}
    for way, one in make.items():
        adversary = one()
        try:
            view = laboratory.train(adversary)
        except TrainingError as error:
            return f"the run broke down with the adversary in it ({way}): {error}"
        runs[way], acts[way] = view.run, adversary.acts
        if view.round < adversary.acts:
            break
    return Attacked(runs, acts, begins)


def results_of(truth: Truth, attacked: Attacked) -> dict[str, KgeResult] | str:
    """The runs by way; the reason where one ended before its adversary acted."""
    found = {way: truth.runs[number] for way, number in attacked.runs.items()}
    for way, one in found.items():
        if one.best_round < attacked.acts[way]:
            return (
                f"the run ended in round {one.rounds[-1].round}, before round {attacked.acts[way]}, in which the adversary "
                f"begins ({way})"
            )
    return found


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


def score_planted(claims: Planted | str, truth: Truth) -> list[Figure]:
    """Rank the planted triples that are false with each victim's model; a reason in place of claims is not attacked."""
    results = claims if isinstance(claims, str) else results_of(truth, claims.attacked)
    if isinstance(claims, str) or isinstance(results, str):
        return [figure for victim in truth.victims for figure in truth.not_attacked(victim, str(results))]
    false = without_true(truth, claims.triples)
    return planted_figures(truth, false, results, claims.adversaries, claims.attacked.begins)


def planted_figures(
    truth: Truth,
    plans: Mapping[str, FalseTriples],
    attacked: Mapping[str, KgeResult],
    adversaries: Sequence[str] = (),
    begins: int = 0,
) -> list[Figure]:
    """Figures of every victim and of all, and of the damage.

    Args:
        plans: by victim its false triples. attacked: by variant the run with the adversary. adversaries: the clients among them.
        begins: the first of its rounds, see `first_round`.
    """
    remark = late(attacked, begins)
    places = {client.name: place for place, client in enumerate(truth.graph.clients)}
    figures: list[Figure] = []
    ranks: list[dict[str, np.ndarray]] = []
    for victim, plan in plans.items():
        planted, control = (held_by(truth, victim, part) for part in plan)
        if not (len(planted) and len(control)):
            reason = "no planted triple is of entities and a relation that it trains"
            figures += [one for one in truth.not_attacked(victim, reason) if one.metric in (HITS, "mrr")]
            continue
        place = places[victim]
        own = {way: tail_ranks(one, place, planted) for way, one in attacked.items()}
        own["clean run"] = tail_ranks(truth.result, place, planted)
        for way, one in attacked.items():
            own[f"control, {way}"] = tail_ranks(one, place, control)
        ranks.append(own)
        figures += _figures(truth, victim, own, list(attacked), remark)
    if ranks:
        together = {name: np.concatenate([own[name] for own in ranks]) for name in ranks[0]}
        figures += _figures(truth, ALL, together, list(attacked), remark, num_attacked=len(ranks))
    return figures + damage.damage(truth, attacked, adversaries, remark)


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
        way: partial(_mean, values=1 / ranks[way], rng=generator(truth.seed, "planted", victim, way)) for way in ways
    }
    shared = {"attainable": 1.0, "num_attacked": num_attacked, "remark": remark}
    return [
        *by_ways(truth, HITS, victim, hits, {name: _within(one) for name, one in guesses.items()}, **shared),
        *by_ways(
            truth, "mrr", victim, reciprocal,
            {name: exact(float((1 / one).mean()), len(one)) for name, one in guesses.items()}, **shared,
        ),
    ]  # fmt: skip


def _mean(compared: int, values: np.ndarray, rng: np.random.Generator) -> Estimate:
    return mean_of_shares(values, rng, compared)


def _within(ranks: np.ndarray, compared: int = 1) -> Estimate:
    return proportion(int((ranks <= WITHIN).sum()), len(ranks), compared=compared)
