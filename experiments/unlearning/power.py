"""Can a request earn "forgotten" at all? Asked before any unlearning, and answered from trainings of the run itself.

    forecast = forecast_verdict(Path("runs/mine"), Thresholds(), AuditOptions(), forget=Path("forget.tsv"))
    forecast.smallest                       # the smallest request that honest re-training passes with, and at what cost

References and shadows are trained as an audit trains them. Measured on them: how much a triple's value varies, how much a whole
training shifts, and how much a triple gains by being trained on. From these follow, for any number of triples and references, the
ends of the intervals that a verdict rests on, and how often they lie within what is tolerated.

Source: ours. Normal approximations of the intervals in `fkgsec.attacks.forgetting.paired`, `.hidden` and of Mann and Whitney's
variance; failures of models and conditions are added up, so the chance is a lower bound.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
from scipy.special import ndtr, ndtri, stdtrit

from fkgsec.attacks.forgetting.evidence import Spread, measure_spread
from fkgsec.attacks.forgetting.hidden import half_width
from fkgsec.attacks.membership.audits import audited_triples
from fkgsec.data.escrow import read_escrow
from fkgsec.data.graph import FederatedGraph
from fkgsec.errors import DataError, RunError, SpecError
from fkgsec.experiments.cli.progress import Observe, unobserved
from fkgsec.experiments.runs.record import environment_of
from fkgsec.experiments.runs.run import check_fits, load_run, read_spec
from fkgsec.experiments.runs.spec import require_triples
from fkgsec.experiments.unlearning.options import DEFAULT_REQUEST, AuditOptions, Look, Thresholds, looks
from fkgsec.experiments.unlearning.unlearn import SCHEMA, UNLEARNING_FILE, Unlearned, Unlearning
from fkgsec.experiments.unlearning.verification import Auditor, audit_seed_of, can_replay
from fkgsec.federation.loop import run_identity
from fkgsec.randomness import generator
from fkgsec.unlearning.forget_sets import Forget, read_forget, retaining
from fkgsec.unlearning.unlearning import UnlearnOptions

EARNED = 0.9  # chance from which on a request can earn a certificate: 18 of 20 honest re-trainings
TOLERANCES = tuple(percent / 100 for percent in range(1, 100))  # that are tried for the request


class Cost(msgspec.Struct, frozen=True):
    """Cost of an audit with a number of references, and the chance that honest re-training passes it."""

    references: int
    chance: float
    minutes: float


class Forecast(msgspec.Struct, frozen=True):
    """Forecast of whether a request can earn "forgotten".

    Attributes:
        num_forgotten: triples of the request. costs: of each look of an audit.
        smallest: size and cost of the smallest request that can earn it; None if none of up to `largest` triples can.
        obstacle: the condition that fails most often at the last look, in words.
        passes_from: the smallest tolerated share at which the request can earn it; None if none below 100 % will do.
        replay_minutes: what it takes to repeat a re-training, which earns it at any size; None if the run of `fkgsec train` could
            not be repeated bit by bit here.
    """

    client: str
    num_forgotten: int
    costs: list[Cost]
    smallest: tuple[int, Cost] | None
    largest: int
    obstacle: str
    passes_from: float | None = None
    replay_minutes: float | None = None

    @property
    def earned(self) -> bool:
        """True if this request can earn it."""
        return self.replay_minutes is not None or self.chance >= EARNED

    @property
    def chance(self) -> float:
        """Chance that honest re-training passes by statistics, at the best look."""
        return max((cost.chance for cost in self.costs), default=0.0)


def failures(
    spread: Spread, size: float, look: Look, num_shadows: int, thresholds: Thresholds, most_controls: int
) -> dict[str, float]:
    """Predict how often honest re-training fails each condition on a model, in [0, 1].

    Args:
        size: triples of the request. most_controls: never-seen triples that there are.
    """
    level = thresholds.error * look.spending
    # Matches and controls grow in proportion to the request, up to the never-seen triples that there are.
    members, controls = (
        max(2.0, count * size / max(1, spread.num_forgotten))
        for count in (spread.num_members, spread.num_effective_controls)
    )
    controls = min(most_controls, controls)
    # Without visible memory no share can be bounded, so these conditions always fail.
    remembered = hidden = 1.0
    if spread.noise is not None and spread.memory is not None:
        # Standard error of the share: that of the paired difference, over the memory of a trained triple.
        # Each triple is unseen by all references and by half of the shadows.
        error = spread.noise.error(size, spread.num_controls, look.references + num_shadows / 2) / spread.memory.value
        # Half width of the interval: Student's quantile t(1 - level / 2) times the standard error.
        degrees = look.references + num_shadows - 1
        remembered = _chance_above(thresholds.share, 0.0, float(stdtrit(degrees, 1 - level / 2)) * error, error)
    for never_seen, trained_on, deviation in spread.exceedances:
        share = never_seen / trained_on
        half = half_width(share, size, trained_on, deviation, num_shadows, level)
        scatter = math.sqrt(max(never_seen, 1 / size) * (1 - never_seen) / size) / trained_on
        # The share is bounded at several exceedance levels; the most favorable level counts.
        hidden = min(hidden, _chance_above(thresholds.share, share, half, scatter))
    # Mann and Whitney: the AUC of m members and c controls has variance (m + c + 1) / (12 m c) under the null.
    error = math.sqrt((members + controls + 1) / (12 * members * controls))
    # Times 2, since the AUC may leave the tolerated range on either side of 0.5.
    distinguished = 2 * _chance_above(thresholds.distinguishability, 0.5, float(ndtri(1 - level / 2)) * error, error)
    who = f"{spread.client} {spread.model}"
    return {
        f"the share that {who} may remember": remembered,
        f"the share that {who} may remember if others are lowered to hide it": hidden,
        f"telling forgotten from never-seen triples by {who}": min(1.0, distinguished),
    }


def _chance_above(limit: float, middle: float, half: float, scatter: float) -> float:
    """Chance that a normal figure around `middle`, plus half its interval, ends above a limit."""
    # P(X + half > limit) for X ~ N(middle, scatter^2).
    return float(ndtr((middle + half - limit) / scatter)) if scatter > 0 else float(middle + half > limit)


def chance_of(conditions: Mapping[str, float]) -> float:
    """Return a lower bound on the chance that no condition fails."""
    # Union bound: P(no failure) >= 1 - sum of P(failure).
    return max(0.0, 1 - sum(conditions.values()))


def forecast_from(
    spreads: Sequence[Spread],
    size: int,
    thresholds: Thresholds,
    options: AuditOptions,
    *,
    largest: int,
    most_controls: int,
    seconds: float,
) -> Forecast:
    """Compute the forecast from what was measured.

    Args:
        spreads: of `measure_spread`, at least one. size: of the request. largest: request that is tried.
        most_controls: never-seen triples that there are. seconds: of a training.
    """
    plan = looks(options.references, options.budget)

    def conditions(count: int, look: Look, limits: Thresholds = thresholds) -> dict[str, float]:
        """Return the chance of failing each condition of the verdict."""
        chances: dict[str, float] = {}
        for spread in spreads:
            chances |= failures(spread, count, look, options.shadows, limits, most_controls)
        return chances

    def cost_of(count: int, look: Look) -> Cost:
        """Return the cost of an audit that ends at this look."""
        minutes = seconds * (look.references + options.shadows + options.plants) / 60
        return Cost(look.references, chance_of(conditions(count, look)), minutes)

    def smallest_at(look: Look) -> int:
        """Return the smallest size that passes at this look; above `largest` if none does."""
        # A larger request never passes less often.
        return 2 + bisect_left(range(2, largest + 1), True, key=lambda count: cost_of(count, look).chance >= EARNED)

    count, cheapest = min((smallest_at(look), look) for look in plan)
    smallest = (count, cost_of(count, cheapest)) if count <= largest else None
    # The obstacle is the most frequent failure at the last look.
    last = conditions(size, plan[-1])
    # The smallest tolerated share that this request can earn at the last look.
    passes_from = next(
        (
            share
            for share in TOLERANCES
            if chance_of(conditions(size, plan[-1], msgspec.structs.replace(thresholds, share=share))) >= EARNED
        ),
        None,
    )
    return Forecast(
        spreads[0].client,
        size,
        [cost_of(size, look) for look in plan],
        smallest,
        largest,
        max(last, key=lambda name: last[name]),
        passes_from,
    )


def forecast_verdict(
    run: Path,
    thresholds: Thresholds,
    options: AuditOptions,
    *,
    forget: Path | None = None,
    request: int = DEFAULT_REQUEST,
    client: str | None = None,
    escrow: Path | None = None,
    folder: Path | None = None,
    observe: Observe = unobserved,
    force: bool = False,
) -> Forecast:
    """Train what an audit trains at its first look, and compute the forecast.

    Args:
        run: a finished run that nothing was unlearned from. forget: the request; None: `request` triples of `client` (or of the
            first client), drawn at random. escrow: controls are drawn from it, as an audit does; None: from test triples.
        folder: keeps the trainings; None: `RUN-power` beside the run.

    Raises:
        RunError: no finished run, or one that unlearned. DataError: the request. SpecError: too few references or shadows, or it
            does not fit into memory.
    """
    if not options.references or not options.shadows:
        raise SpecError("power is measured on trainings: it needs references from 3 and shadows from 4")
    if (run / UNLEARNING_FILE).exists():
        raise RunError(
            f"{run}: a folder of `fkgsec unlearn`; --power takes the run of `fkgsec train` before any unlearning"
        )
    require_triples(read_spec(run), "verify", "measure power without the client's graphs")
    if not force:
        check_fits(run, at_once=2)
    spec, raw = load_run(run)
    graph, seed = raw.graph, audit_seed_of(options)
    requested = _drawn(graph, client, request, seed) if forget is None else read_forget(forget, graph, client)
    retained = retaining(graph, requested)
    _, pools = (None, None) if escrow is None else read_escrow(escrow, graph)
    audits = audited_triples(graph, retained, requested, seed, pools=pools, unmatched=True)
    asked = [audit for audit in audits if audit.asked]
    # The client with the fewest forgotten triples limits what the audit can show.
    smallest = min(asked, key=lambda audit: len(audit.forget))
    data = graph.clients[smallest.place]
    largest = len(np.unique(data.train, axis=0)) // 2
    reasons = [f"{audit.name}: {audit.reason}" for audit in asked if audit.reason]
    # A replay earns the verdict at any size, even where statistics cannot.
    may_replay = options.replay and can_replay(raw.options)
    if reasons and not may_replay:
        raise DataError(f"no request like this can be audited: {'; '.join(reasons)}")
    unlearning = Unlearning(
        SCHEMA, run_identity(graph, raw.options), UnlearnOptions(method="retrain"),
        {name: len(triples) for name, triples in requested.items()}, retained.hash, 0.0, 0, 0, {}, environment_of(raw.options),
    )  # fmt: skip
    # The raw run on the retained graph stands in for an unlearned run, so that the auditor can train beside it.
    candidate = Unlearned(spec, graph, requested, unlearning, replace(raw, graph=retained))
    target = folder or run.with_name(f"{run.name}-power")
    auditor = Auditor(target, candidate, audits, seed, 0, observe)
    started = time.perf_counter()
    replays = may_replay and auditor.repeats(raw)
    if reasons and not replays:
        raise DataError(f"no request like this can be audited: {'; '.join(reasons)}")
    if reasons:
        minutes = (time.perf_counter() - started) / 60
        return Forecast(data.name, len(smallest.forget), [], None, largest, "; ".join(reasons), replay_minutes=minutes)
    started = time.perf_counter()
    trained = auditor.own_runs(Look(options.references, 1.0), options.shadows, [], None)
    # Mean seconds of a training, over references and shadows.
    seconds = (time.perf_counter() - started) / (options.references + options.shadows)
    forecast = forecast_from(
        measure_spread(trained.references, trained.shadow_runs, graph, audits),
        len(smallest.forget),
        thresholds,
        options,
        largest=largest,
        most_controls=len(data.test if pools is None else pools[data.name]),
        seconds=seconds,
    )
    return msgspec.structs.replace(forecast, replay_minutes=seconds / 60 if replays else None)


def _drawn(graph: FederatedGraph, client: str | None, request: int, seed: int) -> Forget:
    """Draw a request of a client. Raises `DataError` if the client does not exist or has too few triples."""
    names = [data.name for data in graph.clients]
    if client is not None and client not in names:
        raise DataError(f"client must be one of {', '.join(names)}; got {client!r}")
    data = graph.clients[names.index(client) if client is not None else 0]
    distinct = np.unique(data.train, axis=0)
    if not 2 <= request < len(distinct):
        raise DataError(f"request must lie in [2, {len(distinct) - 1}], the triples of {data.name}; got {request}")
    return {data.name: generator(seed, "request").permutation(distinct)[:request]}


def forecast_lines(forecast: Forecast, thresholds: Thresholds) -> list[str]:
    """State the forecast, at most 80 columns and 20 lines."""
    lines = [
        f"Request: {forecast.num_forgotten:,} triples of {forecast.client}; at most {thresholds.share:.0%} may be remembered.",
        "",
    ]
    if forecast.costs:
        lines += [
            "references   honest re-training earns it   minutes",
            *(f"{cost.references:>10}   {cost.chance:>25.0%}   {cost.minutes:>7.1f}" for cost in forecast.costs),
            "",
        ]
    lines.append(f"What fails first: {forecast.obstacle}.")
    if forecast.smallest is None:
        lines.append(f"No request of up to {forecast.largest:,} triples can earn a certificate within this budget.")
    else:
        size, cost = forecast.smallest
        lines.append(
            f"Smallest request that can: {size:,} triples, {cost.references} references, {cost.minutes:.1f} min."
        )
    if forecast.chance < EARNED and forecast.passes_from is not None:
        lines.append(f"This request can at a larger tolerance: --share {forecast.passes_from:.2f}.")
    if forecast.replay_minutes is not None:
        return [
            *lines,
            "All this is for other methods, seeds and machines, which take statistics.",
            "The run was repeated here bit by bit: so can a re-training be, of any size.",
            f'Verdict: this request can earn "forgotten" by `--method retrain`, {forecast.replay_minutes:.1f} min',
        ]
    can = "can" if forecast.earned else "cannot"
    passing = f"honest runs pass {forecast.chance:.0%}, {EARNED:.0%} needed"
    return [*lines, f'Verdict: this request {can} earn "forgotten": {passing}']
