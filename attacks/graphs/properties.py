"""Class shares and mean size of a client's training graphs, inferred from its update of the shared parameters.

The adversary plays clients of its own: each draws graphs from the auxiliary ones, with class shares and sizes of its own, and
trains from the victim's first broadcast as a client does, with a new optimizer and new layers where they are not shared. From
what that did to the shared parameters it learns, by ridge regression, to read these properties off the victim's upload. The first
round is attacked, since in later ones the states of optimizers and of layers that do not cross are unknown.

Threat model: "server+graphs", or "collusion" with a client of the same data set. Of uploads in a sum there is none of one client.

Figures are errors, of which less is worse for the victim: `class_share`, half the summed absolute differences of the shares of
all classes; `mean_size`, relative. Intervals resample the victim's graphs. Baseline: the lesser error of an adversary that
takes the auxiliary graphs' own shares or size, and of one that takes the mean of what it drew. Where the auxiliary graphs are
the victim's own validation graphs, which a stratified split gives the same class shares, nothing is left to infer.

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
from fkgsec.attacks.graphs.models import own_client
from fkgsec.attacks.graphs.view import PARAMETERS, GraphVictim, GraphView, Tensors
from fkgsec.attacks.laboratory import Laboratory, PublicSettings
from fkgsec.attacks.options import GRAPH
from fkgsec.attacks.questions import LINKS
from fkgsec.attacks.registry import Attack, Needs, Truth
from fkgsec.attacks.view import ALL, NotAttacked, claim_each
from fkgsec.estimate import Estimate, exact
from fkgsec.graphs.sets import GraphSet

NUM_CLIENTS = 64  # that the adversary plays for each victim
STRENGTHS = 10.0 ** np.arange(-2, 5)  # of the ridge, beside a kernel with a mean diagonal of 1
LARGEST_TILT = 1.5  # a graph is drawn in proportion to its size to a power up to this, or its inverse
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
        """Those of graphs of these classes and sizes, int64 `[n]` each."""
        return cls(np.bincount(classes, minlength=num_classes) / len(classes), float(sizes.mean()))

    def vector(self) -> np.ndarray:
        """Return the targets of the regression, float64 `[C + 1]`: the size as its logarithm."""
        return np.append(self.class_shares, np.log(self.mean_size))

    @classmethod
    def read(cls, vector: np.ndarray) -> Properties:
        """Undo `vector`; shares are cut to 0..1, and sum to 1."""
        shares = np.clip(vector[:-1], 0, 1)
        total = shares.sum()
        return cls(shares / total if total > 0 else np.full(len(shares), 1 / len(shares)), float(np.exp(vector[-1])))

    def error(self, true: Properties) -> dict[str, float]:
        """Error against the true ones, by metric."""
        return {
            "class_share": float(np.abs(self.class_shares - true.class_shares).sum() / 2),
            "mean_size": abs(self.mean_size - true.mean_size) / true.mean_size,
        }


class Inferred(NamedTuple):
    """The adversary's inference about a victim, and what it would have said without the upload, by guess."""

    found: Properties
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
    """Sets of so many graphs, drawn with replacement: class shares are uniform over all, large or small graphs more likely."""
    present = np.unique(graphs.classes)
    while True:
        shares = rng.dirichlet(np.ones(len(present)))
        weights = graphs.sizes.astype(np.float64) ** rng.uniform(-LARGEST_TILT, LARGEST_TILT)
        for class_number, share in zip(present, shares, strict=True):
            of_class = graphs.classes == class_number
            weights[of_class] *= share / weights[of_class].sum()
        yield graphs.subset(rng.choice(len(graphs), size=count, p=weights / weights.sum()))


def play(settings: PublicSettings, graphs: GraphSet, broadcast: Tensors, *, seed: int) -> np.ndarray:
    """Play a client's first round on these graphs, and return its `change` of the shared parameters."""
    trainer = own_client(settings, graphs, seed=seed)
    trainer.take(broadcast)
    trainer.train(1, lambda: None)
    return change(broadcast, trainer.outgoing or trainer.shared)


def change(before: Tensors, after: Tensors) -> np.ndarray:
    """All numbers of after less before in one order, scaled to a vector of length 1, float64 `[p]`."""
    parts = [(after[name].detach() - before[name]).flatten() for name in sorted(before)]
    vector = torch.cat(parts).double().numpy()
    return vector / max(float(np.linalg.norm(vector)), 1e-30)


def ridge(features: np.ndarray, targets: np.ndarray, observed: np.ndarray) -> np.ndarray:
    """Targets `[k]` of an observation `[p]`, by kernel ridge regression on features `[m, p]` and targets `[m, k]`.

    Both are centred; each target has the strength with the least squared leave-one-out error.
    """
    centre, mean = features.mean(axis=0), targets.mean(axis=0)
    centred, centred_observed = features - centre, observed - centre
    kernel, asked_kernel = centred @ centred.T, centred @ centred_observed
    scale = max(float(np.trace(kernel)) / len(kernel), 1e-30)
    kernel, asked_kernel = kernel / scale, asked_kernel / scale
    best, least = mean.copy(), np.full(targets.shape[1], np.inf)
    for strength in STRENGTHS:
        inverse = np.linalg.inv(kernel + strength * np.eye(len(kernel)))
        weights = inverse @ (targets - mean)
        errors = (weights / np.diag(inverse)[:, None]) ** 2
        better = errors.mean(axis=0) < least
        least[better] = errors.mean(axis=0)[better]
        best[better] = (mean + asked_kernel @ weights)[better]
    low, high = targets.min(axis=0), targets.max(axis=0)
    return np.clip(best, low, high)


def score(claims: Mapping[str, Inferred | NotAttacked], truth: Truth) -> list[Figure]:
    """The errors of each victim, and their mean."""
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
        resampled = [inferred.found.error(Properties.of(classes[rows], sizes[rows], num_classes)) for rows in picked]
        true = Properties.of(classes, sizes, num_classes)
        for metric, error in inferred.found.error(true).items():
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
    "class_share": "error of the inferred class shares of a client's training graphs; a limit is the least that is allowed",
    "mean_size": "relative error of the inferred mean size of a client's training graphs; a limit is the least that is allowed",
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
