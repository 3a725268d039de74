"""Aggregation, by hand: three clients, five entities."""

import pytest
import torch

from fkgsec.errors import RunError
from fkgsec.federation.messages import SERVER, Alignment, Rows
from fkgsec.federation.server import SharedTable, mean_over_holders


def test_mean_over_holders_by_hand() -> None:
    previous = torch.full((5, 1), 9.0)
    uploads = [
        (torch.tensor([0, 1]), torch.tensor([[1.0], [2.0]])),
        (torch.tensor([1, 3]), torch.tensor([[4.0], [10.0]])),
        (torch.tensor([3, 1]), torch.tensor([[20.0], [6.0]])),
    ]
    # row 0: 1; row 1: (2 + 4 + 6) / 3; row 2 nobody; row 3: (10 + 20) / 2; row 4 nobody
    assert mean_over_holders(previous, uploads).flatten().tolist() == [1, 4, 9, 15, 9]


def test_nobody_uploads() -> None:
    previous = torch.randn(3, 2)
    assert torch.equal(mean_over_holders(previous, []), previous)


@pytest.fixture
def table() -> SharedTable:
    shared = SharedTable("entities")
    shared.align(Alignment(0, "client/a", SERVER, "entities", ["x", "y", "z"], 2))
    shared.align(Alignment(0, "client/b", SERVER, "entities", ["y", "w"], 2))
    shared.initialise(torch.zeros(4, 1))
    return shared


def upload(sender: str, *values: float) -> Rows:
    return Rows.pack(1, sender, SERVER, "entities", torch.tensor(values)[:, None])


def test_alignment_numbers_the_union(table: SharedTable) -> None:
    assert table.names == ["x", "y", "z", "w"]
    assert table.holdings["client/b"].tolist() == [1, 3]


def test_a_client_uploads_what_it_trains_and_receives_more(table: SharedTable) -> None:
    table.aggregate([upload("client/a", 1.0, 2.0), upload("client/b", 4.0, 7.0)])
    assert table.rows.flatten().tolist() == [1, 3, 0, 7]


@pytest.mark.parametrize(
    ("uploads", "message"),
    [
        ([upload("client/c", 1.0)], "by client/c, who is unknown"),
        ([upload("client/a", 1.0, 2.0)] * 2, "by client/a, who sent one already"),
        ([upload("client/a", 1.0, 2.0, 3.0)], "client/a uploaded 3 rows of entities; 2 expected"),
    ],
)
def test_uploads_that_do_not_fit(table: SharedTable, uploads: list[Rows], message: str) -> None:
    before = table.rows.clone()
    with pytest.raises(RunError, match=message):
        table.aggregate(uploads)
    assert torch.equal(table.rows, before)


def test_a_second_alignment_and_a_repeated_name(table: SharedTable) -> None:
    with pytest.raises(RunError, match="client/a sent a second alignment"):
        table.align(Alignment(0, "client/a", SERVER, "entities", ["x"], 1))
    with pytest.raises(RunError, match="client/c named a row of entities twice"):
        table.align(Alignment(0, "client/c", SERVER, "entities", ["x", "x"], 2))
