"""Audit of forgetting: how well forgotten triples can be detected in attacked, retrained and unlearned models of every client.

A figure of an unlearned model says little alone. Each one is compared with that of the model retrained without the triples,
which is perfect forgetting. If available, the run before the request ("raw") shows what was to be forgotten.

There is one audit per client. A requesting client is audited on its own triples. Other clients are audited on the requesting
clients' triples that they can express: they hold both entities and the relation. A forgotten triple may survive in such a
model, which learned from shared rows. Triples that some client still trains on are left out of the membership attack, since
that client made no request. A requesting client is not audited on the others' triples.

Threat models and required knowledge. Membership, distance, relearning: an adversary that holds a client's model, knows how it
was trained and has similar data (`fkgsec.attacks.membership.statistics`). Shadow models calibrate the attacks by difficulty and
by likelihood. Update difference: see `fkgsec.attacks.forgetting.update_difference`. Reconstruction: the threat models of
`fkgsec.attacks.reconstruction.evaluation`.

Legend: `n` forgotten triples, `m` of them with a control, `c` controls.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, get_args

import msgspec
import numpy as np
import pandas as pd

from fkgsec import estimate
from fkgsec.attacks.figure import NOT_ATTACKED, Figure
from fkgsec.attacks.forgetting.relearning import Relearning, measure_relearning
from fkgsec.attacks.forgetting.update_difference import UpdateDifference, update_difference
from fkgsec.attacks.membership.audits import (
    Attack,
    Audited,
    ClientModel,
    Shadow,
    Statistics,
    attack_statistics,
    client_models,
    contains,
    known_triples,
    named_triples,
    pooled_statistics,
    replace_train,
)
from fkgsec.attacks.membership.figures import (
    MembershipResult,
    ScoreDistance,
    compare_auc,
    measure_membership,
    score_distance,
)
from fkgsec.attacks.options import PAPER, RECONSTRUCTION, KgeAttackOptions
from fkgsec.attacks.registry import run_attacks
from fkgsec.data.graph import ClientGraph, FederatedGraph
from fkgsec.errors import ThreatModelError
from fkgsec.estimate import Estimate
from fkgsec.frames import INTERVAL, interval, tidy
from fkgsec.kge.options import KgeOptions
from fkgsec.kge.ranking import filtered_ranks, utility
from fkgsec.kge.result import KgeResult
from fkgsec.randomness import generator
from fkgsec.unlearning.forget_sets import Forget

Role = Literal["raw", "retrained", "unlearned"]
# Keys of every `figures`, in this order.
ROLES: tuple[Role, ...] = get_args(Role)
Results = Mapping[str, KgeResult]
COLUMNS = ("measure", "client", "asked", "model", "variant", "role", *INTERVAL, "baseline", "reason")
# All clients without a request, together.
OTHERS = "(others)"
UNLEARNING = "unlearning"
# Threat model: an adversary that holds a client's model, knows how it was trained and has similar data.
HOLDER = "model"
METRICS = {
    "auc": "max(AUC, 1 - AUC) of forgotten and never-seen triples",
    "ks": "distance of scores, unlearned to re-trained",
    "forget_mrr": "MRR left on the forget set",
}


# What is measured.


class Quality(msgspec.Struct, frozen=True):
    """Filtered link prediction: "mrr" and "hits@1" of each role, on the "forget" or "test" triples.

    Candidates and filter are those of the raw run for all roles: its client's train, valid and test triples, including
    forgotten ones.
    """

    client: str
    asked: bool
    model: str
    triples: str
    figures: dict[str, dict[str, Estimate]]


class Membership(msgspec.Struct, frozen=True):
    """A membership attack on a model, for each role.

    Attributes:
        client: name of a client, or `OTHERS`.
        decisive: False for one of several clients without a request. They have few triples each, so verdicts use all of them
            together, in the row of `OTHERS`, where each triple counts once.
        excess: AUC of the unlearned model minus that of the retrained one; None without figures.
        reason: why there are no figures.
    """

    client: str
    asked: bool
    model: str
    attack: Attack
    figures: dict[str, MembershipResult]
    excess: Estimate | None = None
    reason: str | None = None
    decisive: bool = True


class Distance(msgspec.Struct, frozen=True):
    """Kolmogorov-Smirnov distance of a role's scores of the forgotten triples to those of the retrained model."""

    client: str
    asked: bool
    model: str
    figures: dict[str, ScoreDistance]


class Rebuilt(msgspec.Struct, frozen=True):
    """Share of a victim's forgotten triples that the reconstruction attack rebuilds when the linked pairs are given (TRR)."""

    client: str
    threat_model: str
    figures: dict[str, Estimate]


class Forgetting(msgspec.Struct, frozen=True):
    """All figures. `counts`: forgotten triples, those with a control, and controls, by client; `notes`: what was not measured."""

    counts: dict[str, tuple[int, int, int]]
    quality: list[Quality]
    membership: list[Membership]
    distances: list[Distance]
    relearning: list[Relearning]
    updates: list[UpdateDifference]
    rebuilt: list[Rebuilt]
    notes: list[str]

    def to_frame(self) -> pd.DataFrame:
        """Convert the figures to a frame with one row per figure and role; the retrained model's figure is the baseline.

        Returns: columns `measure` ("forget.mrr", "test.mrr", "membership.auc", "distance.ks", "update.auc", "rebuilt.trr",
        ...),
            `client`, `asked`, `model`, `variant` (attack or threat model), `role`, the interval, `baseline`, `reason`.
            Relearning curves have no intervals and are left out.
        """
        return tidy(list(self._rows()), COLUMNS)

    def _rows(self) -> Iterator[dict[str, Any]]:
        for row in self.quality:
            about = {"client": row.client, "asked": row.asked, "model": row.model}
            for metric in row.figures["unlearned"]:
                figures = {role: figures[metric] for role, figures in row.figures.items()}
                yield from _role_rows({"measure": f"{row.triples}.{metric}", **about}, figures)
        for row in self.membership:
            about = {"client": row.client, "asked": row.asked, "model": row.model, "variant": row.attack}
            if row.reason:
                yield {"measure": "membership.auc", **about, "reason": row.reason}
            for metric in ("auc", "distinguishability", "advantage") if row.figures else ():
                figures = {role: getattr(figure, metric) for role, figure in row.figures.items()}
                yield from _role_rows({"measure": f"membership.{metric}", **about}, figures)
        for row in self.distances:
            about = {"measure": "distance.ks", "client": row.client, "asked": row.asked, "model": row.model}
            yield from _role_rows(about, {role: figure.distance for role, figure in row.figures.items()})
        for row in self.updates:
            about = {"measure": "update.auc", "client": row.client, "asked": True}
            yield from _role_rows(about, {role: figure.auc for role, figure in row.figures.items()})
            yield from ({**about, "role": role, "reason": reason} for role, reason in row.reasons.items())
        for row in self.rebuilt:
            about = {"measure": "rebuilt.trr", "client": row.client, "asked": True, "variant": row.threat_model}
            yield from _role_rows(about, row.figures)

    def attack_figures(self) -> list[Figure]:
        """Convert the figures to those of attacks, which a policy limits by the names of `METRICS`, such as `unlearning.auc`.

        There is one figure per client, model and, for `auc`, membership attack; `variant` names the last two. `auc` covers
        requesting clients and all others together, the other metrics requesting clients only. The baseline is the same figure
        of the retrained model; `ks`, the distance to that model, has none.

        Forgetting is not in `fkgsec.attacks.registry.ATTACKS`: a registered attack receives a `View` of one run. This audit
        holds clients' models of two or three runs, of which many were never transmitted.
        """
        figures = []

        def add(metric: str, row: Any, variant: str, by_role: Mapping[str, Estimate]) -> None:
            """Add the figure of one metric."""
            audited, reference = by_role["unlearned"], by_role.get("retrained")
            figures.append(
                Figure(UNLEARNING, metric, HOLDER, row.client, audited, reference, attainable=1.0, variant=variant)
            )

        for row in self.membership:
            if row.reason and row.asked:
                figures.append(
                    Figure(UNLEARNING, "auc", HOLDER, row.client, NOT_ATTACKED, reason=row.reason, variant=row.model)
                )
            elif row.decisive and not row.reason:
                roles = {role: result.distinguishability for role, result in row.figures.items()}
                add("auc", row, f"{row.model}, {row.attack}", roles)
        for row in self.distances:
            if row.asked:
                add("ks", row, row.model, {"unlearned": row.figures["unlearned"].distance})
        for row in self.quality:
            if row.asked and row.triples == "forget":
                add("forget_mrr", row, row.model, {role: result["mrr"] for role, result in row.figures.items()})
        return figures


def _role_rows(about: Mapping[str, Any], figures: Mapping[str, Estimate]) -> Iterator[dict[str, Any]]:
    """Yield a row for each role; the retrained model's figure is the baseline of the others."""
    reference = figures.get("retrained")
    for role, figure in figures.items():
        base = None if reference is None or role == "retrained" else reference.value
        yield {**about, "role": role, **interval(figure), "baseline": base}


def measure_forgetting(
    results: Results,
    graph: FederatedGraph,
    forget: Forget,
    audits: Sequence[Audited],
    *,
    shadows: Sequence[Shadow] = (),
    seed: int = 0,
    relearn_steps: int = 20,
) -> Forgetting:
    """Measure all figures for the available roles; "retrained" and "unlearned" are required, "raw" is optional.

    Args:
        results: finished runs by role.
        graph: data of the raw run.
        forget: forgotten triples by client, in local IDs.
        audits: from `audited_triples`.
        shadows: none, or an even number of at least 4.
        seed: seed of all draws.
        relearn_steps: training steps on the forgotten triples; 0 leaves relearning out.
    """
    rebuilt, notes = _rebuilt(results, graph, forget, seed)
    if "raw" not in results:
        notes.append("no raw run was given: nothing before the request to compare with, and no level to relearn")
    options = results["unlearned"].options
    quality, membership, distances, relearning = [], [], [], []
    aside: dict[str, list[tuple[Audited, Statistics]]] = {}
    num_aside = sum(not audit.asked and audit.reason is None for audit in audits)
    for audit in audits:
        client = graph.clients[audit.place]
        for name in client_models(results["unlearned"], audit.place):
            models = {role: client_models(results[role], audit.place)[name] for role in ROLES if role in results}
            quality += _quality(models, audit, name, client, options, seed)
            # A single client without a request needs no pooling.
            decisive = audit.asked or num_aside == 1
            if audit.reason:
                membership.append(Membership(audit.name, audit.asked, name, "loss", {}, None, audit.reason))
            else:
                # All roles are attacked with the same shadows, controls and temperature.
                statistics = attack_statistics(models, audit, name, shadows, options.sampling_temperature)
                about = audit.name, audit.asked, name
                membership += _measured(
                    *about, statistics, audit.forgotten, seed, decisive=decisive, weights=audit.compared_weights
                )
                if not decisive:
                    aside.setdefault(name, []).append((audit, statistics))
            if len(audit.forget):
                distances.append(_distances(models, audit, name, seed))
            if relearn_steps and audit.asked:
                relearning.append(measure_relearning(models, audit, name, client, options, relearn_steps, seed))
    for name, parts in aside.items():
        membership += _pooled(graph, name, parts, seed)
    requested = [audit for audit in audits if audit.asked]
    return Forgetting(
        {audit.name: (len(audit.forget), len(audit.members), len(audit.controls)) for audit in audits},
        quality,
        membership,
        distances,
        relearning,
        [update_difference(results, graph, audit, seed) for audit in requested],
        rebuilt,
        notes,
    )


def _quality(
    models: Mapping[str, ClientModel],
    audit: Audited,
    name: str,
    client: ClientGraph,
    options: KgeOptions,
    seed: int,
) -> list[Quality]:
    filters = known_triples(client, options)
    rows = []
    for what, triples in (("forget", audit.forget), ("test", client.test)):
        figures: dict[str, dict[str, Estimate]] = {}
        for role, (model, tables) in models.items():
            ranks = filtered_ranks(model, tables.entities, tables.relations, triples, filters)
            figures[role] = {k: v for k, v in utility(ranks, seed).items() if k in ("mrr", "hits@1")}
        rows.append(Quality(audit.name, audit.asked, name, what, figures))
    return rows


def _measured(
    client: str,
    is_requesting: bool,
    name: str,
    statistics: Statistics,
    forgotten: np.ndarray,
    seed: int,
    *,
    decisive: bool,
    weights: np.ndarray,
) -> list[Membership]:
    """Measure each membership attack on one model."""
    rows = []
    for attack, by_role in statistics.items():
        figures: dict[str, MembershipResult] = {
            role: measure_membership(
                statistic,
                forgotten,
                attack=attack,
                control="held_out",
                rng=generator(seed, "advantage", client, name, attack),
                weights=weights,
            )
            for role, statistic in by_role.items()
        }
        # Paired on the same triples: what retraining already explains cancels.
        excess = compare_auc(by_role["unlearned"], by_role["retrained"], forgotten, weights)
        rows.append(Membership(client, is_requesting, name, attack, figures, excess, decisive=decisive))
    return rows


def _distances(models: Mapping[str, ClientModel], audit: Audited, name: str, seed: int) -> Distance:
    """Measure how far each role's scores of the forgotten triples are from the retrained model's."""
    reference = models["retrained"].scores(audit.forget)
    apart = {
        role: score_distance(model.scores(audit.forget), reference, generator(seed, "distance", audit.place, name))
        for role, model in models.items()
        if role != "retrained"
    }
    return Distance(audit.name, audit.asked, name, apart)


def _pooled(
    graph: FederatedGraph, name: str, parts: Sequence[tuple[Audited, Statistics]], seed: int
) -> list[Membership]:
    """Attack all clients without a request together: each has too few triples for a verdict."""
    statistics, forgotten, weights = pooled_statistics(graph, parts)
    counts = int(forgotten.sum()), int((~forgotten).sum())
    if min(counts) < 2:
        reason = f"{counts[0]} distinct forgotten triples with {counts[1]} controls; it takes 2 of each"
        return [Membership(OTHERS, False, name, "loss", {}, None, reason)]
    return _measured(OTHERS, False, name, statistics, forgotten, seed, decisive=True, weights=weights)


# Reconstruction.


def _rebuilt(results: Results, graph: FederatedGraph, forget: Forget, seed: int) -> tuple[list[Rebuilt], list[str]]:
    """Measure TRR on the forgotten triples alone, by the paper's inference.

    The colluder is a client without a request if there is one.
    """
    names = [client.name for client in graph.clients]
    # A colluder's own triples cannot be reconstructed from its view.
    colluder = next((name for name in names if name not in forget), names[0])
    victims = [name for name in names if name in forget and name != colluder]
    notes = [f"reconstruction of {colluder}'s triples was not measured: it plays the colluder"] * (colluder in forget)
    right: dict[tuple[str, str], dict[str, Estimate]] = {}
    for role, result in results.items():
        try:
            items = run_attacks(
                replace(result, graph=_with_forgotten(result.graph, graph, forget)),
                KgeAttackOptions(
                    attack=(RECONSTRUCTION,), colluder=colluder, inference=(PAPER,), unlinked_heads=0, seed=seed
                ),
                leak_draws=0,
            ).scores
        except ThreatModelError as error:
            return [], [*notes, f"reconstruction was not measured: {error}"]
        if "item" not in items:
            notes.append(f"reconstruction from the {role} run was not measured: it transmitted no rows of a victim")
            continue
        triples = items[items["item"] == "triple"]
        for victim in victims:
            client = graph.clients[names.index(victim)]
            wanted = set(map(tuple, named_triples(graph, client, np.asarray(forget[victim]))))
            of_victim = triples.loc[triples["victim"] == victim]
            for threat in sorted(set(of_victim["threat_model"])):
                rebuilt = of_victim.loc[(of_victim["threat_model"] == threat) & of_victim["right"].astype(bool)]
                hits = len(wanted & set(zip(rebuilt["head"], rebuilt["relation"], rebuilt["tail"], strict=True)))
                right.setdefault((victim, threat), {})[role] = estimate.proportion(hits, len(wanted))
    return [Rebuilt(victim, threat, figures) for (victim, threat), figures in right.items()], notes


def _with_forgotten(trained: FederatedGraph, graph: FederatedGraph, forget: Forget) -> FederatedGraph:
    """Build the truth to compare a run with: its own triples and the forgotten ones whose rows are still transmitted."""
    clients = []
    for client in trained.clients:
        requested = np.asarray(forget.get(client.name, np.empty((0, 3), dtype=np.int64)))
        requested = requested[~contains(client.train, requested)]
        # After unlearning a row may have no triple left, and is then not uploaded.
        crossing = (requested[:, [0, 2]] < client.num_trained_entities).all(axis=1)
        crossing &= requested[:, 1] < client.num_trained_relations
        clients.append(replace_train(client, np.concatenate([client.train, requested[crossing]])))
    return replace(graph, clients=tuple(clients))
