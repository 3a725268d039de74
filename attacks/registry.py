"""Attacks by name: what each needs, what it claims from a view, and how claims are scored against the truth.

    def run(view, laboratory, rng):          # sees a View, and what the laboratory trains for the adversary
        return {victim.name: -victim.entities.norm(dim=1).numpy() for victim in view.victims}

    def score(claims, truth):                # sees the claims and the truth
        return [truth.figure("degree", victim, spearman(claims[victim], truth.degrees(victim))) for victim in claims]

    ATTACKS.register("degrees", Attack("degrees", "...", Needs(single_uploads=True), {"degree": "..."}, run, score))

or, from a package, an entry point of group `fkgsec.attacks`. A registered attack is run by `fkgsec attack --attack NAME`, and its
figures stand in records, tables, reports and listings; each of its metrics is a measure that a policy can limit. The shipped
attacks are run in the same way.
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

LEAK_DRAWS = 5  # further draws of the leaked entities, see `fkgsec.attacks.kge.task.widen`
Measure = Callable[..., Estimate]
"""The estimate of one way, with its interval at the level of one among `compared=` so many."""


@dataclass(frozen=True)
class Needs:
    """The requirements of an attack.

    Attributes:
        colluder: element-embedding pairs of a client. names: which entity each uploaded row is of.
        single_uploads: tables of which each victim's own rows must have crossed, not their sum alone.
        entities: entity rows of the victims by whatever way: uploaded, in a sum, or assumed known.
        models: those that clients are left with. server: what the server sees.
        auxiliary: some of the victims' triples, or graphs of the victims' data sets that nobody trains on.
        alone: a client's own knowledge and what it was sent, without any server.
        candidates: graphs of which some are the victims', to be told; a graph view has them for attacks that need them alone.
        first_round: what crossed in the first round of uploads, instead of the last one up to the best round.
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
        """True if a threat model meets the requirements."""
        alone = model.colluder and not model.server
        gives = (model.colluder, model.identifiers, model.models, model.server, model.auxiliary, alone)
        needed = (self.colluder, self.names, self.models, self.server, self.auxiliary, self.alone)
        return all(has >= needs for has, needs in zip(gives, needed, strict=True))

    def missing(self, victim: Victim) -> str | None:
        """Return why a victim cannot be attacked, or None."""
        parts = (*self.single_uploads, *(name for name in ("auxiliary", "candidates") if getattr(self, name)))
        return next((reason for part in parts if (reason := victim.why_none(part))), None)

    def never(self, algorithm: str, model: ThreatModel) -> str | None:
        """Return why no run of an algorithm gives it under a threat model; None if a run may."""
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
        if self.auxiliary and not model.auxiliary:
            return "no labelled data of the victims are known"
        if self.models and not model.models:
            return "no model of a client is known"
        if missing := [table for table in self.single_uploads if table not in recipe.shared]:
            return f"no {missing[0]} cross in {algorithm}"
        if self.entities and "entities" not in recipe.shared and not model.victim_entities:
            return f"no entity embedding crosses in {algorithm}"
        return None

    def words(self) -> str:
        """The needs in the words of a table."""
        words = {
            "colluder": "a colluder", "names": "names", "models": "clients' models", "server": "a server",
            "auxiliary": "auxiliary data", "candidates": "candidates", "alone": "a client alone",
            "first_round": "the first round",
        }  # fmt: skip
        parts = [f"each victim's {table}" for table in self.single_uploads]
        return ", ".join([*parts, *(word for name, word in words.items() if getattr(self, name))]) or "nothing"


@dataclass(frozen=True, eq=False)
class Truth:
    """The evaluator's knowledge, from which figures are made. It is made once claims are complete.

    Attributes:
        threat_model, round, leak: of the attacked view.
        runs: the finished run, of the task's type, and those that the attack had trained, see `View.run`.
        victims: names of those that could be attacked.
        colluders: those that collude, where the threat model has any. The first one acts; further ones hand over what they know.
        options: of the attack. rng: of whatever scoring draws.
        scores: filled by scoring with the score of each item, if it gives any: tables with a column `item`, which are kept in
            scores.parquet beside the record.
        shuffled: by victim its graph in the order of the rows that the attack was given, where that is a random one.
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
        """The colluder that acts."""
        return self.colluders[0]

    @property
    def result(self) -> Any:
        """The attacked run."""
        return self.runs[0]

    @property
    def graph(self) -> Any:
        """The data of the federation."""
        return self.result.graph

    def client(self, victim: str) -> Any:
        """A victim's graph, or graphs.

        Rows of a knowledge graph that it uploaded in plaintext stand in the order of its local ids, which are not those of
        `graph` where the attack's rows were shuffled.
        """
        return self.shuffled.get(victim) or self.own(victim)

    def own(self, victim: str) -> Any:
        """A victim's graph, or graphs, in the order of `graph`."""
        return self.graph.clients[self.index(victim)]

    def index(self, victim: str) -> int:
        """Index of a client."""
        return next(index for index, client in enumerate(self.graph.clients) if client.name == victim)

    def rows_of(self, victim: str, table: Table) -> np.ndarray:
        """Row that the attack was given of each of a victim's entities, or relations, in the order of `graph`, int64 `[n]`."""
        before, after = (
            client.entity_ids if table == "entities" else client.relation_ids
            for client in (self.own(victim), self.client(victim))
        )
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
        """A figure of this attack under the threat model; `details` are further fields of `Figure`, a `reason` for one."""
        model = self.threat_model
        return Figure(
            self.attack.name, metric, model.name, victim, estimate, baseline,
            leak=self.leak if model.leaks else None, colluder=TOGETHER.join(self.colluders) if model.colluder else None,
            round=self.round, less_is_worse=metric in self.attack.errors, **details,
        )  # fmt: skip

    def not_attacked(self, victim: str, reason: object, metrics: Iterable[str] = ()) -> list[Figure]:
        """Figures of a victim that cannot be attacked, by these metrics of the attack or by all."""
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
        """A figure of each way to infer (`Figure.variant`), and one of the strongest of the ways and guesses.

        An adversary does not know which way is best; the evaluator does. So the interval of the strongest is at the level
        1 - 0.05 / m for the m among which was chosen (Bonferroni).

        Args:
            ways: at least one, such as `{"distance": partial(dyadic_auc, linked, others, ends)}`.
            guesses: adversaries without what crossed, by name; the best one is the baseline.
            outcomes: of a way, what it reaches on each item; kept of the best way.
            details: further fields of `Figure`.
        """
        worse = -1 if metric in self.attack.errors else 1
        baseline = max(guesses.values(), key=lambda guess: worse * guess.value)
        figures_of = [
            self.figure(metric, victim, measure(), baseline=baseline, variant=way, guesses=dict(guesses), **details)
            for way, measure in ways.items()
        ]
        best = max(figures_of, key=lambda figure: worse * figure.estimate.value)
        compared = len(ways) + sum(name != "chance" for name in guesses)  # chance needs no choosing
        estimate, by = ways[best.variant](compared=compared), best.variant
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
        """The figure `auc` of a membership attack: scores of trained triples `[m]` and of others `[c]`, larger for trained ones.

        Fewer than two of either give a reason instead.
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
    """Make the `score` of an attack that claims something of each victim, or a `NotAttacked` (see `claim_each`).

    Args:
        figures: of the truth, a victim and what was claimed of it; it may raise `NotAttacked`, too.
    """

    def score(claims: Mapping[str, Any], truth: Truth) -> list[Figure]:
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
        about: one line. metrics: what it measures, a line by name.
        run: from a view of the victims that can be attacked, a laboratory and a generator of the attack's own, whatever it claims
            of them, guesses without the messages included. It never sees the truth. It raises `NotAttacked` where it cannot.
        score: figures of these claims, from the truth. It sees neither view nor laboratory. It may raise `NotAttacked`, too.
        threats: names of threat models under which it is run by default; empty: the first that gives what it needs.
        questions: by metric, the question that it answers, a name in `fkgsec.attacks.questions.QUESTIONS`.
        items: by metric, what an estimate's sample is made of. errors: metrics of which less is worse for the victim.
        choose: of the threat models asked for (or that fit the algorithm) those to run under, where the attack says itself why
            it has nothing to attack; None: those that give what it needs.
        redrawn: whether it is repeated on other leaked entities, so that intervals cover which entities leaked.
        task: whose runs it attacks, a name in `fkgsec.attacks.registry.ATTACKED`.
        leads: metrics that stand for it where there is room for few; empty: the first.
        trains: whether it has the run trained once more, with itself in it or for messages that were not kept; what clients then
            unlearn is no such run.
        also: other things of which each is enough in the place of `needs`.
        settings: the attack's own settings, which `run` then receives as the keyword `settings`.
    """

    name: str
    about: str
    needs: Needs
    metrics: Mapping[str, str]
    run: Callable[..., Any]  # of view, laboratory (the task's) and generator, and its settings where it has any
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
        """Bind `run` to the settings in `key=value,key=value`. Raises `SpecError` for a setting that is not allowed."""
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
        """Requirements under a threat model: of several alternatives the one that it meets."""
        return next((needs for needs in (self.needs, *self.also) if needs.fit(model)), self.needs)

    @property
    def need_words(self) -> str:
        """Requirements in the words of a table."""
        return "; or ".join(needs.words() for needs in (self.needs, *self.also))

    @property
    def leading(self) -> tuple[str, ...]:
        """The metrics that stand for it."""
        return self.leads or (next(iter(self.metrics)),)

    @property
    def threat_models(self) -> tuple[str, ...]:
        """Names of those that give what it needs."""
        return tuple(name for name, model in threat_models(self.task).items() if self.needs_under(model).fit(model))

    def fitting(self, wanted: Sequence[str], algorithm: str) -> tuple[str, ...]:
        """The threat models to run it under, of those asked for; without any, its own."""
        if self.choose is not None:
            return tuple(self.choose(wanted or default_threats(algorithm)))
        able = self.threat_models
        return tuple(name for name in wanted if name in able) or tuple(wanted) or self.threats or able[:1]


class AttackRegistry(Registry[Attack]):
    """Attacks by name. `name:key=value,key=value` is the attack with its own settings."""

    def __getitem__(self, name: str) -> Attack:
        """Raises `SpecError` for a name that no attack has, and for a setting that is not allowed."""
        plain, _, text = name.partition(":")
        return super().__getitem__(plain).with_settings(text)


ATTACKS = AttackRegistry(
    "attack",
    "fkgsec.attacks",
    {
        "reconstruction": "fkgsec.attacks.reconstruction.evaluation:ATTACK",
        "update-recovery": "fkgsec.attacks.update_recovery:ATTACK",
        "membership": "fkgsec.attacks.membership.inference:ATTACK",
        "edges": "fkgsec.attacks.uploads.edges:ATTACK",
        "edges-rounds": "fkgsec.attacks.uploads.rounds:EDGES",
        "degrees": "fkgsec.attacks.uploads.degrees:ATTACK",
        "patterns": "fkgsec.attacks.uploads.patterns:ATTACK",
        "server-aux": "fkgsec.attacks.uploads.auxiliary:ATTACK",
        "server-aux-rounds": "fkgsec.attacks.uploads.rounds:TRIPLES",
        "attributes": "fkgsec.attacks.uploads.attributes:ATTACK",
        "structure": "fkgsec.attacks.uploads.structure:ATTACK",
        "client-passive": "fkgsec.attacks.clients.passive:ATTACK",
        "client-active": "fkgsec.attacks.clients.active:ATTACK",
        "client-guess": "fkgsec.attacks.clients.guess:ATTACK",
        "client-poison": "fkgsec.attacks.poisoning.client:ATTACK",
        "server-poison": "fkgsec.attacks.poisoning.server:ATTACK",
        "client-spoil": "fkgsec.attacks.poisoning.untargeted:ATTACK",
        "server-active": "fkgsec.attacks.sums.inconsistent:ATTACK",
        "disaggregation": "fkgsec.attacks.sums.disaggregation:ATTACK",
        "server-order": "fkgsec.attacks.sums.misordered:ATTACK",
        "dropout-difference": "fkgsec.attacks.sums.differences:DROPOUT",
        "count-lies": "fkgsec.attacks.sums.differences:LIES",
        "graph-membership": "fkgsec.attacks.graphs.membership:ATTACK",
        "degree-support": "fkgsec.attacks.graphs.degree_support:ATTACK",
        "property-inference": "fkgsec.attacks.graphs.properties:ATTACK",
        "client-kinship": "fkgsec.attacks.graphs.kinship:ATTACK",
        "gradient-inversion": "fkgsec.attacks.graphs.inversion.evaluation:ATTACK",
        "backdoor": "fkgsec.attacks.graphs.backdoor:ATTACK",
    },
)
DEFAULT = (RECONSTRUCTION, UPDATE_RECOVERY)  # on knowledge graphs
Case = tuple[list[Figure], list[pd.DataFrame]]


@dataclass(frozen=True)
class AttackedTask:
    """Attacks on the runs of a task.

    Attributes:
        options: the struct of its attacks' options.
        default: the attacks to run on an algorithm where none is named; may depend on the threat models that are.
        default_threats: the threat models that fit an algorithm, for attacks that leave the choice to it.
        build_view: see `build_view`.
        cases: figures and scores of one attack on a result under these options: for each threat model of the attack, by as many
            draws of what is drawn as are asked for; and how federations are trained for it.
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
    """The task of an algorithm, as it is attacked. Raises `SpecError` for one whose task has no attacks."""
    return ATTACKED[RECIPES[algorithm].task]


def default_threats(algorithm: str) -> tuple[str, ...]:
    """The threat models of the papers and of practice that fit an algorithm."""
    return attacked_task(algorithm).default_threats(algorithm)


def build_view(
    result: RunResult, threat_model: ThreatModel, *, colluder: Sequence[str] | str, seed: int, **asked: Any
) -> Any:
    """The view of `threat_model` on a finished run, at its best round: of the run's task, which says what else can be asked.

    Args:
        result: the run; only its transcript, the colluder's own part and what the threat model assumes to be known are taken
            from it.
        colluder: name of the client that colludes, of knowledge graphs also of several; every other client is a victim. Where
            models are held, all clients are.
        seed: of the attack.
        asked: of knowledge graphs `leak`, see `fkgsec.attacks.kge.view.kge_view`; of graph classification
            `candidates`, see `fkgsec.attacks.graphs.view.graph_view`.

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
    return ATTACKED[task].build_view(result, threat_model, colluder=colluder, seed=seed, **asked)


class Attacked(NamedTuple):
    """Results of attacks: figures, and the score of every item (an entity or a triple of a victim) of those that give any."""

    figures: list[Figure]
    scores: pd.DataFrame

    def to_frame(self) -> pd.DataFrame:
        """A row for each figure, with its interval and baseline: columns `fkgsec.attacks.frames.COLUMNS`."""
        return figures_to_frame(self.figures)

    def _repr_html_(self) -> str:
        """The figures that verdicts go by, of all victims together, as notebooks show them."""
        return block("What attacks found", heads=HEADS, rows=summary_rows(self.figures))


def check_attacks(names: Iterable[str]) -> None:
    """Raises `SpecError` for a name that no attack has, and for an attack that is named twice."""
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
    """Run the attacks of the options on a finished run, each under every threat model and leak ratio that it is to be run under.

    An attack skips threat models that lack what it needs while others give it, and runs once where nobody colludes.

    Args:
        options: of the run's task: `KgeAttackOptions` (also called `KgeAttackOptions`), `GraphAttackOptions`.
        leak_draws: how often an attack that is `redrawn` is run again on other leaked entities.
        train: how attacks train federations of their own, such as `run_federation` with an observer or a defense's transport.

    Raises:
        SpecError: options or an attack of another task.
        ThreatModelError: the run cannot be attacked, or an attack gives a metric that it does not declare.
    """
    algorithm = result.options.algorithm
    task, name = attacked_task(algorithm), RECIPES[algorithm].task
    if not isinstance(options, task.options):
        raise SpecError(f"options: a run of {algorithm} takes {task.options.__name__}; got {type(options).__name__}")
    check_attackable(result.graph, algorithm, options.colluder)
    chosen = [ATTACKS[attack] for attack in options.attack or task.default(algorithm, options.threat)]
    for attack in chosen:
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
    """The attacks on runs of a task, by name, in the registry's order."""
    return {name: attack for name, attack in ATTACKS.items() if attack.task == task}


def attack_view(
    attack: Attack, view: View, laboratory: Laboratory, clients: Callable[[], Mapping[str, Any]] = dict
) -> Case:
    """Figures and scores of an attack on one view: of the victims that cannot be attacked with a reason.

    Args:
        laboratory: for the adversary of the view. clients: `Truth.shuffled`, once the attack has run.
    """
    model, needs = view.threat_model, attack.needs_under(view.threat_model)
    lacking = None if attack.choose is not None or needs.fit(model) else f"it needs {attack.need_words}"
    reasons = {victim.name: lacking or needs.missing(victim) for victim in view.victims}
    able = tuple(victim for victim in view.victims if not reasons[victim.name])
    seed, names, claims = laboratory.seed, (attack.name, model.name), None
    if able:
        try:
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
    for figure in figures:
        if figure.metric not in attack.metrics:
            raise ThreatModelError(
                f"attack {attack.name!r} declares {', '.join(attack.metrics)}; got {figure.metric!r}"
            )
    return figures, truth.scores
