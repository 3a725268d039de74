"""Knowledge-graph embedding in experiments: spec, utility, data and wording."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta

from fkgsec.attacks.options import MEMBERSHIP, RECONSTRUCTION, KgeAttackOptions
from fkgsec.data.catalogue import datasets, load_dataset, shadowed
from fkgsec.defenses.options import parse_defense
from fkgsec.errors import SpecError
from fkgsec.experiments.tasks.spec import RunSpec, SharedOptions, with_attacks
from fkgsec.experiments.tasks.task import FirstPolicy, Reached, RunTask, cpu_seconds
from fkgsec.federation.recipes import RECIPES
from fkgsec.kge.models import HITS
from fkgsec.kge.options import KgeOptions
from fkgsec.text import printable

if TYPE_CHECKING:
    from fkgsec.data.graph import FederatedGraph
    from fkgsec.experiments.reporting.sheets import Sheet
    from fkgsec.kge.local.task import KgeTask
    from fkgsec.kge.result import KgeResult

CONSORTIUM = "consortium"
DEFAULT_CLIENTS = 3
DEFAULT_SIZE = 13_500
FEW_TESTS, MOST_NAMED = 2, 5


if TYPE_CHECKING:

    class _Options(KgeOptions, KgeAttackOptions, SharedOptions, frozen=True, kw_only=True):
        """The options of a run and those of attacks on it."""

else:
    _Options = with_attacks(KgeOptions, KgeAttackOptions)


class Spec(_Options, RunSpec, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A federation of knowledge graphs, its data and the attack on it.

    Attributes (in addition to those of `KgeOptions` and `KgeAttackOptions`):
        data: "consortium" (the embedded default), a catalogue name (`fkgsec data list`), a folder or a file.
        clients: number of clients; None for 3, or as the data are divided.
        partition: one of `PARTITIONS`; None for triples at random.
        size: triples of the embedded consortium; None for `DEFAULT_SIZE`.
        triple_columns: a table's columns of head, relation and tail, separated by commas.
        normalise: "nfc" merges names that differ only in their Unicode form; None changes nothing.
    """

    options_type: ClassVar[type[KgeOptions]] = KgeOptions
    attacks_type: ClassVar[type[KgeAttackOptions]] = KgeAttackOptions

    data: Annotated[
        str,
        Meta(
            description="consortium (embedded), a catalogue name (see `fkgsec data list`), a folder or a file; or "
            "graphs to classify: motifs (generated), sets of the TU collection (MUTAG,BZR), a group of "
            "them (CHEM), a TU folder"
        ),
    ] = CONSORTIUM
    partition: Annotated[
        Literal["triples", "relations", "clusters"] | None, Meta(description="how to divide a graph among clients")
    ] = (
        # Of `fkgsec.data.partition.PARTITIONS`.
        None
    )
    triple_columns: Annotated[
        str | None,
        Meta(
            description="columns of head, relation and tail in a .csv, .tsv or .parquet table, as in "
            "subject,predicate,object (default: head,relation,tail); columns named split or client are read "
            "as well"
        ),
    ] = None
    normalise: Annotated[
        Literal["nfc"] | None,
        Meta(description="Unicode form of names: unchanged (default), or nfc, which merges equal-looking names"),
    ] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        msgspec.structs.force_setattr(self, "inference", self.attack_options().inference)
        msgspec.structs.force_setattr(self, "colluder", self.attack_options().colluder)
        self.check()
        if self.metric == "published" and parse_defense(self.defense).secagg:
            raise SpecError("metric published counts plaintext uploads; use metric paper with secure aggregation")
        if self.attack and RECONSTRUCTION not in self.attack and (self.inference or self.metric != "paper"):
            name = "inference" if self.inference else "metric"
            raise SpecError(
                f"{name} applies to the attack {RECONSTRUCTION}, which is not in attack; leave it out or add the attack"
            )
        if self.shadows and MEMBERSHIP not in self.attack:
            raise SpecError(f"shadows applies to the attack {MEMBERSHIP}, which is not in attack; add it")

    def _column_names(self) -> tuple[str, str, str] | None:
        if self.triple_columns is None:
            return None
        names = tuple(name.strip() for name in self.triple_columns.split(","))
        if len(names) != 3 or not all(names) or len(set(names)) < 3:
            raise SpecError(
                f"triple_columns must be three names, of head, relation and tail, such as "
                f"subject,predicate,object; got {self.triple_columns!r}"
            )
        return names[0], names[1], names[2]

    def settled(self) -> Spec:
        """Return the spec with the algorithm's temperature filled in, and the device reset."""
        return self.replace(device="auto", temperature=self.sampling_temperature)

    def load_graph(self) -> FederatedGraph:
        """Generate or load the triples, and divide them among clients unless they are divided already.

        Raises:
            DataError: the data cannot be read.
            SpecError: options do not fit the data.
        """
        from fkgsec.data.consortium import generate_consortium
        from fkgsec.data.graph import FederatedGraph
        from fkgsec.data.normalise import normalised
        from fkgsec.data.partition import partition

        # The consortium is generated with its clients, so options of dividing data do not apply.
        if self.data == CONSORTIUM:
            for name in ("partition", "normalise", "triple_columns"):
                if getattr(self, name) is not None:
                    raise SpecError(f"{name} does not apply to the embedded consortium; leave it out")
            size = DEFAULT_SIZE if self.size is None else self.size
            graph = generate_consortium(clients=self.clients or DEFAULT_CLIENTS, size=size, seed=self.split_seed)
            return graph.with_warnings(shadowed(CONSORTIUM))
        if self.size is not None:
            raise SpecError("size applies to the embedded consortium only; leave it out")
        graph = load_dataset(self.data, columns=self._column_names())
        if self.normalise is not None:
            graph = normalised(graph)
        # Folders with one subfolder per client are divided already.
        if isinstance(graph, FederatedGraph):
            if self.partition is not None:
                raise SpecError(f"partition does not apply to {graph.name}, which is divided already; leave it out")
            if self.clients not in (None, len(graph.clients)):
                raise SpecError(f"clients is {self.clients}, but {graph.name} has {len(graph.clients)}; leave it out")
            # Files of a user's own often have no splits. Draw them, and tell the user.
            if not any(len(client.valid) or len(client.test) for client in graph.clients):
                from fkgsec.data.formats.in_memory import with_splits
                from fkgsec.data.partition import RATIO

                parts = ":".join(map(str, RATIO))
                note = f"{graph.name}: no validation or test triples; each client's triples are split {parts} at random"
                divided = with_splits(graph, RATIO, self.split_seed)
                assert isinstance(divided, FederatedGraph)
                return divided.with_warnings([note])
            return graph
        return partition(graph, self.partition or "triples", self.clients or DEFAULT_CLIENTS, self.split_seed)


def _read_lines(spec: Spec, graph: FederatedGraph) -> list[str]:
    """State the content of a user's file or folder: clients, sizes, and one triple by name; nothing for other data."""
    if is_knowledge_graph(spec.data):
        return []
    sizes = [f"{printable(client.name, 40)} {len(client.triples):,}" for client in graph.clients]
    more = f" and {len(sizes) - MOST_NAMED} more" if len(sizes) > MOST_NAMED else ""
    counts = ", ".join(
        f"{sum(len(getattr(client, split)) for client in graph.clients):,} {split}"
        for split in ("train", "valid", "test")
    )
    first = graph.clients[0]
    head, relation, tail = first.to_global(first.train[:1])[0]
    triple = graph.entities[head], graph.relations[relation], graph.entities[tail]
    clients = f"{len(sizes)} client{'s' * (len(sizes) != 1)} ({', '.join(sizes[:MOST_NAMED])}{more} triples)"
    return [
        f"{printable(graph.name, 80)}: {clients}",
        f"  {len(graph.entities):,} entities, {len(graph.relations):,} relations; {counts} triples",
        f"  first triple: {', '.join(printable(name, 40) for name in triple)} (head, relation, tail)",
    ]


def is_knowledge_graph(name: str) -> bool:
    """Return True for the embedded consortium and names in the catalogue of knowledge graphs; False for files.

    Args:
        name: value of `--data`.
    """
    return name == CONSORTIUM or name.casefold() in {dataset.name.casefold() for dataset in datasets()}


def _reached(result: KgeResult) -> Reached:
    """Weight every client by its triples, as the papers do."""
    import numpy as np

    from fkgsec.data.split_leaks import NEW, OTHER_TRAIN, OWN_TRAIN, seen_in_training
    from fkgsec.experiments.tasks.items import TestItems
    from fkgsec.kge.ranking import utility

    graph, seed = result.graph, result.options.seed
    of_all, by_client = result.utility()
    ranks = np.concatenate(result.test_ranks)
    seen = seen_in_training(graph)
    where = np.concatenate(seen)
    # Test triples that occur in training measure memory, not generalization, so they are reported apart.
    parts = {"leaked": OWN_TRAIN, "elsewhere": OTHER_TRAIN, "new": NEW}
    return Reached(
        of_all,
        by_client,
        {name: utility(ranks[where == part], seed) for name, part in parts.items()},
        utility(np.concatenate(result.shared_test_ranks), seed) if result.shared_test_ranks else {},
        TestItems.from_ranks(result.test_ranks, seen),
        TestItems.from_ranks(result.shared_test_ranks, seen) if result.shared_test_ranks else None,
    )


def _describe(graph: FederatedGraph) -> dict[str, dict[str, int]]:
    return {
        client.name: {
            "entities": client.num_entities,
            "relations": client.num_relations,
            "train": len(client.train),
            "valid": len(client.valid),
            "test": len(client.test),
        }
        for client in graph.clients
    }


def _warnings(graph: FederatedGraph) -> list[str]:
    """Warn of split leaks, and of clients with too few test triples for their own figures."""
    from fkgsec.data.split_leaks import split_leak_warning

    leaks = list(filter(None, [split_leak_warning(graph)]))
    few = {client.name: len(client.test) for client in graph.clients if len(client.test) <= FEW_TESTS}
    if not few:
        return [*graph.warnings, *leaks]
    named = ", ".join(f"{name} {count or 'none'}" for name, count in list(few.items())[:MOST_NAMED])
    more = f" and {len(few) - MOST_NAMED} more" if len(few) > MOST_NAMED else ""
    have = "client has" if len(few) == 1 else "clients have"
    line = f"{len(few)} of {len(graph.clients)} {have} {FEW_TESTS} test triples or fewer ({named}{more})"
    return [*graph.warnings, f"{line}: figures of these clients are meaningless", *leaks]


def _memory(spec: Spec, graph: FederatedGraph) -> dict[str, float]:
    """Estimate memory from the clients' rows and the number of copies in memory at once."""
    from fkgsec.kge.ranking import SCORE_BLOCK_BYTES

    recipe, model, wide = RECIPES[spec.algorithm], spec.kge_model(), spec.keeps_all_entities
    counts = {
        "entities": sum(len(graph.entities) if wide else client.num_entities for client in graph.clients),
        "relations": sum(client.num_relations for client in graph.clients),
    }
    widths = {"entities": model.entity_width, "relations": model.relation_width}
    if recipe.pooled:
        counts = {"entities": len(graph.entities), "relations": len(graph.relations)}
    # Tables are float32, values in secure sums float64.
    rows = 4 * sum(counts[table] * widths[table] for table in counts)
    tables = rows * (1 if recipe.private == "none" else 2)
    shared = 4 * sum(counts[table] * widths[table] for table in recipe.shared)
    triples = sum(len(client.triples) for client in graph.clients)
    at_work = 1 if recipe.pooled else len(graph.clients)
    defense = parse_defense(spec.defense)
    names = {"entities": graph.entities, "relations": graph.relations}
    union = 8 * sum(len(names[table]) * widths[table] for table in recipe.shared)
    return {
        "tables and optimizer": _TABLES * tables,
        "models kept": _KEPT * tables,
        "messages": _MESSAGES * shared + (_MASKED * union if defense.secagg else 0),
        "checkpoint": _CHECKPOINT * tables + _MESSAGES * shared,
        "steps": _STEP * at_work * spec.batch_size * (1 + spec.num_negatives),
        "ranking": _SCORES * SCORE_BLOCK_BYTES,
        "data": _TRIPLE * triples,
    }


# Copies of tables and messages in memory at once, and bytes of a candidate and a triple in training.
_TABLES = 5  # values, Adam's two moments, gradients, those of a client in its step
# Models of the best round before and after its broadcast, and of the round that may replace it.
_KEPT = 6
# Rounds 0, the best, the last and those before, to the server and back.
_MESSAGES = 9
# One party's input to a secure sum, float64, and its masked forms; the sum, stored and opened.
_MASKED = 18
# Tensors of the last checkpoint, and their serialized bytes.
_CHECKPOINT = 4
_STEP = 24
_SCORES = 4
_TRIPLE = 400

_TIMED_BY = (
    "model", "dim", "num_negatives", "batch_size", "temperature", "negative_sides", "eval_sides", "eval_sample",
    "eval_candidates", "negative_scope", "rank_scope", "dropout", "label_smoothing", "decoder_epochs",
    "decoder_negatives", "device",
)  # fmt: skip
_TIMED_TRIPLES = 64


def _timed_by(spec: Spec) -> dict[str, Any]:
    """Return the options that decide the time of training; algorithms that train alike share a timing."""
    recipe, values = RECIPES[spec.algorithm], spec.document()
    trained = {"private": recipe.private, "pooled": recipe.pooled, "local": recipe.rule and recipe.rule.__qualname__}
    # FedEPL trains fewer values than `dim`.
    width = spec.kge_model().entity_width
    return {name: values[name] for name in _TIMED_BY} | trained | {"width": width}


def _time_validation(task: KgeTask, graph: FederatedGraph) -> float:
    """Rank `_TIMED_TRIPLES` validation triples of each client, and scale by their number; fit decoders for one epoch."""
    options, decoding_s = task.options, 0.0
    if "decoder_epochs" in options.encoder_settings:
        # One epoch of the decoder is enough to extrapolate.
        once = type(task)(graph, msgspec.structs.replace(options, decoder_epochs=1)).encoders
        decoding_s = options.encoder_setting("decoder_epochs") * cpu_seconds(once.fit_decoders) if once else 0.0
    if options.samples_validation:
        return decoding_s + cpu_seconds(lambda: task.evaluator.mrr("valid"))
    clients = [replace(client, valid=client.valid[:_TIMED_TRIPLES]) for client in graph.clients]
    num_timed, num_valid = (sum(len(client.valid) for client in group) for group in (clients, graph.clients))
    evaluator = task.evaluators(replace(graph, clients=tuple(clients)))[1]
    return decoding_s + cpu_seconds(lambda: evaluator.mrr("valid")) * num_valid / max(1, num_timed)


_LEAK_WORDS = {
    "exact": "same triple",
    "inverse": "inverse pair",
    "same_pair": "same pair, other relation",
}


def _statistics(graph: FederatedGraph) -> tuple[list[Sheet], dict[str, Any]]:
    """Return sizes of the clients, and the share of evaluation triples that leak from train; a column for each client."""
    from fkgsec.data.split_leaks import EVALUATION_SPLITS, LEAKS, find_split_leaks
    from fkgsec.data.statistics import statistics_rows
    from fkgsec.experiments.reporting.sheets import Column, Sheet

    statistics, (leaks, leaked) = statistics_rows(graph), find_split_leaks(graph)
    clients, names = range(len(graph.clients)), [name for name in statistics[0] if name != "client"]
    sizes = tuple((name.replace("_", " "), *(_cell(row[name]) for row in statistics)) for name in names)
    with_union = (Column(""), *(Column(str(row["client"])) for row in statistics))
    sheets = [Sheet(f"{graph.name}: clients", with_union, sizes)]
    columns = (Column(""), *(Column(client.name) for client in graph.clients))
    for split in EVALUATION_SPLITS:
        leak_rows = [row for row in leaks if row["split"] == split]
        rows = []
        for leak in LEAKS:
            kind, _, where = leak.rpartition("_")
            whose = "same client" if where == "own" else "another client"
            rows.append((f"{_LEAK_WORDS[kind]}, {whose}", *(f"{row[f'{leak}_share']:.3f}" for row in leak_rows)))
        masks = (leaked[client, split, "exact_own"] | leaked[client, split, "exact_other"] for client in clients)
        shares = (1 - float(seen.mean()) if len(seen) else float("nan") for seen in masks)
        rows.append(("not in any client's train (new)", *(f"{share:.3f}" for share in shares)))
        sheets.append(
            Sheet(f"Share of each client's {split} triples with a counterpart in train", columns, tuple(rows))
        )
    return sheets, {"statistics": statistics, "split_leaks": leaks}


def _cell(value: float) -> str:
    return f"{value:,}" if float(value).is_integer() else f"{value:.4f}"


TASK = RunTask(
    name="kge",
    about="knowledge-graph embedding",
    does="embeds knowledge graphs",
    spec=Spec,
    metric="mrr",
    metrics={name: f"{name} of filtered link prediction" for name in ("mrr", *(f"hits@{k}" for k in HITS))},
    labels={"mrr": "MRR"},
    items="triples",
    utility_title=lambda spec: f"Utility: filtered link prediction on test triples (sides: {spec.eval_sides})",
    leaked={
        "leaked": "in own training",
        "elsewhere": "in another client's training",
        "new": "new triples",
        "clean": "not in own training",
    },
    standing="stand in their own client's train split",
    network=lambda spec: f"{spec.model}, dimension {spec.dim}",
    columns=lambda spec: {"dim": spec.dim, "temperature": spec.sampling_temperature},
    cases=(
        "none",
        "single",
        "fedr",
        "secagg",
        "psu,secagg",
        "psu,secagg,dp:unit=row,clip=0.1,epsilon=1000",
        "psu,secagg,dp:unit=row,clip=0.1,epsilon=10",
    ),
    first_policy=FirstPolicy(
        "psu,secagg",
        "private alignment, secure sums",
        # About a minute on two cores for data of the embedded size; large steps, so that the embeddings have something to leak.
        {"rounds": 20, "dim": 32, "num_negatives": 64, "learning_rate": 0.01, "unlinked_heads": 0},
        tuple(f"reconstruction.{rate}{suffix}" for suffix in ("", "_advantage") for rate in ("trr", "err")),
    ),
    embedded={CONSORTIUM: {"rounds": 40}},
    sizes=("entities", "relations", "train", "valid", "test"),
    sizes_title="entities, relations, triples of each split",
    marked="relation",
    reached=_reached,
    describe=_describe,
    sensitive=lambda graph: sorted(graph.sensitive),
    warnings=_warnings,
    statistics=_statistics,
    memory=_memory,
    smaller="a smaller dim, batch_size or num_negatives, or fewer clients",
    timed_by=_timed_by,
    time_validation=_time_validation,
    read_lines=_read_lines,
)
