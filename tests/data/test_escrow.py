"""Escrow: what is kept out of every run, and what an opened one is checked for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from typer.testing import CliRunner

from fkgsec import FederatedGraph, generate_consortium
from fkgsec.data.escrow import Escrow, read_escrow, split_escrow
from fkgsec.data.formats.folders import read_client_folders
from fkgsec.data.graph import SPLITS
from fkgsec.errors import DataError, SpecError
from fkgsec.experiments.cli.main import app

GRAPH = generate_consortium(clients=3, size=1500, seed=1)


def all_triples(graph: FederatedGraph) -> set[tuple[int, ...]]:
    return {
        tuple(triple)
        for client in graph.clients
        for split in SPLITS
        for triple in client.to_global(getattr(client, split)).tolist()
    }


def test_escrowed_triples_are_nowhere_left_and_no_vocabulary_shrinks() -> None:
    kept, escrowed = split_escrow(GRAPH, 0.1, np.random.default_rng(0))
    left = all_triples(kept)
    for before, after in zip(GRAPH.clients, kept.clients, strict=True):
        out = {tuple(triple) for triple in before.to_global(escrowed[before.name]).tolist()}
        assert len(out) == round(0.1 * len(np.unique(before.train, axis=0)))
        assert not out & left
        assert len(after.train) == len(before.train) - len(out)
        for column in (0, 2):
            assert set(before.train[:, column]) | set(before.train[:, 2 - column]) == set(
                after.train[:, [0, 2]].ravel()
            )
        assert set(before.train[:, 1]) == set(after.train[:, 1])
    assert not np.array_equal(
        escrowed["hospital-1"], split_escrow(GRAPH, 0.1, np.random.default_rng(1))[1]["hospital-1"]
    )
    with pytest.raises(SpecError, match=r"share must .*got 0"):
        split_escrow(GRAPH, 0, np.random.default_rng(0))


def test_a_triple_that_stands_twice_is_not_escrowed() -> None:
    first, second, third = GRAPH.clients
    doubled = replace(GRAPH, clients=(replace(first, test=first.train), second, third))
    with pytest.raises(DataError, match="client hospital-1: no training triple can be escrowed"):
        split_escrow(doubled, 0.1, np.random.default_rng(0))


def test_a_sealed_escrow_is_read_back_and_any_change_is_named(tmp_path: Path) -> None:
    kept, escrowed = split_escrow(GRAPH, 0.05, np.random.default_rng(0))
    sealed, path = Escrow.seal(kept, escrowed), tmp_path / "escrow.json"
    assert sealed.commitment != Escrow.seal(kept, escrowed).commitment, "a nonce hides equal contents"
    path.write_bytes(msgspec.json.encode(sealed))
    read, triples = read_escrow(path, kept)
    assert read == sealed
    for name, own in escrowed.items():
        np.testing.assert_array_equal(triples[name], own)

    fewer = {name: own[1:] for name, own in sealed.triples.items()}
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(sealed, triples=fewer)))
    with pytest.raises(DataError, match="was changed since it was sealed"):
        read_escrow(path, kept)
    path.write_bytes(msgspec.json.encode(sealed))
    with pytest.raises(DataError, match=r"belongs to data .*"):
        read_escrow(path, GRAPH)
    renamed = replace(kept, clients=tuple(replace(client, name=f"ward of {client.name}") for client in kept.clients))
    assert renamed.hash == kept.hash
    with pytest.raises(DataError, match="has triples of 'hospital-1', which is no client"):
        read_escrow(path, renamed)
    for damaged in (b"{}", b'{"data_hash": "\xe9"}'):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match="not an escrow file"):
            read_escrow(path, kept)


def test_an_escrow_of_triples_that_were_trained_on_is_refused(tmp_path: Path) -> None:
    """Sealed by hand over data that still hold them."""
    chosen = {client.name: client.train[:3] for client in GRAPH.clients}
    path = tmp_path / "escrow.json"
    path.write_bytes(msgspec.json.encode(Escrow.seal(GRAPH, chosen)))
    with pytest.raises(DataError, match="is in the data of the run"):
        read_escrow(path, GRAPH)


def test_the_command_writes_data_to_hand_over_and_never_writes_over_an_escrow(tmp_path: Path) -> None:
    command = ["data", "escrow", "--size", "900", "--out", str(tmp_path / "data"), "--escrow", str(tmp_path / "e.json")]
    made = CliRunner().invoke(app, command)
    assert made.exit_code == 0, made.output
    escrow, triples = read_escrow(tmp_path / "e.json", read_client_folders(tmp_path / "data"))
    assert f"Commitment {escrow.commitment}" in made.output
    assert all(len(own) for own in triples.values())
    again = CliRunner().invoke(app, command)
    assert again.exit_code == 2
    assert "exists, and a new random draw would differ; name another place, or give --overwrite" in again.output
