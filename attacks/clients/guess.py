"""Inference of entity names by a client that claims guessed names and observes which of their rows change.

Threat model: "client", active. Required knowledge: a dictionary of names and the broadcasts. The client aligns the names beside
its own, each in an invented triple, and uploads their rows exactly as it received them. A row that no other client holds is
returned unchanged; a changed row has another holder. Under `suppress`, which hides rows with fewer than t holders, the client
counts as a holder, so a row with t - 1 other holders is sent. The first rounds are trained once more with the same seed and
options, until every client has uploaded and the client has seen the result. With noise, all rounds are trained, since their
number determines its scale.

Inference methods: `rows`, how far a row moved, minus how far rows of invented names moved, which noise also moves. `list`,
under a private set union (`psu`), whether the name is in the list of all names that every client receives.

The dictionary contains, for each victim, names that it holds and the client does not, and equally many that nobody holds.
`found`: share of the victim's names that are claimed; its baseline is the share of the invented names that are claimed. `auc`:
probability that a name that the victim holds ranks above an invented one. The client does not learn which of several others
holds a name.

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
    "auc": "AUC of guessed entity IDs that a victim holds against those that no client holds",
}
# Largest movement of an unchanged row: the rounding of a sum's encoding.
UNCHANGED = 1e-5
NUM_REFERENCES = 20


class Guesser(Adversary):
    """A client that uploads guessed rows as it received them.

    Args:
        party: party name of the client.
        guessed: indices of the guessed rows among its entities, int64 `[g]`.

    Attributes:
        moved: largest distance by which each of these rows moved in a broadcast, `[g]`; empty before its second round. A row
            does not count as moved if it was returned as sent, or if nothing was returned and it is as the client's own
            training left it.
    """

    guarded = False

    def __init__(self, party: str, guessed: np.ndarray) -> None:
        super().__init__(party)
        self.guessed = torch.from_numpy(guessed)
        self.moved = torch.empty(0)
        self.sent = self.trained = torch.empty(0, 0)

    def identity(self) -> str:
        """Describe the adversary for the identity of its run."""
        return f"{super().identity()}: {hashlib.sha256(self.guessed.numpy().tobytes()).hexdigest()}"

    def upload(self, round: int, table: Table, received: Tensor, trained: Tensor) -> Tensor:
        """Upload the guessed rows as received, and record how far they moved since the last upload."""
        if table != "entities":
            return trained
        now = received[self.guessed].clone()
        if self.sent.numel():
            # Compare with both states in which an unshared row may be returned: as uploaded, or as trained locally.
            moved = torch.minimum((now - self.sent).norm(dim=1), (now - self.trained).norm(dim=1))
            self.moved = torch.maximum(self.moved, moved) if self.moved.numel() else moved
        self.sent, self.trained = now, trained[self.guessed].clone()
        sent = trained.clone()
        sent[self.guessed] = now
        return sent

    def tensors(self) -> dict[str, Tensor]:
        """Return the state for a checkpoint."""
        return {"moved": self.moved, "sent": self.sent, "trained": self.trained}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore the state from a checkpoint."""
        self.moved, self.sent, self.trained = tensors["moved"], tensors["sent"], tensors["trained"]


def guess(view: KgeView, laboratory: KgeLaboratory, rng: np.random.Generator) -> dict[str, dict[str, float]]:
    """Train the first rounds with the guessed names, and claim for each name whether another client holds it.

    Args:
        laboratory: draws the dictionary and trains the run.
        rng: not used; the laboratory's seed determines all draws, so that victims are scored on the same dictionary.

    Returns:
        Confidence that another client holds a name, by inference method and name; above 1 the client claims it.

    Raises:
        NotAttacked: entities are not shared, the run cannot be repeated, or no round shows an answer.
    """
    accomplice = view.accomplice.of_the_first
    check_broadcast(laboratory)
    dictionary = laboratory.dictionary()
    if not dictionary:
        raise NotAttacked(f"no client holds an entity ID that {accomplice.name} does not hold")
    laboratory.check_repeatable()
    # A row shows another holder only after that holder's first upload.
    everybody = max((rounds[0] for rounds in laboratory.uploads.values() if rounds), default=0)
    seen = [number for number in laboratory.uploads[accomplice.name] if number > everybody]
    if not all(laboratory.uploads.values()) or not seen:
        raise NotAttacked(f"{accomplice.name} took part in no round after all clients had uploaded")
    used = {*dictionary, *accomplice.entity_names}
    # Rows of invented names, which nobody else holds: their movement shows rounding and noise.
    references = [invent("*", used) for _ in range(NUM_REFERENCES)]
    names = [*dictionary, *references]
    guessers: list[Guesser] = []

    def guesser(rows: np.ndarray) -> Guesser:
        """Build the adversary from the rows of the guessed names."""
        guessers.append(Guesser(accomplice.name, rows))
        return guessers[0]

    # With noise, train all rounds: their number determines the noise.
    last = None if laboratory.noised else min(seen)
    triples = invented_triples(accomplice, names, generator(laboratory.seed, "invented triples"))
    laboratory.train_with_triples(accomplice.name, triples, guesser, last=last)
    moved = dict(zip(names, guessers[0].moved.tolist(), strict=True))
    usual = float(np.median([moved[name] for name in references]))
    # A name is claimed if its row moved further than every reference row.
    bound = max(abs(moved[name] - usual) for name in references) + UNCHANGED
    ways = {"rows": {name: abs(distance - usual) / bound for name, distance in moved.items()}}
    if view.union is not None:
        ways["list"] = {name: 2.0 * (name in view.union) for name in names}
    return ways


def invented_triples(knowledge: ColluderKnowledge, names: Sequence[str], rng: np.random.Generator) -> np.ndarray:
    """Build one triple per name: a random training triple of the client with the name as its tail.

    Args:
        names: guessed names.
        rng: draws the triples.

    Returns:
        object `[k, 3]`.
    """
    chosen = knowledge.triples[rng.integers(0, len(knowledge.triples), len(names))]
    tails = np.array(names, dtype=object)
    return np.stack([knowledge.entity_names[chosen[:, 0]], knowledge.relation_names[chosen[:, 1]], tails], axis=1)


def score(claims: dict[str, dict[str, float]], truth: Truth) -> list[Figure]:
    """Compute the figures of every victim, for the names in the dictionary."""
    dictionary = draw_dictionary(truth.graph, truth.colluders, truth.options.guesses, truth.seed)
    figures = []
    for victim in truth.victims:
        names_held = dictionary.by_victim[victim]
        count, invented = len(names_held), dictionary.invented[: len(names_held)]
        if count < 2:
            reason = f"it holds {count} names that {truth.colluder} does not; it takes 2"
            figures += truth.not_attacked(victim, reason)
            continue
        scores = {
            way: tuple(np.array([claimed[name] for name in names]) for names in (names_held, invented))
            for way, claimed in claims.items()
        }
        # The baseline is the rate of claims about invented names, which are all false.
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
    "one client claims guessed entity IDs to infer which ones other clients hold; trains first rounds once more",
    Needs(entities=True, alone=True),
    METRICS,
    guess,
    score,
    threats=("client",),
    questions=dict.fromkeys(METRICS, ENTITIES),
    items={"found": "guessed names", "auc": "guessed names"},
    trains=True,
)
