"""Attacks by a server on the uploads of many rounds (trajectories), which reveal more than one upload.

Threat models, required knowledge and figures are those of `edges` (a server alone: which pairs of rows are linked) and of
`server-aux` (a server that knows some triples: which others were trained on). Methods on the last upload are compared with
methods that add up all rounds:

- `distances`: closeness of two rows, standardized in each round. `movements`: how straight a round's training moved them
  towards each other. `distances and movements`: both, standardized.
- `fits`: the score by relations that were fitted to each round's rows. `changes`: how much training raised it in each round.
  `fits and changes`: both, standardized.

Training draws a trained pair together in every round, and other pairs by chance in some rounds. The transcript of a run keeps
few uploads, so the run is trained once more with the same seed and options, which gives the same uploads. Of long runs
`MOST_ROUNDS` evenly spaced uploads are used. Of sums, a round's change is that of the mean.

Source: ours. Membership by the course of training: Zari et al. 2021 (passive server), Liu et al. 2022 (trajectories of loss).

Legend: `n` rows of a victim, `W` width.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

import numpy as np
import torch

from fkgsec.attacks.arrays import in_deviations
from fkgsec.attacks.kge.view import KgeView, VictimView
from fkgsec.attacks.laboratory import Laboratory
from fkgsec.attacks.needs import Needs
from fkgsec.attacks.registry import Attack
from fkgsec.attacks.uploads import auxiliary, edges
from fkgsec.attacks.uploads.pairs import attraction, closeness, standardised
from fkgsec.attacks.uploads.questions import Scorer
from fkgsec.attacks.view import NotAttacked, claim_each
from fkgsec.federation.messages import Opened
from fkgsec.kge.models import KgeModel

EDGES_ROUNDS, SERVER_AUX_ROUNDS = "edges-rounds", "server-aux-rounds"
MOST_ROUNDS = 20
T = TypeVar("T")


def watch(
    view: KgeView, laboratory: Laboratory, claim: Callable[[Sequence[VictimView]], T]
) -> dict[str, T | NotAttacked]:
    """Train the run once more, and attack each victim with the server's views of several rounds.

    Nothing is trained if no victim's rows were transmitted. Rounds are chosen from the last `attack_rounds`.

    Args:
        laboratory: repeats the run.
        claim: attacks a victim from its views of at least two rounds, with the same rows in the same order. `received` holds
            the rows that training started from; of sums, the means before.

    Returns:
        Claims by victim name, or why the victim cannot be attacked.
    """
    if all(victim.entities is None for victim in view.victims):
        raise NotAttacked("none of its entity embeddings was transmitted")
    if any(victim.assembled for victim in view.victims):
        algorithm = laboratory.settings.algorithm
        raise NotAttacked(
            f"{algorithm} sends some rows of each round, which the server puts together over rounds anyway"
        )
    last, attack_rounds = view.round, laboratory.options.attack_rounds
    first = max(1, last - attack_rounds + 1) if attack_rounds is not None else 1
    # Evenly spaced rounds up to the attacked one.
    chosen = np.unique(np.linspace(first, last, min(MOST_ROUNDS, last - first + 1)).round().astype(int)).tolist()
    # The round before each chosen one shows what the victim received.
    needed = sorted({near for number in chosen for near in (number - 1, number)})
    again: KgeView = laboratory.train(rounds=needed)
    assert again.at is not None
    rounds = [again.at(number) for number in chosen]
    sums = {opened.round: opened for opened in reversed(again.sums_of("entities"))}

    def comparable(victim: VictimView) -> list[VictimView]:
        """Select views with the rows of the last one that differ from the view before."""
        victim.crossed()
        views = [
            victim_seen
            for seen in rounds
            for victim_seen in seen.victims
            if victim_seen.name == victim.name and victim_seen.entities is not None
        ]
        views = [replace(view, auxiliary=victim.auxiliary) for view in views]
        if views and "entities" in views[-1].claims:
            views = _of_sums(sums, views[-1], needed, chosen)
        else:
            # In a round without the victim, its last upload is that of the round before: leave the round out.
            views = [
                victim_seen
                for before, victim_seen in zip([None, *views], views, strict=False)
                if before is None or not torch.equal(_rows(victim_seen), _rows(before))
            ]
        # One upload is what `edges` and `server-aux` already use.
        if len(views) < 2:
            words = "upload of it has" if len(views) == 1 else "uploads of it have"
            raise NotAttacked(f"in the rounds looked at {len(views)} {words} the rows of the last one; it takes 2")
        return views

    return claim_each(view.victims, lambda victim: claim(comparable(victim)))


def _of_sums(
    sums: Mapping[int, Opened], last: VictimView, needed: Sequence[int], chosen: Sequence[int]
) -> list[VictimView]:
    """Return the means of the rows that the server finally attributes to a victim, after each chosen round.

    A row that is in no sum of a round stays unchanged. Rounds before which some row was in no sum are left out.
    """
    rows, seen = last.claims["entities"].rows, ~_rows(last).isnan().any(dim=1).numpy()
    mean, views = np.full(tuple(_rows(last).shape), np.nan), []
    for number in needed:
        before, opened = torch.from_numpy(mean.astype(np.float32)), sums.get(number)
        if opened is not None:
            total, holders = (part[rows] for part in opened.sums())
            there = holders > 0
            mean[there] = total[there] / holders[there, None]
        if number in chosen and opened is not None and not np.isnan(mean[seen]).any():
            tables = {} if before[torch.from_numpy(seen)].isnan().any() else {"entities": before}
            views.append(replace(last, entities=torch.from_numpy(mean.astype(np.float32)), received=tables))
    return views


def _rows(view: VictimView) -> torch.Tensor:
    assert view.entities is not None
    return view.entities


def rank_over_rounds(
    view: KgeView, laboratory: Laboratory, rng: np.random.Generator
) -> dict[str, edges.Ranked | NotAttacked]:
    """Rank each victim's pairs by methods on one upload and on many."""

    def rank(seen: Sequence[VictimView]) -> edges.Ranked:
        """Rank one victim's pairs."""
        ranked = edges.rank_pairs(view, seen[-1], rng)
        return replace(ranked, ways={**ranked.ways, **pairs_over_rounds(view.model, seen, ranked)})

    return watch(view, laboratory, rank)


def pairs_over_rounds(model: KgeModel, views: Sequence[VictimView], ranked: edges.Ranked) -> dict[str, np.ndarray]:
    """Score pairs by the uploads of all rounds.

    Args:
        views: views of one victim, one per round.
        ranked: ranking by the last upload, with the candidate pairs.

    Returns:
        Scores `[P]` by inference method.
    """
    pairs, seen = ranked.pairs, np.flatnonzero(~_rows(views[-1]).isnan().any(dim=1).numpy())
    near, towards = np.zeros(len(pairs.first)), np.zeros(len(pairs.first))
    place = np.searchsorted(seen, pairs.rows)
    for view in views:
        rows = _rows(view)[torch.from_numpy(seen)].float()
        some = rows[torch.from_numpy(place)]
        # Noise of single rounds averages out in the sum; a trained pair is near in every round.
        near += standardised(closeness(model, some, rows), place)[pairs.mask]
        if (received := view.received.get("entities")) is not None:
            before = received[torch.from_numpy(seen)].float()
            towards += standardised(attraction(some, rows, place, before), place)[pairs.mask]
    ways = {"distances": near}
    if towards.any():
        ways |= {"movements": towards, "distances and movements": in_deviations(near) + in_deviations(towards)}
    return ways


def fit_over_rounds(
    view: KgeView, laboratory: Laboratory, rng: np.random.Generator
) -> dict[str, auxiliary.Fitted | NotAttacked]:
    """Score each victim's triples by methods on one upload and on many."""
    return watch(view, laboratory, partial(triples_over_rounds, view.model))


def triples_over_rounds(model: KgeModel, views: Sequence[VictimView]) -> auxiliary.Fitted:
    """Build scorers of triples from the last upload and from all.

    Args:
        views: views of one victim with auxiliary triples, one per round.
    """
    last, fitted = auxiliary.fit_relations_of(model, views[-1]), []
    for view in views:
        with contextlib.suppress(NotAttacked):
            fitted.append(auxiliary.fit_relations_of(model, view))
    ways = dict(last.ways)

    def summed(way: str) -> Scorer:
        """Build a scorer that adds the scores of all rounds."""
        rounds = [scorers.ways[way] for scorers in fitted if way in scorers.ways]
        return lambda triples: np.sum([score(triples) for score in rounds], axis=0)

    # Relations are fitted anew to each round's rows, which drift during training.
    fits = ways["fits"] = summed("fit")
    if any("change" in scorers.ways for scorers in fitted):
        changes = ways["changes"] = summed("change")
        ways["fits and changes"] = lambda triples: in_deviations(fits(triples)) + in_deviations(changes(triples))
    return replace(last, ways=ways)


EDGES = Attack(
    EDGES_ROUNDS,
    "ranks pairs of a victim's rows by how likely a triple links them, by uploads of many rounds; trains the run again for them",
    Needs(entities=True, server=True),
    edges.METRICS,
    rank_over_rounds,
    edges.score,
    threats=("server",),
    questions=edges.ATTACK.questions,
    items=edges.ATTACK.items,
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
    questions=auxiliary.ATTACK.questions,
    items=auxiliary.ATTACK.items,
    trains=True,
)
