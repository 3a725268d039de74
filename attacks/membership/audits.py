"""Membership audits: the triples to test in a client's models, the models' scores of them, and shadow federations.

Audited triples are members (trained on, or trained on and then forgotten) and controls: triples of the same relation and of
similar degree that no client ever trained on (`fkgsec.attacks.membership.controls`). The attacks are those of
`fkgsec.attacks.membership.statistics`. Their adversary has a client's model, knows how it was trained, and has similar data, on
which it trains shadow federations.

Legend: `n` forgotten triples, `m` of them with a control, `c` controls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

import msgspec
import numpy as np
from scipy.stats import rankdata
from torch import Tensor

from fkgsec.attacks.membership.controls import matched_controls
from fkgsec.attacks.membership.figures import effective_number
from fkgsec.attacks.membership.statistics import (
    calibrated,
    likelihood_ratio,
    loss_threshold,
    triple_losses,
    triple_scores,
)
from fkgsec.data.graph import ClientGraph, FederatedGraph
from fkgsec.errors import DataError
from fkgsec.federation.loop import run_federation
from fkgsec.federation.recipes import RECIPES
from fkgsec.kge.models import ClientTables, KgeModel
from fkgsec.kge.negatives import KnownTriples
from fkgsec.kge.options import KgeOptions
from fkgsec.kge.ranking import sides_of
from fkgsec.kge.result import KgeResult
from fkgsec.randomness import generator
from fkgsec.unlearning.forget_sets import Forget

Attack = Literal["loss", "calibrated", "lira", "u-lira"]


class ClientModel(NamedTuple):
    """A model of a client: a scoring function and its rows."""

    model: KgeModel
    tables: ClientTables

    @property
    def rows(self) -> tuple[Tensor, Tensor]:
        """Rows of entities and of relations."""
        return self.tables.entities, self.tables.relations

    def scores(self, triples: np.ndarray) -> np.ndarray:
        """Score triples in the rows' IDs, float64 `[n]`, see `fkgsec.attacks.membership.statistics.triple_scores`."""
        return triple_scores(self.model, *self.rows, triples)


def client_models(result: KgeResult, place: int) -> dict[str, ClientModel]:
    """Return a client's final models.

    Args:
        result: finished run.
        place: index of the client.

    Returns:
        "global": its rows of the federation's model. "local": its private model, or its rows before the last broadcast if the
        recipe has no private model. Without shared tables there is only one of the two.
    """
    recipe = RECIPES[result.options.algorithm]
    shared = ClientModel(*result.predictor("tables", place))
    if not recipe.shared:
        return {"local" if not recipe.pooled else "global": shared}
    # What the client keeps to itself: its private model, or its rows before the last broadcast.
    kind = "private" if result.private else "trained"
    return {"local": ClientModel(*result.predictor(kind, place)), "global": shared}


@dataclass(frozen=True, eq=False)
class Audited:
    """The triples that are tested in one client's models, in its local IDs.

    Attributes:
        place: index of the client in the graph.
        asked: True if the client requested forgetting.
        forget: all forgotten triples, int64 `[n, 3]`.
        members, controls: forgotten triples that nobody trains on any more and that have a matched control, int64 `[m, 3]`, and
            these controls, int64 `[c, 3]` (`fkgsec.attacks.membership.controls`, "held_out").
        reason: why there is no membership attack.
        unmatched: forgotten triples that nobody trains on any more and that have no control, int64 `[u, 3]`, if requested.
        weights: number of forgotten triples that each control represents, float64 `[c]`; None: one each.
        others: never-seen triples that match no forgotten one, int64 `[o, 3]`, if requested. Tests that compare each triple
            with itself use these as controls, too: they show how a training run shifts all triples.
    """

    place: int
    name: str
    asked: bool
    forget: np.ndarray
    members: np.ndarray
    controls: np.ndarray
    reason: str | None = None
    unmatched: np.ndarray = field(default_factory=lambda: np.empty((0, 3), dtype=np.int64))
    weights: np.ndarray | None = None
    others: np.ndarray = field(default_factory=lambda: np.empty((0, 3), dtype=np.int64))

    @property
    def triples(self) -> np.ndarray:
        """Members, controls, forgotten triples without a control, and other never-seen triples, int64 `[m + c + u + o, 3]`."""
        return np.concatenate([self.members, self.controls, self.unmatched, self.others])

    @property
    def compared(self) -> int:
        """Number of members and controls, m + c, which come first in `triples`."""
        return len(self.members) + len(self.controls)

    @property
    def forgotten(self) -> np.ndarray:
        """Which of members and controls are forgotten triples, bool `[m + c]`."""
        return np.arange(self.compared) < len(self.members)

    @property
    def compared_weights(self) -> np.ndarray:
        """Weights of members, which are 1, and of controls, float64 `[m + c]`."""
        controls = np.ones(len(self.controls)) if self.weights is None else self.weights
        return np.concatenate([np.ones(len(self.members)), controls])

    @property
    def num_effective_controls(self) -> float:
        """Effective number of controls, see `effective_number`."""
        return effective_number(self.compared_weights[len(self.members) :])

    @property
    def all_forgotten(self) -> np.ndarray:
        """Which of `triples` are forgotten triples, bool `[m + c + u + o]`."""
        rest = np.arange(len(self.unmatched) + len(self.others)) < len(self.unmatched)
        return np.concatenate([self.forgotten, rest])


def audited_triples(
    graph: FederatedGraph,
    retained: FederatedGraph,
    forget: Forget,
    seed: int,
    *,
    pools: Mapping[str, np.ndarray] | None = None,
    unmatched: bool = False,
) -> list[Audited]:
    """Choose the triples to test in each client's models.

    Args:
        graph: data that the attacked run trained on.
        retained: the same data without the forgotten triples.
        forget: forgotten triples by client, in local IDs.
        seed: draws the controls.
        pools: triples from which controls are drawn, by client, in local IDs; None: each client's test triples.
        unmatched: True to audit all triples: forgotten ones without a control and never-seen ones without a match, too. A
            control may then represent several forgotten triples, by its weight.

    Returns:
        One audit per client, in the order of `graph`. Clients without a request have the requesting clients' triples that they
        can express and do not train on.
    """
    requesting = {
        client.name: _requested(
            graph,
            place,
            np.asarray(forget[client.name], dtype=np.int64),
            trained_elsewhere(retained, client),
            generator(seed, "controls", place),
            pool=None if pools is None else pools.get(client.name, np.empty((0, 3), dtype=np.int64)),
            unmatched=unmatched,
        )
        for place, client in enumerate(graph.clients)
        if client.name in forget
    }
    return [
        requesting.get(client.name) or _expressible(graph, place, list(requesting.values()), unmatched=unmatched)
        for place, client in enumerate(graph.clients)
    ]


def _requested(
    graph: FederatedGraph,
    place: int,
    triples: np.ndarray,
    elsewhere: np.ndarray,
    rng: np.random.Generator,
    *,
    pool: np.ndarray | None,
    unmatched: bool,
) -> Audited:
    """Choose the triples of a client that requested forgetting.

    Args:
        place: index of the client.
        triples: its forgotten triples, int64 `[n, 3]`.
        elsewhere: triples that other clients train on, in its local IDs.
        rng: draws the controls.
        pool: triples from which controls are drawn; None: the client's test triples.
    """
    client = graph.clients[place]
    members = controls = np.empty((0, 3), dtype=np.int64)
    reason, weights = None, None
    try:
        matched = matched_controls(client, triples, rng, seen_elsewhere=elsewhere, pool=pool, shared=unmatched)
        # A triple that another client still trains on cannot be forgotten, and is no member.
        gone = ~contains(elsewhere, triples[matched.rows])
        rows, controls = matched.rows[gone], matched.triples[gone]
        members = triples[np.unique(rows)]
        if unmatched:
            # The controls of a triple share its weight of 1.
            shares = 1 / np.bincount(rows)[rows]
            controls, which = np.unique(controls, axis=0, return_inverse=True)
            weights = np.bincount(which.reshape(-1), weights=shares)
    # No control matches these triples; figures that need no controls are still measured.
    except DataError as error:
        reason = str(error)
    rest = never_seen = triples[:0]
    if unmatched:
        rest = triples[~contains(members, triples) & ~contains(elsewhere, triples)]
        # Controls for tests per triple: never trained on by anybody, and not matched.
        never_seen = np.unique(client.test if pool is None else pool, axis=0)
        for seen in (client.train, client.valid, elsewhere, controls):
            never_seen = never_seen[~contains(seen, never_seen)]
    return _enough(Audited(place, client.name, True, triples, members, controls, reason, rest, weights, never_seen))


def _expressible(graph: FederatedGraph, place: int, requesting: Sequence[Audited], *, unmatched: bool) -> Audited:
    """Choose those of the requesting clients' triples that another client can express and does not train on."""
    client = graph.clients[place]

    def expressed(part: str, known: np.ndarray) -> np.ndarray:
        """Return the triples of a part of the requests, without known ones."""
        triples = [graph.clients[audit.place].to_global(getattr(audit, part)) for audit in requesting]
        local = np.unique(to_local(graph, client, np.concatenate(triples)), axis=0)
        return local[~contains(known, local)]

    controls = expressed("controls", client.triples)
    return _enough(
        Audited(
            place,
            client.name,
            False,
            expressed("forget", client.train),
            expressed("members", client.triples),
            controls,
            None,
            expressed("unmatched", client.triples),
            _weights_of(graph, client.to_global(controls), requesting) if unmatched else None,
            expressed("others", client.triples),
        )
    )


def _weights_of(graph: FederatedGraph, controls: np.ndarray, requested: Iterable[Audited]) -> np.ndarray:
    """Add up the weights of controls `[c, 3]`, in global IDs, over the audits of the requesting clients."""
    weights: dict[tuple[int, ...], float] = {}
    for audit in requested:
        triples = graph.clients[audit.place].to_global(audit.controls)
        for triple, weight in zip(triples, audit.compared_weights[len(audit.members) :], strict=True):
            weights[tuple(triple)] = weights.get(tuple(triple), 0.0) + float(weight)
    return np.array([weights[tuple(triple)] for triple in controls], dtype=np.float64)


def _enough(audit: Audited) -> Audited:
    """Add a reason if there are fewer than two members or controls."""
    if audit.reason is None and min(len(audit.members), len(audit.controls)) < 2:
        got = f"{len(audit.members)} forgotten triples with {len(audit.controls)} controls; it takes 2 of each"
        return replace(audit, reason=got)
    return audit


def to_local(graph: FederatedGraph, client: ClientGraph, triples: np.ndarray) -> np.ndarray:
    """Convert triples to a client's local IDs, and drop those that it cannot express.

    Args:
        triples: int `[n, 3]`, in global IDs.

    Returns:
        int64 `[k, 3]`, in the same order.
    """
    entity, relation = np.full(len(graph.entities), -1), np.full(len(graph.relations), -1)
    entity[client.entity_ids] = np.arange(client.num_entities)
    relation[client.relation_ids] = np.arange(client.num_relations)
    local = np.stack([entity[triples[:, 0]], relation[triples[:, 1]], entity[triples[:, 2]]], axis=1)
    return local[(local >= 0).all(axis=1)]


def trained_elsewhere(graph: FederatedGraph, client: ClientGraph) -> np.ndarray:
    """Return the triples that other clients train on and the client can express, in its local IDs, int64 `[k, 3]`.

    Args:
        graph: data of the federation.
    """
    others = [other.to_global(other.train) for other in graph.clients if other.name != client.name]
    return to_local(graph, client, np.concatenate([np.empty((0, 3), dtype=np.int64), *others]))


def named_triples(graph: FederatedGraph, client: ClientGraph, triples: np.ndarray) -> np.ndarray:
    """Convert a client's local triples to names.

    Args:
        triples: int `[q, 3]`, in local IDs.

    Returns:
        object `[q, 3]`.
    """
    entities, relations = (np.array(names, dtype=object) for names in (graph.entities, graph.relations))
    in_global = client.to_global(triples)
    return np.stack([entities[in_global[:, 0]], relations[in_global[:, 1]], entities[in_global[:, 2]]], axis=1)


def contains(triples: np.ndarray, candidates: np.ndarray) -> np.ndarray:
    """Test which triples occur among others.

    Args:
        triples: int `[n, 3]`.
        candidates: int `[k, 3]`.

    Returns:
        bool `[k]`, True for candidates in `triples`.
    """
    codes = np.unique(np.concatenate([triples, candidates]), axis=0, return_inverse=True)[1].reshape(-1)
    return np.isin(codes[len(triples) :], codes[: len(triples)])


def known_triples(client: ClientGraph, options: KgeOptions) -> list[KnownTriples]:
    """Build the filters for a client's ranking metrics from its train, valid and test triples.

    Args:
        client: client to evaluate.
        options: options of the run, which name the sides to rank.
    """
    return [KnownTriples.build(client.triples, side, client.num_relations) for side in sides_of(options.eval_sides)]


# Shadow models.


class Shadow(NamedTuple):
    """A shadow federation.

    Attributes:
        member: by client index, bool `[m + c]`: which of its audited triples some client trained on.
        trained: scores of these triples by (client index, model), float64 `[m + c]`.
        unlearned: the same after the shadow has forgotten its half; empty without unlearning.
    """

    member: dict[int, np.ndarray]
    trained: dict[tuple[int, str], np.ndarray]
    unlearned: dict[tuple[int, str], np.ndarray]


def train_shadow(
    graph: FederatedGraph,
    retained: FederatedGraph,
    audits: Sequence[Audited],
    options: KgeOptions,
    number: int,
    seed: int,
    unlearn: Callable[[KgeResult, Forget], KgeResult] | None = None,
    train: Callable[[FederatedGraph, KgeOptions], KgeResult] = run_federation,
) -> Shadow:
    """Train a federation on the retained triples and half of the audited ones, then let it forget that half.

    Shadows 2 k and 2 k + 1 take complementary halves, so that an even number of them has every triple in as often as out. Half
    of the controls is trained on, too: the score of a trained control shows what a trained member would get.

    Args:
        graph: data that the attacked run trained on.
        retained: the same data without the forgotten triples.
        audits: audited triples of all clients.
        options: options of the attacked run.
        number: index of the shadow federation.
        seed: seed from which each shadow federation derives a different training seed.
        unlearn: unlearning method of the attacked model; None leaves `Shadow.unlearned` empty.
        train: trains a federation, for runs with a defense.

    Source: Carlini et al. 2022 (halves), Hayes et al. 2024 (U-LiRA: "in" means trained on and then unlearned).
    """
    clients, chosen = list(retained.clients), {}
    for audit in audits:
        if not audit.asked:
            continue
        # Both shadows of a pair share one order and take its even or odd half.
        halved = audit.triples[: len(audit.triples) - len(audit.others)]
        order = generator(seed, "shadow", number // 2, audit.name).permutation(len(halved))
        chosen[audit.name] = halved[(order % 2 == 0) == (number % 2 == 0)]
        client = retained.clients[audit.place]
        clients[audit.place] = replace_train(client, np.concatenate([client.train, chosen[audit.name]]))
    shadow_graph = replace(retained, clients=tuple(clients))
    # Shadows differ from the attacked run in seed and data, as another training run would.
    own_seed = int(generator(seed, "shadow seed", number).integers(2**31))
    result = train(shadow_graph, msgspec.structs.replace(options, seed=own_seed))
    requested = [graph.clients[audit.place].to_global(chosen[audit.name]) for audit in audits if audit.asked]
    # A client without a request can express triples that a requesting client trained on; they count as members there.
    inside = np.concatenate(requested)
    member = {audit.place: contains(inside, graph.clients[audit.place].to_global(audit.triples)) for audit in audits}
    requests = {name: part for name, part in chosen.items() if len(part)}
    # Of a single triple one of two shadows saw none, and has nothing to forget.
    after = (unlearn(result, requests) if requests else result) if unlearn else None
    trained, unlearned = (
        {
            (audit.place, name): model.scores(audit.triples)
            for audit in audits
            for name, model in client_models(run, audit.place).items()
        }
        if run is not None
        else {}
        for run in (result, after)
    )
    return Shadow(member, trained, unlearned)


def replace_train(client: ClientGraph, train: np.ndarray) -> ClientGraph:
    """Return the client with another train split, int64 `[n, 3]` in its local IDs."""
    return ClientGraph(client.name, client.entity_ids, client.relation_ids, train, client.valid, client.test)


# What attacks say.


Statistics = dict[Attack, dict[str, np.ndarray]]


def attack_statistics(
    models: Mapping[str, ClientModel], audit: Audited, name: str, shadows: Sequence[Shadow], temperature: float
) -> Statistics:
    """Score each member and control by each attack, float64 `[m + c]`, larger where it looks trained on.

    Args:
        models: models to attack by role, such as unlearned and retrained.
        audit: audited triples of one client.
        name: name of the model in the shadow federations, "local" or "global".
        shadows: shadow federations; empty: only attacks without shadows.
        temperature: alpha of the self-adversarial weights in the loss.

    Returns:
        Scores by attack and role.
    """
    triples, key = audit.triples[: audit.compared], (audit.place, name)
    # "loss" needs no shadow federation.
    statistics: Statistics = {
        "loss": {
            role: loss_threshold(
                triple_losses(client_model.model, *client_model.rows, triples, temperature=temperature)
            )
            for role, client_model in models.items()
        }
    }
    if not shadows:
        return statistics
    scores = {role: client_model.scores(triples) for role, client_model in models.items()}
    member = np.stack([shadow.member[audit.place][: audit.compared] for shadow in shadows])
    trained = np.stack([shadow.trained[key][: audit.compared] for shadow in shadows])
    statistics["calibrated"] = {
        role: calibrated(audited_scores, trained, member) for role, audited_scores in scores.items()
    }
    statistics["lira"] = {
        role: likelihood_ratio(audited_scores, trained, member) for role, audited_scores in scores.items()
    }
    if all(shadow.unlearned for shadow in shadows):
        unlearned = np.stack([shadow.unlearned[key][: audit.compared] for shadow in shadows])
        statistics["u-lira"] = {
            role: likelihood_ratio(audited_scores, unlearned, member) for role, audited_scores in scores.items()
        }
    return statistics


def pooled_statistics(
    graph: FederatedGraph, parts: Sequence[tuple[Audited, Statistics]]
) -> tuple[Statistics, np.ndarray, np.ndarray]:
    """Pool the scores of several clients.

    Scores differ between models, so each triple has its normalized rank within a client. A triple of several clients counts
    once, with the mean over these clients, since their models are dependent: two clients that both express 40 of 60 triples
    give 60 observations, not 100.

    Args:
        parts: audit and scores of each client.

    Returns:
        Pooled scores, which triples are forgotten, and the weights.
    """
    triples = [graph.clients[audit.place].to_global(audit.triples[: audit.compared]) for audit, _ in parts]
    first, which = distinct_triples(np.concatenate(triples))
    statistics: Statistics = {
        attack: {
            role: mean_by(
                which,
                np.concatenate(
                    [rankdata(by_attack[attack][role]) / len(by_attack[attack][role]) for _, by_attack in parts]
                ),
            )
            for role in by_role
        }
        for attack, by_role in parts[0][1].items()
    }
    forgotten, weights = (
        np.concatenate([getattr(audit, name) for audit, _ in parts])[first]
        for name in ("forgotten", "compared_weights")
    )
    return statistics, forgotten, weights


def distinct_triples(triples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Find the distinct triples.

    Args:
        triples: int `[k, 3]`.

    Returns:
        First row of each distinct triple, int64 `[d]`, ascending, and for each row the index of its triple among these, int64
        `[k]`.
    """
    _, first, which = np.unique(triples, axis=0, return_index=True, return_inverse=True)
    # Keep the order of first occurrence, so that members precede controls.
    order = np.argsort(first)
    return first[order], np.argsort(order)[which.reshape(-1)]


def mean_by(which: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Average values by group.

    Args:
        which: group of each value, int `[k]`.
        values: float `[k]`.

    Returns:
        float64 `[d]`.
    """
    return np.bincount(which, weights=values) / np.bincount(which)
