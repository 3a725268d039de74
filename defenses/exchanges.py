"""Which exchange an algorithm and a defense ask for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from defenses.exchange import DefendedExchange
from defenses.sparse import SparseSums
from fkgsec.exchange import Transport
from fkgsec.federation.messages import Channel
from fkgsec.federation.options import FederationOptions
from fkgsec.federation.recipes import RECIPES, Table


def make_exchange(
    channel: Channel, options: FederationOptions, parties: Sequence[str], tables: Sequence[Table], run: str
) -> Any:
    """The exchange that `options.defense` asks for; in clear when it asks for none."""
    if not options.defense:
        return Transport(channel, options, parties, tables, run)
    sparse = RECIPES[options.algorithm].codec == "top-k"
    return (SparseSums if sparse else DefendedExchange)(channel, options, parties, tables, run)
