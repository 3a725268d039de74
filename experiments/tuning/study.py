"""The trials of a tuning: each trained on data whose test split is not there, judged by its best validation.

    tuned = tune(spec, graph, read_searches(["gamma=5,9,12"], spec), Path("runs/tuning"), trials=10, observe=unobserved)
    tuned.best.values                               # {"gamma": 9.0}
    tuned.best.valid                                # the best validation of its rounds

runs/tuning/study.db            Optuna's storage: what was finished is never trained again, and a killed trial goes on
runs/tuning/trials/<digest>     the checkpoint of the trial that is training, removed when it is finished
runs/tuning/tuning.json, trials.csv, trials.png, best.yaml

Trial n draws from the run's seed, n, and what the finished trials reached, whenever it is made: the same command gives the same
trials, killed or not. Sampler: Optuna's TPE (Bergstra et al. 2011), the first ten at random. Pruning: a trial whose best
validation so far lies below the median of those that the others had in the same round (Golovin et al. 2017), from the fifth
finished trial on.
"""

from __future__ import annotations

import hashlib
import importlib
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import msgspec
import numpy as np

from fkgsec.data.graph import ClientGraph, FederatedGraph
from fkgsec.defenses.options import parse_defense
from fkgsec.defenses.transport import make_transport
from fkgsec.errors import DataError, RunError, SpecError, TrainingError
from fkgsec.experiments.cli.progress import Observe
from fkgsec.experiments.runs.record import Environment, environment_of, guarantees_of
from fkgsec.experiments.runs.run import check_run
from fkgsec.experiments.runs.stored import encode_stored
from fkgsec.experiments.runs.writing import locked, refused, write_atomically
from fkgsec.experiments.tasks.memory import check_memory
from fkgsec.experiments.tasks.spec import RunSpec
from fkgsec.experiments.tasks.task import task_of
from fkgsec.experiments.tuning.search import Searched, with_values
from fkgsec.federation.checkpoint import RoundEntry
from fkgsec.federation.loop import Observer, run_federation
from fkgsec.graphs.sets import ClientGraphs, FederatedGraphs
from fkgsec.protocols.noise.accounting import compose
from fkgsec.protocols.noise.guarantee import Guarantee
from fkgsec.randomness import generator

SCHEMA = "fkgsec/tuning/1"
TUNING_FILE, STORAGE, TRIALS, NAME = "tuning.json", "study.db", "trials", "tuning"
RANDOM_TRIALS = 10  # before the sampler looks at what was reached
PRUNE_FROM = 5  # finished trials
State = Literal["finished", "pruned", "failed"]


class Trial(msgspec.Struct, frozen=True):
    """What one choice of values came to.

    Attributes:
        number: from 1. values: by option. valid: the best validation; None of a trial that failed.
        round: of that validation. rounds: trained. state: "pruned", ended early as hopeless; "failed", `reason` says why.
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
    """A tuning.

    Attributes:
        spec: what was not searched. searched: by option its values as they were given. data_hash: of what was trained on.
        metric: of validation. trials: in their order. best: the values of the best, with its spec.
        guarantees: of differential privacy, of the releases of all trials together, by the tables that each covers.
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
        """Of all trials that were not pruned; the first of equals."""
        return best_of(self.trials)


def best_of(trials: list[Trial]) -> Trial:
    """The trial with the best validation; the first of equals. Raises `RunError` where none was finished."""
    finished = [one for one in trials if one.state == "finished" and one.valid is not None]
    if not finished:
        raise RunError(f"no trial was finished; the first: {trials[0].reason if trials else 'none was begun'}")
    return max(finished, key=lambda one: (one.valid or 0.0, -one.number))


def without_test(graph: Any) -> Any:
    """The clients' data as if there were no test split: neither in training, nor as candidates, nor in the filter."""
    if isinstance(graph, FederatedGraphs):
        return FederatedGraphs(graph.name, tuple(map(_client_without_test, graph.clients)), graph.warnings)
    nothing = np.empty((0, 3), dtype=np.int64)
    clients = tuple(
        ClientGraph.from_global(one.name, one.to_global(one.train), one.to_global(one.valid), nothing)
        for one in graph.clients
    )
    return FederatedGraph(graph.name, graph.entities, graph.relations, clients)


def _client_without_test(client: ClientGraphs) -> ClientGraphs:
    kept = np.sort(np.concatenate([client.train, client.valid]))
    graphs, none = client.graphs.subset(kept), np.empty(0, dtype=np.int64)
    train, valid = (np.searchsorted(kept, ids) for ids in (client.train, client.valid))
    return ClientGraphs(client.name, graphs, train, valid, none, client.vocabulary)


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
    """Train so many trials in all, those in `folder` included, and write what they came to.

    Args:
        observe: gives each trial its progress. prune: end hopeless trials early; never under dp, whose every release counts.
        overwrite: begin anew where the folder has another tuning. at_once: 0: nobody asks whether a trial fits into memory.

    Raises:
        SpecError: Optuna is not installed, or no trial could be trained.
        RunError: the folder holds another tuning. DataError: there is nothing to validate on.
    """
    if trials < 1:
        raise SpecError(f"trials must be at least 1; got {trials}")
    optuna = _optuna()
    blind = without_test(graph)
    if not any(len(client.valid) for client in blind.clients):
        raise DataError(f"{graph.name}: no client has anything to validate on, which tuning goes by")
    check_run(spec, blind, attack=False)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{folder}: cannot be made ({error.strerror})") from error
    with locked(folder):
        study = _study(optuna, spec, blind, searched, folder, overwrite=overwrite)
        private = "dp" in parse_defense(spec.defense).names
        turn = _Turns(optuna, study, spec, blind, searched, folder, observe, prune=prune and not private, check=at_once)
        while len(turn.done()) < trials:
            turn.take(trials)
        shutil.rmtree(folder / TRIALS, ignore_errors=True)
        tuning = _tuning(spec, blind, searched, turn.done(), [one.user_attrs for one in turn.finished()])
        write_atomically(folder / TUNING_FILE, encode_stored(tuning))
    return tuning


def _optuna() -> ModuleType:
    try:
        optuna = importlib.import_module("optuna")
    except ImportError as error:
        raise SpecError("optuna is not installed: pip install 'fkgsec[tune]'") from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def _study(
    optuna: ModuleType, spec: RunSpec, graph: Any, searched: Mapping[str, Searched], folder: Path, *, overwrite: bool
) -> Any:
    """The study in the folder, begun where there is none. Raises `RunError` for one of other options, values or data."""
    what = {
        "spec": msgspec.json.encode(spec.settled().document(), order="sorted").decode(),
        "searched": {name: one.text for name, one in searched.items()},
        "data": graph.hash,
    }
    path = folder / STORAGE
    study = _opened(optuna, path)
    if study.user_attrs.get("what", what) != what:
        if not overwrite:
            raise refused(path, "is a tuning of other options, values or data")
        optuna.delete_study(study_name=NAME, storage=study._storage)
        shutil.rmtree(folder / TRIALS, ignore_errors=True)
        study = _opened(optuna, path)
    study.set_user_attr("what", what)
    for one in study.get_trials(deepcopy=False):
        if not one.state.is_finished():  # of a process that was killed
            study.tell(one.number, state=optuna.trial.TrialState.FAIL)
    return study


def _opened(optuna: ModuleType, path: Path) -> Any:
    """The study in an SQLite file, which a kill in the midst of a write leaves whole."""
    from sqlalchemy.engine import URL

    address = URL.create("sqlite", database=str(path.resolve())).render_as_string()
    try:
        storage = optuna.storages.RDBStorage(address, engine_kwargs={"connect_args": {"timeout": 30}})
        return optuna.create_study(storage=storage, study_name=NAME, direction="maximize", load_if_exists=True)
    except Exception as error:  # of SQLAlchemy, Optuna or the disk
        raise RunError(f"{path}: cannot be read as a tuning ({' '.join(str(error).split())[:200]})") from error


class _Turns:
    """Takes one trial after the other."""

    def __init__(
        self,
        optuna: ModuleType,
        study: Any,
        spec: RunSpec,
        graph: Any,
        searched: Mapping[str, Searched],
        folder: Path,
        observe: Observe,
        *,
        prune: bool,
        check: int,
    ) -> None:
        self._optuna, self._study, self._spec, self._graph = optuna, study, spec, graph
        self._searched, self._folder, self._observe = searched, folder, observe
        self._prune, self._check = prune, check

    def finished(self) -> list[Any]:
        """Optuna's trials that came to something, in their order."""
        return [one for one in self._study.get_trials(deepcopy=False) if "trial" in one.user_attrs]

    def done(self) -> list[Trial]:
        """What they came to."""
        return [msgspec.convert(one.user_attrs["trial"], Trial) for one in self.finished()]

    def take(self, of: int) -> None:
        """Draw values and train with them; the values of an earlier trial are not trained again."""
        number = len(self.done()) + 1
        drawn = int(generator(self._spec.seed, "tuning", number).integers(2**32))
        self._study.sampler = self._optuna.samplers.TPESampler(n_startup_trials=RANDOM_TRIALS, seed=drawn)
        asked = self._study.ask()
        values = {name: _suggest(asked, name, one) for name, one in self._searched.items()}
        earlier = next((one for one in self.done() if one.values == values), None)
        shown = ", ".join(
            f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}" for name, value in values.items()
        )
        if earlier is not None:
            made, kept = msgspec.structs.replace(earlier, number=number, seconds=0.0), {}
        else:
            made, kept = self._train(number, f"{number} of {of}: {shown}", values, asked)
        state = self._optuna.trial.TrialState
        asked.set_user_attr("guarantees", kept)
        asked.set_user_attr("trial", msgspec.to_builtins(made))
        pruned = made.state == "pruned"
        self._study.tell(asked, None if pruned else made.valid or 0.0, state=state.PRUNED if pruned else state.COMPLETE)

    def _train(self, number: int, name: str, values: dict[str, Any], asked: Any) -> tuple[Trial, dict[str, Any]]:
        """One trial, from its checkpoint where it was killed; and its guarantees of differential privacy."""
        started = time.perf_counter()
        folder = self._folder / TRIALS / hashlib.sha256(msgspec.json.encode(values, order="sorted")).hexdigest()[:16]
        seen = _Seen(asked, self._hopeless if self._prune else None)
        state: State = "finished"
        reason, kept = "", {}
        try:
            spec = with_values(self._spec, values)
            if self._check:
                check_memory(spec, self._graph, at_once=1)
            with self._observe(spec, name) as observer:
                seen.inner = observer
                result = run_federation(
                    self._graph, spec.federation_options(), folder, seen, make_transport=make_transport
                )
            kept = msgspec.to_builtins(guarantees_of(result))
        except _Hopeless:
            state = "pruned"
        except (SpecError, TrainingError) as error:
            state, reason = "failed", str(error)
        shutil.rmtree(folder, ignore_errors=True)
        valid = None if state == "failed" else seen.best
        seconds = time.perf_counter() - started
        return Trial(number, values, valid, seen.best_round, seen.rounds, seconds, state, reason), kept

    def _hopeless(self, asked: Any, round: int, best: float) -> bool:
        """Whether a trial's best validation lies below the median of what finished trials had reached by this round."""
        others = [
            max(value for at, value in one.intermediate_values.items() if at <= round)
            for one in self._study.get_trials(deepcopy=False)
            if one.user_attrs.get("trial", {}).get("state") == "finished"
            and any(at <= round for at in one.intermediate_values)
        ]
        return len(others) >= PRUNE_FROM and best < float(np.median(others))


class _Hopeless(Exception):
    """Ends a trial that is pruned."""


class _Seen(Observer):
    """Reports validations to Optuna and ends a hopeless trial; passes everything on."""

    def __init__(self, asked: Any, hopeless: Any) -> None:
        self._asked, self._hopeless = asked, hopeless
        self.inner = Observer()
        self.best: float | None = None
        self.best_round = self.rounds = 0

    def round_started(self, round: int, num_steps: int) -> None:
        self.inner.round_started(round, num_steps)

    def step_done(self) -> None:
        self.inner.step_done()

    def round_done(self, entry: RoundEntry) -> None:
        self.inner.round_done(entry)
        self.rounds = entry.round
        if entry.valid is None:
            return
        self._asked.report(entry.valid, entry.round)
        if self.best is None or entry.valid > self.best:
            self.best, self.best_round = entry.valid, entry.round
        if self._hopeless and self._hopeless(self._asked, entry.round, self.best):
            raise _Hopeless


def _suggest(asked: Any, name: str, one: Searched) -> Any:
    """Optuna keeps words and numbers: a value that is given stands by its place."""
    if one.values:
        return one.values[asked.suggest_categorical(name, list(range(len(one.values))))]
    if one.whole:
        return asked.suggest_int(name, int(one.low), int(one.high), log=one.log)
    return asked.suggest_float(name, one.low, one.high, log=one.log)


def _tuning(
    spec: RunSpec, graph: Any, searched: Mapping[str, Searched], trials: list[Trial], attributes: list[dict[str, Any]]
) -> Tuning:
    best_of(trials)
    return Tuning(
        SCHEMA,
        spec,
        {name: one.text for name, one in searched.items()},
        graph.hash,
        task_of(spec).metric,
        trials,
        environment_of(spec.federation_options()),
        _spent(trials, [msgspec.convert(one.get("guarantees", {}), dict[str, Guarantee]) for one in attributes]),
    )


def _spent(trials: list[Trial], guarantees: list[dict[str, Guarantee]]) -> dict[str, Guarantee]:
    """Of all trials together; one that failed has released at most what the loosest of the others did."""
    found: dict[str, Guarantee] = {}
    for tables in {name: None for one in guarantees for name in one}:
        known = [one[tables] for one in guarantees if tables in one]
        failed = [max(known, key=lambda one: one.epsilon)] * sum(one.state == "failed" for one in trials)
        found[tables] = compose([*known, *failed])
    return found
