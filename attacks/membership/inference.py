"""The membership attack: which training triples can be separated from never-seen ones, and by whom.

Threat models and required knowledge, see `scoring_models`: "models" (the final models of clients), "client" (the broadcasts
that a client receives), "server+triples" and "identifiers" (uploads to a server, or their sums). Inference methods; each gives
a figure, and the interval of the strongest accounts for the choice:

- `score`, `loss`, `rank` use only the rows.
- `calibrated`, `lira`, `lira-linear`, `rmia` also use shadow federations (`shadows`, an even number of at least 4). The same
  loop trains them under the same defense, on data by `shadow_knowledge` (`fkgsec.attacks.membership.candidates`). The adversary
  uses only what it would have seen of them. The name of the method ends in the name of the knowledge.

Members are random training triples of each client, at most half of them. Controls are triples of the same relation and of
similar degrees that nobody ever trained on (`fkgsec.attacks.membership.candidates`). Only triples with rows that the adversary
has are used. A client classifies triples whose pair none of its own triples links; a server those that it does not already
know. The baseline is the best of chance, and of `names` and `degrees` in the triples that the adversary has without any
message: a colluder's, a server's auxiliary triples, or those that shadow federations train on beside the candidates. A remark
states where the victim's other triples, which the adversary lacks, separate members from controls.

`auc_shared`, `tpr@..._shared`: under "models", of the federation's model alone, which is what is released. A client's private
model was trained on its data after the last message that a defense protects.

Source: Yeom et al. 2018 (loss), Carlini et al. 2022 (lira), Watson et al. 2022 (calibrated), Zarifzadeh et al. 2024 (rmia); see
`fkgsec.attacks.membership.statistics`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from fkgsec.attacks import questions
from fkgsec.attacks.clients.asking import check_broadcast
from fkgsec.attacks.figure import Figure
from fkgsec.attacks.kge.laboratory import KgeLaboratory
from fkgsec.attacks.kge.view import KgeView, VictimView
from fkgsec.attacks.membership.audits import Audited
from fkgsec.attacks.membership.candidates import asked_candidates, data_scorers, draw_candidates
from fkgsec.attacks.membership.evaluation import METRICS, OF_SHARED, Group, group_figures, item_table, together
from fkgsec.attacks.membership.figures import placements
from fkgsec.attacks.membership.statistics import (
    calibrated,
    likelihood_ratio,
    linear_likelihood_ratio,
    loss_threshold,
    rank_threshold,
    relative_probability,
    triple_answers,
    triple_losses,
    triple_scores,
)
from fkgsec.attacks.options import MEMBERSHIP, MODELS, ShadowKnowledge
from fkgsec.attacks.registry import Attack, Needs, Truth
from fkgsec.attacks.uploads.auxiliary import fit_relations
from fkgsec.attacks.uploads.questions import degrees_scorer, names_scorer
from fkgsec.attacks.view import NotAttacked, claim_each
from fkgsec.kge.models import KgeModel

TOO_FEW = "too few training triples with matched never-seen ones"
# Deviation of an AUC from .5, in standard errors, from which on controls are called unfair.
UNFAIR = 4

Signals: TypeAlias = Mapping[str, np.ndarray]
"""Statistics of triples, float64 `[n]` each: "score", "log_probability", "log_rank" and, if requested, "loss"; see
`fkgsec.attacks.membership.statistics`."""


@dataclass(frozen=True)
class _Acting(KgeModel):
    """A model whose relation rows are already the vectors by which relations act."""

    def relation_vectors(self, relations: Tensor) -> Tensor:
        """Return the rows unchanged."""
        return relations


class NamedRows(NamedTuple):
    """A scoring function and rows with their names, entities `[., W]` and relations `[., V]`."""

    model: KgeModel
    entities: Tensor
    relations: Tensor
    entity_names: np.ndarray
    relation_names: np.ndarray

    def signals(self, triples: np.ndarray, temperature: float | None = None) -> Signals:
        """Score triples of names, NaN where a row is missing.

        Args:
            triples: object `[n, 3]`.
            temperature: alpha of the self-adversarial weights in the loss; None leaves the loss out.
        """
        numbers = [
            {name: row for row, name in enumerate(names) if name is not None}
            for names in (self.entity_names, self.relation_names)
        ]
        rows = np.array(
            [[numbers[column == 1].get(name, -1) for column, name in enumerate(triple)] for triple in triples],
            dtype=np.int64,
        ).reshape(-1, 3)
        has_rows = (rows >= 0).all(axis=1)
        parts = (self.model, self.entities, self.relations, rows[has_rows])
        probability, rank = triple_answers(*parts)
        signals = {"score": triple_scores(*parts), "log_probability": probability, "log_rank": rank}
        if temperature is not None:
            signals["loss"] = triple_losses(*parts, temperature=temperature)
        whole = {name: np.full(len(triples), np.nan) for name in signals}
        for name, values in signals.items():
            whole[name][has_rows] = values
        return whole


def scoring_models(view: KgeView, victim: VictimView) -> dict[str, NamedRows]:
    """Return the scoring functions with rows that the adversary can apply to a victim's triples, by name.

    - "models": the client's final models, its private one ("local") and the federation's ("global").
    - "client": the entity rows of the last broadcast and the client's own relation rows ("broadcast").
    - "identifiers", "server+triples": a victim's uploaded entity rows by their names ("upload"), or those that the adversary
      attributes to it in a sum ("sum"). Relation vectors are the colluder's, or are fitted to the server's auxiliary triples of
      the victim.

    Args:
        view: the adversary's knowledge.

    Raises:
        NotAttacked: there is none.
    """
    if view.threat_model.models:
        names = victim.vocabulary["entities"], victim.vocabulary["relations"]
        return {
            name: NamedRows(model, tables.entities, tables.relations, *names)
            for name, (model, tables) in victim.models.items()
        }
    colluder = view.colluder
    if not view.threat_model.server:
        # A lone client has the last broadcast's entity rows and its own relation rows.
        colluder = view.accomplice
        return {
            "broadcast": NamedRows(
                view.model, colluder.shared_entities, colluder.relations, colluder.entity_names, colluder.relation_names
            )
        }
    rows, names, _ = victim.named_entities()
    # A server reads the victim's rows by name, individually or as attributed in a sum.
    name = "sum" if "entities" in victim.claims else "upload"
    if colluder is not None:
        return {name: NamedRows(view.model, rows, colluder.relations, names, colluder.relation_names)}
    row_of = {entity: row for row, entity in enumerate(names) if entity is not None}
    auxiliary = [] if victim.auxiliary is None else victim.auxiliary
    readable = [triple for triple in auxiliary if triple[0] in row_of and triple[2] in row_of]
    if not readable:
        raise NotAttacked(f"of {len(auxiliary)} auxiliary triples none has rows that were seen")
    relations = sorted({triple[1] for triple in readable})
    kinds = np.array([relations.index(triple[1]) for triple in readable])
    heads, tails = (rows[torch.tensor([row_of[triple[end]] for triple in readable])] for end in (0, 2))
    vectors = fit_relations(view.model, heads, tails, kinds, len(relations))
    # The fitted vectors act directly; a model's own rows may have another parametrization.
    acting = _Acting(**{part.name: getattr(view.model, part.name) for part in fields(view.model)})
    return {name: NamedRows(acting, rows, vectors, names, np.array(relations, dtype=object))}


class Scored(NamedTuple):
    """An adversary's scores of a victim's candidates.

    Attributes:
        is_scored: which candidates the adversary can score, bool `[k]`.
        ways, guesses: scores of these by inference method and by baseline, float64, larger for likelier members. Baselines use
            no message.
    """

    is_scored: np.ndarray
    ways: Mapping[str, np.ndarray]
    guesses: Mapping[str, np.ndarray]


def claim(view: KgeView, laboratory: KgeLaboratory, rng: np.random.Generator) -> dict[str, Scored | NotAttacked]:
    """Score each victim's candidates.

    Args:
        laboratory: draws candidates and trains shadow federations.
        rng: not used; the laboratory draws everything.

    Returns:
        Scores by victim name, or why the victim cannot be attacked.
    """
    options, candidates = laboratory.options, laboratory.candidates(view)
    if not (view.threat_model.models or view.threat_model.server):
        check_broadcast(laboratory)
    if options.shadows:
        laboratory.check_repeatable()

    def signals_in(seen: KgeView, victim: VictimView, temperature: float | None = None) -> dict[str, Signals]:
        """Score a victim's candidates with each model in a view."""
        models = scoring_models(seen, victim)
        if victim.name not in candidates:
            raise NotAttacked(TOO_FEW)
        return {name: model.signals(candidates[victim.name], temperature) for name, model in models.items()}

    shadows, data = [], {}
    for number in range(options.shadows if candidates else 0):
        # Each shadow gives what the same adversary would see of a federation whose members it knows.
        shadow = laboratory.shadow(number, options.shadow_knowledge)
        data = data or shadow.data
        shadows.append((shadow.member, claim_each(shadow.view.victims, partial(signals_in, shadow.view))))
    temperature = laboratory.settings.options(seed=0).sampling_temperature

    def score_candidates(victim: VictimView) -> Scored:
        """Score one victim's candidates by each inference method and baseline."""
        own_signals = signals_in(view, victim, temperature)
        triples = candidates[victim.name]
        auxiliary = set() if victim.auxiliary is None else {tuple(triple) for triple in victim.auxiliary}
        is_scored = np.array([tuple(triple) not in auxiliary for triple in triples], dtype=bool)
        others: list[dict[str, Signals]] = []
        for _, by_victim in shadows:
            signals = by_victim[victim.name]
            others.append({} if isinstance(signals, NotAttacked) else signals)
        for name in own_signals:
            for signals in (own_signals, *others):
                # Every model, the victim's and the shadows', must score a triple; otherwise methods would be compared
                # on different triples.
                is_scored &= np.isfinite(signals[name]["score"]) if name in signals else False
        # At least two members and two controls.
        if is_scored.sum() < 4:
            raise NotAttacked(f"{TOO_FEW} that the adversary can be asked about")
        inside = np.array([member[victim.name][is_scored] for member, _ in shadows], dtype=bool)
        ways: dict[str, np.ndarray] = {}
        for name in own_signals:
            here, *there = (
                {kind: values[is_scored] for kind, values in signals[name].items()}
                for signals in (own_signals, *others)
            )
            for way, values in _ways(here, there, inside, options.shadow_knowledge).items():
                ways[f"{name}, {way}"] = values
        # The adversary's triples without any message: shadow data, the colluder's triples, or auxiliary ones.
        knowledge = data.get(victim.name, view.colluder.named_triples if view.colluder else victim.auxiliary)
        guesses = {}
        if knowledge is not None:
            guesses["names"] = names_scorer(knowledge)(triples[is_scored])
            guesses["degrees"] = degrees_scorer(knowledge)(triples[is_scored])
        return Scored(is_scored, ways, guesses)

    return claim_each(view.victims, score_candidates)


def _ways(
    own_signals: Signals, shadows: Sequence[Signals], inside: np.ndarray, knowledge: ShadowKnowledge
) -> dict[str, np.ndarray]:
    """Score each triple by each inference method, float64 `[n]`; `inside`: which shadows trained on it, bool `[S, n]`."""
    ways = {
        "score": own_signals["score"],
        "loss": loss_threshold(own_signals["loss"]),
        "rank": rank_threshold(own_signals["log_rank"]),
    }
    if not shadows:
        return ways
    scores, probabilities = (np.stack([shadow[kind] for shadow in shadows]) for kind in ("score", "log_probability"))
    words = knowledge.replace("-", " ")
    return ways | {
        f"calibrated, {words}": calibrated(own_signals["score"], scores, inside),
        f"lira, {words}": likelihood_ratio(own_signals["score"], scores, inside),
        f"lira-linear, {words}": linear_likelihood_ratio(own_signals["score"], scores, inside),
        f"rmia, {words}": relative_probability(own_signals["log_probability"], probabilities, inside),
    }


def score(claims: Mapping[str, Scored | NotAttacked], truth: Truth) -> list[Figure]:
    """Compute the figures of every victim and of all together; where nothing could be attacked, the reason.

    Args:
        claims: scores by victim name.
    """
    audits = {audit.name: audit for audit in draw_candidates(truth.graph, truth.seed) if audit.reason is None}
    figures: list[Figure] = []
    groups: list[Group] = []
    for victim, claim in claims.items():
        try:
            if isinstance(claim, NotAttacked):
                raise claim
            groups.append(_group(truth, audits[victim], claim))
        except NotAttacked as reason:
            figures += truth.not_attacked(victim, reason)
    for group in [*groups, *([together(groups)] if groups else [])]:
        measured = group_figures(truth, group)
        figures += measured
        truth.scores.append(item_table(truth, group, measured))
    return figures


def _group(truth: Truth, audit: Audited, scored: Scored) -> Group:
    """Join a victim's scores with the truth, members first. Raises `NotAttacked` for fewer than two members or controls."""
    model = truth.threat_model
    alone = model.colluder and not model.server
    candidates = asked_candidates(truth.graph, audit, truth.colluders, truth.seed, alone=alone)[scored.is_scored]
    order = np.argsort(candidates)
    member = candidates[order] < len(audit.members)
    m, c = int(member.sum()), int((~member).sum())
    if min(m, c) < 2:
        raise NotAttacked(f"{TOO_FEW} that the adversary can be asked about")
    client = truth.unshuffled(audit.name)
    triples = audit.triples[candidates[order]]
    ways, guesses = ({name: values[order] for name, values in part.items()} for part in (scored.ways, scored.guesses))
    # Knowledge that separates members from controls although no adversary has it.
    unfair = []
    for name, scorer in data_scorers(client, audit).items():
        values = scorer(triples)
        auc = float(placements(values[member], values[~member]).members.mean())
        # Mann-Whitney standard error of an AUC under the null.
        if abs(auc - 0.5) > UNFAIR * np.sqrt((m + c + 1) / (12 * m * c)):
            unfair.append(f"{name} {auc:.3f}")
    remark = f"controls are not fair: AUC by the victim's other triples: {', '.join(unfair)}" if unfair else ""
    return Group(audit.name, client.to_global(triples), member, ways, guesses, remark)


ATTACK = Attack(
    MEMBERSHIP,
    "distinguishes training triples from other true triples, by models, broadcasts or uploads",
    Needs(models=True),
    METRICS | OF_SHARED,
    claim,
    score,
    threats=(MODELS, "client", "server+triples"),
    questions=dict.fromkeys(METRICS | OF_SHARED, questions.MEMBERSHIP),
    items=dict.fromkeys(METRICS | OF_SHARED, "matched triples"),
    leads=("auc", "auc_shared"),
    also=(
        Needs(entities=True, alone=True),
        Needs(names=True, entities=True, server=True, colluder=True),
        Needs(names=True, entities=True, server=True, auxiliary=True),
    ),
)
