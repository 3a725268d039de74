"""Attacks by name: what each needs, what it claims from a view, and how claims are scored against the truth.

    def run(view, laboratory, rng):          # receives a View, and a laboratory that trains for the adversary
        return {victim.name: -victim.entities.norm(dim=1).numpy() for victim in view.victims}

    def score(claims, truth):                # receives the claims and the truth
        return [truth.figure("degree", victim, spearman(claims[victim], degrees(truth.client(victim)))) for victim in claims]

    ATTACKS.register("degrees", Attack("degrees", "...", Needs(single_uploads=("entities",)), {"degree": "..."}, run, score))

A package registers its attack with an entry point of the group `fkgsec.attacks`. `fkgsec attack --attack NAME` runs every
registered attack, shipped ones included. Records, tables, reports and listings contain its figures. Each of its metrics is a
measure that a policy can limit.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pandas as pd

from fkgsec.arguments import settings_from
from fkgsec.attacks.figure import NOT_ATTACKED, STRONGEST, TOGETHER, Figure, keep_outcomes
from fkgsec.attacks.frames import HEADS, figures_to_frame, summary_rows
from fkgsec.attacks.laboratory import Laboratory
from fkgsec.attacks.membership.figures import measure_membership
from fkgsec.attacks.options import (
    ATTACKS_BY_NAME,
    KGE,
    RECONSTRUCTION,
    UPDATE_RECOVERY,
    AttackSettings,
    BaseAttackOptions,
    ThreatModel,
    threat_models,
)
from fkgsec.attacks.outcomes import Outcomes
from fkgsec.attacks.view import NotAttacked, Victim, View, check_attackable
from fkgsec.errors import SpecError, ThreatModelError
from fkgsec.estimate import Estimate, exact
from fkgsec.federation.loop import run_federation
from fkgsec.federation.recipes import RECIPES, Table
from fkgsec.federation.result import RunResult
from fkgsec.frames import block
from fkgsec.randomness import generator
from fkgsec.registry import Registry

# Number of further draws of leaked entities, see `fkgsec.attacks.kge.task.widen`.
LEAK_DRAWS = 5
Measure = Callable[..., Estimate]
"""Returns the estimate of an inference method; the argument `compared` is the number of alternatives for its interval."""


@dataclass(frozen=True)
class Needs:
    """The requirements of an attack.

    Attributes:
        colluder: element-embedding pairs of a client.
        names: the entity of each uploaded row.
        single_uploads: tables whose rows each victim must have uploaded individually, not only in a sum.
        entities: entity rows of the victims from any source: uploaded, in a sum, or assumed known.
        models: final models of the clients.
        server: the server's messages.
        auxiliary: some of the victims' triples, or graphs of the victims' data sets that nobody trains on.
        alone: a client's own data and the broadcasts it received, without any server.
        candidates: graphs of which some are the victims', for the attack to tell apart. Graph views contain them only for
            attacks that need them.
        first_round: messages of the first round of uploads, instead of the last round up to the best round.
    """

    colluder: bool = False
    names: bool = False
    single_uploads: tuple[Table, ...] = ()
    entities: bool = False
    models: bool = False
    server: bool = False
    auxiliary: bool = False
    alone: bool = False
    candidates: bool = False
    first_round: bool = False

    def fit(self, model: ThreatModel) -> bool:
        """Test whether a threat model meets the requirements."""
        # Only what an attack needs must be there: more knowledge than that does no harm.
        alone = model.colluder and not model.server
        gives = (model.colluder, model.identifiers, model.models, model.server, model.auxiliary, alone)
        needed = (self.colluder, self.names, self.models, self.server, self.auxiliary, self.alone)
        return all(has >= needs for has, needs in zip(gives, needed, strict=True))

    def missing(self, victim: Victim) -> str | None:
        """Explain why a victim cannot be attacked.

        Args:
            victim: victim of a view.

        Returns:
            The reason, or None if the view has all required parts of it.
        """
        parts = (*self.single_uploads, *(name for name in ("auxiliary", "candidates") if getattr(self, name)))
        return next((reason for part in parts if (reason := victim.why_none(part))), None)

    def never(self, algorithm: str, model: ThreatModel) -> str | None:
        """Explain why no run of an algorithm meets the requirements under a threat model.

        Args:
            algorithm: name in `RECIPES`.
            model: threat model.

        Returns:
            The reason, or None if a run may meet them.
        """
        recipe = RECIPES[algorithm]
        if recipe.pooled:
            return "one party holds all triples"
        if self.colluder and not model.colluder:
            graph = recipe.task == "graph"
            return "it takes a client" if graph else "no element-embedding pair is known without a colluder"
        if self.names and not model.identifiers:
            return "names are hidden"
        if self.alone and (model.server or not model.colluder):
            return "it takes a client alone"
        if self.server and not model.server:
            return "it takes a server"
        if self.auxiliary and not model.auxiliary:
            return "no labelled data of the victims are known"
        if self.models and not model.models:
            return "no model of a client is known"
        if missing := [table for table in self.single_uploads if table not in recipe.shared]:
            return f"{algorithm} transmits no {missing[0]}"
        if self.entities and "entities" not in recipe.shared and not model.victim_entities:
            return f"{algorithm} transmits no entity embedding"
        return None

    def words(self) -> str:
        """Describe the requirements for a table."""
        words = {
            "colluder": "a colluder", "names": "names", "models": "clients' models", "server": "a server",
            "auxiliary": "auxiliary data", "candidates": "candidates", "alone": "a client alone",
            "first_round": "the first round",
        }  # fmt: skip
        parts = [f"each victim's {table}" for table in self.single_uploads]
        return ", ".join([*parts, *(word for name, word in words.items() if getattr(self, name))]) or "nothing"


@dataclass(frozen=True, eq=False)
class Truth:
    """The evaluator's knowledge, from which figures are computed. It is built after the claims are complete.

    Attributes:
        threat_model, round, leak: of the attacked view.
        runs: the attacked run, of the task's type, and the runs that the attack trained, see `View.run`.
        victims: names of the attacked clients.
        colluders: names of the colluding clients, if any. The first one acts; the others hand over their knowledge.
        options: options of the attack.
        rng: generator for random draws of scoring.
        scores: tables of item scores with a column `item` that scoring may add; they are stored in scores.parquet beside the
            record.
        shuffled: each victim's graph with its rows in the random order that the attack received, by name; empty if not
            shuffled.
    """

    attack: Attack
    threat_model: ThreatModel
    round: int
    leak: float | None
    runs: Sequence[Any]
    victims: Sequence[str]
    colluders: tuple[str, ...]
    options: Any
    rng: np.random.Generator
    scores: list[pd.DataFrame] = field(default_factory=list)
    shuffled: Mapping[str, Any] = field(default_factory=dict)

    @property
    def seed(self) -> int:
        """Seed of the attack."""
        return self.options.seed

    @property
    def colluder(self) -> str:
        """Name of the colluder that acts."""
        return self.colluders[0]

    @property
    def result(self) -> Any:
        """Attacked run."""
        return self.runs[0]

    @property
    def graph(self) -> Any:
        """Data of the federation."""
        return self.result.graph

    def client(self, victim: str) -> Any:
        """Return a victim's graph, or graphs, with rows in the order that the attack received.

        Local IDs match the rows that a knowledge-graph client uploaded in plaintext. They differ from those in `graph` where
        the attack's rows were shuffled.

        Args:
            victim: name of the client.
        """
        return self.shuffled.get(victim) or self.unshuffled(victim)

    def unshuffled(self, victim: str) -> Any:
        """Return a victim's graph, or graphs, with the local IDs of `graph`."""
        return self.graph.clients[self.index(victim)]

    def index(self, victim: str) -> int:
        """Return the index of a client in the federation."""
        return next(index for index, client in enumerate(self.graph.clients) if client.name == victim)

    def rows_of(self, victim: str, table: Table) -> np.ndarray:
        """Map a victim's local IDs in `graph` to rows that the attack received.

        Args:
            victim: name of the client.
            table: entities or relations.

        Returns:
            Row of each local ID, int64 `[n]`.
        """
        before, after = (
            client.entity_ids if table == "entities" else client.relation_ids
            for client in (self.unshuffled(victim), self.client(victim))
        )
        # Match global IDs: `before[i]` stands at row `order[j]` where `after[order[j]]` is the same ID.
        order = np.argsort(after)
        return order[np.searchsorted(after, before, sorter=order)]

    def figure(
        self,
        metric: str,
        victim: str,
        estimate: Estimate = NOT_ATTACKED,
        *,
        baseline: Estimate | None = None,
        **details: Any,
    ) -> Figure:
        """Build a figure of this attack under the threat model.

        Args:
            victim: client name, or `ALL`.
            estimate: value with its interval; larger is worse for the victim unless the metric is an error.
            baseline: the same value without the training messages.
            details: further fields of `Figure`, such as `reason`.
        """
        model = self.threat_model
        return Figure(
            self.attack.name, metric, model.name, victim, estimate, baseline,
            leak=self.leak if model.leaks else None, colluder=TOGETHER.join(self.colluders) if model.colluder else None,
            round=self.round, less_is_worse=metric in self.attack.errors, **details,
        )  # fmt: skip

    def not_attacked(self, victim: str, reason: object, metrics: Iterable[str] = ()) -> list[Figure]:
        """Build figures of a victim that cannot be attacked.

        Args:
            reason: why it cannot be attacked.
            metrics: metrics without a result; empty: all metrics of the attack.
        """
        return [self.figure(metric, victim, reason=str(reason)) for metric in metrics or self.attack.metrics]

    def figures(
        self,
        metric: str,
        victim: str,
        ways: Mapping[str, Measure],
        guesses: Mapping[str, Estimate],
        *,
        outcomes: Callable[[str], Outcomes | None] | None = None,
        **details: Any,
    ) -> list[Figure]:
        """Build one figure per inference method (`Figure.variant`), and one of the strongest among methods and baselines.

        An adversary does not know which method is best; the evaluator does. So the interval of the strongest has the level 1 -
        0.05 / m, where m is the number of alternatives (Bonferroni).

        Args:
            victim: client name, or `ALL`.
            ways: at least one method by name, such as `{"distance": partial(dyadic_auc, linked, others, ends)}`.
            guesses: adversaries without the training messages, by name; the best one is the baseline.
            outcomes: returns the outcome of a method on each item; called for the best method.
            details: further fields of `Figure`.
        """
        # The baseline is the strongest guess, so that an attack must beat every adversary without the messages.
        worse = -1 if metric in self.attack.errors else 1
        baseline = max(guesses.values(), key=lambda guess: worse * guess.value)
        figures_of = [
            self.figure(metric, victim, measure(), baseline=baseline, variant=way, guesses=dict(guesses), **details)
            for way, measure in ways.items()
        ]
        best = max(figures_of, key=lambda figure: worse * figure.estimate.value)
        # Chance is a constant, so its comparison needs no correction.
        compared = len(ways) + sum(name != "chance" for name in guesses)
        estimate, by = ways[best.variant](compared=compared), best.variant
        # An adversary that knows the best guess does at least as well; the interval must contain that value.
        if worse * baseline.value > worse * estimate.value:
            value, by = baseline.value, next(name for name, guess in guesses.items() if guess is baseline)
            estimate = msgspec.structs.replace(
                estimate, value=value, low=min(estimate.low, value), high=max(estimate.high, value)
            )
        return [
            *figures_of,
            msgspec.structs.replace(
                best,
                variant=STRONGEST,
                estimate=estimate,
                by=by,
                compared=compared,
                outcomes=outcomes(best.variant) if outcomes else None,
            ),
        ]

    def membership(self, victim: str, members: np.ndarray, controls: np.ndarray) -> list[Figure]:
        """Build the figure `auc` of a membership attack.

        Args:
            members: scores of trained triples, float `[m]`; larger means more likely trained.
            controls: scores of triples that were not trained, float `[c]`.

        Returns:
            One figure; it states a reason if there are fewer than two members or controls.
        """
        if min(len(members), len(controls)) < 2:
            reason = f"{len(members)} trained triples and {len(controls)} others; it takes 2 of each"
            return self.not_attacked(victim, reason, ["auc"])
        scores, member = np.concatenate([members, controls]), np.arange(len(members) + len(controls)) < len(members)
        auc = measure_membership(scores, member, attack=self.attack.name, control="given", rng=self.rng).auc
        return [self.figure("auc", victim, auc, baseline=exact(0.5, auc.n), attainable=1.0)]


def score_each(
    figures: Callable[[Truth, str, Any], list[Figure]],
) -> Callable[[Mapping[str, Any], Truth], list[Figure]]:
    """Build the `score` of an attack whose claims map each victim to a claim or a `NotAttacked` (see `claim_each`).

    Args:
        figures: scores one victim from the truth, its name and its claim; it may raise `NotAttacked`.
    """

    def score(claims: Mapping[str, Any], truth: Truth) -> list[Figure]:
        """Score every victim's claim."""
        listed: list[Figure] = []
        for victim, claim in claims.items():
            try:
                if isinstance(claim, NotAttacked):
                    raise claim
                listed += figures(truth, victim, claim)
            except NotAttacked as reason:
                listed += truth.not_attacked(victim, reason)
        return listed

    return score


@dataclass(frozen=True)
class Attack:
    """An attack on a finished run.

    Attributes:
        about: one-line description.
        metrics: one-line description of each metric, by name.
        run: computes claims from a view of the attackable victims, a laboratory and a random generator. Claims include guesses
            without the messages. It never sees the truth. It raises `NotAttacked` where the attack cannot run.
        score: computes figures from the claims and the truth. It sees neither view nor laboratory. It may raise `NotAttacked`.
        threats: names of default threat models; empty: the first one that meets the needs.
        questions: question that each metric answers, a name in `fkgsec.attacks.questions.QUESTIONS`.
        items: sample unit of each metric's estimate.
        errors: metrics for which a smaller value is worse for the victim.
        choose: selects threat models from those requested (or those that fit the algorithm), for attacks that state themselves
            why nothing can be attacked; None: those that meet the needs.
        redrawn: True to repeat the attack on other leaked entities, so that intervals cover the choice of leaked entities.
        task: task whose runs it attacks, a name in `fkgsec.attacks.registry.ATTACKED`.
        leads: metrics that represent the attack in a summary; empty: the first.
        trains: True if the attack trains the run again, with itself in it or for messages that were not kept. Unlearning then
            does not apply to that run.
        also: alternative requirements, each sufficient instead of `needs`.
        settings: type of the attack's settings, which `run` receives as the keyword argument `settings`.
    """

    name: str
    about: str
    needs: Needs
    metrics: Mapping[str, str]
    run: Callable[..., Any]  # (view, laboratory, rng), and settings= for an attack with settings
    score: Callable[[Any, Truth], list[Figure]]
    threats: tuple[str, ...] = ()
    questions: Mapping[str, str] = field(default_factory=dict)
    items: Mapping[str, str] = field(default_factory=dict)
    errors: tuple[str, ...] = ()
    choose: Callable[[Sequence[str]], Sequence[str]] | None = None
    redrawn: bool = False
    task: str = KGE
    leads: tuple[str, ...] = ()
    trains: bool = False
    also: tuple[Needs, ...] = ()
    settings: type[AttackSettings] | None = None

    def with_settings(self, text: str) -> Attack:
        """Bind `run` to the attack's settings.

        Args:
            text: `key=value,key=value`; empty keeps the defaults.

        Raises:
            SpecError: a setting that does not exist or is not allowed.
        """
        owner = f"attack: {self.name}"
        if self.settings is None:
            if text:
                raise SpecError(f"{owner} has no settings of its own; got {text!r}")
            return self
        written = {}
        for piece in text.split(",") if text else ():
            key, equals, value = (part.strip() for part in piece.partition("="))
            if not equals:
                raise SpecError(f"{owner}: {piece!r} is no setting; write {self.name}:key=value,key=value")
            if key in written:
                raise SpecError(f"{owner} has {key} twice")
            written[key] = value
        settings = settings_from(owner, self.settings, written)
        return replace(self, run=functools.partial(self.run, settings=settings))

    def needs_under(self, model: ThreatModel) -> Needs:
        """Return the requirements that a threat model meets, or the first ones if it meets none."""
        return next((needs for needs in (self.needs, *self.also) if needs.fit(model)), self.needs)

    @property
    def need_words(self) -> str:
        """Description of the requirements for a table."""
        return "; or ".join(needs.words() for needs in (self.needs, *self.also))

    @property
    def leading(self) -> tuple[str, ...]:
        """Metrics that represent the attack in a summary."""
        return self.leads or (next(iter(self.metrics)),)

    @property
    def threat_models(self) -> tuple[str, ...]:
        """Names of the threat models that meet the requirements."""
        return tuple(name for name, model in threat_models(self.task).items() if self.needs_under(model).fit(model))

    def fitting(self, wanted: Sequence[str], algorithm: str) -> tuple[str, ...]:
        """Select the threat models under which to run the attack.

        Args:
            wanted: requested threat models; empty: the attack's default.
        """
        if self.choose is not None:
            return tuple(self.choose(wanted or default_threats(algorithm)))
        # Requested models that meet the needs; if none does, the requested ones (to state why), else the attack's
        # default.
        able = self.threat_models
        return tuple(name for name in wanted if name in able) or tuple(wanted) or self.threats or able[:1]


ATTACKS: Registry[Attack] = ATTACKS_BY_NAME
# Default attacks on knowledge graphs.
DEFAULT = (RECONSTRUCTION, UPDATE_RECOVERY)
Case = tuple[list[Figure], list[pd.DataFrame]]


@dataclass(frozen=True)
class AttackedTask:
    """Attacks on the runs of a task.

    Attributes:
        options: struct of the options of its attacks.
        default: returns the default attacks on an algorithm; may depend on the requested threat models.
        default_threats: returns the threat models that fit an algorithm, for attacks without a choice of their own.
        build_view: see `build_view`.
        cases: runs one attack on a result under these options, for each of the attack's threat models and draws of leaked
            entities; the last argument trains federations for it. Returns figures and scores.
    """

    options: type[BaseAttackOptions]
    default: Callable[..., tuple[str, ...]]
    default_threats: Callable[[str], tuple[str, ...]]
    build_view: Callable[..., View]
    cases: Callable[[Attack, Any, Any, int, Callable[..., Any]], list[Case]]


ATTACKED: Registry[AttackedTask] = Registry(
    "task",
    "fkgsec.attacked",
    {"kge": "fkgsec.attacks.kge.task:ATTACKED_TASK", "graph": "fkgsec.attacks.graphs.task:ATTACKED_TASK"},
)


def attacked_task(algorithm: str) -> AttackedTask:
    """Return the attacks on the task of an algorithm.

    Args:
        algorithm: name in `RECIPES`.

    Raises:
        SpecError: the task has no attacks.
    """
    return ATTACKED[RECIPES[algorithm].task]


def default_threats(algorithm: str) -> tuple[str, ...]:
    """Return the threat models from the papers and from practice that fit an algorithm.

    Args:
        algorithm: name in `RECIPES`.
    """
    return attacked_task(algorithm).default_threats(algorithm)


def build_view(
    result: RunResult, threat_model: ThreatModel, *, colluder: Sequence[str] | str, seed: int, **task_options: Any
) -> Any:
    """Build an adversary's view of a finished run, at its best round.

    Args:
        result: finished run. The view takes only its transcript, the colluder's data and what the threat model assumes to be
            known.
        threat_model: one that applies to the run's task.
        colluder: name of the colluding client; on knowledge graphs also several. Every other client is a victim. Under threat
            models with final models, all clients are victims.
        seed: seed of the attack.
        task_options: on knowledge graphs `leak`, see `fkgsec.attacks.kge.view.kge_view`; on graph classification `candidates`,
            see `fkgsec.attacks.graphs.view.graph_view`.

    Raises:
        ThreatModelError: unknown colluder, a threat model of another task, or a run without a federation.
    """
    algorithm = result.options.algorithm
    check_attackable(result.graph, algorithm, colluder)
    task = RECIPES[algorithm].task
    if task not in threat_model.lines:
        raise ThreatModelError(
            f"threat model {threat_model.name!r} does not apply to {algorithm}; allowed: {', '.join(threat_models(task))}"
        )
    return ATTACKED[task].build_view(result, threat_model, colluder=colluder, seed=seed, **task_options)


class Attacked(NamedTuple):
    """Results of attacks.

    Attributes:
        figures: one figure per attack, metric, threat model, leak ratio, victim and variant.
        scores: score of every item, an entity or a triple of a victim, of the attacks that store scores.
    """

    figures: list[Figure]
    scores: pd.DataFrame

    def to_frame(self) -> pd.DataFrame:
        """Convert the figures to a frame with the columns `fkgsec.attacks.frames.COLUMNS`."""
        return figures_to_frame(self.figures)

    def _repr_html_(self) -> str:
        """The figures that verdicts go by, of all victims together, as notebooks show them."""
        return block("What attacks found", heads=HEADS, rows=summary_rows(self.figures))


def check_attacks(names: Iterable[str]) -> None:
    """Check the names of attacks before a run.

    Args:
        names: attacks, with their settings if any.

    Raises:
        SpecError: an unknown name, or an attack that is named twice.
    """
    count = Counter(ATTACKS[name].name for name in names)
    for name, times in count.items():
        if times > 1:
            raise SpecError(f"attack: {name} is named twice. Run it once for each value of its settings.")


def run_attacks(
    result: RunResult,
    options: BaseAttackOptions,
    *,
    leak_draws: int = LEAK_DRAWS,
    train: Callable[..., Any] = run_federation,
) -> Attacked:
    """Run attacks on a finished run, each under every threat model and leak ratio of the options.

    An attack skips threat models that lack its needs if another requested one meets them. Without a colluder it runs once, not
    per leak ratio.

    Args:
        options: options of the run's task: `KgeAttackOptions` or `GraphAttackOptions`.
        leak_draws: number of further draws of leaked entities for attacks that are `redrawn`.
        train: trains the federations of attacks, such as `run_federation` with an observer or a defense's transport.

    Raises:
        SpecError: options or an attack of another task.
        ThreatModelError: the run cannot be attacked, or an attack returns a metric that it does not declare.
    """
    algorithm = result.options.algorithm
    task, name = attacked_task(algorithm), RECIPES[algorithm].task
    if not isinstance(options, task.options):
        raise SpecError(f"options: a run of {algorithm} takes {task.options.__name__}; got {type(options).__name__}")
    check_attackable(result.graph, algorithm, options.colluder)
    chosen = [ATTACKS[attack] for attack in options.attack or task.default(algorithm, options.threat)]
    for attack in chosen:
        # Checked before any attack runs, so that a typo does not cost hours.
        if attack.task != name:
            fitting = ", ".join(attacks_of(name))
            raise SpecError(
                f"attack {attack.name!r} is one on runs of the task {attack.task!r}; on {algorithm}: {fitting}"
            )
    measured = [case for attack in chosen for case in task.cases(attack, result, options, leak_draws, train)]
    scores = [items for _, of_case in measured for items in of_case]
    figures = [figure for of_case, _ in measured for figure in of_case]
    return Attacked(
        keep_outcomes(figures, {attack.name: attack.leading for attack in chosen}),
        pd.concat(scores, ignore_index=True) if scores else pd.DataFrame(),
    )


def attacks_of(task: str) -> dict[str, Attack]:
    """Return the attacks on runs of a task, by name, in the registry's order.

    Args:
        task: "kge" or "graph".
    """
    return {name: attack for name, attack in ATTACKS.items() if attack.task == task}


def attack_view(
    attack: Attack, view: View, laboratory: Laboratory, clients: Callable[[], Mapping[str, Any]] = dict
) -> Case:
    """Run one attack on one view and score its claims.

    Args:
        view: view of the attacked run.
        laboratory: laboratory of the view's adversary.
        clients: returns `Truth.shuffled`; called after the attack has run.

    Returns:
        Figures and item scores. Victims that cannot be attacked have figures with a reason.
    """
    model, needs = view.threat_model, attack.needs_under(view.threat_model)
    lacking = None if attack.choose is not None or needs.fit(model) else f"it needs {attack.need_words}"
    reasons = {victim.name: lacking or needs.missing(victim) for victim in view.victims}
    able = tuple(victim for victim in view.victims if not reasons[victim.name])
    seed, names, claims = laboratory.seed, (attack.name, model.name), None
    if able:
        try:
            # Separate random streams: how much an attack draws does not change how it is scored.
            claims = attack.run(view.only(able), laboratory, generator(seed, "attack", *names))
        except NotAttacked as reason:
            reasons |= dict.fromkeys((victim.name for victim in able), str(reason))
            able = ()
    truth = Truth(
        attack, model, view.round, view.leak, laboratory._runs, [victim.name for victim in able], laboratory.colluders,
        laboratory.options, generator(seed, "score", *names), shuffled=clients(),
    )  # fmt: skip
    figures = [figure for victim, reason in reasons.items() if reason for figure in truth.not_attacked(victim, reason)]
    if able:
        try:
            figures += attack.score(claims, truth)
        except NotAttacked as reason:
            figures += [figure for victim in able for figure in truth.not_attacked(victim.name, reason)]
    # A metric without a declaration would have no description, no question and no policy limit.
    for figure in figures:
        if figure.metric not in attack.metrics:
            raise ThreatModelError(
                f"attack {attack.name!r} declares {', '.join(attack.metrics)}; got {figure.metric!r}"
            )
    return figures, truth.scores
