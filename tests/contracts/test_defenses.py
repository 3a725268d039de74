"""Laws of every registered defense: its text, values and rows that are refused, rounds that nobody joins.

That a run under it goes on after a stop stands in `test_algorithms`.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from typing import get_type_hints

import msgspec
import pytest
import torch
from torch import Tensor

from fkgsec.defenses import KINDS, make_transport, parse_defense
from fkgsec.defenses.options import words_of
from fkgsec.errors import FkgsecError, SpecError
from fkgsec.exchange import Holding, Transport
from fkgsec.federation.messages import Channel
from fkgsec.kge.options import KgeOptions
from fkgsec.protocols.core.errors import ProtocolError

ALONE = {
    "psu": "psu,secagg",
    "suppress": "secagg,suppress:t=2",
    "dp": "dp:clip=0.5,epsilon=5,unit=row",
    "robust": "robust:rule=median",
}
"""What a defense needs beside it, or must be told."""
HELD = {"client/a": ["x", "y", "z"], "client/b": ["x", "y"], "client/c": ["x", "y"]}
every_defense = pytest.mark.parametrize("kind", KINDS)


def transport_of(kind: str) -> Transport:
    """Aligned, after the first broadcast."""
    options = KgeOptions(dim=4, defense=ALONE.get(kind, kind), protocol_seed=0, device="cpu")
    transport = make_transport(Channel(), options, list(HELD), ["entities"], "laws")
    transport.align("entities", {party: Holding(names, len(names)) for party, names in HELD.items()})
    transport.initialise("entities", torch.ones(3, 4))
    transport.broadcast(0, "entities", list(HELD))
    return transport


def rows(value: float = 0.5) -> Mapping[str, Tensor]:
    return {party: torch.full((len(names), 4), value) for party, names in HELD.items()}


@every_defense
def test_its_text_is_read_and_what_it_does_not_have_is_refused(kind: str) -> None:
    text = ALONE.get(kind, kind)
    assert kind in parse_defense(text).names
    assert parse_defense(f" {text.replace(',', ' , ')} ") == parse_defense(text)
    assert words_of(kind).startswith(kind)
    with pytest.raises(SpecError, match=f"defense: {kind}: .*no_such_setting"):
        parse_defense(f"{kind}:no_such_setting=1")
    defense = parse_defense(text)
    options = defense.others[kind] if kind in defense.others else getattr(defense, kind)
    assert msgspec.convert(msgspec.to_builtins(options), KINDS[kind]) == options
    for name, hint in get_type_hints(KINDS[kind]).items():
        for value in (math.nan, math.inf, -1.0) if hint in (float, float | None) else ():
            with pytest.raises(SpecError, match=name):
                msgspec.structs.replace(options, **{name: value})


@every_defense
def test_no_client_makes_the_table_something_that_is_no_number(kind: str) -> None:
    for bad in (float("nan"), float("inf")):
        transport, uploads = transport_of(kind), dict(rows())
        uploads["client/b"] = torch.full((2, 4), bad)
        with contextlib.suppress(FkgsecError, ProtocolError):
            transport.upload(1, "entities", uploads)
        assert transport.server["entities"].rows.isfinite().all()


@every_defense
def test_a_round_that_nobody_joins_leaves_the_table(kind: str) -> None:
    transport = transport_of(kind)
    transport.upload(1, "entities", rows())
    before = transport.server["entities"].rows.clone()
    assert not torch.equal(before, torch.ones(3, 4))
    with contextlib.suppress(FkgsecError, ProtocolError):
        assert transport.upload(2, "entities", {}).num_survivors == 0
    assert torch.equal(transport.server["entities"].rows, before)
