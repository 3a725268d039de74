"""Names in one Unicode form: readers warn of two spellings, and one graph is made of them."""

import unicodedata
from pathlib import Path

import numpy as np

from fkgsec.data.formats.readers import read_path
from fkgsec.data.graph import FederatedGraph, KnowledgeGraph
from fkgsec.data.normalise import normalised

NFC, NFD = (unicodedata.normalize(form, "Café") for form in ("NFC", "NFD"))


def table(path: Path, *rows: str) -> Path:
    path.write_text("\n".join(("head,relation,tail,split,client", *rows)) + "\n", encoding="utf-8")
    return path


def spelled_twice(tmp_path: Path) -> FederatedGraph:
    graph = read_path(
        table(
            tmp_path / "g.csv",
            f"{NFC},knows,b,train,one",
            f"b,knows,{NFC},test,one",
            f"{NFD},knows,c,train,two",
            f"c,{NFD},b,train,two",
        )
    )
    assert isinstance(graph, FederatedGraph)
    return graph


def test_a_reader_warns_of_a_name_in_two_forms(tmp_path: Path) -> None:
    graph = spelled_twice(tmp_path)
    assert NFC in graph.entities
    assert NFD in graph.entities  # two entities
    warned = [line for line in graph.warnings if "Unicode" in line]
    assert len(warned) == 1  # the relation of the same name is no entity
    assert warned[0].startswith("entities: 1 name that is another but for its Unicode form")
    assert "g.csv:4" in warned[0]
    assert "--normalise nfc" in warned[0]
    kelvin = read_path(table(tmp_path / "k.csv", "K,r,b,train,one", "\u212a,r,b,train,one"))
    assert any("Unicode" in line for line in kelvin.warnings)


def test_plain_names_are_neither_warned_of_nor_changed(tmp_path: Path) -> None:
    graph = read_path(table(tmp_path / "g.csv", f"{NFC},knows,b,train,one", "b,knows,é,train,one"))
    assert not any("Unicode" in line for line in graph.warnings)
    assert normalised(graph) is graph


def test_two_spellings_become_one_entity_that_the_clients_share(tmp_path: Path) -> None:
    graph = spelled_twice(tmp_path)
    one = normalised(graph)
    assert one.entities == (NFC, "b", "c")
    assert one.relations == ("knows", NFC)
    shared = set(one.clients[0].entity_ids) & set(one.clients[1].entity_ids)
    assert {one.entities[number] for number in shared} == {NFC, "b"}
    assert one.hash != graph.hash
    assert normalised(one) is one
    assert any("1 entities became one with others" in line for line in one.warnings)

    def by_name(federated: FederatedGraph) -> list[tuple[str, ...]]:
        rows = np.concatenate([client.to_global(client.triples) for client in federated.clients])
        names = [(federated.entities[h], federated.relations[r], federated.entities[t]) for h, r, t in rows]
        return [tuple(unicodedata.normalize("NFC", name) for name in row) for row in names]

    assert by_name(one) == by_name(graph)


def test_a_graph_that_is_not_divided_yet(tmp_path: Path) -> None:
    (tmp_path / "g.txt").write_text(f"{NFD}\tr\tb\nb\tr\t{NFC}\n", encoding="utf-8")
    graph = read_path(tmp_path / "g.txt")
    assert isinstance(graph, KnowledgeGraph)
    assert normalised(graph).entities == (NFC, "b")
    assert normalised(graph).train.tolist() == [[0, 0, 1], [1, 0, 0]]
