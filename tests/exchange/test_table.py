"""Aggregation, by hand: three clients, five entities."""

from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor

from fkgsec.errors import RunError
from fkgsec.exchange import AGGREGATIONS, CODECS, Delivered, Holding, SharedTable, Transport, Upload
from fkgsec.exchange.server import TableServer
from fkgsec.federation.messages import SERVER, Alignment, Channel, Rows
from fkgsec.kge.options import KgeOptions

OPTIONS = KgeOptions(device="cpu")


def mean(previous: Tensor, uploads: dict[str, Upload]) -> Tensor:
    """The mean over holders."""
    aggregation = AGGREGATIONS["mean"](SharedTable("entities"), OPTIONS)
    return aggregation.aggregate(1, previous, Delivered((previous.shape[0], previous.shape[1]), uploads))


UPLOADS = {
    "a": Upload(torch.tensor([0, 1]), torch.tensor([[1.0], [2.0]])),
    "b": Upload(torch.tensor([1, 3]), torch.tensor([[4.0], [10.0]])),
    "c": Upload(torch.tensor([3, 1]), torch.tensor([[20.0], [6.0]])),
}


def test_mean_over_holders_by_hand() -> None:
    # row 0: 1; row 1: (2 + 4 + 6) / 3; row 2 nobody; row 3: (10 + 20) / 2; row 4 nobody
    assert mean(torch.full((5, 1), 9.0), UPLOADS).flatten().tolist() == [1, 4, 9, 15, 9]


def test_integer_weights_by_hand() -> None:
    weighted = {
        party: one._replace(weight=weight) for (party, one), weight in zip(UPLOADS.items(), (1, 2, 5), strict=True)
    }
    # row 1: (2 + 2 x 4 + 5 x 6) / 8; row 3: (2 x 10 + 5 x 20) / 7
    after = mean(torch.full((5, 1), 9.0), weighted).flatten()
    torch.testing.assert_close(after, torch.tensor([1.0, 5.0, 9.0, 120 / 7, 9.0]))


@pytest.fixture
def server() -> TableServer:
    made = TableServer(
        SharedTable("entities", ("client/a", "client/b")), CODECS["dense"], AGGREGATIONS["mean"], OPTIONS
    )
    made.shared.align(Alignment(0, "client/a", SERVER, "entities", ["x", "y", "z"], 2))
    made.shared.align(Alignment(0, "client/b", SERVER, "entities", ["y", "w"], 2))
    made.initialise(torch.zeros(4, 1))
    return made


def upload(sender: str, *values: float) -> Rows:
    return Rows.pack(1, sender, SERVER, "entities", torch.tensor(values)[:, None])


def test_a_client_uploads_what_it_trains_and_receives_more(server: TableServer) -> None:
    messages = upload("client/a", 1.0, 2.0), upload("client/b", 4.0, 7.0)
    server.aggregate(1, {message.sender: server.codec.accept(1, message) for message in messages})
    assert server.shared.rows.flatten().tolist() == [1, 3, 0, 7]


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (upload("client/c", 1.0), "by client/c, who is unknown"),
        (upload("client/a", 1.0, 2.0, 3.0), "client/a uploaded 3 rows of entities; 2 expected"),
        (
            Rows.pack(1, "client/a", SERVER, "entities", torch.zeros(2, 3)),
            "client/a uploaded rows of entities of width 3; 1 expected",
        ),
        (Alignment(1, "client/a", SERVER, "entities", [], 0), "client/a uploaded alignment of entities; rows expected"),
    ],
)
def test_uploads_that_do_not_fit(server: TableServer, message: Rows, says: str) -> None:
    with pytest.raises(RunError, match=says):
        server.codec.accept(1, message)


def test_a_second_alignment_a_repeated_name_and_a_weight_of_nothing(server: TableServer) -> None:
    table = server.shared
    with pytest.raises(RunError, match="client/a sent a second alignment"):
        table.align(Alignment(0, "client/a", SERVER, "entities", ["x"], 1))
    with pytest.raises(RunError, match="client/c named a row of entities twice"):
        table.align(Alignment(0, "client/c", SERVER, "entities", ["x", "x"], 2))
    with pytest.raises(RunError, match="client/c gave 0 as its weight in entities; at least 1 is needed"):
        table.align(Alignment(0, "client/c", SERVER, "entities", ["x"], 1, 0))


PARTIES = ("client/a", "client/b", "client/c")
ROWS = {party: torch.full((1, 1), value) for party, value in zip(PARTIES, (1e8, 1.0, -1e8), strict=True)}


def after(order: tuple[str, ...], weights: dict[str, int]) -> float:
    """The mean of one row that three clients hold, uploaded in this order."""
    transport = Transport(Channel(), OPTIONS, PARTIES, ("entities",), "a run")
    transport.align("entities", {party: Holding(["x"], 1, weights[party]) for party in PARTIES})
    transport.initialise("entities", torch.zeros(1, 1))
    transport.broadcast(0, "entities", PARTIES)
    transport.upload(1, "entities", {party: ROWS[party] for party in order})
    return float(transport.server["entities"].rows)


def test_sums_run_in_the_order_of_the_parties_whoever_arrives_first() -> None:
    """1e8 + 1 - 1e8 is 0 in float32, and 1e8 - 1e8 + 1 is 1."""
    ones = dict.fromkeys(PARTIES, 1)
    assert after(PARTIES, ones) == after(PARTIES[::-1], ones) == after((PARTIES[0], PARTIES[2], PARTIES[1]), ones) == 0


def test_weights_of_holdings_reach_the_mean() -> None:
    assert after(PARTIES, {"client/a": 1, "client/b": 2, "client/c": 1}) == 0
    assert after(PARTIES, {"client/a": 3, "client/b": 1, "client/c": 1}) == pytest.approx(2e8 / 5)


def aligned() -> Transport:
    transport = Transport(Channel(), OPTIONS, PARTIES, ("entities",), "a run")
    transport.align("entities", {party: Holding(["x"], 1) for party in PARTIES})
    transport.initialise("entities", torch.zeros(1, 1))
    return transport


def test_a_second_upload_of_one_client_changes_nothing() -> None:
    transport = aligned()
    deliver = transport._deliver
    transport._deliver = lambda stage, *frame: [*deliver(stage, *frame)] * (2 if stage == "upload" else 1)  # type: ignore[method-assign]
    with pytest.raises(RunError, match="an upload of entities by client/a, who sent one already"):
        transport.upload(1, "entities", ROWS)
    assert transport.server["entities"].rows.tolist() == [[0.0]]


@pytest.mark.parametrize("change", [{"sender": "client/a"}, {"round": 0}, {"table": "relations"}])
def test_an_upload_in_another_name_or_of_another_round_or_table_is_refused(change: dict[str, Any]) -> None:
    transport = aligned()
    send = transport.channel.send
    transport.channel.send = lambda one: msgspec.structs.replace(  # type: ignore[method-assign]
        send(one), **(change if one.sender == "client/b" else {})
    )
    with pytest.raises(RunError, match=r"server was to be sent \('rows', 1, 'client/b', 'server', 'entities'\)"):
        transport.upload(1, "entities", ROWS)
    assert transport.server["entities"].rows.tolist() == [[0.0]]
