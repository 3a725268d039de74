"""Membership inference: statistics of a model that separate the triples it was trained on from others.

Each attack returns a number per audited triple, larger where it looks more like a trained one;
`fkgsec.attacks.membership.figures` joins these with the truth.

Threat model: the adversary has a model (its tables, or an interface that scores triples) and candidate triples. Attacks by
loss, score and rank need nothing else. `calibrated`, `likelihood_ratio`, `linear_likelihood_ratio` and `relative_probability`
also need shadow models, hence data like the client's and the training procedure. Against an unlearned model, a shadow model
that is "in" was trained on the triple *and then unlearned it*, and one that is "out" never saw it (U-LiRA, Hayes et al. 2024).
Shadow models that only trained on it look for a memory that unlearning may have turned into another trace.

Legend: `n` audited triples, `S` shadow models, `N` entities.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, get_args

import numpy as np
import torch
from scipy.stats import rankdata
from torch import Tensor

from fkgsec.attacks.arrays import finite, mask
from fkgsec.errors import SpecError
from fkgsec.kge.loss import negative_sampling_loss
from fkgsec.kge.models import KgeModel
from fkgsec.kge.ranking import SCORE_BLOCK_BYTES, sides_of

Shadows = Literal["online", "offline"]
Variance = Literal["pooled", "per_triple"]


def triple_scores(model: KgeModel, entities: Tensor, relations: Tensor, triples: np.ndarray) -> np.ndarray:
    """Return the model's score of each triple, float64 `[n]`; larger is more plausible.

    Args:
        entities: embedding rows `[N, W]`.
        relations: embedding rows `[M, V]`.
        triples: int64 `[n, 3]`, in the IDs of these rows.
    """
    head, relation, tail = torch.tensor(triples).to(entities.device).unbind(1)
    return model.score(entities[head], relations[relation], entities[tail]).double().cpu().numpy()


def triple_losses(
    model: KgeModel,
    entities: Tensor,
    relations: Tensor,
    triples: np.ndarray,
    *,
    temperature: float = 1.0,
    block_bytes: int = SCORE_BLOCK_BYTES,
) -> np.ndarray:
    """Return the training loss of each triple against every other entity, mean over both sides, float64 `[n]`.

    Args:
        model, entities, relations, triples: as in `triple_scores`.
        temperature: alpha of the self-adversarial weights.
        block_bytes: bound on the memory of scores.

    Source: fedr.txt B.2. Differs: all entities are negatives, so that nothing is drawn. True triples stay among them, since the
    adversary does not know which are true.
    """
    losses = np.zeros(len(triples))
    for block, scores, true in _scores_of_ends(model, entities, relations, triples, block_bytes):
        with_true = torch.cat([scores.gather(1, true), scores], dim=1)
        # The true entity counts once, as the positive.
        counts = torch.ones_like(with_true, dtype=torch.bool).scatter_(1, 1 + true, False)
        loss = negative_sampling_loss(with_true, counts, temperature=temperature)
        losses[block] += loss.cpu().numpy() / 2
    return losses


def _scores_of_ends(
    model: KgeModel, entities: Tensor, relations: Tensor, triples: np.ndarray, block_bytes: int
) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Iterate over both sides and blocks of `b` triples.

    Yields: indices of the block, the scores of all entities, float64 `[b, N]`, and the true entity, int64 `[b, 1]`.
    """
    # Scores of all entities for a block of triples, bounded in memory.
    step = max(1, block_bytes // (8 * len(entities)))
    for side in sides_of("both"):
        anchor, candidate = (0, 2) if side == "tail" else (2, 0)
        for low in range(0, len(triples), step):
            chosen = torch.tensor(triples[low : low + step]).to(entities.device)
            queries = model.query(entities[chosen[:, anchor]], relations[chosen[:, 1]], side)
            yield slice(low, low + step), model.score_all(queries, entities).double(), chosen[:, candidate, None]


def triple_answers(
    model: KgeModel, entities: Tensor, relations: Tensor, triples: np.ndarray, *, block_bytes: int = SCORE_BLOCK_BYTES
) -> tuple[np.ndarray, np.ndarray]:
    """Return log-probability and log-rank of the true end, unfiltered, since the adversary does not know which others are true.

    Args:
        model, entities, relations, triples: as in `triple_scores`.
        block_bytes: bound on the memory of scores.

    Returns:
        Logarithms of the softmax probability over all entities, and of the rank among them, ties at their mean; float64 `[n]`
        each, mean over the two ends.
    """
    answers = np.zeros((2, len(triples)))
    for block, scores, true in _scores_of_ends(model, entities, relations, triples, block_bytes):
        true_scores = scores.gather(1, true)
        # Mean rank of ties.
        ranks = (scores > true_scores).sum(dim=1) + ((scores == true_scores).sum(dim=1) + 1) / 2
        for row, values in enumerate((true_scores[:, 0] - scores.logsumexp(dim=1), ranks.double().log())):
            answers[row, block] += values.cpu().numpy() / 2
    return answers[0], answers[1]


def rank_threshold(log_ranks: np.ndarray) -> np.ndarray:
    """Classify a triple as trained if its ends rank high: minus the mean log-rank, float64 `[n]`.

    Args:
        log_ranks: from `triple_answers`, float `[n]`.

    Source: ours, after the correctness attack of arXiv 2104.08273, which tests whether the true end ranks first. Differs: every
    rank counts.
    """
    return -finite("log_ranks", log_ranks, 1)


def loss_threshold(losses: np.ndarray) -> np.ndarray:
    """Classify a triple as trained if its loss is low: minus the loss, float64 `[n]`.

    Args:
        losses: from `triple_losses`, float `[n]`; pass minus the scores to attack by score.

    Source: Yeom et al. 2018, the threshold adversary.
    """
    return -finite("losses", losses, 1)


def calibrated(scores: np.ndarray, shadow_scores: np.ndarray, member: np.ndarray) -> np.ndarray:
    """Return the score minus the mean score in models that never saw the triple, float64 `[n]`.

    Some triples score high in any model, since others imply them; the excess is due to training on the triple itself.

    Args:
        scores: scores in the attacked model, `[n]`.
        shadow_scores: scores of the same triples in the shadow models, `[S, n]`.
        member: which shadow model is "in" for which triple, bool `[S, n]`; each triple needs one that is "out".

    Source: Watson et al. 2022, difficulty calibration.
    """
    scores, shadow_scores, member = _shadows(scores, shadow_scores, member)
    return scores - _mean(shadow_scores, ~member, "out")


def likelihood_ratio(
    scores: np.ndarray,
    shadow_scores: np.ndarray,
    member: np.ndarray,
    *,
    mode: Shadows = "online",
    variance: Variance = "pooled",
) -> np.ndarray:
    """Return the log-likelihood ratio of the score if the triple was trained on and if it was not (LiRA), float64 `[n]`.

    Args:
        scores, shadow_scores, member: as in `calibrated`. Scores are logits of the triple's probability sigma(s), the scale
            that LiRA requires.
        mode: "online" compares a Gaussian of the triple's "in" scores with one of its "out" scores. "offline" needs no "in"
            models: it measures how far the score lies above the "out" scores. Triples that were pushed down come last, and with
            the pooled variance the order is that of `calibrated`.
        variance: "pooled" over all triples, for fewer than about 64 shadow models; "per_triple" needs two models on each side.

    Source: Carlini et al. 2022, Algorithm 1 and its offline variant. Differs: offline returns the standardized score, whose
    normal probability is the paper's figure: the same order without rounding to 1. The pooled variance is within triples; the
    published code uses that of all scores, which counts differences between triples as noise.

    Raises:
        SpecError: an unknown mode or variance.
        ValueError: too few shadow models for a triple, or they all give one score.
    """
    for name, value, allowed in (("mode", mode, get_args(Shadows)), ("variance", variance, get_args(Variance))):
        if value not in allowed:
            raise SpecError(f"{name} must be one of {', '.join(allowed)}; got {value!r}")
    scores, shadow_scores, member = _shadows(scores, shadow_scores, member)
    mean_out, deviation_out = _gaussians(shadow_scores, ~member, "out", variance)
    # Standardized distance to the model without the triple.
    from_out = (scores - mean_out) / deviation_out
    if mode == "offline":
        return from_out
    mean_in, deviation_in = _gaussians(shadow_scores, member, "in", variance)
    from_in = (scores - mean_in) / deviation_in
    # log N(s; in) - log N(s; out).
    return (from_out**2 - from_in**2) / 2 + np.log(deviation_out / deviation_in)


def linear_likelihood_ratio(scores: np.ndarray, shadow_scores: np.ndarray, member: np.ndarray) -> np.ndarray:
    """Return LiRA in linear form, float64 `[n]`: one variance for both sides, and one gain g from training for all triples.

    With c the mean of a triple's mean "in" and mean "out" score, it compares a Gaussian around c + g / 2 with one around c - g
    / 2: g (s - c) / variance. g is the mean difference of the two; the variance is that within triples and sides.

    Args:
        scores, shadow_scores, member: as in `likelihood_ratio`; each triple needs a shadow model that is "in" and one that is
            "out".

    Source: ours, from Carlini et al. 2022. With few shadow models, a gain and two variances per triple are mostly noise.

    Raises:
        ValueError: too few shadow models for a triple, or they all give one score.
    """
    scores, shadow_scores, member = _shadows(scores, shadow_scores, member)
    mean_in, mean_out = _mean(shadow_scores, member, "in"), _mean(shadow_scores, ~member, "out")
    variance = float(((shadow_scores - np.where(member, mean_in, mean_out)) ** 2).sum())
    if not variance > 0:
        raise ValueError("shadow_scores: no spread among the shadow models on either side; train more of them")
    # Each triple has two fitted means, which cost two degrees of freedom.
    variance /= max(1, shadow_scores.size - 2 * shadow_scores.shape[1])
    # g (s - c) / variance.
    return (mean_in - mean_out).mean() * (scores - (mean_in + mean_out) / 2) / variance


def relative_probability(
    log_probabilities: np.ndarray, shadow_log_probabilities: np.ndarray, member: np.ndarray
) -> np.ndarray:
    """Return the share of other triples that the model raises less than this one (RMIA), float64 `[n]` in 0..1.

    A triple is raised by p(x | model) / p(x). Here p(x) is the mean of two means: of its probability in the models that are
    "in", and in those that are "out".

    Args:
        log_probabilities: under the attacked model, from `triple_answers`, `[n]`.
        shadow_log_probabilities: under the shadow models, `[S, n]`.
        member: as in `likelihood_ratio`, bool `[S, n]`.

    Source: Zarifzadeh, Liu, Shokri 2024, online form, gamma = 1. Differs: the population is the audited triples, ties half, of
    which the adversary does not know which were trained on; so the order is that of the ratio.
    """
    scores, shadow_scores, member = _shadows(log_probabilities, shadow_log_probabilities, member)
    # Subtract the largest exponent: probabilities over all entities underflow.
    largest = shadow_scores.max(axis=0)
    shares = np.exp(shadow_scores - largest)
    usual = (_mean(shares, member, "in") + _mean(shares, ~member, "out")) / 2
    # log p(x | model) - log p(x), then its rank among all audited triples (gamma = 1).
    ratios = scores - largest - np.log(usual)
    return (rankdata(ratios) - 0.5) / len(ratios)


def _gaussians(
    shadow_scores: np.ndarray, chosen: np.ndarray, what: str, variance: Variance
) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and standard deviation of the chosen scores of each triple, `[n]` each."""
    mean = _mean(shadow_scores, chosen, what, needed=2 if variance == "per_triple" else 1)
    squares = np.where(chosen, (shadow_scores - mean) ** 2, 0).sum(axis=0)
    freedom = chosen.sum(axis=0) - 1
    if variance == "pooled":
        squares, freedom = np.full_like(squares, squares.sum()), np.full_like(freedom, max(1, freedom.sum()))
    if not (squares > 0).all():
        raise ValueError(
            f'shadow_scores: column {int(np.argmin(squares))} has no spread among the shadow models that are "{what}"; '
            f"train more of them, on different data or from different seeds"
        )
    return mean, np.sqrt(squares / freedom)


def _mean(shadow_scores: np.ndarray, chosen: np.ndarray, what: str, needed: int = 1) -> np.ndarray:
    count = chosen.sum(axis=0)
    if (count < needed).any():
        place = int(np.argmin(count))
        raise ValueError(
            f'member: each triple needs at least {needed} shadow models that are "{what}"; column {place} has {count[place]}'
        )
    return np.where(chosen, shadow_scores, 0).sum(axis=0) / count


def _shadows(scores: np.ndarray, shadow_scores: np.ndarray, member: np.ndarray) -> tuple[np.ndarray, ...]:
    scores, shadow_scores = finite("scores", scores, 1), finite("shadow_scores", shadow_scores, 2)
    if shadow_scores.shape[1] != len(scores):
        raise ValueError(f"shadow_scores must have {len(scores)} columns, as scores; got {shadow_scores.shape[1]}")
    return scores, shadow_scores, mask("member", member, shadow_scores.shape)
