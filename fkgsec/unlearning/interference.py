"""Retroactive interference (fedlu.txt 4.2): the losses that make a model forget triples, and the training that applies them.

Legend: `B` triples to forget, `K` candidates of each, the triple itself in column 0. `counts` bool `[B, K]` marks the candidates
that count (a negative that is a known triple does not). All losses are float `[B]`, one per triple, and differentiable.

In variant "published" the losses are those of FedLU's code: Eq. 12 weighs the triple 10 times and is halved, Eq. 13 is the L2
norm of the vector of differences, and the divergence of Eq. 14 is D_KL(teacher || student), as in
`fkgsec.kge.local.distillation`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fkgsec.federation.recipes import Table
from fkgsec.kge import kernels
from fkgsec.kge.kernels import CandidateScores
from fkgsec.kge.local.distillation import divergence
from fkgsec.kge.local.learner import Learner, Queries
from fkgsec.kge.local.stack import ClientStack
from fkgsec.kge.local.training import LocalTrainer, TrainingSubset
from fkgsec.kge.loss import negative_sampling_loss
from fkgsec.kge.models import Side
from fkgsec.kge.options import KgeOptions

Steps = tuple[Tensor, list[tuple[Learner, dict[Table, Tensor]]]]
"""Losses `[B]`, and the gradients by table of each learner whose step is pending."""
# Weight of the triple to forget relative to its negatives, in FedLU's code.
PUBLISHED_WEIGHT = 10.0


def hard_confusion(scores: Tensor, counts: Tensor, *, temperature: float = 0.0, weight: float = 1.0) -> Tensor:
    """Compute the hard confusion of each triple, `[B]`: it is treated as one more negative.

    Args:
        scores: float `[B, K]`. counts: bool `[B, K]`.
        temperature: of the weights of negatives, as in `negative_sampling_loss`; at 0 each weighs 1/n.
        weight: of the triple to forget.

    Source: fedlu.txt Eq. 12 at weight 1.
    """
    # Eq. 12: -weight log sigma(-s_0) - sum_k w_k log sigma(-s_k). The sampling loss has log sigma(s_0), so change its sign.
    turned = torch.cat([-scores[:, :1], scores[:, 1:]], dim=1)
    return negative_sampling_loss(turned, counts, temperature=temperature, positive_weight=weight)


def soft_confusion(scores: Tensor, counts: Tensor, *, variant: str = "paper") -> Tensor:
    """Compute the soft confusion of each triple, `[B]`: the distance of its score to those of its negatives; 0 without any.

    Args:
        scores: float `[B, K]`. counts: bool `[B, K]`.
        variant: "paper", the mean absolute difference; "published", the L2 norm of the differences.

    Source: fedlu.txt Eq. 13; the L2 norm there is of one number.
    """
    counted = counts[:, 1:] & counts[:, :1]
    # Eq. 13: |s_k - s_0| for each negative that counts.
    differences = (scores[:, 1:] - scores[:, :1]).masked_fill(~counted, 0)
    if variant == "published":
        return torch.linalg.vector_norm(differences, dim=1)
    return differences.abs().sum(1) / counted.sum(1).clamp_min(1)


def interference(
    scores: Tensor,
    teacher: Tensor,
    counts: Tensor,
    *,
    hard: bool,
    soft: bool,
    mu_soft: float,
    mu_distill: float,
    variant: str = "paper",
    temperature: float = 0.0,
    importance: Tensor | float = 1.0,
) -> Tensor:
    """Compute the loss of retroactive interference: hard confusion, soft confusion and the divergence from the teacher.

    Args:
        scores: `[B, K]`, of the model that learns. teacher: scores of the other model, not differentiated.
        counts: bool `[B, K]`.
        hard, soft: whether the loss has this part (fedlu.txt Table 3).
        mu_soft, mu_distill: weights of soft confusion and of the divergence.
        importance: float `[B]`, weight of each positive's hard confusion.
        temperature: of the weights of negatives in the hard confusion.

    Source: fedlu.txt Eq. 14. Differs in variant "published", see the module.
    """
    published = variant == "published"
    loss = torch.zeros_like(scores[:, 0])
    if hard:
        weight = PUBLISHED_WEIGHT if published else 1.0
        confused = hard_confusion(scores, counts, temperature=temperature, weight=weight)
        loss = loss + (0.5 if published else 1) * importance * confused
    if soft:
        loss = loss + mu_soft * soft_confusion(scores, counts, variant=variant)
    return _distilled(loss, scores, teacher, counts, mu_distill, variant)


def _distilled(loss: Tensor, scores: Tensor, teacher: Tensor, counts: Tensor, mu: float, variant: str) -> Tensor:
    """Add mu times the divergence from the teacher to a loss."""
    if not mu:
        return loss
    # Eq. 14 with KL(P, Q) read as D_KL(P || Q): D_KL(P_local || P_global) for the local model, the reverse for the global
    # one. FedLU's code has teacher and student the other way round.
    teacher = teacher.detach()
    apart = divergence(teacher, scores, counts) if variant == "published" else divergence(scores, teacher, counts)
    return loss + mu * apart


class Move(NamedTuple):
    """A step on a batch: which of a client's two models learns, and whether the other is its teacher."""

    learns: str
    distils: bool


_OWN, _SHARED = Move("own", distils=False), Move("shared", distils=False)
_OWN_TAUGHT, _SHARED_TAUGHT = Move("own", distils=True), Move("shared", distils=True)
INTERFERENCE: dict[str, tuple[tuple[Move, ...], ...]] = {
    "paper": ((_OWN_TAUGHT, _SHARED_TAUGHT),),
    "published": ((_SHARED_TAUGHT,), (_OWN,), (_SHARED_TAUGHT, _OWN)),
}
"""Passes over the forget set per epoch by variant, and the moves on each batch of a pass."""
DECAY: dict[str, tuple[Move, ...]] = {
    "paper": (_OWN_TAUGHT, _SHARED_TAUGHT),
    "published": (_OWN, _SHARED, _SHARED_TAUGHT, _SHARED, _OWN_TAUGHT),
}
"""Moves on each batch of passive decay by variant."""


def decay_loss(
    scores: Tensor,
    teacher: Tensor,
    counts: Tensor,
    *,
    mu_distill: float,
    variant: str = "paper",
    temperature: float = 0.0,
    importance: Tensor | float = 1.0,
) -> Tensor:
    """Compute the loss `[B]` of one model in passive decay: prediction, plus the divergence from the teacher.

    Args:
        scores, teacher, counts, mu_distill, importance: as in `interference`.
        temperature: of the weights of negatives.

    Source: fedlu.txt Eq. 7-11. Differs in variant "published", as `distillation.mutual` says.
    """
    predicted = negative_sampling_loss(scores, counts, temperature=temperature)
    loss = (0.5 if variant == "published" else 1) * importance * predicted
    return _distilled(loss, scores, teacher, counts, mu_distill, variant)


class AlternatingTrainer(LocalTrainer):
    """Trains the entities of both models of each client in turn: on every batch the given moves, one after the other.

    Args:
        subsets: training triples by client.
        loss: of each move, `interference` or `decay_loss` with its options bound; the run's `mu` weighs the divergence.
    """

    def __init__(
        self,
        stack: ClientStack,
        options: KgeOptions,
        private: ClientStack,
        subsets: Mapping[int, TrainingSubset],
        loss: Callable[..., Tensor],
    ) -> None:
        super().__init__(stack, options, private, subsets)
        # Relations are frozen, as in FedLU's code. The paper names only the embeddings of entities (E^k,global, E^k,local) where
        # it says what unlearning optimizes, and a relation moved by a few triples would move all others.
        self.moves: Sequence[Move] = ()
        self._loss, self._mu = loss, options.settings.mu
        self._at_it: Sequence[int] = ()

    def _step(
        self, batches: dict[int, np.ndarray], draws: Mapping[int, np.random.Generator], side: Side
    ) -> tuple[dict[int, float], list[tuple[Learner, dict[Table, Tensor]]]]:
        self._at_it = tuple(batches)
        return super()._step(batches, draws, side)

    def _together(
        self,
        private: Learner,
        triples: Tensor,
        candidates: Tensor,
        weights: Tensor,
        importance: Tensor,
        side: Side,
        segments: kernels.Segments,
    ) -> Steps:
        learners = {"shared": self._learner, "own": private}
        counts, losses = candidates >= 0, torch.zeros_like(weights)
        # Scores of the models that have not moved since.
        scored: dict[str, tuple[Queries, CandidateScores]] = {}
        steps: list[tuple[Learner, dict[Table, Tensor]]] = []
        for move in self.moves:
            # Apply the previous move before the next. If a loss is not finite, all moves but the last have been applied.
            for learner, gradients in steps:
                learner.step(gradients, self._at_it)
            learns, teaches = move.learns, "own" if move.learns == "shared" else "shared"
            for name in (learns, teaches) if move.distils else (learns,):
                # A model that has not moved keeps its scores, so each is scored once per step of its own.
                if name not in scored:
                    scored[name] = _scores(learners[name], triples, candidates, side, segments)
            queries, student = scored.pop(learns)
            with torch.enable_grad():
                scores = student.scores.requires_grad_()
                other = scored[teaches][1].scores if move.distils else scores.detach()
                mu = self._mu if move.distils else 0.0
                loss = self._loss(scores, other, counts, mu_distill=mu, importance=importance)
            # `weights` weighs the triples of the batch. The model's own backward pass (`vjp`) continues from the scores.
            gradient = torch.autograd.grad(loss, scores, weights)[0]
            to_queries, _ = student.vjp(gradient)
            moved = learners[learns].gradients(queries, triples, side, to_queries)
            steps = [(learners[learns], {"entities": moved["entities"]})]
            losses += loss.detach()
        return losses, steps


def _scores(
    learner: Learner, triples: Tensor, candidates: Tensor, side: Side, segments: kernels.Segments
) -> tuple[Queries, CandidateScores]:
    model, queries = learner.stack.model, learner.queries(triples, side)
    return queries, kernels.candidate_scores(
        model.similarity,
        queries.rows.detach(),
        segments.of(learner.stack.tables["entities"].detach()),
        candidates,
        margin=model.margin,
        segments=segments,
        out=segments.of(learner.entity_gradients),
    )
