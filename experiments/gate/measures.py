"""What a policy can limit: each measure with its direction, and how its figure and interval are read from a finished run.

    MEASURES["reconstruction.trr"].read(finished, Question(threat="collusion", leak=0.5))      # an Estimate

Reconstruction, utility and bytes stand in a run's record. Membership and unlearning are measured when a limit asks for them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd

from fkgsec import estimate
from fkgsec.attacks.figure import Figure, headline, over_victims
from fkgsec.attacks.forgetting.figures import METRICS as UNLEARNING_METRICS
from fkgsec.attacks.forgetting.figures import UNLEARNING
from fkgsec.attacks.membership.evaluation import METRICS, OF_SHARED
from fkgsec.attacks.options import MEMBERSHIP, THREAT_MODELS
from fkgsec.attacks.reconstruction.leakage import items_behind
from fkgsec.attacks.registry import ATTACKS, Attack
from fkgsec.attacks.view import ALL
from fkgsec.defenses.options import parse_defense
from fkgsec.errors import DataError
from fkgsec.estimate import Estimate
from fkgsec.experiments.cli.progress import Observe
from fkgsec.experiments.gate.audits import (
    NotMeasured,
    Question,
    conspicuous,
    inferences_of,
    unlearning_of,
    verification_of,
)
from fkgsec.experiments.runs.record import Record
from fkgsec.experiments.runs.run import Finished
from fkgsec.experiments.runs.spec import option_names
from fkgsec.experiments.tasks.task import all_tasks, task_of
from fkgsec.experiments.unlearning.verdict import blind_models

Bound = Literal["max", "min"]
Kind = Literal["share", "bytes", "epsilon"]
ADVANTAGE = "_advantage"  # of an attack's measure: what is left of the figure without its baseline
ITEMISED = ("reconstruction.err", "reconstruction.trr")  # shares of items whose scores stand beside the record
PAPERS_WORDS = {
    f"{rate}{suffix}": f"reconstruction.{rate}{suffix}" for suffix in ("", ADVANTAGE) for rate in ("err", "trr")
}
"""Measures that a policy may also call as papers do."""

Read = Callable[[Finished, Question], Estimate]
Audit = Callable[[Finished, Question, Observe], object]


class Reach(NamedTuple):
    """What a figure can be at all, whatever the attack got.

    Attributes:
        least: what the adversary has by guessing: a limit below it is broken.
        most: what it can reach with the names and relations that it knows: a limit at or above it cannot be broken. None
            where the record does not say.
        remark: why that is nothing, where it is.
    """

    least: float
    most: float | None
    remark: str | None


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
        reach: what the figure can be at all, where that is known in closed form.
        task: whose runs have it; empty: all.
        attack, key: the registered attack whose figure `attack.metric` it is, if it is not one of the record's own.
        audit: makes what `read` reads from, where that is not the record: it trains, for minutes, and can be watched.
    """

    about: str
    bound: Bound
    kind: Kind
    items: str
    keys: tuple[str, ...]
    read: Read
    audit: Audit | None = None
    reach: Callable[[Finished, Question], Reach] | None = None
    attack: Attack | None = None
    key: str = ""
    task: str = ""


def find_figure(record: Record, key: str, question: Question) -> Figure:
    """The figure `attack.metric` that a question is about; of all victims that of the worst one, where there is none over all.

    Raises:
        NotMeasured: the attack was not run on it, found nothing to attack, or could attack only some of the victims.
    """
    asked = (key, question.threat, question.leak)
    listed = [one for one in headline(record.figures) if (one.key, one.threat_model, one.leak) == asked]
    victims = [one for one in listed if one.victim != ALL]
    missing = "; ".join(dict.fromkeys(f"{one.victim}: {one.reason}" for one in victims if one.reason))
    num_victims = len({one.victim for one in victims})
    found = [one for one in listed if one.victim == question.victim]
    if question.victim == ALL and not found:
        if missing and num_victims > 1:
            raise NotMeasured(f"not every victim could be attacked ({missing})")
        found = over_victims(victims)
    if not found:
        raise NotMeasured(f"no attack was run under {question.words()} that gives {key}")
    one = max(found, key=lambda one: one.severity)  # of several variants the worst
    if one.reason:
        raise NotMeasured(f"nothing to attack: {one.reason}")
    if one.victim == ALL and one.num_attacked < num_victims:
        raise NotMeasured(f"only {one.num_attacked} of {num_victims} victims could be attacked ({missing})")
    return one


def attacked_items(run: Finished, key: str, question: Question) -> pd.DataFrame:
    """The entities or triples that a figure is the share of: rows of the run's scores, in the order of the data; else none."""
    if not len(run.scores) or key not in ITEMISED:
        return run.scores.iloc[:0]
    return items_behind(find_figure(run.record, key, question), run.scores)


def item_ends(items: pd.DataFrame) -> np.ndarray:
    """What links these items: int `[n, 1]` the entity, or `[n, 2]` head and tail, each by its name, whoever holds it."""
    names = items[["head"]] if bool(items["tail"].isna().all()) else items[["head", "tail"]]
    codes, _ = pd.factorize(names.to_numpy().ravel())
    return codes.reshape(names.shape)


def _rate(key: str) -> Read:
    def read(run: Finished, question: Question) -> Estimate:
        """The attack's own figure, as the record has it."""
        return find_figure(run.record, key, question).estimate

    return read


def _advantage(key: str) -> Read:
    def read(run: Finished, question: Question) -> Estimate:
        """By how much the figure is worse than the guess, which is computed in closed form and has no interval."""
        one = find_figure(run.record, key, question)
        figure, guess = one.estimate, one.baseline.value if one.baseline else 0.0
        low, high = figure.low - guess, figure.high - guess
        if one.less_is_worse:
            low, high = -high, -low
        return Estimate(one.advantage, low, high, figure.n, figure.method)

    return read


def _reach(key: str, *, advantage: bool = False) -> Callable[[Finished, Question], Reach]:
    def read(run: Finished, question: Question) -> Reach:
        """An adversary is free to ignore what it saw, so it has the guess; of an advantage that is nothing.

        What an advantage can be is what is left above the guess: nothing where names can be read as they are. Only a private
        alignment, which hides who holds which name, raises the guess itself: there the most is counted from nothing, so that a
        limit which breaks when the defense is taken out is not vacuous with it.
        """
        one = find_figure(run.record, key, question)
        most, guess, remark = one.attainable, one.baseline.value if one.baseline else -1.0, one.remark
        if not advantage:
            return Reach(guess, most, remark)
        hidden = (
            parse_defense(run.record.spec.defense).psu is not None and not THREAT_MODELS[one.threat_model].identifiers
        )
        if most is not None and one.baseline and not hidden:
            remark = remark or f"of {most:.4f}, it guesses {guess:.4f} without embeddings"
            most = max(most - guess, 0.0)
        return Reach(-1.0, most, remark)

    return read


def _utility(name: str) -> Read:
    def read(run: Finished, question: Question) -> Estimate:
        """On test items, all clients together."""
        figure = run.record.utility[name]
        if not figure.n:
            raise NotMeasured(f"there are no test {task_of(run.record.spec).items}")
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


def _epsilon(run: Finished, question: Question) -> Estimate:
    """The largest epsilon of any table; where the limit names a forget set, of the run and the unlearning together."""
    unlearning = unlearning_of(run, question)
    stated = unlearning.guarantees if unlearning else run.record.guarantees
    if not stated:
        raise NotMeasured("the federation adds no noise, so nothing bounds epsilon")
    for one in stated.values():
        if one.unit != question.unit:
            raise NotMeasured(f"the guarantee is per {one.unit}, the limit is per {question.unit}")
        if one.delta > question.delta:
            raise NotMeasured(f"the guarantee's delta is {one.delta:g}, above {question.delta:g}")
    return estimate.exact(max(one.epsilon for one in stated.values()), 1)


def prepare(run: Finished, measure: str, question: Question, observe: Observe) -> None:
    """Make the audit that a figure is read from, where there is one, before anybody reads it.

    Args:
        observe: gives every federation that the audit trains its observer.
    """
    if audit := MEASURES[measure].audit:
        with contextlib.suppress(DataError):  # whoever reads the figure will say so
            audit(run, question, observe)


def _membership(metric: str) -> Read:
    def read(run: Finished, question: Question) -> Estimate:
        """Of the strongest way on any model, with an interval that counts the choice."""
        figure = conspicuous(run, question, metric)
        if figure.reason:
            raise NotMeasured(figure.reason)
        return figure.estimate

    return read


def _unlearning(metric: str) -> Read:
    def read(run: Finished, question: Question) -> Estimate:
        """The worst one. An audit that would not have noticed the raw run's memory measures nothing."""
        made = verification_of(run, question)
        if blind := blind_models(made.forgetting.membership, made.verdict.judgements):
            models = ", ".join(f"{client} {model}" for client, model in blind)
            raise NotMeasured(f"the audit does not notice the memory before unlearning either ({models})")
        if unmeasured := [f"{one.victim}: {one.reason}" for one in made.figures if one.reason]:
            raise NotMeasured("; ".join(unmeasured))
        return max(
            (one.estimate for one in made.figures if one.metric == metric), key=lambda one: (one.value, one.high)
        )

    return read


def _inference(about: str, read: Read) -> Measure:
    return Measure(
        about, "max", "share", "matched triples", ("threat", "victim", "shadows"), read, inferences_of, task="kge"
    )


def _forgotten(about: str, read: Read) -> Measure:
    keys = ("forget", "client", "method", "shadows")
    return Measure(about, "max", "share", "forgotten triples", keys, read, verification_of, task="kge")


def _of_attack(attack: Attack) -> dict[str, Measure]:
    """Each metric of a registered attack, and what it adds to its baseline."""
    task, made = attack.task, {}
    keys = tuple(key for key in ("threat", "leak", "victim") if key != "leak" or "leak" in option_names(task))
    for metric, about in attack.metrics.items():
        key, error = f"{attack.name}.{metric}", metric in attack.errors
        items, reach = attack.items.get(metric, "items of the victims"), None if error else _reach(key)
        bound: Bound = "min" if error else "max"
        made[key] = Measure(about, bound, "share", items, keys, _rate(key), None, reach, attack, key, task)
        about, reach = f"{about}, beyond the best guess", None if error else _reach(key, advantage=True)
        made[f"{key}{ADVANTAGE}"] = Measure(
            about, "max", "share", items, keys, _advantage(key), None, reach, attack, key, task
        )
    return made


class Measures(Mapping[str, Measure]):
    """The measures by name: those of the registered attacks, and the record's own."""

    def __init__(self, own: Mapping[str, Measure]) -> None:
        self._own = own

    def _all(self) -> dict[str, Measure]:
        # Membership is audited here, with shadow federations where a limit asks for them.
        others = [attack for name, attack in ATTACKS.items() if name != MEMBERSHIP]
        return {**{name: one for attack in others for name, one in _of_attack(attack).items()}, **self._own}

    def __getitem__(self, name: str) -> Measure:
        return self._own[name] if name in self._own else self._all()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())


_OWN: dict[str, Measure] = {
    **{
        f"utility.{name}": Measure(about, "min", "share", f"test {task.items}", (), _utility(name), task=task.name)
        for task in all_tasks()
        for name, about in task.metrics.items()
    },
    "bytes.per_round": Measure("bytes of the largest round, both directions", "max", "bytes", "", (), _bytes_per_round),
    "bytes.total": Measure("bytes of all rounds and of alignment", "max", "bytes", "", (), _bytes_total),
    "epsilon": Measure(
        "epsilon of all that is released; with forget, by the run and the unlearning together",
        "max",
        "epsilon",
        "",
        ("unit", "delta", "forget", "client", "method"),
        _epsilon,
        unlearning_of,
    ),
    **{
        f"{MEMBERSHIP}.{metric}": _inference(about, _membership(metric))
        for metric, about in ({**METRICS, **OF_SHARED}).items()
    },
    **{
        f"{UNLEARNING}.{metric}": _forgotten(about, _unlearning(metric)) for metric, about in UNLEARNING_METRICS.items()
    },
}
MEASURES = Measures(_OWN)
"""What a policy can limit, by name."""
