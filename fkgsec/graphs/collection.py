"""Data sets of the papers by name: one of the TU collection, a group of them with one client each, or generated ones.

    load_graphs("MUTAG")                     # GraphSet, from FKGSEC_DATA/TUDataset, else the cache, else downloaded
    load_federation("CHEM", seed=0)          # one client for each of its seven sets
    load_federation("MUTAG,BZR,COX2", seed=0)
    load_federation("NCI1", clients=10, partition="chunks", seed=0)
    load_federation("AIDS,NCI1", clients=6, seed=0)          # each over three
    load_federation("motifs", seed=0)        # generated; needs no files

A group needs all of its sets. If one is unavailable, the error names it and lists the available ones.
"""

from __future__ import annotations

import difflib
import io
import os
import shutil
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from fkgsec.data.catalogue import DATA_VARIABLE, cache_folder, tu_files
from fkgsec.errors import DataError, SpecError

if TYPE_CHECKING:
    from fkgsec.graphs.sets import FederatedGraphs, GraphSet

COLLECTION = "TUDataset"
ADDRESS = "https://www.chrsmrrs.com/graphkerneldatasets"  # where torch_geometric downloads them from
TIMEOUT_S = 60.0
LARGEST_BYTES = 2_000_000_000  # limit of one unpacked file, above every set of the collection
_PARTS = ("A", "graph_indicator", "graph_labels", "node_labels", "node_attributes")

_CHEM = ("MUTAG", "BZR", "COX2", "DHFR", "PTC_MR", "AIDS", "NCI1")
_BIO = ("ENZYMES", "DD", "PROTEINS")
_SN = ("COLLAB", "IMDB-BINARY", "IMDB-MULTI")
_CV = ("Letter-low", "Letter-high", "Letter-med")
GROUPS: Mapping[str, tuple[str, ...]] = {
    "CHEM": _CHEM,
    "BIO": _BIO,
    "SN": _SN,
    "CV": _CV,
    "SN_CV": _SN + _CV,
    "CHEM_BIO": _CHEM + _BIO,
    "CHEM_BIO_SN": _CHEM + _BIO + _SN,
    "BIO_SN_CV": _BIO + _SN + _CV,
    "ALL": _CHEM + _BIO + _SN + _CV,
}
"""Source: cefgl.txt 5.1."""
KNOWN = tuple(dict.fromkeys((*GROUPS["ALL"], "DHFR-cleaned")))


def load_federation(
    name: str,
    *,
    seed: int,
    clients: int | None = None,
    partition: str | None = None,
    size: int | None = None,
    clean: bool = False,
    data_dir: Path | str | None = None,
) -> FederatedGraphs:
    """Load the clients of a named setting.

    Args:
        name: a group, several sets separated by commas, one set, a TU folder, or `motifs`.
        seed: of splits, divisions and the generator.
        clients: total number of clients; each set is divided over as many. Of generated data: number of clients.
        partition: how a set is divided, a name of `GRAPH_PARTITIONS`; None: "random".
        size: number of graphs of generated data.
        clean: keep isomorphic graphs on one side of the split.
        data_dir: data folder, instead of the environment variable.

    Raises:
        DataError: a set is unavailable.
        SpecError: an option does not apply.
    """
    from fkgsec.graphs.generate import MOTIFS, generate_motifs
    from fkgsec.graphs.split import GRAPH_PARTITIONS, by_dataset, side_by_side

    if partition is not None and partition not in GRAPH_PARTITIONS:
        raise SpecError(f"partition is {partition!r}, allowed for graphs: {', '.join(GRAPH_PARTITIONS)}")
    if name.casefold() == MOTIFS:
        if partition is not None:
            raise SpecError("partition does not apply to generated graphs, which come with their clients")
        sets = generate_motifs(seed, **_given(clients=clients, size=size))
        return by_dataset(sets, seed, clean=clean, name=MOTIFS)
    if size is not None:
        raise SpecError(f"size applies to generated graphs; {name} has its own")
    names = sets_of(name)
    # Several sets: one client each, unless the user divides them.
    if len(names) > 1 and (clients, partition) == (None, None):
        return by_dataset(_load_all(name, names, data_dir), seed, clean=clean, name=name)
    if clients is None:
        raise SpecError(f"clients: over how many is {name} to be divided? Several sets (A,B) have a client each")
    divide = GRAPH_PARTITIONS[partition or "random"]
    if len(names) == 1:
        return divide(load_graphs(names[0], data_dir), clients, seed, clean=clean)
    # Equal numbers of clients keep every set's weight the same.
    if clients % len(names):
        raise SpecError(f"clients is {clients}, allowed for the {len(names)} sets of {name}: as many for each of them")
    sets = _load_all(name, names, data_dir)
    return side_by_side([divide(graphs, clients // len(names), seed, clean=clean) for graphs in sets])


def _given(**options: int | None) -> dict[str, int]:
    return {name: value for name, value in options.items() if value is not None}


def sets_of(name: str) -> tuple[str, ...]:
    """Return the data sets that a name stands for, in order.

    Args:
        name: of a group, or of sets separated by commas.

    >>> sets_of("SN_CV")[:2]
    ('COLLAB', 'IMDB-BINARY')
    """
    groups = {group.casefold(): sets for group, sets in GROUPS.items()}
    if name.casefold() in groups:
        return groups[name.casefold()]
    names = tuple(part.strip() for part in name.split(","))
    if len(set(names)) < len(names) or "" in names:
        raise SpecError(f"data: {name!r} names a data set twice, or an empty one")
    return names


def load_graphs(name: str, data_dir: Path | str | None = None) -> GraphSet:
    """Load a data set by name or folder.

    It is searched for under `data_dir` (else the folder that `FKGSEC_DATA` names), then in the cache; otherwise it is
    downloaded.

    Args:
        name: of the set, or a path.
        data_dir: data folder.

    Raises:
        DataError: the set is unavailable or damaged, or cannot be downloaded.
    """
    from fkgsec.graphs.tu import read_tu_folder

    folder = _folder_of(name, data_dir)
    graphs = read_tu_folder(folder)
    return graphs if _is_path(name) else replace(graphs, name=folder.name)


def _is_path(name: str) -> bool:
    return os.sep in name or name.startswith(".")


def _folder_of(name: str, data_dir: Path | str | None) -> Path:
    """Return the folder of a set, downloading it if needed. Raises `DataError`."""
    from fkgsec.graphs.generate import MOTIFS

    if _is_path(name):
        return Path(name).expanduser()
    # Accept names in any case; file systems may not.
    folders = {folder.casefold(): folder for folder in KNOWN}
    name = folders.get(name.casefold(), name)
    place = data_dir if data_dir is not None else os.environ.get(DATA_VARIABLE)
    for root in (Path(place).expanduser() if place else None, cache_folder()):
        if root is not None and tu_files(root / COLLECTION / name):
            return root / COLLECTION / name
    if name not in folders.values():
        close = difflib.get_close_matches(name, (*KNOWN, *GROUPS, MOTIFS), n=3)
        hint = f"did you mean {' or '.join(close)}? " if close else ""
        raise DataError(f"no graph data set or group {name!r}; {hint}known: {', '.join((*KNOWN, *GROUPS, MOTIFS))}")
    _download(name, cache_folder() / COLLECTION / name)
    return cache_folder() / COLLECTION / name


def _load_all(name: str, names: Sequence[str], data_dir: Path | str | None) -> list[GraphSet]:
    """Load every set of a group. Raises `DataError` that names all unavailable sets, before any set is read."""
    missing = {}
    for dataset in names:
        try:
            _folder_of(dataset, data_dir)
        except DataError as error:
            missing[dataset] = str(error)
    if not missing:
        return [load_graphs(dataset, data_dir) for dataset in names]
    rest = ",".join(dataset for dataset in names if dataset not in missing)
    advice = f"; without: --data {rest}" if rest.count(",") else ""
    raise DataError(f"{name}: {', '.join(missing)} not at hand ({next(iter(missing.values()))}){advice}")


def _download(name: str, folder: Path) -> None:
    """Download a set's archive and unpack the needed files, atomically."""
    import requests

    from fkgsec.graphs.tu import read_tu_folder

    address = f"{ADDRESS}/{name}.zip"
    advice = f"place its files under the folder that {DATA_VARIABLE} names, as {COLLECTION}/{name}"
    if name == "DHFR-cleaned":
        raise DataError(f"{name} has no address to download it from; {advice}")
    part = folder.with_name(folder.name + ".part")
    try:
        response = requests.get(address, timeout=TIMEOUT_S)
        response.raise_for_status()
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        _unpack(io.BytesIO(response.content), name, part)
        # A damaged download must not become the cached copy.
        read_tu_folder(part)
        part.replace(folder)
    except requests.RequestException as error:
        reason = "no connection" if error.response is None else f"HTTP status {error.response.status_code}"
        raise DataError(f"cannot download {address} ({reason}); try again later, or {advice}") from error
    except zipfile.BadZipFile as error:
        raise DataError(f"cannot download {address} (not a zip archive); try again later, or {advice}") from error
    except OSError as error:
        raise DataError(f"{folder}: cannot be written ({error.strerror or error})") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _unpack(content: io.BytesIO, name: str, folder: Path) -> None:
    """Unpack the needed files under fixed names, so that an archive can neither add files nor choose paths."""
    with zipfile.ZipFile(content) as archive:
        # Check sizes before unpacking: an archive may expand a thousandfold.
        sizes = {entry.filename: entry.file_size for entry in archive.infolist()}
        for kind in _PARTS:
            member = f"{name}/{name}_{kind}.txt"
            if sizes.get(member, 0) > LARGEST_BYTES:
                raise DataError(f"{name}.zip: {member} would have {sizes[member]:,} bytes")
            if member in sizes:
                with archive.open(member) as packed, (folder / Path(member).name).open("wb") as file:
                    shutil.copyfileobj(packed, file)
