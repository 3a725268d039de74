"""A first policy, proposed from a measured run: each limit two widths of its interval away from what was measured."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import yaml

from experiments.compare import folder_name
from experiments.gate.judge import code_digest, run_folder
from experiments.gate.measures import MEASURES, NotMeasured, Question
from experiments.gate.policy import threats_of
from experiments.gate.verdicts import show_figure
from experiments.progress import Observe
from experiments.record import write_atomically
from experiments.run import Finished, check_run, execute
from experiments.spec import CONSORTIUM, Spec
from experiments.writing import refused
from fkgsec.errors import RunError

_WIDTHS = 2
_BYTES_MARGIN = 1.1
# About a minute on two cores for data of the embedded size; large steps, so that the embeddings have something to leak.
_SETTINGS = {"rounds": 20, "dim": 32, "num_negatives": 64, "learning_rate": 0.01, "unlinked_heads": 0}
_HEAD = """\
# What this federation may leak, cost and lose. `fkgsec check {path}` trains it, attacks it, and exits with 0 when every limit
# holds, with 1 when one is broken, with 3 when the sample cannot tell. A limit is judged on its 95 % interval.
#
# Proposed by `fkgsec check --init` from one run (seed {seed}). Each limit lies two widths of the interval away from what was
# measured then, too far for chance to break it. They say what is, not what should be: take the defense out once to see
# whether they notice, and tighten them to what you can answer for.
"""


def write_first_policy(
    path: Path, data: str, clients: int | None, runs: Path, *, observe: Observe, overwrite: bool = False
) -> None:
    """Run a federation on the data with private alignment and secure aggregation, and write limits that it keeps.

    Args:
        data, clients: see `Spec`. runs: where the run goes, so that the first check finds it there.
        overwrite: write over a policy that is there.

    Raises:
        RunError: the file exists or cannot be written. FkgsecError: the data cannot be read, or not attacked.
    """
    if path.exists() and not overwrite:
        raise refused(path, "is there already, and may have been edited")
    if not path.absolute().parent.is_dir():
        raise RunError(f"{path}: its folder does not exist")
    spec = Spec(data=data, clients=clients, defense="psu,secagg", device="cpu", **_SETTINGS)
    graph = spec.load_graph()
    check_run(spec, graph, attack=True)
    name = folder_name(data if data == CONSORTIUM else Path(graph.name).stem) or "federation"
    with observe(spec, f"federation {name}") as observer:
        folder = run_folder(runs, name, spec, graph, code_digest())
        run = execute(spec, graph, folder, attack=True, observer=observer, overwrite=True)
    write_atomically(path, "\n".join(_lines(path, name, spec, run)).encode() + b"\n")


def _lines(path: Path, name: str, spec: Spec, run: Finished) -> Iterator[str]:
    yield _HEAD.format(path=path, seed=spec.seed)
    yield "federations:"
    yield f"  {_yaml(name)}:"
    yield f"    data: {_yaml(spec.data)}"
    if spec.clients is not None:
        yield f"    clients: {spec.clients}"
    yield f"    algorithm: {spec.algorithm}"
    yield f"    defense: {spec.defense}  # private alignment, secure sums; take this line out, and see which limits notice"
    for key, value in _SETTINGS.items():
        yield f"    {key}: {value}"
    yield ""
    yield "# seeds: [0, 1, 2]  # several: the mean is judged, with an interval that counts how much they differ"
    yield ""
    yield "limits:"
    for measure in ("reconstruction.trr", "reconstruction.err"):
        proposed = [
            line
            for threat in threats_of(spec)
            for leak in spec.leak
            for line in _attack_limit(run, measure, threat, leak)
        ]
        kept = any(not line.lstrip().startswith("#") for line in proposed)
        yield f"  {'' if kept else '# '}{measure}:  # {MEASURES[measure].about}"
        yield from proposed
    yield from _simple_limit(run, "membership.auc")
    yield from _simple_limit(run, "utility.mrr")
    rounds = MEASURES["bytes.per_round"].read(run, Question())
    size, unit = _readable_bytes(rounds.value * _BYTES_MARGIN)
    yield f"  bytes.per_round: {{max: {size} {unit}}}  # measured {show_figure(rounds, 'bytes')}, plus a tenth"
    yield "  # epsilon: {max: 8, unit: row}  # for a defense with dp"
    yield "  # no_worse_than: {baseline: baseline.json, by: 0.02}  # written by `fkgsec check --update-baseline`"


def _attack_limit(run: Finished, measure: str, threat: str, leak: float) -> Iterator[str]:
    try:
        figure = MEASURES[measure].read(run, Question(threat, leak))
    except NotMeasured as reason:
        yield f"    # {threat}, leak {leak:g}: {reason}"
        return
    reach = MEASURES[measure].reach
    least = reach(run, Question(threat, leak)).least if reach else 0.0
    limit = _outward(max(figure.value, least) + _WIDTHS * (figure.high - figure.low), up=True)
    keys = f"{{max: {limit:g}, threat: {threat}, leak: {leak:g}}}"
    if limit < 1:
        yield f"    - {keys}  # measured {figure}"
    else:
        yield f"    # {threat}, leak {leak:g}: measured {figure}: no limit is left that it would keep"


def _simple_limit(run: Finished, measure: str) -> Iterator[str]:
    try:
        figure = MEASURES[measure].read(run, Question())
    except NotMeasured as reason:
        yield f"  # {measure}: {reason}"
        return
    bound = MEASURES[measure].bound
    away = _WIDTHS * (figure.high - figure.low) * (1 if bound == "max" else -1)
    limit = _outward(figure.value + away, up=bound == "max")
    if 0 < limit < 1:
        yield f"  {measure}: {{{bound}: {limit:g}}}  # measured {figure}"
    else:
        yield f"  # {measure}: measured {figure}: no limit is left that it would keep"


def _yaml(text: str) -> str:
    """A word as YAML, in quotes where it needs them."""
    return yaml.safe_dump(text, allow_unicode=True, width=math.inf).partition("\n")[0]


def _outward(share: float, *, up: bool) -> float:
    """Three decimals, away from what was measured."""
    return (math.ceil(share * 1000) if up else math.floor(share * 1000)) / 1000


def _readable_bytes(count: float) -> tuple[str, str]:
    """Rounded up to two digits: 1,876,634 is 1.9 MB."""
    unit, factor = next((one for one in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)) if count >= one[1]), ("B", 1.0))
    scale = 10 ** (1 - math.floor(math.log10(count / factor)))
    return f"{math.ceil(count / factor * scale) / scale:g}", unit
