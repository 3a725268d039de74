"""Infer the degrees in a client's graphs from the columns of a shared input layer.

FedStar shares a layer with one column per one-hot degree. A degree that no training graph of a client has gives its column no
gradient, so that the column changes by weight decay alone. The server knows the initial column, the client's number of steps
and, in its first round, the state of its optimizer. It replays these steps and compares. Where whole networks are shared
(`share=all`), the same holds for the columns of node labels, or of degrees where a data set has no labels.

Threat model: "server", honest but curious. Required knowledge: a single upload of the first round in plaintext. Noise on
uploads changes all columns, so that all are claimed to be used.

Figure `columns`: share of columns that are classified correctly as used or not. Baseline: the better of claiming all and
claiming none, which already assumes the number of used ones; with graphs of the data set, the columns that these use. Intervals
are over columns. Source: ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fkgsec.algorithms.graphs.fedstar import STRUCTURE
from fkgsec.attacks.figure import Figure
from fkgsec.attacks.graphs.view import PARAMETERS, GraphVictim, GraphView
from fkgsec.attacks.laboratory import Laboratory, PublicSettings
from fkgsec.attacks.options import GRAPH
from fkgsec.attacks.questions import LINKS
from fkgsec.attacks.registry import Attack, Needs, Truth
from fkgsec.attacks.view import ALL, NotAttacked, claim_each
from fkgsec.estimate import proportion
from fkgsec.gnn.training import GraphRule
from fkgsec.graphs.features import node_features
from fkgsec.graphs.sets import GraphSet

STRUCTURE_INPUT, WHOLE_INPUT = f"{STRUCTURE}embedding.weight", "pre.weight"
# Float32 rounding of a value, or of an Adam step, on another machine; a larger difference is a gradient.
TOLERANCE = 8 * 2.0**-23
GUESS_COUNT, GUESS_GRAPHS = "all or none", "auxiliary graphs"


class ColumnClaim(NamedTuple):
    """Columns that the adversary claims a victim's training graphs use, bool `[k]`.

    Attributes:
        columns: inferred from the upload.
        by_graphs: columns that auxiliary graphs use, a guess without the upload; None without such graphs.
    """

    columns: np.ndarray
    by_graphs: np.ndarray | None


def claim(view: GraphView, laboratory: Laboratory, rng: np.random.Generator) -> dict[str, ColumnClaim | NotAttacked]:
    """Infer for each victim which columns its training graphs use."""

    def claim_columns(victim: GraphVictim) -> ColumnClaim:
        """Attack one victim."""
        used, auxiliary = _used(view, victim), victim.auxiliary
        return ColumnClaim(used, None if auxiliary is None else used_columns(auxiliary, view.settings))

    return claim_each(view.victims, claim_columns)


def _used(view: GraphView, victim: GraphVictim) -> np.ndarray:
    settings = view.settings
    name = input_layer(settings)
    rule = (settings.recipe.rule or GraphRule)(settings.options(seed=0))
    if name not in view.layout.shapes or not _columns(settings):
        raise NotAttacked("no layer that reads degrees or labels is transmitted")
    # Only plain local training can be replayed exactly.
    if type(rule).train is not GraphRule.train or type(rule).correct is not GraphRule.correct:
        raise NotAttacked(f"how {settings.algorithm} trains is not replayed")
    if victim.num_graphs is None or victim.broadcast is None or victim.upload is None:
        raise NotAttacked("how many steps it made is not known")
    before, after = victim.broadcast[name], victim.upload[name]
    # Replay the client's steps without a gradient; any other change means that some node used the column.
    alone = decayed(before, num_steps(settings, victim.num_graphs), settings)
    allowed = TOLERANCE * (before.abs() + (settings.learning_rate if settings.optimizer == "adam" else 0.0))
    return ((after - alone).abs() > allowed).any(dim=0).numpy()[_columns(settings)]


def input_layer(settings: PublicSettings) -> str:
    """Return the name of the shared layer whose columns are inputs."""
    return STRUCTURE_INPUT if settings.algorithm == "fedstar" else WHOLE_INPUT


def _columns(settings: PublicSettings) -> slice | None:
    """Return the columns of degrees or labels; None if there are none."""
    if settings.algorithm != "fedstar":
        return slice(None)
    walks, degrees = settings.settings.num_walks, settings.settings.num_degrees
    return slice(walks, walks + degrees) if degrees else None


def num_steps(settings: PublicSettings, num_graphs: int) -> int:
    """Return a client's number of optimizer steps per round of FedAvg training.

    Args:
        num_graphs: number of its training graphs.
    """
    # Round up: the last batch may be smaller.
    batches = -(-num_graphs // settings.batch_size)
    return settings.local_epochs * min(batches, settings.local_steps or batches)


def decayed(before: Tensor, steps: int, settings: PublicSettings) -> Tensor:
    """Train parameters with a new optimizer without any gradient except weight decay.

    Args:
        before: parameters before training.
    """
    parameter = before.clone().contiguous().requires_grad_()
    kind = torch.optim.Adam if settings.optimizer == "adam" else torch.optim.SGD
    optimizer = kind([parameter], lr=settings.learning_rate, weight_decay=settings.weight_decay, fused=True)
    for _ in range(steps):
        parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
    return parameter.detach()


def score(claims: Mapping[str, ColumnClaim | NotAttacked], truth: Truth) -> list[Figure]:
    """Compute the share of correctly classified columns, of each victim and of all together."""
    figures, settings = [], PublicSettings.of(truth.result.options)
    totals = []
    for name, claimed in claims.items():
        if isinstance(claimed, NotAttacked):
            figures += truth.not_attacked(name, claimed)
            continue
        client = truth.client(name)
        used = used_columns(client.graphs.subset(client.train), settings)
        num_used, num = int(used.sum()), len(used)
        right = int((claimed.columns == used).sum())
        # Adversaries without the upload.
        guesses = {GUESS_COUNT: proportion(max(num_used, num - num_used), num)}
        if claimed.by_graphs is not None:
            guesses[GUESS_GRAPHS] = proportion(int((claimed.by_graphs == used).sum()), num)
        best = max(guesses.values(), key=lambda guess: guess.value)
        totals.append((right, best.value * num, num))
        counts = {"used": num_used, "claimed": int(claimed.columns.sum())}
        figures.append(
            truth.figure(
                "columns", name, proportion(right, num), baseline=best, attainable=1.0, guesses=guesses, counts=counts
            )
        )
    if totals:
        right, guessed, num = (sum(part) for part in zip(*totals, strict=True))
        baseline = proportion(round(guessed), num)
        figures.append(
            truth.figure(
                "columns", ALL, proportion(right, num), baseline=baseline, attainable=1.0, num_attacked=len(totals)
            )
        )
    return figures


def used_columns(graphs: GraphSet, settings: PublicSettings) -> np.ndarray:
    """Return the columns in which some node of the graphs has a nonzero value, bool `[k]`: the truth.

    Args:
        graphs: training graphs of a client.
    """
    rule = (settings.recipe.rule or GraphRule)(settings.options(seed=0))
    features = node_features(rule.prepare(graphs))
    if settings.algorithm == "fedstar":
        features = features[:, features.shape[1] - settings.settings.num_walks - settings.settings.num_degrees :]
    columns = _columns(settings)
    assert columns is not None
    return np.asarray((features != 0).any(axis=0)[columns])


ATTACK = Attack(
    "degree-support",
    "infers which degrees, or node labels, a client's graphs have, from input columns without a gradient",
    Needs(single_uploads=(PARAMETERS,), server=True, first_round=True),
    {"columns": "degrees (or node labels) whose presence or absence is inferred correctly"},
    claim,
    score,
    threats=("server",),
    questions={"columns": LINKS},
    items={"columns": "columns of the input layer"},
    task=GRAPH,
)
