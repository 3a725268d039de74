"""Command-line options, generated from the fields of specs and of algorithms' settings. No option is declared here."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, ClassVar, NamedTuple, get_args, get_origin, get_type_hints

import msgspec
import typer
from typer.core import TyperCommand

from fkgsec.data.catalogue import datasets
from fkgsec.defenses.options import KINDS, words_of
from fkgsec.experiments.cli.console import complete_from
from fkgsec.experiments.runs.choices import allowed
from fkgsec.experiments.runs.spec import CONSORTIUM, allowed_words
from fkgsec.experiments.tasks.graph import MOTIFS
from fkgsec.experiments.tasks.task import all_tasks
from fkgsec.federation.recipes import all_settings


class Flag(NamedTuple):
    """Field of a spec as a command-line option."""

    names: tuple[str, ...]
    help: str
    panel: str


DATA_FIELDS = ("data", "clients", "partition", "size", "triple_columns", "normalise", "split_seed", "clean")
DATA, ALGORITHM, TRAINING, ATTACK = "Data", "Algorithm and model", "Training", "Attack"
OF_TASK = {"kge": "Knowledge-graph embedding only", "graph": "Graph classification only"}
ATTACK_OF_TASK = {"kge": "Attacks on knowledge graphs only", "graph": "Attacks on graph classification only"}
SETTINGS = {
    "kge": "Settings that some algorithms have for knowledge graphs",
    "graph": "Settings that some algorithms have for graph classification",
}
# Sources of defaults. A test compares them with the tables of these papers, from which `--preset` takes its values.
SOURCES = {
    "kge": {
        "FedR's paper": (
            "num_negatives",
            "gamma",
            "local_epochs",
            "dim",
            "learning_rate",
            "patience",
            "rounds",
            "negative_scope",
            "rank_scope",
        ),
        "FedR's code": ("batch_size", "init_epsilon", "eval_every"),
    },
    "graph": {
        "CEFGL's paper": ("layers", "optimizer", "learning_rate", "weight_decay", "rounds"),
        "GCFL's code": ("width", "dropout", "readout", "batch_size", "local_epochs"),
    },
}

HELP_ALL = "help_all"
RUN = "Run"
# Panel and text of the options that `--help` shows for a command with many options; `--help-all` shows all.
BASIC = {
    "run": (RUN, "attack this finished run; without it, train one"),
    "case": (RUN, "a defense, an algorithm, or algorithm/defense; repeatable"),
    "search": (RUN, "option and values: NAME=A,B or NAME=LOW:HIGH; repeatable"),
    "trials": (RUN, "total number of trials (default: 20)"),
    "config": (RUN, "YAML or JSON file with options"),
    "preset": (RUN, "settings of a paper: fedr, feds, fedlu, pfedeg, cefgl"),
    "out": (RUN, "folder of the run (default: one in runs/)"),
    "single": (RUN, "do not train the same clients alone"),
    "seeds": (RUN, "train this many times; intervals cover all"),
    "overwrite": (RUN, "replace a run that has other settings"),
    "details": (RUN, "print every table above the verdict"),
    "dry_run": (RUN, "print the plan, seconds and memory; train nothing"),
    "help": (RUN, "show this help"),
    HELP_ALL: (RUN, "show all options"),
    "data": (DATA, "data set, folder or file (default: consortium, generated)"),
    "clients": (DATA, "number of clients to divide the data among"),
    "partition": (DATA, "division by triples, relations or clusters"),
    "triple_columns": (DATA, "names of a table's three columns"),
    "algorithm": (ALGORITHM, "fede, fedr, feds, ... (default: fede)"),
    "defense": (ALGORITHM, "such as psu,secagg or dp:epsilon=8,clip=0.1"),
    "model": (ALGORITHM, "transe, rotate, distmult, complex, gin, ..."),
    "rounds": (ALGORITHM, "maximum number of rounds (default: 300)"),
    "dim": (ALGORITHM, "embedding dimension (default: 128)"),
    "seed": (ALGORITHM, "seed of all randomness (default: 0)"),
    "attack": (ATTACK, "names of attacks, separated by commas; list shows all"),
    "threat": (ATTACK, "threat model: what the adversary sees; repeatable"),
    "leak": (ATTACK, "share of entities a colluder reveals (default: 0.5)"),
    "colluder": (ATTACK, "client that colludes (default: the first)"),
}

# Settings of algorithms are read from the algorithms' own structs, see `_flags`.
_FIELDS = {
    task.name: {field.name: field for field in msgspec.structs.fields(task.spec) if field.name != "settings"}
    for task in all_tasks()
}


def _flags() -> dict[str, Flag]:
    """Return a flag for each field of a spec and each setting of an algorithm, in the order of `--help`."""
    fields = dict.fromkeys((*DATA_FIELDS, *(name for fields in _FIELDS.values() for name in fields)))
    flags = {name: Flag(_names(name), _help(name), _panel(name)) for name in fields}
    # One option serves all algorithms with a setting of this name; its help lists each algorithm's default.
    for name in dict.fromkeys(name for task in SETTINGS for name in all_settings(task)):
        tasks = [task for task in SETTINGS if name in all_settings(task)]
        by_algorithm = {algorithm: field for task in tasks for algorithm, field in all_settings(task)[name].items()}
        lines = list(dict.fromkeys(field.help for field in by_algorithm.values()))
        defaults = ", ".join(f"{algorithm}: {field.default}" for algorithm, field in by_algorithm.items())
        words = ", ".join(allowed_words(name))
        about = f"{'; '.join(lines)}{f': {words}' if words else ''} ({defaults})"
        flags[name] = Flag(_names(name), about, SETTINGS[tasks[0]])
    # `sorted` is stable: within a panel, options keep the order of the spec's fields.
    panels = [DATA, ALGORITHM, TRAINING, *OF_TASK.values(), *SETTINGS.values(), ATTACK, *ATTACK_OF_TASK.values()]
    return dict(sorted(flags.items(), key=lambda flag: panels.index(flag[1].panel)))


def _names(name: str) -> tuple[str, ...]:
    option = f"--{name.replace('_', '-')}"
    # `fkgsec attack --target fede` names the attacked algorithm.
    return (option, "--target") if name == "algorithm" else (option,)


def _panel(name: str) -> str:
    if name in DATA_FIELDS:
        return DATA
    if name in ("algorithm", "defense", "model"):
        return ALGORITHM
    # Options outside the training's struct concern attacks. Those of one task get that task's panel.
    tasks = [task for task in all_tasks() if name in _FIELDS[task.name]]
    of_attacks = name == "attack_seed" or name not in tasks[0].spec.options_type.__struct_fields__
    if len(tasks) > 1:
        return ATTACK if of_attacks else TRAINING
    return (ATTACK_OF_TASK if of_attacks else OF_TASK)[tasks[0].name]


def _help(name: str) -> str:
    """Return a field's description, its allowed words and its default, per task where tasks differ."""
    tasks = [task for task, fields in _FIELDS.items() if name in fields]
    about = next(filter(None, (description(_FIELDS[task][name].type) for task in tasks)), "")
    if name == "defense":
        return f"{about}: {'; '.join(map(words_of, KINDS))}"
    words = _by_task({task: ", ".join(allowed_words(name, task)) for task in tasks})
    defaults = _by_task({task: _sourced(task, name) for task in tasks})
    return f"{about}{f': {words}' if words else ''}{f' (default: {defaults})' if defaults else ''}"


def description(kind: Any) -> str:
    """Return the description in an annotated type; empty without one.

    Args:
        kind: a field's type, such as `Annotated[int, Meta(description="...")]`.
    """
    return next((part.description or "" for part in get_args(kind) if isinstance(part, msgspec.Meta)), "")


def _sourced(task: str, name: str) -> str:
    """Return a default with its source, if it has one."""
    default = _FIELDS[task][name].default
    # These defaults mean that the feature is off, which the option's text already implies.
    if default is None or default is False or default in ((), ""):
        return ""
    shown = ", ".join(f"{item:g}" for item in default) if isinstance(default, tuple) else str(default)
    source = next((source for source, names in SOURCES[task].items() if name in names), "")
    return f"{shown}, {source}" if source else shown


def _by_task(shown: dict[str, str]) -> str:
    if len(set(shown.values())) == 1:
        return next(iter(shown.values()))
    return "; ".join(text if task == "kge" else f"graphs: {text}" for task, text in shown.items() if text)


class ShortHelp(TyperCommand):
    """Command with many options: `--help` shows those in `basic` and two examples; `--help-all` shows everything.

    Attributes:
        basic: panel and text of each option by its name.
    """

    basic: ClassVar = BASIC

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the basic options; all options after `--help-all`.

        Args:
            ctx: click's context, in which `--help-all` leaves a mark.
            formatter: click's formatter, which typer passes on to rich.
        """
        if ctx.meta.get(HELP_ALL):
            super().format_help(ctx, formatter)
            return
        # A copy, because the command object itself also parses the options.
        basic = copy.copy(self)
        basic.params = [self._brief(option) for option in self.params if option.name in self.basic]
        # The heading and the first two examples are separate paragraphs.
        basic.epilog = "\n\n".join((self.epilog or "").split("\n\n")[:3])
        TyperCommand.format_help(basic, ctx, formatter)

    def _brief(self, option: Any) -> Any:
        brief = copy.copy(option)
        brief.rich_help_panel, brief.help = self.basic[option.name]
        brief.show_default = False
        if option.default is True and option.secondary_opts:  # what a flag that is on is good for is to turn it off
            brief.opts, brief.secondary_opts = option.secondary_opts, []
        return brief


def _show_all(ctx: typer.Context, show: bool) -> None:
    if show:
        ctx.meta[HELP_ALL] = True
        typer.echo(ctx.get_help(), nl=False)
        raise typer.Exit


HelpAll = Annotated[
    bool,
    typer.Option("--help-all", callback=_show_all, is_eager=True, help="show all options", show_default=False),
]


FLAGS = _flags()
ATTACK_FIELDS = tuple(name for name, flag in FLAGS.items() if flag.panel in (ATTACK, *ATTACK_OF_TASK.values()))
TRAIN_FIELDS = tuple(name for name in FLAGS if name not in ATTACK_FIELDS)


Decorator = Callable[[Callable[..., None]], Callable[..., None]]


def spec_options(fields: Iterable[str]) -> Decorator:
    """Return a decorator that adds one option for each of these fields of specs.

    The command receives the options that the user set as the dict `options`. Register the command with `cls=ShortHelp`:
    it has the option `--help-all`.

    Args:
        fields: names of fields. A command's parameter whose type is a NamedTuple becomes one option for each of its
            fields.
    """
    return _with_options([_keyword(HELP_ALL, HelpAll, False), *(_parameter(name) for name in fields)])


def struct_options(*structs: type[msgspec.Struct]) -> Decorator:
    """Return a decorator that adds one option for each described field of these structs; see `spec_options`.

    Args:
        structs: structs whose fields have a description if they are to become options.
    """
    flags = []
    for struct in structs:
        for field in msgspec.structs.fields(struct):
            if about := description(field.type):
                words, name = allowed(field.name, struct), field.name.replace("_", "-")
                about += f": {', '.join(words)}" if words else ""
                about += "" if field.default is None else f" (default: {_plain(field.default)})"
                # A flag that is on by default needs a way to turn it off.
                flag = f"--{name}/--no-{name}" if field.default is True else f"--{name}"
                # Bind this field's words now; the loop rebinds the name.
                offer = complete_from(lambda words=words: words) if words else None
                option = typer.Option(None, flag, help=about, autocompletion=offer, show_default=False)
                flags.append(_keyword(field.name, _kind(field.type), option))
    return _with_options(flags)


def _plain(default: Any) -> str:
    return f"{default:.3g}" if isinstance(default, float) else str(default)


def _with_options(flags: Sequence[inspect.Parameter]) -> Decorator:
    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        """Return the command with its new options in its signature."""
        # typer reads options from the signature, so the wrapper states one that lists all options in a flat order.
        parameters: list[inspect.Parameter] = []
        groups: dict[str, Any] = {}
        for parameter in inspect.signature(command, eval_str=True).parameters.values():
            kind = parameter.annotation
            if hasattr(kind, "_fields"):
                groups[parameter.name] = kind
                hints = get_type_hints(kind, include_extras=True)
                parameters += [_keyword(name, hints[name], default) for name, default in kind._field_defaults.items()]
            elif parameter.name != "options":
                parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))

        @functools.wraps(command)
        def wrapper(**values: Any) -> None:
            """Group the flat options as the command expects them, and call it."""
            options = {option.name: values.pop(option.name) for option in flags}
            options.pop(HELP_ALL, None)
            for name, kind in groups.items():
                values[name] = kind(**{field: values.pop(field) for field in kind._fields})
            # Absent options stay out, so that files and presets can set them.
            command(options={name: value for name, value in options.items() if value not in (None, [])}, **values)

        signature = inspect.Signature([*parameters, *flags])
        wrapper.__signature__ = signature  # type: ignore[attr-defined]
        wrapper.__annotations__ = {p.name: p.annotation for p in signature.parameters.values()}
        return wrapper

    return decorate


def _keyword(name: str, kind: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=default)


@functools.cache
def _parameter(name: str) -> inspect.Parameter:
    """Return a field's option as a parameter of a command."""
    flag = FLAGS[name]
    option = typer.Option(
        None,
        *flag.names,
        help=flag.help,
        autocompletion=completion(name),
        rich_help_panel=flag.panel,
        show_default=False,
    )
    # Algorithms that share a setting's name share its type, so the first one decides.
    for setting in all_settings().get(name, {}).values():
        return _keyword(name, setting.kind | None, option)
    return _keyword(name, _kind(next(fields[name].type for fields in _FIELDS.values() if name in fields)), option)


def _kind(kind: Any) -> Any:
    """Return the option's type: the field's type, None when absent, and a list for a repeatable option."""
    if get_origin(kind) is Annotated:
        return _kind(get_args(kind)[0])
    options = [part for part in get_args(kind) if part is not type(None)]
    if kind in (int, float, str, bool):
        return kind | None
    if kind == tuple[float, ...]:
        return list[float] | None
    if kind == tuple[str, ...] or any(get_origin(part) is tuple for part in options):
        return list[str] | None
    # Unions of words and structs arrive as text, which `make_spec` parses.
    return (options[0] if options in ([int], [float]) else str) | None


def completion(name: str) -> Callable[[str], list[str]] | None:
    """Return the shell completion of an option's value; None for a number, a name or a path.

    Args:
        name: name of a field, such as `defense`.
    """
    special = {
        "data": lambda: (CONSORTIUM, MOTIFS, *(dataset.name for dataset in datasets())),
        "defense": lambda: tuple(KINDS),
        "device": lambda: ("auto", "cpu", "cuda"),
    }
    words = special.get(name, functools.partial(allowed_words, name))
    return complete_from(words, several=name == "defense") if words() else None
