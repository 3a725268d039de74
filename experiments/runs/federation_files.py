"""Federations as folders of triples, written under the rule of `fkgsec.experiments.runs.writing`.

written = write_federation(graph, Path("consortium"), overwrite=False)   # False: the same files exist already
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from fkgsec.data.formats.folders import read_client_folders, write_client_folders
from fkgsec.data.graph import SPLITS, FederatedGraph
from fkgsec.errors import DataError, RunError
from fkgsec.experiments.runs.writing import must_write, put_in_place

_FILES = {"entities.dict", "relations.dict", *(f"{split}.txt" for split in SPLITS)}


def write_federation(graph: FederatedGraph, out: Path, *, overwrite: bool) -> bool:
    """Write a folder with train.txt, valid.txt and test.txt for each client.

    Args:
        graph: the clients' data.
        out: folder to write.
        overwrite: replace another federation that this function wrote.

    Returns:
        False if the same federation exists there already.

    Raises:
        RunError: the folder contains something else.
        DataError: it cannot be written, or a name does not fit the layout.
    """
    if not must_write(out, same=lambda: _has_data(out, graph), ours=lambda: _is_federation(out), overwrite=overwrite):
        return False
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        # Write next to the target and rename, so that a killed process leaves no half federation.
        with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as scratch:
            write_client_folders(graph, Path(scratch) / "whole")
            put_in_place(Path(scratch) / "whole", out)
    except OSError as error:
        raise RunError(f"{out}: cannot be written ({error.strerror})") from error
    return True


def _has_data(folder: Path, graph: FederatedGraph) -> bool:
    """Return True if a folder has these clients with these triples under these ids."""
    try:
        read = read_client_folders(folder)
    except DataError:
        return False
    # IDs matter as well as triples: other IDs give other random draws.
    if (read.entities, read.relations) != (graph.entities, graph.relations):
        return False
    clients = {client.name: client for client in read.clients}
    return set(clients) == {client.name for client in graph.clients} and all(
        np.array_equal(
            clients[client.name].to_global(getattr(clients[client.name], split)),
            client.to_global(getattr(client, split)),
        )
        for client in graph.clients
        for split in SPLITS
    )


def _is_federation(folder: Path) -> bool:
    """Return True if a folder has the files of `write_federation` and no others."""
    if not folder.is_dir() or not (folder / "entities.dict").is_file():
        return False
    return all(path.is_dir() or path.name in _FILES for path in folder.rglob("*"))
