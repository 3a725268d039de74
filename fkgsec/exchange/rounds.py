"""Alignment, broadcast and upload of one table in plaintext, each as a pair of generators: the server's half and a client's.

    run(server_upload(server, 1, parties), {party: client_upload(clients[party], 1, rows[party]) for party in parties}, deliver)

A frame is a tuple of messages that are sent together. `Transport` runs the pairs with all parties in one process. A driver for a
network encodes the messages of a frame (`fkgsec.federation.messages.encode`), and runs a client's half where its table and rows
are: it needs a `TableClient` and nothing of the server. See `fkgsec.protocols.core.rounds` for what a generator yields and
receives.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor

from fkgsec.errors import FkgsecError, RunError
from fkgsec.exchange.client import TableClient
from fkgsec.exchange.parts import Received, Upload, Uploaded
from fkgsec.exchange.server import TableServer
from fkgsec.federation.messages import SERVER, Alignment, AnyMessage
from fkgsec.federation.recipes import Table
from fkgsec.protocols.core.rounds import NOTHING, Ask, ClientRound, Replies, ServerRound, Silence

Frames = tuple[AnyMessage, ...]
LARGEST_VALUE = 1e9
"""Largest absolute value of an upload. The square of the product of two such numbers fits float32, and so do scores, gradients
and Adam's moments."""


def server_alignment(server: TableServer, parties: Sequence[str]) -> ServerRound[None]:
    """Receive what each client holds.

    Args:
        parties: all clients; each must answer.

    Raises:
        RunError: another message, or a silent client.
    """
    replies = yield Ask("alignment", dict.fromkeys(parties, NOTHING))
    for party, message in _spoken(replies):
        if not isinstance(message, Alignment):
            raise RunError(f"{party} sent {message.label}; an alignment was expected")
        # The sender in the message must be the party that the channel names: no client can speak for another.
        check_header(message, 0, party, SERVER, server.shared.table)
        server.shared.align(message)
    if silent := [party for party in parties if party not in server.shared.holdings]:
        raise RunError(f"{', '.join(silent)} sent no alignment of {server.shared.table}")


def client_alignment(client: TableClient) -> ClientRound[None]:
    """Send the names that the client holds."""
    yield (client.alignment(),)


def server_broadcast(server: TableServer, round: int, parties: Sequence[str]) -> ServerRound[None]:
    """Send each of these clients its rows.

    Args:
        parties: receivers.
    """
    yield Ask("broadcast", {party: (server.message(round, party),) for party in parties})


def client_broadcast(client: TableClient, round: int) -> ClientRound[Received]:
    """Receive a broadcast, and return the client's reading of it. Raises `RunError` for a message that is not due."""
    message = sole((yield NOTHING), SERVER)
    check_header(message, round, SERVER, client.party, client.table)
    return client.receive(message)


def server_upload(server: TableServer, round: int, parties: Sequence[str]) -> ServerRound[Uploaded]:
    """Receive the uploads and aggregate them. If none arrives, the table stays.

    Args:
        parties: participants of the round.

    Raises:
        RunError: an upload of another round, table or party than its sender, a second one, or one that the codec cannot read.
    """
    uploads: dict[str, Upload] = {}
    excluded: dict[str, str] = {}
    replies = yield Ask("upload", dict.fromkeys(parties, NOTHING))
    for party, message in _spoken(replies):
        check_header(message, round, party, SERVER, server.shared.table)
        if party in uploads or party in excluded:
            raise RunError(f"an upload of {server.shared.table} by {party}, who sent one already")
        upload = server.codec.accept(round, message)
        values = server.codec.values(upload)
        # Leave such an upload out: one NaN in the table would end the training of all clients.
        if not values.isfinite().all():
            excluded[party] = f"its rows of {server.shared.table} have values that are no finite numbers"
        elif not (values.abs() <= LARGEST_VALUE).all():
            excluded[party] = f"its rows of {server.shared.table} have values beyond {LARGEST_VALUE:g}"
        else:
            uploads[party] = upload
    # A codec that sends changes needs an aggregate in every round: here, no change.
    cut = server.aggregate(round, uploads) if uploads or server.codec.sends_changes else {}
    num_clipped = sum(cut.values()) * server.shared.rows.shape[1]
    return Uploaded(
        len(uploads),
        num_clipped,
        excluded,
        {party: (rows, len(uploads[party].rows)) for party, rows in cut.items()},
        changed_levels=server.codec.changed_levels if uploads else None,
    )


def client_upload(client: TableClient, round: int, rows: Tensor) -> ClientRound[None]:
    """Send the client's rows. In plaintext they count as sent at once.

    Args:
        rows: trained, float32 `[num_uploaded, width]`.
    """
    # Encode once: with stochastic rounding, a second encoding would differ from what was sent.
    contribution = client.contribute(round, rows)
    message = client.pack(contribution)
    client.sent(contribution)
    yield (message,)


def _spoken(replies: Replies) -> Iterator[tuple[str, AnyMessage]]:
    for party, reply in replies:
        if not isinstance(reply, Silence):
            yield party, sole(reply, party)


def sole(frame: Frames, sender: str, error: type[FkgsecError] = RunError) -> AnyMessage:
    """Return the only message of a frame.

    Args:
        sender: named in errors. error: class to raise for none or several messages.
    """
    if len(frame) != 1:
        raise error(f"{sender} sent {len(frame)} messages where one was due")
    return frame[0]


def check_header(
    message: AnyMessage,
    round: int,
    sender: str,
    receiver: str,
    table: Table,
    label: str | None = None,
    error: type[FkgsecError] = RunError,
) -> None:
    """Check that a message has this header.

    Args:
        label: kind; None: any.
        error: class to raise.
    """
    label = message.label if label is None else label
    expected = (label, round, sender, receiver, table)
    got = (message.label, message.round, message.sender, message.receiver, message.table)
    if got != expected:
        raise error(f"{receiver} was to be sent {expected} (kind, round, sender, receiver, table); got {got}")
