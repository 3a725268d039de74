"""Laws of every registered attack: `run` sees no truth, `score` sees no view, no baseline takes a message, a signal is found."""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest

from benchmarks.active_server import UnprotectedTransport
from fkgsec import KgeOptions, generate_consortium
from fkgsec.attacks import ATTACKS, Attack, Figure, registry, update_recovery
from fkgsec.attacks.graphs import properties
from fkgsec.attacks.kge.task import cases as kge_cases
from fkgsec.attacks.laboratory import Laboratory
from fkgsec.attacks.options import GRAPH, GraphAttackOptions, Inference, KgeAttackOptions
from fkgsec.attacks.planted import PLANTED_ITEMS
from fkgsec.attacks.registry import ATTACKED, Truth
from fkgsec.attacks.view import View
from fkgsec.defenses import make_transport
from fkgsec.estimate import exact
from fkgsec.federation.loop import run_federation
from fkgsec.gnn.options import GnnOptions
from fkgsec.graphs.generate import generate_motifs
from fkgsec.graphs.split import by_chance
from scripts.docs.attack_tests import NULL, PLANTED, TESTS, AttackTest, attack_tests, planted_items

checking, trusting = (
    functools.partial(run_federation, make_transport=transport) for transport in (make_transport, UnprotectedTransport)
)
NAMES = list(ATTACKS)
SUMS = {"algorithm": "fede", "defense": "secagg", "clients": 4, "participation": 0.75}
SUPPRESSED = {"algorithm": "fede", "defense": "psu,secagg,suppress:t=3", "clients": 4}
FEDERATION: Mapping[str, Mapping[str, Any]] = {
    **dict.fromkeys(("server-active", "disaggregation", "server-order", "dropout-difference"), SUMS),
    "count-lies": SUPPRESSED,
    "patterns": {"algorithm": "feds"},
    "degree-support": {"algorithm": "fedstar"},
    "client-kinship": {"algorithm": "gcfl"},
    "gradient-inversion": {
        "optimizer": "sgd", "local_steps": 1, "batch_size": 1, "dropout": 0.0, "rounds": 1, "settings": {"share": "all"},
    },
}  # fmt: skip
"""Where an attack has something to attack; FedE, or FedAvg of graphs, in plaintext if not named."""
TRUSTING = {"server-active"}
"""Attacks that clients of a defense refuse, run on clients that check no broadcast."""
QUIET = {
    "server-aux", "server-aux-rounds", "attributes", "client-passive", "client-active", "server-poison", "client-spoil",
    "dropout-difference", "graph-membership", "property-inference", "client-kinship", "gradient-inversion", "backdoor",
}  # fmt: skip
"""Attacks that beat no baseline on runs as short as these; their own files plant what they find."""
OF_EFFECTS = {"client-poison": ("hits@10", "mrr"), "server-poison": ("hits@10", "mrr"), "backdoor": ("success",)}
"""Figures of what an adversary changes; without messages it changes nothing, so that their baseline is the clean run."""


@pytest.fixture(autouse=True)
def _few_played_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Property inference plays a training for each, and fits again for each resample; the laws hold with few."""
    monkeypatch.setattr(properties, "NUM_CLIENTS", 8)
    monkeypatch.setattr(properties, "RESAMPLES", 50)


@functools.cache
def federation(task: str, rate: float, settings: tuple[tuple[str, Any], ...]) -> Any:
    """A run on data that do not depend on the rate, which decides all rows."""
    given = dict(settings)
    if task == GRAPH:
        algorithm = given.get("algorithm", "fedavg")
        whole = by_chance(generate_motifs(1, clients=1, size=180)[0], clients=3, seed=0)
        if algorithm == "gcfl":  # two clients of each of two data sets
            motifs = generate_motifs(0, clients=3, size=240)
            parts = (one for number in (0, 2) for one in by_chance(motifs[number], clients=2, seed=0).clients)
            clients = tuple(replace(one, name=f"{one.vocabulary} {one.name}") for one in parts)
            whole = replace(whole, clients=clients)
        changes = {"width": 8, "rounds": 3, "batch_size": 16, "device": "cpu", "algorithm": algorithm, **given}
        return checking(whole, GnnOptions(**changes, learning_rate=rate))
    graph = generate_consortium(clients=given.pop("clients", 3), size=900, seed=5)
    options = KgeOptions(
        dim=8, rounds=6, eval_every=6, patience=0, batch_size=64, num_negatives=8, device="cpu", learning_rate=rate,
        protocol_seed=3 if given.get("defense") else None, **given,
    )  # fmt: skip
    return checking(graph, options)


def attacked(attack: Attack, rate: float = 0.02) -> list[Figure]:
    """Figures of an attack under its own threat models, in which several leaks and options do not matter."""
    given = FEDERATION.get(attack.name, {})
    settings = tuple((name, value) for name, value in given.items() if name != "settings")
    result = _with_settings(attack.task, rate, settings, given.get("settings"))
    train = trusting if attack.name in TRUSTING else checking
    if attack.task == GRAPH:
        return [
            one for figures, _ in ATTACKED[GRAPH].cases(attack, result, OPTIONS[GRAPH], 0, train) for one in figures
        ]
    return [one for figures, _ in kge_cases(attack, result, OPTIONS["kge"], 0, train) for one in figures]


def _with_settings(task: str, rate: float, settings: tuple[tuple[str, Any], ...], own: Any) -> Any:
    return (
        federation(task, rate, (*settings, ("settings", _Settings(own)))) if own else federation(task, rate, settings)
    )


class _Settings(dict):
    """Settings of an algorithm that a cache can hold."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(self.items()))


OPTIONS: dict[str, Any] = {
    GRAPH: GraphAttackOptions(shadows=0, trigger_size=0.3),
    "kge": KgeAttackOptions(
        leak=(1.0,), unlinked_heads=10, probes=20, guesses=10, poison_triples=10, poison_copies=2,
        inference=get_args(Inference),
    ),
}  # fmt: skip


class Watched:
    """An attack that is watched: views and laboratory are sealed once it has run, and truth cannot be made before.

    Attributes:
        attack: to be run in the place of the one that is watched.
    """

    def __init__(self, attack: Attack, patch: pytest.MonkeyPatch) -> None:
        self._running = False
        self._real = attack
        self.attack = replace(attack, run=self._run, score=self._score)
        patch.setattr(registry, "Truth", self._truth)

    def _truth(self, *given: Any, **named: Any) -> Truth:
        assert not self._running, "truth was made before claims were complete"
        return Truth(*given, **named)

    def _run(self, view: View, laboratory: Laboratory[Any], rng: np.random.Generator) -> Any:
        view_of, self._running = laboratory._view_of, True
        laboratory._view_of = lambda result: self._sealed(view_of(result))
        _change_class(laboratory, self._guarded(type(laboratory)))
        try:
            return self._real.run(self._sealed(view), laboratory, rng)
        finally:
            self._running = False

    def _score(self, claims: Any, truth: Truth) -> list[Figure]:
        return self._real.score(claims, truth)

    def _sealed(self, view: View) -> View:
        """The view, which raises once the attack has run."""
        watcher = self

        class Sealed(type(view)):  # type: ignore[misc]
            def __getattribute__(self, name: str) -> Any:
                assert watcher._running or name.startswith("__"), f"the score reached view.{name}"
                return super().__getattribute__(name)

        _change_class(view, Sealed)
        return view

    def _guarded(self, kind: type) -> type:
        """The laboratory, whose results the attack itself may not read, and which raises once the attack has run."""
        watcher = self

        class Guarded(kind):  # type: ignore[misc]
            def __getattribute__(self, name: str) -> Any:
                caller = sys._getframe(1).f_code.co_filename
                inside = caller.endswith("laboratory.py")
                if not caller.endswith("registry.py") and not name.startswith("__"):
                    assert watcher._running, f"the score reached laboratory.{name}"
                    hidden = name.startswith("_") and not name.startswith("__")
                    assert inside or not hidden, f"the attack reached laboratory.{name}"
                return super().__getattribute__(name)

        return Guarded


def _change_class(thing: Any, kind: type) -> None:
    object.__setattr__(thing, "__class__", kind)


@functools.cache
def watched(name: str) -> list[Figure]:
    """Figures of an attack that is watched, which the law of baselines takes too."""
    with pytest.MonkeyPatch.context() as patch:
        return attacked(Watched(ATTACKS[name], patch).attack)


@pytest.mark.parametrize("name", NAMES)
def test_run_reaches_no_truth_score_reaches_no_view_and_a_signal_is_found(name: str) -> None:
    figures = watched(name)
    assert any(not one.reason for one in figures), {one.reason for one in figures}
    assert name in QUIET or any(one.beyond for one in figures)


def baselines(figures: Sequence[Figure]) -> dict[tuple[str, str, str, str], Any]:
    """What figures are compared with, but for those whose baseline is the run without the adversary."""
    return {
        (one.threat_model, one.victim, one.metric, one.variant): (
            None if one.baseline is None else one.baseline.value,
            {name: guess.value for name, guess in one.guesses.items()},
        )
        for one in figures
        if not one.reason and one.metric not in OF_EFFECTS.get(one.attack, ())
    }


def assert_no_message(attack: Attack, figures: Sequence[Figure]) -> None:
    """Raises unless the baselines of two runs are equal that differ in nothing but their rows, and so in every message.

    `figures`: of the first run.
    """
    here, there = baselines(figures), baselines(attacked(attack, 0.03))
    both = here.keys() & there.keys()
    assert both or attack.name in OF_EFFECTS
    assert all(here[key][0] is not None for key in both)
    assert {key: here[key] for key in both} == {key: there[key] for key in both}


@pytest.mark.parametrize("name", NAMES)
def test_no_baseline_takes_a_message_or_a_row(name: str) -> None:
    assert_no_message(ATTACKS[name], watched(name))


def test_a_baseline_that_averages_true_rows_is_found() -> None:
    """As that of update recovery once did: the mean of all clients' rows after their training, the victim's included."""

    def score(claims: Any, truth: Truth) -> list[Figure]:
        figures, result = [], truth.result
        rows = [update_recovery.client_rows(result, place, "entities") for place in range(len(result.graph.clients))]
        ends: dict[str, list[np.ndarray]] = {}
        for names, _, end in rows:
            for name, row in zip(names, end, strict=True):
                ends.setdefault(name, []).append(row)
        for one in update_recovery.score(claims, truth):
            if one.metric == "cosine" and not one.reason:
                names, start, end = rows[update_recovery.client_index(result, one.victim)]
                mean = np.stack([np.mean(ends[name], axis=0) for name in names])
                guess = exact(float(update_recovery.cosines(end - start, mean - start).mean()), len(names))
                figures.append(truth.figure("cosine", one.victim, one.estimate, baseline=guess))
        return figures

    averaging = replace(ATTACKS["update-recovery"], score=score)
    with pytest.raises(AssertionError):
        assert_no_message(averaging, attacked(averaging))


def cheat(run: Callable[..., Any], score: Callable[..., Any], patch: pytest.MonkeyPatch) -> None:
    attack = replace(ATTACKS["update-recovery"], run=run, score=score)
    attacked(Watched(attack, patch).attack)


def test_cheating_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """By what reads the run from the laboratory, and by claims that look at the view, or train, once they are scored."""

    def nothing(claims: Any, truth: Truth) -> list[Figure]:
        return []

    with pytest.raises(AssertionError, match=r"the attack reached laboratory\._runs"):
        cheat(lambda view, laboratory, rng: laboratory._runs[0].trained, nothing, monkeypatch)
    with pytest.raises(AssertionError, match=r"the score reached view\.victims"):
        cheat(lambda view, laboratory, rng: view, lambda view, truth: list(view.victims), monkeypatch)
    with pytest.raises(AssertionError, match=r"the score reached laboratory\.train"):
        cheat(lambda view, laboratory, rng: laboratory, lambda laboratory, truth: laboratory.train(), monkeypatch)


def untested(attacks: Iterable[str], tests: Mapping[str, Mapping[str, Sequence[AttackTest]]]) -> set[tuple[str, str]]:
    """Kinds of tests, and the attacks that have none of these in the fast suite."""
    kinds = itertools.product((PLANTED, NULL), attacks)
    return {(kind, name) for kind, name in kinds if all(test.slow for test in tests.get(name, {}).get(kind, ()))}


def test_every_attack_finds_a_planted_signal_and_nothing_in_a_null() -> None:
    """By the marks `planted` and `null` of tests in tests/attacks, see `scripts.docs.attack_tests`."""
    tests = attack_tests(TESTS)
    assert untested(ATTACKS, tests) == set()
    assert tests.keys() - set(ATTACKS) == set()


def test_verdicts_rest_on_the_items_of_planted_signals() -> None:
    """NO EVIDENCE is said of as many items or more only (`Figure.tested`); each metric that leads verdicts plants a signal."""
    tests = attack_tests(TESTS)
    assert {name: dict(PLANTED_ITEMS[name]) for name in ATTACKS} == {
        name: planted_items(tests[name][PLANTED]) for name in ATTACKS
    }
    for name, attack in ATTACKS.items():
        assert PLANTED_ITEMS[name].keys() == set(attack.leading), name
