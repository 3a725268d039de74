"""Pickled federations in the layout of FedE and FedR, read without executing anything.

A pickle is a program. The unpickler here knows numpy's four globals that rebuild an array, and replaces each by an inert class
that records its arguments. Arrays are built afterwards, from checked types, shapes and lengths.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
import re
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fkgsec.data.assembly import Findings, inspect_splits
from fkgsec.data.graph import SPLITS, ClientGraph, FederatedGraph
from fkgsec.errors import DataError
from fkgsec.text import shown

# A vocabulary has a name for every id up to the largest: one absurd id must not take all memory.
LARGEST_ID = 2**24 - 1
_KEYS = ("edge_index", "edge_type", "edge_index_ori", "edge_type_ori")


def read_fede_pickle(path: Path | str, name: str | None = None) -> FederatedGraph:
    """Read a pickled federation of FedE or FedR: a list of clients, each `{split: {key: array}}` for three splits.

    Keys of a split with `n` triples: `edge_index` int `[2, n]` (heads, tails) and `edge_type` int `[n]` in the client's own
    IDs; `edge_index_ori` and `edge_type_ori` the same in global IDs. Names of entities and relations are the global IDs as
    text, from 0 to the largest one used; clients are named "0", "1", ... Own IDs are checked against the global ones and
    then renumbered, because `ClientGraph` needs those of train first.

    Nothing in the file is executed: globals other than numpy's array reconstruction are rejected before anything is built,
    and those are replaced by inert classes.

    Args:
        path: of the file.
        name: of the federation; the file's stem when None.

    Raises:
        DataError: a rejected global, a damaged pickle, missing or unknown keys, arrays that are no integers or differ in
            length, IDs out of range, own IDs that contradict the global ones, or an empty train split.
    """
    path = Path(path)
    clients = _load(path)
    if not isinstance(clients, list) or not clients:
        raise DataError(f"{path}: expected a list of clients, got {_describe(clients)}")
    findings = Findings()
    parts: list[dict[str, np.ndarray]] = []
    for number, client in enumerate(clients):
        where = f"{path}: client {number}"
        splits = _read_client(client, where)
        inspect_splits(
            findings, splits, lambda split, row, where=where: f"{where} {split} triple {row}", f"{where} {{split}}"
        )
        parts.append(splits)
    triples = np.concatenate([splits[split] for splits in parts for split in SPLITS])
    return FederatedGraph(
        name or path.stem,
        tuple(map(str, range(triples[:, [0, 2]].max() + 1))),
        tuple(map(str, range(triples[:, 1].max() + 1))),
        tuple(ClientGraph.from_global(str(number), **splits) for number, splits in enumerate(parts)),
        warnings=findings.lines(len(parts)),
    )


# Classes that a pickle may build.


class _DtypeRecord:
    """Replacement of `numpy.dtype`: its code, such as "i8", and the byte order that is set afterwards."""

    __slots__ = ("byte_order", "code")

    def __init__(self, code: object, *_: object) -> None:
        self.code = code
        self.byte_order: object = "|"

    def __setstate__(self, state: Any) -> None:
        self.byte_order = state[1]


class _ArrayRecord:
    """Replacement of `numpy.ndarray`: shape, dtype, order and bytes from the pickle, unchecked."""

    __slots__ = ("data", "dtype", "fortran", "shape")

    def __init__(self) -> None:
        self.shape = self.dtype = self.fortran = self.data = None

    def __setstate__(self, state: Any) -> None:
        self.shape, self.dtype, self.fortran, self.data = state[-4:]


class _Callable:
    """A global of the pickle: callable in a `REDUCE`, and without attributes that a `BUILD` could set."""

    __slots__ = ()

    def __setstate__(self, state: object) -> None:
        raise pickle.UnpicklingError("the pickle changes a global")


class _ArrayType(_Callable):
    """Replacement of the class `numpy.ndarray`, which pickles use as the first argument of `_reconstruct`."""


class _DtypeType(_Callable):
    def __call__(self, *args: object) -> _DtypeRecord:
        return _DtypeRecord(*args)


class _Reconstruct(_Callable):
    """`_reconstruct(ndarray, (0,), b"b")`, to which `BUILD` then gives the state."""

    def __call__(self, kind: object, *_: object) -> _ArrayRecord:
        if not isinstance(kind, _ArrayType):
            raise pickle.UnpicklingError("an array of a subclass")
        return _ArrayRecord()


class _FromBuffer(_Callable):
    """`_frombuffer(data, dtype, shape, order)` of protocol 5."""

    def __call__(self, data: object, dtype: object, shape: object, order: object) -> _ArrayRecord:
        # The same order as in the state of `_reconstruct`.
        record = _ArrayRecord()
        record.__setstate__((shape, dtype, order == "F", data))
        return record


_ALLOWED: Mapping[tuple[str, str], type[_Callable]] = {
    ("numpy", "ndarray"): _ArrayType,
    ("numpy", "dtype"): _DtypeType,
    ("numpy.core.multiarray", "_reconstruct"): _Reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _Reconstruct,
    ("numpy.core.numeric", "_frombuffer"): _FromBuffer,
    ("numpy._core.numeric", "_frombuffer"): _FromBuffer,
}


class _InertUnpickler(pickle.Unpickler):
    def __init__(self, content: bytes, path: Path) -> None:
        super().__init__(io.BytesIO(content))
        self._path = path

    def find_class(self, module: str, name: str) -> _Callable:
        """Return the inert class of an allowed global. Raises `DataError` for any other.

        Args:
            module, name: of the global.
        """
        if (module, name) not in _ALLOWED:
            raise DataError(f"{self._path}: refused, the pickle calls for {module}.{name} (numpy integer arrays only)")
        return _ALLOWED[module, name]()


def _load(path: Path) -> object:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error
    try:
        # Before unpickling: the unpickler itself would already allocate.
        _check_sizes(content)
        return _InertUnpickler(content, path).load()
    except DataError:
        raise
    except Exception as error:  # a damaged or hostile pickle can raise anything
        reason = textwrap.shorten(str(error), 160) or type(error).__name__
        raise DataError(f"{path}: damaged or not a pickle ({reason})") from error


def _check_sizes(content: bytes) -> None:
    """Raise before a few bytes make the unpickler allocate gigabytes, by a length (`genops` checks) or a memo index."""
    for opcode, argument, _ in pickletools.genops(content):
        if opcode.name in ("PUT", "BINPUT", "LONG_BINPUT") and (argument or 0) > len(content):
            raise pickle.UnpicklingError(f"{opcode.name} beyond the size of the file")


# From recorded arguments to checked triples.


def _read_client(client: object, where: str) -> dict[str, np.ndarray]:
    """Return global IDs int64 `[n, 3]` by split, after checking them against the client's own IDs."""
    client_ids, shared = {}, {}
    for split, part in _with_keys(client, SPLITS, where).items():
        place = f"{where} {split}"
        arrays = {key: _as_ids(record, f"{place} {key}") for key, record in _with_keys(part, _KEYS, place).items()}
        client_ids[split] = _as_triples(arrays["edge_index"], arrays["edge_type"], place, "edge_index", "edge_type")
        shared[split] = _as_triples(
            arrays["edge_index_ori"], arrays["edge_type_ori"], place, "edge_index_ori", "edge_type_ori"
        )
        if len(client_ids[split]) != len(shared[split]):
            raise DataError(
                f"{place}: edge_index has {len(client_ids[split])} triples but edge_index_ori has {len(shared[split])}"
            )
    for columns, what in (([0, 2], "entity"), ([1], "relation")):
        _check_one_to_one(
            np.concatenate([client_ids[split][:, columns].ravel() for split in SPLITS]),
            np.concatenate([shared[split][:, columns].ravel() for split in SPLITS]),
            f"{where}: {what}",
        )
    return shared


def _with_keys(value: object, wanted: tuple[str, ...], where: str) -> dict[str, object]:
    """Return `value` in the order of `wanted`. Raises `DataError` unless it is a dict with exactly those keys."""
    if not isinstance(value, dict):
        raise DataError(f"{where}: expected a dict with {', '.join(wanted)}, got {_describe(value)}")
    if set(value) != set(wanted):
        keys_text = ", ".join(map(_describe_key, value)) or "none"
        raise DataError(f"{where}: expected the keys {', '.join(wanted)}, found {keys_text}")
    return {key: value[key] for key in wanted}


def _as_ids(record: object, where: str) -> np.ndarray:
    """Return the recorded int64 array, each ID from 0 to `LARGEST_ID`."""
    if not isinstance(record, _ArrayRecord):
        raise DataError(f"{where}: expected an integer array, got {_describe(record)}")
    dtype, shape, data = record.dtype, record.shape, record.data
    if not isinstance(dtype, _DtypeRecord) or not isinstance(dtype.code, str):
        raise DataError(f"{where}: damaged array (no dtype)")
    code, byte_order = dtype.code, dtype.byte_order
    # Integers only: object arrays could hold anything.
    if not re.fullmatch(r"[iu][1248]", code):
        kind = {"O": "an object array", "f": "a float array"}.get(code[:1], f"an array of type {_describe_key(code)}")
        raise DataError(f"{where}: expected an integer array, got {kind}")
    if byte_order not in ("<", ">", "|", "="):
        raise DataError(f"{where}: damaged array (byte order {_describe_key(byte_order)})")
    if not isinstance(shape, tuple) or len(shape) > 2 or not all(type(n) is int and 0 <= n < 2**48 for n in shape):
        raise DataError(f"{where}: damaged array (its shape is not one of one or two sizes)")
    if not isinstance(data, bytes | bytearray) or len(data) != math.prod(shape) * int(code[1]):
        raise DataError(f"{where}: damaged array (its bytes do not fill shape {list(shape)})")
    # numpy interprets the bytes only now, with checked type and length.
    ids = np.frombuffer(data, dtype=f"{byte_order}{code}").reshape(shape, order="F" if record.fortran else "C")
    if ids.size and (ids.min() < 0 or ids.max() > LARGEST_ID):
        raise DataError(f"{where}: ids must be from 0 to {LARGEST_ID}, found {ids.min()} to {ids.max()}")
    return ids.astype(np.int64)


def _as_triples(ends: np.ndarray, types: np.ndarray, where: str, ends_key: str, types_key: str) -> np.ndarray:
    if ends.ndim != 2 or ends.shape[0] != 2 or types.ndim != 1 or ends.shape[1] != len(types):
        raise DataError(
            f"{where}: {ends_key} must have shape [2, n] and {types_key} [n], "
            f"got {list(ends.shape)} and {list(types.shape)}"
        )
    return np.stack([ends[0], types, ends[1]], axis=1)


def _check_one_to_one(client_ids: np.ndarray, shared: np.ndarray, where: str) -> None:
    """Raise `DataError` if one own ID stands for two global ones, or the other way round."""
    for left, right, left_name, right_name in (
        (client_ids, shared, "own", "global"),
        (shared, client_ids, "global", "own"),
    ):
        # Map each ID to its first partner; any other partner is a contradiction.
        _, first, inverse = np.unique(left, return_index=True, return_inverse=True)
        expected = right[first][inverse]
        wrong = np.flatnonzero(expected != right)
        if len(wrong):
            at = wrong[0]
            raise DataError(
                f"{where} ids contradict: {left_name} id {left[at]} is {right_name} id {expected[at]} in one place "
                f"and {right[at]} in another"
            )


def _describe(value: object) -> str:
    """Describe a value for a message, without long text that an attacker chose."""
    if isinstance(value, list | dict | tuple) and not value:
        return f"an empty {type(value).__name__}"
    name = type(value).__name__
    return {"_ArrayRecord": "an array", "_DtypeRecord": "a dtype", "NoneType": "None"}.get(name, f"a {name}")


def _describe_key(key: object) -> str:
    return shown(key, 40) if isinstance(key, str | int) else _describe(key)
