"""Membership inference by a client that moves rows and observes which rows follow (a displacement probe).

Threat model: "client", active, without access to any other upload. Required knowledge: its own rows and triples, and
broadcasts. In one round, or several (`probe_rounds`), it uploads the rows that it received, but moves those of `probes`
entities. Every number moves up or down by `probe_size` at random. In its next round it uploads the rows that it received
unchanged. A client that trains on a triple of a moved entity follows: the other end moves in the same direction. Moves are
signs, since the gradient of an L1 distance consists of signs. Otherwise the adversary follows the protocol, except for a
defense's steps on clients. The run is trained once more with the probe, with the same seed and options.

Inference methods: `displacement`, the cosine of the other end's change to the move as the triple's relation transforms it,
averaged over the moved ends. `passive`, the score of the triple on the broadcast before the probe. `with passive`, both,
standardized. The questions are those of `client-passive`, for triples of which it moved an end. Baseline: `names`.

Limits: few probes leave few triples to ask about. With 20 probes of three hospitals the AUC was .953 [.610, .996] beside a
baseline of .684, which decides nothing.

`cost`: MRR that clients lose in the best round. `visibility`: norm of the attacker's change in the round of the probe over the
median of the others', as a server sees single uploads; 1 is an inconspicuous client.

Source: ours, after the active client of Hu et al. 2023 (DP-FLames), whose magnitude, rounds and statistic are not published.

Legend: `p` moved entities, `n` entities of the client, `W` width, `q` triples to classify.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fkgsec.attacks.arrays import in_deviations
from fkgsec.attacks.clients.asking import askable, check_broadcast, names_scorer, no_relation, numbers, places
from fkgsec.attacks.clients.passive import row_scores
from fkgsec.attacks.figure import Figure
from fkgsec.attacks.kge.view import ColluderKnowledge, KgeView, sent_before
from fkgsec.attacks.laboratory import Laboratory
from fkgsec.attacks.options import KgeAttackOptions
from fkgsec.attacks.questions import MEMBERSHIP
from fkgsec.attacks.registry import Attack, Needs, Truth
from fkgsec.attacks.uploads.questions import ITEMS, METRICS, Scorer, draw_questions, question_figures
from fkgsec.attacks.view import ALL, NotAttacked
from fkgsec.estimate import exact, mean
from fkgsec.federation.adversary import Adversary
from fkgsec.federation.messages import SERVER, Rows, client_party
from fkgsec.federation.recipes import Table
from fkgsec.kge.models import KgeModel, Side
from fkgsec.kge.result import KgeResult
from fkgsec.randomness import generator

OF_THE_PROBE = {
    "cost": "MRR that a victim loses by the probe",
    "visibility": "norm of the attacker's change over the others' median (lower is worse for the victim)",
}


@dataclass(frozen=True, eq=False)
class Plan:
    """The probe that the client plans from its own knowledge.

    Attributes:
        model: scoring function.
        knowledge: the client's knowledge; its rows are those of `knowledge.entity_names`.
        names: scorer without any row, the baseline.
        moved: indices of the entities to move, int64 `[p]`.
        moves: float32 `[p, W]`.
        round: first round of the probe; None: as late as possible with an answer.
        rounds: number of rounds with these moves.
    """

    model: KgeModel
    knowledge: ColluderKnowledge
    names: Scorer
    moved: np.ndarray
    moves: Tensor
    round: int | None
    rounds: int = 1


class Prober(Adversary):
    """A client that moves rows in some rounds, then uploads what it received, and records the rows that it receives.

    Args:
        party: party name of the client.
        first_round: round of the probe, or the client's first round after it.
        moved: indices of the rows to move, int64 `[p]`.
        moves: float32 `[p, W]`.
        rounds: number of its rounds with these moves.

    Attributes:
        received: its rows at the start of each round of the probe and of its next two rounds, `[n, W]` each.
    """

    guarded = False

    def __init__(self, party: str, first_round: int, moved: np.ndarray, moves: Tensor, rounds: int = 1) -> None:
        super().__init__(party)
        self.begins, self.moved, self.moves, self.rounds = first_round, torch.from_numpy(moved), moves, rounds
        self.received: list[Tensor] = []

    def identity(self) -> str:
        """Describe the adversary for the identity of its run."""
        digest = hashlib.sha256(self.moved.numpy().tobytes() + self.moves.numpy().tobytes()).hexdigest()
        return f"{super().identity()}: {digest} {self.rounds}"

    def upload(self, round: int, table: Table, received: Tensor, trained: Tensor) -> Tensor:
        """Upload the received entity rows, with the probed ones moved in the probe's rounds."""
        if table != "entities" or round < self.begins or self.is_answered:
            return trained
        self.received.append(received.clone())
        if self.is_answered:
            return trained
        sent = received.clone()
        if len(self.received) <= self.rounds:
            sent[self.moved] += self.moves
        return sent

    @property
    def is_answered(self) -> bool:
        """True once it has received the effect of the others' training on its last moves."""
        return len(self.received) > self.rounds + 1

    def rounds_needed(self) -> Collection[int]:
        """Keep the messages of the probe's round, for `visibility`."""
        return (self.begins,)

    def tensors(self) -> dict[str, Tensor]:
        """Return the state for a checkpoint."""
        return {f"received.{place}": rows for place, rows in enumerate(self.received)}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore the state from a checkpoint."""
        self.received = [tensors[f"received.{place}"] for place in range(len(tensors))]


def probe(view: KgeView, laboratory: Laboratory[KgeView], rng: np.random.Generator) -> Answers:
    """Move rows in the run, and read the answers.

    Args:
        laboratory: trains the run with the probe.
        rng: draws the entities and the signs of the moves.
    """
    return ask(draw_plan(view, laboratory.options, rng), laboratory)


def draw_plan(view: KgeView, options: KgeAttackOptions, rng: np.random.Generator) -> Plan:
    """Choose the rows that the client moves, and the moves.

    Args:
        options: number and size of the moves, and the rounds.
        rng: draws entities and signs.
    """
    accomplice = view.accomplice.of_the_first
    moved = np.sort(rng.permutation(len(accomplice.entity_names))[: options.probes])
    # Random signs: each number of a row moves up or down by `probe_size`.
    signs = 2 * rng.integers(0, 2, (len(moved), accomplice.entities.shape[1])) - 1
    moves = torch.from_numpy((options.probe_size * signs).astype(np.float32))
    names = names_scorer(view.accomplice)
    return Plan(view.model, accomplice, names, moved, moves, options.probe_round, options.probe_rounds)


def ask(plan: Plan, laboratory: Laboratory[KgeView]) -> Answers:
    """Train the run with the probe.

    Args:
        plan: the probe.

    Raises:
        NotAttacked: entities are not shared, the run cannot be repeated, or it ends before the answer.
    """
    check_broadcast(laboratory)
    laboratory.check_repeatable()
    who, needed = plan.knowledge.name, plan.rounds + 2
    # The probe takes `plan.rounds` rounds, one round for others to train on the moved rows, and one to receive the
    # result.
    rounds = [number for number in laboratory.uploads[who] if plan.round is None or number >= plan.round]
    if len(rounds) < needed:
        since = "" if plan.round is None else f" from round {plan.round} on"
        raise NotAttacked(f"{who} took part in {len(rounds)} rounds{since}; a probe takes {needed}")
    number = rounds[-needed] if plan.round is None else rounds[0]
    prober = Prober(who, number, plan.moved, plan.moves, plan.rounds)
    attacked = laboratory.train(prober)
    if not prober.is_answered:
        raise NotAttacked(f"the run with the probe in round {number} stopped before its answer")
    # Difference of two broadcasts: what the others' training did after the moves.
    changes = prober.received[-1] - prober.received[-2]
    return Answers(plan, prober.received[0], changes, attacked.run, number)


class Answers(NamedTuple):
    """The client's knowledge after the probe.

    Attributes:
        plan: the probe.
        before: its rows before the probe, `[n, W]`.
        changes: effect of the others' training in the round after the last moves, `[n, W]`.
        run: index of the run with the probe, see `View.run`.
        round: first round of the probe.
    """

    plan: Plan
    before: Tensor
    changes: Tensor
    run: int = 0
    round: int = 0

    def displacement(self, triples: np.ndarray) -> np.ndarray:
        """Score triples with a moved end by how closely the other end followed.

        Args:
            triples: rows of entities, relations and entities, int64 `[q, 3]`.

        Returns:
            Mean cosine over the moved ends, float64 `[q]`.
        """
        model, knowledge = self.plan.model, self.plan.knowledge
        moves = torch.zeros_like(self.before)
        moves[torch.from_numpy(self.plan.moved)] = self.plan.moves
        was_moved = moves.abs().sum(dim=1) > 0
        heads, kinds, tails = torch.from_numpy(triples).unbind(1)
        relations, total, count = knowledge.relations[kinds], torch.zeros(len(triples)), torch.zeros(len(triples))
        sides: tuple[tuple[Tensor, Tensor, Side], ...] = ((heads, tails, "tail"), (tails, heads, "head"))
        for near, far, side in sides:
            start = self.before[near]
            # If the relation maps near to far, the far end should move by the change of the query: q(h + d, r) - q(h,
            # r).
            expected = model.query(start + moves[near], relations, side) - model.query(start, relations, side)
            followed = torch.cosine_similarity(expected, self.changes[far], dim=1)
            total += torch.where(was_moved[near], followed, 0.0)
            count += was_moved[near]
        return (total / count.clamp_min(1)).double().numpy()

    def passive(self, triples: np.ndarray) -> np.ndarray:
        """Score triples on the broadcast before the probe, float64 `[q]`."""
        return row_scores(self.plan.model, self.before, self.plan.knowledge.relations, triples)

    def ways(self) -> dict[str, Scorer]:
        """Return scorers of triples of names by inference method."""
        row_of, kind = numbers(self.plan.knowledge.entity_names), numbers(self.plan.knowledge.relation_names)

        def both(triples: np.ndarray) -> np.ndarray:
            """Add displacement and passive score, each standardized."""
            rows = places(triples, row_of, kind)
            return in_deviations(self.displacement(rows)) + in_deviations(self.passive(rows))

        return {
            "displacement": lambda triples: self.displacement(places(triples, row_of, kind)),
            "with passive": both,
            "passive": lambda triples: self.passive(places(triples, row_of, kind)),
        }


def asked_of(
    truth: Truth, plan: Plan, victim: str, is_askable: Callable[[np.ndarray], np.ndarray], triples: np.ndarray
) -> np.ndarray:
    """Select a victim's local triples that the client can classify and of which it moved an end.

    Args:
        plan: the probe.
        is_askable: test from `askable`.
        triples: int `[q, 3]`, in the victim's local IDs.

    Returns:
        bool `[q]`.
    """
    client, knowledge = truth.unshuffled(victim), plan.knowledge
    names, kinds = (np.array(part, dtype=object) for part in (truth.graph.entities, truth.graph.relations))
    moved, has, has_kind = (
        np.array([name in among for name in own_names])
        for own_names, among in (
            (names[client.entity_ids], set(knowledge.entity_names[plan.moved])),
            (names[client.entity_ids], set(knowledge.entity_names)),
            (kinds[client.relation_ids], set(knowledge.relation_names)),
        )
    )
    ends = triples[:, [0, 2]]
    return is_askable(triples) & moved[ends].any(axis=1) & has[ends].all(axis=1) & has_kind[triples[:, 1]]


def score(answers: Answers, truth: Truth) -> list[Figure]:
    """Compute the figures of every victim, and the cost and visibility of the probe."""
    # Without a common relation there is no triple to classify.
    unknown = {victim: reason for victim in truth.victims if (reason := no_relation(truth, victim))}
    if len(unknown) == len(truth.victims):
        return [figure for victim, reason in unknown.items() for figure in truth.not_attacked(victim, reason)]
    attacked, ways, guesses = truth.runs[answers.run], answers.ways(), {"names": answers.plan.names}
    figures = []
    for victim in truth.victims:
        if victim in unknown:
            figures += truth.not_attacked(victim, unknown[victim], METRICS)
        else:
            is_askable = askable(truth.graph, truth.colluders, victim)
            questions = draw_questions(
                truth, victim, partial(asked_of, truth, answers.plan, victim, is_askable), truth.rng
            )
            figures += question_figures(truth, victim, questions, ways, guesses)
        figures.append(_cost(truth, attacked, victim, answers.round))
    return [*figures, _visibility(truth, attacked, answers.round)]


def _cost(truth: Truth, attacked: KgeResult, victim: str, number: int) -> Figure:
    """Compare the reciprocal ranks of a victim's test triples without the probe and with it."""
    index, best = truth.index(victim), attacked.best_round
    # Paired by test triple, so that only changes count.
    without, with_probe = ((1 / run.test_ranks[index]).mean(axis=1) for run in (truth.result, attacked))
    if not len(without):
        return truth.figure("cost", victim, reason="it has no test triples")
    return truth.figure(
        "cost",
        victim,
        mean(without - with_probe, generator(truth.seed, "cost of a probe", victim)),
        baseline=exact(0.0, len(without)),
        attainable=float(without.mean()),
        counts={"round of the probe": number, "kept round": best},
        remark=f"the kept round, {best}, is before the probe's broadcast" if best < number else None,
    )


def _visibility(truth: Truth, attacked: KgeResult, number: int) -> Figure:
    """Compare the norms of the uploads in the round of the probe."""
    # Only individually uploaded rows show a single client's change.
    uploads = {
        message.sender: message
        for message in attacked.transcript.messages(number)
        if isinstance(message, Rows) and message.receiver == SERVER and message.table == "entities"
    }
    party = client_party(truth.colluder)
    norms = {
        sender: float((upload.unpack() - start).norm())
        for sender, upload in uploads.items()
        if (start := sent_before(attacked, upload)) is not None
    }
    others = [norm for sender, norm in norms.items() if sender != party]
    usual = float(np.median(others)) if others else 0.0
    if party not in norms or not usual:
        return truth.figure("visibility", ALL, reason="no party sees the whole change of one client")
    rank = 1 + sum(norm > norms[party] for norm in others)
    return truth.figure(
        "visibility",
        ALL,
        exact(norms[party] / usual, len(others)),
        baseline=exact(1.0, len(others)),
        counts={"rank": rank, "clients": len(norms)},
    )


ATTACK = Attack(
    "client-active",
    "one client moves rows to infer which triples other clients trained on; trains the run once more",
    Needs(entities=True, alone=True),
    METRICS | OF_THE_PROBE,
    probe,
    score,
    threats=("client",),
    questions=dict.fromkeys(METRICS, MEMBERSHIP),
    items=ITEMS | {"cost": "test triples", "visibility": "other clients"},
    errors=("visibility",),
    trains=True,
)
