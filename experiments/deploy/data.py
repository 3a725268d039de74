"""A party's own data on disk: a folder with `train.txt`, `valid.txt`, `test.txt`, and its own vocabularies where it has them.

read_party_data(Path("north/data"), "north")                    # a graph of one client, which `Party` takes
write_party_folders(generate_consortium(size=2_000), Path("consortium"))    # hospital-1/, ...: for a trial on one machine
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fkgsec.data.formats.folders import read_tsv_folder
from fkgsec.data.graph import SPLITS, ClientGraph, FederatedGraph
from fkgsec.errors import DataError

DIVIDED = ("data", "clients", "partition", "size", "split_seed", "normalise")
"""Fields of a spec that say how data are divided, which parties with data of their own have no use for."""


def read_party_data(folder: Path, name: str) -> FederatedGraph:
    """The triples of one client, as `fkgsec.data.formats.folders.read_tsv_folder` reads them. Raises `DataError`."""
    graph = read_tsv_folder(folder)
    client = ClientGraph.from_global(name, graph.train, graph.valid, graph.test)
    return FederatedGraph(graph.name, graph.entities, graph.relations, (client,), graph.sensitive, graph.warnings)


def alone(federated: FederatedGraph, place: int) -> FederatedGraph:
    """One client's part of a federation, with the vocabulary that it has itself, in the order of the federation's."""
    client = federated.clients[place]
    entities, relations = np.sort(client.entity_ids), np.sort(client.relation_ids)
    own = ClientGraph(
        client.name,
        np.searchsorted(entities, client.entity_ids),
        np.searchsorted(relations, client.relation_ids),
        client.train,
        client.valid,
        client.test,
    )
    names = tuple(federated.entities[number] for number in entities)
    kinds = tuple(federated.relations[number] for number in relations)
    return FederatedGraph(client.name, names, kinds, (own,), federated.sensitive & set(kinds))


def write_party_folders(federated: FederatedGraph, folder: Path) -> list[Path]:
    """A folder of data for each client, as if it had been its own from the start; returns them in the clients' order.

    The vocabularies keep the order that they have in the federation, so that a party trains to the bits of the laboratory.

    Raises `DataError` where one is there already, or cannot be written.
    """
    folders = []
    for place, client in enumerate(federated.clients):
        own, target = alone(federated, place), folder / client.name
        try:
            target.mkdir(parents=True)
            for file, names in (("entities.dict", own.entities), ("relations.dict", own.relations)):
                _write(target / file, [f"{number}\t{name}" for number, name in enumerate(names)])
            for split in SPLITS:
                triples = own.clients[0].to_global(getattr(own.clients[0], split))
                _write(
                    target / f"{split}.txt",
                    [f"{own.entities[h]}\t{own.relations[r]}\t{own.entities[t]}" for h, r, t in triples.tolist()],
                )
        except OSError as error:
            raise DataError(f"{target}: cannot be written ({error.strerror})") from error
        folders.append(target)
    return folders


def _write(path: Path, lines: list[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")
