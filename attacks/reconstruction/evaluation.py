"""The reconstruction attack: claims from a view, and ERR and TRR, which join them with the truth afterwards.

ERR: entities of the victim whose name the adversary gets right from embeddings, over all entities of the victim.
TRR: training triples of the victim that the adversary rebuilds (head, relation and tail right), over all of them, with the
linked pairs given to the adversary (fedr.txt's way). Without that gift it ranks pairs (`fkgsec.attacks.reconstruction.unlinked`).
Beside each stand the same figure for an adversary with the same knowledge and no embeddings, and the most that this knowledge
can give.

Source: fedr.txt 3.1; the baselines and the attack without linked pairs are ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np
import pandas as pd

from fkgsec.attacks.figure import Figure
from fkgsec.attacks.kge.view import KgeView, VictimView
from fkgsec.attacks.laboratory import Laboratory
from fkgsec.attacks.options import PAPER, RECONSTRUCTION, AttackOptions, Inference
from fkgsec.attacks.reconstruction import published
from fkgsec.attacks.reconstruction.claims import Claims, Nothing, claim
from fkgsec.attacks.reconstruction.inference import EntityGuesses, PairRanking
from fkgsec.attacks.reconstruction.knowledge import NO_NAME, chance_of_pair, why_no_triple
from fkgsec.attacks.reconstruction.leakage import INFERENCES
from fkgsec.attacks.reconstruction.relation_guesses import RelationGuesser
from fkgsec.attacks.reconstruction.scoring import Counts, figures_of
from fkgsec.attacks.reconstruction.unlinked import Unlinked, measure_unlinked, sample_heads
from fkgsec.attacks.registry import Attack, Needs, Truth
from fkgsec.errors import ThreatModelError
from fkgsec.federation.recipes import Table
from fkgsec.randomness import generator

METRICS = {
    "err": "entities of the victims that the adversary names",
    "trr": "training triples of the victims that the adversary rebuilds",
    "precision": "of triples claimed without being told which pairs are linked, the share that is right",
    "recall": "of the triples of some heads, the share claimed without being told which pairs are linked",
    "average_precision": "average precision of pairs ranked without being told which are linked",
}


def reconstruction(options: AttackOptions | None = None) -> Attack:
    """The attack under these options."""
    made = Reconstruction(options or AttackOptions())
    return Attack(
        RECONSTRUCTION,
        "names the victims' entities and rebuilds their triples",
        Needs(colluder=True, entities=True),
        METRICS,
        made.run,
        made.score,
        items={"err": "entities of the victims", "trr": "triples of the victims"},
        choose=tuple,
        configured=reconstruction,
        redrawn=True,
        leads=("err", "trr"),
    )


class Reconstruction:
    """The attack on one draw of the leaked entities.

    Threat models of one draw differ in names: what is learnt from the colluder, and what compares rows, serves all of them. All
    that it draws comes from the options' seed, so that they share that, too.
    """

    def __init__(self, options: AttackOptions) -> None:
        self.options = options
        self.guesser: RelationGuesser | None = None
        self.rankings: dict[tuple[str, str, str], PairRanking] = {}

    def run(
        self, view: KgeView, laboratory: Laboratory, rng: np.random.Generator
    ) -> tuple[tuple[Inference, ...], Mapping[str, Claims | Nothing]]:
        """How relations are inferred, and what the adversary claims of each victim, or why it can claim nothing."""
        if self.guesser is None and view.colluder is not None:
            self.guesser = RelationGuesser(view.model, view.colluder, self.options.seed)
        inferences = self._fitting(view)
        victims = {one.name: claim(view, one, self.guesser, inferences, self.rankings) for one in view.victims}
        return inferences, victims

    def score(self, claims: tuple[tuple[Inference, ...], Mapping[str, Claims | Nothing]], truth: Truth) -> list[Figure]:
        """ERR and TRR by each inference and by the strongest, of each victim and of all; then those without linked pairs."""
        (inferences, victims), counts = claims, []
        for victim, found in victims.items():
            held = _Held(truth, victim)
            count = Counts(victim, held.num_entities, len(held.pairs))
            if isinstance(found, Nothing):
                count.reason = found.reason
                count.entities_baseline = float(held.num_entities) if found.aligned else 0.0
            elif self.options.metric == "published":
                _count_published(count, found, held)
            else:
                self._count(count, found, held)
                shown = found.knowledge.exposed_names(held.entity_names[: held.num_entities])
                _count_exposed(count, found, held, shown)
            counts.append(count)
            truth.scores.append(count.items)
        learned = any(not count.reason for count in counts) and "learned" in inferences
        note = self.guesser.learner.note if learned and self.guesser else None
        return figures_of(truth, inferences, counts, note, published=self.options.metric == "published")

    def _fitting(self, view: KgeView) -> tuple[Inference, ...]:
        """The inferences to make: of relation rows that crossed, a score of entity rows says nothing."""
        assert not isinstance(self.options.inference, str)
        if self.options.metric == "published":
            return (PAPER,)
        wanted = self.options.inference or INFERENCES
        if all(victim.relations is None for victim in view.victims):
            return wanted
        return tuple(name for name in wanted if name != "score") or (PAPER,)

    def _count(self, counts: Counts, claims: Claims, held: _Held) -> None:
        """Count what is right of what was claimed of one victim, what could be, and what guesses would be."""
        victim, names = claims.victim, held.entity_names[: held.num_entities]
        named, rebuilt = claims.knowledge.attainable(names, held.pairs, held.relations)
        counts.entities_attainable, counts.triples_attainable = float(named.sum()), float(rebuilt.sum())
        counts.remark = None if rebuilt.any() else why_no_triple(named, shares_relation=held.shares_relation)
        guesses = _arranged(claims, held.places(victim, "entities")[: held.num_entities])
        guessed = claims.relations(
            held.places(victim, "entities")[held.pairs],
            held.places(victim, "relations")[held.relation_rows],
            {by: one.names[held.pairs] for by, one in guesses.items()},
        )
        named_right: dict[Inference, np.ndarray] = {by: one.names == names for by, one in guesses.items()}
        right: dict[Inference, np.ndarray] = {
            by: named_right[by][held.pairs].all(axis=1) & (relations == held.relations)
            for by, relations in guessed.items()
        }
        counts.entities, counts.triples = (
            {by: float(one.sum()) for by, one in made.items()} for made in (named_right, right)
        )
        best = max(named_right, key=lambda by: named_right[by].sum())
        chance = claims.knowledge.chance_of_name(names)
        base = _guess(counts, claims, held, chance, guesses[best])
        counts.items = _items(victim, held, guesses, named_right, guessed, right, base)
        if "entities" in victim.claims:
            places = held.places(victim, "entities")[: held.num_entities][named_right[best]]
            counts.sources = victim.claims["entities"].sources[places]
            return  # which rows a victim holds is a claim already; ranking pairs of them would count it twice
        if self.options.unlinked_heads:
            counts.unlinked = self._unlinked(claims, held, named_right[best], chance)

    def _unlinked(self, claims: Claims, held: _Held, entity_right: np.ndarray, chance: np.ndarray) -> list[Unlinked]:
        """The attack that is not told which pairs are linked, by each inference that ranks pairs."""
        rng = generator(self.options.seed, "unlinked heads", claims.victim.name)
        heads = sample_heads(len(entity_right), self.options.unlinked_heads, rng)
        rows = held.places(claims.victim, "entities")[: held.num_entities]
        return [
            measure_unlinked(
                PairRanking(heads, ranking.scores[:, rows], ranking.relations[:, rows]),
                claims.guesser.colluder,
                held.train,
                held.relation_names,
                entity_right=entity_right,
                chance=chance,
                rng=rng,
                inference=by,
            )
            for by, ranking in claims.ranking_by(rows[heads]).items()
        ]


class _Held:
    """A victim's names and training triples, for the evaluator alone, in the order of the data.

    Attributes:
        train: int64 `[n, 3]` in local ids. entity_names, relation_names: of these ids. shares_relation: with the colluder.
    """

    def __init__(self, truth: Truth, victim: str) -> None:
        result, graph, colluders = truth.result, truth.own(victim), [truth.own(name) for name in truth.colluders]
        own, *others = (set(client.relation_ids[client.train[:, 1]]) for client in (graph, *colluders))
        self.shares_relation = bool(own & set().union(*others))
        self._row_names, self._rows_of = result.row_names, partial(truth.rows_of, victim)
        self.train = graph.train
        self.entity_names = np.array(result.graph.entities, dtype=object)[graph.entity_ids]
        self.relation_names = np.array(result.graph.relations, dtype=object)[graph.relation_ids]
        self.num_entities = graph.num_trained_entities

    def places(self, victim: VictimView, table: Table) -> np.ndarray:
        """Where each of its entities or relations stands among the rows the adversary has of it, -1 where it does not."""
        names = self.entity_names if table == "entities" else self.relation_names
        if table not in victim.claims:
            return self._rows_of(table)
        claimed = {self._row_names[table][row]: place for place, row in enumerate(victim.claims[table].rows)}
        return np.array([claimed.get(name, -1) for name in names], dtype=np.int64)

    @property
    def pairs(self) -> np.ndarray:
        return self.train[:, [0, 2]]

    @property
    def relation_rows(self) -> np.ndarray:
        return self.train[:, 1]

    @property
    def relations(self) -> np.ndarray:
        return self.relation_names[self.train[:, 1]]


def _count_published(counts: Counts, claims: Claims, held: _Held) -> None:
    """Count as FedR's notebooks do."""
    if claims.victim.claims:
        raise ThreatModelError("metric published counts uploads in clear; take metric paper where they are summed")
    names = held.entity_names[: held.num_entities]
    rows = held.places(claims.victim, "entities")[: held.num_entities]
    by_row = np.argsort(rows)
    found = published.count(claims.guesser, claims.victim, names[by_row], rows[held.pairs], held.relations)
    counts.entities, counts.entities_baseline = {PAPER: found.entities}, found.entities_baseline
    counts.triples, counts.triples_baseline = {PAPER: found.triples}, found.triples_baseline
    counts.triples_prior = found.triples_baseline


def _count_exposed(counts: Counts, claims: Claims, held: _Held, shown: np.ndarray) -> None:
    """Count what is right by the names that the protocol shows, and relations guessed from names alone.

    Args:
        shown: name of each entity `[n]`, see `exposed_names`.
    """
    named = shown == held.entity_names[: held.num_entities]
    both = named[held.pairs].all(axis=1)
    guesses = (claims.guesser.colluder.majority_relation, claims.guesser.names.predict(*shown[held.pairs].T))
    counts.entities_exposed = float(named.sum())
    counts.triples_exposed = float(max((both & (relation == held.relations)).sum() for relation in guesses))


def _guess(counts: Counts, claims: Claims, held: _Held, chance: np.ndarray, best: EntityGuesses) -> np.ndarray:
    """Count what adversaries without embeddings would have right; the chance of each triple by the better of them."""
    counts.entities_baseline = float(chance.sum())
    pair_chance = chance_of_pair(chance, held.pairs)
    majority = prior = pair_chance * (held.relations == claims.guesser.colluder.majority_relation)
    if claims.victim.entity_names is not None:
        prior = pair_chance * (claims.guesser.names.predict(*best.names[held.pairs].T) == held.relations)
    counts.triples_baseline, counts.triples_prior = float(majority.sum()), float(prior.sum())
    return prior if counts.triples_prior > counts.triples_baseline else majority


def _arranged(claims: Claims, places: np.ndarray) -> dict[Inference, EntityGuesses]:
    """The guess for each entity of the victim: no name for those that the adversary does not claim, or cannot name."""
    made = {id(one): _without_unseen(_at(one, places), claims.victim, places) for one in claims.names.values()}
    return {by: made[id(one)] for by, one in claims.names.items()}


def _at(guesses: EntityGuesses, places: np.ndarray) -> EntityGuesses:
    claimed = places >= 0
    names = np.full(len(places), NO_NAME, dtype=object)
    names[claimed] = [NO_NAME if name is None else name for name in guesses.names[places[claimed]]]
    cosines = np.zeros(len(places))
    cosines[claimed] = guesses.cosines[places[claimed]]
    return EntityGuesses(names, cosines)


def _without_unseen(guesses: EntityGuesses, victim: VictimView, places: np.ndarray) -> EntityGuesses:
    """No name for a row that never crossed, unless names did.

    More rows may have crossed than the truth has entities: those of which no triple is left after unlearning.
    """
    if victim.entity_names is not None or victim.entities is None:
        return guesses
    seen = ~victim.entities.isnan().any(dim=1).numpy()[places]
    return EntityGuesses(np.where(seen, guesses.names, NO_NAME), np.where(seen, guesses.cosines, 0.0))


def _items(
    victim: VictimView,
    held: _Held,
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
    heads, tails = held.pairs[:, 0], held.pairs[:, 1]
    best = max(right, key=lambda by: right[by].sum())
    best_named = max(named_right, key=lambda by: named_right[by].sum())
    entities = pd.DataFrame(
        {
            "item": "entity",
            "head": held.entity_names[: held.num_entities],
            "guessed_head": named[best_named].names,
            "score": named[best_named].cosines.astype(np.float64),
            "right": named_right[best_named],
            **{f"right_{by}": one for by, one in named_right.items()},
        }
    )
    triples = pd.DataFrame(
        {
            "item": "triple",
            "head": held.entity_names[heads],
            "relation": held.relations,
            "tail": held.entity_names[tails],
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


ATTACK = reconstruction()
