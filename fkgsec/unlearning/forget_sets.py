"""Forget sets: the triples that clients request to forget, read from files, checked and removed from the graphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from fkgsec.data.formats.folders import client_folders, read_triple_file
from fkgsec.data.graph import ClientGraph, FederatedGraph
from fkgsec.errors import DataError
from fkgsec.text import printable

Forget = Mapping[str, np.ndarray]
"""Triples to forget by client name: int64 `[k, 3]` in the client's local IDs, part of its train split."""


def read_forget(path: Path, graph: FederatedGraph, client: str | None = None) -> Forget:
    """Read forget sets: tab-separated triples by name.

    Args:
        path: a file with the triples of `client`, or, if it is None, of the only client that holds each triple; or a folder
            with `CLIENT.txt` or `CLIENT/unlearn.txt` for each requesting client. Other files of a client's folder are ignored.
        graph: the federation that holds the triples.
        client: read the forget set of this client alone.

    Raises:
        DataError: with `file:line`, a triple that is not in the client's train split, appears twice, or is held by several
            clients if none is named; a file without triples, or with all triples of a client; a file of an unknown client.
    """
    names = [owner.name for owner in graph.clients]
    if client is not None and client not in names:
        raise DataError(f"client must be one of {', '.join(names)}; got {client!r}")
    files = _forget_files(path, names) if path.is_dir() else {client: path}
    if path.is_dir() and client is not None:
        files = {name: file for name, file in files.items() if name == client}
    if not files:
        raise DataError(
            f"{path}: no forget set (expected CLIENT.txt or CLIENT/unlearn.txt) of {client or 'any client'}"
        )
    forget: dict[str, list[list[int]]] = {}
    for owner, file in files.items():
        candidates = [holder for holder in graph.clients if owner in (None, holder.name)]
        for name, triple in _read_forget_file(file, graph, candidates):
            forget.setdefault(name, []).append(triple)
    sets = {name: np.array(forget[name], dtype=np.int64) for name in names if name in forget}
    try:
        retaining(graph, sets)
    except DataError as error:
        raise DataError(f"{path}: {error}") from error
    return sets


def _forget_files(folder: Path, names: Sequence[str]) -> dict[str | None, Path]:
    candidates = [(path.stem, path) for path in folder.glob("*.txt")]
    candidates += [
        (path.name, path / "unlearn.txt") for path in client_folders(folder) if (path / "unlearn.txt").exists()
    ]
    files: dict[str | None, Path] = {}
    for name, file in sorted(candidates):
        if name not in names:
            raise DataError(f"{file}: no client is called {name!r}; the clients are {', '.join(names)}")
        if name in files:
            raise DataError(f"{file}: client {name} has a forget set in {files[name]} already")
        files[name] = file
    return files


def _read_forget_file(
    file: Path, graph: FederatedGraph, candidates: Sequence[ClientGraph]
) -> list[tuple[str, list[int]]]:
    """Return for each line the client that holds the triple, and the triple in that client's IDs."""
    named = read_triple_file(file)
    if not named.heads:
        raise DataError(f"{file}: no triple to forget")
    entities = {name: number for number, name in enumerate(graph.entities)}
    relations = {name: number for number, name in enumerate(graph.relations)}
    holdings = {
        client.name: dict(zip(map(tuple, client.to_global(client.train).tolist()), client.train.tolist(), strict=True))
        for client in candidates
    }
    triples_of_holders, seen = [], {}
    for row, (head, relation, tail) in enumerate(zip(named.heads, named.relations, named.tails, strict=True)):
        place, shown = named.place(row), printable(f"({head}, {relation}, {tail})", 300)
        key = (entities.get(head, -1), relations.get(relation, -1), entities.get(tail, -1))
        # Names that no client knows have ID -1, which no triple has.
        holders = [name for name, triples in holdings.items() if key in triples]
        if not holders:
            whose = f"client {candidates[0].name}" if len(candidates) == 1 else "any client"
            raise DataError(
                f"{place}: {shown} is not in the train split of {whose}; only training triples can be unlearned, so leave it out"
            )
        if len(holders) > 1:
            raise DataError(
                f"{place}: {shown} is held by {', '.join(holders)}; name the requesting client with --client"
            )
        if key in seen:
            raise DataError(f"{place}: {shown} is named already at {seen[key]}")
        seen[key] = place
        triples_of_holders.append((holders[0], holdings[holders[0]][key]))
    return triples_of_holders


def retaining(graph: FederatedGraph, forget: Forget) -> FederatedGraph:
    """Remove the forget sets from the train splits. Vocabularies and local IDs stay.

    Args:
        graph: the federation.
        forget: triples by client.

    Raises:
        DataError: an unknown client, an empty forget set, one with all of a client's triples, or one with a triple that is
            repeated or not in the client's train split.
    """
    unknown = sorted(set(forget) - {client.name for client in graph.clients})
    if unknown:
        names = ", ".join(client.name for client in graph.clients)
        raise DataError(f"{graph.name}: no client is called {', '.join(unknown)}; the clients are {names}")
    clients = tuple(
        replace(client, train=client.train[~forgotten_rows(graph, client, forget[client.name])])
        if client.name in forget
        else client
        for client in graph.clients
    )
    return replace(graph, clients=clients)


def forgotten_rows(graph: FederatedGraph, client: ClientGraph, triples: np.ndarray) -> np.ndarray:
    """Mark the rows of a client's train split that are to be forgotten, all copies of a triple included, bool `[n]`.

    Args:
        triples: forget set of the client, int64 `[k, 3]`, local IDs.

    Raises:
        DataError: as `retaining`.
    """
    if not len(triples):
        raise DataError(f"client {client.name}: the forget set is empty")
    train = list(map(tuple, client.train.tolist()))
    wanted, distinct = list(map(tuple, np.asarray(triples).tolist())), set(train)
    seen = set()
    for triple in wanted:
        if triple not in distinct:
            raise DataError(f"client {client.name}: {_shown(graph, client, triple)} is not in its train split")
        if triple in seen:
            raise DataError(f"client {client.name}: {_shown(graph, client, triple)} is named twice")
        seen.add(triple)
    if seen == distinct:
        raise DataError(
            f"client {client.name}: all of its {len(distinct)} training triples are to be forgotten; remove the client instead"
        )
    return np.fromiter((triple in seen for triple in train), dtype=bool, count=len(train))


def _shown(graph: FederatedGraph, client: ClientGraph, triple: Sequence[int]) -> str:
    head, relation, tail = triple
    if not (
        0 <= head < client.num_entities and 0 <= tail < client.num_entities and 0 <= relation < client.num_relations
    ):
        return str(tuple(triple))
    ids = client.entity_ids
    return (
        f"({graph.entities[ids[head]]}, {graph.relations[client.relation_ids[relation]]}, {graph.entities[ids[tail]]})"
    )
