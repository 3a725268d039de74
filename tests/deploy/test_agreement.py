"""What is agreed on beforehand: what is supported is declared, and the rest refused by name before anything runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fkgsec.data.consortium import generate_consortium
from fkgsec.errors import DataError, FkgsecError, RunError, SpecError
from fkgsec.experiments.deploy.agreement import ALGORITHMS, Agreement, agreed_terms, check_apart, new_identity, new_run
from fkgsec.experiments.deploy.data import client_graph, read_party_data, write_party_folders
from fkgsec.experiments.deploy.party import Party
from fkgsec.experiments.runs.spec import make_spec
from fkgsec.federation.options import replace
from fkgsec.federation.recipes import algorithms_of
from fkgsec.kge.options import KgeOptions

RUN = "0" * 32


def test_every_algorithm_that_exchanges_anything_is_supported() -> None:
    assert set(ALGORITHMS) == {name for name, recipe in algorithms_of("kge").items() if recipe.shared}


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"algorithm": "single"}, "algorithm: single exchanges nothing with parties apart; allowed: fede,"),
        ({"algorithm": "collective"}, "algorithm: collective exchanges nothing"),
        ({"model": "noge"}, "model: noge has an encoder, which is not supported"),
        ({"negative_scope": "all"}, "negative_scope and rank_scope must be own with parties apart"),
        ({"defense": "secagg:dropout=0.1"}, "dropout simulates parties that fall silent"),
        ({"protocol_seed": 3}, "protocol_seed opens every upload"),
        ({"defense": "psu,secagg", "algorithm": "feds"}, "needs a server that knows who holds each row"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(SpecError, match=reason):
        Agreement(run=RUN, options=KgeOptions(**options), parties=("a", "b"))


def test_another_task_is_refused_by_name() -> None:
    spec = make_spec(None, {"algorithm": "cefgl"})
    with pytest.raises(SpecError, match="parties apart embed knowledge graphs; got GnnOptions"):
        check_apart(spec.federation_options())


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"run": "x"}, "run must be 32 hexadecimal digits; got 'x'"),
        ({"parties": ("a",)}, "parties must be at least 2 different names; got a"),
        ({"parties": ("a", "a")}, "parties must be at least 2 different names; got a, a"),
        ({"options": KgeOptions(eval_sample=2)}, "eval_sample must be at least fewest_triples, 10; got 2"),
        ({"largest_bytes": 0}, "largest_bytes must lie in 1..2,147,483,647; got 0"),
        ({"options": KgeOptions(defense="secagg")}, "identities: a, b must have a public key under secagg"),
        ({"identities": {"c": "0" * 64}}, "identities: 'c' is no party; allowed: a, b"),
        ({"identities": {"a": "00"}}, "identities: the key of a must be 64 hexadecimal digits; got '00'"),
    ],
)
def test_terms_are_checked(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(SpecError, match=reason.replace("(", r"\(")):
        Agreement(**({"run": RUN, "options": KgeOptions(), "parties": ("a", "b")} | changes))


def test_terms_survive_a_file_and_any_change_of_them_is_another_digest(tmp_path: Path) -> None:
    terms = Agreement(run=new_run(), options=KgeOptions(algorithm="feds", dim=8), parties=("a", "b"))
    terms.write(tmp_path / "agreement.json")
    assert Agreement.read(tmp_path / "agreement.json") == terms
    changed = [
        msgspec.structs.replace(terms, options=replace(terms.options, sparsity=0.5)),
        msgspec.structs.replace(terms, parties=("b", "a")),
        msgspec.structs.replace(terms, randomness="laboratory"),
        msgspec.structs.replace(terms, run=new_run()),
    ]
    assert len({one.digest for one in [terms, *changed]}) == 5
    assert msgspec.structs.replace(terms, options=replace(terms.options, device="cpu")).digest == terms.digest


@pytest.mark.parametrize("content", [b"", b"{", b'{"run": 3}', b"\xff", b"[" * 100_000])
def test_files_that_are_no_agreement_are_refused_in_a_line(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "agreement.json"
    path.write_bytes(content)
    with pytest.raises(FkgsecError, match=r"agreement.json: no agreement"):
        Agreement.read(path)


def test_two_runs_have_no_session_in_common() -> None:
    terms = Agreement(run=new_run(), options=KgeOptions(), parties=("a", "b"))
    other = msgspec.structs.replace(terms, run=new_run())
    sessions = {*agreed_terms(terms).sessions.values(), *agreed_terms(other).sessions.values()}
    assert len(sessions) == 2 * len(agreed_terms(terms).sessions)


def test_a_secret_is_for_its_user_alone_and_stays_what_it_is(tmp_path: Path) -> None:
    key = new_identity(tmp_path / "a", RUN)
    assert (tmp_path / "a" / "identity.key").stat().st_mode & 0o777 == 0o600
    assert new_identity(tmp_path / "a", RUN) == key
    assert new_identity(tmp_path / "a", "1" * 32) != key
    (tmp_path / "a" / "identity.key").write_bytes(b"short")
    with pytest.raises(RunError, match="a secret has 32 bytes; got 5"):
        new_identity(tmp_path / "a", RUN)


def test_a_party_is_one_of_the_agreement_with_its_own_key_and_data(
    consortium: Callable[..., Any], tmp_path: Path
) -> None:
    apart = consortium()
    own = client_graph(apart.graph, 0)
    with pytest.raises(SpecError, match="party: 'stranger' is not among the parties hospital-1"):
        Party(tmp_path / "x", "stranger", apart.terms, own)
    with pytest.raises(SpecError, match="identities: the agreement has the key"):
        Party(tmp_path / "x", "hospital-1", apart.terms, own)
    with pytest.raises(DataError, match="a party has the data of one client; got 3"):
        Party(tmp_path / "hospital-1", "hospital-1", apart.terms, apart.graph)
    apart.train()
    with pytest.raises(RunError, match="belongs to a run with other options or data"):
        Party(tmp_path / "hospital-1", "hospital-1", apart.terms, client_graph(apart.graph, 1))


def test_folders_of_parties_read_back_as_what_each_has(tmp_path: Path) -> None:
    graph = generate_consortium(clients=3, size=300, seed=0)
    folders = write_party_folders(graph, tmp_path)
    for place, (folder, client) in enumerate(zip(folders, graph.clients, strict=True)):
        read, own = read_party_data(folder, client.name), client_graph(graph, place)
        assert read.entities == own.entities
        assert read.relations == own.relations
        assert set(own.entities) == {graph.entities[number] for number in client.entity_ids}
        for split in ("train", "valid", "test"):
            assert (getattr(read.clients[0], split) == getattr(client, split)).all()
    with pytest.raises(DataError, match="cannot be written"):
        write_party_folders(graph, tmp_path)
