"""Inference of entity names by a client that claims guessed names and watches which of their rows come back changed.

Threat model: "client", one that aligns names from a dictionary beside its own, each in an invented triple, and uploads their rows
just as it received them. A row that nobody else holds comes back as it was; one that is changed has another holder. Rows that
fewer than t clients hold and `suppress` keeps back count the client, and so are sent with one other. The first rounds are trained
once more with the same seed and options, until every client has uploaded and the client has seen what became of it; all rounds
where noise was added, whose size their number decides.

`rows`: by how far a row moved, less how far rows of made-up names do, which noise moves, too. `list`: under a private union
(`psu`), by whether the name stands in the list of all names that every client receives.

The dictionary has for each victim names that it holds and the client does not, and as many that nobody holds. `found`: the share
of the victim's that are told; its baseline, the share of the others that are told as well. `auc`: names that it holds before
those that nobody does. Which of several others holds a name, the client does not learn.

Source: ours.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from fkgsec.attacks.clients.asking import check_broadcast, draw_dictionary, invent
from fkgsec.attacks.figure import Figure
from fkgsec.attacks.kge.laboratory import KgeLaboratory
from fkgsec.attacks.kge.view import ColluderKnowledge, KgeView
from fkgsec.attacks.membership.figures import auc_of
from fkgsec.attacks.questions import ENTITIES
from fkgsec.attacks.registry import Attack, Needs, Truth
from fkgsec.attacks.view import NotAttacked
from fkgsec.estimate import exact, proportion
from fkgsec.federation.adversary import Adversary
from fkgsec.federation.recipes import Table
from fkgsec.randomness import generator

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
        """Upload guessed names' rows as received, and note how far they moved since the last upload."""
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


def guess(view: KgeView, laboratory: KgeLaboratory, rng: np.random.Generator) -> dict[str, dict[str, float]]:
    """Train first rounds with the guessed names, and say of each whether another client holds it.

    Returns: by way and name how sure the client is that another one holds it, above 1 where it says so.
    """
    accomplice = view.accomplice.of_the_first
    check_broadcast(laboratory)
    dictionary = laboratory.dictionary()
    if not dictionary:
        raise NotAttacked(f"nobody holds a name that {accomplice.name} does not")
    laboratory.check_repeatable()
    everybody = max((rounds[0] for rounds in laboratory.uploads.values() if rounds), default=0)
    seen = [number for number in laboratory.uploads[accomplice.name] if number > everybody]
    if not all(laboratory.uploads.values()) or not seen:
        raise NotAttacked(f"{accomplice.name} took part in no round after all clients had uploaded")
    used = {*dictionary, *accomplice.entity_names}
    references = [invent("*", used) for _ in range(NUM_REFERENCES)]
    names = [*dictionary, *references]
    guessers: list[Guesser] = []

    def guesser(rows: np.ndarray) -> Guesser:
        guessers.append(Guesser(accomplice.name, rows))
        return guessers[0]

    last = None if laboratory.noised else min(seen)  # else the noise follows from the number of rounds
    triples = invented_triples(accomplice, names, generator(laboratory.seed, "invented triples"))
    laboratory.train_with_triples(accomplice.name, triples, guesser, last=last)
    moved = dict(zip(names, guessers[0].moved.tolist(), strict=True))
    usual = float(np.median([moved[name] for name in references]))
    bound = max(abs(moved[name] - usual) for name in references) + UNCHANGED
    ways = {"rows": {name: abs(distance - usual) / bound for name, distance in moved.items()}}
    if view.union is not None:
        ways["list"] = {name: 2.0 * (name in view.union) for name in names}
    return ways


def invented_triples(knowledge: ColluderKnowledge, names: Sequence[str], rng: np.random.Generator) -> np.ndarray:
    """For each name a random triple of the client's training with the name for its tail, object `[k, 3]`."""
    chosen = knowledge.triples[rng.integers(0, len(knowledge.triples), len(names))]
    tails = np.array(names, dtype=object)
    return np.stack([knowledge.entity_names[chosen[:, 0]], knowledge.relation_names[chosen[:, 1]], tails], axis=1)


def score(claims: dict[str, dict[str, float]], truth: Truth) -> list[Figure]:
    """Figures of every victim, of the names in the dictionary."""
    dictionary = draw_dictionary(truth.graph, truth.colluders, truth.options.guesses, truth.seed)
    figures = []
    for victim in truth.victims:
        names_held = dictionary.held[victim]
        count, invented = len(names_held), dictionary.invented[: len(names_held)]
        if count < 2:
            reason = f"it holds {count} names that {truth.colluder} does not; it takes 2"
            figures += truth.not_attacked(victim, reason)
            continue
        scores = {
            way: tuple(np.array([claimed[name] for name in names]) for names in (names_held, invented))
            for way, claimed in claims.items()
        }
        alarms = {way: proportion(int((others > 1).sum()), count) for way, (_, others) in scores.items()}
        shares = {way: partial(proportion, int((names > 1).sum()), count) for way, (names, _) in scores.items()}
        aucs = {way: partial(auc_of, *parts) for way, parts in scores.items()}
        counts = {"held": count, "invented": count}
        chance = {"chance": exact(0.5, 2 * count)}
        figures += truth.figures("found", victim, shares, alarms, attainable=1.0, counts=counts)
        figures += truth.figures("auc", victim, aucs, chance, attainable=1.0, counts=counts)
    return figures


ATTACK = Attack(
    "client-guess",
    "tells, for one client, names that others hold, by claiming guessed ones; trains first rounds once more",
    Needs(entities=True, alone=True),
    METRICS,
    guess,
    score,
    threats=("client",),
    questions=dict.fromkeys(METRICS, ENTITIES),
    items={"found": "guessed names", "auc": "guessed names"},
    trains=True,
)
