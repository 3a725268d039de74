"""Degrees by rows: planted norms, shuffled ones, shared relations, and what noise leaves."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from fkgsec.attacks import KgeAttackOptions, run_attacks
from fkgsec.attacks.uploads.degrees import BLOCK, NEIGHBOURS, nearness
from fkgsec.attacks.uploads.pairs import closeness
from fkgsec.kge.models import ClientTables, KgeModel

SERVER = "server"


def with_planted_norms(result, fabricate, *, shuffled: bool = False):
    """The victims' rows shrunk by the number of their triples."""
    rng, trained = np.random.default_rng(0), []
    for client, tables in zip(result.graph.clients, result.trained, strict=True):
        degree = np.bincount(client.train[:, [0, 2]].ravel(), minlength=client.num_entities)
        if shuffled:
            degree[: client.num_trained_entities] = rng.permutation(degree[: client.num_trained_entities])
        unit = torch.nn.functional.normalize(
            torch.randn(tables.entities.shape, generator=torch.Generator().manual_seed(1))
        )
        trained.append(ClientTables(unit / torch.from_numpy(1.0 + degree)[:, None].float(), tables.relations))
    return fabricate(result.graph, trained, result.tables, dim=16)


@pytest.mark.planted("degrees", "norms that follow degrees: rank correlation above .98", {"degree": 70})
def test_planted_norms_are_read(federate, fabricate, attacked) -> None:
    found = attacked(with_planted_norms(federate(), fabricate), "degrees")
    one = found[SERVER, "hospital-2", "degree"]
    assert one.estimate.value > 0.98  # rows of one degree tie but for rounding
    assert (one.by, one.baseline.value, one.attainable) == ("norm", 0.0, 1.0)
    assert {metric for _, _, metric in found} == {"degree"}  # no relation crosses
    figures = run_attacks(with_planted_norms(federate(), fabricate), KgeAttackOptions(attack=("degrees",))).figures
    near = [one for one in figures if one.variant == "neighbours"]
    assert [one.victim for one in near] == ["hospital-2", "hospital-3"]
    for one in near:  # short rows lie near each other
        assert one.estimate.value > 0.8


@pytest.mark.planted(
    "degrees", "relations that move as far as they have triples: rank correlation above .98", {"volume": 16}
)
def test_planted_movements_are_read(federate, fabricate, attacked) -> None:
    result, trained = federate(), []
    for client, tables in zip(result.graph.clients, result.tables, strict=True):
        count = torch.from_numpy(np.bincount(client.train[:, 1], minlength=len(tables.relations))).float()
        unit = torch.full((1, tables.relations.shape[1]), tables.relations.shape[1] ** -0.5)
        trained.append(ClientTables(tables.entities, tables.relations + count[:, None] * unit))
    found = attacked(fabricate(result.graph, trained, result.tables, algorithm="fedr", dim=16), "degrees")
    one = found[SERVER, "hospital-2", "volume"]
    assert one.estimate.value > 0.98
    assert one.by == "movement"


@pytest.mark.null("degrees", "shuffled norms: the interval includes 0")
def test_shuffled_norms_tell_nothing(federate, fabricate, attacked) -> None:
    for one in attacked(with_planted_norms(federate(), fabricate, shuffled=True), "degrees").values():
        assert one.estimate.low <= 0 <= one.estimate.high


def test_trained_rows_tell_and_sums_do_not_change_that(federate, attacked) -> None:
    for defense in ("", "secagg", "psu,secagg"):
        for one in attacked(federate(defense), "degrees").values():
            assert one.estimate.low > 0.15, defense


def test_noise_stops_it(federate, attacked) -> None:
    for one in attacked(federate("dp:unit=row,clip=0.1,epsilon=8"), "degrees").values():
        assert one.estimate.low <= 0.0
        assert one.estimate.value < 0.3


def test_relations_by_how_far_their_rows_moved(federate, attacked) -> None:
    found = attacked(federate(algorithm="fedr", rounds=1), "degrees")
    assert {metric for _, _, metric in found} == {"volume"}
    one = found[SERVER, "hospital-2", "volume"]
    assert one.by == "movement"  # in the first round
    assert one.estimate.value > 0.2
    summed = attacked(federate("secagg", algorithm="fedr", rounds=1), "degrees")
    assert {one.reason for one in summed.values()} == {"its relations were transmitted only inside a sum"}


def test_movement_is_measured_from_what_the_server_sent(federate, attacked) -> None:
    """With the broadcast before the upload gone there is nothing to measure from."""
    result = federate(algorithm="fedr", rounds=1)
    transcript = dataclasses.replace(result.transcript, frames={1: result.transcript.frames[1]})
    found = attacked(dataclasses.replace(result, transcript=transcript), "degrees")
    assert {one.reason for one in found.values()} == {"its broadcasts were not stored"}


@pytest.mark.parametrize("name", ["transe", "complex"])
@pytest.mark.parametrize("block", [7, BLOCK])
def test_nearness_by_a_naive_loop(name: str, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fkgsec.attacks.uploads.degrees.BLOCK", block)
    model = KgeModel(name, 4)
    rows = torch.randn(30, model.entity_width, generator=torch.Generator().manual_seed(2))
    near = closeness(model, rows, rows)
    for row, value in enumerate(nearness(model, rows)):
        others = np.sort(np.delete(near[row], row))[::-1][:NEIGHBOURS]
        assert value == pytest.approx(others.mean(), rel=1e-5)
