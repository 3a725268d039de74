"""A policy: federations, and limits on what they may leak, cost and lose. Read from YAML; an error names file, line and key.

    federations:
      hospitals: {data: consortium, algorithm: fede, defense: "psu,secagg", rounds: 20}   # or {spec: spec.yaml}
    seeds: [0, 1, 2]                      # default: the federation's own seed
    limits:
      reconstruction.trr: {max: 0.05, threat: collusion, leak: 0.5}
      utility.mrr: {min: 0.2}
      bytes.per_round: {max: 5 MB}
      no_worse_than: {baseline: baseline.json, by: 0.01}

A limit without `federation` holds for all of them, one without `threat` or `leak` for all of the federation's own; several
limits of one measure are a list. Paths are relative to the folder that fkgsec runs in, as on the command line.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, get_args

from fkgsec.attacks.options import MEMBERSHIP, MODELS, THREAT_MODELS, threat_models
from fkgsec.attacks.registry import ATTACKS, attacked_task, default_threats
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
LEAST_SHARE = 1e-4  # the last decimal that is shown
MOST_DELTA = 0.1  # that of --defense; near 1, any epsilon holds
BYTE_UNITS = {
    "B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40,
}  # fmt: skip


class Limit(NamedTuple):
    """One thing to judge: a figure of one federation and the value it may not pass. `line` is where the policy says so."""

    measure: str
    federation: str
    question: Question
    allowed: float
    line: int

    @property
    def id(self) -> str:
        """The same for the same figure of the same federation, whatever it may be.

        >>> Limit("reconstruction.trr", "hospitals", Question("collusion", 0.5), 0.1, 7).id
        'hospitals/reconstruction.trr/collusion/0.5/all'
        """
        return figure_id(self.federation, self.measure, self.question)


class NoWorse(NamedTuple):
    """The figures of an earlier commit, in a file, and by how much a figure may be worse."""

    baseline: Path
    by: float
    line: int


class Policy(NamedTuple):
    """What a policy file says.

    Attributes:
        federations: by name, each with the threat models and leak ratios that its limits ask about.
        seeds: by name of federation, what it is trained with.
    """

    path: Path
    federations: dict[str, RunSpec]
    seeds: dict[str, tuple[int, ...]]
    limits: list[Limit]
    no_worse: NoWorse | None


def figure_id(federation: str, measure: str, question: Question) -> str:
    """`federation/measure`, with threat model, leak and victim for a figure of an attack, and what else tells it from another."""
    parts = [federation, measure]
    if question.threat is not None:
        parts += [question.threat, *([] if question.leak is None else [f"{question.leak:g}"])]
    if question.threat is not None or question.victim != ALL:
        parts.append(question.victim)
    if question.forget is not None:
        parts += [question.method, question.forget]
    if question.shadows:
        parts.append(f"{question.shadows} shadows")
    return "/".join(parts)


def read_policy(path: Path) -> Policy:
    """Read and check a policy; nothing is loaded or trained yet.

    Raises:
        SpecError: what is wrong, in which line and key, and what is allowed.
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
    _refuse_twice(document, limits)
    asked = {name: _with_questions(spec, name, limits) for name, spec in federations.items()}
    return Policy(path, asked, seeds, limits, no_worse)


def threats_of(spec: RunSpec, attack: str | None = None) -> tuple[str, ...]:
    """The federation's own threat models; where it names none, those of an attack that can run on its algorithm.

    Args:
        attack: None: the task's first, such as reconstruction.
    """
    one = ATTACKS[attack or attacked_task(spec.algorithm).default(spec.algorithm)[0]]
    if spec.threat:
        return spec.threat
    names = one.fitting((), spec.algorithm)
    return tuple(
        name
        for name in names
        if one.needs_under(THREAT_MODELS[name]).never(spec.algorithm, THREAT_MODELS[name]) is None
    )


def _federation(document: Document, where: Where, value: Any) -> RunSpec:
    fields = dict(document.mapping(where, value, ("spec", *option_names())))
    file = fields.pop("spec", None)
    if file is not None and not isinstance(file, str):
        document.wrong((*where, "spec"), f"a path is expected; got {file!r}")
    if "/" in where[-1]:
        document.wrong(where, "a federation's name must not contain /")
    for key, inside in fields.items():
        if inside is None and key != "defense":  # `defense:` with nothing behind it is no defense
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
            "metric must be paper: the notebooks' counts of published are no shares that a limit could hold",
        )
    if inference := getattr(spec, "inference", ()):
        document.wrong(
            (*where, "inference") if "inference" in fields else where,
            f"inference must not be set: a limit is on the strongest of all that fit; got {', '.join(inference)}",
        )
    # "auto" would give other bits on a machine with a GPU.
    return spec.replace(device="cpu") if spec.device == "auto" else spec


def _seeds(document: Document, top: dict[str, Any], federations: dict[str, RunSpec]) -> dict[str, tuple[int, ...]]:
    if "seeds" not in top:
        return {name: (spec.seed,) for name, spec in federations.items()}
    given = top["seeds"]
    if not isinstance(given, list) or not given:
        document.wrong(("seeds",), f"a list of whole numbers is expected; got {given!r}")
    for seed in given:
        if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
            document.wrong(("seeds",), f"a seed is a whole number that is not negative; got {seed!r}")
    if len(set(given)) < len(given):
        document.wrong(("seeds",), f"a seed is given twice: {', '.join(map(str, given))}")
    for name in federations:
        if "seed" in top["federations"][name]:
            document.wrong(("federations", name, "seed"), "give seed here or seeds for all, not both")
    return dict.fromkeys(federations, tuple(given))


def _limits(document: Document, where: Where, key: str, value: Any, federations: dict[str, RunSpec]) -> list[Limit]:
    key = PAPERS_WORDS.get(key, key)
    measure = MEASURES[key]
    fields = document.mapping(where, value, (measure.bound, "federation", *measure.keys))
    if measure.bound not in fields:
        document.wrong(where, f"{measure.bound} is missing")
    allowed = _allowed(document, (*where, measure.bound), measure, fields[measure.bound])
    names = [fields["federation"]] if "federation" in fields else list(federations)
    line = document.line(where)
    limits = []
    for name in names:
        if name not in federations:
            document.wrong((*where, "federation"), f"no federation {name!r}{suggestion(str(name), federations)}")
        if measure.task not in ("", federations[name].task):
            _check_task(document, where, measure, federations, name if "federation" in fields else None)
            continue
        limits += [
            Limit(key, name, question, allowed, line)
            for question in _questions(document, where, measure, fields, name, federations[name])
        ]
    return limits


def _check_task(
    document: Document, where: Where, measure: Measure, federations: dict[str, RunSpec], name: str | None
) -> None:
    """Raises `SpecError` for a limit on a federation of another task, which it names, or where none is of the measure's."""
    if name is not None or not any(spec.task == measure.task for spec in federations.values()):
        named = name or next(iter(federations))
        algorithm, task = federations[named].algorithm, task_of(federations[named])
        about = task_named(measure.task).about
        document.wrong(where, f"is a measure of {about}; the algorithm of {named}, {algorithm}, {task.does}")


def _questions(
    document: Document, where: Where, measure: Measure, fields: dict[str, Any], name: str, spec: RunSpec
) -> list[Question]:
    """The figures that a limit is about on one federation: one for each threat model and leak that it does not name."""
    if "unit" in measure.keys:
        unit = fields.get("unit", "client")
        if unit not in ("client", "row"):
            document.wrong((*where, "unit"), f"must be client or row; got {unit!r}")
        delta = _number(
            document,
            (*where, "delta"),
            fields.get("delta", 1e-4),
            f"in (0, {MOST_DELTA:g})",
            lambda x: 0 < x < MOST_DELTA,
        )
        if "forget" in fields:
            if spec.task != "kge":
                document.wrong((*where, "forget"), f"triples are forgotten; {spec.algorithm} {task_of(spec).does}")
            return [_audit_question(document, where, fields, name, spec)._replace(unit=unit, delta=delta)]
        for key in ("client", "method"):
            if key in fields:
                document.wrong((*where, key), "applies to an unlearning; name its forget file, too")
        return [Question(unit=unit, delta=delta)]
    if "shadows" in measure.keys:
        return [_audit_question(document, where, fields, name, spec)]
    if "threat" not in measure.keys:
        return [Question()]
    assert measure.attack is not None
    threats = threats_of(spec, measure.attack.name)
    if "threat" in fields:
        threats = (fields["threat"],)
        if threats[0] not in (known := threat_models(spec.task)):
            document.wrong((*where, "threat"), f"{threats[0]!r} is unknown{suggestion(str(threats[0]), known)}")
    elif spec.threat:
        threats = measure.attack.fitting(spec.threat, spec.algorithm)
    for threat in threats or default_threats(spec.algorithm):
        if reason := measure.attack.needs_under(THREAT_MODELS[threat]).never(spec.algorithm, THREAT_MODELS[threat]):
            document.wrong(where, f"the attack cannot run on {name} under {threat}: {reason}")
    leaks = getattr(spec, "leak", (None,))
    if "leak" in fields:
        leaks = (_number(document, (*where, "leak"), fields["leak"], "in (0, 1]", lambda x: 0 < x <= 1),)
    victim = _text(document, where, fields, "victim", ALL)
    return [
        Question(threat, leak, victim)
        for threat in threats
        for leak in (leaks if THREAT_MODELS[threat].leaks else (None,))
    ]


def _audit_question(document: Document, where: Where, fields: dict[str, Any], name: str, spec: RunSpec) -> Question:
    """What a limit on membership or unlearning asks of one federation."""
    shadows = fields.get("shadows", 0)
    if type(shadows) is not int or (shadows and (shadows < MIN_SHADOWS or shadows % 2)):
        document.wrong((*where, "shadows"), f"must be 0 or an even number of at least {MIN_SHADOWS}; got {shadows!r}")
    if where[1].startswith("membership."):
        attack = ATTACKS[MEMBERSHIP]
        if (threat := fields.get("threat", MODELS)) not in attack.threat_models:
            allowed = ", ".join(attack.threat_models)
            document.wrong((*where, "threat"), f"must be one of {allowed}; got {threat!r}")
        if reason := attack.needs_under(THREAT_MODELS[threat]).never(spec.algorithm, THREAT_MODELS[threat]):
            document.wrong(where, f"the attack cannot run on {name} under {threat}: {reason}")
        victim = _text(document, where, fields, "victim", ALL)
        return Question(None if threat == MODELS else threat, victim=victim, shadows=shadows)
    if "forget" not in fields:
        document.wrong(where, "forget is missing: the file with the triples to forget")
    method = fields.get("method", "fedlu")
    if method not in get_args(Method):
        document.wrong((*where, "method"), f"must be one of {', '.join(get_args(Method))}; got {method!r}")
    if method == "fedlu" and RECIPES[spec.algorithm].private != "entities":
        document.wrong((*where, "method"), f"fedlu does not unlearn {name}, whose algorithm is {spec.algorithm}")
    client = None if fields.get("client") is None else _text(document, where, fields, "client", "")
    return Question(shadows=shadows, forget=_text(document, where, fields, "forget", ""), client=client, method=method)


def _text(document: Document, where: Where, fields: dict[str, Any], key: str, default: str) -> str:
    value = fields.get(key, default)
    if not isinstance(value, str) or (not value and key in fields):
        what = "a path" if key == "forget" else "a client's name"
        document.wrong((*where, key), f"{what} is expected; got {value!r}")
    return value


def _no_worse(document: Document, where: Where, value: Any) -> NoWorse:
    fields = document.mapping(where, value, ("baseline", "by"))
    if not isinstance(fields.get("baseline"), str):
        document.wrong((*where, "baseline"), f"a path is expected; got {fields.get('baseline')!r}")
    if "by" not in fields:
        document.wrong(where, "by is missing")
    by = _number(document, (*where, "by"), fields["by"], "in [0, 1)", lambda x: 0 <= x < 1)
    return NoWorse(Path(fields["baseline"]), by, document.line(where))


def _refuse_twice(document: Document, limits: list[Limit]) -> None:
    first: dict[str, Limit] = {}
    for limit in limits:
        other = first.setdefault(limit.id, limit)
        if other is not limit:
            message = f"limits {limit.id} twice, here and in line {other.line}"
            raise SpecError(f"{document.path}:{limit.line}: limits.{limit.measure}: {message}")


def _with_questions(spec: RunSpec, name: str, limits: list[Limit]) -> RunSpec:
    """The spec with every threat model and leak that limits ask about, so that one run answers them all."""
    asked = [
        limit.question
        for limit in limits
        if limit.federation == name and limit.question.threat and MEASURES[limit.measure].attack is not None
    ]
    threats = dict.fromkeys([*threats_of(spec), *(str(question.threat) for question in asked)])
    registered = [MEASURES[limit.measure].attack for limit in limits if limit.federation == name]
    own = spec.attack or attacked_task(spec.algorithm).default(spec.algorithm)
    added = dict.fromkeys(one.name for one in registered if one is not None and one.name not in own)
    attack = (*own, *added) if added else spec.attack
    leaks = dict.fromkeys(question.leak for question in asked if question.leak is not None)
    shares = {"leak": tuple(dict.fromkeys([*getattr(spec, "leak", ()), *leaks]))} if leaks else {}
    return spec.replace(threat=tuple(threats), attack=attack, **shares)


def _allowed(document: Document, where: Where, measure: Measure, value: Any) -> float:
    """The bound of a limit in the measure's unit."""
    match measure.kind:
        case "share":
            share = _number(document, where, value, "a share above 0 and below 1", lambda x: 0 < x < 1)
            if measure.bound == "min" and share < LEAST_SHARE:
                document.wrong(where, f"must be at least {LEAST_SHARE:g}: below, it is no limit; got {value!r}")
            return share
        case "epsilon":
            return _number(document, where, value, f"above 0 and at most {MOST:g}", lambda x: 0 < x <= MOST)
        case "bytes":
            return _bytes(document, where, value)


def _bytes(document: Document, where: Where, value: Any) -> float:
    found = re.fullmatch(r"\s*(-?[\d.]+(?:e\d+)?)\s*([A-Za-z]*)\s*", str(value))
    if isinstance(value, bool) or found is None:
        document.wrong(where, f"a number with a unit is expected, such as 5 MB; got {value!r}")
    unit = found[2] or "B"
    if unit not in BYTE_UNITS:
        document.wrong(where, f"unknown unit {unit!r}; allowed: {', '.join(BYTE_UNITS)}")
    count = BYTE_UNITS[unit] * _number(document, where, found[1], "above 0", lambda x: x > 0)
    if count > MOST_BYTES:
        document.wrong(where, f"must be at most {MOST_BYTES:g} B, which no federation sends; got {value!r}")
    return count


def _number(document: Document, where: Where, value: Any, allowed: str, right: Callable[[float], bool]) -> float:
    try:
        number = math.nan if isinstance(value, bool) else float(value)  # YAML reads 1e-5 as text
    except (TypeError, ValueError):
        number = math.nan
    if not (math.isfinite(number) and right(number)):
        document.wrong(where, f"must be {allowed}; got {value!r}")
    return number
