"""An active server, and clients with or without the defenses against it, for tests and `results/defended`.

    python -m benchmarks.active_server        # both comparisons on the embedded hospitals, as tables in Markdown

The server sends all clients but one a table far beyond the clip, in the broadcast after one round. They upload the clip in every
value, which the server subtracts from the next round's sum: what is left is the upload of the last client. Or it sends them
zeros, where entities of ComplEx and RotatE stay, and the last client nothing but the commitment. Source: Pasquini, Francati and
Ateniese, "Eluding secure aggregation in federated learning via model inconsistency", 2022.

`fkgsec attack --attack server-active` (`fkgsec.attacks.sums.inconsistent`) plays the first against clients that check.
`unprotected` clients exist so that a test of the defense shows that it would notice.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.rounds import print_table
from fkgsec.attacks.options import UPDATE_RECOVERY
from fkgsec.attacks.sums.inconsistent import FAR
from fkgsec.defenses.bound_broadcasts import ReceivedBroadcasts, SentBroadcasts
from fkgsec.defenses.broadcasts import BroadcastError
from fkgsec.defenses.transport import DefendedTransport, make_transport
from fkgsec.exchange import MakeTransport, Received, Uploaded
from fkgsec.experiments.cli.progress import unobserved
from fkgsec.experiments.runs.compare import Unlearning, compare
from fkgsec.experiments.runs.spec import Spec
from fkgsec.federation.messages import client_party
from fkgsec.federation.recipes import Table
from fkgsec.unlearning.unlearning import UnlearnOptions


class Forgetful(SentBroadcasts):
    """A history that does not depend on what was sent."""

    def extend(self, what: str, round: int, commitment: bytes) -> None:
        """Nothing is remembered."""


class UncheckedBroadcasts(ReceivedBroadcasts):
    """A client that takes what it is sent, and whose sessions do not depend on it."""

    def extend(self, what: str, round: int, commitment: bytes) -> None:
        """Nothing is remembered."""

    def check(self, round: int, table: Table, rows: Tensor, largest: np.ndarray | float) -> None:
        """Nothing is refused."""

    def require_rows(self, round: int, table: Table) -> None:
        """Nothing is refused."""


class UnprotectedTransport(DefendedTransport):
    """A transport whose clients check nothing."""

    sent_log, received_log = Forgetful, UncheckedBroadcasts

    def upload(self, round: int, table: Table, rows: Mapping[str, Tensor], **refusals: Any) -> Uploaded:
        """Aggregate the uploads, also those that clients should refuse."""
        return super().upload(round, table, rows)


def active_server(
    target: str, *, at: int, value: float = FAR, unprotected: bool = False, withheld: bool = False
) -> MakeTransport:
    """A transport whose server sends every client but the target (a party) `value` throughout, after round `at`.

    The target is sent the server's table; `withheld`: no rows, and the commitment to what the others were sent, as if it sat the
    next round out. Then with `value` 0 nothing is refused, and entities of ComplEx and RotatE stay at zeros.
    """
    base: Any = UnprotectedTransport if unprotected else DefendedTransport

    class Active(base):
        """See `active_server`."""

        def broadcast(self, round: int, table: Table, parties: Sequence[str]) -> dict[str, Received]:
            """Of a table of `value`, to all but the target, where rows are withheld from it."""
            if withheld and round == at:
                self.server[table].rows = torch.full_like(self.server[table].rows, value)
                parties = [party for party in parties if party != target]
            return super().broadcast(round, table, parties)

        def _content_for(self, round: int, table: Table, party: str, content: Tensor) -> Tensor:
            if round != at or party == target:
                return content
            far, width = content.clone(), self.server[table].rows.shape[1]
            far[:, :width] = value  # what follows is FedS's count
            return far

        def upload(self, round: int, table: Table, rows: Mapping[str, Tensor], **refusals: Any) -> Uploaded:
            """Afterwards it knows what those it sent `value` put in."""
            outcome = super().upload(round, table, rows, **refusals)
            if round == at + 1:
                encoding, shape = self.terms.encodings[table], tuple(self.server[table].rows.shape)
                part = torch.from_numpy(encoding.decode(encoding.encode(np.full(shape, value)).values))
                self.known[table] = {party: part for party in rows if party != target}
            return outcome

    made: Any = Active
    return made


class EchoingOthers(DefendedTransport):
    """A transport whose other clients send back in an unlearning round what the server sent them.

    Attributes:
        checked: whether clients refuse steps that are not due (`fkgsec.federation.order`).
    """

    checked = False

    def upload(self, round: int, table: Table, rows: Mapping[str, Tensor], **refusals: Any) -> Uploaded:
        """Aggregate the uploads, also those that clients should refuse if they are not `checked`."""
        return super().upload(round, table, rows, **(refusals if self.checked else {}))

    @property
    def sums(self) -> bool:
        """Denied, so that the others do not train."""
        return False

    def senders(self, requesting: Sequence[int], colluders: int) -> list[int]:
        """All."""
        return list(range(len(self.parties)))


def main() -> None:
    """Print what `compare` finds on the embedded hospitals, five clients, with and without the defenses, as Markdown."""
    spec = Spec(
        clients=5, size=1500, dim=32, rounds=4, eval_every=4, num_negatives=16, batch_size=128, colluder="hospital-1"
    )
    target = spec.load_graph().clients[1]
    forget = Unlearning({target.name: target.train[:20]}, UnlearnOptions(method="finetune", decay_epochs=3))
    party, rows = client_party(target.name), []
    for case in ("psu,secagg", "secagg", "psu,secagg,suppress:t=2", "fedr/psu,secagg", "fedlu/psu,secagg"):
        for server, exchange, unlearning in (
            ("follows the protocol", make_transport, forget),
            ("follows the protocol; others echo", EchoingOthers, forget),
            ("active", active_server(party, at=3), None),
            ("active; clients do not check", active_server(party, at=3, unprotected=True), None),
        ):
            rows += [(case, server, *row) for row in _rows(spec, case, target.name, exchange, unlearning)]
    print_table("An active server", ("case", "server", "round", "cosine", "base", "error", "base"), rows)


def _rows(
    spec: Spec, case: str, target: str, exchange: MakeTransport, unlearning: Unlearning | None
) -> list[tuple[str, ...]]:
    """Figures of the server alone on the target's change: a row for the last round and one for an unlearning."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            (done,) = compare(
                spec,
                spec.load_graph(),
                Path(folder),
                [case],
                observe=unobserved,
                unlearning=unlearning,
                exchange=exchange,
            ).cases
        except BroadcastError as error:
            return [("4", f"ends: {error}", "", "", "")]
    rounds = [("4", done.record.figures)] if unlearning is None or exchange is make_transport else []
    rounds += [("unlearning", done.unlearned)] if unlearning else []
    rows: list[tuple[str, ...]] = []
    for number, figures in rounds:
        of_target = [
            one for one in figures if (one.attack, one.victim, one.threat_model) == (UPDATE_RECOVERY, target, "server")
        ]
        for pair in zip(of_target[::2], of_target[1::2], strict=True):  # cosine and error of one table
            parts = [part for one in pair for part in (one.estimate, one.baseline)]
            rows.append((number, *("" if part is None else share_text(part.value) for part in parts)))
    return rows


def share_text(value: float) -> str:
    """Errors span many orders: three decimals of those that matter, powers of ten of the others."""
    return f"{value:.3f}" if 0.001 <= abs(value) < 100 or not value else f"{value:.0e}"


if __name__ == "__main__":
    main()
