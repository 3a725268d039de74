"""Policies: federations, and limits on leakage, cost and utility. Read from YAML; errors name file, line and key.

    federations:
      hospitals: {data: consortium, algorithm: fede, defense: "psu,secagg", rounds: 20}   # or {spec: spec.yaml}
    seeds: [0, 1, 2]                      # default: the federation's own seed
    limits:
      reconstruction.trr: {max: 0.05, threat: collusion, leak: 0.5}
      utility.mrr: {min: 0.2}
      gain_over_single: {min: 0, client: each}    # in test MRR or accuracy; without client, of all clients together
      bytes.per_round: {max: 5 MB}
      no_worse_than: {baseline: baseline.json, by: 0.01}

A limit without `federation` applies to all federations, one without `threat` or `leak` to all of the federation's own. Several
limits of one measure form a list. Paths are relative to the working folder, as on the command line.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, get_args

from fkgsec.attacks.options import MEMBERSHIP, MODELS, THREAT_MODELS, threat_models
from fkgsec.attacks.registry import ATTACKS, Attack, attacked_task, default_threats
from fkgsec.attacks.view import ALL
from fkgsec.defenses.options import MOST
from fkgsec.errors import SpecError
from fkgsec.experiments.gate.measures import MEASURES, PAPERS_WORDS, Measure, Question
from fkgsec.experiments.runs.choices import suggestion
from fkgsec.experiments.runs.documents import Document, Where, read_document
from fkgsec.experiments.runs.spec import RunSpec, make_spec, option_names
from fkgsec.experiments.tasks.task import task_named, task_of
from fkgsec.experiments.unlearning.options import MIN_SHADOWS
from fkgsec.federation.recipes import RECIPES
from fkgsec.unlearning.unlearning import Method

NO_WORSE = "no_worse_than"
MOST_BYTES = 1e18
# The last printed decimal.
LEAST_SHARE = 1e-4
# As for --defense; near 1, any mechanism satisfies any epsilon.
MOST_DELTA = 0.1
BYTE_UNITS = {
    "B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40,
}  # fmt: skip


class Limit(NamedTuple):
    """Limit on a figure of one federation.

    Attributes:
        allowed: the bound, in the measure's unit.
        line: line of the policy.
    """

    measure: str
    federation: str
    question: Question
    allowed: float
    line: int

    @property
    def id(self) -> str:
        """ID of the figure, independent of its value.

        >>> Limit("reconstruction.trr", "hospitals", Question("collusion", 0.5), 0.1, 7).id
        'hospitals/reconstruction.trr/collusion/0.5/all'
        """
        return figure_id(self.federation, self.measure, self.question)


class NoWorse(NamedTuple):
    """File with the figures of an earlier commit, and by how much a figure may be worse."""

    baseline: Path
    by: float
    line: int


class Policy(NamedTuple):
    """Content of a policy file.

    Attributes:
        federations: specs by name, each with the threat models and leak ratios of its limits.
        seeds: seeds of training by name of federation.
    """

    path: Path
    federations: dict[str, RunSpec]
    seeds: dict[str, tuple[int, ...]]
    limits: list[Limit]
    no_worse: NoWorse | None


def figure_id(federation: str, measure: str, question: Question) -> str:
    """Return `federation/measure`, followed by threat model, leak, victim and the other keys that identify a figure.

    Args:
        question: the other keys.
    """
    parts = [federation, measure]
    if question.threat is not None:
        parts += [question.threat, *([] if question.leak is None else [f"{question.leak:g}"])]
    if question.threat is not None or question.victim != ALL:
        parts.append(question.victim)
    if question.forget is not None:
        parts += [question.method, question.forget]
    if question.client is not None and question.forget is None:
        parts.append(question.client)
    if question.shadows:
        parts.append(f"{question.shadows} shadows")
    return "/".join(parts)


def read_policy(path: Path) -> Policy:
    """Read and check a policy; nothing is loaded or trained yet.

    Args:
        path: YAML file.

    Raises:
        SpecError: names the line and key, the problem, and what is allowed.
    """
    document = read_document(path)
    top = document.mapping((), document.content, ("federations", "seeds", "limits")) if document.content else {}
    for key in ("federations", "limits"):
        if not top.get(key):
            raise SpecError(f"{path}: {key}: missing or empty; a policy names federations and limits")
    federations = {
        name: _federation(document, ("federations", name), value)
        for name, value in document.mapping(("federations",), top["federations"]).items()
    }
    seeds = _seeds(document, top, federations)
    limits: list[Limit] = []
    no_worse = None
    for key, value in document.mapping(("limits",), top["limits"], (*MEASURES, *PAPERS_WORDS, NO_WORSE)).items():
        where = ("limits", key)
        if key == NO_WORSE:
            no_worse = _no_worse(document, where, value)
        else:
            items = value if isinstance(value, list) else [value]
            for number, item in enumerate(items):
                place = (*where, str(number)) if isinstance(value, list) else where
                limits += _limits(document, place, key, item, federations)
    # Two limits on one figure would contradict or repeat each other.
    first: dict[str, Limit] = {}
    for limit in limits:
        if (other := first.setdefault(limit.id, limit)) is not limit:
            message = f"{limit.id} is limited twice, here and in line {other.line}"
            raise SpecError(f"{path}:{limit.line}: limits.{limit.measure}: {message}")
    # One run must answer all limits of its federation.
    complete = {name: _with_questions(spec, name, limits) for name, spec in federations.items()}
    return Policy(path, complete, seeds, limits, no_worse)


def threats_of(spec: RunSpec, attack: str | None = None) -> tuple[str, ...]:
    """Return the federation's threat models; if it names none, those of an attack that can run on its algorithm.

    Args:
        spec: the federation.
        attack: name of the attack; None for the task's first, such as reconstruction.
    """
    chosen = ATTACKS[attack or attacked_task(spec.algorithm).default(spec.algorithm)[0]]
    if spec.threat:
        return spec.threat
    names = chosen.fitting((), spec.algorithm)
    return tuple(
        name
        for name in names
        if chosen.needs_under(THREAT_MODELS[name]).never(spec.algorithm, THREAT_MODELS[name]) is None
    )


def _federation(document: Document, where: Where, value: Any) -> RunSpec:
    fields = dict(document.mapping(where, value, ("spec", *option_names())))
    file = fields.pop("spec", None)
    if file is not None and not isinstance(file, str):
        document.wrong((*where, "spec"), f"expected a path; got {file!r}")
    # The name is part of a figure's ID, which is separated by slashes.
    if "/" in where[-1]:
        document.wrong(where, "a federation's name must not contain /")
    for key, inside in fields.items():
        # An empty `defense:` means no defense.
        if inside is None and key != "defense":
            document.wrong((*where, key), "has no value")
    if "defense" in fields:
        fields["defense"] = fields["defense"] or ""
    try:
        spec = make_spec(None if file is None else Path(file), fields)
    except SpecError as error:
        message = str(error).removeprefix("options: ")
        key = re.split(r"\W", message, maxsplit=1)[0]
        document.wrong((*where, key) if key in fields else where, message)
    if getattr(spec, "metric", None) == "published":
        document.wrong(
            (*where, "metric") if "metric" in fields else where,
            "metric must be paper: the counts of published are not shares, so no limit can apply to them",
        )
    # Limiting a single inference would ignore a stronger one.
    if inference := getattr(spec, "inference", ()):
        document.wrong(
            (*where, "inference") if "inference" in fields else where,
            f"inference must not be set: a limit applies to the strongest inference; got {', '.join(inference)}",
        )
    # "auto" would give different figures on a machine with a GPU.
    return spec.replace(device="cpu") if spec.device == "auto" else spec


def _seeds(document: Document, top: dict[str, Any], federations: dict[str, RunSpec]) -> dict[str, tuple[int, ...]]:
    if "seeds" not in top:
        return {name: (spec.seed,) for name, spec in federations.items()}
    listed = top["seeds"]
    if not isinstance(listed, list) or not listed:
        document.wrong(("seeds",), f"expected a list of whole numbers; got {listed!r}")
    for seed in listed:
        if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
            document.wrong(("seeds",), f"a seed is a whole number that is not negative; got {seed!r}")
    if len(set(listed)) < len(listed):
        document.wrong(("seeds",), f"a seed is given twice: {', '.join(map(str, listed))}")
    for name in federations:
        if "seed" in top["federations"][name]:
            document.wrong(("federations", name, "seed"), "set seed here or seeds for all, not both")
    return dict.fromkeys(federations, tuple(listed))


class _Fields(NamedTuple):
    """Fields of one limit in a policy, with their position."""

    document: Document
    where: Where
    values: dict[str, Any]

    def wrong(self, key: str, message: str) -> NoReturn:
        """Raise `SpecError` for a field, or for the whole limit.

        Args:
            key: name of the field; empty for the whole limit.
            message: the problem.
        """
        self.document.wrong((*self.where, key) if key else self.where, message)

    def text(self, key: str, default: str | None) -> Any:
        """Return a field that is text.

        Args:
            key: name of the field.
            default: value of a missing field.
        """
        value = self.values.get(key, default)
        if not isinstance(value, str | None) or (not value and key in self.values):
            kind = "a path" if key == "forget" else "a client's name"
            self.wrong(key, f"expected {kind}; got {value!r}")
        return value

    def number(self, key: str, value: Any, allowed: str, right: Callable[[float], bool]) -> float:
        """Convert a field to a finite number.

        Args:
            key: name of the field.
            allowed: allowed range, for the error.
            right: returns True for an allowed number.
        """
        try:
            number = math.nan if isinstance(value, bool) else float(value)  # YAML reads 1e-5 as text
        except (TypeError, ValueError):
            number = math.nan
        if not (math.isfinite(number) and right(number)):
            self.wrong(key, f"must be {allowed}; got {value!r}")
        return number


def _limits(document: Document, where: Where, key: str, value: Any, federations: dict[str, RunSpec]) -> list[Limit]:
    """Read one entry of `limits`: a limit for each federation, threat model and leak that it does not name."""
    key = PAPERS_WORDS.get(key, key)
    measure = MEASURES[key]
    fields = _Fields(document, where, document.mapping(where, value, (measure.bound, "federation", *measure.keys)))
    if measure.bound not in fields.values:
        fields.wrong("", f"{measure.bound} is missing")
    allowed = _allowed(fields, measure)
    only = fields.values.get("federation")
    limits = []
    for name in federations if "federation" not in fields.values else [only]:
        if name not in federations:
            fields.wrong("federation", f"no federation {name!r}{suggestion(str(name), federations)}")
        spec = federations[name]
        if measure.task in ("", spec.task):
            questions = _questions(fields, measure, name, spec)
            limits += [Limit(key, name, question, allowed, document.line(where)) for question in questions]
        # A limit without `federation` skips federations of other tasks, but must apply to at least one.
        elif only or not any(other.task == measure.task for other in federations.values()):
            about, does = task_named(measure.task).about, task_of(spec).does
            fields.wrong("", f"is a measure of {about}, but the algorithm of {name}, {spec.algorithm}, {does}")
    return limits


def _questions(fields: _Fields, measure: Measure, name: str, spec: RunSpec) -> list[Question]:
    """Return the questions of a limit for one federation: one for each threat model and leak that the limit does not name."""
    values = fields.values
    if "unit" in measure.keys:
        unit = values.get("unit", "client")
        if unit not in ("client", "row"):
            fields.wrong("unit", f"must be client or row; got {unit!r}")
        delta = fields.number(
            "delta", values.get("delta", 1e-4), f"in (0, {MOST_DELTA:g})", lambda x: 0 < x < MOST_DELTA
        )
        if "forget" in values:
            if spec.task != "kge":
                fields.wrong("forget", f"applies to triples; {spec.algorithm} {task_of(spec).does}")
            return [_audit_question(fields, name, spec)._replace(unit=unit, delta=delta)]
        for key in ("client", "method"):
            if key in values:
                fields.wrong(key, "applies to an unlearning; add its forget file")
        return [Question(unit=unit, delta=delta)]
    if "shadows" in measure.keys:
        return [_audit_question(fields, name, spec)]
    if measure.kind == "gain":
        if not RECIPES[spec.algorithm].shared:
            fields.wrong("", f"{name} has nothing to gain: its algorithm, {spec.algorithm}, exchanges nothing")
        return [Question(client=fields.text("client", None))]
    if "threat" not in measure.keys:
        return [Question()]
    assert measure.attack is not None
    threats = threats_of(spec, measure.attack.name)
    if "threat" in values:
        threats = (values["threat"],)
        if threats[0] not in (models := threat_models(spec.task)):
            fields.wrong("threat", f"{threats[0]!r} is unknown{suggestion(str(threats[0]), models)}")
    elif spec.threat:
        threats = measure.attack.fitting(spec.threat, spec.algorithm)
    for threat in threats or default_threats(spec.algorithm):
        _check_threat(fields, measure.attack, name, spec, threat)
    leaks = getattr(spec, "leak", (None,))
    if "leak" in values:
        leaks = (fields.number("leak", values["leak"], "in (0, 1]", lambda x: 0 < x <= 1),)
    victim = fields.text("victim", ALL)
    return [
        Question(threat, leak, victim)
        for threat in threats
        for leak in (leaks if THREAT_MODELS[threat].leaks else (None,))
    ]


def _check_threat(fields: _Fields, attack: Attack, name: str, spec: RunSpec, threat: str) -> None:
    if reason := attack.needs_under(THREAT_MODELS[threat]).never(spec.algorithm, THREAT_MODELS[threat]):
        fields.wrong("", f"the attack cannot run on {name} under {threat}: {reason}")


def _audit_question(fields: _Fields, name: str, spec: RunSpec) -> Question:
    """Return the question of a limit on membership or unlearning for one federation."""
    values = fields.values
    shadows = values.get("shadows", 0)
    if type(shadows) is not int or (shadows and (shadows < MIN_SHADOWS or shadows % 2)):
        fields.wrong("shadows", f"must be 0 or an even number of at least {MIN_SHADOWS}; got {shadows!r}")
    if fields.where[1].startswith("membership."):
        attack = ATTACKS[MEMBERSHIP]
        if (threat := values.get("threat", MODELS)) not in attack.threat_models:
            fields.wrong("threat", f"must be one of {', '.join(attack.threat_models)}; got {threat!r}")
        _check_threat(fields, attack, name, spec, threat)
        victim = fields.text("victim", ALL)
        return Question(None if threat == MODELS else threat, victim=victim, shadows=shadows)
    if "forget" not in values:
        fields.wrong("", "forget is missing: the file with the triples to forget")
    method = values.get("method", "fedlu")
    if method not in get_args(Method):
        fields.wrong("method", f"must be one of {', '.join(get_args(Method))}; got {method!r}")
    if method == "fedlu" and RECIPES[spec.algorithm].private != "entities":
        fields.wrong("method", f"fedlu cannot unlearn {name}, whose algorithm is {spec.algorithm}")
    client = None if values.get("client") is None else fields.text("client", None)
    return Question(shadows=shadows, forget=fields.text("forget", None), client=client, method=method)


def _no_worse(document: Document, where: Where, value: Any) -> NoWorse:
    fields = _Fields(document, where, document.mapping(where, value, ("baseline", "by")))
    baseline = fields.values.get("baseline")
    if not isinstance(baseline, str):
        fields.wrong("baseline", f"expected a path; got {baseline!r}")
    if "by" not in fields.values:
        fields.wrong("", "by is missing")
    by = fields.number("by", fields.values["by"], "in [0, 1)", lambda x: 0 <= x < 1)
    return NoWorse(Path(baseline), by, document.line(where))


def _with_questions(spec: RunSpec, name: str, limits: list[Limit]) -> RunSpec:
    """Return the spec with every threat model and leak of its limits, so that one run answers all of them."""
    questions = [
        limit.question
        for limit in limits
        if limit.federation == name and limit.question.threat and MEASURES[limit.measure].attack is not None
    ]
    threats = dict.fromkeys([*threats_of(spec), *(str(question.threat) for question in questions)])
    registered = [MEASURES[limit.measure].attack for limit in limits if limit.federation == name]
    default_attacks = spec.attack or attacked_task(spec.algorithm).default(spec.algorithm)
    named = {ATTACKS[attack].name for attack in default_attacks}
    added = dict.fromkeys(
        attack_of_limit.name
        for attack_of_limit in registered
        if attack_of_limit is not None and attack_of_limit.name not in named
    )
    attack = (*default_attacks, *added) if added else spec.attack
    leaks = dict.fromkeys(question.leak for question in questions if question.leak is not None)
    shares = {"leak": tuple(dict.fromkeys([*getattr(spec, "leak", ()), *leaks]))} if leaks else {}
    return spec.replace(threat=tuple(threats), attack=attack, **shares)


def _allowed(fields: _Fields, measure: Measure) -> float:
    """Return the bound of a limit in the measure's unit."""
    key, value = measure.bound, fields.values[measure.bound]
    if measure.kind == "epsilon":
        return fields.number(key, value, f"above 0 and at most {MOST:g}", lambda x: 0 < x <= MOST)
    if measure.kind == "gain":
        return fields.number(key, value, "a difference above -1 and below 1", lambda x: -1 < x < 1)
    if measure.kind == "share":
        share = fields.number(key, value, "a share above 0 and below 1", lambda x: 0 < x < 1)
        if measure.bound == "min" and share < LEAST_SHARE:
            fields.wrong(key, f"must be at least {LEAST_SHARE:g}; got {value!r}")
        return share
    # Bytes accept units, as in `5 MB` or `1.5 MiB`.
    parts = re.fullmatch(r"\s*(-?[\d.]+(?:e\d+)?)\s*([A-Za-z]*)\s*", str(value))
    if isinstance(value, bool) or parts is None:
        fields.wrong(key, f"expected a number with a unit, such as 5 MB; got {value!r}")
    unit = parts[2] or "B"
    if unit not in BYTE_UNITS:
        fields.wrong(key, f"unknown unit {unit!r}; allowed: {', '.join(BYTE_UNITS)}")
    count = BYTE_UNITS[unit] * fields.number(key, parts[1], "above 0", lambda x: x > 0)
    if count > MOST_BYTES:
        fields.wrong(key, f"must be at most {MOST_BYTES:g} B; got {value!r}")
    return count
