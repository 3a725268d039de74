"""The membership attack: which training triples can be told from never-seen ones, and by whom?

    options = AttackOptions(attack=("membership",), threat=("models",), shadows=4)
    for one in headline(run_attacks(result, options).figures):
        print(one.victim, one.metric, one.estimate, one.by)       # hospital-1  auc  0.98 [0.96, 0.99]  global, rmia, same graph

Threat models: "models" (whoever holds the models that clients are left with), "client" (one that receives broadcasts),
"server+triples" and "identifiers" (a server that receives uploads, or their sums); what each asks stands in
`fkgsec.attacks.membership.adversaries`. Its ways, all of which are figures, the strongest with an interval that counts the
choice:

- `score`, `loss`, `rank` take nothing but the rows.
- `calibrated`, `lira`, `lira-linear`, `rmia` take shadow federations, too (`shadows`, an even number from 4 on), trained by the
  same loop and under the same defense on what `shadow_knowledge` names (`fkgsec.attacks.membership.shadows`), of which the
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

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

import numpy as np

from fkgsec.attacks.clients.asking import nothing_broadcast
from fkgsec.attacks.figure import Figure
from fkgsec.attacks.kge.laboratory import KgeLaboratory
from fkgsec.attacks.kge.view import KgeView, VictimView
from fkgsec.attacks.membership.adversaries import Signals, hold
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
)
from fkgsec.attacks.options import MEMBERSHIP, MODELS, KgeAttackOptions, ShadowKnowledge
from fkgsec.attacks.registry import Attack, Needs, Truth
from fkgsec.attacks.uploads.questions import degrees_scorer, names_scorer
from fkgsec.errors import TrainingError

TOO_FEW = "too few training triples with matched never-seen ones"
UNFAIR = 4  # standard errors of an AUC of .5


@dataclass(frozen=True, eq=False)
class Told:
    """What an adversary says of a victim's candidates.

    Attributes:
        known: bool `[k]`, which candidates it can say anything of.
        ways, guesses: by name, float64 of these, larger for those that are taken for members. Guesses take no message.
    """

    known: np.ndarray
    ways: Mapping[str, np.ndarray]
    guesses: Mapping[str, np.ndarray]


_Shadow: TypeAlias = tuple[Mapping[str, np.ndarray], Mapping[tuple[str, str], Signals]]
"""Of one shadow federation by victim which of its candidates it trained on, bool `[k]`, and by victim and name of the rows their
signals, NaN where it has no rows of a triple."""


def claim(
    view: KgeView,
    laboratory: KgeLaboratory,
    rng: np.random.Generator,
    *,
    num_shadows: int = 0,
    knowledge: ShadowKnowledge = "same-graph",
) -> dict[str, Told | str]:
    """By victim what the adversary says of its candidates, or why it can say nothing."""
    silent = None if view.threat_model.models or view.threat_model.server else nothing_broadcast(laboratory)
    asked = {victim.name: victim.candidates for victim in view.victims if victim.candidates is not None}
    reason = silent or (laboratory.obstacle if num_shadows else None)
    shadows: list[_Shadow] = []
    data: Mapping[str, np.ndarray] = {}
    for number in range(0 if reason or not asked else num_shadows):
        try:
            shadow = laboratory.shadow(number, knowledge)
        except TrainingError as error:
            reason = f"shadow federation {number + 1} broke down: {error}"
            break
        data = data or shadow.data
        signals = {
            (victim.name, name): rows.signals(asked[victim.name])
            for victim in shadow.view.victims
            if victim.name in asked and not isinstance(held := hold(shadow.view, victim), str)
            for name, rows in held.items()
        }
        shadows.append((shadow.member, signals))
    temperature, found = laboratory.settings.options(seed=0).sampling_temperature, {}
    for victim in view.victims:
        held = reason or hold(view, victim)
        if isinstance(held, str) or victim.candidates is None:
            found[victim.name] = held if isinstance(held, str) else TOO_FEW
        else:
            known = view.colluder.named_triples if view.colluder else victim.auxiliary
            own = {name: rows.signals(victim.candidates, temperature) for name, rows in held.items()}
            known = data.get(victim.name, known)
            found[victim.name] = _tell(victim, own, shadows, knowledge, known)
    return found


def _tell(
    victim: VictimView,
    own: Mapping[str, Signals],
    shadows: Sequence[_Shadow],
    knowledge: ShadowKnowledge,
    data: np.ndarray | None,
) -> Told | str:
    """What each way says of a victim's candidates; why there are too few.

    Args:
        own: by name of the rows. data: triples of names that the adversary knows whatever crossed, object `[t, 3]`.
    """
    assert victim.candidates is not None
    told = set() if victim.auxiliary is None else {tuple(triple) for triple in victim.auxiliary}
    known = np.array([tuple(triple) not in told for triple in victim.candidates], dtype=bool)
    several = {name: [signals.get((victim.name, name)) for _, signals in shadows] for name in own}
    for name, signals in own.items():
        for one in (signals, *several[name]):
            known &= np.zeros(len(known), dtype=bool) if one is None else np.isfinite(one.scores)
    if known.sum() < 4:  # two members and two controls
        return f"{TOO_FEW} that the adversary can be asked about"
    inside = np.array([member[victim.name][known] for member, _ in shadows], dtype=bool)
    ways: dict[str, np.ndarray] = {}
    for name, signals in own.items():
        others = [_only(one, known) for one in several[name] if one is not None]
        for way, values in _ways(_only(signals, known), others, inside, knowledge).items():
            ways[f"{name}, {way}"] = values
    asked = victim.candidates[known]
    scorers = {} if data is None else {"names": names_scorer(data), "degrees": degrees_scorer(data)}
    return Told(known, ways, {name: scorer(asked) for name, scorer in scorers.items()})


def score(claims: Mapping[str, Told | str], truth: Truth) -> list[Figure]:
    """Figures of every victim and of all together; of some that cannot be asked about the reason."""
    audits = {audit.name: audit for audit in draw_candidates(truth.graph, truth.seed) if audit.reason is None}
    figures: list[Figure] = []
    groups: list[Group] = []
    for victim, told in claims.items():
        group = told if isinstance(told, str) else _group(truth, audits[victim], told)
        if isinstance(group, str):
            figures += truth.not_attacked(victim, group)
        else:
            groups.append(group)
    for group, num_attacked in [*((one, 1) for one in groups), *([(together(groups), len(groups))] if groups else [])]:
        made = group_figures(truth, group, num_attacked)
        figures += made
        truth.scores.append(item_table(truth, group, made))
    return figures


def _group(truth: Truth, audit: Audited, told: Told) -> Group | str:
    """What each way says of a victim's candidates, members first; why not, where either kind are fewer than two."""
    model = truth.threat_model
    alone = model.colluder and not model.server
    asked = asked_candidates(truth.graph, audit, truth.colluders, truth.seed, alone=alone)[told.known]
    order = np.argsort(asked)
    member = asked[order] < len(audit.members)
    if min(member.sum(), (~member).sum()) < 2:
        return f"{TOO_FEW} that the adversary can be asked about"
    client = truth.own(audit.name)
    triples = audit.triples[asked[order]]
    ways, guesses = ({name: values[order] for name, values in one.items()} for one in (told.ways, told.guesses))
    unfair = _unfair(data_scorers(client, audit), triples, member)
    return Group(audit.name, client.to_global(triples), member, ways, guesses, unfair)


def _unfair(scorers: Mapping[str, Callable[[np.ndarray], np.ndarray]], triples: np.ndarray, member: np.ndarray) -> str:
    """What tells members from controls although no adversary has it: by the victim's other triples; empty for fair controls."""
    m, c = int(member.sum()), int((~member).sum())
    found = []
    for name, scorer in scorers.items():
        values = scorer(triples)
        auc = float(placements(values[member], values[~member]).members.mean())
        if abs(auc - 0.5) > UNFAIR * np.sqrt((m + c + 1) / (12 * m * c)):
            found.append(f"{name} {auc:.3f}")
    return f"controls are not fair: AUC by the victim's other triples: {', '.join(found)}" if found else ""


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
    return replace(ATTACK, run=partial(claim, num_shadows=options.shadows, knowledge=options.shadow_knowledge))


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
    asks=True,
    leads=("auc", "auc_shared"),
    also=(
        Needs(entities=True, alone=True),
        Needs(names=True, entities=True, server=True, colluder=True),
        Needs(names=True, entities=True, server=True, auxiliary=True),
    ),
)
