"""Proposal of a first policy from a run with the defense and one without: limits that only the defended run keeps.

A limit above both figures would accept today's leakage, and would still pass if the defense were removed.

write_first_policy(Path("policy.yaml"), "consortium", 3, Path("runs"), observe=unobserved)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import yaml

from fkgsec.errors import RunError
from fkgsec.estimate import Estimate
from fkgsec.experiments.cli.progress import Observe
from fkgsec.experiments.gate.audits import alone_of
from fkgsec.experiments.gate.folders import code_digest, run_folder
from fkgsec.experiments.gate.measures import EACH, GAIN, MEASURES, NotMeasured, Question
from fkgsec.experiments.gate.policy import threats_of
from fkgsec.experiments.gate.verdicts import show_figure
from fkgsec.experiments.runs.compare import folder_name
from fkgsec.experiments.runs.run import Finished, check_run, data_name, execute
from fkgsec.experiments.runs.spec import CONSORTIUM, RunSpec, make_spec
from fkgsec.experiments.runs.writing import refused, write_atomically
from fkgsec.experiments.tasks.graph import is_graph_data
from fkgsec.experiments.tasks.kge import is_knowledge_graph
from fkgsec.experiments.tasks.task import task_named, task_of

_MEMBERSHIP = "membership.auc"
# Least gap between the intervals with and without the defense; the next training could close a smaller one.
ROOM = 0.01
# Distance of a limit from the measured value, in widths of its interval, if there is room.
WIDTHS = 2
# AUC of an adversary that learns nothing.
_CHANCE = 0.5
_BYTES_MARGIN = 1.1
_HEAD = """\
# Limits on leakage, utility and cost. `fkgsec check {path}` trains the federation, attacks it, and exits with 0 if it keeps every
# limit, with 1 if it breaks one, and with 3 if the data cannot decide. Each limit is compared with the 95% interval.
#
# Proposed by `fkgsec check --init` from two runs (seed {seed}): with the defense and without. A leakage limit is active only if
# the run with the defense keeps it and the run without breaks it. It lies two interval widths above the measured value, or
# halfway between both runs if there is less room. Comments show figures that cannot separate the two runs. All limits follow
# what was measured, not what is acceptable: tighten them to what you can justify.
"""
_SEPARATES = "# Without the line `defense:`, these limits fail: {names}."
_ONLY_ADVANTAGES = """\
# This defense does not lower the figures themselves. It lowers the advantage: the figure minus what the same adversary could
# guess without the messages."""
_NOTHING = """\
# NO LEAKAGE LIMIT SEPARATES THE RUN WITH THE DEFENSE FROM THE RUN WITHOUT: this adversary learns as much from both (see the
# figures below). This policy limits only utility and bytes; a pass says nothing about privacy. More clients, or a defense with
# dp, may help."""


class Separation(NamedTuple):
    """Figure with and without the defense.

    Attributes:
        measure: name of the measure.
        question: threat model and leak.
        defended: figure with the defense; None if not measured, for the reason in `why`.
        bare: figure without the defense; None if not measured.
        limit: value that the defended federation keeps and the bare one breaks; None if there is none, for the reason
            in `why`.
    """

    measure: str
    question: Question
    defended: Estimate | None
    bare: Estimate | None
    limit: float | None
    why: str


def separate(defended: Finished, bare: Finished, candidates: Iterable[tuple[str, Question]]) -> list[Separation]:
    """Measure each candidate on both runs.

    Args:
        defended: the run with the defense.
        bare: the run without it.
        candidates: measures and questions; all measures are shares, and less is better.
    """
    return [_separate(defended, bare, measure, question) for measure, question in candidates]


def _separate(defended: Finished, bare: Finished, measure: str, question: Question) -> Separation:
    figures: list[Estimate | None] = []
    reasons = []
    for run, which in ((defended, "with the defense"), (bare, "without it")):
        try:
            figures.append(MEASURES[measure].read(run, question))
        except NotMeasured as reason:
            figures.append(None)
            reasons.append(f"not measured {which}: {reason}")
    with_it, without = figures
    if with_it is None or without is None:
        return Separation(measure, question, with_it, without, None, "; ".join(reasons))
    # The whole interval must lie on one side of a limit, see `verdicts.judge`.
    passes, fails = with_it.high, without.low
    if reach := MEASURES[measure].reach:
        # A guess alone may break a limit, and a limit at or above the upper bound is vacuous.
        least, most, _ = reach(defended, question)
        passes = max(passes, least)
        fails = min(max(fails, reach(bare, question).least), math.inf if most is None else most)
    limit = limit_between(with_it, passes, fails)
    why = "" if limit is not None else f"does not separate the runs: {with_it} with the defense, {without} without"
    return Separation(measure, question, with_it, without, limit, why)


def limit_between(figure: Estimate, passes: float, fails: float) -> float | None:
    """Return a limit with three decimals between two bounds; None if they are closer than `ROOM`.

    Args:
        figure: figure of the defended run. The limit lies two widths of its interval above it, but not beyond the middle.
        passes: smallest limit that the defended run keeps.
        fails: smallest limit that the bare run keeps.

    >>> limit_between(Estimate(0.34, 0.32, 0.36, 100, "wilson"), 0.36, 0.60)
    0.42
    >>> limit_between(Estimate(0.34, 0.32, 0.36, 100, "wilson"), 0.36, 0.40)
    0.38
    """
    if fails - passes < ROOM:
        return None
    away = figure.value + WIDTHS * (figure.high - figure.low)
    limit = outward(min(max(away, passes), (passes + fails) / 2), up=True)
    return limit if passes < limit < min(fails, 1.0) and limit > 0 else None


def outward(share: float, *, up: bool) -> float:
    """Round to three decimals, away from the figure.

    Args:
        share: a limit.
        up: round up, for an upper limit.
    """
    # 0.38 * 1000 is 380.00000000000006.
    scaled = round(share * 1000, 9)
    return (math.ceil(scaled) if up else math.floor(scaled)) / 1000


def write_first_policy(
    path: Path,
    data: str,
    clients: int | None,
    runs: Path,
    *,
    observe: Observe,
    partition: str | None = None,
    overwrite: bool = False,
    force: bool = False,
) -> None:
    """Run a federation with secure aggregation (and private alignment) and without, and write limits that separate the two.

    Args:
        path: the policy to write.
        data: see `RunSpec`.
        clients: see `RunSpec`.
        runs: folder of the runs, in which the first check finds them.
        observe: gives each run its observer.
        partition: see `RunSpec`.
        overwrite: replace an existing policy.
        force: skip the check that runs fit into memory.

    Raises:
        RunError: the file exists or cannot be written.
        FkgsecError: the data cannot be read, or cannot be attacked.
    """
    if path.exists() and not overwrite:
        raise refused(path, "exists, and may have been edited")
    if not path.absolute().parent.is_dir():
        raise RunError(f"{path}: its folder does not exist")
    task = task_named("graph" if not is_knowledge_graph(data) and is_graph_data(data) else "kge")
    # Defaults of the task: a quick run that still leaks something.
    first = task.first_policy
    options = {"data": data, "clients": clients, "partition": partition, "defense": first.defense, "device": "cpu"}
    spec = make_spec(None, {"algorithm": task.spec().algorithm} | options | dict(first.settings))
    graph = spec.load_graph()
    name = folder_name(data if data == CONSORTIUM else data_name(graph)) or "federation"
    bare = spec.replace(defense="")
    for run in (spec, bare):
        check_run(run, graph, attack=True)
    finished = []
    for run in (spec, bare):
        title = f"federation {name}" if run.defense else f"federation {name} without the defense"
        with observe(run, title) as observer:
            folder, at_once = run_folder(runs, name, run, graph, code_digest()), 0 if force else 1
            finished.append(
                execute(run, graph, folder, attack=True, observer=observer, overwrite=True, at_once=at_once)
            )
    # The proposed limit on the gain needs the clients alone, trained before the policy is written.
    alone_of(finished[0], Question(), observe)
    write_atomically(path, "\n".join(_lines(path, name, spec, *finished)).encode() + b"\n")


def _lines(path: Path, name: str, spec: RunSpec, run: Finished, bare: Finished) -> Iterator[str]:
    first, metric = task_of(spec).first_policy, task_of(spec).metric
    candidates = []
    for measure in first.measures:
        attack = MEASURES[measure].attack
        threats = threats_of(spec, None if attack is None else attack.name)
        candidates += [
            (measure, Question(threat, leak)) for threat in threats for leak in getattr(spec, "leak", (None,))
        ]
    separations = separate(run, bare, candidates)
    yield _HEAD.format(path=path, seed=spec.seed) + _summary(separations)
    yield ""
    yield "federations:"
    yield f"  {_yaml(name)}:"
    yield f"    data: {_yaml(spec.data)}"
    for key in ("clients", "partition"):
        if getattr(spec, key) is not None:
            yield f"    {key}: {getattr(spec, key)}"
    yield f"    algorithm: {spec.algorithm}"
    yield f"    defense: {spec.defense}  # {first.about}; without this line, the active leakage limits fail"
    for key, value in first.settings.items():
        yield f"    {key}: {value if not isinstance(value, list) else ', '.join(value).join('[]')}"
    yield ""
    yield "# seeds: [0, 1, 2]  # several seeds: fkgsec judges the mean, and the interval covers the differences between trainings"
    yield ""
    yield "limits:"
    for measure in first.measures:
        of_measure = [separation for separation in separations if separation.measure == measure]
        notices = any(separation.limit is not None for separation in of_measure)
        yield f"  {'' if notices else '# '}{measure}:  # {MEASURES[measure].about}"
        for separation in of_measure:
            question, defended, undefended = separation.question, separation.defended, separation.bare
            leak = "" if question.leak is None else f", leak: {question.leak:g}"
            where = f"threat: {question.threat}{leak}"
            if separation.limit is None:
                yield f"    # {{{where}}}: {separation.why}"
            else:
                figures = f"measured {defended}; without the defense {undefended}"
                yield f"    - {{max: {separation.limit:g}, {where}}}  # {figures}"
    if MEASURES[_MEMBERSHIP].task == spec.task:
        yield _membership_line(run)
    yield _utility_line(run, f"utility.{metric}")
    yield _gain_line(run)
    rounds = MEASURES["bytes.per_round"].read(run, Question())
    size, unit = _readable_bytes(rounds.value * _BYTES_MARGIN)
    yield f"  bytes.per_round: {{max: {size} {unit}}}  # measured {show_figure(rounds, 'bytes')}, plus a tenth"
    yield "  # epsilon: {max: 8, unit: row}  # for a defense with dp"
    yield "  # no_worse_than: {baseline: baseline.json, by: 0.02}  # written by `fkgsec check --update-baseline`"


def _summary(separations: Sequence[Separation]) -> str:
    """Return comments that name the limits which depend on the defense, or state that none does."""
    notice = [separation for separation in separations if separation.limit is not None]
    if not notice:
        return _NOTHING
    names = ", ".join(f"{separation.measure} under {separation.question.words()}" for separation in notice)
    lines = _SEPARATES.format(names=names)
    absolute = any(not separation.measure.endswith("_advantage") for separation in notice)
    return lines if absolute else f"{lines}\n{_ONLY_ADVANTAGES}"


def _membership_line(run: Finished) -> str:
    """Propose a limit only if no leak is shown: a limit above today's leakage would accept it."""
    name = _MEMBERSHIP
    try:
        figure = MEASURES[name].read(run, Question())
    except NotMeasured as reason:
        return f"  # {name}: {reason}"
    # Two widths above the measured value: another seed should still pass.
    limit = outward(figure.value + WIDTHS * (figure.high - figure.low), up=True)
    if figure.low <= _CHANCE and limit < 1:
        return f"  {name}: {{max: {limit:g}}}  # measured {figure}, where {_CHANCE} is chance"
    return (
        f"  # {name}: measured {figure}, where {_CHANCE} is chance: anyone who holds a client's model can infer its\n"
        "  #   training triples. Defenses of the rounds do not change that. A higher limit accepts it; set one you can justify."
    )


def _utility_line(run: Finished, name: str) -> str:
    try:
        figure = MEASURES[name].read(run, Question())
    except NotMeasured as reason:
        return f"  # {name}: {reason}"
    limit = outward(figure.value - WIDTHS * (figure.high - figure.low), up=False)
    if limit <= 0:
        return f"  # {name}: measured {figure}: a limit two interval widths below would be 0 or less"
    return f"  {name}: {{min: {limit:g}}}  # measured {figure}"


def _gain_line(run: Finished) -> str:
    """Propose a limit only if joining is shown to pay: a limit below 0 would accept a loss."""
    try:
        figure = MEASURES[GAIN].read(run, Question())
    except NotMeasured as reason:
        return f"  # {GAIN}: {reason}"
    if figure.low > 0:
        limit = max(0.0, outward(figure.value - WIDTHS * (figure.high - figure.low), up=False))
        return f"  {GAIN}: {{min: {limit:g}}}  # measured {figure}; with client: {EACH} it holds for every client"
    return (
        f"  # {GAIN}: measured {figure}: no gain over the same clients alone is shown\n"
        "  #   in this quick run. {min: 0} demands that joining does no harm."
    )


def _yaml(text: str) -> str:
    """Return a word as YAML, in quotes if necessary."""
    return yaml.safe_dump(text, allow_unicode=True, width=math.inf).partition("\n")[0]


def _readable_bytes(count: float) -> tuple[str, str]:
    """Round up to two digits: 1,876,634 becomes 1.9 MB."""
    unit, factor = next((size for size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)) if count >= size[1]), ("B", 1.0))
    scale = 10 ** (1 - math.floor(math.log10(count / factor)))
    return f"{math.ceil(count / factor * scale) / scale:g}", unit
