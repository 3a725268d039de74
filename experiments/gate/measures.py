"""Measures that a policy can limit: each with its direction, and a function that reads its figure and interval from a run.

    MEASURES["reconstruction.trr"].read(finished, Question(threat="collusion", leak=0.5))      # an Estimate

Reconstruction, utility and bytes are part of a run's record. Membership and unlearning are measured when a limit needs them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd

from fkgsec import estimate
from fkgsec.attacks.figure import Figure, headline, over_victims
from fkgsec.attacks.forgetting.evaluation import METRICS as UNLEARNING_METRICS
from fkgsec.attacks.forgetting.evaluation import UNLEARNING
from fkgsec.attacks.membership.evaluation import METRICS, OF_SHARED
from fkgsec.attacks.options import MEMBERSHIP, THREAT_MODELS
from fkgsec.attacks.reconstruction.leakage import items_behind
from fkgsec.attacks.registry import ATTACKS, Attack
from fkgsec.attacks.view import ALL
from fkgsec.defenses.options import parse_defense
from fkgsec.estimate import Estimate
from fkgsec.experiments.cli.progress import Observe
from fkgsec.experiments.gate.audits import (
    NotMeasured,
    Question,
    alone_of,
    conspicuous,
    inferences_of,
    unlearning_of,
    verification_of,
)
from fkgsec.experiments.reporting.worth import gains
from fkgsec.experiments.runs.record import Record
from fkgsec.experiments.runs.run import Finished
from fkgsec.experiments.runs.spec import option_names
from fkgsec.experiments.tasks.task import all_tasks, task_of
from fkgsec.experiments.unlearning.verdict import blind_models

Bound = Literal["max", "min"]
Kind = Literal["share", "gain", "bytes", "epsilon"]
GAIN, EACH = "gain_over_single", "each"
# Suffix of an attack's measure: the figure minus its baseline.
ADVANTAGE = "_advantage"
# Shares of items whose scores are stored next to the record.
ITEMISED = ("reconstruction.err", "reconstruction.trr")
# Names of papers that a policy may use as well.
PAPERS_WORDS = {
    f"{rate}{suffix}": f"reconstruction.{rate}{suffix}" for suffix in ("", ADVANTAGE) for rate in ("err", "trr")
}

Read = Callable[[Finished, Question], Estimate]
Audit = Callable[[Finished, Question, Observe], object]


class Reach(NamedTuple):
    """Range that a figure can have, independent of the attack's result.

    Attributes:
        least: result of guessing; a limit below it is broken.
        most: upper bound with the adversary's knowledge; a limit at or above it cannot be broken. None if the record does not
            state it.
        remark: why the upper bound is nothing, if it is.
    """

    least: float
    most: float | None
    remark: str | None


@dataclass(frozen=True)
class Measure:
    """Figure that a policy can limit.

    Attributes:
        about: one line for a table.
        bound: "max" if less is better, "min" if more is better.
        kind: a share in 0..1, a difference of two shares, a number of bytes, or an epsilon.
        items: the items of the sample; empty if nothing is sampled.
        keys: fields of `Question` that a limit may set.
        read: returns the figure of one run, or raises `NotMeasured`.
        audit: produces what `read` needs beyond the record; it trains, for minutes, and can be observed.
        reach: returns the range of the figure, if it is known in closed form.
        task: the task whose runs have the figure; empty for all.
        attack, key: the registered attack and the key `attack.metric`, if the figure comes from an attack.
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
    """Return the figure of a question; for all victims, that of the worst one if the attack has no figure over all.

    Args:
        record: record of an attacked run.
        key: `attack.metric`.
        question: threat model, leak and victim.

    Raises:
        NotMeasured: the attack was not run, found nothing to attack, or could attack only some of the victims.
    """
    place = (key, question.threat, question.leak)
    listed = [figure for figure in headline(record.figures) if (figure.key, figure.threat_model, figure.leak) == place]
    victims = [figure for figure in listed if figure.victim != ALL]
    # A figure over some victims must not stand for all of them.
    missing = "; ".join(dict.fromkeys(f"{victim.victim}: {victim.reason}" for victim in victims if victim.reason))
    num_victims = len({victim.victim for victim in victims})
    candidates = [figure for figure in listed if figure.victim == question.victim]
    if question.victim == ALL and not candidates:
        if missing and num_victims > 1:
            raise NotMeasured(f"not every victim could be attacked ({missing})")
        candidates = over_victims(victims)
    if not candidates:
        raise NotMeasured(f"no attack that measures {key} was run under {question.words()}")
    figure = max(candidates, key=lambda candidate: candidate.severity)  # the worst variant
    if figure.reason:
        raise NotMeasured(f"nothing to attack: {figure.reason}")
    if figure.victim == ALL and figure.num_attacked < num_victims:
        raise NotMeasured(f"only {figure.num_attacked} of {num_victims} victims could be attacked ({missing})")
    return figure


def attacked_items(run: Finished, key: str, question: Question) -> pd.DataFrame:
    """Return the entities or triples whose share is a figure: rows of the run's scores, in the order of the data.

    Args:
        run: an attacked run.
        key: a key in `ITEMISED`; others have no rows.
        question: threat model, leak and victim.
    """
    if not len(run.scores) or key not in ITEMISED:
        return run.scores.iloc[:0]
    return items_behind(find_figure(run.record, key, question), run.scores)


def item_ends(items: pd.DataFrame) -> np.ndarray:
    """Return the entities that link items: int `[n, 1]` for entities, or `[n, 2]` head and tail of triples.

    Args:
        items: rows of `attacked_items`.
    """
    names = items[["head"]] if bool(items["tail"].isna().all()) else items[["head", "tail"]]
    codes, _ = pd.factorize(names.to_numpy().ravel())
    return codes.reshape(names.shape)


def _attack_figure(run: Finished, question: Question, *, key: str, advantage: bool) -> Estimate:
    """Return the attack's figure, or its advantage over the guess, which has no interval of its own."""
    attacked = find_figure(run.record, key, question)
    if not advantage:
        return attacked.estimate
    estimated, guess = attacked.estimate, attacked.baseline.value if attacked.baseline else 0.0
    low, high = estimated.low - guess, estimated.high - guess
    if attacked.less_is_worse:
        low, high = -high, -low
    return Estimate(attacked.advantage, low, high, estimated.n, estimated.method)


def _attack_reach(run: Finished, question: Question, *, key: str, advantage: bool) -> Reach:
    """Return the range of an attack's figure. An adversary may ignore its observations, so the guess is the least.

    An advantage can be at most the rest above the guess: nothing if names can be read directly. Only private alignment,
    which hides the holders of names, lowers the guess itself. Its upper bound is counted from 0, so that a limit which
    the run without the defense breaks is not vacuous with the defense.
    """
    figure = find_figure(run.record, key, question)
    most, guess, remark = figure.attainable, figure.baseline.value if figure.baseline else -1.0, figure.remark
    if not advantage:
        return Reach(guess, most, remark)
    hidden = (
        parse_defense(run.record.spec.defense).psu is not None and not THREAT_MODELS[figure.threat_model].identifiers
    )
    if most is not None and figure.baseline and not hidden:
        remark = remark or f"its baseline is {guess:.4f} of at most {most:.4f}"
        most = max(most - guess, 0.0)
    return Reach(-1.0, most, remark)


def _utility(run: Finished, question: Question, *, name: str) -> Estimate:
    figure = run.record.utility[name]
    if not figure.n:
        raise NotMeasured(f"there are no test {task_of(run.record.spec).items}")
    return figure


def _gain(run: Finished, question: Question) -> Estimate:
    """Return the gain over the same clients alone: of all together, of one client, or the smallest one.

    The interval of the smallest gain accounts for the selection. It has the lowest value and the lowest ends of any
    client, so it passes if every client passes, and fails if any client fails.
    """
    each = gains(run.record, alone_of(run, question), len(run.record.data.clients) if question.client == EACH else 1)
    if not each:
        raise NotMeasured(f"there are no outcomes by test {task_of(run.record.spec).items[:-1]}")
    if missing := [
        client for client in run.record.data.clients if client not in each and question.client in (client, EACH)
    ]:
        raise NotMeasured(f"{', '.join(missing)}: fewer than two test {task_of(run.record.spec).items}")
    if question.client != EACH:
        return each[question.client or ALL]
    clients = [gain for client, gain in each.items() if client != ALL]
    # The selection of the smallest gain is covered by the Bonferroni correction above.
    worst = min(clients, key=lambda gain: gain.value)
    low, high = min(gain.low for gain in clients), min(gain.high for gain in clients)
    return Estimate(worst.value, low, high, worst.n, worst.method)


def _bytes_per_round(run: Finished, question: Question) -> Estimate:
    """Return the bytes of the largest round, both directions, all clients."""
    if len(run.record.rounds) < 2:
        raise NotMeasured("no round was trained")
    return estimate.exact(max(entry.bytes_up + entry.bytes_down for entry in run.record.rounds[1:]), 1)


def _bytes_total(run: Finished, question: Question) -> Estimate:
    """Return the bytes of all rounds and of alignment, both directions, all clients."""
    return estimate.exact(run.record.bytes.up + run.record.bytes.down, 1)


def _epsilon(run: Finished, question: Question) -> Estimate:
    """Return the largest epsilon of any table; with a forget set, for the run and the unlearning together."""
    unlearning = unlearning_of(run, question)
    stated = unlearning.guarantees if unlearning else run.record.guarantees
    if not stated:
        raise NotMeasured("the federation adds no noise, so epsilon is unbounded")
    for guarantee in stated.values():
        # Epsilon per row and per client are not comparable; likewise a larger delta weakens the guarantee.
        if guarantee.unit != question.unit:
            raise NotMeasured(f"the guarantee is per {guarantee.unit}, the limit is per {question.unit}")
        if guarantee.delta > question.delta:
            raise NotMeasured(f"the guarantee's delta is {guarantee.delta:g}, above {question.delta:g}")
    return estimate.exact(max(guarantee.epsilon for guarantee in stated.values()), 1)


def _membership(run: Finished, question: Question, *, metric: str) -> Estimate:
    """Return the figure of the strongest method on any model, with an interval that accounts for the selection."""
    figure = conspicuous(run, question, metric)
    if figure.reason:
        raise NotMeasured(figure.reason)
    return figure.estimate


def _unlearning(run: Finished, question: Question, *, metric: str) -> Estimate:
    """Return the worst figure. An audit that would not have detected the raw run's memory measures nothing."""
    verification = verification_of(run, question)
    if blind := blind_models(verification.forgetting.membership, verification.verdict.judgements):
        models = ", ".join(f"{client} {model}" for client, model in blind)
        raise NotMeasured(f"the audit does not detect the memory before unlearning either ({models})")
    if unmeasured := [f"{figure.victim}: {figure.reason}" for figure in verification.figures if figure.reason]:
        raise NotMeasured("; ".join(unmeasured))
    estimates = (figure.estimate for figure in verification.figures if figure.metric == metric)
    return max(estimates, key=lambda figure: (figure.value, figure.high))


def _of_attack(attack: Attack) -> dict[str, Measure]:
    """Return a measure for each metric of an attack, and for its advantage over the baseline."""
    task, measures = attack.task, {}
    keys = tuple(key for key in ("threat", "leak", "victim") if key != "leak" or "leak" in option_names(task))
    for metric, about in attack.metrics.items():
        key, is_error = f"{attack.name}.{metric}", metric in attack.errors
        items = attack.items.get(metric, "items of the victims")
        for advantage in (False, True):
            measures[f"{key}{ADVANTAGE if advantage else ''}"] = Measure(
                f"{about}, beyond the best guess" if advantage else about, "min" if is_error and not advantage else "max",
                "share", items, keys, partial(_attack_figure, key=key, advantage=advantage),
                reach=None if is_error else partial(_attack_reach, key=key, advantage=advantage),
                attack=attack, key=key, task=task,
            )  # fmt: skip
    return measures


class Measures(Mapping[str, Measure]):
    """Measures by name: those of the attacks registered at that moment, and the record's own."""

    def _all(self) -> dict[str, Measure]:
        # The gate audits membership itself, with shadow federations if a limit requests them.
        others = [attack for name, attack in ATTACKS.items() if name != MEMBERSHIP]
        return {name: measure for attack in others for name, measure in _of_attack(attack).items()} | _OWN

    def __getitem__(self, name: str) -> Measure:
        return _OWN[name] if name in _OWN else self._all()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())


def _audited(about: str, items: str, keys: tuple[str, ...], read: Read, audit: Audit) -> Measure:
    return Measure(about, "max", "share", items, keys, read, audit, task="kge")


_OWN: dict[str, Measure] = {
    **{
        f"utility.{name}": Measure(
            about, "min", "share", f"test {task.items}", (), partial(_utility, name=name), task=task.name
        )
        for task in all_tasks()
        for name, about in task.metrics.items()
    },
    GAIN: Measure(
        "headline utility, less that of the same clients alone", "min", "gain", "test items", ("client",), _gain, alone_of
    ),
    "bytes.per_round": Measure("bytes of the largest round, both directions", "max", "bytes", "", (), _bytes_per_round),
    "bytes.total": Measure("bytes of all rounds and of alignment", "max", "bytes", "", (), _bytes_total),
    "epsilon": Measure(
        "epsilon of all that is released; with forget, by the run and the unlearning together", "max", "epsilon", "",
        ("unit", "delta", "forget", "client", "method"), _epsilon, unlearning_of,
    ),
    **{
        f"{MEMBERSHIP}.{metric}": _audited(
            about, "matched triples", ("threat", "victim", "shadows"), partial(_membership, metric=metric), inferences_of
        )
        for metric, about in (METRICS | OF_SHARED).items()
    },
    **{
        f"{UNLEARNING}.{metric}": _audited(
            about, "forgotten triples", ("forget", "client", "method", "shadows"), partial(_unlearning, metric=metric),
            verification_of,
        )
        for metric, about in UNLEARNING_METRICS.items()
    },
}  # fmt: skip
# Measures that a policy can limit, by name.
MEASURES = Measures()
