"""Figures of an earlier commit, kept beside the policy, and by how much a run is worse than they were.

    write_baseline(path, make_baseline(policy, cells, environment))     # cells: finished runs by federation and seed
    worse_by(finished, read_baseline(path).federations["hospitals"][0], key, measure, question)   # with its interval

A baseline is trusted like the policy itself: what contradicts itself or the data is refused, but figures that were only written
worse than they were cannot be told from true ones. Keep it under version control and review its changes as those of the policy.

Beside each leakage figure stands which items were right, so that two runs are compared item by item: what differs in a few
items is told apart far below the width of either one's interval.
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
    """One federation with one seed: every figure by its id, and for those of attacks which items were right, packed."""

    seed: int
    data_hash: str
    figures: dict[str, Estimate]
    items: dict[str, str]


class Baseline(msgspec.Struct, frozen=True):
    """What `fkgsec check --update-baseline` writes."""

    schema: str
    commit: str | None
    dirty: bool | None
    versions: dict[str, str]
    federations: dict[str, list[BaselineRun]]


def compared_figures(policy: Policy, federation: str) -> dict[str, tuple[str, Question]]:
    """Return what must not get worse, by id: utility, all bytes, ERR, TRR and their advantages under every threat model.

    Of graphs the first figure of the attacks that are run; and every figure of another attack that the policy limits.

    ERR and TRR alone would not tell when a defense is taken out under which the adversary guesses as much as it finds without.
    """
    spec = policy.federations[federation]
    questions = [(f"utility.{task_of(spec).metric}", Question()), ("bytes.total", Question())]
    if spec.task != ATTACKS[RECONSTRUCTION].task:
        for name in spec.attack or attacked_task(spec.algorithm).default(spec.algorithm):
            first = next(iter(ATTACKS[name].metrics))
            questions += [(f"{name}.{first}", Question(threat, None, ALL)) for threat in threats_of(spec, name)]
    for threat in threats_of(spec):
        for leak in getattr(spec, "leak", ()):
            names = [f"{measure}{suffix}" for suffix in ("", ADVANTAGE) for measure in ITEMISED]
            questions += [(measure, Question(threat, leak, ALL)) for measure in names]
    for limit in policy.limits:
        attack = MEASURES[limit.measure].attack
        if limit.federation == federation and attack is not None and attack.name != RECONSTRUCTION:
            questions.append((limit.measure, limit.question))
    return {figure_id(federation, *question): question for question in questions}


def make_baseline(policy: Policy, cells: Mapping[str, Mapping[int, Finished]], environment: Environment) -> Baseline:
    """Make a baseline of these runs. What could not be measured is left out, and will fail wherever it is compared."""
    federations = {}
    for name, by_seed in cells.items():
        runs = []
        for seed, finished in by_seed.items():
            figures, items = {}, {}
            for key, (measure, question) in compared_figures(policy, name).items():
                try:
                    figures[key] = MEASURES[measure].read(finished, question)
                except NotMeasured:
                    continue
                if len(counted := _counted_items(finished, measure, question)):
                    bits = np.packbits(counted["right"].to_numpy(dtype=bool)).tobytes()
                    items[key] = base64.b64encode(zlib.compress(bits, 9)).decode()
            runs.append(BaselineRun(seed, finished.record.data.hash, figures, items))
        federations[name] = runs
    return Baseline(SCHEMA, environment.commit, environment.dirty, environment.versions, federations)


def _rate_key(key: str) -> str:
    """Return the id of the figure that an advantage is of; that of any other figure is its own."""
    federation, measure, *question = key.split("/")
    return "/".join((federation, measure.removesuffix(ADVANTAGE), *question))


def _counted_items(finished: Finished, measure: str, question: Question) -> pd.DataFrame:
    """Return the items that ERR or TRR is the share of; none where guessing is better, which is an expectation."""
    items = attacked_items(finished, measure, question)
    if not len(items):
        return items
    share = float(items["right"].to_numpy(dtype=bool).mean())
    counted = abs(share - MEASURES[measure].read(finished, question).value) <= _ROUNDING
    return items if counted else items.iloc[:0]


def write_baseline(path: Path, baseline: Baseline) -> None:
    """Write it as indented JSON. Raises `RunError`."""
    write_atomically(path, msgspec.json.format(msgspec.json.encode(baseline), indent=2) + b"\n")


def read_baseline(path: Path) -> Baseline:
    """Read a baseline file.

    Raises:
        RunError: it is missing, damaged, of another schema, or says of a figure what no run can have said.
    """
    try:
        baseline = msgspec.json.decode(path.read_bytes(), type=Baseline)
    except OSError as error:
        raise RunError(
            f"{path}: the baseline cannot be read ({error.strerror}); make it with --update-baseline"
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
                        f"{path}: seed {run.seed}: {key}: {wrong}; no run gives that, renew it with --update-baseline"
                    )
    return baseline


def _contradiction(run: BaselineRun, key: str) -> str | None:
    """Return what is impossible about a figure of the baseline, as a phrase; None when it may be true."""
    if key not in run.figures:
        return "has items, but no figure"
    figure, measure = run.figures[key], MEASURES.get(key.split("/")[1] if "/" in key else "")
    if measure is None:
        return f"no measure of this name; there are {', '.join(MEASURES)}"
    if not figure.low <= figure.value <= figure.high or math.isinf(figure.low) or math.isinf(figure.high):
        return f"the value {figure.value:g} is not inside its interval [{figure.low:g}, {figure.high:g}]"
    rate_key = _rate_key(key)
    least = -1 if rate_key != key else 0
    if figure.low < least or (measure.kind == "share" and figure.high > 1):
        return f"[{figure.low:g}, {figure.high:g}] is no range of a {'share' if measure.kind == 'share' else 'number'}"
    if figure.n < 1:
        return f"rests on {figure.n} items"
    if rate_key != key and (rate := run.figures.get(rate_key)) is not None:
        guess = rate.value - figure.value
        moved = max(abs(rate.low - figure.low - guess), abs(rate.high - figure.high - guess))
        if not -_ROUNDING <= guess <= 1 + _ROUNDING or moved > _ROUNDING:
            return f"the advantage is {figure.value:g}, which no guess leaves of {rate}"
    if key not in run.items:
        return None
    try:
        right = int(_unpack(run.items[key], figure.n).sum())
    except RunError as error:
        return str(error)
    if abs(right / figure.n - figure.value) > _ROUNDING:
        return f"the figure is {figure.value:g}, but {right} of its {figure.n} items are right"
    return None


def check_comparable(path: Path, baseline: Baseline, policy: Policy, hashes: Mapping[str, Mapping[int, str]]) -> None:
    """Check before anything is trained that the baseline is of the same federations, seeds and data.

    Args:
        hashes: data hash by federation and seed.

    Raises:
        RunError: it is not; a comparison would say nothing.
    """
    if set(baseline.federations) != set(policy.federations):
        known = ", ".join(baseline.federations)
        raise RunError(f"{path}: has other federations than the policy ({known}); renew it with --update-baseline")
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
    """Return how far a figure can get worse: utility down to 0, ERR and TRR from 0 to what is attainable; inf where unknown.

    Of ERR and TRR the whole range counts, not what is left above the earlier figure: one that leaks all that it can is no worse
    whatever `by` is, and stays in the comparison.
    """
    if measure.startswith("utility."):
        return then.figures[key].value
    most = _attainable(finished, measure, question)
    return math.inf if most is None else most


def _attainable(finished: Finished, measure: str, question: Question) -> float | None:
    """Return the most that a figure of an attack can be; None of other figures and where the record does not say."""
    reach = MEASURES[measure].reach
    return reach(finished, question).most if reach and not measure.endswith(ADVANTAGE) else None


def worse_by(finished: Finished, then: BaselineRun, key: str, measure: str, question: Question) -> Estimate:
    """Return by how much a figure is worse than it was: a share of items, or for bytes a share of the earlier number.

    Negative where it is better. Equal figures on equal data are exactly as bad; others are compared item by item where the
    items are known, else as two independent samples: also where one of the two is a guess, which is no count of items.

    Raises:
        NotMeasured: there is no such figure, now or then.
    """
    now = MEASURES[measure].read(finished, question)
    if key not in then.figures:
        raise NotMeasured("the baseline has no such figure; renew it with --update-baseline")
    earlier = then.figures[key]
    most = _attainable(finished, measure, question)
    if most is not None and earlier.value > most + _ROUNDING:
        raise NotMeasured(
            f"the baseline has {earlier.value:.4f}, but on the same data the adversary can reach at most {most:.4f} now; "
            "review the baseline, and renew it"
        )
    if now == earlier:
        return exact(0.0, now.n)
    if MEASURES[measure].kind == "bytes":
        return exact(now.value / earlier.value - 1 if earlier.value else float(now.value > 0), 1)
    if MEASURES[measure].bound == "min":  # less is worse
        now, earlier = _negated(now), _negated(earlier)
    value = now.value - earlier.value
    rate = measure.removesuffix(ADVANTAGE)
    packed = then.items.get(_rate_key(key))
    if packed is not None and earlier.n != now.n:
        raise NotMeasured(f"the baseline has {earlier.n:,} items, now there are {now.n:,}; renew it")
    if packed is not None and len(items := _counted_items(finished, rate, question)):
        earlier_right = _unpack(packed, len(items))
        paired = paired_difference(items["right"].to_numpy(dtype=bool), earlier_right, item_ends(items))
        # The leaked entities are the same now as then, so the error is that of the paired items alone.
        return Estimate(
            value, value + paired.low - paired.value, value + paired.high - paired.value, paired.n, paired.method
        )
    low = value - math.hypot(now.value - now.low, earlier.high - earlier.value)
    high = value + math.hypot(now.high - now.value, earlier.value - earlier.low)
    return Estimate(value, low, high, now.n, "two samples")


def _negated(figure: Estimate) -> Estimate:
    return Estimate(-figure.value, -figure.high, -figure.low, figure.n, figure.method)


def _unpack(packed: str, count: int) -> np.ndarray:
    """Return which items were right, bool `[count]`. Raises `RunError` when the text is not of exactly `count` items."""
    try:
        content = zlib.decompressobj().decompress(base64.b64decode(packed, validate=True), (count + 7) // 8 + 1)
    except (ValueError, zlib.error) as error:  # binascii.Error, and text that is not ASCII, are ValueErrors
        raise RunError(f"its items are damaged ({error})") from error
    bits = np.unpackbits(np.frombuffer(content, dtype=np.uint8))
    if len(content) != (count + 7) // 8 or bits[count:].any():
        raise RunError(f"its items are not {count}")
    return bits[:count].astype(bool)
