"""Pickled federations: the published files, damaged ones, and ones that attack the reader."""

from __future__ import annotations

import collections
import copy
import os
import pickle
import pickletools
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fkgsec.data.formats.pickles import read_fede_pickle
from fkgsec.data.graph import SPLITS
from fkgsec.errors import DataError

DATA = os.environ.get("FKGSEC_DATA")
needs_data = pytest.mark.skipif(not DATA, reason="FKGSEC_DATA is not set")


def split_of(triples: list[tuple[int, int, int]], own_entities: list[int], own_relations: list[int]) -> dict[str, Any]:
    """A split in the layout of FedE; `own_entities[i]` is the global id of the client's own id i."""
    heads, relations, tails = np.array(triples, dtype=np.int64).reshape(-1, 3).T
    return {
        "edge_index": np.array([[own_entities.index(i) for i in heads], [own_entities.index(i) for i in tails]]).astype(
            int
        ),
        "edge_type": np.array([own_relations.index(i) for i in relations]).astype(int),
        "edge_index_ori": np.stack([heads, tails]),
        "edge_type_ori": relations.copy(),
    }


def federation() -> list[dict[str, Any]]:
    first = ([7, 2, 4], [1, 0])
    second = ([4, 5], [1])
    return [
        {
            "train": split_of([(2, 1, 4), (4, 0, 7)], *first),
            "test": split_of([(7, 1, 2)], *first),
            "valid": split_of([(2, 1, 7)], *first),
        },
        {
            "train": split_of([(4, 1, 5)], *second),
            "test": split_of([(5, 1, 4)], *second),
            "valid": split_of([], *second),
        },
    ]


def dump(path: Path, value: object, protocol: int = 4) -> Path:
    path.write_bytes(pickle.dumps(value, protocol=protocol))
    return path


@pytest.mark.parametrize("protocol", [3, 4, 5])
@pytest.mark.parametrize("module", ["core", "_core"])
def test_reads_every_protocol_and_both_names_of_numpys_core(tmp_path: Path, protocol: int, module: str) -> None:
    path = dump(tmp_path / "small.pkl", federation(), protocol)
    # The same length-prefixed name, as the other numpy would have written it.
    content = path.read_bytes()
    for submodule in ("multiarray", "numeric"):
        for other in ("core", "_core"):
            old, new = f"numpy.{other}.{submodule}".encode(), f"numpy.{module}.{submodule}".encode()
            content = content.replace(b"\x8c" + bytes([len(old)]) + old, b"\x8c" + bytes([len(new)]) + new)
            content = content.replace(b"c" + old + b"\n", b"c" + new + b"\n")
    path.write_bytes(_without_frames(content))
    federated = read_fede_pickle(path)
    assert federated.name == "small"
    assert federated.entities == tuple("01234567")
    assert federated.relations == ("0", "1")
    assert [client.name for client in federated.clients] == ["0", "1"]
    first, second = federated.clients
    assert first.to_global(first.train).tolist() == [[2, 1, 4], [4, 0, 7]]
    assert first.to_global(first.test).tolist() == [[7, 1, 2]]
    assert second.to_global(second.train).tolist() == [[4, 1, 5]]
    assert second.to_global(second.valid).tolist() == []
    assert federated.warnings == (f"valid: 1 empty split in 1 of 2 clients, first at {path}: client 1 valid",)


def _without_frames(content: bytes) -> bytes:
    """The pickle without its FRAME opcodes, whose lengths a replacement made wrong."""
    starts = [at or 0 for op, _, at in pickletools.genops(content) if op.name == "FRAME"]
    for start in reversed(starts):
        content = content[:start] + content[start + 9 :]
    return content


@pytest.mark.parametrize("dtype", ["<i8", ">i8", "<i4", "<u2", "|i1", "|u1"])
def test_integers_of_any_width_and_order(tmp_path: Path, dtype: str) -> None:
    clients = federation()
    for client in clients:
        for split in client.values():
            split.update({key: array.astype(dtype) for key, array in split.items()})
    plain = read_fede_pickle(dump(tmp_path / "plain.pkl", federation()))
    assert read_fede_pickle(dump(tmp_path / "other.pkl", clients)).hash == plain.hash


def test_column_order_is_read(tmp_path: Path) -> None:
    clients = federation()
    clients[0]["train"]["edge_index_ori"] = np.asfortranarray(clients[0]["train"]["edge_index_ori"])
    plain = read_fede_pickle(dump(tmp_path / "plain.pkl", federation()))
    for protocol in (4, 5):
        assert read_fede_pickle(dump(tmp_path / "fortran.pkl", clients, protocol)).hash == plain.hash


def _set(*keys: Any, value: Any) -> Callable[[Any], None]:
    def change(clients: Any) -> None:
        for key in keys[:-1]:
            clients = clients[key]
        clients[keys[-1]] = value

    return change


def _drop(*keys: Any) -> Callable[[Any], None]:
    def change(clients: Any) -> None:
        for key in keys[:-1]:
            clients = clients[key]
        del clients[keys[-1]]

    return change


EDGES, KINDS = ("train", "edge_index"), ("train", "edge_type")
BAD_CONTENT = {
    "no valid split": (_drop(0, "valid"), "client 0: expected the keys"),
    "unknown split": (_set(0, "unlearn", value={}), "client 0: expected the keys"),
    "no global ids": (_drop(0, "train", "edge_type_ori"), "client 0 train: expected the keys"),
    "client is a list": (_set(0, value=[1]), "client 0: expected a dict"),
    "split is an array": (_set(0, "train", value=np.arange(3)), "client 0 train: expected a dict"),
    "float array": (_set(0, *KINDS, value=np.array([1.0, 0.0])), "client 0 train edge_type: expected an integer array"),
    "bool array": (
        _set(0, *KINDS, value=np.array([True, False])),
        "client 0 train edge_type: expected an integer array",
    ),
    "object array": (_set(0, *KINDS, value=np.array([1, 0], dtype=object)), "client 0 train edge_type: expected an"),
    "list for an array": (_set(0, *KINDS, value=[1, 0]), "client 0 train edge_type: expected an integer array"),
    "three dimensions": (_set(0, *KINDS, value=np.zeros((1, 1, 2), dtype=int)), "client 0 train edge_type: damaged"),
    "transposed": (_set(0, *EDGES, value=np.zeros((3, 2), dtype=int)), "client 0 train: edge_index must have shape"),
    "types are shorter": (
        _set(0, "train", "edge_type_ori", value=np.array([1])),
        "client 0 train: edge_index_ori must",
    ),
    "own ids of another length": (
        lambda clients: clients[0]["test"].update(edge_index=np.zeros((2, 2), int), edge_type=np.zeros(2, int)),
        "client 0 test: edge_index has 2 triples but edge_index_ori has 1",
    ),
    "negative id": (_set(0, "train", "edge_type_ori", value=np.array([1, -1])), "client 0 train edge_type_ori: ids"),
    "absurd id": (_set(0, "train", "edge_type_ori", value=np.array([1, 10**15])), "client 0 train edge_type_ori: ids"),
    "two global ids for one own id": (
        _set(0, "train", "edge_index_ori", value=np.array([[2, 4], [4, 6]])),
        "client 0: entity ids contradict: own id 0 is global id 6 in one place and 7 in another",
    ),
    "two own ids for one global id": (_set(0, *KINDS, value=np.array([2, 1])), "client 0: relation ids contradict"),
    "empty train": (_set(1, "train", value=split_of([], [4, 5], [1])), "client 1 train: the train split is empty"),
}


@pytest.mark.parametrize("case", BAD_CONTENT)
def test_bad_content(tmp_path: Path, case: str) -> None:
    change, message = BAD_CONTENT[case]
    clients = copy.deepcopy(federation())
    change(clients)
    path = dump(tmp_path / "bad.pkl", clients)
    with pytest.raises(DataError, match=re.escape(f"{path}: {message}")):
        read_fede_pickle(path)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({}, "expected a list of clients, got an empty dict"),
        ([], "expected a list of clients, got an empty list"),
        (None, "expected a list of clients, got None"),
        (np.arange(3), "expected a list of clients, got an array"),
    ],
)
def test_not_a_list_of_clients(tmp_path: Path, value: object, message: str) -> None:
    path = dump(tmp_path / "bad.pkl", value)
    with pytest.raises(DataError) as error:
        read_fede_pickle(path)
    assert str(error.value) == f"{path}: {message}"


@pytest.mark.parametrize("keep", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_truncated(tmp_path: Path, keep: float) -> None:
    content = dump(tmp_path / "small.pkl", federation()).read_bytes()
    (tmp_path / "small.pkl").write_bytes(content[: int(len(content) * keep)])
    with pytest.raises(DataError, match=r"small\.pkl: damaged or not a pickle \(.+\)$"):
        read_fede_pickle(tmp_path / "small.pkl")


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.pkl: cannot be read"):
        read_fede_pickle(tmp_path / "none.pkl")


class _Calls:
    """Pickles as a call of `function` with `args`."""

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        self.call = (function, args)

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize(
    ("make", "refused"),
    [
        (lambda flag: _Calls(os.system, f"touch {flag}"), rf"{os.system.__module__}\.system"),
        (lambda flag: _Calls(eval, f"open({str(flag)!r}, 'w')"), r"(builtins|__builtin__)\.eval"),
        (lambda flag: _Calls(getattr, flag, "touch"), r"(pathlib|builtins|__builtin__)\.\w+"),
        (lambda flag: _Calls(np.load, str(flag)), r"numpy\.load"),
        (lambda flag: collections.OrderedDict(a=1), r"collections\.OrderedDict"),
        (lambda flag: [np.float64(1.0)], r"(numpy\._?core\.multiarray\.scalar|_codecs\.encode)"),
    ],
    ids=["os.system", "eval", "getattr", "numpy.load", "OrderedDict", "numpy scalar"],
)
def test_other_globals_are_refused_before_anything_runs(
    tmp_path: Path, make: Callable[[Path], object], refused: str, protocol: int
) -> None:
    flag = tmp_path / "executed"
    clients: list[Any] = federation() if protocol >= 3 else []
    path = dump(tmp_path / "evil.pkl", [*clients, make(flag)], protocol)
    with pytest.raises(
        DataError, match=rf"evil\.pkl: refused, the pickle calls for {refused} \(numpy integer arrays only\)$"
    ):
        read_fede_pickle(path)
    assert not flag.exists()


def test_a_call_inside_an_object_array_is_refused(tmp_path: Path) -> None:
    clients = federation()
    clients[0]["train"]["edge_type"] = np.array([_Calls(os.system, f"touch {tmp_path}/executed"), 1], dtype=object)
    with pytest.raises(DataError, match=r"refused, the pickle calls for \w+\.system"):
        read_fede_pickle(dump(tmp_path / "evil.pkl", clients))
    assert not (tmp_path / "executed").exists()


def _global(module: bytes, name: bytes) -> bytes:
    return b"c" + module + b"\n" + name + b"\n"


_DTYPE = _global(b"numpy", b"dtype") + b"(S'i8'\nI0\nI1\ntR"
_ARRAY = _global(b"numpy.core.multiarray", b"_reconstruct") + b"(" + _global(b"numpy", b"ndarray") + b"(I0\ntC\x01btR"


@pytest.mark.parametrize(
    "program",
    [
        _global(b"numpy", b"ndarray") + b"(I99999999999\ntR.",  # a call of ndarray itself
        _global(b"numpy", b"dtype") + b"}S'__call__'\nI1\nsb.",  # attributes set on a global
        _global(b"numpy", b"dtype") + b"(N}S'x'\nI1\nstb.",
        _global(b"numpy", b"dtype") + b")\x81.",  # NEWOBJ
        _global(b"numpy.core.multiarray", b"_reconstruct") + b"(I1\n(I0\ntC\x01btR.",  # no ndarray
        _ARRAY + b"I5\nb.",  # a state that is no tuple
        _DTYPE + b"I5\nb.",
        b"Pid\n.",  # a persistent id
        b"\x82\x01.",  # an extension code
        b"\x8e" + struct.pack("<Q", 2**62) + b"x.",  # more bytes than there are
        b"\x96" + struct.pack("<Q", 2**33) + b"x.",
        b"]r" + struct.pack("<I", 2**31) + b".",  # a memo of gigabytes
        b"0.",
        b"",
        b"PK\x03\x04",
    ],
)
def test_hostile_programs(tmp_path: Path, program: bytes) -> None:
    path = tmp_path / "evil.pkl"
    path.write_bytes(b"\x80\x04" + program if program else b"")
    with pytest.raises(DataError, match=r"evil\.pkl: (damaged or not a pickle|refused, the pickle calls for)"):
        read_fede_pickle(path)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (b"(I1\n(I-1\nt" + _DTYPE + b"I00\nC\x00t", "its shape is not one of one or two sizes"),
        (b"(I1\n(I1000000000000\nt" + _DTYPE + b"I00\nC\x00t", r"its bytes do not fill shape \[1000000000000\]"),
        (b"(I1\nI3\n" + _DTYPE + b"I00\nC\x00t", "its shape is not one of one or two sizes"),
        (b"(I1\n(I0\nt" + _DTYPE + b"I00\n(lt", "its bytes do not fill"),
        (b"(I1\n(I0\ntNI00\nC\x00t", "no dtype"),
        (b"(I1\n(I0\nt" + _DTYPE + b"(I3\nS'>i8,O'\nNtbI00\nC\x00t", "byte order '>i8,O'"),
    ],
)
def test_hostile_arrays(tmp_path: Path, state: bytes, message: str) -> None:
    keys = b"".join(b"S'%s'\n" % key + _ARRAY + state + b"bs" for key in (b"edge_index", b"edge_type"))
    keys += b"".join(b"S'%s'\nNs" % key for key in (b"edge_index_ori", b"edge_type_ori"))
    splits = b"".join(b"S'%s'\n}" % split.encode() + keys + b"s" for split in SPLITS)
    path = tmp_path / "evil.pkl"
    path.write_bytes(b"\x80\x04]}" + splits + b"a.")
    with pytest.raises(DataError, match=rf"client 0 train edge_index: damaged array \(.*{message}.*\)$"):
        read_fede_pickle(path)


@needs_data
@pytest.mark.parametrize(("num_clients", "duplicates"), [(5, "6,246")])
def test_published_files(num_clients: int, duplicates: str) -> None:
    path = Path(DATA or "") / f"DDB14-fedr/DDB14-Fed{num_clients}.pkl"
    federated = read_fede_pickle(path)
    with path.open("rb") as file:  # a file of the catalogue, of known content
        published = pickle.load(file)
    assert len(federated.clients) == num_clients
    assert (len(federated.entities), len(federated.relations)) == (9_203, 14)
    for client, parts in zip(federated.clients, published, strict=True):
        for split in SPLITS:
            rows = client.to_global(getattr(client, split))
            assert np.array_equal(rows[:, [0, 2]].T, parts[split]["edge_index_ori"])
            assert np.array_equal(rows[:, 1], parts[split]["edge_type_ori"])
    assert federated.warnings[0].startswith(f"train: {duplicates} duplicate triples in {num_clients} of")
