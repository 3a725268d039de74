"""Readers: real layouts, round trips, and every malformed input with the message that it gives."""

from __future__ import annotations

import builtins
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fkgsec.data.formats import readers
from fkgsec.data.graph import SPLITS, ClientGraph, FederatedGraph, KnowledgeGraph
from fkgsec.errors import DataError

DATA = os.environ.get("FKGSEC_DATA")
needs_data = pytest.mark.skipif(not DATA, reason="FKGSEC_DATA is not set")

TRAIN = "a\tknows\tb\nb\tknows\tc\n"
VALID = "a\tknows\tc\n"
TEST = "c\tknows\ta\n"


def write_folder(
    folder: Path, train: str | bytes = TRAIN, valid: str | bytes = VALID, test: str | bytes = TEST
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for split, content in zip(SPLITS, (train, valid, test), strict=True):
        (folder / f"{split}.txt").write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


def by_name(graph: KnowledgeGraph, split: str) -> list[tuple[str, str, str]]:
    return [(graph.entities[h], graph.relations[r], graph.entities[t]) for h, r, t in getattr(graph, split)]


def client_by_name(federated: FederatedGraph, client: ClientGraph, split: str) -> list[tuple[str, str, str]]:
    rows = client.to_global(getattr(client, split))
    return [(federated.entities[h], federated.relations[r], federated.entities[t]) for h, r, t in rows]


def as_federation(graph: KnowledgeGraph | FederatedGraph) -> FederatedGraph:
    assert isinstance(graph, FederatedGraph)
    return graph


def as_graph(graph: KnowledgeGraph | FederatedGraph) -> KnowledgeGraph:
    assert isinstance(graph, KnowledgeGraph)
    return graph


OTHERS = (
    ". Name the columns with --triple-columns (in Python columns=), or, if this line is a triple, add a first line such as "
    "head, relation, tail, client"
)


class TestTsvFolder:
    def test_ids_follow_first_appearance(self, tmp_path: Path) -> None:
        graph = readers.read_tsv_folder(write_folder(tmp_path / "g", valid="z\tlikes\ta\n"))
        assert graph.name == "g"
        assert graph.entities == ("a", "b", "c", "z")
        assert graph.relations == ("knows", "likes")
        assert graph.train.tolist() == [[0, 0, 1], [1, 0, 2]]
        assert graph.valid.tolist() == [[3, 1, 0]]
        assert graph.test.tolist() == [[2, 0, 0]]

    def test_dict_files_fix_the_ids(self, tmp_path: Path) -> None:
        folder = write_folder(tmp_path / "g")
        (folder / "entities.dict").write_text("2\ta\n0\tb\n1\tc\n")
        (folder / "relations.dict").write_text("0\tknows\n")
        graph = readers.read_tsv_folder(folder, name="named")
        assert (graph.name, graph.entities, graph.warnings) == ("named", ("b", "c", "a"), ())
        assert graph.train.tolist() == [[2, 0, 0], [0, 0, 1]]

    @pytest.mark.parametrize(
        "content",
        [
            "\ufeff" + TRAIN,
            TRAIN.replace("\n", "\r\n"),
            TRAIN.rstrip("\n"),
            TRAIN + "\n\n",
            TRAIN.replace("\n", "\r\n") + "\r\n  \r\n",
        ],
        ids=[
            "byte-order mark",
            "crlf",
            "no last line end",
            "blank lines at the end",
            "crlf and blank lines at the end",
        ],
    )
    def test_accepted_variants(self, tmp_path: Path, content: str) -> None:
        plain = readers.read_tsv_folder(write_folder(tmp_path / "plain"))
        variant = readers.read_tsv_folder(write_folder(tmp_path / "variant", train=content))
        assert variant.hash == plain.hash
        assert variant.warnings == ()

    @pytest.mark.parametrize("odd", ["x y", "x\u2028y", "x\x0by", '"x', "NA", "nan", "é"])
    def test_names_are_kept_as_they_are(self, tmp_path: Path, odd: str) -> None:
        graph = readers.read_tsv_folder(write_folder(tmp_path / "g", train=TRAIN + f"{odd}\tknows\ta\n"))
        assert by_name(graph, "train")[-1] == (odd, "knows", "a")

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (b"a\tknows\tb\nb\tknows\n", "train.txt:2: expected 3 tab-separated fields, found 2"),
            (b"a\tknows\tb\tc\n", "train.txt:1: expected 3 tab-separated fields, found 4"),
            (b"a knows b\n", "train.txt:1: expected 3 tab-separated fields, found 1"),
            (b"a\tknows\tb\n\nb\tknows\tc\n", "train.txt:2: expected 3 tab-separated fields, found a blank line"),
            (b"a\tknows\tb\nb\tknows\t\n", "train.txt:2: the tail field is empty"),
            (b"a\tknows\tb\n \tknows\tb\n", "train.txt:2: the head field is empty"),
            (b"a\t\tb\n\tknows\tb\n", "train.txt:1: the relation field is empty"),
            (b"\t\t\n", "train.txt:1: the head field is empty"),
            (b"a\tknows\tb\nb\tknows\t\xff\n", "train.txt:2: not UTF-8 (byte 0xff)"),
            ("a\tknows\tb\n".encode("utf-16"), "train.txt:1: not UTF-8 (byte 0xff)"),
            ("a\tknows\tb\n".encode("utf-16-le"), "train.txt:1: a NUL byte (is the file UTF-16?)"),
            (b"", "train.txt: the train split is empty"),
            (b"\n\n", "train.txt: the train split is empty"),
        ],
    )
    def test_bad_train(self, tmp_path: Path, content: bytes, message: str) -> None:
        folder = write_folder(tmp_path / "g", train=content)
        with pytest.raises(DataError) as error:
            readers.read_tsv_folder(folder)
        assert str(error.value) == f"{folder}/{message}"

    def test_a_missing_file_says_what_lies_there_instead(self, tmp_path: Path) -> None:
        folder = tmp_path / "own"
        (folder / "docs").mkdir(parents=True)
        (folder / "test.txt").write_text("a\tr\tb\n")
        (folder / "training.tsv").write_text("a\tr\tb\n")
        with pytest.raises(
            DataError, match=r"missing train\.txt, valid\.txt .*; it has: docs/, test\.txt, training\.tsv$"
        ):
            readers.read_path(folder)
        (folder / "test.txt").unlink()
        with pytest.raises(
            DataError, match=r"not a layout that can be read; it has: docs/, training\.tsv; accepted: a folder"
        ):
            readers.read_path(folder)
        with pytest.raises(DataError, match="it is empty"):
            readers.read_path(folder / "docs")

    @pytest.mark.parametrize(
        ("file", "content", "message"),
        [
            ("entities.dict", "0\ta\n1\tb\n", "train.txt:2: entity 'c' is not listed in {folder}/entities.dict"),
            ("relations.dict", "0\tlikes\n", "train.txt:1: relation 'knows' is not listed in {folder}/relations.dict"),
            ("entities.dict", "0\ta\n0\tb\n2\tc\n", "entities.dict:2: id 0 is listed twice"),
            ("entities.dict", "0\ta\n1\tb\n2\ta\n", "entities.dict:3: name 'a' is listed twice (first in line 1)"),
            ("entities.dict", "0\ta\n1\tb\n3\tc\n", "entities.dict:3: id '3' must be a number from 0 to 2"),
            ("entities.dict", "0\ta\n-1\tb\n2\tc\n", "entities.dict:2: id '-1' must be a number from 0 to 2"),
            ("entities.dict", "a\nb\n", "entities.dict:1: expected 2 tab-separated fields, found 1"),
        ],
    )
    def test_bad_dict(self, tmp_path: Path, file: str, content: str, message: str) -> None:
        folder = write_folder(tmp_path / "g")
        (folder / file).write_text(content)
        with pytest.raises(DataError) as error:
            readers.read_tsv_folder(folder)
        assert str(error.value) == f"{folder}/{message.replace('{folder}', str(folder))}"

    def test_odd_but_readable_is_counted(self, tmp_path: Path) -> None:
        folder = write_folder(
            tmp_path / "g",
            train=TRAIN + TRAIN + "a\tknows\tb \n",
            valid="a\tknows\tb\na\tlikes\tx\ny\tlikes\tx\n",
            test="",
        )
        (folder / "relations.dict").write_text("0\tknows\n1\tlikes\n2\thates\n")
        graph = readers.read_tsv_folder(folder)
        assert len(graph.train) == 5  # duplicates are kept
        assert graph.warnings == (
            f"names: 1 listed name in no triple, first at {folder}/relations.dict ('hates')",
            f"entities: 1 name with outer spaces, first at {folder}/train.txt:5 ('b ')",
            f"train: 2 duplicate triples, first at {folder}/train.txt:3",
            f"valid: 2 entities that train lacks, first at {folder}/valid.txt:2",
            f"valid: 1 relation that train lacks, first at {folder}/valid.txt:2",
            f"test: 1 empty split, first at {folder}/test.txt",
        )


class TestClientFolders:
    def make(self, folder: Path) -> Path:
        for client in ("10", "9", "2"):
            write_folder(folder / client, train=f"a\tknows\tc{client}\n", valid=f"c{client}\tknows\ta\n", test="")
            (folder / client / "unlearn.txt").write_text("not read")
            (folder / client / "entities.dict").write_text("not read")
        return folder

    def test_natural_order_and_one_vocabulary(self, tmp_path: Path) -> None:
        federated = readers.read_client_folders(self.make(tmp_path / "R3"))
        assert federated.name == "R3"
        assert [client.name for client in federated.clients] == ["2", "9", "10"]
        assert federated.entities == ("a", "c2", "c9", "c10")
        assert client_by_name(federated, federated.clients[2], "train") == [("a", "knows", "c10")]
        assert federated.warnings == (f"test: 3 empty splits in 3 of 3 clients, first at {tmp_path}/R3/2/test.txt",)

    def test_errors_name_the_file(self, tmp_path: Path) -> None:
        folder = self.make(tmp_path / "f")
        (folder / "9/valid.txt").write_text("a\tknows\n")
        with pytest.raises(DataError, match=r"f/9/valid\.txt:1: expected 3 tab-separated fields, found 2$"):
            readers.read_client_folders(folder)
        (folder / "9/valid.txt").unlink()
        with pytest.raises(DataError, match=r"f/9: missing valid\.txt "):
            readers.read_client_folders(folder)
        write_folder(folder / "9", train="")
        with pytest.raises(DataError, match=r"f/9/train\.txt: the train split is empty$"):
            readers.read_client_folders(folder)

    def test_no_clients(self, tmp_path: Path) -> None:
        (tmp_path / ".hidden").mkdir()
        with pytest.raises(DataError, match="no client subfolders"):
            readers.read_client_folders(tmp_path)
        with pytest.raises(DataError, match="no such folder"):
            readers.read_client_folders(tmp_path / "nowhere")


class TestWriteClientFolders:
    def federation(self, names: tuple[str, ...] = ("2", "10"), entities: tuple[str, ...] = ("x", "b c", "a", "unused")):
        none = np.empty((0, 3), dtype=np.int64)
        parts = [np.array([[2, 1, 0], [1, 0, 2], [2, 1, 0]]), np.array([[0, 1, 1]])]
        clients = tuple(
            ClientGraph.from_global(name, part, part[:1], none) for name, part in zip(names, parts, strict=True)
        )
        return FederatedGraph("written", entities, ("r", "s"), clients)

    def test_round_trip(self, tmp_path: Path) -> None:
        federated = self.federation()
        readers.write_client_folders(federated, tmp_path / "new/out")
        again = readers.read_client_folders(tmp_path / "new/out")
        assert again.hash == federated.hash
        assert [client.name for client in again.clients] == ["2", "10"]
        for before, after in zip(federated.clients, again.clients, strict=True):
            assert np.array_equal(before.entity_ids, after.entity_ids)
            for split in SPLITS:
                assert np.array_equal(getattr(before, split), getattr(after, split))
        assert [path.name for path in (tmp_path / "new").iterdir()] == ["out"]  # no scratch folder is left

    def test_existing_folder_is_not_touched(self, tmp_path: Path) -> None:
        (tmp_path / "out").mkdir()
        readers.write_client_folders(self.federation(), tmp_path / "out")  # an empty folder will do
        with pytest.raises(DataError, match="is there already"):
            readers.write_client_folders(self.federation(), tmp_path / "out")

    def test_nothing_is_left_of_a_failed_write(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        real, calls = Path.write_text, []

        def fail_at_fourth(path: Path, *args: object, **options: object) -> int:
            calls.append(path)
            if len(calls) == 4:
                raise OSError("disk full")
            return real(path, *args, **options)  # pyright: ignore[reportArgumentType]

        monkeypatch.setattr(Path, "write_text", fail_at_fourth)
        with pytest.raises(DataError, match=r"cannot be written \(disk full\)"):
            readers.write_client_folders(self.federation(), tmp_path / "out")
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("bad", ["tab\there", "line\nend", "ends in\r", "", "  ", "nul\0"])
    def test_names_that_the_layout_cannot_hold(self, tmp_path: Path, bad: str) -> None:
        with pytest.raises(DataError, match="cannot stand in a tab-separated file"):
            readers.write_client_folders(self.federation(entities=("x", bad, "a")), tmp_path / "out")
        assert list(tmp_path.iterdir()) == []


class TestTripleTable:
    ROWS = (("a", "knows", "b"), ("b", "knows", "c"), ("a", "likes, a lot", "NA"))

    def frame(self, **columns: list[str]) -> pd.DataFrame:
        return pd.DataFrame(self.ROWS, columns=pd.Index(["head", "relation", "tail"])).assign(**columns)

    def write(self, frame: pd.DataFrame, path: Path) -> Path:
        if path.suffix == ".parquet":
            frame.to_parquet(path)
        else:
            frame.to_csv(path, index=False, sep="\t" if path.suffix == ".tsv" else ",")
        return path

    @pytest.mark.parametrize("suffix", [".csv", ".tsv", ".parquet"])
    def test_no_split_column(self, tmp_path: Path, suffix: str) -> None:
        path = self.write(self.frame(extra=["1", "2", "3"]), tmp_path / f"t{suffix}")
        graph = as_graph(readers.read_triple_table(path))
        assert by_name(graph, "train") == list(self.ROWS)
        assert (len(graph.valid), len(graph.test), graph.name) == (0, 0, "t")
        note = "no split column; all 3 triples are read as train; dividing them among clients draws validation and test triples"
        assert graph.warnings == (f"{path}: {note}",)

    @pytest.mark.parametrize("suffix", [".csv", ".tsv", ".parquet"])
    def test_split_and_client_columns(self, tmp_path: Path, suffix: str) -> None:
        frame = self.frame(split=["Train", "validation", "train"], client=["10", "10", "9"])
        federated = as_federation(readers.read_triple_table(self.write(frame, tmp_path / f"t{suffix}")))
        assert [client.name for client in federated.clients] == ["9", "10"]
        assert client_by_name(federated, federated.clients[0], "train") == [self.ROWS[2]]
        assert client_by_name(federated, federated.clients[1], "train") == [self.ROWS[0]]
        assert client_by_name(federated, federated.clients[1], "valid") == [self.ROWS[1]]
        assert any(line.startswith("test: 2 empty splits in 2 of 2 clients") for line in federated.warnings)

    def test_named_columns_and_integers(self, tmp_path: Path) -> None:
        path = tmp_path / "t.parquet"
        pq.write_table(
            pa.table(
                {"s": [1, 2], "p": pa.array(["x", "y"]).dictionary_encode(), "o": [3, 1], "part": ["train", "test"]}
            ),
            path,
        )
        graph = as_graph(readers.read_triple_table(path, ("s", "p", "o"), split_column="part"))
        assert by_name(graph, "train") == [("1", "x", "3")]
        assert by_name(graph, "test") == [("2", "y", "1")]

    @pytest.mark.parametrize(
        ("header", "taken"),
        [
            ("subject,predicate,object,site", "subject as head, predicate as relation, object as tail, site as client"),
            ("Subject,Predicate,Object,Silo", "Subject as head, Predicate as relation, Object as tail, Silo as client"),
            ("source,relation,target,client", "source as head, target as tail"),
            ("h,r,t,party", "h as head, r as relation, t as tail, party as client"),
        ],
    )
    @pytest.mark.parametrize("suffix", [".csv", ".tsv", ".parquet"])
    def test_columns_are_found_by_the_names_that_tools_give_them(
        self, tmp_path: Path, header: str, taken: str, suffix: str
    ) -> None:
        frame = pd.DataFrame([("a", "r", "b", "north"), ("b", "r", "c", "south")], columns=header.split(","))
        path = self.write(frame, tmp_path / f"t{suffix}")
        federated = as_federation(readers.read_triple_table(path))
        assert [client.name for client in federated.clients] == ["north", "south"]
        assert client_by_name(federated, federated.clients[1], "train") == [("b", "r", "c")]
        assert f"{path}: read {taken}" in federated.warnings

    @pytest.mark.parametrize(
        ("name", "text"), [("t.csv", "a,r,b\nb,r,c\n"), ("t.csv", "a;r;b\nb;r;c\n"), ("t.tsv", "a\tr\tb\nb\tr\tc\n")]
    )
    def test_a_table_of_three_columns_needs_no_line_of_names(self, tmp_path: Path, name: str, text: str) -> None:
        (tmp_path / name).write_text(text)
        graph = as_graph(readers.read_triple_table(tmp_path / name))
        assert by_name(graph, "train") == [("a", "r", "b"), ("b", "r", "c")]
        assert "no header line" in graph.warnings[0]

    def test_relations_in_the_first_column_are_noticed(self, tmp_path: Path) -> None:
        rows = "".join(f"likes,person {number},thing {number}\n" for number in range(20))
        (tmp_path / "t.csv").write_text(f"head,relation,tail\n{rows}")
        (warning, _) = as_graph(readers.read_triple_table(tmp_path / "t.csv")).warnings
        assert "1 different heads and 20 different relations; if relations come first" in warning
        swapped = as_graph(readers.read_triple_table(tmp_path / "t.csv", ("relation", "head", "tail")))
        assert not any("relations come first" in line for line in swapped.warnings)

    def test_quoting_is_for_csv_alone(self, tmp_path: Path) -> None:
        (tmp_path / "t.csv").write_text('head,relation,tail\n"a ""b""\nc",r,d\n')
        (tmp_path / "t.tsv").write_text('head\trelation\ttail\n"Weird Al" Y\tr\t"\n')
        (tmp_path / "t.txt").write_text("head;relation;tail\na;r;b\n")
        assert by_name(as_graph(readers.read_triple_table(tmp_path / "t.csv")), "train") == [('a "b"\nc', "r", "d")]
        assert by_name(as_graph(readers.read_triple_table(tmp_path / "t.tsv")), "train") == [('"Weird Al" Y', "r", '"')]
        semicolons = as_graph(readers.read_triple_table(tmp_path / "t.txt", delimiter=";"))
        assert by_name(semicolons, "train") == [("a", "r", "b")]

    def test_a_csv_of_spreadsheets_has_semicolons(self, tmp_path: Path) -> None:
        """Where a comma stands before decimals; with a byte order mark, commas in cells, columns in any order."""
        (tmp_path / "t.csv").write_bytes(
            '\ufefftail;note;head;relation\r\nMüller, Ward 3;1,5;"a;b";is part of\r\n'.encode()
        )
        (tmp_path / "u.csv").write_text("head,relation,tail;\na,r,b;c\n")
        found = as_graph(readers.read_triple_table(tmp_path / "t.csv"))
        assert by_name(found, "train") == [("a;b", "is part of", "Müller, Ward 3")]
        with pytest.raises(DataError, match="no column tail"):
            readers.read_triple_table(tmp_path / "u.csv")
        with pytest.raises(DataError, match="no column head"):
            readers.read_triple_table(tmp_path / "t.csv", delimiter=",")

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (b"head,link,tail\na,r,b\n", "t.csv: no column relation (the first line has: head, link, tail)" + OTHERS),
            (b"", "t.csv: no column head, relation, tail (the first line has: )" + OTHERS),
            (b"head,relation,tail,tail\na,r,b,c\n", "t.csv: more than one column tail"),
            (b"head,relation,tail\na,r,b\na,r\n", "t.csv:3: expected 3 fields, found 2"),
            (b"head,relation,tail\na,r,b,c\n", "t.csv:2: expected 3 fields, found 4"),
            (b'head,relation,tail\n"a\nb",r,c\na,r\n', "t.csv:4: expected 3 fields, found 2"),
            (b"head,relation,tail\n\na,r,b\n", "t.csv:2: expected 3 fields, found a blank line"),
            (b"head,relation,tail\na,r,b\na,r, \n", "t.csv:3: the tail cell is empty"),
            (b'head,relation,tail\na,r,b\n"a,r,b\n', "t.csv:3: unexpected end of data"),
            (b"head,relation,tail\na,r,\xe9\n", "t.csv:2: not UTF-8 (byte 0xe9)"),
            (
                b"head,relation,tail,split\na,r,b,train\na,r,b,holdout\n",
                "t.csv:3: split 'holdout' is none of train, valid, validation, val, dev, test",
            ),
            (b"head,relation,tail,split\na,r,b,test\n", "t.csv (train): the train split is empty"),
            (b"head,relation,tail\n", "t.csv (train): the train split is empty"),
            (
                b"head,relation,tail,split,client\na,r,b,train,1\na,r,b,test,2\n",
                "t.csv (client 2, train): the train split is empty",
            ),
        ],
    )
    def test_bad_csv(self, tmp_path: Path, content: bytes, message: str) -> None:
        (tmp_path / "t.csv").write_bytes(content)
        with pytest.raises(DataError) as error:
            readers.read_triple_table(tmp_path / "t.csv")
        assert str(error.value) == f"{tmp_path}/{message}"

    @pytest.mark.parametrize(
        ("tails", "message"),
        [
            (pa.array(["b", None]), r"t\.parquet row 2: the tail cell is empty$"),
            (pa.array(["", "b"]), r"t\.parquet row 1: the tail cell is empty$"),
            (pa.array([1.0, 2.0]), r"t\.parquet: column tail must hold text or integers, not double$"),
        ],
    )
    def test_bad_parquet(self, tmp_path: Path, tails: pa.Array, message: str) -> None:
        pq.write_table(pa.table({"head": ["a", "a"], "relation": ["r", "r"], "tail": tails}), tmp_path / "t.parquet")
        with pytest.raises(DataError, match=message):
            readers.read_triple_table(tmp_path / "t.parquet")

    def test_bad_arguments(self, tmp_path: Path) -> None:
        path = self.write(self.frame(), tmp_path / "t.csv")
        with pytest.raises(DataError, match="no column fold "):
            readers.read_triple_table(path, split_column="fold")
        with pytest.raises(DataError, match="one column is requested twice"):
            readers.read_triple_table(path, ("head", "head", "tail"))
        with pytest.raises(DataError, match="delimiter ';;' must be one character"):
            readers.read_triple_table(path, delimiter=";;")


class TestRdf:
    NTRIPLES = (
        "# a comment\n<http://x/a> <http://x/knows> _:someone .\n\n"
        '<http://x/a> <http://x/name> "A" .\n_:someone <http://x/knows> <http://x/a> .\n'
        "<http://x/a> <http://x/knows> _:someone .\n"
    )
    TURTLE = (
        "@prefix x: <http://x/> .\nx:a x:knows _:other ; x:name 'A' .\n_:other x:knows x:a .\nx:a x:knows _:other .\n"
    )

    @pytest.fixture(autouse=True)
    def needs_rdflib(self) -> None:
        pytest.importorskip("rdflib", reason="the extra rdf is not installed")

    @pytest.mark.parametrize(("suffix", "content"), [(".nt", NTRIPLES), (".ttl", TURTLE)])
    def test_both_formats(self, tmp_path: Path, suffix: str, content: str) -> None:
        path = tmp_path / f"g{suffix}"
        path.write_text(content)
        graph = readers.read_rdf(path)
        assert by_name(graph, "train") == [
            ("http://x/a", "http://x/knows", "_:b0"),
            ("_:b0", "http://x/knows", "http://x/a"),
            ("http://x/a", "http://x/knows", "_:b0"),
        ]
        place = f"{path}:6" if suffix == ".nt" else f"{path} statement 4"
        assert graph.warnings == (
            f"{path}: 3 statements, all in train (RDF has no splits)",
            f"{path}: 1 statements with a literal object left out: http://x/name (1)",
            f"train: 1 duplicate triple, first at {place}",
        )
        assert graph.hash == readers.read_rdf(path).hash  # blank nodes get the same names every time

    def test_relative_iris_do_not_depend_on_the_place(self, tmp_path: Path) -> None:
        (tmp_path / "g.ttl").write_text("<a> <knows> <b> .\n")
        assert readers.read_rdf(tmp_path / "g.ttl").entities == ("file:///a", "file:///b")

    @pytest.mark.parametrize(
        ("file", "content", "message"),
        [
            ("g.nt", "<x:a> <x:b> <x:c> .\n<x:a> <x:b> .\n", r"g\.nt:2: not an N-Triples statement \(.+\)$"),
            ("g.nt", "<x:a> <x:b> <x:c> .\n<x:a> <x:b> <x:c>\n", r"g\.nt:2: not an N-Triples statement \(.+\)$"),
            ("g.nt", "<x:a> <x:b> <c> .\n", r"g\.nt:1: not an N-Triples statement \(.+\)$"),
            ("g.ttl", "<a> <b> <c> .\n<a> <b .\n", r"g\.ttl:2: not Turtle \(.+\)$"),
            ("g.ttl", "<a> <b> <c> .\nx:a <b> <c> .\n", r"g\.ttl:2: not Turtle \(.*x:.*\)$"),
            ("g.nt", '<x:a> <x:b> "c" .\n', r"g\.nt: no statement between resources \(1 with a literal object\)$"),
            ("g.ttl", "", r"g\.ttl: no statement between resources \(0 with a literal object\)$"),
        ],
    )
    def test_bad_rdf(self, tmp_path: Path, file: str, content: str, message: str) -> None:
        (tmp_path / file).write_text(content)
        with pytest.raises(DataError, match=message):
            readers.read_rdf(tmp_path / file)


def test_missing_rdflib_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without_rdflib(name: str, *args: object, **options: object) -> object:
        if name.partition(".")[0] == "rdflib":
            raise ImportError(name)
        return real(name, *args, **options)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(builtins, "__import__", without_rdflib)
    with pytest.raises(DataError, match=r"g\.nt: reading RDF needs rdflib; pip install 'fkgsec\[rdf\]'$"):
        readers.read_rdf(tmp_path / "g.nt")


class TestReadPath:
    def test_folders(self, tmp_path: Path) -> None:
        assert isinstance(readers.read_path(write_folder(tmp_path / "g")), KnowledgeGraph)
        write_folder(tmp_path / "f/0")
        assert isinstance(readers.read_path(tmp_path / "f"), FederatedGraph)
        (tmp_path / "g/train.txt").unlink()
        with pytest.raises(DataError, match=r"missing train\.txt"):
            readers.read_path(tmp_path / "g")

    def test_files(self, tmp_path: Path) -> None:
        (tmp_path / "g.txt").write_text(TRAIN)
        (tmp_path / "g.TSV").write_text("head\trelation\ttail\n" + TRAIN)
        graph = as_graph(readers.read_path(str(tmp_path / "g.txt")))
        assert graph.warnings == (f"{tmp_path}/g.txt: no splits, all 2 triples are in train",)
        assert as_graph(readers.read_path(tmp_path / "g.TSV")).hash == graph.hash

    @pytest.mark.parametrize("name", ["empty", "g.xlsx"])
    def test_unknown_layout_lists_the_accepted_ones(self, tmp_path: Path, name: str) -> None:
        (tmp_path / "empty").mkdir()
        (tmp_path / "g.xlsx").write_text("")
        with pytest.raises(DataError) as error:
            readers.read_path(tmp_path / name)
        there = "; it is empty" if name == "empty" else ""
        assert str(error.value) == (
            f"{tmp_path / name}: not a layout that can be read{there}; accepted: {'; '.join(readers.LAYOUTS)}"
        )


@needs_data
class TestPublishedFiles:
    def test_ddb14_follows_its_dict_files(self) -> None:
        graph = readers.read_tsv_folder(Path(DATA or "") / "DDB14")
        assert graph.entities[:4] == ("3884", "1", "7034", "7351")
        assert graph.relations[2] == "may cause"
        assert [len(getattr(graph, split)) for split in SPLITS] == [36_561, 4_000, 4_000]

    def test_fedlu_clients_make_up_fb15k_237(self) -> None:
        federated = readers.read_client_folders(Path(DATA or "") / "FB15k-237-fedlu/R3")
        assert [client.name for client in federated.clients] == ["0", "1", "2"]
        assert sum(len(client.triples) for client in federated.clients) == 310_116
        assert len(federated.entities) == 14_541
