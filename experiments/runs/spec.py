"""Construction of a run's spec from a file and options, for the task of its algorithm.

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
from fkgsec.attacks.options import ATTACKS_BY_NAME
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
    "option_names",
    "require_triples",
]

ALL_ATTACKS = "all"


def make_spec(config: Path | None, options: dict[str, Any]) -> Any:
    """Build a spec from defaults, a file and options; the later source wins.

    Args:
        config: YAML or JSON file, or None.
        options: options by name; None values count as absent.

    Returns:
        A `Spec` or a `GraphSpec`, by the task of the algorithm, else by the data.

    Raises:
        SpecError: the file cannot be read, or a field or value is not allowed; the message names the field, its line in the
            file, and the nearest name or word.
    """
    options = {key: value for key, value in options.items() if value is not None}
    if config is None:
        return _converted(options)
    document = read_document(config)
    loaded = document.mapping((), document.content, option_names())
    try:
        return _converted(loaded | options)
    except SpecError as error:
        # Every message begins with the option's name; an option of the command line has no line in the file.
        name = re.split(r"\W", str(error), maxsplit=1)[0]
        if name not in loaded or name in options:
            raise
        raise SpecError(f"{config}:{document.line((name,))}: {error}") from error


def allowed_words(name: str, task: str | None = None) -> tuple[str, ...]:
    """Return the words that an option allows; empty if it is not a choice of words.

    Args:
        name: name of the option.
        task: name of a task; None for the words of all tasks.

    >>> allowed_words("eval_sides"), allowed_words("dim"), allowed_words("readout")
    (('tail', 'both'), (), ('sum', 'mean', 'max'))
    """
    words: dict[str, None] = {}
    for run_task in all_tasks() if task is None else [task_named(task)]:
        settings = all_settings(run_task.name).get(name, {}).values()
        choices = [word for setting in settings for word in setting.choices]
        words |= dict.fromkeys(choices or allowed(name, run_task.spec))
    return tuple(words)


def _converted(fields: dict[str, Any]) -> Any:
    algorithm = spelled("algorithm", fields.get("algorithm"), allowed_words("algorithm"))
    task = _task_of(algorithm, fields.get("data"))
    # The algorithm decides the task, and the task decides which options exist.
    fields = fields if algorithm is None else fields | {"algorithm": algorithm}
    _refuse_foreign(fields, task)
    for name, value in fields.items():
        words = allowed_words(name, task.name)
        # Models of other libraries are not in the registry; the spec checks them itself.
        if words and not (name == "model" and _is_unlisted(str(value), task)):
            try:
                fields = fields | {name: spelled(name, value, words)}
            except SpecError as error:
                if (name, task.name) != ("model", "kge") or not (near := _family_model(str(value))):
                    raise
                allowed = ", ".join(words)
                raise SpecError(
                    f"model must be one of {allowed}; got {shown(str(value))}; did you mean {near}?"
                ) from error
    fields = fields | {"attack": _attack_names(fields["attack"], task)} if "attack" in fields else fields
    if isinstance(fields.get("defense"), str):
        fields["defense"] = spelled_defense(fields["defense"])
    try:
        spec = msgspec.convert(nested(fields), task.spec)
    except msgspec.ValidationError as error:
        # Raises with a better message, where it can.
        check_values(task.spec, fields)
        raise SpecError(_plain(str(error), fields)) from error
    _check_attacks(spec.attack, algorithm or spec.algorithm, task)
    return spec


def _is_unlisted(model: str, task: RunTask) -> bool:
    """Return True for a model outside the registries: a convolution by its module, or a family's model, as in pykeen:TransH."""
    return "." in model if task.name == "graph" else model.partition(":")[0] in MODELS.families


def _family_model(model: str) -> str:
    """Return the name of an unlisted model in its family, as in pykeen:TransH; empty if no family has it."""
    for name in (f"{prefix}:{model}" for prefix in MODELS.families):
        with contextlib.suppress(SpecError):
            if name in MODELS or name in ENCODERS:
                return name
    return ""


def _attack_names(values: Any, task: RunTask) -> Any:
    """Split lists such as `edges,degrees`, check the names, and replace `all` by every attack of the task. Raises `SpecError`."""
    if not isinstance(values, list | tuple) or not all(isinstance(value, str) for value in values):
        return values
    names: list[str] = []
    for value in values:
        for number, piece in enumerate(value.split(",")):
            # As in `--defense`, a piece with an equals sign and no colon is a further setting of the attack before it.
            if number and "=" in piece and ":" not in piece:
                names[-1] += f",{piece}"
            else:
                name, colon, settings = piece.strip().partition(":")
                names.append(f"{spelled('attack', name, (*ATTACKS_BY_NAME, ALL_ATTACKS))}{colon}{settings}")
    if ALL_ATTACKS not in names:
        return names
    if len(names) > 1:
        others = ", ".join(name for name in names if name != ALL_ATTACKS)
        raise SpecError(f"attack: {ALL_ATTACKS} already selects every attack; leave out {others}")
    from fkgsec.attacks.registry import attacks_of

    return list(attacks_of(task.name))


def _check_attacks(names: Sequence[str], algorithm: str, task: RunTask) -> None:
    """Check that attacks exist and belong to the task. Raises `SpecError`."""
    if not names:
        return
    from fkgsec.attacks.registry import ATTACKS, attacks_of, check_attacks

    check_attacks(names)
    for name in names:
        if ATTACKS[name].task != task.name:
            fitting = ", ".join(attacks_of(task.name))
            about = task_named(ATTACKS[name].task).about
            raise SpecError(f"attack: {name} attacks {about}, but {algorithm} {task.does}; use one of {fitting}")


def _task_of(algorithm: Any, data: Any) -> RunTask:
    """Return the task of an algorithm, else of the data. Raises `SpecError` if they do not fit together."""
    # Some names could be both; the catalogue of knowledge graphs wins.
    graphs = isinstance(data, str) and not is_knowledge_graph(data) and is_graph_data(data)
    # Without an algorithm, the data decide: graphs to classify select graph classification.
    if not isinstance(algorithm, str):
        return task_named("graph" if graphs else "kge")
    task = task_named(RECIPES[algorithm].task)
    if graphs and task.name != "graph" and not Path(str(data)).exists():
        fitting = ", ".join(allowed_words("algorithm", "graph"))
        raise SpecError(f"data: {data} has graphs to classify, but {algorithm} {task.does}; use one of {fitting}")
    if task.name == "graph" and isinstance(data, str) and is_knowledge_graph(data):
        raise SpecError(
            f"data: {data} is a knowledge graph, but {algorithm} {task.does}; leave it out to generate graphs"
        )
    return task


def _refuse_foreign(fields: Mapping[str, Any], task: RunTask) -> None:
    """Raise `SpecError` for an option that only another task has."""
    for other in all_tasks():
        foreign = set(option_names(other.name)).difference(option_names(task.name))
        for name in fields:
            if name in foreign:
                algorithm = fields.get("algorithm") or task.spec().algorithm
                default = "" if "algorithm" in fields else ", the default for these data,"
                raise SpecError(f"{name} applies to {other.about}; {algorithm}{default} {task.does}")


def option_names(task: str | None = None) -> list[str]:
    """Return the names of the options, including those of single algorithms.

    Args:
        task: name of a task; None for all tasks.
    """
    tasks = all_tasks() if task is None else [task_named(task)]
    names = [name for run_task in tasks for name in run_task.spec.__struct_fields__ if name != "settings"]
    return list(dict.fromkeys([*names, *(name for run_task in tasks for name in all_settings(run_task.name))]))


def require_triples(spec: RunSpec, command: str, instead: str = "") -> Any:
    """Return the spec if its task is knowledge-graph embedding.

    Args:
        spec: any spec.
        command: the command, for the error.
        instead: what to do for another task.

    Raises:
        SpecError: another task.
    """
    task, hint = task_of(spec), f"; {instead}" if instead else ""
    if task.name != "kge":
        raise SpecError(f"fkgsec {command} is for knowledge-graph embedding, but {spec.algorithm} {task.does}{hint}")
    return spec


def _plain(message: str, fields: dict[str, Any]) -> str:
    """Rephrase msgspec's message: the field's name first, and its value last."""
    text, _, path = message.partition(" - at `$.")
    name, text = path.rstrip("`").split("[")[0], text.replace("`array`", "a list")
    return f"{name}: {text}; got {shown(fields.get(name))}" if name else text
