"""Membership inference of graphs, from the models that a client is left with or from its uploads.

A candidate (`fkgsec.attacks.graphs.candidates`) that a model knows well is taken for one that the client trained on.

- "models", "models+graphs": the models that clients are left with, "global" and "local". By their loss; with graphs also less the
  loss of a federation that trained on none of the candidates ("calibrated"); with shadow federations
  (`train_shadows`) by "lira", from 32 on also by "lira offline" (with fewer, that is "calibrated").
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

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fkgsec.attacks.figure import NOT_ATTACKED, Figure
from fkgsec.attacks.graphs.candidates import draw_candidates
from fkgsec.attacks.graphs.models import GraphModel, parameter_names, train_layers
from fkgsec.attacks.graphs.view import PARAMETERS, GraphVictim, GraphView, Tensors, joined_sets, models_of
from fkgsec.attacks.laboratory import Laboratory
from fkgsec.attacks.membership.evaluation import METRICS, TPR
from fkgsec.attacks.membership.figures import measure_membership
from fkgsec.attacks.membership.statistics import Variance, calibrated, likelihood_ratio, loss_threshold
from fkgsec.attacks.options import GRAPH, MODELS
from fkgsec.attacks.questions import GRAPH_MEMBERSHIP
from fkgsec.attacks.registry import Attack, Needs, Truth
from fkgsec.attacks.view import ALL, NotAttacked, claim_each
from fkgsec.estimate import exact
from fkgsec.graphs.sets import ClientGraphs, FederatedGraphs
from fkgsec.randomness import generator

OWN_VARIANCE = 32  # shadows, from which on each candidate has a variance of its own
NO_LAYERS = "its first and last layers do not cross, and there are no graphs of its data set to train others on"
Scores = Mapping[str, np.ndarray]


def claim(view: GraphView, laboratory: Laboratory, rng: np.random.Generator) -> dict[str, Scores | NotAttacked]:
    """Score each victim's candidates by each way, float64 `[n]`, larger for supposed members."""
    victims = [victim for victim in view.victims if victim.candidates is not None]
    if view.threat_model.models:
        return _of_models(view, laboratory, rng, victims)
    return claim_each(victims, lambda victim: _of_shared(view, victim, rng))


def _of_models(
    view: GraphView, laboratory: Laboratory, rng: np.random.Generator, victims: list[GraphVictim]
) -> dict[str, Scores | NotAttacked]:
    """Score by the models that clients are left with."""
    num_shadows = laboratory.options.shadows if view.threat_model.auxiliary else 0
    shadows = train_shadows(view, laboratory, num_shadows, rng) if num_shadows else None
    reference = train_reference(view, laboratory, rng) if view.threat_model.auxiliary and not shadows else {}
    variance: Variance = "per_triple" if num_shadows >= OWN_VARIANCE else "pooled"
    scores_of: dict[str, Scores | NotAttacked] = {}
    for victim in victims:
        candidates, scores = victim.candidates, dict[str, np.ndarray]()
        assert candidates is not None
        for name, model in victim.models.items():
            losses = model.losses(candidates)
            scores[f"{name}, loss"] = loss_threshold(losses)
            if shadows and victim.name in shadows.inside:
                answers = model.logits(candidates), shadows.logits[victim.name][name], shadows.inside[victim.name]
                scores[f"{name}, calibrated"] = calibrated(*answers)
                scores[f"{name}, lira"] = likelihood_ratio(*answers, variance=variance)
                if variance == "per_triple":  # with one variance for all, the order is that of "calibrated"
                    scores[f"{name}, lira offline"] = likelihood_ratio(*answers, mode="offline", variance=variance)
            elif victim.name in reference:
                scores[f"{name}, calibrated"] = reference[victim.name][name].losses(candidates) - losses
        scores_of[victim.name] = scores
    return scores_of


def _of_shared(view: GraphView, victim: GraphVictim, rng: np.random.Generator) -> Scores:
    """Score by the shared parameters that the adversary saw, made whole with layers of its own."""
    shared: Tensors | None
    before: Tensors | None = None
    candidates = victim.candidates
    assert candidates is not None
    if not view.threat_model.server:
        assert view.colluder is not None
        name, shared = "broadcast", view.colluder.received
    elif victim.summed and view.summed is not None:
        name, shared, before = "sum", view.summed.mean, victim.broadcast
    elif reason := victim.why_none(PARAMETERS):
        raise NotAttacked(reason)
    else:
        name, shared, before = "upload", victim.upload, victim.broadcast
    assert shared is not None
    layers = _layers(view, victim, shared, rng)
    losses = GraphModel(view.settings, {**layers, **shared}).losses(candidates)
    scores = {f"{name}, loss": loss_threshold(losses)}
    if before is not None:
        model = GraphModel(view.settings, {**layers, **before})
        scores[f"{name}, calibrated"] = model.losses(candidates) - losses
        scores[f"{name}, alignment"] = model.alignment(
            candidates, {parameter: before[parameter] - shared[parameter] for parameter in shared}
        )
        if victim.correction is not None:
            scores["correction, alignment"] = model.alignment(candidates, victim.correction)
    return scores


def _layers(view: GraphView, victim: GraphVictim, shared: Tensors, rng: np.random.Generator) -> Tensors:
    """Layers that make shared parameters a whole network for graphs of the victim's data set."""
    assert victim.candidates is not None
    lacking = [name for name in parameter_names(view.settings, victim.candidates) if name not in shared]
    if not lacking:
        return {}
    if view.colluder is not None and view.colluder.data_set == victim.data_set:
        return {name: view.colluder.model.parameters[name] for name in lacking}
    if victim.auxiliary is None:
        raise NotAttacked(NO_LAYERS)
    return train_layers(view.settings, shared, victim.auxiliary, seed=int(rng.integers(2**31)))


@dataclass(frozen=True, eq=False)
class Shadows:
    """Scores of each victim's candidates by shadow federations.

    Attributes:
        logits: by victim and model ("global", "local"), float64 `[S, n]`, see `GraphModel.logits`.
        inside: by victim, bool `[S, n]`.
    """

    logits: Mapping[str, Mapping[str, np.ndarray]]
    inside: Mapping[str, np.ndarray]


def train_shadows(view: GraphView, laboratory: Laboratory, count: int, rng: np.random.Generator) -> Shadows:
    """Train so many federations, an even number, on halves of the candidates of all victims that have auxiliary graphs.

    Each has the attacked federation's clients, algorithm and rounds, seeds of its own, and other graphs: a client trains on the
    auxiliary graphs of its data set and on half of its candidates, of which the adversary does not know which are members.
    Shadows 2 k and 2 k + 1 take complementary halves, so that each candidate is in as often as out. A shadow's client has fewer
    graphs than the attacked one, so that it is fitted more closely.

    Source: Carlini et al. 2022 (halves); the rest is ours.
    """
    sizes = {victim.name: len(victim.candidates or ()) for victim in _trainable(view)}
    inside: dict[str, list[np.ndarray]] = {name: [] for name in sizes}
    for _ in range(count // 2):
        for name, size in sizes.items():
            half = rng.permutation(size) < size // 2
            inside[name] += [half, ~half]
    logits: dict[str, dict[str, list[np.ndarray]]] = {name: {} for name in sizes}
    for number in range(count):
        trained = _train(view, laboratory, {name: halves[number] for name, halves in inside.items()}, rng)
        for victim in _trainable(view):
            assert victim.candidates is not None
            for name, model in trained[victim.name].items():
                logits[victim.name].setdefault(name, []).append(model.logits(victim.candidates))
    return Shadows(
        {victim: {name: np.stack(rows) for name, rows in of_victim.items()} for victim, of_victim in logits.items()},
        {name: np.stack(halves) for name, halves in inside.items()},
    )


def train_reference(
    view: GraphView, laboratory: Laboratory, rng: np.random.Generator
) -> dict[str, dict[str, GraphModel]]:
    """Train a federation on no candidate, and return its models by victim."""
    none = {victim.name: np.zeros(len(victim.candidates or ()), dtype=bool) for victim in _trainable(view)}
    return _train(view, laboratory, none, rng)


def _trainable(view: GraphView) -> list[GraphVictim]:
    return [victim for victim in view.victims if victim.candidates is not None and victim.auxiliary is not None]


def _train(
    view: GraphView, laboratory: Laboratory, chosen: Mapping[str, np.ndarray], rng: np.random.Generator
) -> dict[str, dict[str, GraphModel]]:
    """Train clients on their auxiliary graphs and these candidates, and return their models by victim."""
    clients = []
    for victim in _trainable(view):
        assert victim.candidates is not None
        assert victim.auxiliary is not None
        graphs = joined_sets([victim.candidates, victim.auxiliary])
        trained = np.concatenate([chosen[victim.name], np.ones(len(victim.auxiliary), dtype=bool)])
        every = np.arange(len(trained))
        clients.append(ClientGraphs(victim.name, graphs, every[trained], every[:0], every[~trained], victim.data_set))
    if not clients:
        return {}
    changes: dict[str, Any] = {"rounds": view.round, "eval_every": view.round, "patience": 0}
    if len(clients) == 1:  # nobody to average with
        changes |= {"algorithm": "local-gc", "settings": None}
    options = view.settings.options(int(rng.integers(2**31)), **changes)
    result = laboratory.train_own(FederatedGraphs("shadows", tuple(clients)), options)
    return {client.name: models_of(result, place, view.settings) for place, client in enumerate(clients)}


def score(claims: Mapping[str, Scores | NotAttacked], truth: Truth) -> list[Figure]:
    """AUC, members found at few false alarms, and advantage, of each victim by each way of telling, and of all together.

    Of all together a candidate goes by its share of ranks among those of its client, since losses of models differ.
    """
    figures: list[Figure] = []
    parts: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
    for place, client in enumerate(truth.graph.clients):
        scores = claims.get(client.name)
        if scores is None:
            continue
        if isinstance(scores, NotAttacked):
            figures += truth.not_attacked(client.name, scores)
            continue
        candidates = draw_candidates(truth.graph, place, truth.seed)
        assert candidates is not None  # its victim had candidates
        for variant, of_variant in scores.items():
            figures += _figures(truth, client.name, variant, of_variant, candidates.member)
            below = (of_variant[:, None] > of_variant).mean(axis=1)  # shares of the scores below each, ties half
            ranks = below + (of_variant[:, None] == of_variant).mean(axis=1) / 2
            parts.setdefault(variant, []).append((ranks, candidates.member))
    for variant, of_all in parts.items():
        together, member = (np.concatenate(column) for column in zip(*of_all, strict=True))
        figures += _figures(truth, ALL, variant, together, member, num_attacked=len(of_all))
    return figures


def _figures(
    truth: Truth, victim: str, variant: str, scores: np.ndarray, member: np.ndarray, num_attacked: int = 1
) -> list[Figure]:
    rng = generator(truth.seed, "advantage", victim, variant)
    measured = measure_membership(scores, member, attack=variant, control="held_out", rng=rng)
    about = {
        "attainable": 1.0, "variant": variant, "num_attacked": num_attacked,
        "counts": {"members": measured.num_forgotten, "controls": measured.num_controls},
    }  # fmt: skip
    n, figures = measured.auc.n, []
    figures.append(truth.figure("auc", victim, measured.auc, baseline=exact(0.5, n), **about))
    for low in measured.low_fpr:
        if low.direction == "remembered":
            reason = None
            if low.tpr is None:
                needed = f"{low.max_fpr:.1%} false alarms take {math.ceil(1 / low.max_fpr):,} never-seen graphs"
                reason = f"{needed}; {measured.num_controls:,} match"
            tpr, base = low.tpr or NOT_ATTACKED, exact(low.max_fpr, n)
            figures.append(truth.figure(TPR[low.max_fpr], victim, tpr, baseline=base, reason=reason, **about))
    figures.append(truth.figure("advantage", victim, measured.advantage, baseline=exact(0.0, n), **about))
    return figures


ATTACK = Attack(
    "graph-membership",
    "tells the graphs that a client trained on from others like them",
    Needs(candidates=True),
    METRICS,
    claim,
    score,
    threats=(MODELS, "server+graphs"),
    questions=dict.fromkeys(METRICS, GRAPH_MEMBERSHIP),
    items=dict.fromkeys(METRICS, "matched graphs"),
    task=GRAPH,
)
