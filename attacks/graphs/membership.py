"""Membership inference of graphs, from a client's final models or from its uploads.

A candidate (`fkgsec.attacks.graphs.candidates`) that a model fits well is classified as trained on. Threat models and required
knowledge:

- "models", "models+graphs": clients' final models, "global" and "local". By their loss ("loss"). With auxiliary graphs also
  minus the loss of a federation that trained on none of the candidates ("calibrated"). With shadow federations
  (`train_shadows`) by "lira", and from 32 on also by "lira offline" (with fewer, it equals "calibrated").
- "server", "server+graphs", "collusion": a victim's upload, or the opened sum of uploads. By its loss, and minus the loss of
  the broadcast that the victim trained from ("calibrated"). By the cosine of a candidate's gradient to the update
  ("alignment"), and to CEFGL's h where it is uploaded ("correction"): h is a mean gradient of the client's graphs (cefgl.txt
  Remark 2).
- "client": the colluder's model after the last broadcast. By its loss.

Uploads are seldom a whole network: a client's first and last layers are private. A colluder of the same data set substitutes
its own. An adversary with graphs of the data set trains new ones on these, with the uploaded layers fixed. The server alone can
infer nothing unless all layers are uploaded.

Source: Yeom et al. 2018 (loss), Watson et al. 2022 (calibrated), Carlini et al. 2022 (lira); for graph networks Wu et al. 2021
(TrustworthyGNN/MIA-GNN), who attack a single model.
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

# Number of shadows from which on each candidate has its own variance.
OWN_VARIANCE = 32
NO_LAYERS = "its first and last layers are not transmitted, and there are no graphs of its data set to train others on"
Scores = Mapping[str, np.ndarray]


def claim(view: GraphView, laboratory: Laboratory, rng: np.random.Generator) -> dict[str, Scores | NotAttacked]:
    """Score each victim's candidates by each inference method.

    Args:
        laboratory: trains shadow federations.
        rng: draws halves of candidates, and seeds.

    Returns:
        float64 `[n]` by victim and method, larger for likelier members.
    """
    victims = [victim for victim in view.victims if victim.candidates is not None]
    if view.threat_model.models:
        return _of_models(view, laboratory, rng, victims)
    return claim_each(victims, lambda victim: _of_shared(view, victim, rng))


def _of_models(
    view: GraphView, laboratory: Laboratory, rng: np.random.Generator, victims: list[GraphVictim]
) -> dict[str, Scores | NotAttacked]:
    """Score by clients' final models."""
    num_shadows = laboratory.options.shadows if view.threat_model.auxiliary else 0
    shadows = train_shadows(view, laboratory, num_shadows, rng) if num_shadows else None
    # Without shadows, one federation without any candidate calibrates the losses.
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
                # With one variance for all, "lira offline" would have the order of "calibrated".
                if variance == "per_triple":
                    scores[f"{name}, lira offline"] = likelihood_ratio(*answers, mode="offline", variance=variance)
            elif victim.name in reference:
                scores[f"{name}, calibrated"] = reference[victim.name][name].losses(candidates) - losses
        scores_of[victim.name] = scores
    return scores_of


def _of_shared(view: GraphView, victim: GraphVictim, rng: np.random.Generator) -> Scores:
    """Score by the shared parameters that the adversary received, completed with layers of its own."""
    shared: Tensors | None
    before: Tensors | None = None
    candidates = victim.candidates
    assert candidates is not None
    if not view.threat_model.server:
        assert view.colluder is not None
        # A lone client has only the broadcast.
        name, shared = "broadcast", view.colluder.received
    elif victim.summed and view.summed is not None:
        name, shared, before = "sum", view.summed.mean, victim.broadcast
    elif reason := victim.why_none(PARAMETERS):
        raise NotAttacked(reason)
    else:
        # A single upload, and the broadcast that the client trained from.
        name, shared, before = "upload", victim.upload, victim.broadcast
    assert shared is not None
    layers = _layers(view, victim, shared, rng)
    losses = GraphModel(view.settings, {**layers, **shared}).losses(candidates)
    scores = {f"{name}, loss": loss_threshold(losses)}
    if before is not None:
        model = GraphModel(view.settings, {**layers, **before})
        scores[f"{name}, calibrated"] = model.losses(candidates) - losses
        # A trained graph's gradient points along (broadcast - upload), the step that it caused.
        scores[f"{name}, alignment"] = model.alignment(
            candidates, {parameter: before[parameter] - shared[parameter] for parameter in shared}
        )
        if victim.correction is not None:
            scores["correction, alignment"] = model.alignment(candidates, victim.correction)
    return scores


def _layers(view: GraphView, victim: GraphVictim, shared: Tensors, rng: np.random.Generator) -> Tensors:
    """Return layers that complete shared parameters to a whole network for graphs of the victim's data set."""
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
        inside: by victim, which shadows trained on which candidates, bool `[S, n]`.
    """

    logits: Mapping[str, Mapping[str, np.ndarray]]
    inside: Mapping[str, np.ndarray]


def train_shadows(view: GraphView, laboratory: Laboratory, count: int, rng: np.random.Generator) -> Shadows:
    """Train shadow federations on halves of the candidates of all victims that have auxiliary graphs.

    Each has the attacked federation's clients, algorithm and rounds, but other seeds and other graphs. A client trains on the
    auxiliary graphs of its data set and on half of its candidates, of which the adversary does not know which are members.
    Shadows 2 k and 2 k + 1 take complementary halves, so that each candidate is in as often as out. A shadow's client has fewer
    graphs than the attacked one, so it fits them more closely.

    Args:
        laboratory: trains the federations.
        count: number of federations, even.
        rng: draws halves and seeds.

    Source: Carlini et al. 2022 (halves); the rest is ours.
    """
    sizes = {victim.name: len(victim.candidates or ()) for victim in _trainable(view)}
    inside: dict[str, list[np.ndarray]] = {name: [] for name in sizes}
    for _ in range(count // 2):
        for name, size in sizes.items():
            # Complementary halves for a pair of shadows.
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
    """Train a federation on no candidate.

    Args:
        laboratory: trains the federation.
        rng: draws its seed.

    Returns:
        Its models by victim and name.
    """
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
    # One client has nobody to average with.
    if len(clients) == 1:
        changes |= {"algorithm": "local-gc", "settings": None}
    options = view.settings.options(int(rng.integers(2**31)), **changes)
    result = laboratory.train_own(FederatedGraphs("shadows", tuple(clients)), options)
    return {client.name: models_of(result, place, view.settings) for place, client in enumerate(clients)}


def score(claims: Mapping[str, Scores | NotAttacked], truth: Truth) -> list[Figure]:
    """Compute AUC, TPR at low false-positive rates, and advantage, by each inference method.

    For all victims together, each candidate has its normalized rank among those of its client, since losses differ between
    models.

    Args:
        claims: scores by victim and method.
        truth: evaluator's knowledge.

    Returns:
        Figures of each victim and of all together.
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
        # The view of this victim had candidates.
        assert candidates is not None
        for variant, of_variant in scores.items():
            figures += _figures(truth, client.name, variant, of_variant, candidates.member)
            # Share of scores below each one, ties half.
            below = (of_variant[:, None] > of_variant).mean(axis=1)
            ranks = below + (of_variant[:, None] == of_variant).mean(axis=1) / 2
            parts.setdefault(variant, []).append((ranks, candidates.member))
    for variant, of_all in parts.items():
        together, member = (np.concatenate(column) for column in zip(*of_all, strict=True))
        figures += _figures(truth, ALL, variant, together, member, num_attacked=len(of_all))
    return figures


def _figures(
    truth: Truth, victim: str, variant: str, scores: np.ndarray, member: np.ndarray, num_attacked: int = 1
) -> list[Figure]:
    """Compute all metrics of one method."""
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
    "distinguishes graphs that a client trained on from similar graphs",
    Needs(candidates=True),
    METRICS,
    claim,
    score,
    threats=(MODELS, "server+graphs"),
    questions=dict.fromkeys(METRICS, GRAPH_MEMBERSHIP),
    items=dict.fromkeys(METRICS, "matched graphs"),
    task=GRAPH,
)
