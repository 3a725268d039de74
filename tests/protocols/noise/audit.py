"""Auditing differential privacy: a lower bound of epsilon from trials, whatever was claimed.

    bound = audit_lower_bound(scores_in, scores_out, delta=1e-5, confidence=0.95)
    bound.epsilon > claimed                                                         # then the claim is wrong

An auditor runs a mechanism in two neighbouring worlds and guesses which one it sees. No guess can be right more often than
epsilon and delta allow; error rates with their confidence bounds therefore bound epsilon from below.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fkgsec.protocols.noise.accounting import AccountingError


class AuditBound(NamedTuple):
    """Result of an audit.

    Attributes:
        epsilon: with probability `confidence` over the trials, the true epsilon is at least this. 0 says nothing.
        threshold: "in" is guessed from this score on.
        false_positive_high, false_negative_high: the upper ends of the two error rates that it rests on.
        num_trials: the trials that were evaluated; as many served to choose the threshold.
    """

    epsilon: float
    threshold: float
    false_positive_high: float
    false_negative_high: float
    confidence: float
    num_trials: int


def audit_epsilon(
    *,
    false_positives: int,
    num_out: int,
    false_negatives: int,
    num_in: int,
    delta: float,
    confidence: float = 0.95,
) -> float:
    """A lower bound of epsilon from guesses whether a canary was in, a fair coin having decided it.

    (epsilon, delta)-DP requires of every test FPR + e^epsilon FNR >= 1 - delta, and the same with the rates exchanged.
    Both rates are replaced by their Clopper-Pearson upper ends, each with half of the allowed failure.

    Args:
        false_positives: of `num_out` independent trials without the canary, those guessed "in".
        false_negatives: of `num_in` independent trials with it, those guessed "out".

    Raises `AccountingError` outside the allowed ranges.
    Source: Nasr, Song, Thakurta, Papernot, Carlini 2021; Clopper, Pearson 1934. Differs: none.

    >>> audit_epsilon(false_positives=0, num_out=1000, false_negatives=500, num_in=1000, delta=0.0) > 4.5
    True
    """
    _check_confidence(delta, confidence)
    for name, errors, trials in (("positives", false_positives, num_out), ("negatives", false_negatives, num_in)):
        if not 0 <= errors <= trials:
            raise AccountingError(f"false_{name} must lie in 0..{trials}; got {errors}")
    high = _clopper_pearson_high(
        np.array([false_positives, false_negatives]), np.array([num_out, num_in]), (1 - confidence) / 2
    )
    return float(_epsilon_of_rates(high[0], high[1], delta))


def audit_lower_bound(
    scores_in: np.ndarray, scores_out: np.ndarray, delta: float, *, confidence: float = 0.95
) -> AuditBound:
    """A lower bound of epsilon from the scores of an attack in the two worlds, higher meaning "in".

    The threshold is chosen on every second trial and evaluated on the others, so that choosing it costs no confidence. It is
    the one with the highest bound at a confidence that covers all candidates at once, lest a lucky extreme score be chosen.

    Args:
        scores_in, scores_out: floats `[n]` and `[m]` of independent trials, in the order of the trials (not sorted).

    Raises `AccountingError` for fewer than 4 trials of a kind, NaN among the scores, a delta or a confidence out of range.
    Source: as `audit_epsilon`. Differs: none.
    """
    _check_confidence(delta, confidence)
    worlds = {}
    for name, scores in (("scores_in", scores_in), ("scores_out", scores_out)):
        worlds[name] = np.asarray(scores, dtype=np.float64)
        if worlds[name].ndim != 1 or len(worlds[name]) < 4:
            raise AccountingError(f"{name}: at least 4 trials are needed; got an array of shape {worlds[name].shape}")
        if np.isnan(worlds[name]).any():
            raise AccountingError(f"{name}: NaN among the scores")

    def rates_high(trials: slice, thresholds: np.ndarray, failure: float) -> tuple[np.ndarray, np.ndarray]:
        inside, outside = np.sort(worlds["scores_in"][trials]), np.sort(worlds["scores_out"][trials])
        false_positives = len(outside) - np.searchsorted(outside, thresholds, side="left")
        false_negatives = np.searchsorted(inside, thresholds, side="left")
        return (
            _clopper_pearson_high(false_positives, np.array(len(outside)), failure),
            _clopper_pearson_high(false_negatives, np.array(len(inside)), failure),
        )

    chosen_on, evaluated_on = slice(0, None, 2), slice(1, None, 2)
    candidates = np.unique(np.concatenate([worlds["scores_in"][chosen_on], worlds["scores_out"][chosen_on]]))
    false_positive, false_negative = rates_high(chosen_on, candidates, (1 - confidence) / 2 / len(candidates))
    best = int(np.argmax(_epsilon_of_rates(false_positive, false_negative, delta)))
    false_positive, false_negative = rates_high(evaluated_on, candidates[best : best + 1], (1 - confidence) / 2)
    return AuditBound(
        epsilon=float(_epsilon_of_rates(false_positive, false_negative, delta)[0]),
        threshold=float(candidates[best]),
        false_positive_high=float(false_positive[0]),
        false_negative_high=float(false_negative[0]),
        confidence=confidence,
        num_trials=sum(len(scores[evaluated_on]) for scores in worlds.values()),
    )


def _clopper_pearson_high(errors: np.ndarray, trials: np.ndarray, failure: float) -> np.ndarray:
    """The rate at which so few errors or fewer have probability `failure`; 1 when all trials were errors."""
    from scipy.special import betaincinv

    inner = errors < trials
    return np.where(inner, betaincinv(errors + 1, np.where(inner, trials - errors, 1), 1 - failure), 1.0)


def _epsilon_of_rates(false_positive: np.ndarray, false_negative: np.ndarray, delta: float) -> np.ndarray:
    """The least epsilon >= 0 that allows both rates (above 0)."""
    ratio = np.maximum(
        (1 - delta - false_negative) / false_positive,
        (1 - delta - false_positive) / false_negative,
    )
    return np.log(np.maximum(ratio, 1.0))


def _check_confidence(delta: float, confidence: float) -> None:
    if not 0 <= delta < 1:
        raise AccountingError(f"delta must lie in 0..1, 1 excluded; got {delta}")
    if not 0 < confidence < 1:
        raise AccountingError(f"confidence must lie between 0 and 1; got {confidence}")
