"""The catalogue, and downloads against a local server that can break off, lie and refuse."""

from __future__ import annotations

import hashlib
import os
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from fkgsec.data import catalogue, download
from fkgsec.data.graph import FederatedGraph, KnowledgeGraph
from fkgsec.errors import DataError

DATA = os.environ.get("FKGSEC_DATA")
needs_data = pytest.mark.skipif(not DATA, reason="FKGSEC_DATA is not set")


@dataclass
class Server:
    """What the server has, how it misbehaves, and what it was asked."""

    address: str = ""
    content: dict[str, bytes] = field(default_factory=dict)
    statuses: list[int] = field(default_factory=list)  # given to the next requests
    break_after_bytes: list[int] = field(default_factory=list)  # for the next requests
    ignores_range: bool = False
    shifts_range: bool = False
    asked: list[tuple[str, str | None]] = field(default_factory=list)


@pytest.fixture
def server() -> Iterator[Server]:
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = self.headers.get("Range")
            state.asked.append((self.path, wanted))
            assert self.headers["Accept-Encoding"] == "identity"
            status = state.statuses.pop(0) if state.statuses else 200
            if status != 200 or self.path not in state.content:
                self.send_error(status if status != 200 else 404)
                return
            body, start = state.content[self.path], 0
            if wanted and not state.ignores_range:
                start = int(re.fullmatch(r"bytes=(\d+)-", wanted)[1])  # pyright: ignore[reportOptionalSubscript]
                if start >= len(body):
                    self.send_error(416)
                    return
                start -= state.shifts_range
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
            else:
                self.send_response(200)
            body = body[start:]
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[: state.break_after_bytes.pop(0)] if state.break_after_bytes else body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        state.address = f"http://127.0.0.1:{http.server_port}"
        thread = threading.Thread(target=http.serve_forever, args=(0.01,))
        thread.start()
        yield state
        http.shutdown()
        thread.join()


BODIES = {
    "train.txt": b"a\tr\tb\n" * 1 + b"".join(b"e%d\tr\te%d\n" % (i, i + 1) for i in range(20_000)),
    "valid.txt": b"e0\tr\te2\n",
    "test.txt": b"e1\tr\te3\n",
}


@pytest.fixture
def toy(server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> catalogue.Dataset:
    """A catalogue of one dataset that the local server has, an empty cache and no data folder."""
    files = []
    for name, body in BODIES.items():
        server.content[f"/toy/{name}"] = body
        address, sha256 = f"{server.address}/toy/{name}", hashlib.sha256(body).hexdigest()
        files.append(catalogue.DataFile(f"Toy/{name}", address, sha256, len(body)))
    dataset = catalogue.Dataset("Toy", "Toy", "tsv-folder", "a toy", "none", "nobody", tuple(files))
    use_catalogue(monkeypatch, dataset)
    monkeypatch.setattr(download, "FIRST_PAUSE_S", 0.001)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("FKGSEC_DATA", raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    return dataset


def use_catalogue(monkeypatch: pytest.MonkeyPatch, dataset: catalogue.Dataset) -> None:
    monkeypatch.setattr(catalogue, "datasets", lambda: (dataset,))


def put(folder: Path) -> Path:
    (folder / "Toy").mkdir(parents=True)
    for name, body in BODIES.items():
        (folder / "Toy" / name).write_bytes(body)
    return folder


def fetch() -> Path:
    return catalogue.locate("toy", progress=False)


class TestCatalogue:
    def test_every_entry_is_whole(self) -> None:
        for dataset in catalogue.datasets():
            assert all((dataset.description, dataset.licence, dataset.citation))
            assert dataset.files
            for file in dataset.files:
                assert file.path == dataset.path or file.path.startswith(dataset.path + "/")
                unseen = file.sha256.startswith("git:")
                assert re.fullmatch(r"git:[0-9a-f]{40}" if unseen else r"[0-9a-f]{64}", file.sha256)
                assert unseen == (file.size_bytes == 0)
                assert file.address is None or not unseen  # nothing is downloaded whose length nobody knows
                # Pinned to a commit: a branch can change under us.
                pinned = r"https://raw\.githubusercontent\.com/[\w-]+/[\w-]+/[0-9a-f]{40}/[\w/.-]+"
                assert file.address is None or re.fullmatch(pinned, file.address)

    @pytest.mark.parametrize(
        ("name", "start"),
        [
            ("FB15k237", "no dataset or path 'FB15k237'; did you mean FB15k-237"),
            ("umsl", "no dataset or path 'umsl'; did you mean UMLS? known datasets: FB15k-237, WN18RR, "),
            ("zzz", "no dataset or path 'zzz'; known datasets: FB15k-237, WN18RR, "),
            ("", "no dataset or path ''; known datasets: "),
        ],
    )
    def test_unknown_name(self, name: str, start: str) -> None:
        with pytest.raises(DataError) as error:
            catalogue.load_dataset(name)
        assert str(error.value).startswith(start)


class TestDataFolder:
    def test_is_used_first_and_never_downloads(
        self, toy: catalogue.Dataset, server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setenv("FKGSEC_DATA", str(put(tmp_path / "data")))
        assert fetch() == tmp_path / "data/Toy"
        assert catalogue.locate("Toy", put(tmp_path / "other"), progress=False) == tmp_path / "other/Toy"
        assert server.asked == []

    def test_a_file_known_by_gits_id_alone(
        self, toy: catalogue.Dataset, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        # `printf 'e0\tr\te2\n' | git hash-object --stdin`
        known = catalogue.DataFile("Toy/valid.txt", None, "git:53b91779f93500655f83fb00203835e3542af92e", 0)
        use_catalogue(monkeypatch, replace(toy, files=(toy.files[0], known, toy.files[2])))
        folder = put(tmp_path / "data")
        assert catalogue.locate("Toy", folder) == folder / "Toy"
        (folder / "Toy/valid.txt").write_bytes(b"e0\tr\te3\n")
        with pytest.raises(
            DataError,
            match=r"not the file of Toy, expected git 53b91779f93500655f83fb00203835e3542af92e, found git [0-9a-f]{40};",
        ):
            catalogue.locate("Toy", folder)
        with pytest.raises(DataError, match=r"no stable public address is known for Toy/valid.txt"):
            catalogue.locate("Toy")

    def test_files_are_checked(self, toy: catalogue.Dataset, tmp_path: Path) -> None:
        file = put(tmp_path) / "Toy/valid.txt"
        file.write_bytes(b"e0\tr\te22\n")
        with pytest.raises(DataError, match=r"valid\.txt: not the file of Toy, expected 8 bytes, found 9 bytes"):
            catalogue.locate("Toy", tmp_path)
        file.write_bytes(b"e0\tr\te3\n")
        expected, found = toy.files[1].sha256, hashlib.sha256(b"e0\tr\te3\n").hexdigest()
        with pytest.raises(DataError, match=rf"not the file of Toy, expected sha256 {expected}, found sha256 {found}"):
            catalogue.locate("Toy", tmp_path)
        file.unlink()
        with pytest.raises(DataError, match=r"valid\.txt: missing, Toy needs it$"):
            catalogue.locate("Toy", tmp_path)


class TestDownload:
    def test_into_the_cache_once(
        self, toy: catalogue.Dataset, server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        folder = catalogue.locate("Toy")
        assert folder == tmp_path / "cache/fkgsec/Toy"
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == BODIES
        assert len(server.asked) == 3
        assert fetch() == folder
        assert len(server.asked) == 3
        output = capsys.readouterr()
        assert output.out == ""  # the bar is on standard error: output can be piped
        assert "Toy" in output.err

    def test_a_damaged_cache_is_downloaded_again(self, toy: catalogue.Dataset, server: Server) -> None:
        (fetch() / "valid.txt").write_bytes(b"e0\tr\tx2\n")
        assert (fetch() / "valid.txt").read_bytes() == BODIES["valid.txt"]
        assert [path for path, _ in server.asked[3:]] == ["/toy/valid.txt"]

    def test_resumes_after_a_broken_connection(self, toy: catalogue.Dataset, server: Server) -> None:
        server.break_after_bytes = [100_000, 50_000]
        assert (fetch() / "train.txt").read_bytes() == BODIES["train.txt"]
        asked = [wanted for path, wanted in server.asked if path == "/toy/train.txt"]
        assert asked == [None, "bytes=100000-", "bytes=150000-"]

    @pytest.mark.parametrize("fault", ["ignores_range", "shifts_range", "too long"])
    def test_starts_over_when_it_cannot_resume(
        self, toy: catalogue.Dataset, server: Server, tmp_path: Path, fault: str
    ) -> None:
        part = tmp_path / "cache/fkgsec/Toy/train.txt.part"
        part.parent.mkdir(parents=True)
        part.write_bytes(b"x" * (len(BODIES["train.txt"]) + 5 if fault == "too long" else 500))
        if fault != "too long":
            setattr(server, fault, True)
        assert (fetch() / "train.txt").read_bytes() == BODIES["train.txt"]

    @pytest.mark.parametrize("status", [429, 503])
    def test_a_passing_refusal_is_retried(self, toy: catalogue.Dataset, server: Server, status: int) -> None:
        server.statuses = [status, status]
        assert (fetch() / "train.txt").read_bytes() == BODIES["train.txt"]

    @pytest.mark.parametrize("wrong", ["changed", "longer"])
    def test_wrong_content_leaves_nothing(
        self, toy: catalogue.Dataset, server: Server, tmp_path: Path, wrong: str
    ) -> None:
        right = BODIES["train.txt"]
        served = b"X" + right[1:] if wrong == "changed" else right + b"X" * 100_000
        server.content["/toy/train.txt"] = served
        found = hashlib.sha256(served).hexdigest()
        message = {
            "changed": f"wrong file, expected sha256 {toy.files[0].sha256}, found {found}",
            "longer": f"wrong file, expected {len(right):,} bytes, found more",
        }[wrong]
        with pytest.raises(DataError) as error:
            fetch()
        assert str(error.value) == f"{server.address}/toy/train.txt: {message}"
        assert list((tmp_path / "cache/fkgsec/Toy").iterdir()) == []


class TestLoadDataset:
    def test_by_name(self, toy: catalogue.Dataset) -> None:
        graph = catalogue.load_dataset("TOY", progress=False)
        assert isinstance(graph, KnowledgeGraph)
        assert (graph.name, len(graph.train)) == ("Toy", 20_001)

    def test_by_path(self, toy: catalogue.Dataset, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        (tmp_path / "Toy").mkdir()
        for split in ("train", "valid", "test"):
            (tmp_path / f"Toy/{split}.txt").write_text("a\tr\tb\n")
        monkeypatch.chdir(tmp_path)
        for path in (Path("Toy"), "./Toy", str(tmp_path / "Toy")):
            graph = catalogue.load_dataset(path)
            assert isinstance(graph, KnowledgeGraph)
            assert np.array_equal(graph.train, [[0, 0, 1]])
        # The bare name is the catalogue's, whatever lies in the working folder.
        with pytest.raises(DataError, match="not the file of Toy"):
            catalogue.load_dataset("Toy", data_dir=tmp_path)
        with pytest.raises(DataError, match=r"none/graph: no such file or folder$"):
            catalogue.load_dataset("none/graph")


@needs_data
class TestPublishedFiles:
    @pytest.mark.parametrize("name", [dataset.name for dataset in catalogue.datasets()])
    def test_every_checksum_is_right(self, name: str) -> None:
        dataset = catalogue.find_dataset(name)
        if not all(file.address for file in dataset.files) and not (Path(str(DATA)) / dataset.path).exists():
            pytest.skip(f"{dataset.path} is not in the data folder")
        assert catalogue.locate(name, progress=False).exists()

    @pytest.mark.parametrize(("name", "num_clients"), [("DDB14-Fed5", 5), ("UMLS", None)])
    def test_load(self, name: str, num_clients: int | None) -> None:
        graph = catalogue.load_dataset(name)
        assert graph.name == name
        if num_clients is None:
            assert isinstance(graph, KnowledgeGraph)
        else:
            assert isinstance(graph, FederatedGraph)
            assert len(graph.clients) == num_clients
