"""The policy gate: train and attack the federations of a policy, judge every limit, and return a status for a build system.

    checked = check_policy(read_policy(Path("policy.yaml")), Path("runs"), observe=unobserved, warn=print)
    sys.exit(exit_status(checked.status, "report"))

Runs lie below one folder and are identified by their data, options, device and code. A run of other code is never reused,
because the gate judges changes of code. Attacks are always repeated, on the checkpoint.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from fkgsec.attacks.view import ALL
from fkgsec.errors import DataError, SpecError
from fkgsec.experiments.cli.progress import Observe
from fkgsec.experiments.gate import SCHEMA, WhenInconclusive
from fkgsec.experiments.gate.audits import AUDIT_FOLDER, UNLEARNING_FOLDER, alone_folder
from fkgsec.experiments.gate.baseline import check_comparable, make_baseline, read_baseline, write_baseline
from fkgsec.experiments.gate.folders import code_digest, run_folder
from fkgsec.experiments.gate.measures import EACH, GAIN, MEASURES
from fkgsec.experiments.gate.policy import NO_WORSE, Limit, Policy, threats_of
from fkgsec.experiments.gate.verdicts import Runs, Status, Verdict, judge_limit, judge_no_worse, overall
from fkgsec.experiments.integrity.checks import require_whole
from fkgsec.experiments.runs.run import RECORD_FILE, Finished, check_run, execute, warnings_of
from fkgsec.experiments.runs.spec import RunSpec
from fkgsec.federation.loop import CHECKPOINT
from fkgsec.unlearning.forget_sets import read_forget

Graphs = Mapping[str, Mapping[int, Any]]


class Checked(msgspec.Struct, frozen=True):
    """A judged policy: the content of every report. It contains no time, so that the same commit gives the same bytes.

    Attributes:
        policy: path of the policy, relative to the working folder.
        commit, dirty, versions: of fkgsec.
        data: hash of each federation's data, by seed.
    """

    schema: str
    policy: str
    status: Status
    when_inconclusive: WhenInconclusive
    exit_status: int
    verdicts: list[Verdict]
    commit: str | None
    dirty: bool | None
    versions: dict[str, str]
    data: dict[str, dict[int, str]]


def check_policy(
    policy: Policy,
    runs: Path,
    *,
    observe: Observe,
    warn: Callable[[str], None],
    fresh: bool = False,
    update_baseline: bool = False,
    when_inconclusive: WhenInconclusive = "report",
    num_examples: int | None = None,
    force: bool = False,
) -> Checked:
    """Judge a policy.

    Args:
        policy: federations and limits.
        runs: folder with a subfolder for each run.
        observe: gives each run, and each training of an audit, its observer.
        warn: receives warnings about the data.
        fresh: train and unlearn again even if finished runs exist.
        update_baseline: write the figures of these runs as the new baseline, and compare with it.
        when_inconclusive: see `exit_status`.
        num_examples: see `Runs`.
        force: skip the check that runs fit into memory.

    Raises:
        FkgsecError: wrong input; raised before any training.
    """
    if update_baseline and policy.no_worse is None:
        raise SpecError(f"{policy.path}: limits.{NO_WORSE} is missing; --update-baseline writes the file that it names")
    # Load data and check limits before the first training.
    graphs = load_graphs(policy)
    hashes = {name: {seed: graph.hash for seed, graph in by_seed.items()} for name, by_seed in graphs.items()}
    baseline = None
    if policy.no_worse and not update_baseline:
        baseline = read_baseline(policy.no_worse.baseline)
        check_comparable(policy.no_worse.baseline, baseline, policy, hashes)
    all_graphs = [(policy.federations[name], graph) for name, by_seed in graphs.items() for graph in by_seed.values()]
    # Several seeds share their data and hence their warnings.
    for line in dict.fromkeys(line for spec, graph in all_graphs for line in warnings_of(spec, graph)):
        warn(line)
    finished = run_policy(policy, graphs, runs, observe=observe, fresh=fresh, at_once=0 if force else 1)
    environment = next(run.record.environment for by_seed in finished.values() for run in by_seed.values())
    if policy.no_worse and update_baseline:
        baseline = make_baseline(policy, finished, environment)
        write_baseline(policy.no_worse.baseline, baseline)
    for limit in policy.limits:
        for run in finished[limit.federation].values():
            if audit := MEASURES[limit.measure].audit:
                # Raised again when the figure is read.
                with contextlib.suppress(DataError):
                    audit(run, limit.question, observe)
    # Audits above may have trained; from here on, figures are only read.
    judged = {name: Runs(by_seed, num_examples) for name, by_seed in finished.items()}
    verdicts = [judge_limit(limit, judged[limit.federation]) for limit in policy.limits]
    if policy.no_worse and baseline:
        for name, of_federation in judged.items():
            verdicts += judge_no_worse(policy, policy.no_worse, baseline, name, of_federation)
    status = overall([verdict.status for verdict in verdicts])
    # Relative to the working folder, in a build the repository's root: reports must not show the machine's folders.
    whole, here = policy.path.absolute(), Path.cwd()
    return Checked(
        SCHEMA,
        (whole.relative_to(here) if whole.is_relative_to(here) else policy.path).as_posix(),
        status,
        when_inconclusive,
        exit_status(status, when_inconclusive),
        verdicts,
        environment.commit,
        environment.dirty,
        environment.versions,
        hashes,
    )


def exit_status(status: Status, when_inconclusive: WhenInconclusive) -> int:
    """Return the exit status: 0 pass, 1 fail, 3 inconclusive.

    Args:
        status: overall status. A vacuous limit counts as inconclusive, and never as pass.
        when_inconclusive: status that inconclusive limits get; `report` keeps 3.

    >>> exit_status("inconclusive", "report"), exit_status("inconclusive", "fail"), exit_status("fail", "pass")
    (3, 1, 1)
    """
    if status == "vacuous":
        status = "fail" if when_inconclusive == "fail" else "inconclusive"
    elif status == "inconclusive" and when_inconclusive != "report":
        status = when_inconclusive
    return {"pass": 0, "fail": 1, "inconclusive": 3}[status]


def load_graphs(policy: Policy) -> Graphs:
    """Load the data of every federation and seed, and check every run and limit on them.

    Raises:
        FkgsecError: the data cannot be read, a defense or a threat model does not fit them, or a limit names an unknown
            victim.
    """
    graphs: dict[str, dict[int, Any]] = {}
    for name, spec in policy.federations.items():
        graphs[name] = {}
        for seed in policy.seeds[name]:
            run = spec.replace(seed=seed)
            graph = graphs[name][seed] = run.load_graph()
            check_run(run, graph, attack=bool(threats_of(run)))
            for limit in policy.limits:
                if limit.federation == name:
                    _check_limit(policy.path, limit, run, graph)
    return graphs


def run_policy(
    policy: Policy, graphs: Graphs, runs: Path, *, observe: Observe, fresh: bool, at_once: int = 1
) -> dict[str, dict[int, Finished]]:
    """Train missing runs (resuming interrupted ones), and attack all runs.

    Args:
        policy: federations and limits.
        graphs: data by federation and seed.
        runs: folder with a subfolder for each run.
        observe: gives each run its observer.
        fresh: train and unlearn again even if finished runs exist.
        at_once: see `execute`.

    Returns:
        Finished runs by federation and seed.
    """
    code = code_digest()
    finished: dict[str, dict[int, Finished]] = {}
    for name, spec in policy.federations.items():
        finished[name] = {}
        for seed, graph in graphs[name].items():
            run = spec.replace(seed=seed)
            folder = run_folder(runs, name, run, graph, code)
            about = f"federation {name}, seed {seed}"
            if fresh:
                places = [folder, *([alone_folder(runs, run, graph)] if _asks_gain(policy, name) else [])]
                for file in (place / file for place in places for file in (RECORD_FILE, CHECKPOINT)):
                    file.unlink(missing_ok=True)
                for audits in (UNLEARNING_FOLDER, AUDIT_FOLDER):
                    shutil.rmtree(folder / audits, ignore_errors=True)
            elif (folder / RECORD_FILE).exists():
                # Reject an exchanged checkpoint.
                require_whole(folder)
                about = f"{about}: training reused (--fresh repeats it), attacked again"
            with observe(run, about) as observer:
                # Repeat attacks: the folder's name identifies the code of training, but not the code of attacks.
                finished[name][seed] = execute(
                    run, graph, folder, attack=bool(threats_of(run)), observer=observer, overwrite=True, at_once=at_once
                )
    return finished


def _asks_gain(policy: Policy, federation: str) -> bool:
    return any((limit.measure, limit.federation) == (GAIN, federation) for limit in policy.limits)


def _check_limit(path: Path, limit: Limit, spec: RunSpec, graph: Any) -> None:
    """Check that a limit names an existing client, and triples of that client."""
    if limit.question.forget is not None:
        try:
            read_forget(Path(limit.question.forget), graph, limit.question.client)
        except DataError as error:
            raise SpecError(f"{path}:{limit.line}: limits.{limit.measure}.forget: {error}") from error
    if limit.measure == GAIN and limit.question.client not in (None, EACH, *(client.name for client in graph.clients)):
        names = ", ".join(client.name for client in graph.clients)
        raise SpecError(
            f"{path}:{limit.line}: limits.{limit.measure}.client: must be {EACH} or one of {names}; "
            f"got {limit.question.client!r}"
        )
    # A colluder is no victim of itself.
    colluders = () if limit.question.threat is None else spec.attack_options().colluders(graph.clients)
    victims = [client.name for client in graph.clients if client.name not in colluders]
    if limit.question.victim not in (ALL, *victims):
        raise SpecError(
            f"{path}:{limit.line}: limits.{limit.measure}.victim: must be {ALL} or one of {', '.join(victims)}; "
            f"got {limit.question.victim!r}"
        )
