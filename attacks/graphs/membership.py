"""Which graphs did a client train on? Asked of the models that it is left with, or of what it uploaded.

    options = GraphAttackOptions(attack=("graph-membership",), threat=("models+graphs",), shadows=16)
    for one in run_attacks(result, options).figures:
        print(one.victim, one.variant, one.metric, one.estimate)        # MUTAG  local, lira  auc  0.61 [0.42, 0.77]

A candidate (`fkgsec.attacks.graphs.candidates`) that a model knows well is taken for one that the client trained on.

- "models", "models+graphs": the models that clients are left with, "global" and "local". By their loss; with graphs also less the
  loss of a federation that trained on none of the candidates ("calibrated"); with shadow federations
  (`fkgsec.attacks.graphs.shadows`) by "lira", from 32 on also by "lira offline" (with fewer, that is "calibrated").
- "server", "server+graphs", "collusion": the upload of a victim, or what a sum of uploads opened to. By its loss, and less the
  loss of the broadcast that it was trained from; by how well its gradient there goes along the update ("alignment"), and along
  CEFGL's h where that crosses ("correction"), which is a mean gradient of the client's graphs (cefgl.txt Remark 2).
- "client": what the last broadcast left the colluder with. By its loss.

Uploads are seldom a whole network: a client's first and last layers are its own. A colluder of the same data set puts its own in
their place; who has graphs of the data set trains some on these, with the uploaded layers as they are; the server alone can tell
nothing unless all layers cross.

Source: Yeom et al. 2018 (loss), Watson et al. 2022 (calibrated), Carlini et al. 2022 (lira); for graph networks Wu et al. 2021
(TrustworthyGNN/MIA-GNN), who hold one model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from fkgsec.attacks.figure import NOT_ATTACKED, Figure
from fkgsec.attacks.graphs.candidates import draw_candidates
from fkgsec.attacks.graphs.models import GraphModel, parameter_names, train_layers
from fkgsec.attacks.graphs.shadows import train_reference, train_shadows
from fkgsec.attacks.graphs.view import PARAMETERS, GraphVictim, GraphView, Tensors
from fkgsec.attacks.laboratory import Laboratory
from fkgsec.attacks.membership.evaluation import METRICS, measures
from fkgsec.attacks.membership.figures import measure_membership
from fkgsec.attacks.membership.statistics import Variance, calibrated, likelihood_ratio, loss_threshold
from fkgsec.attacks.options import GRAPH, MODELS, GraphAttackOptions
from fkgsec.attacks.registry import Attack, Needs, Truth
from fkgsec.attacks.view import ALL
from fkgsec.estimate import exact
from fkgsec.graphs.sets import GraphSet
from fkgsec.randomness import generator

NAME = "graph-membership"
OWN_VARIANCE = 32  # shadows, from which on each candidate has a variance of its own
NO_LAYERS = "its first and last layers do not cross, and there are no graphs of its data set to train others on"
Scores = Mapping[str, np.ndarray]


def claim(
    view: GraphView, laboratory: Laboratory, rng: np.random.Generator, *, num_shadows: int
) -> dict[str, Scores | str]:
    """By victim and way of telling the score of each candidate, float64 `[n]`, larger for those taken for members; or why none.

    Args:
        num_shadows: federations that the adversary trains, where it has graphs to train them on.
    """
    if view.threat_model.models:
        return _of_models(view, laboratory, rng, num_shadows if view.threat_model.auxiliary else 0)
    return {
        victim.name: _of_shared(view, victim, victim.candidates, rng)
        for victim in view.victims
        if victim.candidates is not None
    }


def _of_models(
    view: GraphView, laboratory: Laboratory, rng: np.random.Generator, num_shadows: int
) -> dict[str, Scores | str]:
    """Of the models that clients are left with."""
    shadows = train_shadows(view, laboratory, num_shadows, rng) if num_shadows else None
    reference = train_reference(view, laboratory, rng) if view.threat_model.auxiliary and not shadows else {}
    found: dict[str, Scores | str] = {}
    for victim in view.victims:
        if victim.candidates is None:
            continue
        scores: dict[str, np.ndarray] = {}
        for name, model in victim.models.items():
            losses = model.losses(victim.candidates)
            scores[f"{name}, loss"] = loss_threshold(losses)
            if shadows and victim.name in shadows.inside:
                own, others = model.logits(victim.candidates), shadows.logits[victim.name][name]
                inside = shadows.inside[victim.name]
                scores[f"{name}, calibrated"] = calibrated(own, others, inside)
                alone = num_shadows >= OWN_VARIANCE
                variance: Variance = "per_triple" if alone else "pooled"
                scores[f"{name}, lira"] = likelihood_ratio(own, others, inside, variance=variance)
                if alone:  # with one variance for all, the order is that of "calibrated"
                    scores[f"{name}, lira offline"] = likelihood_ratio(
                        own, others, inside, mode="offline", variance=variance
                    )
            elif victim.name in reference:
                scores[f"{name}, calibrated"] = reference[victim.name][name].losses(victim.candidates) - losses
        found[victim.name] = scores
    return found


def _of_shared(view: GraphView, victim: GraphVictim, asked: GraphSet, rng: np.random.Generator) -> Scores | str:
    """Of the shared parameters that the adversary saw, made whole with layers of its own."""
    shared: Tensors | None
    before: Tensors | None = None
    if not view.threat_model.server:
        assert view.colluder is not None
        name, shared = "broadcast", view.colluder.received
    elif victim.summed and view.summed is not None:
        name, shared, before = "sum", view.summed.mean, victim.broadcast
    elif reason := victim.why_none(PARAMETERS):
        return reason
    else:
        name, shared, before = "upload", victim.upload, victim.broadcast
    assert shared is not None
    layers = _layers(view, victim, shared, rng)
    if layers is None:
        return NO_LAYERS
    losses = GraphModel(view.settings, {**layers, **shared}).losses(asked)
    scores = {f"{name}, loss": loss_threshold(losses)}
    if before is not None:
        model = GraphModel(view.settings, {**layers, **before})
        scores[f"{name}, calibrated"] = model.losses(asked) - losses
        scores[f"{name}, alignment"] = model.alignment(asked, {one: before[one] - shared[one] for one in shared})
        if victim.correction is not None:
            scores["correction, alignment"] = model.alignment(asked, victim.correction)
    return scores


def _layers(view: GraphView, victim: GraphVictim, shared: Tensors, rng: np.random.Generator) -> Tensors | None:
    """What makes shared parameters a whole network for graphs of the victim's data set; None where nothing can."""
    assert victim.candidates is not None
    lacking = [name for name in parameter_names(view.settings, victim.candidates) if name not in shared]
    if not lacking:
        return {}
    if view.colluder is not None and view.colluder.data_set == victim.data_set:
        return {name: view.colluder.model.parameters[name] for name in lacking}
    if victim.auxiliary is None:
        return None
    return train_layers(view.settings, shared, victim.auxiliary, seed=int(rng.integers(2**31)))


def score(claims: Mapping[str, Scores | str], truth: Truth) -> list[Figure]:
    """AUC, members found at few false alarms, and advantage, of each victim by each way of telling, and of all together.

    Of all together a candidate goes by its share of ranks among those of its client, since losses of models differ.
    """
    figures: list[Figure] = []
    parts: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
    for place, client in enumerate(truth.graph.clients):
        scores = claims.get(client.name)
        if scores is None:
            continue
        if isinstance(scores, str):
            figures += truth.not_attacked(client.name, scores)
            continue
        asked = draw_candidates(truth.graph, place, truth.seed)
        assert asked is not None  # its victim had candidates
        for variant, of_variant in scores.items():
            figures += _figures(truth, client.name, variant, of_variant, asked.member)
            parts.setdefault(variant, []).append((_ranks(of_variant), asked.member))
    for variant, of_all in parts.items():
        together, member = (np.concatenate(one) for one in zip(*of_all, strict=True))
        figures += _figures(truth, ALL, variant, together, member, num_attacked=len(of_all))
    return figures


def _ranks(scores: np.ndarray) -> np.ndarray:
    """Share of the scores that are below each, ties half."""
    return (scores[:, None] > scores).mean(axis=1) + (scores[:, None] == scores).mean(axis=1) / 2


def _figures(
    truth: Truth, victim: str, variant: str, scores: np.ndarray, member: np.ndarray, num_attacked: int = 1
) -> list[Figure]:
    rng = generator(truth.seed, "advantage", victim, variant)
    found = measure_membership(scores, member, attack=variant, control="held_out", rng=rng)
    counts = {"members": found.num_forgotten, "controls": found.num_controls}
    return [
        truth.figure(
            metric, victim, estimate or NOT_ATTACKED, baseline=exact(chance, found.auc.n), attainable=1.0, reason=reason,
            variant=variant, counts=counts, num_attacked=num_attacked,
        )
        for metric, estimate, chance, reason in measures(found, "graphs")
    ]  # fmt: skip


def membership(options: GraphAttackOptions | None = None) -> Attack:
    """The attack under these options."""
    num_shadows = options.shadows if options else 0
    return replace(ATTACK, run=partial(claim, num_shadows=num_shadows))


ATTACK = Attack(
    NAME,
    "tells the graphs that a client trained on from others like them",
    Needs(candidates=True),
    METRICS,
    partial(claim, num_shadows=0),
    score,
    threats=(MODELS, "server+graphs"),
    items=dict.fromkeys(METRICS, "matched graphs"),
    configured=membership,
    task=GRAPH,
)
