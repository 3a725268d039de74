"""Which exchange a recipe names."""

from __future__ import annotations

from collections.abc import Sequence

from fkgsec.federation.affinity import AffinityExchange
from fkgsec.federation.exchange import Exchange
from fkgsec.federation.low_rank import LowRankExchange
from fkgsec.federation.messages import Channel
from fkgsec.federation.options import FederationOptions
from fkgsec.federation.recipes import RECIPES, ExchangeName, Table
from fkgsec.federation.sparse import SparseExchange

EXCHANGES: dict[ExchangeName, type[Exchange]] = {
    "mean": Exchange,
    "top-k": SparseExchange,
    "low-rank": LowRankExchange,
    "affinity": AffinityExchange,
}


def exchange_in_clear(
    channel: Channel, options: FederationOptions, parties: Sequence[str], tables: Sequence[Table], run: str
) -> Exchange:
    """The exchange of the recipe, without any defense."""
    return EXCHANGES[RECIPES[options.algorithm].exchange](channel, options, parties, tables, run)
