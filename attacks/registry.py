"""Attacks by name: what each needs, what it claims from a view, and how claims are scored against the truth.

    def run(view, rng):                      # sees a View and nothing else
        return {victim.name: -victim.entities.norm(dim=1).numpy() for victim in view.victims}

    def score(claims, truth):                # joins the truth
        return [truth.figure("degree", victim, spearman(claims[victim], truth.degrees(victim))) for victim in claims]

    ATTACKS.register("degrees", Attack("degrees", "...", Needs(single_uploads=True), {"degree": "..."}, run, score))

or, from a package, an entry point of group `fkgsec.attacks`. A registered attack is run by `fkgsec attack --attack NAME`, and its
figures stand in records, tables, reports and listings; each of its metrics is a measure that a policy can limit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attacks.figure import NOT_ATTACKED, Figure
from attacks.membership.figures import measure_membership
from attacks.view import THREAT_MODELS, ThreatModel, VictimView, View, build_view
from fkgsec.data.graph import ClientGraph, FederatedGraph
from fkgsec.errors import SpecError, ThreatModelError
from fkgsec.estimate import Estimate, exact
from fkgsec.federation.loop import FederationResult
from fkgsec.federation.recipes import Table
from fkgsec.randomness import generator
from fkgsec.registry import Registry


@dataclass(frozen=True)
class Needs:
    """What an attack cannot do without.

    Attributes:
        colluder: element-embedding pairs of a client. names: which entity each uploaded row is of.
        single_uploads: tables of which each victim's own rows must have crossed, not their sum alone.
    """

    colluder: bool = False
    names: bool = False
    single_uploads: tuple[Table, ...] = ()

    def fit(self, model: ThreatModel) -> bool:
        """Whether a threat model gives it."""
        return model.colluder >= self.colluder and model.identifiers >= self.names

    def missing(self, victim: VictimView) -> str | None:
        """Why a victim cannot be attacked, or None."""
        for table in self.single_uploads:
            if table in victim.claims:
                return f"its {table} crossed in a sum only"
            if getattr(victim, table) is None:
                return f"no {table} of it crossed"
        return None

    def words(self) -> str:
        """As a table says it."""
        parts = [f"each victim's {table}" for table in self.single_uploads]
        parts += [word for word, needed in (("a colluder", self.colluder), ("names", self.names)) if needed]
        return ", ".join(parts) or "nothing"


@dataclass(frozen=True, eq=False)
class Truth:
    """What the evaluator knows and the adversary does not, and how figures of the view are made.

    Attributes:
        graph: of the federation. rng: of whatever scoring draws.
    """

    attack: str
    view: View
    graph: FederatedGraph
    rng: np.random.Generator

    def client(self, victim: str) -> ClientGraph:
        """A victim's graph. Rows that it uploaded in clear stand in the order of its local ids."""
        return next(client for client in self.graph.clients if client.name == victim)

    def figure(
        self,
        metric: str,
        victim: str,
        estimate: Estimate,
        *,
        baseline: Estimate | None = None,
        attainable: float | None = None,
        reason: str | None = None,
    ) -> Figure:
        """A figure of this attack under the view's threat model."""
        model = self.view.threat_model
        leak = self.view.leak if model.colluder else None
        return Figure(
            self.attack, metric, model.name, victim, estimate, baseline, attainable, leak, self.view.round, reason
        )

    def membership(self, victim: str, members: np.ndarray, controls: np.ndarray) -> list[Figure]:
        """The figure `auc` of a membership attack: scores of trained triples `[m]` and of others `[c]`, larger for trained ones.

        Fewer than two of either give a reason instead.
        """
        if min(len(members), len(controls)) < 2:
            reason = f"{len(members)} trained triples and {len(controls)} others; it takes 2 of each"
            return [self.figure("auc", victim, NOT_ATTACKED, reason=reason)]
        found = measure_membership(
            np.concatenate([members, controls]),
            np.arange(len(members) + len(controls)) < len(members),
            attack=self.attack,
            control="given",
            rng=self.rng,
        )
        return [self.figure("auc", victim, found.auc, baseline=exact(0.5, found.auc.n), attainable=1.0)]


Run = Callable[[View, np.random.Generator], Any]
Score = Callable[[Any, Truth], list[Figure]]


@dataclass(frozen=True)
class Attack:
    """An attack on a finished run.

    Attributes:
        about: one line. metrics: what it measures, a line by name.
        run: from a view of the victims that can be attacked, and a generator of the attack's own, whatever it claims of them.
        score: figures of these claims, from the truth. Without both the attack is a family whose rows of their own stand in the
            record, beside which `figures` are made (`attacks.reconstruction.leakage`, `attacks.update_recovery`).
        threats: names of threat models under which it is run by default; empty: the first that gives what it needs.
        items: what an estimate's sample is made of.
    """

    name: str
    about: str
    needs: Needs
    metrics: Mapping[str, str]
    run: Run | None = None
    score: Score | None = None
    threats: tuple[str, ...] = ()
    items: str = "items of the victims"

    def fitting(self, asked: Sequence[str] = ()) -> tuple[str, ...]:
        """The threat models to run it under: of those asked for, or its own, the ones that give what it needs."""
        able = tuple(name for name, model in THREAT_MODELS.items() if self.needs.fit(model))
        return tuple(name for name in asked if name in able) or self.threats or able[:1]


ATTACKS: Registry[Attack] = Registry("attack", "fkgsec.attacks")
RECONSTRUCTION, UPDATE_RECOVERY = "reconstruction", "update-recovery"
DEFAULT = (RECONSTRUCTION, UPDATE_RECOVERY)
ATTACKS.register(
    RECONSTRUCTION,
    Attack(
        RECONSTRUCTION,
        "names the victims' entities and rebuilds their triples",
        Needs(colluder=True),
        {"err": "entities of the victims that the adversary names", "trr": "triples of the victims that it rebuilds"},
        threats=("collusion", "collusion+entities", "identifiers"),
    ),
)
ATTACKS.register(
    UPDATE_RECOVERY,
    Attack(
        UPDATE_RECOVERY,
        "estimates how the victims' training changed their rows in a round",
        Needs(),
        {"cosine": "cosine of the estimated to the true change of a row, mean over rows"},
        threats=("server", "collusion", "identifiers"),
    ),
)


def check_attacks(names: Iterable[str]) -> None:
    """Raises `SpecError` for a name that no attack has, or that is given twice."""
    names = list(names)
    for name in names:
        ATTACKS[name]
    if len(set(names)) < len(names):
        raise SpecError(f"attack names a value twice: {', '.join(names)}")


def run_attacks(
    result: FederationResult,
    names: Iterable[str],
    *,
    threats: Sequence[str],
    leaks: Sequence[float],
    colluder: str | None,
    seed: int,
) -> list[Figure]:
    """Run registered attacks on a finished run; families with rows of their own are left out.

    Args:
        threats, leaks: under which; an attack skips threat models that lack what it needs, and runs once where nobody colludes.
        seed: of the leaked share and of what attacks draw.

    Raises:
        ThreatModelError: the run cannot be attacked, or an attack gives a metric that it does not declare.
    """
    who, found = colluder or result.graph.clients[0].name, []
    for attack in (ATTACKS[name] for name in names):
        if attack.run is None or attack.score is None:
            continue
        for threat in attack.fitting(threats):
            model = THREAT_MODELS[threat]
            for leak in leaks if model.colluder else leaks[:1]:
                view = build_view(result, model, colluder=who, leak=leak, seed=seed)
                found += _figures(attack, attack.run, attack.score, view, result.graph, seed)
    return found


def _figures(attack: Attack, run: Run, score: Score, view: View, graph: FederatedGraph, seed: int) -> list[Figure]:
    """Of one view: of the victims that cannot be attacked with a reason."""
    truth = Truth(attack.name, view, graph, generator(seed, "score", attack.name, view.threat_model.name))
    missing = {victim.name: attack.needs.missing(victim) for victim in view.victims}
    figures = [
        truth.figure(metric, victim, NOT_ATTACKED, reason=reason)
        for victim, reason in missing.items()
        for metric in attack.metrics
        if reason
    ]
    able = tuple(victim for victim in view.victims if not missing[victim.name])
    if able:
        rng = generator(seed, "attack", attack.name, view.threat_model.name)
        figures += score(run(view.only(able), rng), truth)
    for one in figures:
        if one.metric not in attack.metrics:
            raise ThreatModelError(f"attack {attack.name!r} declares {', '.join(attack.metrics)}; got {one.metric!r}")
    return figures
