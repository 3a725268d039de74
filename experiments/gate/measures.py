"""What a policy can limit: each measure with its direction, and how its figure and interval are read from a finished run.

A measure that fkgsec does not take yet stands here too, so that a limit on it fails instead of passing unseen. To take it, put a
function from run and question to an `Estimate` in its place.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd

from attacks.evaluation import Leakage
from attacks.view import ALL
from experiments.intervals import linked_share
from experiments.record import Record
from experiments.run import Finished
from fkgsec import estimate
from fkgsec.estimate import Estimate

Bound = Literal["max", "min"]
Kind = Literal["share", "bytes", "epsilon"]


class NotMeasured(Exception):
    """Why a run does not have a figure. Whoever judges a limit on it must fail it."""


class Question(NamedTuple):
    """Which figure of a run is meant: the keys of a limit beside its bound.

    Attributes:
        threat, leak, victim: of the attack; None, None and "all" for a measure that is of no attack.
        unit, delta: of a privacy guarantee: what it must protect, and the largest delta that still counts.
    """

    threat: str | None = None
    leak: float | None = None
    victim: str = ALL
    unit: str = "client"
    delta: float = 1e-4

    def words(self) -> str:
        """Threat model, leak ratio and victim for a table; empty where there is no attack."""
        if self.threat is None:
            return ""
        return f"{self.threat}, leak {self.leak:g}" + ("" if self.victim == ALL else f", {self.victim}")


Read = Callable[[Finished, Question], Estimate]


@dataclass(frozen=True)
class Measure:
    """A figure that a policy can limit.

    Attributes:
        about: what it is, one line.
        bound: "max" where less is better, "min" where more is.
        kind: a share in 0..1, a number of bytes, or an epsilon.
        items: what the sample is made of; empty where nothing is sampled.
        keys: fields of `Question` that a limit may set.
        read: the figure of one run. Raises `NotMeasured`.
    """

    about: str
    bound: Bound
    kind: Kind
    items: str
    keys: tuple[str, ...]
    read: Read


def find_leakage(record: Record, question: Question) -> Leakage:
    """The row of a run's leakage that a question is about.

    Raises:
        NotMeasured: the attack was not run on it, found nothing to attack, or could attack only some of the victims.
    """
    rows = [row for row in record.leakage if (row.threat_model, row.leak) == (question.threat, question.leak)]
    victims = [row for row in rows if row.victim != ALL]
    found = [row for row in rows if row.victim == question.victim]
    if question.victim == ALL and not found:
        found = victims if len(victims) == 1 else []  # a single victim has no row over all
    if not found:
        raise NotMeasured(f"no attack was run under {question.words()}")
    (row,) = found
    if row.reason:
        raise NotMeasured(f"nothing to attack: {row.reason}")
    if row.victim == ALL and row.num_attacked < len(victims):
        reasons = "; ".join(f"{one.victim}: {one.reason}" for one in victims if one.reason)
        raise NotMeasured(f"only {row.num_attacked} of {len(victims)} victims could be attacked ({reasons})")
    return row


def best_guess(row: Leakage, name: Literal["err", "trr"]) -> float:
    """The same adversary's figure without what crossed in the rounds."""
    return getattr(row, name).value - getattr(row, f"{name}_advantage")


def attacked_items(run: Finished, name: Literal["err", "trr"], question: Question) -> pd.DataFrame:
    """The entities or triples that a figure of the attack is about: rows of the run's scores, in the order of the data."""
    scores = run.scores
    if not len(scores):
        return scores
    kind = "entity" if name == "err" else "triple"
    chosen = (scores["item"] == kind) & (scores["threat_model"] == question.threat) & (scores["leak"] == question.leak)
    if question.victim != ALL:
        chosen &= scores["victim"] == question.victim
    return scores.loc[chosen]


def item_ends(items: pd.DataFrame) -> np.ndarray:
    """What links these items: int `[n, 1]` the entity, or `[n, 2]` head and tail, each by its name, whoever holds it."""
    names = items[["head"]] if bool(items["tail"].isna().all()) else items[["head", "tail"]]
    codes, _ = pd.factorize(names.to_numpy().ravel())
    return codes.reshape(names.shape)


def _attacked(run: Finished, name: Literal["err", "trr"], question: Question) -> tuple[Estimate, float]:
    """The attack's figure with the interval of linked items, and the best guess without embeddings."""
    row = find_leakage(run.record, question)
    figure, items = getattr(row, name), attacked_items(run, name, question)
    if len(items):  # FedR's published counts come without them
        figure = linked_share(figure, items["right"].to_numpy(dtype=bool), item_ends(items))
    return figure, best_guess(row, name)


def _reconstruction(name: Literal["err", "trr"]) -> Read:
    def read(run: Finished, question: Question) -> Estimate:
        """The better of the attack and the guess without embeddings: an adversary is free to ignore what it saw."""
        figure, guess = _attacked(run, name, question)
        value, low, high = (max(part, guess) for part in (figure.value, figure.low, figure.high))
        return Estimate(value, low, high, figure.n, figure.method)

    return read


def _advantage(name: Literal["err", "trr"]) -> Read:
    def read(run: Finished, question: Question) -> Estimate:
        """The figure minus the guess, which is computed in closed form and has no interval."""
        figure, guess = _attacked(run, name, question)
        return Estimate(figure.value - guess, figure.low - guess, figure.high - guess, figure.n, figure.method)

    return read


def _utility(name: str) -> Read:
    def read(run: Finished, question: Question) -> Estimate:
        """Filtered link prediction on test triples, all clients together."""
        figure = run.record.utility[name]
        if not figure.n:
            raise NotMeasured("there are no test triples")
        return figure

    return read


def _bytes_per_round(run: Finished, question: Question) -> Estimate:
    """Of the largest round, both directions, all clients."""
    if len(run.record.rounds) < 2:
        raise NotMeasured("no round was trained")
    return estimate.exact(max(entry.bytes_up + entry.bytes_down for entry in run.record.rounds[1:]), 1)


def _bytes_total(run: Finished, question: Question) -> Estimate:
    """Of all rounds and of alignment, both directions, all clients."""
    return estimate.exact(run.record.bytes.up + run.record.bytes.down, 1)


_GUARANTEE = re.compile(r"dp, (?P<table>\w+): \((?P<epsilon>\S+), (?P<delta>\S+)\)-DP per (?P<unit>\w+) ")


def _epsilon(run: Finished, question: Question) -> Estimate:
    """The largest epsilon that the record states for any table. Stated figures are rounded up, never down."""
    stated = [found for line in run.record.protection if (found := _GUARANTEE.match(line))]
    if not stated:
        raise NotMeasured("the federation adds no noise, so nothing bounds epsilon")
    for one in stated:
        if one["unit"] != question.unit:
            raise NotMeasured(f"the guarantee is per {one['unit']}, the limit is per {question.unit}")
        if float(one["delta"]) > question.delta:
            raise NotMeasured(f"the guarantee's delta is {one['delta']}, above {question.delta:g}")
    return estimate.exact(max(float(one["epsilon"]) for one in stated), 1)


def _not_taken(what: str) -> Read:
    def read(run: Finished, question: Question) -> Estimate:
        """Always raises: there is no such figure in a record."""
        raise NotMeasured(f"fkgsec check does not measure {what} yet")

    return read


def _attack(about: str, items: str, read: Read) -> Measure:
    return Measure(about, "max", "share", items, ("threat", "leak", "victim"), read)


_MEMBERSHIP, _UNLEARNING = _not_taken("membership"), _not_taken("unlearning (`fkgsec verify` does)")

MEASURES: dict[str, Measure] = {
    "reconstruction.err": _attack(
        "entities of the victims that the adversary names", "entities of the victims", _reconstruction("err")
    ),
    "reconstruction.trr": _attack(
        "training triples of the victims that the adversary rebuilds", "triples of the victims", _reconstruction("trr")
    ),
    "reconstruction.err_advantage": _attack(
        "entities named beyond the guess without embeddings", "entities of the victims", _advantage("err")
    ),
    "reconstruction.trr_advantage": _attack(
        "triples rebuilt beyond the guess without embeddings", "triples of the victims", _advantage("trr")
    ),
    **{
        f"utility.{name}": Measure(
            f"{name} of filtered link prediction", "min", "share", "test triples", (), _utility(name)
        )
        for name in ("mrr", "hits@1", "hits@3", "hits@5", "hits@10")
    },
    "bytes.per_round": Measure("bytes of the largest round, both directions", "max", "bytes", "", (), _bytes_per_round),
    "bytes.total": Measure("bytes of all rounds and of alignment", "max", "bytes", "", (), _bytes_total),
    "epsilon": Measure("epsilon of the stated guarantee", "max", "epsilon", "", ("unit", "delta"), _epsilon),
    "membership.auc": _attack("AUC of membership inference", "triples", _MEMBERSHIP),
    "membership.tpr@0.01": _attack("members found at 1 % false alarms", "triples", _MEMBERSHIP),
    "membership.tpr@0.001": _attack("members found at 0.1 % false alarms", "triples", _MEMBERSHIP),
    "membership.advantage": _attack("advantage of membership inference", "triples", _MEMBERSHIP),
    "unlearning.auc": Measure(
        "AUC between forgotten and never-seen triples", "max", "share", "triples", (), _UNLEARNING
    ),
    "unlearning.ks": Measure("distance of scores, unlearned to re-trained", "max", "share", "triples", (), _UNLEARNING),
    "unlearning.forget_mrr": Measure("MRR left on the forget set", "max", "share", "triples", (), _UNLEARNING),
}
