"""Files that were made to do harm, or lost something on the way: one short line each, quickly, and nothing executed."""

import gzip
import os
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from fkgsec.data.formats.readers import read_path
from fkgsec.errors import FkgsecError
from fkgsec.experiments.audit.table_files import read_names, read_tables

DIGITS = "9" * 5000
MOST_LETTERS, MOST_S = 500, 10  # of CPU, so that other work on the machine does not count


def refused(read: Callable[[Path], object], path: Path) -> str:
    """The error's line, which is short and has no control character; how it was come by was quick."""
    started = time.process_time()
    with pytest.raises(FkgsecError) as caught:
        read(path)
    assert time.process_time() - started < MOST_S
    line = str(caught.value)
    assert len(line) - len(str(path)) < MOST_LETTERS
    assert line.isprintable()
    return line


NTRIPLES = "<http://a> <http://b> "


class Graph(NamedTuple):
    """A file of triples and what is said of it."""

    name: str
    content: str
    says: str


GRAPHS = (
    Graph("cut.ttl", f'{NTRIPLES}"""abc', "not Turtle"),
    Graph("brackets.ttl", f"{NTRIPLES}{'[ <http://p> ' * 3000}<http://c>{' ]' * 3000} .", "nested too deeply"),
    Graph("parentheses.ttl", f"{NTRIPLES}{'( ' * 3000}{')' * 3000} .", "nested too deeply"),
    Graph("beyond.ttl", f"{NTRIPLES}<http://\\UFFFFFFFF> .", "not Turtle"),
    Graph("beyond.nt", f"{NTRIPLES}<http://\\UFFFFFFFF> .\n", "not an N-Triples statement"),
    Graph("beyond-text.nt", f'{NTRIPLES}"\\UFFFFFFFF" .\n', "not an N-Triples statement"),
    Graph("half.nt", f"{NTRIPLES}<http://\\uD800> .\n", r"half.nt:1: 'http://\ud800' is no text"),
    Graph("nothing.nt", f"{NTRIPLES}<http://\\u0000> .\n", r"nothing.nt:1: 'http://\x00' is no text"),
    Graph("quotes.nt", f'{NTRIPLES}"' + '\\"' * 100_000 + "\n", "not an N-Triples statement"),
    Graph("columns.csv", ",".join(f"h{n}" for n in range(10_000)) + "\na,r,b\n", "and 9980 more"),
    Graph("escapes.csv", "\x1b[31mh,relation,tail\na,r,b\n", r"has: \x1b[31mh, relation"),
    Graph("split.csv", "head,relation,tail,split\na,r,b," + "z" * 100_000 + "\n", "is none of train"),
)


@pytest.mark.parametrize("graph", GRAPHS, ids=lambda graph: graph.name)
def test_a_graph(graph: Graph, tmp_path: Path) -> None:
    (tmp_path / graph.name).write_text(graph.content)
    assert graph.says in refused(read_path, tmp_path / graph.name)


@pytest.mark.parametrize(
    ("number", "says"), [(DIGITS, "id '999"), ("²", "id '²'"), ("٠", "id '٠'"), ("0" * 30, "id '000")]
)
def test_ids_of_a_vocabulary(number: str, says: str, tmp_path: Path) -> None:
    for name, content in (("train.txt", "a\tr\tb\n"), ("valid.txt", ""), ("test.txt", "")):
        (tmp_path / name).write_text(content)
    (tmp_path / "entities.dict").write_text(f"{number}\ta\n1\tb\n")
    assert says in refused(read_path, tmp_path)
    (tmp_path / "entity_ids.del").write_text(f"{number}\ta\n1\tb\n")
    assert "expected id<TAB>name" in refused(read_names, tmp_path / "entity_ids.del")


@pytest.mark.parametrize("name", ["x" * 5000, f"{'y' * 300}/a.txt", "a\0b.txt", "none\x1b[2J.txt"])
def test_names_that_no_file_has(name: str) -> None:
    with pytest.raises(FkgsecError) as caught:
        read_path(name)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < MOST_LETTERS


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_what_is_no_file_is_not_waited_for(kind: str, tmp_path: Path) -> None:
    place = tmp_path / "triples.txt"
    if kind == "pipe":
        os.mkfifo(place)
    else:
        place.symlink_to("/dev/zero")
    assert "neither a folder nor a plain file" in refused(read_path, place)


def test_parquet_whose_text_is_not_utf_8(tmp_path: Path) -> None:
    bad = pa.array([b"\xff\xfe", b"a"])
    column = pa.StringArray.from_buffers(2, bad.buffers()[1], bad.buffers()[2])
    pq.write_table(pa.table({"head": column, "relation": column, "tail": column}), tmp_path / "bad.parquet")
    assert "not UTF-8" in refused(read_path, tmp_path / "bad.parquet")


def test_a_parquet_file_that_claims_more_rows_than_memory_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fkgsec.data.formats.tables.MOST_ROWS", 99_999)
    column = pa.array(["a"] * 100_000).dictionary_encode()
    pq.write_table(pa.table({"head": column, "relation": column, "tail": column}), tmp_path / "rows.parquet")
    assert "100,000 rows; at most 99,999" in refused(read_path, tmp_path / "rows.parquet")


def test_a_nul_in_a_name_cannot_make_two_graphs_alike(tmp_path: Path) -> None:
    """Names are separated by NUL where a graph is hashed."""
    pq.write_table(pa.table({"head": ["a\0b"], "relation": ["r"], "tail": ["c"]}), tmp_path / "nul.parquet")
    assert r"'a\x00b' is no text" in refused(read_path, tmp_path / "nul.parquet")


# Tables of embeddings.


def tables_folder(folder: Path, rows: object = None, suffix: str = "npy") -> Path:
    """One client whose entities are `rows`: an array, raw bytes, or what torch saves."""
    client = folder / "c"
    client.mkdir()
    (client / "entities.dict").write_text("0\ta\n1\tb\n2\tc\n")
    (client / "relations.dict").write_text("0\ta\n1\tb\n2\tc\n")
    if suffix == "pt":
        torch.save(rows, client / "model.pt")
        return folder
    np.save(client / "relations.npy", np.ones((3, 4), dtype="f4"))
    if isinstance(rows, bytes):
        (client / "entities.npy").write_bytes(rows)
    else:
        np.save(client / "entities.npy", np.asarray(rows))
    return folder


def header(shape: str, kind: str = "<f4", version: bytes = b"\x01\x00") -> bytes:
    text = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117).encode() + b"\n"
    return b"\x93NUMPY" + version + struct.pack("<H" if version[0] == 1 else "<I", len(text)) + text


@pytest.mark.parametrize("kind", [">f4", ">f8", "<f2", np.longdouble, ">c8", np.clongdouble])
def test_arrays_of_other_machines_are_converted(kind: type | str, tmp_path: Path) -> None:
    values = (np.arange(12).reshape(3, 4) / 8).astype(kind)
    rows = read_tables(tables_folder(tmp_path, values), "transe")["c"]["entities"].rows
    assert np.array_equal(rows.numpy(), values)
    assert rows.dtype in (torch.float32, torch.complex64)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (header("(100000000000000000, 1)"), "not a readable array"),  # 355 PiB
        (header("(3, 4)"), "not a readable array"),
        (header("(-1, 4)"), "not a readable array"),
        (header("(3, 4)", "|O"), "not a readable array"),
        (header("(3, 4)", "<V8") + b"x" * 96, "expected an array of floats, found |V8"),
        (b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**31) + b"{" * 1000, "not a readable array"),
        (b"\x93NUMPY\x01\x00" + struct.pack("<H", 60_000) + b"(" * 60_000, "not a readable array"),
        (b"PK\x03\x04", "not a file of numpy"),
        (b"", "not a file of numpy"),
        (np.full((3, 4), 1e300), "has a value that is not finite"),
    ],
)
def test_arrays_that_are_damaged_or_lie(content: object, says: str, tmp_path: Path) -> None:
    assert says in refused(lambda path: read_tables(path, "transe"), tables_folder(tmp_path, content))


@pytest.mark.filterwarnings("ignore:Sparse CSR")
@pytest.mark.parametrize(
    "make",
    [
        lambda ones: {"model": []},
        lambda ones: {"model": [1]},
        lambda ones: [ones],
        lambda ones: {"entities": ones.to_sparse()},
        lambda ones: {"entities": ones.to_sparse_csr()},
        lambda ones: {"entities": ones.to("meta")},
        lambda ones: {"entities": ones[0, 0]},
        lambda ones: {"entities": ones[:1, :1].expand(2**20, 2**20)},
    ],
    ids=["no model", "no weights", "a list", "sparse", "csr", "meta", "a number", "expanded"],
)
def test_states_of_torch_without_dense_tables(make: Callable[[torch.Tensor], object], tmp_path: Path) -> None:
    folder = tables_folder(tmp_path, make(torch.ones(3, 4)), "pt")
    refused(lambda path: read_tables(path, "transe"), folder)


def test_packed_names(tmp_path: Path) -> None:
    packed = gzip.compress("".join(f"{row}\tn{row}\n" for row in range(1000)).encode())
    path = tmp_path / "entity_to_id.tsv.gz"
    path.write_bytes(packed)
    assert len(read_names(path)) == 1000
    for content in (packed[:200], b"\x1f\x8b" + b"x" * 30, packed[:100] + b"\xff" * 40 + packed[140:]):
        path.write_bytes(content)
        assert "cannot be read" in refused(read_names, path)
    path.write_bytes(gzip.compress(b"\0" * 20_000_000, 6))  # 19 KB
    assert "unpacks to more than 100 times its size" in refused(read_names, path)
