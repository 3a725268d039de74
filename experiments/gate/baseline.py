"""Figures of an earlier commit, stored next to the policy, and how much worse a run is.

    write_baseline(path, make_baseline(policy, cells, environment))     # cells: finished runs by federation and seed
    worse_by(finished, read_baseline(path).federations["hospitals"][0], key, measure, question)   # with its interval

A baseline is trusted like the policy itself. Figures that contradict themselves or the data are rejected, but figures
that were merely written worse than they were cannot be detected. Keep the file under version control and review its
changes.

Each leakage figure comes with the items that were correct, so that two runs are compared item by item. This detects a
difference in a few items that would be far below the width of either interval.
"""

from __future__ import annotations

import base64
import math
import zlib
from collections.abc import Mapping
from pathlib import Path

import msgspec
import numpy as np
import pandas as pd

from fkgsec.attacks.options import RECONSTRUCTION
from fkgsec.attacks.registry import ATTACKS, attacked_task
from fkgsec.attacks.view import ALL
from fkgsec.errors import RunError
from fkgsec.estimate import Estimate, exact
from fkgsec.experiments.gate.measures import (
    ADVANTAGE,
    ITEMISED,
    MEASURES,
    NotMeasured,
    Question,
    attacked_items,
    item_ends,
)
from fkgsec.experiments.gate.policy import Policy, figure_id, threats_of
from fkgsec.experiments.runs.intervals import paired_difference
from fkgsec.experiments.runs.record import Environment
from fkgsec.experiments.runs.run import Finished
from fkgsec.experiments.runs.writing import write_atomically
from fkgsec.experiments.tasks.task import task_of

SCHEMA = "fkgsec/baseline/1"
_ROUNDING = 1e-9


class BaselineRun(msgspec.Struct, frozen=True):
    """Federation with a single seed.

    Attributes:
        figures: every figure by its ID.
        items: correct items of attacks' figures, packed bits.
    """

    seed: int
    data_hash: str
    figures: dict[str, Estimate]
    items: dict[str, str]


class Baseline(msgspec.Struct, frozen=True):
    """Content of the file that `fkgsec check --update-baseline` writes."""

    schema: str
    commit: str | None
    dirty: bool | None
    versions: dict[str, str]
    federations: dict[str, list[BaselineRun]]


def compared_figures(policy: Policy, federation: str) -> dict[str, tuple[str, Question]]:
    """Return the figures that must not get worse: utility, all bytes, ERR, TRR and their advantages under every threat model.

    For graphs: the first figure of each attack. Also every figure of another attack that the policy limits. ERR and TRR alone
    would not reveal the removal of a defense under which guessing is as good as attacking without it.

    Args:
        policy: federations and limits.

    Returns:
        Measure and question by the figure's ID.
    """
    spec = policy.federations[federation]
    # Every policy guards utility and bytes, even if it limits only leakage.
    questions = [(f"utility.{task_of(spec).metric}", Question()), ("bytes.total", Question())]
    if spec.task != ATTACKS[RECONSTRUCTION].task:
        for name in spec.attack or attacked_task(spec.algorithm).default(spec.algorithm):
            first = next(iter(ATTACKS[name].metrics))
            questions += [(f"{name}.{first}", Question(threat, None, ALL)) for threat in threats_of(spec, name)]
    for threat in threats_of(spec):
        for leak in getattr(spec, "leak", ()):
            names = [f"{measure}{suffix}" for suffix in ("", ADVANTAGE) for measure in ITEMISED]
            questions += [(measure, Question(threat, leak, ALL)) for measure in names]
    # Limits may concern attacks that are not among the default ones.
    for limit in policy.limits:
        attack = MEASURES[limit.measure].attack
        if limit.federation == federation and attack is not None and attack.name != RECONSTRUCTION:
            questions.append((limit.measure, limit.question))
    return {figure_id(federation, *question): question for question in questions}


def make_baseline(policy: Policy, cells: Mapping[str, Mapping[int, Finished]], environment: Environment) -> Baseline:
    """Build a baseline from finished runs. Unmeasured figures are left out, and fail in later comparisons.

    Args:
        policy: federations and limits.
        cells: finished runs by federation and seed.
        environment: commit and versions of these runs.
    """
    federations = {}
    for name, by_seed in cells.items():
        runs = []
        for seed, finished in by_seed.items():
            figures, items = {}, {}
            for key, (measure, question) in compared_figures(policy, name).items():
                try:
                    figures[key] = MEASURES[measure].read(finished, question)
                # A later comparison then fails, instead of silently skipping the figure.
                except NotMeasured:
                    continue
                if len(counted := _counted_items(finished, measure, question)):
                    # One bit per item, because the file is kept under version control.
                    bits = np.packbits(counted["right"].to_numpy(dtype=bool)).tobytes()
                    items[key] = base64.b64encode(zlib.compress(bits, 9)).decode()
            runs.append(BaselineRun(seed, finished.record.data.hash, figures, items))
        federations[name] = runs
    return Baseline(SCHEMA, environment.commit, environment.dirty, environment.versions, federations)


def _rate_key(key: str) -> str:
    """Return the ID of the figure behind an advantage; any other figure's ID is returned unchanged."""
    federation, measure, *question = key.split("/")
    return "/".join((federation, measure.removesuffix(ADVANTAGE), *question))


def _counted_items(finished: Finished, measure: str, question: Question) -> pd.DataFrame:
    """Return the items whose share is ERR or TRR; none if guessing is better, because a guess is an expectation."""
    items = attacked_items(finished, measure, question)
    if not len(items):
        return items
    share = float(items["right"].to_numpy(dtype=bool).mean())
    counted = abs(share - MEASURES[measure].read(finished, question).value) <= _ROUNDING
    return items if counted else items.iloc[:0]


def write_baseline(path: Path, baseline: Baseline) -> None:
    """Write a baseline as indented JSON. Raises `RunError`."""
    write_atomically(path, msgspec.json.format(msgspec.json.encode(baseline), indent=2) + b"\n")


def read_baseline(path: Path) -> Baseline:
    """Read a baseline file.

    Args:
        path: file of `fkgsec check --update-baseline`.

    Raises:
        RunError: the file is missing, damaged, of another schema, or has a figure that no run can give.
    """
    try:
        baseline = msgspec.json.decode(path.read_bytes(), type=Baseline)
    except OSError as error:
        raise RunError(
            f"{path}: the baseline cannot be read ({error.strerror}); create it with --update-baseline"
        ) from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RunError(f"{path}: not a baseline of schema {SCHEMA} ({error})") from error
    if baseline.schema != SCHEMA:
        raise RunError(f"{path}: not a baseline of schema {SCHEMA}, but of {baseline.schema!r}")
    for runs in baseline.federations.values():
        for run in runs:
            for key in [*run.figures, *(run.items.keys() - run.figures.keys())]:
                if wrong := _contradiction(run, key):
                    raise RunError(
                        f"{path}: seed {run.seed}: {key}: {wrong}; no run produces this value; renew it with --update-baseline"
                    )
    return baseline


def _contradiction(run: BaselineRun, key: str) -> str | None:
    """Return the impossible property of a figure in the baseline, as a phrase; None if the figure may be true."""
    if key not in run.figures:
        return "has items, but no figure"
    figure, measure = run.figures[key], MEASURES.get(key.split("/")[1] if "/" in key else "")
    if measure is None:
        return f"unknown measure; measures: {', '.join(MEASURES)}"
    if not figure.low <= figure.value <= figure.high or math.isinf(figure.low) or math.isinf(figure.high):
        return f"the value {figure.value:g} is not inside its interval [{figure.low:g}, {figure.high:g}]"
    # An advantage may be negative down to -1; shares may not.
    rate_key = _rate_key(key)
    least = -1 if rate_key != key else 0
    if figure.low < least or (measure.kind == "share" and figure.high > 1):
        return (
            f"[{figure.low:g}, {figure.high:g}] is not a range of a {'share' if measure.kind == 'share' else 'number'}"
        )
    if figure.n < 1:
        return f"rests on {figure.n} items"
    if rate_key != key and (rate := run.figures.get(rate_key)) is not None:
        # An advantage is the rate minus a guess, which shifts the whole interval.
        guess = rate.value - figure.value
        moved = max(abs(rate.low - figure.low - guess), abs(rate.high - figure.high - guess))
        if not -_ROUNDING <= guess <= 1 + _ROUNDING or moved > _ROUNDING:
            return f"the advantage is {figure.value:g}, which no guess leaves of {rate}"
    if key not in run.items:
        return None
    try:
        # The stored items must give the stored figure: an edited figure would otherwise pass.
        right = int(_unpack(run.items[key], figure.n).sum())
    except RunError as error:
        return str(error)
    if abs(right / figure.n - figure.value) > _ROUNDING:
        return f"the figure is {figure.value:g}, but {right} of its {figure.n} items are right"
    return None


def check_comparable(path: Path, baseline: Baseline, policy: Policy, hashes: Mapping[str, Mapping[int, str]]) -> None:
    """Check before training that a baseline has the policy's federations, seeds and data.

    Args:
        path: file of the baseline.
        policy: federations and seeds.
        hashes: data hash by federation and seed.

    Raises:
        RunError: they differ, so that a comparison would be meaningless.
    """
    if set(baseline.federations) != set(policy.federations):
        names = ", ".join(baseline.federations)
        raise RunError(f"{path}: has other federations than the policy ({names}); renew it with --update-baseline")
    for name, runs in baseline.federations.items():
        if [run.seed for run in runs] != list(policy.seeds[name]):
            seeds = ", ".join(str(run.seed) for run in runs)
            raise RunError(f"{path}: {name} has other seeds ({seeds}); renew it with --update-baseline")
        for run in runs:
            if run.data_hash != hashes[name][run.seed]:
                raise RunError(
                    f"{path}: {name}, seed {run.seed}: the data have changed since (hash {run.data_hash[:8]}, now "
                    f"{hashes[name][run.seed][:8]}); renew it with --update-baseline"
                )


def whole_range(finished: Finished, then: BaselineRun, key: str, measure: str, question: Question) -> float:
    """Return how much worse a figure can get: utility down to 0, ERR and TRR from 0 to the attainable value; inf if unknown.

    For ERR and TRR the whole range counts, not the rest above the earlier figure. A figure that leaks everything cannot
    get worse, whatever `by` is, and stays in the comparison.

    Args:
        finished: the run.
        then: the baseline's run of the same seed.
        key: ID of the figure.
    """
    if measure.startswith("utility."):
        return then.figures[key].value
    most = _attainable(finished, measure, question)
    return math.inf if most is None else most


def _attainable(finished: Finished, measure: str, question: Question) -> float | None:
    """Return the upper bound of an attack's figure; None for other figures, and if the record does not state it."""
    reach = MEASURES[measure].reach
    return reach(finished, question).most if reach and not measure.endswith(ADVANTAGE) else None


def worse_by(finished: Finished, then: BaselineRun, key: str, measure: str, question: Question) -> Estimate:
    """Return how much worse a figure is: a share of items, or for bytes a share of the earlier number; negative if better.

    Equal figures on equal data differ by exactly 0. Others are compared item by item if the items are known. Otherwise,
    and if one of the two is a guess, they are compared as two independent samples.

    Args:
        finished: the run.
        then: the baseline's run of the same seed.
        key: ID of the figure.

    Raises:
        NotMeasured: one of the two figures does not exist.
    """
    now = MEASURES[measure].read(finished, question)
    if key not in then.figures:
        raise NotMeasured("the baseline does not have this figure; renew it with --update-baseline")
    earlier = then.figures[key]
    most = _attainable(finished, measure, question)
    if most is not None and earlier.value > most + _ROUNDING:
        raise NotMeasured(
            f"the baseline has {earlier.value:.4f}, but on the same data the adversary can reach at most {most:.4f} now; "
            "review and renew the baseline"
        )
    # Equal seeds on equal code give equal bits; then there is no sampling error to consider.
    if now == earlier:
        return exact(0.0, now.n)
    if MEASURES[measure].kind == "bytes":
        return exact(now.value / earlier.value - 1 if earlier.value else float(now.value > 0), 1)
    if MEASURES[measure].bound == "min":  # less is worse
        # From here on, more is worse.
        now, earlier = _negated(now), _negated(earlier)
    value = now.value - earlier.value
    rate = measure.removesuffix(ADVANTAGE)
    packed = then.items.get(_rate_key(key))
    if packed is not None and earlier.n != now.n:
        raise NotMeasured(f"the baseline has {earlier.n:,} items, now there are {now.n:,}; renew it")
    if packed is not None and len(items := _counted_items(finished, rate, question)):
        earlier_right = _unpack(packed, len(items))
        paired = paired_difference(items["right"].to_numpy(dtype=bool), earlier_right, item_ends(items))
        # Both runs leak the same entities, so only the paired items contribute to the error.
        return Estimate(
            value, value + paired.low - paired.value, value + paired.high - paired.value, paired.n, paired.method
        )
    low = value - math.hypot(now.value - now.low, earlier.high - earlier.value)
    high = value + math.hypot(now.high - now.value, earlier.value - earlier.low)
    return Estimate(value, low, high, now.n, "two samples")


def _negated(figure: Estimate) -> Estimate:
    return Estimate(-figure.value, -figure.high, -figure.low, figure.n, figure.method)


def _unpack(packed: str, count: int) -> np.ndarray:
    """Return the correct items, bool `[count]`. Raises `RunError` if the text does not have exactly `count` items."""
    try:
        # Stop one byte after the expected length: a damaged file must not expand without bound.
        content = zlib.decompressobj().decompress(base64.b64decode(packed, validate=True), (count + 7) // 8 + 1)
    except (ValueError, zlib.error) as error:  # binascii.Error and non-ASCII text raise ValueErrors
        raise RunError(f"its items are damaged ({error})") from error
    bits = np.unpackbits(np.frombuffer(content, dtype=np.uint8))
    if len(content) != (count + 7) // 8 or bits[count:].any():
        raise RunError(f"the number of its items is not {count}")
    return bits[:count].astype(bool)
