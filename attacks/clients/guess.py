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
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from fkgsec.attacks.clients.asking import draw_dictionary, invent, nothing_broadcast
from fkgsec.attacks.figure import Figure
from fkgsec.attacks.kge.view import ColluderKnowledge, KgeView
from fkgsec.attacks.laboratory import Laboratory
from fkgsec.attacks.membership.figures import estimate_auc, placements
from fkgsec.attacks.options import KgeAttackOptions
from fkgsec.attacks.registry import Attack, Needs, Truth
from fkgsec.attacks.uploads.ways import Measure, by_ways
from fkgsec.errors import TrainingError
from fkgsec.estimate import Estimate, exact, proportion
from fkgsec.federation.adversary import Adversary
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


def guess(view: KgeView, laboratory: Laboratory, rng: np.random.Generator) -> dict[str, dict[str, float]] | str:
    """Train first rounds with the guessed names, and say of each whether another client holds it; or why it cannot ask.

    Returns: by way and name how sure the client is that another one holds it, above 1 where it says so.
    """
    assert view.colluder is not None
    own = view.colluder.of_the_first
    if reason := nothing_broadcast(laboratory):
        return reason
    if not view.dictionary:
        return f"nobody holds a name that {own.name} does not"
    if laboratory.defended:
        return laboratory.defended
    everybody = max((rounds[0] for rounds in laboratory.uploads.values() if rounds), default=0)
    seen = [number for number in laboratory.uploads[own.name] if number > everybody]
    if not all(laboratory.uploads.values()) or not seen:
        return f"{own.name} took part in no round after all clients had uploaded"
    taken = {*view.dictionary, *own.entity_names}
    references = [invent("*", taken) for _ in range(NUM_REFERENCES)]
    names = [*view.dictionary, *references]
    made: list[Guesser] = []

    def guesser(rows: np.ndarray) -> Guesser:
        made.append(Guesser(own.name, rows))
        return made[0]

    last = None if laboratory.noised else min(seen)  # else the noise follows from the number of rounds
    triples = invented_triples(own, names, generator(laboratory.seed, "invented triples"))
    try:
        laboratory.train_with_triples(own.name, triples, guesser, last=last)
    except TrainingError as error:
        return f"the run broke down with the guessed names in it: {error}"
    moved = dict(zip(names, made[0].moved.tolist(), strict=True))
    usual = float(np.median([moved[name] for name in references]))
    bound = max(abs(moved[name] - usual) for name in references) + UNCHANGED
    found = {"rows": {name: abs(one - usual) / bound for name, one in moved.items()}}
    if view.union is not None:
        found["list"] = {name: 2.0 * (name in view.union) for name in names}
    return found


def invented_triples(own: ColluderKnowledge, names: Sequence[str], rng: np.random.Generator) -> np.ndarray:
    """For each name a random triple of the client's training with the name for its tail, object `[k, 3]`."""
    chosen = own.triples[rng.integers(0, len(own.triples), len(names))]
    tails = np.array(names, dtype=object)
    return np.stack([own.entity_names[chosen[:, 0]], own.relation_names[chosen[:, 1]], tails], axis=1)


def score(claims: dict[str, dict[str, float]] | str, truth: Truth) -> list[Figure]:
    """Figures of every victim, of the names in the dictionary."""
    dictionary = draw_dictionary(truth.graph, truth.colluders, truth.attack.dictionary, truth.seed)
    figures = []
    for victim in truth.victims:
        held = dictionary.held[victim]
        reason = claims if isinstance(claims, str) else None
        if not reason and len(held) < 2:
            reason = f"it holds {len(held)} names that {truth.colluder} does not; it takes 2"
        if reason or isinstance(claims, str):
            figures += truth.not_attacked(victim, reason or "")
            continue
        invented = dictionary.invented[: len(held)]
        scores = {
            way: tuple(np.array([told[name] for name in names]) for names in (held, invented))
            for way, told in claims.items()
        }
        figures += _figures(truth, victim, scores)
    return figures


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
    guess,
    score,
    threats=("client",),
    items={"found": "guessed names", "auc": "guessed names"},
    configured=lambda options: replace(ATTACK, dictionary=options.guesses),
    dictionary=KgeAttackOptions().guesses,
    trains=True,
)
