"""The reconstruction attack: claims from a view, and ERR and TRR, which compare them with the truth afterwards.

ERR (entity reconstruction rate): share of the victim's entities that the adversary names correctly from embeddings. TRR (triple
reconstruction rate): share of the victim's training triples that it rebuilds with correct head, relation and tail. As in
fedr.txt, the adversary is given the linked pairs. Without them it ranks pairs (`fkgsec.attacks.reconstruction.unlinked`). Each
metric comes with its baseline, an adversary with the same knowledge and no embeddings, and with its upper bound.

Threat model: the server and one client, "collusion", "collusion+entities" or "identifiers". Required knowledge: the colluder's
element-embedding pairs, and the victim's entity rows.

Relations are inferred by several methods (`fkgsec.attacks.reconstruction.relation_guesses`); the strongest is the headline.
`--inference mlp` adds a multilayer perceptron. TRR under `collusion` at leak 1 with TransE, by `learned` and by `mlp`: embedded
hospitals of 13,500 triples (dimension 128) .356 and .359, of 3,000 triples (dimension 32) .390 and .404, UMLS .594 and .598.

Source: fedr.txt 3.1; the baselines and the attack without linked pairs are ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch

from fkgsec.attacks.figure import Figure
from fkgsec.attacks.kge.view import KgeView, VictimView
from fkgsec.attacks.laboratory import Laboratory
from fkgsec.attacks.options import PAPER, RECONSTRUCTION, Inference
from fkgsec.attacks.questions import ENTITIES, TRIPLES
from fkgsec.attacks.reconstruction.inference import (
    EntityGuesses,
    PairRanking,
    best_relations,
    infer_entities,
    infer_entities_nearest,
    infer_relation_rows,
    nothing_to_attack,
    rank_pairs,
)
from fkgsec.attacks.reconstruction.knowledge import NO_NAME, Knowledge, chance_of_pair, why_no_triple
from fkgsec.attacks.reconstruction.leakage import INFERENCES
from fkgsec.attacks.reconstruction.relation_guesses import BY_VECTOR, LEARNED_WAYS, RelationGuesser
from fkgsec.attacks.reconstruction.scoring import Counts, figures_of
from fkgsec.attacks.reconstruction.unlinked import Unlinked, measure_unlinked, sample_heads
from fkgsec.attacks.registry import Attack, Needs, Truth
from fkgsec.errors import ThreatModelError
from fkgsec.federation.recipes import Table
from fkgsec.randomness import generator

METRICS = {
    "err": "share of victims' entities that are identified",
    "trr": "share of victims' training triples that are rebuilt, if linked rows are known",
    "precision": "share of claimed triples that are true, if linked rows are unknown",
    "recall": "share of some heads' triples that are claimed, if linked rows are unknown",
    "average_precision": "average precision of ranked pairs, if linked rows are unknown",
}


WITHOUT_LINKS: tuple[Inference, ...] = ("score", "learned")


class Nothing(NamedTuple):
    """Reason why an adversary can claim nothing about a victim; `aligned`: see `Knowledge`."""

    reason: str
    aligned: bool


@dataclass(frozen=True, eq=False)
class Claims:
    """An adversary's claims about a victim.

    Attributes:
        victim: the victim's rows in the view.
        knowledge: knowledge of names without the messages.
        names: a guess for each of these rows, by inference method.
        guesser: relation classifiers trained on the colluder's triples.
        rankings: cache of ranked candidate pairs, which do not depend on names.
    """

    victim: VictimView
    knowledge: Knowledge
    names: Mapping[Inference, EntityGuesses]
    guesser: RelationGuesser
    rankings: dict[tuple[str, str, str], PairRanking]

    def relations(
        self, pairs: np.ndarray, relation_rows: np.ndarray, named: Mapping[Inference, np.ndarray]
    ) -> dict[Inference, np.ndarray]:
        """Infer the relation of each pair from its two entity rows (Algorithm 2 i) or from an uploaded relation row (ii).

        Under ii the adversary is given the uploaded relation row of each pair, besides the pair. This is more than under i, so
        FedR's TRR is not comparable with FedE's. Algorithm 2 does not say how the relation row is found. A pair whose rows were
        never transmitted gets no guess: what names alone reveal is the baseline `prior`.

        Args:
            pairs: indices of head and tail among the victim's rows, int64 `[P, 2]`, -1 for a missing row.
            relation_rows: indices of the relation rows that link them, int `[P]`.
            named: names of the two ends by inference method, object `[P, 2]`.

        Returns:
            Relation names `[P]` by inference method.
        """
        by_inference: dict[Inference, np.ndarray] = {}
        if self.victim.relations is not None and "cosine" in named:
            # Index -1 selects the appended last element: a row that is not there.
            seen = np.append(~self.victim.relations.isnan().any(dim=1).numpy(), False)[relation_rows]
            rows = np.append(infer_relation_rows(self.guesser, self.victim), NO_NAME)[relation_rows]
            by_inference["cosine"] = np.where(seen, rows, NO_NAME)
        by_pair: list[Inference] = [by for by in named if by not in by_inference]
        if by_pair:
            assert self.victim.entities is not None
            seen = np.append(~self.victim.entities.isnan().any(dim=1).numpy(), False)[pairs].all(axis=1)
            readers: list[Inference] = [by for by in by_pair if by not in BY_VECTOR]
            heads, tails = named[(readers or by_pair)[0]][seen].T
            guesses = self.guesser.guess(self.victim, pairs[seen], heads, tails, by_pair)
            for by, relations in guesses.items():
                by_inference[by] = np.full(len(pairs), NO_NAME, dtype=object)
                by_inference[by][seen] = relations
        return {by: by_inference[by] for by in named}

    def ranking_by(self, heads: np.ndarray) -> dict[Inference, PairRanking]:
        """Rank pairs of these heads with every row, without knowledge of linked pairs.

        Args:
            heads: indices of the victim's rows, int `[H]`.

        Returns:
            Rankings by inference method; without `learned` if it was not requested or nothing could be learned.
        """
        rankings: dict[Inference, PairRanking] = {}
        for by in WITHOUT_LINKS:
            key = self.victim.name, self.victim.origin, by
            if key not in self.rankings:
                if by == "score":
                    self.rankings[key] = rank_pairs(self.guesser, self.victim, heads)
                elif by in self.names and self.guesser.links is not None:
                    assert self.victim.entities is not None
                    self.rankings[key] = self.guesser.links.rank(self.victim.entities, heads)
            if key in self.rankings:
                rankings[by] = self.rankings[key]
        return rankings


def claim(
    view: KgeView,
    victim: VictimView,
    guesser: RelationGuesser | None,
    inferences: Sequence[Inference],
    rankings: dict[tuple[str, str, str], PairRanking],
) -> Claims | Nothing:
    """Claim names and relations of a victim.

    Methods that compare relation vectors name entities as in the paper. The others use the colluder's own rows or its last
    broadcast, whichever is closer.

    Args:
        guesser: relation classifiers; None if there is no colluder.
        inferences: inference methods.
        rankings: cache of ranked candidate pairs.
    """
    knowledge, reason = Knowledge.of(view, victim), nothing_to_attack(view, victim)
    if reason:
        return Nothing(reason, knowledge.aligned)
    assert guesser is not None
    guesses: dict[Inference, EntityGuesses] = {}
    by_vector: list[Inference] = [by for by in inferences if by in BY_VECTOR]
    by_row: list[Inference] = [by for by in inferences if by not in BY_VECTOR]
    for infer, ways in ((infer_entities, by_vector), (infer_entities_nearest, by_row)):
        if ways:
            guesses |= dict.fromkeys(ways, infer(guesser, victim))
    return Claims(victim, knowledge, {by: guesses[by] for by in inferences}, guesser, rankings)


def run(
    view: KgeView, laboratory: Laboratory, rng: np.random.Generator
) -> tuple[tuple[Inference, ...], Mapping[str, Claims | Nothing]]:
    """Choose the inference methods, and claim names and relations of each victim.

    Threat models of one draw of leaked entities differ only in names. Classifiers and comparisons of rows are therefore shared
    between them (`Laboratory.memory`). All random draws come from the options' seed, so they are equal, too.

    Args:
        laboratory: options, and the shared cache.
        rng: not used.

    Returns:
        Inference methods, and the claims about each victim by name.
    """
    options, memory = laboratory.options, laboratory.memory
    # Train classifiers once for all threat models of this draw.
    if "guesser" not in memory and view.threat_model.leaks:
        memory["guesser"] = RelationGuesser(view.model, view.accomplice, options.seed)
    guesser, rankings = memory.get("guesser"), memory.setdefault("rankings", {})
    wanted: tuple[Inference, ...] = options.inference or INFERENCES
    if options.metric == "published":
        wanted = (PAPER,)
    # The score of entity rows does not apply to uploaded relation rows.
    elif any(victim.relations is not None for victim in view.victims):
        wanted = tuple(name for name in wanted if name != "score") or (PAPER,)
    return wanted, {victim.name: claim(view, victim, guesser, wanted, rankings) for victim in view.victims}


def score(claims: tuple[tuple[Inference, ...], Mapping[str, Claims | Nothing]], truth: Truth) -> list[Figure]:
    """Compute ERR and TRR by each inference method and by the strongest, then the figures without linked pairs.

    Args:
        claims: inference methods, and the claims about each victim.

    Returns:
        Figures of each victim and of all together.
    """
    (inferences, victims), counts, note = claims, [], None
    published = truth.options.metric == "published"
    for victim, claims_of in victims.items():
        holdings = _Holdings(truth, victim)
        count = Counts(victim, holdings.num_entities, len(holdings.pairs))
        if isinstance(claims_of, Nothing):
            count.reason = claims_of.reason
            count.entities_baseline = float(holdings.num_entities) if claims_of.aligned else 0.0
        elif published:
            _count_published(count, claims_of, holdings)
        else:
            _count(truth, count, claims_of, holdings)
            _count_exposed(count, claims_of, holdings)
        if isinstance(claims_of, Claims):
            guesser = claims_of.guesser
            note = next((guesser.learner(way).note for way in LEARNED_WAYS if way in inferences), None)
        counts.append(count)
        truth.scores.append(count.items)
    return figures_of(truth, inferences, counts, note, published=published)


def _count(truth: Truth, counts: Counts, claims: Claims, holdings: _Holdings) -> None:
    """Count correct claims about one victim, their upper bound, and correct guesses without embeddings."""
    victim, knowledge = claims.victim, claims.knowledge
    rows, names = holdings.places(victim, "entities"), holdings.names
    named, rebuilt = knowledge.attainable(names, holdings.pairs, holdings.relations)
    counts.entities_attainable, counts.triples_attainable = float(named.sum()), float(rebuilt.sum())
    counts.remark = None if rebuilt.any() else why_no_triple(named, shares_relation=holdings.shares_relation)
    guesses = _arranged(claims, rows[: holdings.num_entities])
    guessed = claims.relations(
        rows[holdings.pairs],
        holdings.places(victim, "relations")[holdings.train[:, 1]],
        {by: of_entities.names[holdings.pairs] for by, of_entities in guesses.items()},
    )
    # Algorithm 2 line 17: a triple is rebuilt if both names and the relation are correct.
    named_right: dict[Inference, np.ndarray] = {by: of_entities.names == names for by, of_entities in guesses.items()}
    right: dict[Inference, np.ndarray] = {
        by: named_right[by][holdings.pairs].all(axis=1) & (relations == holdings.relations)
        for by, relations in guessed.items()
    }
    counts.entities, counts.triples = (
        {by: float(of_inference.sum()) for by, of_inference in right_by.items()} for right_by in (named_right, right)
    )
    best = max(named_right, key=lambda by: named_right[by].sum())
    chance = knowledge.chance_of_name(names)
    base = _guess(counts, claims, holdings, chance, guesses[best])
    # Items are stored with the record, so that figures can be traced to single triples.
    counts.items = _items(victim, holdings, guesses, named_right, guessed, right, base)
    if "entities" in victim.claims:
        counts.sources = victim.claims["entities"].sources[rows[: holdings.num_entities][named_right[best]]]
    # In a sum, the rows of a victim are claims already, and would count twice: no ranking of pairs there.
    elif truth.options.unlinked_heads:
        counts.unlinked = _unlinked(truth, claims, holdings, named_right[best], chance)


def _unlinked(
    truth: Truth, claims: Claims, holdings: _Holdings, entity_right: np.ndarray, chance: np.ndarray
) -> list[Unlinked]:
    """Run the attack without linked pairs, by each inference method that ranks pairs."""
    rng = generator(truth.seed, "unlinked heads", claims.victim.name)
    heads = sample_heads(len(entity_right), truth.options.unlinked_heads, rng)
    rows = holdings.places(claims.victim, "entities")[: holdings.num_entities]
    return [
        measure_unlinked(
            PairRanking(heads, ranking.scores[:, rows], ranking.relations[:, rows]),
            claims.guesser.colluder,
            holdings.train,
            holdings.relation_names,
            entity_right=entity_right,
            chance=chance,
            rng=rng,
            inference=by,
        )
        for by, ranking in claims.ranking_by(rows[heads]).items()
    ]


class _Holdings:
    """A victim's names and training triples, for the evaluator alone, in the order of the data.

    Attributes:
        train: int64 `[n, 3]`, in local IDs.
        entity_names, relation_names: names of these IDs.
        shares_relation: True if a colluder also trains one of its relations.
    """

    def __init__(self, truth: Truth, victim: str) -> None:
        result, graph, colluders = (
            truth.result,
            truth.unshuffled(victim),
            [truth.unshuffled(name) for name in truth.colluders],
        )
        victim_relations, *others = (set(client.relation_ids[client.train[:, 1]]) for client in (graph, *colluders))
        self.shares_relation = bool(victim_relations & set().union(*others))
        self._row_names, self._rows_of = result.row_names, partial(truth.rows_of, victim)
        self.train = graph.train
        self.entity_names = np.array(result.graph.entities, dtype=object)[graph.entity_ids]
        self.relation_names = np.array(result.graph.relations, dtype=object)[graph.relation_ids]
        self.num_entities = graph.num_trained_entities
        self.names = self.entity_names[: self.num_entities]
        self.pairs, self.relations = self.train[:, [0, 2]], self.relation_names[self.train[:, 1]]

    def places(self, victim: VictimView, table: Table) -> np.ndarray:
        """Return the index of each entity or relation among the adversary's rows of the victim, -1 if missing."""
        names = self.entity_names if table == "entities" else self.relation_names
        if table not in victim.claims:
            return self._rows_of(table)
        # Claimed rows of a sum are matched by the server's names of its rows.
        claimed = {self._row_names[table][row]: place for place, row in enumerate(victim.claims[table].rows)}
        return np.array([claimed.get(name, -1) for name in names], dtype=np.int64)


def _count_published(counts: Counts, claims: Claims, holdings: _Holdings) -> None:
    """Count like FedR's notebooks, to reproduce Tables 1 and 4 of fedr.txt with the definitions behind them.

    These differ from the paper's text. For FedE, "ERR" is the share of the victim's entities that are in the leaked pool; no
    embedding is used. "TRR" takes every linked pair of the victim with both ends in the pool, and their true names. Its
    relation is the colluder's with the largest cosine to t - h of the server's shared embeddings. For FedR, "TRR" counts
    distinct correctly named entities that occur in a linked pair, over the number of triples.

    Source: the notebooks rec_attack_*.ipynb beside FedR's code. Differs: the FedR notebook applies the leak ratio to the
    victim. Here it applies to the colluder, as the paper says, which is the same at 1.0, the only ratio in Table 4.
    """
    victim, colluder = claims.victim, claims.guesser.colluder
    if victim.claims:
        raise ThreatModelError("metric published counts uploads in plaintext; take metric paper where they are summed")
    rows, pool = holdings.places(victim, "entities")[: holdings.num_entities], colluder.entity_names
    names, pairs = holdings.names[np.argsort(rows)], rows[holdings.pairs]
    named = np.isin(names, pool)
    if victim.relations is not None:
        right, chance, linked = (
            infer_entities(claims.guesser, victim).names == names,
            named / len(pool),
            np.unique(pairs),
        )
        counts.entities, counts.entities_baseline = {PAPER: int(right.sum())}, float(chance.sum())
        counts.triples, counts.triples_baseline = {PAPER: int(right[linked].sum())}, float(chance[linked].sum())
    else:
        both_named, order = named[pairs].all(axis=1), np.argsort(pool)
        leaked = torch.from_numpy(order[np.searchsorted(pool, names[pairs[both_named]], sorter=order)])
        heads, tails = (colluder.shared_entities[leaked[:, end]] for end in (0, 1))
        best = best_relations(claims.guesser.model, colluder.relations, heads, tails, "cosine")
        true = holdings.relations[both_named]
        counts.entities, counts.entities_baseline = {PAPER: int(named.sum())}, int(named.sum())
        counts.triples = {PAPER: int((colluder.relation_names[best] == true).sum())}
        counts.triples_baseline = int((true == colluder.majority_relation).sum())
    counts.triples_prior = counts.triples_baseline


def _count_exposed(counts: Counts, claims: Claims, holdings: _Holdings) -> None:
    """Count what is correct by the names that the protocol exposes, with relations guessed from names alone."""
    shown = claims.knowledge.exposed_names(holdings.names)
    named = shown == holdings.names
    both = named[holdings.pairs].all(axis=1)
    guesses = (claims.guesser.colluder.majority_relation, claims.guesser.names.predict(*shown[holdings.pairs].T))
    counts.entities_exposed = float(named.sum())
    counts.triples_exposed = float(max((both & (relation == holdings.relations)).sum() for relation in guesses))


def _guess(counts: Counts, claims: Claims, holdings: _Holdings, chance: np.ndarray, best: EntityGuesses) -> np.ndarray:
    """Count expected correct guesses of adversaries without embeddings. Return each triple's chance by the better one."""
    counts.entities_baseline = float(chance.sum())
    pair_chance = chance_of_pair(chance, holdings.pairs)
    majority = prior = pair_chance * (holdings.relations == claims.guesser.colluder.majority_relation)
    if claims.victim.entity_names is not None:
        prior = pair_chance * (claims.guesser.names.predict(*best.names[holdings.pairs].T) == holdings.relations)
    # Two baselines: the most frequent relation, and the relation that the names suggest where they are known.
    counts.triples_baseline, counts.triples_prior = float(majority.sum()), float(prior.sum())
    return prior if counts.triples_prior > counts.triples_baseline else majority


def _arranged(claims: Claims, rows: np.ndarray) -> dict[Inference, EntityGuesses]:
    """Return the guess for each entity of the victim at these rows, -1 for entities that the adversary does not claim.

    There is no name for these, for rows that it cannot name, and, unless names were transmitted, for rows that never were. More
    rows may have been transmitted than the truth has entities: after unlearning, some have no triple left.
    """
    victim, claimed = claims.victim, rows >= 0
    # A row that was never transmitted cannot be compared.
    if victim.entity_names is None and victim.entities is not None:
        claimed = claimed & ~victim.entities.isnan().any(dim=1).numpy()[rows]

    def arranged(guesses: EntityGuesses) -> EntityGuesses:
        """Reorder the guesses of one method."""
        names, cosines = np.full(len(rows), NO_NAME, dtype=object), np.zeros(len(rows))
        names[claimed] = [NO_NAME if name is None else name for name in guesses.names[rows[claimed]]]
        cosines[claimed] = guesses.cosines[rows[claimed]]
        return EntityGuesses(names, cosines)

    arranged_by = {id(guesses): arranged(guesses) for guesses in claims.names.values()}
    return {by: arranged_by[id(guesses)] for by, guesses in claims.names.items()}


def _items(
    victim: VictimView,
    holdings: _Holdings,
    named: Mapping[Inference, EntityGuesses],
    named_right: Mapping[Inference, np.ndarray],
    guessed: dict[Inference, np.ndarray],
    right: dict[Inference, np.ndarray],
    base: np.ndarray,
) -> pd.DataFrame:
    """Tabulate the score of every item.

    Args:
        named, guessed: name of each entity and relation of each triple, by inference method.
        named_right, right: True where the name, and the whole triple, is correct.
        base: chance of each triple without embeddings, by the better baseline.
    """
    heads, tails = holdings.pairs.T
    best = max(right, key=lambda by: right[by].sum())
    best_named = max(named_right, key=lambda by: named_right[by].sum())
    entities = pd.DataFrame(
        {
            "item": "entity",
            "head": holdings.names,
            "guessed_head": named[best_named].names,
            "score": named[best_named].cosines.astype(np.float64),
            "right": named_right[best_named],
            **{f"right_{by}": of_inference for by, of_inference in named_right.items()},
        }
    )
    triples = pd.DataFrame(
        {
            "item": "triple",
            "head": holdings.entity_names[heads],
            "relation": holdings.relations,
            "tail": holdings.entity_names[tails],
            "guessed_head": named[best].names[heads],
            "guessed_relation": guessed[best],
            "guessed_tail": named[best].names[tails],
            "right": right[best],
            "base": base,
            **{f"guessed_relation_{by}": relations for by, relations in guessed.items()},
            **{f"right_{by}": of_inference for by, of_inference in right.items()},
        }
    )
    return pd.concat([entities, triples], ignore_index=True).assign(victim=victim.name)


ATTACK = Attack(
    RECONSTRUCTION,
    "identifies the victims' entities and rebuilds their triples",
    Needs(colluder=True, entities=True, server=True),
    METRICS,
    run,
    score,
    questions=dict.fromkeys(METRICS, TRIPLES) | {"err": ENTITIES},
    items={"err": "entities of the victims", "trr": "triples of the victims"},
    choose=tuple,
    redrawn=True,
    leads=("err", "trr"),
)
