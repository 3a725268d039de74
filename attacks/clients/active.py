"""Which triples do other clients train on? Asked by a client that moves rows and watches who follows (a displacement probe).

    found = run_attacks(result, AttackOptions(attack=("client-active",)))
    for one in headline(found.figures):
        print(one.victim, one.metric, one.estimate, one.baseline)      # hospital-2  auc_pairs  0.97 ...  0.95 ...

Threat model: "client", one that uploads what it likes and sees no upload of anybody. In one round it uploads what it received,
with the rows of `probes` entities moved by `probe_size` up or down in every number, at random; in its next round just what it
received. Where changes are clipped it says more to make the same moves in several rounds (`probe_rounds`) before that one.
Whoever trains on a triple of a moved entity is dragged after it: in the broadcast after that round the other end has moved in
the same direction. Signs, not a Gaussian direction, since the gradient of an L1 distance is made of signs. In the rounds before
and after, it follows the protocol.

An active attack changes the run: so it is trained once more with the same seed and options (from a script, under a defense, by
`run_attacks(..., train=...)` with its transport). Defenses that clients apply to their own uploads it leaves out, as nobody can
make it apply them; what a server does to uploads is done to its own.

`displacement`: the cosine of the other end's change to that which the triple's relation makes of the move, averaged over the ends
that were moved. `passive`: the score of the triple on the broadcast before the probe, which takes no misbehavior.
`with passive`: both, in deviations.

It is asked what `client-passive` is asked, of the triples of which it moved an end. Baseline: `names`.
What the probe costs and shows, beside the same run without it:

`cost`: MRR that clients lose in the kept round. `visibility`: the norm of the attacker's change in the round of the probe, times
that of the median of the others, as a server sees it that sees single uploads; 1 is a client like all.

Source: ours, after the active client of Hu et al. 2023 (DP-FLames), whose magnitude, rounds and statistic are not published.

Legend: `p` moved entities, `n` of the client, `W` width, `q` triples asked about.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fkgsec.attacks.arrays import in_deviations
from fkgsec.attacks.clients.asking import askable, names_scorer, no_relation, nothing_broadcast, numbers, places
from fkgsec.attacks.clients.passive import row_scores
from fkgsec.attacks.figure import NOT_ATTACKED, Figure
from fkgsec.attacks.kge.view import ColluderKnowledge, KgeView, sent_before
from fkgsec.attacks.laboratory import Laboratory
from fkgsec.attacks.options import KgeAttackOptions
from fkgsec.attacks.registry import Attack, Needs, Truth
from fkgsec.attacks.uploads.questions import ITEMS, METRICS, Scorer, draw_questions, question_figures
from fkgsec.attacks.view import ALL
from fkgsec.errors import TrainingError
from fkgsec.estimate import exact, mean
from fkgsec.federation.adversary import Adversary
from fkgsec.federation.messages import SERVER, Rows, client_party
from fkgsec.federation.recipes import Table
from fkgsec.kge.models import KgeModel, Side
from fkgsec.kge.result import KgeResult
from fkgsec.randomness import generator

CLIENT_ACTIVE = "client-active"
OF_THE_PROBE = {
    "cost": "MRR that a victim loses by the probe",
    "visibility": "norm of the attacker's change over the others' median; a limit is the least that is allowed",
}


@dataclass(frozen=True, eq=False)
class Plan:
    """What the client is going to do, by its own knowledge.

    Attributes:
        own: its knowledge; its rows are those of `own.entity_names`. names: how it guesses without any row.
        moved: int64 `[p]`, which of its entities. moves: float32 `[p, W]`, by what.
        round: when; None: as late as it can and still be answered. rounds: in how many of its rounds it makes these moves.
    """

    model: KgeModel
    own: ColluderKnowledge
    names: Scorer
    moved: np.ndarray
    moves: Tensor
    round: int | None
    rounds: int = 1


class Prober(Adversary):
    """The client in the run: it moves rows in some rounds, sends back what it received in its next, and remembers what that was.

    Args:
        party: its name. first_round: of the probe, or its first round after that.
        moved: int64 `[p]`, rows of its entities. moves: float32 `[p, W]`. rounds: in how many of its rounds it makes them.

    Attributes:
        received: its rows as each round of the probe began and as its next two did, `[n, W]` each.
    """

    guarded = False

    def __init__(self, party: str, first_round: int, moved: np.ndarray, moves: Tensor, rounds: int = 1) -> None:
        super().__init__(party)
        self.begins, self.moved, self.moves, self.rounds = first_round, torch.from_numpy(moved), moves, rounds
        self.received: list[Tensor] = []

    def identity(self) -> str:
        digest = hashlib.sha256(self.moved.numpy().tobytes() + self.moves.numpy().tobytes()).hexdigest()
        return f"{super().identity()}: {digest} {self.rounds}"

    def upload(self, round: int, table: Table, received: Tensor, trained: Tensor) -> Tensor:
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
        """Whether it has received what others' training made of its last moves."""
        return len(self.received) > self.rounds + 1

    def rounds_needed(self) -> Collection[int]:
        return (self.begins,)

    def tensors(self) -> dict[str, Tensor]:
        return {f"received.{place}": rows for place, rows in enumerate(self.received)}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        self.received = [tensors[f"received.{place}"] for place in range(len(tensors))]


def planned(options: KgeAttackOptions) -> Any:
    """The adversary under these options: it moves rows in the run, and reads what comes back."""

    def probe(view: KgeView, laboratory: Laboratory[KgeView], rng: np.random.Generator) -> Probed | str:
        plan = draw_plan(view, options, rng)
        found = ask(plan, laboratory)
        if isinstance(found, str):
            return found
        own, (ways, guesses) = plan.own, found.answers.ways()
        entities, relations, moved = map(
            frozenset, (own.entity_names, own.relation_names, own.entity_names[plan.moved])
        )
        return Probed(found.run, found.round, entities, relations, moved, ways, guesses)

    return probe


def draw_plan(view: KgeView, options: KgeAttackOptions, rng: np.random.Generator) -> Plan:
    """Which rows the client is going to move, and by what."""
    assert view.colluder is not None
    own = view.colluder.of_the_first
    moved = np.sort(rng.permutation(len(own.entity_names))[: options.probes])
    signs = 2 * rng.integers(0, 2, (len(moved), own.entities.shape[1])) - 1
    moves = torch.from_numpy((options.probe_size * signs).astype(np.float32))
    names = names_scorer(view.colluder)
    return Plan(view.model, own, names, moved, moves, options.probe_round, options.probe_rounds)


class Asked(NamedTuple):
    """The run with a probe, see `View.run`, the round of the probe, and what the client knows after it."""

    run: int
    round: int
    answers: Answers


def ask(plan: Plan, laboratory: Laboratory[KgeView]) -> Asked | str:
    """Train the run with the probe in it; or why there is no probe."""
    if reason := nothing_broadcast(laboratory) or laboratory.defended:
        return reason
    who, needed = plan.own.name, plan.rounds + 2
    rounds = [number for number in laboratory.uploads[who] if plan.round is None or number >= plan.round]
    if len(rounds) < needed:
        since = "" if plan.round is None else f" from round {plan.round} on"
        return f"{who} took part in {len(rounds)} rounds{since}; a probe takes {needed}"
    number = rounds[-needed] if plan.round is None else rounds[0]
    prober = Prober(who, number, plan.moved, plan.moves, plan.rounds)
    try:
        attacked = laboratory.train(prober)
    except TrainingError as error:
        return f"the run broke down with the probe in it: {error}"
    if not prober.is_answered:
        return f"the run with the probe in round {number} stopped before its answer"
    return Asked(attacked.run, number, Answers(plan, prober.received[0], prober.received[-1] - prober.received[-2]))


class Probed(NamedTuple):
    """What the client says after the probe of a round.

    Attributes:
        run: the run with the probe, see `View.run`. entities, relations: names that it can be asked about. moved: those that it
            moved. ways, guesses: see `Answers.ways`.
    """

    run: int
    round: int
    entities: frozenset[str]
    relations: frozenset[str]
    moved: frozenset[str]
    ways: dict[str, Scorer]
    guesses: dict[str, Scorer]


class Answers(NamedTuple):
    """What the client knows after the probe.

    Attributes:
        before: its rows before the probe, `[n, W]`. changes: what others' training did to them in the round after the last moves,
            `[n, W]`.
    """

    plan: Plan
    before: Tensor
    changes: Tensor

    def displacement(self, triples: np.ndarray) -> np.ndarray:
        """Of triples given as rows int64 `[q, 3]`, with an end that was moved: how straight the other end followed, `[q]`."""
        model, own = self.plan.model, self.plan.own
        moves = torch.zeros_like(self.before)
        moves[torch.from_numpy(self.plan.moved)] = self.plan.moves
        was_moved = moves.abs().sum(dim=1) > 0
        heads, kinds, tails = torch.from_numpy(triples).unbind(1)
        relations, total, count = own.relations[kinds], torch.zeros(len(triples)), torch.zeros(len(triples))
        sides: tuple[tuple[Tensor, Tensor, Side], ...] = ((heads, tails, "tail"), (tails, heads, "head"))
        for near, far, side in sides:
            start = self.before[near]
            expected = model.query(start + moves[near], relations, side) - model.query(start, relations, side)
            followed = torch.cosine_similarity(expected, self.changes[far], dim=1)
            total += torch.where(was_moved[near], followed, 0.0)
            count += was_moved[near]
        return (total / count.clamp_min(1)).double().numpy()

    def passive(self, triples: np.ndarray) -> np.ndarray:
        """Scores on the broadcast before the probe, `[q]`."""
        return row_scores(self.plan.model, self.before, self.plan.own.relations, triples)

    def ways(self) -> tuple[dict[str, Scorer], dict[str, Scorer]]:
        """Of triples of names: ways that take broadcasts, and guesses without any."""
        place, kind = numbers(self.plan.own.entity_names), numbers(self.plan.own.relation_names)

        def both(triples: np.ndarray) -> np.ndarray:
            found = places(triples, place, kind)
            return in_deviations(self.displacement(found)) + in_deviations(self.passive(found))

        return (
            {
                "displacement": lambda triples: self.displacement(places(triples, place, kind)),
                "with passive": both,
                "passive": lambda triples: self.passive(places(triples, place, kind)),
            },
            {"names": self.plan.names},
        )


def score(claims: Probed | str, truth: Truth) -> list[Figure]:
    """Figures of every victim, and what the probe cost and showed."""
    unknown = {victim: reason for victim in truth.victims if (reason := no_relation(truth, victim))}
    if isinstance(claims, str) or len(unknown) == len(truth.victims):
        found = claims if isinstance(claims, str) and len(unknown) < len(truth.victims) else ""
        return [one for victim in truth.victims for one in truth.not_attacked(victim, found or unknown[victim])]
    attacked, number = truth.runs[claims.run], claims.round
    names, relations = (np.array(one, dtype=object) for one in (truth.graph.entities, truth.graph.relations))
    figures = []
    for victim in truth.victims:
        if victim in unknown:
            figures += [truth.figure(metric, victim, NOT_ATTACKED, reason=unknown[victim]) for metric in METRICS]
            figures.append(_cost(truth, attacked, victim, number))
            continue
        client, known = truth.own(victim), askable(truth.graph, truth.colluders, victim)
        was_moved, has = (
            np.array([name in some for name in names[client.entity_ids]]) for some in (claims.moved, claims.entities)
        )
        has_kind = np.array([name in claims.relations for name in relations[client.relation_ids]])

        def asks(
            triples: np.ndarray,
            known: Any = known,
            was_moved: np.ndarray = was_moved,
            has: np.ndarray = has,
            has_kind: np.ndarray = has_kind,
        ) -> np.ndarray:
            ends = triples[:, [0, 2]]
            return known(triples) & was_moved[ends].any(axis=1) & has[ends].all(axis=1) & has_kind[triples[:, 1]]

        asked = draw_questions(truth, victim, asks, truth.rng)
        figures += question_figures(truth, victim, asked, claims.ways, claims.guesses)
        figures.append(_cost(truth, attacked, victim, number))
    return [*figures, _visibility(truth, attacked, number)]


def _cost(truth: Truth, attacked: KgeResult, victim: str, number: int) -> Figure:
    """Reciprocal ranks of a victim's test triples, without the probe less with it."""
    clean: KgeResult = truth.result
    place = next(place for place, client in enumerate(clean.graph.clients) if client.name == victim)
    without, with_probe = ((1 / run.test_ranks[place]).mean(axis=1) for run in (clean, attacked))
    if not len(without):
        return truth.figure("cost", victim, NOT_ATTACKED, reason="it has no test triples")
    kept = attacked.best_round
    return truth.figure(
        "cost",
        victim,
        mean(without - with_probe, generator(truth.seed, "cost of a probe", victim)),
        baseline=exact(0.0, len(without)),
        attainable=float(without.mean()),
        counts={"round of the probe": number, "kept round": kept},
        remark=f"the kept round, {kept}, is before the probe's broadcast" if kept < number else None,
    )


def _visibility(truth: Truth, attacked: KgeResult, number: int) -> Figure:
    """By the uploads that crossed in the round of the probe."""
    uploads = {
        one.sender: one
        for one in attacked.transcript.messages(number)
        if isinstance(one, Rows) and one.receiver == SERVER and one.table == "entities"
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
        reason = "nobody sees the change of one client whole"
        return truth.figure("visibility", ALL, NOT_ATTACKED, reason=reason)
    rank = 1 + sum(norm > norms[party] for norm in others)
    return truth.figure(
        "visibility",
        ALL,
        exact(norms[party] / usual, len(others)),
        baseline=exact(1.0, len(others)),
        counts={"rank": rank, "clients": len(norms)},
    )


ATTACK = Attack(
    CLIENT_ACTIVE,
    "tells, for one client, triples that another one trained on, by moving rows; trains the run once more",
    Needs(entities=True, alone=True),
    METRICS | OF_THE_PROBE,
    planned(KgeAttackOptions()),
    score,
    threats=("client",),
    items=ITEMS | {"cost": "test triples", "visibility": "other clients"},
    errors=("visibility",),
    configured=lambda options: replace(ATTACK, run=planned(options)),
    trains=True,
)
