"""The spec of a run from a file and from options, for whichever task its algorithm is of.

make_spec(None, {"algorithm": "fedr", "dim": 64})                       # an `fkgsec.experiments.tasks.kge.Spec`
make_spec(Path("spec.yaml"), {"algorithm": "cefgl"})                    # an `fkgsec.experiments.tasks.graph.GraphSpec`
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from fkgsec.arguments import check_values
from fkgsec.errors import SpecError
from fkgsec.experiments.runs.choices import allowed, spelled, spelled_defense
from fkgsec.experiments.runs.documents import read_document
from fkgsec.experiments.tasks.graph import GraphSpec, is_graph_data
from fkgsec.experiments.tasks.kge import CONSORTIUM, Spec, is_knowledge_graph
from fkgsec.experiments.tasks.spec import RunSpec
from fkgsec.experiments.tasks.task import RunTask, all_tasks, task_named, task_of
from fkgsec.federation.options import nested
from fkgsec.federation.recipes import RECIPES, all_settings
from fkgsec.kge.models import ENCODERS, MODELS
from fkgsec.text import shown

__all__ = [
    "CONSORTIUM",
    "GraphSpec",
    "RunSpec",
    "Spec",
    "allowed_words",
    "make_spec",
    "of_triples",
    "option_names",
]

ALL_ATTACKS = "all"


def make_spec(config: Path | None, given: dict[str, Any]) -> Any:
    """Defaults, overridden by the YAML or JSON file, overridden by what was given (None = not given).

    Returns: a `Spec` or a `GraphSpec`, by the task of the algorithm; where none is given, by what the data are.

    Raises:
        SpecError: the file cannot be read, or a field is unknown or has a value that is not allowed; names the field, the line
            of the file where it stands there, and the nearest name or word.
    """
    given = {key: value for key, value in given.items() if value is not None}
    if config is None:
        return _converted(given)
    document = read_document(config)
    loaded = document.mapping((), document.content, option_names())
    try:
        return _converted(loaded | given)
    except SpecError as error:
        # Every message begins with the option's name; an option of the command line has no line in the file.
        name = re.split(r"\W", str(error), maxsplit=1)[0]
        if name not in loaded or name in given:
            raise
        raise SpecError(f"{config}:{document.line((name,))}: {error}") from error


def allowed_words(name: str, task: str | None = None) -> tuple[str, ...]:
    """The words that an option of a run may have, of this task or of any; empty where it is no choice of words.

    >>> allowed_words("eval_sides"), allowed_words("dim"), allowed_words("readout")
    (('tail', 'both'), (), ('sum', 'mean', 'max'))
    """
    found: dict[str, None] = {}
    for one in all_tasks() if task is None else [task_named(task)]:
        settings = all_settings(one.name).get(name, {}).values()
        words = [word for setting in settings for word in setting.choices]
        found |= dict.fromkeys(words or allowed(name, one.spec))
    return tuple(found)


def _converted(fields: dict[str, Any]) -> Any:
    algorithm = spelled("algorithm", fields.get("algorithm"), allowed_words("algorithm"))
    task = _task_of(algorithm, fields.get("data"))
    fields = fields if algorithm is None else fields | {"algorithm": algorithm}
    _refuse_foreign(fields, task)
    for name, value in fields.items():
        words = allowed_words(name, task.name)
        if words and not (name == "model" and _is_no_word(str(value), task)):
            try:
                fields = fields | {name: spelled(name, value, words)}
            except SpecError as error:
                if (name, task.name) != ("model", "kge") or not (meant := _of_family(str(value))):
                    raise
                raise SpecError(
                    f"model must be one of {', '.join(words)}; got {shown(str(value))}; did you mean {meant}?"
                ) from error
    fields = fields | {"attack": _every_attack(fields["attack"], task)} if "attack" in fields else fields
    if isinstance(fields.get("defense"), str):
        fields["defense"] = spelled_defense(fields["defense"])
    try:
        spec = msgspec.convert(nested(fields), task.spec)
    except msgspec.ValidationError as error:
        check_values(task.spec, fields)  # the words that Python has for it
        raise SpecError(_plain(str(error), fields)) from error
    _check_attacks(spec.attack, algorithm or spec.algorithm, task)
    return spec


def _is_no_word(model: str, task: RunTask) -> bool:
    """Whether it names a model that no registry lists: a convolution by its module, or one of a family, as in pykeen:TransH."""
    return "." in model if task.name == "graph" else model.partition(":")[0] in MODELS.families


def _of_family(model: str) -> str:
    """The name by which a family has a model that no registry lists, as in pykeen:TransH; empty where none has it."""
    for name in (f"{prefix}:{model}" for prefix in MODELS.families):
        with contextlib.suppress(SpecError):
            if name in MODELS or name in ENCODERS:
                return name
    return ""


def _every_attack(names: Any, task: RunTask) -> Any:
    """The names of attacks; all of the task in the place of `all`. Raises `SpecError` where others stand beside it."""
    from fkgsec.attacks.registry import attacks_of

    if not isinstance(names, list | tuple) or ALL_ATTACKS not in names:
        return names
    if len(names) > 1:
        raise SpecError(f"attack: {ALL_ATTACKS} takes every attack; leave out {', '.join(map(str, names[1:]))}")
    return list(attacks_of(task.name))


def _check_attacks(names: Sequence[str], algorithm: str, task: RunTask) -> None:
    """Raises `SpecError` for an attack that there is not, or on runs of another task."""
    if not names:
        return
    from fkgsec.attacks.registry import ATTACKS, attacks_of, check_attacks

    check_attacks(names)
    for name in names:
        if ATTACKS[name].task != task.name:
            fitting = ", ".join(attacks_of(task.name))
            about = task_named(ATTACKS[name].task).about
            raise SpecError(f"attack: {name} is one on {about}; {algorithm} {task.does}; give one of {fitting}")


def _task_of(algorithm: Any, data: Any) -> RunTask:
    """The task of an algorithm; without one, of what the data are. Raises `SpecError` where the two do not fit."""
    graphs = isinstance(data, str) and not is_knowledge_graph(data) and is_graph_data(data)
    if not isinstance(algorithm, str):
        return task_named("graph" if graphs else "kge")
    task = task_named(RECIPES[algorithm].task)
    if graphs and task.name != "graph" and not Path(str(data)).exists():
        fitting = ", ".join(allowed_words("algorithm", "graph"))
        raise SpecError(f"data: {data} has graphs to classify, and {algorithm} {task.does}; give one of {fitting}")
    if task.name == "graph" and isinstance(data, str) and is_knowledge_graph(data):
        raise SpecError(
            f"data: {data} is a knowledge graph, and {algorithm} {task.does}; leave it out for generated ones"
        )
    return task


def _refuse_foreign(fields: Mapping[str, Any], task: RunTask) -> None:
    """Raises `SpecError` for an option that only another task has, by whose name it is called."""
    own = option_names(task.name)
    for other in all_tasks():
        for name in fields:
            if name not in own and name in option_names(other.name):
                algorithm = fields.get("algorithm") or task.spec().algorithm
                default = "" if "algorithm" in fields else ", the default for these data,"
                raise SpecError(f"{name} applies to {other.about}; {algorithm}{default} {task.does}")


def option_names(task: str | None = None) -> list[str]:
    """Every option that a run may have, of this task or of any, those of single algorithms included."""
    tasks = all_tasks() if task is None else [task_named(task)]
    names = [name for one in tasks for name in one.spec.__struct_fields__ if name != "settings"]
    return list(dict.fromkeys([*names, *(name for one in tasks for name in all_settings(one.name))]))


def of_triples(spec: RunSpec, command: str, instead: str = "") -> Any:
    """The spec, if it is of knowledge graphs, which a command is for. Raises `SpecError` of another task."""
    task = task_of(spec)
    if task.name != "kge":
        possible = f"; {instead}" if instead else ""
        raise SpecError(
            f"fkgsec {command} is for knowledge-graph embedding, and {spec.algorithm} {task.does}{possible}"
        )
    return spec


def _plain(message: str, fields: dict[str, Any]) -> str:
    """msgspec's message with the field's name first and its value."""
    text, _, path = message.partition(" - at `$.")
    name, text = path.rstrip("`").split("[")[0], text.replace("`array`", "a list")
    return f"{name}: {text}; got {shown(fields.get(name))}" if name else text
