"""A first policy, proposed from a run with the defense and one without: limits that the first keeps and the second breaks.

write_first_policy(Path("policy.yaml"), "consortium", 3, Path("runs"), observe=unobserved)
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from fkgsec.errors import RunError
from fkgsec.experiments.cli.progress import Observe
from fkgsec.experiments.gate.judge import code_digest, run_folder
from fkgsec.experiments.gate.measures import MEASURES, NotMeasured, Question
from fkgsec.experiments.gate.policy import threats_of
from fkgsec.experiments.gate.separation import WIDTHS, Separation, outward, separate
from fkgsec.experiments.gate.verdicts import show_figure
from fkgsec.experiments.runs.compare import folder_name
from fkgsec.experiments.runs.run import Finished, check_run, data_name, execute
from fkgsec.experiments.runs.spec import CONSORTIUM, RunSpec, make_spec
from fkgsec.experiments.runs.writing import refused, write_atomically
from fkgsec.experiments.tasks.graph import is_graph_data
from fkgsec.experiments.tasks.kge import is_knowledge_graph
from fkgsec.experiments.tasks.task import task_named, task_of

_MEMBERSHIP = "membership.auc"
_CHANCE = 0.5  # AUC of an adversary that learns nothing
_BYTES_MARGIN = 1.1
_HEAD = """\
# What this federation may leak, cost and lose. `fkgsec check {path}` trains it, attacks it, and exits with 0 when every limit
# holds, with 1 when one is broken, with 3 when the sample cannot tell. A limit is judged on its 95 % interval.
#
# Proposed by `fkgsec check --init` from two runs (seed {seed}), with the defense and without. A limit on leakage stands only
# where it tells the two apart: the first keeps it, the second breaks it. It lies two widths of the interval above what was
# measured, or in the middle where there is less room. The others are comments that say what was measured. They say what is,
# not what should be: tighten them to what you can answer for.
"""
_SEPARATES = "# Take the line `defense:` out, and these fail: {names}."
_ONLY_ADVANTAGES = """\
# The adversary gets no less in absolute terms under this defense; what shrinks is what embeddings add to what the same adversary
# could guess without them (advantage)."""
_NOTHING = """\
# NO LIMIT ON LEAKAGE NOTICES WHETHER THERE IS A DEFENSE: with it this adversary gets as much as without; see the figures below.
# This policy guards utility and bytes alone; a pass says nothing of privacy. More clients, or a defense with dp, may help."""


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
    """Run a federation on the data with secure aggregation (and private alignment) and without, and write limits that differ.

    Args:
        data, clients, partition: see `RunSpec`. runs: where the runs go, so that the first check finds them there.
        overwrite: write over a policy that is there. force: do not ask whether the runs fit into memory.

    Raises:
        RunError: the file exists or cannot be written. FkgsecError: the data cannot be read, or not attacked.
    """
    if path.exists() and not overwrite:
        raise refused(path, "is there already, and may have been edited")
    if not path.absolute().parent.is_dir():
        raise RunError(f"{path}: its folder does not exist")
    task = task_named("graph" if not is_knowledge_graph(data) and is_graph_data(data) else "kge")
    first = task.first_policy
    given = {"data": data, "clients": clients, "partition": partition, "defense": first.defense, "device": "cpu"}
    spec = make_spec(None, {"algorithm": task.spec().algorithm} | given | dict(first.settings))
    graph = spec.load_graph()
    name = folder_name(data if data == CONSORTIUM else data_name(graph)) or "federation"
    bare = spec.replace(defense="")
    for one in (spec, bare):
        check_run(one, graph, attack=True)
    defended, undefended = (_run(one, graph, name, runs, observe, at_once=0 if force else 1) for one in (spec, bare))
    write_atomically(path, "\n".join(_lines(path, name, spec, defended, undefended)).encode() + b"\n")


def _questions(spec: RunSpec, measure: str) -> list[Question]:
    """Under each threat model that the measure's attack is run under, and for each share that leaks where shares do."""
    attack = MEASURES[measure].attack
    threats = threats_of(spec, None if attack is None else attack.name)
    return [Question(threat, leak) for threat in threats for leak in getattr(spec, "leak", (None,))]


def _run(spec: RunSpec, graph: Any, name: str, runs: Path, observe: Observe, *, at_once: int) -> Finished:
    title = f"federation {name}" if spec.defense else f"federation {name} without the defense"
    with observe(spec, title) as observer:
        folder = run_folder(runs, name, spec, graph, code_digest())
        return execute(spec, graph, folder, attack=True, observer=observer, overwrite=True, at_once=at_once)


def _lines(path: Path, name: str, spec: RunSpec, run: Finished, bare: Finished) -> Iterator[str]:
    first, metric = task_of(spec).first_policy, task_of(spec).metric
    asked = [(measure, question) for measure in first.measures for question in _questions(spec, measure)]
    found = separate(run, bare, asked)
    yield _HEAD.format(path=path, seed=spec.seed) + _summary(found)
    yield ""
    yield "federations:"
    yield f"  {_yaml(name)}:"
    yield f"    data: {_yaml(spec.data)}"
    for key in ("clients", "partition"):
        if getattr(spec, key) is not None:
            yield f"    {key}: {getattr(spec, key)}"
    yield f"    algorithm: {spec.algorithm}"
    yield f"    defense: {spec.defense}  # {first.about}; take this line out to see which limits notice"
    for key, value in first.settings.items():
        yield f"    {key}: {value if not isinstance(value, list) else ', '.join(value).join('[]')}"
    yield ""
    yield "# seeds: [0, 1, 2]  # several: the mean is judged, with an interval that counts how much they differ"
    yield ""
    yield "limits:"
    for measure in first.measures:
        own = [one for one in found if one.measure == measure]
        kept = any(one.limit is not None for one in own)
        yield f"  {'' if kept else '# '}{measure}:  # {MEASURES[measure].about}"
        yield from (_leakage_line(one) for one in own)
    if MEASURES[_MEMBERSHIP].task == spec.task:
        yield _membership_line(run)
    yield _utility_line(run, f"utility.{metric}")
    rounds = MEASURES["bytes.per_round"].read(run, Question())
    size, unit = _readable_bytes(rounds.value * _BYTES_MARGIN)
    yield f"  bytes.per_round: {{max: {size} {unit}}}  # measured {show_figure(rounds, 'bytes')}, plus a tenth"
    yield "  # epsilon: {max: 8, unit: row}  # for a defense with dp"
    yield "  # no_worse_than: {baseline: baseline.json, by: 0.02}  # written by `fkgsec check --update-baseline`"


def _summary(found: Sequence[Separation]) -> str:
    """What notices when the defense is taken out, in comments; or that nothing does."""
    notice = [one for one in found if one.limit is not None]
    if not notice:
        return _NOTHING
    names = ", ".join(f"{one.measure} under {one.question.words()}" for one in notice)
    lines = _SEPARATES.format(names=names)
    absolute = any(not one.measure.endswith("_advantage") for one in notice)
    return lines if absolute else f"{lines}\n{_ONLY_ADVANTAGES}"


def _leakage_line(one: Separation) -> str:
    leak = "" if one.question.leak is None else f", leak: {one.question.leak:g}"
    where = f"threat: {one.question.threat}{leak}"
    if one.limit is None:
        return f"    # {{{where}}}: {one.why}"
    return f"    - {{max: {one.limit:g}, {where}}}  # measured {one.defended}; without the defense {one.bare}"


def _membership_line(run: Finished) -> str:
    """A limit only where nothing is shown to leak: one above what leaks today would endorse it."""
    name = _MEMBERSHIP
    try:
        figure = MEASURES[name].read(run, Question())
    except NotMeasured as reason:
        return f"  # {name}: {reason}"
    limit = outward(figure.value + WIDTHS * (figure.high - figure.low), up=True)
    if figure.low <= _CHANCE and limit < 1:
        return f"  {name}: {{max: {limit:g}}}  # measured {figure}, where {_CHANCE} is chance"
    return (
        f"  # {name}: measured {figure}, where {_CHANCE} is chance: whoever holds a client's model can tell what\n"
        "  #   it trained on. No defense of the rounds changes that. A limit above it endorses it; name one that you answer for."
    )


def _utility_line(run: Finished, name: str) -> str:
    try:
        figure = MEASURES[name].read(run, Question())
    except NotMeasured as reason:
        return f"  # {name}: {reason}"
    limit = outward(figure.value - WIDTHS * (figure.high - figure.low), up=False)
    if limit <= 0:
        return f"  # {name}: measured {figure}: no limit is left that it would keep"
    return f"  {name}: {{min: {limit:g}}}  # measured {figure}"


def _yaml(text: str) -> str:
    """A word as YAML, in quotes where it needs them."""
    return yaml.safe_dump(text, allow_unicode=True, width=math.inf).partition("\n")[0]


def _readable_bytes(count: float) -> tuple[str, str]:
    """Rounded up to two digits: 1,876,634 is 1.9 MB."""
    unit, factor = next((one for one in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)) if count >= one[1]), ("B", 1.0))
    scale = 10 ** (1 - math.floor(math.log10(count / factor)))
    return f"{math.ceil(count / factor * scale) / scale:g}", unit
