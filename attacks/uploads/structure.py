"""Structure matching: names of rows, where names are hidden and no row of another client lies in the same space.

Threat model: "collusion+entities", a server with a colluder. Required knowledge: the victim's entity rows without names, from
another source, and the colluder's named rows. Where only relations are shared, each client's entities lie in a separate space,
so that cosines of rows say little. But all clients share one relation table. How well the best tails and heads of each relation
fit a row therefore reveals the relations of its entity. Such a profile of a victim's row is compared with the profiles of the
colluder's rows, each computed within its client.

Inference methods: `rows`, the cosine of rows, as in `reconstruction`. `profiles`, the cosine of profiles. `both`, their sum,
each standardized over the colluder's rows. `err`: share of the victim's entities that are named correctly. Baseline: a random
name of the colluder's.

Source: ours, after structural profiles in graph alignment: Heimann et al. 2018 (REGAL).

Legend: `n` rows of a client, `W` width, `R` relations, `k` columns of a profile.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from fkgsec.attacks.figure import Figure
from fkgsec.attacks.kge.view import KgeView, VictimView
from fkgsec.attacks.laboratory import Laboratory
from fkgsec.attacks.questions import ENTITIES
from fkgsec.attacks.reconstruction.knowledge import Knowledge
from fkgsec.attacks.registry import Attack, Needs, Truth, score_each
from fkgsec.attacks.uploads.pairs import HeldRows, local_ids
from fkgsec.attacks.view import NotAttacked, claim_each
from fkgsec.estimate import exact, proportion
from fkgsec.kge.models import KgeModel, Side

# Number of best candidates of each query whose mean score is a column.
NEAREST = 5
SIDES: tuple[Side, ...] = ("tail", "head")


@dataclass(frozen=True, eq=False)
class Named:
    """Names that an adversary assigns to a victim's rows.

    Attributes:
        ways: names by inference method, object `[n]`.
        held_rows: rows that the adversary has.
        knowledge: knowledge of names without the messages.
    """

    ways: Mapping[str, np.ndarray]
    held_rows: HeldRows
    knowledge: Knowledge


def profiles(model: KgeModel, rows: Tensor, relations: Tensor) -> Tensor:
    """Profile each row among the others.

    For each relation and side: the best score of another row as its tail (its head), and the mean of the best `NEAREST`. Then
    the row's norm, and the same two values of its similarity to others without a relation.

    Args:
        rows: float `[n, W]`.
        relations: float `[R, V]`.

    Returns:
        float32 `[n, 4 R + 3]`, each column standardized.
    """
    count, columns = min(NEAREST, len(rows) - 1), []

    def best(queries: Tensor) -> list[Tensor]:
        """Return the best score of each query, and the mean of its best scores."""
        scores = model.score_all(queries, rows)
        # A row does not count as its own neighbor.
        top = scores.fill_diagonal_(-torch.inf).topk(count, dim=1).values
        return [top[:, 0], top.mean(dim=1)]

    for relation in relations:
        for side in SIDES:
            columns += best(model.query(rows, relation.expand(len(rows), -1), side))
    columns_of = torch.stack([*columns, rows.norm(dim=1), *best(rows)], dim=1)
    return (columns_of - columns_of.mean(dim=0)) / columns_of.std(dim=0).clamp_min(1e-9)


def match(view: KgeView, laboratory: Laboratory, rng: np.random.Generator) -> dict[str, Named | NotAttacked]:
    """Name each row of each victim, by each inference method.

    Args:
        laboratory: not used; the attack trains nothing.
        rng: not used; the attack draws nothing.

    Raises:
        NotAttacked: fewer than three entities leaked.
    """
    accomplice = view.accomplice
    if len(accomplice.entity_names) < 3:
        raise NotAttacked(f"{len(accomplice.entity_names)} entities leaked; it takes 3")
    entities, relations = accomplice.entities.float(), accomplice.relations.float()
    profiles_of = profiles(view.model, entities, relations)

    def name(victim: VictimView) -> Named:
        """Name the rows of one victim."""
        if victim.entities is None:
            raise NotAttacked("no entity embedding of it is known")
        rows = victim.entities.float()
        if len(rows) < 3 or rows.isnan().any():
            raise NotAttacked(f"of its {len(rows)} entity rows some were not seen, or they are fewer than 3")
        # Direct comparison, which works only if both clients' rows lie in one space.
        near = normalize(rows, dim=1) @ normalize(entities, dim=1).T
        # Standardized columns make profiles comparable between clients with different graphs.
        alike = normalize(profiles(view.model, rows, relations), dim=1) @ normalize(profiles_of, dim=1).T
        scores = {"rows": near, "profiles": alike, "both": _in_deviations(near) + _in_deviations(alike)}
        ways = {way: accomplice.entity_names[of_way.argmax(dim=1).numpy()] for way, of_way in scores.items()}
        return Named(ways, HeldRows.of(victim), Knowledge.of(view, victim))

    return claim_each(view.victims, name)


def _in_deviations(scores: Tensor) -> Tensor:
    """Standardize each row of scores."""
    return (scores - scores.mean(dim=1, keepdim=True)) / scores.std(dim=1, keepdim=True).clamp_min(1e-9)


@score_each
def score(truth: Truth, victim: str, claim: Named) -> list[Figure]:
    """Compute the ERR of a victim, by each inference method and by the strongest."""
    client, knowledge = truth.client(victim), claim.knowledge
    names = np.array(truth.graph.entities, dtype=object)[client.entity_ids[: client.num_trained_entities]]
    ids = local_ids(truth, victim, claim.held_rows)
    # In a sum, the adversary may attribute more rows, or fewer, to the victim than it has.
    is_held = ids >= 0
    most = float(knowledge.attainable_names(names).mean())
    ways = {
        way: partial(proportion, int((named[is_held] == names[ids[is_held]]).sum()), len(names), attainable=most)
        for way, named in claim.ways.items()
    }
    chance = exact(float(knowledge.chance_of_name(names).mean()), len(names))
    shown = exact(float((knowledge.exposed_names(names) == names).mean()), len(names))
    return truth.figures("err", victim, ways, {"chance": chance}, attainable=most, exposed=shown)


ATTACK = Attack(
    "structure",
    "identifies a victim's entities by the relative position of their rows, if no other client's row is comparable",
    Needs(colluder=True, entities=True, server=True),
    {"err": "share of victims' entities that are identified"},
    match,
    score,
    threats=("collusion+entities",),
    questions={"err": ENTITIES},
    items={"err": "entities of the victims"},
)
