"""Trials of a tuning. Each one trains on data without the test split, and is judged by its best validation.

    tuned = tune(spec, graph, read_searches(["gamma=5,9,12"], spec), Path("runs/tuning"), trials=10, observe=unobserved)
    tuned.best.values                               # {"gamma": 9.0}
    tuned.best.valid                                # the best validation of its rounds

runs/tuning/study.db            Optuna's storage: finished trials are never repeated, and an interrupted trial resumes
runs/tuning/trials/<digest>     checkpoint of the current trial, removed when it is finished
runs/tuning/tuning.json, trials.csv, trials.png, best.yaml

Trial n depends on the run's seed, n, and the results of earlier trials: the same command gives the same trials, interrupted or
not. Sampler: Optuna's TPE (Bergstra et al. 2011), the first ten at random. Pruning starts after five finished trials: a trial
stops if its best validation is below the median of the others' best by the same round (Golovin et al. 2017).
"""

from __future__ import annotations

import hashlib
import importlib
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import msgspec
import numpy as np

from fkgsec.data.graph import ClientGraph, FederatedGraph
from fkgsec.defenses.options import parse_defense
from fkgsec.defenses.transport import make_transport
from fkgsec.errors import DataError, RunError, SpecError, TrainingError
from fkgsec.exchange.transport import Transport
from fkgsec.experiments.cli.progress import Observe
from fkgsec.experiments.runs.record import Environment, environment_of
from fkgsec.experiments.runs.run import check_run
from fkgsec.experiments.runs.stored import encode_stored
from fkgsec.experiments.runs.writing import locked, refused, write_atomically
from fkgsec.experiments.tasks.memory import check_memory
from fkgsec.experiments.tasks.spec import RunSpec
from fkgsec.experiments.tasks.task import task_of
from fkgsec.experiments.tuning.search import Searched
from fkgsec.federation.checkpoint import RoundEntry
from fkgsec.federation.loop import Observer, run_federation
from fkgsec.graphs.sets import ClientGraphs, FederatedGraphs
from fkgsec.protocols.noise.accounting import compose
from fkgsec.protocols.noise.guarantee import Guarantee
from fkgsec.randomness import generator

SCHEMA = "fkgsec/tuning/1"
TUNING_FILE, STORAGE, TRIALS, NAME = "tuning.json", "study.db", "trials", "tuning"
# Before the sampler uses earlier results.
RANDOM_TRIALS = 10
# Number of finished trials before pruning.
PRUNE_FROM = 5
State = Literal["finished", "pruned", "failed"]


class Trial(msgspec.Struct, frozen=True):
    """Outcome of one choice of values.

    Attributes:
        number: number of the trial, from 1.
        values: values by option.
        valid: the best validation; None if the trial failed.
        round: round of that validation.
        rounds: number of trained rounds.
        state: "pruned" trials stopped early.
        reason: why a trial failed.
    """

    number: int
    values: dict[str, Any]
    valid: float | None
    round: int
    rounds: int
    seconds: float
    state: State
    reason: str = ""


class Tuning(msgspec.Struct, frozen=True):
    """Result of a tuning.

    Attributes:
        spec: options that were not searched.
        searched: values by option, as on the command line.
        data_hash: hash of the training data.
        metric: validation metric.
        trials: trials in their order.
        guarantees: guarantees of differential privacy for the releases of all trials together, by the tables that each covers.
    """

    schema: str
    spec: RunSpec
    searched: dict[str, str]
    data_hash: str
    metric: str
    trials: list[Trial]
    environment: Environment
    guarantees: dict[str, Guarantee] = {}

    @property
    def best(self) -> Trial:
        """The finished trial with the best validation; the first one of equals. Raises `RunError` if none finished."""
        finished = [trial for trial in self.trials if trial.state == "finished" and trial.valid is not None]
        if not finished:
            first = self.trials[0].reason if self.trials else "none was started"
            raise RunError(f"no trial finished; the first: {first}")
        return max(finished, key=lambda trial: (trial.valid or 0.0, -trial.number))


def without_test(graph: Any) -> Any:
    """Remove the test split from training, from candidates and from the filter.

    Args:
        graph: data of either task.
    """
    clients = []
    for client in graph.clients:
        if isinstance(client, ClientGraphs):
            remaining = np.sort(np.concatenate([client.train, client.valid]))
            train, valid = (np.searchsorted(remaining, ids) for ids in (client.train, client.valid))
            nothing = np.empty(0, dtype=np.int64)
            clients.append(
                ClientGraphs(client.name, client.graphs.subset(remaining), train, valid, nothing, client.vocabulary)
            )
        else:
            # Rebuild the client, so that entities that occur only in test triples vanish, too.
            train, valid = (client.to_global(triples) for triples in (client.train, client.valid))
            nothing = np.empty((0, 3), dtype=np.int64)
            clients.append(ClientGraph.from_global(client.name, train, valid, nothing))
    if isinstance(graph, FederatedGraphs):
        return FederatedGraphs(graph.name, tuple(clients), graph.warnings)
    return FederatedGraph(graph.name, graph.entities, graph.relations, tuple(clients))


def tune(
    spec: RunSpec,
    graph: Any,
    searched: Mapping[str, Searched],
    folder: Path,
    *,
    trials: int,
    observe: Observe,
    prune: bool = True,
    overwrite: bool = False,
    at_once: int = 1,
) -> Tuning:
    """Train trials until the total is reached, including those in `folder`, and write the tuning.

    Args:
        spec: options that are not searched.
        graph: the clients' data.
        searched: values by option.
        folder: folder of the tuning.
        trials: total number of trials.
        observe: gives each trial its observer.
        prune: stop hopeless trials early; never with dp, where every release counts.
        overwrite: replace another tuning in the folder.
        at_once: 0 skips the check that a trial fits into memory.

    Raises:
        SpecError: Optuna is not installed, or an option is wrong.
        RunError: the folder has another tuning, or no trial finished.
        DataError: there is no validation data.
    """
    if trials < 1:
        raise SpecError(f"trials must be at least 1; got {trials}")
    try:
        optuna = importlib.import_module("optuna")
    except ImportError as error:
        raise SpecError("optuna is not installed: pip install 'fkgsec[tune]'") from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    # Trials must not see the test split, not even as negatives or in the filter.
    blind = without_test(graph)
    if not any(len(client.valid) for client in blind.clients):
        raise DataError(f"{graph.name}: no client has validation data, which tuning needs")
    check_run(spec, blind, attack=False)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{folder}: cannot be made ({error.strerror})") from error
    with locked(folder):
        study = _study(optuna, spec, blind, searched, folder, overwrite=overwrite)
        # A pruned trial has released noisy updates, too, but its guarantee would go unrecorded.
        prune = prune and "dp" not in parse_defense(spec.defense).names
        while len(_finished(study)) < trials:
            _take_turn(optuna, study, spec, blind, searched, folder / TRIALS, observe, trials, prune, at_once)
        shutil.rmtree(folder / TRIALS, ignore_errors=True)
        attributes = [trial.user_attrs for trial in _finished(study)]
        results = [msgspec.convert(of_trial["trial"], Trial) for of_trial in attributes]
        guarantees = [msgspec.convert(of_trial["guarantees"], dict[str, Guarantee]) for of_trial in attributes]
        spent = _spent(guarantees)
        texts = {name: values.text for name, values in searched.items()}
        environment = environment_of(spec.federation_options())
        tuning = Tuning(SCHEMA, spec, texts, blind.hash, task_of(spec).metric, results, environment, spent)
        _ = tuning.best  # raises if there is none
        write_atomically(folder / TUNING_FILE, encode_stored(tuning))
    return tuning


def _study(
    optuna: ModuleType, spec: RunSpec, graph: Any, searched: Mapping[str, Searched], folder: Path, *, overwrite: bool
) -> Any:
    """Open the study in the folder, or create it. Raises `RunError` for a study of other options, values or data."""
    what = {
        "spec": msgspec.json.encode(spec.settled().document(), order="sorted").decode(),
        "searched": {name: values.text for name, values in searched.items()},
        "data": graph.hash,
    }
    path = folder / STORAGE
    study = _opened(optuna, path)
    if study.user_attrs.get("what", what) != what:
        if not overwrite:
            raise refused(path, "has a tuning of other options, values or data")
        optuna.delete_study(study_name=NAME, storage=study._storage)
        shutil.rmtree(folder / TRIALS, ignore_errors=True)
        study = _opened(optuna, path)
    study.set_user_attr("what", what)
    for trial in study.get_trials(deepcopy=False):
        # Left by a killed process.
        if not trial.state.is_finished():
            study.tell(trial.number, state=optuna.trial.TrialState.FAIL)
    return study


def _opened(optuna: ModuleType, path: Path) -> Any:
    """Open the study in an SQLite file, which survives a kill in the middle of a write."""
    from sqlalchemy.engine import URL

    address = URL.create("sqlite", database=str(path.resolve())).render_as_string()
    try:
        # Wait for a lock: another process may look at the study.
        storage = optuna.storages.RDBStorage(address, engine_kwargs={"connect_args": {"timeout": 30}})
        return optuna.create_study(storage=storage, study_name=NAME, direction="maximize", load_if_exists=True)
    except Exception as error:  # SQLAlchemy, Optuna and the disk raise many types
        raise RunError(f"{path}: cannot be read as a tuning ({' '.join(str(error).split())[:200]})") from error


def _finished(study: Any) -> list[Any]:
    """Return Optuna's trials with a result, in their order."""
    return [trial for trial in study.get_trials(deepcopy=False) if "trial" in trial.user_attrs]


def _take_turn(
    optuna: ModuleType, study: Any, spec: RunSpec, graph: Any, searched: Mapping[str, Searched], folder: Path,
    observe: Observe, of: int, prune: bool, check: int,
) -> None:  # fmt: skip
    """Draw values and train with them; values of an earlier trial are not trained again."""
    done = [msgspec.convert(finished.user_attrs["trial"], Trial) for finished in _finished(study)]
    number = len(done) + 1
    drawn = int(generator(spec.seed, "tuning", number).integers(2**32))
    # A new sampler per trial: its state would be lost in an interruption and change the draws.
    study.sampler = optuna.samplers.TPESampler(n_startup_trials=RANDOM_TRIALS, seed=drawn)
    open_trial = study.ask()
    values = {name: _suggest(open_trial, name, choices) for name, choices in searched.items()}
    guarantees: dict[str, Any] = {}
    # The result would be the same, since training is deterministic.
    trial = next((earlier for earlier in done if earlier.values == values), None)
    if trial is not None:
        trial = msgspec.structs.replace(trial, number=number, seconds=0.0)
    else:
        words = ", ".join(
            f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}" for name, value in values.items()
        )
        folder /= hashlib.sha256(msgspec.json.encode(values, order="sorted")).hexdigest()[:16]
        started, seen = time.perf_counter(), _Seen(open_trial, lambda *at: prune and _is_hopeless(study, *at))
        state: State = "finished"
        reason = ""
        transports: list[Transport] = []

        def _make(*arguments: Any) -> Transport:
            """Keep the transport, which knows the guarantees also of a training that fails."""
            transports.append(make_transport(*arguments))
            return transports[-1]

        try:
            # Values may contradict each other or the spec; such a trial fails, and the others go on.
            changed = spec.replace(**values)
            if check:
                check_memory(changed, graph, at_once=1)
            with observe(changed, f"{number} of {of}: {words}") as seen.inner:
                options = changed.federation_options()
                result = run_federation(graph, options, folder, seen, make_transport=_make)
            guarantees = msgspec.to_builtins(result.protection.guarantees)
        except _Hopeless:
            state = "pruned"
        except (SpecError, TrainingError) as error:
            state, reason = "failed", str(error)
            # The trial may have released updates before it failed, in at most all of its rounds.
            for transport in transports:
                guarantees = msgspec.to_builtins(transport.protection().guarantees)
        # The result is in the study; a checkpoint of each trial would fill the disk.
        shutil.rmtree(folder, ignore_errors=True)
        valid, seconds = None if state == "failed" else seen.best, time.perf_counter() - started
        trial = Trial(number, values, valid, seen.best_round, seen.rounds, seconds, state, reason)
    open_trial.set_user_attr("guarantees", guarantees)
    open_trial.set_user_attr("trial", msgspec.to_builtins(trial))
    states, pruned = optuna.trial.TrialState, trial.state == "pruned"
    # A failed trial gets the worst value, so that the sampler avoids its neighborhood.
    study.tell(open_trial, None if pruned else trial.valid or 0.0, state=states.PRUNED if pruned else states.COMPLETE)


def _suggest(open_trial: Any, name: str, choices: Searched) -> Any:
    """Draw a value. Optuna stores words and numbers only: listed values are drawn by their index."""
    if choices.values:
        return choices.values[open_trial.suggest_categorical(name, list(range(len(choices.values))))]
    if choices.whole:
        return open_trial.suggest_int(name, int(choices.low), int(choices.high), log=choices.log)
    return open_trial.suggest_float(name, choices.low, choices.high, log=choices.log)


def _is_hopeless(study: Any, round: int, best: float) -> bool:
    """Return True if a best validation is below the median of the best of finished trials by this round."""
    others = [
        max(reached)
        for trial in _finished(study)
        if trial.user_attrs["trial"]["state"] == "finished"
        # Compare with what the others had reached by then, not with their final values.
        and (reached := [value for at, value in trial.intermediate_values.items() if at <= round])
    ]
    return len(others) >= PRUNE_FROM and best < float(np.median(others))


class _Hopeless(Exception):
    """Stops a trial that is pruned."""


class _Seen(Observer):
    """Observer that reports validations to Optuna, stops a hopeless trial, and passes everything on."""

    def __init__(self, open_trial: Any, is_hopeless: Callable[[int, float], bool]) -> None:
        self._open_trial, self._is_hopeless = open_trial, is_hopeless
        self.inner = Observer()
        self.best: float | None = None
        self.best_round = self.rounds = 0

    def round_started(self, round: int, num_steps: int) -> None:
        """Pass the event on."""
        self.inner.round_started(round, num_steps)

    def step_done(self) -> None:
        """Pass the event on."""
        self.inner.step_done()

    def round_done(self, entry: RoundEntry) -> None:
        """Report a validation, and stop the trial if it is hopeless.

        Args:
            entry: the finished round.
        """
        self.inner.round_done(entry)
        self.rounds = entry.round
        if entry.valid is None:
            return
        self._open_trial.report(entry.valid, entry.round)
        if self.best is None or entry.valid > self.best:
            self.best, self.best_round = entry.valid, entry.round
        if self._is_hopeless(entry.round, self.best):
            raise _Hopeless


def _spent(guarantees: list[dict[str, Guarantee]]) -> dict[str, Guarantee]:
    """Return the guarantees of all trials together, by the tables that each covers."""
    # Every trial releases updates of the same data, so the losses of all trials compose.
    names = {name: None for by_tables in guarantees for name in by_tables}
    return {name: compose([by_tables[name] for by_tables in guarantees if name in by_tables]) for name in names}
