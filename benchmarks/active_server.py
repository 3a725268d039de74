"""An active server, and clients with or without defenses against it, for tests and `results/defended`.

    python -m benchmarks.active_server        # both comparisons on the generated hospitals, as tables in Markdown

After one round, the server broadcasts a table far beyond the clip to all clients but one. They upload the clip in every
value. The server subtracts it from the next round's sum; the rest is the upload of the last client. Alternatively, it
sends them zeros, which entities of ComplEx and RotatE never leave, and only the commitment to the last client. Source:
Pasquini, Francati and Ateniese, "Eluding secure aggregation in federated learning via model inconsistency", 2022.

`fkgsec attack --attack server-active` (`fkgsec.attacks.sums.inconsistent`) runs the first attack against clients that check. A
test of the defense runs it against `unprotected` clients, too, to show that the attack works without the defense.
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
    """History that does not depend on the messages sent."""

    def extend(self, what: str, round: int, commitment: bytes) -> None:
        """Do nothing.

        Args:
            what, round, commitment: as in `SentBroadcasts.extend`.
        """


class UncheckedBroadcasts(ReceivedBroadcasts):
    """Client that accepts every broadcast, and whose sessions do not depend on it."""

    def extend(self, what: str, round: int, commitment: bytes) -> None:
        """Do nothing.

        Args:
            what, round, commitment: as in `ReceivedBroadcasts.extend`.
        """

    def check(self, round: int, table: Table, rows: Tensor, largest: np.ndarray | float) -> None:
        """Accept the rows.

        Args:
            round, table, rows, largest: as in `ReceivedBroadcasts.check`.
        """

    def require_rows(self, round: int, table: Table) -> None:
        """Accept missing rows.

        Args:
            round, table: as in `ReceivedBroadcasts.require_rows`.
        """


class UnprotectedTransport(DefendedTransport):
    """Transport whose clients check nothing."""

    sent_log, received_log = Forgetful, UncheckedBroadcasts

    def upload(self, round: int, table: Table, rows: Mapping[str, Tensor], **refusals: Any) -> Uploaded:
        """Aggregate all uploads, including those that clients should refuse.

        Args:
            round, table, rows, refusals: as in `DefendedTransport.upload`.
        """
        return super().upload(round, table, rows)


def active_server(
    target: str, *, at: int, value: float = FAR, unprotected: bool = False, withheld: bool = False
) -> MakeTransport:
    """Build a transport whose server sends `value` to every client except the target, after round `at`.

    The target receives the server's table, or if `withheld`, only the commitment to the broadcast, as if it skipped the
    next round.
    With `value` 0 nothing is then refused, and entities of ComplEx and RotatE stay at zero.

    Args:
        target: party name of the victim.
        at: round whose broadcast is manipulated.
        value: sent in every value.
        unprotected: whether clients skip their checks.
        withheld: whether the target receives no rows.
    """
    # The same server in both cases; only the clients differ.
    base: Any = UnprotectedTransport if unprotected else DefendedTransport

    class Active(base):
        """Transport with the active server; see `active_server`."""

        def broadcast(self, round: int, table: Table, parties: Sequence[str]) -> dict[str, Received]:
            """Replace the server's table by `value` and skip the target, if rows are withheld from it.

            Args:
                round, table, parties: as in `DefendedTransport.broadcast`.
            """
            if withheld and round == at:
                self.server[table].rows = torch.full_like(self.server[table].rows, value)
                parties = [party for party in parties if party != target]
            return super().broadcast(round, table, parties)

        def _content_for(self, round: int, table: Table, party: str, content: Tensor) -> Tensor:
            if round != at or party == target:
                return content
            far, width = content.clone(), self.server[table].rows.shape[1]
            far[:, :width] = value  # FedS appends counts to its rows
            return far

        def upload(self, round: int, table: Table, rows: Mapping[str, Tensor], **refusals: Any) -> Uploaded:
            """Aggregate uploads, and store the summands that the server knows.

            Args:
                round, table, rows, refusals: as in `DefendedTransport.upload`.
            """
            outcome = super().upload(round, table, rows, **refusals)
            if round == at + 1:
                # The other clients' summands are the clipped encoding of `value`.
                encoding, shape = self.terms.encodings[table], tuple(self.server[table].rows.shape)
                part = torch.from_numpy(encoding.decode(encoding.encode(np.full(shape, value)).values))
                self.known[table] = {party: part for party in rows if party != target}
            return outcome

    transport: Any = Active
    return transport


class EchoingOthers(DefendedTransport):
    """Transport whose other clients return the server's broadcast in an unlearning round.

    Attributes:
        checked: whether clients refuse steps that are not due (`fkgsec.federation.order`).
    """

    checked = False

    def upload(self, round: int, table: Table, rows: Mapping[str, Tensor], **refusals: Any) -> Uploaded:
        """Aggregate the uploads, including those that clients should refuse unless they are `checked`.

        Args:
            round, table, rows, refusals: as in `DefendedTransport.upload`.
        """
        return super().upload(round, table, rows, **(refusals if self.checked else {}))

    @property
    def sums(self) -> bool:
        """Return False, so that the others do not train."""
        return False

    def senders(self, requesting: Sequence[int], colluders: int) -> list[int]:
        """Return all clients.

        Args:
            requesting, colluders: as in `DefendedTransport.senders`.
        """
        return list(range(len(self.parties)))


def main() -> None:
    """Print the comparisons on the generated hospitals, five clients, with and without the defenses, as Markdown."""
    # Small, so that all cases run in minutes.
    spec = Spec(
        clients=5, size=1500, dim=32, rounds=4, eval_every=4, num_negatives=16, batch_size=128, colluder="hospital-1"
    )
    target = spec.load_graph().clients[1]
    forget = Unlearning({target.name: target.train[:20]}, UnlearnOptions(method="finetune", decay_epochs=3))
    party, rows = client_party(target.name), []
    # Each case with an honest and an active server, with and without the clients' checks.
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
    """Return the figures of the server's estimate of the target's update: one row for the last round, one for
    unlearning.
    """
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
        # The defense works: clients end the run instead of uploading.
        except BroadcastError as error:
            return [("4", f"ends: {error}", "", "", "")]
    # An exchange of echoing clients concerns the unlearning round only.
    rounds = [("4", done.record.figures)] if unlearning is None or exchange is make_transport else []
    rounds += [("unlearning", done.unlearned)] if unlearning else []
    rows: list[tuple[str, ...]] = []
    for number, figures in rounds:
        of_target = [
            entry
            for entry in figures
            if (entry.attack, entry.victim, entry.threat_model) == (UPDATE_RECOVERY, target, "server")
        ]
        for pair in zip(of_target[::2], of_target[1::2], strict=True):  # cosine and error of one table
            parts = [part for entry in pair for part in (entry.estimate, entry.baseline)]
            rows.append((number, *("" if part is None else share_text(part.value) for part in parts)))
    return rows


def share_text(value: float) -> str:
    """Format an error: three decimals in the usual range, powers of ten otherwise.

    Args:
        value: the error.
    """
    return f"{value:.3f}" if 0.001 <= abs(value) < 100 or not value else f"{value:.0e}"


if __name__ == "__main__":
    main()
