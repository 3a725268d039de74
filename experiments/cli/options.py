"""The command line's options, made from the fields of `Spec`: one table of flags and help, no option written twice."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, get_args, get_origin

import msgspec
import typer

from attacks.reconstruction.options import AttackOptions
from defenses.options import KINDS, words_of
from experiments.runs.spec import CONSORTIUM, RENAMED, Spec, allowed_words
from fkgsec.data.catalogue import datasets
from fkgsec.federation.recipes import all_settings


class Flag(NamedTuple):
    """How a field of `Spec` appears on the command line."""

    names: tuple[str, ...]
    help: str
    panel: str


DATA, ALGORITHM, TRAINING, ATTACK = "Data", "Algorithm and model", "Training", "Attack"
SETTINGS = "Settings that some algorithms have"


def _setting_flags() -> dict[str, Flag]:
    """A flag for every setting that some algorithm has, with each one's default, as the registry says."""
    flags = {}
    for name, by_algorithm in all_settings("kge").items():
        fields = list(by_algorithm.values())
        lines = list(dict.fromkeys(field.help for field in fields))
        defaults = ", ".join(f"{algorithm}: {field.default}" for algorithm, field in by_algorithm.items())
        words = ", ".join(allowed_words(name))
        about = f"{'; '.join(lines)}{f': {words}' if words else ''} ({defaults})"
        flags[name] = Flag((f"--{name.replace('_', '-')}",), about, SETTINGS)
    return flags


FLAGS: dict[str, Flag] = {
    "data": Flag(
        ("--data",), "consortium (embedded), a catalogue name (see `fkgsec data list`), a folder or a file", DATA
    ),
    "clients": Flag(("--clients",), "clients to divide a graph among", DATA),
    "partition": Flag(("--partition",), "how to divide it", DATA),
    "size": Flag(("--size",), "triples of the embedded consortium", DATA),
    "split_seed": Flag(
        ("--split-seed",), "of the division, and of the embedded consortium; --seed redraws neither", DATA
    ),
    "algorithm": Flag(("--algorithm", "--target"), "how the federation learns", ALGORITHM),
    "defense": Flag(
        ("--defense",),
        f"one or more, as in psu,secagg or dp:epsilon=8,clip=0.1: {'; '.join(map(words_of, KINDS))}",
        ALGORITHM,
    ),
    "model": Flag(("--model",), "scoring function", ALGORITHM),
    "dim": Flag(("--dim",), "embedding dimension", ALGORITHM),
    "gamma": Flag(("--gamma",), "margin of the distance models", ALGORITHM),
    "init_epsilon": Flag(("--init-epsilon",), "initial values are uniform in +-(gamma + this) / dim", ALGORITHM),
    **_setting_flags(),
    "rounds": Flag(("--rounds",), "at most so many rounds", TRAINING),
    "local_epochs": Flag(("--local-epochs",), "epochs of a client in a round", TRAINING),
    "batch_size": Flag(("--batch-size",), "positives in a batch", TRAINING),
    "num_negatives": Flag(("--num-negatives",), "negatives of each positive", TRAINING),
    "temperature": Flag(
        ("--temperature",), "of the self-adversarial weights (default: 1; fedlu: 0, which weighs alike)", TRAINING
    ),
    "learning_rate": Flag(("--learning-rate",), "of Adam", TRAINING),
    "eval_every": Flag(("--eval-every",), "rounds between validations", TRAINING),
    "patience": Flag(("--patience",), "stop after so many validations without a better MRR; 0: never", TRAINING),
    "participation": Flag(("--participation",), "share of clients that train in a round", TRAINING),
    "negative_sides": Flag(
        ("--negative-sides",), "sides to corrupt; both in turn, or each batch on both (twice the steps)", TRAINING
    ),
    "eval_sides": Flag(("--eval-sides",), "sides to rank", TRAINING),
    "entity_scope": Flag(("--entity-scope",), "entities a client corrupts with and ranks", TRAINING),
    "seed": Flag(("--seed",), "everything random in training derives from it", TRAINING),
    "protocol_seed": Flag(
        ("--protocol-seed",),
        "for tests only: fixes keys, masks and noise of the defense, which otherwise come from the operating system; "
        "without a defense there is nothing to fix",
        TRAINING,
    ),
    "device": Flag(("--device",), "auto, cpu, cuda or cuda:N", TRAINING),
    "leak": Flag(("--leak",), "share of the colluder's element-embedding pairs that leak; repeatable", ATTACK),
    "threat": Flag(("--threat",), "what the adversary has; repeatable; without it those that fit", ATTACK),
    "colluder": Flag(("--colluder",), "name of the colluding client; default: the first", ATTACK),
    "inference": Flag(
        ("--inference",),
        "how relations are inferred; cosine is the paper's; repeatable; without it all that fit",
        ATTACK,
    ),
    "metric": Flag(("--metric",), "published: the counts of FedR's notebooks", ATTACK),
    "unlinked_heads": Flag(("--unlinked-heads",), "heads sampled for the attack without linked pairs; 0: none", ATTACK),
    "attack": Flag(
        ("--attack",),
        "which to run, list says of each what it needs; repeatable; default: the first two of that list",
        ATTACK,
    ),
    "attack_seed": Flag(("--attack-seed",), "of what the attack draws; default: the number given by --seed", ATTACK),
}

DATA_FIELDS = ("data", "clients", "partition", "size", "split_seed")
ATTACK_FIELDS = (*(name for name in AttackOptions.__struct_fields__ if name != "seed"), "attack_seed")
TRAIN_FIELDS = tuple(name for name in FLAGS if name not in ATTACK_FIELDS)


def spec_options(fields: tuple[str, ...]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command one option for each of these fields of `Spec`; the command receives those given as the dict `given`."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        """The command with these options in its signature, which is what typer reads."""
        old_names = [old for old, new in RENAMED.items() if new in fields]
        kinds = {field.name: (_kind(field.type), field.default) for field in msgspec.structs.fields(Spec)}
        for name, by_algorithm in all_settings("kge").items():
            kinds[name] = (next(iter(by_algorithm.values())).kind | None, None)

        @functools.wraps(command)
        def wrapper(**values: Any) -> None:
            given = {name: values.pop(name) for name in (*fields, *old_names)}
            command(given={name: value for name, value in given.items() if value not in (None, [])}, **values)

        own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name != "given"]
        parameters = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                annotation=kinds[name][0],
                default=typer.Option(
                    None,
                    *FLAGS[name].names,
                    help=_help(name, kinds[name][1]),
                    autocompletion=completion(name),
                    rich_help_panel=FLAGS[name].panel,
                    show_default=False,
                ),
            )
            for name in fields
        ]
        parameters += [
            inspect.Parameter(
                old,
                inspect.Parameter.KEYWORD_ONLY,
                annotation=kinds[RENAMED[old]][0],
                default=typer.Option(None, f"--{old.replace('_', '-')}", hidden=True),
            )
            for old in old_names
        ]
        signature = inspect.Signature([*(p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own), *parameters])
        wrapper.__signature__ = signature  # type: ignore[attr-defined]
        wrapper.__annotations__ = {p.name: p.annotation for p in signature.parameters.values()}
        return wrapper

    return decorate


def _kind(kind: Any) -> Any:
    """The option's type: what the field holds, None when not given, and a list for a repeatable option."""
    options = [part for part in get_args(kind) if part is not type(None)]
    if kind in (int, float, str):
        return kind | None
    if kind == tuple[float, ...]:
        return list[float] | None
    if kind == tuple[str, ...] or any(get_origin(part) is tuple for part in options):
        return list[str] | None
    return (options[0] if options in ([int], [float]) else str) | None


def completion(name: str) -> Callable[[str], list[str]] | None:
    """What the shell offers for an option's value; None where that is a number, a name or a path."""
    words = {"data": _dataset_names, "defense": lambda: tuple(KINDS), "device": lambda: ("auto", "cpu", "cuda")}.get(
        name, functools.partial(allowed_words, name)
    )
    return complete_from(words, several=name == "defense") if words() else None


def complete_from(words: Callable[[], Iterable[str]], *, several: bool = False) -> Callable[[str], list[str]]:
    """Offer the words that go on from what was typed; of `several` with commas between them, the last one's."""

    def complete(incomplete: str) -> list[str]:
        """The whole values."""
        before, comma, last = incomplete.rpartition(",") if several else ("", "", incomplete)
        return [f"{before}{comma}{word}" for word in words() if word.startswith(last)]

    return complete


def _dataset_names() -> tuple[str, ...]:
    return (CONSORTIUM, *(dataset.name for dataset in datasets()))


def _help(name: str, default: Any) -> str:
    flag, words = FLAGS[name], allowed_words(name)
    if flag.panel == SETTINGS:
        return flag.help
    about = flag.help if not words else f"{flag.help}: {', '.join(words)}"
    return about + _shown_default(default)


def _shown_default(default: Any) -> str:
    if default in (None, (), ""):
        return ""
    shown = ", ".join(f"{item:g}" for item in default) if isinstance(default, tuple) else default
    return f" (default: {shown})"
