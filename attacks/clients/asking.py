"""Triples of another client that a lone client can classify, and its guesses by names.

    questions = draw_questions(truth, "hospital-2", askable(truth.graph, truth.colluders, "hospital-2"), rng)
    guess = names_scorer(view.colluder)                  # float64 [q] of triples of names [q, 3]

The client classifies triples whose entities and relation it also holds, and whose pair none of its own triples links. It knows
the other triples without any attack.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fkgsec.attacks.kge.view import ColluderKnowledge
from fkgsec.attacks.laboratory import Laboratory
from fkgsec.attacks.reconstruction.prior import fit_names
from fkgsec.attacks.registry import Truth
from fkgsec.attacks.uploads.questions import Scorer
from fkgsec.attacks.view import NotAttacked
from fkgsec.data.graph import ClientGraph, FederatedGraph
from fkgsec.randomness import generator


def numbers(names: np.ndarray) -> dict[str, int]:
    """Return the row of each name."""
    return {name: row for row, name in enumerate(names)}


def places(triples: np.ndarray, place: Mapping[str, int], kind: Mapping[str, int]) -> np.ndarray:
    """Convert triples of names to rows.

    Args:
        triples: object `[q, 3]`.
        place: row of each entity name.
        kind: row of each relation name.

    Returns:
        Rows of entities, relations and entities, int64 `[q, 3]`.
    """
    return np.array([(place[head], kind[relation], place[tail]) for head, relation, tail in triples]).reshape(-1, 3)


def names_scorer(knowledge: ColluderKnowledge) -> Scorer:
    """Build a scorer by how often the names of head and tail occur with the relation in the client's own triples.

    Args:
        knowledge: the client's knowledge.
    """
    # Naive Bayes on the client's own triples: log p(head | relation) + log p(tail | relation).
    posterior = fit_names(knowledge)
    row_of, kind = numbers(posterior.names), numbers(knowledge.relation_names)

    def by_names(triples: np.ndarray) -> np.ndarray:
        """Score triples of names `[q, 3]`, float64 `[q]`."""
        heads, relations, tails = places(triples, row_of, kind).T
        head, tail = posterior.log_likelihood
        return (head[heads, relations] + tail[tails, relations]).astype(np.float64)

    return by_names


def askable(graph: FederatedGraph, colluding: Sequence[str], victim: str) -> Callable[[np.ndarray], np.ndarray]:
    """Build the test for a victim's local triples that colluding clients can classify.

    Args:
        colluding: names of the colluding clients.

    Returns:
        A function from local triples, int `[k, 3]`, to bool `[k]`.
    """
    colluders = [client for client in graph.clients if client.name in colluding]
    victim_graph = next(client for client in graph.clients if client.name == victim)
    entities = {
        number for colluder in colluders for number in colluder.entity_ids[: colluder.num_trained_entities].tolist()
    }
    relations = {number for colluder in colluders for number in _relations(colluder)}
    ends = np.concatenate([colluder.to_global(colluder.triples) for colluder in colluders])[:, [0, 2]]
    # Linked pairs in both directions, of all splits: the colluders know these without an attack.
    pairs = {pair for head, tail in ends.tolist() for pair in ((head, tail), (tail, head))}

    def is_askable(triples: np.ndarray) -> np.ndarray:
        """Test which local triples the colluders have the names of and do not know already."""
        return np.array(
            [
                {head, tail} <= entities and relation in relations and (head, tail) not in pairs
                for head, relation, tail in victim_graph.to_global(triples).tolist()
            ],
            dtype=bool,
        )

    return is_askable


def no_relation(truth: Truth, victim: str) -> str | None:
    """Explain why the client can classify no triple of a victim: they have no relation in common. Return None if they have.

    Args:
        truth: evaluator's knowledge.
    """
    colluders_relations = {number for name in truth.colluders for number in _relations(truth.unshuffled(name))}
    shared = colluders_relations.intersection(_relations(truth.unshuffled(victim)))
    return None if shared else f"{' and '.join(truth.colluders)} trains no relation of those that {victim} trains"


def _relations(client: ClientGraph) -> list[int]:
    return client.relation_ids[: client.num_trained_relations].tolist()


def check_broadcast(laboratory: Laboratory) -> None:
    """Check that the algorithm broadcasts entity rows.

    Raises:
        NotAttacked: it does not.
    """
    if "entities" not in laboratory.settings.recipe.shared:
        raise NotAttacked("no entity embedding is broadcast")


class Dictionary(NamedTuple):
    """Guessed names.

    Attributes:
        by_victim: names that each victim holds.
        invented: names that nobody holds, as many as the longest of these lists.
    """

    by_victim: dict[str, list[str]]
    invented: list[str]

    @property
    def names(self) -> list[str]:
        """All names, each once."""
        return list(dict.fromkeys([name for names in self.by_victim.values() for name in names] + self.invented))


def draw_dictionary(graph: FederatedGraph, colluders: Sequence[str], guesses: int, seed: int) -> Dictionary:
    """Draw names that victims hold and the colluders do not, and invent names that nobody holds.

    Args:
        colluders: names of the colluding clients.
        guesses: largest number of names per victim.
        seed: seed of the attack.
    """
    colluders_entities = {
        number for colluder in graph.clients if colluder.name in colluders for number in colluder.entity_ids.tolist()
    }
    names_of = {}
    for client in graph.clients:
        if client.name not in colluders:
            trained = client.entity_ids[: client.num_trained_entities].tolist()
            # A name that a colluder holds needs no guess.
            foreign = [number for number in trained if number not in colluders_entities]
            rng = generator(seed, "guessed names", client.name)
            names_of[client.name] = [
                graph.entities[foreign[place]] for place in rng.permutation(len(foreign))[:guesses]
            ]
    # Invented names must not collide with any name of the federation.
    longest, used = max(names_of.values(), key=len, default=[]), set(graph.entities)
    return Dictionary(names_of, [invent(name, used) for name in longest])


def invent(name: str, used: set[str]) -> str:
    """Return a name that is not used yet, and add it to the used ones.

    Args:
        name: name to start from.
        used: names that exist.
    """
    while name in used:
        name += "*"
    used.add(name)
    return name
