"""A party's data on disk: a folder with `train.txt`, `valid.txt`, `test.txt`, and its vocabularies, if any.

read_party_data(Path("north/data"), "north")                    # a graph of one client, for `Party`
write_party_folders(generate_consortium(size=2_000), Path("consortium"))    # hospital-1/, ...: for a trial on one machine
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fkgsec.data.formats.folders import read_tsv_folder
from fkgsec.data.graph import SPLITS, ClientGraph, FederatedGraph
from fkgsec.errors import DataError

DIVIDED = ("data", "clients", "partition", "size", "split_seed", "normalise")
"""Fields of a spec that divide data, which do not apply to parties with data of their own."""


def read_party_data(folder: Path, name: str) -> FederatedGraph:
    """Read a client's triples with `fkgsec.data.formats.folders.read_tsv_folder`.

    Args:
        folder: of the party's data. name: of the client.

    Raises:
        DataError: files that cannot be read.
    """
    graph = read_tsv_folder(folder)
    # The party's vocabulary is its own: it knows no names of other clients.
    client = ClientGraph.from_global(name, graph.train, graph.valid, graph.test)
    return FederatedGraph(graph.name, graph.entities, graph.relations, (client,), graph.sensitive, graph.warnings)


def client_graph(federated: FederatedGraph, place: int) -> FederatedGraph:
    """Cut a client's part out of a federation, with its own vocabulary in the federation's order.

    Args:
        place: client index.
    """
    client = federated.clients[place]
    # The order of the vocabulary determines first rows and sums, so keep the federation's for equal bits.
    entities, relations = np.sort(client.entity_ids), np.sort(client.relation_ids)
    part = ClientGraph(
        client.name,
        np.searchsorted(entities, client.entity_ids),
        np.searchsorted(relations, client.relation_ids),
        client.train,
        client.valid,
        client.test,
    )
    names = tuple(federated.entities[number] for number in entities)
    kinds = tuple(federated.relations[number] for number in relations)
    return FederatedGraph(client.name, names, kinds, (part,), federated.sensitive & set(kinds))


def write_party_folders(federated: FederatedGraph, folder: Path) -> list[Path]:
    """Write a folder of data for each client, and return the folders in the clients' order.

    Args:
        federated: all clients. folder: for one subfolder per client.

    Raises:
        DataError: a folder exists, or cannot be written.
    """
    folders = []
    for place, client in enumerate(federated.clients):
        graph, target = client_graph(federated, place), folder / client.name
        names, kinds = graph.entities, graph.relations
        # The vocabularies keep the federation's order, so that a party trains to the same bits as in one process.
        files = {
            "entities.dict": [f"{number}\t{name}" for number, name in enumerate(names)],
            "relations.dict": [f"{number}\t{name}" for number, name in enumerate(kinds)],
        }
        for split in SPLITS:
            triples = graph.clients[0].to_global(getattr(graph.clients[0], split)).tolist()
            files[f"{split}.txt"] = [f"{names[h]}\t{kinds[r]}\t{names[t]}" for h, r, t in triples]
        try:
            target.mkdir(parents=True)
            for file, lines in files.items():
                content = "".join(f"{line}\n" for line in lines)
                (target / file).write_text(content, encoding="utf-8", newline="\n")
        except OSError as error:
            raise DataError(f"{target}: cannot be written ({error.strerror})") from error
        folders.append(target)
    return folders
