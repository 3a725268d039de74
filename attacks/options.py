"""Threat models, and the options of attacks on a run.

    KgeAttackOptions(threat=("collusion",), leak=(0.3, 1.0), unlinked_heads=0)
    GraphAttackOptions(attack=("graph-membership",), threat=("models",), shadows=4)

Each option is declared once, here: specs, files, the command line and its help read these structs. Nothing here loads torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta

from fkgsec.arguments import Named, check_fields
from fkgsec.errors import SpecError
from fkgsec.kge.models import MOST
from fkgsec.registry import Registry

Inference = Literal["cosine", "score", "names", "learned", "combined", "mlp"]
# The inference method of fedr.txt.
PAPER: Inference = "cosine"
Metric = Literal["paper", "published"]
ShadowKnowledge = Literal["same-graph", "similar-graph"]
MIN_SHADOWS = 4
KGE, GRAPH = "kge", "graph"
RECONSTRUCTION, UPDATE_RECOVERY, MEMBERSHIP = "reconstruction", "update-recovery", "membership"


@dataclass(frozen=True)
class ThreatModel:
    """The colluding parties and their prior knowledge.

    Attributes:
        lines: description for tables, by task to which the threat model applies.
        colluder: one client hands over its knowledge. On knowledge graphs: element-embedding pairs, at the leak ratio. On graph
            classification: its graphs and its model.
        identifiers: the server knows the entity and relation names that clients sent for alignment.
        victim_entities: the server has the victims' entity embeddings, without names, from another source.
        models: the adversary holds the clients' final models and saw no message.
        server: the server is an adversary. If False, a colluder acts alone, with its own data and the broadcasts it received.
        auxiliary: the adversary has extra labeled data. On knowledge graphs: some of each victim's training triples. On graph
            classification: validation graphs of the victims, which nobody trains on.
    """

    name: str
    lines: Mapping[str, str] = field(hash=False)
    colluder: bool = False
    identifiers: bool = False
    victim_entities: bool = False
    models: bool = False
    server: bool = True
    auxiliary: bool = False

    @property
    def leaks(self) -> bool:
        """True if a share of a colluder's knowledge leaks to the server. A client that acts alone has all of its knowledge."""
        return self.colluder and self.server

    @property
    def about(self) -> str:
        """Description for tables; that of the first task where descriptions differ."""
        return next(iter(self.lines.values()))


# Threat models by what the adversary sees. "fedr.txt" marks those of the paper; the others occur in practice.
MODELS = "models"

THREAT_MODELS = {
    model.name: model
    for model in (
        ThreatModel(
            "server",
            {
                KGE: "an honest-but-curious server alone, without the names sent for alignment",
                GRAPH: "an honest-but-curious server alone",
            },
        ),
        ThreatModel(
            "collusion",
            {
                KGE: "server and one client, without the names sent for alignment (fedr.txt 3.1)",
                GRAPH: "server and one client, which hands over its graphs and its model",
            },
            colluder=True,
        ),
        ThreatModel(
            "collusion+entities",
            {KGE: "server and one client, with the victims' entity rows without names (fedr.txt 4.2)"},
            colluder=True,
            victim_entities=True,
        ),
        ThreatModel(
            "identifiers",
            {KGE: "server and one client, with the names sent for alignment"},
            colluder=True,
            identifiers=True,
        ),
        ThreatModel(
            MODELS,
            dict.fromkeys((KGE, GRAPH), "anyone who holds the final models of clients"),
            models=True,
            server=False,
        ),
        ThreatModel(
            "models+graphs",
            {
                GRAPH: "anyone who holds the clients' models and graphs of their data sets that are not in any training data"
            },
            models=True,
            server=False,
            auxiliary=True,
        ),
        ThreatModel(
            "server+graphs",
            {GRAPH: "the server, with graphs of the clients' data sets that are not in any training data"},
            auxiliary=True,
        ),
        ThreatModel(
            "server+triples",
            {KGE: "the server, with the names sent for alignment and some of each victim's triples"},
            identifiers=True,
            auxiliary=True,
        ),
        ThreatModel(
            "client",
            {
                KGE: "one client alone: its triples, its model, and the broadcasts that it received",
                GRAPH: "one client alone: its graphs, its model, and the broadcasts that it received",
            },
            colluder=True,
            server=False,
        ),
    )
}


def threat_models(task: str) -> dict[str, ThreatModel]:
    """Return the threat models that apply to a task, by name.

    Args:
        task: "kge" or "graph".

    >>> list(threat_models("graph"))
    ['server', 'collusion', 'models', 'models+graphs', 'server+graphs', 'client']
    """
    return {name: model for name, model in THREAT_MODELS.items() if task in model.lines}


class BaseAttackOptions(msgspec.Struct, metaclass=Named, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The attacks to run, and their conditions.

    Attributes:
        task: task whose runs a subclass attacks, a name in `fkgsec.attacks.registry.ATTACKED`; not an option itself.
        threat: names of `THREAT_MODELS` that apply to the task. Empty: each attack's default, or those that fit the algorithm
            (`fkgsec.attacks.registry.default_threats`).
        colluder: name of the colluding client, or of several that pool their knowledge; None takes the first client.
        seed: seed of all random draws of attacks, independent of the run's seeds.
        attack: names in `fkgsec.attacks.registry.ATTACKS`; empty: the task's default. Names are resolved only when attacks run,
            so that records can be read where a plug-in is not installed.
    """

    task: ClassVar[str] = ""

    threat: Annotated[
        tuple[str, ...],
        Meta(description="threat model: what the adversary sees; repeatable (default: those that fit)"),
    ] = ()
    colluder: Annotated[
        tuple[str, ...] | str | None, Meta(description="client that colludes; repeatable (default: the first)")
    ] = None
    seed: int = 0
    attack: Annotated[
        tuple[str, ...],
        Meta(
            description="attack to run; repeatable; list describes all attacks, all runs every attack (default: "
            "reconstruction and update-recovery, for a server alone also edges and degrees; for graphs "
            "graph-membership)"
        ),
    ] = ()
    shadows: Annotated[
        int,
        Meta(
            description="shadow federations that the adversary trains for membership inference, each as long as "
            f"the run: 0, or an even number of at least {MIN_SHADOWS}"
        ),
    ] = 0

    def __post_init__(self) -> None:
        check_fields(self)
        # A list of one name is the same option as that name, and must compare equal.
        if isinstance(self.colluder, tuple) and len(self.colluder) < 2:  # one is the same however it is said
            msgspec.structs.force_setattr(self, "colluder", self.colluder[0] if self.colluder else None)
        # Validate here, so that specs, files and the command line fail alike and before any training.
        allowed = threat_models(self.task)
        for name in self.threat:
            if name not in allowed:
                raise SpecError(f"threat must be one of {', '.join(allowed)}; got {name!r}")
        for name, value in msgspec.structs.asdict(self).items():
            if isinstance(value, tuple) and len(set(value)) < len(value):
                raise SpecError(f"{name} names a value twice: {', '.join(map(str, value))}")
        if self.shadows and (self.shadows < MIN_SHADOWS or self.shadows % 2):
            raise SpecError(f"shadows must be 0 or an even number from {MIN_SHADOWS} on; got {self.shadows}")

    def colluders(self, clients: Sequence[Any]) -> tuple[str, ...]:
        """Return the names of the colluding clients. Only the first one acts in an active attack.

        Args:
            clients: clients of the federation.
        """
        if isinstance(self.colluder, tuple):
            return self.colluder
        return (self.colluder or clients[0].name,)


class AttackSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of one attack, written `--attack name:key=value,key=value`. A plug-in's attack extends it.

    class NormSettings(AttackSettings, frozen=True):
        norm: Annotated[float, Meta(ge=1)] = 2.0
    """


class KgeAttackOptions(BaseAttackOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of attacks on knowledge graphs; each field's `description` is its help.

    Attributes (beside those of `BaseAttackOptions`):
        leak: leak ratios in (0, 1]; `seed` decides which entities leak.
        inference: names in `fkgsec.attacks.reconstruction.leakage.INFERENCES`, or `mlp`; one name may stand for a list of one.
            Used by reconstruction only, as are `metric` and `unlinked_heads`.
        metric: "paper" counts as defined in fedr.txt, "published" as in the authors' notebooks.
        probes: number of entities to move. Too large a share of a client's entities leaves no unmoved ones to compare with.
        probe_round: None: as late as possible so that all answers are transmitted within the run.
        attack_rounds: None: all rounds. A few take seconds but show less (docs/poisoning.md).
        shadow_knowledge: see `fkgsec.attacks.membership.candidates`.
    """

    task: ClassVar[str] = KGE

    leak: Annotated[
        tuple[float, ...],
        Meta(description="share of the colluder's entity-embedding pairs that the server gets; repeatable"),
    ] = (0.5,)
    inference: Annotated[
        tuple[Inference, ...] | Inference,
        Meta(
            description="method that infers relations: cosine as in the paper, mlp a perceptron, ...; repeatable "
            "(default: all that fit except mlp, which takes seconds more)"
        ),
    ] = ()
    metric: Annotated[Metric, Meta(description="counting rule: FedR's paper, or its published notebooks")] = "paper"
    unlinked_heads: Annotated[
        int, Meta(description="heads sampled for the attack without linked pairs; 0: skip it")
    ] = 200
    auxiliary: Annotated[
        float,
        Meta(description="share of each victim's triples that the server has under the threat model server+triples"),
    ] = 0.1
    probes: Annotated[
        int,
        Meta(description="client-active: number of entities to move at once, less than a third of a client's"),
    ] = 300
    probe_size: Annotated[float, Meta(description="client-active: size of the move, in each value of a row")] = 3.0
    probe_round: Annotated[
        int | None, Meta(description="client-active: round of the move (default: the third from the client's last)")
    ] = None
    probe_rounds: Annotated[
        int,
        Meta(
            description="client-active: number of rounds with the same moves; more rounds help if changes are clipped"
        ),
    ] = 1
    guesses: Annotated[
        int, Meta(description="client-guess: number of names of each victim in the client's dictionary")
    ] = 100
    poison_triples: Annotated[int, Meta(description="number of false triples that an active adversary plants")] = 40
    poison_copies: Annotated[
        int, Meta(description="copies of each planted triple in the adversary's training data")
    ] = 25
    boost: Annotated[
        float, Meta(description="factor by which a malicious client multiplies the change of planted rows")
    ] = 5.0
    attack_rounds: Annotated[
        int | None,
        Meta(
            description="number of last rounds in which poisoning and attacks on many rounds act (default: all); "
            "few rounds are replayed in seconds"
        ),
    ] = None
    shadow_knowledge: Annotated[
        ShadowKnowledge,
        Meta(
            description="training data of shadow federations: the clients' triples except those to classify, or half of "
            "the triples with new links"
        ),
    ] = "same-graph"

    def __post_init__(self) -> None:
        # One name stands for a list of one.
        if isinstance(self.inference, str):
            msgspec.structs.force_setattr(self, "inference", (self.inference,))
        super().__post_init__()
        # The published notebooks infer relations by cosine similarity only.
        if self.metric == "published" and set(self.inference) - {PAPER}:
            raise SpecError("inference must be cosine with metric published: the notebooks have no other method")
        for leak in self.leak:
            if not 0 < leak <= 1:
                raise SpecError(f"leak must lie in (0, 1]; got {leak}")
        if not self.leak:
            raise SpecError("leak needs at least one ratio")
        if not 0 < self.auxiliary < 1:
            raise SpecError(f"auxiliary must lie between 0 and 1, both excluded; got {self.auxiliary}")
        least = {
            "probes": 1,
            "probe_round": 1,
            "probe_rounds": 1,
            "attack_rounds": 1,
            "guesses": 2,
            "unlinked_heads": 0,
        }
        _check_least(self, least)
        if not 0 < self.probe_size <= MOST:
            raise SpecError(f"probe_size must be above 0 and at most {MOST:,.0f}; got {self.probe_size}")
        for name in ("poison_triples", "poison_copies"):
            if not 1 <= getattr(self, name) <= 10_000:
                raise SpecError(f"{name} must lie in 1..10,000; got {getattr(self, name)}")
        if not 1 <= self.boost <= MOST:
            raise SpecError(f"boost must lie in 1..{MOST:,.0f}; got {self.boost:g}")
        if not self.shadows and self.shadow_knowledge != "same-graph":
            raise SpecError("shadow_knowledge applies to shadow federations; set shadows, too")


class GraphAttackOptions(BaseAttackOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of attacks on graph classification; each field's `description` is its help."""

    task: ClassVar[str] = GRAPH

    malicious: Annotated[
        int, Meta(description="number of clients that plant a backdoor: the colluder and the next clients")
    ] = 1
    poisoned: Annotated[float, Meta(description="share of its training graphs that each malicious client poisons")] = (
        0.2
    )
    trigger_size: Annotated[
        float, Meta(description="nodes of the trigger, as a share of the mean number of nodes of a graph")
    ] = 0.2
    trigger_density: Annotated[float, Meta(description="probability of each edge of the trigger")] = 0.8
    target_class: Annotated[int, Meta(description="class that the backdoor gives graphs with the trigger")] = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.colluder, tuple):
            raise SpecError(f"colluder must be one client where graphs are classified; got {', '.join(self.colluder)}")
        _check_least(self, {"malicious": 1, "target_class": 0})
        for name in ("poisoned", "trigger_size", "trigger_density"):
            if not 0 < getattr(self, name) <= 1:
                raise SpecError(f"{name} must lie in (0, 1]; got {getattr(self, name)}")


def _check_least(options: BaseAttackOptions, least: Mapping[str, int]) -> None:
    for name, number in least.items():
        value = getattr(options, name)
        if value is not None and value < number:
            raise SpecError(f"{name} must be at least {number}; got {value}")


class AttackRegistry(Registry[Any]):
    """Attacks by name, of `fkgsec.attacks.registry.Attack`. `name:key=value,key=value` binds the attack's settings."""

    def __getitem__(self, name: str) -> Any:
        """Look up an attack. Raises `SpecError` for an unknown name or a setting that is not allowed."""
        plain, _, text = name.partition(":")
        return super().__getitem__(plain).with_settings(text)


# Their modules load torch; the names do not.
ATTACKS_BY_NAME = AttackRegistry(
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
