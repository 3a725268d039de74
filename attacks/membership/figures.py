"""Success of membership attacks: whether forgotten triples can be separated from triples that were never seen.

`measure_membership` joins the scores of an attack in `fkgsec.attacks.membership.statistics` with the truth. `compare_auc` and
`score_distance` compare an unlearned model with a retrained one. `relearn_time` compares how fast they learn the forgotten
triples again.

Each figure comes with what an honest reading needs: its interval, its chance level, whether the sample is large enough, and
both directions. A model that ranks forgotten triples below never-seen ones separates them as well as one that still remembers
them: AUC 0.1 leaks as much as AUC 0.9. `fkgsec.attacks.membership.controls` explains which never-seen triples make 0.5 a null.

Legend: `n` audited triples, `m` forgotten ones, `c` controls.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import msgspec
import numpy as np
from scipy.optimize import root_scalar
from scipy.special import expit, logit

from fkgsec import estimate
from fkgsec.attacks.arrays import finite, mask
from fkgsec.errors import SpecError
from fkgsec.estimate import Estimate

Direction = Literal["remembered", "over-forgotten"]
MAX_FPR = (0.01, 0.001)
# Bound on the array size of resampling, in numbers.
_RESAMPLED_AT_ONCE = 2_000_000


class TprAtFpr(msgspec.Struct, frozen=True):
    """The share of forgotten triples found while at most `max_fpr` of the controls are classified as forgotten.

    Attributes:
        max_fpr: largest false-positive rate.
        direction: end of the order that is classified as forgotten, see `MembershipResult`.
        tpr, fpr: shares with Wilson intervals, both for the threshold from the controls; the interval of `fpr` covers that
            another sample of controls gives another threshold. None if there are too few controls for this FPR.
        reason: why these are None. Chance gives a TPR equal to the FPR.
    """

    max_fpr: float
    direction: Direction
    tpr: Estimate | None
    fpr: Estimate | None
    reason: str | None = None


class MembershipResult(msgspec.Struct, frozen=True):
    """Success of an attack at separating forgotten triples from controls.

    Attributes:
        attack, control: name of the attack, and kind of controls ("held_out").
        num_forgotten, num_controls: number of each.
        auc: probability that a forgotten triple ranks above a control, ties half. At each end, the interval is the wider one of
            DeLong's on the logit scale (any shape of scores) and Newcombe's (reliable near 0 and 1).
        direction: "remembered" if the interval is above 0.5, "over-forgotten" if it is below, None if it includes 0.5.
        distinguishability: max(auc, 1 - auc), the figure to judge by. Its interval is that of `auc` folded at 0.5. It starts at
            0.5 if that interval includes 0.5, and has its coverage although the maximum was taken.
        distinguishability_baseline: mean for two indistinguishable groups of these sizes; the maximum is never below 0.5 and
            only by accident equal to it.
        low_fpr: TPR at each of `MAX_FPR`, for remembered triples and for over-forgotten ones.
        advantage: TPR - FPR on one half of the triples, with the threshold and direction that are best on the other half, and
            vice versa (Newcombe's interval). No half is measured where its threshold was chosen, so that chance is 0 on average
            and the advantage may be negative.
    """

    attack: str
    control: str
    num_forgotten: int
    num_controls: int
    auc: Estimate
    direction: Direction | None
    distinguishability: Estimate
    distinguishability_baseline: float
    low_fpr: tuple[TprAtFpr, ...]
    advantage: Estimate


def measure_membership(
    statistic: np.ndarray,
    forgotten: np.ndarray,
    *,
    attack: str,
    control: str,
    rng: np.random.Generator,
    weights: np.ndarray | None = None,
) -> MembershipResult:
    """Join the scores of an attack with the truth.

    Args:
        statistic: scores of forgotten triples and controls, float `[n]`, larger for likelier trained triples.
        forgotten: which are forgotten, bool `[n]`; at least two are, and two are not.
        control: kind of controls.
        rng: splits the triples for `advantage`.
        weights: weights of the controls in the AUC, positive `[n]` (those of forgotten triples count as 1); None: equal
            weights.

    Source: DeLong et al. 1988 and Newcombe 2006 (Part 2, method 5) for the AUC; Carlini et al. 2022 on low FPR; Yeom et al.
    2018 and Newcombe 1998 (method 10) for the advantage. Differs: both directions, the threshold from other triples.
    """
    members, controls = _groups("statistic", statistic, forgotten)
    auc = _auc(placements(members, controls, None if weights is None else weights[~np.asarray(forgotten)]))
    direction = "remembered" if auc.low > 0.5 else "over-forgotten" if auc.high < 0.5 else None
    # Fold the interval at 0.5.
    low, high = max(0.5, auc.low, 1 - auc.high), max(auc.high, 1 - auc.low)
    m, c = len(members), len(controls)
    both_ways: tuple[tuple[Direction, int], ...] = (("remembered", 1), ("over-forgotten", -1))
    return MembershipResult(
        attack=attack,
        control=control,
        num_forgotten=m,
        num_controls=c,
        auc=auc,
        direction=direction,
        distinguishability=Estimate(max(auc.value, 1 - auc.value), low, high, auc.n, auc.method),
        # The mean absolute deviation of a normal variable with Mann and Whitney's variance.
        distinguishability_baseline=0.5 + math.sqrt(2 / math.pi * (m + c + 1) / (12 * m * c)),
        low_fpr=tuple(
            tpr_at_fpr(sign * members, sign * controls, max_fpr, way) for way, sign in both_ways for max_fpr in MAX_FPR
        ),
        advantage=_advantage(members, controls, rng),
    )


def compare_auc(
    statistic: np.ndarray, reference: np.ndarray, forgotten: np.ndarray, weights: np.ndarray | None = None
) -> Estimate:
    """Return the AUC of one model minus that of another on the same triples: of an unlearned model minus a retrained one.

    Use this figure where the controls' null is not 0.5, or unknown. It lies in [-1, 1]. Above 0 the first model remembers more
    than retraining explains; below 0 it over-forgets. The interval is over triples, for these two models: it does not cover
    another training seed.

    Args:
        statistic, reference: scores of the same attack on the two models, float `[n]`.
        forgotten: which are forgotten, bool `[n]`.
        weights: as in `measure_membership`.

    Source: DeLong et al. 1988 for the correlation of the two, Zou 2007 (MOVER) for the interval of the difference.
    """
    both = (("statistic", statistic), ("reference", reference))
    of_controls = None if weights is None else weights[~np.asarray(forgotten)]
    placed = [placements(*_groups(name, values, forgotten), of_controls) for name, values in both]
    # Var(A - B) of correlated AUCs: DeLong's covariance of placements, over members plus over controls.
    covariance = np.cov([model.members for model in placed]) / len(placed[0].members)
    covariance = covariance + _covariance([model.controls for model in placed], of_controls)
    scale = math.sqrt(covariance[0, 0] * covariance[1, 1])
    correlation = covariance[0, 1] / scale if scale > 0 else 0.0
    first, second = (_auc(model) for model in placed)
    return _difference(first, second, correlation, first.n, "mover-delong")


class Placements(NamedTuple):
    """Placement of each score among the other group, ties half.

    Attributes:
        members: share of controls below each forgotten triple, `[m]`.
        controls: share of forgotten triples above each control, `[c]`.
        weights: weights of the controls, `[c]`; None: equal weights.
    """

    members: np.ndarray
    controls: np.ndarray
    weights: np.ndarray | None = None

    @property
    def num_controls(self) -> float:
        """Effective number of controls."""
        return len(self.controls) if self.weights is None else effective_number(self.weights)


def effective_number(weights: np.ndarray) -> float:
    """Return the number of equally weighted items whose mean has the same variance as that of weighted items.

    Args:
        weights: positive, `[n]`.

    Source: Kish 1965.
    """
    return float(weights.sum() ** 2 / (weights**2).sum()) if len(weights) else 0.0


def placements(members: np.ndarray, controls: np.ndarray, weights: np.ndarray | None = None) -> Placements:
    """Place scores of forgotten triples and of controls among each other, at least one of each.

    Args:
        members: float `[m]`.
        controls: float `[c]`.
        weights: positive weights of the controls, `[c]`; None: equal weights.
    """

    def share_below(values: np.ndarray, others: np.ndarray, weight: np.ndarray) -> np.ndarray:
        """Return the weighted share of the others below each value, ties half."""
        # Cumulative weight of the others in sorted order; a tie adds half of its weight.
        order = np.argsort(others)
        total = np.concatenate([[0.0], np.cumsum(weight[order])])
        below, up_to = (np.searchsorted(others[order], values, side=side) for side in ("left", "right"))
        return (total[below] + total[up_to]) / (2 * total[-1])

    of_controls = np.ones(len(controls)) if weights is None else weights
    return Placements(
        share_below(members, controls, of_controls), 1 - share_below(controls, members, np.ones(len(members))), weights
    )


def _covariance(values: Sequence[np.ndarray], weights: np.ndarray | None) -> np.ndarray:
    """Return the covariance matrix of the weighted means of `values`, `[c]` each."""
    if weights is None:
        return np.cov(values) / len(values[0])
    share, stacked = weights / weights.sum(), np.stack(values)
    centered = (stacked - (stacked @ share)[:, None]) * share
    return centered @ centered.T * len(share) / (len(share) - 1)


def _auc(placed: Placements, *, compared: int = 1) -> Estimate:
    variance = placed.members.var(ddof=1) / len(placed.members) + _covariance([placed.controls], placed.weights).item()
    return estimate_auc(placed, float(variance), "delong+newcombe", compared=compared)


def estimate_auc(placed: Placements, variance: float, method: str, *, compared: int = 1) -> Estimate:
    """Return an AUC with the wider one, at each end, of Newcombe's interval and that of a variance on the logit scale.

    Args:
        placed: placements of both groups.
        variance: variance of the AUC.
        method: name of the method in the estimate.
        compared: number of figures among which this one was chosen; the level is 1 - 0.05 / compared.
    """
    auc, z = float(placed.members.mean()), estimate.critical_value(compared)
    m, c = len(placed.members), placed.num_controls
    low, high = _newcombe_interval(auc, m, c, z)
    if 0 < auc < 1 and variance > 0:
        # Delta method: the standard error of logit(a) is that of a over a (1 - a).
        half = z * math.sqrt(variance) / (auc * (1 - auc))
        low, high = min(low, float(expit(logit(auc) - half))), max(high, float(expit(logit(auc) + half)))
    method = method if compared == 1 else f"{method}, best of {compared}"
    return Estimate(auc, min(low, auc), max(high, auc), m + len(placed.controls), method)


def _newcombe_interval(auc: float, m: int, c: float, z: float) -> tuple[float, float]:
    """Solve (auc - t)^2 = z^2 V(t), V being the variance at a true AUC t; a width is left where the groups separate."""
    others = (m + c) / 2 - 1

    def excess(t: float) -> float:
        """Return the equation's left side minus its right side at a true AUC t."""
        variance = t * (1 - t) * (1 + others * (1 - t) / (2 - t) + others * t / (1 + t)) / (m * c)
        return (t - auc) ** 2 - z**2 * variance

    # The equation also has the root t = auc at 0 and 1; start beside it.
    tiny = 1e-12
    low = root_scalar(excess, bracket=(0.0, auc - tiny)).root if auc > 0 else 0.0
    high = root_scalar(excess, bracket=(auc + tiny, 1.0)).root if auc < 1 else 1.0
    return low, high


def auc_of(members: np.ndarray, controls: np.ndarray, *, compared: int = 1) -> Estimate:
    """Return the probability that a member's score exceeds a control's, ties half; at least two of each.

    Args:
        members: float `[m]`.
        controls: float `[c]`.
        compared: number of figures among which this one was chosen; the level is 1 - 0.05 / compared.
    """
    return _auc(placements(members, controls), compared=compared)


def tpr_at_fpr(members: np.ndarray, controls: np.ndarray, max_fpr: float, direction: Direction) -> TprAtFpr:
    """Return the share of members above a threshold that at most `max_fpr` of the controls exceed.

    Args:
        members: float `[m]`.
        controls: float `[c]`.
        max_fpr: largest false-positive rate.
        direction: recorded in the result; the caller negates scores for "over-forgotten".
    """
    # Threshold: the largest score that leaves at most max_fpr of the controls strictly above it.
    # Number of controls that may be classified as forgotten.
    allowed = math.floor(max_fpr * len(controls) + 1e-9)
    if allowed < 1:
        reason = f"an FPR of {max_fpr:.1%} needs at least {math.ceil(1 / max_fpr)} controls; there are {len(controls)}"
        return TprAtFpr(max_fpr, direction, None, None, reason)
    threshold = np.sort(controls)[-allowed - 1]
    tpr, fpr = (estimate.proportion(int((group > threshold).sum()), len(group)) for group in (members, controls))
    return TprAtFpr(max_fpr, direction, tpr, fpr)


def _advantage(members: np.ndarray, controls: np.ndarray, rng: np.random.Generator) -> Estimate:
    halves = [np.array_split(rng.permutation(group), 2) for group in (members, controls)]
    # Number of forgotten triples, and of controls, that are classified as forgotten.
    above = np.zeros(2, dtype=np.int64)
    for chosen_on, counted_on in ((0, 1), (1, 0)):
        threshold, sign = _best_threshold(*(group[chosen_on] for group in halves))
        above += [int((sign * group[counted_on] > sign * threshold).sum()) for group in halves]
    # Each half chose the other's threshold, so they are not independent: an interval as wide as that of one half is.
    tpr, fpr = (
        estimate.proportion(float(share) * (len(group) // 2), len(group) // 2)
        for share, group in zip(above / [len(members), len(controls)], (members, controls), strict=True)
    )
    return _difference(tpr, fpr, 0.0, len(members) + len(controls), "newcombe")


def _best_threshold(members: np.ndarray, controls: np.ndarray) -> tuple[float, int]:
    """Return the threshold with the largest TPR - FPR, halfway between two values, and its sign (-1: forgotten below it)."""
    values = np.unique(np.concatenate([members, controls]))
    thresholds = (values[:-1] + values[1:]) / 2 if len(values) > 1 else values
    below = [np.searchsorted(np.sort(group), thresholds, side="right") / len(group) for group in (members, controls)]
    gain = below[1] - below[0]
    best = int(np.abs(gain).argmax())
    return float(thresholds[best]), 1 if gain[best] >= 0 else -1


def _difference(first: Estimate, second: Estimate, correlation: float, n: int, method: str) -> Estimate:
    """Subtract two estimates. Source: Zou 2007 (MOVER); without correlation it is Newcombe's interval."""

    def reach(first: float, other: float) -> float:
        """Return the distance from the difference to one end of its interval."""
        return math.sqrt(max(0.0, first**2 + other**2 - 2 * correlation * first * other))

    value = first.value - second.value
    low = value - reach(first.value - first.low, second.high - second.value)
    high = value + reach(first.high - first.value, second.value - second.low)
    return Estimate(value, max(-1.0, low), min(1.0, high), n, method)


# Forgetting beside re-training, without controls.


class ScoreDistance(msgspec.Struct, frozen=True):
    """Two models' scores of the same triples.

    Attributes:
        distance: Kolmogorov-Smirnov distance of the two distributions, in [0, 1].
        p_value: share of random swaps of each triple's two scores with at least this distance. It assumes independent triples.
            Two retrained models may differ by this measure, too, although only their seeds differ, so compare `distance` with
            that of two retrained models.
    """

    distance: Estimate
    p_value: float


def score_distance(
    scores: np.ndarray, others: np.ndarray, rng: np.random.Generator, resamples: int = 1000
) -> ScoreDistance:
    """Return the Kolmogorov-Smirnov distance between two models' scores of the same triples.

    The interval is the distance plus and minus the 95 % point of the largest deviation between the two distribution functions
    when triples are resampled. (Resampled distances are no interval: none is as small as a true 0.) Two-sample tables assume
    independent scores and are conservative here, since both models score the same triples; the p-value therefore comes from
    swaps.

    Args:
        scores: float `[n]`.
        others: scores of the same triples by the other model, float `[n]`.
        rng: draws resamples and swaps.

    Source: Præstgaard 1995 for both resamplings.
    """
    scores, others = finite("scores", scores, 1), finite("others", others, 1)
    n = len(scores)
    if n == 0 or len(others) != n:
        raise ValueError(f"scores and others need the same triples, at least one; got {n} and {len(others)}")
    # Both distribution functions at every observed score.
    pooled = np.concatenate([scores, others])
    order = np.argsort(pooled, kind="stable")
    # A tie is one step of both distribution functions.
    ends = np.append(np.diff(pooled[order]) > 0, True)

    def largest_gap(weights: np.ndarray) -> np.ndarray:
        """n times the largest difference of the functions, int64 `[b]`, for weights of the triples `[b, n]`."""
        return np.abs(np.concatenate([weights, -weights], axis=1)[:, order].cumsum(axis=1)[:, ends]).max(axis=1)

    observed = int(largest_gap(np.ones((1, n), dtype=np.int64))[0])
    block = max(1, _RESAMPLED_AT_ONCE // n)
    deviations, as_large = [], 0
    for done in range(0, resamples, block):
        size = min(block, resamples - done)
        deviations.append(largest_gap(rng.multinomial(n, np.full(n, 1 / n), size=size) - 1))
        # Under the null, a triple's two scores are exchangeable: swap each pair at random.
        as_large += int((largest_gap(2 * rng.integers(0, 2, size=(size, n)) - 1) >= observed).sum())
    margin = float(np.quantile(np.concatenate(deviations), 0.95, method="higher"))
    low, high = max(0.0, (observed - margin) / n), min(1.0, (observed + margin) / n)
    return ScoreDistance(Estimate(observed / n, low, high, n, "bootstrap band"), (1 + as_large) / (1 + resamples))


class RelearnTime(msgspec.Struct, frozen=True):
    """Training steps on the forgotten triples until a model reaches the level, None if it does not on its curve.

    Attributes:
        unlearned, retrained: steps; 0 if the level is reached before the first step.
        ratio: unlearned / retrained. Below 1 the unlearned model still remembers something; far above 1 it over-forgot.
        reason: why there is no ratio.
    """

    unlearned: int | None
    retrained: int | None
    ratio: float | None
    reason: str | None = None


def relearn_time(unlearned: np.ndarray, retrained: np.ndarray, level: float) -> RelearnTime:
    """Compare how fast a model learns the forgotten triples again with a model that never saw them.

    Args:
        unlearned, retrained: MRR (or Hits@k) on the forgotten triples, `[steps + 1]`: index k is after k steps of the same
            training with the same batches. This is one run each: repeat over seeds before drawing conclusions.
        level: in (0, 1], such as the attacked model's value on these triples minus a margin.

    Source: Chundawat et al. 2023, anamnesis index. Differs: a level instead of a margin below the attacked model.
    """
    if not 0 < level <= 1:
        raise SpecError(f"level must lie in (0, 1]; got {level}")
    times: dict[str, int | None] = {}
    for name, values in (("unlearned", unlearned), ("retrained", retrained)):
        reached = np.nonzero(finite(name, values, 1) >= level)[0]
        times[name] = int(reached[0]) if len(reached) else None
    first, second = times.values()
    if first is None or second is None:
        missing = " and ".join(name for name, steps in times.items() if steps is None)
        return RelearnTime(first, second, None, f"level {level} is not reached by: {missing}")
    if second == 0:
        return RelearnTime(first, second, None, f"the re-trained model is at level {level} before any step")
    return RelearnTime(first, second, first / second)


def _groups(name: str, statistic: np.ndarray, forgotten: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Split the statistic into forgotten triples `[m]` and controls `[c]`."""
    values = finite(name, statistic, 1)
    chosen = mask("forgotten", forgotten, values.shape)
    members, controls = values[chosen], values[~chosen]
    if min(len(members), len(controls)) < 2:
        got = f"{len(members)} and {len(controls)}"
        raise ValueError(f"forgotten must mark at least 2 triples and leave 2 controls; got {got}")
    return members, controls
