"""Success of membership attacks: whether forgotten triples can be told from triples that were never seen.

`measure_membership` joins what an attack of `fkgsec.attacks.membership.statistics` says with the truth. `compare_auc` and
`score_distance` hold an unlearned model against a re-trained one, `relearn_time` asks how fast it learns the forgotten triples
again.

What an honest reading needs is said beside each figure: its interval, what chance gives, whether the sample is large enough,
and both directions. A model that ranks forgotten triples below never-seen ones tells them apart as well as one that still
remembers them; AUC 0.1 leaks as much as AUC 0.9. Which never-seen triples make 0.5 a null is the matter of
`fkgsec.attacks.membership.controls`.

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
_RESAMPLED_AT_ONCE = 2_000_000  # numbers held at once while resampling


class TprAtFpr(msgspec.Struct, frozen=True):
    """The share of forgotten triples found while at most `max_fpr` of the controls are taken for one.

    Attributes:
        direction: which end of the order is taken for forgotten, see `MembershipResult`.
        tpr, fpr: shares with Wilson intervals, both for the threshold that the controls gave (that it might have come
            out otherwise is in the interval of `fpr`). None where there are too few controls to see such an FPR.
        reason: why these are None. Chance gives a TPR equal to the FPR.
    """

    max_fpr: float
    direction: Direction
    tpr: Estimate | None
    fpr: Estimate | None
    reason: str | None = None


class MembershipResult(msgspec.Struct, frozen=True):
    """Success of an attack at telling forgotten triples from controls.

    Attributes:
        attack, control: what was computed, and which controls it was held against ("held_out").
        num_forgotten, num_controls: how many of each.
        auc: chance that a forgotten triple is placed above a control, ties half. The interval is the wider one, at each end,
            of DeLong's on the logit scale (any shape of scores) and Newcombe's (honest near 0 and 1).
        direction: "remembered" if the interval is above 0.5, "over-forgotten" if it is below, None if it holds 0.5.
        distinguishability: max(auc, 1 - auc), the figure to judge by. The interval is that of `auc` folded at 0.5, so it
            starts at 0.5 wherever that one holds 0.5, and covers although the maximum was taken.
        distinguishability_baseline: what two groups that nothing tells apart show on average at these sizes; the maximum
            is never below 0.5 and only by accident equal to it.
        low_fpr: TPR at each of `MAX_FPR`, for remembered triples and for over-forgotten ones.
        advantage: TPR - FPR on one half of the triples, with the threshold and the direction that are best on the other half,
            both ways round (Newcombe's interval). No figure is taken where its threshold was chosen, so chance is 0 on
            average, and it may be negative.
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
    """Join what an attack says with the truth.

    Args:
        statistic: `[n]`, of forgotten triples and controls, larger where the attack takes the triple for a trained one.
        forgotten: bool `[n]`, which are forgotten; at least two are, and two are not.
        rng: divides the triples for `advantage`.
        weights: positive `[n]`, of the controls in the AUC (those of forgotten triples count as 1); None: all alike.

    Source: DeLong et al. 1988 and Newcombe 2006 (Part 2, method 5) for the AUC; Carlini et al. 2022 on low FPR; Yeom et al. 2018
    and Newcombe 1998 (method 10) for the advantage. Differs: both directions, the threshold from other triples.
    """
    members, controls = _groups("statistic", statistic, forgotten)
    auc = _auc(placements(members, controls, None if weights is None else weights[~np.asarray(forgotten)]))
    direction = "remembered" if auc.low > 0.5 else "over-forgotten" if auc.high < 0.5 else None
    low, high = max(0.5, auc.low, 1 - auc.high), max(auc.high, 1 - auc.low)  # the interval folded at 0.5
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
    """AUC of one model minus that of another on the same triples: an unlearned model's above a re-trained one's.

    This is the figure to go by where the controls' null is not 0.5, or not known to be. In [-1, 1]; above 0 the first model
    remembers more than re-training explains, below 0 it over-forgets. The interval is over triples, given the two models:
    what another seed of training would change is not in it.

    Args:
        statistic, reference: `[n]`, the same attack on the two models. forgotten: bool `[n]`.
        weights: as for `measure_membership`.

    Source: DeLong et al. 1988 for the correlation of the two, Zou 2007 (MOVER) for the interval of the difference.
    """
    both = (("statistic", statistic), ("reference", reference))
    of_controls = None if weights is None else weights[~np.asarray(forgotten)]
    placed = [placements(*_groups(name, values, forgotten), of_controls) for name, values in both]
    covariance = np.cov([model.members for model in placed]) / len(placed[0].members)
    covariance = covariance + _covariance([model.controls for model in placed], of_controls)
    scale = math.sqrt(covariance[0, 0] * covariance[1, 1])
    correlation = covariance[0, 1] / scale if scale > 0 else 0.0
    first, second = (_auc(model) for model in placed)
    return _difference(first, second, correlation, first.n, "mover-delong")


class Placements(NamedTuple):
    """The share of controls below each forgotten triple `[m]`, and of forgotten triples above each control `[c]`; ties half.

    `weights` `[c]` of the controls; None: all alike.
    """

    members: np.ndarray
    controls: np.ndarray
    weights: np.ndarray | None = None

    @property
    def num_controls(self) -> float:
        """Effective number of controls."""
        return len(self.controls) if self.weights is None else effective_number(self.weights)


def effective_number(weights: np.ndarray) -> float:
    """Return the number of equally weighted items whose mean varies as much as that of items with these positive weights.

    Source: Kish 1965.
    """
    return float(weights.sum() ** 2 / (weights**2).sum()) if len(weights) else 0.0


def placements(members: np.ndarray, controls: np.ndarray, weights: np.ndarray | None = None) -> Placements:
    """Place scores of forgotten triples `[m]` and of controls `[c]`, at least one of each.

    Args:
        weights: positive `[c]`, of the controls; None: all alike.
    """

    def share_below(values: np.ndarray, others: np.ndarray, weight: np.ndarray) -> np.ndarray:
        order = np.argsort(others)
        total = np.concatenate([[0.0], np.cumsum(weight[order])])
        below, up_to = (np.searchsorted(others[order], values, side=side) for side in ("left", "right"))
        return (total[below] + total[up_to]) / (2 * total[-1])

    of_controls = np.ones(len(controls)) if weights is None else weights
    return Placements(
        share_below(members, controls, of_controls), 1 - share_below(controls, members, np.ones(len(members))), weights
    )


def _covariance(values: Sequence[np.ndarray], weights: np.ndarray | None) -> np.ndarray:
    """Covariance matrix of the weighted means of `values`, `[c]` each."""
    if weights is None:
        return np.cov(values) / len(values[0])
    share, stacked = weights / weights.sum(), np.stack(values)
    centered = (stacked - (stacked @ share)[:, None]) * share
    return centered @ centered.T * len(share) / (len(share) - 1)


def _auc(placed: Placements, *, compared: int = 1) -> Estimate:
    variance = placed.members.var(ddof=1) / len(placed.members) + _covariance([placed.controls], placed.weights).item()
    return estimate_auc(placed, float(variance), "delong+newcombe", compared=compared)


def estimate_auc(placed: Placements, variance: float, method: str, *, compared: int = 1) -> Estimate:
    """AUC with the wider one, at each end, of Newcombe's interval and that of a variance on the logit scale.

    Args:
        compared: among how many figures this one was chosen; the level is then 1 - 0.05 / compared.
    """
    auc, z = float(placed.members.mean()), estimate.critical_value(compared)
    m, c = len(placed.members), placed.num_controls
    low, high = _newcombe_interval(auc, m, c, z)
    if 0 < auc < 1 and variance > 0:
        half = z * math.sqrt(variance) / (auc * (1 - auc))
        low, high = min(low, float(expit(logit(auc) - half))), max(high, float(expit(logit(auc) + half)))
    method = method if compared == 1 else f"{method}, best of {compared}"
    return Estimate(auc, min(low, auc), max(high, auc), m + len(placed.controls), method)


def _newcombe_interval(auc: float, m: int, c: float, z: float) -> tuple[float, float]:
    """Solve (auc - t)^2 = z^2 V(t), V being the variance at a true AUC t; a width is left where the groups separate."""
    others = (m + c) / 2 - 1

    def excess(t: float) -> float:
        variance = t * (1 - t) * (1 + others * (1 - t) / (2 - t) + others * t / (1 + t)) / (m * c)
        return (t - auc) ** 2 - z**2 * variance

    tiny = 1e-12  # beside the root t = auc that 0 and 1 have
    low = root_scalar(excess, bracket=(0.0, auc - tiny)).root if auc > 0 else 0.0
    high = root_scalar(excess, bracket=(auc + tiny, 1.0)).root if auc < 1 else 1.0
    return low, high


def auc_of(members: np.ndarray, controls: np.ndarray, *, compared: int = 1) -> Estimate:
    """Chance that one of the former scores `[m]` lies above one of the latter `[c]`, ties half; at least two of each.

    Args:
        compared: among how many figures this one was chosen; the level is then 1 - 0.05 / compared.
    """
    return _auc(placements(members, controls), compared=compared)


def tpr_at_fpr(members: np.ndarray, controls: np.ndarray, max_fpr: float, direction: Direction) -> TprAtFpr:
    """The share of the former scores `[m]` above a threshold that at most `max_fpr` of the latter `[c]` exceed."""
    allowed = math.floor(max_fpr * len(controls) + 1e-9)  # controls that may be taken for a forgotten triple
    if allowed < 1:
        reason = f"an FPR of {max_fpr:.1%} needs at least {math.ceil(1 / max_fpr)} controls; there are {len(controls)}"
        return TprAtFpr(max_fpr, direction, None, None, reason)
    threshold = np.sort(controls)[-allowed - 1]
    tpr, fpr = (estimate.proportion(int((group > threshold).sum()), len(group)) for group in (members, controls))
    return TprAtFpr(max_fpr, direction, tpr, fpr)


def _advantage(members: np.ndarray, controls: np.ndarray, rng: np.random.Generator) -> Estimate:
    halves = [np.array_split(rng.permutation(group), 2) for group in (members, controls)]
    above = np.zeros(2, dtype=np.int64)  # forgotten triples and controls that are taken for forgotten
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
    """Threshold and sign (1: forgotten lie above it, -1: below) with the largest TPR - FPR; halfway between two values."""
    values = np.unique(np.concatenate([members, controls]))
    thresholds = (values[:-1] + values[1:]) / 2 if len(values) > 1 else values
    below = [np.searchsorted(np.sort(group), thresholds, side="right") / len(group) for group in (members, controls)]
    gain = below[1] - below[0]
    best = int(np.abs(gain).argmax())
    return float(thresholds[best]), 1 if gain[best] >= 0 else -1


def _difference(first: Estimate, second: Estimate, correlation: float, n: int, method: str) -> Estimate:
    """First minus second with an interval from theirs. Source: Zou 2007; without correlation it is Newcombe's."""

    def reach(first: float, other: float) -> float:
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
        p_value: how often it is as large when each triple's two scores are swapped at random. It takes triples for
            independent; two re-trained models differ by their seed alone and may differ by this measure too, so read
            `distance` beside that of two re-trained models.
    """

    distance: Estimate
    p_value: float


def score_distance(
    scores: np.ndarray, others: np.ndarray, rng: np.random.Generator, resamples: int = 1000
) -> ScoreDistance:
    """Kolmogorov-Smirnov distance between two models' scores of the same triples `[n]`, each triple at its place in both.

    The interval is the distance plus and minus the 95 % point of the largest deviation of the difference of the two distribution
    functions when triples are resampled (resampled distances are no interval: none is as small as a true 0). Two-sample tables
    take scores for independent; two models score the same triples, so they find too little, and swapping gives the p-value.

    Source: Præstgaard 1995 for both resamplings.
    """
    scores, others = finite("scores", scores, 1), finite("others", others, 1)
    n = len(scores)
    if n == 0 or len(others) != n:
        raise ValueError(f"scores and others need the same triples, at least one; got {n} and {len(others)}")
    pooled = np.concatenate([scores, others])
    order = np.argsort(pooled, kind="stable")
    ends = np.append(np.diff(pooled[order]) > 0, True)  # a tie is one step of both functions

    def largest_gap(weights: np.ndarray) -> np.ndarray:
        """n times the largest difference of the functions, int64 `[b]`, for weights of the triples `[b, n]`."""
        return np.abs(np.concatenate([weights, -weights], axis=1)[:, order].cumsum(axis=1)[:, ends]).max(axis=1)

    observed = int(largest_gap(np.ones((1, n), dtype=np.int64))[0])
    block = max(1, _RESAMPLED_AT_ONCE // n)
    deviations, as_large = [], 0
    for done in range(0, resamples, block):
        size = min(block, resamples - done)
        deviations.append(largest_gap(rng.multinomial(n, np.full(n, 1 / n), size=size) - 1))
        as_large += int((largest_gap(2 * rng.integers(0, 2, size=(size, n)) - 1) >= observed).sum())
    margin = float(np.quantile(np.concatenate(deviations), 0.95, method="higher"))
    low, high = max(0.0, (observed - margin) / n), min(1.0, (observed + margin) / n)
    return ScoreDistance(Estimate(observed / n, low, high, n, "bootstrap band"), (1 + as_large) / (1 + resamples))


class RelearnTime(msgspec.Struct, frozen=True):
    """Steps of training on the forgotten triples until a model reaches the level, None if it does not on its curve.

    Attributes:
        unlearned, retrained: steps; 0 if the level is reached before the first one.
        ratio: unlearned / retrained. Below 1 the unlearned model still held something; far above 1 it over-forgot.
        reason: why there is no ratio.
    """

    unlearned: int | None
    retrained: int | None
    ratio: float | None
    reason: str | None = None


def relearn_time(unlearned: np.ndarray, retrained: np.ndarray, level: float) -> RelearnTime:
    """Compare how fast the forgotten triples are learnt again with a model that never saw them.

    Args:
        unlearned, retrained: MRR (or Hits@k) on the forgotten triples, `[steps + 1]`: place k is after k steps of the same
            training from the same batches, place 0 before any. One run each: repeat over seeds before reading much into it.
        level: in (0, 1], such as what the raw model has on these triples, less a margin.

    Source: Chundawat et al. 2023, anamnesis index. Differs: a level instead of a margin below the raw model.
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
    """The statistic of forgotten triples `[m]` and of controls `[c]`."""
    values = finite(name, statistic, 1)
    chosen = mask("forgotten", forgotten, values.shape)
    members, controls = values[chosen], values[~chosen]
    if min(len(members), len(controls)) < 2:
        got = f"{len(members)} and {len(controls)}"
        raise ValueError(f"forgotten must mark at least 2 triples and leave 2 controls; got {got}")
    return members, controls
