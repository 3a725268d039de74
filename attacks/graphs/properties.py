"""Class shares and mean size of a client's training graphs, inferred from its update of the shared parameters.

The adversary simulates clients. Each one draws graphs from the auxiliary ones, with random class shares and sizes. It trains
from the victim's first broadcast like a client, with a new optimizer and new layers where they are not shared. A ridge
regression then learns to predict these properties from the change of the shared parameters, and is applied to the victim's
upload. The first round is attacked, since in later rounds the states of optimizers and of private layers are unknown.

Threat model: "server+graphs", or "collusion" with a client of the same data set. Required knowledge: the victim's single upload
in the first round, its broadcast and its number of graphs. Uploads in a sum do not show a single client's change.

Figures are errors, so that smaller is worse for the victim: `class_share`, half the summed absolute differences of the shares
of all classes; `mean_size`, relative. Intervals resample the victim's graphs. Baseline: the smaller error of two adversaries,
one that assumes the auxiliary graphs' shares or size, and one that takes the mean of its draws. If the auxiliary graphs are the
victim's own validation graphs, a stratified split gives them the same class shares, and nothing is left to infer.

Limits: inferred class shares are off by up to `RESOLUTION`. The attack tells shares of 10 and 90 % from auxiliary graphs with
50 %. Where a victim's shares are nearer to the auxiliary graphs', it may err more than the baseline.

Source: after Melis et al. 2019 and Zhang et al. 2022 (who read graph embeddings); the rest is ours.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import torch

from fkgsec.attacks.figure import Figure
from fkgsec.attacks.graphs.models import adversary_client
from fkgsec.attacks.graphs.view import PARAMETERS, GraphVictim, GraphView, Tensors
from fkgsec.attacks.laboratory import Laboratory, PublicSettings
from fkgsec.attacks.options import GRAPH
from fkgsec.attacks.questions import LINKS
from fkgsec.attacks.registry import Attack, Needs, Truth
from fkgsec.attacks.view import ALL, NotAttacked, claim_each
from fkgsec.estimate import Estimate, exact
from fkgsec.graphs.sets import GraphSet

# Simulated clients per victim.
NUM_CLIENTS = 64
# Ridge penalties for a kernel with a mean diagonal of 1.
STRENGTHS = 10.0 ** np.arange(-2, 5)
# A graph is drawn in proportion to its size to a power between minus and plus this.
LARGEST_TILT = 1.5
GUESS_GRAPHS, GUESS_DRAWN = "auxiliary graphs", "mean of the draws"
RESAMPLES = 500
RESOLUTION = 0.2
"""Error of class shares that its planted test stays below; a smaller difference from the auxiliary graphs is not inferred."""


class Properties(NamedTuple):
    """Properties of graphs: the share of each class, float64 `[C]`, and the mean number of nodes."""

    class_shares: np.ndarray
    mean_size: float

    @classmethod
    def of(cls, classes: np.ndarray, sizes: np.ndarray, num_classes: int) -> Properties:
        """Compute the properties of graphs.

        Args:
            classes: int64 `[n]`.
            sizes: numbers of nodes, int64 `[n]`.
        """
        return cls(np.bincount(classes, minlength=num_classes) / len(classes), float(sizes.mean()))

    def vector(self) -> np.ndarray:
        """Return the targets of the regression, float64 `[C + 1]`: the size as its logarithm."""
        return np.append(self.class_shares, np.log(self.mean_size))

    @classmethod
    def read(cls, vector: np.ndarray) -> Properties:
        """Undo `vector`; shares are clipped to 0..1 and normalized to sum 1."""
        shares = np.clip(vector[:-1], 0, 1)
        total = shares.sum()
        return cls(shares / total if total > 0 else np.full(len(shares), 1 / len(shares)), float(np.exp(vector[-1])))

    def error(self, true: Properties) -> dict[str, float]:
        """Return the error against the true properties, by metric."""
        return {
            "class_share": float(np.abs(self.class_shares - true.class_shares).sum() / 2),
            "mean_size": abs(self.mean_size - true.mean_size) / true.mean_size,
        }


class Inferred(NamedTuple):
    """The adversary's inference about a victim, and its guesses without the upload, by name."""

    properties: Properties
    guesses: Mapping[str, Properties]


def claim(view: GraphView, laboratory: Laboratory, rng: np.random.Generator) -> dict[str, Inferred | NotAttacked]:
    """Infer the properties of each victim's graphs."""
    return claim_each(view.victims, lambda victim: _infer(view, victim, rng))


def _infer(view: GraphView, victim: GraphVictim, rng: np.random.Generator) -> Inferred:
    graphs, broadcast, upload = victim.auxiliary, victim.broadcast, victim.upload
    if graphs is None:
        raise NotAttacked("no graphs of its data set are known")
    if broadcast is None or upload is None or victim.num_graphs is None:
        raise NotAttacked("what it trained from, or on how many graphs, is not known")
    # Optimizers and private layers are fresh only in the first round.
    if view.round != 1:
        raise NotAttacked(f"it had trained for {view.round - 1} rounds before, in states that are not known")
    features, targets = [], []
    for drawn in itertools.islice(draws(graphs, victim.num_graphs, rng), NUM_CLIENTS):
        targets.append(Properties.of(drawn.classes, drawn.sizes, drawn.num_classes).vector())
        features.append(play(view.settings, drawn, broadcast, seed=int(rng.integers(2**31))))
    properties = np.stack(targets)
    guesses = {
        GUESS_GRAPHS: Properties.of(graphs.classes, graphs.sizes, graphs.num_classes),
        GUESS_DRAWN: Properties.read(properties.mean(axis=0)),
    }
    return Inferred(Properties.read(ridge(np.stack(features), properties, change(broadcast, upload))), guesses)


def draws(graphs: GraphSet, count: int, rng: np.random.Generator) -> Iterator[GraphSet]:
    """Draw sets of graphs with replacement, without end.

    Class shares are uniform over all; large or small graphs are more likely.

    Args:
        graphs: auxiliary graphs.
        count: number of graphs per set.
        rng: draws shares, sizes and graphs.
    """
    present = np.unique(graphs.classes)
    while True:
        shares = rng.dirichlet(np.ones(len(present)))
        # A power of the size tilts the draw to large or to small graphs.
        weights = graphs.sizes.astype(np.float64) ** rng.uniform(-LARGEST_TILT, LARGEST_TILT)
        for class_number, share in zip(present, shares, strict=True):
            of_class = graphs.classes == class_number
            weights[of_class] *= share / weights[of_class].sum()
        yield graphs.subset(rng.choice(len(graphs), size=count, p=weights / weights.sum()))


def play(settings: PublicSettings, graphs: GraphSet, broadcast: Tensors, *, seed: int) -> np.ndarray:
    """Simulate a client's first round, and return its `change` of the shared parameters.

    Args:
        graphs: its training graphs.
        broadcast: shared parameters that it starts from.
        seed: seed of its training.
    """
    trainer = adversary_client(settings, graphs, seed=seed)
    trainer.take(broadcast)
    trainer.train(1, lambda: None)
    return change(broadcast, trainer.outgoing or trainer.shared)


def change(before: Tensors, after: Tensors) -> np.ndarray:
    """Return the difference of all parameters in one order, scaled to length 1, float64 `[p]`.

    Args:
        before: parameters by name.
        after: the same parameters after training.
    """
    parts = [(after[name].detach() - before[name]).flatten() for name in sorted(before)]
    vector = torch.cat(parts).double().numpy()
    return vector / max(float(np.linalg.norm(vector)), 1e-30)


def ridge(features: np.ndarray, targets: np.ndarray, observed: np.ndarray) -> np.ndarray:
    """Predict the targets of an observation by kernel ridge regression.

    Features and targets are centered. Each target uses the strength with the smallest squared leave-one-out error.

    Args:
        features: float `[m, p]`.
        targets: float `[m, k]`.
        observed: float `[p]`.

    Returns:
        float `[k]`, clipped to the range of the targets.
    """
    center, mean = features.mean(axis=0), targets.mean(axis=0)
    centered, centered_observed = features - center, observed - center
    # More parameters than simulated clients: solve in the space of clients.
    kernel, observed_kernel = centered @ centered.T, centered @ centered_observed
    scale = max(float(np.trace(kernel)) / len(kernel), 1e-30)
    kernel, observed_kernel = kernel / scale, observed_kernel / scale
    best, least = mean.copy(), np.full(targets.shape[1], np.inf)
    for strength in STRENGTHS:
        inverse = np.linalg.inv(kernel + strength * np.eye(len(kernel)))
        weights = inverse @ (targets - mean)
        # Leave-one-out error of kernel ridge regression in closed form: (K + s I)^-1 y divided by the diagonal of (K +
        # s I)^-1.
        errors = (weights / np.diag(inverse)[:, None]) ** 2
        better = errors.mean(axis=0) < least
        least[better] = errors.mean(axis=0)[better]
        best[better] = (mean + observed_kernel @ weights)[better]
    low, high = targets.min(axis=0), targets.max(axis=0)
    return np.clip(best, low, high)


def score(claims: Mapping[str, Inferred | NotAttacked], truth: Truth) -> list[Figure]:
    """Compute the errors of each victim, and their mean."""
    figures: list[Figure] = []
    parts: dict[str, list[tuple[float, np.ndarray, float]]] = {metric: [] for metric in METRICS}
    for name, inferred in claims.items():
        if isinstance(inferred, NotAttacked):
            figures += truth.not_attacked(name, inferred)
            continue
        client = truth.client(name)
        classes, sizes = client.graphs.classes[client.train], client.graphs.sizes[client.train]
        num_classes, num = client.graphs.num_classes, len(classes)
        picked = truth.rng.integers(0, num, size=(RESAMPLES, num))
        resampled = [
            inferred.properties.error(Properties.of(classes[rows], sizes[rows], num_classes)) for rows in picked
        ]
        true = Properties.of(classes, sizes, num_classes)
        for metric, error in inferred.properties.error(true).items():
            guesses = {guess: exact(guessed.error(true)[metric], num) for guess, guessed in inferred.guesses.items()}
            least = min(guesses.values(), key=lambda guess: guess.value)
            errors = np.array([errors_of[metric] for errors_of in resampled])
            estimate = _estimate(error, errors, num)
            remark = _limit(metric, least.value)
            figures.append(
                truth.figure(metric, name, estimate, baseline=least, attainable=0.0, guesses=guesses, remark=remark)
            )
            parts[metric].append((error, errors, least.value))
    for metric, guessed in parts.items():
        if guessed:
            errors = np.stack([resampled for _, resampled, _ in guessed]).mean(axis=0)
            error, least = (
                float(np.mean(values)) for values in zip(*((value, low) for value, _, low in guessed), strict=True)
            )
            estimate, base = _estimate(error, errors, len(guessed)), exact(least, len(guessed))
            figures.append(
                truth.figure(
                    metric, ALL, estimate, baseline=base, attainable=0.0, num_attacked=len(guessed),
                    remark=_limit(metric, least),
                )
            )  # fmt: skip
    return figures


def _limit(metric: str, guessed: float) -> str | None:
    """Say so where a guess by the auxiliary graphs errs less than the attack may."""
    if metric != "class_share" or guessed > RESOLUTION:
        return None
    within = f"class shares within {RESOLUTION:g} of the auxiliary graphs' are not told from them"
    return f"{within}; here they differ by {guessed:.2f}"


def _estimate(error: float, resampled: np.ndarray, n: int) -> Estimate:
    low, high = np.quantile(resampled, [0.025, 0.975])
    return Estimate(error, min(error, float(low)), max(error, float(high)), n, "bootstrap over graphs")


METRICS = {
    "class_share": "error of the inferred class shares of a client's training graphs (lower is worse for the victim)",
    "mean_size": "relative error of the inferred mean size of a client's training graphs (lower is worse for the victim)",
}
ATTACK = Attack(
    "property-inference",
    "infers class shares and mean size of a client's graphs from what its training changed",
    Needs(single_uploads=(PARAMETERS,), server=True, first_round=True),
    METRICS,
    claim,
    score,
    threats=("server+graphs",),
    questions=dict.fromkeys(METRICS, LINKS),
    items=dict.fromkeys(METRICS, "graphs of the victims"),
    errors=tuple(METRICS),
    task=GRAPH,
)
