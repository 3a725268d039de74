"""The membership attack: which training triples can be told from never-seen ones, and by whom?

    options = AttackOptions(attack=("membership",), threat=("models",), shadows=4)
    for one in headline(run_attacks(result, options).figures):
        print(one.victim, one.metric, one.estimate, one.by)       # hospital-1  auc  0.98 [0.96, 0.99]  global, rmia, same graph

Threat models: "models" (whoever holds the models that clients are left with), "client" (one that receives broadcasts),
"server+triples" and "identifiers" (a server that receives uploads, or their sums); what each asks stands in
`attacks.membership.adversaries`. Its ways, all of which are figures, the strongest with an interval that counts the choice:

- `score`, `loss`, `rank` take nothing but the rows.
- `calibrated`, `lira`, `lira-linear`, `rmia` take shadow federations, too (`shadows`, an even number from 4 on), trained by the
  same loop and under the same defense on what `shadow_knowledge` names (`attacks.membership.shadows`), of which the adversary
  keeps what it would have seen. The name of the knowledge stands behind the way.

Members are random training triples of each client, at most half of them, beside triples of the same relation and of like degrees
that nobody ever trained on (`attacks.membership.candidates`): only triples that the adversary has rows of; a client is asked of
those whose pair none of its own links, a server of those that it was not told. Baselines, of which the best is shown: chance, and
what data alone tell, `names` and `degrees` in the rest of the victim's training triples; controls are fair where these are at
chance.

`auc_shared`, `tpr@..._shared`: under "models" of the federation's model alone, which is what is released; a client's own one was
trained on its data after the last message that a defense is for.

Source: Yeom et al. 2018 (loss), Carlini et al. 2022 (lira), Watson et al. 2022 (calibrated), Zarifzadeh et al. 2024 (rmia); see
`attacks.membership.statistics`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from attacks.clients.asking import askable, nothing_broadcast
from attacks.figure import Figure
from attacks.kge.view import AUXILIARY, KgeView, kge_view
from attacks.membership.adversaries import Asked, Held, Signals, hold
from attacks.membership.audits import Audited
from attacks.membership.candidates import data_scorers, draw_candidates, kept_candidates
from attacks.membership.evaluation import METRICS, OF_SHARED, Group, group_figures, item_table, together
from attacks.membership.shadows import ShadowKnowledge, shadow_federation, shadow_options
from attacks.membership.statistics import (
    calibrated,
    likelihood_ratio,
    linear_likelihood_ratio,
    loss_threshold,
    rank_threshold,
    relative_probability,
)
from attacks.poisoning.planting import obstacle
from attacks.reconstruction.options import KgeAttackOptions
from attacks.registry import MEMBERSHIP, Attack, Needs, Truth
from attacks.uploads.questions import named
from attacks.view import MODELS
from fkgsec.errors import TrainingError

TOO_FEW = "too few training triples with matched never-seen ones"
Claims = Mapping[str, Mapping[str, Held] | str]
"""By victim the rows that the adversary can ask, by name; or why it has none."""


@dataclass(frozen=True, eq=False)
class _Shadow:
    """What one shadow federation says: by victim which of its candidates it trained on, bool `[m + c]`, and by victim and name of
    the rows their signals, NaN where it has no rows of a triple."""

    member: Mapping[str, np.ndarray]
    signals: Mapping[tuple[str, str], Signals]


def claim(view: KgeView, rng: np.random.Generator) -> Claims:
    """What the adversary asks of each victim's triples."""
    return {victim.name: hold(view, victim) for victim in view.victims}


def score(
    claims: Claims,
    truth: Truth,
    *,
    num_shadows: int = 0,
    knowledge: ShadowKnowledge = "same-graph",
    auxiliary: float = AUXILIARY,
) -> list[Figure]:
    """Figures of every victim and of all together; of some that cannot be asked about the reason."""
    audits = draw_candidates(truth.graph, truth.seed)
    usable = [audit for audit in audits if audit.reason is None]
    reason = _why_none(truth) or (obstacle(truth) if num_shadows else None)
    found = _shadows(truth, usable, num_shadows, knowledge, auxiliary) if usable and not reason else []
    if isinstance(found, str):
        reason, found = found, []
    figures: list[Figure] = []
    groups: list[Group] = []
    for victim, held in claims.items():
        audit = next((one for one in usable if one.name == victim), None)
        why = reason or (held if isinstance(held, str) else None if audit else TOO_FEW)
        group = None if why or audit is None or isinstance(held, str) else _group(truth, audit, held, found, knowledge)
        if group is None:
            figures += truth.not_attacked(victim, why or f"{TOO_FEW} that the adversary can be asked about")
        else:
            groups.append(group)
    for group, num_attacked in [*((one, 1) for one in groups), *([(together(groups), len(groups))] if groups else [])]:
        made = group_figures(truth, group, num_attacked)
        figures += made
        truth.scores.append(item_table(truth, group, made))
    return figures


def _why_none(truth: Truth) -> str | None:
    """Why nobody's triples can be asked about; None where they can."""
    model = truth.view.threat_model
    return None if model.models or model.server else nothing_broadcast(truth)


def _shadows(
    truth: Truth, audits: Sequence[Audited], count: int, knowledge: ShadowKnowledge, auxiliary: float
) -> list[_Shadow] | str:
    """Train so many federations and keep what the adversary would have seen of each; or say why one broke down."""
    found = []
    for number in range(count):
        shadow = shadow_federation(truth.graph, audits, number, seed=truth.seed, knowledge=knowledge)
        try:
            result = truth.view.train(shadow.graph, shadow_options(truth.result.options, number, seed=truth.seed))
        except TrainingError as error:
            return f"shadow federation {number + 1} broke down: {error}"
        view = kge_view(
            result, truth.view.threat_model, colluder=truth.colluders, leak=truth.view.leak, seed=truth.seed,
            auxiliary=auxiliary,
        )  # fmt: skip
        triples = {audit.name: audit.triples for audit in audits}
        signals = {
            (victim.name, name): _signals(_located(truth, victim.name, rows), triples[victim.name])
            for victim in view.victims
            if victim.name in triples and not isinstance(held := hold(view, victim), str)
            for name, rows in held.items()
        }
        found.append(_Shadow(shadow.member, signals))
    return found


def _located(truth: Truth, victim: str, held: Held) -> Asked:
    """Rows by the victim's local ids."""
    client = truth.client(victim)
    entities, relations = (np.array(one, dtype=object) for one in (truth.graph.entities, truth.graph.relations))
    return held.located(entities[client.entity_ids], relations[client.relation_ids])


def _signals(asked: Asked, triples: np.ndarray, temperature: float | None = None) -> Signals:
    """Of all triples `[n, 3]`, NaN where there are no rows of them."""
    known = asked.knows(triples)
    some = asked.signals(triples[known], temperature)

    def spread(values: np.ndarray | None) -> np.ndarray | None:
        if values is None:
            return None
        whole = np.full(len(triples), np.nan)
        whole[known] = values
        return whole

    return Signals(*map(spread, some))  # pyright: ignore[reportArgumentType]


def _group(
    truth: Truth, audit: Audited, held: Mapping[str, Held], shadows: Sequence[_Shadow], knowledge: ShadowKnowledge
) -> Group | None:
    """What each way says of a victim's candidates that the adversary can be asked about; None where these are fewer than two."""
    triples, temperature = audit.triples, truth.result.options.sampling_temperature
    own = {name: _signals(_located(truth, audit.name, rows), triples, temperature) for name, rows in held.items()}
    several = {name: [one.signals.get((audit.name, name)) for one in shadows] for name in own}
    usable = _may_be_asked(truth, audit)
    for name, signals in own.items():
        for one in (signals, *several[name]):
            usable &= np.zeros(len(triples), dtype=bool) if one is None else np.isfinite(one.scores)
    asked = kept_candidates(audit, usable)
    if min(len(asked.members), len(asked.controls)) < 2:
        return None
    ways: dict[str, np.ndarray] = {}
    for name, signals in own.items():
        inside = np.array([one.member[audit.name][usable] for one in shadows], dtype=bool)
        others = [_only(one, usable) for one in several[name] if one is not None]
        for way, values in _ways(_only(signals, usable), others, inside, knowledge).items():
            ways[f"{name}, {way}"] = values
    client = truth.client(audit.name)
    guesses = {name: scorer(asked.triples) for name, scorer in data_scorers(client, audit).items()}
    return Group(audit.name, client.to_global(asked.triples), asked.forgotten, ways, guesses)


def _may_be_asked(truth: Truth, audit: Audited) -> np.ndarray:
    """Which candidates the adversary does not know of without any attack, bool `[m + c]`."""
    triples, model = audit.triples, truth.view.threat_model
    if model.colluder and not model.server:
        return askable(truth, audit.name)(triples)
    victim = next(one for one in truth.view.victims if one.name == audit.name)
    told = set() if victim.auxiliary is None else {tuple(triple) for triple in victim.auxiliary}
    return np.array([tuple(triple) not in told for triple in named(truth, audit.name, triples)], dtype=bool)


def _only(signals: Signals, chosen: np.ndarray) -> Signals:
    return Signals(*(None if values is None else values[chosen] for values in signals))  # pyright: ignore[reportArgumentType]


def _ways(
    own: Signals, shadows: Sequence[Signals], inside: np.ndarray, knowledge: ShadowKnowledge
) -> dict[str, np.ndarray]:
    """By way what it says of each triple, float64 `[n]`; `inside`: bool `[S, n]`."""
    assert own.losses is not None
    ways = {"score": own.scores, "loss": loss_threshold(own.losses), "rank": rank_threshold(own.log_rank)}
    if not shadows:
        return ways
    scores = np.stack([one.scores for one in shadows])
    probabilities = np.stack([one.log_probability for one in shadows])
    known = knowledge.replace("-", " ")
    return ways | {
        f"calibrated, {known}": calibrated(own.scores, scores, inside),
        f"lira, {known}": likelihood_ratio(own.scores, scores, inside),
        f"lira-linear, {known}": linear_likelihood_ratio(own.scores, scores, inside),
        f"rmia, {known}": relative_probability(own.log_probability, probabilities, inside),
    }


def configured(options: KgeAttackOptions) -> Attack:
    """The attack under these options."""
    return replace(
        ATTACK,
        score=partial(
            score, num_shadows=options.shadows, knowledge=options.shadow_knowledge, auxiliary=options.auxiliary
        ),
    )


ATTACK = Attack(
    MEMBERSHIP,
    "tells triples that a client trained on from true ones that nobody trained on, by models, broadcasts or uploads",
    Needs(models=True),
    METRICS | OF_SHARED,
    claim,
    score,
    threats=(MODELS, "client", "server+triples"),
    items=dict.fromkeys(METRICS | OF_SHARED, "matched triples"),
    configured=configured,
    in_order=True,
    leads=("auc", "auc_shared"),
    also=(
        Needs(entities=True, alone=True),
        Needs(names=True, entities=True, server=True, colluder=True),
        Needs(names=True, entities=True, server=True, auxiliary=True),
    ),
)
