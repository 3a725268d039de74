"""Knowledge of an adversary about a finished run of knowledge-graph embedding under a threat model.

    view = kge_view(result, THREAT_MODELS["collusion"], colluder="hospital-1", leak=0.5, seed=0)
    view.colluder.entity_names, view.victims[0].entities

A view holds the messages that the adversary's parties saw and the data that the colluder handed over. It never holds a victim's
graph, names or tables that were not transmitted. The evaluator (`fkgsec.attacks.reconstruction.evaluation`) joins the truth
afterwards. Where the adversary may use only some rows of a table, the view holds only these rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from torch import Tensor

from fkgsec.attacks.membership.audits import ClientModel, client_models, named_triples
from fkgsec.attacks.options import ThreatModel
from fkgsec.attacks.residual import Claims, Part, SecureTable, claim_rows
from fkgsec.attacks.view import NotAttacked, Victim, View, named
from fkgsec.data.graph import ClientGraph
from fkgsec.errors import ThreatModelError
from fkgsec.federation.messages import (
    SERVER,
    Alignment,
    LowRankRows,
    Opened,
    QuantisedRows,
    Rows,
    SparseRows,
    client_party,
)
from fkgsec.federation.recipes import ENTITIES, RECIPES, RELATIONS, Table
from fkgsec.kge.models import KgeModel
from fkgsec.kge.result import KgeResult
from fkgsec.randomness import generator

# Default share of a victim's triples that a server with auxiliary data knows.
AUXILIARY = 0.1
TABLES = ENTITIES + RELATIONS
# Messages with all rows of a client.
Upload = Rows | QuantisedRows


@dataclass(frozen=True, eq=False)
class ColluderKnowledge:
    """A colluder's knowledge: element-embedding pairs of its own model, and the triples among them.

    Attributes:
        entity_names `[n]`, entities `[n, W]`: leaked entities with the colluder's rows in the attacked round before the
        broadcast, hence after its own training if it took part in the round.
        shared_entities `[n, W]`: the same entities as in the server's last broadcast, which published notebooks use.
        relation_names `[m]`, relations `[m, V]`: relations of its triples that touch a leaked entity.
        triples: int64 `[k, 3]`, its training triples that touch a leaked entity, as indices into `entity_names` (-1 for an end
            that did not leak) and `relation_names`.
        first: knowledge of the first colluder alone, if several pool theirs.
        name: name of the client.
    """

    entity_names: np.ndarray
    entities: Tensor
    shared_entities: Tensor
    relation_names: np.ndarray
    relations: Tensor
    triples: np.ndarray
    first: ColluderKnowledge | None = None
    name: str = ""

    @property
    def named_triples(self) -> np.ndarray:
        """Triples with two leaked ends, as names, object `[t, 3]`."""
        heads, kinds, tails = self.triples[(self.triples[:, [0, 2]] >= 0).all(axis=1)].T
        return np.stack([self.entity_names[heads], self.relation_names[kinds], self.entity_names[tails]], axis=1)

    @property
    def of_the_first(self) -> ColluderKnowledge:
        """Knowledge of the colluder that acts in a run."""
        return self.first or self

    @property
    def majority_relation(self) -> str:
        """Most frequent relation of its triples; the guess of an adversary without embeddings."""
        return str(self.relation_names[np.bincount(self.triples[:, 1], minlength=len(self.relation_names)).argmax()])

    @property
    def pair_density(self) -> float:
        """Share of ordered pairs of leaked entities that its triples link; the adversary's estimate of a graph's density."""
        inside = self.triples[(self.triples[:, [0, 2]] >= 0).all(axis=1)]
        return len(np.unique(inside[:, [0, 2]], axis=0)) / max(1, len(self.entity_names) ** 2)


@dataclass(frozen=True, eq=False)
class VictimView(Victim):
    """The adversary's view of a victim: its last upload up to the attacked round, in the order of the message.

    A message keeps the order of the vocabulary (`ClientGraph.from_global`), as the colluder's pairs do, so that the position of
    a row gives its name away. On UMLS by relations at leak 1, the position alone names 60 % and 19 % of the two victims'
    entities (chance 1 %), and on Nations all. This is an artifact of how local IDs are numbered here, not a leak of embeddings.
    Attacks therefore receive the rows in a random order (`fkgsec.attacks.kge.task.RowOrder`).

    Attributes:
        entities `[n, W]`, relations `[m, V]`: uploaded rows, None if none were transmitted. NaN in rows that never were: FedS
        sends some rows per round, and the server keeps each row as last received.
        entity_names `[n]`: names of the rows, None unless the threat model uses identifiers.
        origin: source of `entities`.
        claims: for tables that were summed securely, the rows that the adversary attributes to the victim. `entities` or
            `relations` are then its embeddings of these rows, in their order, with names.
        models: final models, where the threat model includes them (`fkgsec.attacks.membership.audits.client_models`).
        received: for tables that were uploaded individually and in full, the rows of the server's last broadcast before the
            upload, `[n, W]`, `[m, V]`. A table is missing if that broadcast was not kept or had other rows.
        sent: for sparse uploads, rows that the victim sent in each sparse round up to the attacked one, bool `[rounds, n]`;
            else None.
        auxiliary: names of some of its training triples, object `[a, 3]`, where the threat model includes any.
        aligned: for tables that were uploaded individually, a number per row. Equal numbers at two victims mean the same
            entity; the number gives no hint which entity that is.
        uploaded: tables that the victim uploaded in the attacked round.
        assembled: True if single uploads hold some rows only.
        vocabulary: names of the rows of `models` by table, which everyone who holds the models knows.
    """

    entities: Tensor | None
    relations: Tensor | None
    entity_names: np.ndarray | None
    origin: str
    claims: dict[Table, Claims] = field(default_factory=dict)
    models: Mapping[str, ClientModel] = field(default_factory=dict)
    received: Mapping[Table, Tensor] = field(default_factory=dict)
    auxiliary: np.ndarray | None = None
    sent: np.ndarray | None = None
    aligned: Mapping[Table, np.ndarray] = field(default_factory=dict)
    uploaded: frozenset[Table] = frozenset()
    assembled: bool = False
    vocabulary: Mapping[Table, np.ndarray] = field(default_factory=dict)

    def rows(self, table: Table) -> Tensor | None:
        """Return the victim's rows of a table."""
        return self.entities if table == "entities" else self.relations

    def crossed(self) -> tuple[Tensor, np.ndarray]:
        """Return the entity rows, float32 `[n, W]`, and which of them were ever transmitted, bool `[n]`.

        Raises:
            NotAttacked: none were.
        """
        if self.entities is None:
            raise NotAttacked("none of its entity embeddings was transmitted")
        return self.entities.float(), ~self.entities.isnan().any(dim=1).numpy()

    def named_entities(self) -> tuple[Tensor, np.ndarray, np.ndarray]:
        """Return the transmitted entity rows, float32 `[s, W]`, their names `[s]`, and which of all rows they are, bool `[n]`.

        Raises:
            NotAttacked: no row was transmitted, or the adversary does not know the names.
        """
        rows, seen = self.crossed()
        if self.entity_names is None:
            raise NotAttacked("the names of its entities are not known")
        return rows[torch.from_numpy(seen)], self.entity_names[seen], seen

    def why_none(self, part: str) -> str | None:
        """Explain why the view lacks a part of the victim's data, None if it has it."""
        return f"its {part} were transmitted only inside a sum" if part in self.claims else super().why_none(part)


@dataclass(frozen=True, eq=False, kw_only=True)
class KgeView(View):
    """The adversary's whole knowledge that an attack may use.

    Attributes (beside those of `View`):
        model: scoring function with its dimensions, which is public.
        secure: tables that were summed securely; victims have no rows of these.
        alignments: names of the rows that each party receives, in the order of messages, where the server may use names.
        union: entity names that every party received from a private set union; None if there was none.
    """

    victims: tuple[VictimView, ...]
    model: KgeModel
    leak: float = 1.0
    colluder: ColluderKnowledge | None = None
    secure: dict[Table, SecureTable] = field(default_factory=dict)
    alignments: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    union: frozenset[str] | None = None

    @property
    def accomplice(self) -> ColluderKnowledge:
        """Knowledge of the colluder, for an attack that requires one."""
        assert self.colluder is not None
        return self.colluder

    def sums_of(self, table: Table) -> list[Opened]:
        """Return the opened sums of a table, in the order of rounds."""
        opened = self.secure[table].opened if table in self.secure else ()
        return sorted((entry for entry in opened if entry.total), key=lambda entry: entry.round)

    def sum_of(self, table: Table, round: int) -> tuple[np.ndarray, np.ndarray] | None:
        """Return the opened sum of a round.

        Returns:
            The sum, float64 `[N, W]`, and the number of holders per row, int64 `[N]`; None if no sum was opened.
        """
        return next((opened.sums() for opened in self.sums_of(table) if opened.round == round), None)


def kge_view(
    result: KgeResult,
    threat_model: ThreatModel,
    *,
    colluder: Sequence[str] | str,
    leak: float,
    seed: int,
    auxiliary: float = AUXILIARY,
) -> KgeView:
    """Build an adversary's view of a finished run, at its best round.

    Args:
        result: finished run. The view takes only its transcript, the colluder's data and, under `victim_entities`, the rows that
            the threat model assumes to be known.
        threat_model: one of knowledge graphs.
        colluder: name of the colluding client, or of several that pool their knowledge. Every other client is a victim. Under
            threat models with final models, all clients are victims.
        leak: leak ratio in (0, 1], share of each colluder's entity-embedding pairs. With the same seed, smaller leaks are subsets
            of larger ones. A client that acts alone has all of its pairs.
        seed: seed of the attack; decides which share leaks, and the holder of a row where counts leave it open.
        auxiliary: share of each victim's distinct training triples that a server with auxiliary data has, in (0, 1).

    Raises:
        ThreatModelError: `leak` is out of range.
    """
    # fedr.txt 3.1: leak ratios of 30 %, 50 % and 100 %.
    if not 0 < leak <= 1:
        raise ThreatModelError(f"leak must lie in (0, 1]; got {leak}")
    make_view = partial(
        KgeView, threat_model=threat_model, model=result.options.kge_model(), round=result.best_round, leak=leak
    )
    colluding = named(colluder)
    if threat_model.models:
        return make_view(victims=_victims_with_models(result))
    if not threat_model.server:
        return make_view(
            leak=1.0,
            colluder=_pooled_knowledge(result, colluding, 1.0, seed),
            victims=tuple(
                VictimView(client.name, None, None, None, "not seen")
                for client in result.graph.clients
                if client.name not in colluding
            ),
            union=_union(result, colluding),
        )
    alignments = {
        message.sender: message
        for message in result.transcript.messages(0)
        if isinstance(message, Alignment) and message.table == "entities"
    }
    secure = {
        table: _secure_table(result, threat_model, table, colluding, leak, seed)
        for table in RECIPES[result.options.algorithm].shared
        if result.inputs.get(table)
    }
    return make_view(
        colluder=_pooled_knowledge(result, colluding, leak, seed) if threat_model.colluder else None,
        victims=_victims_of_server(result, threat_model, colluding, secure, alignments, seed, auxiliary),
        secure=secure,
        alignments={party: tuple(alignment.names) for party, alignment in alignments.items()}
        if threat_model.identifiers
        else {},
    )


def _victims_with_models(result: KgeResult) -> tuple[VictimView, ...]:
    """Give the adversary every client's final models, and the names of their rows, but no message."""
    graph = result.graph
    entities, relations = (np.array(names, dtype=object) for names in (graph.entities, graph.relations))
    return tuple(
        VictimView(
            client.name, None, None, None, "not uploaded", models=client_models(result, index),
            vocabulary={"entities": entities[client.entity_ids], "relations": relations[client.relation_ids]},
        )
        for index, client in enumerate(graph.clients)
    )  # fmt: skip


def _union(result: KgeResult, colluding: Sequence[str]) -> frozenset[str] | None:
    """Return the entity names that a private set union revealed to a colluder, None if there was none."""
    parties = {client_party(name) for name in colluding}
    lists = [
        entry for entry in result.transcript.entries if (entry.kind, entry.table) == ("psu-union-list", "entities")
    ]
    return frozenset(result.row_names["entities"]) if any(entry.receiver in parties for entry in lists) else None


def _victims_of_server(
    result: KgeResult,
    threat_model: ThreatModel,
    colluding: Sequence[str],
    secure: Mapping[Table, SecureTable],
    alignments: Mapping[str, Alignment],
    seed: int,
    auxiliary: float,
) -> tuple[VictimView, ...]:
    """Give the server what each victim uploaded, or what the opened sums say of it."""
    graph, transcript, best = result.graph, result.transcript, result.best_round
    received = [
        message
        for number in sorted(transcript.latest_uploads(best))
        for message in transcript.messages(number)
        if message.receiver == SERVER
    ]
    uploads = {(message.sender, message.table): message for message in received if isinstance(message, Upload)}
    unreadable = {
        (message.sender, message.table): message.label
        for message in received
        if isinstance(message, SparseRows | LowRankRows)
    }
    claims = {
        table: claim_rows(secure_table, generator(seed, "holders", table)) for table, secure_table in secure.items()
    }
    # A server that averages rows knows which rows of its clients belong together. Random numbers stand for the entities, so
    # that the numbers themselves do not name them.
    numbers = {
        table: generator(seed, "row numbers", table).permutation(len(getattr(graph, table)))
        for table in RECIPES[result.options.algorithm].shared
    }
    sent = _sent(result)
    now = {
        (entry.sender, entry.table) for entry in transcript.entries if entry.direction == "up" and entry.round == best
    }

    def victim_view(index: int, client: ClientGraph) -> VictimView:
        """Build the server's view of one victim."""
        party = client_party(client.name)
        own_claims = {table: by_party[party] for table, by_party in claims.items() if party in by_party}
        rows = {
            table: own_claims[table].embeddings
            if table in own_claims
            else _uploaded(result, uploads, unreadable, party, table)
            for table in TABLES
        }
        origin = "summed" if "entities" in own_claims else "not uploaded" if rows["entities"] is None else "uploaded"
        # fedr.txt 4.2: the server has obtained the victims' entity embeddings although FedR does not share them.
        if rows["entities"] is None and threat_model.victim_entities:
            rows["entities"] = result.trained[index].entities[: client.num_trained_entities].clone()
            origin = "assumed known"
        names, aligned = None, alignments.get(party)
        if aligned and threat_model.identifiers:
            names = np.array(aligned.names[: aligned.num_uploaded], dtype=object)
        ids = {"entities": client.entity_ids, "relations": client.relation_ids}
        before = {table: sent_before(result, uploads[party, table]) for table in TABLES if (party, table) in uploads}
        return VictimView(
            client.name,
            rows["entities"],
            rows["relations"],
            own_claims["entities"].names if "entities" in own_claims else names,
            origin,
            claims=own_claims,
            received={table: sent_rows for table, sent_rows in before.items() if sent_rows is not None},
            auxiliary=_auxiliary(result, index, auxiliary, seed) if threat_model.auxiliary else None,
            sent=sent.get(party),
            aligned={
                table: of_rows[ids[table][: len(uploaded_rows)]]
                for table, of_rows in numbers.items()
                if table not in own_claims and (uploaded_rows := rows[table]) is not None
            },
            uploaded=frozenset(table for sender, table in now if sender == party),
            assembled=any(result.observed.values()),
        )

    return tuple(
        victim_view(index, client) for index, client in enumerate(graph.clients) if client.name not in colluding
    )


def _uploaded(
    result: KgeResult,
    uploads: Mapping[tuple[str, str], Upload],
    unreadable: Mapping[tuple[str, str], str],
    party: str,
    table: Table,
) -> Tensor | None:
    """Return a client's rows as the server last received each, NaN where it never did; None if none were transmitted."""
    observed = result.observed.get(table, {}).get(party)
    if observed is not None:
        return observed.rows.masked_fill(~observed.seen[:, None], torch.nan) if observed.seen.any() else None
    if label := unreadable.get((party, table)):
        codec = RECIPES[result.options.algorithm].codec
        raise ThreatModelError(
            f"codec {codec!r} uploads {label}, which attacks cannot read. Return the rows from `observed` of its server half."
        )
    message = uploads.get((party, table))
    return None if message is None else message.rows() if isinstance(message, QuantisedRows) else message.unpack()


def _sent(result: KgeResult) -> dict[str, np.ndarray]:
    """Find the entity rows that each party sent in each kept round of sparse uploads, up to the best round."""
    transcript, rows_of = result.transcript, dict[str, list[np.ndarray]]()
    sparse = {entry.round for entry in transcript.entries if entry.kind == "sparse-rows" and entry.direction == "up"}
    for number in sorted(round_number for round_number in sparse if round_number <= result.best_round):
        for message in transcript.messages(number):
            # A sparse message states which rows it contains, in plaintext.
            if isinstance(message, SparseRows) and message.receiver == SERVER and message.table == "entities":
                row = np.zeros(message.num_rows, dtype=bool)
                row[message.unpack()[0].numpy()] = True
                rows_of.setdefault(message.sender, []).append(row)
    return {party: np.stack(rows) for party, rows in rows_of.items()}


def sent_before(result: KgeResult, upload: Upload) -> Tensor | None:
    """Return the rows of an upload as the server last sent them to the client.

    Args:
        upload: upload of all rows of one table.

    Returns:
        Rows in the order of the upload, `[n, W]`; None if that broadcast was not recorded or had other rows.
    """
    entries = result.transcript.entries
    sent = (entry.round for entry in entries if entry.receiver == upload.sender and entry.table == upload.table)
    # The broadcast that the client trained from: the last one before its upload.
    number = max((round for round in sent if round < upload.round), default=-1)
    messages = [*result.transcript.messages(0), *result.transcript.messages(number)]
    exchanged = [
        message
        for message in messages
        if message.table == upload.table and upload.sender in (message.sender, message.receiver)
    ]
    num_held = next((len(message.names) for message in exchanged if isinstance(message, Alignment)), None)
    broadcast = next(
        (
            message
            for message in exchanged
            if isinstance(message, Rows) and (message.round, message.sender) == (number, SERVER)
        ),
        None,
    )
    if broadcast is None or broadcast.num_rows != num_held:
        return None
    return broadcast.unpack()[: upload.num_rows]


def _secure_table(
    result: KgeResult, threat_model: ThreatModel, table: Table, colluding: Sequence[str], leak: float, seed: int
) -> SecureTable:
    """Collect what a threat model knows of a table that was summed securely.

    Every holder of a row knows its position in the sum, so a colluder also gives away the names of its leaked rows. Of
    relations it gives away those of its triples that touch a leaked entity, as with plaintext uploads.
    """
    transcript = result.transcript
    rounds = sorted(number for number in transcript.notes if number <= result.best_round)
    opened = [
        note for number in reversed(rounds) for note in reversed(transcript.opened(number)) if note.table == table
    ]
    # The newest sum with rows comes first; the others only count holders.
    with_rows = next((place for place, note in enumerate(opened) if note.total), None)
    opened = [] if with_rows is None else [opened[with_rows], *opened[:with_rows], *opened[with_rows + 1 :]]
    parties = tuple(client_party(client.name) for client in result.graph.clients)
    all_names = np.array(result.row_names[table], dtype=object)
    # Without identifiers the server knows positions of a sum, and names only of the colluder's leaked rows.
    names = all_names.copy() if threat_model.identifiers else np.full(len(all_names), None, dtype=object)
    row_of = {name: row for row, name in enumerate(all_names)}
    parts = []
    for colluder in colluding if threat_model.colluder else ():
        place = parties.index(client_party(colluder))
        graph, own_input = result.graph.clients[place], None
        local = _leaked_entities(graph, place, leak, seed)
        ids, vocabulary = graph.entity_ids[local], result.graph.entities
        if table == "relations":
            touching = np.isin(graph.train[:, [0, 2]], local).any(axis=1)
            ids, vocabulary = graph.relation_ids[np.unique(graph.train[touching, 1])], result.graph.relations
        leaked = np.sort(np.array([row_of[vocabulary[number]] for number in ids], dtype=np.int64))
        names[leaked] = all_names[leaked]
        # The colluder's input is known for the attacked round only.
        if opened and opened[0].round == result.best_round:
            whole = result.inputs[table].get(parties[place])
            own_input = None if whole is None else whole[torch.from_numpy(leaked)]
        parts.append(Part(parties[place], leaked, own_input))
    holdings = {
        message.sender: np.array([row_of[name] for name in message.names[: message.num_uploaded]], dtype=np.int64)
        for message in transcript.messages(0)
        if isinstance(message, Alignment) and message.table == table
    }
    return SecureTable(
        parties,
        tuple(party for party in parties if party not in {client_party(name) for name in colluding}),
        names,
        tuple(opened),
        tuple(parts),
        leak >= 1,
        holdings,
        result.known.get(table, {}),
    )


def _auxiliary(result: KgeResult, index: int, share: float, seed: int) -> np.ndarray:
    """Draw names of a random share of a client's distinct training triples, at least one, object `[a, 3]`."""
    client = result.graph.clients[index]
    train = np.unique(client.train, axis=0)
    # Sort by global IDs, so that the draw does not depend on local numbering.
    train = train[np.lexsort(client.to_global(train).T[::-1])]
    count = max(1, int(share * len(train) + 1e-9))
    return named_triples(
        result.graph, client, train[generator(seed, "auxiliary", index).permutation(len(train))[:count]]
    )


def _leaked_entities(graph: ClientGraph, place: int, leak: float, seed: int) -> np.ndarray:
    """Draw the local IDs of the colluder's leaked entities, ascending."""
    count = graph.num_trained_entities
    # One permutation per client: a smaller leak is a prefix, so a subset, of a larger one.
    order = generator(seed, "leaked entities", place).permutation(count)
    # The small term fixes products such as 0.29 * 100 = 28.999...
    return np.sort(order[: max(1, int(leak * count + 1e-9))])


def _pooled_knowledge(result: KgeResult, names: Sequence[str], leak: float, seed: int) -> ColluderKnowledge:
    """Pool the knowledge of the clients with these names."""
    places = {client.name: place for place, client in enumerate(result.graph.clients)}
    return pool([_colluder_knowledge(result, places[name], leak, seed) for name in names])


def pool(parts: Sequence[ColluderKnowledge]) -> ColluderKnowledge:
    """Pool the knowledge of several colluders.

    An entity's row is the mean of the colluders' rows. A relation's row is that of the colluder with the most triples of it,
    since relations that are not shared have no common mean.

    Args:
        parts: knowledge of each colluder. The entities and relations of the first one come first, in its order.
    """
    if len(parts) == 1:
        return parts[0]
    entities, relations = (
        list(dict.fromkeys(name for part in parts for name in getattr(part, kind)))
        for kind in ("entity_names", "relation_names")
    )
    place, kind = ({name: row for row, name in enumerate(names)} for names in (entities, relations))
    rows, shared = (parts[0].entities.new_zeros(len(entities), parts[0].entities.shape[1]) for _ in range(2))
    num_holders, triples = torch.zeros(len(entities), 1), []
    acting, most = parts[0].relations.new_zeros(len(relations), parts[0].relations.shape[1]), np.zeros(len(relations))
    for part in parts:
        own_rows = torch.tensor([place[name] for name in part.entity_names])
        own_kinds = np.array([kind[name] for name in part.relation_names])
        rows[own_rows] += part.entities
        shared[own_rows] += part.shared_entities
        num_holders[own_rows] += 1
        counts = np.bincount(part.triples[:, 1], minlength=len(own_kinds))
        # A relation's row comes from the colluder that trained most on it.
        more = counts > most[own_kinds]
        acting[torch.from_numpy(own_kinds[more])] = part.relations[torch.from_numpy(more)]
        most[own_kinds[more]] = counts[more]
        # Index -1, an end that did not leak, stays -1.
        at = np.append(own_rows.numpy(), -1)
        triples.append(
            np.stack([at[part.triples[:, 0]], own_kinds[part.triples[:, 1]], at[part.triples[:, 2]]], axis=1)
        )
    names = (np.array(part_names, dtype=object) for part_names in (entities, relations))
    return ColluderKnowledge(
        next(names), rows / num_holders, shared / num_holders, next(names), acting, np.concatenate(triples), parts[0]
    )


def _colluder_knowledge(result: KgeResult, place: int, leak: float, seed: int) -> ColluderKnowledge:
    graph = result.graph.clients[place]
    leaked = _leaked_entities(graph, place, leak, seed)
    position = np.full(graph.num_entities, -1)
    position[leaked] = np.arange(len(leaked))
    ends = position[graph.train[:, [0, 2]]]
    touching = (ends >= 0).any(axis=1)
    # The colluder knows the relations of triples that touch a leaked entity (fedr.txt 3.1).
    relations, relation_position = np.unique(graph.train[touching, 1], return_inverse=True)
    trained, shared = result.trained[place], result.tables[place]
    entity_names, relation_names = (
        np.array(result.graph.entities, dtype=object),
        np.array(result.graph.relations, dtype=object),
    )
    return ColluderKnowledge(
        entity_names[graph.entity_ids[leaked]],
        trained.entities[leaked],
        shared.entities[leaked],
        relation_names[graph.relation_ids[relations]],
        trained.relations[relations],
        np.stack([ends[touching, 0], relation_position, ends[touching, 1]], axis=1),
        name=graph.name,
    )
