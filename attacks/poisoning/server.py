"""A server plants false triples: a model of its own that believes them enters every mean as one more client.

    found = run_attacks(result, AttackOptions(attack=("server-poison",)))
    for one in headline(found.figures):
        print(one.victim, one.metric, one.estimate, one.baseline)      # hospital-2  hits@10  0.42 ...  0.00

Threat model: "server+triples", here a server that does not follow the protocol: it uses the names that it was told, has a share
of each victim's triples (`auxiliary`), and sends rows that are not the mean of what clients sent. All clients are sent the same
table, so that clients that compare what they were sent find nothing. From names and relations of each victim's known triples it
draws false ones; every round a shadow model trains, as a client would, on the known triples and many copies of the false ones,
from the rows that were sent last. Of a row that k clients hold and the shadow model has, k + 1 values are averaged then.

Source: FMPA-S of Ma et al. 2024 (WWW), and its code. Differs: there the server has all of one victim's triples; it draws ten
heads and repeats each triple 256 times; the shadow model's relation rows are drawn anew every round (here they are kept); rows
of clients that sit a round out count as if they were in the mean. DPA-S, which adds a multiple of what is missing to the rows
beside, is not here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import msgspec
import numpy as np
import torch
from torch import Tensor

from attacks.figure import Figure
from attacks.kge.view import KgeView
from attacks.poisoning.false_triples import FalseTriples, draw_false, without_true
from attacks.poisoning.planting import ITEMS, METRICS, first_round, obstacle, planted_figures, train_with
from attacks.reconstruction.options import KgeAttackOptions
from attacks.registry import Attack, Needs, Truth
from fkgsec.data.graph import ClientGraph
from fkgsec.exchange import AGGREGATIONS, CODECS
from fkgsec.federation.adversary import SERVER, Adversary
from fkgsec.federation.loop import FederationResult
from fkgsec.federation.messages import Alignment
from fkgsec.federation.recipes import RECIPES, Table
from fkgsec.kge.local.stack import ClientStack
from fkgsec.kge.local.training import LocalTrainer, TrainingSubset
from fkgsec.kge.options import KgeOptions

SERVER_POISON = "server-poison"
_SHADOW_KEY = -2  # what the shadow model's randomness derives from; clients have 0 and above


class ShadowModel:
    """The server's own model of some triples.

    Args:
        known, planted: int64 `[n, 3]` in rows of the table and numbers of relations. copies: of each planted one.
    """

    def __init__(self, known: np.ndarray, planted: np.ndarray, copies: int, options: KgeOptions) -> None:
        empty = np.zeros((0, 3), dtype=np.int64)
        graph = ClientGraph.from_global("shadow", np.concatenate([known, planted]), empty, empty)
        plain = msgspec.structs.replace(
            options,
            algorithm="fede",
            settings=None,
            defense="",
            protocol_seed=None,
            negative_scope="own",
            rank_scope="own",
        )
        rows = np.concatenate([np.arange(len(known)), len(known) + np.tile(np.arange(len(planted)), copies)])
        self.rows = torch.from_numpy(graph.entity_ids.copy())
        self._stack = ClientStack([graph], [_SHADOW_KEY], plain.kge_model(), plain.seed, plain.torch_device())
        self._trainer = LocalTrainer(self._stack, plain, subsets={0: TrainingSubset(graph.train, rows)})

    def train(self, round: int, table: Tensor) -> Tensor:
        """Its entity rows `[len(rows), W]` after a client's round of training from those of a table `[N, W]`."""
        own = self._stack.rows("entities", 0).detach()
        own.copy_(table[self.rows])
        self._trainer.begin_round()
        self._trainer.train_round(round, [0])
        return own.cpu().clone()

    @property
    def relations(self) -> Tensor:
        """Its relation rows, a view."""
        return self._stack.rows("relations", 0).detach()


class ShadowHolder(Adversary):
    """The server.

    Args:
        held: by client (its party's name) the rows of the table that it is sent, in their order; empty where uploads are summed
            and what is sent is the whole table.
        holders: int64 `[N]`, how many clients hold each row.
        what: names known and planted triples, and the copies, in the run's identity.
        begins: the round whose broadcast its shadow model starts from, which is honest itself.
    """

    def __init__(
        self, shadow: ShadowModel, held: Mapping[str, np.ndarray], holders: np.ndarray, what: str, begins: int = 0
    ) -> None:
        super().__init__(SERVER)
        self.begins, self.watches = begins, 1
        self.shadow, self._what = shadow, what
        self._held = {party: torch.from_numpy(rows) for party, rows in held.items()}
        self._holders = torch.from_numpy(holders)
        self._round = -1
        self._sent = torch.empty(0)  # the whole table, as was sent last
        self._mixed: tuple[Tensor, Tensor] | None = None  # of this round, the shadow model's rows; and where they are

    def identity(self) -> str:
        return f"{super().identity()} {self._what}"

    def broadcast(self, round: int, table: Table, receiver: str, rows: Tensor) -> Tensor:
        if table != "entities":
            return rows
        if not len(self._sent):
            self._sent = torch.zeros(len(self._holders), rows.shape[1])
        if round > self._round:
            self._round, values = round, None if round <= self.begins else self.shadow.train(round, self._sent)
            place = torch.full((len(self._holders),), -1)
            place[self.shadow.rows] = torch.arange(len(self.shadow.rows))
            self._mixed = None if values is None else (values, place)
        places = self._held[receiver] if self._held else torch.arange(len(rows))
        if self._mixed is not None:
            values, place = self._mixed
            ours, number = place[places] >= 0, self._holders[places][:, None]
            mixed = (number * rows + values[place[places].clamp_min(0)]) / (number + 1)
            rows = torch.where(ours[:, None], mixed, rows)
        self._sent[places] = rows
        return rows

    def tensors(self) -> dict[str, Tensor]:
        return {"round": torch.tensor(self._round), "sent": self._sent, "relations": self.shadow.relations.clone()}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        self._round, self._sent, self._mixed = int(tensors["round"]), tensors["sent"], None
        self.shadow.relations.copy_(tensors["relations"])


@dataclass(frozen=True, eq=False)
class Plan:
    """Of one victim the triples that the server has, names `[a, 3]`, and what it draws from them."""

    known: np.ndarray
    triples: FalseTriples
    copies: int
    attack_rounds: int | None = None


def planned(options: KgeAttackOptions) -> Callable[[KgeView, np.random.Generator], Mapping[str, Plan]]:
    """The adversary's part under these options."""

    def plan(view: KgeView, rng: np.random.Generator) -> dict[str, Plan]:
        return {
            victim.name: Plan(
                victim.auxiliary,
                draw_false(victim.auxiliary, options.poison_triples, rng),
                options.poison_copies,
                options.attack_rounds,
            )
            for victim in view.victims
            if victim.auxiliary is not None
        }

    return plan


def score(plans: Mapping[str, Plan], truth: Truth) -> list[Figure]:
    """Train under the server, and ask every victim for the triples drawn from its own."""
    false = without_true(truth, {victim: one.triples for victim, one in plans.items()})
    late = any(one.attack_rounds for one in plans.values())
    reason = obstacle(truth) or _no_mean(truth.result)
    if reason is None and late and truth.result.options.participation < 1:
        reason = "a server that begins late has not sent rows to the clients that sat out; it takes participation 1"
    if reason is None and not any(len(one.planted) for one in false.values()):
        reason = "no false triple can be drawn from the triples that the server has"
    attacked = reason or train_with(truth, {"shadow": partial(_adversary, truth, plans, false)})
    if isinstance(attacked, str):
        return [figure for victim in plans for figure in truth.not_attacked(victim, attacked)]
    return planted_figures(truth, false, attacked, begins=first_round(truth, next(iter(plans.values())).attack_rounds))


def _no_mean(result: FederationResult) -> str | None:
    """Why there is no mean that the server could enter."""
    recipe, options = RECIPES[result.options.algorithm], result.options
    if "entities" not in recipe.shared:
        return f"no entity embedding crosses in {options.algorithm}"
    if not CODECS[recipe.codec].whole or AGGREGATIONS[recipe.aggregation].answers != "rows":
        return f"{options.algorithm} does not send all clients whole rows of one mean"
    return f"a shadow of {options.model} has an encoder to train" if options.has_encoder else None


def _adversary(truth: Truth, plans: Mapping[str, Plan], false: Mapping[str, FalseTriples]) -> ShadowHolder:
    """The server with what it knows: names of rows, from alignment, and how many hold each."""
    result: FederationResult = truth.result
    row_of = {name: row for row, name in enumerate(result.row_names["entities"])}
    graph = truth.graph
    holders = np.zeros(len(row_of), dtype=np.int64)
    for client in graph.clients:
        names = (graph.entities[number] for number in client.entity_ids[: client.num_trained_entities])
        holders[[row_of[name] for name in names]] += 1
    held = {
        message.sender: np.array([row_of[name] for name in message.names], dtype=np.int64)
        for message in result.transcript.messages(0)
        if isinstance(message, Alignment) and message.table == "entities" and not result.inputs.get("entities")
    }
    kind_of = {name: number for number, name in enumerate(graph.relations)}

    def numbers(triples: list[np.ndarray]) -> np.ndarray:
        named = np.unique(
            np.array([(row_of[h], kind_of[r], row_of[t]) for one in triples for h, r, t in one]).reshape(-1, 3), axis=0
        )
        return named.astype(np.int64)

    known, planted = (
        numbers(parts) for parts in ([one.known for one in plans.values()], [one.planted for one in false.values()])
    )
    copies = next(iter(plans.values())).copies
    digest = hashlib.sha256(np.concatenate([known, planted]).astype("<i8").tobytes()).hexdigest()[:16]
    shadow = ShadowModel(known, planted, copies, result.options)
    begins = max(0, first_round(truth, next(iter(plans.values())).attack_rounds) - 1)
    return ShadowHolder(shadow, held, holders, f"{digest} {copies}", begins)


ATTACK = Attack(
    SERVER_POISON,
    "a server that has some triples plants false ones by a model of its own in the mean; trains the run again",
    Needs(server=True, names=True, auxiliary=True),
    METRICS,
    planned(KgeAttackOptions()),
    score,
    threats=("server+triples",),
    items=ITEMS,
    configured=lambda options: replace(ATTACK, run=planned(options)),
    in_order=True,
    trains=True,
)
