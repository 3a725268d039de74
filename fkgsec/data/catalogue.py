"""Published datasets by name: location and origin of their files, download and verification.

The table itself is `catalogue.json`, with path, public address, digest and size per file. An address is pinned to a commit, and
given only if the hosted file equals the listed one byte for byte.
"""

from __future__ import annotations

import difflib
import hashlib
import os
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from fkgsec.errors import DataError

if TYPE_CHECKING:
    from fkgsec.data.graph import FederatedGraph, KnowledgeGraph

# Folder with local datasets, laid out like the paths in the catalogue.
DATA_VARIABLE = "FKGSEC_DATA"

Layout = Literal["tsv-folder", "client-folders", "fede-pickle"]


class DataFile(NamedTuple):
    """File of a dataset: path under the data folder, public address (None: nowhere to download), checksum, size.

    The checksum is the sha256, or `git:` and git's ID of the content if only the repository's listing was available. The size is
    then 0, which is not checked.
    """

    path: str
    address: str | None
    sha256: str
    size_bytes: int


@dataclass(frozen=True)
class Dataset:
    """Dataset of the catalogue. `path` is its folder or file under the data folder."""

    name: str
    path: str
    layout: Layout
    description: str
    licence: str
    citation: str
    files: tuple[DataFile, ...]

    @property
    def size_bytes(self) -> int:
        """Total size of the files."""
        return sum(file.size_bytes for file in self.files)


@cache
def datasets() -> tuple[Dataset, ...]:
    """Return the whole catalogue."""
    table = resources.files("fkgsec.data").joinpath("catalogue.json").read_bytes()
    return msgspec.json.decode(table, type=tuple[Dataset, ...])


def find_dataset(name: str) -> Dataset:
    """Return a dataset by name, in any case.

    Args:
        name: of the dataset.

    Raises:
        DataError: no dataset has this name; the message lists the closest names.

    >>> find_dataset("fb15k-237-r3").path
    'FB15k-237-fedlu/R3'
    """
    by_name = {dataset.name.casefold(): dataset for dataset in datasets()}
    if name.casefold() in by_name:
        return by_name[name.casefold()]
    close = [by_name[match].name for match in difflib.get_close_matches(name.casefold(), by_name, n=3)]
    hint = f"did you mean {' or '.join(close)}? " if close else ""
    names = ", ".join(dataset.name for dataset in datasets())
    raise DataError(f"no dataset or path {name!r}; {hint}known datasets: {names}")


def cache_folder() -> Path:
    """Return the folder of downloads: `$XDG_CACHE_HOME/fkgsec`, else `~/.cache/fkgsec`."""
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "fkgsec"


def locate(name: str, data_dir: Path | str | None = None, progress: bool = True) -> Path:
    """Return the folder or file of a dataset, after checking size and digest of every file.

    It is searched for under `data_dir` (else the folder that `FKGSEC_DATA` names), then in the cache. Files missing in the
    cache are downloaded.

    Args:
        name: of the catalogue, in any case.
        data_dir: data folder, instead of the environment variable.
        progress: show a progress bar on standard error while downloading.

    Raises:
        DataError: the name is unknown; the data folder does not exist or has only part of the dataset; a file differs from
            the catalogue; or a download failed.
    """
    dataset = find_dataset(name)
    own_folder = _own_folder(data_dir)
    # A local copy takes precedence, but must equal the published files.
    if own_folder and (own_folder / dataset.path).exists():
        for file in dataset.files:
            _check_file(own_folder / file.path, file, dataset)
        return own_folder / dataset.path
    cached = cache_folder()
    missing = [file for file in dataset.files if not _is_cached(cached / file.path, file, dataset)]
    unreachable = [file.path for file in missing if file.address is None]
    if unreachable:
        raise DataError(
            f"{dataset.name} cannot be downloaded, no stable public address is known for {unreachable[0]}"
            f"{f' and {len(unreachable) - 1} more' if len(unreachable) > 1 else ''}; "
            f"place its files under the folder that {DATA_VARIABLE} names, as {dataset.path}"
        )
    if missing:
        wanted = [(str(file.address), cached / file.path, file.sha256, file.size_bytes) for file in missing]
        advice = f"or place the files of {dataset.name} under the folder that {DATA_VARIABLE} names, as {dataset.path}"
        from fkgsec.data.download import download_files  # requests is optional on machines that have the files

        download_files(wanted, title=dataset.name, advice=advice, progress=progress)
    return cached / dataset.path


def load_dataset(
    name_or_path: str | Path,
    *,
    data_dir: Path | str | None = None,
    progress: bool = True,
    columns: tuple[str, str, str] | None = None,
) -> KnowledgeGraph | FederatedGraph:
    """Load a dataset by name, or the data at a path.

    Names of the catalogue take precedence: `./NAME` or a `Path` refers to a folder of the same name.

    Args:
        name_or_path: of the catalogue, in any case; or a path.
        data_dir: data folder, instead of the environment variable.
        progress: show a progress bar on standard error while downloading.
        columns: of a table at a path, see `read_path`.

    Raises:
        DataError: neither a known name (the closest ones are listed) nor a path; or as `locate` and the readers raise.
    """
    from fkgsec.data.formats.folders import read_client_folders, read_tsv_folder
    from fkgsec.data.formats.pickles import read_fede_pickle
    from fkgsec.data.formats.readers import read_path

    if isinstance(name_or_path, Path):
        return read_path(name_or_path, columns)
    names = {dataset.name.casefold() for dataset in datasets()}
    # Names win over folders of the same name, so that a stray folder cannot change a named run.
    if name_or_path.casefold() not in names:
        looks_like_path = Path(name_or_path).exists() or any(sign in name_or_path for sign in (os.sep, "/"))
        if name_or_path and looks_like_path:
            return read_path(Path(name_or_path).expanduser(), columns)
    dataset = find_dataset(name_or_path)
    if columns is not None:
        raise DataError(f"{dataset.name}: is of the catalogue and has no columns to name; leave them out")
    place = locate(dataset.name, data_dir, progress)
    readers = {"tsv-folder": read_tsv_folder, "client-folders": read_client_folders, "fede-pickle": read_fede_pickle}
    graph = readers[dataset.layout](place)
    return replace(graph, name=dataset.name, warnings=(*graph.warnings, *shadowed(str(name_or_path), place)))


def shadowed(name: str, place: Path | None = None) -> tuple[str, ...]:
    """Return a warning if a folder of the same name exists here but is not read.

    Args:
        name: of the dataset.
        place: path that is read; None: built-in data.
    """
    here = Path(name)
    if not here.is_dir() or (place is not None and here.resolve() in (place.resolve(), *place.resolve().parents)):
        return ()
    what = "the embedded data" if place is None else "of the catalogue"
    return (f"{name} is {what}, not the folder of that name here; give --data ./{name} for the folder",)


def _own_folder(data_dir: Path | str | None) -> Path | None:
    named = data_dir if data_dir is not None else os.environ.get(DATA_VARIABLE) or None
    if named is None:
        return None
    folder = Path(named).expanduser()
    if not folder.is_dir():
        source = "the data folder" if data_dir is not None else f"{DATA_VARIABLE} names a folder that"
        raise DataError(f"{folder}: {source} is not there")
    return folder


def _check_file(path: Path, file: DataFile, dataset: Dataset) -> None:
    if not path.is_file():
        raise DataError(f"{path}: missing, {dataset.name} needs it")
    found_bytes = path.stat().st_size
    if file.size_bytes and found_bytes != file.size_bytes:
        actual, expected = f"{found_bytes:,} bytes", f"{file.size_bytes:,} bytes"
    else:
        kind, _, digest = file.sha256.rpartition(":")
        actual, expected = f"{kind or 'sha256'} {_digest(path, kind)}", f"{kind or 'sha256'} {digest}"
    if actual != expected:
        raise DataError(
            f"{path}: not the file of {dataset.name}, expected {expected}, found {actual}; "
            "to use a changed copy, give its path instead of the dataset's name"
        )


def _digest(path: Path, kind: str) -> str:
    """Return the sha256 of a file; of kind "git" the ID that git gives its content, a sha1 of its length and itself."""
    with path.open("rb") as content:
        if not kind:
            return hashlib.file_digest(content, "sha256").hexdigest()
        # git's object ID: a sha1 over a header with the length, and the content.
        digest = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
        while chunk := content.read(1 << 20):
            digest.update(chunk)
        return digest.hexdigest()


def _is_cached(path: Path, file: DataFile, dataset: Dataset) -> bool:
    """Return whether the cache has the file. A damaged copy counts as missing if it can be downloaded again; otherwise
    it raises.
    """
    if not path.exists():
        return False
    try:
        _check_file(path, file, dataset)
    except DataError:
        if file.address is None:
            raise
        return False
    return True


def tu_files(folder: Path) -> tuple[Path, str] | None:
    """Return folder and name prefix of a TU folder's files; None if there are none, or several data sets.

    Args:
        folder: the folder, whose subfolder `raw` is searched, too.
    """
    for place in (folder, folder / "raw"):
        files = sorted(place.glob("*_A.txt")) if place.is_dir() else []
        if files:
            return (place, files[0].name.removesuffix("_A.txt")) if len(files) == 1 else None
    return None
