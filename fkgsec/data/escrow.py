"""Escrow: triples withheld from every run, so that no party can have trained on them.

    >>> graph = generate_consortium(clients=3, size=900, seed=1)                                  # doctest: +SKIP
    >>> remaining, escrowed = split_escrow(graph, 0.05, np.random.default_rng())                  # doctest: +SKIP
    >>> escrow = Escrow.seal(remaining, escrowed)                                                 # doctest: +SKIP
    >>> escrow.commitment                             # may be published before training          # doctest: +SKIP

An audit of forgetting compares forgotten triples with triples that were never trained on. A dishonest party could train on any
triple it knows, including test triples, to make both groups alike. It cannot train on triples that it never had. An escrow is
drawn from the data before they are handed over, and opened for the audit. The commitment fixes it without revealing it.

Limit: an escrow does not bind a party that still has the original data, such as the client itself.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np

from fkgsec.data.graph import SPLITS, ClientGraph, FederatedGraph
from fkgsec.errors import DataError, SpecError
from fkgsec.text import shown

SCHEMA = "fkgsec/escrow/1"


class Escrow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Content of an escrow file.

    Attributes:
        schema: `SCHEMA`.
        data_hash: of the federation without the escrowed triples, which may be handed over.
        nonce: 32 random bytes in hexadecimal, against guessing the triples from the commitment.
        triples: names of head, relation and tail, by client.
        commitment: sha256 over the other fields.
    """

    schema: str
    data_hash: str
    nonce: str
    triples: dict[str, list[tuple[str, str, str]]]
    commitment: str

    @classmethod
    def seal(cls, remaining: FederatedGraph, escrowed: Mapping[str, np.ndarray]) -> Escrow:
        """Commit to escrowed triples.

        Args:
            remaining: the federation without these triples.
            escrowed: int64 `[k, 3]` by client, in local IDs.
        """
        named = {
            client.name: [
                (remaining.entities[h], remaining.relations[r], remaining.entities[t])
                for h, r, t in client.to_global(escrowed[client.name])
            ]
            for client in remaining.clients
        }
        # From the operating system: a seeded nonce could be guessed.
        nonce = secrets.token_hex(32)
        return cls(SCHEMA, remaining.hash, nonce, named, _commitment(remaining.hash, nonce, named))


def _commitment(data_hash: str, nonce: str, triples: Mapping[str, object]) -> str:
    return hashlib.sha256(msgspec.json.encode([SCHEMA, data_hash, nonce, triples])).hexdigest()


def split_escrow(
    graph: FederatedGraph, share: float, rng: np.random.Generator
) -> tuple[FederatedGraph, dict[str, np.ndarray]]:
    """Remove a share of each client's distinct training triples.

    Drawn are training triples that are in no other split and at no other client, and whose head, relation and tail have
    another training triple there. So no vocabulary shrinks, and no copy of an escrowed triple remains.

    Args:
        graph: the federation.
        share: of each client's distinct training triples, above 0 and at most 0.5.
        rng: source of randomness.

    Returns:
        The remaining federation, and the removed triples by client, int64 `[k, 3]` in local IDs.

    Raises:
        SpecError: the share is outside (0, 0.5].
        DataError: a client has no such triple.
    """
    if not 0 < share <= 0.5:
        raise SpecError(f"share must lie in (0, 0.5]; got {share}")
    counts = _copies(graph)
    clients, escrowed = [], {}
    for client in graph.clients:
        train = np.unique(client.train, axis=0)
        # A copy elsewhere would be trained on after all.
        alone = np.array([counts[triple] == 1 for triple in map(tuple, client.to_global(train).tolist())], dtype=bool)
        wanted = max(1, round(share * len(train)))
        chosen = _removable(client, train, rng.permutation(np.nonzero(alone)[0]), wanted)
        if not len(chosen):
            raise DataError(
                f"client {client.name}: no training triple can be escrowed (one that stands nowhere else, and whose entities and "
                "relation keep another)"
            )
        out = set(map(tuple, train[chosen].tolist()))
        left = np.array([triple not in out for triple in map(tuple, client.train.tolist())], dtype=bool)
        clients.append(replace(client, train=client.train[left]))
        escrowed[client.name] = train[np.sort(chosen)]
    return replace(graph, clients=tuple(clients)), escrowed


def _copies(graph: FederatedGraph) -> dict[tuple[int, ...], int]:
    counts: dict[tuple[int, ...], int] = {}
    for client in graph.clients:
        for split in SPLITS:
            for triple in set(map(tuple, client.to_global(getattr(client, split)).tolist())):
                counts[triple] = counts.get(triple, 0) + 1
    return counts


def _removable(client: ClientGraph, train: np.ndarray, order: np.ndarray, wanted: int) -> np.ndarray:
    """Return the first `wanted` of `train[order]` that leave another triple to each of their names, as indices of
    `train`.
    """
    entities = np.bincount(train[:, [0, 2]].ravel(), minlength=client.num_entities)
    relations = np.bincount(train[:, 1], minlength=client.num_relations)
    chosen: list[int] = []
    for place in order:
        if len(chosen) == wanted:
            break
        head, relation, tail = train[place]
        # A loop counts twice at its entity.
        needed = 3 if head == tail else 2
        if entities[head] >= needed and entities[tail] >= needed and relations[relation] >= 2:
            entities[head] -= 1
            entities[tail] -= 1
            relations[relation] -= 1
            chosen.append(int(place))
    return np.array(chosen, dtype=np.int64)


def read_escrow(path: Path, graph: FederatedGraph) -> tuple[Escrow, dict[str, np.ndarray]]:
    """Read an escrow file and its triples by client, in local IDs of `graph`.

    Args:
        path: of the file.
        graph: the data that the run was trained on.

    Raises:
        DataError: the file is no escrow, was changed after sealing, belongs to other data or clients, or has a triple that
            is in a split of any client.
    """
    try:
        escrow = msgspec.json.decode(path.read_bytes(), type=Escrow)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise DataError(f"{path}: not an escrow file ({error})") from error
    if escrow.commitment != _commitment(escrow.data_hash, escrow.nonce, escrow.triples):
        raise DataError(f"{path}: was changed since it was sealed: its content does not give its commitment")
    if escrow.data_hash != graph.hash:
        raise DataError(
            f"{path}: belongs to data {escrow.data_hash[:12]}; the run was trained on {graph.name}, {graph.hash[:12]}"
        )
    # The hash covers no client names: triples of an unknown client would be skipped silently below.
    if unknown := sorted(escrow.triples.keys() - {client.name for client in graph.clients}):
        raise DataError(f"{path}: has triples of {shown(unknown[0])}, which is no client of {graph.name}")
    entities = {name: number for number, name in enumerate(graph.entities)}
    relations = {name: number for number, name in enumerate(graph.relations)}
    copies, positions = _copies(graph), {}
    for client in graph.clients:
        own_entity = {int(number): place for place, number in enumerate(client.entity_ids)}
        own_relation = {int(number): place for place, number in enumerate(client.relation_ids)}
        local = []
        for head, relation, tail in escrow.triples.get(client.name, []):
            ids = (entities.get(head, -1), relations.get(relation, -1), entities.get(tail, -1))
            if ids in copies:
                raise DataError(f"{path}: ({head}, {relation}, {tail}) is in the data of the run")
            if ids[0] not in own_entity or ids[1] not in own_relation or ids[2] not in own_entity:
                raise DataError(f"{path}: ({head}, {relation}, {tail}) names what client {client.name} does not have")
            local.append((own_entity[ids[0]], own_relation[ids[1]], own_entity[ids[2]]))
        positions[client.name] = np.array(local, dtype=np.int64).reshape(-1, 3)
    return escrow, positions
