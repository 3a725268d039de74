"""The command line's options, made from the fields of specs: one table of flags and help, no option written twice."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple, get_args, get_origin

import msgspec
import typer

from defenses.options import KINDS, words_of
from experiments.cli.surface import complete_from
from experiments.runs.spec import CONSORTIUM, RENAMED, allowed_words
from experiments.tasks.graph import MOTIFS
from experiments.tasks.task import RunTask, all_tasks
from fkgsec.data.catalogue import datasets
from fkgsec.federation.recipes import all_settings


class Flag(NamedTuple):
    """How a field of a spec appears on the command line."""

    names: tuple[str, ...]
    help: str
    panel: str


DATA, ALGORITHM, TRAINING, ATTACK = "Data", "Algorithm and model", "Training", "Attack"
OF_TASK = {"kge": "Knowledge-graph embedding only", "graph": "Graph classification only"}
ATTACK_OF_TASK = {"kge": "Attacks on knowledge graphs only", "graph": "Attacks on graph classification only"}
SETTINGS = {
    "kge": "Settings that some algorithms have for knowledge graphs",
    "graph": "Settings that some algorithms have for graph classification",
}


def _setting_flags() -> dict[str, Flag]:
    """A flag for every setting that some algorithm has, with each one's default, as the registry says."""
    flags = {}
    for name in dict.fromkeys(name for task in SETTINGS for name in all_settings(task)):
        tasks = [task for task in SETTINGS if name in all_settings(task)]
        by_algorithm = {algorithm: field for task in tasks for algorithm, field in all_settings(task)[name].items()}
        lines = list(dict.fromkeys(field.help for field in by_algorithm.values()))
        defaults = ", ".join(f"{algorithm}: {field.default}" for algorithm, field in by_algorithm.items())
        words = ", ".join(allowed_words(name))
        about = f"{'; '.join(lines)}{f': {words}' if words else ''} ({defaults})"
        flags[name] = Flag((f"--{name.replace('_', '-')}",), about, SETTINGS[tasks[0]])
    return flags


FLAGS: dict[str, Flag] = {
    "data": Flag(
        ("--data",),
        "consortium (embedded), a catalogue name (see `fkgsec data list`), a folder or a file; or graphs to classify: motifs "
        "(generated), sets of the TU collection (MUTAG,BZR), a group of them (CHEM), a TU folder",
        DATA,
    ),
    "clients": Flag(("--clients",), "clients to divide a graph or a data set among, or to generate", DATA),
    "partition": Flag(("--partition",), "how to divide it", DATA),
    "size": Flag(("--size",), "triples of the embedded consortium, or generated graphs in all", DATA),
    "normalise": Flag(
        ("--normalise",), "Unicode form of names: as they stand (the default) or one spelling each", DATA
    ),
    "triple_columns": Flag(
        ("--triple-columns",),
        "of a .csv, .tsv or .parquet table: its columns of head, relation and tail, as in subject,predicate,object (default: "
        "head,relation,tail); a column split or client is read, too",
        DATA,
    ),
    "split_seed": Flag(("--split-seed",), "of divisions and of generated data; --seed redraws neither", DATA),
    "algorithm": Flag(("--algorithm", "--target"), "how the federation learns, and what", ALGORITHM),
    "defense": Flag(
        ("--defense",),
        f"one or more, as in psu,secagg or dp:epsilon=8,clip=0.1: {'; '.join(map(words_of, KINDS))}",
        ALGORITHM,
    ),
    "model": Flag(("--model",), "scoring function, encoder, or convolution (or the dotted name of one)", ALGORITHM),
    "rounds": Flag(("--rounds",), "at most so many rounds", TRAINING),
    "local_epochs": Flag(("--local-epochs",), "epochs of a client in a round", TRAINING),
    "batch_size": Flag(("--batch-size",), "positives or graphs in a batch", TRAINING),
    "learning_rate": Flag(("--learning-rate",), "of Adam, or another optimizer", TRAINING),
    "eval_every": Flag(("--eval-every",), "rounds between validations", TRAINING),
    "patience": Flag(("--patience",), "stop after so many validations without a better one; 0: never", TRAINING),
    "participation": Flag(("--participation",), "share of clients that train in a round", TRAINING),
    "dropout": Flag(("--dropout",), "share of values dropped in training (noge: 0.5, kb-gat: 0.3)", TRAINING),
    "seed": Flag(("--seed",), "everything random in training derives from it", TRAINING),
    "protocol_seed": Flag(
        ("--protocol-seed",),
        "for tests only: fixes keys, masks and noise of the defense, which otherwise come from the operating system; "
        "without a defense there is nothing to fix",
        TRAINING,
    ),
    "device": Flag(("--device",), "auto, cpu, cuda or cuda:N", TRAINING),
    "dim": Flag(("--dim",), "embedding dimension", OF_TASK["kge"]),
    "gamma": Flag(("--gamma",), "margin of the distance models", OF_TASK["kge"]),
    "init_epsilon": Flag(("--init-epsilon",), "initial values are uniform in +-(gamma + this) / dim", OF_TASK["kge"]),
    "num_negatives": Flag(("--num-negatives",), "negatives of each positive", OF_TASK["kge"]),
    "temperature": Flag(
        ("--temperature",),
        "of the self-adversarial weights (default: 1; fedlu: 0, which weighs alike)",
        OF_TASK["kge"],
    ),
    "negative_sides": Flag(
        ("--negative-sides",),
        "sides to corrupt; both in turn, or each batch on both (twice the steps)",
        OF_TASK["kge"],
    ),
    "eval_sides": Flag(("--eval-sides",), "sides to rank", OF_TASK["kge"]),
    "eval_sample": Flag(
        ("--eval-sample",),
        "validation triples of each client, drawn once (default: all); test figures stay full",
        OF_TASK["kge"],
    ),
    "eval_candidates": Flag(
        ("--eval-candidates",), "drawn entities that these are ranked among (default: all)", OF_TASK["kge"]
    ),
    "negative_scope": Flag(("--negative-scope",), "entities that negatives are drawn from", OF_TASK["kge"]),
    "rank_scope": Flag(("--rank-scope",), "entities that test answers compete with", OF_TASK["kge"]),
    "draws": Flag(
        ("--draws",),
        "where the order of triples and the negatives come from: a numpy generator per epoch, or counters (philox)",
        OF_TASK["kge"],
    ),
    "triple_weights": Flag(
        ("--triple-weights",), "weights of positives: uniform, or less for frequent pairs", OF_TASK["kge"]
    ),
    "redraw": Flag(
        ("--redraw",), "when batches and negatives are drawn: in each epoch, or once for all", OF_TASK["kge"]
    ),
    "entity_range": Flag(
        ("--entity-range",), "divisor of the initial range of entities: dim, or the width of a row", OF_TASK["kge"]
    ),
    "best_round": Flag(
        ("--best-round",), "round to keep: the best of the federation, or of each client", OF_TASK["kge"]
    ),
    "label_smoothing": Flag(("--label-smoothing",), "of noge's labels (0.1)", OF_TASK["kge"]),
    "decoder_epochs": Flag(
        ("--decoder-epochs",), "epochs of kb-gat's decoder before each validation (5)", OF_TASK["kge"]
    ),
    "decoder_negatives": Flag(
        ("--decoder-negatives",), "negatives of each triple in kb-gat's decoder (10)", OF_TASK["kge"]
    ),
    "trains_from": Flag(
        ("--trains-from",),
        "rows that clients of noge and kb-gat train on from: received (the default), at checks alone, or own",
        OF_TASK["kge"],
    ),
    "layers": Flag(("--layers",), "convolutions", OF_TASK["graph"]),
    "width": Flag(("--width",), "numbers of a node in each of them", OF_TASK["graph"]),
    "readout": Flag(("--readout",), "how nodes become a graph", OF_TASK["graph"]),
    "optimizer": Flag(("--optimizer",), "of local training; sgd is plain", OF_TASK["graph"]),
    "local_steps": Flag(
        ("--local-steps",),
        "batches of a client in each epoch (default: all); with sgd and 1, an upload is a gradient",
        OF_TASK["graph"],
    ),
    "weight_decay": Flag(("--weight-decay",), "of the optimizer", OF_TASK["graph"]),
    "select": Flag(
        ("--select",), "round to keep: best validation or test (too high) accuracy, or the last round", OF_TASK["graph"]
    ),
    "clean": Flag(("--clean",), "keep isomorphic graphs on one side of the split", OF_TASK["graph"]),
    **_setting_flags(),
    "threat": Flag(("--threat",), "what the adversary has; repeatable; without it those that fit", ATTACK),
    "colluder": Flag(("--colluder",), "name of the colluding client; repeatable; default: the first", ATTACK),
    "attack": Flag(
        ("--attack",),
        "which to run, list says of each what it is on and needs, all takes every one; repeatable; default: reconstruction and "
        "update-recovery, of a server alone also edges and degrees; of graphs graph-membership",
        ATTACK,
    ),
    "attack_seed": Flag(("--attack-seed",), "of what the attack draws; default: the number given by --seed", ATTACK),
    "shadows": Flag(
        ("--shadows",),
        "federations that the adversary trains for membership, each as long as the run: an even number from 4 on, or 0 for none",
        ATTACK,
    ),
    "shadow_knowledge": Flag(
        ("--shadow-knowledge",),
        "what shadow federations of triples are trained on: the clients' triples but those that are asked about, or half of them "
        "linked anew",
        ATTACK_OF_TASK["kge"],
    ),
    "leak": Flag(
        ("--leak",), "share of the colluder's element-embedding pairs that leak; repeatable", ATTACK_OF_TASK["kge"]
    ),
    "inference": Flag(
        ("--inference",),
        "how relations are inferred; cosine is the paper's; repeatable; without it all that fit",
        ATTACK_OF_TASK["kge"],
    ),
    "metric": Flag(("--metric",), "published: the counts of FedR's notebooks", ATTACK_OF_TASK["kge"]),
    "unlinked_heads": Flag(
        ("--unlinked-heads",), "heads sampled for the attack without linked pairs; 0: none", ATTACK_OF_TASK["kge"]
    ),
    "auxiliary": Flag(
        ("--auxiliary",),
        "share of each victim's triples that the server has under the threat model server+triples",
        ATTACK_OF_TASK["kge"],
    ),
    "probes": Flag(
        ("--probes",),
        "client-active: entities that it moves at once (300); take fewer than a third of a client's",
        ATTACK_OF_TASK["kge"],
    ),
    "probe_size": Flag(
        ("--probe-size",), "client-active: how far, in each number of a row (3.0)", ATTACK_OF_TASK["kge"]
    ),
    "probe_round": Flag(
        ("--probe-round",), "client-active: when; default: in the third of its last rounds", ATTACK_OF_TASK["kge"]
    ),
    "probe_rounds": Flag(
        ("--probe-rounds",),
        "client-active: in how many rounds it makes the same moves (1); more say more where changes are clipped",
        ATTACK_OF_TASK["kge"],
    ),
    "guesses": Flag(
        ("--guesses",), "client-guess: names of each victim in its dictionary (100)", ATTACK_OF_TASK["kge"]
    ),
    "poison_triples": Flag(
        ("--poison-triples",), "false triples that an active adversary plants", ATTACK_OF_TASK["kge"]
    ),
    "poison_copies": Flag(("--poison-copies",), "how often each of them stands in its training", ATTACK_OF_TASK["kge"]),
    "boost": Flag(
        ("--boost",), "what a malicious client multiplies the change of their rows by", ATTACK_OF_TASK["kge"]
    ),
    "attack_rounds": Flag(
        ("--attack-rounds",),
        "how many of the last rounds poisoning and attacks on many rounds take; few are replayed in seconds (all)",
        ATTACK_OF_TASK["kge"],
    ),
    "malicious": Flag(
        ("--malicious",),
        "clients that plant a backdoor: the colluder, and those that follow it",
        ATTACK_OF_TASK["graph"],
    ),
    "poisoned": Flag(("--poisoned",), "share of training graphs that each of them poisons", ATTACK_OF_TASK["graph"]),
    "trigger_size": Flag(
        ("--trigger-size",), "nodes of the trigger, as a share of the mean number of a graph", ATTACK_OF_TASK["graph"]
    ),
    "trigger_density": Flag(("--trigger-density",), "probability of its edges", ATTACK_OF_TASK["graph"]),
    "target_class": Flag(
        ("--target-class",), "what graphs with the trigger are to be classified as", ATTACK_OF_TASK["graph"]
    ),
}

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
"""Where defaults come from; a test holds them against the tables of these papers, from which `--preset` takes them."""

DATA_FIELDS = ("data", "clients", "partition", "size", "triple_columns", "normalise", "split_seed", "clean")
ATTACK_FIELDS = tuple(name for name, flag in FLAGS.items() if flag.panel in (ATTACK, *ATTACK_OF_TASK.values()))
TRAIN_FIELDS = tuple(name for name in FLAGS if name not in ATTACK_FIELDS)


def spec_options(fields: tuple[str, ...]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command one option for each of these fields of specs; the command receives those given as the dict `given`."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        """The command with these options in its signature, which is what typer reads."""
        old_names = [old for old, new in RENAMED.items() if new in fields]
        kinds = _kinds()

        @functools.wraps(command)
        def wrapper(**values: Any) -> None:
            given = {name: values.pop(name) for name in (*fields, *old_names)}
            command(given={name: value for name, value in given.items() if value not in (None, [])}, **values)

        own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name != "given"]
        parameters = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                annotation=kinds[name],
                default=typer.Option(
                    None,
                    *FLAGS[name].names,
                    help=_help(name),
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
                annotation=kinds[RENAMED[old]],
                default=typer.Option(None, f"--{old.replace('_', '-')}", hidden=True),
            )
            for old in old_names
        ]
        signature = inspect.Signature([*(p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own), *parameters])
        wrapper.__signature__ = signature  # type: ignore[attr-defined]
        wrapper.__annotations__ = {p.name: p.annotation for p in signature.parameters.values()}
        return wrapper

    return decorate


@functools.cache
def _kinds() -> dict[str, Any]:
    """The type of each option; two tasks that have one of the same name mean the same."""
    kinds = {field.name: _kind(field.type) for task in all_tasks() for field in msgspec.structs.fields(task.spec)}
    return kinds | {name: next(iter(found.values())).kind | None for name, found in all_settings().items()}


def _kind(kind: Any) -> Any:
    """The option's type: what the field holds, None when not given, and a list for a repeatable option."""
    options = [part for part in get_args(kind) if part is not type(None)]
    if kind in (int, float, str, bool):
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


def _dataset_names() -> tuple[str, ...]:
    return (CONSORTIUM, MOTIFS, *(dataset.name for dataset in datasets()))


def _help(name: str) -> str:
    """The flag's line with the words that it may have and its default, apart by task where these differ."""
    flag = FLAGS[name]
    if flag.panel in SETTINGS.values():
        return flag.help
    words = _by_task({task.name: ", ".join(allowed_words(name, task.name)) for task in _tasks_with(name)})
    defaults = _by_task({task.name: _sourced(task, name) for task in _tasks_with(name)})
    return f"{flag.help}{f': {words}' if words else ''}{f' (default: {defaults})' if defaults else ''}"


def _sourced(task: RunTask, name: str) -> str:
    """A default with its source, where it has one."""
    shown = _shown(_default(task, name))
    source = next((source for source, names in SOURCES[task.name].items() if name in names), "")
    return f"{shown}, {source}" if shown and source else shown


def _tasks_with(name: str) -> list[RunTask]:
    return [task for task in all_tasks() if name in task.spec.__struct_fields__]


def _by_task(shown: dict[str, str]) -> str:
    if len(set(shown.values())) == 1:
        return next(iter(shown.values()))
    return "; ".join(text if task == "kge" else f"graphs: {text}" for task, text in shown.items() if text)


def _default(task: RunTask, name: str) -> Any:
    return next(field.default for field in msgspec.structs.fields(task.spec) if field.name == name)


def _shown(default: Any) -> str:
    if default is None or default is False or default in ((), ""):
        return ""
    return ", ".join(f"{item:g}" for item in default) if isinstance(default, tuple) else str(default)
