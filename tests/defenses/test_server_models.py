"""What a configuration is said to withstand, and never more."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from fkgsec.data.graph import FederatedGraph
from fkgsec.defenses.options import parse_defense
from fkgsec.defenses.statement import withstood
from fkgsec.defenses.transport import make_transport
from fkgsec.federation.loop import run_federation
from fkgsec.federation.protection import Withstands
from fkgsec.kge.options import KgeOptions
from fkgsec.protocols.secagg import safe_threshold


def by_part(defense: str, num_clients: int = 5, threshold: int = 0, *, bound: bool = True) -> dict[str, Withstands]:
    found = withstood(
        parse_defense(defense),
        num_clients,
        num_clients,
        threshold=threshold or safe_threshold(num_clients),
        bound=bound,
    )
    return {one.part: one for one in found}


@pytest.mark.parametrize(
    ("defense", "colluders"),
    [("psu,secagg", 2), ("psu,secagg,suppress:t=2", 2), ("secagg", 2), ("psu,secagg:neighbours=3", 0)],
)
def test_no_sum_is_said_to_withstand_a_server_that_chooses_the_table(defense: str, colluders: int) -> None:
    uploads = by_part(defense)["single uploads"]
    assert (uploads.server, uploads.colluders) == ("follows the protocol", colluders)
    assert "one that sends everybody a table of its choice can leave one client's part in the sum" in uploads.limit
    assert ("a row with one holder in the sum beside the colluders" in uploads.limit) == ("suppress" not in defense)
    unbound = by_part(defense, bound=False)["single uploads"]
    assert "one that sends clients different tables, or one of them no rows, reads uploads off the sum" in unbound.limit


@pytest.mark.parametrize(
    ("participation", "says"),
    [
        (0.6, "rounds have other participants, and the sums of many rounds give each client's mean change of a row"),
        (
            1.0,
            "where other clients survive from round to round, the sums of many rounds give each client's mean change",
        ),
    ],
)
def test_it_is_said_that_many_sums_tell_what_one_does_not(
    participation: float, says: str, graph: Callable[[int], FederatedGraph], options: KgeOptions
) -> None:
    options = msgspec.structs.replace(options, rounds=1, defense="psu,secagg", participation=participation)
    protection = run_federation(graph(5), options, make_transport=make_transport).protection
    assert any(says in one.limit for one in protection.withstands if one.part == "single uploads")


@pytest.mark.parametrize("num_clients", range(2, 30))
def test_two_honest_clients_are_in_every_sum(num_clients: int) -> None:
    for threshold in range(2, num_clients + 1):
        parts = by_part("psu,secagg", num_clients, threshold)
        assert threshold - parts["single uploads"].colluders >= 2
        # The union has a threshold of its own, whatever that of the sums.
        brought = parts["who brought a name to the alignment"].colluders
        assert brought <= max(0, safe_threshold(num_clients) - 2)


def test_each_part_is_said_by_itself() -> None:
    parts = by_part("psu,secagg,suppress:t=3,dp:clip=0.1,epsilon=3")
    assert {name: one.server for name, one in parts.items()} == {
        "who brought a name to the alignment": "follows the protocol",
        "single uploads": "follows the protocol",
        "rows with few holders": "follows the protocol",
        "values under noise": "follows the protocol",
    }
    assert parts["rows with few holders"].colluders == 1
    assert parts["values under noise"].colluders == 1  # more would leave too little noise
    local = by_part("dp:clip=0.1,epsilon=3")
    assert {name: (one.server, one.colluders) for name, one in local.items()} == {
        "which rows a client holds": ("none", 0),
        "values under noise": ("active", 4),
    }
    assert by_part("secagg")["which rows a client holds"].server == "none"
    assert by_part("") == {}


def test_a_run_says_it_in_its_result_and_its_lines(graph: Callable[[int], FederatedGraph], options: KgeOptions) -> None:
    """With three clients one of whom must not be told apart from another, one may collude: not two, as was said once."""
    options = msgspec.structs.replace(options, rounds=1, defense="psu,secagg")
    protection = run_federation(graph(3), options, make_transport=make_transport).protection
    (uploads,) = (one for one in protection.withstands if one.part == "single uploads")
    assert uploads.server == "follows the protocol"
    assert (uploads.colluders, uploads.threshold, uploads.num_clients) == (1, 3, 3)
    assert uploads.describe() in protection.lines()
    assert msgspec.json.decode(msgspec.json.encode(uploads), type=Withstands) == uploads
