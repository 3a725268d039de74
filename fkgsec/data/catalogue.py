"""The published datasets by name: where their files lie, where they come from, and how one is fetched and checked.

The table itself is `catalogue.json`, one line a file: path, public address, digest, size. An address is pinned to a
commit and given only where the hosted file is byte for byte the listed one.
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

# The folder with datasets of one's own keeping, laid out as the paths in the catalogue say.
DATA_VARIABLE = "FKGSEC_DATA"

Layout = Literal["tsv-folder", "client-folders", "fede-pickle"]


class DataFile(NamedTuple):
    """File of a dataset: path under the data folder, public address (None: nowhere to download), checksum, size.

    The checksum is the sha256, or `git:` and git's own id of the content where a file's repository was seen and the file was not;
    its size is 0 then, which is checked for no file.
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
        return sum(file.size_bytes for file in self.files)


@cache
def datasets() -> tuple[Dataset, ...]:
    """The whole catalogue."""
    table = resources.files("fkgsec.data").joinpath("catalogue.json").read_bytes()
    return msgspec.json.decode(table, type=tuple[Dataset, ...])


def find_dataset(name: str) -> Dataset:
    """The dataset called `name`, in any case. Raises `DataError` with the closest names.

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
    """Return where downloads are kept: `$XDG_CACHE_HOME/fkgsec`, else `~/.cache/fkgsec`."""
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "fkgsec"


def locate(name: str, data_dir: Path | str | None = None, progress: bool = True) -> Path:
    """The folder or file of the dataset called `name`, every file of it checked (size and digest).

    It is looked for under `data_dir` (else the folder that `FKGSEC_DATA` names), then in the cache; what the cache
    lacks is downloaded into it.

    Args:
        name: of the catalogue, in any case.
        data_dir: a data folder, in place of the environment variable.
        progress: show a progress bar on standard error while downloading.

    Raises:
        DataError: an unknown name, a data folder that is not there or has the dataset in part, a file that differs from
            the catalogue, or a download that failed.
    """
    dataset = find_dataset(name)
    own_folder = _own_folder(data_dir)
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
        from fkgsec.data.download import download_files  # loads requests, which a machine with the files need not have

        download_files(wanted, title=dataset.name, advice=advice, progress=progress)
    return cached / dataset.path


def load_dataset(
    name_or_path: str | Path,
    *,
    data_dir: Path | str | None = None,
    progress: bool = True,
    columns: tuple[str, str, str] | None = None,
) -> KnowledgeGraph | FederatedGraph:
    """The dataset of that name, or what lies at that path.

    A name of the catalogue comes first: a folder of the same name is meant by `./NAME` or a `Path`.

    Args:
        columns: of a table at a path, see `read_path`.

    Raises:
        DataError: neither a known name (the closest ones are given) nor a path, or what `locate` and the readers raise.
    """
    from fkgsec.data.formats.folders import read_client_folders, read_tsv_folder
    from fkgsec.data.formats.pickles import read_fede_pickle
    from fkgsec.data.formats.readers import read_path

    if isinstance(name_or_path, Path):
        return read_path(name_or_path, columns)
    names = {dataset.name.casefold() for dataset in datasets()}
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
    """A warning where a folder of the same name lies here, which is not what is read.

    Args:
        place: what is read; None: data that come with fkgsec.
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
    """Raises `DataError` unless `path` is the listed file."""
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
    """The sha256 of a file; of kind "git" the id that git gives its content, a sha1 of its length and itself."""
    with path.open("rb") as content:
        if not kind:
            return hashlib.file_digest(content, "sha256").hexdigest()
        digest = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
        while chunk := content.read(1 << 20):
            digest.update(chunk)
        return digest.hexdigest()


def _is_cached(path: Path, file: DataFile, dataset: Dataset) -> bool:
    """Return whether the cache has the file. A damaged copy counts as missing if it can be downloaded anew, else it raises."""
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
    """Return the place and name prefix of a TU folder's files; None if there are none, or several data sets."""
    for place in (folder, folder / "raw"):
        files = sorted(place.glob("*_A.txt")) if place.is_dir() else []
        if files:
            return (place, files[0].name.removesuffix("_A.txt")) if len(files) == 1 else None
    return None
