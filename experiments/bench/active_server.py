"""An active server, and clients with or without the defenses against it, for tests and `experiments/results/defended`.

    python -m experiments.bench.active_server        # both comparisons on the embedded hospitals, as tables in Markdown

The server sends all clients but one a table far beyond the clip, in the broadcast after one round. They upload the clip in every
value, which the server subtracts from the next round's sum: what is left is the upload of the last client. Or it sends them
zeros, where entities of ComplEx and RotatE stay, and the last client nothing but the commitment. Source: Pasquini, Francati and
Ateniese, "Eluding secure aggregation in federated learning via model inconsistency", 2022.

No option of the command line comes here. `unprotected` clients exist so that a test of the defense shows that it would notice.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from defenses.bound_broadcasts import BoundBroadcasts
from defenses.broadcasts import BroadcastError
from defenses.exchange import DefendedExchange
from defenses.exchanges import make_exchange
from defenses.sparse import SparseSums
from experiments.cli.progress import unobserved
from experiments.runs.compare import compare
from experiments.runs.recovery import Unlearning, error_text
from experiments.runs.spec import Spec
from fkgsec.data.graph import FederatedGraph
from fkgsec.federation.exchange import Exchange, MakeExchange, Received, Uploaded
from fkgsec.federation.messages import Channel, client_party
from fkgsec.federation.options import FederationOptions
from fkgsec.federation.recipes import RECIPES, Table
from fkgsec.unlearning.unlearning import UnlearnOptions

FAR = 1e9  # a value that no training brings back within the clip


class UncheckedBroadcasts(BoundBroadcasts):
    """Clients that take what they are sent, and sessions that do not depend on it."""

    def extend(self, party: str, what: str, round: int, commitment: bytes) -> None:
        """Nothing is remembered."""

    def check(self, round: int, table: Table, party: str, rows: Tensor, largest: np.ndarray | float) -> None:
        """Nothing is refused."""

    def require_rows(self, round: int, table: Table, parties: Collection[str]) -> None:
        """Nothing is refused."""


def active_server(
    target: str, *, at: int, value: float = FAR, unprotected: bool = False, withheld: bool = False
) -> MakeExchange:
    """An exchange whose server sends every client but the target (a party) `value` throughout, after round `at`.

    The target is sent the server's table; `withheld`: no rows, and the commitment to what the others were sent, as if it sat the
    next round out. Then with `value` 0 nothing is refused, and entities of ComplEx and RotatE stay at zeros.
    """

    def make(
        channel: Channel, options: FederationOptions, parties: Sequence[str], tables: Sequence[Table], run: str
    ) -> Exchange:
        """The exchange of the run, its server replaced by the active one."""
        sparse = RECIPES[options.algorithm].codec == "top-k"
        kind = _active(SparseSums if sparse else DefendedExchange, target, at, value, withheld)
        exchange = kind(channel, options, parties, tables, run)
        if unprotected:
            exchange._bound = UncheckedBroadcasts(channel, parties, whole=exchange.defense.psu is not None)
        return exchange

    return make


def _active(base: Any, target: str, at: int, value: float, withheld: bool) -> Any:
    class Active(base):
        """See `active_server`."""

        def broadcast(self, round: int, table: Table, parties: Sequence[str]) -> dict[str, Received]:
            if withheld and round == at:
                self.server[table].rows = torch.full_like(self.server[table].rows, value)
                parties = [party for party in parties if party != target]
            return super().broadcast(round, table, parties)

        def _table_for(self, round: int, table: Table, party: str) -> Tensor:
            own = super()._table_for(round, table, party)
            if round != at or party == target:
                return own
            far, width = own.clone(), self.server[table].rows.shape[1]
            far[:, :width] = value  # what follows is FedS's count
            return far

        def upload(self, round: int, table: Table, rows: Mapping[str, Tensor]) -> Uploaded:
            outcome = super().upload(round, table, rows)
            if round == at + 1:
                encoding = self._encodings[table]
                shape = tuple(self.server[table].rows.shape)
                part = torch.from_numpy(encoding.decode(encoding.encode(np.full(shape, value)).values))
                self.known[table] = {party: part for party in rows if party != target}
            return outcome

    return Active


def echoing_others(
    channel: Channel, options: FederationOptions, parties: Sequence[str], tables: Sequence[Table], run: str
) -> Exchange:
    """An exchange in which an unlearning is not refused, and clients that did not ask send back what the server sent them."""

    class Echoing(DefendedExchange):
        """See `echoing_others`."""

        def __init__(self, *parts: Any) -> None:
            super().__init__(*parts)
            self.sums = False

        def senders(self, requesting: Sequence[int], colluders: int) -> list[int]:
            return list(range(len(self.parties)))

    return Echoing(channel, options, parties, tables, run)


def main() -> None:
    """Print what `compare` finds on the embedded hospitals, five clients, with and without the defenses, as Markdown."""
    spec = Spec(
        clients=5, size=1500, dim=32, rounds=4, eval_every=4, num_negatives=16, batch_size=128, colluder="hospital-1"
    )
    graph = spec.load_graph()
    target = graph.clients[1]
    forget = Unlearning({target.name: target.train[:20]}, UnlearnOptions(method="finetune", decay_epochs=3))
    party, lines = client_party(target.name), []
    for case in ("psu,secagg", "secagg", "psu,secagg,suppress:t=2", "fedr/psu,secagg", "fedlu/psu,secagg"):
        for server, exchange, unlearning in (
            ("follows the protocol", make_exchange, forget),
            ("follows the protocol; others echo", echoing_others, forget),
            ("active", active_server(party, at=3), None),
            ("active; clients do not check", active_server(party, at=3, unprotected=True), None),
        ):
            lines += _rows(spec, graph, case, server, target.name, exchange, unlearning)
    sys.stdout.write("| case | server | round | cosine | base | error | base |\n|---|---|---|---|---|---|---|\n")
    sys.stdout.write("\n".join(lines) + "\n")


def _rows(
    spec: Spec,
    graph: FederatedGraph,
    case: str,
    server: str,
    target: str,
    exchange: MakeExchange,
    unlearning: Unlearning | None,
) -> list[str]:
    """What the server alone knows of the target's change, a row for the last round and one for an unlearning."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            (done,) = compare(
                spec, graph, Path(folder), [case], observe=unobserved, unlearning=unlearning, exchange=exchange
            ).cases
        except BroadcastError as error:
            return [f"| {case} | {server} | 4 | ends: {error} | | | |"]
    rounds = [("4", done.record.update_recovery)] if unlearning is None or exchange is make_exchange else []
    rounds += [("unlearning", done.unlearned)] if unlearning else []
    return [
        f"| {case} | {server} | {number} | {row.cosine.value:.3f} | {row.base_cosine.value:.3f} | "
        f"{error_text(row.relative_error)} | {error_text(row.base_relative_error)} |"
        for number, updates in rounds
        for row in updates
        if row.victim == target and row.threat_model == "server"
    ]


if __name__ == "__main__":
    main()
