"""Structure matching: names of rows, where names are hidden and no row of another client lies in the same space.

Threat model: "collusion+entities", a server with a colluder, and the victim's entity rows without names, which reached it by
another way. Where relations alone are shared, each client's entities lie in a space of its own, so that cosines of rows say
little. But one relation table acts in all of them: how well the best tails and heads of each relation fit a row says in which
relations its entity stands. Such a profile of a victim's row is compared with those of the colluder's rows, each made within its
own client.

`rows`: the cosine of rows, as `reconstruction` names them. `profiles`: the cosine of profiles. `both`: their sum, each in its
deviations over the colluder's rows. `err`: entities of the victim that are named right, over all of them. Baseline: a name drawn
from the colluder's.

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

NEAREST = 5  # best candidates of each query, whose mean score is a column
SIDES: tuple[Side, ...] = ("tail", "head")


@dataclass(frozen=True, eq=False)
class Named:
    """The names of a victim's rows by way, object `[n]` each; which rows these are, and what is known whatever was trained."""

    ways: Mapping[str, np.ndarray]
    held: HeldRows
    knowledge: Knowledge


def profiles(model: KgeModel, rows: Tensor, relations: Tensor) -> Tensor:
    """Profile each row `[n, W]` among the others, float32 `[n, 4 R + 3]`, each column in deviations.

    Of each relation `[R, V]` and side: the best score of another row as its tail (its head), and the mean of the best `NEAREST`.
    Then its norm, and the same two of its similarity to others whatever the relation.
    """
    count, columns = min(NEAREST, len(rows) - 1), []

    def best(queries: Tensor) -> list[Tensor]:
        scores = model.score_all(queries, rows)
        top = scores.fill_diagonal_(-torch.inf).topk(count, dim=1).values
        return [top[:, 0], top.mean(dim=1)]

    for relation in relations:
        for side in SIDES:
            columns += best(model.query(rows, relation.expand(len(rows), -1), side))
    columns_of = torch.stack([*columns, rows.norm(dim=1), *best(rows)], dim=1)
    return (columns_of - columns_of.mean(dim=0)) / columns_of.std(dim=0).clamp_min(1e-9)


def match(view: KgeView, laboratory: Laboratory, rng: np.random.Generator) -> dict[str, Named | NotAttacked]:
    """Name each row of each victim, by each way."""
    accomplice = view.accomplice
    if len(accomplice.entity_names) < 3:
        raise NotAttacked(f"{len(accomplice.entity_names)} entities leaked; it takes 3")
    entities, relations = accomplice.entities.float(), accomplice.relations.float()
    profiles_of = profiles(view.model, entities, relations)

    def name(victim: VictimView) -> Named:
        if victim.entities is None:
            raise NotAttacked("no entity embedding of it is known")
        rows = victim.entities.float()
        if len(rows) < 3 or rows.isnan().any():
            raise NotAttacked(f"of its {len(rows)} entity rows some were not seen, or they are fewer than 3")
        near = normalize(rows, dim=1) @ normalize(entities, dim=1).T
        alike = normalize(profiles(view.model, rows, relations), dim=1) @ normalize(profiles_of, dim=1).T
        scores = {"rows": near, "profiles": alike, "both": _in_deviations(near) + _in_deviations(alike)}
        ways = {way: accomplice.entity_names[of_way.argmax(dim=1).numpy()] for way, of_way in scores.items()}
        return Named(ways, HeldRows.of(victim), Knowledge.of(view, victim))

    return claim_each(view.victims, name)


def _in_deviations(scores: Tensor) -> Tensor:
    """Subtract from each row its mean, and divide by its deviation."""
    return (scores - scores.mean(dim=1, keepdim=True)) / scores.std(dim=1, keepdim=True).clamp_min(1e-9)


@score_each
def score(truth: Truth, victim: str, claim: Named) -> list[Figure]:
    """ERR of a victim, by each way and by the strongest."""
    client, knowledge = truth.client(victim), claim.knowledge
    names = np.array(truth.graph.entities, dtype=object)[client.entity_ids[: client.num_trained_entities]]
    ids = local_ids(truth, victim, claim.held)
    is_held = ids >= 0  # of a sum the adversary takes more rows for the victim's, or fewer
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
    "names a victim's rows by the place that each has among the others, where no row of another client is comparable",
    Needs(colluder=True, entities=True),
    {"err": "victims' entities that are named"},
    match,
    score,
    threats=("collusion+entities",),
    questions={"err": ENTITIES},
    items={"err": "entities of the victims"},
)
