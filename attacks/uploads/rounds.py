"""What a server learns from the uploads of many rounds, where one upload says less (trajectories).

    found = run_attacks(result, AttackOptions(attack=("edges-rounds", "server-aux-rounds")))
    for one in headline(found.figures):
        print(one.victim, one.metric, one.estimate, one.by)                # hospital-2  precision  0.86 ...  both

Threat models and figures are those of `edges` (a server alone: which pairs of rows are linked) and of `server-aux` (one that was
told some triples: which others were trained on). Their ways on the last upload are among those that are compared here; the
others add up what each round says:

- `distances`: how near two rows lie, standardised in each round. `movements`: how straight a round's training moved them towards
  each other. `distances and movements`: both, in deviations.
- `fits`: the score by relations that were fitted to each round's rows. `changes`: by how much training raised it in each round.
  `fits and changes`: both, in deviations.

A pair that is trained on is drawn together in every round, others by chance in some; and early rounds, in which a row still
moves far, are not undone by later ones, in which it hardly does.

The transcript of a run keeps few uploads, the server all: so the run is trained once more with the same seed and options, which
gives the same uploads (under a defense from a script, by `run_attacks(..., train=...)` with its transport). Of long runs
`MOST_ROUNDS` uploads are taken, evenly spread. Of sums, a round's change is that of the mean.

Source: ours. Membership by the course of training: Zari et al. 2021 (passive server), Liu et al. 2022 (trajectories of loss).

Legend: `n` rows of a victim, `W` width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from fkgsec.attacks.arrays import in_deviations
from fkgsec.attacks.kge.view import KgeView, VictimView
from fkgsec.attacks.laboratory import Laboratory
from fkgsec.attacks.registry import Attack, Needs
from fkgsec.attacks.sums.plan import sums_of
from fkgsec.attacks.uploads import auxiliary, edges
from fkgsec.attacks.uploads.pairs import attraction, closeness, standardised
from fkgsec.attacks.uploads.questions import Scorer
from fkgsec.federation.messages import Opened
from fkgsec.kge.models import KgeModel

EDGES_ROUNDS, SERVER_AUX_ROUNDS = "edges-rounds", "server-aux-rounds"
MOST_ROUNDS = 20


def watch(view: KgeView, laboratory: Laboratory, attack_rounds: int | None = None) -> dict[str, list[VictimView] | str]:
    """Train the run once more; of each victim what the server has in each of the chosen rounds, at least two, or why there is
    nothing.

    All of a victim's views have the same rows in the same order. `received`: what training began from, of sums the means before.
    Nothing is trained where no victim's rows crossed.

    Args:
        attack_rounds: how many of the last rounds to choose from; None: all.
    """
    told = {victim.name: victim.auxiliary for victim in view.victims if victim.entities is not None}
    none = {victim.name: "no entity embedding of it crossed" for victim in view.victims if victim.entities is None}
    if not told:
        return dict(none)
    if reason := laboratory.obstacle or _assembled(view, laboratory):
        return {**none, **dict.fromkeys(told, reason)}
    last = view.round
    first = max(1, last - attack_rounds + 1) if attack_rounds is not None else 1
    chosen = np.unique(np.linspace(first, last, min(MOST_ROUNDS, last - first + 1)).round().astype(int)).tolist()
    needed = sorted({near for number in chosen for near in (number - 1, number)})
    again: KgeView = laboratory.train(rounds=needed)
    assert again.at is not None
    found: dict[str, list[VictimView]] = {name: [] for name in told}
    for number in chosen:
        for victim in again.at(number).victims:
            if victim.name in told and victim.entities is not None:
                found[victim.name].append(replace(victim, auxiliary=told[victim.name]))
    sums = {one.round: one for one in reversed(sums_of(again, "entities"))}
    seen = {name: _comparable(sums, views, needed, chosen) for name, views in found.items()}
    return {**none, **{name: views if len(views) > 1 else _too_few(len(views)) for name, views in seen.items()}}


def _assembled(view: KgeView, laboratory: Laboratory) -> str | None:
    """Why a round's upload is no whole one; None where it is."""
    if not any(victim.assembled for victim in view.victims):
        return None
    algorithm = laboratory.settings.algorithm
    return f"{algorithm} sends some rows of each round, which the server puts together over rounds anyway"


def _comparable(
    sums: Mapping[int, Opened], views: list[VictimView], needed: Sequence[int], chosen: Sequence[int]
) -> list[VictimView]:
    """Those of a victim's views that have the rows of the last one, and say something that the one before did not.

    Args:
        sums: of the table, by round.
    """
    summed = bool(views) and "entities" in views[-1].claims
    return _of_sums(sums, views[-1], needed, chosen) if summed else _changed(views)


def _too_few(count: int) -> str:
    words = "upload of it has" if count == 1 else "uploads of it have"
    return f"in the rounds looked at {count} {words} the rows of the last one; it takes 2"


def _changed(views: Sequence[VictimView]) -> list[VictimView]:
    """Without those of rounds that the victim sat out, in which its last upload is that of the round before."""
    kept: list[VictimView] = []
    for view in views:
        if not (kept and torch.equal(_rows(view), _rows(kept[-1]))):
            kept.append(view)
    return kept


def _of_sums(
    sums: Mapping[int, Opened], last: VictimView, needed: Sequence[int], chosen: Sequence[int]
) -> list[VictimView]:
    """The means of the rows that the server attributes to a victim in the end, after each chosen round; a row that is in no sum
    of a round stays what it was. Rounds before which some row was in no sum are left out."""
    rows, seen = last.claims["entities"].rows, ~_rows(last).isnan().any(dim=1).numpy()
    mean, found = np.full(tuple(_rows(last).shape), np.nan), []
    for number in needed:
        before, one = torch.from_numpy(mean.astype(np.float32)), sums.get(number)
        if one is not None:
            total, holders = (part[rows] for part in one.sums())
            there = holders > 0
            mean[there] = total[there] / holders[there, None]
        if number in chosen and one is not None and not np.isnan(mean[seen]).any():
            known = {} if before[torch.from_numpy(seen)].isnan().any() else {"entities": before}
            found.append(replace(last, entities=torch.from_numpy(mean.astype(np.float32)), received=known))
    return found


def _rows(view: VictimView) -> torch.Tensor:
    assert view.entities is not None
    return view.entities


def rank_over_rounds(
    view: KgeView, laboratory: Laboratory, rng: np.random.Generator, *, attack_rounds: int | None = None
) -> dict[str, edges.Ranked | str]:
    """By victim its pairs ranked by ways of one upload and of many, or why there is none."""
    found: dict[str, edges.Ranked | str] = {}
    views = watch(view, laboratory, attack_rounds)
    for victim in view.victims:
        seen = views[victim.name]
        if isinstance(seen, str):
            found[victim.name] = seen
            continue
        ranked = edges.rank_pairs(view, seen[-1], rng)
        if not isinstance(ranked, str):
            ranked = replace(ranked, ways={**ranked.ways, **pairs_over_rounds(view.model, seen, ranked)})
        found[victim.name] = ranked
    return found


def pairs_over_rounds(model: KgeModel, views: Sequence[VictimView], ranked: edges.Ranked) -> dict[str, np.ndarray]:
    """Scores `[P]` of pairs by what all rounds say of them, by way."""
    pairs, seen = ranked.pairs, np.flatnonzero(~_rows(views[-1]).isnan().any(dim=1).numpy())
    near, towards = np.zeros(len(pairs.first)), np.zeros(len(pairs.first))
    place = np.searchsorted(seen, pairs.rows)
    for view in views:
        rows = _rows(view)[torch.from_numpy(seen)].float()
        some = rows[torch.from_numpy(place)]
        near += standardised(closeness(model, some, rows), place)[pairs.mask]
        if (received := view.received.get("entities")) is not None:
            before = received[torch.from_numpy(seen)].float()
            towards += standardised(attraction(some, rows, place, before), place)[pairs.mask]
    found = {"distances": near}
    if towards.any():
        found |= {"movements": towards, "distances and movements": in_deviations(near) + in_deviations(towards)}
    return found


def fit_over_rounds(
    view: KgeView, laboratory: Laboratory, rng: np.random.Generator, *, attack_rounds: int | None = None
) -> dict[str, auxiliary.Fitted | str]:
    """By victim how triples are scored by ways of one upload and of many, or why they cannot be."""
    views = watch(view, laboratory, attack_rounds)
    return {
        victim.name: seen if isinstance(seen := views[victim.name], str) else triples_over_rounds(view.model, seen)
        for victim in view.victims
    }


def triples_over_rounds(model: KgeModel, views: Sequence[VictimView]) -> auxiliary.Fitted | str:
    """How triples are scored by the last of these uploads and by all, or why they cannot be."""
    fitted = [auxiliary.fit_relations_of(model, view) for view in views]
    last = fitted[-1]
    if isinstance(last, str):
        return last
    ways = dict(last.ways)
    for name, way in (("fits", "fit"), ("changes", "change")):
        rounds = [one.ways[way] for one in fitted if isinstance(one, auxiliary.Fitted) and way in one.ways]
        if rounds:
            ways[name] = _summed(rounds)
    if {"fits", "changes"} <= set(ways):
        fits, changes = ways["fits"], ways["changes"]
        ways["fits and changes"] = lambda triples: in_deviations(fits(triples)) + in_deviations(changes(triples))
    return replace(last, ways=ways)


def _summed(rounds: Sequence[Scorer]) -> Scorer:
    return lambda triples: np.sum([score(triples) for score in rounds], axis=0)


EDGES = Attack(
    EDGES_ROUNDS,
    "ranks pairs of a victim's rows by how likely a triple links them, by uploads of many rounds; trains the run again for them",
    Needs(entities=True, server=True),
    edges.METRICS,
    rank_over_rounds,
    edges.score,
    threats=("server",),
    items=edges.ATTACK.items,
    configured=lambda options: replace(EDGES, run=partial(rank_over_rounds, attack_rounds=options.attack_rounds)),
    trains=True,
)
TRIPLES = Attack(
    SERVER_AUX_ROUNDS,
    "tells triples that a victim trained on, by uploads of many rounds and some of its triples; trains the run again",
    Needs(names=True, entities=True, auxiliary=True, server=True),
    auxiliary.METRICS,
    fit_over_rounds,
    auxiliary.score,
    threats=("server+triples",),
    items=auxiliary.ATTACK.items,
    configured=lambda options: replace(TRIPLES, run=partial(fit_over_rounds, attack_rounds=options.attack_rounds)),
    trains=True,
)
