"""Which names do other clients hold? Asked by a client that claims guessed names and sees whose rows come back changed.

    found = run_attacks(result, AttackOptions(attack=("client-guess",), guesses=100))
    for one in headline(found.figures):
        print(one.victim, one.metric, one.estimate, one.baseline)      # hospital-2  found  1.00 ...  0.00 ...

Threat model: "client", one that aligns names from a dictionary beside its own, each in a triple of its invention, so that it
uploads their rows, too: just as it received them. A row that nobody else holds comes back as it was; one that is changed has
another holder. Rows that fewer than t clients hold and `suppress` keeps back count the client, and so are sent with one other.

An active attack changes the run: so its first rounds are trained once more with the same seed and options, until every client
has uploaded and the client has seen what became of it; all rounds where noise was added, whose size their number decides.

`rows`: by how far a row moved, less how far rows of names do that the client makes up for the purpose: where noise is added to
sums, these move, too. `list`: under a private union (`psu`) every client receives the list of all names, so that it need
not guess: by whether the name stands in the list that it received in the run without the attack.

The dictionary has for each victim names that it holds and the client does not, and as many that nobody holds. `found`: the share
of the victim's that are told; its baseline, the share of the others that are told as well. `auc`: names that it holds before
those that nobody does. Which of several others holds a name, the client does not learn. Whoever sees names (the server, under
`psu` everybody) sees the guessed ones.

Source: ours.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import msgspec
import numpy as np
import torch
from torch import Tensor

from attacks.clients.asking import nothing_broadcast
from attacks.figure import Figure
from attacks.kge.view import KgeView
from attacks.membership.figures import estimate_auc, placements
from attacks.reconstruction.options import KgeAttackOptions
from attacks.registry import Attack, Needs, Truth
from attacks.uploads.ways import Measure, by_ways
from fkgsec.data.graph import ClientGraph, FederatedGraph
from fkgsec.errors import TrainingError
from fkgsec.estimate import Estimate, exact, proportion
from fkgsec.federation.adversary import Adversary
from fkgsec.federation.loop import FederationResult, run_federation
from fkgsec.federation.messages import client_party
from fkgsec.federation.recipes import Table
from fkgsec.randomness import generator

CLIENT_GUESS = "client-guess"
METRICS = {
    "found": "of guessed names that a victim holds, the share that the client tells",
    "auc": "AUC of guessed names that a victim holds among those that nobody does",
}
UNCHANGED = 1e-5  # a row that crossed in a sum alone differs by its encoding's rounding
NUM_REFERENCES = 20


class Guesser(Adversary):
    """The client in the run: it uploads guessed rows as it received them.

    Args:
        guessed: int64 `[g]`, rows of its entities.

    Attributes:
        moved: how far each of these rows moved at most by what came back, `[g]`; empty before its second round. One that came
            back as it was sent did not, nor one of which nothing came back and which is as the client's own training left it.
    """

    guarded = False

    def __init__(self, party: str, guessed: np.ndarray) -> None:
        super().__init__(party)
        self.guessed = torch.from_numpy(guessed)
        self.moved = torch.empty(0)
        self.sent = self.trained = torch.empty(0, 0)

    def identity(self) -> str:
        return f"{super().identity()}: {hashlib.sha256(self.guessed.numpy().tobytes()).hexdigest()}"

    def upload(self, round: int, table: Table, received: Tensor, trained: Tensor) -> Tensor:
        if table != "entities":
            return trained
        now = received[self.guessed].clone()
        if self.sent.numel():
            moved = torch.minimum((now - self.sent).norm(dim=1), (now - self.trained).norm(dim=1))
            self.moved = torch.maximum(self.moved, moved) if self.moved.numel() else moved
        self.sent, self.trained = now, trained[self.guessed].clone()
        sent = trained.clone()
        sent[self.guessed] = now
        return sent

    def tensors(self) -> dict[str, Tensor]:
        return {"moved": self.moved, "sent": self.sent, "trained": self.trained}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        self.moved, self.sent, self.trained = tensors["moved"], tensors["sent"], tensors["trained"]


@dataclass(frozen=True)
class Plan:
    """How many names of each victim stand in the dictionary."""

    guesses: int


class Dictionary(NamedTuple):
    """Guessed names.

    Attributes:
        held: by victim those that it holds. invented: as many that nobody holds as the longest of these lists.
        references: further ones that nobody holds, as the client knows.
    """

    held: dict[str, list[str]]
    invented: list[str]
    references: list[str]

    @property
    def names(self) -> list[str]:
        """All, each once."""
        return list(
            dict.fromkeys([name for names in self.held.values() for name in names] + self.invented + self.references)
        )


def planned(options: KgeAttackOptions) -> Any:
    """The adversary's part under these options; what it knows of names comes from outside of the federation."""

    def plan(view: KgeView, rng: np.random.Generator) -> Plan:
        return Plan(options.guesses)

    return plan


def score(plan: Plan, truth: Truth) -> list[Figure]:
    """Train the run with the guessed names; figures of every victim."""
    victims = [victim.name for victim in truth.view.victims]
    dictionary = dictionary_of(truth, plan.guesses)
    found = _answers(truth, dictionary)
    figures = []
    for victim in victims:
        held = dictionary.held[victim]
        reason = found if isinstance(found, str) else None
        if not reason and len(held) < 2:
            reason = f"it holds {len(held)} names that {truth.colluder} does not; it takes 2"
        if reason or isinstance(found, str):
            figures += truth.not_attacked(victim, reason or "")
            continue
        invented = dictionary.invented[: len(held)]
        scores = {
            way: tuple(np.array([told[name] for name in names]) for names in (held, invented))
            for way, told in found.items()
        }
        figures += _figures(truth, victim, scores)
    return figures


def dictionary_of(truth: Truth, guesses: int) -> Dictionary:
    """Names that victims hold and the client does not, at most `guesses` of each, and invented ones."""
    graph: FederatedGraph = truth.graph
    own = {number for name in truth.colluders for number in truth.client(name).entity_ids.tolist()}
    held = {}
    for victim in truth.view.victims:
        client = truth.client(victim.name)
        foreign = [number for number in client.entity_ids[: client.num_trained_entities].tolist() if number not in own]
        rng = generator(truth.seed, "guessed names", victim.name)
        held[victim.name] = [graph.entities[foreign[place]] for place in rng.permutation(len(foreign))[:guesses]]
    taken = set(graph.entities)

    def invent(name: str) -> str:
        while name in taken:
            name += "*"
        taken.add(name)
        return name

    longest = max(held.values(), key=len, default=[])
    return Dictionary(held, [invent(name) for name in longest], [invent("*") for _ in range(NUM_REFERENCES)])


def with_guesses(graph: FederatedGraph, client: ClientGraph, guessed: list[str], rng: np.random.Generator) -> Any:
    """The federation in which a client claims to hold names, and the numbers of its rows of these, int64 `[g]`.

    It invents a triple for each: a random own one of its training with the name for its tail.
    """
    known = {name: number for number, name in enumerate(graph.entities)}
    entities = graph.entities + tuple(name for name in guessed if name not in known)
    number = {name: place for place, name in enumerate(entities)}
    train, valid, test = (client.to_global(part) for part in (client.train, client.valid, client.test))
    invented = train[rng.integers(0, len(train), len(guessed))].copy()
    invented[:, 2] = [number[name] for name in guessed]
    claimed = ClientGraph.from_global(client.name, np.concatenate([train, invented]), valid, test)
    place = {entity: row for row, entity in enumerate(claimed.entity_ids.tolist())}
    rows = np.array([place[number[name]] for name in guessed], dtype=np.int64)
    clients = tuple(claimed if one.name == client.name else one for one in graph.clients)
    return replace(graph, entities=entities, clients=clients), rows


def _answers(truth: Truth, dictionary: Dictionary) -> dict[str, dict[str, float]] | str:
    """By way and name how sure the client is that another one holds it, above 1 where it says so; or why it cannot ask."""
    result: FederationResult = truth.result
    entries, party = result.transcript.entries, client_party(truth.colluder)
    if reason := nothing_broadcast(truth):
        return reason
    if not any(dictionary.held.values()):
        return f"nobody holds a name that {truth.colluder} does not"
    if result.options.defense and truth.view.train is run_federation:
        return "the run was defended: it can be trained again with that defense's transport alone"
    uploaded = {one.sender: one.round for one in reversed(entries) if one.direction == "up" and one.round > 0}
    everybody = max(uploaded.values(), default=0)
    seen = [one.round for one in entries if one.sender == party and one.direction == "up" and one.round > everybody]
    if len(uploaded) < len(result.graph.clients) or not seen:
        return f"{truth.colluder} took part in no round after all clients had uploaded"
    options = result.options
    if not result.protection.guarantees:  # else the noise follows from the number of rounds
        options = msgspec.structs.replace(options, rounds=min(seen), eval_every=min(seen), patience=0)
    names = dictionary.names
    rng = generator(truth.seed, "invented triples")
    graph, rows = with_guesses(result.graph, truth.client(truth.colluder), names, rng)
    guesser = Guesser(truth.colluder, rows)
    try:
        truth.view.train(graph, options, adversary=guesser)
    except TrainingError as error:
        return f"the run broke down with the guessed names in it: {error}"
    moved = dict(zip(names, guesser.moved.tolist(), strict=True))
    usual = float(np.median([moved[name] for name in dictionary.references]))
    bound = max(abs(moved[name] - usual) for name in dictionary.references) + UNCHANGED
    found = {"rows": {name: abs(one - usual) / bound for name, one in moved.items()}}
    if any(one.kind == "psu-union-list" and one.receiver == party and one.table == "entities" for one in entries):
        union = set(result.row_names["entities"])
        found["list"] = {name: 2.0 * (name in union) for name in names}
    return found


def _figures(truth: Truth, victim: str, scores: Mapping[str, tuple[np.ndarray, ...]]) -> list[Figure]:
    count = len(next(iter(scores.values()))[0])
    alarms = {way: proportion(int((others > 1).sum()), count) for way, (_, others) in scores.items()}
    found: dict[str, Measure] = {
        way: partial(_found, int((held > 1).sum()), count) for way, (held, _) in scores.items()
    }
    aucs: dict[str, Measure] = {way: partial(_auc, *pair) for way, pair in scores.items()}
    counts = {"held": count, "invented": count}
    return [
        *by_ways(truth, "found", victim, found, alarms, attainable=1.0, counts=counts),
        *by_ways(truth, "auc", victim, aucs, {"chance": exact(0.5, 2 * count)}, attainable=1.0, counts=counts),
    ]


def _found(told: int, count: int, compared: int) -> Estimate:
    return proportion(told, count, compared=compared)


def _auc(held: np.ndarray, others: np.ndarray, compared: int) -> Estimate:
    placed = placements(held, others)
    return estimate_auc(
        placed, sum(float(one.var(ddof=1)) / len(one) for one in placed), "delong+newcombe", compared=compared
    )


ATTACK = Attack(
    CLIENT_GUESS,
    "tells, for one client, names that others hold, by claiming guessed ones; trains first rounds once more",
    Needs(entities=True, alone=True),
    METRICS,
    planned(KgeAttackOptions()),
    score,
    threats=("client",),
    items={"found": "guessed names", "auc": "guessed names"},
    configured=lambda options: replace(ATTACK, run=planned(options)),
    in_order=True,
    trains=True,
)
