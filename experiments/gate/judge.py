"""The policy gate: train and attack what a policy names, judge every limit, and say what a build system needs to know.

    checked = check_policy(read_policy(Path("policy.yaml")), Path("runs"), observe=unobserved, warn=print)
    sys.exit(exit_status(checked.status, "report"))

Runs lie below one folder and are found again by their data, options, device and the code that made them. A run of other code
is never reused: a change of code is what the gate is there to judge. Attacks are always done anew, on the checkpoint.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from fkgsec.attacks.view import ALL
from fkgsec.errors import DataError, SpecError
from fkgsec.experiments.cli.progress import Observe
from fkgsec.experiments.gate import SCHEMA, WhenInconclusive
from fkgsec.experiments.gate.audits import alone_folder
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
    """A policy, judged: everything that a report is made from. It has no clock in it: the same commit, the same bytes.

    Attributes:
        commit, dirty, versions: of fkgsec. data: the hash of each federation's data, by seed.
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
        runs: folder that each run gets one of its own in.
        observe: gives each run, and what an audit trains, its observer. warn: told what a reader must know of the data.
        fresh: train again what is there already.
        update_baseline: write the figures of these runs as the new baseline, and compare with that.
        num_examples: see `Runs`.
        force: do not ask whether runs fit into memory.

    Raises:
        FkgsecError: wrong input, said before anything is trained.
    """
    if update_baseline and policy.no_worse is None:
        raise SpecError(f"{policy.path}: limits.{NO_WORSE}: missing; --update-baseline writes the file that it names")
    graphs = load_graphs(policy)
    hashes = {name: {seed: graph.hash for seed, graph in by_seed.items()} for name, by_seed in graphs.items()}
    baseline = None
    if policy.no_worse and not update_baseline:
        baseline = read_baseline(policy.no_worse.baseline)
        check_comparable(policy.no_worse.baseline, baseline, policy, hashes)
    all_graphs = [(policy.federations[name], graph) for name, by_seed in graphs.items() for graph in by_seed.values()]
    for line in dict.fromkeys(line for spec, graph in all_graphs for line in warnings_of(spec, graph)):
        warn(line)
    finished = run_policy(policy, graphs, runs, observe=observe, fresh=fresh, at_once=0 if force else 1)
    environment = next(one.record.environment for by_seed in finished.values() for one in by_seed.values())
    if policy.no_worse and update_baseline:
        baseline = make_baseline(policy, finished, environment)
        write_baseline(policy.no_worse.baseline, baseline)
    for limit in policy.limits:
        for run in finished[limit.federation].values():
            if audit := MEASURES[limit.measure].audit:
                with contextlib.suppress(DataError):  # raised again where the figure is read
                    audit(run, limit.question, observe)
    judged = {name: Runs(by_seed, num_examples) for name, by_seed in finished.items()}
    verdicts = [judge_limit(limit, judged[limit.federation]) for limit in policy.limits]
    if policy.no_worse and baseline:
        for name, one in judged.items():
            verdicts += judge_no_worse(policy, policy.no_worse, baseline, name, one)
    status = overall([verdict.status for verdict in verdicts])
    # Relative to where the gate runs, the repository's root in a build: where it lies on the machine is not shown.
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
    """Return 0, 1 or 3; inconclusive counts as `when_inconclusive` says, and a limit that nothing can break never as pass.

    >>> exit_status("inconclusive", "report"), exit_status("inconclusive", "fail"), exit_status("fail", "pass")
    (3, 1, 1)
    """
    if status == "vacuous":
        status = "fail" if when_inconclusive == "fail" else "inconclusive"
    elif status == "inconclusive" and when_inconclusive != "report":
        status = when_inconclusive
    return {"pass": 0, "fail": 1, "inconclusive": 3}[status]


def load_graphs(policy: Policy) -> Graphs:
    """Load the graphs of every federation and seed, when every run and limit makes sense on them.

    Raises:
        FkgsecError: the data cannot be read, a defense or a threat model does not fit them, or a limit names no victim.
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
    """Train what is not trained yet (a killed run goes on), and attack all of it; by federation and seed.

    Args:
        at_once: see `execute`.
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
            elif (folder / RECORD_FILE).exists():
                require_whole(folder)  # a checkpoint that was put in the place of another is not judged
                about = f"{about}: training reused (--fresh trains it anew), attacked again"
            with observe(run, about) as observer:
                # Attacks are made anew: the code that trained is part of the folder's name, the code that attacks is not.
                finished[name][seed] = execute(
                    run, graph, folder, attack=bool(threats_of(run)), observer=observer, overwrite=True, at_once=at_once
                )
    return finished


def _asks_gain(policy: Policy, federation: str) -> bool:
    return any((limit.measure, limit.federation) == (GAIN, federation) for limit in policy.limits)


def _check_limit(path: Path, limit: Limit, spec: RunSpec, graph: Any) -> None:
    """Check that a limit names a client that exists, and triples that it holds."""
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
    colluders = () if limit.question.threat is None else spec.attack_options().colluders(graph.clients)
    victims = [client.name for client in graph.clients if client.name not in colluders]
    if limit.question.victim not in (ALL, *victims):
        raise SpecError(
            f"{path}:{limit.line}: limits.{limit.measure}.victim: must be {ALL} or one of {', '.join(victims)}; "
            f"got {limit.question.victim!r}"
        )
