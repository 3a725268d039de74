"""The membership attack: which training triples can be told from never-seen ones, and by whom?

Threat models: "models" (whoever holds the models that clients are left with), "client" (one that receives broadcasts),
"server+triples" and "identifiers" (a server that receives uploads, or their sums); see `hold`. Its ways, all of which are
figures, the strongest with an interval that counts the choice:

- `score`, `loss`, `rank` take nothing but the rows.
- `calibrated`, `lira`, `lira-linear`, `rmia` take shadow federations, too (`shadows`, an even number from 4 on), trained by the
  same loop and under the same defense on what `shadow_knowledge` names (`fkgsec.attacks.membership.candidates`), of which the
  adversary keeps what it would have seen. The name of the knowledge stands behind the way.

Members are random training triples of each client, at most half of them, beside triples of the same relation and of like degrees
that nobody ever trained on (`fkgsec.attacks.membership.candidates`): only triples that the adversary has rows of; a client is
asked of those whose pair none of its own links, a server of those that it was not told. Baselines, of which the best is shown:
chance, and `names` and `degrees` in the triples that the adversary has without any message: a colluder's, those that a server
was told, or, with shadow federations, what these train on beside the candidates. A remark says where the victim's other
triples, which the adversary lacks, tell members from controls.

`auc_shared`, `tpr@..._shared`: under "models" of the federation's model alone, which is what is released; a client's own one was
trained on its data after the last message that a defense is for.

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
UNFAIR = 4  # standard errors of an AUC of .5

Signals: TypeAlias = Mapping[str, np.ndarray]
"""What rows say of triples, float64 `[n]` each: "score", "log_probability", "log_rank" and, where asked for, "loss"; see
`fkgsec.attacks.membership.statistics`."""


@dataclass(frozen=True)
class _Acting(KgeModel):
    """A model whose relation rows are the vectors in which relations act."""

    def relation_vectors(self, relations: Tensor) -> Tensor:
        return relations


class Held(NamedTuple):
    """Rows with their names, entities `[., W]` and relations `[., V]`."""

    model: KgeModel
    entities: Tensor
    relations: Tensor
    entity_names: np.ndarray
    relation_names: np.ndarray

    def signals(self, triples: np.ndarray, temperature: float | None = None) -> Signals:
        """Score triples of names, object `[n, 3]`, NaN where a row is missing. temperature: of the loss; None leaves it out."""
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


def hold(view: KgeView, victim: VictimView) -> dict[str, Held]:
    """Scoring functions with rows, by name, that the adversary can ask about a victim's triples.

    - "models": the models that a client is left with: its own ("local") and the federation's ("global").
    - "client": the entity rows of the last broadcast and the client's own relation rows ("broadcast").
    - "identifiers", "server+triples": a victim's uploaded entity rows by their names ("upload"), or those that the adversary
      attributes to it of a sum ("sum"). Relations act as the colluder's do, or as vectors fitted to the triples that the server
      has of the victim.

    Raises:
        NotAttacked: it has none.
    """
    if view.threat_model.models:
        names = victim.vocabulary["entities"], victim.vocabulary["relations"]
        return {
            name: Held(model, tables.entities, tables.relations, *names)
            for name, (model, tables) in victim.models.items()
        }
    colluder = view.colluder
    if not view.threat_model.server:
        colluder = view.accomplice
        return {
            "broadcast": Held(
                view.model, colluder.shared_entities, colluder.relations, colluder.entity_names, colluder.relation_names
            )
        }
    rows, names, _ = victim.named_entities()
    name = "sum" if "entities" in victim.claims else "upload"
    if colluder is not None:
        return {name: Held(view.model, rows, colluder.relations, names, colluder.relation_names)}
    row_of = {entity: row for row, entity in enumerate(names) if entity is not None}
    auxiliary = [] if victim.auxiliary is None else victim.auxiliary
    readable = [triple for triple in auxiliary if triple[0] in row_of and triple[2] in row_of]
    if not readable:
        raise NotAttacked(f"of {len(auxiliary)} auxiliary triples none has rows that were seen")
    relations = sorted({triple[1] for triple in readable})
    kinds = np.array([relations.index(triple[1]) for triple in readable])
    heads, tails = (rows[torch.tensor([row_of[triple[end]] for triple in readable])] for end in (0, 2))
    vectors = fit_relations(view.model, heads, tails, kinds, len(relations))
    acting = _Acting(**{part.name: getattr(view.model, part.name) for part in fields(view.model)})
    return {name: Held(acting, rows, vectors, names, np.array(relations, dtype=object))}


class Told(NamedTuple):
    """An adversary's scores of a victim's candidates.

    Attributes:
        known: bool `[k]`, which candidates it can say anything of.
        ways, guesses: by name, float64 of these, larger for those that are taken for members. Guesses take no message.
    """

    known: np.ndarray
    ways: Mapping[str, np.ndarray]
    guesses: Mapping[str, np.ndarray]


def claim(view: KgeView, laboratory: KgeLaboratory, rng: np.random.Generator) -> dict[str, Told | NotAttacked]:
    """Score each victim's candidates."""
    options, candidates = laboratory.options, laboratory.candidates(view)
    if not (view.threat_model.models or view.threat_model.server):
        check_broadcast(laboratory)
    if options.shadows:
        laboratory.check_repeatable()

    def signals_in(seen: KgeView, victim: VictimView, temperature: float | None = None) -> dict[str, Signals]:
        models = hold(seen, victim)
        if victim.name not in candidates:
            raise NotAttacked(TOO_FEW)
        return {name: model.signals(candidates[victim.name], temperature) for name, model in models.items()}

    shadows, data = [], {}
    for number in range(options.shadows if candidates else 0):
        shadow = laboratory.shadow(number, options.shadow_knowledge)
        data = data or shadow.data
        shadows.append((shadow.member, claim_each(shadow.view.victims, partial(signals_in, shadow.view))))
    temperature = laboratory.settings.options(seed=0).sampling_temperature

    def tell(victim: VictimView) -> Told:
        own_signals = signals_in(view, victim, temperature)
        triples = candidates[victim.name]
        auxiliary = set() if victim.auxiliary is None else {tuple(triple) for triple in victim.auxiliary}
        unknown_triples = np.array([tuple(triple) not in auxiliary for triple in triples], dtype=bool)
        others: list[dict[str, Signals]] = []
        for _, by_victim in shadows:
            signals = by_victim[victim.name]
            others.append({} if isinstance(signals, NotAttacked) else signals)
        for name in own_signals:
            for signals in (own_signals, *others):
                unknown_triples &= np.isfinite(signals[name]["score"]) if name in signals else False
        if unknown_triples.sum() < 4:  # two members and two controls
            raise NotAttacked(f"{TOO_FEW} that the adversary can be asked about")
        inside = np.array([member[victim.name][unknown_triples] for member, _ in shadows], dtype=bool)
        ways: dict[str, np.ndarray] = {}
        for name in own_signals:
            here, *there = (
                {kind: values[unknown_triples] for kind, values in signals[name].items()}
                for signals in (own_signals, *others)
            )
            for way, values in _ways(here, there, inside, options.shadow_knowledge).items():
                ways[f"{name}, {way}"] = values
        knowledge = data.get(victim.name, view.colluder.named_triples if view.colluder else victim.auxiliary)
        guesses = {}
        if knowledge is not None:
            guesses["names"] = names_scorer(knowledge)(triples[unknown_triples])
            guesses["degrees"] = degrees_scorer(knowledge)(triples[unknown_triples])
        return Told(unknown_triples, ways, guesses)

    return claim_each(view.victims, tell)


def _ways(
    own_signals: Signals, shadows: Sequence[Signals], inside: np.ndarray, knowledge: ShadowKnowledge
) -> dict[str, np.ndarray]:
    """Scores of each triple by way, float64 `[n]`; `inside`: bool `[S, n]`."""
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


def score(claims: Mapping[str, Told | NotAttacked], truth: Truth) -> list[Figure]:
    """Figures of every victim and of all together; of some that cannot be asked about the reason."""
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


def _group(truth: Truth, audit: Audited, answers: Told) -> Group:
    """Join a victim's scores with the truth, members first. Raises `NotAttacked` for fewer than two of either kind."""
    model = truth.threat_model
    alone = model.colluder and not model.server
    candidates = asked_candidates(truth.graph, audit, truth.colluders, truth.seed, alone=alone)[answers.known]
    order = np.argsort(candidates)
    member = candidates[order] < len(audit.members)
    m, c = int(member.sum()), int((~member).sum())
    if min(m, c) < 2:
        raise NotAttacked(f"{TOO_FEW} that the adversary can be asked about")
    client = truth.own(audit.name)
    triples = audit.triples[candidates[order]]
    ways, guesses = ({name: values[order] for name, values in part.items()} for part in (answers.ways, answers.guesses))
    unfair = []  # what tells members from controls although no adversary has it
    for name, scorer in data_scorers(client, audit).items():
        values = scorer(triples)
        auc = float(placements(values[member], values[~member]).members.mean())
        if abs(auc - 0.5) > UNFAIR * np.sqrt((m + c + 1) / (12 * m * c)):
            unfair.append(f"{name} {auc:.3f}")
    remark = f"controls are not fair: AUC by the victim's other triples: {', '.join(unfair)}" if unfair else ""
    return Group(audit.name, client.to_global(triples), member, ways, guesses, remark)


ATTACK = Attack(
    MEMBERSHIP,
    "tells triples that a client trained on from true ones that nobody trained on, by models, broadcasts or uploads",
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
