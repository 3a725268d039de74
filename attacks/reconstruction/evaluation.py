"""Leakage figures: what an attack inferred, joined with the truth afterwards.

ERR: entities of the victim whose name the adversary gets right from embeddings, over all entities of the victim.
TRR: training triples of the victim that the adversary rebuilds (head, relation and tail right), over all of them, with the
linked pairs given to the adversary (fedr.txt's way). `Unlinked` is the honest attack without that gift. Beside each stand the
same figure for an adversary with the same knowledge and no embeddings, and the most that this knowledge can give.

Source: fedr.txt 3.1; the baselines and `Unlinked` are ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import pandas as pd

from attacks.reconstruction import published
from attacks.reconstruction.inference import (
    EntityGuesses,
    Inference,
    PairRanking,
    infer_entities,
    infer_entities_nearest,
    infer_relation_rows,
    nothing_to_attack,
    rank_pairs,
)
from attacks.reconstruction.knowledge import attainable, chance_of_name, chance_of_pair, why_no_triple
from attacks.reconstruction.leak_draws import LEAK_DRAWS, other_seeds, widen
from attacks.reconstruction.leakage import INFERENCES, PAPER, Counts, Leakage, leakage_rows
from attacks.reconstruction.options import AttackOptions, default_threats
from attacks.reconstruction.relation_guesses import BY_VECTOR, RelationGuesser
from attacks.reconstruction.unlinked import Unlinked, measure_unlinked, sample_heads
from attacks.view import THREAT_MODELS, VictimView, View, build_view, check_attackable
from fkgsec.data.graph import ClientGraph
from fkgsec.errors import ThreatModelError
from fkgsec.federation.loop import FederationResult
from fkgsec.federation.recipes import Table
from fkgsec.randomness import generator

NO_NAME = ""  # where the adversary makes no guess


def attack_federation(
    result: FederationResult, options: AttackOptions, *, leak_draws: int = LEAK_DRAWS
) -> tuple[list[Leakage], pd.DataFrame]:
    """Run the reconstruction attack under every threat model and leak ratio asked for.

    Args:
        leak_draws: how often it is run again on other leaked entities, for the intervals, see
        `attacks.reconstruction.leak_draws`.

    Returns:
        For each threat model and leak, by each inference and then by the strongest of them: leakage of each victim, followed
        by "all"; and the score of every item (an entity or a triple of a victim) as a table, see
        `attacks.reconstruction.leakage.items_of`.

    Raises:
        ThreatModelError: the threat model does not fit the run.
    """
    check_attackable(result.graph, result.options.algorithm, options.colluder)
    rows: dict[tuple[str, float], list[Leakage]] = {}
    items: dict[tuple[str, float], list[pd.DataFrame]] = {}
    threats = options.threat or default_threats(result.options.algorithm)
    for leak in options.leak:
        first = _attack_draw(result, options, threats, leak)
        open_to_chance = [
            name for name, (found, _) in first.items() if leak < 1 and any(not row.reason for row in found)
        ]
        others = [
            _attack_draw(result, msgspec.structs.replace(options, seed=seed, unlinked_heads=0), open_to_chance, leak)
            for seed in (other_seeds(options.seed, leak_draws) if open_to_chance else [])
        ]
        for name, (found, scores) in first.items():
            drawn = [other[name][0] for other in others if name in other]
            rows[name, leak], items[name, leak] = widen(found, drawn), scores
    order = [(name, leak) for name in threats for leak in options.leak]
    tables = [table for key in order for table in items[key]]
    return [row for key in order for row in rows[key]], pd.concat(tables, ignore_index=True)


def _attack_draw(
    result: FederationResult, options: AttackOptions, threats: Sequence[str], leak: float
) -> dict[str, tuple[list[Leakage], list[pd.DataFrame]]]:
    """By threat model the rows and each victim's items, of one draw of the leaked entities, which is that of the seed.

    Threat models of one draw differ in names: what is learnt from the colluder, and what compares rows, serves all of them.
    """
    colluder = options.colluder or result.graph.clients[0].name
    graphs = {client.name: client for client in result.graph.clients}
    truth = {name: _Truth(result, graph, graphs[colluder]) for name, graph in graphs.items() if name != colluder}
    found, guesser, rankings = {}, None, {}
    for name in threats:
        view = build_view(result, THREAT_MODELS[name], colluder=colluder, leak=leak, seed=options.seed)
        if guesser is None and view.colluder is not None:
            guesser = RelationGuesser(view.model, view.colluder, options.seed)
        counts = [
            _attack_victim(view, victim, truth[victim.name], options, guesser, rankings) for victim in view.victims
        ]
        learned = any(not count.reason for count in counts) and "learned" in _fitting(view, options)
        note = guesser.learner.note if learned and guesser else None
        rows = leakage_rows(view, options.metric, _fitting(view, options), colluder, counts, note)
        found[name] = rows, [count.items.assign(threat_model=name, leak=leak) for count in counts]
    return found


class _Truth:
    """A victim's names and training triples, for the evaluator alone."""

    def __init__(self, result: FederationResult, graph: ClientGraph, colluder: ClientGraph) -> None:
        self.graph = graph
        own, other = (set(client.relation_ids[client.train[:, 1]]) for client in (graph, colluder))
        self.shares_relation = bool(own & other)
        self._row_names = result.row_names
        self.entity_names = np.array(result.graph.entities, dtype=object)[graph.entity_ids]
        self.relation_names = np.array(result.graph.relations, dtype=object)[graph.relation_ids]
        self.num_entities = graph.num_trained_entities

    def places(self, victim: VictimView, table: Table) -> np.ndarray:
        """Where each of its entities or relations stands among the rows the adversary has of it, -1 where it does not."""
        names = self.entity_names if table == "entities" else self.relation_names
        if table not in victim.claims:
            return np.arange(len(names))
        claimed = {self._row_names[table][row]: place for place, row in enumerate(victim.claims[table].rows)}
        return np.array([claimed.get(name, -1) for name in names], dtype=np.int64)

    @property
    def pairs(self) -> np.ndarray:
        return self.graph.train[:, [0, 2]]

    @property
    def relations(self) -> np.ndarray:
        return self.relation_names[self.graph.train[:, 1]]


def _attack_victim(
    view: View,
    victim: VictimView,
    truth: _Truth,
    options: AttackOptions,
    guesser: RelationGuesser | None,
    rankings: dict[tuple[str, str], PairRanking],
) -> Counts:
    """What was got of one victim. `rankings`: of this draw's candidate pairs, which names do not change; filled in."""
    counts = Counts(victim.name, truth.num_entities, len(truth.graph.train))
    counts.reason = nothing_to_attack(view, victim)
    if counts.reason:
        # Names that crossed give every entity away, whether or not an embedding did.
        aligned = victim.entity_names is not None and "entities" not in victim.claims
        holdings = "entities" in view.secure and view.secure["entities"].holdings and view.threat_model.identifiers
        counts.entities_baseline = float(truth.num_entities) if aligned or holdings else 0.0
        return counts
    assert view.colluder is not None
    names = truth.entity_names[: truth.num_entities]
    if options.metric == "published":
        if victim.claims:
            raise ThreatModelError("metric published counts uploads in clear; take metric paper where they are summed")
        found = published.count(view, victim, names, truth.pairs, truth.relations)
        counts.entities, counts.entities_baseline = {PAPER: found.entities}, found.entities_baseline
        counts.triples, counts.triples_baseline = {PAPER: found.triples}, found.triples_baseline
        counts.triples_prior = found.triples_baseline
        return counts
    named, rebuilt = attainable(view, victim, names, truth.pairs, truth.relations)
    counts.entities_attainable, counts.triples_attainable = float(named.sum()), float(rebuilt.sum())
    counts.remark = None if rebuilt.any() else why_no_triple(named, shares_relation=truth.shares_relation)
    assert guesser is not None
    guesses = _name_entities(view, victim, truth, _fitting(view, options))
    guessed = _relation_guesses(view, victim, truth, guesses, guesser)
    named_right: dict[Inference, np.ndarray] = {by: one.names == names for by, one in guesses.items()}
    right: dict[Inference, np.ndarray] = {
        by: named_right[by][truth.pairs].all(axis=1) & (relations == truth.relations)
        for by, relations in guessed.items()
    }
    counts.entities, counts.triples = (
        {by: float(one.sum()) for by, one in made.items()} for made in (named_right, right)
    )
    best = max(named_right, key=lambda by: named_right[by].sum())
    entity_right = named_right[best]
    chance = chance_of_name(view, victim, names)
    counts.entities_baseline = float(chance.sum())
    pair_chance = chance_of_pair(chance, truth.pairs)
    majority = prior = pair_chance * (truth.relations == view.colluder.majority_relation)
    if victim.entity_names is not None:
        relations = guesser.names.predict(*guesses[best].names[truth.pairs].T)
        prior = pair_chance * (relations == truth.relations)
    counts.triples_baseline, counts.triples_prior = float(majority.sum()), float(prior.sum())
    base = prior if counts.triples_prior > counts.triples_baseline else majority
    counts.items = _items(victim, truth, guesses, named_right, guessed, right, base)
    if "entities" in victim.claims:
        places = truth.places(victim, "entities")[: truth.num_entities][entity_right]
        counts.sources = victim.claims["entities"].sources[places]
        return counts  # which rows a victim holds is a claim already; ranking pairs of them would count it twice
    if options.unlinked_heads:
        counts.unlinked = _unlinked(view, victim, truth, options, rankings, entity_right, chance)
    return counts


def _unlinked(
    view: View,
    victim: VictimView,
    truth: _Truth,
    options: AttackOptions,
    rankings: dict[tuple[str, str], PairRanking],
    entity_right: np.ndarray,
    chance: np.ndarray,
) -> Unlinked:
    """The attack that is not told which pairs are linked."""
    assert view.colluder is not None
    key = victim.name, victim.origin
    rng = generator(options.seed, "unlinked heads", victim.name)
    heads = sample_heads(len(entity_right), options.unlinked_heads, rng)
    if key not in rankings:
        rankings[key] = rank_pairs(view, victim, heads)
    return measure_unlinked(
        rankings[key],
        view.colluder,
        truth.graph.train,
        truth.relation_names,
        entity_right=entity_right,
        chance=chance,
        rng=rng,
    )


def _name_entities(
    view: View, victim: VictimView, truth: _Truth, inferences: Sequence[Inference]
) -> dict[Inference, EntityGuesses]:
    """The name of each entity of the victim, by inference: the paper's way for those that compare with relation vectors, else
    by the nearer of the colluder's rows."""
    found: dict[Inference, EntityGuesses] = {}
    for infer, wanted in ((infer_entities, BY_VECTOR), (infer_entities_nearest, ("names", "learned", "combined"))):
        if set(wanted) & set(inferences):
            places = truth.places(victim, "entities")[: truth.num_entities]
            named = _without_unseen(_arranged(infer(view, victim), places), victim)
            found |= dict.fromkeys((by for by in inferences if by in wanted), named)
    return {by: found[by] for by in inferences}


def _arranged(guesses: EntityGuesses, places: np.ndarray) -> EntityGuesses:
    """The guess for each entity of the victim: no name for those that the adversary does not claim, or cannot name."""
    claimed = places >= 0
    names = np.full(len(places), NO_NAME, dtype=object)
    names[claimed] = [NO_NAME if name is None else name for name in guesses.names[places[claimed]]]
    cosines = np.zeros(len(places))
    cosines[claimed] = guesses.cosines[places[claimed]]
    return EntityGuesses(names, cosines)


def _without_unseen(guesses: EntityGuesses, victim: VictimView) -> EntityGuesses:
    """No name for a row that never crossed, unless names did.

    More rows may have crossed than the truth has entities: those of which no triple is left after unlearning.
    """
    if victim.entity_names is not None or victim.entities is None:
        return guesses
    seen = ~victim.entities[: len(guesses.names)].isnan().any(dim=1).numpy()
    return EntityGuesses(np.where(seen, guesses.names, NO_NAME), np.where(seen, guesses.cosines, 0.0))


def _fitting(view: View, options: AttackOptions) -> tuple[Inference, ...]:
    """The inferences to make: of relation rows that crossed, a score of entity rows says nothing."""
    assert not isinstance(options.inference, str)
    if options.metric == "published":
        return (PAPER,)
    wanted = options.inference or INFERENCES
    if all(victim.relations is None for victim in view.victims):
        return wanted
    return tuple(name for name in wanted if name != "score") or (PAPER,)


def _relation_guesses(
    view: View,
    victim: VictimView,
    truth: _Truth,
    named: Mapping[Inference, EntityGuesses],
    guesser: RelationGuesser,
) -> dict[Inference, np.ndarray]:
    """Names `[triples]` by inference: from the pair of entity rows (Algorithm 2 i), or from the uploaded relation row (ii).

    Under ii the adversary is given which uploaded relation row links each pair, beside the pair: more than under i, so FedR's
    TRR does not compare with FedE's as it stands. Algorithm 2 leaves open how the relation row is found.
    A pair whose rows never crossed gets no guess: what names alone would tell is the baseline `trr_prior`.
    """
    found: dict[Inference, np.ndarray] = {}
    if victim.relations is not None and "cosine" in named:
        places = truth.places(victim, "relations")[truth.graph.train[:, 1]]
        seen = np.append(~victim.relations.isnan().any(dim=1).numpy(), False)[places]
        rows = np.append(infer_relation_rows(view, victim), NO_NAME)[places]
        found["cosine"] = np.where(seen, rows, NO_NAME)
    by_pair: list[Inference] = [by for by in named if by not in found]
    if by_pair:
        assert victim.entities is not None
        pairs = truth.places(victim, "entities")[truth.pairs]
        seen = np.append(~victim.entities.isnan().any(dim=1).numpy(), False)[pairs].all(axis=1)
        readers: list[Inference] = [by for by in by_pair if by not in BY_VECTOR]
        heads, tails = named[(readers or by_pair)[0]].names[truth.pairs[seen]].T
        for by, relations in guesser.guess(view, victim, pairs[seen], heads, tails, by_pair).items():
            found[by] = np.full(len(pairs), NO_NAME, dtype=object)
            found[by][seen] = relations
    return {by: found[by] for by in named}


def _items(
    victim: VictimView,
    truth: _Truth,
    named: Mapping[Inference, EntityGuesses],
    named_right: Mapping[Inference, np.ndarray],
    guessed: dict[Inference, np.ndarray],
    right: dict[Inference, np.ndarray],
    base: np.ndarray,
) -> pd.DataFrame:
    """The score of every item; `base` is the chance of each triple without embeddings, by the better baseline.

    Args:
        named, guessed: by inference, the name of each entity and the relation of each triple. named_right, right: whether the
            name, and the whole triple, is right.
    """
    heads, tails = truth.pairs[:, 0], truth.pairs[:, 1]
    best = max(right, key=lambda by: right[by].sum())
    best_named = max(named_right, key=lambda by: named_right[by].sum())
    entities = pd.DataFrame(
        {
            "item": "entity",
            "head": truth.entity_names[: truth.num_entities],
            "guessed_head": named[best_named].names,
            "score": named[best_named].cosines.astype(np.float64),
            "right": named_right[best_named],
            **{f"right_{by}": one for by, one in named_right.items()},
        }
    )
    triples = pd.DataFrame(
        {
            "item": "triple",
            "head": truth.entity_names[heads],
            "relation": truth.relations,
            "tail": truth.entity_names[tails],
            "guessed_head": named[best].names[heads],
            "guessed_relation": guessed[best],
            "guessed_tail": named[best].names[tails],
            "right": right[best],
            "base": base,
            **{f"guessed_relation_{by}": relations for by, relations in guessed.items()},
            **{f"right_{by}": one for by, one in right.items()},
        }
    )
    return pd.concat([entities, triples], ignore_index=True).assign(victim=victim.name)
