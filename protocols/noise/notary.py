"""What epsilon the settings of other frameworks' differential privacy really give.

    flip = FlowerLocal(clipping_norm=1.0, sensitivity=1e-4, epsilon=10.0, delta=1e-5)
    for reading in notarize(flip).readings:
        print(reading.epsilon, reading.case)        # 10.39 for the declared sensitivity, 2.1e8 for the clipped update

Each struct below has a framework's own parameters, under their names there. `notarize` computes epsilon, names each assumption
that fails, and says what no epsilon covers. Nothing is executed and no framework is imported.
"""

from __future__ import annotations

import contextlib
import math
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
import numpy as np
from msgspec import Meta

from fkgsec.protocols.noise.accounting import epsilon_of_sampled
from fkgsec.protocols.noise.guarantee import AccountingError

_Positive = Annotated[float, Meta(gt=0, le=1e12)]
_Delta = Annotated[float, Meta(gt=0, lt=1)]
_Count = Annotated[int, Meta(ge=1, le=10**12)]
_NUMPY = (
    "floating-point noise from NumPy's generator: an adversary that reads low bits or guesses the seed can remove it"
)
_TUNING = "choosing settings, rounds or checkpoints by validation on private data"


class Mechanism(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="mechanism"):
    """Settings of one mechanism; `mechanism` in a file names the subclass."""


class FlowerLocal(Mechanism, frozen=True, tag="flower-local"):
    """Flower's `LocalDpMod`: each client clips its update and adds Gaussian noise.

    Attributes:
        clipping_norm, sensitivity, epsilon, delta: its arguments.
        rounds: uploads of a client.
    """

    clipping_norm: _Positive
    sensitivity: _Positive
    epsilon: _Positive
    delta: _Delta
    rounds: _Count = 1


class FlowerCentral(Mechanism, frozen=True, tag="flower-central"):
    """Flower's central mechanisms with fixed clipping, by the server or by clients: the server adds noise to the mean.

    Attributes:
        noise_multiplier, clipping_norm, num_sampled_clients: their arguments.
        rounds: rounds of training.
        delta: target.
        largest_weight: largest share of a client in the weighted mean; None: not known.
        num_clients: clients from which a round's clients are drawn; None: not counted.
        claimed_epsilon: the claim to compare with; None: no claim.
    """

    noise_multiplier: _Positive
    clipping_norm: _Positive
    num_sampled_clients: _Count
    rounds: _Count
    delta: _Delta
    largest_weight: Annotated[float, Meta(gt=0, le=1)] | None = None
    num_clients: _Count | None = None
    claimed_epsilon: _Positive | None = None


class NvflareSvt(Mechanism, frozen=True, tag="nvflare-svt"):
    """NVFlare's filter `SVTPrivacy` up to release 2.7: the sparse vector technique selects values, Laplace noise hides them.

    Attributes:
        fraction, epsilon, noise_var, gamma, tau, replace: its arguments, with its defaults.
        num_parameters: values of an update.
        rounds: uploads of a client.
    """

    num_parameters: _Count
    fraction: Annotated[float, Meta(gt=0, le=1)] = 0.1
    epsilon: _Positive = 0.1
    noise_var: _Positive = 0.1
    gamma: _Positive = 1e-5
    tau: float = 1e-6
    replace: bool = True
    rounds: _Count = 1


class Opacus(Mechanism, frozen=True, tag="opacus"):
    """Opacus's `PrivacyEngine.make_private` in one client's training.

    Attributes:
        noise_multiplier, max_grad_norm, poisson_sampling: its arguments.
        num_examples, batch_size, epochs: of the client, over all rounds.
        delta, claimed_epsilon: as in `FlowerCentral`.
    """

    noise_multiplier: _Positive
    max_grad_norm: _Positive
    num_examples: _Count
    batch_size: _Count
    epochs: _Count
    delta: _Delta
    poisson_sampling: bool = True
    claimed_epsilon: _Positive | None = None


class TfPrivacy(Mechanism, frozen=True, tag="tf-privacy"):
    """TensorFlow Privacy's `DPKeras...Optimizer` in one client's training.

    Attributes:
        noise_multiplier, l2_norm_clip: its arguments.
        num_microbatches: its argument; None: one microbatch for each example.
        num_examples, batch_size, epochs, delta, claimed_epsilon: as in `Opacus`.
    """

    noise_multiplier: _Positive
    l2_norm_clip: _Positive
    num_examples: _Count
    batch_size: _Count
    epochs: _Count
    delta: _Delta
    num_microbatches: _Count | None = None
    claimed_epsilon: _Positive | None = None


AnyMechanism = FlowerLocal | FlowerCentral | NvflareSvt | Opacus | TfPrivacy


class Reading(NamedTuple):
    """An epsilon, exact or an upper bound, and its case.

    Attributes:
        epsilon: for the case.
        case: sensitivity, neighboring relation and sampling, in words.
        applies: False for a case that the framework does not ensure, shown for comparison; claims cannot rest on it.
    """

    epsilon: float
    case: str
    applies: bool = True


class Notarized(NamedTuple):
    """What settings give.

    Attributes:
        title: framework and mechanism.
        unit: whose data are protected, over what.
        claimed: the claimed epsilon; None if there is none.
        delta: of all readings; 0 for pure differential privacy.
        formula: how noise and epsilon were computed.
        readings: epsilon by case.
        failing: assumptions of the claim that fail.
        uncovered: what no reading covers.
    """

    title: str
    unit: str
    claimed: float | None
    delta: float
    formula: str
    readings: tuple[Reading, ...]
    failing: tuple[str, ...]
    uncovered: tuple[str, ...]

    @property
    def verdict(self) -> Literal["no claim", "supported", "supported in some cases", "not supported"]:
        """Compare the claim with the readings of all cases that apply."""
        if self.claimed is None:
            return "no claim"
        within = [reading.epsilon <= self.claimed for reading in self.readings if reading.applies]
        return "supported" if all(within) else "supported in some cases" if any(within) else "not supported"


def gaussian_epsilon(ratio: float, delta: float) -> float:
    """Compute the exact epsilon of Gaussian noise at delta, without sampling.

    Args:
        ratio: l2 sensitivity over standard deviation; for T releases, times sqrt(T).
        delta: in (0, 1).

    Returns:
        Epsilon, at most 1e-9 of itself too large, for ratios below 1e-4 that of 1e-4; 0 where delta alone is enough.

    Source: Balle and Wang 2018, Theorem 8; composition by Dong, Roth, Su 2022, Corollary 3.3.

    >>> round(gaussian_epsilon(1 / 0.484, 1e-5), 1)
    10.4
    """
    from scipy.special import erfcx, ndtr

    if not (0 < ratio < math.inf and 0 < delta < 1):
        raise AccountingError(f"gaussian_epsilon: needs 0 < ratio and 0 < delta < 1; got {ratio:g} and {delta:g}")

    def spent(epsilon: float) -> float:
        """Compute delta: Phi(a) - e^epsilon Phi(b). The scaled erfc avoids the overflow of e^epsilon."""
        a, b = ratio / 2 - epsilon / ratio, -ratio / 2 - epsilon / ratio
        second = math.exp(-a * a / 2) * erfcx(-b / math.sqrt(2)) / 2
        return float(ndtr(a) - second)

    if math.erf(ratio / math.sqrt(8)) <= delta:
        return 0.0
    # The difference of two nearly equal terms is lost to rounding for small ratios.
    ratio = max(ratio, 1e-4)
    low, high = 0.0, ratio * ratio / 2 + ratio * math.sqrt(2 * math.log(1 / delta)) + 1e-12
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if spent(middle) > delta else (low, middle)
    return high


def notarize(mechanism: AnyMechanism) -> Notarized:
    """Compute what a mechanism's settings give.

    Raises:
        AccountingError: settings for which epsilon cannot be computed.
    """
    return _NOTARIES[type(mechanism)](mechanism)


def _flower_local(settings: FlowerLocal) -> Notarized:
    scale = settings.sensitivity * math.sqrt(2 * math.log(1.25 / settings.delta)) / settings.epsilon
    if not 0 < scale < math.inf:
        raise AccountingError(f"the standard deviation of the noise is {scale:g}")
    clip, repeated = settings.clipping_norm, math.sqrt(settings.rounds)

    def reading(sensitivity: float, case: str, *, applies: bool = True) -> Reading:
        return Reading(gaussian_epsilon(repeated * sensitivity / scale, settings.delta), case, applies)

    failing = []
    if settings.epsilon > 1:
        failing.append(
            "the classic formula of the noise is proved for an epsilon below 1 only (Dwork and Roth 2014, A.1)"
        )
    if settings.sensitivity < clip:
        failing.append(
            f"updates are clipped to a norm of {clip:g}, but noise is scaled to a sensitivity of {settings.sensitivity:g}"
        )
    elif settings.sensitivity < 2 * clip:
        failing.append(
            f"local differential privacy compares any two updates: the sensitivity is twice the norm, {2 * clip:g}"
        )
    if settings.rounds > 1:
        failing.append(f"epsilon is set for each upload, and {settings.rounds:,} uploads compose")
    return Notarized(
        "Flower LocalDpMod",
        f"one client's data, over {_times(settings.rounds, 'upload')}",
        settings.epsilon,
        settings.delta,
        f"sigma = sensitivity sqrt(2 ln(1.25/delta)) / epsilon = {scale:.4g}; epsilon is exact for Gaussian noise",
        (
            reading(
                settings.sensitivity, f"if the declared sensitivity {settings.sensitivity:g} were true", applies=False
            ),
            reading(clip, f"update clipped to {clip:g}: the client takes part, or sends a zero update"),
            reading(2 * clip, f"update clipped to {clip:g}: the client's data are replaced"),
        ),
        tuple(failing),
        ("metrics and the number of examples in the reply", "replies to messages other than TRAIN", _NUMPY, _TUNING),
    )


def _flower_central(settings: FlowerCentral) -> Notarized:
    multiplier, repeated = settings.noise_multiplier, math.sqrt(settings.rounds)
    share = settings.largest_weight
    # Shares add up to 1, so that the largest is at least the mean; the factor leaves room for a rounded share.
    if share is not None and share * settings.num_sampled_clients < 0.99:
        raise AccountingError(
            f"largest_weight must be at least 1/num_sampled_clients, {1 / settings.num_sampled_clients:.4g}; got {share:g}"
        )
    if settings.num_clients is not None and settings.num_clients < settings.num_sampled_clients:
        raise AccountingError(
            f"num_clients must be at least num_sampled_clients, {settings.num_sampled_clients:,}; got {settings.num_clients:,}"
        )
    unequal = share is not None and share * settings.num_sampled_clients > 1
    readings = [
        Reading(gaussian_epsilon(change * repeated / multiplier, settings.delta), f"equal weights: {case}", not unequal)
        for change, case in _CHANGES
    ]
    failing = []
    if share is None:
        failing.append(
            "noise is scaled for equal weights; FedAvg weights clients by examples. Set largest_weight to the largest share"
        )
    elif unequal:
        ratio = repeated * share * settings.num_sampled_clients / multiplier
        readings += [
            Reading(gaussian_epsilon(change * ratio, settings.delta), f"a client of weight {share:g}: {case}")
            for change, case in _CHANGES
        ]
        failing.append(
            f"noise is scaled for weights of 1/{settings.num_sampled_clients}; the largest client has {share:g}"
        )
    if settings.num_clients is not None and settings.num_clients > settings.num_sampled_clients:
        rate = settings.num_sampled_clients / settings.num_clients
        readings.append(
            _sampled(
                multiplier,
                rate,
                settings.rounds,
                settings.delta,
                f"if each client took part independently with probability {rate:g}",
                applies=False,
            )
        )
        failing.append("Flower draws a fixed number of clients: the amplification of independent draws does not apply")
    return Notarized(
        "Flower central differential privacy, fixed clipping",
        f"one client's data, over {_times(settings.rounds, 'round')}, against those who see the averaged model only",
        settings.claimed_epsilon,
        settings.delta,
        f"sigma of the mean = noise_multiplier clipping_norm / clients = "
        f"{multiplier * settings.clipping_norm / settings.num_sampled_clients:.4g}; epsilon is exact for Gaussian noise",
        tuple(readings),
        tuple(failing),
        (
            "the server, which sees every update",
            "clients that do not clip, if clipping is theirs",
            "rounds with fewer replies than num_sampled_clients: a client's share grows, the noise does not",
            "the number of examples, which sets weights",
            "metrics",
            _NUMPY,
            _TUNING,
        ),
    )


def _nvflare_svt(settings: NvflareSvt) -> Notarized:
    num_sent = min(settings.num_parameters, math.ceil(settings.num_parameters * settings.fraction))
    # The filter derives its second budget so; Laplace scales are 2 gamma / epsilon for the threshold, 4 gamma n / budget for
    # queries and 2 gamma / noise_var for values.
    budget = settings.epsilon * (2 * num_sent) ** (2 / 3)
    # Lyu, Su, Li 2017, Theorem 4 with sensitivity gamma: epsilon/2 for the threshold and, for c accepted values, c budget/(2n).
    # A pass accepts everything above the threshold, so c may reach the number of parameters.
    selection = settings.epsilon / 2 + budget * settings.num_parameters / (2 * num_sent)
    values = num_sent * settings.noise_var
    return Notarized(
        "NVFlare SVTPrivacy up to release 2.7",
        f"one client's data, over {_times(settings.rounds, 'upload')}",
        settings.epsilon,
        0.0,
        f"selection: epsilon/2 + budget parameters / (2 sent), budget = epsilon (2 sent)^(2/3) = {budget:.4g}; values: sent "
        f"noise_var, sent = {num_sent:,}",
        (
            Reading(math.inf, "any update: values are not clipped before noise"),
            Reading(
                settings.rounds * (selection + values),
                f"upper bound if no change per step exceeds gamma, {settings.gamma:g}",
            ),
        ),
        (
            "values are clipped after noise, not before: nothing bounds what one value reveals",
            f"`epsilon` sets the noise of selection, which costs {selection:.4g}; {num_sent:,} values cost {values:.4g}",
            "the sparse vector technique must stop after the number of accepted values that it pays for; the filter does not",
        ),
        (
            "release 2.8 and later, which clip values before noise and divide epsilon otherwise",
            "arrays without dimensions, which are sent unchanged",
            "releases without the argument `replace` send accepted values that are not drawn again without noise",
            _NUMPY,
            _TUNING,
        ),
    )


def _opacus(settings: Opacus) -> Notarized:
    batches = math.ceil(settings.num_examples / settings.batch_size)
    failing: tuple[str, ...] = ()
    reading = _sampled(
        settings.noise_multiplier,
        1 / batches,
        settings.epochs * batches,
        settings.delta,
        f"Poisson sampling at rate 1/{batches}: one example added or removed",
    )
    if not settings.poisson_sampling:
        failing = (
            f"Opacus reports about {reading.epsilon:.4g}, for Poisson sampling; poisson_sampling=False keeps the batches of the "
            "data loader",
        )
        reading = _shuffled(settings.noise_multiplier, settings.epochs, settings.delta)
    return Notarized(
        "Opacus",
        f"one example of one client, over {_times(settings.epochs, 'epoch')}",
        settings.claimed_epsilon,
        settings.delta,
        f"sigma = noise_multiplier max_grad_norm = {settings.noise_multiplier * settings.max_grad_norm:.4g} on sums of clipped "
        "gradients",
        (reading,),
        failing,
        (
            *_OF_EXAMPLES,
            "data loaders that draw an example twice an epoch, if poisson_sampling is False",
            "data loaders with drop_last: they make fewer batches, and Opacus samples at a higher rate",
            "floating-point noise from PyTorch's generator, unless secure_mode is on",
            _TUNING,
        ),
    )


def _tf_privacy(settings: TfPrivacy) -> Notarized:
    size, rest = divmod(settings.batch_size, settings.num_microbatches or settings.batch_size)
    if rest:
        raise AccountingError(
            f"num_microbatches must divide batch_size, {settings.batch_size}; got {settings.num_microbatches}"
        )
    failing = ["Keras shuffles; the library's statement of epsilon assumes Poisson sampling"]
    multiplier = settings.noise_multiplier
    if size != 1:
        # One example moves the clipped mean of its microbatch from any vector of norm at most C to any other.
        multiplier /= 2
        failing.append(
            f"gradients are clipped for microbatches of {size} examples: one example moves a sum by twice the norm"
        )
    batches = math.ceil(settings.num_examples / settings.batch_size)
    return Notarized(
        "TensorFlow Privacy",
        f"one example of one client, over {_times(settings.epochs, 'epoch')}",
        settings.claimed_epsilon,
        settings.delta,
        f"sigma = noise_multiplier l2_norm_clip = {settings.noise_multiplier * settings.l2_norm_clip:.4g} on sums of clipped "
        "gradients",
        (
            _shuffled(multiplier, settings.epochs, settings.delta),
            _sampled(
                multiplier,
                1 / batches,
                settings.epochs * batches,
                settings.delta,
                f"if batches were drawn by Poisson sampling at rate 1/{batches}",
                applies=False,
            ),
        ),
        tuple(failing),
        (*_OF_EXAMPLES, "floating-point noise from TensorFlow's generator", _TUNING),
    )


_CHANGES = ((1, "a client sends a zero update"), (2, "a client's data are replaced"))
_OF_EXAMPLES = (
    "a person with several examples: k examples have up to k times the sensitivity",
    "what one triple changes in other examples, such as negatives, filters and weights",
)


def _sampled(multiplier: float, rate: float, count: int, delta: float, case: str, *, applies: bool = True) -> Reading:
    """Compute epsilon of sampled Gaussian noise; where the accountant would be slow or wrong, a looser upper bound.

    Source: Mironov, Talwar, Zhang 2019 (Renyi divergences of sampled noise), by opacus.
    """
    # Outside of these limits the grid of the accountant outgrows memory, or the rounding of its transform exceeds delta.
    if delta >= 1e-12 and 0.3 <= multiplier <= 100 and count <= 1e5:
        with contextlib.suppress(AccountingError):
            return Reading(epsilon_of_sampled(multiplier, rate, count, delta), case, applies)
    from opacus.accountants.analysis import rdp

    # Sampling never adds to epsilon.
    epsilon = gaussian_epsilon(math.sqrt(count) / multiplier, delta)
    orders = [float(order) for order in range(2, 257)]
    # The divergences are log(A) / (order - 1); rounding dominates where they are tiny.
    divergences = np.asarray(rdp.compute_rdp(q=rate, noise_multiplier=multiplier, steps=1, orders=orders)).tolist()
    bounds = [
        count * (divergence + 1e-12) + math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1)
        for order, divergence in zip(orders, divergences, strict=True)
        if math.isfinite(divergence)
    ]
    return Reading(max(0.0, min(epsilon, *bounds)) if bounds else epsilon, f"{case}; upper bound", applies)


def _shuffled(multiplier: float, epochs: int, delta: float) -> Reading:
    """Each example is in one batch an epoch, so that epsilon composes over epochs instead of steps."""
    return Reading(
        gaussian_epsilon(math.sqrt(epochs) / multiplier, delta),
        "shuffled batches, upper bound: one example's gradient set to zero",
    )


def _times(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


_NOTARIES: dict[type[Mechanism], Any] = {
    FlowerLocal: _flower_local,
    FlowerCentral: _flower_central,
    NvflareSvt: _nvflare_svt,
    Opacus: _opacus,
    TfPrivacy: _tf_privacy,
}
