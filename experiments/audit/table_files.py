"""Embedding tables as files: written for other programs, and read back from fkgsec, PyKEEN, LibKGE and DGL-KE.

A folder with a subfolder for each client, or one safetensors file:

| content                    | in a client's folder                                    | in the file                    |
|----------------------------|---------------------------------------------------------|--------------------------------|
| its own tables             | `entities.npy`, `relations.npy`                         | `client/entities`, ...         |
| its upload, if different   | `uploaded_entities.npy`, `uploaded_relations.npy`       | `client/uploaded_entities`, ...|
| names of the rows          | `entities.dict`, ..., `id<TAB>name` a line, for each    | metadata `names`, a JSON map   |
| the run of the tables      | `manifest.json`, next to the clients' folders           | metadata `manifest`            |

Tables trained elsewhere lie in the clients' folders as their trainer wrote them (`TRAINERS`), the names next to them or one
folder above, without a manifest. Nothing is executed on load: numpy reads without pickles, torch weights only.

Rows are real numbers in the layout of `fkgsec.kge.models`, or complex numbers; rows in other layouts are made complex.
Source of the layouts: LibKGE's kge/model/complex.py and rotate.py, DGL-KE's docs/source/format_out.rst and score_fun.py,
PyKEEN's `save_to_directory` and its embeddings of complex numbers.
"""

from __future__ import annotations

import gzip
import hashlib
import pickle
import tempfile
import warnings
import zipfile
import zlib
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from fkgsec.data.formats.folders import can_name_a_file, client_folders, read_id, read_text
from fkgsec.errors import DataError, FkgsecError, RunError, SpecError
from fkgsec.experiments.runs.spec import Spec
from fkgsec.experiments.runs.stored import decode_stored, encode_stored
from fkgsec.experiments.runs.writing import must_write, put_in_place
from fkgsec.federation.checkpoint import save_tensors
from fkgsec.federation.recipes import Table
from fkgsec.kge.models import ModelName
from fkgsec.text import printable, shown

SCHEMA = "fkgsec/tables/1"
MANIFEST_FILE = "manifest.json"
SINGLE_FILE = ".safetensors"
TABLES: tuple[Table, ...] = ("entities", "relations")
UPLOADED: dict[Table, str] = {table: f"uploaded_{table}" for table in TABLES}
KEYS = (*TABLES, *UPLOADED.values())
# torch has no wider numbers.
_WIDE = {np.dtype(np.longdouble): np.float64, np.dtype(np.clongdouble): np.complex128}
# Largest growth of an unpacked file; names of entities pack to a fifth or a tenth.
MOST_PACKED = 100
TRAINERS = (
    "entities.npy and relations.npy",
    "DGL-KE's *_entity.npy and *_relation.npy",
    "one state dict of PyKEEN or LibKGE (.pt, .pth, .safetensors)",
)
_DGL_KE: dict[Table, str] = {"entities": "*_entity.npy", "relations": "*_relation.npy"}
_PYKEEN: dict[Table, str] = {
    "entities": "entity_representations.0._embeddings.weight",
    "relations": "relation_representations.0._embeddings.weight",
}
_LIBKGE: dict[Table, str] = {
    "entities": "_entity_embedder._embeddings.weight",
    "relations": "_relation_embedder._embeddings.weight",
}
# Written by fkgsec, FedE and DGL-KE; by DGL-KE; by LibKGE; by PyKEEN.
_NAME_FILES: dict[str, tuple[str, ...]] = {
    "entities": ("entities.dict", "entities.tsv", "entity_ids.del", "entity_to_id.tsv.gz"),
    "relations": ("relations.dict", "relations.tsv", "relation_ids.del", "relation_to_id.tsv.gz"),
}
_EXPORT = "save the weights alone where it was trained: torch.save(model.state_dict(), 'model.pt')"


class NamedRows(NamedTuple):
    """Rows of a table, float32 or complex64 `[n, width]`, and their names `[n]`."""

    names: list[str]
    rows: Tensor


# By client, then by one of `KEYS`.
Tables = dict[str, dict[str, NamedRows]]


class Manifest(msgspec.Struct, frozen=True):
    """Description of the run that exported tables.

    Attributes:
        data_hash: hash of the clients' data.
        round: round of the tables.
        crossed: for each client, the tables that the server had received by then.
    """

    schema: str
    spec: Spec
    data_hash: str
    round: int
    crossed: dict[str, list[Table]]


def hash_tables(tables: Tables) -> str:
    """Return sha256 over clients, names and rows. The same tables give the same hash, whatever files they came from."""
    digest = hashlib.sha256()
    for client in sorted(tables):
        for key, (names, rows) in sorted(tables[client].items()):
            # Shape and type belong to the content: the same bytes may be another table.
            digest.update(msgspec.json.encode([client, key, list(rows.shape), str(rows.dtype), names]))
            digest.update(rows.contiguous().numpy().tobytes())
    return digest.hexdigest()


def write_tables(manifest: Manifest, tables: Tables, out: Path, *, overwrite: bool = False) -> bool:
    """Write a folder, or one file if `out` ends in .safetensors; complete or not at all.

    Args:
        manifest: description of the run.
        tables: rows by client and name.
        out: folder or file to write.
        overwrite: replace other exported tables.

    Returns:
        False if the same tables exist there already.

    Raises:
        RunError: something else exists there, it cannot be written, or a name does not fit the folder's layout.
    """
    single = out.suffix == SINGLE_FILE
    if not single:
        hint = f"write one file, --out NAME{SINGLE_FILE}"
        for client, of_client in tables.items():
            if not can_name_a_file(client):
                raise RunError(f"{out}: client name {client!r} cannot be a folder's name; {hint}")
            for name in (name for table in of_client.values() for name in table.names):
                if not name.strip() or any(letter in name for letter in "\t\n\r\0"):
                    raise RunError(f"{out}: name {name!r} does not fit in a tab-separated file; {hint}")

    def _same() -> bool:
        try:
            if read_manifest(out) != manifest:
                return False
            return hash_tables(read_tables(out, manifest.spec.model)) == hash_tables(tables)
        except FkgsecError:
            return False

    def _exported() -> bool:
        """Return True if `write_tables` wrote everything at `out`."""
        try:
            if read_manifest(out) is None:
                return False
        except RunError:
            return False
        # Only files of this layout may be replaced; a user's own file keeps the folder.
        names = {f"{key}{suffix}" for key in KEYS for suffix in (".npy", ".dict")} | {MANIFEST_FILE}
        return not out.is_dir() or all(path.is_dir() or path.name in names for path in out.rglob("*"))

    if not must_write(out, same=_same, ours=_exported, overwrite=overwrite):
        return False
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as scratch:
            whole = Path(scratch) / "out"
            (_write_file if single else _write_folder)(manifest, tables, whole)
            put_in_place(whole, out)
    except (OSError, SafetensorError) as error:
        raise RunError(f"{out}: cannot be written ({error})") from error
    return True


def _write_file(manifest: Manifest, tables: Tables, path: Path) -> None:
    flat = {f"{client}/{key}": table for client, of_client in tables.items() for key, table in of_client.items()}
    names = msgspec.json.encode({key: table.names for key, table in flat.items()}).decode()
    metadata = {"manifest": encode_stored(manifest).decode(), "names": names}
    save_tensors(path, {key: table.rows.contiguous() for key, table in flat.items()}, metadata)


def _write_folder(manifest: Manifest, tables: Tables, folder: Path) -> None:
    folder.mkdir()
    (folder / MANIFEST_FILE).write_bytes(encode_stored(manifest))
    for client, of_client in tables.items():
        (folder / client).mkdir()
        for key, table in of_client.items():
            np.save(folder / client / f"{key}.npy", table.rows.numpy(), allow_pickle=False)
            lines = "".join(f"{row}\t{name}\n" for row, name in enumerate(table.names))
            (folder / client / f"{key}.dict").write_text(lines, encoding="utf-8", newline="\n")


def read_manifest(path: Path) -> Manifest | None:
    """Read the description of exported tables; None if they were trained elsewhere.

    Args:
        path: folder or file of the tables.

    Raises:
        RunError: the manifest is damaged.
    """
    file = path / MANIFEST_FILE if path.is_dir() else path
    try:
        if not path.is_dir():
            with safe_open(path, framework="pt") as handle:
                content = (handle.metadata() or {}).get("manifest")
        else:
            content = file.read_bytes() if file.exists() else None
        manifest = None if content is None else decode_stored(content, Manifest)
    except (OSError, SafetensorError) as error:
        raise RunError(f"{path}: neither a folder of tables nor a safetensors file ({error})") from error
    except (msgspec.MsgspecError, UnicodeDecodeError, SpecError) as error:
        raise RunError(f"{file}: not a manifest of schema {SCHEMA} ({error})") from error
    if manifest is not None and manifest.schema != SCHEMA:
        raise RunError(f"{file}: schema {manifest.schema}; this version reads {SCHEMA}")
    return manifest


def read_tables(path: Path, model: ModelName) -> Tables:
    """Read the tables of every client.

    Args:
        path: a folder or a .safetensors file, see the module.
        model: the model that was trained, which determines the complex rows of PyKEEN and LibKGE.

    Raises:
        RunError: no layout fits, a file is damaged, a value is not finite, or rows have no names.
        DataError: the folder does not exist.
    """
    if path.is_dir():
        return {folder.name: _read_client(folder, model) for folder in sorted(client_folders(path))}
    tables: Tables = {}
    try:
        with safe_open(path, framework="pt") as handle:
            names = msgspec.json.decode((handle.metadata() or {})["names"], type=dict[str, list[str]])
            for place in handle.keys():  # noqa: SIM118 (not a dict)
                client, _, key = place.rpartition("/")
                if key not in KEYS or not client:
                    raise RunError(f"{path}: tensor {place!r} must be CLIENT/KEY, KEY one of {', '.join(KEYS)}")
                rows = _checked(handle.get_tensor(place), f"{path}: {place}")
                tables.setdefault(client, {})[key] = _named(names.get(place, []), rows, f"{path}: {place}")
    except KeyError as error:
        raise RunError(
            f"{path}: no metadata {error.args[0]!r} (a JSON map of each tensor to its rows' names)"
        ) from error
    except (OSError, SafetensorError, msgspec.MsgspecError, RecursionError) as error:
        raise RunError(f"{path}: cannot be read ({_reason(error)})") from error
    return tables


def _read_client(folder: Path, model: ModelName) -> dict[str, NamedRows]:
    rows: dict[str, Tensor] = {}
    arrays: list[tuple[str, Path]] = [(key, folder / f"{key}.npy") for key in KEYS if (folder / f"{key}.npy").is_file()]
    arrays += [(table, path) for table, pattern in _DGL_KE.items() for path in sorted(folder.glob(pattern))]
    states = sorted(path for path in folder.iterdir() if path.suffix in (".pt", ".pth", SINGLE_FILE))
    # Two trainers' files in one folder: no rule could say which table is meant.
    if len(states) > 1 or (states and arrays) or len({key for key, _ in arrays}) < len(arrays):
        names = ", ".join(path.name for path in (*(path for _, path in arrays), *states))
        raise RunError(f"{folder}: found {names}; keep only one table of each kind")
    if states:
        rows = _read_state(states[0], model)
    elif arrays:
        rows = {key: _read_npy(path) for key, path in arrays}
    else:
        pickles = sorted(path.name for path in folder.glob("*.pkl"))
        why = f"; {pickles[0]} is a pickle, which could execute code: {_EXPORT}" if pickles else ""
        raise RunError(f"{folder}: no tables (expected {'; or '.join(TRAINERS)}){why}")
    named: dict[str, NamedRows] = {}
    for key, tensor in rows.items():
        files = _NAME_FILES.get(key, (f"{key}.dict",))
        places = (folder, folder / "training_triples", folder.parent, folder.parent / "training_triples")
        file = next((place / name for place in places for name in files if (place / name).is_file()), None)
        if file is None:
            raise RunError(
                f"{folder}: no file names the rows of {key} (expected {', '.join(files)}, in this folder or the one above)"
            )
        named[key] = _named(read_names(file), tensor, f"{folder}: {key}, {file.name}")
    return named


def _read_npy(path: Path) -> Tensor:
    try:
        with path.open("rb") as file:
            if file.read(len(np.lib.format.MAGIC_PREFIX)) != np.lib.format.MAGIC_PREFIX:
                # np.load would open an archive, or a pickle.
                raise ValueError("not a file of numpy")
        # Map the file, so that a header with too large a shape fails before memory is allocated.
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # numpy's parser raises many types on a damaged header
        raise RunError(f"{path}: not a readable array ({_reason(error)})") from error
    if array.dtype.kind not in "fc":
        raise RunError(f"{path}: expected an array of floats, found {array.dtype}")
    native = array.dtype.newbyteorder("=")
    return _checked(torch.from_numpy(array.astype(_WIDE.get(native, native))), str(path))


def _read_state(path: Path, model: ModelName) -> dict[str, Tensor]:
    """Return the tables of a state dict of PyKEEN or LibKGE, or of a safetensors file with the keys `entities` and
    `relations`.
    """
    try:
        if path.suffix == SINGLE_FILE:
            with safe_open(path, framework="pt") as handle:
                state = {key: handle.get_tensor(key) for key in handle.keys()}  # noqa: SIM118 (not a dict)
        else:
            # torch itself writes its archives uncompressed.
            if zipfile.is_zipfile(path):
                with zipfile.ZipFile(path) as archive:
                    unpacked = sum(entry.file_size for entry in archive.infolist())
                if unpacked > path.stat().st_size * MOST_PACKED:
                    raise RunError(f"{path}: unpacks to more than {MOST_PACKED} times its size")
            with warnings.catch_warnings():
                # About types of tensors that are rejected below.
                warnings.simplefilter("ignore")
                state = torch.load(path, map_location="cpu", weights_only=True)
    except RunError:
        raise
    except pickle.UnpicklingError as error:
        raise RunError(f"{path}: has more than weights, which could execute code: {_EXPORT}") from error
    except Exception as error:  # torch's reader raises many types on a damaged file
        raise RunError(f"{path}: cannot be read ({_reason(error)})") from error
    if isinstance(state, dict) and isinstance(state.get("model"), list | tuple) and state["model"]:
        # LibKGE's checkpoint without its configuration.
        state = state["model"][0]
    tables: dict[str, Tensor] = {}
    for table in TABLES:
        for key in (table, _PYKEEN[table], _LIBKGE[table]):
            if isinstance(state, dict) and isinstance(state.get(key), Tensor):
                tables[table] = rows = _checked(state[key], f"{path}: {key}")
                # PyKEEN interleaves real and imaginary parts.
                if key == _PYKEEN[table] and model in ("rotate", "complex"):
                    if rows.shape[1] % 2:
                        raise RunError(f"{key}: width {rows.shape[1]} is odd; {model} needs real and imaginary parts")
                    tables[table] = torch.view_as_complex(rows.reshape(len(rows), -1, 2).contiguous())
                elif key == _LIBKGE["relations"] and model == "rotate":  # holds angles in radians
                    tables[table] = torch.polar(torch.ones_like(rows), rows)
    if not tables:
        raise RunError(f"{path}: has none of {', '.join((*TABLES, *_PYKEEN.values(), *_LIBKGE.values()))}")
    return tables


def _checked(rows: Tensor, what: str) -> Tensor:
    """Return the rows as float32 or complex64 `[n, width]`."""
    if rows.layout != torch.strided or rows.is_quantized or rows.device.type != "cpu":
        raise RunError(
            f"{what}: expected dense floats, found a tensor of layout {rows.layout} on {rows.device}, {rows.dtype}"
        )
    # A damaged file may declare a shape beyond its storage.
    if rows.numel() * rows.element_size() > rows.untyped_storage().nbytes():
        raise RunError(f"{what}: shape {list(rows.shape)} has more numbers than the file")
    if rows.ndim != 2 or not rows.numel() or not (rows.is_floating_point() or rows.is_complex()):
        raise RunError(f"{what}: expected floats [rows, width], found {rows.dtype} {list(rows.shape)}")
    # Attacks compute in single precision.
    rows = rows.detach().to(torch.complex64 if rows.is_complex() else torch.float32)
    if not torch.isfinite(rows).all():
        raise RunError(f"{what}: has a value that is not finite")
    return rows


def _named(names: list[str], rows: Tensor, what: str) -> NamedRows:
    if len(names) != len(rows):
        hint = "; tables with inverse relations are not supported" if len(rows) == 2 * len(names) else ""
        raise RunError(f"{what}: {len(rows)} rows, but {len(names)} names{hint}")
    if len(set(names)) < len(names):
        raise RunError(f"{what}: two rows have the same name")
    return NamedRows(names, rows)


def read_names(path: Path) -> list[str]:
    """Return the names in a file of `id<TAB>name` lines, in the order of the IDs; .gz is unpacked, a header `id...` is
    skipped.

    Args:
        path: file of names.

    Raises:
        RunError: a malformed line, or IDs that are not 0 to n - 1 (`file:line`).
    """
    try:
        if path.suffix == ".gz":
            most = path.stat().st_size * MOST_PACKED
            with gzip.open(path, "rb") as packed:
                content = packed.read(most + 1)
            if len(content) > most:
                raise RunError(f"{path}: unpacks to more than {MOST_PACKED} times its size")
            text = content.decode()
        else:
            text = read_text(path)
    except (OSError, EOFError, zlib.error, UnicodeDecodeError, DataError) as error:
        raise RunError(f"{path}: cannot be read ({_reason(error)})") from error
    # PyKEEN writes a header, the others do not.
    lines = text.rstrip("\n").split("\n")
    header = int(lines[0].startswith("id\t"))
    names: dict[int, str] = {}
    for place, line in enumerate(lines[header:], start=header + 1):
        number, tab, name = line.partition("\t")
        row = read_id(number, len(lines) - header)
        if not (tab and name) or row is None or row in names:
            allowed = f"id<TAB>name, each id of 0..{len(lines) - header - 1} once"
            raise RunError(f"{path}:{place}: expected {allowed}; found {shown(line)}")
        names[row] = name
    return [names[number] for number in range(len(names))]


def _reason(error: Exception) -> str:
    return printable(" ".join(str(error).split()) or type(error).__name__, 200)
