"""Server model that each part of a defense withstands, and the number of colluders: never overstated.

    >>> from fkgsec.defenses.options import parse_defense
    >>> uploads = withstood(parse_defense("psu,secagg,suppress:t=2"), 5, 5, threshold=4, bound=True)[1]
    >>> uploads.part, uploads.server, uploads.colluders
    ('single uploads', 'follows the protocol', 2)

Two assumptions hold throughout. Clients know each other's identity keys from another source: a server that distributes them can
run clients of its own, which count as colluders. Colluders follow their own program.

No sum is said to withstand an active server. Even if all clients train from one table, the server chooses it. With DistMult,
ComplEx and RotatE, a client has gradient zero at a row of zeros. A table of zeros except for rows that one client holds thus
leaves that client's part in the sum. Only noise that a client adds by itself is independent of what the server sends.

A single sum hides its parts, but many do not. The difference of each round's sum to its starting table is linear in the
participants. Least squares over rounds with other participants therefore gives each client's mean change (Lam et al., "Gradient
disaggregation", 2021). For three of five clients that hold UMLS by relations, 30 sums give it with a cosine of 0.95, where
the mean of a sum gives 0.67.
"""

from __future__ import annotations

from fkgsec.defenses.options import Defense
from fkgsec.federation.protection import Withstands
from fkgsec.protocols.secagg import safe_threshold


def withstood(
    defense: Defense, num_parties: int, num_clients: int, *, threshold: int, bound: bool
) -> tuple[Withstands, ...]:
    """List for each part of the defense the server and the colluders that it withstands.

    The parts are the client's holdings, its upload, rare rows, and values under noise.

    Args:
        num_parties: of the federation; all take part in private set union.
        num_clients, threshold: of a round's session.
        bound: True if the session of a sum contains the broadcast that clients trained from, and all of them have its rows.
    """
    models = []
    if defense.secagg is None:
        if defense.dp is not None:
            models.append(
                Withstands(part="which rows a client holds", server="none", limit="the alignment is in plaintext")
            )
            models.append(_local(num_clients))
        return tuple(models)
    shared = {"threshold": threshold, "num_clients": num_clients}
    # A threshold of t opens the sum of at least t clients. Colluders subtract their own parts. Two others must remain, or the
    # sum is one client's upload: at most t - 2 collude.
    honest = max(0, threshold - 2)
    if defense.psu:
        limit = (
            "private set union has no proof against an active server; counts of holders in rounds with other survivors tell of "
            "them afterwards"
        )
        models.append(
            Withstands(
                part="who brought a name to the alignment",
                server="follows the protocol",
                colluders=max(0, min(honest, safe_threshold(num_parties) - 2)),
                limit=limit,
            )
        )
    else:
        models.append(
            Withstands(part="which rows a client holds", server="none", limit="the alignment is in plaintext")
        )
    uploads = _uploads(defense, num_clients, threshold, bound=bound, sampled=num_clients < num_parties)
    models.append(uploads)
    if defense.suppress:
        limit = "one that lies about the counts, or a client that counts itself several times, opens rare rows"
        server = "follows the protocol"
        colluders = min(honest, defense.suppress.t - 2)
        models.append(
            Withstands(part="rows with few holders", server=server, colluders=colluders, limit=limit, **shared)
        )
    if defense.distributed_noise:
        assert defense.dp is not None
        num_colluders = 1 if defense.dp.colluders is None else defense.dp.colluders
        limit = f"noise is enough with {num_colluders} colluders (dp:colluders)"
        models.append(
            Withstands(
                part="values under noise",
                server=uploads.server,
                colluders=min(num_colluders, uploads.colluders),
                limit=limit,
                **shared,
            )
        )
    elif defense.dp is not None:
        models.append(_local(num_clients))
    return tuple(models)


def _local(num_clients: int) -> Withstands:
    """Describe noise that each client adds alone: it protects against any server message and any collusion."""
    return Withstands(part="values under noise", server="active", colluders=num_clients - 1)


def _uploads(defense: Defense, num_clients: int, threshold: int, *, bound: bool, sampled: bool) -> Withstands:
    assert defense.secagg is not None
    limits = [] if defense.suppress else ["a row with one holder in the sum beside the colluders is opened as it is"]
    if not defense.secagg.complete:
        limits.append("one that drops a client from a sum reads which rows it holds off the difference to another sum")
    when = "rounds have other participants, and" if sampled else "where other clients survive from round to round,"
    limits.append(f"{when} the sums of many rounds give each client's mean change of a row")
    neighbours = defense.secagg.neighbours
    if neighbours is not None:
        limits.append("colluders must stand at random places of the graph of masks")
        if not defense.secagg.complete:
            limits.append(
                f"one that lies about who survives opens the sum of as few as {threshold} clients that it chooses"
            )
    if not bound:
        limits.append("one that sends clients different tables, or one of them no rows, reads uploads off the sum")
    elif not defense.psu:
        limits.append("one that gives one name different places reads rows off the sum")
    limits.append("one that sends everybody a table of its choice can leave one client's part in the sum")
    return Withstands(
        part="single uploads",
        server="follows the protocol",
        colluders=max(0, threshold - 2) if neighbours is None else 0,
        threshold=threshold,
        num_clients=num_clients if neighbours is None else neighbours + 1,
        limit="; ".join(limits),
    )
